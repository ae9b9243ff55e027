"""The command line: what it prints where, its exit status, and one line on each mistake."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from statelab.__main__ import main
from statelab.console import print_result
from statelab.language_model import LanguageModel
from statelab.train import Result


@pytest.fixture
def untracked(toy):
    return lambda *overrides: toy("tracking.enabled=false", *overrides)


COMMANDS = (
    "rules",
    "keys",
    "show",
    "describe",
    "train",
    "eval",
    "generate",
    "grid",
    "search",
    "compare",
    "check",
    "inspect",
    "bench",
    "runs",
    "ui",
    "new",
)
PAIR = ("write=gla", "read=plain", "data.name=mqar")


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
    for command in COMMANDS:
        assert f" {command} " in out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_examples_and_fits_a_terminal(statelab, command):
    status, out, err = statelab(*command.split(), "--help")
    assert (status, err) == (0, "")
    assert f"\n  Examples:\n    statelab {command}" in out
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"\w\.\.\.$", out, re.MULTILINE), "a summary is cut off"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("tra", ["train"]),
        ("train wri", {"write=gla", "write=deltanet", "write=kv"}),
        ("train write=gl", ["write=gla"]),
        ("train write = gl", ["gla"]),
        ("train write =", {"gla", "deltanet"}),
        ("train optim.l", ["optim.lr="]),
        ("train optim.schedule=c", {"optim.schedule=cosine", "optim.schedule=constant"}),
        ("train experiment=mq", {"experiment=mqar", "experiment=mqar_small"}),
        ("train smoke=t", ["smoke=true"]),
        ("search search=ccq", ["search=ccq_gates"]),
        ("search search.sam", {"search.sampler=", "search.sampler_options="}),
        ("search n_tr", ["n_trials="]),
        ("grid wor", ["workers="]),
        ("new wr", ["write"]),
    ],
)
def test_the_shell_completes_commands_keys_and_values(typed, offered):
    words = ["statelab", *typed.split()]
    asked = {"COMP_CWORD": str(len(words) - 1), "COMP_WORDS": "\n".join(words)}
    done = subprocess.run(
        [Path(sys.executable).with_name("statelab")],
        env={**os.environ, "_STATELAB_COMPLETE": "complete_bash", **asked},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    found = done.stdout.splitlines()
    assert found == offered if isinstance(offered, list) else set(found) >= offered


def test_completion_imports_no_torch():
    code = "import sys; from statelab.completion import _known; _known()"
    code += "; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_rules_are_listed_with_what_they_are(statelab):
    # In a process of its own: in this one, rules of other tests are registered too.
    command = [sys.executable, "-m", "statelab", "rules", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert set(found) == {"write", "read", "data", "task"}
    assert set(found["write"]) >= {"linear", "gla", "deltanet", "gated_deltanet", "s4d", "kv"}
    assert set(found["read"]) >= {"plain", "ccq", "interdomain", "softmax"}
    lines = [line for kind in found.values() for line in kind.values()]
    assert [line for line in lines if not line.endswith(".")] == []
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
    place = "run_dir=my runs"
    _, out, _ = statelab("train", *untracked("trainer.max_steps=1", place))
    commands = dict(re.findall(r"^statelab (\w+) (.*)$", out, re.MULTILINE))
    assert "ui" not in commands, "the run is in no store"
    for command in ("eval", "runs"):
        words = shlex.split(commands[command])
        assert words[-1] == place
        status, table, _ = statelab(command, *words)
        assert status == 0
        assert "loss" in table


def test_next_commands_are_only_those_that_work(capsys, toy_config):
    result = Result(
        run_id="a" * 32,
        status="KILLED",
        folder=Path("runs/mqar") / ("a" * 32),
        checkpoint=None,
        best_checkpoint=None,
        metrics={},
    )
    print_result(result, toy_config("tracking.uri=sqlite:///my.db"))
    assert [line for line in capsys.readouterr().out.splitlines() if "statelab" in line] == [
        "statelab runs experiment=default tracking.uri=sqlite:///my.db",
        "statelab ui tracking.uri=sqlite:///my.db",
    ]


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


def test_what_ends_itself_in_a_command_does_not_look_done(untracked, away, monkeypatch):
    def leave(self, batch, batch_idx):
        sys.exit(0)

    monkeypatch.setattr(LanguageModel, "training_step", leave)
    with pytest.raises(RuntimeError, match=r"a sys\.exit\(\) inside of the command has ended it"):
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
