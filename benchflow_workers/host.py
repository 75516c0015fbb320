"""What works on this host."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from queue import Empty, Queue
from typing import Any, Final

from benchflow_client import settings as client_settings
from benchflow_client.broker import BROKER_ERRORS
from benchflow_client.errors import BenchflowError, BrokerError, WorkerError
from benchflow_workers import settings as worker_settings
from benchflow_workers.context import context, node_name
from benchflow_workers.reaper import Reaper
from benchflow_workers.sandbox.base import SandboxProvider
from benchflow_workers.sandbox.registry import KINDS, SandboxRegistry, opens_tls

_PING_S: Final = 4.0
"""A worker that does not answer for so long cannot take work either."""

_HEALTH_S: Final = 6.0
"""A health check that takes longer has its answer: broker or ledger are silent. With the program's start: 10 s."""


def sandbox_problem(sandboxes: SandboxRegistry, kind: str) -> BenchflowError | None:
    """Return why a kind of sandbox does not work on this host; None = it does."""
    try:
        asyncio.run(sandboxes.get(kind).check())
    except BenchflowError as error:
        return error
    return None


def host_findings() -> Iterator[dict[str, Any]]:
    """Yield kind, text, problem and fix of each kind of sandbox; `problem` is None where it works."""
    environ = worker_settings.process_environ()
    state_dir = client_settings.load(environ).state_dir
    sandboxes = SandboxRegistry(worker_settings.load(environ), state_dir=state_dir)
    for kind in KINDS:
        problem = sandbox_problem(sandboxes, kind)
        text = "" if problem else _limits(sandboxes, kind)
        yield {
            "kind": kind,
            "text": text,
            "problem": problem.message if problem else None,
            "fix": problem.hint if problem else "",
        }


def sandbox_findings(*, clean: bool) -> list[dict[str, Any]]:
    """Return this fleet's sandboxes on this host; with `clean`, orphans are removed first.

    Shape: one object per sandbox or stale record: kind, id, state (live, orphan, stale),
    trial, worker.
    """
    here = context()
    working = [kind for kind in KINDS if sandbox_problem(here.sandboxes, kind) is None]
    reaper = Reaper(
        [here.sandboxes.get(kind) for kind in working], here.ledger, here.book, fleet=here.fleet, interval_s=1
    )
    if clean:
        reaper.sweep()
    audit = reaper.audit()
    refs = [(ref, "live") for ref in audit.live] + [(ref, "orphan") for ref in audit.orphans]
    rows = [
        {
            "kind": ref.kind, "id": ref.id, "state": state,
            "trial": ref.labels.get("bf.trial", ""), "worker": ref.labels.get("bf.worker", ""),
        }
        for ref, state in refs
    ]  # fmt: skip
    return rows + [
        {
            "kind": r.kind,
            "id": r.id or r.name,
            "state": "stale",
            "trial": f"{r.job} #{r.index}",
            "worker": r.worker,
        }
        for r in audit.stale
    ]


def remove_all_sandboxes() -> list[str]:
    """Remove every sandbox of the fleet named by BENCHFLOW_FLEET on this host and return their ids.

    Asks no ledger: it is for a fleet whose workers have all ended.

    Raises:
        WorkerError: BENCHFLOW_FLEET is not set.
    """
    environ = worker_settings.process_environ()
    client = client_settings.load(environ)
    if client.fleet is None:
        raise WorkerError("BENCHFLOW_FLEET is not set, so nothing is removed.", hint="Name the fleet.")
    sandboxes = SandboxRegistry(worker_settings.load(environ), state_dir=client.state_dir)
    working = [kind for kind in KINDS if sandbox_problem(sandboxes, kind) is None]
    return asyncio.run(_remove_all(map(sandboxes.get, working), client.fleet))


async def _remove_all(providers: Iterable[SandboxProvider], fleet: str) -> list[str]:
    removed = []
    for provider in providers:
        for ref in await provider.list({"bf.fleet": fleet}):
            await provider.remove(ref)
            removed.append(ref.id)
        await provider.close()
    return removed


def is_healthy() -> bool:
    """Return whether a worker of this host has announced itself and answers through the broker.

    The answer comes from the loop that takes messages, so a worker that lives but
    no longer takes work does not answer. A broker that is silent means no, within 6 s.

    Raises:
        BrokerError: Broker or ledger refuse, or cannot be reached.
    """
    outcomes: Queue[bool | BenchflowError] = Queue()
    threading.Thread(target=_ask_for_health, args=(outcomes,), daemon=True).start()
    try:
        outcome = outcomes.get(timeout=_HEALTH_S)
    except Empty:
        return False
    if isinstance(outcome, BenchflowError):
        raise outcome
    return outcome


def _ask_for_health(outcomes: Queue[bool | BenchflowError]) -> None:
    try:
        outcomes.put(_some_worker_answers())
    except BenchflowError as error:
        outcomes.put(error)
    except BROKER_ERRORS as error:
        outcomes.put(BrokerError(f"The broker does not answer ({error}).", hint="See `bench doctor`."))


def _some_worker_answers() -> bool:
    here = context()
    host = here.name.partition("/")[0]
    nodes = [
        node_name(worker.name)
        for worker in here.ledger.workers()
        if worker.name.startswith(f"{host}/") and worker.state == "healthy"
    ]
    return bool(nodes) and bool(here.app.control.ping(destination=nodes, timeout=_PING_S))


def _limits(sandboxes: SandboxRegistry, kind: str) -> str:
    able = sandboxes.get(kind).capabilities
    parts = ["works"]
    if able.runs_commands and "allowlist" not in able.networks:
        parts.append(
            "restricts no network to a list of hosts and changes none between phases: the worker must be root, "
            "with CAP_SYS_ADMIN and CAP_NET_ADMIN, beside its engine"
        )
    if able.has_gpus:
        parts.append(f"has GPUs to give, of type {', '.join(sorted(able.gpu_types)) or 'not said'}")
    elif able.runs_commands and not opens_tls():
        parts.append("tells no URLs of a host apart: pip install 'benchflow-workers[urls]'")
    if able.does_not_isolate:
        parts.append(f"does not isolate: {', '.join(able.does_not_isolate)}")
    return "; ".join(parts)
