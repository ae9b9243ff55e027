"""What the recall task is for: a delta rule solves it, a memory blind to its input doesn't."""

import pytest

from statelab.loading import load_config
from statelab.train import train

TINY = (
    "experiment=mqar_small",
    "model.d_model=32",
    "model.mlp_hidden=64",
    "data.vocab_size=32",
    "data.num_val=300",
    "optim.warmup_steps=20",
    "trainer.max_steps=120",
    "trainer.val_every=120",
    "tracking.enabled=false",
)


@pytest.fixture
def result(tmp_path):
    return lambda *more: train(
        load_config(None, [*TINY, *more, f"run_dir={tmp_path}"]), progress=False
    )


@pytest.mark.slow
def test_deltanet_recalls_and_s4d_guesses_among_the_values(result):
    cell = ("data.seq_len=16", "data.num_pairs=[3]")
    assert result(*cell, "write=deltanet").metrics["val/accuracy"] > 0.95
    # One of three values is right by chance.
    s4d = result(*cell, "write=s4d", "write.num_modes=16").metrics["val/accuracy"]
    assert 0.2 < s4d < 0.5


@pytest.mark.slow
def test_a_model_is_validated_on_longer_and_denser_segments_than_it_learned_from(result):
    found = result(
        "data.seq_len=64",
        "data.segments=[12/2 x 2000, 16/3 x 2000]",
        "data.val_segments=[12/2 x 100, 16/4 x 100, 64/8 x 50]",
    ).metrics
    slices = [found[f"val/accuracy/kv_{n}"] for n in (2, 4, 8)]
    assert found["val/accuracy/mean"] == pytest.approx(sum(slices) / 3)
    assert slices[0] > 0.95
    assert slices[1] > 0.6
    # Each query counts once here, and each segment above.
    asked = 100 * 2 + 100 * 4 + 50 * 8
    right = 100 * 2 * slices[0] + 100 * 4 * slices[1] + 50 * 8 * slices[2]
    assert found["val/accuracy"] == pytest.approx(right / asked, abs=1e-5)
