"""Reads that solve for their address: mesa and gka, and the solvers themselves."""

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import ConfigError, RuleError
from statelab.model.context import Context
from statelab.pairs import check_pair, pairs
from statelab.rules import ParamOptions, read_rules, write_rules
from statelab_plugins.memory import GatedMemory
from statelab_plugins.read.gka import GKAConfig
from statelab_plugins.read.mesa import MesaConfig
from statelab_plugins.solvers import chebyshev, conjugate_gradients, solve

OWN = [("mesanet", "mesa"), ("gated_kalmanet", "gka")]
EXACT = {"mesa": {}, "gka": {"num_steps": 200}}


def system(size, condition, spread=0.0):
    """A symmetric matrix with eigenvalues from 1 to `condition`, and right-hand sides."""
    torch.manual_seed(0)
    turn, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64))
    values = torch.logspace(0, torch.tensor(condition).log10(), size, dtype=torch.float64)
    scale = 10 ** (spread * torch.randn(6, 1, dtype=torch.float64))
    return turn @ torch.diag(values) @ turn.T, scale * torch.randn(6, size, dtype=torch.float64)


def errors(x, A, b):
    exact = torch.linalg.solve(A, b.T).T
    return (x.double() - exact).norm(dim=-1) / exact.norm(dim=-1)


def test_conjugate_gradients_end_after_as_many_steps_as_there_are_unknowns():
    A, b = system(8, 100.0)
    assert errors(conjugate_gradients(lambda p: p @ A, b, 7), A, b).max() > 1e-6
    assert errors(conjugate_gradients(lambda p: p @ A, b, 8), A, b).max() < 1e-10


@pytest.mark.parametrize("steps", [30, 200])
def test_conjugate_gradients_stay_at_the_solution_however_long_or_short_the_query(steps):
    A, b = system(8, 100.0, spread=6.0)
    x = conjugate_gradients(lambda p: p @ A.float(), b.float(), steps)
    assert errors(x, A, b).max() < 1e-5


def test_conjugate_gradients_leave_zero_where_it_is():
    b = torch.zeros(3, 4)
    b[0] = 1.0
    x = conjugate_gradients(lambda p: 2 * p, b, 5)
    assert torch.equal(x, b / 2)


@pytest.mark.parametrize("steps", [1, 5, 30])
def test_chebyshev_is_as_near_as_its_theory_says(steps):
    A, b = system(20, 51.0)
    low, high = (torch.full((1,), each, dtype=b.dtype) for each in (1.0, 51.0))
    x = chebyshev(lambda p: p @ A, b, low, high, steps)
    root = 51**0.5
    bound = 2 * ((root - 1) / (root + 1)) ** steps
    norm = torch.einsum("ni,ij,nj->n", b, torch.linalg.inv(A), b).sqrt()
    error = x - torch.linalg.solve(A, b.T).T
    assert (torch.einsum("ni,ij,nj->n", error, A, error).sqrt() <= bound * norm).all()


def test_the_gradient_of_a_solution_is_that_of_elimination():
    half, b = system(6, 30.0)
    leaves = [each.requires_grad_() for each in (half, b)]
    A, cotangent = half + half.T, torch.randn_like(b)

    def inverse(rhs):
        return conjugate_gradients(lambda p: p @ A.detach(), rhs, 12)

    x = solve(lambda p: p @ A, b, inverse)
    found = torch.autograd.grad((x * cotangent).sum(), leaves)
    exact = torch.linalg.solve(A, b.T).T
    assert_close(x, exact)
    assert_close(found, torch.autograd.grad((exact * cotangent).sum(), leaves))


def eliminated(pair):
    """What a pair computes, from whole matrices of every token, in operations of torch."""
    memory = pair.write(pair.x, pair.k, pair.v)
    decay, weight = memory.g.exp(), memory.weight
    H = S = 0.0
    moments, states = [], []
    for t in range(pair.x.shape[1]):
        key = weight[:, t, :, None] * pair.k[:, t]
        H = decay[:, t, :, None, None] * H + key[..., :, None] * pair.k[:, t, :, None, :]
        S = decay[:, t, :, None, None] * S + key[..., :, None] * pair.v[:, t, :, None, :]
        moments.append(H)
        states.append(S)
    H, S, q, read = torch.stack(moments, 1), torch.stack(states, 1), pair.q, pair.read
    if hasattr(read, "p"):
        ridge = torch.diag_embed(torch.nn.functional.softplus(read.p) + 0.25)
        c = torch.linalg.solve(H + ridge, q)
    else:
        norm = H.square().sum((-2, -1), keepdim=True).sqrt()
        x = torch.linalg.solve(H + 0.02 * norm * torch.eye(q.shape[-1], dtype=q.dtype), q)
        unit = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt()
        alpha = torch.sigmoid((unit * read.weight).sum(-1) + read.bias)[..., None]
        c = (1 - alpha) * q + alpha * x
    return torch.einsum("bthkv,bthk->bthv", S, c)


