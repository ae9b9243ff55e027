"""Checks along the sequence: what a token may see, and that every way through it is one."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch import Tensor

from statelab.model.context import State
from statelab.model.decoder import Block, Decoder
from statelab.model.padding import unpad
from statelab.testing.check import NotApplicable, Worst, check
from statelab.testing.subject import EXACT, Subject, forms_that_run

__all__ = [
    "batch_size",
    "causality",
    "extreme_inputs",
    "forms",
    "halves",
    "left_padded",
    "odd_sizes",
    "one_form",
    "packed",
    "steps",
]

#: One more and one less than a chunk of 64, and several chunks.
_LENGTHS = (1, 63, 65, 130)


@check("causality", allowed=EXACT)
@torch.no_grad()
def causality(subject: Subject) -> Worst:
    """A token changes nothing before it."""
    model, worst = subject.model(), Worst()
    tokens = subject.tokens(1, 70)
    logits, _ = model(tokens)
    for t in (1, 5, 64, 69):
        changed = tokens.clone()
        changed[0, t:] = (changed[0, t:] + 1) % 32
        worst.compare(model(changed)[0][:, :t], logits[:, :t], f"before token {t}")
    return worst


@check("whole = halves", allowed=EXACT)
@torch.no_grad()
def halves(subject: Subject) -> Worst:
    """Two parts with the state carried give what the whole gives, wherever it is cut."""
    model, worst = subject.model(), Worst()
    for length, cuts in ((12, range(1, 12)), (131, (1, 63, 64, 130))):
        _cut(model, subject.tokens(2, length), list(cuts), worst)
    return worst


@check("whole = steps", allowed=EXACT)
@torch.no_grad()
def steps(subject: Subject) -> Worst:
    """One token at a time gives what the whole gives."""
    model, worst = subject.model(), Worst()
    tokens = subject.tokens(2, 67)
    whole, final = model(tokens)
    parts, state = _parts(model, tokens, list(range(68)))
    worst.compare(parts, whole, "outputs")
    worst.compare_states(state, final, "final state")
    return worst


@check("packed = separate", allowed=EXACT)
@torch.no_grad()
def packed(subject: Subject) -> Worst:
    """Packed documents are as if apart, and go on apart; an empty one changes nothing."""
    model, worst = subject.model(), Worst()
    lengths, more = (1, 4, 0, 66), (3, 1, 2, 5)
    documents = [subject.tokens(1, n, seed=i) for i, n in enumerate(lengths)]
    continued = [subject.tokens(1, n, seed=10 + i) for i, n in enumerate(more)]
    one, state = model(torch.cat(documents, 1), cu_seqlens=_bounds(lengths))
    two, state = model(torch.cat(continued, 1), state, cu_seqlens=_bounds(more))
    parts = zip(documents, continued, one.split(lengths, 1), two.split(more, 1), strict=True)
    for n, (document, rest, *outputs) in enumerate(parts):
        alone, final = model(torch.cat([document, rest], 1))
        worst.compare(torch.cat(outputs, 1), alone, f"document {n}")
        own = {slot: _last_rows(tensor[n : n + 1], final[slot]) for slot, tensor in state.items()}
        worst.compare_states(own, final, f"document {n}")
    return worst


@check("left-padded = unpadded", allowed=EXACT)
@torch.no_grad()
def left_padded(subject: Subject) -> Worst:
    """Sequences of a left-padded batch are as if alone, and so are the steps after them."""
    model, worst = subject.model(), Worst()
    for lengths in ((3, 9, 1), (4,)):
        _padded(subject, model, lengths, worst)
    return worst


@check("batch-size invariance", allowed=EXACT)
@torch.no_grad()
def batch_size(subject: Subject) -> Worst:
    """The members of a batch don't see each other."""
    model, worst = subject.model(), Worst()
    tokens = subject.tokens(5, 20)
    logits, state = model(tokens)
    for n in (0, 3):
        alone, final = model(tokens[n : n + 1])
        worst.compare(logits[n : n + 1], alone, f"member {n} of 5")
        own = {slot: tensor[n : n + 1] for slot, tensor in state.items()}
        worst.compare_states(own, final, f"member {n} of 5")
    return worst


