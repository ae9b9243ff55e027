"""What an evaluation leaves: in the run's folder, in MLflow, on the screen; tasks of others."""

import json

import pytest

from statelab import train as training
from statelab.compare.config import CompareConfig
from statelab.compare.entries import read_entries
from statelab.compare.figures import charts
from statelab.compare.table import compare
from statelab.errors import ConfigError, UnknownNameError
from statelab.evaluate import evaluate
from statelab.registries import eval_tasks
from statelab.runs.addition import add_to_run
from statelab.runs.lock import locked
from statelab.runs.metric_history import metric_history
from statelab.runs.stored import StoredRun, find_run
from statelab_mlflow.store import connect

WINDOWS = ("lengths=16,32", "max_tokens=200")


@pytest.fixture
def tracked(text_config, run_dir, monkeypatch):
    """A run in a store, with a client of it."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = text_config(f"run_dir={run_dir}", "tracking.enabled=true")
    run = find_run(training.train(config, progress=False).run_id, run_dir=str(run_dir))
    return run, connect(f"sqlite:///{run_dir / 'mlflow.db'}")


def files_below(client, run_id, place):
    return {each.path.rpartition("/")[2] for each in client.list_artifacts(run_id, place)}


def test_it_is_recorded_once_and_replaced_later(tracked):
    run, client = tracked
    before = client.get_run(run.id)
    first = evaluate(run, task="length", overrides=WINDOWS)
    evaluate(run, task="length", overrides=WINDOWS)
    after = client.get_run(run.id)
    assert after.info.status == "FINISHED"
    assert after.info.end_time == before.info.end_time
    assert before.data.tags.items() <= after.data.tags.items()
    assert before.data.metrics.items() <= after.data.metrics.items()
    for name, value in first.metrics.items():
        (row,) = client.get_metric_history(run.id, name)
        assert (row.step, row.value) == (4, pytest.approx(value, rel=1e-12))
    names = {"report.json", "ppl_against_length.png", "loss_by_position.png"}
    assert files_below(client, run.id, "eval/length") == names
    assert {file.name for file in (run.folder / "eval/length").iterdir()} == names

    other = evaluate(run, task="length", overrides=["lengths=16", "max_tokens=100"])
    rows = client.get_metric_history(run.id, "length/ppl")
    assert [row.step for row in rows] == [4, 5]
    assert client.get_run(run.id).data.metrics["length/ppl"] == other.metrics["length/ppl"]
    saved = json.loads((run.folder / "eval/length/report.json").read_text())
    assert saved["setup"]["max_tokens"] == 100
    assert saved["step"] == 4
    evaluate(run, task="length", overrides=WINDOWS)
    assert client.get_run(run.id).data.metrics["length/ppl"] == first.metrics["length/ppl"]


def test_compare_draws_it_against_length(tracked, run_dir):
    run, _ = tracked
    found = evaluate(run, task="length", overrides=WINDOWS).metrics
    config = CompareConfig(metric="length/ppl", run_dir=str(run_dir))
    entries = read_entries(config, {}, None)
    drawn = charts(compare(entries, config), {run.id: metric_history(run.folder)["length/ppl"]})
    (points,) = drawn["against_length"].series.values()
    assert [(each.x, each.y) for each in points] == [
        (16, found["length/ppl/len_16"]),
        (32, found["length/ppl/len_32"]),
    ]


def test_an_untracked_run_has_it_in_its_folder(text_run):
    found = evaluate(text_run, task="geometry", overrides=["sentences=8", "rank=2"])
    history = metric_history(text_run.folder)
    assert [*history["geometry/gap"].values()][-1] == found.metrics["geometry/gap"]
    assert [file.name for file in found.files] == ["report.json", "key_geometry.png"]
    assert all(file.stat().st_size > 100 for file in found.files)


def test_a_run_that_is_being_trained_is_left_alone(text_run, caplog):
    with locked(text_run.folder):
        add_to_run(text_run.folder, {"other/metric": 1.0}, 4, {})
    assert f"not recorded with run {text_run.id}: run {text_run.id} is running" in caplog.text
    assert "other/metric" not in metric_history(text_run.folder)


def test_a_run_whose_store_is_gone_keeps_it(tracked, run_dir, caplog):
    run, _ = tracked
    moved = run_dir.parent / "elsewhere/toy" / run.id
    moved.parent.mkdir(parents=True)
    run.folder.rename(moved)
    (run_dir / "mlflow.db").unlink()
    evaluate(StoredRun(id=run.id, folder=moved), task="length", overrides=WINDOWS)
    assert "not recorded with run" in caplog.text
    assert "length/ppl" in metric_history(moved)


def test_the_command_prints_tables_or_one_object(text_run, statelab):
    place = (f"run={text_run.folder}", "task=length", *WINDOWS)
    status, out, _ = statelab("eval", *place)
    assert status == 0
    assert out.splitlines()[1] == "perplexity by length"
    assert out.rstrip().endswith("loss_by_position.png")
    status, out, _ = statelab("eval", *place, "--json")
    told = json.loads(out)
    assert (status, told["task"], len(told["files"])) == (0, "length", 3)
    assert told["metrics"]["length/ppl"] == told["metrics"]["length/ppl/len_32"]
    assert told["checkpoint"].endswith("last.ckpt")


def test_a_task_misspelt_gets_one_line(text_run, statelab):
    status, out, err = statelab("eval", f"run={text_run.folder}", "task=lenght")
    assert (status, out) == (2, "")
    assert err.startswith("statelab: unknown evaluation task 'lenght'. Did you mean 'length'?")
    assert len(err.splitlines()) == 1


def test_the_options_of_a_task_are_listed(statelab):
    _, out, _ = statelab("keys", "task=length", "--json")
    (section,) = json.loads(out).items()
    assert section[0] == "task=length"
    assert {"lengths", "text", "chunk"} <= {key["name"] for key in section[1]}
    _, out, _ = statelab("keys", "--json")
    assert {"task=length", "task=geometry"} < set(json.loads(out))
    status, _, err = statelab("keys", "optim.lr=1")
    assert status == 2
    assert err == (
        "statelab: keys takes write=, read=, data.name= or task= with a name, got optim.lr=1.\n"
    )


TASK = '''
from dataclasses import dataclass
from statelab.options import Section, option
from statelab.registries import eval_tasks
from statelab.tasks.task import EvalTask, Report

@dataclass(frozen=True, kw_only=True, slots=True)
class WeightConfig(Section):
    power: int = option(2, "of the norm", at_least=1)

@eval_tasks.register("weight", config=WeightConfig)
class Weight(EvalTask):
    """How large the embedding is."""

    def run(self, trained):
        norm = trained.model.embedding.weight.norm(self.config.power)
        return Report(metrics={"weight/embedding": float(norm)})
'''


def test_a_task_of_a_file_of_ones_own(text_run, tmp_path, monkeypatch):
    monkeypatch.setattr(eval_tasks, "_plugins", dict(eval_tasks._plugins))
    (tmp_path / "weight.py").write_text(TASK)
    mine = f"{tmp_path / 'weight.py'}:Weight"
    found = evaluate(text_run, task=mine, overrides=["power=1"])
    assert found.task == "weight"
    assert metric_history(text_run.folder)["weight/embedding"][4] == pytest.approx(
        found.metrics["weight/embedding"]
    )
    with pytest.raises(ConfigError, match=r"^power must be >= 1, got 0\."):
        evaluate(text_run, task=mine, overrides=["power=0"])


def test_validation_stays_what_it_was(text_run):
    found = evaluate(text_run)
    history = metric_history(text_run.folder)
    assert found.metrics == {name: history[name][4] for name in found.metrics}
    assert found.files == []
    with pytest.raises(ConfigError, match=r"^eval can change data\.\* and trainer\.\* only, got x"):
        evaluate(text_run, overrides=["x=1"])
    with pytest.raises(UnknownNameError, match=r"^unknown evaluation task 'x'\."):
        evaluate(text_run, task="x")
