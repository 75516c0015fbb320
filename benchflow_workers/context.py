"""Composition root of a worker: the only place that constructs implementations."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from benchflow_client import settings as client_settings
from benchflow_client.addresses import REDIS, Addresses, address_of, broker_kind
from benchflow_client.broker import make_app
from benchflow_client.catalog.own_agents import known_logins
from benchflow_client.dispatch import Dispatcher
from benchflow_client.errors import WorkerError
from benchflow_client.ledger.base import Ledger
from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.drains import DrainRequests
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.ledger.redis_rates import RedisRates
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.ledger.sandboxes import SandboxBook
from benchflow_client.store.base import Store
from benchflow_client.store.configured import configured_store
from benchflow_workers import settings as worker_settings
from benchflow_workers.admission import Admitter
from benchflow_workers.agents.registry import Metering, agent_of
from benchflow_workers.agents.toolbox import Toolbox
from benchflow_workers.delivery import Deliveries
from benchflow_workers.gateway.translator import Translators
from benchflow_workers.jobs import JobBook
from benchflow_workers.lease import LeaseKeeper
from benchflow_workers.leftovers import Leftovers
from benchflow_workers.reconciler import Reconciler
from benchflow_workers.sandbox.registry import SandboxRegistry
from benchflow_workers.telemetry.base import NO_TELEMETRY, Telemetry
from benchflow_workers.telemetry.registry import open_telemetry
from benchflow_workers.trial.cache import BundleCache
from benchflow_workers.trial.capacity import Capacity
from benchflow_workers.trial.host_locks import HostLocks
from benchflow_workers.trial.prepare import Parts
from benchflow_workers.verifiers.registry import verifier_of


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Everything a worker process is made of."""

    name: str
    settings: worker_settings.WorkerSettings
    app: Celery
    fleet: str
    ledger: Ledger
    book: SandboxBook
    drains: DrainRequests
    store: Store
    jobs: JobBook
    keeper: LeaseKeeper
    admitter: Admitter
    deliveries: Deliveries
    reconciler: Reconciler
    sandboxes: SandboxRegistry
    capacity: Capacity
    metering: Metering
    started_at: float


_RATES_TIMEOUT_S = 1.0  # less than an agent would notice

_lock = threading.Lock()
_context: WorkerContext | None = None


def context(*, env_file: Path | None = None) -> WorkerContext:
    """Return this process's context, made on first use.

    Args:
        env_file: Where trials find variables that this process does not have; None = nowhere. For
            processes that run trials: a broken file must not keep others from looking at the fleet.

    Raises:
        WorkerError: A setting is missing or wrong, or the file is.
    """
    global _context
    with _lock:
        if _context is None:
            _context = compose(worker_settings.process_environ(), env_file=env_file)
        return _context


def worker_name() -> str:
    """Return this process's name: host and process id, unique in a fleet."""
    return f"{socket.gethostname()}/{os.getpid()}"


def node_name(worker: str) -> str:
    """Return the name under which Celery knows a worker."""
    return f"{worker.replace('/', '-')}@{worker.partition('/')[0]}"


def fleet_addresses(environ: dict[str, str]) -> Addresses:
    """Return where broker and ledger are.

    Raises:
        WorkerError: No broker is set.
        BrokerError: An address is of a kind that cannot work, or the ledger's is missing.
    """
    at = client_settings.load(environ).addresses()
    if at is None:
        raise WorkerError(
            "A worker needs a broker, and BENCHFLOW_BROKER_URL is not set.",
            hint="Set it to redis://:PASSWORD@HOST:6379/0, or use `bench up` for a fleet on this machine.",
        )
    return at


