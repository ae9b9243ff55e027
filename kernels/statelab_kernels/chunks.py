"""The chunk plan: a batch of sequences, or packed documents, cut into equal chunks of tokens.

Sequences are sorted by their number of chunks, most first, and chunk j of every sequence that has
one forms wave j. So the chunks of a wave belong to the first rows of the sorted states, and a scan
over the waves carries all sequences at once, however long each is. With three documents:

    2, 5 and 0 chunks    ->    rows 0 (of 5), 1 (of 2), 2 (of 0);    waves {0, 1} {0, 1} {0} {0} {0}

Consecutive waves form segments of a bounded number of chunks. An op works on one segment at a time,
so that its working memory doesn't grow with the length. A last, partial chunk is filled with zeros,
which an op must leave without effect (`Segment.lengths` says how many tokens are real). An empty
document has no chunk: its state stays what it was.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """Chunks that an op works on together, P of them, wave after wave.

    Attributes:
        waves: For each wave the rows of the sorted states that its chunks belong to.
        lengths: Number of real tokens in each chunk, 1 to C.
        chunk_size: C.
        tokens: [n] the real tokens, as indices into the flattened batch [B * T].
        places: [n] where these stand among the P * C places; None if no place is empty.
    """

    waves: tuple[slice, ...]
    lengths: tuple[int, ...]
    chunk_size: int
    tokens: Tensor
    places: Tensor | None

    def fold(self, x: Tensor) -> Tensor:
        """Take this segment's tokens of x [B, T, H, ...] as contiguous chunks [P, H, C, ...]."""
        rows = x.flatten(0, 1).index_select(0, self.tokens)
        if self.places is not None:
            num_places = len(self.lengths) * self.chunk_size
            empty = rows.new_zeros(num_places, *rows.shape[1:])
            rows = empty.index_copy(0, self.places, rows)
        chunks = rows.view(-1, self.chunk_size, *rows.shape[1:])
        return chunks.transpose(1, 2).contiguous()

    def unfold(self, chunks: Tensor, out: Tensor) -> None:
        """Write chunks [P, H, C, ...] to their tokens in the contiguous out [B, T, H, ...]."""
        rows = chunks.transpose(1, 2).flatten(0, 1)
        if self.places is not None:
            rows = rows.index_select(0, self.places)
        out.view(-1, *out.shape[2:]).index_copy_(0, self.tokens, rows.to(out.dtype))

    @property
    def rows(self) -> slice:
        """The rows of the sorted states that this segment may touch."""
        return slice(min(w.start for w in self.waves), max(w.stop for w in self.waves))

    def by_wave(self) -> Iterator[tuple[slice, slice]]:
        """The waves in order: (rows of the sorted states, rows of the segment's P chunks)."""
        first = 0
        for rows in self.waves:
            last = first + rows.stop - rows.start
            yield rows, slice(first, last)
            first = last


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """How one call cuts its tokens; made once on the host by `plan_chunks`.

    Attributes:
        num_sequences: N, the batch size or the number of packed documents.
        chunk_size: C, a power of two.
        order: [N] the sequences, most chunks first; row i of the sorted states is order[i]'s.
        segments: All chunks, in an order that a scan can follow.
    """

    num_sequences: int
    chunk_size: int
    order: Tensor
    segments: tuple[Segment, ...]

    def sort_states(self, states: Tensor) -> Tensor:
        """Copy states [N, ...] into the order of the waves' rows."""
        return states.index_select(0, self.order)

    def unsort_states(self, states: Tensor) -> Tensor:
        """Copy sorted states back into the order of the sequences."""
        return torch.empty_like(states).index_copy(0, self.order, states)


