"""Whether the turns of a task can be played: its roles by agents that exist, its user, a loop around it.

Asked for each task and agent before anything is sent, and again by the worker. Controls play
no turns: they act once, whatever the task declares, so they can run every task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeGuard

from benchflow_client.catalog.agents import find_agent
from benchflow_client.errors import UnknownAgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.loop import SINGLE_SHOT, parse_loop
from benchflow_client.schema.scenes import Role, SimulatedUser, rounds_of_rule
from benchflow_client.schema.task import Task
from benchflow_client.tasks.scenes import JOB_AGENT, PlannedTurn, document_of, planned_turns

__all__ = ["DEFAULT_ROUNDS", "is_control", "is_played_by_job", "most_rounds", "unplayable"]

DEFAULT_ROUNDS: Final = 5
"""Rounds of a user where nobody says how many."""

_SCRIPTED: Final = frozenset({"scripted", "deterministic"})
_MODELS: Final = ("claude-", "anthropic", "gpt-", "o1", "o3", "o4", "openai", "gemini", "google")
"""How names of models that could play a user begin."""

_NUDGE_KEYS: Final = frozenset({
    "mode",
    "nudge_budget",
    "branchable",
    "branch_execution",
    "confirmation_policy",
})

Reasons = Iterator[tuple[str, str]]


def unplayable(task: Task, agent: AgentSpec, job: JobSpec) -> tuple[str, ...]:
    """Return why an agent of a job cannot play a task's turns, one line each, its key first; empty = it can."""
    if is_control(agent):
        return ()
    turns = planned_turns(task)
    reasons = (
        *_roles(task, agent, turns),
        *_user(task, job),
        *_rounds(task, job, turns),
        *_soft_verify(task, job),
    )
    return tuple(f"{path}: {reason}" for path, reason in dict.fromkeys(reasons))


def is_control(agent: AgentSpec) -> bool:
    """Return whether an agent checks the task and plays no turns."""
    if agent.is_script:
        return False
    try:
        return find_agent(agent.name).is_control
    except UnknownAgentError:
        return False


def is_played_by_job(role: Role, agent: AgentSpec) -> bool:
    """Return whether the job's agent plays a role: it is asked for, or is of the name the role asks for."""
    if role.agent in {JOB_AGENT, agent.name, agent.label, agent.name.rpartition("/")[2]}:
        return True
    return not agent.is_script and _known_name(role.agent) == _known_name(agent.name)


def most_rounds(task: Task) -> int:
    """Return how many rounds the user of a task may have, its first words included."""
    user = document_of(task).user or SimulatedUser()
    rounds = (rounds_of_rule(user.stop_rule) if user.stop_rule else None) or DEFAULT_ROUNDS
    budget = _nudges(task).get("nudge_budget")
    return min(rounds, budget) if _is_count(budget) else rounds


def _roles(task: Task, agent: AgentSpec, turns: tuple[PlannedTurn, ...]) -> Reasons:
    document = document_of(task)
    if document.scenes and not turns:
        yield "scenes", "no role has a turn in them"
    for turn in turns:
        if not turn.prompt.strip():
            yield (
                "scenes",
                f"{turn.id} is told nothing; give it a prompt, or write one below the front matter",
            )
    acting = {turn.role: document.agents.roles[turn.role] for turn in turns}
    for name, role in acting.items():
        yield from ((f"agents.roles.{name}.{key}", why) for key, why in _role(role, agent))
    if acting and not any(is_played_by_job(role, agent) for role in acting.values()):
        names = ", ".join(dict.fromkeys(role.agent for role in acting.values()))
        yield "agents.roles", f"{agent.label!r} plays none of them; they are played by {names}"


def _role(role: Role, agent: AgentSpec) -> Reasons:
    """Yield why one role cannot be played."""
    if role.reasoning_effort and not _takes_effort(role, agent):
        yield "reasoning_effort", f"{role.agent!r} cannot be asked for an effort"
    if is_played_by_job(role, agent) or AgentSpec.model_validate(role.agent).is_script:
        return
    try:
        known = find_agent(AgentSpec.model_validate(role.agent).name)
        if known.is_control:
            yield "agent", f"{role.agent!r} is a control, which plays no role"
        elif known.needs_model and not role.model:
            yield "model", f"{role.agent!r} needs a model"
    except UnknownAgentError:
        yield "agent", f"this version has no agent {role.agent!r}"


