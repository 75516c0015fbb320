"""First phase: resolve all a rollout needs, before any sandbox exists."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from benchflow_client.errors import SandboxError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import Login
from benchflow_client.schema.ids import short_digest
from benchflow_client.schema.locked_paths import all_locked
from benchflow_client.schema.task import Task
from benchflow_client.schema.task_steps import StepTable, step_tables
from benchflow_client.store.layout import attempt_prefix
from benchflow_client.tasks.gate import unsupported
from benchflow_client.tasks.separate import as_run
from benchflow_workers.agents.base import INSTRUCTION_PATH, LOGS_DIR, Agent, AgentContext, prompt_bytes
from benchflow_workers.agents.launch import EFFORT
from benchflow_workers.agents.registry import Metering, kind_of
from benchflow_workers.agents.toolbox import Toolbox
from benchflow_workers.agents.tools import tool_uploads
from benchflow_workers.sandbox.base import ROOT, SandboxProvider, SandboxSpec, Upload
from benchflow_workers.trial.artifacts import ARTIFACTS_DIR
from benchflow_workers.trial.bare import without_skills
from benchflow_workers.trial.cache import BundleCache
from benchflow_workers.trial.capacity import Capacity
from benchflow_workers.trial.cast import Env, Part, with_turns
from benchflow_workers.trial.compose import with_services
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.trial.live import LiveTrajectory
from benchflow_workers.trial.logins import LoginPlaces, login_for, on_login
from benchflow_workers.trial.models import allowance_of, capture_of, target_of
from benchflow_workers.trial.networks import network_variables, networks_of, with_network, with_step_networks
from benchflow_workers.trial.records import Attempt, Kept, Prepared, PreparedStep, TaskFolder
from benchflow_workers.trial.recovery import kept_for, recovery_of
from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.restored import RestoredTurn
from benchflow_workers.trial.sampling import check_sampling_applies, sampling_of
from benchflow_workers.trial.separate import with_separate
from benchflow_workers.trial.skills import skills_of, with_skills, with_step_skills, with_workshop
from benchflow_workers.trial.step_folders import step_folder
from benchflow_workers.trial.translations import as_spoken
from benchflow_workers.trial.variables import Variables, resolve_variables
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR, Verifier, VerifyContext

SETUP_TIMEOUT_S = 600.0
"""Shared by all preparation and hardening steps: minutes, so that a busy host costs no trial."""

CLOSE_TIMEOUT_S = 60.0
"""A sandbox that does not go away in this time is left to the reaper; the result is not held up."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a trial is made of; put together once per worker.

    Attributes:
        bundles: Task folders and agent scripts on this host.
        provider: Returns the sandbox provider of a kind.
        agent: Returns the agent of a spec.
        verifier: Returns the verifier of a task.
        environ: Variables of this worker that names in specs and tasks refer to.
        fleet: Name of the fleet, for labels.
        host_locks: Locks that all trials of this host share.
        capacity: What this worker's sandboxes may take together.
        close_timeout_s: Seconds a sandbox may take to go away; later it is left to the reaper.
        metering: Gives agents their models.
        scratch: Folder on this host in which each running attempt has its own.
        toolbox: Programs of ready-made agents.
        logins: What a login is made of, by the name of the agent that may use it.
    """

    bundles: BundleCache
    provider: Callable[[str], SandboxProvider]
    agent: Callable[[str], Agent]
    verifier: Callable[[Task], Verifier]
    environ: Mapping[str, str]
    fleet: str
    host_locks: HostLocks
    capacity: Capacity = field(default_factory=Capacity)
    close_timeout_s: float = CLOSE_TIMEOUT_S
    metering: Metering = field(default_factory=Metering)
    scratch: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    toolbox: Toolbox = field(default_factory=lambda: Toolbox(Path(tempfile.gettempdir()) / "bench-toolbox"))
    logins: Mapping[str, Login] = field(default_factory=dict)


def prepare(attempt: Attempt, parts: Parts) -> Prepared:
    """Return everything the rollout needs.

    Raises:
        TrialError: The task cannot be read or is not supported here, a variable is
            missing, the agent cannot be run; the code says which.
        StoreError: The store cannot be read.
    """
    provider = parts.provider(attempt.plan.sandbox)
    unpacked = parts.bundles.task(attempt.trial.task)
    folder = without_skills(unpacked, attempt.plan)
    folder = replace(folder, task=as_run(folder.task, attempt.plan.spec))
    skills = skills_of(attempt, unpacked, parts.bundles)
    _check_supported(folder.task, provider)
    steps = step_tables(folder.task.config)
    verifier = folder.task.config.verifier
    is_kept = (
        attempt.plan.spec.freeze_workspace or verifier.workspace_recovery or bool(verifier.submission_files)
    )
    is_frozen = is_kept and provider.capabilities.runs_commands and attempt.plan.regrade is None
    if not steps:
        kept = kept_for(attempt, folder.task, parts.bundles.store)
        whole = _resolve(attempt, parts, folder, provider, kept=kept)
        if kept is None:
            whole = with_skills(whole, skills)
            whole = with_turns(whole, attempt, partial(_role_agent, attempt, parts), parts.environ)
            whole = with_workshop(whole, attempt, parts.bundles)
        whole = _with_programs(whole, parts)
        sandbox = with_services(with_network(whole.sandbox, (folder.task.config,)), folder)
        recovery = recovery_of(attempt, folder.task, parts.bundles.store, kept)
        ready = replace(whole, sandbox=sandbox, is_frozen_after=is_frozen, recovery=recovery)
        return _with_live(with_separate(ready, attempt.plan.spec, parts.environ), attempt, parts)
    done = tuple(_prepare_step(attempt, parts, folder, provider, step=step) for step in steps)
    done = with_step_networks(with_step_skills(done, skills))
    first = _with_programs(done[0].prepared, parts)
    secrets = first.secrets.union(*(step.prepared.secrets for step in done))
    sandbox = with_services(replace(first.sandbox, build_context=_build_context(folder)), folder)
    whole = replace(first, folder=folder, sandbox=sandbox, secrets=secrets, steps=done)
    return _with_live(replace(whole, is_frozen_after=is_frozen), attempt, parts)


def _with_live(whole: Prepared, attempt: Attempt, parts: Parts) -> Prepared:
    """Return a rollout whose agents' events are kept while they work, those of all steps in one file."""
    if not whole.provider.capabilities.runs_commands or whole.agent.is_control:
        return whole
    prefix = attempt_prefix(attempt.plan.job, attempt.folder)
    live = LiveTrajectory(parts.bundles.store, prefix, whole.secrets)
    steps = tuple(replace(step, prepared=replace(step.prepared, live=live)) for step in whole.steps)
    return replace(whole, live=live, steps=steps)


