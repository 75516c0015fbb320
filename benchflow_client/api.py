"""The Python interface: submit jobs, watch them, read their results.

from benchflow_client import Client, JobSpec

with Client() as client:
    results = client.run(JobSpec(tasks="examples/tasks", agent=["oracle"]))
    print(results.summary.score)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from benchflow_client import settings as settings_module
from benchflow_client.addresses import Addresses
from benchflow_client.broker import make_app
from benchflow_client.catalog.sandboxes import AUTO_ORDER
from benchflow_client.dispatch import Dispatcher, job_header
from benchflow_client.embedded.fleet import EmbeddedFleet, Instance
from benchflow_client.errors import (
    BenchflowError,
    BrokerError,
    JobSpecError,
    UsageError,
)
from benchflow_client.handle import (
    Fleet,
    JobHandle,
    StoredJob,
    matching_job,
    stored_jobs,
    waiting_reason,
)
from benchflow_client.ledger.base import JobHeader, JobProgress, WorkerRecord
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.drains import DrainRequest, DrainRequests
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.ledger.sandboxes import SandboxRecord
from benchflow_client.limits import Limits
from benchflow_client.plan.draft import Draft, find_work, make_draft
from benchflow_client.plan.placing import best_sandbox, check_sandbox, docker_listens
from benchflow_client.plan.submit import store_draft
from benchflow_client.report import JobRow, job_row
from benchflow_client.results.read import JobResults, read_job
from benchflow_client.results.receipts import stored_receipts
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan
from benchflow_client.settings import Settings
from benchflow_client.store.configured import configured_store

_EMBEDDED_SLOTS_LIMIT = 64


class Client:
    """Talks to a fleet; without a configured broker, to one it starts on this machine.

    Args:
        broker_url: Broker; None = BENCHFLOW_BROKER_URL, else the embedded fleet.
        ledger_url: Redis of the ledger; None = BENCHFLOW_LEDGER_URL, else the broker.
        store_url: Store; None = BENCHFLOW_STORE_URL, else the jobs folder.
        jobs_dir: Folder of the embedded fleet; None = that of the first job.
        settings: Everything else; None = from the environment.

    Use it as a context manager: closing it stops an embedded fleet nobody else uses.
    """

    def __init__(
        self,
        *,
        broker_url: str | None = None,
        ledger_url: str | None = None,
        store_url: str | None = None,
        jobs_dir: str | Path | None = None,
        settings: Settings | None = None,
    ) -> None:
        given = settings or settings_module.load()
        update: dict[str, object] = {}
        if broker_url is not None:
            update["broker_url"] = SecretStr(broker_url)
        if ledger_url is not None:
            update["ledger_url"] = SecretStr(ledger_url)
        if store_url is not None:
            update["store_url"] = store_url
        self.settings = given.model_copy(update=update)
        self._jobs_dir = None if jobs_dir is None else Path(jobs_dir)
        self._embedded: EmbeddedFleet | None = None
        self._fleet: Fleet | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop using the fleet; safe to call twice. Jobs of a configured fleet run on."""
        self._fleet = None
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = None

    def detach(self) -> None:
        """Leave the fleet running, an embedded one too, so that its jobs go on without this process."""
        if self._embedded is not None:
            self._embedded.keep()
        self.close()

    @property
    def is_embedded(self) -> bool:
        """Whether no broker is configured, so that the fleet is this machine."""
        return self.settings.addresses() is None

    def draft(self, spec: JobSpec) -> Draft:
        """Return the plan of a job without sending anything; needs no fleet.

        Raises:
            UsageError: The spec, its tasks or its agents are wrong; see `make_draft`.
        """
        work = find_work(spec, cache_dir=self.settings.state_dir)
        return make_draft(work, sandbox=self._likely_sandbox(spec))

    def submit(self, spec: JobSpec, *, on_draft: Callable[[Draft, Fleet], object] | None = None) -> JobHandle:
        """Plan a job, send it, and return at once.

        Args:
            spec: What to run.
            on_draft: Called with the plan just before it is sent.

        Raises:
            UsageError: The request is wrong; nothing was sent.
            InfrastructureError: Broker or store refuse; nothing is left half-written.
        """
        work = find_work(spec, cache_dir=self.settings.state_dir)
        fleet = self._connect(spec)
        workers = fleet.ledger.workers()
        if self.is_embedded:
            check_sandbox(spec, workers)
        draft = make_draft(work, sandbox=best_sandbox(spec, workers))
        if on_draft is not None:
            on_draft(draft, fleet)
        header = job_header(draft.plan, owner=self.settings.user)
        store_draft(draft, fleet.store, lambda: _open(fleet, header, draft.plan))
        return JobHandle(draft.plan.job, fleet)

    def run(self, spec: JobSpec) -> JobResults:
        """Submit a job, wait for its end, and return plan and summary.

        Raises:
            As `submit`.
        """
        handle = self.submit(spec)
        handle.wait()
        return handle.results()

    def job(self, name: str) -> JobHandle:
        """Return a handle for a recorded job.

        Args:
            name: Name, unique prefix of one, or `@last`.

        Raises:
            JobNotFoundError: None matches, or several do.
        """
        fleet = self._connect(None)
        return JobHandle(matching_job(name, fleet.ledger.jobs()), fleet)

    def recover(self, name: str, *, slots: int = 4) -> JobHandle:
        """Take up a job of the store that the ledger does not know: it was lost, or the fleet is new.

        Finished trials are not run again; a job that was closed stays closed, so that
        `JobHandle.retry` can be asked for more.

        Args:
            name: Name of the job.
            slots: Trials at once, where an embedded fleet has to be started.

        Raises:
            JobNotFoundError: The store has no such job.
        """
        fleet = self._fleet or self._start(slots)
        if name in fleet.ledger.jobs():
            return JobHandle(name, fleet)
        found = read_job(fleet.store, name)
        # Attempts of the lost ledger keep their folders: those of this one are named after another epoch.
        header = replace(job_header(found.plan, owner=self.settings.user), epoch=int(time.time()))
        receipts = stored_receipts(fleet.store, found)
        if found.summary is not None:
            fleet.ledger.restore_job(header, receipts)
            fleet.ledger.close_job(name)
        else:
            fleet.dispatcher.restore(header, found.plan, receipts)
        return JobHandle(name, fleet)

    def stored_job(self, name: str) -> JobHandle | StoredJob:
        """Return a job to read: from its fleet, or from the jobs folder where no fleet runs.

        Raises:
            JobNotFoundError: None matches, or several do.
        """
        if not self.is_embedded or self._runs_embedded():
            return self.job(name)
        folder = self._jobs_dir or Path("jobs")
        return StoredJob(
            matching_job(name, stored_jobs(folder)), configured_store(self.settings, str(folder))
        )

    def jobs(self) -> Sequence[JobProgress]:
        """Return the counts of all recorded jobs, newest first."""
        ledger = self._connect(None).ledger
        return [ledger.progress(job) for job in ledger.jobs()]

    def job_rows(self) -> Sequence[JobRow]:
        """Return a row per job: of the fleet, or of the jobs folder where no fleet runs."""
        if not self.is_embedded or self._runs_embedded():
            fleet = self._connect(None)
            return [
                job_row(known, waiting_for=waiting_reason(known, fleet) if known.waiting else "")
                for known in self.jobs()
            ]
        folder = self._jobs_dir or Path("jobs")
        if not folder.is_dir():
            return []
        store = configured_store(self.settings, str(folder))
        return [StoredJob(name, store).row() for name in stored_jobs(folder)]

    def workers(self) -> Sequence[WorkerRecord]:
        """Return the workers that are alive."""
        return self._connect(None).ledger.workers()

    def drain(self, worker: str, *, reason: str = "") -> None:
        """Ask a worker to stop: it takes no new trial and gives the running ones back.

        Args:
            worker: Its name, as `workers` lists it.
            reason: Why, for people.

        Raises:
            UsageError: No such worker is alive.
        """
        names = [record.name for record in self.workers()]
        if worker not in names:
            raise UsageError(f"No worker {worker!r} is alive.", hint=f"Alive: {', '.join(names) or 'none'}.")
        connection = RedisConnection.at(self._addresses(None).ledger)
        DrainRequests(connection).leave(worker, DrainRequest(self.settings.user, reason))

    def limits(self) -> Limits:
        """Return what the whole fleet may use of sandbox kinds, providers and models."""
        return Limits(self._connect(None).ledger)

    def sandboxes(self) -> Sequence[SandboxRecord]:
        """Return the sandboxes on record: those that exist, or may."""
        return RedisSandboxBook(RedisConnection.at(self._addresses(None).ledger)).read()

    def worker_environ(self) -> dict[str, str]:
        """Return the variables with which a process of the workers' side joins this fleet."""
        fleet = self._connect(None)
        own = self._embedded.own_environ if self._embedded else {}
        at = self._addresses(None)
        return {
            **settings_module.process_environ(),
            "BENCHFLOW_BROKER_URL": at.broker,
            "BENCHFLOW_LEDGER_URL": at.ledger,
            "BENCHFLOW_STORE_URL": fleet.store.url,
            "BENCHFLOW_STATE_DIR": str(self.settings.state_dir),
            **own,
        }

    def _addresses(self, spec: JobSpec | None) -> Addresses:
        """Return where broker and ledger are, credentials included."""
        self._connect(spec)
        configured = self.settings.addresses()
        if configured is not None:
            return configured
        instance = self._embedded.running() if self._embedded else None
        if instance is None:
            raise BrokerError("The embedded fleet is gone.", hint="Start one with `bench up`.")
        return _embedded_at(instance)

    def _runs_embedded(self) -> bool:
        folder = self._jobs_dir or Path("jobs")
        return EmbeddedFleet(self.settings.state_dir, folder, {}).running() is not None

    def _start(self, slots: int) -> Fleet:
        """Connect to the configured fleet, or start the embedded one."""
        if not self.is_embedded:
            return self._connect(None)
        folder = self._jobs_dir or Path("jobs")
        self._embedded = EmbeddedFleet(self.settings.state_dir, folder, _inherited())
        instance = self._embedded.join(slots=slots)
        self._fleet = self._fleet_at(_embedded_at(instance), instance.store, label=_embedded_label(instance))
        return self._fleet

    def _connect(self, spec: JobSpec | None) -> Fleet:
        if self._fleet is None:
            at = self.settings.addresses()
            self._fleet = self._join_embedded(spec) if at is None else self._configured(at, spec)
        return self._fleet

    def _configured(self, at: Addresses, spec: JobSpec | None) -> Fleet:
        store_url = self.settings.store_url or str(self._jobs_dir or (spec.jobs_dir if spec else "jobs"))
        fleet = self._fleet_at(at, store_url, label="")
        fleet.ledger.ping()
        workers = fleet.ledger.workers()
        return Fleet(fleet.ledger, fleet.store, fleet.dispatcher, count_workers(workers))

    def _join_embedded(self, spec: JobSpec | None) -> Fleet:
        folder = self._jobs_dir or Path(spec.jobs_dir if spec else "jobs")
        self._embedded = embedded = EmbeddedFleet(self.settings.state_dir, folder, _inherited())
        if spec is None:
            instance = embedded.running()
            if instance is None:
                raise BrokerError(
                    f"No broker is configured and no embedded fleet runs for the folder {str(folder)!r}.",
                    hint="Start one with `bench up`, or set BENCHFLOW_BROKER_URL.",
                )
        else:
            _check_folder(folder)
            instance = embedded.join(slots=min(spec.concurrency, _EMBEDDED_SLOTS_LIMIT))
        return self._fleet_at(_embedded_at(instance), instance.store, label=_embedded_label(instance))

    def _fleet_at(self, at: Addresses, store_url: str, *, label: str) -> Fleet:
        ledger = RedisLedger.at(at.ledger)
        store = configured_store(self.settings, store_url)
        return Fleet(ledger, store, Dispatcher(make_app(at.broker, ledger_url=at.ledger), ledger), label)

    def _likely_sandbox(self, spec: JobSpec) -> str:
        """Return the kind of sandbox without starting a fleet to ask its workers."""
        if spec.sandbox == "auto" and self.is_embedded:
            return AUTO_ORDER[0] if docker_listens() else AUTO_ORDER[-1]
        return best_sandbox(spec, [] if spec.sandbox != "auto" else self._connect(spec).ledger.workers())


