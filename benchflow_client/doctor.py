"""Checks of this machine: each says what it found and what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchflow_client.addresses import RABBITMQ, REDIS, Addresses, address_of, broker_kind
from benchflow_client.broker import check_rabbitmq, make_app
from benchflow_client.catalog.agents import list_agents
from benchflow_client.catalog.credentials import LOGIN_SWITCH, Credential, agent_credential
from benchflow_client.catalog.own_agents import own_agents
from benchflow_client.embedded.server import find_server
from benchflow_client.errors import BenchflowError, WorkerError
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.report import Check
from benchflow_client.settings import Settings
from benchflow_client.store.configured import configured_store
from benchflow_client.store.layout import BUNDLES

_LEAST_PYTHON = (3, 11)
_LEAST_FREE_GB = 5
_HOST_TIMEOUT_S = 60


def check_machine(settings: Settings, environ: Mapping[str, str]) -> list[Check]:
    """Return all findings; none of the checks changes anything.

    Args:
        settings: What the environment says.
        environ: Variables for the part that is checked in a process of its own.
    """
    checks = [_python()]
    for subject, check in (("broker", _broker), ("store", _store), ("disk", _disk), ("agents", _agents)):
        checks.append(_guarded(subject, check, settings))
    return [*checks, *_credentials(settings, environ), *_sandboxes(environ)]


def _guarded(subject: str, check: Callable[[Settings], Check], settings: Settings) -> Check:
    try:
        return check(settings)
    except BenchflowError as error:
        return Check("FAIL", subject, error.message, error.hint)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _LEAST_PYTHON:
        return Check("FAIL", "python", f"{version} is too old.", "Install Python 3.11 or newer.")
    return Check("PASS", "python", version)


def _broker(settings: Settings) -> Check:
    at = settings.addresses()
    if at is None:
        return Check("PASS", "broker", f"none configured; runs use {find_server()}")
    ledger = RedisLedger.at(at.ledger)
    ledger.ping()
    answering = _answering(at)
    workers = ledger.workers()
    if not workers:
        return Check("WARN", "broker", f"{answering}, but no worker is alive.", "Start one: bench worker")
    return Check("PASS", "broker", f"{answering}, {len(workers)} workers")


def _answering(at: Addresses) -> str:
    """Return what answers, by kind and address; raises `BrokerError` when the broker does not."""
    redis = f"{REDIS} {address_of(at.ledger)}"
    if at.broker == at.ledger:
        return f"{redis} answers"
    if broker_kind(at.broker) == REDIS:
        RedisLedger.at(at.broker).ping()
        return f"{REDIS} {address_of(at.broker)} and, for the ledger, {redis} answer"
    with make_app(at.broker, ledger_url=at.ledger) as app:
        version = check_rabbitmq(app)
    return f"{RABBITMQ} {version} {address_of(at.broker)} and, for the ledger, {redis} answer"


def _store(settings: Settings) -> Check:
    if settings.store_url is None:
        if settings.broker_url is not None:
            return Check(
                "WARN", "store", "BENCHFLOW_STORE_URL is not set: results go to ./jobs of this machine.",
                "Set it to the store the workers use.",
            )  # fmt: skip
        return Check("PASS", "store", "the jobs folder")
    store = configured_store(settings, settings.store_url)
    folder = f"{BUNDLES}/doctor"
    store.put(f"{folder}/written", b"by bench doctor\n")
    store.delete_tree(folder)
    return Check("PASS", "store", f"{store.url} can be written")


def _disk(settings: Settings) -> Check:
    folder = settings.state_dir
    try:
        while not folder.exists():
            folder = folder.parent
        free_gb = shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        return Check(
            "FAIL", "disk", f"The state folder {settings.state_dir} cannot be used: {error.strerror}.",
            "Set BENCHFLOW_STATE_DIR to a folder you can write.",
        )  # fmt: skip
    if not os.access(folder, os.W_OK):
        return Check(
            "FAIL", "disk", f"The state folder {settings.state_dir} cannot be written.",
            "Set BENCHFLOW_STATE_DIR to a folder you can write.",
        )  # fmt: skip
    if free_gb < _LEAST_FREE_GB:
        return Check(
            "WARN", "disk", f"{free_gb:.1f} GB free at {folder}.", "Images and results need some room."
        )
    return Check("PASS", "disk", f"{free_gb:.0f} GB free at {folder}")


def _agents(settings: Settings) -> Check:
    names = ", ".join(entry.name for entry in list_agents(own_agents(settings.agents_dir)))
    return Check("PASS", "agents", names)


def _credentials(settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Say what each ready-made agent would pay with on this machine, by name and never by value."""
    try:
        entries = list_agents(own_agents(settings.agents_dir))
    except BenchflowError:  # the check of agents says it
        return
    home = Path(environ.get("HOME") or "/nonexistent")
    users: dict[Credential, list[str]] = {}
    for entry in entries:
        if entry.definition is not None:
            found = agent_credential(entry.definition, None, environ, home)
            users.setdefault(found, []).append(entry.name)
    for credential, names in users.items():
        who = ", ".join(names)
        if credential.kind == "key":
            yield Check("PASS", "credentials", f"{who}: {credential.name}, which stays with the worker")
        elif credential.kind == "login":
            yield Check("PASS", "credentials", f"{who}: the login {credential.name}, which enters sandboxes")
        elif credential.kind == "off":
            yield Check(
                "WARN", "credentials", f"{who}: none, but there is the login {credential.name}.",
                f"Its files would enter sandboxes; a worker that may do that has {LOGIN_SWITCH}=on.",
            )  # fmt: skip
        else:
            yield Check("PASS", "credentials", f"{who}: none here; a worker would use {credential.name}")


def _sandboxes(environ: Mapping[str, str]) -> Iterator[Check]:
    """Ask the workers' side in a process of its own: the client never imports it."""
    try:
        findings = ask_host(["check-host"], environ)
    except WorkerError as error:
        yield Check("WARN", "sandboxes", error.message, error.hint)
        return
    working = [finding for finding in findings if finding["problem"] is None]
    for finding in findings:
        if finding["problem"] is None:
            yield Check("PASS", finding["kind"], finding["text"])
        else:
            yield Check("WARN" if working else "FAIL", finding["kind"], finding["problem"], finding["fix"])


def ask_host(arguments: Sequence[str], environ: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what the workers' side says of this host, asked in a process of its own.

    Raises:
        WorkerError: It is not installed or did not answer.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchflow_workers", *arguments],
            env=dict(environ), capture_output=True, text=True, timeout=_HOST_TIMEOUT_S, check=False,
        )  # fmt: skip
        found: list[dict[str, Any]] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise WorkerError(
            f"This machine's sandboxes could not be checked ({type(error).__name__}).",
            hint="A client needs none; for a worker run: pip install 'benchflow-workers[worker]'",
        ) from error
    return found
