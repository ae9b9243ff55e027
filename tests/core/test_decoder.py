"""The decoder: one definition for training, prefill, decoding and packed documents."""

import itertools

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import DataError, RuleError
from statelab.model.build import build_model

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
READS = ("plain", "ccq", "interdomain")
T = 12
EXACT = {"rtol": 1e-9, "atol": 1e-9}

#: What a decoder can be; the pairs themselves are in tests/rules/test_contracts.py. All have a
#: convolution on every stream and rotary positions, so that no state is left out.
MODELS = {
    "pair": ("write=s4d", "read=interdomain"),
    "window": ("write=kv", "read=softmax", "read.window=5"),
    "hybrid": ("write=gla", "read=ccq", "model.layers=[memory, attention(window=5)] x 1"),
    "conv": ("write=deltanet", "read=plain", "model.layers=[conv(width=3), memory]"),
    "learned": ("write=gla", "read=plain", "model.positions=learned"),
    "no-mlp": ("write=deltanet", "read=ccq", "model.mlp=none", "model.tie_embeddings=false"),
}
FULL = (
    "model.num_layers=null",
    "model.positions=rope",
    "model.mixer.conv=4",
    "model.mixer.conv_streams=q,k,v",
)


@pytest.fixture(params=MODELS)
def model(request, toy_config, stirred):
    given = dict(each.split("=", 1) for each in (*FULL, *MODELS[request.param]))
    if "model.layers" not in given:
        given["model.num_layers"] = "2"
    return stirred(toy_config(*(f"{key}={value}" for key, value in given.items())))


def draw(batch, length=T, seed=0):
    return torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_two_halves_give_what_the_whole_gives_wherever_it_is_cut(model):
    tokens = draw(2)
    whole, final = model(tokens)
    for cut in range(1, T):
        first, state = model(tokens[:, :cut])
        second, last = model(tokens[:, cut:], state)
        assert_close(torch.cat([first, second], 1), whole, **EXACT)
        assert_close(last, final, **EXACT)


def test_one_token_at_a_time_gives_what_the_whole_gives(model):
    tokens = draw(2)
    whole, final = model(tokens)
    steps, state = [], None
    for t in range(T):
        logits, state = model(tokens[:, t : t + 1], state)
        steps.append(logits)
    assert_close(torch.cat(steps, 1), whole, **EXACT)
    assert_close(state, final, **EXACT)


def test_packed_documents_are_as_if_apart_and_go_on_apart(model):
    lengths, more = (1, 4, 7), (3, 1, 2)
    documents = [draw(1, n, seed=n) for n in lengths]
    continued = [draw(1, n, seed=10 + n) for n in more]
    packed, state = model(torch.cat(documents, 1), cu_seqlens=bounds(lengths))
    later, _ = model(torch.cat(continued, 1), state, cu_seqlens=bounds(more))
    assert state["position"].tolist() == list(lengths)
    parts = zip(packed.split(lengths, 1), later.split(more, 1), strict=True)
    for document, rest, (one, two) in zip(documents, continued, parts, strict=True):
        alone, _ = model(torch.cat([document, rest], 1))
        assert_close(torch.cat([one, two], 1), alone, **EXACT)


def bounds(lengths):
    return torch.tensor([0, *itertools.accumulate(lengths)])


def test_a_token_changes_nothing_before_it_and_something_from_it_on(model):
    tokens = draw(1)
    logits, _ = model(tokens)
    for t in (0, 5, T - 1):
        changed = tokens.clone()
        changed[0, t] = (changed[0, t] + 1) % 32
        other, _ = model(changed)
        assert torch.equal(other[:, :t], logits[:, :t])
        assert (other[:, t:] != logits[:, t:]).any(-1).all()


def test_the_members_of_a_batch_do_not_see_each_other(model):
    tokens = draw(3)
    logits, _ = model(tokens)
    alone, _ = model(tokens[1:2])
    assert_close(logits[1:2], alone, **EXACT)


