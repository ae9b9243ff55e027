"""The geometry of needles: shares against NumPy, which tokens are the needle's, what is refused."""

import numpy as np
import pytest
import torch

from statelab import train as training
from statelab.errors import ConfigError, DataError
from statelab.evaluate import evaluate, load_checkpoint
from statelab.model.mixer import Mixer
from statelab.runs.stored import find_run
from statelab.tasks.geometry import energy_share
from statelab.tasks.haystack import make_haystack

FEW = ("sentences=12", "samples=2", "rank=3")


def geometry(run, *overrides):
    return evaluate(run, task="geometry", overrides=[*FEW, *overrides])


def shares_by_numpy(keys, rank):
    """Of one head's unit keys [T, K], by a singular value decomposition."""
    centred = keys - keys.mean(0)
    values, directions = np.linalg.eigh(np.cov(keys.T))
    assert (np.diff(values) >= 0).all()
    top = directions[:, -rank:]
    return ((centred @ top) ** 2).sum(1) / (centred**2).sum(1)


def test_the_share_is_that_of_numpys_covariance():
    keys = torch.nn.functional.normalize(torch.randn(2, 50, 8, dtype=torch.float64), dim=-1)
    found = energy_share(keys, 3)
    for head in range(2):
        assert found[head].numpy() == pytest.approx(shares_by_numpy(keys[head].numpy(), 3))
    assert energy_share(keys, 8).numpy() == pytest.approx(np.ones((2, 50)))


def test_the_gap_is_that_of_an_independent_calculation(text_run):
    found = geometry(text_run)
    gaps = []
    for number in range(2):
        stack = make_haystack(12, (number + 1) / 3, number)
        text = stack.text.encode()
        marks, place = np.zeros(len(text), bool), len(stack.before)
        for word, rare in stack.needle:
            marks[place : place + len(word)] = rare
            place += len(word)
        inside = np.zeros(len(text), bool)
        inside[len(stack.before) : place] = True
        model, keys = load_checkpoint(text_run.checkpoint("last")), {}
        model.configure_model()
        for index, block in enumerate(model.model.layers):
            assert isinstance(block.mixer, Mixer)
            block.mixer.read.register_forward_hook(
                lambda module, given, out, index=index, keys=keys: keys.update(
                    {index: given[2].key}
                )
            )
        with torch.no_grad():
            model(torch.tensor([list(text)]))
        for each in keys.values():
            unit = torch.nn.functional.normalize(each[0].double(), dim=-1).numpy()
            for head in range(2):
                shares = shares_by_numpy(unit[:, head], 3)
                gaps.append(shares[marks].mean() - shares[~inside].mean())
    assert found.report.setup["rare"] == "word"
    assert found.metrics["geometry/gap"] == pytest.approx(np.mean(gaps), abs=1e-5)
    by_layer = [found.metrics[f"geometry/gap/layer_{layer}"] for layer in range(2)]
    assert found.metrics["geometry/gap"] == pytest.approx(np.mean(by_layer))
    means = [found.metrics[f"geometry/{name}"] for name in ("needle", "distractor")]
    assert found.metrics["geometry/gap"] == pytest.approx(means[0] - means[1])


def test_the_needle_is_rare_and_the_rest_is_not():
    stack = make_haystack(120, 0.5, 7)
    assert stack.text.count(".") == 121
    rare = [word.strip() for word, rare in stack.needle if rare]
    assert {"secret", "number"} < set(rare)
    assert "the" not in rare
    assert stack.text.count(rare[-1]) == 1
    assert make_haystack(120, 0.5, 7) == stack
    assert make_haystack(120, 0.5, 8) != stack
    assert abs(stack.before.count(".") - stack.after.count(".")) <= 1
    assert make_haystack(5, 0.0, 0).text.startswith("The secret")


def test_tokens_may_count_instead_of_words(text_run):
    found = geometry(text_run, "rare=token")
    assert found.report.setup["rare"] == "token"
    assert (
        0 < found.report.setup["needle_tokens"] < geometry(text_run).report.setup["needle_tokens"]
    )


MISTAKES = {
    "all directions": ("rank=8", r"^rank=8: keys of model\.head_dim=8 have all their energy in so"),
    "no rank": ("rank=0", r"^rank must be >= 1, got 0\."),
}


@pytest.mark.parametrize(("given", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_get_one_line(text_run, given, message):
    with pytest.raises(ConfigError, match=message):
        geometry(text_run, given)


def test_without_a_rare_token_words_are_advised(text_run, monkeypatch):
    monkeypatch.setattr("statelab.tasks.geometry._RARE", 0)
    with pytest.raises(ConfigError, match=r"^rare=token: no token of the needle occurs twice at"):
        geometry(text_run, "rare=token")


def test_models_without_text_or_without_room_are_refused(text_config, toy_config, tmp_path):
    short = ("trainer.max_steps=1", "trainer.val_every=1", "model.head_dim=8")
    learned = text_config("model.positions=learned", *short)
    recall = toy_config("tracking.enabled=false", f"run_dir={tmp_path}", *short)
    for config, kind, message in (
        (
            learned,
            ConfigError,
            r"^sentences=12: the text has \d+ tokens, and model\.positions=lear",
        ),
        (recall, DataError, r"^task=geometry reads English sentences, and data\.name=mqar is no"),
    ):
        run = find_run(training.train(config, progress=False).run_id, run_dir=config.run_dir)
        with pytest.raises(kind, match=message):
            geometry(run)


def test_a_memory_whose_address_is_time_has_keys_too(text_config):
    config = text_config("write=s4d", "read=interdomain", "trainer.max_steps=1")
    run = find_run(training.train(config, progress=False).run_id, run_dir=config.run_dir)
    assert set(geometry(run).metrics) >= {"geometry/gap", "geometry/gap/layer_1"}
