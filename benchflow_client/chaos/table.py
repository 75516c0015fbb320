"""A chaos run for people: what was done, what was checked, what is to be thought of it."""

from __future__ import annotations

from collections import Counter

from benchflow_client.chaos.records import ChaosReport, Injection, Invariant
from benchflow_client.report import Column, Line, Report, Row, Table
from benchflow_client.wording import NONE, plural

_WORDS = {True: "holds", False: "BROKEN", None: "not seen"}


def chaos_report(report: ChaosReport) -> Report:
    """Return the report of a chaos run."""
    counted = Counter(injection.fault for injection in report.injections)
    last = {injection.fault: injection for injection in report.injections}
    names = dict.fromkeys((*counted, *report.planned))
    faults = tuple(_fault(name, counted[name], last.get(name)) for name in names)
    done = ", ".join(f"{count} {name}" for name, count in report.outcomes.items()) or "none ended"
    return (
        Table(
            (
                Column("fault"),
                Column("times", "right"),
                Column("last at (s)", "right"),
                Column("last", shrink=1),
            ),
            faults,
        ),
        Line(""),
        Table(
            (Column("must hold"), Column(""), Column("what was seen")), tuple(map(_row, report.invariants))
        ),
        Line(""),
        Line(
            f"{plural(report.trials, 'trial')} ({done}), {report.retried} executed again, "
            f"{report.took_s:.0f} s, seed {report.seed}",
            label=report.job,
        ),
        _verdict(report),
    )


def _fault(name: str, count: int, last: Injection | None) -> Row:
    if last is None:
        return Row((name, "0", NONE, NONE))
    return Row((name, str(count), f"{last.at_s:.1f}", last.text))


def _row(invariant: Invariant) -> Row:
    is_long = invariant.holds is False
    cells = (invariant.name, _WORDS[invariant.holds], NONE if is_long else invariant.text)
    return Row(cells, notes=(invariant.text,) if is_long else (), tone="bad" if is_long else "plain")


def _verdict(report: ChaosReport) -> Line:
    broken = [invariant.name for invariant in report.invariants if invariant.holds is False]
    if broken:
        return Line(f"broken: {', '.join(broken)}", label="chaos", tone="bad")
    if report.missed:
        text = f"not proven: {', '.join(report.missed)} did not come; give it more --seconds or --trials"
        return Line(text, label="chaos", tone="bad")
    return Line("nothing was lost, nothing counted twice, nothing left behind", label="chaos", tone="good")
