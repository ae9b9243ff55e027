"""The team's server: as plain commands start it, and as it is written down for Docker."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from statelab_mlflow.store import connect

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


@pytest.fixture
def team(postgres, new_server, tmp_path, monkeypatch):
    """MLflow over PostgreSQL, which asks for a password; as in the README, but for the files."""
    store, folder = postgres.make("mlflow"), tmp_path / "server"
    folder.mkdir()
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"printf '(.+)' \$DATABASE > auth.ini", readme)
    (folder / "auth.ini").write_text(settings.replace("\\n", "\n").replace("%s", store))
    environment = {
        "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
        "MLFLOW_AUTH_ADMIN_PASSWORD": "0123456789abcdef",
        "MLFLOW_FLASK_SERVER_SECRET_KEY": "fedcba9876543210",
    }
    server = new_server(folder, store, "--app-name=basic-auth", environment=environment)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", environment["MLFLOW_AUTH_ADMIN_PASSWORD"])
    server.start()
    yield server.uri
    server.die()


@pytest.mark.slow
def test_runs_of_other_machines_are_compared_by_what_the_server_has(
    team, toy, statelab, tmp_path, monkeypatch
):
    other = tmp_path / "other machine"
    for read in ("plain", "ccq"):
        status, _, err = statelab(
            "train", *toy(f"read={read}", f"run_dir={other}", f"tracking.uri={team}")
        )
        assert status == 0, err
    shutil.rmtree(other)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", team)
    status, out, err = statelab("compare", "metric=val/accuracy", "baseline=read:plain", "--json")
    assert status == 0, err
    report = json.loads(out)
    assert {row["read"] for row in report["rows"]} == {"plain", "ccq"}
    assert list(report["pages"]) == ["this comparison", "best first", "curves", "side by side"]
    assert all(each.startswith(f"{team}/#/") for each in report["pages"].values())
    kept = {each.path for each in connect(team).list_artifacts(report["run_id"])}
    assert {"compare.html", "table.md", "figures"} <= kept

    status, out, _ = statelab("ui")
    assert (status, out.splitlines()[0]) == (0, f"statelab UI at {team}")
    told = team.replace("://", "://admin:0123456789abcdef@")
    assert statelab("ui", f"tracking.uri={told}")[:2] == (0, out)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "forgotten")
    status, _, err = statelab("compare", "metric=val/accuracy")
    assert (status, err.count("\n")) == (2, 1), err
    assert f"the tracking store {team} can't be used" in err
