"""Where a job's trials can run: kinds of sandbox against the workers there are."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from benchflow_client.catalog.sandboxes import AUTO_ORDER
from benchflow_client.errors import WorkerError
from benchflow_client.ledger.base import WorkerRecord
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.plan import Plan

_DOCKER_SOCKET = "/var/run/docker.sock"
_DOCKER_PORT = 2375
_PROBE_S = 2.0


def best_sandbox(spec: JobSpec, workers: Sequence[WorkerRecord]) -> str:
    """Return the kind of sandbox: for `auto`, the best one a live worker can run.

    Args:
        spec: What was asked for.
        workers: The workers that are alive; none = the best kind, for a worker to come.
    """
    if spec.sandbox != "auto":
        return spec.sandbox
    able = {kind for worker in workers for kind in worker.sandboxes}
    return next((kind for kind in AUTO_ORDER if kind in able), AUTO_ORDER[0])


def check_sandbox(asked: str, workers: Sequence[WorkerRecord]) -> None:
    """Refuse a kind of sandbox that an embedded fleet cannot run: nobody else will join it.

    Args:
        asked: A kind, or `auto`.
        workers: The workers that are alive.

    Raises:
        WorkerError: The kind does not work on this machine.
    """
    able = {kind for worker in workers for kind in worker.sandboxes}
    if asked not in {"auto", *able}:
        raise WorkerError(
            f"This machine cannot run {asked!r} sandboxes; nothing was submitted.",
            hint=f"`bench doctor` says why. What works here: {', '.join(sorted(able))}.",
        )


def check_gpus(plan: Plan, workers: Sequence[WorkerRecord]) -> None:
    """Refuse a job with GPUs that an embedded fleet has none for: nobody else will join it.

    Raises:
        WorkerError: No worker has GPUs to give.
    """
    if plan.needs_gpus and not any(plan.queue in worker.queues for worker in workers):
        raise WorkerError(
            f"Tasks ask for GPUs, and this machine's worker has none to give (queue {plan.queue}); "
            "nothing was submitted.",
            hint="Say which it may give, by number or UUID of `nvidia-smi -L`, e.g. BENCHFLOW_GPUS=0,1, and start it "
            "anew (`bench down`); or leave these tasks out with --exclude.",
        )


def docker_listens(address: str | None) -> bool:
    """Return whether somebody answers where Docker should, and lets this user in.

    Args:
        address: `unix://` or `tcp://` address; None = the usual socket. Workers take no other kind.
    """
    url = urlsplit(address or f"unix://{_DOCKER_SOCKET}")
    try:
        if url.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                return probe.connect_ex(url.path) == 0
        if url.scheme == "tcp" and url.hostname:
            with socket.create_connection((url.hostname, url.port or _DOCKER_PORT), timeout=_PROBE_S):
                return True
    except (OSError, ValueError):
        return False
    return False
