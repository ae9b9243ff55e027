"""The fused forms against the loop in float64: interpreted where there is no GPU."""

import functools
import logging
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize

from statelab_kernels import ccq_query, curvature, gated_project, gated_recall
from statelab_kernels.backend import choose
from statelab_kernels.curvature import fused as fused_curvature
from statelab_kernels.gated import fused as fused_gated

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Relative RMS error of each output and gradient. Measured: 2e-6; 0.004, and 0.021 for g.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.03}

OPS = {
    "recall": gated_recall,
    "project": gated_project,
    "curvature": curvature,
    "ccq_query": ccq_query,
}
DECAYS = ["none", "head", "channel", "strong"]
# Documents of 34, 0, 1 and 6 tokens.
BOUNDS = [0, 34, 34, 35, 41]
STREAMS = {"recall": "qkv", "project": "ykv", "curvature": "qk", "ccq_query": ["q", "k", "lam"]}


@pytest.fixture(autouse=True)
def nan_in_uninitialised_memory() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_inputs(
    op: str,
    *,
    B: int = 2,
    T: int = 41,
    H: int = 2,
    K: int = 20,
    V: int = 9,
    decay: str = "none",
    num_states: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Random inputs; a strong decay has tokens of -100, of -1e4, and resets."""
    generator = torch.Generator().manual_seed(T)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    widths = {"q": (K,), "k": (K,), "v": (V,), "y": (V,), "lam": ()}
    inputs = {name: random(B, T, H, *widths[name]) for name in STREAMS[op]}
    inputs["k"] = normalize(inputs["k"], dim=-1)
    if "lam" in inputs:
        inputs["lam"] = inputs["lam"].sigmoid()
    if decay != "none":
        g = logsigmoid(random(B, T, H) if decay == "head" else random(B, T, H, K))
        if decay == "strong":
            g.view(-1)[3::17] = -100
            g.view(-1)[4::23] = -1e4
            g.view(-1)[5::37] = -math.inf
        inputs["g"] = g
    inputs = {name: stream.to(dtype) for name, stream in inputs.items()}
    if num_states is not None and op in ("recall", "project"):
        inputs["state"] = random(num_states, H, K, V)
    elif num_states is not None:
        keys = normalize(random(num_states, 9, H, K), dim=-1)
        inputs["second"] = torch.einsum("nthi,nthj->nhij", keys, keys)
        inputs["first"] = keys.sum(1)
        inputs["position"] = torch.full((num_states,), 9)
    return {name: tensor.to(DEVICE) for name, tensor in inputs.items()}


def run(op: str, inputs: dict[str, Tensor], backend: str, **options: object) -> dict[str, Tensor]:
    """Outputs, and the gradient of each input, of a loss that uses all outputs."""
    leaves = {
        name: tensor.detach().requires_grad_(tensor.is_floating_point())
        for name, tensor in inputs.items()
    }
    outputs = call(op, leaves, backend, **options)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for out in outputs.values():
        if out.is_floating_point():
            weight = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(DEVICE)
            loss = loss + (out * weight).sum()
    smooth = [name for name, leaf in leaves.items() if leaf.requires_grad]
    gradients = torch.autograd.grad(loss, [leaves[name] for name in smooth])
    named = {f"d_{name}": d for name, d in zip(smooth, gradients, strict=True)}
    if "d_second" in named:
        # The sum of k k' is symmetric, and the fused form's gradient is, too.
        named["d_second"] = named["d_second"] + named["d_second"].mT
    return {name: tensor.detach() for name, tensor in (outputs | named).items()}


def call(op: str, inputs: dict[str, Tensor], backend: str, **options: object) -> dict[str, Tensor]:
    given = dict(inputs)
    streams = [given.pop(name) for name in STREAMS[op]]
    if "g" in given:
        options["g"] = given.pop("g")
    if given:
        options["initial_state"] = given.get("state", given)
    out, state = OPS[op](*streams, backend=backend, **options)
    return {"out": out, **(state if isinstance(state, dict) else {"state": state})}


def assert_equals_the_loop(op: str, inputs: dict[str, Tensor], **options: object) -> None:
    got = run(op, inputs, "fused", **options)
    exact = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    assert_near(got, run(op, exact, "reference", **options), inputs["k"].dtype)


def assert_near(got: dict[str, Tensor], want: dict[str, Tensor], dtype: torch.dtype) -> None:
    assert got.keys() == want.keys()
    for name, exact in want.items():
        size = torch.linalg.vector_norm(exact.double()).clamp(min=1e-6)
        error = torch.linalg.vector_norm(got[name].double() - exact) / size
        assert error < TOLERANCE[dtype], f"{name} is off by {error:.2g}"


@pytest.fixture
def one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fused_gated, fused_curvature):
        monkeypatch.setattr(module, "_PROGRAMS", 1)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("op", ["recall", "project"])
def test_gated_reads_equal_the_loop(op: str, decay: str) -> None:
    assert_equals_the_loop(op, make_inputs(op, decay=decay))


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("op", ["recall", "project"])
def test_gated_reads_of_packed_documents_equal_the_loop(op: str, decay: str) -> None:
    inputs = make_inputs(op, B=1, H=1, decay=decay, num_states=4)
    assert_equals_the_loop(op, inputs, cu_seqlens=torch.tensor(BOUNDS))


@pytest.mark.usefixtures("one_span")
@pytest.mark.parametrize("decay", ["none", "head", "strong"])
def test_a_walk_through_whole_sequences_equals_the_loop(decay: str) -> None:
    # From a state, and with sizes of more than one tile.
    inputs = make_inputs("recall", B=1, H=1, K=40, V=70, decay=decay, num_states=1)
    assert_equals_the_loop("recall", inputs)


@pytest.mark.parametrize("center", [True, False], ids=["centered", "uncentered"])
@pytest.mark.parametrize("op", ["curvature", "ccq_query"])
def test_curvature_equals_the_loop(op: str, center: bool) -> None:
    assert_equals_the_loop(op, make_inputs(op), center=center)
    inputs = make_inputs(op, B=1, H=1, num_states=4)
    assert_equals_the_loop(op, inputs, center=center, cu_seqlens=torch.tensor(BOUNDS))


@pytest.mark.usefixtures("one_span")
def test_curvature_of_several_tiles_equals_the_loop() -> None:
    inputs = make_inputs("ccq_query", B=1, H=1, K=70, num_states=1)
    assert_equals_the_loop("ccq_query", inputs)


def test_keys_with_a_large_mean_lose_no_curvature() -> None:
    inputs = make_inputs("curvature", T=70)
    inputs["k"] = normalize(inputs["k"] + 1, dim=-1)
    assert_equals_the_loop("curvature", inputs)


@pytest.mark.parametrize("op", OPS)
def test_single_steps_equal_the_whole(op: str) -> None:
    decay = "strong" if op in ("recall", "project") else "none"
    inputs = make_inputs(op, T=4, decay=decay, num_states=2)
    streams = ("q", "k", "v", "y", "lam", "g")
    state = {name: x for name, x in inputs.items() if name not in streams}
    outs = []
    for start, end in pairwise(range(5)):
        part = {name: x[:, start:end] for name, x in inputs.items() if name in streams}
        state = call(op, part | state, "fused")
        outs.append(state.pop("out"))
    exact = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    want = call(op, exact, "reference")
    assert_near({"out": torch.cat(outs, 1), **state}, want, torch.float32)


def test_a_lambda_of_zero_is_the_query_to_the_bit() -> None:
    inputs = make_inputs("ccq_query")
    inputs["lam"].zero_()
    assert torch.equal(call("ccq_query", inputs, "fused")["out"], inputs["q"])


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_reset_forgets_exactly(decay: str) -> None:
    inputs = make_inputs("recall", B=1, H=1, decay=decay, num_states=1)
    inputs["g"][:, 36] = -math.inf
    got = run("recall", inputs, "fused")
    assert torch.equal(got["d_g"][:, 36], torch.zeros_like(got["d_g"][:, 36]))
    inputs["state"] += 1e6
    inputs["v"][:, :36] -= 1e6
    again = run("recall", inputs, "fused")
    assert torch.equal(again["out"][:, 36:], got["out"][:, 36:])
    assert torch.equal(again["state"], got["state"])


def test_strides_of_inputs_do_not_matter() -> None:
    inputs = make_inputs("recall", decay="channel")
    strided = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in inputs.items()}
    want = run("recall", inputs, "fused")
    assert all(torch.equal(x, want[n]) for n, x in run("recall", strided, "fused").items())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": torch.float64}, "it takes float32 and bfloat16, got float64"),
        ({"K": 300}, "it takes up to 256 channels, got 300"),
        ({"beta": True}, "it takes no beta"),
    ],
)
def test_what_the_fused_form_can_not_do_is_said(changed: dict, message: str) -> None:
    inputs = make_inputs("recall", T=2, K=changed.get("K", 20))
    options = {"beta": inputs["q"][..., 0]} if "beta" in changed else {}
    if "k" in changed:
        inputs = {name: x.to(changed["k"]) for name, x in inputs.items()}
    message = f"backend='fused' can't run this gated_recall: {message}. Use backend='auto' or"
    with pytest.raises(ValueError, match=re.escape(message)):
        call("recall", inputs, "fused", **options)


def test_a_cpu_is_refused_where_triton_is_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    inputs = {name: x.cpu() for name, x in make_inputs("ccq_query", T=2).items()}
    with pytest.raises(ValueError, match="can't run this ccq_query: it needs a CUDA device"):
        call("ccq_query", inputs, "fused")


def test_auto_takes_the_next_where_a_form_refuses(caplog: pytest.LogCaptureFixture) -> None:
    forms, refusals = {"fused": len, "chunked": sum}, {"fused": lambda: "it rests"}
    with caplog.at_level(logging.INFO, logger="statelab.kernels"):
        for _ in range(2):
            assert choose("next_taken", "auto", forms, torch.device("cuda"), refusals) is sum
    assert caplog.messages == ["next_taken on cuda runs chunked; not fused: it rests"]


def test_a_cpu_imports_no_triton_unasked() -> None:
    script = """
import sys
import torch
from statelab_kernels import ccq_query, gated_recall
x = torch.randn(1, 3, 1, 4)
gated_recall(x, x, x, g=-x.abs())
ccq_query(x, x, x[..., 0])
assert not {"triton", "fla"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_kernels_compile_for_all_generations_and_spill_little() -> None:
    script = Path(__file__).with_name("compile_only.py")
    out = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    found = [line.split() for line in out.stdout.splitlines()]
    assert {capability for capability, *_ in found} == {"80", "90", "100"}
    # Bytes a thread: 0 in most, 944 where a strong decay has a branch of its own.
    assert max(int(spilled) for *_, spilled in found) <= 1200, found


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("K", "V"), [(16, 16), (40, 20), (100, 60), (128, 128), (256, 512)])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("op", ["recall", "project"])
def test_gated_reads_on_a_gpu(op: str, decay: str, K: int, V: int, dtype: torch.dtype) -> None:
    make = functools.partial(make_inputs, op, T=200, K=K, V=V, decay=decay, dtype=dtype)
    assert_equals_the_loop(op, make(num_states=2))
    bounds = torch.tensor([0, 70, 70, 71, 200])
    assert_equals_the_loop(op, make(B=1, num_states=4), cu_seqlens=bounds)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("K", [16, 40, 100, 128, 256])
@pytest.mark.parametrize("op", ["curvature", "ccq_query"])
def test_curvature_on_a_gpu(op: str, K: int, dtype: torch.dtype) -> None:
    make = functools.partial(make_inputs, op, T=200, K=K, dtype=dtype)
    assert_equals_the_loop(op, make(num_states=2))
    bounds = torch.tensor([0, 70, 70, 71, 200])
    assert_equals_the_loop(op, make(B=1, num_states=4), cu_seqlens=bounds)
