"""Kill a run at random moments, go on with it each time, and compare it with an unbroken one.

    python tests/tracking/kill_ten_times.py [KILLS] [FOLDER]

Both runs take 200 steps. Each SIGKILL comes after at least one new checkpoint, and the second one
in the middle of a save. In the end everything must be equal to the bit: the examples of each batch,
all metrics, weights, optimizer moments, random numbers; and no metric may have two values at a
step, in the run's folder or in the store.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import statelab.train
from statelab.callbacks.checkpoints import AtomicCheckpointIO
from statelab.language_model import LanguageModel
from statelab.loading import load_config
from statelab.runs.resume import load_resumable
from statelab_mlflow.store import connect

STEPS = 200
RUN = f"""write=gla read=ccq model.d_model=32 model.num_layers=2 model.num_heads=2
    data.name=mqar data.vocab_size=64 data.seq_len=32 data.num_pairs=[2,4] data.num_train=100
    data.num_val=16 data.batch_size=4 optim.warmup_steps=10 trainer.max_steps={STEPS}
    trainer.val_every=20 trainer.checkpoint_every=7 trainer.accelerator=cpu
    tracking.figures=false""".split()


def main() -> int:
    """Return 0 if both runs are equal."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp())
    torch.set_num_threads(1)
    seed = time.time_ns()
    say(f"seed {seed}, {folder}")
    moments = random.Random(seed)

    finish(start(train, folder / "whole", [*RUN, f"run_dir={folder}/whole"]))
    (whole,) = folder.glob("whole/default/*/")

    arguments = [*RUN, f"run_dir={folder}/broken"]
    broken = None
    for kill in range(kills):
        in_a_save = kill == 1
        process = start(train, folder / "broken", arguments, in_a_save)
        if in_a_save:
            os.waitpid(process, 0)
        else:
            # A checkpoint is new after 7 steps, so that none is left of the steps too early.
            strike(process, folder, moments.randrange(STEPS // (kills + 1) - 9), moments.random())
        (broken,) = folder.glob("broken/default/*/")
        step = torch.load(broken / "checkpoints/last.ckpt", weights_only=True)["global_step"]
        say(f"killed{' in a save' if in_a_save else ''}; goes on from step {step}")
        arguments = [f"resume={broken.name}", f"run_dir={folder}/broken"]
    finish(start(train, folder / "broken", arguments))

    compare(whole, broken)
    compare_store(folder / "broken" / "mlflow.db", broken.name)
    compare_batches(folder)
    assert not list((broken / "checkpoints").glob(".*")), "a temporary file was left"
    say(json.dumps({"kills": kills, "in_a_save": int(kills > 1), "steps": STEPS}))
    return 0


def say(line: str) -> None:
    """Print it now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def start(work, *arguments) -> int:
    """Do it in a process of its own, and return its id; this one stays without threads."""
    process = os.fork()
    if process == 0:
        try:
            work(*arguments)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process


def finish(process: int) -> None:
    """Wait for a process that is to end well."""
    _, status = os.waitpid(process, 0)
    assert status == 0, f"a process ended with {status}"


def strike(process: int, folder: Path, steps: int, part: float) -> None:
    """Kill it so many steps, and about that part of one, after its first new checkpoint."""
    before = newest(folder)
    wait(process, lambda: newest(folder) > before)
    first = trained(folder)
    wait(process, lambda: trained(folder) >= first + steps)
    time.sleep(0.02 * part)
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, "it ended before it could be killed"


def wait(process: int, reached: Callable[[], bool]) -> None:
    """Look again and again."""
    while not reached():
        assert os.waitpid(process, os.WNOHANG) == (0, 0), "it ended before it could be killed"
        time.sleep(0.001)


def trained(folder: Path) -> int:
    """How many steps all processes have begun."""
    return (folder / "broken" / "batches").read_bytes().count(b"\n")


def newest(folder: Path) -> int:
    """When the last checkpoint was written."""
    files = folder.glob("broken/default/*/checkpoints/last.ckpt")
    return max((file.stat().st_mtime_ns for file in files), default=0)


def train(folder: Path, arguments: list[str], half_a_save: bool = False) -> None:
    """Train; each batch is written down, and each step depends on draws of all kinds."""
    folder.mkdir(parents=True, exist_ok=True)
    batches = os.open(folder / "batches", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    step = LanguageModel.training_step

    def training_step(model: LanguageModel, batch: dict, batch_idx: int) -> torch.Tensor:
        finished = model.trainer.datamodule.batches_finished
        os.write(batches, f"{finished} {zlib.crc32(batch['tokens'].numpy())}\n".encode())
        noise = random.random() + np.random.random() + torch.rand(())
        return step(model, batch, batch_idx) * (1 + 0.01 * noise)

    LanguageModel.training_step = training_step
    if half_a_save:
        AtomicCheckpointIO._replace = dying_in_the_third_save(AtomicCheckpointIO._replace)
    resumes = arguments[0].startswith("resume=")
    config = load_resumable(arguments) if resumes else load_config(None, arguments)
    result = statelab.train.train(config, progress=False)
    assert result.status == "FINISHED"


def dying_in_the_third_save(replace):
    """Write half a file in the third save, and be killed."""
    saves = []

    def half(self, target: Path, checkpoint: dict) -> None:
        saves.append(target)
        if len(saves) == 3:
            whole = target.read_bytes()
            aside = target.with_name(f".{target.name}.x3f")
            aside.write_bytes(whole[: len(whole) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        replace(self, target, checkpoint)

    return half


def compare(whole: Path, broken: Path) -> None:
    """The folders of both runs hold the same."""
    ours, theirs = history(whole), history(broken)
    for name, values in ours.items():
        assert list(values) == list(theirs[name]), f"{name} at other steps"
        if not name.startswith("perf/"):
            assert values == theirs[name], f"other values of {name}"
    assert list(ours["train/loss"]) == list(range(1, STEPS + 1))
    for name in ("last", "best"):
        saved = [
            torch.load(run / f"checkpoints/{name}.ckpt", weights_only=True)
            for run in (whole, broken)
        ]
        for each in saved:
            # Lightning's counters depend on the hook that saved.
            del each["loops"], each["hyper_parameters"]["config"]["run_dir"]
        assert same(*saved), f"other contents of {name}.ckpt"
    lines = [(run / "distributions.jsonl").read_text() for run in (whole, broken)]
    assert lines[0] == lines[1], "other distributions"


def history(run: Path) -> dict[str, dict[int, float]]:
    """Value by metric and step, in their order."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for line in (run / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["step"] not in found[row["key"]], f"two values of {row['key']}"
        found[row["key"]][row["step"]] = row["value"]
    return found


def compare_store(database: Path, run_id: str) -> None:
    """The store has what the folder has, once, and knows the run as finished."""
    client = connect(f"sqlite:///{database}")
    assert client.get_run(run_id).info.status == "FINISHED"
    for name, values in history(next(database.parent.glob(f"*/{run_id}"))).items():
        rows = [(row.step, row.value) for row in client.get_metric_history(run_id, name)]
        assert rows == list(values.items()), f"the store has other values of {name}"


def compare_batches(folder: Path) -> None:
    """Each batch had the same examples, however often it was trained on."""
    whole, broken = (
        {tuple(line.split()) for line in (folder / name / "batches").read_text().splitlines()}
        for name in ("whole", "broken")
    )
    assert whole == broken, "other batches"
    assert len(whole) == STEPS


def same(one, other) -> bool:
    """Whether two nested values are equal to the bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


if __name__ == "__main__":
    sys.exit(main())