def _takes_effort(role: Role, agent: AgentSpec) -> bool:
    spec = agent if is_played_by_job(role, agent) else AgentSpec.model_validate(role.agent)
    try:
        definition = None if spec.is_script else find_agent(spec.name).definition
    except UnknownAgentError:
        return True  # an agent of the user's own, whose definition the plan holds
    return definition is not None and definition.takes_effort


def _user(task: Task, job: JobSpec) -> Reasons:
    user, nudges = document_of(task).user, _nudges(task)
    if job.user is not None:
        return
    if user is not None and user.model and user.model not in _SCRIPTED:
        if user.model.startswith(_MODELS):
            yield "user.model", f"{user.model!r}: a model plays no user in this version"
        else:
            yield "user.model", f"{user.model!r} is neither a model nor one of {', '.join(sorted(_SCRIPTED))}"
    if nudges and user is None:
        yield "benchflow.nudges", "nudges need a user"
    if nudges.get("mode") not in {None, "simulated-user"}:
        yield "benchflow.nudges.mode", f"{nudges['mode']!r}: only simulated-user is run by this version"
    if nudges.get("nudge_budget") is not None and not _is_count(nudges["nudge_budget"]):
        yield "benchflow.nudges.nudge_budget", "expected a whole number from 1"
    if nudges.get("branchable"):
        yield "benchflow.nudges.branchable", "trials are not branched by this version"
    for key in sorted(map(str, nudges.keys() - _NUDGE_KEYS)):
        yield f"benchflow.nudges.{key}", "no such key"


def _rounds(task: Task, job: JobSpec, turns: tuple[PlannedTurn, ...]) -> Reasons:
    """Yield why rounds do not go together with what else the task and the job declare."""
    has_loop, own = job.loop != SINGLE_SHOT, document_of(task).user
    if has_loop and job.user is not None:
        yield "user", "a user does not go together with a loop; give one of the two"
    if has_loop and own is not None and job.user is None:
        yield "user", "a loop does not go together with the user of a task; leave --loop out"
    if has_loop and turns:
        yield "scenes", "a loop is not run over roles and scenes; leave --loop out"
    if (has_loop or job.user is not None) and task.config.steps:
        yield "steps", "steps do not go together with a loop or a user"
    if own is None and job.user is None:
        return
    for number in dict.fromkeys(turn.scene_number for turn in turns):
        roles = dict.fromkeys(turn.role for turn in turns if turn.scene_number == number)
        if len(roles) > 1:
            yield f"scenes[{number - 1}]", f"a user talks to one role in a scene, not to {', '.join(roles)}"
    if job.user is None and most_rounds(task) < len(turns):
        yield "user.stop_rule", f"{most_rounds(task)} rounds are fewer than the {len(turns)} turns"


def _soft_verify(task: Task, job: JobSpec) -> Reasons:
    """Yield why the tests of a task cannot look at the work before the agent has ended."""
    loop, has_user = parse_loop(job.loop), job.user is not None or document_of(task).user is not None
    if loop.strategy != "verify-retry" and not has_user:
        return
    verifier = task.config.verifier
    if verifier.is_separate:
        yield "verifier.sandbox", "tests in a sandbox of their own cannot run between rounds"
    if verifier.service != "main":
        yield "verifier.service", "tests run between rounds in the service 'main' only"
    if verifier.user not in {None, "root", 0, "0"}:
        yield "verifier.user", "tests between rounds are kept from the agent only where root runs them"


def _nudges(task: Task) -> dict[str, Any]:
    nudges = task.document.get("benchflow", {}).get("nudges")
    return nudges if isinstance(nudges, dict) else {}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _known_name(name: str) -> str:
    """Return the name an agent is registered under; a name nobody knows is its own."""
    try:
        return find_agent(name).name
    except UnknownAgentError:
        return name
