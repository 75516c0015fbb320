"""The Python interface: submit jobs, watch them, read their results.

from benchflow_client import Client, JobSpec

with Client() as client:
    results = client.run(JobSpec(tasks="examples/tasks", agent=["oracle"]))
    print(results.summary.score)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import SecretStr

from benchflow_client import settings as settings_module
from benchflow_client.access import FleetAccess
from benchflow_client.catalog.sandboxes import AUTO_ORDER
from benchflow_client.dispatch import job_header
from benchflow_client.errors import BenchflowError, UsageError
from benchflow_client.handle import (
    Fleet,
    JobHandle,
    StoredJob,
    find_job,
    recorded_job,
    recorded_rows,
    stored_jobs,
)
from benchflow_client.ledger.base import JobHeader, JobProgress, WorkerRecord
from benchflow_client.ledger.connection import RedisConnection
from benchflow_client.ledger.drains import DrainRequest, DrainRequests
from benchflow_client.ledger.redis_rates import RedisRates
from benchflow_client.ledger.redis_sandboxes import RedisSandboxBook
from benchflow_client.ledger.sandboxes import SandboxRecord
from benchflow_client.limits import Limits
from benchflow_client.plan.draft import Draft, Work, make_draft, work_of
from benchflow_client.plan.placing import best_sandbox, check_gpus, check_sandbox, docker_listens
from benchflow_client.plan.regrade import RegradeRequest, regrade_draft
from benchflow_client.plan.retry import Choice, check_words, keep_finished
from benchflow_client.plan.submit import free_name, store_bundles, store_draft
from benchflow_client.regrade import found_by, results_of, send_regrade
from benchflow_client.report import JobRow
from benchflow_client.results.read import JobResults
from benchflow_client.results.regrades import RegradeSummary
from benchflow_client.resume import (
    EndedJob,
    begin,
    caps_of,
    check_caps,
    check_ended,
    find_ended,
    is_going_on,
    resumed_draft,
)
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan
from benchflow_client.settings import Settings
from benchflow_client.spending import Caps
from benchflow_client.store.base import Store


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
        self._access = FleetAccess(self.settings, None if jobs_dir is None else Path(jobs_dir))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop using the fleet; safe to call twice. Jobs of a configured fleet run on."""
        self._access.leave()

    def detach(self) -> None:
        """Leave the fleet running, an embedded one too, so that its jobs go on without this process."""
        self._access.keep()
        self.close()

    @property
    def is_embedded(self) -> bool:
        """Whether no broker is configured, so that the fleet is this machine."""
        return self._access.is_embedded

    def draft(self, spec: JobSpec, *, resume: str | None = None, fresh: bool = False) -> Draft:
        """Return the plan of a job without sending anything; starts no fleet.

        Args:
            spec: What to run.
            resume: See `submit`.
            fresh: See `submit`.

        Raises:
            UsageError: The spec, its tasks or its agents are wrong; see `make_draft`.
            ResumeMismatchError: See `submit`.
        """
        work = work_of(spec, self.settings)
        if resume is None or fresh:
            return make_draft(work, sandbox=self._likely_sandbox(spec))
        return _resumed(work, self._ended(resume, spec))

    def submit(
        self,
        spec: JobSpec,
        *,
        resume: str | None = None,
        fresh: bool = False,
        on_draft: Callable[[Draft, Fleet], object] | None = None,
    ) -> JobHandle:
        """Plan a job, send it, and return at once.

        Args:
            spec: What to run.
            resume: Job to go on with: its finished trials are kept, except those without a
                verdict that another execution may change. Its name, a unique prefix of it,
                or `@last`; None = a new job.
            fresh: Make a new job in any case: under a new name where the spec's is taken.
            on_draft: Called with the plan just before it is sent.

        Raises:
            UsageError: The request is wrong, or the job to resume still runs; nothing was sent.
            ResumeMismatchError: The job to resume would have other trials now.
            InfrastructureError: Broker or store refuse; nothing is left half-written.
        """
        work = work_of(spec, self.settings)
        ended = None if resume is None or fresh else self._ended(resume, spec)
        draft = None if ended is None else _resumed(work, ended)
        fleet = self._access.connect(spec)
        workers = fleet.ledger.workers()
        if self.is_embedded:
            check_sandbox(spec.sandbox if draft is None else draft.plan.sandbox, workers)
        if draft is None:
            work = replace(work, spec=_named(spec, fleet.store)) if fresh else work
            draft = make_draft(work, sandbox=best_sandbox(spec, workers))
        if self.is_embedded:
            check_gpus(draft.plan, workers)
        if on_draft is not None:
            on_draft(draft, fleet)
        self._send(draft, fleet, ended)
        return JobHandle(draft.plan.job, fleet)

    def run(self, spec: JobSpec, *, resume: str | None = None, fresh: bool = False) -> JobResults:
        """Submit a job, wait for its end, and return plan and summary.

        Args:
            spec: What to run.
            resume: See `submit`.
            fresh: See `submit`.

        Raises:
            As `submit`.
        """
        handle = self.submit(spec, resume=resume, fresh=fresh)
        handle.wait()
        return handle.results()

    def resume(
        self,
        name: str,
        what: Sequence[str] = (),
        *,
        caps: Caps | None = None,
        slots: int = 4,
        on_choice: Callable[[Choice], object] | None = None,
    ) -> JobHandle | None:
        """Go on with a job as it was sent: end its pause, or run trials of an ended one again.

        Args:
            name: Name, unique prefix of one, or `@last`.
            what: Finished trials to run again; see `plan.retry.select_retries`.
            caps: Caps of its budget to replace; None = none of them.
            slots: Trials at once, where an embedded fleet has to be started.
            on_choice: Called with what becomes of each trial of an ended job, before any runs.

        Returns:
            None where every trial keeps its result and nothing runs.

        Raises:
            JobNotFoundError: None matches, or several do.
            UsageError: It still runs, a word of `what` is unknown, or its budget is used up.
        """
        check_words(what)
        job = self._access.job_name(name, None)
        _, ledger = self._access.look(None)
        if is_going_on(job, ledger):
            return self._released(job, caps)
        ended = self._ended(job, None)
        choice = ended.choose(what)
        check_caps(ended, choice, ledger, caps)
        if on_choice is not None:
            on_choice(choice)
        if not choice.again and ended.has_summary:
            return None
        begin(self._access.start(slots), ended, choice, owner=self.settings.user, caps=caps)
        return JobHandle(job, self._access.start(slots))

    def regrade(self, name: str, ask: RegradeRequest) -> JobHandle:
        """Judge the kept workspaces of a job again, as a job of its own; the results stay as they are.

        Args:
            name: Name, unique prefix of one, or `@last`.
            ask: Which trials, and whose verifiers.

        Raises:
            UsageError: No trial can be judged again; says why.
        """
        job = self.stored_job(name)
        store, _ = self._access.look(None)
        draft = regrade_draft(
            job.results().plan, results_of(job), ask, store=store, cache_dir=self.settings.state_dir
        )
        return send_regrade(self._access.start(ask.concurrency), draft, owner=self.settings.user)

    def regraded(self, handle: JobHandle) -> RegradeSummary:
        """Return what a finished regrade changed."""
        store, _ = self._access.look(None)
        return found_by(store, handle)

    def job(self, name: str) -> JobHandle:
        """Return a handle for a recorded job.

        Args:
            name: Name, unique prefix of one, or `@last`.

        Raises:
            JobNotFoundError: None matches, or several do.
        """
        return recorded_job(name, self._access.connect(None))

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
        job = self._access.job_name(name, None)
        _, ledger = self._access.look(None)
        if ledger is not None and job in ledger.jobs():
            return self.job(job)
        ended = self._ended(job, None)
        choice = keep_finished(ended.plan, ended.receipts)
        begin(self._access.start(slots), ended, choice, owner=self.settings.user)
        return self.job(job)

    def stored_job(self, name: str) -> JobHandle | StoredJob:
        """Return a job to read: from its fleet, or from the store where no fleet runs or knows its full name.

        Raises:
            JobNotFoundError: None matches, or several do.
        """
        if self._access.is_running():
            return find_job(name, self._access.connect(None))
        store, _ = self._access.look(None)
        return StoredJob(self._access.job_name(name, None), store)

    def jobs(self) -> Sequence[JobProgress]:
        """Return the counts of all recorded jobs, newest first."""
        ledger = self._access.connect(None).ledger
        return [ledger.progress(job) for job in ledger.jobs()]

    def job_rows(self) -> Sequence[JobRow]:
        """Return a row per job: of the fleet, or of the jobs folder where no fleet runs."""
        if self._access.is_running():
            return recorded_rows(self._access.connect(None))
        store, _ = self._access.look(None)
        return [StoredJob(name, store).row() for name in stored_jobs(self._access.folder(None))]

    def workers(self) -> Sequence[WorkerRecord]:
        """Return the workers that are alive."""
        return self._access.connect(None).ledger.workers()

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
        connection = RedisConnection.at(self._access.addresses().ledger)
        DrainRequests(connection).leave(worker, DrainRequest(self.settings.user, reason))

    def limits(self) -> Limits:
        """Return what the whole fleet may use of sandbox kinds, providers, models and their keys."""
        ledger = self._access.connect(None).ledger
        return Limits(ledger, RedisRates(RedisConnection.at(self._access.addresses().ledger)))

    def sandboxes(self) -> Sequence[SandboxRecord]:
        """Return the sandboxes on record: those that exist, or may."""
        return RedisSandboxBook(RedisConnection.at(self._access.addresses().ledger)).read()

    def worker_environ(self) -> dict[str, str]:
        """Return the variables with which a process of the workers' side joins this fleet."""
        fleet, at = self._access.connect(None), self._access.addresses()
        return {
            **settings_module.process_environ(),
            "BENCHFLOW_BROKER_URL": at.broker,
            "BENCHFLOW_LEDGER_URL": at.ledger,
            "BENCHFLOW_STORE_URL": fleet.store.url,
            "BENCHFLOW_STATE_DIR": str(self.settings.state_dir),
            **self._access.own_environ,
        }

    def _ended(self, name: str, spec: JobSpec | None) -> EndedJob:
        store, ledger = self._access.look(spec)
        return find_ended(self._access.job_name(name, spec), store, ledger)

    def _released(self, job: str, caps: Caps | None) -> JobHandle:
        """Let more trials of a job start that is on the fleet: with other caps, or after a pause."""
        handle = self.job(job)
        if caps is not None:
            handle.set_caps(caps)
        if not handle.resume() and caps is None:
            check_ended(job, handle.progress().state)
        return handle

    def _send(self, draft: Draft, fleet: Fleet, ended: EndedJob | None) -> None:
        owner = self.settings.user
        if ended is None or draft.resume is None:
            header = job_header(draft.plan, owner=owner)
            store_draft(draft, fleet.store, lambda: _open(fleet, header, draft.plan))
            return
        store_bundles(draft, fleet.store)
        begin(fleet, ended, draft.resume, owner=owner, caps=caps_of(draft.plan.spec))

    def _likely_sandbox(self, spec: JobSpec) -> str:
        """Return the kind of sandbox without starting a fleet to ask its workers."""
        if spec.sandbox == "auto" and self.is_embedded:
            return AUTO_ORDER[0] if docker_listens(settings_module.docker_address()) else AUTO_ORDER[-1]
        workers = [] if spec.sandbox != "auto" else self._access.connect(spec).ledger.workers()
        return best_sandbox(spec, workers)


def _resumed(work: Work, ended: EndedJob) -> Draft:
    kind = ended.plan.sandbox if work.spec.sandbox == "auto" else work.spec.sandbox
    return resumed_draft(make_draft(work, sandbox=kind), ended)


def _named(spec: JobSpec, store: Store) -> JobSpec:
    """Return a spec whose job's name, if it has one, is free."""
    if spec.job_name is None:
        return spec
    return spec.model_copy(update={"job_name": free_name(spec.job_name, store)})


def _open(fleet: Fleet, header: JobHeader, plan: Plan) -> None:
    try:
        fleet.dispatcher.open(header, plan)
    except BenchflowError:
        raise
    except BaseException:
        # Ctrl-C in between: a job whose plan is taken back must not stay on record.
        fleet.ledger.forget_job(header.job)
        raise
