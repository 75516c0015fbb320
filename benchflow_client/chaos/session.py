"""One chaos run: submit a job, hurt it, wait for its end, judge what is left."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchflow_client.api import Client
from benchflow_client.chaos.evidence import Canary, Observer, Scene, collect, mounts_below
from benchflow_client.chaos.faults import (
    DrainWorker,
    EarlyBody,
    Fault,
    Injector,
    KillProcess,
    LostChord,
    LostMessage,
    Pause,
    RepeatedDelivery,
    ResetConnections,
)
from benchflow_client.chaos.invariants import check, unfinished
from benchflow_client.chaos.mailbox import check_broker
from benchflow_client.chaos.material import REWARD, write_agent, write_task
from benchflow_client.chaos.records import ChaosReport, Invariant
from benchflow_client.chaos.secret_search import SHORTEST_SECRET, EventListener, Needle
from benchflow_client.errors import BenchflowError, UsageError
from benchflow_client.handle import Fleet
from benchflow_client.ledger.base import JobState
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.plan.draft import Draft
from benchflow_client.schema.base import utc_now
from benchflow_client.schema.job import JobSpec, SandboxKind

_ATTEMPTS = 10
"""Executions of a trial at most: more than faults that may hit one by chance."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A variable that workers give to agents, and its value."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    """What a chaos run does.

    Attributes:
        sandbox: Kind of sandbox.
        trials: Trials of its job.
        concurrency: Trials at once.
        trial_s: Seconds an agent takes; null sandboxes run no agent.
        seed: Of every random choice.
        every_s: Mean seconds between two faults.
        faults_s: Seconds after which no more faults are injected.
        deadline_s: Seconds the job may take in all.
        settle_s: Seconds its leftovers may take after its end.
        kill: Processes of workers on this machine to kill.
        drain: Workers to drain.
        has_resets: Whether all connections to the broker are reset now and then.
        secret: Canary that must not be found anywhere; None = none.
        logs: Log files to search for it.
    """

    sandbox: SandboxKind = "auto"
    trials: int = 40
    concurrency: int = 8
    trial_s: float = 1.0
    seed: int = 0
    every_s: float = 1.0
    faults_s: float = 60.0
    deadline_s: float = 900.0
    settle_s: float = 180.0
    kill: tuple[int, ...] = ()
    drain: tuple[str, ...] = ()
    has_resets: bool = False
    secret: Secret | None = None
    logs: tuple[Path, ...] = ()


def run_chaos(
    client: Client, options: ChaosOptions, *, on_submit: Callable[[str], object] | None = None
) -> ChaosReport:
    """Run a job under faults and return what became of it.

    Touches nothing but its own job and what the options name.

    Args:
        client: The fleet.
        options: What to do.
        on_submit: Told the job's name; None = nobody.

    Raises:
        UsageError: The options name what is not there; nothing was submitted.
        BenchflowError: The fleet cannot be reached any more.
    """
    _check(client, options)
    scene = submit(client, options)
    if on_submit is not None:
        on_submit(scene.plan.job)
    with _cancelled_unless_closed(scene):
        return _fire(client, scene, options)


def submit(client: Client, options: ChaosOptions) -> Scene:
    """Submit the job of a chaos run.

    Raises:
        BenchflowError: As `Client.submit`.
    """
    secret = options.secret.name if options.secret else None
    with tempfile.TemporaryDirectory(prefix="bench-chaos-") as name:
        agent = write_agent(Path(name), trial_s=options.trial_s, canary=secret)
        spec = JobSpec(
            tasks=str(write_task(Path(name))),
            agent=(str(agent),),
            agent_env=(secret,) if secret else (),
            tries=options.trials,
            concurrency=options.concurrency,
            sandbox=options.sandbox,
            max_attempts=_ATTEMPTS,
        )
        return open_scene(client, spec)


def open_scene(client: Client, spec: JobSpec) -> Scene:
    """Submit a job whose trials all earn a reward of 1, and return what is needed to look at it.

    Raises:
        BenchflowError: As `Client.submit`.
    """
    drafts: list[tuple[Draft, Fleet]] = []
    mounts = mounts_below(client.settings.state_dir)
    handle = client.submit(spec, on_draft=lambda draft, fleet: drafts.append((draft, fleet)))
    draft, fleet = drafts[0]
    environ = client.worker_environ()
    return Scene(
        fleet=fleet,
        handle=handle,
        header=fleet.ledger.header(handle.name),
        plan=draft.plan,
        broker=RedisConnection.at(environ["BENCHFLOW_BROKER_URL"]),
        ledger=RedisConnection.at(environ["BENCHFLOW_LEDGER_URL"]),
        environ=environ,
        state_dir=client.settings.state_dir,
        reward=None if draft.plan.sandbox == "null" else REWARD,
        mounts=mounts,
    )


