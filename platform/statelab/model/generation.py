"""Generation: prompts are read in one packed pass, then each token costs one step of the state."""

from __future__ import annotations

import hashlib
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statelab.errors import DataError
from statelab.model.context import State
from statelab.model.padding import unpad
from statelab.options import Section, option

if TYPE_CHECKING:
    from statelab.model.decoder import Decoder

__all__ = ["GenerationConfig", "GenerationMixin", "Prompts", "sample", "stream"]

Prompts = Sequence[Sequence[int]] | Tensor
"""Lists of tokens, of any lengths; or a tensor [B, T], left-padded where it comes with a mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationConfig(Section):
    """How a text goes on."""

    max_new_tokens: int = option(100, "tokens after each prompt, at most", at_least=1)
    temperature: float = option(1.0, "divides the logits; 0 takes the likeliest token", at_least=0)
    top_k: int | None = option(
        None, "draw among that many likeliest tokens; null is all", at_least=1
    )
    top_p: float = option(
        1.0, "draw among the likeliest tokens that together have this chance", above=0, at_most=1
    )
    seed: int = option(0, "of the draws; the global generator is left alone", at_least=0)
    stop: tuple[int, ...] = option((), "tokens that a sequence ends before")


class GenerationMixin:
    """Gives a model that is, or holds, a decoder its `generate`."""

    @property
    def decoder(self) -> Decoder:
        """What generates."""
        raise NotImplementedError

    def generate(
        self,
        prompts: Prompts,
        *,
        mask: Tensor | None = None,
        max_new_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int = 0,
        stop: Sequence[int] = (),
    ) -> list[list[int]]:
        """What follows each prompt.

        Args:
            prompts: Lists of tokens, of any lengths; or a tensor [B, T].
            mask: Which tokens of a left-padded tensor are real, [B, T]; None is all.
            max_new_tokens: Most tokens after each prompt, >= 1.
            temperature: Divides the logits, >= 0; 0 takes the likeliest token.
            top_k: Draw among that many likeliest tokens, >= 1; None is all.
            top_p: Draw among the likeliest tokens that together have this chance, in (0, 1].
            seed: Of the draws. A prompt's draws are its own, whatever the batch; a prompt that
                is given twice is continued in two ways.
            stop: Tokens that a sequence ends before.

        Returns:
            The new tokens of each prompt, without the prompt.

        Raises:
            StatelabError: If an argument is out of range, or the model can't read a prompt.
        """
        config = GenerationConfig(
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=tuple(stop),
        )
        tokens = stream(self.decoder, prompts, config, mask=mask)
        outputs: list[list[int]] = [[] for _ in prompts]
        for sequence, token in tokens:
            outputs[sequence].append(token)
        return outputs


def stream(
    model: Decoder, prompts: Prompts, config: GenerationConfig, *, mask: Tensor | None = None
) -> Iterator[tuple[int, int]]:
    """`generate`, token by token as they come: (which prompt, token).

    The model is in evaluation mode until the last token has come, or the iterator is closed.
    """
    lists = _lists(prompts, mask)
    _check(model, lists, config)
    return _steps(model, lists, config)


def sample(logits: Tensor, draws: Tensor, config: GenerationConfig) -> Tensor:
    """The next token of each sequence.

    The tokens stand from the likeliest down, each as wide as its chance; a draw falls on one.

    Args:
        logits: [N, vocab_size].
        draws: Uniform numbers in [0, 1), [N].
        config: Its temperature, top_k and top_p.

    Returns:
        [N] int64.
    """
    if config.temperature == 0:
        return logits.argmax(-1)
    logits, order = logits.double().sort(dim=-1, descending=True, stable=True)
    chances = (logits[:, : config.top_k] / config.temperature).softmax(-1)
    # The token that crosses top_p still counts, so that there is always one.
    above = chances.cumsum(-1) - chances
    ends = chances.where(above < config.top_p, 0).cumsum(-1)
    place = (ends > draws[:, None] * ends[:, -1:]).int().argmax(-1, keepdim=True)
    return order.gather(-1, place)[:, 0]


def _lists(prompts: Prompts, mask: Tensor | None) -> list[list[int]]:
    """The prompts without their padding, as plain numbers."""
    if isinstance(prompts, Tensor) and mask is not None:
        row, bounds = unpad(prompts, mask)
        prompts = [each.tolist() for each in torch.split(row[0], bounds.diff().tolist())]
    elif isinstance(prompts, Tensor):
        prompts = prompts.tolist()
    try:
        return [[operator.index(token) for token in prompt] for prompt in prompts]
    except TypeError as error:
        raise DataError(
            "prompts must be lists of tokens, such as [[5, 40, 7], [8]], or a tensor [B, T] of "
            f"integers; got {prompts!r:.60}."
        ) from error


def _check(model: Decoder, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> None:
    if not prompts:
        raise DataError("there is no prompt; give at least one.")
    if model.readout is not None:
        raise DataError(
            "this model reads a whole sequence out of its last token, so it has no next token to "
            "generate; train one with another data.name."
        )
    for index, prompt in enumerate(prompts):
        if not prompt:
            raise DataError(f"prompt {index} is empty; give it at least one token.")
        model.check_vocabulary(min(prompt), max(prompt))
    if model.positions is not None:
        known, longest = model.positions.num_embeddings, max(map(len, prompts))
        # The last new token is never read.
        room = max(known - longest + 1, 0)
        if config.max_new_tokens > room:
            raise DataError(
                f"model.positions=learned knows {known} positions (data.seq_len): after a prompt "
                f"of {longest} tokens there is room for {room} new ones, got "
                f"max_new_tokens={config.max_new_tokens}."
            )


@torch.inference_mode()
def _steps(
    model: Decoder, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> Iterator[tuple[int, int]]:
    device = model.embedding.weight.device
    generators = _generators(prompts, config.seed)
    ends = torch.tensor([len(prompt) for prompt in prompts]).cumsum(0)
    # First all prompts in one row, of which the last tokens count; then a token a sequence.
    tokens = torch.tensor([[token for prompt in prompts for token in prompt]], device=device)
    bounds: Tensor | None = F.pad(ends, (1, 0))
    last: Tensor | slice = ends - 1
    state: State | None = None
    going_on = set(range(len(prompts)))
    with _evaluating(model):
        for _ in range(config.max_new_tokens):
            hidden, state = model.hidden(tokens, state, bounds)
            logits = model.head(hidden.flatten(0, 1)[last])
            draws = [torch.rand((), dtype=torch.float64, generator=each) for each in generators]
            new = sample(logits, torch.stack(draws).to(device), config)
            for sequence, token in enumerate(new.tolist()):
                if token in config.stop:
                    going_on.discard(sequence)
                if sequence in going_on:
                    yield sequence, token
            if not going_on:
                return
            tokens, bounds, last = new[:, None], None, slice(None)


def _generators(prompts: Sequence[Sequence[int]], seed: int) -> list[torch.Generator]:
    """A generator for each prompt: of the seed, the prompt, and how often it was there before."""
    seen: Counter[tuple[int, ...]] = Counter()
    generators = []
    for prompt in map(tuple, prompts):
        key = repr((seed, seen[prompt], prompt)).encode()
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest())
        generators.append(torch.Generator().manual_seed(number))
        seen[prompt] += 1
    return generators


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every part is in the mode it was in."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
