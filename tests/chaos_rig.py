"""What chaos tests share: workers that are killed, frozen or live in another time, and the last look at a job."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchflow_client.api import Client
from benchflow_client.chaos.evidence import Observer, Scene
from benchflow_client.chaos.faults import Fault, Injector
from benchflow_client.chaos.records import Injection
from benchflow_client.chaos.session import ChaosOptions, Secret, judge, listening, open_scene, submit
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.trial import Outcome
from tests.brokers import PrivateRedis
from tests.forked_workers import ForkedWorker, WorkerSource
from tests.waiting import until
from tests.worker_fleets import WorkerFleet

CANARY = Secret("CHAOS_CANARY", f"canary-{random.SystemRandom().getrandbits(96):024x}")
"""Given to the agents by name; its value may stand nowhere."""

CLOSES_S = 90.0
SETTLES_S = 60.0
LOOKS_S = 0.05
TTL_S = 2.0


@dataclass
class ChaosFleet(WorkerFleet):
    """Workers for null and local sandboxes that know the canary."""

    source: WorkerSource = field(kw_only=True)
    workers: list[ForkedWorker] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        """Variables of clients and workers."""
        return {
            **super().environ,
            "BENCHFLOW_REAP_S": "1",
            "BENCHFLOW_USER": "chaos",
            CANARY.name: CANARY.value,
            **self.variables,
        }

    def launch(
        self, *, queues: str = "null,local,control", slots: int = 2, shift_s: float = 0.0, **variables: str
    ) -> ForkedWorker:
        """Start a worker and return at once.

        Args:
            queues: What it serves.
            slots: Trials at once.
            shift_s: How far its clock goes ahead.
            variables: More variables.
        """
        worker = self.source.fork(
            ["--slots", str(slots), "--queues", queues],
            environ={**self.environ, **variables},
            log=self.folder / f"worker-{len(self.workers)}.log",
            shift_s=shift_s,
        )
        self.workers.append(worker)
        return worker

    def wait_for(self, *workers: ForkedWorker) -> None:
        """Wait until workers have announced themselves."""
        host = os.uname().nodename
        names = {f"{host}/{worker.pid}" for worker in workers}
        until(lambda: names <= {worker.name for worker in self.ledger.workers()}, seconds=CLOSES_S)

    def skip(self, job: str, seconds: float) -> None:
        """Let time pass for the messages of a job that nobody has taken, and for nothing else."""
        key, client = f"bf:{{{job}}}:released", self.redis
        for index, released_at in client.zrange(key, 0, -1, withscores=True):
            client.zadd(key, {index: released_at - 1000 * seconds}, xx=True)

    @property
    def alive(self) -> list[ForkedWorker]:
        return [worker for worker in self.workers if worker.poll() is None]

    @property
    def log_files(self) -> tuple[Path, ...]:
        return tuple(sorted(self.folder.glob("worker-*.log")))


@contextmanager
def chaos_fleet(
    folder: Path, url: str, source: WorkerSource, **variables: str
) -> Generator[ChaosFleet, None, None]:
    """Yield a fleet without workers; all that were started are ended afterwards."""
    (folder / "store").mkdir(exist_ok=True)
    fleet = ChaosFleet(folder, url, source=source, variables=variables)
    try:
        yield fleet
    finally:
        for worker in fleet.alive:
            worker.kill()
            worker.wait(timeout=30)


@dataclass
class KilledWorker:
    """A worker is killed with SIGKILL, or told to stop, and another one is started."""

    fleet: ChaosFleet
    signal: signal.Signals
    start: Callable[[], object]

    @property
    def name(self) -> str:
        return f"worker gets {self.signal.name}"

    def inject(self, chance: random.Random) -> str:
        workers = self.fleet.alive
        if len(workers) < 2:
            return ""
        victim = chance.choice(workers)
        victim.send_signal(self.signal)
        self.start()
        return f"{victim.pid}"


@dataclass
class FrozenWorker:
    """A worker stops for longer than its leases last, and then goes on as if nothing had happened."""

    fleet: ChaosFleet
    name: str = "worker frozen"

    def inject(self, chance: random.Random) -> str:
        victim = chance.choice(self.fleet.alive)
        victim.send_signal(signal.SIGSTOP)
        timer = threading.Timer(1.5 * TTL_S, victim.send_signal, (signal.SIGCONT,))
        timer.daemon = True
        timer.start()
        return f"{victim.pid} for {1.5 * TTL_S} s"


@dataclass
class RestartedRedis:
    """Redis is killed and comes back with its data."""

    server: PrivateRedis
    name: str = "Redis killed"

    def inject(self, chance: random.Random) -> str:
        gone_s = chance.uniform(0.0, 1.0)
        self.server.kill()
        threading.Event().wait(gone_s)
        self.server.start()
        return f"gone for {gone_s:.2f} s"


@dataclass
class FrozenRedis:
    """Redis holds its connections and answers nothing for a moment."""

    server: PrivateRedis
    name: str = "Redis frozen"

    def inject(self, chance: random.Random) -> str:
        frozen_s = chance.uniform(0.2, 0.8 * TTL_S)
        self.server.freeze()
        threading.Event().wait(frozen_s)
        self.server.thaw()
        return f"for {frozen_s:.2f} s"


@dataclass
class Battle:
    """Jobs under fire and what was done to them."""

    fleet: ChaosFleet
    client: Client
    scenes: list[Scene] = field(default_factory=list)
    injections: list[Injection] = field(default_factory=list)
    observers: list[Observer] = field(default_factory=list)

    def open(self, **options: Any) -> Scene:
        """Submit a job of the product's own chaos task."""
        return self._watched(submit(self.client, ChaosOptions(secret=CANARY, **options)))

    def open_spec(self, **spec: Any) -> Scene:
        """Submit a job."""
        return self._watched(open_scene(self.client, JobSpec(agent_env=(CANARY.name,), **spec)))

    def _watched(self, scene: Scene) -> Scene:
        self.scenes.append(scene)
        self.observers.append(Observer(scene.handle))
        return scene

    def fight(self, faults: Iterable[Fault], *, seed: int, every_s: float, for_s: float) -> set[str]:
        """Inject faults for some seconds; returns the names of what was injected."""
        end = time.monotonic() + for_s
        injector = Injector(list(faults), seed=seed, every_s=every_s, for_s=for_s)
        self.injections += injector.run(lambda: self._look() or time.monotonic() > end)
        return {injection.fault for injection in self.injections}

    def wait(self) -> None:
        """Wait for the end of all jobs, looking at them all the while."""
        end = time.monotonic() + CLOSES_S
        while not self._look() and time.monotonic() < end:
            threading.Event().wait(LOOKS_S)

    def _look(self) -> bool:
        """Look at every job; returns whether all are closed."""
        for observer in self.observers:
            observer.look()
        return all(scene.is_closed() for scene in self.scenes)

    def assert_sound(self, *, note: str = "") -> None:
        """Check every invariant of every job."""
        for scene, observer in zip(self.scenes, self.observers, strict=True):
            with listening(scene, CANARY, self.fleet.log_files) as canary:
                found = judge(scene, observer, canary=canary, settle_s=SETTLES_S, waited_s=CLOSES_S)
            broken = [invariant for invariant in found if invariant.holds is not True]
            done = "\n".join(f"{each.at_s:7.2f} {each.fault}: {each.text}" for each in self.injections)
            assert not broken, f"{note}\n{broken}\n{done}\n{self.fleet.logs()[-8000:]}"
            assert observer.looks


@contextmanager
def battle_on(fleet: ChaosFleet) -> Generator[Battle, None, None]:
    """Yield a client's side of a fleet."""
    with fleet.client() as client:
        yield Battle(fleet, client)


def committed_twice(fleet: ChaosFleet) -> list[str]:
    """Return the trials of which two workers say that they committed them."""
    said = Counter(re.findall(rf"INFO +trial (\S+) (?:{'|'.join(Outcome)})$", fleet.logs(), re.MULTILINE))
    assert said, "no worker says that it committed anything"
    return sorted(trial for trial, count in said.items() if count > 1)
