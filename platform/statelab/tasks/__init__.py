"""Evaluation tasks: what `statelab eval` does with a checkpoint, a file a task."""
