"""What a reader must know before believing a number: one sentence each, most serious first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchflow_client.schema.plan import Plan
from benchflow_client.schema.trial import Outcome
from benchflow_client.stats.tally import Tally
from benchflow_client.wording import name_some, plural

__all__ = ["find_caveats"]

_UNRELIABLE = 0.2  # share of trials lost to verifiers above which BenchFlow warns, too


def find_caveats(plan: Plan, tallies: Sequence[Tally]) -> tuple[str, ...]:
    """Return the caveats of a job's numbers; empty when they can be taken as they are."""
    return tuple(
        line
        for find in (_controls, _only_controls, _verifiers, _left_out, _partial)
        for line in find(plan, tallies)
    )


def _controls(plan: Plan, tallies: Sequence[Tally]) -> Iterator[str]:
    for tally in tallies:
        if not tally.is_control:
            continue
        name = tally.agent.spec.name
        if name == "oracle":
            bad = [task for task, (passed, scored) in _named(plan, tally) if passed < scored]
            text = f"{name} does not pass {plural(len(bad), 'task')}: {name_some(bad)}."
        else:
            bad = [task for task, (passed, _) in _named(plan, tally) if passed]
            text = f"{name} passes {plural(len(bad), 'task')} without any work: {name_some(bad)}."
        if bad:
            yield f"{text} Do not trust a score there."


def _only_controls(_: Plan, tallies: Sequence[Tally]) -> Iterator[str]:
    if all(tally.is_control for tally in tallies):
        yield "Only controls ran: these numbers are about the tasks, not about an agent."


def _verifiers(_: Plan, tallies: Sequence[Tally]) -> Iterator[str]:
    ended = sum(tally.ended for tally in tallies)
    lost = sum(tally.outcomes[Outcome.VERIFIER_ERRORED] for tally in tallies)
    if ended and lost / ended > _UNRELIABLE:
        yield f"{lost} of {ended} trials have no verdict because of their verifier: the results may be unreliable."


def _left_out(_: Plan, tallies: Sequence[Tally]) -> Iterator[str]:
    stopped = sum(tally.outcomes[Outcome.CANCELLED] for tally in tallies)
    if stopped:
        yield f"{plural(stopped, 'trial')} cancelled and left out of every rate."
    missing = sum(tally.outcomes[Outcome.NOT_STARTED] for tally in tallies)
    if missing:
        yield f"{plural(missing, 'trial')} not started and left out of every rate: the job stopped before."


def _partial(_: Plan, tallies: Sequence[Tally]) -> Iterator[str]:
    partial = sum(tally.partial for tally in tallies if not tally.is_control)
    if partial:
        yield f"{plural(partial, 'trial')} earned part of the reward: failed in the score, part in the mean reward."


def _named(plan: Plan, tally: Tally) -> Iterator[tuple[str, tuple[int, int]]]:
    for task, counts in zip(plan.tasks, tally.task_counts, strict=True):
        yield task.name, counts
