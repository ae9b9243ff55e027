"""The decoder: embedding, blocks of mixer and MLP, head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statelab.config import MixerConfig, ModelConfig, RuleConfig
from statelab.errors import DataError
from statelab.model.context import Context, State
from statelab.model.conv import ConvMixer
from statelab.model.generation import GenerationMixin
from statelab.model.initialise import reset_linear, reset_residual
from statelab.model.layers import Layer, layer_list
from statelab.model.mixer import Mixer
from statelab.model.readout import LastReadout
from statelab.registries import read_rules, write_rules

__all__ = ["Decoder"]


class Decoder(GenerationMixin, nn.Module):
    """A language model with pre-normalised blocks.

    Args:
        config: Sizes, rules and layers, as `load_config` fills them in.
        max_len: Most tokens a sequence may have where positions are learned.
        readout: Where a position's logits come from: its own token, or its sequence's last.

    Attributes:
        run_block: How a block is called in training; `compile_blocks` puts another way here.
        checkpointing: Whether training keeps only each block's input, and runs it once more in
            the backward pass.
    """

    def __init__(
        self, config: ModelConfig, max_len: int, readout: Literal["each", "last"] = "each"
    ) -> None:
        super().__init__()
        assert config.vocab_size is not None
        self.config = config
        self.run_block: Callable[[Block, Tensor, Context], Tensor] = Block.__call__
        self.checkpointing = False
        d, layers = config.d_model, layer_list(config)
        self.embedding = nn.Embedding(config.vocab_size, d)
        learned = config.positions == "learned"
        self.positions = nn.Embedding(max_len, d) if learned else None
        self.layers = nn.ModuleList(
            Block(config, layer, index, len(layers)) for index, layer in enumerate(layers)
        )
        self.readout = LastReadout(d) if readout == "last" else None
        self.norm = nn.RMSNorm(d, eps=1e-5)
        self.head = nn.Linear(d, config.vocab_size, bias=False)
        if config.tie_embeddings:
            self.head.weight = self.embedding.weight

    @property
    def decoder(self) -> Decoder:
        """Itself: what generates."""
        return self

    def reset_parameters(self) -> None:
        """Initialise every parameter; each rule has the last word on its own."""
        if self.config.tie_embeddings:
            # Memory given to a model from the meta device unties them.
            self.head.weight = self.embedding.weight
        reset_linear(self.head, self.config.init_std)
        nn.init.normal_(self.embedding.weight, std=self.config.init_std)
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=self.config.init_std)
        if self.readout is not None:
            self.readout.reset_parameters(self.config.init_std)
        self.norm.reset_parameters()
        for block in self.layers:
            assert isinstance(block, Block)
            block.reset_parameters()

    def forward(
        self,
        tokens: Tensor,
        state: Mapping[str, Tensor] | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Predict the next token at every position.

        Args:
            tokens: [B, T] int64.
            state: What an earlier call returned, to go on from there.
            cu_seqlens: Boundaries of documents packed into one row (B = 1), [N + 1] from 0 to T.

        Returns:
            Logits [B, T, vocab_size], and the state after the last token.

        Raises:
            DataError: If there is no token, or one outside the vocabulary.
            RuleError: If the state comes from another model or batch.
        """
        x, state = self.hidden(tokens, state, cu_seqlens)
        return self.head(x), state

    def hidden(
        self,
        tokens: Tensor,
        state: Mapping[str, Tensor] | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """`forward` without the head, [B, T, d_model]: for those who need few of the logits."""
        self._check(tokens)
        context = Context(
            *tokens.shape,
            device=tokens.device,
            state=state,
            cu_seqlens=cu_seqlens,
            backend=self.config.backend,
        )
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self._learned(context.positions)
        for index, block in enumerate(self.layers):
            assert isinstance(block, Block)
            x = self._run(block, x, context.scope(f"layers.{index}"))
        if self.readout is not None:
            x = self.readout(x, context.positions, context.cu_seqlens)
        return self.norm(x), context.outgoing

    def _run(self, block: Block, x: Tensor, context: Context) -> Tensor:
        call = self.run_block if self.training else Block.__call__
        if not (self.training and self.checkpointing):
            return call(block, x, context)

        # Aside, or the second run would replace the state that the first has handed out.
        def run(x: Tensor) -> tuple[Tensor, State]:
            aside = context.aside()
            return call(block, x, aside), aside.outgoing

        x, left = checkpoint(run, x, use_reentrant=False)
        context.outgoing.update(left)
        return x

    def check_vocabulary(self, *tokens: int) -> None:
        """Refuse a token that the model doesn't know.

        Raises:
            DataError: If there is one.
        """
        for token in tokens:
            if not 0 <= token < self.embedding.num_embeddings:
                raise DataError(
                    f"token {token} is outside the vocabulary of "
                    f"{self.embedding.num_embeddings}; use the tokenizer the model was made "
                    "for, or raise model.vocab_size."
                )

    def _check(self, tokens: Tensor) -> None:
        if tokens.ndim != 2 or tokens.numel() == 0:
            raise DataError(f"tokens must be [B, T] with B, T >= 1, got {list(tokens.shape)}.")
        # On an accelerator the check would wait for the device at every step; its own kernels
        # stop at an index outside the table there.
        if tokens.device.type == "cpu":
            self.check_vocabulary(*map(int, tokens.aminmax()))

    def _learned(self, positions: Tensor) -> Tensor:
        assert self.positions is not None
        longest = self.positions.num_embeddings
        if positions.device.type == "cpu" and int(positions.max()) >= longest:
            raise DataError(
                f"model.positions=learned knows {longest} positions (data.seq_len), got token "
                f"{int(positions.max()) + 1}. Use shorter input, or model.positions=rope."
            )
        learned: Tensor = self.positions(positions)
        return learned


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, layer: Layer, index: int, num_layers: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.mixer_norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.mixer = _mixer(config, layer, index, num_layers)
        has_mlp = config.mlp != "none"
        self.mlp_norm = nn.RMSNorm(config.d_model, eps=1e-5) if has_mlp else None
        self.mlp = SwiGLU(config) if has_mlp else None

    def reset_parameters(self) -> None:
        """Initialise every parameter."""
        self.mixer_norm.reset_parameters()
        self.mixer.reset_parameters()
        if self.mlp is not None and self.mlp_norm is not None:
            self.mlp_norm.reset_parameters()
            self.mlp.reset_parameters(self.num_layers)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """One block on x [B, T, d_model]."""
        x = x + self.mixer(self.mixer_norm(x), context)
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self.mlp(self.mlp_norm(x))
        return x


class SwiGLU(nn.Module):
    """W_down (silu(W_gate x) * W_up x). Source: Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.mlp_hidden is not None
        self.init_std = config.init_std
        self.gate = nn.Linear(config.d_model, config.mlp_hidden, bias=False)
        self.up = nn.Linear(config.d_model, config.mlp_hidden, bias=False)
        self.down = nn.Linear(config.mlp_hidden, config.d_model, bias=False)

    def reset_parameters(self, num_layers: int) -> None:
        """Initialise every parameter."""
        reset_linear(self, self.init_std)
        reset_residual(self.down, self.init_std, num_layers)

    def forward(self, x: Tensor) -> Tensor:
        """The MLP on x [B, T, d_model]."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


def _mixer(config: ModelConfig, layer: Layer, index: int, num_layers: int) -> Mixer | ConvMixer:
    if layer.kind == "conv":
        return ConvMixer(config, layer.size or 3, num_layers)
    if layer.kind == "memory":
        return Mixer(
            config, config.mixer, config.write, config.read, layer=index, num_layers=num_layers
        )
    write, read = write_rules.get("kv"), read_rules.get("softmax")
    return Mixer(
        config,
        MixerConfig(**write.cls.preset(read.cls)),
        RuleConfig(name="kv", options=write.config()),
        RuleConfig(name="softmax", options=read.config(window=layer.size)),
        layer=index,
        num_layers=num_layers,
    )
