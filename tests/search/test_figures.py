"""The figures of a study."""

import math

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution

from statelab.search.figures import draw
from statelab.search.lr_sensitivity import study_lr_chart
from statelab.search.plan import plan_search

RATES = FloatDistribution(1e-4, 1.0, log=True)
RULES = CategoricalDistribution(("gla", "s4d"))


@pytest.fixture
def study():
    """Two rules at five rates; one is best in the middle, the other at the end."""
    study = optuna.create_study()
    for rule, wish in (("gla", 1e-2), ("s4d", 1.0)):
        for rate in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
            params = {"optim.lr": rate, "model.write.name": rule}
            study.add_trial(
                optuna.create_trial(
                    value=abs(math.log10(rate / wish)),
                    params=params,
                    distributions={"optim.lr": RATES, "model.write.name": RULES},
                    user_attrs={"values": params},
                    intermediate_values={1: 2.0, 2: 1.0},
                )
            )
    return study


def test_the_best_rate_of_each_rule_is_ringed_and_one_at_the_end_is_told_of(study, caplog):
    chart = study_lr_chart(study.trials, "val/loss", "minimize")
    assert [*chart.series] == [("gla",), ("s4d",)]
    assert [each.x for each in chart.rings] == [1e-2, 1.0]
    assert caplog.messages == [
        "s4d: val/loss is best at optim.lr=1, the greatest that was tried. Widen the range."
    ]
    assert [each.x for each in study_lr_chart(study.trials, "x", "maximize").rings] == [1e-4] * 2


def test_each_figure_is_a_page_and_a_picture_with_short_names(study, arguments, tmp_path):
    parameters = {"write": ["gla", "s4d"], "optim.lr": {"low": 1e-4, "high": 1.0, "log": True}}
    search = {"pruner": "median"}
    plan = plan_search(arguments(parameters=parameters, search=search))
    files = draw(study, plan, tmp_path)
    names = ["history", "importances", "slice", "contour", "parallel_coordinates"]
    names += ["intermediate_values", "lr_sensitivity"]
    assert [each.name for each in files] == [
        f"{name}.{kind}" for name in names for kind in ("html", "png")
    ]
    page = (tmp_path / "slice.html").read_text()
    assert '"text":"lr"' in page
    assert "model.write.name" not in page


def test_one_trial_makes_no_figure(arguments, tmp_path):
    study = optuna.create_study()
    assert draw(study, plan_search(arguments()), tmp_path) == []