@pytest.mark.parametrize("write", WRITES)
def test_the_three_reads_differ_from_one_seed_on(toy_config, stirred, write):
    common = ("model.positions=rope", "model.mixer.conv=4", "model.mixer.conv_streams=q,k,v")
    common += ("model.mixer.activation=silu", "model.mixer.qk_norm=l2")
    logits = {
        read: stirred(toy_config(f"write={write}", f"read={read}", *common))(draw(2))[0]
        for read in READS
    }
    for one, other in itertools.combinations(READS, 2):
        assert (logits[one] - logits[other]).abs().max() > 1e-4, (one, other)


@pytest.mark.parametrize("write", WRITES)
def test_a_model_is_a_function_of_its_seed_alone(toy_config, write):
    config = toy_config(f"write={write}", "read=ccq")
    torch.manual_seed(5)
    first, before = build_model(config), torch.get_rng_state()
    torch.manual_seed(6)
    second = build_model(config)
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
    other = build_model(toy_config(f"write={write}", "read=ccq", "seed=1"))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_nothing_is_left_without_a_start(toy_config, monkeypatch):
    empty = torch.empty

    def poisoned(*arguments, **options):
        return empty(*arguments, **options).fill_(torch.nan)

    monkeypatch.setattr(torch, "empty", poisoned)
    full = ("model.layers=[memory, attention, conv]", "model.num_layers=3", "model.mixer.conv=4")
    for name, parameter in build_model(toy_config(*full)).named_parameters():
        assert parameter.isfinite().all(), name


def test_a_tied_head_stays_tied_through_the_meta_device(toy_config):
    model = build_model(toy_config(), device="meta").to_empty(device="cpu")
    model.reset_parameters()
    assert model.head.weight is model.embedding.weight


def test_a_tied_head_is_the_embedding(toy_config):
    tied = build_model(toy_config())
    untied = build_model(toy_config("model.tie_embeddings=false"))
    assert tied.head.weight is tied.embedding.weight
    assert not torch.equal(untied.head.weight, untied.embedding.weight)
    count = [sum(p.numel() for p in model.parameters()) for model in (tied, untied)]
    assert count[1] - count[0] == 32 * 16


def test_hidden_is_what_the_head_reads(toy_config, stirred):
    model, tokens = stirred(toy_config()), draw(2)
    hidden, _ = model.hidden(tokens)
    assert torch.equal(model.head(hidden), model(tokens)[0])


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (5,), (1, 2, 3)])
def test_tokens_of_another_shape_are_refused(toy_config, shape):
    model = build_model(toy_config())
    with pytest.raises(DataError, match=r"tokens must be \[B, T\] with B, T >= 1, got \["):
        model(torch.zeros(shape, dtype=torch.int64))


@pytest.mark.parametrize("token", [-1, 32])
def test_a_token_outside_the_vocabulary_is_named(toy_config, token):
    model = build_model(toy_config())
    with pytest.raises(DataError, match=rf"token {token} is outside the vocabulary of 32; use the"):
        model(torch.tensor([[0, token]]))


def test_learned_positions_end_with_the_sequence_length(toy_config):
    model = build_model(toy_config("model.positions=learned"))
    _, state = model(draw(1, 16))
    with pytest.raises(DataError, match=r"learned knows 16 positions .*, got token 17"):
        model(draw(1, 1), state)


def test_a_state_of_another_model_is_refused(toy_config):
    _, state = build_model(toy_config("read=plain"))(draw(2))
    with pytest.raises(RuleError, match=r"the state has no slot 'layers\.0\..*': it comes from an"):
        build_model(toy_config("read=ccq"))(draw(2), state)


def test_a_backend_that_can_not_run_is_refused(toy_config, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    model = build_model(toy_config("model.backend=fused"))
    with pytest.raises(RuleError, match=r"backend='fused'.* [Uu]se"):
        model(draw(1))
