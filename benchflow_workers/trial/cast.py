"""Who plays the roles of a task and who talks to them: sessions and rounds, before any sandbox exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchflow_client.catalog.agents import find_agent
from benchflow_client.errors import TrialError
from benchflow_client.plan.playing import is_played_by_job, most_rounds, unplayable
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.ids import slug
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.loop import parse_loop
from benchflow_client.schema.scenes import Role, Scene
from benchflow_client.schema.task import Task
from benchflow_client.tasks.scenes import (
    PlannedTurn,
    document_of,
    planned_turns,
    sessions_of,
    with_prefix,
)
from benchflow_workers.agents.base import Agent
from benchflow_workers.agents.oracle import SOLUTION_SCRIPT
from benchflow_workers.agents.tools import MCP_CONFIG
from benchflow_workers.trial.networks import network_variables
from benchflow_workers.trial.records import Attempt, Prepared
from benchflow_workers.trial.session import Session
from benchflow_workers.trial.skills import named_skills, with_skill_set
from benchflow_workers.trial.talk import Talk
from benchflow_workers.trial.variables import resolve_templates, secret_references, secret_values
from benchflow_workers.users.base import User
from benchflow_workers.users.document import DocumentUser
from benchflow_workers.users.loops import loop_user
from benchflow_workers.users.registry import installed_user
from benchflow_workers.verifiers.base import SoftVerifier

__all__ = ["Agents", "Env", "Part", "with_turns"]


@dataclass(frozen=True, slots=True)
class Env:
    """Variables of an agent, and what must be masked of a trial's."""

    values: Mapping[str, str]
    secrets: frozenset[str]


@dataclass(frozen=True, slots=True)
class Part:
    """Who plays: what is said of an agent, and how it is started where it is a ready-made one."""

    spec: AgentSpec
    definition: AgentDefinition | None


Agents = Callable[[Part, Env], tuple[Agent, frozenset[str]]]
"""Returns the agent of a part with its model, and all that must be masked with it."""


def with_turns(whole: Prepared, attempt: Attempt, agents: Agents, environ: Mapping[str, str]) -> Prepared:
    """Return a rollout with the sessions its task's scenes are played in, or the rounds of its user or loop.

    A control, and a workspace that is judged again, play no turns.

    Args:
        whole: The rollout as if it had one turn.
        attempt: The attempt.
        agents: Returns the agent of a part.
        environ: This worker's variables, which templates of roles refer to.

    Raises:
        TrialError: `task.unsupported`: the turns cannot be played, with every reason.
            `user.unknown`: the job's user is not installed here.
        AgentError: `agent.env_missing`: a role needs a variable that is not set.
    """
    if attempt.plan.regrade is not None or whole.agent.is_control or not _runs_commands(whole):
        return whole
    task, spec = whole.folder.task, attempt.trial.agent.spec
    reasons = unplayable(task, spec, attempt.plan.spec)
    if reasons:
        raise TrialError(
            "task.unsupported",
            f"Task {task.name!r} cannot be played by agent {attempt.trial.agent.label!r}: {'; '.join(reasons)}.",
            hint="Choose another --agent, or leave the task out with --exclude.",
        )
    turns = planned_turns(task)
    roles = document_of(task).agents.roles
    cast = _Cast(whole, attempt, agents, environ)
    players = {name: cast.player(name, roles[name]) for name in dict.fromkeys(turn.role for turn in turns)}
    whole = replace(whole, secrets=cast.secrets)
    talk = _talk(whole, attempt, tuple(cast.session(players[turn.role], (turn,)) for turn in turns))
    if talk is not None:
        return replace(whole, talk=talk)
    sessions = tuple(cast.session(players[group[0].role], group) for group in sessions_of(turns))
    return replace(whole, sessions=sessions)


def _talk(whole: Prepared, attempt: Attempt, turns: tuple[Session, ...]) -> Talk | None:
    """Return who talks to the agent in rounds; None = nobody does."""
    task, job = whole.folder.task, attempt.plan.spec
    strategy = parse_loop(job.loop)
    user = _user(task, job, n_turns=max(1, len(turns)))
    found = user or loop_user(strategy)
    if found is None:
        return None
    verifier = whole.verifier
    looks_on = strategy.strategy != "self-review"
    if looks_on and not isinstance(verifier, SoftVerifier):
        raise TrialError(
            "task.unsupported",
            f"The tests of task {task.name!r} cannot look on between rounds.",
            hint="Leave out --loop or --user, or leave the task out with --exclude.",
        )
    agent = attempt.trial.agent
    alone = Session((), None, None, agent.label, whole.agent, whole.agent_context)
    return Talk(
        user=found,
        sessions=turns or (alone,),
        instruction=with_prefix(task, task.instruction),
        solution=_solution(whole),
        verifier=verifier if looks_on and isinstance(verifier, SoftVerifier) else None,
        loop=strategy if user is None else None,
    )


