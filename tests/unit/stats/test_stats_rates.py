"""Rates and intervals against brute force and published values."""

import math
from itertools import combinations
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_client.errors import UsageError
from benchflow_client.stats.rates import (
    design_effect,
    difference_interval,
    mean,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)
from benchflow_client.stats.solve import SolveRate, default_ks, solve_rates

counts = st.integers(0, 60).flatmap(lambda scored: st.tuples(st.integers(0, scored), st.just(scored)))


def test_wilson_interval_of_twelve_passes_is_the_textbook_one():
    assert wilson_interval(12, 12) == pytest.approx((0.7575, 1.0), abs=5e-5)
    assert wilson_interval(0, 12) == pytest.approx((0.0, 0.2425), abs=5e-5)
    assert wilson_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=5e-5)


@pytest.mark.parametrize(
    ("first", "second", "interval"),
    [
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((5, 56), (0, 29), (-0.0381, 0.1926)),
        ((10, 10), (0, 20), (0.6791, 1.0)),
    ],
)
def test_interval_of_a_difference_is_the_published_one(first, second, interval):
    """Newcombe (1998), table II, method 10."""
    assert difference_interval(first, second) == pytest.approx(interval, abs=5e-5)


@given(counts, counts)
def test_interval_of_a_difference_holds_it_and_turns_round_with_it(first, second):
    low, high = difference_interval(first, second)
    other_low, other_high = difference_interval(second, first)

    assert -1 <= low <= high <= 1
    assert (other_low, other_high) == pytest.approx((-high, -low))
    if first[1] and second[1]:
        assert low <= first[0] / first[1] - second[0] / second[1] <= high
    else:
        assert (low, high) == (-1.0, 1.0)


def test_wilson_interval_of_nothing_is_everything():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(counts, st.floats(0.5, 0.999), st.floats(1, 20))
def test_wilson_ends_are_the_rates_that_would_just_not_be_rejected(pair, confidence, effect):
    passed, scored = pair

    low, high = wilson_interval(passed, scored, confidence=confidence, effect=effect)

    assert 0 <= low <= high <= 1
    if scored:
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        for end in {low, high} - {0.0, 1.0}:
            error = math.sqrt(end * (1 - end) / (scored / effect))
            assert abs(passed / scored - end) == pytest.approx(z * error, rel=1e-6)
        assert low <= passed / scored <= high


@given(counts)
def test_correlated_trials_never_narrow_the_interval(pair):
    low, high = wilson_interval(*pair)
    wider_low, wider_high = wilson_interval(*pair, effect=3.0)

    assert wider_low <= low
    assert wider_high >= high


@pytest.mark.parametrize(
    ("passed", "scored", "options"),
    [(-1, 3, {}), (4, 3, {}), (1, 3, {"confidence": 0}), (1, 3, {"confidence": 1}), (1, 3, {"effect": 0.5})],
)
def test_impossible_numbers_have_no_interval(passed, scored, options):
    with pytest.raises(UsageError):
        wilson_interval(passed, scored, **options)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_rates_equal_the_count_over_every_draw(case):
    scored, passed, k = case
    outcomes = [1] * passed + [0] * (scored - passed)

    draws = list(combinations(outcomes, k))

    assert pass_at_k(scored, passed, k) == sum(any(draw) for draw in draws) / len(draws)
    assert pass_hat_k(scored, passed, k) == sum(all(draw) for draw in draws) / len(draws)


def test_pass_rates_stay_exact_for_a_thousand_tries():
    assert pass_at_k(1000, 1, 500) == 0.5
    assert pass_hat_k(1000, 999, 500) == 0.5


@pytest.mark.parametrize("case", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_impossible_draws_are_refused(case):
    with pytest.raises(UsageError):
        pass_at_k(*case)
    with pytest.raises(UsageError):
        pass_hat_k(*case)


def test_mean_leaves_out_what_is_no_number_and_is_none_for_nothing():
    assert mean([1.0, math.nan, 0.0, math.inf]) == 0.5
    assert mean([]) is None
    assert mean([0.1] * 10) == 0.1


def test_tasks_that_always_end_alike_count_as_one_trial_each():
    assert design_effect([(4, 4), (0, 4), (4, 4), (0, 4)]) == pytest.approx(4.0)


def test_tasks_that_differ_no_more_than_chance_lose_nothing():
    assert design_effect([(2, 4), (2, 4), (2, 4)]) == 1.0


@pytest.mark.parametrize(
    "case", [[], [(3, 5)], [(1, 1), (0, 1), (1, 1)], [(4, 4), (4, 4)], [(0, 2), (0, 2)], [(0, 0), (1, 3)]]
)
def test_counts_that_say_nothing_about_resemblance_have_no_effect(case):
    assert design_effect(case) == 1.0


@given(st.lists(counts, max_size=8))
def test_design_effect_equals_the_analysis_of_variance_of_the_single_trials(tasks):
    groups = [[1.0] * passed + [0.0] * (scored - passed) for passed, scored in tasks if scored]
    every = [value for group in groups for value in group]

    effect = design_effect(tasks)

    assert effect == pytest.approx(_effect_by_hand(groups, every), abs=1e-6)


def _effect_by_hand(groups, every):
    """One-way analysis of variance written out over single values."""
    k, n = len(groups), len(every)
    if k < 2 or n == k or len(set(every)) == 1:
        return 1.0
    grand = sum(every) / n
    means = [sum(group) / len(group) for group in groups]
    between = sum(len(g) * (m - grand) ** 2 for g, m in zip(groups, means, strict=True)) / (k - 1)
    within = sum((v - m) ** 2 for g, m in zip(groups, means, strict=True) for v in g) / (n - k)
    typical = (n - sum(len(g) ** 2 for g in groups) / n) / (k - 1)
    rho = (between - within) / (between + (typical - 1) * within)
    return 1 + (sum(len(g) ** 2 for g in groups) / n - 1) * min(1.0, max(0.0, rho))


def test_default_ks_are_one_powers_of_two_and_multiples_of_five():
    assert default_ks(12) == (1, 2, 4, 5, 8, 10)
    assert default_ks(1) == (1,)
    assert default_ks(0) == ()
    assert max(default_ks(1000)) == 64


def test_solve_rates_are_means_over_tasks_and_name_how_many_are_short():
    rates = solve_rates([(2, 4), (0, 4), (1, 2)], ks=(1, 4, 9))

    assert rates == (
        SolveRate(k=1, pass_at_k=1 / 3, pass_hat_k=1 / 3, n_tasks=3, n_short=0),
        SolveRate(k=4, pass_at_k=0.5, pass_hat_k=0.0, n_tasks=2, n_short=1),
        SolveRate(k=9, pass_at_k=None, pass_hat_k=None, n_tasks=0, n_short=3),
    )


def test_default_ks_of_a_job_come_from_its_least_scored_task():
    assert [rate.k for rate in solve_rates([(2, 5), (1, 2), (0, 0)])] == [1, 2]
    assert solve_rates([]) == ()
