"""Perplexity by the length of the windows, and loss by the position in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from statelab.errors import ConfigError, DataError, near_miss
from statelab.options import Section, option
from statelab.registries import eval_tasks
from statelab.tasks.hub import CORPORA, GROUPS
from statelab.tasks.task import EvalTask, Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from statelab.figures.style import Subject
    from statelab.tasks.corpora import TokenText
    from statelab.tasks.trained import Trained

__all__ = ["Length", "LengthConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LengthConfig(Section):
    """Options of `eval task=length`."""

    lengths: tuple[int, ...] = option(
        (), "tokens a window; none is the group's, or 1, 2 and 4 times data.seq_len", at_least=2
    )
    text: tuple[str, ...] = option(
        (),
        "globs of files, stdlib, names of corpora, or a group: long6, long6_14k; none is the run's "
        "validation split",
    )
    column: str = option("text", "the column with the text, in files that are tables")
    hub: str | None = option(
        None, "folder that stands for the hub: FOLDER/OWNER/NAME has a data set's files"
    )
    method: Literal["pass", "stream"] = option(
        "pass", "a window in one pass, or in chunks with the state carried; the results are equal"
    )
    chunk: int = option(1024, "tokens a chunk of method=stream", at_least=1)
    batch_tokens: int = option(
        16_384, "tokens of windows side by side, at least one window", at_least=1
    )
    max_tokens: int | None = option(None, "tokens of each corpus; null is all", at_least=2)
    bins: int = option(
        32, "positions are averaged in so many bins, of equal width in their logarithm", at_least=1
    )

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if len(set(self.lengths)) < len(self.lengths):
            raise ConfigError(f"lengths={_said(self.lengths)} names one twice. Give each once.")


@eval_tasks.register("length", config=LengthConfig)
class Length(EvalTask):
    """Perplexity of windows of each length, exp(mean cross-entropy of their tokens).

    A corpus is one stream of tokens, cut into windows of L tokens that don't overlap; what is left
    at the end is dropped. Each window is read alone, from an empty memory, and its L - 1 tokens
    after the first are predicted. Every token counts alike.

        length/ppl/len_L           perplexity at L, the mean over the corpora
        length/bpb/len_L           bits per byte: all bits of the predicted tokens over their bytes
        length/ppl, length/bpb     the same at the greatest length
        length/CORPUS/ppl/len_L    those of one, where there are several

    The loss by position is that of the windows of the greatest length: where it still falls, the
    model makes use of text so far back.

    Source: arXiv:2606.01294, section 4.4 and appendix E.
    """

    config: LengthConfig

    def run(self, trained: Trained) -> Report:
        """Read all corpora at all lengths."""
        from statelab.tasks.scores import curve, score

        texts, averaged, lengths = self._plan(trained)
        corpora = self._read(trained, texts, max(lengths))
        rows, curves = [], {}
        for corpus in corpora:
            for length in lengths:
                scored = score(trained, corpus, length, self.config)
                rows.append(scored.row())
                if length == max(lengths):
                    curves[corpus.name] = curve(scored.by_position, self.config.bins)
        return Report(
            metrics=_metrics(rows, averaged),
            setup={
                "method": self._method(),
                "max_tokens": self.config.max_tokens,
                "precision": trained.config.trainer.precision,
                "mean_over": sorted(averaged),
            },
            tables={"perplexity by length": rows},
            data={"loss_by_position": {"length": max(lengths), "curves": curves}},
        )

    def draw(self, report: Report, subject: Subject) -> Mapping[str, Figure]:
        """Perplexity against length, and loss by position."""
        from statelab.figures import length

        curves = report.data["loss_by_position"]
        return {
            "ppl_against_length": length.against_length(
                report.tables["perplexity by length"], subject
            ),
            "loss_by_position": length.by_position(curves["curves"], curves["length"], subject),
        }

    def _plan(self, trained: Trained) -> tuple[Sequence[str], set[str], Sequence[int]]:
        """The corpora, those in the mean, and the lengths; no corpus is the run's own text."""
        from statelab.tasks.corpora import text_name

        given, config = self.config.text, self.config
        for each in given:
            if each in GROUPS and len(given) > 1:
                raise ConfigError(f"text={','.join(given)}: the group {each} stands alone.")
            named = [*GROUPS, *CORPORA, "stdlib"]
            hint = near_miss(each, named)
            # A file's name has a dot, a slash or a star in it.
            if hint and each not in named and each.isidentifier():
                raise DataError(
                    f"text={each}: there is no such corpus.{hint} It is a glob of files, or one "
                    f"of {', '.join(named)}."
                )
        group = GROUPS.get(given[0]) if given else None
        texts = group.corpora if group else given
        names = [text_name(each) for each in texts] or ["validation"]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"text={','.join(texts)}: two corpora are called {', '.join(names)}. Give files "
                "of different names."
            )
        size = trained.config.data.seq_len
        lengths = config.lengths or (group.lengths if group else (size, 2 * size, 4 * size))
        table = trained.module.decoder.positions
        if table is not None and max(lengths) > table.num_embeddings + 1:
            raise ConfigError(
                f"lengths={_said(lengths)}: model.positions=learned has {table.num_embeddings} "
                f"positions, as data.seq_len was in training. Give up to "
                f"{table.num_embeddings + 1}, or train with model.positions=rope or none."
            )
        return texts, set(group.mean if group else names), sorted(lengths)

    def _read(self, trained: Trained, texts: Sequence[str], longest: int) -> list[TokenText]:
        from statelab.tasks.corpora import own_text, read_text

        config = self.config
        if texts:
            corpora = [
                read_text(
                    each,
                    trained.config.data,
                    column=config.column,
                    hub=config.hub,
                    max_tokens=config.max_tokens,
                )
                for each in texts
            ]
        else:
            corpora = [own_text(trained.config, config.max_tokens)]
        for each in corpora:
            trained.model.check_vocabulary(*map(int, each.tokens.aminmax()))
            if len(each.tokens) < longest:
                raise DataError(
                    f"corpus {each.name} has {len(each.tokens):,} tokens, less than one window of "
                    f"{longest:,}. Give more text, shorter lengths=, or a greater max_tokens=."
                )
        return corpora

    def _method(self) -> str:
        stream = self.config.method == "stream"
        return f"stream, chunks of {self.config.chunk}" if stream else "pass"


def _metrics(rows: Sequence[Mapping[str, Any]], averaged: set[str]) -> dict[str, float]:
    """The mean over corpora at each length and at the greatest one, and each corpus's own."""
    names = list(dict.fromkeys(row["corpus"] for row in rows))
    longest = max(row["length"] for row in rows)
    metrics: dict[str, float] = {}
    groups = {"length": averaged} | (
        {f"length/{name}": {name} for name in names} if len(names) > 1 else {}
    )
    for place, members in groups.items():
        for kind in ("ppl", "bpb"):
            for length in sorted({row["length"] for row in rows}):
                values = [
                    row[kind]
                    for row in rows
                    if row["length"] == length and row["corpus"] in members
                ]
                if None in values:
                    continue
                metrics[f"{place}/{kind}/len_{length}"] = fmean(values)
                if length == longest:
                    metrics[f"{place}/{kind}"] = fmean(values)
    return metrics


def _said(lengths: Sequence[int]) -> str:
    return ",".join(map(str, lengths))
