"""S4D: a state-space model whose modes decay and oscillate, the same for every token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statelab.options import Section, option
from statelab.rules import MixerDims, ParamOptions, ReadRule, WriteRule, write_rules
from statelab_kernels.precision import compute_dtype
from statelab_plugins.memory import ModalMemory

__all__ = ["S4D", "S4DConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class S4DConfig(Section):
    """Options of S4D."""

    num_modes: int = option(64, "complex modes a head", at_least=1, smoke=8)
    init: Literal["inv", "lin", "legs"] = option("inv", "frequencies of the modes at the start")


@write_rules.register("s4d", config=S4DConfig)
class S4D(WriteRule):
    """S4D: x_t = Lambda x_(t-1) + b z_t', seen as C x_t; M complex modes a head.

        Lambda = exp(dt A),  A = -exp(log_neg_re) + i im,  b = (Lambda - 1) / A

    which is a zero-order hold with a constant input map of ones. Each half of the stream,
    keys and values, first gets a norm: RMSNorm(z) * rms * scale + bias, where rms is shared by
    the heads and scale and bias are a head's own.

    What reads the memory decides its stream and address:

        plain        stream [k; v], at a constant readout c0 [H, M]; there is no query
        ccq          stream [k; v], at c0 + W q, with W = 0 at the start
        interdomain  stream v, and the stream k of features; no readout

    Source: arXiv:2605.24330, section 3.3 and appendix A; modes: Gu et al. 2022, arXiv:2206.11893.
    """

    provides: ClassVar[frozenset[str]] = frozenset({"linear", "features", "bounded"})
    full_precision: ClassVar[bool] = True

    def __init__(self, config: S4DConfig, dims: MixerDims) -> None:
        super().__init__(config, dims)
        heads, modes = dims.num_heads, config.num_modes
        self.reads_features = "features" in dims.read.requires
        self.C = nn.Parameter(torch.empty(heads, modes, modes, 2))
        self.log_neg_re = nn.Parameter(torch.empty(heads, modes))
        self.im = nn.Parameter(torch.empty(heads, modes))
        self.log_dt = nn.Parameter(torch.empty(heads))
        for half, size in (("k", dims.key_dim), ("v", dims.value_dim)):
            self.register_parameter(f"rms_{half}", nn.Parameter(torch.empty(size)))
            self.register_parameter(f"scale_{half}", nn.Parameter(torch.empty(heads, size)))
            self.register_parameter(f"bias_{half}", nn.Parameter(torch.empty(heads, size)))
        self.readout: nn.Parameter | None = None
        self.query_map: nn.Parameter | None = None
        if not self.reads_features:
            self.readout = nn.Parameter(torch.empty(heads, modes))
            if dims.read.changes_query:
                self.query_map = nn.Parameter(torch.empty(heads, dims.key_dim, modes, 2))

    @classmethod
    def preset(cls, read: type[ReadRule]) -> dict[str, object]:
        """A convolution of width 4; for interdomain all of xi, on q and k; no norm and no gate."""
        if "features" in read.requires:
            return {
                "conv": 4,
                "conv_streams": ("q", "k"),
                "rope_base": 10_000.0,
                "activation": "silu",
                "qk_norm": "l2",
                "query_scale": False,
            }
        return {"conv": 4, "conv_streams": ("q", "k", "v") if read.changes_query else ("k", "v")}

    @property
    def out_dim(self) -> int:
        """V where features are read, else K + V: both halves of the stream."""
        size = self.dims.value_dim
        return size if self.reads_features else self.dims.key_dim + size

    @property
    def uses_query(self) -> bool:
        """Not where the read is constant."""
        return self.readout is None or self.query_map is not None

    def reset_parameters(self) -> None:
        """Modes as `init` says, Re A = -1/2, dt log-uniform in [1e-3, 1e-1].

        The papers leave C and the readout open. C is complex normal with variance 4 / M, the
        readout standard normal: then outputs start at an RMS of 0.9 to 1.6 whoever reads (values
        of unit variance, K = V = M = 64, 1,024 tokens); variance 1 / M gives a quarter of that
        for interdomain.
        """
        super().reset_parameters()
        nn.init.normal_(self.C, std=math.sqrt(2 / self.config.num_modes))
        nn.init.constant_(self.log_neg_re, math.log(0.5))
        with torch.no_grad():
            self.im.copy_(_FREQUENCIES[self.config.init](self.config.num_modes).expand_as(self.im))
        nn.init.uniform_(self.log_dt, math.log(1e-3), math.log(1e-1))
        for half in ("k", "v"):
            nn.init.ones_(self.get_parameter(f"rms_{half}"))
            nn.init.ones_(self.get_parameter(f"scale_{half}"))
            nn.init.zeros_(self.get_parameter(f"bias_{half}"))
        if self.readout is not None:
            nn.init.normal_(self.readout)
        if self.query_map is not None:
            nn.init.zeros_(self.query_map)

    def parameter_options(self) -> Mapping[str, ParamOptions]:
        """The state-space parameters learn at 1e-3 at most; they and the norms don't decay."""
        modes = ParamOptions(weight_decay=False, max_lr=1e-3)
        norms = ("rms_k", "scale_k", "bias_k", "rms_v", "scale_v", "bias_v")
        return {
            **dict.fromkeys(("C", "log_neg_re", "im", "log_dt"), modes),
            **dict.fromkeys(norms, ParamOptions(weight_decay=False)),
        }

    def forward(
        self, x: Float[Tensor, "B T D"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
    ) -> ModalMemory:
        """Write the normalised halves."""
        features, values = self._normalise(k, "k"), self._normalise(v, "v")
        a = torch.complex(-_wide(self.log_neg_re).exp(), _wide(self.im))
        log_lambda = _wide(self.log_dt).exp()[:, None] * a
        return ModalMemory(
            k,
            values if self.reads_features else torch.cat([features, values], -1),
            features,
            log_lambda=log_lambda,
            b=torch.expm1(log_lambda) / a,
            mixing=_complex(self.C),
            readout=None if self.readout is None else _wide(self.readout),
            query_map=None if self.query_map is None else _complex(self.query_map),
        )

    def _normalise(self, z: Tensor, half: str) -> Tensor:
        rms, scale, bias = (self.get_parameter(f"{name}_{half}") for name in _NORM)
        wide = _wide(z)
        return (F.rms_norm(wide, rms.shape, _wide(rms), 1e-5) * scale + bias).to(z.dtype)


_NORM = ("rms", "scale", "bias")


def _wide(x: Tensor) -> Tensor:
    return x.to(compute_dtype(x))


def _complex(pairs: Tensor) -> Tensor:
    """A complex tensor out of a real one with a trailing 2, in at least complex64."""
    return torch.view_as_complex(_wide(pairs))


def _inverse(modes: int) -> Tensor:
    """S4D-Inv: M/pi (M / (2n + 1) - 1), n = 0..M-1."""
    return modes / math.pi * (modes / (2 * torch.arange(modes) + 1) - 1)


def _linear(modes: int) -> Tensor:
    """S4D-Lin: pi n."""
    return math.pi * torch.arange(modes)


def _legendre(modes: int) -> Tensor:
    """S4D-LegS: the spectrum of the normal part of the HiPPO-LegS matrix, of size M.

    That part is -1/2 plus a skew-symmetric matrix with entries sqrt((2i + 1)(2j + 1)) / 2.
    """
    root = torch.sqrt(2 * torch.arange(modes, dtype=torch.float64) + 1)
    skew = torch.triu(root[:, None] * root, 1) - torch.tril(root[:, None] * root, -1)
    frequencies: Tensor = torch.linalg.eigvalsh(0.5j * skew)
    return frequencies.flip(0)


_FREQUENCIES = {"inv": _inverse, "lin": _linear, "legs": _legendre}