@pytest.mark.parametrize(("write", "read"), OWN)
def test_gradients_are_those_of_elimination(make, write, read):
    pair = make(write, read, tokens=9, read_options=EXACT[read])
    leaves = [getattr(pair, name).requires_grad_() for name in "xqkv"]
    leaves += [*pair.write.parameters(), *pair.read.parameters()]
    (o, _), exact = pair.run(), eliminated(pair)
    assert_close(o, exact, rtol=1e-9, atol=1e-9)
    cotangent = torch.randn_like(o)
    found, expected = (torch.autograd.grad((each * cotangent).sum(), leaves) for each in (o, exact))
    assert_close(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("write", "read"), OWN)
def test_gradients_go_through_an_incoming_and_an_outgoing_state(make, write, read):
    pair = make(write, read, tokens=9, read_options=EXACT[read])
    pair.v.requires_grad_()
    pair.k.requires_grad_()
    whole, final = pair.run()
    first, state = pair.run(0, 4)
    second, last = pair.run(4, state=state)

    def gradients(o, state):
        total = o.sin().sum() + sum(each.sin().sum() for each in state.values())
        return torch.autograd.grad(total, [pair.k, pair.v])

    parts = gradients(torch.cat([first, second], 1), last)
    assert_close(parts, gradients(whole, final), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("write", "read"), OWN)
def test_the_default_steps_come_near_the_solution(make, write, read):
    pair = make(write, read, tokens=30)
    exact = eliminated(pair)
    error = (pair.run()[0] - exact).norm() / exact.norm()
    assert error < (1e-10 if read == "mesa" else 1e-3)


@pytest.mark.parametrize(("write", "read"), OWN)
def test_a_backward_leaves_the_state_as_it_was_handed_out(make, write, read):
    pair = make(write, read, tokens=5)
    o, state = pair.run()
    before = dict(state)
    o.sum().backward()
    assert all(state[slot] is tensor for slot, tensor in before.items())
    assert state.keys() == before.keys()
    norm = {"layer.norm"} if read == "gka" else set()
    assert set(state) == {"position", "layer.values", "layer.keys"} | norm
    assert state["layer.keys"].requires_grad


@pytest.mark.parametrize(("write", "read"), OWN)
def test_what_is_kept_for_the_backward_does_not_grow_with_the_steps(make, write, read):
    kept = []
    for steps in (2, 20):
        pair = make(write, read, tokens=5, read_options={"num_steps": steps})
        count = 0

        def pack(tensor):
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            pair.run()
        kept.append(count)
    assert kept[0] == kept[1]


