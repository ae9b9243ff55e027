"""Softmax attention over a cache, whole or through a window."""

import math

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import ConfigError, RuleError
from statelab_plugins.memory.cache import CacheMemory, cached_attention
from statelab_plugins.read.softmax import SoftmaxConfig


def attention(q, k, v, window=None):
    """One head of one sequence, pair by pair."""
    out = []
    for i in range(len(q)):
        first = 0 if window is None else max(0, i - window + 1)
        weights = [math.exp(q[i] @ k[j]) for j in range(first, i + 1)]
        out.append(sum(w * v[first + j] for j, w in enumerate(weights)) / sum(weights))
    return torch.stack(out)


@pytest.mark.parametrize("window", [None, 1, 4, 20, 99])
def test_a_window_counts_the_current_token(make, window):
    pair = make("kv", "softmax", read_options={"window": window})
    o, state = pair.run()
    for n in range(2):
        for h in range(2):
            streams = (each[n, :, h] for each in (pair.q, pair.k, pair.v))
            assert_close(o[n, :, h], attention(*streams, window))
    kept = 20 if window is None else min(20, window - 1)
    assert state["layer.cache.keys"].shape == (2, kept, 2, 4)
    assert state["layer.cache.values"].shape == (2, kept, 2, 6)


@pytest.mark.parametrize("window", [None, 1, 3, 6])
def test_sequences_of_any_lengths_are_packed_and_carried_on(window):
    torch.manual_seed(0)
    pieces = [(0, 4, 1), (7, 0, 2), (2, 3, 0), (1, 1, 9)]  # tokens of a document in each pass
    documents = [torch.randn(3, sum(each), 2, 4, dtype=torch.float64) for each in pieces]
    state, outs, seen = None, [[] for _ in pieces], [0] * len(pieces)
    for step in range(3):
        lengths = [each[step] for each in pieces]
        packed = torch.cat(
            [d[:, s : s + n] for d, s, n in zip(documents, seen, lengths, strict=True)], 1
        )
        q, k, v = packed[:, None]
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        o, state = cached_attention(q, k, v, window=window, initial_state=state, cu_seqlens=bounds)
        seen = [s + n for s, n in zip(seen, lengths, strict=True)]
        for own, out in zip(outs, o[0].split(lengths), strict=True):
            own.append(out)
        assert state["position"].tolist() == seen
    for own, (q, k, v) in zip(outs, documents, strict=True):
        whole, _ = cached_attention(q[None], k[None], v[None], window=window)
        assert_close(torch.cat(own), whole[0])


def test_packed_documents_go_on_as_a_batch_of_single_tokens():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 9, 2, 4, dtype=torch.float64)
    step = torch.randn(3, 2, 1, 2, 4, dtype=torch.float64)
    _, state = cached_attention(q, k, v, cu_seqlens=torch.tensor([0, 2, 9]))
    o, _ = cached_attention(*step, initial_state=state)
    for n, (first, last) in enumerate([(0, 2), (2, 9)]):
        own = (
            torch.cat([old[:, first:last], new[n : n + 1]], 1)
            for old, new in zip((q, k, v), step, strict=True)
        )
        assert_close(o[n, 0], cached_attention(*own)[0][0, -1])


def test_padding_of_packed_documents_leaves_gradients_finite():
    q, k, v = (each.requires_grad_() for each in torch.randn(3, 1, 9, 2, 4).unbind())
    o, state = cached_attention(q, k, v, cu_seqlens=torch.tensor([0, 2, 2, 9]))
    (o.sum() + state["keys"].sum()).backward()
    for each in (q, k, v):
        assert each.grad.isfinite().all()


def test_the_cache_keeps_the_format_of_its_input():
    q, k, v = torch.randn(3, 1, 5, 2, 4, dtype=torch.bfloat16)
    o, state = cached_attention(q, k, v)
    assert {o.dtype, state["keys"].dtype, state["values"].dtype} == {torch.bfloat16}


def test_a_cache_refuses_linear_reads():
    memory = CacheMemory(*torch.randn(2, 1, 3, 1, 4))
    with pytest.raises(RuleError, match="no recall and no project; read it with softmax"):
        memory.recall(memory.key)
    with pytest.raises(RuleError, match="no recall and no project; read it with softmax"):
        memory.write(memory.values).project(memory.key)


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="window must be >= 1, got 0"):
        SoftmaxConfig(window=0)
