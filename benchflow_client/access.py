"""How a client reaches its fleet: a configured one, or the embedded one of a jobs folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchflow_client import settings as settings_module
from benchflow_client.addresses import Addresses
from benchflow_client.broker import check_rabbitmq, make_app
from benchflow_client.dispatch import Dispatcher
from benchflow_client.embedded.fleet import EmbeddedFleet, Instance
from benchflow_client.errors import BrokerError, JobNotFoundError, JobSpecError
from benchflow_client.handle import Fleet, is_stored, matching_job, stored_jobs
from benchflow_client.ledger.base import Ledger, WorkerRecord
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.schema.job import JobSpec
from benchflow_client.settings import Settings
from benchflow_client.store.base import Store
from benchflow_client.store.configured import configured_store

_EMBEDDED_SLOTS_LIMIT = 64


class FleetAccess:
    """Connects when it is first needed, and leaves once.

    Args:
        settings: Where the fleet is; no broker = the embedded fleet.
        jobs_dir: Folder of the embedded fleet; None = that of the job at hand.
    """

    def __init__(self, settings: Settings, jobs_dir: Path | None) -> None:
        self._settings = settings
        self._jobs_dir = jobs_dir
        self._embedded: EmbeddedFleet | None = None
        self._fleet: Fleet | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether no broker is configured, so that the fleet is this machine."""
        return self._settings.addresses() is None

    @property
    def own_environ(self) -> Mapping[str, str]:
        """Variables with which a process joins the embedded fleet; none for a configured one."""
        return self._embedded.own_environ if self._embedded else {}

    def is_running(self) -> bool:
        """Return whether there is a fleet without starting one: a configured one, or a running embedded one."""
        return not self.is_embedded or self._instance(self.folder(None)) is not None

    def folder(self, spec: JobSpec | None) -> Path:
        """Return the jobs folder: the client's own, else the job's."""
        return self._jobs_dir or Path(spec.jobs_dir if spec else "jobs")

    def leave(self) -> None:
        """Stop using the fleet; safe to call twice."""
        self._fleet = None
        if self._embedded is not None:
            self._embedded.leave()
            self._embedded = None

    def keep(self) -> None:
        """Let an embedded fleet run on without users."""
        if self._embedded is not None:
            self._embedded.keep()

    def look(self, spec: JobSpec | None) -> tuple[Store, Ledger | None]:
        """Return where jobs are read, and the ledger unless no fleet runs; starts none."""
        if self._fleet is not None or not self.is_embedded:
            fleet = self.connect(spec)
            return fleet.store, fleet.ledger
        folder = self.folder(spec)
        instance = self._instance(folder)
        store = configured_store(self._settings, str(folder))
        return store, None if instance is None else RedisLedger.at(instance.url)

    def job_name(self, name: str, spec: JobSpec | None) -> str:
        """Return the job that a name, a unique prefix of one, or `@last` stands for.

        It may be known to the fleet, or where that has lost it, stand in the jobs folder or
        by its full name in the store. A full name is never taken for the beginning of another.

        Raises:
            JobNotFoundError: None matches, or several do.
        """
        store, ledger = self.look(spec)
        jobs: list[str] = [] if ledger is None else list(ledger.jobs())
        if self.is_embedded:
            jobs += [job for job in stored_jobs(self.folder(spec)) if job not in jobs]
        if name not in jobs and is_stored(name, store):
            return name
        try:
            return matching_job(name, jobs)
        except JobNotFoundError:
            if ledger is not None or any(job.startswith(name) for job in jobs):
                raise
        raise JobNotFoundError(
            f"No job {name!r} in the folder {str(self.folder(spec))!r}, and no fleet runs for it.",
            hint="`bench jobs` lists jobs. For others give --jobs-dir, or set BENCHFLOW_BROKER_URL.",
        )

    def start(self, slots: int) -> Fleet:
        """Connect to the configured fleet, or to the embedded one, which is started when it does not run."""
        if self._fleet is None and self.is_embedded:
            self._fleet = self._join(self.folder(None), slots)
        return self.connect(None)

    def connect(self, spec: JobSpec | None) -> Fleet:
        """Connect to the fleet; an embedded one is started for a job only.

        Raises:
            BrokerError: It cannot be reached, or no embedded one runs.
            JobSpecError: The jobs folder cannot be used.
        """
        if self._fleet is None:
            at = self._settings.addresses()
            self._fleet = self._join_embedded(spec) if at is None else self._configured(at, spec)
        return self._fleet

    def addresses(self) -> Addresses:
        """Return where broker and ledger are, credentials included."""
        self.connect(None)
        configured = self._settings.addresses()
        if configured is not None:
            return configured
        instance = self._embedded.running() if self._embedded else None
        if instance is None:
            raise BrokerError("The embedded fleet is gone.", hint="Start one with `bench up`.")
        return _embedded_at(instance)

    def _instance(self, folder: Path) -> Instance | None:
        return EmbeddedFleet(self._settings.state_dir, folder, {}).running()

    def _configured(self, at: Addresses, spec: JobSpec | None) -> Fleet:
        fleet = self._fleet_at(at, self._settings.store_url or str(self.folder(spec)), label="")
        fleet.ledger.ping()
        with make_app(at.broker, ledger_url=at.ledger) as app:
            check_rabbitmq(app)
        return Fleet(fleet.ledger, fleet.store, fleet.dispatcher, count_workers(fleet.ledger.workers()))

    def _join_embedded(self, spec: JobSpec | None) -> Fleet:
        folder = self.folder(spec)
        if spec is not None:
            _check_folder(folder)
            return self._join(folder, min(spec.concurrency, _EMBEDDED_SLOTS_LIMIT))
        self._embedded = EmbeddedFleet(self._settings.state_dir, folder, _inherited())
        instance = self._embedded.running()
        if instance is None:
            raise BrokerError(
                f"No broker is configured and no embedded fleet runs for the folder {str(folder)!r}.",
                hint="Start one with `bench up`, or set BENCHFLOW_BROKER_URL.",
            )
        return self._fleet_at(_embedded_at(instance), instance.store, label=_label(instance))

    def _join(self, folder: Path, slots: int) -> Fleet:
        self._embedded = EmbeddedFleet(self._settings.state_dir, folder, _inherited())
        instance = self._embedded.join(slots=slots)
        return self._fleet_at(_embedded_at(instance), instance.store, label=_label(instance))

    def _fleet_at(self, at: Addresses, store_url: str, *, label: str) -> Fleet:
        ledger = RedisLedger.at(at.ledger)
        store = configured_store(self._settings, store_url)
        return Fleet(ledger, store, Dispatcher(make_app(at.broker, ledger_url=at.ledger), ledger), label)


def count_workers(workers: Sequence[WorkerRecord]) -> str:
    """Return how many workers and slots there are, for people."""
    slots = sum(worker.slots for worker in workers)
    return f"{len(workers)} worker{'' if len(workers) == 1 else 's'}, {slots} slots"


def _embedded_at(instance: Instance) -> Addresses:
    return Addresses(instance.url, instance.url)


def _label(instance: Instance) -> str:
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
