"""Noisy in-context recall: between the pairs stands what has no meaning.

Source: Poli et al. 2024, arXiv:2403.17844, section 3.1 and its code.
"""

from __future__ import annotations

from dataclasses import dataclass

from statelab.errors import ConfigError
from statelab.options import option
from statelab.registries import data_modules
from statelab_plugins.data.in_context_recall import InContextRecall, InContextRecallConfig

__all__ = ["NoisyRecall", "NoisyRecallConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NoisyRecallConfig(InContextRecallConfig):
    """The defaults are MAD's base setting."""

    vocab_size: int = option(32, "tokens, those of the noise included", at_least=4)
    noise_vocab_size: int = option(16, "tokens that only noise has, the upper ones", at_least=1)
    noise: float = option(
        0.2, "chance of a pair's place to hold two tokens of noise", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        if self.noise_vocab_size > self.vocab_size - 2:
            raise ConfigError(
                f"data.noise_vocab_size={self.noise_vocab_size} leaves no key and value of "
                f"data.vocab_size={self.vocab_size}. Set data.vocab_size="
                f"{self.noise_vocab_size + 2} or more, or less noise."
            )
        InContextRecallConfig.__post_init__(self)

    @property
    def plain_tokens(self) -> int:
        """Tokens that are keys or values."""
        return self.vocab_size - self.noise_vocab_size

    @property
    def noise_share(self) -> float:
        """The chance of a place for a pair to hold noise instead."""
        return self.noise


@data_modules.register("noisy_recall", config=NoisyRecallConfig)
class NoisyRecall(InContextRecall):
    """In-context recall in which some places hold two tokens of noise instead of a pair.

        tokens   k3 v9 n  n  k1 v8 n  n  k3 v9 ...
        labels   -  -  -  -  -  -  -  -  v9 -

    Noise has tokens of its own. One place before the last is never noise, so that the last pair
    has a key to ask for; each of `num_keys`, too, has a place without.

    Differs from MAD's: there the place that is never noise may be the last, which is none anyhow.
    """

    config: NoisyRecallConfig
