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
        "val/accuracy/mean": sum(right[labels % 2 == i].double().mean().item() for i in (0, 1)) / 2,
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


def test_a_slice_that_was_not_seen_has_no_accuracy_and_the_mean_is_that_of_the_others():
    metrics = LanguageMetrics(4, ("few", "never", "many"), text=False)
    logits = torch.eye(4)[[0, 1, 2, 3]]
    metrics.update(logits, torch.tensor([0, 1, 3, 0]), torch.tensor([0, 2, 2, 2]), None)
    found = metrics.compute()
    accuracy = {name: each.item() for name, each in found.items() if "accuracy" in name}
    assert accuracy == pytest.approx(
        {
            "val/accuracy": 1 / 2,
            "val/accuracy/few": 1,
            "val/accuracy/many": 1 / 3,
            "val/accuracy/mean": 2 / 3,
        }
    )
    # The next validation begins anew.
    metrics.update(logits, torch.arange(4), torch.tensor([1, 1, 1, 1]), None)
    assert metrics.compute().keys() == {"val/loss", "val/ppl", "val/accuracy", "val/accuracy/never"}


def test_an_answer_is_exact_where_all_of_its_labels_are_guessed():
    metrics = LanguageMetrics(4, ("near", "far"), text=False, exact=True)
    labels = torch.tensor([0, 1, 2, 3, 3, 1, 2])
    guess = torch.tensor([0, 1, 2, 0, 3, 1, 2])
    examples = torch.tensor([0, 0, 2, 2, 2, 3, 3])
    slices = torch.tensor([0, 0, 1, 1, 1, 1, 1])
    metrics.update(torch.eye(4)[guess], labels, slices, None, examples)
    found = {n: each.item() for n, each in metrics.compute().items() if n.startswith("val/exact")}
    assert found == pytest.approx(
        {
            "val/exact": 2 / 3,
            "val/exact/near": 1,
            "val/exact/far": 1 / 2,
            "val/exact/mean": 3 / 4,
        }
    )
    assert "val/exact" not in measured([(torch.eye(8), torch.arange(8))])
