"""Every write rule of fixed size with every read rule that fits it."""

from itertools import pairwise, product

import pytest
import torch
from torch.testing import assert_close

SYMMETRIC = ("linear", "retnet", "mamba2", "mesanet", "gated_kalmanet")
GATED = (*SYMMETRIC, "gla", "deltanet", "gated_deltanet", "kda")
WRITES = (*GATED, "s4d")
READS = ("plain", "ccq", "interdomain")
SOLVERS = ("mesa", "gka")
PAIRS = [*product(WRITES, READS), *product(SYMMETRIC, SOLVERS)]

# Options that keep states of their own; the pairs themselves are in test_contracts.py.
VARIANTS = [
    *((write, "interdomain", {}, {"denominator": True}) for write in ("linear", "gla", "s4d")),
    *(("gla", read, {"feature_map": "hedgehog"}, {}) for read in READS),
    *(
        (write, "ccq", {}, {"statistics": statistics, "order": 2})
        for write, statistics in product(
            ("linear", "mamba2", "gla", "gated_deltanet"), ("written", "decayed")
        )
    ),
    ("s4d", "ccq", {}, {"order": 2, "center": False}),
    ("kda", "plain", {"least_decay": -5.0}, {}),
    ("gated_kalmanet", "gka", {"input_gate": False}, {}),
    ("kv", "softmax", {}, {"window": 5}),
]


def named(variant):
    write, read, *options = variant
    return "-".join([write, read, *(f"{k}={v}" for block in options for k, v in block.items())])


@pytest.fixture(params=VARIANTS, ids=named)
def variant(request, make):
    write, read, write_options, read_options = request.param
    return lambda tokens: make(
        write, read, tokens=tokens, write_options=write_options, read_options=read_options
    )


# The definition, with explicit matrices, one sequence and head at a time.


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def scalar_gates(name, p, x, head):
    """exp(g_t) and w_t of one head of a rule with a scalar decay that erases nothing."""
    one = torch.ones(len(x), dtype=x.dtype)
    if name == "linear":
        return one, one
    if name == "retnet":
        return (1 - 2.0 ** (-5 - head)) * one, one
    if name == "mesanet":
        forget = sigmoid(x @ p["forget_proj.weight"] + p["forget_proj.bias"])
        return forget, sigmoid(x @ p["input_proj.weight"] + p["input_proj.bias"])
    dt = torch.log1p(torch.exp(x @ p["gate.proj.weight"] + p["gate.dt_bias"]))
    decay = torch.exp(-p["gate.A_log"].exp() * dt)
    if name == "mamba2":
        return decay, dt
    return decay, sigmoid(x @ p["input_proj.weight"] + p["input_proj.bias"]) ** 2


def transitions(name, p, x, k, head):
    """T_t, b_t and C of S_t = T_t S_(t-1) + b_t s_t', of one head: lists over time."""
    eye = torch.eye(k.shape[-1], dtype=k.dtype)
    if name in SYMMETRIC:
        decay, weight = scalar_gates(name, p, x, head)
        return [d * eye for d in decay], list(weight[:, None] * k), eye
    if name == "gla":
        gate = x @ p["gate_proj.0.weight"].T @ p["gate_proj.1.weight"].T + p["gate_proj.1.bias"]
        decay = torch.log(1 / (1 + torch.exp(-gate))) / 16
        return [torch.diag(g.exp()) for g in decay], list(k), eye
    if name == "s4d":
        a = torch.complex(-p["log_neg_re"].exp(), p["im"])
        step = torch.exp(p["log_dt"].exp() * a)
        b = (step - 1) / a
        return [torch.diag(step)] * len(k), [b] * len(k), torch.view_as_complex(p["C"])
    beta = sigmoid(x @ p["beta.proj.weight"])
    decay = torch.ones(len(k), 1, dtype=k.dtype)
    if name != "deltanet":
        weight = (
            p["gate.proj.weight"][None] if name == "gated_deltanet" else p["gate.proj.1.weight"]
        )
        hidden = x if name == "gated_deltanet" else x @ p["gate.proj.0.weight"].T
        dt = torch.log1p(torch.exp(hidden @ weight.T + p["gate.dt_bias"]))
        decay = torch.exp(-p["gate.A_log"].exp() * dt)
    erase = [eye - beta[t] * torch.outer(k[t], k[t]) for t in range(len(k))]
    T = [e @ torch.diag(d.expand(k.shape[-1])) for d, e in zip(decay, erase, strict=True)]
    return T, list(beta[:, None] * k), eye


