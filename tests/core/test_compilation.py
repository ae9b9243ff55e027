"""Compiled and checkpointed training: the same losses and gradients as without.

Only one pair is compiled to machine code here; `compiled_pairs.py` beside this file does all.
"""

import jaxtyping
import pytest
import torch
from torch._dynamo.utils import counters

from statelab.errors import ConfigError
from statelab.evaluate import evaluate, load_checkpoint
from statelab.language_model import LanguageModel
from statelab.model.compilation import compile_blocks
from statelab.probe import diagnose
from statelab.runs.stored import StoredRun
from statelab.train import train

WRITES = ("linear", "gla", "deltanet", "gated_deltanet", "s4d")
PAIRS = [(w, r) for w in WRITES for r in ("plain", "ccq", "interdomain")] + [("kv", "softmax")]

each_pair = pytest.mark.parametrize(("write", "read"), PAIRS)


@pytest.fixture
def compiler(monkeypatch):
    """Torch's compiler, which can't trace the wrappers that check shapes in tests."""
    jaxtyping.config.update("jaxtyping_disable", True)
    torch.compiler.reset()
    counters.clear()
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    torch.compiler.reset()


@pytest.fixture
def build(toy_config):
    """A model in training that has moved off its start, where some parameters are 0."""

    def make(write, read, *overrides):
        model = LanguageModel(toy_config(f"write={write}", f"read={read}", *overrides))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.decoder.parameters():
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
        return model.train()

    return make


def batch(rows=2, length=16):
    tokens = torch.randint(32, (rows, length), generator=torch.Generator().manual_seed(2))
    return {"tokens": tokens, "labels": tokens.roll(-1, dims=1)}


def packed(*lengths):
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    return {**batch(1, sum(lengths)), "cu_seqlens": bounds}


def step(model, given):
    """Loss and gradients."""
    loss = model.loss(given)
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [loss, *(each for each in gradients if each is not None)]


def same(found, wanted):
    return all(torch.equal(f, w) for f, w in zip(found, wanted, strict=True))


# Checkpointing.