def plan_chunks(
    batch: int,
    num_tokens: int,
    cu_seqlens: Tensor | None = None,
    *,
    device: torch.device,
    chunk_size: int = 64,
    max_chunks: int = 32,
) -> ChunkPlan:
    """Plan the chunks of a batch [B, T], or of documents packed into [1, T].

    Args:
        batch: B.
        num_tokens: T, the length of each sequence, or of all packed documents together.
        cu_seqlens: [N + 1] where each document starts, and the end; see `sequence_bounds`.
        device: Where the indices are needed.
        chunk_size: C, a power of two; a smaller one is taken where it holds the longest sequence.
        max_chunks: Most chunks in a segment.

    Raises:
        ValueError: If `cu_seqlens` doesn't describe documents.
    """
    bounds = sequence_bounds(batch, num_tokens, cu_seqlens)
    lengths = [end - start for start, end in pairwise(bounds)]
    chunk_size = min(chunk_size, 1 << (max(lengths) - 1).bit_length())
    num_chunks = [(length + chunk_size - 1) // chunk_size for length in lengths]
    order = sorted(range(len(lengths)), key=num_chunks.__getitem__, reverse=True)

    chunks: list[tuple[int, int, int]] = []  # row of the states, first token, number of tokens
    for wave in range(max(num_chunks)):
        offset = wave * chunk_size
        for row, sequence in enumerate(order):
            if wave >= num_chunks[sequence]:
                break
            left = lengths[sequence] - offset
            chunks.append((row, bounds[sequence] + offset, min(left, chunk_size)))

    segments = tuple(
        _segment(chunks[first : first + max_chunks], chunk_size, device)
        for first in range(0, len(chunks), max_chunks)
    )
    return ChunkPlan(len(lengths), chunk_size, torch.tensor(order, device=device), segments)


def sequence_bounds(batch: int, num_tokens: int, cu_seqlens: Tensor | None) -> list[int]:
    """Where each sequence starts in the flattened batch [B * T], and the end.

    Args:
        batch: B.
        num_tokens: T, at least 1.
        cu_seqlens: [N + 1] integers from 0 to T, non-decreasing; equal neighbours are an empty
            document. Values on the CPU spare a wait for the device.

    Returns:
        N + 1 numbers from 0 to B * T.

    Raises:
        ValueError: If there are no tokens, or `cu_seqlens` doesn't describe documents.
    """
    if num_tokens < 1:
        raise ValueError(f"T must be >= 1, got {num_tokens}: there is nothing to read.")
    if cu_seqlens is None:
        return list(range(0, batch * num_tokens + 1, num_tokens))
    if batch != 1:
        raise ValueError(
            f"cu_seqlens needs batch size 1, got {batch}: pack the documents along time."
        )
    if cu_seqlens.ndim != 1 or cu_seqlens.is_floating_point() or len(cu_seqlens) < 2:
        raise ValueError(
            "cu_seqlens must be a 1-D integer tensor of at least 2 numbers, got shape "
            f"{list(cu_seqlens.shape)} of {cu_seqlens.dtype}."
        )
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != num_tokens:
        raise ValueError(
            f"cu_seqlens must start at 0 and end at T={num_tokens}, "
            f"got {bounds[0]} and {bounds[-1]}."
        )
    for document, (start, end) in enumerate(pairwise(bounds)):
        if end < start:
            raise ValueError(
                f"cu_seqlens must not decrease, got {start} then {end} for document {document}."
            )
    return bounds


def _segment(
    chunks: Sequence[tuple[int, int, int]], chunk_size: int, device: torch.device
) -> Segment:
    waves: list[slice] = []
    for row, _, _ in chunks:
        if waves and waves[-1].stop == row:
            waves[-1] = slice(waves[-1].start, row + 1)
        else:
            waves.append(slice(row, row + 1))

    lengths = tuple(length for _, _, length in chunks)
    tokens = [torch.arange(start, start + length) for _, start, length in chunks]
    places = None
    if min(lengths) < chunk_size:
        first = range(0, len(chunks) * chunk_size, chunk_size)
        spans = zip(first, lengths, strict=True)
        places = torch.cat([torch.arange(i, i + length) for i, length in spans]).to(device)
    return Segment(tuple(waves), lengths, chunk_size, torch.cat(tokens).to(device), places)