def _user(task: Task, job: JobSpec, *, n_turns: int) -> User | None:
    """Return the user of a job, else the task's own."""
    if job.user is not None:
        return installed_user(job.user)
    declared = document_of(task).user
    if declared is None:
        return None
    persona = task.document.get("prompts", {}).get("user_persona", "")
    return DocumentUser(persona, declared.private_facts, max_rounds=most_rounds(task), n_turns=n_turns)


def _solution(whole: Prepared) -> str | None:
    """Return the text of the task's solution script; None = it has none."""
    folder = whole.folder
    script = folder.path / (folder.task.oracle_dir or "solution") / SOLUTION_SCRIPT
    return script.read_text(encoding="utf-8", errors="replace") if script.is_file() else None


def _runs_commands(whole: Prepared) -> bool:
    return whole.provider.capabilities.runs_commands


def _as_role(spec: AgentSpec, role: Role) -> AgentSpec:
    """Return what is said of an agent with what a role says on top."""
    said = {"model": role.model, "idle_timeout_s": role.idle_timeout_sec, "effort": role.reasoning_effort}
    return spec.model_copy(update={key: value for key, value in said.items() if value is not None})


def _part_of(role: Role) -> Part:
    """Return the agent that a role names itself."""
    spec = AgentSpec.model_validate(role.agent)
    if spec.is_script:
        return Part(spec, None)
    definition = find_agent(spec.name).definition
    if definition is None:
        return Part(spec, None)
    version = spec.version or definition.version
    model = spec.model or definition.default_model
    return Part(
        spec.model_copy(update={"name": definition.name, "model": model}),
        definition.model_copy(update={"version": version}),
    )


class _Cast:
    """Finds the agent of each role of one attempt."""

    def __init__(self, whole: Prepared, attempt: Attempt, agents: Agents, environ: Mapping[str, str]) -> None:
        self._whole, self._attempt, self._agents, self._environ = whole, attempt, agents, environ
        self.secrets = whole.secrets

    def player(self, name: str, role: Role) -> Session:
        """Return a session of a role that has no turns yet."""
        own = resolve_templates(role.env, self._environ, place=f"agents.roles.{name}.env")
        referred = tuple(secret_references(role.env))
        self.secrets |= secret_values(own, by_reference=referred, environ=self._environ)
        planned, job = self._attempt.trial.agent, self._whole.agent_context
        is_job = is_played_by_job(role, planned.spec)
        part = Part(planned.spec, planned.definition) if is_job else _part_of(role)
        spec = _as_role(part.spec, role)
        env = {**(job.env if is_job else self._shared(spec)), **own}
        context = replace(
            job, spec=spec, env=env, timeout_s=self._timeout_s(role), definition=part.definition
        )
        if not is_job:
            context = replace(context, script=job.task_dir / spec.name if spec.is_script else None)
        agent = self._whole.agent
        if not is_job or spec.model != planned.spec.model:
            agent, self.secrets = self._agents(Part(spec, part.definition), Env(env, self.secrets))
        return Session((), None, name, planned.label if is_job else spec.label, agent, context)

    def session(self, player: Session, turns: Sequence[PlannedTurn]) -> Session:
        """Return the session of a role's turns, with the skills of the role, else the scene, else the job."""
        turn, document = turns[0], document_of(self._whole.folder.task)
        scene = document.scenes[turn.scene_number - 1] if document.scenes else Scene()
        named = {
            f"role-{slug(turn.role)}": document.agents.roles[turn.role].skills_dir,
            f"scene-{turn.scene_number}": scene.skills_dir,
        }
        own = (
            named_skills(self._attempt, folder, name, self._whole.folder.path)
            for name, folder in named.items()
        )
        skills = next(filter(None, own), self._whole.agent_context.skills)
        context = with_skill_set(player.context, skills, is_control=False)
        return replace(
            player,
            turns=tuple(turn.id for turn in turns),
            scene=turn.scene,
            context=replace(context, prompts=tuple(turn.prompt for turn in turns)),
        )

    def _shared(self, spec: AgentSpec) -> dict[str, str]:
        """Return the variables an agent gets that is not the job's: a script of the task gets none of the job's."""
        names = {MCP_CONFIG, *network_variables(self._whole.folder.task.config)}
        if not spec.is_script:
            names |= {item.partition("=")[0] for item in self._attempt.plan.spec.agent_env}
        return {name: value for name, value in self._whole.agent_context.env.items() if name in names}

    def _timeout_s(self, role: Role) -> float | None:
        """Return the limit of a session: the role's own, else the agent's; what the job says comes first."""
        job, general = self._attempt.trial.agent.spec.timeout_s, self._whole.agent_context.timeout_s
        if job is not None or role.timeout_sec is None:
            return general
        return role.timeout_sec * self._attempt.plan.spec.timeout_multiplier
