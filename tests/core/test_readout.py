"""A sequence read out of its last token: nothing else reaches a prediction."""

import math

import pytest
import torch
from torch.testing import assert_close

from statelab.errors import DataError
from statelab.model.build import build_model
from statelab.model.readout import LastReadout, sinusoids
from statelab.sizes import measure

D = 6


@pytest.fixture
def readout():
    torch.manual_seed(0)
    made = LastReadout(D).double()
    made.reset_parameters(0.5)
    return made


def test_codes_are_sines_then_cosines():
    codes = sinusoids(torch.tensor([[0, 1, 7]]), D)
    for code, place in zip(codes[0], (0, 1, 7), strict=True):
        rates = [10_000 ** -(i / 2) for i in range(3)]
        wanted = [math.sin(place * r) for r in rates] + [math.cos(place * r) for r in rates]
        assert_close(code, torch.tensor(wanted))
    assert sinusoids(torch.arange(3), 5).shape == (3, 5)
    assert (sinusoids(torch.arange(3), 5)[:, 4] == 0).all()
    assert len({tuple(row.tolist()) for row in sinusoids(torch.arange(1024), 32)}) == 1024


def test_every_position_is_a_function_of_the_last_vector_and_the_place(readout):
    x = torch.randn(2, 5, D, dtype=torch.float64, requires_grad=True)
    places = torch.arange(5).expand(2, 5)
    out = readout(x, places, None)
    for b in range(2):
        for t in range(5):
            alone = readout.mlp(x[b, 4] + sinusoids(torch.tensor(t), D).double())
            assert_close(out[b, t], alone)
    (grad,) = torch.autograd.grad(out.square().sum(), x)
    assert (grad[:, :4] == 0).all()
    assert (grad[:, 4] != 0).all()


def test_packed_sequences_each_have_a_last_token(readout):
    lengths = (3, 1, 4)
    rows = [torch.randn(1, n, D, dtype=torch.float64) for n in lengths]
    alone = [readout(x, torch.arange(x.shape[1])[None], None) for x in rows]
    places = torch.cat([torch.arange(n) for n in lengths])[None]
    packed = readout(torch.cat(rows, 1), places, torch.tensor([0, 3, 4, 8]))
    assert_close(packed, torch.cat(alone, 1))


@pytest.fixture
def compressor(toy_config):
    config = toy_config("data.name=compression", "data.seq_len=8", "data.vocab_size=16")
    return build_model(config)


def test_the_data_decide_what_a_model_reads_from(compressor, toy_config):
    assert compressor.readout is not None
    assert build_model(toy_config()).readout is None


def test_a_model_sees_a_token_only_through_the_last_vector(compressor):
    """The same last hidden vector gives the same logits, whatever stood before."""
    seen = []
    compressor.readout.register_forward_hook(lambda _, given, out: seen.append(given[0]))
    tokens = torch.randint(15, (2, 8), generator=torch.Generator().manual_seed(0))
    logits, _ = compressor(tokens)
    last = seen[0][:, -1:].expand(2, 8, -1)
    again = compressor.head(compressor.norm(compressor.readout(last, torch.arange(8)[None], None)))
    assert_close(logits, again)
    assert not torch.equal(logits[0], logits[1])


def test_packed_rows_predict_what_they_do_alone(compressor):
    tokens = torch.randint(15, (3, 8), generator=torch.Generator().manual_seed(0))
    packed, _ = compressor(tokens.reshape(1, -1), None, torch.tensor([0, 8, 16, 24]))
    assert_close(packed.reshape(3, 8, -1), compressor(tokens)[0])


def test_its_size_is_counted(toy_config):
    options = ("data.seq_len=8", "data.vocab_size=16", "model.vocab_size=16")
    with_it = measure(toy_config("data.name=compression", *options))
    without = measure(toy_config("data.name=induction", *options))
    d = toy_config().model.d_model
    assert with_it.parameters - without.parameters == 2 * d * d + 4 * d
    assert with_it.flops_per_token - without.flops_per_token == 2 * 2 * d * d
    assert with_it.state_bytes == without.state_bytes


def test_its_parameters_start_as_the_models(toy_config):
    config = toy_config("data.name=compression", "data.seq_len=8", "model.init_std=0.3")
    first, second = build_model(config), build_model(config)
    for (name, one), two in zip(
        first.readout.named_parameters(), second.readout.parameters(), strict=True
    ):
        assert torch.equal(one, two), name
    linear = first.readout.mlp[1]
    assert linear.weight.std().item() == pytest.approx(0.3, rel=0.2)
    assert (linear.bias == 0).all()
    assert (first.readout.mlp[0].weight == 1).all()


def test_a_model_that_reads_from_the_last_token_generates_nothing(compressor):
    with pytest.raises(DataError, match=r"reads a whole sequence out of its last token, so it has"):
        compressor.generate([[1, 2]], max_new_tokens=1)
