"""What makes a trial the same trial: a digest of everything that can change its score.

Nothing is stored for it: a key is derived from a plan, by this program or a later one,
so that jobs of any age have one. Names, folders, times and random ids are no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.loop import SINGLE_SHOT
from benchflow_client.schema.plan import Plan, PlannedAgent
from benchflow_client.schema.skills import NO_SKILL

__all__ = [
    "CAPS",
    "EXPANDED",
    "KEEPING",
    "NAMING",
    "PACE",
    "Difference",
    "differences",
    "job_identity",
    "trial_keys",
]

EXPANDED = frozenset({
    "tasks",
    "include",
    "exclude",
    "limit",
    "skip_invalid",
    "agent",
    "model",
    "agent_env",
    "agent_timeout_s",
    "agent_idle_timeout_s",
    "effort",
    "sandbox",
    "skills_dir",
    "skill_creator_dir",
})  # fmt: skip
"""Settings of a job that the plan holds expanded, as tasks, agents, kind of sandbox and folders of skills."""

PACE = frozenset({
    "concurrency",
    "max_attempts",
    "weight",
    "priority",
    "stop_after_failures",
    "trial_cost_usd",
    "trial_tokens",
})  # fmt: skip
"""Settings that say how a job shares the fleet, not what it measures."""

CAPS = frozenset({"max_cost_usd", "max_tokens", "max_sandbox_seconds", "max_trials", "deadline_s"})
"""Settings that say what a job may use."""

NAMING = frozenset({"job_name", "jobs_dir"})
"""Settings that say what a job is called and where its results go."""

KEEPING = frozenset({"freeze_workspace"})
"""Settings that say what is kept of a trial after its agent has ended."""

YOUNGER: Mapping[str, Any] = {
    "separate_verifier": False,
    "separate_verifier_include": [],
    "loop": SINGLE_SHOT,
    "capture_tokens": "off",
    "skill_mode": NO_SKILL,
    "temperature": None,
    "top_p": None,
    "max_output_tokens": None,
}
"""Settings that came after the first keys, with the value that is as if they were not there."""

YOUNGER_OF_AGENTS: Mapping[str, Any] = {
    "idle_timeout_s": 600.0,
    "protocol": None,
    "version": None,
    "effort": None,
}
"""The same of an agent."""

_DIGITS = 12  # of a digest, shown to people


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which two plans differ."""

    key: str  # setting, `task NAME`, `agent LABEL`, or a setting of an agent
    old: str  # `–` = it was not there
    new: str  # `–` = it is not there any more

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


def trial_keys(plan: Plan) -> Iterator[str]:
    """Yield the key of every trial, in order of index: 64 hex digits, the same on any machine."""
    run = _digest({**_settings(plan), "sandbox": plan.sandbox})
    agents = {agent.slug: _digest(_older(_agent(agent))) for agent in plan.agents}
    for index in range(plan.size):
        trial = plan.trial(index)
        parts = (trial.task.digest, agents[trial.agent.slug], run, str(trial.try_number))
        yield hashlib.sha256("\n".join(parts).encode()).hexdigest()


def job_identity(plan: Plan) -> str:
    """Return the digest of a plan's trials in any order; equal = the same trials would run."""
    return hashlib.sha256("\n".join(sorted(trial_keys(plan))).encode()).hexdigest()


def differences(old: Plan, new: Plan) -> tuple[Difference, ...]:
    """Return in what two plans differ that can change a score; empty when they are the same job."""
    if job_identity(old) == job_identity(new):
        return ()
    return (
        *_between(_settings(old), _settings(new)),
        *_between({"sandbox": old.sandbox, "tries": old.spec.tries}, {"sandbox": new.sandbox, "tries": new.spec.tries}),
        *_between(_tasks(old), _tasks(new)),
        *_agent_differences(old, new),
    )  # fmt: skip


def _settings(plan: Plan) -> dict[str, Any]:
    """Return the settings that count for every trial; a new field of the job counts until it is listed.

    One that says nothing (None, or as in `YOUNGER`) is left out, so that it changes no key of jobs that are older than it.
    """
    others = {*EXPANDED, *PACE, *CAPS, *NAMING, *KEEPING, "tries"}
    settings = plan.spec.model_dump(mode="json", exclude=others, exclude_none=True)
    folders = {"skills_dir": plan.skills, "skill_creator_dir": plan.skill_creator}
    settings |= {name: f"content {skills.bundle}" for name, skills in folders.items() if skills is not None}
    return {name: value for name, value in settings.items() if name not in YOUNGER or value != YOUNGER[name]}


def _tasks(plan: Plan) -> dict[str, Any]:
    return {f"task {task.name}": task.digest[:_DIGITS] for task in plan.tasks}


def _agent(agent: PlannedAgent) -> dict[str, Any]:
    """Return what counts of an agent: a script by its content, variables by name with their last value."""
    values = (item.partition("=") for item in agent.spec.env)
    return {
        **agent.spec.model_dump(mode="json", exclude={"name", "env"}),
        "name": agent.script or agent.spec.name,
        "script": agent.bundle,
        **_definition(agent.definition),
        "env": {name: value if separator else None for name, separator, value in values},
    }


def _definition(definition: AgentDefinition | None) -> dict[str, str]:
    """Return what counts of how a ready-made agent is installed and started, under its version for people."""
    if definition is None:
        return {}
    digest = _digest(
        definition.model_dump(mode="json", exclude={"description", "aliases"}, exclude_defaults=True)
    )
    return {"definition": f"{definition.version} ({digest[:_DIGITS]})"}


def _older(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent without the younger settings that say nothing."""
    return {key: value for key, value in agent.items() if (key, value) not in YOUNGER_OF_AGENTS.items()}


def _agent_differences(old: Plan, new: Plan) -> Iterator[Difference]:
    before, after = _agents(old), _agents(new)
    yield from _between(
        {f"agent {label}": agent["name"] for label, agent in before.items()},
        {f"agent {label}": agent["name"] for label, agent in after.items()},
    )
    for label in before:
        if label in after:
            yield from _between(_flat(label, before[label]), _flat(label, after[label]))


def _agents(plan: Plan) -> dict[str, dict[str, Any]]:
    return {agent.label: _agent(agent) for agent in plan.agents}


def _flat(label: str, agent: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's settings under the names a person gave them; a variable read on a worker has no value."""
    values = {f"agent {label}, {name}": value for name, value in agent.items() if name != "env"}
    script = values[f"agent {label}, script"]
    values[f"agent {label}, script"] = script and script[:_DIGITS]
    env = {
        f"agent {label}, variable {name}": "set by the worker" if value is None else value
        for name, value in agent["env"].items()
    }
    return values | env


def _between(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if before != after:
            yield Difference(key, _shown(before), _shown(after))


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