def _prepare_step(
    attempt: Attempt, parts: Parts, folder: TaskFolder, provider: SandboxProvider, *, step: StepTable
) -> PreparedStep:
    workdir = folder.path / "steps" / step.name / "workdir"
    return PreparedStep(
        table=step,
        prepared=_resolve(attempt, parts, step_folder(folder, step), provider),
        workdir=workdir if workdir.is_dir() else None,
    )


def _resolve(
    attempt: Attempt, parts: Parts, folder: TaskFolder, provider: SandboxProvider, *, kept: Kept | None = None
) -> Prepared:
    """Return what one turn and its verdict need."""
    spec = attempt.trial.agent.spec
    agent = _agent(attempt, parts, kept)
    env = () if kept is not None else spec.env  # no agent runs, so nothing has to be set
    variables = resolve_variables(folder.task, env, parts.environ)
    has_user = agent.runs_as_user and provider.capabilities.has_users
    named = folder.task.config.agent.user  # 0 is a user too
    user = str(attempt.plan.spec.sandbox_user if named is None else named) if has_user else ROOT
    agent_context = _agent_context(attempt, parts, folder, variables=variables, user=user)
    if kept is None and provider.capabilities.runs_commands:
        agent, variables = _with_model(attempt, parts, agent, variables)
    tools = () if agent.is_control else tool_uploads(variables.mcp_servers)
    sandbox = _sandbox_spec(
        attempt, parts, folder, env=variables.sandbox, uploads=(*agent.uploads(agent_context), *tools)
    )
    return Prepared(
        folder=folder,
        provider=provider,
        sandbox=sandbox,
        agent=agent,
        agent_context=agent_context,
        verifier=parts.verifier(folder.task),
        verify_context=_verify_context(
            attempt, folder, variables, agent_user=user if agent.runs_as_user else None
        ),
        setup_env=variables.setup,
        services_env=variables.services,
        host_locks=parts.host_locks,
        secrets=variables.secrets,
    )


