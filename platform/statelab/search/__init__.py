"""Searches and grids: many runs as the trials of one Optuna study."""
