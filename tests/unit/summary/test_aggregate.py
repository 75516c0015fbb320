"""From receipts to the summary: what is counted, where, and what is not."""

from collections import Counter
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from benchflow_client.errors import StoreError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan, PlannedAgent, PlannedTask, SourceInfo
from benchflow_client.schema.summary import Counts, Summary
from benchflow_client.schema.trial import Outcome, Receipt
from benchflow_client.summary import aggregate


def make_plan(*, tasks=2, agents=("claude",), tries=1, **spec):
    return Plan(
        job="calm-otter-7f3a",
        created_at=datetime(2026, 11, 29, tzinfo=UTC),
        spec=JobSpec(tasks="tasks", agent=agents, tries=tries, **spec),
        sandbox="docker",
        source=SourceInfo(path="tasks"),
        tasks=tuple(PlannedTask(name=f"t{n}", slug=f"t{n}", digest=f"{n:064x}") for n in range(tasks)),
        agents=tuple(PlannedAgent(label=name, slug=name, spec=AgentSpec(name=name)) for name in agents),
    )


def receipt(index, outcome, reward=None, code="", **fields):
    defaults = {"attempts": 1, "wall_s": 2.0, "cost_usd": None, "tokens": None, "folder": f"t__{index:08x}"}
    return Receipt(index, outcome, reward, code, **(defaults | fields))


def passed(index, **fields):
    return receipt(index, "passed", 1.0, **fields)


def failed(index, reward=0.0, **fields):
    return receipt(index, "failed", reward, **fields)


def test_every_bucket_is_counted_once_and_they_add_up():
    plan = make_plan(tasks=7)
    receipts = [
        passed(0),
        failed(1),
        receipt(2, "errored", code="sandbox.lost"),
        receipt(3, "verifier_errored", code="verifier.timeout"),
        receipt(4, "unscored"),
        receipt(5, "cancelled"),
    ]

    summary = aggregate(plan, receipts, elapsed_s=10)

    assert summary.total == 7
    assert (summary.passed, summary.failed, summary.errored) == (1, 1, 1)
    assert (summary.verifier_errored, summary.unscored) == (1, 1)
    assert (summary.cancelled, summary.unfinished) == (1, 1)


def test_trials_without_a_verdict_lower_the_score_but_not_the_mean_reward():
    plan = make_plan(tasks=4)
    receipts = [passed(0), failed(1, 0.5), receipt(2, "errored", code="sandbox.lost"), receipt(3, "unscored")]

    summary = aggregate(plan, receipts, elapsed_s=10)

    assert (summary.score, summary.score_ratio) == ("25.0%", 0.25)
    assert (summary.score_excl_errors, summary.score_excl_errors_ratio) == ("50.0%", 0.5)
    assert summary.mean_reward == 0.75


def test_cancelled_and_unfinished_trials_are_in_no_denominator():
    summary = aggregate(make_plan(tasks=4), [passed(0), failed(1), receipt(2, "cancelled")], elapsed_s=1)

    assert summary.score_ratio == 0.5
    assert summary.caveats == ("1 trial cancelled and left out of every rate.",)


def test_a_job_without_any_receipt_has_no_score_instead_of_zero():
    summary = aggregate(make_plan(), [], elapsed_s=0)

    assert summary.unfinished == 2
    assert (summary.score, summary.score_ratio, summary.score_excl_errors) == (None, None, None)
    assert (summary.mean_reward, summary.total_tokens, summary.total_cost_usd) == (None, None, None)
    assert (summary.groups[0].score, summary.groups[0].interval_low) == (None, None)


def test_controls_stand_beside_the_headline_and_not_in_it():
    plan = make_plan(tasks=2, agents=("claude", "oracle", "nop"))
    receipts = [failed(0), passed(1), failed(2), passed(3), passed(4), failed(5)]

    summary = aggregate(plan, receipts, elapsed_s=1)

    assert summary.population == "agents"
    assert (summary.total, summary.passed, summary.score_ratio) == (2, 1, 0.5)
    assert (summary.controls.total, summary.controls.passed, summary.planned) == (4, 2, 6)
    assert [(group.agent, group.is_control, group.passed) for group in summary.groups] == [
        ("claude", False, 1),
        ("oracle", True, 2),
        ("nop", True, 0),
    ]


def test_a_job_of_controls_says_so_and_counts_them():
    plan = make_plan(tasks=2, agents=("oracle", "nop"))

    summary = aggregate(plan, [passed(0), failed(1), passed(2), failed(3)], elapsed_s=1)

    assert summary.population == "controls"
    assert (summary.total, summary.passed, summary.score) == (4, 2, "50.0%")
    assert summary.caveats == ("Only controls ran: these numbers are about the tasks, not about an agent.",)


