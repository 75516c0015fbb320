"""summary.json: what a job came to, with every denominator beside its number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchflow_client.schema.base import Document, Record
from benchflow_client.schema.failure import Fault
from benchflow_client.schema.loop import SINGLE_SHOT
from benchflow_client.schema.plan import SourceInfo
from benchflow_client.schema.skills import NO_SKILL, SkillMode
from benchflow_client.schema.trial import Outcome

Population = Literal["agents", "controls"]
"""Whom the headline counts: the agents under test, or the controls when nothing else ran."""

LISTED_TASKS = 20
"""Most task names a summary lists in one place; the count beside them is always exact."""

_ALIASES = {"pass": "passed", "fail": "failed", "error": "errored"}


class Counts(Document):
    """Disjoint buckets of trials; a document whose buckets do not add up is refused."""

    total: int = Field(ge=0, description="Planned trials; the sum of the eight buckets.")
    passed: int = Field(ge=0, description="Trials with reward 1.")
    failed: int = Field(ge=0, description="Scored trials below 1.")
    errored: int = Field(ge=0, description="Ended before a verdict, not the verifier's doing.")
    verifier_errored: int = Field(ge=0, description="The verifier reached no verdict.")
    unscored: int = Field(ge=0, description="Ended well, but nothing was there to score.")
    cancelled: int = Field(ge=0, description="Stopped by a person.")
    not_started: int = Field(
        default=0, ge=0, description="Not run, because the job stopped: budget, deadline, circuit breaker."
    )
    unfinished: int = Field(default=0, ge=0, description="No receipt yet; 0 once the job is closed.")

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        buckets = self.scored + self.without_verdict + self.cancelled + self.not_started + self.unfinished
        if buckets != self.total:
            raise ValueError(f"the buckets hold {buckets} trials, but total is {self.total}")
        return self

    @property
    def scored(self) -> int:
        """Trials with a verdict."""
        return self.passed + self.failed

    @property
    def without_verdict(self) -> int:
        """Trials that ended without a verdict although nobody stopped them."""
        return self.errored + self.verifier_errored + self.unscored

    @property
    def counted(self) -> int:
        """Denominator of the score: every trial that ended by itself."""
        return self.scored + self.without_verdict


class SolveRateRow(Record):
    """pass@k and pass^k of one agent; means over the tasks with at least k scored trials."""

    k: int = Field(ge=1, description="Trials drawn of each task.")
    pass_at_k: float | None = Field(description="At least one of k passes, 0..1; None = no task has k.")
    pass_hat_k: float | None = Field(description="All of k pass, 0..1; None = no task has k.")
    n_tasks: int = Field(ge=0, description="Tasks with at least k scored trials.")
    n_short: int = Field(ge=0, description="Tasks left out because fewer than k trials are scored.")


class AgentGroup(Counts):
    """The numbers of one agent."""

    agent: str = Field(description="Label of the agent.")
    model: str | None = Field(default=None, description="LLM; None = agent's default or none.")
    is_control: bool = Field(description="Runs to check the tasks; never part of another agent's numbers.")
    score: float | None = Field(
        description="passed / ended trials, 0..1, no verdict counting as not passed; cancelled and "
        "unfinished trials are left out; None = no trial ended."
    )
    scored_rate: float | None = Field(description="passed / scored trials, 0..1; None = nothing scored.")
    interval_low: float | None = Field(description="95 % Wilson, low end of scored_rate; None = none scored.")
    interval_high: float | None = Field(description="95 % Wilson, high end; None = none scored.")
    design_effect: float = Field(
        ge=1,
        description="Variance factor of repeated tasks; the interval uses scored / design_effect trials.",
    )
    mean_reward: float | None = Field(description="Mean over scored trials; None = nothing scored.")
    cost_usd: float | None = Field(description="US dollars of the trials that know theirs; None = none does.")
    cost_coverage: float | None = Field(
        description="Share of ended trials that know their cost; None = none ended."
    )
    tokens: int | None = Field(description="Tokens of the trials that know theirs; None = none does.")
    token_coverage: float | None = Field(
        description="Share of ended trials that know their tokens; None = none ended."
    )
    skill_uses: int | None = Field(default=None, description="Tool calls that used a skill; None = unknown.")
    solve_rates: tuple[SolveRateRow, ...] = Field(
        default=(), description="pass@k when tasks are tried more than once."
    )


class FailureGroup(Document):
    """All trials, controls too, that ended in one bucket for one cause."""

    outcome: Outcome = Field(description="Bucket the trials are in.")
    code: str = Field(description="Key of catalog.failures.FAILURES; empty = none was recorded.")
    label: str = Field(description="The cause in a few words.")
    category: str = Field(description="The format's category name.")
    fault: Fault = Field(description="Who has to act.")
    count: int = Field(ge=1, description="Trials.")
    retried: int = Field(ge=0, description="Executions of these trials beyond the first of each.")
    n_tasks: int = Field(ge=1, description="Tasks concerned.")
    tasks: tuple[str, ...] = Field(max_length=LISTED_TASKS, description="Their names, the first 20.")
    next_step: str = Field(description="What to do about it; may be empty.")

    @property
    def has_verdict(self) -> bool:
        """Whether the trials were scored in spite of the cause."""
        return self.outcome in {Outcome.PASSED, Outcome.FAILED}


class Retries(Document):
    """Executions beyond the first of each trial, all lost to infrastructure."""

    attempts: int = Field(default=0, ge=0, description="Executions beyond the first of each trial.")
    trials: int = Field(default=0, ge=0, description="Trials executed more than once.")
    recovered: int = Field(default=0, ge=0, description="Those that reached a verdict in the end.")
    codes: dict[str, int] = Field(
        default_factory=dict, description="Final failure code of those that did not -> trials."
    )
    causes: dict[str, int] = Field(
        default_factory=dict, description="Failure code -> executions it cost; empty = not known."
    )


class BudgetReport(Document):
    """What a job was allowed to spend and what it spent: every attempt, those that were lost as well."""

    caps: dict[str, float] = Field(default_factory=dict, description="Cap -> its value; empty = no caps.")
    cost_usd: float = Field(default=0, ge=0, description="US dollars of the attempts that know theirs.")
    tokens: int = Field(default=0, ge=0, description="Tokens of the attempts that know theirs.")
    sandbox_seconds: float = Field(default=0, ge=0, description="Seconds of all attempts.")
    trials: int = Field(default=0, ge=0, description="Trials that were started.")
    usd_unknown_attempts: int = Field(default=0, ge=0, description="Attempts whose cost is not known.")
    tokens_unknown_attempts: int = Field(default=0, ge=0, description="Attempts whose tokens are not known.")
    stopped: bool = Field(default=False, description="Whether the job stopped before its end.")
    stopped_by: str = Field(
        default="", description="Key of the cap that stopped it; empty = it did not stop, or by failures."
    )
    reason: str = Field(default="", description="Why it stopped; empty = it did not.")


class Settings(Record):
    """What was asked for that changes a score."""

    tries: int = Field(description="Tries of each task by each agent.")
    timeout_multiplier: float = Field(description="Factor on every timeout.")
    agent_timeout_s: float | None = Field(
        description="Wall clock of the agent (s); None = as each task says."
    )
    sandbox_user: str = Field(description="User that ran the agent.")
    max_attempts: int = Field(description="Executions of a trial at most.")
    skill_mode: SkillMode = Field(default=NO_SKILL, description="Which skills agents have.")


class Summary(Counts):
    """summary.json of a job.

    The buckets, scores and usage at the top level are those of `population`: trials of
    controls never enter an agent's numbers. `groups` and `failures` cover every trial.
    """

    job_name: str = Field(description="Name of the job.")
    agent: str | None = Field(default=None, description="The agent, when there is one only.")
    model: str | None = Field(default=None, description="The LLM, when all agents share one.")
    agents: tuple[str, ...] = Field(description="Labels of all agents, controls too.")
    environment: str = Field(description="Kind of sandbox.")
    concurrency: int = Field(description="Trials at once, at most.")
    settings: Settings = Field(description="What was asked for that changes a score.")
    loop: dict[str, Any] = Field(
        default_factory=lambda: {"strategy": SINGLE_SHOT},
        description="The loop strategy, with its parameters.",
    )
    population: Population = Field(description="Whom the top-level numbers count.")
    planned: int = Field(ge=1, description="Trials of all agents, controls too.")
    controls: Counts = Field(description="Buckets of the control trials.")
    score: str | None = Field(description="score_ratio in per cent, `xx.x%`; None = no trial ended.")
    score_ratio: float | None = Field(
        description="passed / trials that ended, 0..1, no verdict counting as not passed."
    )
    score_excl_errors: str | None = Field(description="The same over scored trials; None = none scored.")
    score_excl_errors_ratio: float | None = Field(description="passed / (passed + failed), 0..1.")
    mean_reward: float | None = Field(description="Mean over scored trials; None = nothing scored.")
    elapsed_sec: float = Field(ge=0, description="Wall clock of the job (s).")
    error_categories: dict[str, int] | None = Field(description="Category -> errored trials; None = none.")
    verifier_error_categories: dict[str, int] | None = Field(
        description="Category -> verifier_errored trials; None = none."
    )
    total_tokens: int | None = Field(description="Input and output tokens known; None = none known.")
    telemetry_coverage: float | None = Field(description="Share of ended trials that know their tokens.")
    total_cost_usd: float | None = Field(description="US dollars known; None = none known.")
    avg_cost_per_trial_usd: float | None = Field(description="Mean over the trials that know their cost.")
    cost_coverage: float | None = Field(description="Share of ended trials that know their cost.")
    total_skill_invocations: int | None = Field(
        default=None, description="Tool calls that used a skill; None = unknown."
    )
    avg_skill_invocations: float | None = Field(
        default=None, description="Mean over the trials that know theirs; None = none does."
    )
    total_time_sec: float = Field(description="Sum of the trials' wall clocks (s).")
    avg_total_time_sec: float | None = Field(description="Their mean (s); None = no trial ended.")
    max_total_time_sec: float | None = Field(description="The longest (s); None = no trial ended.")
    retries: Retries = Field(description="Executions beyond the first, all agents.")
    budget: BudgetReport | None = Field(
        default=None, description="Caps and what was spent; None = not known, as after a recovery."
    )
    n_tasks: int = Field(ge=1, description="Tasks in the plan.")
    tasks_digest: str = Field(
        description="SHA-256 over the names and digests of all tasks: equal = the same tasks."
    )
    skipped_tasks: int = Field(default=0, ge=0, description="Broken tasks left out on request.")
    source: SourceInfo = Field(description="Where the tasks came from.")
    groups: tuple[AgentGroup, ...] = Field(min_length=1, description="One per agent, in the plan's order.")
    failures: tuple[FailureGroup, ...] = Field(default=(), description="Causes, most trials first.")
    caveats: tuple[str, ...] = Field(default=(), description="What a reader of the numbers should know.")

    @model_validator(mode="after")
    def _covers_the_plan(self) -> Self:
        rest = 0 if self.population == "controls" else self.controls.total
        if self.total + rest != self.planned:
            raise ValueError(f"{self.total} + {rest} trials are counted, but {self.planned} were planned")
        for name in Outcome:
            whole = getattr(self, name) + (getattr(self.controls, name) if rest else 0)
            if sum(getattr(group, name) for group in self.groups) != whole:
                raise ValueError(f"the groups' {name} trials do not add up to {whole}")
        return self

    @model_serializer(mode="wrap")
    def _with_aliases(self, serialize: SerializerFunctionWrapHandler) -> Mapping[str, Any]:
        """Add the short names of the buckets that readers of the format know."""
        data: dict[str, Any] = serialize(self)
        return {**data, **{alias: data[name] for alias, name in _ALIASES.items() if name in data}}

    @property
    def all_without_verdict(self) -> int:
        """Trials of every agent, controls too, that ended without a verdict."""
        return sum(group.without_verdict for group in self.groups)
