"""Intervals against known data and independent computations."""

import math

import numpy as np
import pytest
from scipy import stats

from statelab.compare.intervals import log_slope, mean_interval, paired_interval


def test_a_mean_has_the_interval_that_tables_give():
    # t(2, 0.975) = 4.3027; the standard deviation of 1, 2, 3 is 1.
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.center == 2.0
    assert found.half == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert (found.low, found.high) == (2.0 - found.half, 2.0 + found.half)


@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_a_mean_has_the_interval_that_scipy_computes(n):
    values = np.random.default_rng(n).normal(3.0, 2.0, n)
    low, high = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=stats.sem(values))
    found = mean_interval(values.tolist())
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_the_interval_holds_the_true_mean_as_often_as_it_says():
    """2,000 draws of three seeds: 95 % of the intervals, to four standard errors."""
    draws = np.random.default_rng(0).normal(0.7, 0.1, (2000, 3))
    found = [mean_interval(each.tolist()) for each in draws]
    held = np.mean([each.low <= 0.7 <= each.high for each in found])
    assert abs(held - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 2000)


def test_one_value_has_no_interval():
    found = mean_interval([0.5])
    assert (found.center, found.half, found.low, found.high) == (0.5, None, None, None)


def test_a_paired_difference_is_what_scipy_computes():
    rng = np.random.default_rng(1)
    its = rng.normal(0.5, 0.2, 6)
    mine = its + rng.normal(0.1, 0.01, 6)
    test = stats.ttest_rel(mine, its).confidence_interval(0.95)
    seeds = [str(seed) for seed in range(6)]
    found = paired_interval(dict(zip(seeds, mine, strict=True)), dict(zip(seeds, its, strict=True)))
    assert (found.low, found.high) == pytest.approx((test.low, test.high), rel=1e-9)
    assert found.half < mean_interval(mine.tolist()).half / 5


def test_only_what_both_have_is_paired():
    found = paired_interval({"0": 3.0, "1": 5.0, "2": 9.0}, {"1": 4.0, "2": 7.0, "3": 0.0})
    assert (found.center, found.count) == (1.5, 2)
    assert paired_interval({"0": 1.0}, {"1": 1.0}) is None


def test_a_slope_is_what_scipy_computes():
    rng = np.random.default_rng(2)
    x = np.array([1e5, 1e5, 1e6, 1e6, 1e7, 1e7])
    y = 30 * x**-0.12 * np.exp(rng.normal(0, 0.02, 6))
    line = stats.linregress(np.log(x), np.log(y))
    found = log_slope(list(zip(x.tolist(), y.tolist(), strict=True)))
    assert found.center == pytest.approx(line.slope, rel=1e-9)
    assert found.half == pytest.approx(stats.t.ppf(0.975, 4) * line.stderr, rel=1e-9)


def test_a_power_law_has_its_exponent_for_slope():
    found = log_slope([(x, 7 * x**-0.5) for x in (10.0, 100.0, 1000.0)])
    assert found.center == pytest.approx(-0.5)
    assert found.half == pytest.approx(0, abs=1e-12)
