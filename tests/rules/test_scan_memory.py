"""A memory that gives only its step: RWKV-7's, and a decay whose kernels say what is right."""

import json
import logging
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from statelab.__main__ import main
from statelab.errors import RuleError
from statelab.model.build import build_model
from statelab.model.context import Context
from statelab.rules import ScanMemory, write_rules
from statelab_plugins.memory import GatedMemory

RWKV7 = f"{Path(__file__).parent / 'rwkv7.py'}:RWKV7"
READS = ("plain", "ccq", "interdomain")


@pytest.fixture(autouse=True, scope="module")
def _forget():
    """Leave no rule behind in the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_rules, "_plugins", dict(write_rules._plugins))
        yield


class Fading(ScanMemory):
    """S_t = exp(g_t) S_(t-1) + k_t s_t', as GLA has it."""

    def step(self, S, s, *inputs):
        g, k = inputs
        return g.exp()[..., None] * S + k[..., None] * s[..., None, :]


class Flipped(Fading):
    def step(self, S, s, *inputs):
        return super().step(S, s, *inputs).mT


def streams(tokens=40, dtype=torch.float64, batch=1):
    """k, v, g, and what reads them: c and y."""
    generator = torch.Generator().manual_seed(0)
    k, v, g, c, y = (
        torch.randn(batch, tokens, 2, size, generator=generator, dtype=torch.float64)
        for size in (4, 6, 4, 4, 6)
    )
    return tuple(each.to(dtype) for each in (k, v, torch.nn.functional.logsigmoid(g), c, y))