def test_controls_that_behave_wrongly_name_the_tasks_not_to_trust():
    plan = make_plan(tasks=5, agents=("claude", "oracle", "nop"))
    receipts = [failed(n) for n in range(15) if n % 3 != 2] + [
        passed(2),
        *(failed(n) for n in (5, 8, 11, 14)),
    ]

    summary = aggregate(plan, receipts, elapsed_s=1)

    assert summary.caveats == (
        "oracle does not pass 5 tasks: t0, t1, t2 (+2). Do not trust a score there.",
        "nop passes 1 task without any work: t0. Do not trust a score there.",
    )


def test_many_verdicts_lost_to_verifiers_are_a_caveat():
    receipts = [passed(0), receipt(1, "verifier_errored", code="verifier.no_reward")]

    summary = aggregate(make_plan(), receipts, elapsed_s=1)

    assert summary.caveats == (
        "1 of 2 trials have no verdict because of their verifier: the results may be unreliable.",
    )


def test_partial_rewards_are_a_caveat():
    summary = aggregate(make_plan(), [failed(0, 0.5), passed(1)], elapsed_s=1)

    assert summary.caveats == (
        "1 trial earned part of the reward: failed in the score, part in the mean reward.",
    )


def test_failures_are_grouped_by_outcome_and_code_with_what_to_do():
    plan = make_plan(tasks=4)
    receipts = [
        receipt(0, "errored", code="sandbox.build_failed", attempts=1),
        receipt(1, "errored", code="sandbox.lost", attempts=3),
        receipt(2, "errored", code="sandbox.lost", attempts=2),
        failed(3, code="agent.timeout"),
    ]

    summary = aggregate(plan, receipts, elapsed_s=1)

    lost, build, timeout = summary.failures
    assert (lost.code, lost.count, lost.retried, lost.tasks) == ("sandbox.lost", 2, 3, ("t1", "t2"))
    assert (build.code, build.next_step) == ("sandbox.build_failed", "fix environment/Dockerfile of t0")
    assert (timeout.code, timeout.has_verdict, build.has_verdict) == ("agent.timeout", True, False)
    assert summary.error_categories == {"infra_failure": 2, "sandbox_setup": 1}
    assert summary.verifier_error_categories is None


def test_a_cause_lists_twenty_tasks_and_counts_the_others():
    plan = make_plan(tasks=30)
    receipts = [receipt(n, "verifier_errored", code="verifier.no_reward") for n in range(30)]

    (cause,) = aggregate(plan, receipts, elapsed_s=1).failures

    assert (len(cause.tasks), cause.n_tasks, cause.count) == (20, 30, 30)


@pytest.mark.parametrize(
    ("outcome", "code", "label", "category"),
    [
        ("unscored", "", "nothing to score", "other"),
        ("errored", "", "no cause recorded", "other"),
        ("verifier_errored", "moon.fell", "moon.fell", "verifier_other"),
    ],
)
def test_a_cause_the_catalog_does_not_know_is_still_shown(outcome, code, label, category):
    (cause,) = aggregate(make_plan(), [receipt(0, outcome, code=code)], elapsed_s=1).failures

    assert (cause.label, cause.category, cause.next_step) == (label, category, "")


def test_retries_are_counted_with_what_became_of_them():
    plan = make_plan(tasks=4)
    receipts = [
        passed(0, attempts=3),
        receipt(1, "errored", code="sandbox.lost", attempts=2),
        failed(2, code="agent.timeout", attempts=2),
        passed(3),
    ]

    retries = aggregate(plan, receipts, elapsed_s=1).retries

    assert (retries.attempts, retries.trials, retries.recovered) == (4, 3, 2)
    assert retries.codes == {"sandbox.lost": 1}


def test_usage_is_the_sum_of_what_is_known_with_its_coverage():
    plan = make_plan(tasks=4)
    receipts = [
        passed(0, cost_usd=0.1, tokens=100),
        passed(1, cost_usd=0.2),
        failed(2, tokens=50),
        receipt(3, "cancelled", cost_usd=9.0, tokens=999),
    ]

    summary = aggregate(plan, receipts, elapsed_s=1)

    assert (summary.total_cost_usd, summary.avg_cost_per_trial_usd) == (0.3, 0.15)
    assert (summary.total_tokens, summary.telemetry_coverage) == (150, 2 / 3)
    assert summary.cost_coverage == 2 / 3
    assert (summary.total_time_sec, summary.avg_total_time_sec, summary.max_total_time_sec) == (6.0, 2.0, 2.0)


def test_uses_of_skills_are_summed_over_the_trials_that_know_theirs():
    receipts = [
        passed(0, skill_uses=3),
        passed(1),
        failed(2, skill_uses=0),
        receipt(3, "cancelled", skill_uses=9),
    ]

    summary = aggregate(make_plan(tasks=4, skill_mode="with-skill"), receipts, elapsed_s=1)

    assert (summary.total_skill_invocations, summary.avg_skill_invocations) == (3, 1.5)
    assert (summary.groups[0].skill_uses, summary.settings.skill_mode) == (3, "with-skill")
    assert aggregate(make_plan(), [passed(0)], elapsed_s=1).total_skill_invocations is None


