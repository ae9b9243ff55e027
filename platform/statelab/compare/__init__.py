"""Comparison: runs side by side, with intervals, at equal size."""