def own_parameters(name, rule, head):
    """The parameters of one head."""
    heads = rule.dims.num_heads
    found = {}
    for key, value in rule.named_parameters():
        if key.startswith(("gate_proj.1", "gate.proj.1")):
            value = value.unflatten(0, (heads, -1))[head]
        elif key not in ("gate_proj.0.weight", "gate.proj.0.weight", "rms_k", "rms_v"):
            value = value[head]
        found[key] = value.detach()
    return found


def normalised(z, p, half):
    rms = z / (z.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return rms * p[f"rms_{half}"] * p[f"scale_{half}"] + p[f"bias_{half}"]


def corrected(q, k, p):
    clean = []
    keys = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    for t, query in enumerate(q):
        seen = keys[: t + 1]
        sigma = torch.einsum("ti,tj->ij", seen, seen) / (t + 1)
        sigma = sigma - torch.outer(seen.mean(0), seen.mean(0))
        unit = query / (query.square().sum() + 1e-6).sqrt()
        lam = sigmoid(p["weight"] @ unit + p["bias"])
        clean.append(query - lam * sigma @ query)
    return torch.stack(clean)


def solved(read, q, H, p):
    """The addresses that mesa and gka find, by elimination."""
    eye = torch.eye(q.shape[-1], dtype=q.dtype)
    out = []
    for query, moment in zip(q, H, strict=True):
        if read == "mesa":
            out.append(
                torch.linalg.solve(moment + torch.diag(torch.log1p(p["p"].exp()) + 0.25), query)
            )
        else:
            ridge = 0.02 * moment.square().sum().sqrt()
            alpha = sigmoid(p["weight"] @ query / (query.square().sum() + 1e-6).sqrt() + p["bias"])
            out.append(
                (1 - alpha) * query + alpha * torch.linalg.solve(moment + ridge * eye, query)
            )
    return torch.stack(out)


def memory_of(T, b, stream):
    """S_t of every t."""
    S = torch.zeros(len(b[0]), stream.shape[-1], dtype=b[0].dtype)
    states = []
    for t in range(len(stream)):
        S = T[t] @ S + torch.outer(b[t], stream[t].to(S.dtype))
        states.append(S)
    return states


def definition(write, read, pair):
    out = []
    for n, head in product(range(len(pair.x)), range(pair.write.dims.num_heads)):
        x, q, k, v = pair.x[n], pair.q[n, :, head], pair.k[n, :, head], pair.v[n, :, head]
        p = own_parameters(write, pair.write, head)
        T, b, C = transitions(write, p, x, k, head)
        address = features = k
        if write == "s4d":
            features, v = normalised(k, p, "k"), normalised(v, p, "v")
            if read != "interdomain":
                v = torch.cat([features, v], -1)
        S = [C @ each for each in memory_of(T, b, v)]
        if read == "interdomain":
            U = [C @ each for each in memory_of(T, b, features)]
            c = [U[t] @ q[t].to(C.dtype) for t in range(len(q))]
        else:
            own = own_parameters(read, pair.read, head)
            if read == "ccq":
                q = corrected(q, address, own)
            elif read in SOLVERS:
                q = solved(read, q, memory_of(T, b, k), own)
            c = list(q)
            if write == "s4d":
                c = [p["readout"].to(C.dtype)] * len(q)
            if write == "s4d" and read == "ccq":
                W = torch.view_as_complex(p["query_map"])
                c = [c[t] + q[t].to(W.dtype) @ W for t in range(len(q))]
        skip = p["skip"] * v if write == "mamba2" else torch.zeros_like(v)
        out.append(torch.stack([(S[t].T @ c[t]).real for t in range(len(q))]) + skip)
    batch = len(pair.x)
    return torch.stack(out).unflatten(0, (batch, -1)).transpose(1, 2)


@pytest.mark.parametrize(("write", "read"), PAIRS)
def test_a_pair_computes_its_definition(make, write, read):
    # Chebyshev's iteration ends in the solution to its last digit after that many.
    pair = make(write, read, tokens=20, read_options={"num_steps": 150} if read == "gka" else {})
    o, _ = pair.run()
    assert o.shape == (2, 20, 2, pair.write.out_dim)
    assert_close(o, definition(write, read, pair), rtol=1e-9, atol=1e-9)


def test_a_text_in_parts_gives_what_the_whole_gives(variant):
    pair = variant(70)
    whole, final = pair.run()
    parts, state = [], None
    for first, last in pairwise((0, 1, 24, 65, 67, 70)):
        part, state = pair.run(first, last, state=state)
        parts.append(part)
    assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    assert_close(state, final, rtol=1e-9, atol=1e-9)


def test_one_token_at_a_time_gives_what_the_whole_gives(variant):
    pair = variant(12)
    whole, final = pair.run()
    parts, state = [], None
    for t in range(12):
        part, state = pair.run(t, t + 1, state=state)
        parts.append(part)
    assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
    assert_close(state, final, rtol=1e-9, atol=1e-9)


def test_packed_documents_are_read_apart_and_carried_on(variant):
    pair = variant(80)
    bounds, later = torch.tensor([0, 3, 3, 40]), torch.tensor([0, 5, 12, 40])
    one, state = pair.run(0, 40, rows=slice(0, 1), cu_seqlens=bounds)
    two, state = pair.run(40, 80, rows=slice(0, 1), cu_seqlens=later, state=state)
    for n in range(3):
        own, rest = slice(bounds[n], bounds[n + 1]), slice(later[n], later[n + 1])
        document = _document(pair, own, slice(40 + rest.start, 40 + rest.stop))
        o, final = document.run()
        assert_close(torch.cat([one[:, own], two[:, rest]], 1), o, rtol=1e-9, atol=1e-9)
        for slot, tensor in final.items():
            assert_close(_last(state[slot][n], tensor[0]), tensor[0], rtol=1e-9, atol=1e-9)


def _document(pair, first, second):
    def joined(x):
        return torch.cat([x[:1, first], x[:1, second]], 1)

    streams = (joined(each) for each in (pair.x, pair.q, pair.k, pair.v))
    return type(pair)(pair.write, pair.read, *streams)


def _last(state, own):
    """A cache's rows are as many as the longest document's; zeros stand before a shorter one."""
    if state.shape == own.shape:
        return state
    missing = len(state) - len(own)
    assert not state[:missing].any()
    return state[missing:]


def test_every_parameter_and_stream_gets_a_gradient(variant):
    pair = variant(9)
    streams = {name: getattr(pair, name).requires_grad_() for name in "xqkv"}
    o, _ = pair.run()
    # A plain sum is blind to some directions of what a norm has scaled.
    (o * torch.randn_like(o)).sum().backward()
    unused = {
        name
        for name, used in {
            "x": any("proj" in name for name, _ in pair.write.named_parameters()),
            "q": pair.write.uses_query,
        }.items()
        if not used
    }
    parameters = {
        **{f"write.{name}": each for name, each in pair.write.named_parameters()},
        **{f"read.{name}": each for name, each in pair.read.named_parameters()},
        **{name: each for name, each in streams.items() if name not in unused},
    }
    for name, parameter in parameters.items():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-8, name


@pytest.mark.parametrize("write", GATED)
def test_without_lambda_ccq_is_the_plain_read_to_the_bit(make, write):
    plain = make(write, "plain", tokens=70, dtype=torch.float32)
    ccq = make(write, "ccq", tokens=70, dtype=torch.float32, read_options={"lambda_scale": 0.0})
    ccq.write.load_state_dict(plain.write.state_dict(), strict=False)
    assert torch.equal(plain.run()[0], ccq.run()[0])


def test_without_a_query_map_ccq_on_s4d_is_the_plain_read_to_the_bit(make):
    plain = make("s4d", "plain", tokens=70, dtype=torch.float32)
    ccq = make("s4d", "ccq", tokens=70, dtype=torch.float32)
    ccq.write.load_state_dict(plain.write.state_dict(), strict=False)
    torch.nn.init.zeros_(ccq.write.query_map)
    assert torch.equal(plain.run()[0], ccq.run()[0])


@pytest.mark.parametrize(
    ("write", "read", "options"),
    [
        ("kv", "softmax", {}),
        ("gated_deltanet", "ccq", {"statistics": "decayed", "order": 2}),
        ("gla", "ccq", {"statistics": "written"}),
    ],
)
def test_under_autocast_states_stay_single_precision(make, write, read, options):
    pair = make(write, read, tokens=9, dtype=torch.float32, read_options=options)
    exact, _ = pair.run()
    for stream in "xqkv":
        setattr(pair, stream, getattr(pair, stream).bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        o, state = pair.run()
    assert o.dtype == torch.bfloat16
    assert_close(o.float(), exact, rtol=0.05, atol=0.05 * exact.abs().max().item())
    wide = {torch.bfloat16} if write == "kv" else {torch.float32, torch.complex64}
    assert {each.dtype for name, each in state.items() if name != "position"} <= wide
