"""Data modules: one file a task, found through entry points."""