def test_repeated_tasks_widen_the_interval_and_bring_solve_rates():
    plan = make_plan(tasks=4, tries=4)
    receipts = [passed(n) if n % 4 < 2 else failed(n) for n in range(16)]

    (group,) = aggregate(plan, receipts, elapsed_s=1).groups

    assert group.design_effect == pytest.approx(4.0)
    assert (group.interval_low, group.interval_high) == pytest.approx((0.15, 0.85), abs=0.005)
    assert [(rate.k, rate.pass_at_k, rate.pass_hat_k) for rate in group.solve_rates] == [
        (1, 0.5, 0.5),
        (2, 0.5, 0.5),
        (4, 0.5, 0.5),
    ]


def test_single_tries_have_no_solve_rates():
    assert aggregate(make_plan(), [passed(0)], elapsed_s=1).groups[0].solve_rates == ()


def test_a_trial_with_two_receipts_counts_once_by_the_first():
    summary = aggregate(make_plan(), [passed(0), failed(0), failed(1)], elapsed_s=1)

    assert (summary.passed, summary.failed) == (1, 1)


@pytest.mark.parametrize("stray", [passed(2), passed(-1), receipt(0, "excellent", 1.0)])
def test_a_receipt_of_another_plan_is_refused(stray):
    with pytest.raises(StoreError, match="does not belong to job 'calm-otter-7f3a'"):
        aggregate(make_plan(), [stray], elapsed_s=1)


def test_the_document_says_what_ran_on_which_tasks():
    plan = make_plan(timeout_multiplier=2.0, concurrency=9)

    summary = aggregate(plan, [passed(0)], elapsed_s=-3)

    assert (summary.job_name, summary.agent, summary.environment) == ("calm-otter-7f3a", "claude", "docker")
    assert (summary.concurrency, summary.settings.timeout_multiplier) == (9, 2.0)
    assert summary.elapsed_sec == 0
    same = aggregate(make_plan(agents=("other", "more")), [], elapsed_s=0)
    assert same.tasks_digest == summary.tasks_digest
    assert same.agent is None
    assert aggregate(make_plan(tasks=3), [], elapsed_s=0).tasks_digest != summary.tasks_digest


def test_only_a_whole_is_called_one_hundred_per_cent():
    plan = make_plan(tasks=2000)

    almost = aggregate(plan, [*(passed(n) for n in range(1999)), failed(1999)], elapsed_s=1)
    hardly = aggregate(plan, [*(failed(n) for n in range(1999)), passed(1999)], elapsed_s=1)

    assert (almost.score, hardly.score) == ("99.9%", "0.1%")


def test_stored_document_has_the_short_names_and_reads_back_the_same():
    summary = aggregate(make_plan(), [passed(0), failed(1)], elapsed_s=1)

    data = summary.model_dump(mode="json")

    assert (data["pass"], data["fail"], data["error"]) == (1, 1, 0)
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    assert summary.all_without_verdict == 0
    assert "pass" not in summary.model_dump(include={"total"})


def test_buckets_that_do_not_add_up_are_refused():
    fields = dict.fromkeys(("passed", "failed", "errored", "verifier_errored", "unscored", "cancelled"), 1)

    with pytest.raises(ValidationError, match="the buckets hold 6 trials, but total is 7"):
        Counts(total=7, **fields)


def test_a_summary_whose_parts_disagree_is_refused():
    data = aggregate(make_plan(), [passed(0), failed(1)], elapsed_s=1).model_dump()

    with pytest.raises(ValidationError, match="were planned"):
        Summary.model_validate(data | {"planned": 3})
    with pytest.raises(ValidationError, match="do not add up"):
        Summary.model_validate(data | {"passed": 2, "failed": 0})


results = st.lists(
    st.tuples(
        st.sampled_from([*Outcome]), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from(["", "sandbox.lost"])
    ),
    max_size=24,
)


@given(results, st.randoms(use_true_random=False))
def test_order_of_receipts_does_not_matter_and_nothing_is_lost(cases, shuffler):
    plan = make_plan(tasks=4, agents=("claude", "oracle"), tries=3)
    receipts = [
        receipt(n, str(outcome), reward if outcome in {"passed", "failed"} else None, code, cost_usd=0.1)
        for n, (outcome, reward, code) in enumerate(cases)
    ]
    shuffled = receipts[:]
    shuffler.shuffle(shuffled)

    summary = aggregate(plan, receipts, elapsed_s=1)

    assert aggregate(plan, shuffled, elapsed_s=1) == summary
    expected = Counter(str(outcome) for outcome, _, _ in cases)
    for name in Outcome:
        assert sum(getattr(group, name) for group in summary.groups) == expected[name]
    assert summary.groups[0].total + summary.groups[1].total == 24
