"""Rules that each break one promise, and what they are without the fault."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from statelab.options import Section
from statelab.rules import ParamOptions, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import GatedMemory


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOptions(Section):
    """None."""


class Sound(WriteRule):
    """S_t = a S_(t-1) + w_t k_t v_t' with a learned decay a head: what is broken below."""

    provides: ClassVar = frozenset({"linear", "features", "gated", "bounded", "symmetric"})

    def __init__(self, config, dims):
        super().__init__(config, dims)
        self.log_rate = nn.Parameter(torch.empty(dims.num_heads))
        self.weight_proj = nn.Linear(dims.d_model, dims.num_heads)

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.constant_(self.log_rate, -3.0)
        nn.init.constant_(self.weight_proj.bias, 2.0)

    def parameter_options(self):
        return {"log_rate": ParamOptions(weight_decay=False, max_lr=1e-3)}

    def forward(self, x, k, v):
        g = -self.log_rate.to(compute_dtype(k)).exp()
        weight = self.weight_proj(x).to(compute_dtype(k)).sigmoid()
        return self.memory(k, v, g.expand(k.shape[:3]), weight)

    def memory(self, k, v, g, weight):
        return GatedMemory(k, v, g=g, weight=weight)


class LooksAhead(Sound):
    """A value holds a little of the next one."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v + 1e-3 * v.roll(-1, 1), g, weight)


class Grows(Sound):
    """The state holds all values, though no cache is said."""

    class Memory(GatedMemory):
        def recall_stream(self, written, c):
            self.run(_keep, written.stream, slot="kept")
            return super().recall_stream(written, c)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


def _keep(x, *, initial_state=None, cu_seqlens=None, backend="auto"):
    return x, x if initial_state is None else torch.cat([initial_state, x], 1)


class Narrow(Sound):
    """The state is handed on in bf16."""

    class Memory(GatedMemory):
        def run(self, op, *streams, slot, **options):
            def narrow(*args, **given):
                out, final = op(*args, **given)
                return out, final.bfloat16()

            return super().run(narrow, *streams, slot=slot, **options)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


class ForgetsDocuments(Sound):
    """One recurrence runs through all packed documents; each keeps the last state."""

    class Memory(GatedMemory):
        def run(self, op, *streams, slot, **options):
            def through(*args, cu_seqlens=None, initial_state=None, **given):
                n = 1 if cu_seqlens is None else len(cu_seqlens) - 1
                if cu_seqlens is not None and initial_state is not None:
                    initial_state = initial_state[:1]
                out, final = op(*args, cu_seqlens=None, initial_state=initial_state, **given)
                return out, final if cu_seqlens is None else final.expand(n, *final.shape[1:])

            return super().run(through, *streams, slot=slot, **options)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


class LosesItsStart(Sound):
    """The bias of a linear map is set where the model resets it later."""

    def __init__(self, config, dims):
        super().__init__(config, dims)
        if not self.weight_proj.bias.is_meta:
            nn.init.constant_(self.weight_proj.bias, 2.0)

    def reset_parameters(self):
        WriteRule.reset_parameters(self)
        nn.init.constant_(self.log_rate, -3.0)


class NeverStarts(Sound):
    """A parameter's start is given in __init__ alone: there is none after the meta device."""

    def __init__(self, config, dims):
        super().__init__(config, dims)
        self.shift = nn.Parameter(torch.full((dims.num_heads,), 0.5))

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, weight * self.shift)


class DropsAGradient(Sound):
    """The write weight is cut off from what it is made of."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, weight.detach())


class DropsPartOfAGradient(Sound):
    """Every parameter has a gradient, but that of the keys is a wrong one."""

    def memory(self, k, v, g, weight):
        return super().memory(0.5 * (k + k.detach()), v, g, weight)


class SeesTheBatch(Sound):
    """A write is scaled by the mean over the batch."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, weight / weight.mean(0, keepdim=True))


class ScalesByLength(Sound):
    """A hidden factor 1 / sqrt(T), which a part of the text has another of."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, weight * k.shape[1] ** -0.5)


class ShortIsOtherwise(Sound):
    """Another form for short inputs, which isn't the same to the last digits."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, weight if k.shape[1] > 64 else weight.float().to(weight))


class IsNotLinear(Sound):
    """A stream is squashed on its way into the memory."""

    class Memory(GatedMemory):
        def write(self, stream, slot="values"):
            return super().write(_squashed(self, stream), slot)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


def _squashed(memory, stream) -> Tensor:
    """One tensor for each stream, so that a slot knows its own again."""
    known = memory.__dict__.setdefault("squashed", {})
    return known.setdefault(id(stream), (stream, stream.tanh()))[1]


