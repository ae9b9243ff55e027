"""Generation: the tokens are those of full passes, alone or in a batch, and reproducible."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from statelab.errors import DataError, StatelabError
from statelab.language_model import LanguageModel
from statelab.model.build import build_model
from statelab.model.generation import GenerationConfig, sample, stream

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
READS = ("plain", "ccq", "interdomain")
MODELS = {
    **{
        f"{write}-{read}": (f"write={write}", f"read={read}")
        for write, read in itertools.product(WRITES, READS)
    },
    "softmax": ("write=kv", "read=softmax", "model.positions=rope"),
    "window": ("write=kv", "read=softmax", "read.window=3", "model.positions=rope"),
    "hybrid": (
        "write=gla",
        "read=ccq",
        "model.layers=[conv(width=3), memory, attention(window=4), attention]",
        "model.num_layers=4",
    ),
    "learned": ("write=deltanet", "read=plain", "model.positions=learned"),
}
#: Of unequal lengths; the shortest is shorter than a window, the longest longer.
PROMPTS = [[3], [5, 20, 7, 21, 5], [4, 30]]
NEW = 8


@pytest.fixture(scope="module")
def models(toy_config, stirred):
    """Each model of `MODELS`, made once."""
    made = {}

    def model(name):
        if name not in made:
            conv = ("model.mixer.conv=3",)
            made[name] = stirred(toy_config(*MODELS[name], *conv))
        return made[name]

    return model


@pytest.fixture(params=MODELS)
def model(request, models):
    return models(request.param)


@pytest.fixture
def gla(models):
    return models("gla-ccq")


def by_full_passes(model, prompt, choose):
    """The continuation by a pass over everything for each token."""
    tokens = list(prompt)
    for _ in range(NEW):
        logits, _ = model(torch.tensor([tokens]))
        tokens.append(choose(logits[0, -1]))
    return tokens[len(prompt) :]


def test_greedy_tokens_are_those_of_full_passes_in_a_batch_too(model):
    found = model.generate(PROMPTS, max_new_tokens=NEW, temperature=0)
    greedy = [by_full_passes(model, each, lambda logits: int(logits.argmax())) for each in PROMPTS]
    assert found == greedy


def test_a_seeded_batch_gives_each_prompt_what_it_gets_alone(model):
    settings = {"max_new_tokens": NEW, "temperature": 1.5, "top_k": 20, "top_p": 0.95, "seed": 3}
    together = model.generate(PROMPTS, **settings)
    assert together == [model.generate([each], **settings)[0] for each in PROMPTS]
    assert together[::-1] == model.generate(PROMPTS[::-1], **settings)


def test_padding_on_the_left_changes_nothing(model):
    width = max(map(len, PROMPTS))
    padded = torch.tensor([[0] * (width - len(each)) + each for each in PROMPTS])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in PROMPTS])
    found = model.generate(padded, mask=mask, max_new_tokens=NEW)
    assert found == model.generate(PROMPTS, max_new_tokens=NEW)
    assert model.generate(padded[1:2], max_new_tokens=NEW) == found[1:2]


@pytest.mark.parametrize("pair", [name for name in MODELS if "-" in name])
def test_the_state_of_a_fixed_size_memory_does_not_grow(models, pair):
    sizes = state_sizes(models(pair))
    assert len(sizes) == NEW
    assert all(each == sizes[0] for each in sizes)


@pytest.mark.parametrize("pair", [name for name in MODELS if "-" in name])
def test_a_step_does_the_same_after_any_context(models, pair):
    model = models(pair)
    early, late = (work_of_a_step(model, context) for context in (3, 300))
    assert len(early) > 50
    assert early == late


def test_a_step_of_a_cache_does_more_after_a_longer_context(models):
    softmax = models("softmax")
    assert work_of_a_step(softmax, 3) != work_of_a_step(softmax, 300)


@torch.inference_mode()
def work_of_a_step(model, context):
    """Every operation of a step after so many tokens, with the shapes that it makes."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            out = operation(*args, **(kwargs or {}))
            shapes = [each.shape for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
            done.append((str(operation), shapes))
            return out

    done = []
    _, state = model(torch.ones(1, context, dtype=torch.int64))
    with Watch():
        model(torch.ones(1, 1, dtype=torch.int64), state)
    return done


def test_a_cache_grows_by_a_row_a_token_up_to_its_window(models):
    softmax, window = (state_sizes(models(name)) for name in ("softmax", "window"))
    rows = [each["layers.0.cache.keys"][1] for each in softmax]
    assert rows == [*range(5, 5 + NEW)]
    assert {each["layers.0.cache.keys"][1] for each in window} == {2}


def state_sizes(model):
    """The shapes of the state after each pass."""
    seen = []
    hidden = model.hidden

    def spy(*arguments):
        out, state = hidden(*arguments)
        seen.append({name: tuple(tensor.shape) for name, tensor in state.items()})
        return out, state

    model.hidden = spy
    try:
        model.generate(PROMPTS, max_new_tokens=NEW)
    finally:
        del model.hidden
    return seen


def test_a_seed_gives_the_same_again_and_another_seed_another(gla):
    torch.manual_seed(1)
    first = gla.generate(PROMPTS, max_new_tokens=NEW, seed=1)
    before = torch.get_rng_state()
    assert gla.generate(PROMPTS, max_new_tokens=NEW, seed=1) == first
    assert torch.equal(torch.get_rng_state(), before)
    assert gla.generate(PROMPTS, max_new_tokens=NEW, seed=2) != first


def test_a_prompt_given_twice_goes_on_in_two_ways(gla):
    one, two = gla.generate([[3, 4]] * 2, max_new_tokens=NEW)
    assert one != two
    assert gla.generate([[3, 4]], max_new_tokens=NEW) == [one]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-9}])
