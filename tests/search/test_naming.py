import pytest

from statelab.search.naming import trial_name


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"write": "gla", "read": "ccq", "seed": "1"}, "gla+ccq s1"),
        ({"model.read.name": "ccq", "optim.lr": 0.01, "seed": 1}, "gla+ccq s1 lr=0.01"),
        ({"optim.lr": 0.00123456}, "lr=0.001235 gla+ccq s1"),
        ({"seed": "1", "model.head_dim": "16"}, "s1 head_dim=16 gla+ccq"),
    ],
)
def test_what_the_study_varies_comes_first(toy_config, values, name):
    assert trial_name(toy_config("read=ccq", "seed=1"), values) == name
