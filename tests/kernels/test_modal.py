"""The modal memory: the chunked form against the loop, the loop against sums written out."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from statelab_kernels import modal_interdomain, modal_project, modal_recall

# Relative RMS against the loop in float64; measured at most 2e-14, 3e-6 and 0.0025.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.008}

OPS = ["recall", "filter", "project", "interdomain"]
#         B  T    H  M  Ds Dv
SIZES = [
    (2, 1, 2, 5, 3, 4),
    (3, 2, 1, 4, 3, 6),
    (1, 63, 2, 5, 4, 3),
    (2, 64, 1, 3, 6, 2),
    (1, 65, 2, 7, 1, 5),
    (2, 200, 3, 5, 4, 6),
]
# Documents of 70, 0, 1, 64, 128 and 37 tokens.
BOUNDS = [0, 70, 70, 71, 135, 263, 300]
PACKED = (1, 300, 2, 5, 3, 4)

TIMELESS = {"log_lambda", "b", "gram"}
STATES = {"features", "values"}


@pytest.fixture(autouse=True)
def nan_in_uninitialised_memory() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_inputs(op: str, size: tuple[int, ...], num_states: int = 0) -> dict[str, Tensor]:
    """Random inputs of an op in float64; "v" is the stream that recall reads and project writes."""
    B, T, H, M, Ds, Dv = size

    def real(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64)

    def modes(*shape: int) -> Tensor:
        return torch.complex(real(*shape), real(*shape))

    inputs = {"log_lambda": modes(H, M), "b": modes(H, M), "v": real(B, T, H, Dv)}
    inputs["log_lambda"].real.abs_().mul_(-0.1)
    match op:
        case "recall":
            inputs["c"] = modes(B, T, H, M)
        case "filter":
            inputs["c"] = modes(H, M)
        case "project":
            inputs["y"] = real(B, T, H, Dv)
        case "interdomain":
            inputs["y"], inputs["s"] = real(B, T, H, Ds), real(B, T, H, Ds)
            inputs["gram"] = modes(H, M, M) / M
    if num_states:
        inputs["values"] = modes(num_states, H, M, Dv)
        if op == "interdomain":
            inputs["features"] = modes(num_states, H, M, Ds)
    return inputs


def call(
    op: str, x: dict[str, Tensor], backend: str, bounds: list[int] | None = None
) -> dict[str, Tensor]:
    """The output and the final states of an op."""
    memory = {
        "log_lambda": x["log_lambda"],
        "b": x["b"],
        "cu_seqlens": None if bounds is None else torch.tensor(bounds),
        "backend": backend,
    }
    if op == "interdomain":
        state = {name: x[name] for name in STATES} if "values" in x else None
        o, states = modal_interdomain(
            x["y"], x["s"], x["v"], gram=x["gram"], initial_state=state, **memory
        )
        return {"o": o, **states}
    if op == "project":
        o, state = modal_project(x["y"], x["v"], initial_state=x.get("values"), **memory)
    else:
        o, state = modal_recall(x["c"], x["v"], initial_state=x.get("values"), **memory)
    return {"o": o, "values": state}


def with_gradients(
    op: str, inputs: dict[str, Tensor], backend: str, bounds: list[int] | None = None
) -> dict[str, Tensor]:
    """The outputs, and the gradient of each input for fixed gradients of all outputs."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    outputs = call(op, leaves, backend, bounds)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for name in sorted(outputs):
        out = outputs[name]
        flat = torch.view_as_real(out) if out.is_complex() else out
        loss = loss + (flat * torch.randn(flat.shape, generator=generator)).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return outputs | {f"d_{name}": d for name, d in zip(leaves, grads, strict=True)}