def test_the_narrowest_draw_is_the_likeliest_token(gla, narrow):
    greedy = gla.generate(PROMPTS, max_new_tokens=NEW, temperature=0)
    assert gla.generate(PROMPTS, max_new_tokens=NEW, **narrow) == greedy


LOGITS = torch.tensor([0.2, 0.5, 0.05, 0.25]).log()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.2, 0.5, 0.05, 0.25]),
        ({"temperature": 0.5}, [0.04 / 0.355, 0.25 / 0.355, 0.0025 / 0.355, 0.0625 / 0.355]),
        ({"top_k": 2}, [0, 2 / 3, 0, 1 / 3]),
        ({"top_k": 9}, [0.2, 0.5, 0.05, 0.25]),
        ({"top_p": 0.74}, [0, 2 / 3, 0, 1 / 3]),
        ({"top_p": 0.76}, [0.2 / 0.95, 0.5 / 0.95, 0, 0.25 / 0.95]),
        ({"top_k": 3, "top_p": 0.5}, [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_tokens_are_drawn_with_the_chances_that_are_left(settings, expected):
    draws = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    tokens = sample(LOGITS.expand(20_000, 4), draws, GenerationConfig(**settings))
    found = tokens.bincount(minlength=4) / 20_000
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=0)


def test_a_sequence_ends_before_a_stop_token_and_the_others_go_on(gla):
    whole = gla.generate(PROMPTS, max_new_tokens=NEW, seed=5)
    stop = whole[1][3]
    cut = [each[: each.index(stop)] if stop in each else each for each in whole]
    assert {len(each) for each in cut} != {NEW}
    assert gla.generate(PROMPTS, max_new_tokens=NEW, seed=5, stop=[stop]) == cut


def test_tokens_come_one_by_one_without_a_pass_too_many(gla):
    tokens = stream(gla, PROMPTS, GenerationConfig(max_new_tokens=3, temperature=0))
    whole = gla.generate(PROMPTS, max_new_tokens=3, temperature=0)
    assert [next(tokens) for _ in range(3)] == [(n, whole[n][0]) for n in range(3)]
    assert not torch.is_inference_mode_enabled()
    assert list(tokens) == [(n, whole[n][step]) for step in (1, 2) for n in range(3)]


@pytest.mark.parametrize("finish", [list, lambda tokens: tokens.close()])
def test_every_part_is_in_its_own_mode_afterwards(toy_config, finish):
    model = build_model(toy_config())
    model.norm.eval()
    tokens = stream(model, PROMPTS, GenerationConfig(max_new_tokens=2))
    next(tokens)
    assert not any(part.training for part in model.modules())
    finish(tokens)
    assert [name for name, part in model.named_modules() if not part.training] == ["norm"]


def test_a_lightning_module_generates_as_its_decoder_does(toy_config):
    module = LanguageModel(toy_config())
    found = module.generate(PROMPTS, max_new_tokens=NEW)
    assert found == module.model.generate(PROMPTS, max_new_tokens=NEW)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], r"there is no prompt; give at least one\."),
        ([[1], []], r"prompt 1 is empty; give it at least one token\."),
        (torch.zeros(1, 0, dtype=torch.int64), r"prompt 0 is empty"),
        ([[1, 32]], r"token 32 is outside the vocabulary of 32; use the tokenizer"),
        ([[-1, 5]], r"token -1 is outside the vocabulary"),
        ([[1, 10**30]], r"token 10{30} is outside the vocabulary"),
        ([1, 2], r"prompts must be lists of tokens, such as .*; got \[1, 2\]\."),
        (["the cat"], r"prompts must be lists of tokens, .*; got \['the cat'\]\."),
        (torch.ones(2), r"prompts must be lists of tokens, .*; got \[1\.0, 1\.0\]\."),
    ],
)
def test_prompts_that_cannot_be_read_are_refused(gla, prompts, message):
    with pytest.raises(DataError, match=message):
        gla.generate(prompts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, r"max_new_tokens must be >= 1, got 0\."),
        ({"temperature": -0.5}, r"temperature must be >= 0, got -0\.5\."),
        ({"temperature": float("nan")}, r"temperature must be >= 0, got nan\."),
        ({"temperature": float("inf")}, r"temperature must be finite, got inf\."),
        ({"top_k": 0}, r"top_k must be >= 1, got 0\."),
        ({"top_p": 0.0}, r"top_p must be > 0 and <= 1, got 0\.0\."),
        ({"top_p": 1.5}, r"top_p must be > 0 and <= 1, got 1\.5\."),
        ({"seed": -1}, r"seed must be >= 0, got -1\."),
    ],
)
def test_settings_out_of_range_are_refused(gla, settings, message):
    with pytest.raises(StatelabError, match=message):
        gla.generate(PROMPTS, **settings)


def test_learned_positions_must_suffice_for_all_new_tokens(models):
    learned = models("learned")  # knows 16
    assert len(learned.generate([[1] * 5], max_new_tokens=12)[0]) == 12
    for prompt, asked, room in ((5, 13, 12), (20, 1, 0)):
        message = rf"learned knows 16 .* prompt of {prompt} tokens there is room for {room} new"
        with pytest.raises(DataError, match=message):
            learned.generate([[2], [1] * prompt], max_new_tokens=asked)
