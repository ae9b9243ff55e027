"""How fused kernels cut time: chunks, each one tile of tokens, and spans, each one program's walk.

A span is a run of chunks of one sequence. Where there are fewer sequences and heads than a device
has room for, sequences are cut into several spans: a first kernel finds what each span writes, a
scan over the spans of a sequence what each finds, and then all spans run side by side.
"""

import functools
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from statelab_kernels.chunks import sequence_bounds


@dataclass(frozen=True, slots=True)
class Tiling:
    """The cuts of one call, as tables that kernels read.

    Attributes:
        chunk_size: C, tokens in a tile; the last one of a sequence may have fewer.
        sequences: [N + 1] int32, the first span of each sequence.
        spans: [S, 5] int32: first token, number of tokens, number of tokens of the same sequence
            before it, first chunk, sequence.
        chunks: [P, 4] int32: first token, number of tokens, number of tokens of the same sequence
            before it, sequence.
        is_cut: Whether any sequence has more than one span.
    """

    chunk_size: int
    sequences: Tensor
    spans: Tensor
    chunks: Tensor
    is_cut: bool

    @property
    def num_sequences(self) -> int:
        """N."""
        return len(self.sequences) - 1


def tile(
    x: Tensor, cu_seqlens: Tensor | None, *, chunk_size: int, programs_per_span: int, programs: int
) -> Tiling:
    """Cut the tokens of x [B, T, ...].

    Args:
        x: Says how many tokens there are, and where the tables are needed.
        cu_seqlens: [N + 1] where each document starts, and the end; see `sequence_bounds`.
        chunk_size: C.
        programs_per_span: How many programs walk through each span, one a head and block of state.
        programs: How many there should be, if there are enough chunks.

    Raises:
        ValueError: If `cu_seqlens` doesn't describe documents.
    """
    bounds = tuple(sequence_bounds(x.shape[0], x.shape[1], cu_seqlens))
    num_chunks = sum(-(-(end - start) // chunk_size) for start, end in pairwise(bounds))
    # A power of two, so that few tables are kept, whatever the shapes.
    per_span = 1 << max(0, (num_chunks * programs_per_span // programs).bit_length() - 1)
    return _tile(bounds, chunk_size, per_span, x.device)


@functools.lru_cache(maxsize=256)
def _tile(
    bounds: tuple[int, ...], chunk_size: int, chunks_per_span: int, device: torch.device
) -> Tiling:
    sequences = [0]
    spans: list[tuple[int, ...]] = []
    chunks: list[tuple[int, ...]] = []
    for sequence, (start, end) in enumerate(pairwise(bounds)):
        for first in range(start, end, chunk_size * chunks_per_span):
            length = min(end - first, chunk_size * chunks_per_span)
            spans.append((first, length, first - start, len(chunks), sequence))
            chunks += [
                (token, min(chunk_size, first + length - token), token - start, sequence)
                for token in range(first, first + length, chunk_size)
            ]
        sequences.append(len(spans))
    return Tiling(
        chunk_size,
        sequences=torch.tensor(sequences, dtype=torch.int32, device=device),
        spans=torch.tensor(spans, dtype=torch.int32, device=device),
        chunks=torch.tensor(chunks, dtype=torch.int32, device=device),
        is_cut=any(last - first > 1 for first, last in pairwise(sequences)),
    )