def test_rwkv7_equals_its_loop(make):
    pair = make(RWKV7, "plain", tokens=20)
    o, state = pair.run()
    rule, (x, q, k, v) = pair.write, (pair.x, pair.q, pair.k, pair.v)
    for n, h in product(range(len(x)), range(rule.dims.num_heads)):
        own = slice(h * 4, h * 4 + 4)
        S = torch.zeros(4, 6, dtype=x.dtype)
        for t in range(20):
            logits = [
                x[n, t] @ each.weight[own].T + each.bias[own]
                for each in (rule.decay_proj, rule.rate_proj)
            ]
            decay = torch.exp(-0.6065 / (1 + torch.exp(-logits[0])))
            eta = 1 / (1 + torch.exp(-logits[1]))
            u = k[n, t, h] * rule.k_k[h]
            u = u / (u.square().sum() + 1e-6).sqrt()
            r = k[n, t, h] * (1 + (eta - 1) * rule.k_a[h])
            S = (torch.diag(decay) - torch.outer(eta * u, u)) @ S + torch.outer(r, v[n, t, h])
            assert_close(o[n, t, h], S.T @ q[n, t, h], rtol=1e-9, atol=1e-9)
        assert_close(state["layer.values"][n, h], S, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bounds", [None, [0, 3, 3, 40], [0, 0, 1, 40, 40]])
def test_reads_states_and_gradients_are_those_of_the_kernel(bounds):
    given = {"cu_seqlens": None if bounds is None else torch.tensor(bounds)}
    n = 1 if bounds is None else len(bounds) - 1
    start = {
        "position": torch.full((n,), 7),
        "values": torch.randn(n, 2, 4, 6, dtype=torch.float64),
        "features": torch.randn(n, 2, 4, 4, dtype=torch.float64),
    }
    results = []
    for scanned in (True, False):
        leaves = [each.requires_grad_() for each in streams()]
        k, v, g, c, y = leaves
        state = {
            name: each.clone().requires_grad_(name != "position") for name, each in start.items()
        }
        memory = Fading(k, v, g, k) if scanned else GatedMemory(k, v, g=g)
        context = Context(1, 40, device=c.device, state=state, **given)
        memory.bind(context)
        out = [memory.recall(c), memory.write(v).project(y)]
        out += [memory.write(k, "features").project(c)]
        out += [context.outgoing["values"], context.outgoing["features"]]
        inputs = [*leaves, state["values"], state["features"]]
        weights = [torch.linspace(-1, 1, each.numel()).view_as(each).double() for each in out]
        results.append([*out, *torch.autograd.grad(out, inputs, weights)])
    for mine, kernel in zip(*results, strict=True):
        assert_close(mine, kernel, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("read", READS)
def test_parts_and_single_tokens_give_what_the_whole_gives(make, read):
    pair = make(RWKV7, read, tokens=12)
    whole, final = pair.run()
    for cuts in ((0, 5, 6, 12), range(13)):
        parts, state = [], None
        for first, last in pairwise(cuts):
            part, state = pair.run(first, last, state=state)
            parts.append(part)
        assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-9)
        assert_close(state, final, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("read", READS)
def test_packed_documents_are_read_apart(make, read):
    pair = make(RWKV7, read, tokens=20)
    bounds = torch.tensor([0, 3, 3, 20])
    packed, state = pair.run(rows=slice(0, 1), cu_seqlens=bounds)
    for n in (0, 2):
        o, final = pair.run(int(bounds[n]), int(bounds[n + 1]), rows=slice(0, 1))
        assert_close(packed[:, bounds[n] : bounds[n + 1]], o, rtol=1e-9, atol=1e-9)
        for slot, tensor in final.items():
            assert_close(state[slot][n], tensor[0], rtol=1e-9, atol=1e-9)


def test_half_precision_computes_in_single():
    k, v, g, c, _ = streams(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        memory = Fading(k, v, g, k)
        o = memory.recall(c)
    exact = Fading(*(each.double() for each in (k, v, g, k))).recall(c.double())
    assert o.dtype == torch.bfloat16
    assert memory.state().dtype == torch.float32
    # One rounding of the output, to 8 bits.
    assert_close(o.double(), exact, rtol=2**-8, atol=1e-5)


def test_it_says_once_that_it_is_slow(caplog):
    class Talkative(Fading):
        pass

    k, v, g, c, _ = streams()
    with caplog.at_level(logging.INFO, logger="statelab"):
        for _ in range(2):
            Talkative(k, v, g, k).recall(c)
    said = "Talkative gives only its step: a plain scan runs it, right but slow"
    assert caplog.messages == [said]


@pytest.mark.parametrize("backend", ["chunked", "fused"])
def test_a_form_that_it_has_not_is_refused(backend):
    k, v, g, c, _ = streams()
    memory = Fading(k, v, g, k).bind(Context(1, 40, device=c.device, backend=backend))
    with pytest.raises(RuleError, match=rf"model.backend={backend}: Fading gives only its step"):
        memory.recall(c)


def test_the_reference_form_may_be_asked_for():
    k, v, g, c, _ = streams()
    memory = Fading(k, v, g, k).bind(Context(1, 40, device=c.device, backend="reference"))
    assert_close(memory.recall(c), Fading(k, v, g, k).recall(c), rtol=0, atol=0)


def test_a_step_of_another_shape_is_refused():
    k, v, g, c, _ = streams()
    with pytest.raises(
        RuleError, match=r"Flipped.step must return .* \[1, 2, 4, 6\].* \[1, 2, 6, 4"
    ):
        Flipped(k, v, g, k).recall(c)


def test_inputs_of_other_axes_are_refused():
    k, v, g, _, _ = streams()
    with pytest.raises(
        RuleError, match=r"input 1 of Fading must be real.*\[1, 40, 2\]; got .*\[2, 4"
    ):
        Fading(k, v, g[0, 0], k)
    with pytest.raises(RuleError, match=r"input 2 of Fading must be real.*got torch.complex128"):
        Fading(k, v, g, k.to(torch.complex128))


@pytest.mark.parametrize("read", READS)
def test_a_model_decodes_token_by_token(toy_config, stirred, read):
    model = stirred(toy_config(f"write={RWKV7}", f"read={read}"))
    tokens = torch.randint(32, (2, 10))
    with torch.no_grad():
        whole, final = model(tokens)
        parts, state = [], None
        for token in tokens.split(1, dim=1):
            part, state = model(token, state=state)
            parts.append(part)
    assert_close(torch.cat(parts, 1), whole, rtol=1e-8, atol=1e-8)
    assert_close(state, final, rtol=1e-8, atol=1e-8)


def test_every_parameter_learns(toy_config):
    model = build_model(toy_config(f"write={RWKV7}"))
    model(torch.randint(32, (2, 10)))[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@pytest.mark.parametrize("read", READS)
def test_it_trains(away, toy, capsys, read):
    with pytest.raises(SystemExit) as ended:
        main(["train", *toy(f"write={RWKV7}", f"read={read}", "trainer.max_steps=2"), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["status"] == "FINISHED"
