"""The probe: effective weights are exact, and looking changes nothing."""

import csv

import pytest
import torch
from torch.testing import assert_close

from statelab import train as training
from statelab.model.mixer import Mixer
from statelab.model.norms import l2_normalize
from statelab.pairs import pairs
from statelab.probe import diagnose, effective_weights, key_spectra, layers_read, state_norms
from statelab.registries import read_rules

EXACT = {"rtol": 1e-9, "atol": 1e-9}
HYBRID = ("model.num_layers=null", "model.layers=[memory, conv(width=3), attention(window=5)]")
T = 11


def draw(batch, length=T):
    return torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(0))


def reads(model, tokens):
    """What each mixer's read was given, and gave."""
    seen = {}
    for index, block in enumerate(model.layers):
        if isinstance(block.mixer, Mixer):
            block.mixer.read.register_forward_hook(
                lambda module, given, out, index=index: seen.update({index: (given, out)})
            )
    model(tokens)
    return seen


@pytest.mark.parametrize("pair", pairs(), ids="+".join)
def test_effective_weights_are_the_derivatives_by_the_values(pair, toy_config, stirred):
    model = stirred(toy_config(f"write={pair[0]}", f"read={pair[1]}", "model.num_layers=1"))
    tokens = draw(1)
    weights = effective_weights(model, tokens)[0].read
    (_, _, memory), out = reads(model, tokens)[0]
    assert_close(torch.einsum("htj,bjhv->bthv", weights, memory.values), out, **EXACT)
    for t, head in ((T - 1, 0), (T // 2, 1)):
        (slope,) = torch.autograd.grad(out[0, t, head, 1], memory.values, retain_graph=True)
        assert_close(slope[0, :, head, 1], weights[head, t], **EXACT)
        slope[0, :, head, 1] = 0
        assert slope.count_nonzero() == 0


@pytest.mark.parametrize("option", ["denominator=true", "order=2", "statistics=decayed"])
def test_effective_weights_are_exact_with_the_options_of_a_read(option, toy_config, stirred):
    read = "interdomain" if option.startswith("denominator") else "ccq"
    model = stirred(toy_config("write=gla", f"read={read}", f"read.{option}"))
    weights = effective_weights(model, draw(1))
    for index, ((_, _, memory), out) in reads(model, draw(1)).items():
        again = torch.einsum("htj,bjhv->bthv", weights[index].read, memory.values)
        assert_close(again, out, **EXACT)


def test_the_plain_read_is_beside_those_that_are_another(toy_config, stirred):
    def plain(*overrides):
        return effective_weights(stirred(toy_config(*overrides)), draw(1))[0].plain

    assert plain("read=plain") is None
    assert plain("write=kv", "read=softmax") is None
    assert plain("write=s4d", "read=interdomain") is None
    expected = effective_weights(stirred(toy_config("read=ccq", "read.lambda_scale=0")), draw(1))
    assert_close(plain("read=ccq"), expected[0].read, **EXACT)


def test_only_layers_with_a_memory_are_looked_into(toy_config, stirred):
    model = stirred(toy_config("read=ccq", *HYBRID))
    assert layers_read(model) == {0: "memory", 2: "attention"}
    assert set(effective_weights(model, draw(1))) == {0, 2}
    assert set(effective_weights(model, draw(1), layers=[2])) == {2}
    assert set(state_norms(model, draw(2))) == {0}


def test_spectra_are_those_of_the_covariance_of_unit_keys(toy_config, stirred):
    model = stirred(toy_config("write=deltanet"))
    (_, _, memory), _ = reads(model, draw(1))[1]
    unit = l2_normalize(memory.key)[0, :, 1]
    expected = torch.linalg.eigvalsh(torch.cov(unit.T, correction=0)).flip(0)
    assert_close(key_spectra(model, draw(1))[1][1], expected, **EXACT)


def test_norms_over_the_text_end_where_the_state_ends(toy_config, stirred):
    model = stirred(toy_config())
    norms, (_, state) = state_norms(model, draw(2), points=4), model(draw(2))
    for index, rows in norms.items():
        assert rows[:, 0].tolist() == [3, 6, 9, 11]
        final = state[f"layers.{index}.values"]
        assert rows[-1, 1].item() == pytest.approx(final.norm(dim=(-2, -1)).mean().item())


def test_every_rule_says_what_is_worth_watching(toy_config, stirred):
    def names(write, read):
        return set(diagnose(stirred(toy_config(f"write={write}", f"read={read}")), draw(2))[0])

    ccq = {"read/lambda", "read/removed", "read/sigma_max", "read/sigma_trace"}
    norm = {"write/state_norm"}
    assert names("gla", "ccq") == ccq | norm | {"write/decay"}
    assert names("gated_deltanet", "plain") == norm | {"write/decay", "write/beta"}
    assert names("s4d", "interdomain") == norm | {"write/decay"}
    assert names("mesanet", "mesa") >= {"read/ridge", "write/weight"}
    assert names("gated_kalmanet", "gka") >= {"read/alpha"}
    assert names("kv", "softmax") == set()


@pytest.mark.parametrize("statistics", ["cumulative", "written", "decayed"])
@pytest.mark.parametrize("center", ["true", "false"])
def test_ccq_says_how_large_its_own_covariance_is(statistics, center, toy_config, stirred):
    options = (f"read.statistics={statistics}", f"read.center={center}")
    model = stirred(toy_config("write=gla", "read=ccq", *options))
    said = diagnose(model, draw(1))[0]
    (q, _, memory), _ = reads(model, draw(1))[0]
    # Sigma at the last token, column by column, from the very map that forward uses.
    again, read = memory.again(), model.layers[0].mixer.read
    sigma_of = read._sigma(l2_normalize(again.key), again)
    basis = torch.eye(q.shape[-1], dtype=q.dtype)
    columns = [sigma_of(each.expand_as(q))[:, -1] for each in basis]
    sigma = torch.stack(columns, -1)
    assert_close(said["read/sigma_max"], torch.linalg.matrix_norm(sigma, 2).mean(), **EXACT)
    trace = sigma.diagonal(dim1=-2, dim2=-1).sum(-1).mean()
    assert_close(said["read/sigma_trace"], trace, **EXACT)


@pytest.fixture
def losses(toy_config, tmp_path, monkeypatch):
    """Train with and without the callbacks; the losses of each step, as written."""

    def run(*overrides):
        config = toy_config("tracking.enabled=false", f"run_dir={tmp_path}", *overrides)
        result = training.train(config, progress=False)
        with (result.folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        return result, rows

    return run


def test_diagnostics_change_no_loss_and_are_logged_by_layer(losses, monkeypatch):
    _, with_them = losses("read=ccq")
    for name in ("on_validation_epoch_end", "on_validation_batch_start"):
        monkeypatch.delattr(training.Diagnostics, name)
    _, without = losses("read=ccq")

    def column(rows, name):
        return [row[name] for row in rows if row.get(name)]

    for name in ("train/loss", "grad_norm", "val/loss"):
        assert column(with_them, name) == column(without, name)
    for layer in (0, 1):
        for name in ("read/lambda_mean", "read/lambda_std", "read/sigma_max", "write/decay_mean"):
            assert len(column(with_them, f"{name}/layer_{layer}")) == 2
    assert not column(without, "read/sigma_max/layer_0")


def test_diagnostics_and_figures_work_in_half_precision(losses, caplog):
    options = ("trainer.precision=bf16-mixed", "tracking.figures=true", "trainer.max_steps=1")
    result, rows = losses("write=s4d", "read=ccq", *options)
    assert not [each for each in caplog.records if each.levelname == "WARNING"]
    assert float(rows[-2]["read/sigma_max/layer_1"]) > 0
    assert (result.folder / "figures/keys.png").is_file()


def test_a_rule_whose_diagnosis_fails_fails_no_run(losses, monkeypatch, caplog):
    def fail(self, q, k, memory):
        raise ZeroDivisionError("no luck")

    monkeypatch.setattr(read_rules.get("plain").cls, "diagnose", fail)
    result, _ = losses("tracking.figures=true")
    assert result.status == "FINISHED"
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert messages == [
        "no diagnostics: ZeroDivisionError: no luck",
        "no figures: ZeroDivisionError: no luck",
    ]
