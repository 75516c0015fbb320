"""What one trial leaves behind: its result document and its receipt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field

from benchflow_client.schema.base import Document
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.loop import SINGLE_SHOT, LoopReport
from benchflow_client.schema.skills import NO_SKILL, SkillMode
from benchflow_client.schema.turns import SessionResult


class Outcome(StrEnum):
    """How a finished trial counts; every finished trial has exactly one."""

    PASSED = "passed"  # reward is 1
    FAILED = "failed"  # scored, below 1
    ERRORED = "errored"  # ended before a verdict, not the verifier's doing
    VERIFIER_ERRORED = "verifier_errored"  # the verifier reached no verdict
    UNSCORED = "unscored"  # ended well, but nothing was there to score
    CANCELLED = "cancelled"  # stopped by a person
    NOT_STARTED = "not_started"  # the job stopped before: budget, deadline, circuit breaker


NOT_RUN = frozenset({Outcome.CANCELLED, Outcome.NOT_STARTED})
"""The outcomes of trials that did not come to their end; no rate counts them."""

SCORED = frozenset({Outcome.PASSED, Outcome.FAILED})
"""The outcomes that have a verdict."""


class Receipt(NamedTuple):
    """The few bytes of a trial the summary needs; at most 400 bytes as JSON.

    Shape: a plain JSON array in this order, so that 100,000 of them stay small.
    """

    trial_index: int  # position of the trial in the plan
    outcome: str  # an Outcome value
    reward: float | None  # None = no verdict
    code: str  # failure code; empty = none
    attempts: int  # executions, infrastructure failures included
    wall_s: float  # seconds from the first claim's attempt start to its end
    cost_usd: float | None  # None = unknown
    tokens: int | None  # input + output; None = unknown
    folder: str  # folder of the published attempt below the job's
    skill_uses: int | None = None  # tool calls that used a skill; None = unknown

    def to_json(self) -> str:
        """Return the receipt as a compact JSON array."""
        return json.dumps(self, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read what `to_json` wrote."""
        return cls(*json.loads(text)[: len(cls._fields)])  # a newer version may say more

    @classmethod
    def of(cls, result: TrialResult) -> Self:
        """Return the receipt of a result."""
        return cls(
            trial_index=result.index,
            outcome=result.outcome.value,
            reward=result.reward,
            code=result.failures[0].code if result.failures else "",
            attempts=result.attempt,
            wall_s=result.timing.total or 0.0,
            cost_usd=result.agent_result.cost_usd,
            tokens=result.agent_result.total_tokens,
            folder=result.rollout_name,
            skill_uses=result.agent_result.n_skill_invocations,
        )


class FrozenWorkspace(Document):
    """The workspace as the agent left it, kept so that a later verifier can judge it."""

    key: str = Field(description="File below the attempt's folder; a tar, compressed with gzip.")
    sha256: str = Field(description="Digest of that file (64 hex digits).")
    workdir: str = Field(description="Where it stood in the sandbox.")
    entries: int = Field(ge=0, description="Files, folders and links in it.")
    size_bytes: int = Field(ge=0, description="Bytes of its files together.")
    is_whole: bool = Field(
        default=True, description="False = only `verifier.submission_files`, by their absolute paths."
    )
    left_out: tuple[str, ...] = Field(
        default=(),
        description="Paths the tests were given besides, in a sandbox of their own; they are not kept.",
    )
    missing: tuple[str, ...] = Field(
        default=(), description="Submission files the agent did not leave, by their absolute paths."
    )


class Timing(Document):
    """Seconds spent in each phase; None = the phase was not reached."""

    environment_setup: float | None = Field(default=None, description="Image, sandbox, uploads (s).")
    agent_setup: float | None = Field(default=None, description="Getting the agent ready (s).")
    agent_execution: float | None = Field(default=None, description="The agent's turn (s).")
    freeze: float | None = Field(default=None, description="Keeping the workspace for later verifiers (s).")
    soft_verifier: float | None = Field(default=None, description="Tests between rounds (s).")
    verifier: float | None = Field(default=None, description="Hardening and tests (s).")
    verifier_sandbox_setup: float | None = Field(
        default=None, description="Starting the tests' own sandbox (s)."
    )
    verifier_sandbox_transfer: float | None = Field(
        default=None, description="Moving the agent's work into it, hashes included (s)."
    )
    verifier_sandbox_teardown: float | None = Field(default=None, description="Removing it (s).")
    verifier_sandbox_total: float | None = Field(
        default=None, description="From its start to its end, tests included (s)."
    )
    collect: float | None = Field(default=None, description="Downloading logs and artifacts (s).")
    total: float | None = Field(default=None, description="From claim to commit (s).")


