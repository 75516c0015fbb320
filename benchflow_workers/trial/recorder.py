"""Writes what an attempt leaves: config.json first, result.json last."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchflow_client.catalog.failures import FAILURES
from benchflow_client.errors import StoreError
from benchflow_client.results.verifiers_row import to_verifiers_row
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.loop import loop_report, parse_loop
from benchflow_client.schema.recovery import SOLVER_COMPLETE, recovery_name
from benchflow_client.schema.trial import Outcome, StepResult, Timing, TrialResult, scalar_reward
from benchflow_client.store.base import Store
from benchflow_client.store.documents import json_document, json_lines, plain_json, write_document
from benchflow_client.store.layout import attempt_prefix, result_key
from benchflow_workers.trial.captured import place_captured
from benchflow_workers.trial.frozen import place_evidence
from benchflow_workers.trial.live import TRAJECTORY
from benchflow_workers.trial.records import STEPS_DIR, Attempt, Rollout, frozen_room
from benchflow_workers.trial.redact import Redactor

_OWN_DOCUMENTS = ("config.json", SOLVER_COMPLETE, "result.json")
"""Written straight into the store; a sandbox may not leave anything in their place."""

SEPARATE_DIR = "verifier-sandbox"
"""Folder of an attempt for the record of the tests' own sandbox."""


def write_config(store: Store, attempt: Attempt) -> None:
    """Write what is about to run; an attempt with this and no result was interrupted."""
    trial, spec = attempt.trial, attempt.plan.spec
    config = {
        "schema_version": 1,
        "job": attempt.plan.job,
        "trial": trial.id,
        "attempt": attempt.number,
        "try_number": trial.try_number,
        "task_name": trial.task.name,
        "task_digest": trial.task.digest,
        "agent": trial.agent.label,
        "model": trial.agent.spec.model,
        "effort": trial.agent.spec.effort,
        "agent_definition": None
        if trial.agent.definition is None
        else trial.agent.definition.model_dump(mode="json", exclude_defaults=True),
        "agent_env": [item.partition("=")[0] for item in trial.agent.spec.env],
        "environment": attempt.plan.sandbox,
        "sandbox_user": spec.sandbox_user,
        "skill_mode": spec.skill_mode,
        "skills": None if attempt.plan.skills is None else attempt.plan.skills.model_dump(mode="json"),
        "loop": parse_loop(spec.loop).block(),
        "user": spec.user,
        "timeout_multiplier": spec.timeout_multiplier,
        "agent_timeout_s": trial.agent.spec.timeout_s,
        "worker": attempt.worker,
        "started_at": attempt.started_at.isoformat(),
    }
    store.put(attempt_prefix(attempt.plan.job, attempt.folder) + "config.json", json_document(config))


def result_of(attempt: Attempt, rollout: Rollout, redactor: Redactor) -> TrialResult:
    """Return the result document of a finished rollout, redacted."""
    failures = tuple(_redacted(failure, redactor) for failure in rollout.failures)
    finished = utc_now()
    seconds = {**rollout.seconds, "total": (finished - attempt.started_at).total_seconds()}
    return TrialResult(
        job=attempt.plan.job,
        trial=attempt.trial.id,
        index=attempt.trial.index,
        attempt=attempt.number,
        try_number=attempt.trial.try_number,
        task_name=attempt.trial.task.name,
        task_digest=attempt.trial.task.digest,
        rollout_name=attempt.folder,
        agent=attempt.trial.agent.label,
        agent_version=redactor.text(_version(attempt, rollout)),
        model=attempt.trial.agent.spec.model,
        sandbox=attempt.plan.sandbox,
        sandbox_id=rollout.sandbox_id,
        worker=attempt.worker,
        skill_mode=attempt.plan.spec.skill_mode,
        outcome=outcome_of(rollout),
        rewards=None if rollout.rewards is None else redactor.value(plain_json(rollout.rewards)),
        **_sides(failures),
        steps=tuple(_step_result(name, step, redactor) for name, step in rollout.steps),
        sessions=rollout.sessions,
        loop=loop_report(parse_loop(attempt.plan.spec.loop), rollout.rounds),
        failures=failures,
        warnings=tuple(redactor.text(warning) for warning in rollout.warnings),
        agent_exit_code=rollout.agent_exit_code,
        agent_result=rollout.usage,
        frozen=rollout.frozen,
        timing=_timing(seconds),
        started_at=attempt.started_at,
        finished_at=finished,
    )


def _version(attempt: Attempt, rollout: Rollout) -> str:
    """Return the version a ready-made agent is pinned to, and what the agent says it is."""
    definition = attempt.trial.agent.definition
    pinned = "" if definition is None else definition.version
    said = rollout.agent_version
    return f"{pinned} ({said})" if pinned and said else pinned or said


def _step_result(name: str, rollout: Rollout, redactor: Redactor) -> StepResult:
    error = rollout.failures[0].message if rollout.failures else None
    return StepResult(
        name=name,
        reward=scalar_reward(rollout.rewards),
        rewards=None if rollout.rewards is None else redactor.value(plain_json(rollout.rewards)),
        error=None if error is None else redactor.text(error),
        timings=_timing({**rollout.seconds, "total": sum(rollout.seconds.values())}),
    )


def _timing(seconds: Mapping[str, float]) -> Timing:
    return Timing(**{name: round(value, 3) for name, value in seconds.items()})


def outcome_of(rollout: Rollout) -> Outcome:
    """Return how a rollout counts: a reward beats any failure text; what is no finite number is none."""
    reward = (rollout.rewards or {}).get("reward")
    if isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward):
        return Outcome.PASSED if reward >= 1.0 else Outcome.FAILED
    if not rollout.failures:
        return Outcome.UNSCORED
    if any(FAILURES[failure.code].side == "verifier_error" for failure in rollout.failures):
        return Outcome.VERIFIER_ERRORED
    return Outcome.ERRORED


