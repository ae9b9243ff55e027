"""Checks of a memory by itself: linear in the stream, its two reads adjoint, its slots apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from statelab.errors import RuleError
from statelab.model.context import Context, State
from statelab.model.memory import Memory
from statelab.model.norms import l2_normalize
from statelab.rules import make_memory
from statelab.testing.check import NotApplicable, Worst, check
from statelab.testing.subject import EXACT, Subject

__all__ = [
    "MemorySubject",
    "adjoint",
    "linear",
    "memory_halves",
    "memory_of",
    "other_streams",
    "slots",
]

_SLOT = "probe"


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySubject:
    """A function that makes a memory of a layer's input, as a write rule's `forward` does.

    Attributes:
        make: `make(x, k, v)` for x [B, T, d_model], k [B, T, H, K] and v [B, T, H, V] in float64;
            what it does at a token depends on that token alone.
        d_model: Width of x.
        num_heads: H.
        key_dim: K.
        value_dim: V.
    """

    make: Callable[[Tensor, Tensor, Tensor], Memory]
    d_model: int = 10
    num_heads: int = 2
    key_dim: int = 4
    value_dim: int = 6

    def inputs(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """x, unit keys and v."""
        x = self.draw(length, self.d_model, seed=0).flatten(2)[..., : self.d_model]
        k = l2_normalize(self.draw(length, self.key_dim, seed=1))
        return x, k, self.draw(length, self.value_dim, seed=2)

    def draw(self, length: int, size: int, seed: int) -> Tensor:
        """Random numbers, [2, length, H, size]."""
        generator = torch.Generator().manual_seed(seed)
        shape = (2, length, self.num_heads, size)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def memory(
        self, length: int, first: int = 0, last: int | None = None, state: State | None = None
    ) -> tuple[Memory, Context]:
        """The memory of some of `length` tokens, bound to a pass of its own."""
        x, k, v = (each[:, first:last] for each in self.inputs(length))
        context = Context(*x.shape[:2], device=x.device, state=state)
        return self.make(x, k, v).bind(context.scope("layer")), context


def memory_of(subject: Subject) -> MemorySubject:
    """The memory that a pair's write rule makes.

    Raises:
        NotApplicable: If it is not linear in what is stored.
    """
    if subject.is_cache:
        raise NotApplicable("a cache has no recall and no project")
    config = subject.config("model.num_layers=1").model
    rule = subject.mixer(subject.model("model.num_layers=1")).write
    assert config.head_dim is not None
    assert config.value_dim is not None

    def make(x: Tensor, k: Tensor, v: Tensor) -> Memory:
        return make_memory(rule, x, k if rule.uses_key else None, v)

    return MemorySubject(
        make=make,
        d_model=config.d_model,
        num_heads=config.num_heads,
        key_dim=config.head_dim,
        value_dim=config.value_dim,
    )


@check("memory: linear in the stream", allowed=EXACT)
@torch.no_grad()
def linear(subject: MemorySubject) -> Worst:
    """2 s + 3 r is read as twice s and three times r, by recall and by project."""
    worst = Worst()
    s, r, y = (subject.draw(70, 5, seed=seed) for seed in (3, 4, 5))
    memory, _ = subject.memory(70)
    one, two, both = (
        memory.write(stream, f"{_SLOT}{n}") for n, stream in enumerate((s, r, 2 * s + 3 * r))
    )
    worst.compare(both.project(y), 2 * one.project(y) + 3 * two.project(y), "project")
    c = _address(one.project(y))
    worst.compare(both.recall(c), 2 * one.recall(c) + 3 * two.recall(c), "recall")
    return worst


@check("memory: project is recall's adjoint", allowed=EXACT)
@torch.no_grad()
def adjoint(subject: MemorySubject) -> Worst:
    """project(y) . c = recall(c) . y at every token: both read one S_t."""
    worst = Worst()
    memory, _ = subject.memory(70)
    written = memory.write(subject.draw(70, 5, seed=3), _SLOT)
    y = subject.draw(70, 5, seed=5)
    w = written.project(y)
    c = _address(w)
    worst.compare((written.recall(c) * y).sum(-1), (w * c).sum(-1).real, "the two products")
    return worst


@check("memory: whole = halves", allowed=EXACT)
@torch.no_grad()
def memory_halves(subject: MemorySubject) -> Worst:
    """Both reads of two parts with the state carried are those of the whole."""
    worst, length = Worst(), 70
    stream, y = (subject.draw(length, 5, seed=seed) for seed in (3, 5))

    def read(first: int, last: int | None, state: State | None) -> tuple[Tensor, Tensor, State]:
        memory, context = subject.memory(length, first, last, state)
        written = memory.write(stream[:, first:last], _SLOT)
        w = written.project(y[:, first:last])
        return w, written.recall(_address(w, all_of=length, first=first)), context.outgoing

    whole = read(0, None, None)
    for cut in (1, 33, 64, 69):
        one = read(0, cut, None)
        two = read(cut, None, one[2])
        for n, name in enumerate(("project", "recall")):
            parts = torch.cat([one[n], two[n]], 1)  # type: ignore[list-item]
            worst.compare(parts, whole[n], f"{name}, cut at {cut}")  # type: ignore[arg-type]
        worst.compare_states(two[2], whole[2], f"cut at {cut}")
    return worst


@check("memory: slots", allowed=0)
@torch.no_grad()
def slots(subject: MemorySubject) -> Worst:
    """A stream has a slot of its own, read any number of times: departures from that."""
    worst = Worst()
    memory, context = subject.memory(9)
    stream, y = subject.draw(9, 5, seed=3), subject.draw(9, 5, seed=5)
    written = memory.write(stream, _SLOT)
    before = written.project(y)
    state = memory.state(_SLOT)
    left = {slot for slot in context.outgoing if slot != "position"}
    if state is None or left != {f"layer.{_SLOT}"}:
        raise AssertionError(f"writing to the slot {_SLOT!r} leaves a state in {sorted(left)}")
    written.recall(_address(before))
    written.aside().project(2 * y)
    worst.compare(written.project(y), before, "a second read")
    again = memory.state(_SLOT)
    assert again is not None
    worst.compare(again, state, "the state after a second read")
    try:
        memory.write(y, _SLOT)
        worst.see(1, "a second stream gets into a slot that is taken")
    except RuleError:
        pass
    return worst


@check("memory: other streams", allowed=EXACT)
@torch.no_grad()
def other_streams(subject: MemorySubject) -> Worst:
    """Streams of any size are read, and to reread is to project, then recall."""
    worst = Worst()
    memory, _ = subject.memory(70)
    for size in (1, 5, 17):
        written = memory.write(subject.draw(70, size, seed=size), f"{_SLOT}{size}")
        w = written.project(subject.draw(70, size, seed=5))
        out = written.recall(_address(w))
        if list(out.shape) != [2, 70, subject.num_heads, size]:
            raise AssertionError(f"a stream of size {size} is recalled as {list(out.shape)}")
    q = subject.draw(70, memory.features.shape[-1], seed=6)
    features = memory.write(memory.features, "features")
    reread = memory.reread(q, features)
    again = memory.again()
    composed = again.recall(again.write(memory.features, "features").project(q))
    worst.compare(reread, composed, "reread")
    return worst


def _address(like: Tensor, *, all_of: int | None = None, first: int = 0) -> Tensor:
    """A random query on the address side, complex if that is; of the tokens from `first` on."""
    generator = torch.Generator().manual_seed(7)
    batch, length, *shape = like.shape
    c = torch.randn(batch, all_of or length, *shape, generator=generator, dtype=like.dtype)
    return c[:, first : first + length]
