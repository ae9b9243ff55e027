"""How runs are called, and what is said of them: the difference comes first, equations are Unicode.

MLflow's table shows some fourteen characters of a name, and its Markdown knows no LaTeX.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from statelab.config import Config
from statelab.registries import read_rules, write_rules
from statelab.runs.records import pair_of

if TYPE_CHECKING:
    from statelab.sizes import Sizes

__all__ = ["describe_run", "in_unicode", "pair_name", "run_name", "short_pair"]

_SHOWN = 14
_FEWEST = 8

_GREEK = {
    **{"alpha": "α", "beta": "β", "gamma": "γ", "Lambda": "Λ", "lambda": "λ", "mu": "μ"},
    **{"eta": "η", "xi": "ξ", "Sigma": "Σ", "sum": "Σ"},
}
_LOW = dict(zip("0123456789+-aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
_HIGH = dict(zip("0123456789+-hijknt", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ʰⁱʲᵏⁿᵗ", strict=True))


def pair_name(config: Config) -> str:
    """The pair of rules, as `gla+ccq`; a rule from a file is called by its class."""
    return pair_of(config.model.write.name, config.model.read.name)


def run_name(config: Config) -> str:
    """What sets a run apart from its neighbours, as `gla+ccq s1`: the pair and the seed."""
    return f"{short_pair(config)} s{config.seed}"


def short_pair(config: Config) -> str:
    """The pair, cut where its seed would not be seen behind it: `gdelt+inter`."""
    write, read = pair_name(config).split("+")
    room = max(_SHOWN - len(f"+ s{config.seed}"), _FEWEST)
    read = _cut(read, max(room - len(write), room // 2))
    return f"{_cut(write, room - len(read))}+{read}"


def describe_run(config: Config, sizes: Sizes) -> str:
    """A run in Markdown: its sizes, and what its rules compute."""
    write, read = config.model.write.name, config.model.read.name
    return (
        f"**{pair_name(config)}** on {config.data.name}: {sizes.parameters:,} parameters, "
        f"{sizes.state_bytes:,} bytes of state, seed {config.seed}.\n\n"
        f"- write: {in_unicode(write_rules.get(write).summary)}\n"
        f"- read: {in_unicode(read_rules.get(read).summary)}\n"
    )


def in_unicode(text: str) -> str:
    """A line with its equation as it is read: `S_(t-1) + k_t v_t'` is Sₜ₋₁ + kₜ vₜᵀ.

    What has no sign in Unicode stays as it is. An equation begins behind the first colon.
    """
    name, colon, equation = text.partition(": ")
    if not colon:
        name, equation = "", text
    if "=" not in equation:
        return text
    for word, letter in _GREEK.items():
        equation = re.sub(rf"(?<![A-Za-z]){word}(?![A-Za-z])", letter, equation)
    equation = re.sub(r"_(?:\(([^()]+)\)|(\w{1,2})(?!\w))", _lowered, equation)
    equation = re.sub(r"\^(?:\(([^()]+)\)|(-?\w)(?!\w))", _raised, equation)
    equation = re.sub(r"(?<=[\w)₀-ₜ])'", "ᵀ", equation)
    return f"{name}{colon}{equation.replace(' - ', ' − ')}"


def _lowered(match: re.Match[str]) -> str:
    return _mapped(match, _LOW)


def _raised(match: re.Match[str]) -> str:
    return _mapped(match, _HIGH)


def _mapped(match: re.Match[str], letters: dict[str, str]) -> str:
    inside = match[1] or match[2]
    if not {*inside} <= letters.keys():
        return match[0]
    return "".join(letters[each] for each in inside)


def _cut(name: str, most: int) -> str:
    """A name of at most so many letters: `gated_deltanet` becomes gdelt."""
    if len(name) <= most:
        return name
    *first, last = name.split("_")
    return ("".join(each[0] for each in first if each) + last)[:most]
