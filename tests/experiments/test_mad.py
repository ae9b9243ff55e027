"""MAD: the variations are the published ones, and the README's score is computed as said."""

import re

import mlflow
import pytest

from statelab.loading import load_config
from statelab.optim import total_steps

ARMS = (
    "in_context_recall",
    "fuzzy_recall",
    "noisy_recall",
    "selective_copying",
    "compression",
    "memorisation",
)
EXAMPLES = {6400: 10_000, 3200: 5_000, 1600: 2_600, 800: 1_400}
#: Everything that is varied, one thing at a time: with the base settings 66.
VARIED = {
    "in_context_recall": {"vocab_size": (32, 64, 128), "seq_len": (256, 512, 1024)},
    "fuzzy_recall": {"vocab_size": (32, 64, 128), "seq_len": (256, 512, 1024)},
    "noisy_recall": {
        "vocab_size": (48, 80, 144),
        "seq_len": (256, 512, 1024),
        "noise": (0.4, 0.6, 0.8),
    },
    "selective_copying": {
        "vocab_size": (32, 64, 128),
        "seq_len": (512, 1024),
        "num_copy": (32, 64, 96),
    },
    "compression": {"vocab_size": (32, 64, 128), "seq_len": (64, 128, 256)},
    "memorisation": {"vocab_size": (512, 1024, 2048, 4096, 8192)},
}


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_is_200_epochs_of_the_published_model(arm):
    config = load_config("mad", [f"arm={arm}"])
    assert config.data.name == arm
    batches = -(-config.data.num_train // 128)
    assert total_steps(config) == 200 * batches
    assert (config.data.batch_size, config.data.num_val) == (128, 1_280)
    assert (config.model.d_model, config.model.num_layers, config.model.mlp) == (128, 2, "swiglu")
    assert (config.optim.schedule, config.optim.warmup_steps) == ("constant", 0)


@pytest.mark.parametrize("arm", ARMS)
def test_every_variation_can_be_asked_for(arm):
    settings = [f"data.{key}={value}" for key, all_ in VARIED[arm].items() for value in all_]
    for each in settings:
        load_config("mad", [f"arm={arm}", each])
    if arm != "memorisation":
        for num, steps in EXAMPLES.items():
            assert steps == 200 * -(-num // 128)
        settings += EXAMPLES
    assert 1 + len(settings) == dict(zip(ARMS, (11, 11, 14, 13, 11, 6), strict=True))[arm]


# MLflow's own search uses what its SQL library will drop.
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_the_score_is_the_mean_over_variations_of_the_best_optimiser_setting(root, away):
    readme = (root / "experiments/mad/README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    store, before = f"sqlite:///{away}/mlflow.db", mlflow.get_tracking_uri()
    code = code.replace("sqlite:///runs/mlflow.db", store).replace("print(", "score = (")
    names: dict[str, object] = {}
    try:
        client = mlflow.MlflowClient(store)
        experiment = client.create_experiment("mad")
        task = {"model.write.name": "gla", "model.read.name": "plain"}
        copying = task | {"data.name": "selective_copying", "data.num_train": "12800"}
        facts = task | {"data.name": "memorisation", "data.vocab_size": "256"}
        for params, accuracy in (
            (copying | {"data.num_copy": "16", "optim.lr": "1e-4"}, 0.2),
            (copying | {"data.num_copy": "16", "optim.lr": "1e-3"}, 0.6),
            (copying | {"data.num_copy": "32", "optim.lr": "1e-3"}, 0.4),
            (copying | {"data.num_copy": "32", "smoke": "true"}, 1.0),
            (facts, 0.9),
        ):
            run = client.create_run(experiment).info.run_id
            for key, value in ({"smoke": "false"} | params).items():
                client.log_param(run, key, value)
            client.log_metric(run, "val/accuracy", accuracy)
            client.set_terminated(run)
        exec(code, names)
    finally:
        mlflow.set_tracking_uri(before)
    score = names["score"]
    assert score.loc[("gla", "plain", "selective_copying")].tolist() == pytest.approx([0.5, 2])
    assert score.loc[("gla", "plain", "memorisation")].tolist() == pytest.approx([0.9, 1])
