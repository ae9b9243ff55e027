"""The short causal depthwise convolution on q, k and v, and the mixer that is nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from statelab.config import ModelConfig
from statelab.model.context import Context
from statelab.model.initialise import reset_linear, reset_residual

__all__ = ["ConvMixer", "ShortConv", "short_conv"]


def short_conv(
    x: Tensor,
    weight: Tensor,
    *,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """y_t = sum over i of weight[:, W - 1 - i] x_(t - i), i = 0 .. W - 1.

    Args:
        x: [B, T, D].
        weight: [D, W]; the last column meets the current token.
        initial_state: The W - 1 inputs before x, [N, W - 1, D]; zeros if None.
        cu_seqlens: Boundaries of packed documents; the convolution restarts at each.
        backend: There is one form, which runs on every backend.

    Returns:
        y [B, T, D], and the last W - 1 inputs of each sequence.
    """
    batch, _, dim = x.shape
    width = weight.shape[1]
    sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
    if initial_state is None:
        initial_state = x.new_zeros(sequences, width - 1, dim)
    history = initial_state.to(x.dtype)
    if cu_seqlens is None:
        padded = torch.cat([history, x], dim=1)
        y = _taps(padded, weight)
        return y, padded[:, padded.shape[1] - (width - 1) :]

    # Each document's history stands before it in one long sequence; the rows of y that begin
    # inside another document's history are then left out.
    bounds = cu_seqlens.to(x.device)
    document = torch.arange(sequences, device=x.device)
    before = torch.arange(width - 1, device=x.device) + (width - 1) * document[:, None]
    shift = (width - 1) * document.repeat_interleave(bounds.diff(), output_size=x.shape[1])
    first = torch.arange(x.shape[1], device=x.device) + shift  # where each token's window begins
    places = torch.cat([(bounds[:-1, None] + before).flatten(), first + width - 1])
    rows = torch.cat([history.flatten(0, 1), x[0]])
    padded = torch.empty_like(rows).index_copy(0, places, rows)
    return _taps(padded[None], weight)[:, first], padded[bounds[1:, None] + before]


def _taps(padded: Tensor, weight: Tensor) -> Tensor:
    width = weight.shape[1]
    length = padded.shape[1] - width + 1
    y = padded[:, :length] * weight[:, 0]
    for tap in range(1, width):
        y = y + padded[:, tap : tap + length] * weight[:, tap]
    return y


class ShortConv(nn.Module):
    """`short_conv` with a weight of its own and no bias."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, width))

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(W), as torch starts a depthwise convolution."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Tensor, context: Context, slot: str) -> Tensor:
        """Convolve x [B, T, D], its last inputs kept in `slot`."""
        return context.run(short_conv, x, self.weight, slot=slot)


class ConvMixer(nn.Module):
    """A layer that only mixes near tokens: y = W_o (conv(W_i x) * W_g x), after BaseConv.

    Source: Arora et al. 2023, arXiv:2312.04927.
    """

    def __init__(self, config: ModelConfig, width: int, num_layers: int) -> None:
        super().__init__()
        d = config.d_model
        self.num_layers = num_layers
        self.init_std = config.init_std
        self.in_proj = nn.Linear(d, d, bias=False)
        self.gate_proj = nn.Linear(d, d, bias=False)
        self.conv = ShortConv(d, width)
        self.o_proj = nn.Linear(d, d, bias=False)

    def reset_parameters(self) -> None:
        """Initialise every parameter."""
        reset_linear(self, self.init_std)
        self.conv.reset_parameters()
        reset_residual(self.o_proj, self.init_std, self.num_layers)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Mix x [B, T, d_model]."""
        mixed: Tensor = self.o_proj(self.conv(self.in_proj(x), context, "conv") * self.gate_proj(x))
        return mixed