def _with_programs(whole: Prepared, parts: Parts) -> Prepared:
    """Return a rollout whose sandbox is shown the programs of its agents, installed on this host where they are not yet."""
    if not whole.provider.capabilities.runs_commands or isinstance(whole.agent, RestoredTurn):
        return whole
    mounts = dict.fromkeys(
        mount for one in whole.players for mount in parts.toolbox.mounts(one.context.definition)
    )
    return replace(whole, sandbox=replace(whole.sandbox, mounts=tuple(mounts)))


def _with_model(
    attempt: Attempt, parts: Parts, agent: Agent, variables: Variables
) -> tuple[Agent, Variables]:
    """Return the agent with the model the job names, and the variables with one more secret."""
    planned, job = attempt.trial.agent, Env(variables.agent, variables.secrets)
    metered, secrets = _metered(attempt, parts, agent, Part(planned.spec, planned.definition), env=job)
    return metered, replace(variables, secrets=secrets)


def _role_agent(attempt: Attempt, parts: Parts, part: Part, env: Env) -> tuple[Agent, frozenset[str]]:
    """Return the agent of a role with the model it names, and all that must be masked with it."""
    return _metered(attempt, parts, parts.agent(kind_of(part.spec, part.definition)), part, env=env)


def _metered(
    attempt: Attempt, parts: Parts, agent: Agent, part: Part, *, env: Env
) -> tuple[Agent, frozenset[str]]:
    if agent.is_control:
        return agent, env.secrets
    spec, sampling = part.spec, sampling_of(attempt.plan.spec, env.values)
    login = login_for(part.definition, spec.model, env.values, LoginPlaces(parts.environ, parts.logins))
    if login is not None and spec.model is not None:
        check_sampling_applies(sampling, spec.name)
        return on_login(agent, login, spec.model), env.secrets | login.secrets
    target = None if spec.model is None else target_of(spec.model, env.values, parts.environ)
    target = as_spoken(spec, part.definition, target)
    if target is None:
        check_sampling_applies(sampling, spec.name)
        return agent, env.secrets
    secrets = env.secrets | ({target.key} if target.key else frozenset())
    metered = parts.metering.metered(
        agent,
        replace(target, capture=capture_of(attempt.plan.spec, target), sampling=sampling),
        allowance_of(attempt.plan.spec),
        file=parts.scratch / attempt.folder / "trajectory" / "llm_trajectory.jsonl",
        masks=Redactor(secrets),
    )
    return metered, secrets


def _agent(attempt: Attempt, parts: Parts, kept: Kept | None) -> Agent:
    """Return who takes the turn: the agent, or what puts back the work it left in another attempt or job."""
    planned = attempt.trial.agent
    agent = parts.agent(kind_of(planned.spec, planned.definition))
    return agent if kept is None else RestoredTurn(agent, parts.bundles.store, kept)


def _agent_context(
    attempt: Attempt, parts: Parts, folder: TaskFolder, *, variables: Variables, user: str
) -> AgentContext:
    spec = attempt.trial.agent.spec
    return AgentContext(
        task=folder.task,
        task_dir=folder.path,
        spec=spec,
        script=parts.bundles.script(attempt.trial.agent),
        env={**variables.agent, **network_variables(folder.task.config), **_effort(spec)},
        oracle_env={**variables.oracle, **network_variables(folder.task.config)},
        timeout_s=scaled(
            spec.timeout_s or folder.task.config.agent.timeout_sec, attempt.plan.spec.timeout_multiplier
        ),
        user=user,
        locked=all_locked(attempt.plan.spec.sandbox_locked_paths),
        prompts=(base_prompt(folder.task),),
        network=networks_of(folder.task.config).agent,
        mcp_servers=variables.mcp_servers,
        definition=attempt.trial.agent.definition,
    )