def client_faults(scene: Scene) -> list[Fault]:
    """Return the faults that every chaos run injects into its own job."""
    return [
        RepeatedDelivery(scene.mailbox),
        LostMessage(scene.mailbox),
        LostChord(scene.mailbox),
        EarlyBody(scene.fleet.dispatcher, scene.header),
        Pause(scene.handle),
    ]


def named_faults(client: Client, scene: Scene, options: ChaosOptions) -> dict[str, Fault]:
    """Return the faults that the options ask for by name, by the flag that asks."""
    resets = {"--reset-connections": ResetConnections(scene.mailbox)} if options.has_resets else {}
    return {
        **{f"--worker-pid {pid}": KillProcess(pid) for pid in options.kill},
        **{f"--drain {name}": DrainWorker(name, client.drain) for name in options.drain},
        **resets,
    }


def judge(
    scene: Scene, observer: Observer, *, canary: Canary | None, settle_s: float, waited_s: float
) -> tuple[Invariant, ...]:
    """Return what holds of a job that has had the time it may take.

    Args:
        scene: The job.
        observer: What was seen while it ran.
        canary: Secret to look for; None = there is none.
        settle_s: Seconds its leftovers may take.
        waited_s: Seconds it has had.
    """
    progress = scene.handle.progress()
    if progress.state is not JobState.CLOSED:
        return (unfinished(progress, waited_s=waited_s),)
    return check(collect(scene, observer, canary=canary, settle_s=settle_s))


def _fire(client: Client, scene: Scene, options: ChaosOptions) -> ChaosReport:
    started, started_at, observer = time.monotonic(), utc_now(), Observer(scene.handle)
    faults, named = client_faults(scene), named_faults(client, scene, options)
    injector = Injector(
        faults, seed=options.seed, every_s=options.every_s, for_s=options.faults_s, named=[*named.values()]
    )
    with listening(scene, options.secret, options.logs) as canary:

        def is_over() -> bool:
            observer.look()
            if canary is not None:
                canary.events.hear()
            return scene.is_closed() or time.monotonic() - started > options.deadline_s

        injections = injector.run(is_over)
        waited_s = time.monotonic() - started
        invariants = judge(scene, observer, canary=canary, settle_s=options.settle_s, waited_s=waited_s)
    progress = scene.handle.progress()
    return ChaosReport(
        job=scene.plan.job,
        seed=options.seed,
        sandbox=scene.plan.sandbox,
        trials=scene.plan.size,
        started_at=started_at,
        took_s=round(time.monotonic() - started, 2),
        outcomes={name: count for name, count in progress.outcomes.items() if count},
        retried=progress.retried,
        planned=tuple(dict.fromkeys(fault.name for fault in (*named.values(), *faults))),
        missed=tuple(flag for flag, fault in named.items() if not injector.has_happened(fault)),
        injections=tuple(injections),
        invariants=invariants,
    )


@contextmanager
def listening(
    scene: Scene, secret: Secret | None, logs: Sequence[Path]
) -> Generator[Canary | None, None, None]:
    """Hear the fleet's events inside the block, where there is a secret to look for."""
    if secret is None:
        yield None
        return
    needle = Needle(secret.value)
    with EventListener(scene.broker, needle) as events:
        yield Canary(needle, events, logs)


@contextmanager
def _cancelled_unless_closed(scene: Scene) -> Generator[None, None, None]:
    """Leave no job behind on the fleet, however the block ends."""
    try:
        yield
    finally:
        with contextlib.suppress(BenchflowError):
            if not scene.is_closed():
                scene.handle.cancel(by="chaos", reason="the chaos run was given up")


def _check(client: Client, options: ChaosOptions) -> None:
    check_broker(client.worker_environ()["BENCHFLOW_BROKER_URL"])
    if options.secret is not None and len(options.secret.value) < SHORTEST_SECRET:
        raise UsageError(
            f"The value of {options.secret.name} is too short to be looked for.",
            hint=f"Give it at least {SHORTEST_SECRET} random characters, the same here and on the workers.",
        )
    names = {worker.name for worker in client.workers()}
    host = socket.gethostname()
    for pid in options.kill:
        if f"{host}/{pid}" not in names:
            raise UsageError(
                f"Process {pid} is no worker of this fleet on this machine.",
                hint=f"Workers: {', '.join(sorted(names)) or 'none'}; the number after the / is the process.",
            )
    for name in options.drain:
        if name not in names:
            raise UsageError(
                f"No worker {name!r} is alive.", hint=f"Alive: {', '.join(sorted(names)) or 'none'}."
            )