def compose(environ: dict[str, str], *, env_file: Path | None = None) -> WorkerContext:
    """Return a worker put together as its variables say; nothing is sent to the broker yet.

    Trials find in the file what the variables do not have.

    Raises:
        WorkerError: A setting is missing or wrong, or the file is.
    """
    client, worker = client_settings.load(environ), worker_settings.load(environ)
    at, store = fleet_addresses(environ), configured_store(client, _store_url(client))
    connection, app = RedisConnection.of_worker(at.ledger), make_app(at.broker, ledger_url=at.ledger)
    ledger, book = RedisLedger(connection), RedisSandboxBook(connection)
    fleet = client.fleet or ledger.fleet_id()
    jobs, name, dispatcher = JobBook(ledger, store), worker_name(), Dispatcher(app, ledger)
    admitter = Admitter(dispatcher, jobs)
    keeper = LeaseKeeper(_keeper_ledger(at.ledger, worker.lease_ttl_s), ttl_s=worker.lease_ttl_s)
    sandboxes = SandboxRegistry(worker, state_dir=client.state_dir, book=book)
    variables = worker_settings.with_env_file(environ, env_file)
    telemetry = _telemetry(environ, env_file)
    parts = _parts(client, worker, store, sandboxes=sandboxes, variables=variables, fleet=fleet)
    return WorkerContext(
        name=name,
        settings=worker,
        app=app,
        fleet=fleet,
        ledger=ledger,
        book=book,
        drains=DrainRequests(connection),
        store=store,
        jobs=jobs,
        keeper=keeper,
        admitter=admitter,
        deliveries=Deliveries(ledger, store, keeper, dispatcher, admitter, jobs, parts, name, parts.scratch, telemetry),
        reconciler=Reconciler(
            ledger, dispatcher, jobs, Leftovers(_redis_broker(at), ledger), interval_s=worker.reconcile_s,
            is_leader=lambda: ledger.lead("reconciler", name, ttl_s=worker.reconcile_s * 3),
        ),
        sandboxes=sandboxes, capacity=parts.capacity, metering=parts.metering,
        started_at=time.time(),
    )  # fmt: skip


def _parts(
    client: client_settings.Settings,
    worker: worker_settings.WorkerSettings,
    store: Store,
    *,
    sandboxes: SandboxRegistry,
    variables: dict[str, str],
    fleet: str,
) -> Parts:
    """Return what the trials of this worker are made of."""
    state_dir, locks = client.state_dir, _locks(client.state_dir)
    scratch, bundles = _scratch(state_dir), BundleCache(store, state_dir / "bundles")
    return Parts(
        bundles, sandboxes.get, agent_of, verifier_of, variables, fleet, locks,
        capacity=Capacity(gpus=worker.gpu_ids(), keep=locks.keep), metering=_metering(client, worker, scratch),
        scratch=scratch,
        toolbox=Toolbox(state_dir / "toolbox"), logins=known_logins(),
    )  # fmt: skip


def _scratch(state_dir: Path) -> Path:
    """Return this process's folder for files of running trials."""
    folder = state_dir / "scratch" / str(os.getpid())
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _locks(state_dir: Path) -> HostLocks:
    """Return the locks all workers with this state folder share."""
    return HostLocks(state_dir / "locks")


def _redis_broker(at: Addresses) -> RedisConnection | None:
    """Return a connection to a broker that is a Redis; None = it is none."""
    return RedisConnection.of_worker(at.broker) if broker_kind(at.broker) == REDIS else None


def _keeper_ledger(url: str, ttl_s: float) -> RedisLedger:
    """Return a ledger that gives up on a silent broker well before a lease runs out."""
    client = connect(url, timeout_s=max(1.0, ttl_s / 8), retries=1)
    return RedisLedger(RedisConnection(client, address=address_of(url)))


def _metering(
    client: client_settings.Settings, worker: worker_settings.WorkerSettings, scratch: Path
) -> Metering:
    """Return what gives agents models; their calls go on without limits rather than wait for a silent ledger."""
    at, rates = client.addresses(), None
    if at is not None:
        connection = connect(at.ledger, timeout_s=_RATES_TIMEOUT_S, retries=1)
        rates = RedisRates(RedisConnection(connection, address=address_of(at.ledger)))
    public = {"listen": worker.gateway_listen, "public_url": worker.gateway_public_url}
    translators = Translators(scratch / "translators", worker_settings.process_environ())
    return Metering(worker.prices, **public, rates=rates, translators=translators)


def _telemetry(environ: dict[str, str], env_file: Path | None) -> Telemetry:
    """Return what takes spans; a process that only looks at the fleet, and so has no file for trials, sends none."""
    if env_file is None:
        return NO_TELEMETRY
    return open_telemetry(worker_settings.load_otel(environ), worker=worker_name())


def _store_url(client: client_settings.Settings) -> str:
    if client.store_url is None:
        raise WorkerError(
            "A worker needs a store, and BENCHFLOW_STORE_URL is not set.",
            hint="Set it to the folder or s3:// address the clients use.",
        )
    return str(Path(client.store_url)) if "://" not in client.store_url else client.store_url
