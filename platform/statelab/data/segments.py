"""Segments of a recall task: so many examples of one length, with so many pairs each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from statelab.errors import ConfigError

__all__ = ["MOST", "Segment", "parse_segments", "slice_names"]

MOST = 100_000_000
"""Examples of a split: to draw the order of so many takes 2 GB and half a minute."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Examples alike.

    Attributes:
        seq_len: Tokens of an example, T.
        num_pairs: Key-value pairs of an example, n.
        num: How many examples.
    """

    seq_len: int
    num_pairs: int
    num: int

    @property
    def shape(self) -> str:
        """T/n, as it is written."""
        return f"{self.seq_len}/{self.num_pairs}"


def parse_segments(key: str, texts: Iterable[str]) -> tuple[Segment, ...]:
    """Read segments, each as `T/n x examples`: `64/4 x 1000`.

    Args:
        key: Where they stand.
        texts: The segments.

    Raises:
        ConfigError: If one can't be read, is given twice, or has no room for its pairs, or if they
            have too many examples.
    """
    segments = tuple(_parse(key, text) for text in texts)
    for shape, times in Counter(each.shape for each in segments).items():
        if times > 1:
            raise ConfigError(f"{key}: {shape} is given {times} times. Add their examples up.")
    total = sum(each.num for each in segments)
    if total > MOST:
        raise ConfigError(f"{key} has {total:,} examples. Their order takes {MOST:,} at most.")
    return segments


def slice_names(segments: Sequence[Segment]) -> tuple[str, ...]:
    """`kv_4` by the pairs; `kv_4_len_64` where another length has as many."""
    counts = Counter(each.num_pairs for each in segments)
    return tuple(
        f"kv_{each.num_pairs}" + (f"_len_{each.seq_len}" if counts[each.num_pairs] > 1 else "")
        for each in segments
    )


def _parse(key: str, text: str) -> Segment:
    found = re.fullmatch(r"\s*(\d{1,30})\s*/\s*(\d{1,30})\s*x\s*(\d{1,30})\s*", text)
    segment = Segment(*map(int, found.groups())) if found else Segment(0, 0, 0)
    if not (segment.num_pairs and segment.num):
        raise ConfigError(
            f"{key}: {text!r:.60} is no segment. Write tokens/pairs x examples, such as "
            "64/4 x 1000."
        )
    if segment.seq_len < 4 * segment.num_pairs:
        raise ConfigError(
            f"{key}: {text!r} has no room for its pairs: a pair and its query take 4 tokens. Give "
            f"it {4 * segment.num_pairs} tokens or more, or fewer pairs."
        )
    return segment
