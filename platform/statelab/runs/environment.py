"""What a run was made with: packages, machine, git commit and uncommitted changes."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import torch

__all__ = ["write_environment"]


def write_environment(folder: Path) -> list[Path]:
    """Write `environment.json`, and `git.diff` where there are uncommitted changes.

    The repository is that of the current folder, if it is one.

    Returns:
        The files.
    """
    commit = _git("rev-parse", "HEAD")
    diff = _git("diff", "HEAD", "--no-ext-diff")
    facts = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu_threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "command": sys.argv,
        "git_commit": commit,
        "git_dirty": bool(diff),
        "packages": dict(sorted((each.name, each.version) for each in distributions())),
    }
    files = [folder / "environment.json"]
    files[0].write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    if diff:
        files.append(folder / "git.diff")
        files[1].write_text(diff + "\n", encoding="utf-8")
    return files


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
