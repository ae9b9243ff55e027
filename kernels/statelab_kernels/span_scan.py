"""The scan over the spans of a sequence, S <- decay * S + written: in Triton, elementwise."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from statelab_kernels.jit import jit
from statelab_kernels.tiling import Tiling

_BLOCK = 1024


def scan_spans(
    tiling: Tiling,
    written: Tensor,
    initial: Tensor,
    decay: Tensor | None = None,
    *,
    reverse: bool = False,
) -> Tensor:
    """Turn what each span writes into what it finds, in place.

    Args:
        tiling: The spans.
        written: [S, H, K, ...] what each span leaves of nothing, float32; gets what it finds.
        initial: [N, H, K, ...] what the first span of each sequence finds; in reverse, the last.
        decay: [S, H, K] what a span leaves of what it finds; None keeps everything.
        reverse: From the last span to the first.

    Returns:
        [N, H, K, ...] what is left after all.
    """
    initial = initial.contiguous()
    final = torch.empty_like(initial, dtype=torch.float32)
    num_heads, key_dim = written.shape[1:3]
    numel = written[0, 0].numel()
    grid = (tiling.num_sequences * num_heads, triton.cdiv(numel, _BLOCK))
    _scan[grid](
        written,
        initial,
        final,
        decay,
        tiling.sequences,
        num_heads,
        numel,
        numel // key_dim,
        REVERSE=reverse,
        BLOCK=_BLOCK,
    )
    return final


@jit
def _scan(
    written, initial, final, decay, sequences, H, numel, row, REVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    i_n, i_h = tl.program_id(0) // H, tl.program_id(0) % H
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < numel
    first, last = tl.load(sequences + i_n), tl.load(sequences + i_n + 1)
    state = tl.program_id(0).to(tl.int64) * numel + o
    b_state = tl.load(initial + state, mask=m, other=0).to(tl.float32)
    for i in range(first, last):
        i_s = first + last - 1 - i if REVERSE else i
        span = i_s.to(tl.int64) * H + i_h
        b_written = tl.load(written + span * numel + o, mask=m, other=0)
        tl.store(written + span * numel + o, b_state, mask=m)
        if decay is not None:
            b_state *= tl.load(decay + span * (numel // row) + o // row, mask=m, other=0)
        b_state += b_written
    tl.store(final + state, b_state, mask=m)
