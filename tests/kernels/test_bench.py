"""`statelab bench kernels`: what it reports, and what it refuses."""

import json
import logging

import pytest
import torch

from statelab.__main__ import main
from statelab_kernels.bench.cases import CASES
from statelab_kernels.bench.memory import memory_use
from statelab_kernels.bench.targets import with_targets
from statelab_kernels.bench.timing import interleave, ratio, spread
from statelab_kernels.gated import ops

CPU = torch.device("cpu")


def bench(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", *arguments])
    return int(stopped.value.code)


def report_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    status = bench("kernels", "quick=true", "--json", *arguments)
    return status, json.loads(capsys.readouterr().out)


def test_every_case_is_right_and_gets_its_figures(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="statelab.kernels"):
        status, report = report_of(capsys)
    assert (status, report["correct"]) == (0, True)
    assert (report["setup"]["device"], report["setup"]["threads"]) == ("cpu", 1)
    columns = {
        "correctness": "error_float64 error_float32 right",
        "time_ms": "chunked_128 sdpa_128 loop_128 chunked_256 sdpa_256",
        "ratio": "loop_over_chunked_128 chunked_over_sdpa_128 chunked_over_sdpa_256 "
        "chunked_256_over_128",
        "memory_mib": "kept_128 working_128 kept_256 working_256",
    }
    assert report["tables"].keys() == columns.keys()
    for title, rows in report["tables"].items():
        assert [row.pop("case") for row in rows] == list(CASES)
        assert all(list(row) == columns[title].split() for row in rows)
    for row in report["tables"]["time_ms"] + report["tables"]["ratio"]:
        assert all(0 < cell["low"] <= cell["median"] <= cell["high"] for cell in row.values())
    for row in report["tables"]["memory_mib"]:
        assert all(mib > 0 for mib in row.values())
    assert caplog.messages == [f"bench kernels: {name}" for name in CASES]


def test_a_wrong_kernel_gets_no_time_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ops._RECALL["chunked"]

    def wrong(*arguments):
        read, state = right(*arguments)
        return read, state if arguments[3] is None else state * (1 + 1e-6)

    monkeypatch.setitem(ops._RECALL, "chunked", wrong)
    status, report = report_of(capsys, "cases=gla,linear")
    assert (status, report["correct"]) == (1, False)
    tables = report["tables"]
    assert {row["case"]: row["right"] for row in tables["correctness"]} == {
        "gla": False,
        "linear": True,
    }
    for title in ("time_ms", "ratio", "memory_mib"):
        assert [row["case"] for row in tables[title]] == ["linear"]


def test_a_kernel_of_nan_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ops._RECALL["chunked"]
    monkeypatch.setitem(
        ops._RECALL, "chunked", lambda *given: tuple(out * torch.nan for out in right(*given))
    )
    assert bench("kernels", "quick=true", "cases=gla") == 1
    printed = capsys.readouterr().out
    assert "NO" in printed
    assert "time_ms" not in printed


def test_people_get_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("kernels", "quick=true", "cases=deltanet") == 0
    printed = capsys.readouterr().out
    for text in ("device cpu", "deltanet", "loop over", "memory_mib", "working 256", "±"):
        assert text in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel"], "unknown benchmark 'kernel'. Did you mean 'kernels'? Registered: kernels"),
        (["kernels", "case=gla"], "has no option 'case'. Did you mean 'cases'? It takes cases="),
        (["kernels", "cases=gla,delta"], "cases=delta is not known to benchmark 'kernels'."),
        (["kernels", "quick=yes"], "quick=yes is not known to benchmark 'kernels'. Allowed: false"),
        (["kernels", "quick"], "quick= is not known"),
    ],
)
def test_what_is_not_known_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_target_stands_beside_its_ratio_as_met_or_missed() -> None:
    ratios = {
        "loop_over_chunked_2048": spread([11.9]),
        "chunked_over_sdpa_8192": spread([0.4]),
        "chunked_over_sdpa_256": spread([9.0]),
    }
    judged = with_targets("deltanet", ratios)
    assert [(cell.get("target"), cell.get("met")) for cell in judged.values()] == [
        (">= 12", False),
        ("< 0.5", True),
        (None, None),
    ]
    assert "target" not in with_targets("kda", ratios)["loop_over_chunked_2048"]


def test_runs_take_turns_and_ratios_are_of_one_round() -> None:
    order: list[str] = []
    runs = {name: (lambda name=name: order.append(name)) for name in "abc"}
    seconds = interleave(runs, {"a": 3, "b": 3, "c": 1}, CPU)
    assert "".join(order) == "abcabab"
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 1}
    # A machine that gets ten times slower changes no ratio.
    assert ratio([2.0, 20.0, 200.0], [1.0, 10.0]) == {"median": 2, "low": 2, "high": 2}


def test_memory_is_what_is_kept_and_what_the_peak_adds() -> None:
    class TwoScratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x[:100].clone())
            return x.clone()

        @staticmethod
        def backward(ctx, d_out):
            scratch = [d_out.clone() for _ in range(2)]
            return scratch[0] + scratch[1]

    x, d_out = torch.randn(1000, requires_grad=True), torch.randn(1000)
    used = memory_use(lambda: {"output": TwoScratch.apply(x)}, [x], d_out)
    assert (used.kept, used.working) == (400, 8000)
