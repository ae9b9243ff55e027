"""The gated memory: every form against the loop, and the loop against its definition."""

import itertools
import logging
import math
import re
import subprocess
import sys
import zlib

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, normalize
from torch.utils.flop_counter import FlopCounterMode

from statelab_kernels import gated_project, gated_recall
from statelab_kernels.backend import choose
from statelab_kernels.chunks import sequence_bounds
from statelab_kernels.gated import chunked
from statelab_kernels.shapes import check_shapes

# Largest error relative to the largest number; measured: 3e-15 and 6e-7.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
# RMS error relative to the RMS of the tensor, for bf16 inputs: reads and state, gradients, and
# gradients of g and beta. Measured: 0.0017, 0.0024, 0.0028, the rounding of the results.
BF16_TOLERANCE = {
    "gla": (0.005, 0.005, 0.02),
    "deltanet": (0.006, 0.008, 0.02),
    "gated_deltanet": (0.005, 0.008, 0.02),
}

OPS = {"recall": gated_recall, "project": gated_project}
DECAYS = ("none", "head", "channel")
RULES = [(decay, delta) for decay in DECAYS for delta in (False, True)]


def make_inputs(
    op: str,
    *,
    B: int = 2,
    T: int = 65,
    H: int = 2,
    K: int = 5,
    V: int = 7,
    decay: str = "channel",
    delta: bool = True,
    num_states: int | None = None,
    strong: bool = True,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Random inputs by name; "x" is q or y. Strong decays have tokens of -100 and resets."""
    seed = zlib.crc32(repr((op, B, T, H, K, V, decay, delta, num_states, dtype)).encode())
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = {
        "x": random(B, T, H, K if op == "recall" else V),
        "k": normalize(random(B, T, H, K), dim=-1),
        "s": random(B, T, H, V),
    }
    if decay != "none":
        g = logsigmoid(random(B, T, H, K) if decay == "channel" else random(B, T, H))
        if strong:
            g.view(-1)[3::17] = -100
            g.view(-1)[5::37] = -math.inf
        inputs["g"] = g
    if delta:
        inputs["beta"] = torch.sigmoid(random(B, T, H))
    if num_states is not None:
        inputs["initial_state"] = random(num_states, H, K, V)
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def call(op: str, inputs: dict[str, Tensor], **options: object) -> tuple[Tensor, Tensor]:
    names = dict(inputs)
    streams = [names.pop(name) for name in ("x", "k", "s")]
    return OPS[op](*streams, **names, **options)


def run(op: str, inputs: dict[str, Tensor], **options: object) -> dict[str, Tensor]:
    """Reads, final state and the gradient of each input, of a loss that uses both outputs."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    read, state = call(op, leaves, **options)
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)).sum()
        for out in (read, state)
    )
    loss.backward()
    gradients = {f"d_{name}": leaf.grad for name, leaf in leaves.items()}
    return {"read": read.detach(), "state": state.detach(), **gradients}


def assert_close(got: dict[str, Tensor], want: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].shape == want[name].shape
        if want[name].numel() == 0:
            continue
        scale = want[name].abs().max().clamp_min(1e-3)
        error = ((got[name].double() - want[name]).abs().max() / scale).item()
        assert error < tolerance, f"{name} is off by {error:.2g}"