EndpointKind = Literal["loopback", "relay", "public"]
"""How an agent reached the model gateway: the worker listened in its network, a program in the sandbox
carried connections, or the gateway's public URL."""


class AgentUsage(Document):
    """What the agent used, as far as it is known."""

    n_tool_calls: int = Field(default=0, description="Tool calls seen.")
    n_skill_invocations: int = Field(default=0, description="Those of them that used a skill.")
    n_prompts: int = Field(default=0, description="Prompts sent.")
    n_input_tokens: int | None = Field(
        default=None, description="Input tokens, cache included; None = unknown."
    )
    n_output_tokens: int | None = Field(default=None, description="Output tokens; None = unknown.")
    total_tokens: int | None = Field(default=None, description="Provider's total; None = unknown.")
    cost_usd: float | None = Field(default=None, description="US dollars; None = unknown.")
    usage_source: str = Field(default="unavailable", description="Who counted.")
    endpoint_kind: EndpointKind | None = Field(
        default=None,
        description="How the model gateway was reached: loopback, relay, public; None = the agent had no model.",
    )


class StepResult(Document):
    """What one step of a multi-step task came to."""

    name: str = Field(description="Name of the step.")
    reward: float | None = Field(default=None, description="Its reward; None = no verdict.")
    rewards: dict[str, Any] | None = Field(default=None, description="All it was given; None = no verdict.")
    error: str | None = Field(default=None, description="Its first failure; None = none.")
    timings: Timing = Field(default_factory=Timing, description="Seconds by phase.")


class TrialResult(Document):
    """result.json: written last and atomically; its presence means the attempt finished."""

    job: str = Field(description="Job the trial belongs to.")
    trial: str = Field(description="Trial id, the same over all attempts.")
    index: int = Field(ge=0, description="Position in the plan.")
    attempt: int = Field(ge=1, description="Which execution of the trial this was.")
    try_number: int = Field(ge=1, description="Which planned repeat this is.")
    task_name: str = Field(description="Name of the task folder.")
    task_digest: str = Field(description="Digest of the task bundle.")
    rollout_name: str = Field(description="Name of this attempt's folder.")
    agent: str = Field(description="Label of the agent.")
    agent_version: str = Field(
        default="", description="Version of the agent, and what it says it is; empty = not known."
    )
    model: str | None = Field(default=None, description="LLM; None = agent's default or none.")
    sandbox: str = Field(description="Kind of sandbox it ran in.")
    sandbox_id: str | None = Field(default=None, description="The provider's id; None = never started.")
    worker: str = Field(description="Worker that ran it.")
    skill_mode: SkillMode = Field(default=NO_SKILL, description="Which skills agents of its job have.")
    outcome: Outcome = Field(description="How the trial counts.")
    rewards: dict[str, Any] | None = Field(
        default=None, description="{reward, <named>, rubric, metrics, details}; None = no verdict."
    )
    error: str | None = Field(default=None, description="Agent-side failure text; None = none.")
    error_category: str | None = Field(default=None, description="Its category; None = none.")
    verifier_error: str | None = Field(default=None, description="Verifier-side failure text; None = none.")
    verifier_error_category: str | None = Field(default=None, description="Its category; None = none.")
    steps: tuple[StepResult, ...] = Field(
        default=(), description="Steps that were begun, in order; empty = the task has none."
    )
    sessions: tuple[SessionResult, ...] = Field(
        default=(), description="Sessions of a task with several turns, in order; empty = one turn."
    )
    loop: LoopReport = Field(
        default_factory=lambda: LoopReport(strategy=SINGLE_SHOT),
        description="The loop strategy, and what it came to.",
    )
    failures: tuple[Failure, ...] = Field(
        default=(), description="Every recorded failure, first cause first."
    )
    warnings: tuple[str, ...] = Field(default=(), description="What a reader of the number should know.")
    agent_exit_code: int | None = Field(
        default=None, description="Exit code of the agent; None = none or killed."
    )
    agent_result: AgentUsage = Field(default_factory=AgentUsage, description="What the agent used.")
    frozen: FrozenWorkspace | None = Field(
        default=None, description="The workspace kept for `bench regrade`; None = it was not kept."
    )
    timing: Timing = Field(default_factory=Timing, description="Seconds by phase.")
    started_at: datetime = Field(description="Start of the attempt (UTC).")
    finished_at: datetime = Field(description="End of the attempt (UTC).")

    @property
    def reward(self) -> float | None:
        """Return the scalar reward, or None when there is no verdict."""
        return scalar_reward(self.rewards)


def scalar_reward(rewards: Mapping[str, Any] | None) -> float | None:
    """Return the finite number under `reward`, or None where there is none."""
    value = (rewards or {}).get("reward")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None
