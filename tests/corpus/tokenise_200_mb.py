"""Tokenise 200 MB of text, then kill it again and again: the same bytes, in bounded memory.

    python tests/corpus/tokenise_200_mb.py FOLDER [MEGABYTES] [KILLS]

Writes the text into FOLDER, the standard library's source and words drawn by a seeded generator,
as .jsonl, .parquet and .arrow files and one plain one. Then, for bytes and for byte-level BPE, it
tokenises it once unbroken, watching the processor time and the memory of all processes together,
and once with SIGKILL at random moments, and compares every file. Linux, some minutes.
"""

# ruff: noqa: T201

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

STATELAB = (sys.executable, "-m", "statelab")


def make_text(folder, megabytes):
    """Documents of half source code, half drawn words; four kinds of files of equal size."""
    from datasets import Dataset

    from statelab.data.documents import find

    draw = random.Random(0)
    code = [each.read_text(errors="ignore") for each in find("stdlib")]
    words = sorted({word for text in code for word in text.split() if word.isalpha()})
    quarter = megabytes * 10**6 // 4

    def documents():
        size = 0
        while size < quarter:
            text = draw.choice(code) if draw.random() < 0.5 else ""
            text += " ".join(draw.choices(words, k=draw.randint(20, 2000)))
            size += len(text.encode())
            yield text

    folder.mkdir(parents=True)
    with (folder / "a.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in documents())
    Dataset.from_dict({"text": [*documents()]}).to_parquet(folder / "b.parquet")
    Dataset.from_dict({"text": [*documents()]}).save_to_disk(folder / "saved")
    (arrow,) = (folder / "saved").glob("*.arrow")
    arrow.rename(folder / "c.arrow")
    shutil.rmtree(folder / "saved")
    (folder / "d.txt").write_text("\n".join(documents()))


def memory_of(pid):
    """Resident bytes of a process and all below it, as the kernel counts them."""
    total, todo = 0, [pid]
    while todo:
        each = todo.pop()
        try:
            status = Path(f"/proc/{each}/status").read_text()
            total += int(status.partition("VmRSS:")[2].split()[0]) * 1024
            todo += map(int, Path(f"/proc/{each}/task/{each}/children").read_text().split())
        except (OSError, IndexError):
            continue
    return total


def ready_threads(pid):
    """How many threads of a process run, or wait for a core to run on."""
    stats = (file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat"))
    try:
        return sum(stat.rpartition(")")[2].split()[0] == "R" for stat in stats)
    except OSError:
        return 0


def run(arguments, environment, kill_after=None):
    """(seconds, processor seconds, peak of memory, time with two threads ready, killed)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    process = subprocess.Popen(
        [*STATELAB, *arguments],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    peak, killed, ready = 0, False, []
    while process.poll() is None:
        ready.append(ready_threads(process.pid) >= 2)
        peak = max(peak, memory_of(process.pid))
        if kill_after is not None and time.monotonic() - begin > kill_after:
            os.killpg(process.pid, signal.SIGKILL)
            killed = True
            break
        time.sleep(0.05)
    said = process.communicate()[1].decode()
    assert killed or process.returncode == 0, said
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - begin, used, peak, sum(ready) / len(ready), killed


def digests(cache):
    """SHA-256 of every file by name, of all that isn't hidden."""
    return {
        str(file.relative_to(cache)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(cache.rglob("*"))
        if file.is_file()
    }


def main(folder, megabytes=200, kills=10):
    text = folder / "text"
    if not text.exists():
        make_text(text, megabytes)
    size = megabytes * 10**6
    print(f"{megabytes} MB of text in {len([*text.iterdir()])} files, {os.cpu_count()} cores")
    tokenizer = folder / "tokenizer.json"
    if not tokenizer.exists():
        keys = (f"files={text}/*", "vocab_size=32000", f"out={tokenizer}", "max_bytes=50000000")
        seconds, used, peak, *_ = run(("tokenizer", "train", *keys), {})
        print(f"train BPE on 50 MB: {seconds:.1f} s, {used:.1f} s of cores, {peak / 1e6:.0f} MB")
    draw = random.Random(1)
    for name in ("bytes", str(tokenizer)):
        keys = ("experiment=text", "data.name=hf", f"data.path={text}/*", f"data.tokenizer={name}")
        command = ("tokenizer", "shards", *keys, "data.shard_tokens=4000000")
        caches = [folder / f"{Path(name).stem}_{each}" for each in ("whole", "killed")]
        for cache in caches:
            shutil.rmtree(cache, ignore_errors=True)
        seconds, used, peak, ready, _ = run(command, {"STATELAB_CACHE": str(caches[0])})
        print(
            f"{Path(name).stem}: {seconds:.1f} s, {used:.1f} s of cores ({used / seconds:.2f} "
            f"cores; {ready:.0%} of the time two threads or more were ready to run), "
            f"{size / seconds / 1e6:.1f} MB/s, peak {peak / 1e6:.0f} MB in all"
        )
        killed = 0
        while True:
            after = draw.uniform(1, 1 + seconds / 2) if killed < kills else None
            *_, was = run(command, {"STATELAB_CACHE": str(caches[1])}, after)
            killed += was
            if not was:
                break
        whole, broken = map(digests, caches)
        assert whole == broken, set(whole.items()) ^ set(broken.items())
        print(f"{Path(name).stem}: killed {killed} times; all {len(whole)} files are the same")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
