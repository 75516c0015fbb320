"""Faults a client may inject: into its own job, and into what it was told to hurt, nothing else."""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from benchflow_client.chaos.mailbox import Mailbox
from benchflow_client.chaos.records import Injection
from benchflow_client.dispatch import Dispatcher
from benchflow_client.errors import BenchflowError, WorkerError
from benchflow_client.handle import JobHandle
from benchflow_client.ledger.base import JobHeader

DELIVERIES: Final = 3
"""How often a message comes that is delivered too often."""

_LONGEST_PAUSE_S = 2.0
"""A job that is paused on purpose stands still no longer than this."""

_SOON_S = 0.3
"""A fault that was named comes no later than this: trials run by then, and a small job is not over."""

_TICK_S = 0.05
"""Seconds between two looks at the job."""


class Fault(Protocol):
    """Something that goes wrong; it may be injected many times."""

    @property
    def name(self) -> str:
        """Short name, for reports."""
        ...

    def inject(self, chance: random.Random) -> str:
        """Do it and return what was done; empty = there was nothing to hurt just now.

        Raises:
            BenchflowError: It could not be done; nothing is hurt.
        """
        ...


@dataclass(frozen=True, slots=True)
class RepeatedDelivery:
    """Every message of the job comes three times."""

    mailbox: Mailbox
    name: str = "delivered three times"

    def inject(self, chance: random.Random) -> str:
        """Add two copies of every message that waits or is worked on."""
        del chance
        added = self.mailbox.copy_all(DELIVERIES - 1)
        return f"{added} copies added" if added else ""


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that waits is gone."""

    mailbox: Mailbox
    name: str = "message lost"

    def inject(self, chance: random.Random) -> str:
        """Remove one message of the job."""
        del chance
        return self.mailbox.lose_one()


@dataclass(frozen=True, slots=True)
class LostChord:
    """What Celery counted of the job is gone, so its body never comes by itself."""

    mailbox: Mailbox
    name: str = "chord lost"

    def inject(self, chance: random.Random) -> str:
        """Delete the chord's keys."""
        del chance
        count = self.mailbox.lose_chord()
        return f"{count} keys deleted" if count else ""


@dataclass(frozen=True, slots=True)
class EarlyBody:
    """The chord's body comes while trials still run."""

    dispatcher: Dispatcher
    header: JobHeader
    name: str = "summary too early"

    def inject(self, chance: random.Random) -> str:
        """Ask for the summary now."""
        del chance
        self.dispatcher.gather(self.header)
        return "summary asked for while trials run"


@dataclass(frozen=True, slots=True)
class Pause:
    """Somebody pauses the job and goes on."""

    handle: JobHandle
    name: str = "paused"

    def inject(self, chance: random.Random) -> str:
        """Pause for up to two seconds."""
        pause_s = chance.uniform(0.0, _LONGEST_PAUSE_S)
        if not self.handle.pause(by="chaos", reason="bench chaos"):
            return ""
        try:
            time.sleep(pause_s)
        finally:
            self.handle.resume()
        return f"for {pause_s:.1f} s"


@dataclass(frozen=True, slots=True)
class ResetConnections:
    """Every client of the broker's database has to connect anew."""

    mailbox: Mailbox
    name: str = "connections reset"

    def inject(self, chance: random.Random) -> str:
        """Close all connections but this client's own."""
        del chance
        return f"{self.mailbox.reset_connections()} connections closed"


class KillProcess:
    """A worker on this machine is killed with SIGKILL, once.

    Args:
        pid: Its process.
    """

    name = "worker killed"

    def __init__(self, pid: int) -> None:
        self._pid: int | None = pid

    def inject(self, chance: random.Random) -> str:
        """Kill it, if that was not done before."""
        del chance
        pid = self._pid
        if pid is None:
            return ""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return ""
        except PermissionError as error:
            raise WorkerError(
                f"Process {pid} cannot be killed by this user.", hint="Run it as the worker's user."
            ) from error
        finally:
            self._pid = None
        return f"kill -9 {pid}"


class DrainWorker:
    """A worker is asked to stop, as `bench drain` does, once.

    Args:
        worker: Its name.
        drain: Asks it.
    """

    name = "worker drained"

    def __init__(self, worker: str, drain: Callable[[str], object]) -> None:
        self._worker = worker
        self._drain = drain
        self._is_done = False

    def inject(self, chance: random.Random) -> str:
        """Ask it, if that was not done before."""
        del chance
        if self._is_done:
            return ""
        self._drain(self._worker)
        self._is_done = True
        return self._worker


class Injector:
    """Injects faults at random moments: those that were named first, each other once in random order, then any.

    Args:
        faults: What may go wrong.
        named: What must go wrong too, in this order; the first of them soon, lest the job ends before.
        seed: Makes the same choices every time; when they take effect is up to the fleet.
        every_s: Mean seconds between two faults.
        for_s: Seconds after which no more are injected.
    """

    def __init__(
        self, faults: Sequence[Fault], *, seed: int, every_s: float, for_s: float, named: Sequence[Fault] = ()
    ) -> None:
        self._chance = random.Random(seed)
        self._faults = (*faults, *named)
        self._next = list(faults)
        self._chance.shuffle(self._next)
        self._next += reversed(named)
        self._first_s = _SOON_S if named else math.inf
        self._happened: list[Fault] = []
        self._every_s = every_s
        self._for_s = for_s

    def run(self, is_over: Callable[[], bool]) -> list[Injection]:
        """Inject faults until it is over, which is asked again and again.

        Returns:
            What was done, in order of time; a fault that found nothing to hurt is not in it.
        """
        start = time.monotonic()
        due, done = start + min(self._wait_s(), self._first_s), list[Injection]()
        while not is_over():
            if self._faults and due <= time.monotonic() <= start + self._for_s:
                fault = self._choose()
                # One that fails has hurt nothing, e.g. where the broker is down because of another.
                with contextlib.suppress(BenchflowError):
                    if text := fault.inject(self._chance):
                        at_s = round(time.monotonic() - start, 2)
                        done.append(Injection(at_s=at_s, fault=fault.name, text=text))
                        self._happened.append(fault)
                due = time.monotonic() + self._wait_s()
            time.sleep(_TICK_S)
        return done

    def has_happened(self, fault: Fault) -> bool:
        """Return whether a fault was injected and found something to hurt."""
        return any(fault is each for each in self._happened)

    def _choose(self) -> Fault:
        return self._next.pop() if self._next else self._chance.choice(self._faults)

    def _wait_s(self) -> float:
        return self._chance.uniform(0.0, 2.0 * self._every_s)
