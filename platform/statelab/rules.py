"""Write rules and read rules: the two plugins that a token mixer is put together from.

Life of a rule: built once by the mixer, `reset_parameters` once after the whole model is
assembled (on the meta device first, if need be), `forward` once a batch, in training, prefill and
decoding alike. A rule holds no state of its own; states go through `Memory.run`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from statelab.config import MixerConfig
from statelab.errors import RuleError
from statelab.model.initialise import reset_linear
from statelab.model.memory import Memory, Written
from statelab.model.scan_memory import ScanMemory
from statelab.registries import read_rules, write_rules

__all__ = [
    "Memory",
    "MixerDims",
    "ParamOptions",
    "ReadRule",
    "ScanMemory",
    "WriteRule",
    "Written",
    "make_memory",
    "read_rules",
    "write_rules",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class MixerDims:
    """The sizes that a rule is built for.

    Attributes:
        d_model: Width of the layer's input.
        num_heads: H.
        key_dim: K, the size of q and k a head.
        value_dim: V, the size of v a head.
        layer: Index of the layer, from 0.
        num_layers: Layers in all.
        init_std: Standard deviation that linear maps start with.
        read: The read rule's class, for write rules whose parts depend on who reads.
    """

    d_model: int
    num_heads: int
    key_dim: int
    value_dim: int
    layer: int
    num_layers: int
    init_std: float = 0.02
    read: type[ReadRule]


@dataclass(frozen=True, kw_only=True, slots=True)
class ParamOptions:
    """How the optimizer treats a parameter.

    Attributes:
        weight_decay: Whether AdamW decays it.
        max_lr: Cap on its learning rate; `optim.ssm_lr`, if given, replaces it.
    """

    weight_decay: bool = True
    max_lr: float | None = None


class Rule(nn.Module):
    """What write and read rules share.

    `diagnose` names what is worth watching: tensors of any shape, whose mean and deviation are
    logged at each validation, and whose distribution is drawn; a tensor of a single number, of no
    dimension, is logged alone. It is called outside training, on a pass from the first token.

    Attributes:
        full_precision: Whether parameters must stay fp32 at least, as those of a state-space
            model, which move by less than bf16 can say; `trainer.precision=bf16-true` is refused.
    """

    full_precision: ClassVar[bool] = False

    def __init__(self, config: Any, dims: MixerDims) -> None:
        super().__init__()
        self.config = config
        self.dims = dims

    def reset_parameters(self) -> None:
        """Initialise every parameter; a rule with parameters of its own extends this.

        Linear maps inside the rule start as those of the model do.
        """
        reset_linear(self, self.dims.init_std)

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """Options by parameter name; those not named are decayed if they are matrices."""
        return {}


class WriteRule(Rule):
    """Says what enters the memory at each token.

    Attributes:
        provides: Capabilities, matched against `ReadRule.requires`. "linear": recall and project
            exist. "features": a stream of keys can be written. "bounded": the memory's size
            doesn't grow with the number of tokens. "gated": the address is the key, with weights
            and decays of its own (`GatedMemory`). "symmetric": decays and weights are scalars a
            head and nothing is erased, so that keys written with themselves make a symmetric
            matrix. "cache": keys and values of all tokens.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"linear", "features"})

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, Any]:
        """The published `mixer` options of this rule with that read rule."""
        return {}

    @property
    def out_dim(self) -> int:
        """Size of a head's output; sizes the output projection."""
        return self.dims.value_dim

    @property
    def uses_query(self) -> bool:
        """False drops the query projection; q is None then."""
        return True

    @property
    def uses_key(self) -> bool:
        """False drops the key projection; k is None then, and the rule makes its own."""
        return True

    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> Memory:
        """Make the memory of this layer's input.

        Args:
            x: The normalised layer input, [B, T, d_model].
            k: Keys, [B, T, H, K]; None for a rule whose `uses_key` is False.
            v: Values, [B, T, H, V].
        """
        raise NotImplementedError

    def diagnose(self, memory: Memory) -> Mapping[str, Tensor]:
        """What is worth watching of a memory that was read; as a rule, all it says of itself."""
        return memory.diagnose()


def make_memory(rule: WriteRule, x: Tensor, k: Tensor | None, v: Tensor) -> Memory:
    """What the rule's `forward` makes of a layer's input.

    Raises:
        RuleError: If that is no memory.
    """
    memory = rule(x, k, v)
    if not isinstance(memory, Memory):
        raise RuleError(
            f"{type(rule).__name__}.forward must return a memory, such as GatedMemory(k, v); got "
            f"{type(memory).__name__}."
        )
    return memory


class ReadRule(Rule):
    """Says how a query gets something out of the memory again.

    Attributes:
        requires: Capabilities that the write rule must provide.
        changes_query: Whether the query matters even where the published read has none (S4D).
        mixer: `mixer` options that this read rule is not defined without.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"linear"})
    changes_query: ClassVar[bool] = False
    mixer: ClassVar[Mapping[str, object]] = {}

    @classmethod
    def check(cls, write: type[WriteRule], mixer: MixerConfig, options: Any) -> None:
        """Refuse a write rule, mixer options or own options that make no sense together.

        Raises:
            RuleError: Saying what to change.
        """

    def forward(self, q: Tensor, k: Tensor | None, memory: Memory) -> Tensor:
        """Read the memory.

        Args:
            q: Queries, [B, T, H, K]; None if the write rule uses none.
            k: The keys that the write rule was given, [B, T, H, K].
            memory: What it made of them.

        Returns:
            o, [B, T, H, memory's value size].
        """
        raise NotImplementedError

    def diagnose(self, q: Tensor, k: Tensor | None, memory: Memory) -> Mapping[str, Tensor]:
        """What is worth watching of a read; given what `forward` was, and free to read again."""
        return {}
