"""`statelab compare` on a tracking store: what it reads, prints, writes and records."""

import csv
import io
import json
import re
from html.parser import HTMLParser

import pytest

from statelab_mlflow.store import connect

METRIC = "metric=val/accuracy"


@pytest.fixture
def grid(log):
    """Two by two pairs, two seeds each, of which one run has failed; ids by pair and seed."""
    values = {
        ("gla", "plain"): [0.5, 0.7],
        ("gla", "ccq"): [0.6, 0.8],
        ("s4d", "plain"): [0.2, 0.3],
        ("s4d", "ccq"): [0.4, float("nan")],
    }
    return {
        (*pair, seed): log(
            *pair, {"val/accuracy": [value / 2, value], "val/loss": [1.0, 0.5]}, seed
        )
        for pair, each in values.items()
        for seed, value in enumerate(each)
    }


@pytest.fixture
def client(run_dir):
    return connect(f"sqlite:///{run_dir / 'mlflow.db'}")


def test_a_table_is_printed_with_what_it_lacks(statelab, grid):
    status, out, _ = statelab("compare", "experiment=toy", METRIC, "baseline=read:plain")
    assert status == 0
    lines = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    assert lines[1][:5] == ["gla", "ccq", "0.7000 ± 1.2706", "+0.1000 ± 0.0000", "2"]
    assert ["s4d", "ccq", "0.4000", "+0.2000", "1 of 2"] in [line[:5] for line in lines]
    failed = grid["s4d", "ccq", 1][:8]
    assert f"Failed, and in no mean: s4d+ccq seed 1 ({failed}: FINISHED with NaN)." in out
    assert ["statelab ui experiment=toy"] in lines
    assert [line[0].partition(": http://127.0.0.1:5000/#/")[0] for line in lines[-5:]] == [
        "Pages that it shows:",
        "this comparison",
        "best first",
        "curves",
        "side by side",
    ]


def test_the_best_value_of_a_run_may_count(statelab, log):
    log("gla", "plain", {"val/accuracy": [0.2, 0.9, 0.4]})
    for value, expected in (("last", 0.4), ("best", 0.9)):
        _, out, _ = statelab(
            "compare", METRIC, f"value={value}", "tracking.enabled=false", "--json"
        )
        assert json.loads(out)["rows"][0]["mean"] == expected


def test_smoke_runs_are_compared_only_alone_or_if_asked_for(statelab, log):
    def means(*arguments):
        arguments = ("compare", METRIC, *arguments, "tracking.enabled=false", "--json")
        return [row["mean"] for row in json.loads(statelab(*arguments)[1])["rows"]]

    log("gla", "plain", {"val/accuracy": [0.1]}, smoke="true", data__batch_size=2)
    assert means() == [0.1]
    log("gla", "plain", {"val/accuracy": [0.9]}, smoke="false", data__batch_size=64)
    assert means() == [0.9]
    assert means("smoke=true") == [0.1]


def test_ids_studies_and_keys_choose_the_runs(statelab, grid):
    def pairs(*arguments):
        status, out, err = statelab(
            "compare", METRIC, "tracking.enabled=false", *arguments, "--json"
        )
        assert status == 0, err
        return [(row["write"], row["read"], row["seeds"]) for row in json.loads(out)["rows"]]

    ids = [grid["gla", "plain", 1], grid["gla", "ccq", 0][:12]]
    assert pairs(f"runs={','.join(ids)}") == [("gla", "plain", ["1"]), ("gla", "ccq", ["0"])]
    assert len(pairs("study=toy-grid")) == 4
    assert pairs("write=s4d", "seed=0") == [("s4d", "ccq", ["0"]), ("s4d", "plain", ["0"])]
    assert len(pairs("optim.lr=1e-2")) == 4


def test_the_files_parse_back(statelab, grid, away):
    statelab("compare", METRIC, "tracking.enabled=false", "out=made", "baseline=read:plain")
    rows = list(csv.DictReader(io.StringIO((away / "made/table.csv").read_text())))
    numbers = {(row["write"], row["read"]): row for row in rows}
    assert float(numbers["gla", "ccq"]["mean"]) == pytest.approx(0.7)
    assert float(numbers["gla", "ccq"]["difference"]) == pytest.approx(0.1)
    assert numbers["s4d", "ccq"]["failed"] == grid["s4d", "ccq", 1]
    assert numbers["s4d", "ccq"]["high"] == ""

    lines = (away / "made/table.md").read_text().splitlines()
    cells = [[each.strip() for each in line[1:-1].split("|")] for line in lines if line[:1] == "|"]
    assert cells[0][:3] == ["write", "read", "val/accuracy"]
    assert cells[2][:3] == ["gla", "ccq", "0.7000 ± 1.2706"]
    assert {len(row) for row in cells} == {len(cells[0])}

    latex = (away / "made/table.tex").read_text()
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(body) == 1 + len(rows)
    assert {line.count("&") for line in body} == {len(cells[0]) - 1}
    assert r"0.7000 $\pm$ 1.2706" in body[1]
    assert r"state\_bytes" in body[0]