def cast(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Inputs in a format; complex ones in complex64 for bfloat16, which has no complex."""
    modes = torch.complex128 if dtype == torch.float64 else torch.complex64
    return {name: x.to(modes if x.is_complex() else dtype) for name, x in inputs.items()}


def assert_near(
    got: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype = torch.float64
) -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        # The floor is for gradients that are 0, as log_lambda's after a single token.
        size = torch.linalg.vector_norm(x).clamp(min=1e-6)
        error = torch.linalg.vector_norm(got[name].to(x.dtype) - x) / size
        assert error < TOLERANCE[dtype], f"{name} is off by {error:.2g}"


@pytest.mark.parametrize("with_state", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"T={size[1]}")
@pytest.mark.parametrize("op", OPS)
def test_chunked_equals_the_loop(op: str, size: tuple[int, ...], with_state: bool) -> None:
    inputs = make_inputs(op, size, num_states=size[0] * with_state)
    assert_near(with_gradients(op, inputs, "chunked"), with_gradients(op, inputs, "reference"))


@pytest.mark.parametrize("with_state", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("op", OPS)
def test_chunked_equals_the_loop_on_packed_documents(op: str, with_state: bool) -> None:
    inputs = make_inputs(op, PACKED, num_states=6 * with_state)
    assert_near(
        with_gradients(op, inputs, "chunked", BOUNDS),
        with_gradients(op, inputs, "reference", BOUNDS),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("op", OPS)
def test_single_and_half_precision(op: str, backend: str, dtype: torch.dtype) -> None:
    inputs = cast(make_inputs(op, SIZES[-1], num_states=2), dtype)
    got = with_gradients(op, inputs, backend)
    assert got["values"].dtype == torch.complex64
    assert got["o"].dtype == (torch.complex64 if op == "project" else dtype)
    assert_near(got, with_gradients(op, cast(inputs, torch.float64), "reference"), dtype)


@pytest.mark.parametrize("op", OPS)
def test_segments_meet_without_a_seam(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two chunks at a time, so that segments end inside a wave of three sequences.
    monkeypatch.setattr("statelab_kernels.segmentwise._SEGMENT_NUMEL", 2 * 64 * 2 * 8)
    inputs = make_inputs(op, (3, 200, 2, 4, 3, 5), num_states=3)
    assert_near(with_gradients(op, inputs, "chunked"), with_gradients(op, inputs, "reference"))


@pytest.mark.parametrize("op", OPS)
def test_many_chunks_equal_the_loop(op: str) -> None:
    inputs = make_inputs(op, (1, 1500, 1, 3, 2, 3), num_states=1)
    assert_near(with_gradients(op, inputs, "chunked"), with_gradients(op, inputs, "reference"))


@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("op", OPS)
def test_split_with_carried_state_equals_whole(op: str, backend: str) -> None:
    inputs = make_inputs(op, (2, 140, 2, 5, 3, 4), num_states=2)
    whole = call(op, inputs, backend)
    outs = []
    carried = inputs
    for start, end in pairwise([0, 1, 2, 66, 67, 131, 140]):
        piece = {
            name: x if name in TIMELESS | STATES or x.ndim == 2 else x[:, start:end]
            for name, x in carried.items()
        }
        outputs = call(op, piece, backend)
        outs.append(outputs.pop("o"))
        carried = carried | outputs
    assert_near({"o": torch.cat(outs, dim=1)} | outputs, whole)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("op", OPS)
def test_packed_equals_separate(op: str, backend: str) -> None:
    inputs = make_inputs(op, PACKED, num_states=6)
    packed = call(op, inputs, backend, BOUNDS)
    outs = []
    for document, (start, end) in enumerate(pairwise(BOUNDS)):
        state = {name: x[document : document + 1] for name, x in inputs.items() if name in STATES}
        if start == end:
            for name, x in state.items():
                torch.testing.assert_close(packed[name][document : document + 1], x)
            continue
        piece = {
            name: x if name in TIMELESS or x.ndim == 2 else x[:, start:end]
            for name, x in inputs.items()
            if name not in STATES
        }
        alone = call(op, piece | state, backend)
        outs.append(alone.pop("o"))
        assert_near({name: packed[name][document : document + 1] for name in alone}, alone)
    assert_near({"o": packed["o"]}, {"o": torch.cat(outs, dim=1)})


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_filter_equals_a_convolution_by_fft(backend: str) -> None:
    x = make_inputs("filter", (2, 150, 2, 5, 0, 3))
    lags = torch.arange(150)[:, None, None]
    kernel = (x["c"] * x["b"] * (x["log_lambda"] * lags).exp()).sum(-1).real  # [T, H]
    spectrum = torch.fft.rfft(kernel, n=300, dim=0)[None, ..., None]
    o = torch.fft.irfft(spectrum * torch.fft.rfft(x["v"], n=300, dim=1), n=300, dim=1)[:, :150]
    assert_near({"o": call("filter", x, backend)["o"]}, {"o": o})


@pytest.mark.parametrize("op", ["recall", "project"])
@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_reads_equal_their_sums_written_out(op: str, backend: str) -> None:
    x = make_inputs(op, (2, 70, 2, 5, 0, 3))
    age = torch.arange(70)[:, None] - torch.arange(70)  # t - j
    kept = (x["log_lambda"] * age.clamp(min=0)[..., None, None]).exp() * (age >= 0)[..., None, None]
    v = x["v"].to(torch.complex128)
    if op == "recall":
        o = torch.einsum("bthm,tjhm,hm,bjhd->bthd", x["c"], kept, x["b"], v).real
    else:
        y = x["y"].to(torch.complex128)
        o = torch.einsum("tjhm,hm,bjhd,bthd->bthm", kept, x["b"], v, y)
    assert_near({"o": call(op, x, backend)["o"]}, {"o": o})


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_interdomain_equals_its_effective_weights(backend: str) -> None:
    """Key j meets value i with weight Re(sum_mn b_m L_m^(t-i) G_mn b_n L_n^(t-j)), L = Lambda."""
    x = make_inputs("interdomain", (1, 9, 2, 4, 3, 5))
    decay, b = x["log_lambda"].exp(), x["b"]
    expected = torch.zeros(1, 9, 2, 5, dtype=torch.float64)
    for t in range(9):
        for i in range(t + 1):
            for j in range(t + 1):
                late, early = b * decay ** (t - i), b * decay ** (t - j)
                weight = torch.einsum("hm,hmn,hn->h", late, x["gram"], early).real
                score = (x["y"][:, t] * x["s"][:, j]).sum(-1)
                expected[:, t] += (weight * score)[..., None] * x["v"][:, i]
    assert_near({"o": call("interdomain", x, backend)["o"]}, {"o": expected})


def test_interdomain_equals_project_gram_recall() -> None:
    x = make_inputs("interdomain", SIZES[-1], num_states=2)
    memory = {"log_lambda": x["log_lambda"], "b": x["b"]}
    w, features = modal_project(x["y"], x["s"], initial_state=x["features"], **memory)
    c = torch.einsum("hmn,bthn->bthm", x["gram"], w)
    o, values = modal_recall(c, x["v"], initial_state=x["values"], **memory)
    expected = {"o": o, "features": features, "values": values}
    assert_near(call("interdomain", x, "auto"), expected)


@pytest.mark.parametrize("bounds", [None, [0, 3, 3, 4, 6]], ids=["batch", "packed"])
@pytest.mark.parametrize("op", OPS)
def test_gradcheck(op: str, bounds: list[int] | None) -> None:
    batch, num_states = (2, 2) if bounds is None else (1, 4)
    inputs = make_inputs(op, (batch, 6, 1, 2, 2, 3), num_states)

    def flat(*leaves: Tensor) -> tuple[Tensor, ...]:
        return tuple(call(op, dict(zip(inputs, leaves, strict=True)), "chunked", bounds).values())

    leaves = [x.requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(flat, leaves, fast_mode=True)


@pytest.mark.parametrize("op", OPS)
def test_inputs_may_be_strided(op: str) -> None:
    inputs = make_inputs(op, SIZES[-1], num_states=2)
    strided = {name: x.mT.contiguous().mT for name, x in inputs.items()}
    assert not strided["v"].is_contiguous()
    assert_near(with_gradients(op, strided, "chunked"), with_gradients(op, inputs, "chunked"))


@pytest.mark.parametrize("op", OPS)
def test_autocast_changes_nothing(op: str) -> None:
    inputs = cast(make_inputs(op, SIZES[-1], num_states=2), torch.float32)
    expected = with_gradients(op, inputs, "chunked")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = with_gradients(op, inputs, "chunked")
    for name, x in expected.items():
        torch.testing.assert_close(got[name], x, rtol=0, atol=0)


@pytest.mark.parametrize("op", OPS)
def test_long_input_stays_finite(op: str) -> None:
    inputs = cast(make_inputs(op, (1, 16384, 1, 3, 2, 2)), torch.float32)
    for name, x in with_gradients(op, inputs, "chunked").items():
        assert x.isfinite().all(), name


def test_phases_of_thousands_of_radians_stay_right() -> None:
    inputs = make_inputs("recall", (1, 300, 1, 4, 0, 3))
    inputs["log_lambda"] = torch.complex(
        torch.full((1, 4), -0.002, dtype=torch.float64), torch.linspace(0, 130, 4).double()[None]
    )
    single = cast(inputs, torch.float32)
    expected = call("recall", cast(single, torch.float64), "reference")
    assert_near(call("recall", single, "chunked"), expected, torch.float32)


def test_what_autograd_keeps_is_the_inputs_and_a_state_a_segment() -> None:
    x = cast(make_inputs("interdomain", (1, 4096, 2, 32, 32, 32)), torch.float32)
    leaves = {name: leaf.requires_grad_() for name, leaf in x.items()}
    known = {leaf.data_ptr() for leaf in leaves.values()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in known:
            kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call("interdomain", leaves, "chunked")
    assert sum(kept.values()) < 0.25 * x["v"].nbytes + 1e6


@pytest.mark.parametrize("op", OPS)
def test_meta_tensors_give_shapes(op: str) -> None:
    inputs = make_inputs(op, PACKED, num_states=6)
    expected = call(op, inputs, "auto", BOUNDS)
    got = call(op, {name: x.to("meta") for name, x in inputs.items()}, "auto", BOUNDS)
    for name, x in expected.items():
        assert got[name].device.type == "meta"
        assert (got[name].shape, got[name].dtype) == (x.shape, x.dtype)


def test_state_of_another_batch_is_refused() -> None:
    inputs = make_inputs("recall", SIZES[-1], num_states=3)
    message = r"initial_state must have shape \[N=2, H=3, M=5, D=6\], got \[3, 3, 5, 6\]"
    with pytest.raises(ValueError, match=message):
        call("recall", inputs, "auto")


def test_interdomain_state_without_features_is_refused() -> None:
    x = make_inputs("interdomain", SIZES[-1], num_states=2)
    with pytest.raises(ValueError, match="must hold features, values; got values"):
        modal_interdomain(
            x["y"],
            x["s"],
            x["v"],
            log_lambda=x["log_lambda"],
            b=x["b"],
            gram=x["gram"],
            initial_state={"values": x["values"]},
        )


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="T must be >= 1, got 0"):
        call("recall", make_inputs("recall", (2, 0, 1, 2, 0, 3)), "auto")


def test_a_form_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="backend='fused' does not exist for modal_recall"):
        call("recall", make_inputs("recall", SIZES[0]), "fused")
