"""SLURM's requeueing: a job that must make room ends its run and goes back into the queue.

Lightning's own handler records such a run as finished; it stays out where another is installed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess

__all__ = ["REQUEUE", "in_job", "requeue"]

#: What `#SBATCH --signal=USR1@300` sends, here five minutes before the time is up.
REQUEUE = signal.SIGUSR1

_SECONDS = 60

log = logging.getLogger(__name__)


def in_job() -> bool:
    """Whether this process belongs to a SLURM job."""
    return "SLURM_JOB_ID" in os.environ


def requeue() -> None:
    """Put this job into the queue again, once for all its processes; SLURM then ends it."""
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return
    job = os.environ["SLURM_JOB_ID"]
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=_SECONDS
        )
        problem = done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        log.warning("SLURM doesn't requeue job %s: %s. Submit it again.", job, problem)
