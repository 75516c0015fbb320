"""Measure the model gateway: requests a second, added latency, memory.

    python -m benchmarks.gateway                    2,000 plain and 2,000 streamed calls by 4 clients
    python -m benchmarks.gateway --calls 10000 --clients 16

A model server on the loopback answers at once. The same calls are made to it directly and through
the gateway, in one run; server, gateway and clients are a process each. The gateway's processor time
a call says what one core could do, whatever else the machine does. Calls are recorded as in a trial.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing as mp
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp

from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.prices import Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Allowance, Target
from benchflow_workers.testing_models import scripted_models
from benchflow_workers.trial.redact import Redactor

GOAL_RATE, GOAL_ADDED_MS, GOAL_MB = 500, 5.0, 60
BODY = {"model": "large-1", "messages": [{"role": "user", "content": "word " * 200}]}


def serve_models(pipe: Connection) -> None:
    """Run the model server until told to stop."""
    with scripted_models() as server:
        pipe.send(server.host)
        while pipe.recv() != "stop":
            server.asked.clear()
            pipe.send("cleared")


def serve_gateway(pipe: Connection, host: str, folder: str) -> None:
    """Run a gateway with one grant; answers its processor time and memory whenever asked."""
    gateway = Gateway(Prices())
    target = Target("openai", "large-1", {"openai-completions": f"{host}/v1"}, "key")
    grant = Grant(target, Purse(Allowance()), Path(folder) / "calls.jsonl", Redactor(["some-secret-value"]))
    with gateway.granted(grant):
        pipe.send((f"http://127.0.0.1:{gateway.port}", grant.token))
        while pipe.recv() != "stop":
            used = resource.getrusage(resource.RUSAGE_SELF)
            pipe.send((used.ru_utime + used.ru_stime, used.ru_maxrss / 1024))
    gateway.close()


@dataclass(frozen=True)
class Seen:
    """Seconds of a series of calls."""

    wall_s: float
    latencies_s: Sequence[float]

    @property
    def rate(self) -> float:
        return len(self.latencies_s) / self.wall_s

    @property
    def median_ms(self) -> float:
        return statistics.median(self.latencies_s) * 1e3


async def ask(host: str, token: str, *, calls: int, clients: int, body: dict[str, Any]) -> Seen:
    """Make the calls, so many at once."""
    latencies: list[float] = []
    left = iter(range(calls))
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:

        async def work() -> None:
            for _ in left:
                begun = time.perf_counter()
                async with session.post(f"{host}/v1/chat/completions", json=body) as answer:
                    answer.raise_for_status()
                    await answer.read()
                latencies.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(clients)))
        return Seen(time.perf_counter() - begun, latencies)


def measure(arguments: argparse.Namespace, models: Connection, gateway: Connection, places: Any) -> None:
    """Make the calls of both kinds, directly and through the gateway, and print both."""
    host, (address, token) = places
    for word, body in (
        ("plain", BODY),
        ("streamed", {**BODY, "stream": True, "stream_options": {"include_usage": True}}),
    ):
        series = {"calls": arguments.calls, "clients": arguments.clients, "body": body}
        asyncio.run(ask(address, token, **{**series, "calls": 100}))  # imports, connections
        direct = asyncio.run(ask(host, "key", **series))
        alone, lone_direct = (
            asyncio.run(ask(place, key, calls=200, clients=1, body=body))
            for place, key in ((address, token), (host, "key"))
        )
        before_s, _ = asked(gateway)
        through = asyncio.run(ask(address, token, **series))
        after_s, memory_mb = asked(gateway)
        cpu_ms = (after_s - before_s) / arguments.calls * 1e3
        models.send("clear")
        models.recv()
        print(
            f"{word:8}  {through.rate:5.0f}/s (direct {direct.rate:.0f}/s), processor {cpu_ms:.2f} ms a call = "
            f"{1e3 / cpu_ms:.0f}/s on one core (goal >= {GOAL_RATE}); one at a time "
            f"+{alone.median_ms - lone_direct.median_ms:.1f} ms (goal <= {GOAL_ADDED_MS:g}); {memory_mb:.0f} MB (goal <= {GOAL_MB})"
        )


def asked(pipe: Connection) -> tuple[float, float]:
    """Return the gateway's processor time (s) and peak memory (MB)."""
    pipe.send("usage")
    used: tuple[float, float] = pipe.recv()
    return used


def main() -> None:
    """Start server and gateway, measure, stop them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=4)
    context = mp.get_context("spawn")
    models, their_models = context.Pipe()
    gateway, their_gateway = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as folder:
        server = context.Process(target=serve_models, args=(their_models,))
        server.start()
        host = models.recv()
        passer = context.Process(target=serve_gateway, args=(their_gateway, host, folder))
        passer.start()
        try:
            print(f"{os.cpu_count()} cores, {parser.parse_args().clients} clients")
            measure(parser.parse_args(), models, gateway, (host, gateway.recv()))
        finally:
            gateway.send("stop")
            models.send("stop")
            passer.join(30)
            server.join(30)


if __name__ == "__main__":
    main()
