"""What people ask for: the job spec, the one source of flags, YAML keys and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from benchflow_client.schema.agent import AgentSpec, check_env
from benchflow_client.schema.agent_definition import Effort
from benchflow_client.schema.base import Record
from benchflow_client.schema.ids import JOB_NAME_PATTERN
from benchflow_client.schema.locked_paths import check_locked
from benchflow_client.schema.loop import SINGLE_SHOT, parse_loop
from benchflow_client.schema.separate import check_carried
from benchflow_client.schema.skills import NO_SKILL, SkillMode

SandboxKind = Literal["auto", "docker", "local", "null"]
"""Where rollouts run; `auto` = docker where a daemon answers, else local; `null` runs nothing."""

TokenCapture = Literal["off", "auto", "on"]
"""Whose token ids and log probabilities are asked for: nobody's, those of servers of one's own, everybody's."""

_MODE_OF: Mapping[str, SkillMode] = {"skills_dir": "with-skill", "skill_creator_dir": "self-gen"}
"""Settings that have a meaning in one mode of skills only."""


class JobSpec(Record):
    """One submitted job.

    Each field is a flag of `bench run` (`timeout_multiplier` is
    `--timeout-multiplier`), a key of a job file, and an argument here.
    """

    tasks: str = Field(
        min_length=1,
        description="A task, a folder of tasks, or a Git source `org/repo/path@ref`.",
    )
    agent: tuple[AgentSpec, ...] = Field(
        min_length=1, description="Agent to run; repeat for several. `bench agents` lists them."
    )
    model: str | None = Field(
        default=None, description="LLM for every agent that names none itself; None = agent's default."
    )
    agent_env: tuple[str, ...] = Field(
        default=(),
        description="Variable for the agents: NAME (read on the worker) or NAME=VALUE (in clear).",
    )
    effort: Effort | None = Field(
        default=None,
        description="How hard the agents' model is asked to think; None = as agent and model do by themselves.",
    )
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        allow_inf_nan=False,
        description="Temperature of the agents' model where they name none; None = as agent and provider do.",
    )
    top_p: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of likely words the agents' model chooses among, where they name none; None = as they do.",
    )
    max_output_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens of one answer of the agents' model at most, where they name none; None = as they do.",
    )
    tries: int = Field(default=1, ge=1, le=1000, description="How often each agent tries each task.")
    concurrency: int = Field(
        default=4, ge=1, le=100_000, description="Trials of this job at once, over all workers."
    )
    sandbox: SandboxKind = Field(
        default="auto", description="Where trials run; auto = docker where a daemon answers, else local."
    )
    include: tuple[str, ...] = Field(
        default=(), description="Only tasks whose name matches this glob; repeat for several."
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="No tasks whose name matches this glob; repeat for several."
    )
    limit: int | None = Field(
        default=None, ge=1, description="At most this many tasks, in order of name; None = all."
    )
    timeout_multiplier: float = Field(
        default=1.0,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        description="Factor on every timeout a task declares.",
    )
    agent_timeout_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Wall clock of the agent phase in seconds; None = as each task says.",
    )
    agent_idle_timeout_s: float = Field(
        default=600.0,
        ge=0,
        allow_inf_nan=False,
        description="Stop an agent that shows no sign of work for so many seconds, where its protocol has "
        "signs; 0 = never.",
    )
    sandbox_user: str = Field(
        default="agent",
        pattern=r"^[a-z_][a-z0-9_-]{0,31}$",
        description="User that runs the agent; `root` switches protection of tests off.",
    )
    sandbox_locked_paths: tuple[str, ...] | None = Field(
        default=None,
        description="Path no agent may enter, beside those of solution and tests; repeat for several; none = not even those.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=20,
        description="Executions of one trial at most, counting those lost to infrastructure.",
    )
    weight: float = Field(
        default=1.0, gt=0, le=1000, allow_inf_nan=False, description="Share of the fleet beside other jobs."
    )
    priority: int = Field(
        default=5,
        ge=0,
        le=9,
        description="Before other jobs' trials: 9 goes first, 0 when nothing else waits.",
    )
    max_cost_usd: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Start no trial that could spend more than so many US dollars; None = no cap.",
    )
    max_tokens: int | None = Field(
        default=None, ge=0, description="Start no trial that could use more tokens; None = no cap."
    )
    max_sandbox_seconds: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Start no trial that could use more seconds of all trials together; None = no cap.",
    )
    max_trials: int | None = Field(
        default=None, ge=0, description="Start so many trials at most; None = all of them."
    )
    deadline_s: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Start nothing later than so many seconds after submission; None = no deadline.",
    )
    trial_cost_usd: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="US dollars reserved for a running trial; None = the dearest so far, the first runs alone.",
    )
    trial_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Tokens reserved for a running trial; None = the most so far, the first runs alone.",
    )
    stop_after_failures: int = Field(
        default=5,
        ge=0,
        description="Stop after so many equal failures in a row that would repeat; 0 = never.",
    )
    freeze_workspace: bool = Field(
        default=False,
        description="Keep each workspace as the agent left it, for `bench regrade`; at most 20 GiB a trial.",
    )
    capture_tokens: TokenCapture = Field(
        default="off",
        description="Record token ids and log probabilities of answers: auto = where the model is at a server of your own, "
        "on = also log probabilities of other providers of chat completions.",
    )
    separate_verifier: bool = Field(
        default=False,
        description="Run every task's tests in a fresh sandbox that gets the workspace and declared artifacts only.",
    )
    separate_verifier_include: tuple[str, ...] = Field(
        default=(),
        description="Path in the sandbox that such a fresh sandbox gets too; repeat for several.",
    )
    loop: str = Field(
        default=SINGLE_SHOT,
        description="How often an agent may go on before the verdict: single-shot, verify-retry:k=3,feedback=names "
        "(none, counts, names or raw), self-review:k=3.",
    )
    user: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="User installed on the workers who talks to the agent in place of a task's own; None = as each task says.",
    )
    skill_mode: SkillMode = Field(
        default=NO_SKILL,
        description="Whether agents have skills: none, not even a task's own; those of the task or of `skills_dir`; "
        "or those they write themselves before they begin.",
    )
    skills_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of skills (NAME/SKILL.md) in place of every task's own; needs with-skill.",
    )
    skill_creator_dir: str | None = Field(
        default=None,
        min_length=1,
        description="Folder of skills that an agent has while it writes its own; needs self-gen.",
    )
    environment_manifest: str | None = Field(
        default=None,
        min_length=1,
        description="Services every task's agent works with: an environment.toml, `name@version`, or JSON.",
    )
    job_name: str | None = Field(
        default=None,
        pattern=JOB_NAME_PATTERN,
        description="Name of the job: lower case, digits, - and _; None = a new readable name.",
    )
    jobs_dir: str = Field(default="jobs", min_length=1, description="Folder for results on this machine.")
    skip_invalid: bool = Field(
        default=False, description="Run the readable tasks although others cannot be read."
    )

    @field_validator("agent", "agent_env", "include", "exclude", "separate_verifier_include", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        """Accept one item where several are allowed."""
        return (value,) if isinstance(value, str | dict | AgentSpec) else value

    @field_validator("agent_env")
    @classmethod
    def _well_formed(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return check_env(value)

    @field_validator("separate_verifier_include")
    @classmethod
    def _no_system_roots(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(check_carried(path) for path in value)

    @field_validator("sandbox_locked_paths", mode="before")
    @classmethod
    def _one_path_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("sandbox_locked_paths")
    @classmethod
    def _strict_paths(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else check_locked(value)

    @field_validator("skill_mode")
    @classmethod
    def _in_one_turn(cls, value: SkillMode, info: ValidationInfo) -> SkillMode:
        has_rounds = info.data.get("loop", SINGLE_SHOT) != SINGLE_SHOT or info.data.get("user")
        if value == "self-gen" and has_rounds:
            raise ValueError("skills are not written in a job with a loop or a user")
        return value

    @field_validator("skills_dir", "skill_creator_dir")
    @classmethod
    def _in_its_mode(cls, value: str | None, info: ValidationInfo) -> str | None:
        mode, needed = info.data.get("skill_mode"), _MODE_OF[info.field_name or ""]
        if value is not None and mode not in {None, needed}:
            raise ValueError(f"it is used with skill_mode {needed} only, and this is {mode}")
        return value

    @field_validator("loop")
    @classmethod
    def _written_out(cls, value: str) -> str:
        """Return the strategy with all its parameters, so that equal ones are equal texts."""
        return str(parse_loop(value))

    def resolved_agents(self) -> tuple[AgentSpec, ...]:
        """Return the agents with the job-wide model, variables and time limits filled in."""
        return tuple(
            agent.with_defaults(model=self.model, env=self.agent_env).model_copy(
                update={
                    "timeout_s": agent.timeout_s or self.agent_timeout_s,
                    "effort": agent.effort or self.effort,
                    "idle_timeout_s": self.agent_idle_timeout_s
                    if agent.idle_timeout_s is None
                    else agent.idle_timeout_s,
                }
            )
            for agent in self.agent
        )