class ReadsUnset(Sound):
    """A factor of 0 is multiplied with memory that nobody has set."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v + 0 * torch.empty_like(v), g, weight)


class Overflows(Sound):
    """What is written grows without bound."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g.abs().clamp(max=0.01), weight)


class NamesNoParameter(Sound):
    """The optimizer is told of a parameter that there isn't."""

    def parameter_options(self):
        return {"rate": ParamOptions(weight_decay=False)}


class DrawsAnew(Sound):
    """A constant that is drawn when the rule is made, and saved nowhere."""

    def __init__(self, config, dims):
        super().__init__(config, dims)
        self.noise = torch.rand(dims.num_heads, device="cpu")

    def reset_parameters(self):
        super().reset_parameters()
        self.noise = torch.rand(self.dims.num_heads)

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, weight * self.noise.to(weight))


class BreaksOff(Sound):
    """The rule raises in bf16, and under autocast."""

    def memory(self, k, v, g, weight):
        if v.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu"):
            raise NotImplementedError("no bf16\nhere")
        return super().memory(k, v, g, weight)


class SaysLess(Sound):
    """More is kept where there are numbers than where only shapes are asked for."""

    class Memory(GatedMemory):
        def recall_stream(self, written, c):
            if not c.is_meta:
                self.run(_last, written.stream, slot="last")
            return super().recall_stream(written, c)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


def _last(x, *, initial_state=None, cu_seqlens=None, backend="auto"):
    return x, x[:, -1]


class OpensItsGate(Sound):
    """A gate that some inputs drive above 0 makes the memory grow with every token."""

    def forward(self, x, k, v):
        g = self.weight_proj(x).to(compute_dtype(k)) + self.log_rate
        return self.memory(k, v, g, torch.ones_like(g))


class RoundsInside(Sound):
    """A weight in single precision passes through bf16."""

    def memory(self, k, v, g, weight):
        single = weight.dtype == torch.float32
        return super().memory(k, v, g, weight.bfloat16().float() if single else weight)


class WantsEvenKeys(Sound):
    """Keys of an odd size are refused."""

    def memory(self, k, v, g, weight):
        return super().memory(k.unflatten(-1, (-1, 2)).flatten(-2), v, g, weight)


class ChoosesByLength(Sound):
    """Short inputs take another form of the kernel."""

    class Memory(GatedMemory):
        def run(self, op, *streams, slot, **options):
            def choose(*args, backend, **given):
                short = args[0].shape[1] <= 64
                return op(*args, backend="reference" if short else backend, **given)

            return super().run(choose, *streams, slot=slot, **options)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


class HasAnotherLoop(Sound):
    """The loop is of another rule than the form that runs."""

    class Memory(GatedMemory):
        def run(self, op, *streams, slot, **options):
            def other(q, *args, backend, **given):
                out, final = op(q, *args, backend=backend, **given)
                return (1.001 * out if backend == "reference" else out), final

            return super().run(other, *streams, slot=slot, **options)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


class IsOtherwiseCompiled(Sound):
    """What the compiler traces is something else."""

    def memory(self, k, v, g, weight):
        return super().memory(k, v, g, 2 * weight if torch.compiler.is_compiling() else weight)


class DividesByItsSum(Sound):
    """Keys are divided by what is left after their likes are taken away: 0 if all are alike."""

    def memory(self, k, v, g, weight):
        return super().memory(k / (k - k.roll(1, 1)).abs().amax(-1, keepdim=True), v, g, weight)


class ProjectsTwofold(Sound):
    """project reads 2 S."""

    class Memory(GatedMemory):
        def project_stream(self, written, y):
            return 2 * super().project_stream(written, y)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


class HasOneSlot(Sound):
    """All streams leave their state in one slot."""

    class Memory(GatedMemory):
        def run(self, op, *streams, slot, **options):
            return super().run(op, *streams, slot="values", **options)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


class HasOneSize(Sound):
    """A stream is recalled at the size of the values, whatever its own."""

    class Memory(GatedMemory):
        def recall_stream(self, written, c):
            return super().recall_stream(written, c).expand_as(self.values)

    def memory(self, k, v, g, weight):
        return self.Memory(k, v, g=g, weight=weight)


for _rule in (Sound, *Sound.__subclasses__()):
    write_rules.register(_rule.__name__, config=NoOptions)(_rule)


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubling(Section):
    """An option that is changed on its way in, and so once more when it is read again."""

    half_life: float = 2.0

    def __post_init__(self):
        object.__setattr__(self, "half_life", 2 * self.half_life)


@write_rules.register("ChangesItsOption", config=Doubling)
class ChangesItsOption(Sound):
    """Its configuration isn't the same when it is read again."""
