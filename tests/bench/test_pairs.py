"""`statelab bench pairs` and `statelab bench decode`: what they report and refuse to time."""

import itertools

import pytest
import torch

from statelab.pairs import pairs
from statelab_kernels.gated import ops
from statelab_plugins.bench.models import PAIRS, check_steps, check_training

TWO = "pairs=gla+ccq,s4d+interdomain"
COLUMNS = {
    "pairs": {
        "correctness": "error_float64 right",
        "time": "T ms tokens_per_second over_kv_softmax",
        "memory": "T state_bytes kept_mib peak_mib",
    },
    "decode": {
        "correctness": "error_float64 right",
        "decoding": "context ms step_over_shorter state_bytes",
    },
}


def check_shape(what: str, report: dict, names: list[str]) -> None:
    assert report["correct"] is True
    assert report["tables"].keys() == COLUMNS[what].keys()
    for title, rows in report["tables"].items():
        assert list(dict.fromkeys(row["pair"] for row in rows)) == names
        assert all(list(row) == ["pair", *COLUMNS[what][title].split()] for row in rows)


def test_pairs_are_right_and_compared_with_the_baseline(report_of, check_files) -> None:
    status, report = report_of("pairs", TWO, "T=40,20")
    assert status == 0
    names = ["kv+softmax", "gla+ccq", "s4d+interdomain"]
    check_shape("pairs", report, names)
    check_files("pairs", report)
    assert report["setup"]["threads"] == torch.get_num_threads()
    time, memory = report["tables"]["time"], report["tables"]["memory"]
    assert [(row["pair"], row["T"]) for row in time] == [(p, t) for p in names for t in (20, 40)]
    assert [row["over_kv_softmax"] is None for row in time] == [True] * 2 + [False] * 4
    for row in time:
        assert 0 < row["ms"]["low"] <= row["ms"]["median"] <= row["ms"]["high"]
        expected = 1e3 * row["T"] / row["ms"]["median"]
        assert row["tokens_per_second"] == pytest.approx(expected)
    # Keys and values of 2 layers, 128 numbers of 4 bytes each; the rest is fixed.
    sizes = [row["state_bytes"] for row in memory]
    assert sizes[1] - sizes[0] == 20 * 2 * 2 * 128 * 4
    assert (sizes[2], sizes[4]) == (sizes[3], sizes[5])
    assert all(row["peak_mib"] >= row["kept_mib"] > 0 for row in memory)


def test_decoding_is_right_and_keeps_its_state(report_of, check_files) -> None:
    status, report = report_of("decode", f"{TWO},kv+softmax")
    assert status == 0
    check_shape("decode", report, ["gla+ccq", "s4d+interdomain", "kv+softmax"])
    check_files("decode", report)
    rows = report["tables"]["decoding"]
    assert [row["context"] for row in rows] == [16, 64] * 3
    assert [row["step_over_shorter"] is None for row in rows] == [True, False] * 3
    sizes = [row["state_bytes"] for row in rows]
    assert (sizes[0], sizes[2]) == (sizes[1], sizes[3])
    assert sizes[5] - sizes[4] == 48 * 2 * 2 * 128 * 4


@pytest.mark.parametrize("what", ["pairs", "decode"])
def test_a_wrong_pair_gets_no_time_and_fails(
    what: str, report_of, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ops._RECALL["chunked"]

    def wrong(q, *rest):
        read, state = right(q, *rest)
        # Nothing that the reference does, and nothing that single tokens do.
        return (read if q.shape[1] == 1 else read * (1 + 1e-6)), state

    monkeypatch.setitem(ops._RECALL, "chunked", wrong)
    status, report = report_of(what, "pairs=gla+plain,s4d+plain")
    assert (status, report["correct"]) == (1, False)
    found = {row["pair"]: row["right"] for row in report["tables"]["correctness"]}
    assert (found["gla+plain"], found["s4d+plain"]) == (False, True)
    for title, rows in report["tables"].items():
        named = {row["pair"] for row in rows}
        assert ("gla+plain" in named, "s4d+plain" in named) == (title == "correctness", True)


def test_every_pair_that_works_is_offered() -> None:
    assert list(PAIRS.values()) == pairs()
    writes, reads = "linear gla deltanet gated_deltanet s4d", "plain ccq interdomain"
    assert set(PAIRS.values()) >= set(itertools.product(writes.split(), reads.split()))


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS)
def test_every_pair_can_be_measured(pair: str) -> None:
    assert check_training(pair, 70) < 1e-9
    assert check_steps(pair, 8) < 1e-9