class Loads(HTMLParser):
    """Finds what a page would load, and the rows of its table."""

    def __init__(self):
        super().__init__()
        self.loads, self.rows = [], 0

    def handle_starttag(self, tag, attrs):
        self.rows += tag == "tr"
        self.loads += [value for name, value in attrs if name in ("src", "href", "data", "srcset")]


def test_the_page_has_all_and_loads_nothing(statelab, grid, away):
    statelab("compare", METRIC, "tracking.enabled=false", "out=made")
    text = (away / "made/compare.html").read_text()
    page = Loads()
    page.feed(text)
    assert page.loads == []
    assert page.rows == 1 + 4
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]
    pictures = {file.stem for file in (away / "made/figures").glob("*.png")}
    assert pictures == {"against_state", "learning_curves", "write_x_read"}
    for name in pictures:
        assert f'Plotly.newPlot(                        "{name}"' in text


def test_the_comparison_is_a_run_of_the_experiment(statelab, grid, client):
    _, out, _ = statelab("compare", METRIC, "study=toy-grid", "out=made", "--json")
    run = client.get_run(json.loads(out)["run_id"])
    assert run.info.status == "FINISHED"
    assert run.data.tags["kind"] == "compare"
    assert run.data.tags["study"] == "toy-grid"
    assert run.data.params["compare.metric"] == "val/accuracy"
    note = run.data.tags["mlflow.note.content"]
    assert "| gla | ccq | 0.7000 ± 1.2706 |" in note
    files = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert files == {"compare.html", "table.md", "table.csv", "table.tex", "figures"}
    # The next one doesn't take it for a run to compare.
    _, again, _ = statelab("compare", METRIC, "study=toy-grid", "--json")
    assert json.loads(again)["rows"] == json.loads(out)["rows"]


def test_many_runs_are_read_in_few_requests(statelab, log, away, monkeypatch):
    """As many as there are thousands, and the curves of twelve rows at most."""
    for dim in range(14):
        for seed in range(2):
            log("gla", "plain", {"val/accuracy": [0.5 + dim / 100]}, seed, model__dim=dim)
    calls = []

    def count(name):
        asked = getattr(type(connect_once), name)

        def counted(self, *arguments, **options):
            calls.append(name)
            return asked(self, *arguments, **options)

        monkeypatch.setattr(type(connect_once), name, counted)

    connect_once = connect(f"sqlite:///{away}/runs/mlflow.db")
    for name in ("search_runs", "get_metric_history", "get_run", "list_artifacts"):
        count(name)
    statelab("compare", METRIC, "by=write,model.dim", "tracking.enabled=false", "out=made")
    assert calls.count("search_runs") == 1
    assert calls.count("get_metric_history") == 12 * 2
    assert len(calls) == 1 + 12 * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["experiment=toi"], "the tracking store has no run to compare with experiment=toi."),
        (["runs=ffffffffffffffff"], "no run to compare with runs=ffffffffffffffff."),
        (["metric=val/acuracy"], "none of 2 runs has logged it. Did you mean 'val/accuracy'?"),
        (["metrc=val/accuracy"], "has a key 'metrc'. Did you mean 'metric'?"),
        (["by=write,model.reed.name"], "'model.reed.name'. Did you mean 'model.read.name'?"),
        (["optim.lr=0.5"], "none of 2 runs has optim.lr=0.5."),
        (["tracking.figures=false"], "compare takes tracking.uri"),
        (["tolerance=-1"], "tolerance must be >= 0, got -1"),
        (["at=bytes"], "at must be parameters | state_bytes | memory_bytes | null, got 'bytes'."),
    ],
)
def test_a_mistake_is_said_in_one_line(statelab, log, arguments, message, run_dir):
    for seed in range(2):
        log("gla", "plain", {"val/accuracy": [0.5]}, seed)
    status, out, err = statelab("compare", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (run_dir / "toy").exists()


def test_an_empty_store_has_nothing_to_compare(statelab):
    status, _, err = statelab("compare")
    assert status == 2
    assert "the tracking store has no run to compare. `statelab runs` lists" in err


@pytest.mark.slow
def test_a_grid_is_run_and_compared_with_two_commands(statelab, toy, run_dir):
    axes = ("write=gla,deltanet", "read=plain,ccq", "seed=0,1")
    status, _, err = statelab("grid", *toy(*axes, "experiment=mqar_small", f"run_dir={run_dir}"))
    assert status == 0, err
    status, out, err = statelab(
        "compare", "experiment=mqar_small", METRIC, "baseline=read:plain", "--json"
    )
    assert status == 0, err
    found = json.loads(out)
    assert len(found["rows"]) == 4
    for row in found["rows"]:
        assert row["seeds"] == ["0", "1"]
        assert row["low"] <= row["mean"] <= row["high"]
        assert row["pairs"] == (0 if row["read"] == "plain" else 2)
    names = {file.rpartition("/")[2] for file in found["files"]}
    assert names >= {"compare.html", "against_state.png", "against_length.png", "write_x_read.png"}
