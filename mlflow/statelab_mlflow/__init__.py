"""Tracking with MLflow."""

from statelab_mlflow.run import MLflowRun, resend
from statelab_mlflow.tracker import MLflowTracker

__all__ = ["MLflowRun", "MLflowTracker", "resend"]
