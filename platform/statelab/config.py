"""The configuration: what every key means. `statelab.loading` fills it in.

All sections are frozen: nothing edits a configuration once it is loaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from statelab.errors import ConfigError
from statelab.options import Section, option

__all__ = [
    "Config",
    "DataConfig",
    "MixerConfig",
    "ModelConfig",
    "OptimConfig",
    "RuleConfig",
    "TrackingConfig",
    "TrainerConfig",
]

_MOST_SEED = 2**32 - 1  # NumPy's
_MOST_NAME = 200  # MLflow's 250, of which `resume.N.tags.` takes some


@dataclass(frozen=True, kw_only=True, slots=True)
class RuleConfig:
    """A rule's name with the dataclass of its own options."""

    name: str
    options: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class MixerConfig(Section):
    """The steps between the layer's input and the memory, and after the read.

    The defaults stand below the pair's published preset (`WriteRule.preset`), which stands below
    what the user says; `statelab show` prints what came out, and from where.
    """

    conv: int = option(
        0, "width of the causal depthwise convolution, tokens; 0 is none", at_least=0
    )
    conv_streams: tuple[Literal["q", "k", "v"], ...] = option(
        ("q", "k", "v"), "streams that pass the convolution"
    )
    activation: Literal["none", "silu"] = option(
        "none", "on q and k, and on v where v passes the convolution"
    )
    qk_norm: Literal["none", "l2"] = option("none", "of q and k over the head")
    query_scale: bool = option(True, "multiply q by head_dim^-0.5")
    rope_base: float = option(0.0, "base of the rotary embedding of q and k; 0 is none", at_least=0)
    output_norm: Literal["none", "rms"] = option("none", "of each head's output")
    output_gate: Literal["none", "silu", "sigmoid"] = option(
        "none", "elementwise gate on the output, a linear map of the layer's input"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Section):
    """The decoder."""

    d_model: int = option(256, "width of the residual stream", at_least=1)
    num_layers: int | None = option(
        None, "layers; null is 4, or as many as model.layers names", at_least=1
    )
    num_heads: int = option(4, "heads of each mixer", at_least=1)
    head_dim: int | None = option(
        None, "key size K of a head; null is d_model / num_heads", at_least=1
    )
    value_dim: int | None = option(None, "value size V of a head; null is head_dim", at_least=1)
    layers: str | None = option(
        None, 'kinds of layers, as "[memory x 3, attention(window=512)] x 6"; null is all memory'
    )
    mlp: Literal["swiglu", "none"] = option("swiglu", "the block's second half")
    mlp_hidden: int | None = option(
        None, "hidden size of the MLP; null is 8/3 d_model, rounded up to 128", at_least=1
    )
    positions: Literal["none", "rope", "learned"] = option(
        "none", "none: as each mixer's preset says; rope: in every mixer; learned: at the input"
    )
    tie_embeddings: bool = option(True, "use the embedding as output head")
    vocab_size: int | None = option(None, "tokens; null is the data's", at_least=1)
    init_std: float = option(
        0.02, "standard deviation that matrices start with; at a width under 256, more", above=0
    )
    backend: Literal["auto", "reference", "chunked", "fused"] = option(
        "auto", "which form of the kernels runs; auto picks by device"
    )
    mixer: MixerConfig = option(factory=MixerConfig)
    write: RuleConfig = option(doc="the write rule: its name, and its own options")
    read: RuleConfig = option(doc="the read rule: its name, and its own options")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig(Section):
    """What every data module has; each adds options of its own."""

    name: str = option(doc="the data module")
    batch_size: int = option(32, "sequences a step and device", at_least=1)
    num_workers: int = option(0, "loader processes; 0 loads in the training process", at_least=0)
    seq_len: int = option(256, "tokens a sequence", at_least=1)
    packing: bool = option(False, "keep documents apart: a batch is one row of them")
    seed: int = option(
        0,
        "draws and order of the data; apart from the model's seed",
        at_least=0,
        at_most=_MOST_SEED,
    )

    def pinned(self) -> DataConfig:
        """The same, with what else could change once a run has begun; may ask a server."""
        return self


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig(Section):
    """AdamW and its schedule, one step an optimizer step."""

    lr: float = option(1e-3, "peak learning rate", above=0)
    betas: tuple[float, float] = option((0.9, 0.95), "AdamW's betas", at_least=0, below=1)
    weight_decay: float = option(
        0.1, "on matrices; never on norms, biases, and what a rule exempts", at_least=0
    )
    grad_clip: float = option(1.0, "largest norm of the gradient; 0 clips nothing", at_least=0)
    schedule: Literal["cosine", "wsd", "constant"] = option("cosine", "after the warm-up")
    warmup_steps: int = option(0, "steps of linear warm-up", at_least=0)
    decay_fraction: float = option(
        0.2, "share of all steps that wsd decays in, linearly", above=0, at_most=1
    )
    final_lr: float = option(0.0, "learning rate at the last step", at_least=0)
    ssm_lr: float | None = option(
        None, "cap on the learning rate of state-space parameters; null is their rule's", above=0
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig(Section):
    """The loop, run by Lightning."""

    max_steps: int | None = option(None, "optimizer steps; null is max_tokens, or 1000", at_least=1)
    max_tokens: int | None = option(None, "tokens to train on; sets max_steps", at_least=1)
    precision: Literal["32-true", "bf16-mixed", "bf16-true", "64-true"] = option(
        "32-true", "states are fp32 in all of them (fp64 in 64-true)"
    )
    accelerator: Literal["auto", "cpu", "gpu"] = option("auto", "where to run")
    devices: int = option(1, "processes a node, each with batches of its own", at_least=1)
    num_nodes: int = option(1, "nodes; torchrun or srun starts the processes there", at_least=1)
    strategy: Literal["auto", "ddp", "fsdp2"] = option(
        "auto", "how processes share the work: each has all weights (ddp), or a part (fsdp2)"
    )
    accumulate: int = option(1, "batches an optimizer step", at_least=1)
    val_every: int | None = option(
        None, "optimizer steps between validations; null is ten a run", at_least=1
    )
    val_batches: int | None = option(
        None, "batches a validation; null is the whole split", at_least=1
    )
    checkpoint_every: int | None = option(
        None, "optimizer steps between saves; null is at each validation", at_least=1
    )
    compile: bool = option(
        False, "torch.compile in training, of all that is around the memories' operations"
    )
    activation_checkpointing: bool = option(
        False, "keep only each block's input for the backward pass, and run the block once more"
    )
    nan_patience: int = option(
        1,
        "steps in a row with a non-finite loss or gradient until the run stops; none is applied",
        at_least=1,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingConfig(Section):
    """MLflow."""

    enabled: bool = option(True, "false writes only the run folder")
    uri: str | None = option(None, "the store; null is MLFLOW_TRACKING_URI, or sqlite in run_dir")
    offline: bool = option(False, "record in run_dir where the store doesn't answer at the start")
    experiment: str | None = option(None, "MLflow's experiment; null is this experiment's name")
    figures: bool = option(True, "draw what a run did and learned when it ends")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config(Section):
    """Everything that defines a run."""

    experiment: str = option("default", "name of the experiment, or path of its YAML")
    arm: str | None = option(None, "the named variant of the experiment")
    seed: int = option(
        0,
        "of the model's initialisation and every draw in training",
        at_least=0,
        at_most=_MOST_SEED,
    )
    run_dir: str = option("runs", "folder of all runs")
    resume: str | None = option(
        None, "the run to go on with: its id; auto: the latest like this one, if there is one"
    )
    tags: dict[str, str] = option(factory=dict, doc="kept with the run in MLflow")
    smoke: bool = option(False, "shrink the experiment to toy size and two steps")
    model: ModelConfig
    data: DataConfig
    optim: OptimConfig = option(factory=OptimConfig)
    trainer: TrainerConfig = option(factory=TrainerConfig)
    tracking: TrackingConfig = option(factory=TrackingConfig)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if not self.run_dir.strip():
            raise ConfigError("run_dir= is empty. Give a folder, or leave it out.")
        for name in self.tags:
            if not re.fullmatch(r"[\w .:-]+(/[\w .:-]+)*", name) or len(name) > _MOST_NAME:
                raise ConfigError(
                    f"tags.{name}: a tag can't be named so. Use up to {_MOST_NAME} letters, "
                    "digits, spaces and _ - . : with single slashes between parts, as in "
                    "tags.team=blue."
                )

    def place(self) -> list[str]:
        """The arguments that another command needs to find the runs, where they aren't usual."""
        place = [] if self.run_dir == "runs" else [f"run_dir={self.run_dir}"]
        return [*place, f"tracking.uri={self.tracking.uri}"] if self.tracking.uri else place
