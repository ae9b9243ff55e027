"""The team's server as it is written down; it was run by hand, since tests have no Docker."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "mlflow"
TEXT = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
SERVICES = yaml.safe_load(TEXT)["services"]


def test_every_version_is_pinned():
    images = [each["image"] for each in SERVICES.values() if "image" in each]
    assert len(images) == 3
    for image in images:
        assert re.search(r":(\d+\.\d+|RELEASE\.\d{4}-)", image), image
    recipe = SERVICES["mlflow"]["build"]["dockerfile_inline"]
    for package in re.findall(r'"(.+?)"', recipe):
        assert "==" in package
    assert f"mlflow[auth]=={version('mlflow')}" in recipe
    assert f"psycopg[binary]=={version('psycopg')}" in recipe


def test_only_mlflow_is_reached_and_only_from_this_machine():
    assert [name for name, each in SERVICES.items() if "ports" in each] == ["mlflow"]
    assert SERVICES["mlflow"]["ports"] == ["${MLFLOW_BIND:-127.0.0.1}:${MLFLOW_PORT:-5000}:5000"]
    assert "--app-name=basic-auth" in SERVICES["mlflow"]["command"]


def test_the_example_names_each_variable_and_no_secret():
    example = (FOLDER / "example.env").read_text(encoding="utf-8")
    given = dict(re.findall(r"^#?(\w+)=(.*)$", example, re.MULTILINE))
    used = dict(re.findall(r"\$\{(\w+):([?-])", TEXT))
    assert used.keys() == given.keys()
    assert len(re.findall(r"\$\{", TEXT)) == len(re.findall(r"\$\{\w+:[?-][^}]+\}", TEXT))
    for name, kind in used.items():
        assert bool(given[name]) == (kind == "-"), name
    ignored = (FOLDER.parent / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert ".env" in ignored


def test_services_wait_for_those_that_exist():
    for each in SERVICES.values():
        for name, how in each.get("depends_on", {}).items():
            healthy = how["condition"] == "service_healthy"
            assert ("healthcheck" in SERVICES[name]) == healthy


@pytest.mark.parametrize("package", ["mlflow[auth]", "psycopg[binary]", "boto3"])
def test_the_plain_commands_install_the_same_versions(package):
    pin = re.search(rf'"{re.escape(package)}==(.+?)"', TEXT)[1]
    assert f"'{package}=={pin}'" in (FOLDER / "README.md").read_text(encoding="utf-8")
