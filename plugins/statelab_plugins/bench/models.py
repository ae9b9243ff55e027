"""The small models whose rules are measured, all alike but for the pair."""

from collections.abc import Mapping

import torch
from torch import Tensor

from statelab.loading import load_config
from statelab.model.build import build_model
from statelab.model.decoder import Decoder
from statelab.pairs import pairs
from statelab_plugins.bench.agreement import disagreement

#: (write, read) of every pair that works, by the name that `pairs=` takes.
PAIRS = {f"{write}+{read}": (write, read) for write, read in pairs()}
#: What the others are compared with.
BASELINE = "kv+softmax"

VOCAB_SIZE = 256
SIZES = {"d_model": 128, "num_layers": 2, "num_heads": 2}
_MIXER = {"conv": 4, "activation": "silu", "qk_norm": "l2"}


def small_model(pair: str, backend: str = "auto") -> Decoder:
    """A model of a pair, in float32; the mixer's steps are the same for every pair."""
    write, read = PAIRS[pair]
    sizes = [f"model.{name}={size}" for name, size in SIZES.items()]
    mixer = [f"model.mixer.{name}={value}" for name, value in _MIXER.items()]
    # Of the data only the vocabulary counts: bytes.
    given = [f"write={write}", f"read={read}", f"model.backend={backend}", "data.name=text"]
    return build_model(load_config(None, [*given, *sizes, *mixer]))


def exact_model(pair: str, backend: str = "auto") -> Decoder:
    """The same in float64, off its start, where some parameters are 0 and hide their part."""
    model = small_model(pair, backend).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.1 * noise)
    return model


def some_tokens(num_tokens: int) -> Tensor:
    """[1, num_tokens], the same ones every time."""
    generator = torch.Generator().manual_seed(num_tokens)
    return torch.randint(VOCAB_SIZE, (1, num_tokens), generator=generator)


def state_bytes(state: Mapping[str, Tensor]) -> int:
    """What one sequence keeps."""
    return sum(each.nbytes for each in state.values())


def check_training(pair: str, num_tokens: int = 100) -> float:
    """How far logits, last state and gradients of the chunked form are off the reference."""
    return disagreement(
        *(_trained(exact_model(pair, form), num_tokens) for form in ("chunked", "reference"))
    )


@torch.no_grad()
def check_steps(pair: str, num_tokens: int = 20) -> float:
    """How far logits and last state of single tokens are off those of the whole."""
    model, tokens = exact_model(pair), some_tokens(num_tokens)
    whole, final = model(tokens)
    logits, state = [], None
    for token in torch.split(tokens, 1, dim=1):
        step, state = model(token, state)
        logits.append(step)
    assert state is not None
    return disagreement({**state, "logits": torch.cat(logits, 1)}, {**final, "logits": whole})


def _trained(model: Decoder, num_tokens: int) -> dict[str, Tensor]:
    logits, state = model(some_tokens(num_tokens))
    generator = torch.Generator().manual_seed(1)
    d_logits = torch.randn(logits.shape, generator=generator, dtype=logits.dtype)
    named = dict(model.named_parameters())
    found = torch.autograd.grad(logits, list(named.values()), d_logits)
    gradients = {f"d_{name}": each for name, each in zip(named, found, strict=True)}
    return {"logits": logits.detach(), **{k: v.detach() for k, v in state.items()}, **gradients}
