"""The worker program: one process that serves queues until it is told to stop."""

from __future__ import annotations

import logging
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from celery import signals
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning

from benchflow_client.broker import CONTROL_QUEUE, check_rabbitmq
from benchflow_client.catalog.sandboxes import SANDBOXES
from benchflow_client.errors import WorkerError
from benchflow_client.schema.ids import kind_of_queue, queue_of
from benchflow_workers.celery_tasks import register
from benchflow_workers.context import WorkerContext, context, node_name
from benchflow_workers.drain import INTERRUPTED, Presence
from benchflow_workers.host import sandbox_problem
from benchflow_workers.reaper import Reaper
from benchflow_workers.sandbox.registry import KINDS
from benchflow_workers.settings import ENV_FILE

logger = logging.getLogger(__name__)

_WITH_GPUS = tuple(kind for kind, entry in SANDBOXES.items() if entry.has_gpus)

DEFAULT_SLOTS = 4
"""Trials at once where nothing is said: what two cores and Docker can start without waiting."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What `bench worker` is told.

    Attributes:
        queues: Queues to serve: sandbox kinds, those of kinds with GPUs, and `control`; empty = all that work
            on this host.
        slots: Trials at once.
        log_level: Least level that is logged.
        cpus: Cores its sandboxes may take together; None = no limit.
        memory_mb: Memory its sandboxes may take together, in MiB; None = no limit.
    """

    queues: tuple[str, ...] = ()
    slots: int = DEFAULT_SLOTS
    log_level: str = "INFO"
    cpus: float | None = None
    memory_mb: int | None = None


def serve(options: WorkerOptions) -> int:
    """Run a worker until SIGTERM or SIGINT; returns its exit code.

    Raises:
        WorkerError: A setting is missing, a queue cannot be served here.
        BrokerError: The broker cannot be reached at the start.
    """
    configure_logging(options.log_level)
    here = context(env_file=ENV_FILE)
    _check_broker(here)
    queues, sandboxes = served_queues(options.queues, here)
    here.capacity.limit(cpus=options.cpus, memory_mb=options.memory_mb)
    here.capacity.keep_gpus()
    if set(queues) != {CONTROL_QUEUE}:
        here.metering.start()
    presence = Presence(here, queues=queues, sandboxes=sandboxes, slots=options.slots)
    _follow_signals(presence, lambda: here.admitter.start(set(queues) - {CONTROL_QUEUE}))
    worker = _celery_worker(here, queues, options)
    here.reconciler.start()
    reaper = make_reaper(here, sandboxes)
    reaper.start()
    worker.start()
    reaper.close()
    here.metering.close()
    presence.stop()
    here.deliveries.telemetry.close()
    return INTERRUPTED if presence.is_interrupted else int(worker.exitcode or 0)


