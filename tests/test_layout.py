"""The layout that lets folders be called `platform` and `mlflow`, and what may import what."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "lightning", "mlflow", "optuna", "triton", "transformers", "datasets", "fla")

# Runs one command, then prints the packages that were imported for it.
PROBE = """
import sys
from contextlib import suppress
if len(sys.argv) > 1:
    from statelab.__main__ import main
    with suppress(SystemExit):
        main(sys.argv[1:])
else:
    import statelab
print(*{each.partition(".")[0] for each in sys.modules}, file=sys.stderr)
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


def heavy_imports(*arguments: str) -> list[str]:
    packages = run("-c", PROBE, *arguments).stderr.splitlines()[-1].split()
    return [name for name in HEAVY if name in packages]


@pytest.mark.parametrize("folder", ["platform", "plugins", "kernels", "mlflow", "experiments"])
def test_no_root_is_a_package(folder):
    assert (ROOT / folder).is_dir()
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_folder_of_tests_is_a_package_or_named_as_a_standard_module():
    assert not list((ROOT / "tests").rglob("__init__.py"))
    folders = {each.name for each in (ROOT / "tests").iterdir() if each.is_dir()}
    assert not folders & sys.stdlib_module_names


def test_imports_go_one_way():
    # Unlike the script beside the interpreter, this is found wherever the package is.
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("command", [(), ("--help",), ("rules",), ("rules", "--json")])
def test_start_up_imports_nothing_heavy(command):
    assert heavy_imports(*command) == []


@pytest.mark.parametrize("command", [("keys",), ("show", "experiment=mqar")])
def test_looking_at_a_configuration_imports_torch_and_nothing_heavier(command):
    assert heavy_imports(*command) == ["torch"]


def test_describing_a_model_imports_what_torch_does_and_nothing_heavier():
    # Torch's own counter of operations looks for Triton.
    assert set(heavy_imports("describe", "experiment=mqar")) <= {"torch", "triton"}
