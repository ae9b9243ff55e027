"""The commands, a file for each kind: each imports what it needs when it is called."""
