"""Limits of models on real workers and a real Redis: all of them together keep to one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import aiohttp
import pytest

from benchflow_client.ledger.admission import Limit
from benchflow_client.ledger.connection import RedisConnection, connect
from benchflow_client.ledger.redis import RedisLedger
from benchflow_client.ledger.redis_rates import RedisRates
from benchflow_client.schema.agent import AgentSpec
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.prices import Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Account, Allowance, Target
from benchflow_workers.testing_models import ScriptedModels, scripted_models
from benchflow_workers.trial.redact import Redactor
from tests.brokers import PrivateRedis, private_redis
from tests.worker_fleets import WorkerFleet

CALLS = 4
HOLDS_AGAIN_S = 60.0
AGENT = """#!/usr/bin/env python3
import json, os, urllib.request

for _ in range({calls}):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps({{"model": os.environ["BENCHFLOW_PROVIDER_MODEL"], "messages": []}}).encode(),
        headers={{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}},
    )
    urllib.request.urlopen(request).read()
"""


@pytest.fixture
def models() -> Iterator[ScriptedModels]:
    with scripted_models() as server:
        yield server


def calls_of(fleet: WorkerFleet) -> list[tuple[float, float]]:
    """Return when each call was passed on, in seconds, and how long it waited before; in order."""
    files = (fleet.folder / "store").rglob("llm_trajectory.jsonl")
    calls = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return sorted(
        (datetime.fromisoformat(call["ts"]).timestamp() + call["waited_s"], call["waited_s"])
        for call in calls
    )


@pytest.mark.root
def test_two_workers_keep_to_one_limit_and_every_trial_ends_well(
    fleet: WorkerFleet, models: ScriptedModels
) -> None:
    agent = fleet.folder / "agent.py"
    agent.write_text(AGENT.format(calls=CALLS))
    variables = {"BENCHFLOW_PROVIDER_BASE_URL": models.url, "BENCHFLOW_PROVIDER_API_KEY": "the-providers-key"}
    for _ in range(2):
        fleet.start(slots=3, queues="local,control", **variables)
    with fleet.client() as client:
        client.limits().set("key:BENCHFLOW_PROVIDER_API_KEY", Limit(requests_per_min=240, tokens_per_min=1e6))
        asks = AgentSpec(name=str(agent), model="vllm/large-1")
        handle = client.submit(fleet.spec(agent=(asks,), sandbox="local", tries=6, concurrency=6))
        summary = fleet.closed(handle)
        (row,) = client.limits().rows()
        workers = {trial.result.worker for trial in handle.trials() if trial.result is not None}
        calls = calls_of(fleet)

    assert summary.errored == 0
    assert len(workers) == 2
    assert len(models.asked) == len(calls) == 6 * CALLS
    assert sum(waited_s > 0 for _, waited_s in calls) >= 6 * CALLS // 2
    # 4 at once, then 237 a minute; a call is passed on within moments of its turn.
    assert calls[-1][0] - calls[0][0] >= (6 * CALLS - 4) * 60 / 237 - 0.5
    assert row.requests_last_min == 6 * CALLS
    assert row.tokens_last_min == 6 * CALLS * 107


@pytest.fixture
def server(tmp_path: Path) -> Iterator[PrivateRedis]:
    with private_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def gateway(server: PrivateRedis) -> Iterator[Gateway]:
    made = Gateway(Prices(), rates=RedisRates(RedisConnection(connect(server.url, timeout_s=1.0, retries=1))))
    yield made
    made.close()


async def status_of_a_call(gateway: Gateway, grant: Grant) -> int:
    url = f"http://127.0.0.1:{gateway.port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {grant.token}"}
    body = {"model": "large-1", "messages": [{"role": "user", "content": "hi"}]}
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize("way", ["killed", "frozen"])
async def test_calls_go_on_without_a_redis_and_the_limit_holds_again_with_it(
    gateway: Gateway, server: PrivateRedis, models: ScriptedModels, tmp_path: Path, way: str
) -> None:
    RedisLedger(RedisConnection(connect(server.url))).set_limit("provider:x", Limit(requests_per_min=0.01))
    target = Target("x", "large-1", {"openai-completions": models.url}, None, Account("x", ("provider:x",)))
    grant = Grant(target, Purse(Allowance()), tmp_path / "calls.jsonl", Redactor())
    with gateway.granted(grant):
        limited = [await status_of_a_call(gateway, grant) for _ in range(2)]
        server.kill() if way == "killed" else server.freeze()
        lost = [await status_of_a_call(gateway, grant) for _ in range(3)]
        server.start() if way == "killed" else server.thaw()
        deadline = time.monotonic() + HOLDS_AGAIN_S
        while await status_of_a_call(gateway, grant) == 200:
            assert time.monotonic() < deadline

    assert (limited, lost) == ([200, 429], [200, 200, 200])
