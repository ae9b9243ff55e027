"""How much of a rare token's key lies in the directions that all keys share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from statelab.errors import ConfigError, DataError
from statelab.options import Section, option
from statelab.registries import eval_tasks
from statelab.tasks.haystack import make_haystack
from statelab.tasks.task import EvalTask, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from statelab.figures.style import Subject
    from statelab.tasks.trained import Trained

__all__ = ["Geometry", "GeometryConfig", "Marked", "energy_share"]

_RARE = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class GeometryConfig(Section):
    """Options of `eval task=geometry`."""

    rank: int = option(16, "eigenvectors of the keys' covariance, the largest ones", at_least=1)
    sentences: int = option(120, "sentences around the needle", at_least=2)
    samples: int = option(4, "texts, with the needle at as many depths", at_least=1)
    rare: Literal["auto", "token", "word"] = option(
        "auto",
        "needle tokens: those that occur twice at most, or all of words that do; auto is words "
        "where these are more than twice as many, as with bytes",
    )
    seed: int = option(0, "of the texts", at_least=0)


@eval_tasks.register("geometry", config=GeometryConfig)
class Geometry(EvalTask):
    """Share of a token's centred key energy in the top eigenvectors, needle against distractors.

    Of the T unit keys of a layer and head in a text, with mean m and covariance

        Sigma = 1 / (T - 1) sum_t (k_t - m)(k_t - m)',

    U holds the eigenvectors of the `rank` largest eigenvalues, and the share of token t is

        |U' (k_t - m)|^2 / |k_t - m|^2.

    The gap is its mean over the needle's rare tokens minus that over all tokens that are not the
    needle's. Below 0 the needle lies outside of what keys share, and a read that removes those
    directions from the query keeps it.

        geometry/gap            mean over texts, layers and heads
        geometry/gap/layer_i    mean over the texts and heads of a layer
        geometry/needle, geometry/distractor    the two means themselves

    The keys are those that a memory's statistics see (`Memory.key`), made unit vectors. A memory
    whose address is time, such as S4D's, has them too: they are its stream k.

    Source: arXiv:2606.01294, appendix H.
    """

    config: GeometryConfig

    def run(self, trained: Trained) -> Report:
        """Read the texts."""
        import torch

        from statelab import probe

        config = self.config
        marked = [self._text(trained, number) for number in range(config.samples)]
        self._check(trained, max(len(each.tokens) for each in marked))
        kinds = probe.layers_read(trained.model)
        needle: dict[int, list[Tensor]] = {layer: [] for layer in kinds}
        distractor: dict[int, list[Tensor]] = {layer: [] for layer in kinds}
        with trained.running():
            for each in marked:
                tokens = torch.tensor([each.tokens], device=trained.device)
                shares = probe.map_keys(
                    trained.model, tokens, lambda keys: energy_share(keys[0], config.rank)
                )
                for layer, share in shares.items():
                    needle[layer].append(share[:, each.needle].mean(-1))
                    distractor[layer].append(share[:, each.distractors].mean(-1))
        means = {
            layer: (torch.stack(needle[layer]).mean(0), torch.stack(distractor[layer]).mean(0))
            for layer in kinds
        }
        return _report(means, kinds, marked, config)

    def draw(self, report: Report, subject: Subject) -> Mapping[str, Figure]:
        """The gap by layer and head, and both shares by layer."""
        from statelab.figures.geometry import key_geometry

        return {"key_geometry": key_geometry(report.data["layers"], self.config.rank, subject)}

    def _text(self, trained: Trained, number: int) -> Marked:
        config, data = self.config, trained.data
        if not data.is_text:
            raise DataError(
                f"task=geometry reads English sentences, and data.name={trained.config.data.name} "
                "is no text. Give a run that was trained on text."
            )
        depth = (number + 1) / (config.samples + 1)
        stack = make_haystack(config.sentences, depth, config.seed + number)
        words = [(data.encode(trained.config.data, word), rare) for word, rare in stack.needle]
        before = data.encode(trained.config.data, stack.before)
        inside = [token for word, _ in words for token in word]
        after = data.encode(trained.config.data, stack.after)
        tokens = [*before, *inside, *after]
        places = range(len(before), len(before) + len(inside))
        seen = Counter(tokens)
        by_token = [place for place in places if seen[tokens[place]] <= _RARE]
        by_word = [
            place
            for place, rare in zip(
                places, (rare for word, rare in words for _ in word), strict=True
            )
            if rare
        ]
        use_words = config.rare == "word" or (
            config.rare == "auto" and len(by_word) > 2 * len(by_token)
        )
        needle = by_word if use_words else by_token
        if not needle:
            raise ConfigError(
                "rare=token: no token of the needle occurs twice at most, as with bytes. "
                "Use rare=word."
            )
        distractors = [place for place in range(len(tokens)) if place not in places]
        return Marked(
            tokens=tokens,
            needle=needle,
            distractors=distractors,
            by="word" if use_words else "token",
        )

    def _check(self, trained: Trained, longest: int) -> None:
        model, rank = trained.model.config, self.config.rank
        assert model.head_dim is not None
        if rank >= model.head_dim:
            raise ConfigError(
                f"rank={rank}: keys of model.head_dim={model.head_dim} have all their energy in "
                f"so many directions. Give rank={max(1, model.head_dim // 4)}, say."
            )
        table = trained.model.positions
        if table is not None and longest > table.num_embeddings:
            raise ConfigError(
                f"sentences={self.config.sentences}: the text has {longest:,} tokens, and "
                f"model.positions=learned has {table.num_embeddings:,} positions. Give fewer."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Marked:
    """A text as tokens, and which of them are which.

    Attributes:
        tokens: All of them.
        needle: Places of the needle's rare tokens.
        distractors: Places of all tokens outside of the needle.
        by: Whether token or word is rare.
    """

    tokens: Sequence[int]
    needle: Sequence[int]
    distractors: Sequence[int]
    by: str


def energy_share(keys: Tensor, rank: int) -> Tensor:
    """The share of each key's centred energy in the top eigenvectors of their covariance.

    Args:
        keys: Unit keys of one text, [H, T, K], T >= 2.
        rank: Eigenvectors, < K.

    Returns:
        [H, T], from 0 to 1, float64.
    """
    import torch

    centred = keys.double() - keys.double().mean(1, keepdim=True)
    covariance = centred.mT @ centred / (keys.shape[1] - 1)
    top = torch.linalg.eigh(covariance).eigenvectors[..., -rank:]
    inside = (centred @ top).square().sum(-1)
    # A key that is the mean has no energy to share.
    whole = centred.square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    share: Tensor = inside / whole
    return share


def _report(
    means: Mapping[int, tuple[Tensor, Tensor]],
    kinds: Mapping[int, str],
    marked: Sequence[Marked],
    config: GeometryConfig,
) -> Report:
    layers: list[dict[str, Any]] = [
        {
            "layer": layer,
            "kind": kinds[layer],
            "gap": (needle - distractor).tolist(),
            "needle": needle.tolist(),
            "distractor": distractor.tolist(),
        }
        for layer, (needle, distractor) in means.items()
    ]
    rows = [
        {
            "layer": row["layer"],
            "kind": row["kind"],
            **{name: _mean(row[name]) for name in ("gap", "needle", "distractor")},
            "least": min(row["gap"]),
            "greatest": max(row["gap"]),
        }
        for row in layers
    ]
    metrics = {f"geometry/{n}": _mean([row[n] for row in rows]) for n in _MEANS}
    metrics |= {f"geometry/gap/layer_{row['layer']}": row["gap"] for row in rows}
    return Report(
        metrics=metrics,
        setup={
            "rank": config.rank,
            "texts": config.samples,
            "sentences": config.sentences,
            "tokens": max(len(each.tokens) for each in marked),
            "needle_tokens": sum(len(each.needle) for each in marked),
            "rare": marked[0].by,
        },
        tables={"share of centred key energy": rows},
        data={"layers": layers},
    )


_MEANS = ("gap", "needle", "distractor")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