def write_attempt(
    store: Store, result: TrialResult, rollout: Rollout, *, folder: Path, redactor: Redactor
) -> None:
    """Write all files of an attempt, then its result; arguments as of `write_artifacts`.

    Raises:
        StoreError: Nothing says that the attempt finished.
    """
    write_artifacts(store, result, rollout, folder=folder, redactor=redactor)
    write_document(store, result_key(result.job, result.rollout_name), result)


def write_artifacts(
    store: Store, result: TrialResult, rollout: Rollout, *, folder: Path, redactor: Redactor
) -> None:
    """Write all files of an attempt but its result: without one, no reader counts it.

    Args:
        store: Where to.
        result: The result document.
        rollout: What the attempt has come to.
        folder: Folder on this host with collected logs and artifacts; the rest is added here.
        redactor: Masks secrets in all of it.

    Raises:
        StoreError: They could not be put together or stored.
    """
    prefix = attempt_prefix(result.job, result.rollout_name)
    try:
        _add_files(folder, result, rollout)
        for name in _OWN_DOCUMENTS:
            _clear(folder / name)
        place_captured(folder)
        redactor.tree(folder)
        if rollout.frozen is not None:
            place_evidence(frozen_room(folder), folder)
    except OSError as error:
        raise StoreError(
            f"The files of trial {result.trial!r} cannot be put together on this worker: {error}.",
            hint="Free space in the worker's state folder.",
        ) from error
    if folder.is_dir():
        store.put_tree(prefix, folder)


def _add_files(folder: Path, result: TrialResult, rollout: Rollout) -> None:
    """Add what there is; an attempt that never ran a command leaves its result alone."""
    if rollout.agent_log:
        _write(folder, ("agent", _log_name(result)), rollout.agent_log)
    if rollout.test_output is not None:
        _write(folder, ("verifier", "test-stdout.txt"), rollout.test_output)
        row = to_verifiers_row(result, example_id=result.index)
        _write(folder, ("results.jsonl",), json_lines([row]))
    for name, step in rollout.steps:
        place = folder / STEPS_DIR / name
        if step.agent_log:
            _write(place, ("agent", _log_name(result)), step.agent_log)
        if step.test_output is not None:
            _write(place, ("verifier", "test-stdout.txt"), step.test_output)
    _add_records(folder, rollout)
    if rollout.events:
        _write(folder, tuple(TRAJECTORY.split("/")), json_lines(rollout.events))
    _add_rounds(folder, result, rollout)
    if result.reward is not None:
        _write(folder, ("rewards.jsonl",), json_lines(_reward_events(result)))
    if folder.is_dir():
        _write(folder, ("timing.json",), json_document(result.timing.model_dump(exclude_none=True)))


def _add_records(folder: Path, rollout: Rollout) -> None:
    """Add what became of the tests' own sandbox, and of work that was verified again."""
    if rollout.separate is not None:
        record = json_document(rollout.separate.model_dump(mode="json"))
        _write(folder, (SEPARATE_DIR, f"{SEPARATE_DIR}.json"), record)
    if rollout.recovery is not None:
        record = json_document(rollout.recovery.model_dump(mode="json"))
        _write(folder, tuple(recovery_name(rollout.recovery.evidence_folder).split("/")), record)


def _add_rounds(folder: Path, result: TrialResult, rollout: Rollout) -> None:
    """Add what each round of a user or a loop came to, where there are rounds."""
    if not rollout.rounds:
        return
    if result.loop.iterations is None:
        _write(folder, ("user_rounds.jsonl",), json_lines([row.user_row() for row in rollout.rounds]))
    else:
        _write(folder, ("loop", "iterations.jsonl"), json_lines([row.iteration() for row in rollout.rounds]))


def _log_name(result: TrialResult) -> str:
    return f"{result.agent.replace('/', '_')}.txt"


def _reward_events(result: TrialResult) -> tuple[dict[str, Any], ...]:
    event = {
        "ts": result.finished_at.isoformat(),
        "type": "terminal",
        "source": "verifier",
        "value": result.reward,
        "step_index": None,
        "space": "output",
        "granularity": "terminal",
    }
    rubric = (result.rewards or {}).get("rubric", [])
    return (*(_dense_event(event, item) for item in rubric), event)


def _dense_event(terminal: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return the event of one criterion, before that of the whole."""
    space, name = item.get("space", "output"), item.get("name")
    return {
        **terminal,
        "type": "dense",
        "name": name,
        "value": item.get("score"),
        "space": space,
        "granularity": "criterion",
    }


def _write(folder: Path, parts: tuple[str, ...], data: bytes) -> None:
    """Write a file of ours below the folder; what a sandbox left in its place goes."""
    for part in parts[:-1]:
        folder /= part
        if folder.is_file():
            folder.unlink()
    path = folder / parts[-1]
    _clear(path)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _clear(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _redacted(failure: Failure, redactor: Redactor) -> Failure:
    return failure.model_copy(
        update={
            "message": redactor.text(failure.message),
            "hint": redactor.text(failure.hint),
            "detail": redactor.text(failure.detail),
        }
    )


def _sides(failures: tuple[Failure, ...]) -> dict[str, str | None]:
    """Return the two error fields of the format: first failure of each side."""
    fields: dict[str, str | None] = {}
    for failure in reversed(failures):
        kind = FAILURES[failure.code]
        fields[kind.side] = failure.message
        fields[f"{kind.side}_category"] = kind.category
    return fields
