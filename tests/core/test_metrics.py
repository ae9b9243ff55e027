"""The metrics of a split: each position counts once, whatever batch it came in."""

import math

import pytest
import torch

from statelab.metrics import LanguageMetrics, token_loss

SIZES = (1, 64, 3)


@pytest.fixture
def drawn():
    torch.manual_seed(0)
    return [(3 * torch.randn(n, 8), torch.randint(8, (n,))) for n in SIZES]


def measured(batches):
    metrics = LanguageMetrics(8, ("even", "odd"), text=True)
    for logits, labels in batches:
        metrics.update(logits, labels, labels % 2, torch.tensor(2 * len(labels)))
    return metrics.compute()


def test_uneven_batches_count_by_their_positions(drawn):
    logits, labels = (torch.cat(each) for each in zip(*drawn, strict=True))
    nats = token_loss(logits.double(), labels).item()
    right = logits.argmax(-1) == labels
    expected = {
        "val/loss": nats,
        "val/ppl": math.exp(nats),
        "val/bpb": nats / 2 / math.log(2),
        "val/accuracy": right.double().mean().item(),
        "val/accuracy/even": right[labels % 2 == 0].double().mean().item(),
        "val/accuracy/odd": right[labels % 2 == 1].double().mean().item(),
    }
    found = {name: value.item() for name, value in measured(drawn).items()}
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_not_left_out(drawn, value):
    logits, labels = drawn[1]
    logits[0, labels[0]] = -value
    found = measured(drawn)
    assert not found["val/loss"].isfinite()
    assert not found["val/bpb"].isfinite()