@pytest.mark.parametrize(("write", "read"), OWN)
def test_all_backends_agree(make, write, read):
    pair = make(write, read, tokens=70)
    outs = []
    for backend in ("reference", "chunked"):
        context = Context(2, 70, device=pair.x.device, backend=backend)
        memory = pair.write(pair.x, pair.k, pair.v).bind(context)
        outs.append((pair.read(pair.q, pair.k, memory), context.outgoing))
    assert_close(outs[0], outs[1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("write", "read"), [*OWN, ("linear", "mesa"), ("linear", "gka"), ("retnet", "mesa")]
)
def test_one_key_over_and_over_costs_no_accuracy(make, write, read, dtype):
    pair = make(write, read, tokens=300, dtype=torch.float32)
    exact = make(write, read, tokens=300)
    for rule in ("write", "read"):
        getattr(exact, rule).load_state_dict(getattr(pair, rule).state_dict())
    pair.k = pair.k[:, :1].expand_as(pair.k)
    leaves = []
    for name in "xqkv":
        leaf = getattr(pair, name).to(dtype).requires_grad_()
        setattr(pair, name, leaf)
        setattr(exact, name, leaf.detach().double())
        leaves.append(leaf)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        o, state = pair.run()
    expected, _ = exact.run()
    # In bf16 no more than the output's own rounding, and that of the gates from x.
    tight = 1e-4 if dtype == torch.float32 else 0.01
    assert o.dtype == dtype
    assert (o.double() - expected).norm() < tight * expected.norm()
    assert state["layer.keys"].dtype == torch.float32
    o.float().square().sum().backward()
    used = leaves if write in ("mesanet", "gated_kalmanet") else leaves[1:]
    assert all(leaf.grad.isfinite().all() for leaf in used)


@pytest.mark.parametrize("read", ["mesa", "gka"])
@pytest.mark.parametrize("stream", ["q", "k"])
def test_zeros_give_zeros_and_finite_gradients(make, read, stream):
    pair = make("mesanet", read, tokens=5, dtype=torch.float32)
    setattr(pair, stream, torch.zeros_like(pair.k))
    leaves = [getattr(pair, name).requires_grad_() for name in "qkv"]
    o, _ = pair.run()
    assert not o.any()
    o.backward(torch.randn_like(o))
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("read", ["mesa", "gka"])
@pytest.mark.parametrize("g", [-1e4, -torch.inf])
def test_a_reset_forgets_what_was_before(make, read, g):
    pair = make("linear", read, tokens=20)
    decay = torch.zeros(2, 20, 2, dtype=torch.float64)
    decay[:, 8] = g
    o = pair.read(pair.q, pair.k, GatedMemory(pair.k, pair.v, g=decay))
    after, _ = pair.run(8)
    assert_close(o[:, 8:], after)


@pytest.mark.parametrize("read", ["mesa", "gka"])
@pytest.mark.parametrize("write", ["gla", "deltanet", "gated_deltanet", "kda", "s4d", "kv"])
def test_a_memory_that_is_not_symmetric_is_refused_with_the_pairs_that_work(write, read):
    with pytest.raises(RuleError, match=rf"{read}.* symmetric.*Pairs that work: .*mesanet\+{read}"):
        check_pair(write_rules.get(write), read_rules.get(read))
    symmetric = {name for name, reader in pairs() if reader == read}
    assert symmetric == {"linear", "retnet", "mamba2", "mesanet", "gated_kalmanet"}


def test_the_ridge_starts_at_one_and_stays_above_its_floor(make):
    pair = make("linear", "mesa", read_options={"lambda_min": 0.5})
    pair.read.reset_parameters()
    keys = torch.zeros_like(pair.k)
    keys[..., 0] = 1.0
    query = torch.zeros_like(keys)
    query[..., 1] = 1.0

    def ridge():
        # Beside all keys, the solution is q / Lambda: recall it through a stream of ones there.
        probe = GatedMemory(keys, pair.v)
        probe.recall = lambda c: c
        return 1 / pair.read(query, keys, probe)[..., 1]

    assert_close(ridge(), torch.ones_like(ridge()), rtol=1e-6, atol=1e-6)
    torch.nn.init.constant_(pair.read.p, -100.0)
    assert_close(ridge(), torch.full_like(ridge(), 0.5))


def test_gka_starts_half_way_between_query_and_solution(make):
    pair = make("gated_kalmanet", "gka", read_options=EXACT["gka"])
    pair.read.reset_parameters()
    half, _ = pair.run()
    plain = make("gated_kalmanet", "plain")
    plain.write = pair.write
    torch.nn.init.constant_(pair.read.bias, 100.0)
    assert_close(half, (pair.run()[0] + plain.run()[0]) / 2)


@pytest.mark.parametrize("read", ["mesa", "gka"])
def test_what_is_solved_for_has_unit_keys_and_no_weight_decay(make, read):
    assert read_rules.get(read).cls.mixer == {"qk_norm": "l2"}
    options = make("linear", read).read.parameter_options()
    assert set(options.values()) == {ParamOptions(weight_decay=False)}


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (MesaConfig, {"num_steps": 0}, "num_steps must be >= 1, got 0"),
        (MesaConfig, {"lambda_min": 0.0}, "lambda_min must be > 0 and < 1, got 0.0"),
        (MesaConfig, {"lambda_min": 1.0}, "lambda_min must be > 0 and < 1, got 1.0"),
        (GKAConfig, {"num_steps": 0}, "num_steps must be >= 1, got 0"),
        (GKAConfig, {"ridge": 0.0}, "ridge must be > 0, got 0.0"),
    ],
)
def test_options_out_of_range_are_refused(config, options, message):
    with pytest.raises(ConfigError, match=message):
        config(**options)
