"""The rules that come with statelab keep what every rule promises."""

from itertools import product

import pytest
import torch

from statelab.rules import ScanMemory
from statelab.testing import MemoryContract, WriteRuleContract
from statelab_plugins.memory import GatedMemory, ModalMemory

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
READS = ("plain", "ccq", "interdomain")
OTHERS = [
    *((write, "plain") for write in ("retnet", "mamba2", "kda", "mesanet", "gated_kalmanet")),
    ("mesanet", "mesa"),
    ("gated_kalmanet", "gka"),
]


class TestPairs(WriteRuleContract):
    @pytest.fixture(autouse=True, params=[*product(WRITES, READS), ("kv", "softmax")], ids="-".join)
    def _pair(self, request):
        self.write, self.read = request.param


class TestOthers(WriteRuleContract):
    # tests/core/compiled_pairs.py trains compiled.
    test_compiled_it_trains_as_it_does_uncompiled = None

    @pytest.fixture(autouse=True, params=OTHERS, ids="-".join)
    def _pair(self, request):
        self.write, self.read = request.param


class TestGatedMemory(MemoryContract):
    @pytest.fixture(autouse=True, params=["plain", "decay", "channels", "delta", "weight"])
    def _kind(self, request):
        self.kind = request.param

    def make(self, x, k, v):
        channels = -x[..., :4].exp()
        g = channels[:, :, None].expand_as(k) if self.kind == "channels" else channels[..., :2]
        strength = x[..., 4:6].sigmoid()
        return GatedMemory(
            k,
            v,
            g=None if self.kind == "plain" else g,
            beta=strength if self.kind == "delta" else None,
            weight=strength if self.kind == "weight" else None,
        )


class TestModalMemory(MemoryContract):
    def make(self, x, k, v):
        torch.manual_seed(0)
        modes = torch.randn(2, 5, dtype=torch.complex128)
        return ModalMemory(
            k,
            v,
            k.tanh(),
            log_lambda=torch.complex(-modes.real.exp(), modes.imag),
            b=modes,
            mixing=torch.randn(2, 5, 5, dtype=torch.complex128),
            readout=torch.randn(2, 5, dtype=torch.float64),
        )


class Faded(ScanMemory):
    """S_t = a_t S_(t-1) + k_t s_t', token by token."""

    def step(self, S, s, k, a):
        return a[..., None, None] * S + k[..., None] * s[..., None, :]


class TestScanMemory(MemoryContract):
    def make(self, x, k, v):
        return Faded(k, v, k, x[..., :2].sigmoid())
