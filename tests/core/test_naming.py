import itertools
from types import SimpleNamespace

import pytest

from statelab.registries import read_rules, write_rules
from statelab.runs.naming import describe_run, in_unicode, run_name


def named(write, read, seed=0):
    rules = {"write": SimpleNamespace(name=write), "read": SimpleNamespace(name=read)}
    return run_name(SimpleNamespace(model=SimpleNamespace(**rules), seed=seed))


@pytest.mark.parametrize(
    ("write", "read", "seed", "name"),
    [
        ("gla", "ccq", 1, "gla+ccq s1"),
        ("deltanet", "ccq", 0, "deltane+ccq s0"),
        ("gla", "interdomain", 12, "gla+interd s12"),
        ("gated_deltanet", "interdomain", 1, "gdelt+inter s1"),
        ("rules.py:Leaky", "plain", 3, "Leaky+plain s3"),
        ("deltanet", "plain", 2**31 - 1, "delt+plai s2147483647"),
    ],
)
def test_a_run_is_called_by_its_pair_and_seed(write, read, seed, name):
    assert named(write, read, seed) == name


def test_all_pairs_and_seeds_differ_in_what_the_table_shows():
    runs = itertools.product(write_rules.names(), read_rules.names(), (0, 1, 9))
    names = [named(*run)[:14] for run in runs]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("GLA: S_t = diag(exp g_t) S_(t-1) + k_t v_t'.", "GLA: Sₜ = diag(exp gₜ) Sₜ₋₁ + kₜ vₜᵀ."),
        ("A's read: o_t = S_t' (H_t + Lambda)^-1 q_t", "A's read: oₜ = Sₜᵀ (Hₜ + Λ)⁻¹ qₜ"),
        ("B: g_h = 1 - 2^(-5-h), beta_t^2 softmax_j", "B: gₕ = 1 − 2⁻⁵⁻ʰ, βₜ² softmaxⱼ"),
        ("S_t = a S_(t-1) + k_t v_t', one decay", "Sₜ = a Sₜ₋₁ + kₜ vₜᵀ, one decay"),
        ("A cache: every token's key_t", "A cache: every token's key_t"),
        ("C: x = A_log + y^(2Q) sum_F", "C: x = A_log + y^(2Q) Σ_F"),
    ],
)
def test_equations_are_unicode_and_words_stay(written, shown):
    assert in_unicode(written) == shown


def test_no_rule_keeps_a_sign_that_markdown_would_take_for_its_own():
    for registry in (write_rules, read_rules):
        for name in registry.names():
            assert not {*"_^*"} & {*in_unicode(registry.get(name).summary)}, name


def test_a_description_has_sizes_and_both_equations(toy_config):
    sizes = SimpleNamespace(parameters=1234, state_bytes=5678)
    assert describe_run(toy_config("read=ccq", "seed=3"), sizes) == (
        "**gla+ccq** on mqar: 1,234 parameters, 5,678 bytes of state, seed 3.\n\n"
        "- write: Gated linear attention: Sₜ = diag(exp gₜ) Sₜ₋₁ + kₜ vₜᵀ, one decay a key "
        "channel.\n"
        "- read: Curvature-corrected query: oₜ = Sₜᵀ lift(qₜ − λₜ Σₜ qₜ).\n"
    )
