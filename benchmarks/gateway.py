"""Measure the model gateway: requests a second, added latency, memory; beside a LiteLLM proxy where there is one.

    python -m benchmarks.gateway                    2,000 plain and 2,000 streamed calls by 4 clients
    python -m benchmarks.gateway --calls 10000 --clients 16
    python -m benchmarks.gateway --words 20000 --calls 500     with requests of 100 kB
    python -m benchmarks.gateway --litellm VENV/bin/litellm

A model server on the loopback answers at once. The same calls are made to it directly, through the
gateway and through the proxy, in one run; each of them is a process of its own. The processor time a
call says what one core could do, whatever else the machine does. The gateway records calls as in a
trial, priced and masked; the proxy records nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing as mp
import os
import statistics
import tempfile
import time
from collections.abc import Generator, Sequence
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
from benchmarks.litellm_proxy import find_litellm, litellm_proxy
from benchmarks.processes import cpu_s, peak_mb

GOAL_RATE, GOAL_ADDED_MS, GOAL_MB = 500, 5.0, 60
MODEL = "gpt-5"  # one that the table of prices knows, so that pricing is measured too
LONE_CALLS = 200


@dataclass(frozen=True)
class Way:
    """One way to the model server."""

    name: str
    address: str
    key: str
    pid: int


@dataclass(frozen=True)
class Seen:
    """Seconds of a series of calls."""

    wall_s: float
    latencies_s: Sequence[float]  # of those that were answered
    failed: int

    @property
    def rate(self) -> float:
        return len(self.latencies_s) / self.wall_s

    @property
    def median_ms(self) -> float:
        return statistics.median(self.latencies_s) * 1e3


def serve_models(pipe: Connection) -> None:
    """Run the model server until told to stop."""
    with scripted_models() as server:
        pipe.send((server.host, "key"))
        while pipe.recv() != "stop":
            server.asked.clear()
            pipe.send("cleared")


def serve_gateway(pipe: Connection, host: str, folder: str) -> None:
    """Run a gateway with one grant until told to stop."""
    gateway = Gateway(Prices())
    target = Target("openai", MODEL, {"openai-completions": f"{host}/v1"}, "key")
    grant = Grant(target, Purse(Allowance()), Path(folder) / "calls.jsonl", Redactor(["some-secret-value"]))
    with gateway.granted(grant):
        pipe.send((f"http://127.0.0.1:{gateway.port}", grant.token))
        pipe.recv()
    gateway.close()


@contextlib.contextmanager
def running(name: str, serve: Any, *arguments: Any) -> Generator[tuple[Way, Connection]]:
    """Run a server in a process of its own for as long as the block runs."""
    context = mp.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, *arguments))
    process.start()
    try:
        address, key = pipe.recv()
        assert process.pid is not None
        yield Way(name, address, key, process.pid), pipe
    finally:
        pipe.send("stop")
        process.join(30)


async def ask(way: Way, *, calls: int, clients: int, body: dict[str, Any]) -> Seen:
    """Make the calls, so many at once."""
    latencies: list[float] = []
    failed: list[aiohttp.ClientError] = []
    left = iter(range(calls))
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {way.key}"}) as session:

        async def work() -> None:
            for _ in left:
                begun = time.perf_counter()
                try:
                    async with session.post(f"{way.address}/v1/chat/completions", json=body) as answer:
                        answer.raise_for_status()
                        await answer.read()
                    latencies.append(time.perf_counter() - begun)
                except aiohttp.ClientError as error:
                    failed.append(error)

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(clients)))
        return Seen(time.perf_counter() - begun, latencies, len(failed))


def measure(way: Way, direct: Way, series: dict[str, Any]) -> float:
    """Make the calls both ways, print what the way costs, and return its milliseconds of processor a call."""
    asyncio.run(ask(way, **{**series, "calls": 100}))  # imports, connections
    lone = {**series, "calls": LONE_CALLS, "clients": 1}
    added_ms = asyncio.run(ask(way, **lone)).median_ms - asyncio.run(ask(direct, **lone)).median_ms
    straight = asyncio.run(ask(direct, **series))
    before_s = cpu_s(way.pid)
    through = asyncio.run(ask(way, **series))
    cpu_ms = (cpu_s(way.pid) - before_s) / series["calls"] * 1e3
    print(
        f"  {way.name:8} {through.rate:5.0f}/s (direct {straight.rate:.0f}/s), processor {cpu_ms:.2f} ms a call = "
        f"{1e3 / cpu_ms:.0f}/s on one core; one at a time +{added_ms:.1f} ms; {peak_mb(way.pid):.0f} MB; {through.failed} failed",
        flush=True,
    )
    return cpu_ms


def compare(ways: Sequence[Way], models: tuple[Way, Connection], arguments: argparse.Namespace) -> None:
    """Measure every way with both kinds of calls."""
    direct, pipe = models
    plain = {"model": MODEL, "messages": [{"role": "user", "content": "word " * arguments.words}]}
    streamed = {**plain, "stream": True, "stream_options": {"include_usage": True}}
    print(f"goal: >= {GOAL_RATE}/s on one core, <= {GOAL_ADDED_MS:g} ms added, <= {GOAL_MB} MB")
    for word, body in (("plain", plain), ("streamed", streamed)):
        print(f"{word}:")
        series = {"calls": arguments.calls, "clients": arguments.clients, "body": body}
        costs = []
        for way in ways:
            costs.append(measure(way, direct, series))
            pipe.send("clear")
            pipe.recv()
        if len(costs) > 1:
            print(
                f"  {ways[1].name} takes {costs[1] / costs[0]:.0f} x the processor time of the {ways[0].name}"
            )


def main() -> None:
    """Start the servers, measure, stop them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--words", type=int, default=200, help="length of a request, 5 bytes each")
    parser.add_argument("--litellm", help="command of a LiteLLM proxy; default: the one that is installed")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
        models = stack.enter_context(running("direct", serve_models))
        host = models[0].address
        ways = [stack.enter_context(running("gateway", serve_gateway, host, str(folder)))[0]]
        print(f"{os.cpu_count()} cores, {arguments.clients} clients")
        command = find_litellm(arguments.litellm)
        if command is None:
            print("no LiteLLM beside it: pip install 'litellm[proxy]', or give its command: --litellm PATH")
        else:
            proxy = stack.enter_context(litellm_proxy(command, folder, host, MODEL))
            ways.append(Way("litellm", *proxy))
        compare(ways, models, arguments)


if __name__ == "__main__":
    main()
