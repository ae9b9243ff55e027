"""Tracking with MLflow."""

from statelab_mlflow.run import MLflowRun
from statelab_mlflow.tracker import MLflowTracker

__all__ = ["MLflowRun", "MLflowTracker"]
