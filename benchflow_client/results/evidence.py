"""One line per cause of failure that shows it: what a person would look up first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from benchflow_client.results.read import PublishedTrial
from benchflow_client.schema.summary import Summary

_WIDTH = 160


def evidence_of(trials: Callable[[], Iterable[PublishedTrial]], summary: Summary) -> Mapping[str, str]:
    """Return failure code -> the message of the first trial that ended so.

    Args:
        trials: Yields the job's trials; only asked where there are failures.
        summary: The job's summary.
    """
    wanted = {group.code for group in summary.failures if group.code}
    found: dict[str, str] = {}
    if not wanted:
        return found
    for trial in trials():
        for failure in trial.result.failures if trial.result else ():
            if failure.code in wanted:
                wanted.discard(failure.code)
                found[failure.code] = _line(failure.message, failure.detail)
        if not wanted:
            break
    return found


def _line(message: str, detail: str) -> str:
    last = detail.strip().splitlines()[-1:] or [""]
    text = f"{message} {last[0]}".strip()
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
