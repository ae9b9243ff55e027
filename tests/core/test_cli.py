"""The command line: what it prints where, its exit status, and one line on each mistake."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statelab.__main__ import main
from statelab.language_model import LanguageModel


@pytest.fixture
def statelab(away, capsys):
    """Run a command in an empty folder; returns exit status, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


@pytest.fixture
def untracked(toy):
    return lambda *overrides: toy("tracking.enabled=false", *overrides)


PAIR = ("write=gla", "read=plain", "data.name=mqar")

MISTAKES = {
    "unknown command": (("trian",), "No such command 'trian'. Did you mean 'train'?"),
    "unknown option": (("train", "--fast"), "No such option: --fast"),
    "no rule": (("train",), "model.write.name is required: say write=NAME, one of deltanet,"),
    "no key": (("show", "gla"), "'gla' is no key=value. Write, for example, optim.lr=1e-3."),
    "unknown rule": (
        ("train", "write=delta_net", "read=plain", "data.name=mqar"),
        "unknown write rule 'delta_net'. Did you mean 'deltanet'? Registered: deltanet,",
    ),
    "unknown experiment": (
        ("train", "experiment=mqr"),
        "unknown experiment 'mqr'. Did you mean 'mqar'?",
    ),
    "no such file": (
        ("train", "experiment=./no.yaml"),
        "experiment=./no.yaml: no such file.",
    ),
    "unknown arm": (
        ("train", "experiment=interdomain_125m", "arm=softmx"),
        "experiment 'interdomain_125m' has no arm 'softmx'. Did you mean 'softmax'?",
    ),
    "unknown key": (
        ("train", *PAIR, "optim.lrr=1"),
        "unknown key 'optim.lrr'. Did you mean 'optim.lr'?",
    ),
    "range": (("train", *PAIR, "optim.lr=-0.001"), "optim.lr must be > 0, got -0.001."),
    "type": (("train", *PAIR, "model.d_model=x"), "model.d_model must be int, got 'x'."),
    "sizes": (
        ("describe", *PAIR, "model.d_model=128", "model.num_heads=5"),
        "model.num_heads=5 must divide model.d_model=128; try 4 or 8",
    ),
    "odd head": (
        ("describe", *PAIR, "model.head_dim=5", "model.positions=rope"),
        "model.head_dim=5 is odd, and the rotary embedding turns pairs",
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
        ("train", *PAIR, "model.layers=[memory"),
        "model.layers='[memory': ']' is missing. Write it as",
    ),
    "no data": (
        ("train", *PAIR[:2], "data.name=text", "data.files=no/*.txt"),
        "/no/*.txt' matches no file. Give a glob such as",
    ),
    "empty data": (
        ("train", *PAIR[:2], "data.name=text", "data.files=empty.txt"),
        "/empty.txt' matches only empty files. Give a file with text.",
    ),
    "backend": (
        ("train", *PAIR, "model.backend=fast"),
        "model.backend must be auto | reference | chunked | fused, got 'fast'.",
    ),
    "folder": (
        ("train", *PAIR, "smoke=true", "run_dir=empty.txt"),
        "run_dir=empty.txt can't be written: ",
    ),
    "folder, untracked": (
        ("train", *PAIR, "smoke=true", "run_dir=empty.txt", "tracking.enabled=false"),
        "run_dir=empty.txt can't be written: ",
    ),
    "eval without a run": (("eval",), "eval needs a run: statelab eval run=ID."),
    "eval of no run": (("eval", "run=zzz"), "there is no run 'zzz' under "),
    "eval of a damaged run": (("eval", "run=damaged"), "config.yaml can't be read."),
    "inspect without a run": (("inspect",), "inspect needs a run: statelab inspect run=ID."),
    "inspect with a key": (
        ("inspect", "run=zzz", "seed=1"),
        "inspect takes run, checkpoint, text, out, run_dir, tracking.uri, got seed=1.",
    ),
    "inspect of no run": (("inspect", "run=zzz"), "there is no run 'zzz' under "),
    "ui with a key": (
        ("ui", "seed=1"),
        "ui takes experiment, open, run_dir, tracking.uri, host and port, got seed=1.",
    ),
    "ui with a port": (("ui", "port=http"), "port must be a number from 1 to 65535, got 'http'."),
    "port out of range": (("ui", "port=0"), "port must be a number from 1 to 65535, got '0'."),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_exit_status_two(statelab, away, mistake):
    (away / "empty.txt").touch()
    (away / "broken.py").write_text("raise RuntimeError('first\\nsecond')")
    (away / "damaged/checkpoints").mkdir(parents=True)
    (away / "damaged/checkpoints/last.ckpt").touch()
    (away / "damaged/config.yaml").write_text("{")
    arguments, message = MISTAKES[mistake]
    status, out, err = statelab(*arguments)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"statelab: .+\n", err), err
    assert message in err
    assert not (away / "runs").exists()


