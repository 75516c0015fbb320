"""From a plan and its receipts to the summary: pure, and quick for any size of job."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchflow_client.catalog.failures import FAILURES, FailureKind
from benchflow_client.schema.failure import Fault
from benchflow_client.schema.loop import parse_loop
from benchflow_client.schema.plan import Plan
from benchflow_client.schema.summary import (
    LISTED_TASKS,
    AgentGroup,
    BudgetReport,
    Counts,
    FailureGroup,
    Retries,
    Settings,
    SolveRateRow,
    Summary,
)
from benchflow_client.schema.trial import SCORED, Outcome, Receipt
from benchflow_client.stats.caveats import find_caveats
from benchflow_client.stats.rates import design_effect, mean, wilson_interval
from benchflow_client.stats.solve import solve_rates
from benchflow_client.stats.tally import Cause, Tally, tally_receipts

__all__ = ["CONTROLS", "Account", "aggregate"]

CONTROLS: frozenset[str] = frozenset({"oracle", "nop"})
"""Registered agents that check the tasks and say nothing about a model."""


@dataclass(frozen=True, slots=True)
class Account:
    """What happened on the way to the receipts.

    Attributes:
        budget: Caps and what was spent.
        retry_codes: Failure code -> executions it cost.
    """

    budget: BudgetReport
    retry_codes: Mapping[str, int]


def aggregate(
    plan: Plan, receipts: Sequence[Receipt], *, elapsed_s: float, account: Account | None = None
) -> Summary:
    """Return the summary of a job, finished or not.

    Args:
        plan: What was planned.
        receipts: Receipts of finished trials, in any order.
        elapsed_s: Wall clock of the job so far, in seconds.
        account: What only the ledger knows; None = it is not known.

    Guarantees: a trial is counted once, by the first of its receipts; a trial without
    a receipt is `unfinished`; the same receipts in another order give the same summary.

    Raises:
        StoreError: A receipt is not of this plan or has an unknown outcome.
    """
    tallies = tally_receipts(plan, receipts, CONTROLS)
    headline = [tally for tally in tallies if not tally.is_control] or tallies
    share = len(plan.tasks) * plan.spec.tries
    buckets = _buckets(headline, share)
    return Summary.model_validate({
        **_identity(plan),
        **buckets.model_dump(),
        **_scores(buckets, headline),
        **_categories(headline),
        **_usage(buckets, headline),
        "elapsed_sec": round(max(0.0, elapsed_s), 3),
        "population": "controls" if headline[0].is_control else "agents",
        "planned": plan.size,
        "controls": _buckets([tally for tally in tallies if tally.is_control], share),
        "retries": _retries(tallies, account),
        "budget": None if account is None else account.budget,
        "groups": tuple(_group(tally, share, plan.spec.tries) for tally in tallies),
        "failures": tuple(_failures(plan, tallies)),
        "caveats": find_caveats(plan, tallies),
    })


def _identity(plan: Plan) -> dict[str, object]:
    spec = plan.spec
    models = {agent.spec.model for agent in plan.agents}
    lines = "".join(sorted(f"{task.name}\0{task.digest}\n" for task in plan.tasks))
    return {
        "job_name": plan.job,
        "agent": plan.agents[0].label if len(plan.agents) == 1 else None,
        "model": models.pop() if len(models) == 1 else None,
        "agents": tuple(agent.label for agent in plan.agents),
        "environment": plan.sandbox,
        "concurrency": spec.concurrency,
        "settings": Settings(
            tries=spec.tries,
            timeout_multiplier=spec.timeout_multiplier,
            agent_timeout_s=spec.agent_timeout_s,
            sandbox_user=spec.sandbox_user,
            max_attempts=spec.max_attempts,
            skill_mode=spec.skill_mode,
        ),
        "loop": parse_loop(spec.loop).block(),
        "n_tasks": len(plan.tasks),
        "tasks_digest": hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest(),
        "skipped_tasks": len(plan.skipped),
        "source": plan.source,
    }


def _buckets(tallies: Sequence[Tally], share: int) -> Counts:
    outcomes = {str(name): sum(tally.outcomes[name] for tally in tallies) for name in Outcome}
    total = share * len(tallies)
    return Counts(total=total, unfinished=total - sum(outcomes.values()), **outcomes)


def _scores(buckets: Counts, tallies: Sequence[Tally]) -> dict[str, object]:
    ratio = _share(buckets.passed, buckets.counted)
    scored_ratio = _share(buckets.passed, buckets.scored)
    return {
        "score": _percent(ratio),
        "score_ratio": ratio,
        "score_excl_errors": _percent(scored_ratio),
        "score_excl_errors_ratio": scored_ratio,
        "mean_reward": mean(reward for tally in tallies for reward in tally.rewards),
    }


def _categories(tallies: Sequence[Tally]) -> dict[str, object]:
    found: dict[str, Counter[str]] = {Outcome.ERRORED: Counter(), Outcome.VERIFIER_ERRORED: Counter()}
    for tally in tallies:
        for (outcome, code), cause in tally.causes.items():
            if outcome in found:
                found[outcome][_kind(outcome, code).category] += cause.count
    return {
        "error_categories": dict(sorted(found[Outcome.ERRORED].items())) or None,
        "verifier_error_categories": dict(sorted(found[Outcome.VERIFIER_ERRORED].items())) or None,
    }


def _usage(buckets: Counts, tallies: Sequence[Tally]) -> dict[str, object]:
    costs = [cost for tally in tallies for cost in tally.costs]
    tokens = [count for tally in tallies for count in tally.tokens]
    walls = [wall for tally in tallies for wall in tally.walls]
    skills = [uses for tally in tallies for uses in tally.skill_uses]
    return {
        "total_tokens": sum(tokens) if tokens else None,
        "telemetry_coverage": _share(len(tokens), buckets.counted),
        "total_cost_usd": _money(math.fsum(costs)) if costs else None,
        "avg_cost_per_trial_usd": _money(math.fsum(costs) / len(costs)) if costs else None,
        "cost_coverage": _share(len(costs), buckets.counted),
        "total_skill_invocations": sum(skills) if skills else None,
        "avg_skill_invocations": round(sum(skills) / len(skills), 2) if skills else None,
        "total_time_sec": round(math.fsum(walls), 1),
        "avg_total_time_sec": round(math.fsum(walls) / len(walls), 1) if walls else None,
        "max_total_time_sec": round(max(walls), 1) if walls else None,
    }


def _group(tally: Tally, share: int, tries: int) -> AgentGroup:
    buckets = _buckets([tally], share)
    counts = tally.task_counts
    effect = design_effect(counts)
    interval: tuple[float | None, float | None] = (None, None)
    if buckets.scored:
        interval = wilson_interval(buckets.passed, buckets.scored, effect=effect)
    return AgentGroup(
        **buckets.model_dump(),
        agent=tally.agent.label,
        model=tally.agent.spec.model,
        is_control=tally.is_control,
        score=_share(buckets.passed, buckets.counted),
        scored_rate=_share(buckets.passed, buckets.scored),
        interval_low=interval[0],
        interval_high=interval[1],
        design_effect=effect,
        mean_reward=mean(tally.rewards),
        cost_usd=_money(math.fsum(tally.costs)) if tally.costs else None,
        cost_coverage=_share(len(tally.costs), buckets.counted),
        tokens=sum(tally.tokens) if tally.tokens else None,
        token_coverage=_share(len(tally.tokens), buckets.counted),
        skill_uses=sum(tally.skill_uses) if tally.skill_uses else None,
        solve_rates=_solve_rows(counts) if tries > 1 else (),
    )


def _solve_rows(counts: Sequence[tuple[int, int]]) -> tuple[SolveRateRow, ...]:
    return tuple(
        SolveRateRow(
            k=rate.k,
            pass_at_k=rate.pass_at_k,
            pass_hat_k=rate.pass_hat_k,
            n_tasks=rate.n_tasks,
            n_short=rate.n_short,
        )
        for rate in solve_rates(counts)
    )


def _retries(tallies: Sequence[Tally], account: Account | None) -> Retries:
    codes: Counter[str] = Counter()
    for tally in tallies:
        for (outcome, code), cause in tally.causes.items():
            if cause.repeated and outcome not in SCORED:
                codes[code] += cause.repeated
    return Retries(
        attempts=sum(tally.retried for tally in tallies),
        trials=sum(tally.repeated for tally in tallies),
        recovered=sum(tally.recovered for tally in tallies),
        codes=dict(sorted(codes.items())),
        causes={} if account is None else dict(sorted(account.retry_codes.items())),
    )


def _failures(plan: Plan, tallies: Sequence[Tally]) -> Iterator[FailureGroup]:
    """Yield the causes over all agents: no verdict before verdict, most trials first."""
    merged: dict[tuple[str, str], Cause] = {}
    for tally in tallies:
        for key, cause in tally.causes.items():
            whole = merged.setdefault(key, Cause())
            whole.count += cause.count
            whole.retried += cause.retried
            whole.tasks |= cause.tasks
    for outcome, code in sorted(merged, key=lambda key: (key[0] in SCORED, -merged[key].count, key)):
        cause = merged[outcome, code]
        kind = _kind(outcome, code)
        names = tuple(plan.tasks[position].name for position in sorted(cause.tasks)[:LISTED_TASKS])
        yield FailureGroup(
            outcome=Outcome(outcome),
            code=code,
            label=kind.label,
            category=kind.category,
            fault=kind.fault,
            count=cause.count,
            # Attempts lost on the way to another end are the job's retries, not this cause's.
            retried=cause.retried if kind.is_retried else 0,
            n_tasks=len(cause.tasks),
            tasks=names,
            next_step=kind.next_step.format(job=plan.job, task=names[0]),
        )


def _kind(outcome: str, code: str) -> FailureKind:
    """Return what is known about a code; a newer worker's code is shown as it is."""
    if known := FAILURES.get(code):
        return known
    if outcome == Outcome.UNSCORED and not code:
        return FailureKind("nothing to score", "other", Fault.AGENT, "error", False, "")
    is_verifier = outcome == Outcome.VERIFIER_ERRORED
    return FailureKind(
        label=code or "no cause recorded",
        category="verifier_other" if is_verifier else "other",
        fault=Fault.INFRASTRUCTURE,
        side="verifier_error" if is_verifier else "error",
        is_retried=False,
        next_step="",
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(ratio: float | None) -> str | None:
    """Return `xx.x%`; only a whole is called 100.0%, only nothing 0.0%."""
    if ratio is None:
        return None
    shown = ratio if ratio in {0.0, 1.0} else min(max(ratio, 0.001), 0.999)
    return f"{shown:.1%}"


def _money(cost_usd: float) -> float:
    """Round to the ten decimals of the format, below any price of a token."""
    return round(cost_usd, 10)
