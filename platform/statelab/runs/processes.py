"""The processes of a run: the first one records it, the others follow.

Either the first starts the others itself, on this machine, or a launcher (torchrun, srun) has
started all of them with the same command, on one machine or several. A follower takes
configuration and checkpoint from the run's folder.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed

from statelab.config import Config
from statelab.errors import ProcessError, RunError, StatelabError
from statelab.runs.children import last_words, start_child
from statelab.signals import Pruned

__all__ = ["Launch", "followed", "is_first"]

_POLL_SECONDS = 0.2
_MEETING_SECONDS = 600.0
_END_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """This process among those that a launcher has started.

    Attributes:
        launcher: torchrun or srun.
        rank: Its number; the first is 0.
        world: How many they are.
        job: What no other launch is called.
    """

    launcher: str
    rank: int
    world: int
    job: str

    @classmethod
    def find(cls) -> Launch | None:
        """As the environment says; None where there is no launcher."""
        if "TORCHELASTIC_RUN_ID" in os.environ:
            names = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
            return cls._from("torchrun", "RANK", "WORLD_SIZE", names)
        if int(os.environ.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
            names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
            return cls._from("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", names)
        return None

    @classmethod
    def _from(cls, launcher: str, rank: str, world: str, names: tuple[str, ...]) -> Launch:
        return cls(
            launcher=launcher,
            rank=int(os.environ[rank]),
            world=int(os.environ[world]),
            job="_".join(os.environ.get(each, "0") for each in names),
        )

    @contextmanager
    def lead(self, run_dir: Path, folder: Path, checkpoint: Path | None) -> Iterator[None]:
        """Tell the other processes which run it is."""
        file = self._meeting(run_dir)
        aside = file.with_suffix(".new")
        aside.write_text(json.dumps([str(folder), checkpoint and str(checkpoint)]))
        os.replace(aside, file)
        try:
            yield
        finally:
            file.unlink(missing_ok=True)

    def meet(self, run_dir: Path) -> tuple[Path, Path | None]:
        """Wait for the first process: the run's folder, and the checkpoint to go on from.

        Raises:
            RunError: If it begins no run.
        """
        file, deadline = self._meeting(run_dir), time.monotonic() + _MEETING_SECONDS
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                folder, checkpoint = json.loads(file.read_text())
                return Path(folder), Path(checkpoint) if checkpoint else None
            time.sleep(_POLL_SECONDS)
        raise RunError(
            f"process {self.rank} of {self.world} has found no {file} within "
            f"{_MEETING_SECONDS:.0f} s: the first process begins no run, or writes elsewhere. Look "
            "at what it says, and give all the same run_dir, on a disk that they share."
        )

    def _meeting(self, run_dir: Path) -> Path:
        return run_dir / f".launch_{self.job.replace(os.sep, '_')}"


def is_first() -> bool:
    """Whether this process is the one that speaks for all; a follower never asks."""
    launch = Launch.find()
    return launch is None or launch.rank == 0


@contextmanager
def followed(config: Config, folder: Path, checkpoint: Path | None) -> Iterator[None]:
    """Have the run's other processes train too, while this one does what is inside.

    Args:
        config: The run's.
        folder: The run's, with its configuration.
        checkpoint: Where all go on from; None is the beginning.

    Raises:
        ProcessError: If one of them ends before its time.
    """
    launch, others = Launch.find(), config.trainer.devices - 1
    around: AbstractContextManager[None] = nullcontext()
    if launch is not None:
        around = launch.lead(Path(config.run_dir), folder, checkpoint)
    elif others or config.trainer.strategy != "auto":
        around = _followers(others, folder, checkpoint)
    try:
        with around:
            yield
            # Whoever still waits for this process learns that it is gone.
            _disconnect()
    finally:
        _disconnect()


def _disconnect() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@contextmanager
def _followers(others: int, folder: Path, checkpoint: Path | None) -> Iterator[None]:
    """Start them, wait until they stand before the training, and end them with it."""
    threads = torch.get_num_threads()
    place = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "NODE_RANK": "0",
        "OMP_NUM_THREADS": str(max(1, threads // (others + 1))),
    }
    told = [str(folder), *([str(checkpoint)] if checkpoint else [])]
    children: list[_Follower] = []
    patience = 0.0
    try:
        for rank in range(1, others + 1):
            log = folder / f"process_{rank}.log"
            process = start_child(
                ["statelab.runs.follow", *told],
                log,
                {**place, "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
            )
            children.append(_Follower(process, log, f"process {rank} of {others + 1}"))
        for child in children:
            child.await_ready()
        torch.set_num_threads(int(place["OMP_NUM_THREADS"]))
        with _environment({**place, "LOCAL_RANK": "0"}):
            yield
        patience = _END_SECONDS
    except Pruned:
        patience = _END_SECONDS
        raise
    except StatelabError:
        raise
    except RuntimeError as error:
        # What a broken connection looks like; if this process has failed by itself, they live.
        for child in children:
            child.blame(error)
        raise
    finally:
        torch.set_num_threads(threads)
        for child in children:
            child.end(patience)


@dataclass(frozen=True)
class _Follower:
    process: subprocess.Popen[bytes]
    log: Path
    name: str

    def await_ready(self) -> None:
        """Return when it stands before the training.

        Raises:
            ProcessError: If it ends.
        """
        assert self.process.stdout is not None
        if not self.process.stdout.read(1):
            raise self._failure(self.process.wait())

    def blame(self, error: RuntimeError) -> None:
        """Say what it has died of, if it has; its connections close a moment earlier.

        Raises:
            ProcessError: Then.
        """
        with suppress(subprocess.TimeoutExpired):
            if (status := self.process.wait(1.0)) != 0:
                raise self._failure(status) from error

    def end(self, patience: float) -> None:
        """Wait so many seconds for its own end."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        self.process.kill()
        self.process.communicate()

    def _failure(self, status: int) -> ProcessError:
        why = last_words(status, self.log)
        return ProcessError(f"{self.name} has ended: {why}. The run can be continued.")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
