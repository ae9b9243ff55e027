"""A loss or gradient that is not finite: nothing of it is applied, and what it was is found."""

import csv
import logging
import math
from pathlib import Path

import pytest
import torch

from statelab.__main__ import main
from statelab.errors import NonFiniteError
from statelab.evaluate import load_checkpoint
from statelab.language_model import LanguageModel
from statelab.nonfinite import first_nonfinite
from statelab.train import train

HUGE = 3e38  # finite, but no product with it is


@pytest.fixture
def config(toy_config, tmp_path):
    """A run of four steps, saved after each even one."""
    return lambda *overrides: toy_config(
        "tracking.enabled=false", f"run_dir={tmp_path}", "optim.lr=0.01", *overrides
    )


@pytest.fixture
def at_step(monkeypatch):
    """Do something to the decoder before the batches of some steps, counted from 1."""

    def install(act, *steps):
        def start(self, batch, batch_idx):
            if self.global_step + 1 in steps:
                act(self.model)

        monkeypatch.setattr(LanguageModel, "on_train_batch_start", start)

    return install


def overflow(model):
    with torch.no_grad():
        model.layers[1].mlp.gate.weight.fill_(HUGE)


def folder(tmp_path):
    (found,) = (each.parent for each in Path(tmp_path).rglob("metrics.csv"))
    return found


def test_a_run_stops_at_the_first_such_step_and_names_the_tensor(config, at_step, tmp_path):
    at_step(overflow, 4)
    with pytest.raises(NonFiniteError, match=r"step 4: the output of layers.1.mlp.gate is inf"):
        train(config("trainer.val_every=2"), progress=False)
    last = torch.load(folder(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == 2
    assert all(each.isfinite().all() for each in last["state_dict"].values())


def test_what_is_kept_runs_again(config, at_step, tmp_path):
    at_step(overflow, 3)
    with pytest.raises(NonFiniteError) as stopped:
        train(config("trainer.accumulate=2"), progress=False)
    batch, weights = (folder(tmp_path) / name for name in ("nan_batch.pt", "checkpoints/nan.ckpt"))
    assert str(batch) in str(stopped.value)
    assert str(weights) in str(stopped.value)
    model = load_checkpoint(weights)
    again = first_nonfinite(model, torch.load(batch, weights_only=True))
    assert again == "the output of layers.1.mlp.gate"
    assert model.model.training


def test_a_gradient_is_named_that_is_nearest_to_the_loss(config, at_step):
    def spoil(model):
        for name in ("mixer.proj.k.weight", "mixer.o_proj.weight"):
            model.layers[0].get_parameter(name).register_hook(lambda grad: grad * math.nan)

    at_step(spoil, 2)
    with pytest.raises(
        NonFiniteError, match=r"step 2: the gradient of layers.0.mixer.o_proj.weight is inf"
    ):
        train(config(), progress=False)


def test_a_decay_of_minus_infinity_is_none_of_it(toy_config):
    model = LanguageModel(toy_config("write=mamba2"))
    batch = {name: torch.ones(2, 16, dtype=torch.int64) for name in ("tokens", "labels")}
    assert first_nonfinite(model, batch) is None

    def decay_by(g):
        def hook(module, arguments, memory):
            memory.g = memory.g * 0 + g

        return model.model.layers[0].mixer.write.register_forward_hook(hook)

    reset = decay_by(-math.inf)
    assert first_nonfinite(model, batch) is None
    reset.remove()
    decay_by(math.nan)
    assert first_nonfinite(model, batch) == "g of layers.0.mixer.write"


def test_a_step_that_is_not_applied_leaves_weights_moments_and_counts(config, at_step, caplog):
    handles = []

    def spoil(model):
        while handles:
            handles.pop().remove()
        handles.append(
            model.layers[0].mixer.o_proj.weight.register_hook(lambda grad: grad * math.nan)
        )

    def mend(model):
        handles.pop().remove()

    at_step(spoil, 3)
    with caplog.at_level(logging.WARNING, "statelab"):
        result = train(
            config("trainer.nan_patience=2", "trainer.val_every=1", "trainer.max_steps=3"),
            progress=False,
        )
    assert "step 3: loss or gradient is not finite, and the update is not applied" in caplog.text
    checkpoints = result.folder / "checkpoints"
    before, after = (
        torch.load(checkpoints / f"{name}.ckpt", weights_only=True) for name in ("previous", "last")
    )
    assert (before["global_step"], after["global_step"]) == (2, 3)
    for name, weight in after["state_dict"].items():
        assert torch.equal(weight, before["state_dict"][name])
    old, new = (each["optimizer_states"][0]["state"] for each in (before, after))
    for index, moments in new.items():
        assert moments["step"] == 2
        for name, moment in moments.items():
            assert torch.equal(moment, old[index][name])
    with (result.folder / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    norms = {int(row["step"]): float(row["grad_norm"]) for row in rows if row["grad_norm"]}
    assert math.isfinite(norms[2])
    assert math.isnan(norms[3])


def test_patience_counts_steps_in_a_row(config, at_step):
    handles = []

    def toggle(model):
        if handles:
            handles.pop().remove()
        else:
            weight = model.layers[0].mixer.o_proj.weight
            handles.append(weight.register_hook(lambda grad: grad * math.inf))

    at_step(toggle, 1, 2, 3)  # on for 1, off for 2, on from 3
    with pytest.raises(NonFiniteError, match=r"step 4: .* \(trainer.nan_patience=2\)"):
        train(config("trainer.nan_patience=2"), progress=False)


def test_no_checkpoint_is_written_of_weights_that_are_not_finite(config, monkeypatch, tmp_path):
    def end(self, outputs, batch, batch_idx):
        if self.global_step == 4:
            with torch.no_grad():
                self.model.layers[1].mlp.up.weight[0] = math.inf

    monkeypatch.setattr(LanguageModel, "on_train_batch_end", end)
    with pytest.raises(
        NonFiniteError, match=r"step 4: an update has made layers.1.mlp.up.weight inf"
    ):
        train(config(), progress=False)
    last = torch.load(folder(tmp_path) / "checkpoints/last.ckpt", weights_only=True)
    assert last["global_step"] == 2


def test_the_command_line_says_it_in_one_line_and_fails(toy, at_step, away, capsys):
    at_step(overflow, 1)
    with pytest.raises(SystemExit) as left:
        main(["train", "tracking.enabled=false", *toy()])
    assert left.value.code == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("statelab: step 1: the output of")
