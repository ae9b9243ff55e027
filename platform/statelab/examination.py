"""All that is measured of one model, to be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from statelab import probe
from statelab.config import Config
from statelab.model.decoder import Decoder
from statelab.model.layers import chosen
from statelab.registries import data_modules

__all__ = ["SHOWN", "Examination", "examine"]

#: Tokens in a map of weights, where nobody says which.
SHOWN = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Examination:
    """What was found in a model; maps are by layer.

    Attributes:
        parameters: The model's size.
        kinds: What each layer with a memory is.
        diagnostics: What the rules say, by name.
        spectra: Eigenvalues of the covariance of the keys.
        norms: Norms of the states over the text.
        weights: Effective weights, of up to three layers.
        text: Labels of the tokens that the weights are of.
    """

    parameters: int
    kinds: Mapping[int, str]
    diagnostics: Mapping[int, Mapping[str, Tensor]]
    spectra: Mapping[int, Tensor]
    norms: Mapping[int, Tensor]
    weights: Mapping[int, probe.Weights]
    text: Sequence[str]


def examine(model: Decoder, config: Config, tokens: Tensor, shown: int = SHOWN) -> Examination:
    """Measure a model on some sequences.

    Args:
        model: The model.
        config: Its configuration.
        tokens: [B, T].
        shown: As many tokens of the first sequence go into the effective weights.
    """
    data, text = data_modules.get(config.data.name).cls, tokens[:1, :shown]
    kinds = probe.layers_read(model)
    return Examination(
        parameters=sum(each.numel() for each in model.parameters()),
        kinds=kinds,
        diagnostics=probe.diagnose(model, tokens),
        spectra=probe.key_spectra(model, tokens),
        norms=probe.state_norms(model, tokens),
        weights=probe.effective_weights(model, text, layers=_shown(kinds)),
        text=[data.spell(config.data, token) for token in text[0].tolist()],
    )


def _shown(kinds: Mapping[int, str]) -> list[int]:
    """Up to three layers; where there is attention beside memories, one of them."""
    memories = [index for index, kind in kinds.items() if kind == "memory"]
    others = [index for index in kinds if index not in memories]
    return chosen(memories, 2) + others[-1:] if memories and others else chosen(list(kinds), 3)
