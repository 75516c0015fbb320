"""What a worker says and does from start to stop: announce, drain, retire."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence

from benchflow_client.errors import BrokerError
from benchflow_client.ledger.base import WorkerRecord
from benchflow_workers.context import WorkerContext

logger = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
"""Seconds between two signs of life."""

LEAVE_S = 5.0
"""A worker that is interrupted twice closes its sandboxes in this time; then the lease and the reaper do."""

INTERRUPTED = 130
"""Exit code of a program ended by Ctrl-C."""

_GRACE_POLL_S = 0.1

HEARTBEATS_MISSED = 5
"""Signs of life a worker may miss before it counts as gone."""


class Presence:
    """Keeps a worker visible while it lives.

    Args:
        context: The worker.
        queues: Queues it serves.
        sandboxes: Kinds of sandbox that work on its host.
        slots: Trials it runs at once.
    """

    def __init__(
        self, context: WorkerContext, *, queues: Sequence[str], sandboxes: Sequence[str], slots: int
    ) -> None:
        self._context = context
        self._queues = tuple(queues)
        self._sandboxes = tuple(sandboxes)
        self._slots = slots
        self._is_draining = False
        self._note = ""
        self.is_interrupted = False
        self._closed = threading.Event()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="presence", daemon=True)

    def start(self) -> None:
        """Announce the worker and go on doing so."""
        self._say("healthy")
        self._thread.start()
        logger.info(
            "worker %s ready: queues %s, %d slots, sandboxes %s",
            self._context.name, ",".join(self._queues), self._slots, ",".join(self._sandboxes) or "none",
            extra={"action": "worker_ready"},
        )  # fmt: skip

    def drain(self) -> None:
        """Take no new trial, wait out the grace, then give every running trial back.

        Guarantees: safe to call twice.
        """
        if self._is_draining:
            return
        self._is_draining = True
        logger.info(
            "worker %s draining %d trials", self._context.name, self._context.keeper.held,
            extra={"action": "worker_draining"},
        )  # fmt: skip
        # Said by the other thread: a silent broker must not keep the trials from ending in time.
        self._woken.set()
        deadline = time.monotonic() + self._context.settings.drain_grace_s
        while self._context.keeper.held and time.monotonic() < deadline:
            self._closed.wait(_GRACE_POLL_S)
        self._context.keeper.drain()

    def leave_now(self) -> None:
        """Give every running trial back, their sandboxes closed, and end the process within seconds."""
        logger.info("worker %s leaves at once", self._context.name, extra={"action": "worker_leaves"})
        self.is_interrupted = True
        self._context.keeper.drain()
        # With its trials given back the program comes to its end by itself, all messages returned.
        if not self._closed.wait(LEAVE_S):
            self.stop()
            os._exit(INTERRUPTED)

    def stop(self) -> None:
        """Retire the worker and remove its scratch folder."""
        self._closed.set()
        self._woken.set()
        self._context.reconciler.close()
        self._context.admitter.close()
        self._context.keeper.close()
        if self._thread.is_alive():
            # A last sign of life must not come after the farewell.
            self._thread.join(timeout=HEARTBEAT_S)
        try:
            self._context.ledger.retire(self._context.name)
        except BrokerError as error:
            logger.warning("worker not retired: %s", error, extra={"action": "not_retired"})
        shutil.rmtree(self._context.deliveries.scratch, ignore_errors=True)
        logger.info("worker %s stopped", self._context.name, extra={"action": "worker_stopped"})

    def _beat(self) -> None:
        while True:
            self._woken.wait(HEARTBEAT_S)
            self._woken.clear()
            if self._closed.is_set():
                return
            self._say("draining" if self._is_draining else "healthy")
            self._look_for_request()

    def _look_for_request(self) -> None:
        """Stop this process, as SIGTERM would, when a person asked for it."""
        if self._is_draining or self._note:
            return
        try:
            request = self._context.drains.find(self._context.name)
        except BrokerError:
            return
        if request is not None:
            self._note = request.text
            logger.info(
                "worker %s was asked to stop by %s", self._context.name, request.text,
                extra={"action": "drain_asked"},
            )  # fmt: skip
            os.kill(os.getpid(), signal.SIGTERM)

    def _say(self, state: str) -> None:
        record = WorkerRecord(
            name=self._context.name,
            queues=self._queues,
            sandboxes=self._sandboxes,
            slots=self._slots,
            running=self._context.keeper.held,
            state=state,
            since=self._context.started_at,
            note=self._note,
        )
        try:
            self._context.ledger.announce(record, ttl_s=HEARTBEAT_S * HEARTBEATS_MISSED)
        except BrokerError as error:
            logger.warning("worker not announced: %s", error, extra={"action": "not_announced"})
