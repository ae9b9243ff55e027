"""What the benchmarks measure with, and what all of them refuse."""

import pytest
import torch

from statelab_plugins.bench.agreement import agrees, disagreement
from statelab_plugins.bench.figure import draw_times, panels_by_read
from statelab_plugins.bench.memory import memory_use
from statelab_plugins.bench.targets import with_target
from statelab_plugins.bench.timing import interleave, ratio, spread

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["kernel"], "unknown benchmark 'kernel'. Did you mean 'kernels'? Registered: decode, k"),
        (["kernels", "case=gla"], "has no option 'case'. Did you mean 'cases'? It takes cases="),
        (["kernels", "cases=gla,delta"], "cases=delta is not known to benchmark 'kernels'."),
        (["kernels", "quick=yes"], "quick=yes is not known to benchmark 'kernels'. Allowed: false"),
        (["kernels", "quick"], "quick= is not known"),
        (["pairs", "T=64,0"], "T=0 is not known to benchmark 'pairs'. Allowed: 1 to 65536."),
        (["pairs", "pairs=gla+cqc"], "Did you mean 'gla+ccq'?"),
        (["decode", "pairs=kv+ccq"], "pairs=kv+ccq is not known to benchmark 'decode'."),
        (["decode", "threads=0"], "threads=0 is not known to benchmark 'decode'. Allowed: 1 to "),
        (["decode", "out=/dev/null/x"], "out=/dev/null/x can't be written: Not a directory"),
    ],
)
def test_what_is_not_known_is_one_line_and_status_2(
    bench, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_nothing_hides_a_nan_or_another_shape() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, torch.nan])
    assert disagreement({"a": one, "b": one * 1.5}, {"a": one, "b": one}) == 0.5
    assert not agrees({torch.float32: disagreement({"a": nan, "b": one}, {"a": one, "b": one})})
    assert not agrees({torch.float32: disagreement({"a": one[:1]}, {"a": one})})


def test_a_target_stands_beside_its_ratio_as_met_or_missed() -> None:
    def judged(name: str, column: str, num_tokens: int, value: float) -> tuple:
        cell = with_target(name, column, num_tokens, spread([value]))
        return cell["median"], cell.get("target"), cell.get("met")

    assert judged("deltanet", "loop_over_chunked", 2048, 11.9) == (11.9, ">= 12", False)
    assert judged("deltanet", "chunked_over_sdpa", 8192, 0.4) == (0.4, "< 0.5", True)
    assert judged("s4d+ccq", "step_over_shorter", 16_384, 1.21) == (1.21, "<= 1.2", False)
    assert judged("deltanet", "chunked_over_sdpa", 256, 9.0) == (9.0, None, None)
    assert judged("kda", "loop_over_chunked", 2048, 2.0) == (2.0, None, None)


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
    # At the peak: what is kept, the output, two scratch tensors and the gradient.
    assert (used.kept, used.working, used.peak) == (400, 8000, 400 + 4 * 4000)


def test_every_panel_of_read_rules_has_the_baseline() -> None:
    rows = [
        {"pair": pair, "T": num_tokens, "ms": spread([float(num_tokens)])}
        for pair in ("gla+ccq", "kv+softmax", "kda+ccq", "gla+plain")
        for num_tokens in (64, 256)
    ]
    panels = panels_by_read(rows, x="T", baseline="kv+softmax")
    assert {read: list(curves) for read, curves in panels.items()} == {
        "ccq": ["kv+softmax", "gla", "kda"],
        "plain": ["kv+softmax", "gla"],
    }
    assert list(panels["ccq"]["kda"]) == [64, 256]
    alone = panels_by_read(rows[2:4], x="T", baseline="kv+softmax")
    assert list(alone) == ["kv+softmax"]


def test_a_figure_is_logarithmic_with_units_and_one_legend() -> None:
    lines = {
        "SDPA": {64: spread([1.0]), 4096: spread([9.0])},
        "loop": {64: spread([3.0])},
    }
    names = {"title": "times", "x": "T, tokens", "y": "time, ms", "baseline": "SDPA"}
    figure = draw_times(dict.fromkeys("abcde", lines), **names)
    assert figure is not None
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == list("abcde")
    assert {(axes.get_xscale(), axes.get_yscale()) for axes in shown} == {("log", "log")}
    assert [axes.get_xlabel() for axes in shown] == ["", "", *["T, tokens"] * 3]
    assert [axes.get_ylabel() for axes in shown] == ["time, ms", "", "", "time, ms", ""]
    assert [text.get_text() for text in shown[-1].get_xticklabels()] == ["64", "4,096"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["SDPA", "loop"]
    assert draw_times({}, **names) is None
