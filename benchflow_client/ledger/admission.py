"""What decides which waiting trials may start: shares, limits, budgets.

The rules, in this order; the first that says no is what a trial waits for:

1. the job is open, and below its concurrency;
2. its budget has room for one more reservation, and its deadline is not over;
3. every bucket of the trial (sandbox kind, provider, model) is below its limits, and no call of a
   model waits for one of them;
4. the queue has room: about 1.25 messages per slot of its live workers;
5. among jobs that could go on, the higher priority wins, then the smaller number of
   trials in flight per weight, then the one whose last trial was admitted longer ago,
   then the older job.

A job with little left counts `SMALL_JOB_BOOST` times its weight: a small job behind a
big one, and the last trials of a big one, end soon, while the others keep a share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchflow_client.errors import UsageError

QUEUE_DEPTH = 1.25
"""Messages released per slot: enough that a free slot finds one, few enough that the next choice is soon."""

NO_WORKER_ROOM = 16
"""Messages released to a queue nobody serves yet, so that whoever scales workers sees that there is work."""

SMALL_JOB_ROUNDS = 4
"""A job whose unfinished trials fill the queue's room at most so often has little left."""

SMALL_JOB_BOOST = 3


MOST_LIVE = 1_000_000
SLOWEST_RATE, FASTEST_RATE = 1e-4, 1e6
FEWEST_TOKENS, MOST_TOKENS = 1.0, 1e12
"""Bounds of a limit: beyond them it limits nothing, or lets nothing start for hours."""

BUCKETS = ("sandbox:", "provider:", "model:", "key:")
"""What the name of a bucket begins with."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a bucket may use over the whole fleet; None = no limit.

    Raises:
        UsageError: A number that limits nothing or makes no sense.
    """

    live: int | None = None  # trials in flight: sent to a queue or running
    starts_per_s: float | None = None  # trials that start, per second
    requests_per_min: float | None = None  # requests to models; see `rates`
    tokens_per_min: float | None = None  # tokens of models, input and output together

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.live is not None and not (0 <= self.live <= MOST_LIVE):
            raise UsageError(
                f"{self.live} trials cannot be in flight.", hint=f"Give a number from 0 to {MOST_LIVE}."
            )
        slow, fast = SLOWEST_RATE, FASTEST_RATE
        for name, rate, least, most in (
            ("starts_per_s", self.starts_per_s, slow, fast),
            ("requests_per_min", self.requests_per_min, slow, fast),
            ("tokens_per_min", self.tokens_per_min, FEWEST_TOKENS, MOST_TOKENS),
        ):
            if rate is not None and not (least <= rate <= most):
                raise UsageError(
                    f"{name} = {rate} is no rate.",
                    hint=f"Give a number from {least:g} to {most:,.0f}; live = 0 starts nothing.",
                )

    @property
    def has_rate(self) -> bool:
        """Whether calls of models count in it."""
        return self.requests_per_min is not None or self.tokens_per_min is not None


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job may spend; None = no cap."""

    cost_usd: float | None = None
    tokens: int | None = None
    sandbox_s: float | None = None  # seconds of trials, summed
    trials: int | None = None  # trials that start
    deadline_s: float | None = None  # seconds after opening from which nothing starts
    trial_cost_usd: float | None = None  # reserved for a trial; None = the largest seen
    trial_tokens: int | None = None  # reserved for a trial; None = the largest seen

    @property
    def is_limited(self) -> bool:
        """Whether anything is capped."""
        caps = (self.cost_usd, self.tokens, self.sandbox_s, self.trials, self.deadline_s)
        return any(cap is not None for cap in caps)


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job has used: every attempt counts, those that were lost as well."""

    cost_usd: float = 0.0
    tokens: int = 0
    sandbox_s: float = 0.0
    trials: int = 0  # trials that were sent to a queue
    unknown_cost: int = 0  # attempts that reported no cost
    unknown_tokens: int = 0  # attempts that reported no tokens


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be in flight on a queue."""

    queue: str
    messages: int  # released and running trials of all jobs, at most
    is_served: bool = True  # a live worker takes its messages

    @classmethod
    def of(cls, queue: str, slots: int) -> Room:
        """Return the room of a queue whose live workers have so many slots."""
        if not slots:
            return cls(queue, NO_WORKER_ROOM, is_served=False)
        return cls(queue, math.ceil(QUEUE_DEPTH * slots))


@dataclass(frozen=True, slots=True)
class AdmittedTrial:
    """A trial that was marked released and is to be published by the caller."""

    job: str
    group_id: str  # of the job's present chord
    index: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Answer to one round of admission."""

    trials: Sequence[AdmittedTrial] = ()
    stopped: Sequence[str] = ()  # jobs that just ended by their budget: commit what waits
    wait_s: float | None = None  # until the next round may admit more by time alone; None = no such


class Cause:
    """Words for what a trial waits for; a bucket's limit is `limit <bucket>`."""

    SLOTS = "slots"
    CONCURRENCY = "concurrency"
    RETRY = "retry delay"
    PAUSED = "paused"
    STOPPING = "stopping"
    COST = "budget cost_usd"
    TOKENS = "budget tokens"
    SANDBOX = "budget sandbox_s"
    TRIALS = "budget trials"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting trials of a job by what they wait for."""

    counts: Mapping[str, int] = field(default_factory=dict)