def test_a_mistake_with_json_prints_none(statelab):
    status, out, err = statelab("train", *PAIR, "optim.lr=0", "--json")
    assert (status, out) == (2, "")
    assert err == "statelab: optim.lr must be > 0, got 0.0.\n"


def test_alone_it_says_what_to_type_next(statelab):
    status, out, err = statelab()
    assert (status, err) == (0, "")
    commands = [line.split("  ")[0] for line in out.splitlines()]
    assert commands[0] == "statelab train experiment=mqar smoke=true"
    assert len(commands) == 3


def test_help_names_every_command(statelab):
    status, out, _ = statelab("--help")
    assert status == 0
    for command in ("rules", "keys", "show", "describe", "train", "eval", "inspect", "ui", "bench"):
        assert f" {command} " in out


def test_rules_are_listed_with_what_they_are(statelab):
    status, out, err = statelab("rules", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"write", "read", "data"}
    assert set(found["write"]) >= {"linear", "gla", "deltanet", "gated_deltanet", "s4d", "kv"}
    assert set(found["read"]) >= {"plain", "ccq", "interdomain", "softmax"}
    assert all(line.endswith(".") for kind in found.values() for line in kind.values())
    _, table, _ = statelab("rules")
    assert "gated_deltanet" in table


def test_keys_are_listed_with_type_default_range_and_meaning(statelab):
    status, out, err = statelab("keys", "--json")
    assert (status, err) == (0, "")
    found = json.loads(out)
    common = {key["name"]: key for key in found["common"]}
    assert common["optim.lr"] == {
        "name": "optim.lr",
        "type": "float",
        "default": "0.001",
        "range": "> 0",
        "doc": "peak learning rate",
    }
    assert "model.write.gate_rank" in {key["name"] for key in found["model.write.name=gla"]}
    assert all(key["doc"] for name, keys in found.items() for key in keys), "a key without a line"
    _, table, _ = statelab("keys")
    assert "[q, k, v]" in table


def test_show_prints_yaml_that_trains_the_same(statelab, away):
    _, out, _ = statelab("show", *PAIR, "seed=3", "tags.note=[:gear:] x")
    (away / "again.yaml").write_text(out)
    _, first, _ = statelab("show", *PAIR, "seed=3", "tags.note=[:gear:] x", "--json")
    _, second, _ = statelab("show", "experiment=again.yaml", "--json")
    assert json.loads(second) == json.loads(first) | {"experiment": "again"}
    assert json.loads(first)["tags"] == {"note": "[:gear:] x"}
    assert re.search(r"seed: 3 +# command line", out)
    assert re.search(r"conv_streams: \[q, k, v\]", out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("model.d_model=64",),
        ("--model.d_model=64",),
        ("--model.d_model", "64"),
    ],
)
def test_a_key_may_be_an_option(statelab, arguments):
    status, out, _ = statelab("show", *PAIR, *arguments, "--json")
    assert status == 0
    assert json.loads(out)["model"]["d_model"] == 64