@check("forms agree", allowed=EXACT)
def forms(subject: Subject) -> Worst:
    """The form that runs gives what the plain loop gives: outputs, states and gradients."""
    worst = Worst()
    models = [subject.model("model.num_layers=1", *each) for each in ((), _REFERENCE)]
    for length in _LENGTHS:
        tokens, results = subject.tokens(2, length), []
        for model in models:
            logits, state = model(tokens)
            model.zero_grad()
            (logits * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum().backward()
            grads = {
                name: torch.zeros_like(each) if each.grad is None else each.grad.clone()
                for name, each in model.named_parameters()
            }
            results.append((logits, state, grads))
        (logits, state, grads), (wanted, final, wanted_grads) = results
        worst.compare(logits, wanted, f"outputs at T = {length}")
        worst.compare_states(state, final, f"T = {length}")
        worst.compare_states(grads, wanted_grads, f"gradients at T = {length}")
    return worst


@check("extreme inputs", allowed=EXACT)
@torch.no_grad()
def extreme_inputs(subject: Subject) -> Worst:
    """Gates driven to their ends leave the forms alike, and everything finite in fp32."""
    worst, tokens, results = Worst(), subject.tokens(2, 130), []
    for dtype, overrides in (
        (torch.float64, ()),
        (torch.float64, _REFERENCE),
        (torch.float32, ()),
    ):
        model = subject.model("model.num_layers=1", *overrides, dtype=dtype)
        block = model.layers[0]
        assert isinstance(block, Block)
        block.mixer_norm.weight.fill_(1000)
        logits, state = model(tokens)
        worst.finite({"the output": logits, **state}, f"in {dtype}")
        results.append(logits)
    worst.compare(results[0], results[1], "outputs")
    return worst


@check("one form at every length", allowed=0)
@torch.no_grad()
def one_form(subject: Subject) -> Worst:
    """No length but 1 changes which kernels run: short sequences train by the same path."""
    model, worst = subject.model("model.num_layers=1"), Worst()
    ran = {}
    for length in (2, *_LENGTHS[1:]):
        with forms_that_run() as ran[length]:
            model(subject.tokens(1, length))
    if not ran[2]:
        raise NotApplicable("no kernel runs that has several forms")
    for length, forms in ran.items():
        worst.see(len(forms ^ ran[2]), f"T = {length} runs {forms}, T = 2 {ran[2]}")
    return worst


@check("odd sizes", allowed=EXACT)
@torch.no_grad()
def odd_sizes(subject: Subject) -> Worst:
    """T 1, 63 and 65; K and V under 16, over 256 and no powers of 2; one head."""
    worst = Worst()
    for heads, key, value in ((1, 5, 3), (3, 6, 10), (2, 12, 7), (1, 260, 257)):
        sizes = (f"model.num_heads={heads}", f"model.head_dim={key}", f"model.value_dim={value}")
        flat = ("model.num_layers=1", "model.positions=none", "model.mixer.rope_base=0")
        model, loop = (subject.model(*flat, *sizes, *each) for each in ((), _REFERENCE))
        for length in (1, 63, 65):
            tokens, where = subject.tokens(1, length), f"T {length}, H {heads}, K {key}, V {value}"
            whole, state = model(tokens)
            wanted, final = loop(tokens)
            worst.compare(whole, wanted, where)
            worst.compare_states(state, final, where)
            if length > 1:
                _cut(model, tokens, [1, length // 2], worst)
    return worst


_REFERENCE = ("model.backend=reference",)


def _cut(model: Decoder, tokens: Tensor, cuts: list[int], worst: Worst) -> None:
    whole, final = model(tokens)
    length = tokens.shape[1]
    for cut in cuts:
        parts, state = _parts(model, tokens, [0, cut, length])
        where = f"T = {length}, cut at {cut}"
        worst.compare(parts, whole, where)
        worst.compare_states(state, final, where)


def _padded(subject: Subject, model: Decoder, lengths: tuple[int, ...], worst: Worst) -> None:
    longest, later = 9, 2
    tokens = subject.tokens(len(lengths), longest)
    mask = torch.arange(longest) >= longest - torch.tensor(lengths)[:, None]
    row, bounds = unpad(tokens, mask)
    logits, state = model(row, cu_seqlens=bounds)
    after = subject.tokens(len(lengths), later, seed=1)
    next_logits, _ = _parts(model, after, list(range(later + 1)), state)
    for n, (length, part) in enumerate(zip(lengths, logits.split(lengths, 1), strict=True)):
        own = torch.cat([tokens[n : n + 1, longest - length :], after[n : n + 1]], 1)
        alone, _ = model(own)
        where = f"sequence {n} of {len(lengths)}"
        worst.compare(part, alone[:, :length], where)
        worst.compare(next_logits[n : n + 1], alone[:, length:], f"steps after {where}")


def _parts(
    model: Decoder, tokens: Tensor, bounds: list[int], state: State | None = None
) -> tuple[Tensor, State]:
    """Outputs and last state of the parts between `bounds`, each after the other."""
    outputs = []
    for first, last in pairwise(bounds):
        part, state = model(tokens[:, first:last], state)
        outputs.append(part)
    assert state is not None
    return torch.cat(outputs, 1), state


def _bounds(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)])


def _last_rows(tensor: Tensor, own: Tensor) -> Tensor:
    """A cache has as many rows as the longest document; zeros stand before a shorter one's."""
    missing = tensor.shape[1] - own.shape[1] if tensor.ndim > 1 else 0
    return tensor if missing <= 0 or tensor[:, :missing].any() else tensor[:, missing:]
