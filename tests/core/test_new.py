"""`statelab new`: packages that work as they are, and names that it refuses."""

import errno
import json
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest

from statelab.registries import data_modules, read_rules, write_rules

MADE = {"write": "fading", "read": "weighted", "data": "copying"}


@pytest.fixture
def forgetful(monkeypatch):
    """What a test registers is forgotten at its end."""
    for registry in (write_rules, read_rules, data_modules):
        monkeypatch.setattr(registry, "_plugins", dict(registry._plugins))


@pytest.mark.parametrize(("kind", "name"), MADE.items())
def test_a_package_is_four_files_and_says_what_to_type_next(statelab, away, kind, name):
    status, out, err = statelab("new", kind, name)
    assert (status, err) == (0, "")
    files = {file.name for file in (away / name).iterdir()}
    assert files == {"README.md", "pyproject.toml", f"{name}.py", f"test_{name}.py"}
    assert [each.name for each in away.iterdir()] == [name]
    readme = (away / name / "README.md").read_text()
    first, *commands = out.splitlines()
    assert all(f"{name}/{file}" in first for file in files)
    assert commands[0] == f"    cd {name}"
    assert "\n".join(commands[1:]) in readme
    assert any(f"{name} " in each and "train" in each for each in commands)
    project = tomllib.loads((away / name / "pyproject.toml").read_text())["project"]
    groups = {"write": "statelab.write_rules", "read": "statelab.read_rules"}
    assert project["entry-points"] == {groups.get(kind, "statelab.data"): {name: name}}


def test_json_names_the_folder(statelab, away):
    status, out, err = statelab("new", "read", "very_sharp", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "folder": str(away / "very_sharp"),
        "files": ["README.md", "pyproject.toml", "test_very_sharp.py", "very_sharp.py"],
    }
    assert "class VerySharp(ReadRule):" in (away / "very_sharp/very_sharp.py").read_text()


@pytest.mark.parametrize(("kind", "name"), MADE.items())
def test_a_package_is_clean_and_passes_the_tests_that_need_no_installation(
    statelab, away, kind, name
):
    statelab("new", kind, name)
    lint = ("ruff", "check", "--isolated", "--line-length=100", "--select=E,F,W,I,B,UP,PT,RUF,SIM")
    layout = ("ruff", "format", "--isolated", "--line-length=100", "--check")
    tests = ("pytest", "-q", "-k", f"not Test{name.capitalize()}")
    for command in (lint, layout, tests):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=away / name, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("forgetful")
def test_its_rules_and_its_data_train_from_their_files(statelab):
    used = {}
    for kind, name in MADE.items():
        statelab("new", kind, name)
        used[kind] = f"{name}/{name}.py:{name.capitalize()}"
    status, out, _ = statelab(
        "train",
        f"write={used['write']}",
        f"read={used['read']}",
        f"data.name={used['data']}",
        "smoke=true",
        "trainer.accelerator=cpu",
        "--json",
    )
    assert status == 0
    assert json.loads(out)["status"] == "FINISHED"


MISTAKES = {
    "a kind there is not": (("rule", "leaky"), "package of kind write | read | data, got 'rule'"),
    "a name with a dash": (("write", "my-rule"), "'my-rule' can't be a name: it is made of"),
    "a capital": (("write", "Leaky"), "'Leaky' can't be a name"),
    "a digit first": (("write", "2fast"), "'2fast' can't be a name"),
    "an underscore last": (("write", "leaky_"), "'leaky_' can't be a name"),
    "another folder": (("write", "../leaky"), "'../leaky' can't be a name"),
    "no name": (("write", ""), "'' can't be a name"),
    "Python's own word": (("write", "while"), "'while' can't be a name"),
    "a rule there is": (("write", "gla"), "there is a write rule 'gla' already. Take another"),
    "data there is": (("data", "mqar"), "there is a data module 'mqar' already"),
    "a module there is": (("data", "copy"), "module copy with class Copy would hide another one"),
    "a class there is": (("write", "write_rule"), "with class WriteRule would hide another one"),
    "a file there is": (("write", "taken"), "taken exists already. Take another name, or move it"),
    "a dangling link": (("write", "linked"), "linked exists already. Take another name"),
    "too long a name": (("write", "a" * 300), "can't be written: File name too long"),
    "no name at all": (("write",), "Missing argument 'NAME'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_nothing(statelab, away, mistake):
    words, said = MISTAKES[mistake]
    (away / "taken").write_text("mine")
    (away / "linked").symlink_to("nowhere")
    status, out, err = statelab("new", *words)
    assert (status, out) == (2, "")
    assert err.startswith("statelab: ")
    assert err.count("\n") == 1
    assert said in err
    assert {each.name for each in away.iterdir()} == {"taken", "linked"}
    assert (away / "taken").read_text() == "mine"


@pytest.mark.parametrize("method", ["write_text", "rename"])
def test_a_full_disk_leaves_nothing(statelab, away, monkeypatch, method):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, method, full)
    status, _, err = statelab("new", "write", "fading")
    assert status == 2
    assert "fading can't be written: No space left on device. Nothing was left behind." in err
    assert not list(away.iterdir())


@pytest.fixture
def environment(tmp_path):
    """The Python of a fresh environment that sees the packages of this one."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env/bin/python"
    here = sysconfig.get_path("purelib")
    there = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    # As a site folder, so that its own .pth files count too: statelab may be installed by one.
    (Path(there.strip()) / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return python


@pytest.mark.slow
def test_a_package_installs_into_a_fresh_environment_and_is_checked_and_trains(
    statelab, away, environment
):
    statelab("new", "write", "fading")

    def run(*words, where=away):
        done = subprocess.run(
            [environment, "-m", *words], cwd=where, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    install = ("pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    run(*install, "-e", ".", where=away / "fading")
    assert "fading" in json.loads(run("statelab", "rules", "--json"))["write"]
    # One pair and a few tests of the contract, which has the same checks: all take minutes.
    run("statelab", "check", "write=fading", "read=plain")
    few = "its_loop or before_it or linear_in_the_stream"
    assert "3 passed" in run("pytest", "-q", "-k", few, where=away / "fading")
    train = ("statelab", "train", "experiment=mqar", "write=fading", "read=plain", "smoke=true")
    assert json.loads(run(*train, "--json"))["status"] == "FINISHED"
