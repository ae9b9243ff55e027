"""The running covariance of the keys: the chunked form against the loop, both against torch.cov."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from statelab_kernels import ccq_query, curvature

# Relative RMS against the loop in float64; measured at most 2e-14, 3e-6 and 0.0025.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.008}

#         B  T    H  K
SIZES = [
    (2, 1, 2, 5),
    (3, 2, 1, 4),
    (1, 63, 2, 7),
    (2, 64, 1, 6),
    (1, 65, 1, 257),
    (2, 200, 3, 5),
]
# Documents of 70, 0, 1, 64, 128 and 37 tokens.
BOUNDS = [0, 70, 70, 71, 135, 263, 300]
PACKED = (1, 300, 2, 5)
PARTS = ("second", "first", "position")


@pytest.fixture(autouse=True)
def nan_in_uninitialised_memory() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_inputs(size: tuple[int, ...], num_states: int = 0) -> dict[str, Tensor]:
    """Random inputs in float64, with states of sequences that have seen 0, 9, 18, ... tokens."""
    B, T, H, K = size
    shape = {"q": (B, T, H, K), "k": (B, T, H, K), "lam": (B, T, H)}
    inputs = {name: torch.randn(dims, dtype=torch.float64) for name, dims in shape.items()}
    inputs["k"] = normalize(inputs["k"], dim=-1)
    if num_states:
        seen = 9 * torch.arange(num_states)
        keys = normalize(torch.randn(num_states, 9 * num_states, H, K, dtype=torch.float64), dim=-1)
        keys[torch.arange(9 * num_states) >= seen[:, None]] = 0
        inputs["second"] = torch.einsum("nthi,nthj->nhij", keys, keys)
        inputs["first"] = keys.sum(1)
        inputs["position"] = seen
    return inputs


def call(
    op: str,
    x: dict[str, Tensor],
    backend: str,
    bounds: list[int] | None = None,
    center: bool = True,
) -> dict[str, Tensor]:
    """The output and the final state of an op."""
    common = {
        "center": center,
        "initial_state": {name: x[name] for name in PARTS} if "second" in x else None,
        "cu_seqlens": None if bounds is None else torch.tensor(bounds),
        "backend": backend,
    }
    if op == "ccq_query":
        out, state = ccq_query(x["q"], x["k"], x["lam"], **common)
    else:
        out, state = curvature(x["q"], x["k"], **common)
    return {"out": out, **state}


def with_gradients(
    op: str,
    inputs: dict[str, Tensor],
    backend: str,
    bounds: list[int] | None = None,
    center: bool = True,
) -> dict[str, Tensor]:
    """The outputs, and the gradient of each input for fixed gradients of all outputs."""
    used = inputs if op == "ccq_query" else {n: x for n, x in inputs.items() if n != "lam"}
    leaves = {n: x.clone().requires_grad_(x.is_floating_point()) for n, x in used.items()}
    outputs = call(op, leaves, backend, bounds, center)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for name in ("out", "second", "first"):
        weight = torch.randn(outputs[name].shape, generator=generator)
        loss = loss + (outputs[name] * weight).sum()
    names = [name for name, leaf in leaves.items() if leaf.requires_grad]
    grads = torch.autograd.grad(loss, [leaves[name] for name in names])
    return outputs | {f"d_{name}": d for name, d in zip(names, grads, strict=True)}


def assert_near(
    got: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype = torch.float64
) -> None:
    assert got.keys() == expected.keys()
    for name, x in expected.items():
        # The floor is for a curvature that is 0, as after a single token.
        size = torch.linalg.vector_norm(x.double()).clamp(min=1e-6)
        error = torch.linalg.vector_norm(got[name].double() - x) / size
        assert error < TOLERANCE[dtype], f"{name} is off by {error:.2g}"


@pytest.mark.parametrize("center", [True, False], ids=["centered", "uncentered"])
@pytest.mark.parametrize("with_state", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"T={size[1]}")
@pytest.mark.parametrize("op", ["curvature", "ccq_query"])
def test_chunked_equals_the_loop(
    op: str, size: tuple[int, ...], with_state: bool, center: bool
) -> None:
    inputs = make_inputs(size, num_states=size[0] * with_state)
    chunked, loop = (
        with_gradients(op, inputs, backend, center=center) for backend in ("chunked", "reference")
    )
    assert_near(chunked, loop)


@pytest.mark.parametrize("with_state", [False, True], ids=["from nothing", "from a state"])
@pytest.mark.parametrize("op", ["curvature", "ccq_query"])
def test_chunked_equals_the_loop_on_packed_documents(op: str, with_state: bool) -> None:
    inputs = make_inputs(PACKED, num_states=6 * with_state)
    assert_near(
        with_gradients(op, inputs, "chunked", BOUNDS),
        with_gradients(op, inputs, "reference", BOUNDS),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("op", ["curvature", "ccq_query"])
def test_single_and_half_precision(op: str, backend: str, dtype: torch.dtype) -> None:
    inputs = make_inputs(SIZES[-1], num_states=2)
    low = {n: x.to(dtype if n in ("q", "k", "lam") else x.dtype) for n, x in inputs.items()}
    low["second"], low["first"] = low["second"].float(), low["first"].float()
    got = with_gradients(op, low, backend)
    assert (got["out"].dtype, got["second"].dtype) == (dtype, torch.float32)
    wide = {n: x.double() if x.is_floating_point() else x for n, x in low.items()}
    assert_near(got, with_gradients(op, wide, "reference"), dtype)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_curvature_is_the_covariance_of_the_keys_so_far(backend: str) -> None:
    x = make_inputs((1, 70, 2, 5))
    expected = torch.zeros_like(x["q"])
    for h in range(2):
        for t in range(70):
            sigma = torch.cov(x["k"][0, : t + 1, h].T, correction=0)
            expected[0, t, h] = sigma @ x["q"][0, t, h]
    assert_near({"out": call("curvature", x, backend)["out"]}, {"out": expected})


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_uncentered_curvature_is_the_mean_second_moment(backend: str) -> None:
    x = make_inputs((2, 70, 2, 5))
    moments = torch.einsum("bthi,bthj->bthij", x["k"], x["k"]).cumsum(1)
    count = torch.arange(1, 71)[:, None, None]
    expected = torch.einsum("bthij,bthj->bthi", moments, x["q"]) / count
    got = call("curvature", x, backend, center=False)["out"]
    assert_near({"out": got}, {"out": expected})


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_ccq_query_takes_out_lambda_times_the_curvature(backend: str) -> None:
    x = make_inputs(SIZES[-1], num_states=2)
    expected = call("curvature", x, backend)
    expected["out"] = x["q"] - x["lam"][..., None] * expected["out"]
    assert_near(call("ccq_query", x, backend), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_lambda_of_zero_is_the_query_to_the_bit(backend: str, dtype: torch.dtype) -> None:
    x = {name: stream.to(dtype) for name, stream in make_inputs(SIZES[-1]).items()}
    x["lam"] = torch.zeros_like(x["lam"])
    assert torch.equal(call("ccq_query", x, backend)["out"], x["q"])


@pytest.mark.parametrize("backend", ["chunked", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_first_token_has_no_curvature(backend: str, dtype: torch.dtype) -> None:
    x = {name: stream.to(dtype) for name, stream in make_inputs((2, 65, 2, 7)).items()}
    first = call("curvature", x, backend)["out"][:, 0]
    assert first.abs().max() < 10 * torch.finfo(dtype).eps


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_split_with_carried_state_equals_whole(backend: str) -> None:
    inputs = make_inputs((2, 140, 2, 5), num_states=2)
    whole = call("ccq_query", inputs, backend)
    outs = []
    state = {name: inputs[name] for name in PARTS}
    for start, end in pairwise([0, 1, 2, 66, 67, 131, 140]):
        piece = {name: inputs[name][:, start:end] for name in ("q", "k", "lam")}
        state = call("ccq_query", piece | state, backend)
        outs.append(state.pop("out"))
    assert torch.equal(state["position"], torch.tensor([140, 149]))
    assert_near({"out": torch.cat(outs, dim=1)} | state, whole)


@pytest.mark.parametrize("backend", ["chunked", "reference"])
def test_packed_equals_separate(backend: str) -> None:
    inputs = make_inputs(PACKED, num_states=6)
    packed = call("ccq_query", inputs, backend, BOUNDS)
    outs = []
    for document, (start, end) in enumerate(pairwise(BOUNDS)):
        state = {name: inputs[name][document : document + 1] for name in PARTS}
        if start < end:
            piece = {name: inputs[name][:, start:end] for name in ("q", "k", "lam")}
            state = call("ccq_query", piece | state, backend)
            outs.append(state.pop("out"))
        assert_near({name: packed[name][document : document + 1] for name in PARTS}, state)
    assert_near({"out": packed["out"]}, {"out": torch.cat(outs, dim=1)})


@pytest.mark.parametrize("bounds", [None, [0, 3, 3, 4, 6]], ids=["batch", "packed"])
def test_gradcheck(bounds: list[int] | None) -> None:
    batch, num_states = (2, 2) if bounds is None else (1, 4)
    inputs = make_inputs((batch, 6, 1, 3), num_states)
    position = {"position": inputs.pop("position")}

    def flat(*leaves: Tensor) -> tuple[Tensor, ...]:
        outputs = call(
            "ccq_query", dict(zip(inputs, leaves, strict=True)) | position, "chunked", bounds
        )
        return outputs["out"], outputs["second"], outputs["first"]

    leaves = [x.requires_grad_() for x in inputs.values()]
    assert torch.autograd.gradcheck(flat, leaves, fast_mode=True)


def test_inputs_may_be_strided() -> None:
    inputs = make_inputs(SIZES[-1])
    strided = {name: x.transpose(0, 1).contiguous().transpose(0, 1) for name, x in inputs.items()}
    assert not strided["q"].is_contiguous()
    assert_near(
        with_gradients("ccq_query", strided, "chunked"),
        with_gradients("ccq_query", inputs, "chunked"),
    )


def test_autocast_changes_nothing() -> None:
    inputs = {name: x.float() for name, x in make_inputs(SIZES[-1]).items()}
    expected = with_gradients("ccq_query", inputs, "chunked")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = with_gradients("ccq_query", inputs, "chunked")
    for name, x in expected.items():
        torch.testing.assert_close(got[name], x, rtol=0, atol=0)


def test_long_input_stays_right() -> None:
    inputs = {name: x.float() for name, x in make_inputs((1, 16384, 1, 4)).items()}
    got = with_gradients("ccq_query", inputs, "chunked")
    assert all(x.isfinite().all() for x in got.values())
    sigma = torch.cov(inputs["k"][0, :, 0].double().T, correction=0)
    expected = inputs["q"][0, -1, 0] - inputs["lam"][0, -1, 0] * (
        sigma @ inputs["q"][0, -1, 0].double()
    )
    assert_near({"out": got["out"][0, -1, 0]}, {"out": expected}, torch.float32)


def test_meta_tensors_give_shapes() -> None:
    inputs = make_inputs(PACKED, num_states=6)
    expected = call("ccq_query", inputs, "auto", BOUNDS)
    meta = {name: x.to("meta") for name, x in inputs.items()}
    for name, x in call("ccq_query", meta, "auto", BOUNDS).items():
        assert x.device.type == "meta"
        assert (x.shape, x.dtype) == (expected[name].shape, expected[name].dtype)


def test_state_of_another_batch_is_refused() -> None:
    message = (
        r"initial_state\['second'\] must have shape \[N=2, H=3, K=5, K=5\], got \[3, 3, 5, 5\]"
    )
    with pytest.raises(ValueError, match=message):
        call("curvature", make_inputs(SIZES[-1], num_states=3), "auto")


def test_state_without_position_is_refused() -> None:
    x = make_inputs(SIZES[-1], num_states=2)
    state = {"second": x["second"], "first": x["first"]}
    message = "initial_state must hold first, position, second; got first, second"
    with pytest.raises(ValueError, match=message):
        curvature(x["q"], x["k"], initial_state=state)


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="T must be >= 1, got 0"):
        call("curvature", make_inputs((2, 0, 1, 3)), "auto")