def served_queues(asked: Sequence[str], here: WorkerContext) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the queues to serve and the kinds of sandbox that work on this host.

    Raises:
        WorkerError: An asked queue is unknown, or its sandbox does not work here.
    """
    known = (*KINDS, *map(_gpu_queue, _WITH_GPUS), CONTROL_QUEUE)
    unknown = sorted(set(asked) - {*known})
    if unknown:
        raise WorkerError(f"There is no queue {unknown[0]!r}.", hint=f"Queues: {', '.join(known)}.")
    kinds = tuple(kind for kind in KINDS if not asked or {kind, _gpu_queue(kind)} & {*asked})
    problems = {kind: sandbox_problem(here.sandboxes, kind) for kind in kinds}
    for kind, problem in problems.items():
        if problem is not None and asked:
            raise WorkerError(
                f"This host cannot run {kind!r} sandboxes: {problem.message}", hint=problem.hint
            )
    working = tuple(kind for kind in kinds if problems[kind] is None)
    queues = asked or (*working, CONTROL_QUEUE)
    return tuple(dict.fromkeys(_with_gpus(queues, here))), working


def _with_gpus(queues: Sequence[str], here: WorkerContext) -> Iterator[str]:
    """Yield queues, each kind of sandbox followed by its queue for GPUs where it has some to give.

    Raises:
        WorkerError: Such a queue was asked for, and there are no GPUs.
    """
    for queue in queues:
        kind = kind_of_queue(queue)
        has_gpus = kind in _WITH_GPUS and here.sandboxes.get(kind).capabilities.has_gpus
        if queue != kind and not has_gpus:
            raise WorkerError(
                f"This worker was told of no GPUs, so it cannot serve queue {queue!r}.",
                hint="Set BENCHFLOW_GPUS to the numbers or UUIDs of `nvidia-smi -L` that it may give, e.g. 0,1.",
            )
        yield queue
        if has_gpus:
            yield _gpu_queue(kind)


def _gpu_queue(kind: str) -> str:
    return queue_of(kind, needs_gpus=True)


def make_reaper(here: WorkerContext, sandboxes: Sequence[str]) -> Reaper:
    """Return what removes leftover sandboxes of these kinds on this host."""
    return Reaper(
        [here.sandboxes.get(kind) for kind in sandboxes],
        here.ledger,
        here.book,
        fleet=here.fleet,
        interval_s=here.settings.reap_s,
    )


def configure_logging(level: str) -> None:
    """Log one line per event to standard error; libraries only when they warn."""
    if level not in logging.getLevelNamesMapping():
        raise WorkerError(f"Log level {level!r} is not known.", hint="Use DEBUG, INFO, WARNING or ERROR.")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)-7s %(message)s")
    logging.getLogger("benchflow_workers").setLevel(level)
    # A drained trial is rejected back to its queue on purpose; Celery would log a traceback of it.
    logging.getLogger("celery.app.trace").setLevel(logging.ERROR)
    # Celery warns root of pickle; only JSON is accepted here, and Docker and namespaces need root.
    warnings.simplefilter("ignore", SecurityWarning)
    logging.getLogger("benchflow_client").setLevel(level)


def _check_broker(here: WorkerContext) -> None:
    """Raise when broker or ledger cannot be used; warn of what a RabbitMQ does to long trials."""
    here.ledger.ping()
    if version := check_rabbitmq(here.app):
        logger.warning(
            "RabbitMQ %s closes the channel of a worker whose trial takes longer than consumer_timeout, 30 minutes "
            "unless rabbitmq.conf says otherwise: no trial is lost or repeated, but the worker connects anew and its "
            "messages come again. Set it above the longest trial.",
            version, extra={"action": "consumer_timeout"},
        )  # fmt: skip


def _follow_signals(presence: Presence, on_ready: Callable[[], object]) -> None:
    def ready(**_: Any) -> None:
        # Celery shows these in any case: at every lost connection, of a setting that is set here.
        warnings.simplefilter("ignore", CPendingDeprecationWarning)
        _follow_interrupts(presence)
        presence.start()
        on_ready()

    def stopping(**_: Any) -> None:
        # In a thread: this runs inside a signal handler, where a lock may be held already.
        threading.Thread(target=presence.drain, name="drain", daemon=True).start()

    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(stopping, weak=False)


def _follow_interrupts(presence: Presence) -> None:
    """Let the second Ctrl-C end the worker at once; Celery's own way would wait for threads it cannot end."""
    first, count = signal.getsignal(signal.SIGINT), 0

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count == 1 and callable(first):
            first(number, frame)
            signal.signal(signal.SIGINT, interrupted)
        else:
            threading.Thread(target=presence.leave_now, name="leave", daemon=True).start()

    signal.signal(signal.SIGINT, interrupted)


def _celery_worker(here: WorkerContext, queues: Sequence[str], options: WorkerOptions) -> Any:
    register(here.app)
    return here.app.Worker(
        hostname=node_name(here.name),
        pool="threads",
        concurrency=options.slots,
        queues=",".join(queues),
        loglevel="WARNING",
        task_events=True,
        without_gossip=True,
        without_mingle=True,
        quiet=True,
    )
