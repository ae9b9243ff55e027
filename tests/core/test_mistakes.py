"""Wrong command lines: each gets exit status 2, and one line with what to do instead."""

import re
import subprocess
import sys

import pytest

from statelab.__main__ import main

PAIR = ("write=gla", "read=plain", "data.name=mqar")
TRAIN = ("train", *PAIR)
TEXT = ("train", "write=gla", "read=plain", "data.name=text")

# The words of the command, and a part of its line.
MISTAKES = {
    "unknown command": (("trian",), "No such command 'trian'. Did you mean 'train'?"),
    "unknown option": (("train", "-x"), "No such option: -x (see `statelab --help`)"),
    "a key as an option": (
        ("train", "--write", "gla"),
        "No such option: --write (see `statelab --help`; a key is written without dashes, "
        "write=VALUE)",
    ),
    "an option without a value": (
        (*TRAIN, "--model.d_model"),
        "--model.d_model needs a value, as in --model.d_model VALUE or model.d_model=VALUE.",
    ),
    "an option in place of a value": (
        (*TRAIN, "--model.d_model", "--json"),
        "--model.d_model needs a value, as in",
    ),
    "a word too many": (("rules", "gla"), "unexpected extra argument(s) (gla)"),
    "no rule": (("train",), "model.write.name is required: say write=NAME, one of deltanet,"),
    "no value": (("show", "gla"), "'gla' is no key=value. Write, for example, optim.lr=1e-3."),
    "no key": (("show", "=3"), "'=3' is no key=value. Write, for example, optim.lr=1e-3."),
    "unknown rule": (
        ("train", "write=delta_net", "read=plain", "data.name=mqar"),
        "unknown write rule 'delta_net'. Did you mean 'deltanet'? Registered: deltanet,",
    ),
    "empty rule": (("train", "write="), "unknown write rule ''. Registered: deltanet,"),
    "unknown data": (
        ("train", "write=gla", "read=plain", "data.name=mqr"),
        "unknown data module 'mqr'. Did you mean 'mqar'?",
    ),
    "unknown experiment": (
        ("train", "experiment=mqr"),
        "unknown experiment 'mqr'. Did you mean 'mqar'?",
    ),
    "no such file": (("train", "experiment=./no.yaml"), "experiment=./no.yaml: no such file."),
    "an experiment that is a list": (
        ("train", "experiment=list.yaml"),
        "list.yaml must hold a mapping of keys, got list.",
    ),
    "an experiment that is no YAML": (
        ("train", "experiment=broken.yaml"),
        "broken.yaml can't be read: while parsing",
    ),
    "unknown arm": (
        ("train", "experiment=interdomain_125m", "arm=softmx"),
        "experiment 'interdomain_125m' has no arm 'softmx'. Did you mean 'softmax'?",
    ),
    "an arm of nothing": (
        (*TRAIN, "arm=small"),
        "arm=small needs an experiment: experiment=NAME.",
    ),
    "unknown key": (
        (*TRAIN, "optim.lrr=1"),
        "unknown key 'optim.lrr'. Did you mean 'optim.lr'?",
    ),
    "a key of another rule": ((*TRAIN, "write.num_modes=3"), "unknown key 'model.write.num_modes'"),
    "a tag without a name": ((*TRAIN, "tags.=x"), "unknown key 'tags.'"),
    "range": ((*TRAIN, "optim.lr=-0.001"), "optim.lr must be > 0, got -0.001."),
    "infinite": ((*TRAIN, "optim.lr=inf"), "optim.lr must be finite, got inf."),
    "one of two": ((*TRAIN, "optim.betas=0.9"), "optim.betas must be [float, float], got '0.9'."),
    "type": ((*TRAIN, "model.d_model=x"), "model.d_model must be int, got 'x'."),
    "switch": ((*TRAIN, "smoke=maybe"), "smoke must be bool, got 'maybe'."),
    "seed": ((*TRAIN, "seed=-1"), "seed must be >= 0 and <= 4294967295, got -1."),
    "choice": (
        (*TRAIN, "optim.schedule=cosin"),
        "optim.schedule must be cosine | wsd | constant, got 'cosin'.",
    ),
    "sizes": (
        ("describe", *PAIR, "model.d_model=128", "model.num_heads=5"),
        "model.num_heads=5 must divide model.d_model=128; try 4 or 8",
    ),
    "odd head": (
        ("describe", *PAIR, "model.head_dim=5", "model.positions=rope"),
        "model.head_dim=5 is odd, and the rotary embedding turns pairs",
    ),
    "vocabulary": (
        (*TRAIN, "model.vocab_size=3"),
        "model.vocab_size=3 is less than the data's 8192 tokens; leave it out, or raise it.",
    ),
    "no room": (
        (*TRAIN, "data.seq_len=2", "data.num_pairs=4"),
        "data.seq_len=2 has no room for data.num_pairs=4",
    ),
    "pair": (
        ("train", "write=gla", "read=softmax", "data.name=mqar"),
        "read rule 'softmax' can't read what 'gla' writes: it requires cache. Pairs that work:",
    ),
    "no rule in a file": (
        ("train", "write=gone.py:Rule", "read=plain", "data.name=mqar"),
        "write rule 'gone.py:Rule' can't be loaded: FileNotFoundError: no such file",
    ),
    "a rule that fails": (
        ("train", "write=broken.py:Rule", "read=plain", "data.name=mqar"),
        "write rule 'broken.py:Rule' can't be loaded: RuntimeError: first second",
    ),
    "layers": (
        (*TRAIN, "model.layers=[memory"),
        "model.layers='[memory': ']' is missing. Write it as",
    ),
    "unknown layer": (
        (*TRAIN, "model.layers=[memry]"),
        "unknown layer 'memry'. Did you mean 'memory'?",
    ),
    "no data": (
        (*TEXT, "data.files=no/*.txt"),
        "/no/*.txt' matches no file. Give a glob such as",
    ),
    "empty data": (
        (*TEXT, "data.files=empty.txt"),
        "/empty.txt' matches only empty files. Give a file with text.",
    ),
    "short data": (
        (*TEXT, "data.files=short.txt", "data.seq_len=5000"),
        "bytes for training, less than one window of data.seq_len=5000",
    ),
    "too many examples": (
        (*TRAIN, "data.num_train=1000000000000"),
        "data.num_train must be >= 1 and <= 100000000, got 1000000000000.",
    ),
    "backend": (
        (*TRAIN, "model.backend=fast"),
        "model.backend must be auto | reference | chunked | fused, got 'fast'.",
    ),
    "devices": (
        (*TRAIN, "trainer.accelerator=cpu", "trainer.devices=1000000"),
        "trainer.devices=1000000: this machine has room for ",
    ),
    "strategy": (
        (*TRAIN, "trainer.strategy=dpp"),
        "trainer.strategy must be auto | ddp | fsdp2, got 'dpp'.",
    ),
    "nodes without a launcher": (
        (*TRAIN, "trainer.accelerator=cpu", "trainer.num_nodes=2"),
        "trainer.num_nodes=2: nothing starts processes on other machines. Start statelab with",
    ),
    "no folder of runs": (
        (*TRAIN, "run_dir="),
        "run_dir= is empty. Give a folder, or leave it out.",
    ),
    "folder": (
        (*TRAIN, "smoke=true", "run_dir=empty.txt"),
        "run_dir=empty.txt can't be written: ",
    ),
    "folder, untracked": (
        (*TRAIN, "smoke=true", "run_dir=empty.txt", "tracking.enabled=false"),
        "run_dir=empty.txt can't be written: ",
    ),
    "eval without a run": (
        ("eval",),
        "eval needs a run: statelab eval run=ID, or an experiment: experiment=NAME.",
    ),
    "eval of no run": (("eval", "run=zzz"), "there is no run 'zzz' under "),
    "eval of a damaged run": (("eval", "run=damaged"), "config.yaml can't be read."),
    "inspect without a run": (("inspect",), "inspect needs a run: statelab inspect run=ID."),
    "inspect with a key": (
        ("inspect", "run=zzz", "seed=1"),
        "inspect takes run, checkpoint, text, out, run_dir, tracking.uri, got seed=1.",
    ),
    "inspect of no run": (("inspect", "run=zzz"), "there is no run 'zzz' under "),
    "runs with a key": (
        ("runs", "seed=1"),
        "sort, limit, run_dir, tracking.uri and tags.NAME, got",
    ),
    "runs of a status": (
        ("runs", "status=done"),
        "status must be RUNNING | FINISHED | FAILED | KILLED, got 'done'.",
    ),
    "runs without an id": (("runs", "run="), "run= is empty. Give a value, or leave it out."),
    "runs, none": (("runs", "limit=0"), "limit must be a whole number from 1 on, got '0'."),
    "runs with yes": (("runs", "--yes"), "--yes asks for nothing here"),
    "remove nothing": (
        ("runs", "remove", "--yes"),
        "runs remove needs to know which: run=ID[,ID...], or say status=FAILED.",
    ),
    "remove a few": (
        ("runs", "remove", "limit=3"),
        "runs remove takes no limit: it removes all that are meant.",
    ),
    "remove no run": (
        ("runs", "remove", "run=zzz"),
        "run=zzz is none of the runs of ",
    ),
    "remove an empty id": (
        ("runs", "remove", "run=a,"),
        "run=a,: an id is made of letters and digits, got ''.",
    ),
    "ui with a key": (
        ("ui", "seed=1"),
        "ui takes experiment, study, open, run_dir, tracking.uri, host and port, got seed=1.",
    ),
    "ui with a port": (("ui", "port=http"), "port must be a number from 1 to 65535, got 'http'."),
    "port out of range": (("ui", "port=0"), "port must be a number from 1 to 65535, got '0'."),
    "ui, a wish": (("ui", "open=maybe"), "open must be true or false, got 'maybe'."),
    "bench of nothing": (
        ("bench", "kernel"),
        "unknown benchmark 'kernel'. Did you mean 'kernels'?",
    ),
}


@pytest.fixture
def folder(away):
    """The current folder, with files that are no good."""
    (away / "empty.txt").touch()
    (away / "short.txt").write_text("a few words " * 50)
    (away / "list.yaml").write_text("- 1\n")
    (away / "broken.yaml").write_text("a: [\n")
    (away / "broken.py").write_text("raise RuntimeError('first\\nsecond')")
    (away / "damaged/checkpoints").mkdir(parents=True)
    (away / "damaged/checkpoints/last.ckpt").touch()
    (away / "damaged/config.yaml").write_text("{")
    return away


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_exit_status_two(folder, capsys, mistake):
    words, message = MISTAKES[mistake]
    with pytest.raises(SystemExit) as ended:
        main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert re.fullmatch(r"statelab: .+\n", err), err
    assert message in err
    assert not (folder / "runs").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake", ["unknown command", "unknown key", "no data", "eval of no run", "ui with a port"]
)
def test_a_mistake_looks_the_same_from_a_shell(folder, mistake):
    words, message = MISTAKES[mistake]
    done = subprocess.run(
        [sys.executable, "-m", "statelab", *words], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"statelab: .+\n", done.stderr), done.stderr
    assert message in done.stderr
