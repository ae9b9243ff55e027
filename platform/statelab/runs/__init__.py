"""Runs: opened, recorded, resumed, found again, and ended truthfully."""
