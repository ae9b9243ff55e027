"""Write rules: what enters the memory at each token."""