def bounds_of(T: int) -> Tensor:
    """Documents of 1, 0, about T / 2, 0 and the rest of T tokens."""
    return torch.tensor([0, 1, 1, 1 + T // 2, 1 + T // 2, T])


@pytest.mark.parametrize("kind", ["fresh", "carried", "packed"])
@pytest.mark.parametrize("delta", [False, True], ids=["write", "delta"])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("op", OPS)
def test_chunked_equals_the_loop(op: str, T: int, decay: str, delta: bool, kind: str) -> None:
    if kind == "packed":
        T = max(T, 2)
        inputs = make_inputs(op, B=1, T=T, decay=decay, delta=delta, num_states=5)
        options = {"cu_seqlens": bounds_of(T)}
    else:
        num_states = 2 if kind == "carried" else None
        inputs = make_inputs(op, T=T, decay=decay, delta=delta, num_states=num_states)
        options = {}
    want = run(op, inputs, backend="reference", **options)
    got = run(op, inputs, backend="chunked", **options)
    assert_close(got, want, TOLERANCE[torch.float64])


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("op", OPS)
def test_wide_keys_and_one_head_are_right(op: str, decay: str) -> None:
    inputs = make_inputs(op, B=1, T=70, H=1, K=257, V=3, decay=decay, num_states=1)
    want = run(op, inputs, backend="reference")
    assert_close(run(op, inputs, backend="chunked"), want, TOLERANCE[torch.float64])


@pytest.mark.parametrize("op", OPS)
def test_many_segments_and_documents_are_right(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three chunks a segment: segments cut waves, and documents end in the middle of segments.
    monkeypatch.setitem(chunked._SEGMENT_NUMEL, "cpu", 3 * 2 * 64 * 7)
    bounds = torch.tensor([0, 130, 130, 131, 400, 464, 500, 501, 502, 640])
    inputs = make_inputs(op, B=1, T=640, num_states=9)
    want = run(op, inputs, cu_seqlens=bounds, backend="reference")
    got = run(op, inputs, cu_seqlens=bounds, backend="chunked")
    assert_close(got, want, TOLERANCE[torch.float64])


@pytest.mark.parametrize(("decay", "delta"), RULES)
def test_the_loop_is_the_sum_over_products_of_transitions(decay: str, delta: bool) -> None:
    inputs = make_inputs("recall", B=1, T=12, H=1, decay=decay, delta=delta, num_states=1)
    q, k, v = (inputs[name][0, :, 0] for name in "xks")
    T, K = k.shape
    g = inputs.get("g", torch.zeros(1, T, 1, K, dtype=torch.float64))[0, :, 0]
    beta = inputs.get("beta", torch.ones(1, T, 1, dtype=torch.float64))[0, :, 0]
    eye = torch.eye(K, dtype=torch.float64)
    transitions = [
        (eye - (beta[t] if delta else 0) * torch.outer(k[t], k[t])) @ (eye * g[t].exp())
        for t in range(T)
    ]
    want = torch.zeros_like(v)
    for i in range(T):
        path = eye
        for j in range(i, -1, -1):
            want[i] += beta[j] * (q[i] @ path @ k[j]) * v[j]
            path = path @ transitions[j]
        want[i] += q[i] @ path @ inputs["initial_state"][0, 0]
    read, _ = call("recall", inputs, backend="reference")
    torch.testing.assert_close(read[0, :, 0], want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["reference", "chunked"])
def test_reads_without_delta_are_a_double_sum_with_decays(form: str) -> None:
    inputs = make_inputs("project", B=1, T=70, H=1, delta=False, strong=False)
    y, k, s, g = (inputs[name][0, :, 0] for name in "xksg")
    sums = g.cumsum(0)
    causal = torch.ones(70, 70, dtype=torch.bool).tril()[..., None]
    D = (sums[:, None] - sums[None]).masked_fill(~causal, -math.inf).exp()
    want = torch.einsum("iv,jv,ijc,jc->ic", y, s, D, k)
    read, _ = call("project", inputs, backend=form)
    torch.testing.assert_close(read[0, :, 0], want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("delta", [False, True], ids=["write", "delta"])
@pytest.mark.parametrize("op", OPS)
def test_no_decay_equals_a_decay_of_zero(op: str, delta: bool) -> None:
    inputs = make_inputs(op, T=100, decay="none", delta=delta, num_states=2)
    want = run(op, inputs)
    for shape in (inputs["k"].shape, inputs["k"].shape[:3]):
        got = run(op, {**inputs, "g": torch.zeros(shape, dtype=torch.float64)})
        del got["d_g"]
        assert_close(got, want, 1e-12)


@pytest.mark.parametrize("delta", [False, True], ids=["write", "delta"])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("op", OPS)
def test_float32_is_right_to_1e_4(op: str, decay: str, delta: bool) -> None:
    inputs = make_inputs(
        op, T=300, K=32, V=32, decay=decay, delta=delta, num_states=2, dtype=torch.float32
    )
    doubles = {name: tensor.double() for name, tensor in inputs.items()}
    want = run(op, doubles, backend="reference")
    assert_close(run(op, inputs, backend="chunked"), want, TOLERANCE[torch.float32])


@pytest.mark.parametrize("model", BF16_TOLERANCE)
@pytest.mark.parametrize("op", OPS)
def test_bf16_inputs_cost_little_accuracy(op: str, model: str) -> None:
    decay = {"gla": "channel", "deltanet": "none", "gated_deltanet": "head"}[model]
    inputs = make_inputs(
        op, T=200, K=32, V=32, decay=decay, delta=model != "gla", dtype=torch.bfloat16
    )
    doubles = {name: tensor.double() for name, tensor in inputs.items()}
    want = run(op, doubles, backend="reference")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(op, inputs, backend="chunked")
    assert got["read"].dtype == got["d_k"].dtype == torch.bfloat16
    assert got["state"].dtype == torch.float32
    reads, gradients, gates = BF16_TOLERANCE[model]
    for name, exact in want.items():
        error = ((got[name].double() - exact).square().mean() / exact.square().mean()).sqrt()
        gate = gates if name in ("d_g", "d_beta") else gradients
        assert error < (reads if name in ("read", "state") else gate), f"{name} is off by {error}"


@pytest.mark.parametrize(("decay", "delta"), RULES)
@pytest.mark.parametrize("op", OPS)
def test_gradients_pass_gradcheck(op: str, decay: str, delta: bool) -> None:
    inputs = make_inputs(
        op, B=1, T=5, H=1, K=3, V=2, decay=decay, delta=delta, num_states=1, strong=False
    )
    names = list(inputs)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        return call(op, dict(zip(names, tensors, strict=True)), backend="chunked")

    assert torch.autograd.gradcheck(function, [inputs[n].requires_grad_() for n in names])


@pytest.mark.parametrize("form", ["reference", "chunked"])
@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("op", OPS)
def test_a_reset_forgets_exactly(op: str, decay: str, form: str) -> None:
    inputs = make_inputs(op, T=90, decay=decay, num_states=2, strong=False)
    inputs["g"][:, 40] = -math.inf
    whole = run(op, inputs, backend=form)
    later = {name: t[:, 40:] for name, t in inputs.items() if name != "initial_state"}
    read, state = call(op, {**later, "g": later["g"].clamp_min(-1e4)}, backend=form)
    torch.testing.assert_close(whole["read"][:, 40:], read, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole["state"], state, rtol=0, atol=1e-12)
    assert torch.equal(whole["d_g"][:, 40], torch.zeros_like(whole["d_g"][:, 40]))
    assert all(gradient.isfinite().all() for gradient in whole.values())


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_decay_of_minus_1e4_leaves_later_tokens_right(decay: str) -> None:
    inputs = make_inputs("recall", T=130, decay=decay, strong=False, dtype=torch.float32)
    inputs["g"][:, 10::40] = -1e4
    want = run("recall", {n: t.double() for n, t in inputs.items()}, backend="reference")
    assert_close(run("recall", inputs, backend="chunked"), want, 1e-5)


@pytest.mark.parametrize("form", ["reference", "chunked"])
def test_project_is_the_gradient_of_recall(form: str) -> None:
    inputs = make_inputs("recall", T=70, num_states=2)
    y = torch.randn(2, 70, 2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q = inputs["x"].requires_grad_()
    read, _ = call("recall", inputs, backend=form)
    (gradient,) = torch.autograd.grad(read, q, y)
    projected, _ = call("project", {**inputs, "x": y}, backend=form)
    torch.testing.assert_close(projected, gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("decay", "delta"), RULES)
@pytest.mark.parametrize("op", OPS)
def test_cut_sequences_with_carried_states_equal_whole_ones(
    op: str, decay: str, delta: bool
) -> None:
    inputs = make_inputs(op, T=140, decay=decay, delta=delta, num_states=2)
    want_read, want_state = call(op, inputs)
    state = inputs.pop("initial_state")
    reads = []
    # The last cuts are single tokens: decoding.
    for start, end in itertools.pairwise([0, 37, 101, 137, 138, 139, 140]):
        part = {name: tensor[:, start:end] for name, tensor in inputs.items()}
        read, state = call(op, {**part, "initial_state": state})
        reads.append(read)
    torch.testing.assert_close(torch.cat(reads, 1), want_read, rtol=0, atol=1e-12)
    torch.testing.assert_close(state, want_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("op", OPS)
def test_packed_documents_equal_separate_ones(op: str) -> None:
    inputs = make_inputs(op, B=1, T=150)
    read, states = call(op, inputs, cu_seqlens=torch.tensor([0, 80, 150], dtype=torch.int32))
    for i, (start, end) in enumerate([(0, 80), (80, 150)]):
        alone, state = call(op, {name: t[:, start:end] for name, t in inputs.items()})
        torch.testing.assert_close(read[:, start:end], alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(states[i : i + 1], state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["reference", "chunked"])
def test_an_empty_document_keeps_its_state(form: str) -> None:
    inputs = make_inputs("recall", B=1, T=10, num_states=3)
    _, states = call("recall", inputs, cu_seqlens=torch.tensor([0, 4, 4, 10]), backend=form)
    assert torch.equal(states[1], inputs["initial_state"][1])


@pytest.mark.parametrize("op", OPS)
def test_strides_of_inputs_do_not_matter(op: str) -> None:
    inputs = make_inputs(op, T=70, num_states=2)
    strided = {
        name: torch.stack([tensor, tensor], dim=-1).transpose(0, 1).contiguous().transpose(0, 1)
        for name, tensor in inputs.items()
    }
    strided = {name: tensor[..., 0] for name, tensor in strided.items()}
    assert not any(tensor.is_contiguous() for tensor in strided.values())
    assert_close(run(op, strided), run(op, inputs), 1e-14)


@pytest.mark.parametrize("op", OPS)
def test_outputs_do_not_depend_on_uninitialised_memory(op: str) -> None:
    inputs = make_inputs(op, B=1, T=140, num_states=5)
    want = run(op, inputs, cu_seqlens=bounds_of(140))
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        assert torch.empty(3).isnan().all()
        got = run(op, inputs, cu_seqlens=bounds_of(140))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(got[name], want[name]) for name in want)


def test_only_inputs_and_a_state_per_segment_are_kept_for_the_backward() -> None:
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    inputs = make_inputs("recall", B=1, T=4096, K=64, V=64, dtype=torch.float32)
    num_inputs = sum(tensor.numel() for tensor in inputs.values())
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        call("recall", leaves, backend="chunked")
    assert sum(kept.values()) < 1.05 * num_inputs


def test_shapes_and_flops_are_known_without_data() -> None:
    def meta(*shape: int) -> Tensor:
        return torch.empty(*shape, device="meta")

    q, beta = meta(2, 100, 3, 8), meta(2, 100, 3)
    with FlopCounterMode(display=False) as flops:
        read, state = gated_recall(q, q, meta(2, 100, 3, 5), g=q, beta=beta)
    assert (read.shape, state.shape) == ((2, 100, 3, 5), (2, 3, 8, 5))
    assert flops.get_total_flops() > 0


def test_a_call_compiles_into_one_graph() -> None:
    # In a process of its own: Dynamo can't trace the shape checks that pytest adds.
    script = """
import torch
from statelab_kernels import gated_recall

def read(q, g):
    return gated_recall(q.sin(), q, q.exp(), g=g)[0].cos()

q, g = torch.randn(2, 100, 1, 4), -torch.rand(2, 100, 1, 4)
compiled = torch.compile(read, backend="aot_eager", fullgraph=True)
gradients = []
for function in (read, compiled):
    x = q.clone().requires_grad_()
    function(x, g).sum().backward()
    gradients.append(x.grad)
torch.testing.assert_close(*gradients)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_auto_says_once_what_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    forms = {"reference": len, "chunked": sum}
    with caplog.at_level(logging.INFO, logger="statelab.kernels"):
        chosen = [choose("said_once", "auto", forms, torch.device("cpu")) for _ in range(2)]
    assert chosen == [sum, sum]
    assert caplog.messages == ["said_once on cpu runs chunked"]


def test_a_backend_that_does_not_exist_names_those_that_do() -> None:
    message = (
        "backend='quick' does not exist for some_op, which has chunked, reference. "
        "Use one of these or backend='auto'."
    )
    forms = {"reference": len, "chunked": sum}
    with pytest.raises(ValueError, match=re.escape(message)):
        choose("some_op", "quick", forms, torch.device("cpu"))


@pytest.mark.parametrize(
    ("batch", "cu_seqlens", "message"),
    [
        (2, [0, 10], "cu_seqlens needs batch size 1, got 2"),
        (1, [0.0, 10.0], "must be a 1-D integer tensor .* got shape .2. of torch.float32"),
        (1, [[0, 10]], r"must be a 1-D integer tensor .* got shape .1, 2."),
        (1, [0], "at least 2 numbers"),
        (1, [1, 10], "must start at 0 and end at T=10, got 1 and 10"),
        (1, [0, 9], "must start at 0 and end at T=10, got 0 and 9"),
        (1, [0, 6, 4, 10], "must not decrease, got 6 then 4 for document 1"),
    ],
)
def test_bounds_that_are_no_documents_are_refused(
    batch: int, cu_seqlens: list[int], message: str
) -> None:
    bounds = torch.tensor(cu_seqlens)
    with pytest.raises(ValueError, match=message):
        sequence_bounds(batch, 10, bounds)


def test_no_tokens_are_refused() -> None:
    inputs = make_inputs("recall", T=0)
    for form in ("reference", "chunked"):
        with pytest.raises(ValueError, match="T must be >= 1, got 0"):
            call("recall", inputs, backend=form)


def test_a_state_for_another_number_of_sequences_is_refused() -> None:
    inputs = make_inputs("recall", num_states=3)
    message = r"initial_state must have shape \[N=2, H=2, K=5, V=7\], got \[3, 2, 5, 7\]"
    with pytest.raises(ValueError, match=message):
        call("recall", inputs)


def test_a_shape_that_does_not_fit_names_the_tensor() -> None:
    k, beta = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 4)
    with pytest.raises(
        ValueError, match=r"beta must have shape \[B=1, T=2, H=3\], got \[1, 2, 4\]"
    ):
        check_shapes({"k": (k, "BTHK"), "g": (None, "BTH"), "beta": (beta, "BTH")})