def count_workers(workers: Sequence[WorkerRecord]) -> str:
    """Return how many workers and slots there are, for people."""
    slots = sum(worker.slots for worker in workers)
    return f"{len(workers)} worker{'' if len(workers) == 1 else 's'}, {slots} slots"


def _open(fleet: Fleet, header: JobHeader, plan: Plan) -> None:
    try:
        fleet.dispatcher.open(header, plan)
    except BenchflowError:
        raise
    except BaseException:
        # Ctrl-C in between: a job whose plan is taken back must not stay on record.
        fleet.ledger.forget_job(header.job)
        raise


def _embedded_at(instance: Instance) -> Addresses:
    return Addresses(instance.url, instance.url)


def _embedded_label(instance: Instance) -> str:
    return f"embedded (1 worker, {instance.slots} slots)"


def _check_folder(folder: Path) -> None:
    """Make the jobs folder, or say why results cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JobSpecError(
            f"The jobs folder {str(folder)!r} cannot be made: {error.strerror}.",
            hint="Choose another --jobs-dir.",
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise JobSpecError(
            f"The jobs folder {str(folder)!r} cannot be written.", hint="Choose another --jobs-dir."
        )


def _inherited() -> Mapping[str, str]:
    """Return the variables an embedded worker inherits: all of this process's."""
    return settings_module.process_environ()