@pytest.mark.parametrize("given", [batch(), packed(5, 0, 9, 2)], ids=["batch", "packed"])
@each_pair
def test_checkpointing_changes_no_bit_of_a_gradient(build, write, read, given):
    model = build(write, read)
    wanted = step(model, given)
    model.decoder.checkpointing = True
    assert same(step(model, given), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        found = step(model, given)
        model.decoder.checkpointing = False
        assert same(found, step(model, given))


def test_the_backward_pass_leaves_the_state_that_was_handed_out(build):
    model = build("gla", "ccq")
    model.decoder.checkpointing = True
    hidden, state = model.decoder.hidden(batch()["tokens"])
    kept = {name: (id(each), each.clone()) for name, each in state.items()}
    hidden.sum().backward()
    assert {name: id(each) for name, each in state.items()} == {n: i for n, (i, _) in kept.items()}
    assert all(torch.equal(state[name], values) for name, (_, values) in kept.items())
    model.eval()
    wanted = model.decoder.hidden(batch()["tokens"])[1]
    assert wanted.keys() == state.keys()
    assert all(torch.equal(state[name], each) for name, each in wanted.items())


def test_a_state_carries_gradients_through_checkpoints(build):
    model = build("deltanet", "interdomain")
    tokens = batch()["tokens"]

    def gradients():
        _, state = model.decoder.hidden(tokens[:, :9])
        hidden, _ = model.decoder.hidden(tokens[:, 9:], state)
        return torch.autograd.grad(
            hidden.square().mean(), list(model.decoder.layers.parameters()), allow_unused=True
        )

    wanted = gradients()
    model.decoder.checkpointing = True
    assert same(gradients(), wanted)


def test_checkpointing_keeps_less(build):
    def kept(checkpointing):
        model = build("gla", "plain", "model.num_layers=6")
        model.decoder.checkpointing = checkpointing
        sizes = {}

        def pack(tensor):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model.loss(batch())
        loss.backward()
        return sum(sizes.values())

    assert kept(True) < kept(False) / 2


# Compilation.


@pytest.mark.parametrize(
    ("write", "read"),
    [
        ("linear", "plain"),
        ("gla", "ccq"),
        ("deltanet", "interdomain"),
        ("gated_deltanet", "ccq"),
        ("s4d", "interdomain"),
        ("kv", "softmax"),
    ],
)
def test_what_is_compiled_computes_the_same(build, compiler, write, read):
    model = build(write, read)
    wanted = step(model, batch())
    # As graphs, but run as they stand: to the bit, what machine code can't be.
    compile_blocks(model.decoder, "eager")
    assert same(step(model, batch()), wanted)
    model.decoder.checkpointing = True
    assert same(step(model, batch()), wanted)


@pytest.mark.slow
def test_graphs_grow_with_neither_layers_nor_text(build, compiler):
    def graphs(layers, length):
        torch.compiler.reset()
        counters.clear()
        model = build("gla", "ccq", f"model.num_layers={layers}", f"data.seq_len={length}")
        compile_blocks(model.decoder, "eager")
        step(model, batch(length=length))
        return counters["stats"]["unique_graphs"], counters["stats"]["calls_captured"]

    few = graphs(2, 32)
    assert few[0] > 1
    assert graphs(10, 256) == few


def test_packed_documents_need_no_graphs_of_their_own(build, compiler):
    model = build("gla", "ccq")
    given = [packed(5, 9, 2), packed(16), packed(1, 1, 1, 13)]
    wanted = [step(model, each) for each in given]
    compile_blocks(model.decoder, "eager")
    assert same(step(model, given[0]), wanted[0])
    graphs = counters["stats"]["unique_graphs"]
    assert all(same(step(model, g), w) for g, w in zip(given, wanted, strict=True))
    assert counters["stats"]["unique_graphs"] == graphs


def test_only_training_is_compiled(build, compiler):
    model = build("gla", "ccq")
    wanted = diagnose(model.eval().decoder, batch()["tokens"])
    assert wanted.keys() == {0, 1}
    compile_blocks(model.decoder, "eager")
    found = diagnose(model.decoder, batch()["tokens"])
    assert found.keys() == wanted.keys()
    assert not counters["stats"]
    step(model.train(), batch())
    assert counters["stats"]["unique_graphs"]


@pytest.mark.slow
@pytest.mark.filterwarnings(  # torch 2.13's compiler, of torch's own
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
)
def test_a_compiled_run_is_one_like_any_other(toy_config, compiler, tmp_path):
    given = (
        "tracking.enabled=false",
        f"run_dir={tmp_path}",
        "write=s4d",
        "read=interdomain",
        "trainer.max_steps=6",
    )
    plain = train(toy_config(*given), progress=False)
    fast = ("trainer.compile=true", "trainer.activation_checkpointing=true")
    compiled = train(toy_config(*given, *fast), progress=False)
    for name in ("train/loss", "val/loss", "grad_norm"):
        assert compiled.metrics[name] == pytest.approx(plain.metrics[name], rel=1e-5)
    model = load_checkpoint(compiled.checkpoint)
    assert model.state_dict().keys() == load_checkpoint(plain.checkpoint).state_dict().keys()
    stored = StoredRun(id=compiled.run_id, folder=compiled.folder)
    assert evaluate(stored).metrics["val/loss"] == compiled.metrics["val/loss"]


def test_without_a_compiler_nothing_begins(toy_config, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = toy_config("trainer.compile=true", f"run_dir={tmp_path / 'runs'}")
    with pytest.raises(ConfigError, match=r"there is no 'no-such-compiler' here. Install it"):
        train(config, progress=False)
    assert not (tmp_path / "runs" / "default").exists()


# Precision.


@each_pair
def test_mixed_precision_is_near_full_precision(build, write, read):
    model = build(write, read)
    loss, *gradients = step(model, batch())
    with torch.autocast("cpu", torch.bfloat16):
        mixed, *found = step(model, batch())
    assert mixed.item() == pytest.approx(loss.item(), rel=0.02)
    assert all(each.dtype == torch.float32 and each.isfinite().all() for each in found)
    found, gradients = (torch.cat([g.flatten() for g in each]) for each in (found, gradients))
    # The least is gla+ccq's, 0.976: where the correction leaves little of a query, bf16 is coarse.
    assert torch.cosine_similarity(found, gradients, 0) > 0.95


def test_mixed_precision_trains_weights_in_fp32(toy_config, tmp_path):
    config = toy_config(
        "tracking.enabled=false",
        f"run_dir={tmp_path}",
        "write=s4d",
        "read=ccq",
        "trainer.precision=bf16-mixed",
        "trainer.activation_checkpointing=true",
    )
    result = train(config, progress=False)
    model = load_checkpoint(result.checkpoint)
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    assert result.metrics["val/loss"] < 5


def test_weights_in_bf16_get_a_warning(toy_config, tmp_path, caplog):
    given = ("tracking.enabled=false", f"run_dir={tmp_path}", "trainer.max_steps=1")
    train(toy_config(*given, "trainer.precision=bf16-true"), progress=False)
    (said,) = [each for each in caplog.messages if "bf16-true" in each]
    assert "trainer.precision=bf16-mixed keeps the weights in fp32" in said