def test_describe_prints_sizes(statelab, untracked):
    status, out, err = statelab("describe", *untracked(), "--json")
    assert (status, err) == (0, "")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert set(found) == {
        "parameters",
        "state_bytes",
        "memory_bytes",
        "per_layer",
        "flops_per_token",
        "config",
    }
    _, table, _ = statelab("describe", *untracked())
    assert f"{found['parameters']:,}" in table


def test_train_and_eval_print_one_object_and_agree(statelab, untracked):
    status, out, _ = statelab("train", *untracked("trainer.max_steps=2"), "--json")
    assert status == 0
    assert out.count("\n") == 1
    trained = json.loads(out)
    assert set(trained) >= {"run_id", "status", "checkpoint", "best_checkpoint", "metrics"}
    assert trained["status"] == "FINISHED"
    status, out, _ = statelab("eval", f"run={trained['run_id']}", "checkpoint=best", "--json")
    assert status == 0
    assert out.count("\n") == 1
    evaluated = json.loads(out)["metrics"]
    assert evaluated == {name: trained["metrics"][name] for name in evaluated}
    assert evaluated["val/loss"] > 0


def test_the_end_of_a_run_says_what_to_type_next(statelab, untracked):
    _, out, _ = statelab("train", *untracked("trainer.max_steps=1"))
    (command,) = re.findall(r"^statelab (eval run=.*)$", out, re.MULTILINE)
    status, table, _ = statelab(*command.split())
    assert status == 0
    assert "val/loss" in table


def test_inspect_draws_a_checkpoint_and_refuses_what_the_model_cannot_read(statelab, untracked):
    _, out, _ = statelab("train", *untracked("trainer.max_steps=1", "read=ccq"), "--json")
    trained = json.loads(out)
    run = f"run={trained['run_id']}"
    status, out, _ = statelab("inspect", run, "text=5 20 7 21 5", "out=drawn", "--json")
    assert status == 0
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found["run_id"] == trained["run_id"]
    assert {"drawn/weights.png", "drawn/lambda.png"} <= set(found["figures"])
    assert all(Path(each).stat().st_size > 0 for each in found["figures"])

    (Path(trained["folder"]) / "inspect").touch()
    for arguments, message in (
        (["text=5 99"], "token 99 is outside the vocabulary of 32; use the tokenizer"),
        (["text=the cat"], "the tokens of data.name=mqar are numbers, such as '5 40 7 41'; got"),
        (["text=5"], "text has 1 tokens; give from 2 to 256."),
        (["checkpoint=first"], "has no checkpoint 'first'; it has: best, last."),
        ([], "can't be written: File exists"),
    ):
        status, out, err = statelab("inspect", run, *arguments)
        assert (status, out) == (2, "")
        assert message in err


def test_eval_names_a_checkpoint_that_is_damaged(statelab, untracked, away):
    _, out, _ = statelab("train", *untracked("trainer.max_steps=1"), "--json")
    trained = json.loads(out)
    with open(trained["checkpoint"], "r+b") as file:
        file.truncate(1000)
    status, out, err = statelab("eval", f"run={trained['run_id']}")
    assert (status, out) == (2, "")
    assert re.search(r"^statelab: checkpoint .*last\.ckpt can't be read: .*\n\Z", err, re.MULTILINE)


def test_an_interrupt_before_the_training_is_exit_status_130(statelab, untracked, monkeypatch):
    def interrupt(config, device=None):
        raise KeyboardInterrupt

    monkeypatch.setattr("statelab.sizes.build_model", interrupt)
    assert statelab("train", *untracked())[0] == 128 + signal.SIGINT


def test_a_failure_of_ours_is_no_mistake_of_the_user(untracked, away, monkeypatch):
    def fail(self, batch, batch_idx):
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(LanguageModel, "training_step", fail)
    with pytest.raises(ZeroDivisionError):
        main(["train", *untracked()])


@pytest.mark.slow
def test_it_runs_as_a_module_and_as_a_script(away):
    script = Path(sys.executable).with_name("statelab")
    for command in ([sys.executable, "-m", "statelab"], [script]):
        done = subprocess.run(
            [*command, "show", *PAIR, "seed=x"], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "statelab: seed must be int, got 'x'.\n"