def _effort(spec: AgentSpec) -> Mapping[str, str]:
    return {} if spec.effort is None else {EFFORT: spec.effort}


def _verify_context(
    attempt: Attempt, folder: TaskFolder, variables: Variables, *, agent_user: str | None
) -> VerifyContext:
    factor = attempt.plan.spec.timeout_multiplier
    return VerifyContext(
        task=folder.task,
        task_dir=folder.path,
        env=variables.verifier,
        timeout_s=folder.task.config.verifier.timeout_sec * factor,
        setup_timeout_s=SETUP_TIMEOUT_S * max(1.0, factor),
        agent_user=agent_user,
    )


def scaled(seconds: float | None, factor: float) -> float | None:
    """Return a timeout times the job's multiplier; None stays None."""
    return None if seconds is None else seconds * factor


def _check_supported(task: Task, provider: SandboxProvider) -> None:
    able = provider.capabilities
    reasons = unsupported(
        task,
        networks=able.networks,
        has_compose=able.has_compose,
        has_gpus=able.has_gpus,
        gpu_types=able.gpu_types,
    )
    if able.runs_commands and reasons:
        raise SandboxError(
            "task.unsupported",
            f"Task {task.name!r} cannot run on sandbox {provider.kind!r}: {'; '.join(reasons)}.",
            hint="Choose another --sandbox, or leave the task out with --exclude.",
        )


def _sandbox_spec(
    attempt: Attempt,
    parts: Parts,
    folder: TaskFolder,
    *,
    env: Mapping[str, str],
    uploads: Sequence[Upload],
) -> SandboxSpec:
    table, factor = folder.task.config.sandbox, attempt.plan.spec.timeout_multiplier
    manifest = folder.task.manifest
    trial = attempt.trial
    return SandboxSpec(
        name=f"bf-{trial.task.slug[:40]}-{short_digest(trial.id, attempt.folder)}",
        labels={
            "bf.fleet": parts.fleet,
            "bf.job": attempt.plan.job,
            "bf.trial": trial.id,
            "bf.index": str(trial.index),
            "bf.fence": str(attempt.fence),
            "bf.worker": attempt.worker,
        },
        image=table.docker_image,
        build_context=_build_context(folder),
        build_digest=folder.environment_digest,
        build_timeout_s=table.build_timeout_sec * factor,
        cpus=table.cpus,
        memory_mb=table.memory_mb,
        storage_mb=table.storage_mb,
        gpus=table.gpus if parts.provider(attempt.plan.sandbox).capabilities.has_gpus else 0,
        network=table.network_mode,
        keeps_entrypoint=manifest is not None and manifest.has_own_entrypoint,
        env=env,
        workdir=table.workdir,
        uploads=(*_base_uploads(base_prompt(folder.task)), *uploads),
    )


def _build_context(folder: TaskFolder) -> Path | None:
    """Return the folder the image is built from; None = it is a ready one."""
    return None if folder.task.config.sandbox.docker_image else folder.path / "environment"


def base_prompt(task: Task) -> str:
    """Return what an agent is told of a task that has no other prompts."""
    prefix = task.config.agent.prompt_prefix
    return f"{prefix}\n\n{task.instruction}" if prefix else task.instruction


def _base_uploads(prompt: str) -> tuple[Upload, ...]:
    return (
        Upload("/logs", mode=0o755),
        Upload(LOGS_DIR, mode=0o755),
        Upload(VERIFIER_LOGS_DIR, mode=0o777),
        Upload(ARTIFACTS_DIR, mode=0o777),
        Upload(INSTRUCTION_PATH, content=prompt_bytes(prompt), mode=0o644),
    )
