"""What a job is about to do, what it came to, and why trials have no verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from benchflow_client.report.blocks import Column, Line, Report, Row, Table
from benchflow_client.schema.loop import SINGLE_SHOT
from benchflow_client.wording import NONE, flag, money, name_some, plural, ratio, span, tokens

if TYPE_CHECKING:  # the records are only read here, and pydantic is the slow part of starting
    from benchflow_client.schema.plan import Plan
    from benchflow_client.schema.summary import AgentGroup, BudgetReport, FailureGroup, Retries, Summary

_LISTED_CAUSES = 12  # causes printed at the end of a run; the summary has all


def plan_report(plan: Plan, *, fleet: str) -> Report:
    """Return what is about to run.

    Args:
        plan: The expanded plan.
        fleet: Who will run it, e.g. ``embedded (1 worker, 4 slots)``; empty = not known.
    """
    spec = plan.spec
    parts = (plural(len(plan.tasks), "task"), plural(len(plan.agents), "agent"), _tries(spec.tries))
    size = f"{' x '.join(parts)} = {plural(plan.size, 'trial')}"
    gpus = f", workers with GPUs ({plan.queue})" if plan.needs_gpus else ""
    lines = [
        Line(f"{size} · sandbox {plan.sandbox}{gpus} · {spec.concurrency} at once", label="plan"),
        Line(f"settings that change a score: {', '.join(_settings(plan))}", label=" ", tone="dim"),
    ]
    if plan.skipped:
        text = f"left out, cannot be read: {name_some(plan.skipped, most=5)}"
        lines.append(Line(text, label=" ", tone="warn"))
    name = f"job  {plan.job}"
    lines.append(Line(f"{fleet}        {name}", label="fleet") if fleet else Line(plan.job, label="job"))
    return tuple(lines)


def summary_report(summary: Summary) -> Report:
    """Return the numbers of a job: a row per agent, then what to know about them."""
    is_mixed = summary.population == "agents"
    groups = sorted(summary.groups, key=lambda group: group.is_control)
    is_whole = all(group.counted == group.scored for group in groups)
    interval = "95% interval" if is_whole else "of scored, 95%"
    columns = (
        Column("agent", shrink=1),
        Column("passed", "right"),
        Column("score", "right"),
        Column(interval, "right", short="95%" if is_whole else interval),
        Column("mean reward", "right", short="reward", is_optional=True),
        Column("unscored", "right"),
        Column("cost", "right", is_optional=True),
    )
    rows = tuple(_agent_row(group, is_mixed=is_mixed, is_whole=is_whole) for group in groups)
    return (Table(columns, rows), *_beside_the_numbers(summary))


def failure_report(summary: Summary, *, evidence: Mapping[str, str] | None = None) -> Report:
    """Return why trials have no verdict, a row per cause; empty when there is nothing to say.

    Args:
        summary: The job's summary.
        evidence: Failure code -> one line that shows it, e.g. the first trial's message.
    """
    if not summary.failures:
        return ()
    passed = sum(group.passed for group in summary.groups)
    failed = sum(group.failed for group in summary.groups)
    text = (
        f"{passed + failed} scored ({passed} passed, {failed} failed) · "
        f"{summary.all_without_verdict} without a verdict"
    )
    columns = (Column(align="right"), Column(), Column(shrink=2), Column(shrink=1))
    shown = summary.failures[:_LISTED_CAUSES]
    table = Table(columns, tuple(_cause_row(cause, evidence or {}) for cause in shown))
    rest = len(summary.failures) - len(shown)
    more = (Line(f"{plural(rest, 'more cause')}: bench results {summary.job_name} --json", tone="dim"),)
    return (Line(text, label="outcomes"), table, *(more if rest else ()))


def done_report(summary: Summary, *, folder: str) -> Report:
    """Return the last line of a run: how long, where the results are, what comes next."""
    job = summary.job_name
    return (Line(f"done in {span(summary.elapsed_sec)} · results {folder} · next: bench results {job}"),)


def detached_report(job: str) -> Report:
    """Return what a person reads who leaves a job running on the fleet."""
    return (Line(f"still running on the fleet · watch: bench watch {job} · stop: bench cancel {job}"),)


def _tries(tries: int) -> str:
    return "1 try" if tries == 1 else f"{tries} tries"


def _settings(plan: Plan) -> Iterator[str]:
    spec = plan.spec
    yield f"timeouts x{spec.timeout_multiplier:g}" if spec.timeout_multiplier != 1 else "timeouts x1.0"
    own = {agent.spec.timeout_s for agent in plan.agents} - {None}
    if own:
        yield "agent " + " / ".join(f"{seconds:g} s" for seconds in sorted(filter(None, own)))
    yield "network as each task says"
    for name in ("temperature", "top_p", "max_output_tokens"):
        if (value := getattr(spec, name)) is not None:
            yield f"{name} {value:g}"
    if spec.loop != SINGLE_SHOT:
        yield f"loop {spec.loop}"
    if spec.user is not None:
        yield f"user {spec.user}"
    yield from _skills(plan)
    if spec.sandbox_user == "root":
        yield "agent runs as root: tests are not protected"
    if spec.separate_verifier:
        yield "tests in a sandbox of their own"
    if spec.limit or spec.include or spec.exclude:
        yield "a part of the tasks"


def _skills(plan: Plan) -> Iterator[str]:
    if plan.spec.skill_mode == "self-gen":
        yield "skills that agents write first"
    elif plan.skills is not None:
        yield f"skills {name_some(plan.skills.names, most=5)}"
    elif plan.spec.skill_mode == "with-skill":
        yield "skills of each task"


def _agent_row(group: AgentGroup, *, is_mixed: bool, is_whole: bool) -> Row:
    interval = f"{ratio(group.interval_low)} – {ratio(group.interval_high)}"
    if group.scored == 0:
        interval = NONE
    elif not is_whole:
        interval = f"{ratio(group.scored_rate)} ({interval.replace(' ', '')})"
    cells = (
        f"{group.agent} *" if is_mixed and group.is_control else group.agent,
        f"{group.passed}/{group.counted}",
        ratio(group.score),
        interval,
        ratio(group.mean_reward),
        str(group.without_verdict),
        money(group.cost_usd, coverage=group.cost_coverage),
    )
    return Row(cells, tone="dim" if is_mixed and group.is_control else "plain")


def _beside_the_numbers(summary: Summary) -> Iterator[Line]:
    if summary.population == "agents" and summary.controls.total:
        yield Line(" * control: checks the tasks, is in no agent's numbers", tone="dim")
    for group in summary.groups:
        if not group.is_control and (text := _solved(group)):
            yield Line(text)
    unfinished = sum(group.unfinished for group in summary.groups)
    if unfinished:
        yield Line(f"{plural(unfinished, 'trial')} unfinished: these numbers will change.", "note", "warn")
    if usage := _usage(summary):
        yield Line(usage, tone="dim")
    if summary.settings.skill_mode != "no-skill" and summary.avg_skill_invocations is not None:
        text = f"skills ({summary.settings.skill_mode}): used {summary.avg_skill_invocations:g} times a trial"
        yield Line(text, tone="dim")
    if budget := summary.budget:
        yield from _budget(summary.job_name, budget)
    for caveat in summary.caveats:
        yield Line(caveat, label="note", tone="warn")


def _budget(job: str, budget: BudgetReport) -> Iterator[Line]:
    if budget.stopped:
        more = f" {flag(budget.stopped_by)} N" if budget.stopped_by else ""
        yield Line(f"stopped: {budget.reason} · go on: bench resume {job}{more}", "note", "warn")
    if "max_cost_usd" in budget.caps and budget.usd_unknown_attempts:
        unknown = plural(budget.usd_unknown_attempts, "attempt")
        yield Line(f"{unknown} told no cost, so --max-cost-usd could not count them.", "note", "warn")
    if "max_tokens" in budget.caps and budget.tokens_unknown_attempts:
        unknown = plural(budget.tokens_unknown_attempts, "attempt")
        yield Line(f"{unknown} told no tokens, so --max-tokens could not count them.", "note", "warn")


def _solved(group: AgentGroup) -> str:
    """Return the rates of the largest k every scored task allows; empty when only k = 1 is."""
    whole = [rate for rate in group.solve_rates if rate.k > 1 and rate.pass_at_k is not None]
    if not whole:
        return ""
    best = whole[-1]
    text = f"{group.agent}: at least one of {best.k} tries passes {ratio(best.pass_at_k)}"
    return f"{text}, all of them {ratio(best.pass_hat_k)}"


def _usage(summary: Summary) -> str:
    if summary.total_tokens is None and not summary.retries.attempts:
        return ""
    parts = [_retries(summary.retries)] if summary.retries.attempts else []
    if summary.total_tokens is not None:
        parts.append(f"{tokens(summary.total_tokens, coverage=summary.telemetry_coverage)} tokens")
    return " · ".join(parts)


def _retries(retries: Retries) -> str:
    text = f"retried {retries.attempts}x after infrastructure failures"
    causes = ", ".join(f"{code} {count}" for code, count in retries.causes.items())
    return f"{text} ({causes}; {_ends(retries)})" if causes else text


def _ends(retries: Retries) -> str:
    """Return what became of the trials that were executed again: a verdict, an end without one, or neither."""
    lost = sum(number for code, number in retries.codes.items() if code)
    counts = (
        (retries.recovered, "reached a verdict"),
        (retries.trials - retries.recovered - lost, "ended without a score"),
        (lost, "failed again"),
    )
    parts = [f"{number} {what}" for number, what in counts if number > 0]
    return f"of {plural(retries.trials, 'trial')} {', '.join(parts)}" if parts else "none ended yet"


def _cause_row(cause: FailureGroup, evidence: Mapping[str, str]) -> Row:
    who = {"task": "task author"}.get(cause.fault, str(cause.fault))
    parts = [who, *_retried(cause), *(["scored"] if cause.has_verdict else [])]
    names = name_some(cause.tasks, total=cause.n_tasks)
    shown = evidence.get(cause.code) or cause.label
    notes = (shown, *([f"next: {cause.next_step}"] if cause.next_step else []))
    cells = (str(cause.count), cause.code or str(cause.outcome), " · ".join(parts), f"tasks: {names}")
    return Row(cells, notes=notes)


def _retried(cause: FailureGroup) -> Iterable[str]:
    return [f"retried {cause.retried}x"] if cause.retried else []
