"""`statelab bench kernels`: what it reports, and what it refuses to time."""

import logging
from pathlib import Path

import pytest
import torch

from statelab_kernels.gated import ops
from statelab_plugins.bench.cases import CASES


@pytest.mark.parametrize(
    "cases", [["gla", "modal_interdomain"], pytest.param(list(CASES), marks=pytest.mark.slow)]
)
def test_cases_are_right_and_get_their_figures(
    cases: list[str], report_of, check_files, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="statelab.bench"):
        status, report = report_of("kernels", f"cases={','.join(cases)}")
    assert (status, report["correct"]) == (0, True)
    setup = report["setup"]
    assert (setup["device"], setup["threads"]) == ("cpu", torch.get_num_threads())
    columns = {
        "correctness": "error_float64 error_float32 right",
        "time_ms": "T chunked loop sdpa",
        "ratio": "T loop_over_chunked chunked_over_sdpa chunked_over_shorter",
        "memory_mib": "T kept working",
    }
    assert report["tables"].keys() == columns.keys()
    check_files("kernels", report)
    for title, rows in report["tables"].items():
        assert list(dict.fromkeys(row.pop("case") for row in rows)) == cases
        assert all(list(row) == columns[title].split() for row in rows)
    for title in ("time_ms", "ratio"):
        rows = report["tables"][title]
        assert [row.pop("T") for row in rows] == [64, 256] * len(cases)
        cells = [cell for row in rows for cell in row.values() if cell is not None]
        assert all(0 < cell["low"] <= cell["median"] <= cell["high"] for cell in cells)
    assert [row["loop"] is None for row in report["tables"]["time_ms"][:2]] == [False, True]
    for row in report["tables"]["memory_mib"]:
        assert all(mib > 0 for mib in row.values())
    assert caplog.messages == [f"bench kernels: {name}" for name in cases]


def test_a_wrong_kernel_gets_no_time_and_fails(report_of, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops._RECALL["chunked"]

    def wrong(*arguments):
        read, state = right(*arguments)
        return read, state if arguments[3] is None else state * (1 + 1e-6)

    monkeypatch.setitem(ops._RECALL, "chunked", wrong)
    status, report = report_of("kernels", "cases=gla,linear")
    assert (status, report["correct"]) == (1, False)
    tables = report["tables"]
    assert {row["case"]: row["right"] for row in tables["correctness"]} == {
        "gla": False,
        "linear": True,
    }
    for title in ("time_ms", "ratio", "memory_mib"):
        assert {row["case"] for row in tables[title]} == {"linear"}


def test_a_kernel_of_nan_is_wrong_and_leaves_no_older_figure(
    bench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ops._RECALL["chunked"]
    assert bench("kernels", "quick=true", "cases=gla", "out=found") == 0
    assert Path("found/bench-kernels.png").exists()
    capsys.readouterr()
    monkeypatch.setitem(
        ops._RECALL, "chunked", lambda *given: tuple(out * torch.nan for out in right(*given))
    )
    assert bench("kernels", "quick=true", "cases=gla", "out=found") == 1
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "time_ms" not in printed
    assert [file.name for file in Path("found").iterdir()] == ["bench-kernels.json"]


def test_people_get_tables_and_where_the_files_are(
    bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("kernels", "quick=true", "cases=deltanet", "threads=1") == 0
    printed = capsys.readouterr().out
    for text in ("device cpu", "threads 1", "deltanet", "loop over", "memory_mib", "±"):
        assert text in printed
    assert printed.endswith("runs/bench/bench-kernels.json\nruns/bench/bench-kernels.png\n")
