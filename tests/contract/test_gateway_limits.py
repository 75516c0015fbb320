"""Limits of the whole fleet in the gateways of its workers: who waits, who is sent back, what counts."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchflow_client.catalog.providers import DIALECTS, Dialect
from benchflow_client.errors import BrokerError
from benchflow_client.ledger.admission import Limit
from benchflow_client.ledger.memory import MemoryLedger
from benchflow_client.ledger.rates import Known, ModelCall, Rates, Turn, Use
from benchflow_workers.gateway.grants import Grant
from benchflow_workers.gateway.prices import Prices
from benchflow_workers.gateway.purse import Purse
from benchflow_workers.gateway.server import Gateway
from benchflow_workers.gateway.target import Account, Allowance, Target
from benchflow_workers.testing_models import Script, ScriptedModels, scripted_models
from benchflow_workers.trial.redact import Redactor
from tests.waiting import until

MODEL = "large-1"
BUCKET = "model:x/large-1"
ACCOUNT = Account("x X_API_KEY", ("provider:x", BUCKET, "key:X_API_KEY"))
CHAT = ("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
MESSAGES = (
    "/v1/messages",
    {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
)
CALLS: Mapping[Dialect, tuple[str, dict[str, Any]]] = {
    "openai-completions": CHAT,
    "openai-responses": ("/v1/responses", {"model": MODEL, "input": "hi"}),
    "anthropic-messages": MESSAGES,
    "gemini-generate": (
        f"/v1beta/models/{MODEL}:generateContent",
        {"contents": [{"parts": [{"text": "hi"}]}]},
    ),
}
HALF_A_REQUEST = Limit(requests_per_min=0.5)


@dataclass
class WatchedRates:
    """Rates that count what they are asked, and can be cut off."""

    inner: Rates
    asked: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    is_down: bool = False

    def known(self) -> Known:
        self._ask("known")
        return self.inner.known()

    def take(self, call: ModelCall, *, within_s: float, is_kept: bool = False) -> Turn:
        self._ask("take")
        self.tokens.append(call.tokens)
        return self.inner.take(call, within_s=within_s, is_kept=is_kept)

    def leave(self, call: ModelCall, turn: Turn) -> None:
        self._ask("leave")
        self.inner.leave(call, turn)

    def settle(self, buckets: Iterable[str], tokens: int) -> None:
        self._ask("settle")
        self.inner.settle(buckets, tokens)

    def close(self, account: str, seconds: float) -> None:
        self._ask("close")
        self.inner.close(account, seconds)

    def used(self) -> Mapping[str, Use]:
        return self.inner.used()

    def _ask(self, name: str) -> None:
        self.asked.append(name)
        if self.is_down:
            raise BrokerError("The ledger does not answer.")


@dataclass
class Fleet:
    """Two workers' gateways, one ledger, one provider."""

    ledger: MemoryLedger
    rates: WatchedRates
    gateways: list[Gateway]
    models: ScriptedModels
    folder: Path

    def grant(self, name: str = "calls", account: Account = ACCOUNT) -> Grant:
        urls: dict[Dialect, str] = {
            "openai-completions": self.models.url,
            "openai-responses": self.models.url,
            "anthropic-messages": self.models.host,
            "gemini-generate": self.models.host,
        }
        target = Target("x", MODEL, urls, "the-key", account)
        return Grant(target, Purse(Allowance()), self.folder / f"{name}.jsonl", Redactor())

    async def ask(self, grant: Grant, path: str, body: Any, *, worker: int = 0) -> tuple[int, str, str]:
        """Make a call; returns its status, text, and when to come again."""
        headers = {"Authorization": f"Bearer {grant.token}"}
        url = f"http://127.0.0.1:{self.gateways[worker].port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=body, headers=headers) as answer,
        ):
            return answer.status, await answer.text(), answer.headers.get("Retry-After", "")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    ledger = MemoryLedger()
    rates = WatchedRates(ledger.rates)
    gateways = [Gateway(Prices(), rates=rates) for _ in range(2)]
    with scripted_models() as models:
        yield Fleet(ledger, rates, gateways, models, tmp_path)
        for gateway in gateways:
            gateway.close()


def recorded(grant: Grant) -> list[dict[str, Any]]:
    return [json.loads(line) for line in grant.file.read_text("utf-8").splitlines()]


async def test_calls_without_a_limit_ask_the_ledger_for_none(fleet: Fleet) -> None:
    fleet.ledger.set_limit("provider:y", HALF_A_REQUEST)
    fleet.ledger.set_limit("provider:x", Limit(live=1))
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        answers = [await fleet.ask(grant, *CHAT) for _ in range(20)]

    assert {status for status, _, _ in answers} == {200}
    assert set(fleet.rates.asked) == {"known"}
    assert {line["waited_s"] for line in recorded(grant)} == {0}


async def test_a_call_waits_until_its_turn_and_says_how_long(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(requests_per_min=60))
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        answers = await asyncio.gather(*(fleet.ask(grant, *CHAT) for _ in range(3)))

    assert [status for status, _, _ in answers] == [200, 200, 200]
    waited = sorted(line["waited_s"] for line in recorded(grant))
    assert (waited[0], waited[1] > 0.9, waited[2] > 1.9) == (0, True, True)
    assert fleet.rates.used() == {BUCKET: Use(requests=3)}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_call_that_would_wait_too_long_is_sent_back_in_its_dialect(
    fleet: Fleet, dialect: Dialect
) -> None:
    fleet.ledger.set_limit("key:X_API_KEY", HALF_A_REQUEST)
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        first = await fleet.ask(grant, *CALLS[dialect])
        status, text, retry_after = await fleet.ask(grant, *CALLS[dialect])

    assert (first[0], status, len(fleet.models.asked)) == (200, 429, 1)
    assert 110 < int(retry_after) <= 120
    error = json.loads(text)["error"]
    assert "the limit of key:X_API_KEY" in error["message"]
    assert "rate_limit_error" in {
        error.get("type"),
        error.get("status") == "RESOURCE_EXHAUSTED" and "rate_limit_error",
    }
    assert grant.statuses == {200: 1, 429: 1}
    assert grant.wait_s is not None
    assert recorded(grant)[1]["error"].startswith("the limit of key:X_API_KEY: ")
    assert grant.usage().total_tokens == 107


async def test_gateways_of_two_workers_share_a_limit(fleet: Fleet) -> None:
    fleet.ledger.set_limit("provider:x", HALF_A_REQUEST)
    grants = [fleet.grant("one"), fleet.grant("two")]
    with fleet.gateways[0].granted(grants[0]), fleet.gateways[1].granted(grants[1]):
        answers = [await fleet.ask(grants[worker], *CHAT, worker=worker) for worker in (0, 1, 0)]

    assert [status for status, _, _ in answers] == [200, 429, 429]


async def test_calls_that_have_no_model_answer_are_not_limited(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, HALF_A_REQUEST)
    grant = fleet.grant()
    path, body = MESSAGES
    with fleet.gateways[0].granted(grant):
        for _ in range(3):
            await fleet.ask(grant, f"{path}/count_tokens", body)
        status, _, _ = await fleet.ask(grant, path, body)

    assert (status, len(fleet.models.asked)) == (200, 4)
    assert fleet.rates.used()[BUCKET].requests == 1


async def test_tokens_count_as_they_were_told_and_not_as_they_were_guessed(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(tokens_per_min=1e6))
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        for _ in range(3):
            await fleet.ask(grant, *CHAT)

    until(lambda: fleet.rates.used() == {BUCKET: Use(0, 321)}, what=fleet.rates.used)


async def test_tokens_from_a_cache_count_only_where_the_provider_counts_them(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(tokens_per_min=1e6))
    grant = fleet.grant(account=replace(ACCOUNT, limits_cached=False))
    with fleet.gateways[0].granted(grant):
        await fleet.ask(grant, *MESSAGES)

    until(lambda: fleet.rates.used() == {BUCKET: Use(0, 97)}, what=fleet.rates.used)


async def test_a_call_that_failed_used_no_tokens_and_each_try_is_a_request(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(requests_per_min=6_000, tokens_per_min=1e6))
    fleet.models.script = Script(statuses=(503, 400))
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        status, _, _ = await fleet.ask(grant, *CHAT)

    assert status == 400
    until(lambda: fleet.rates.used() == {BUCKET: Use(2, 0)}, what=fleet.rates.used)


async def test_an_agent_that_leaves_while_its_call_waits_asks_the_provider_nothing(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(requests_per_min=2))
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        await fleet.ask(grant, *CHAT)
        waiting = asyncio.ensure_future(fleet.ask(grant, *CHAT))
        await asyncio.to_thread(until, lambda: fleet.rates.asked.count("take") == 2)
        waiting.cancel()
        await asyncio.wait([waiting])

    assert len(fleet.models.asked) == 1
    left = recorded(grant)[1]
    assert (left["status"], left["attempts"]) == (429, 0)
    assert left["error"] == f"the agent went away while it waited for the limit of {BUCKET}"
    assert grant.usage().total_tokens == 107


async def test_agents_that_leave_while_their_calls_wait_leave_their_time_to_others(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(requests_per_min=10))
    grants = [fleet.grant(), fleet.grant("other")]
    with fleet.gateways[0].granted(grants[0]), fleet.gateways[1].granted(grants[1]):
        await fleet.ask(grants[0], *CHAT)
        waiting = [asyncio.ensure_future(fleet.ask(grants[0], *CHAT)) for _ in range(9)]
        await asyncio.to_thread(until, lambda: fleet.rates.asked.count("take") == 10)
        for one in waiting:
            one.cancel()
        await asyncio.wait(waiting)
        await asyncio.to_thread(until, lambda: fleet.rates.asked.count("leave") == 9)
        status, _, _ = await fleet.ask(grants[1], *CHAT, worker=1)

    assert status == 200
    assert recorded(grants[1])[0]["waited_s"] < 10


async def test_a_call_is_never_thought_to_use_more_than_a_minute_of_a_limit(fleet: Fleet) -> None:
    fleet.ledger.set_limit(BUCKET, Limit(tokens_per_min=6_000))
    fleet.models.script = Script(statuses=(400,))
    large = {**CHAT[1], "padding": "x" * 400_000}
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        status, _, _ = await fleet.ask(grant, CHAT[0], large)

    assert status == 400
    assert max(fleet.rates.tokens) == 6_000


async def test_all_workers_leave_a_provider_in_peace_that_asked_one_to_wait(fleet: Fleet) -> None:
    fleet.models.script = Script(statuses=(429,), retry_after_s=3)
    grants = [fleet.grant("one"), fleet.grant("two"), fleet.grant("other", Account("y Y_API_KEY", ()))]
    with (
        fleet.gateways[0].granted(grants[0]),
        fleet.gateways[1].granted(grants[1]),
        fleet.gateways[1].granted(grants[2]),
    ):
        turned_away = asyncio.ensure_future(fleet.ask(grants[0], *CHAT))
        await asyncio.to_thread(until, lambda: fleet.ledger.rates.known().closed)
        other = await fleet.ask(grants[2], *CHAT, worker=1)
        answers = await asyncio.gather(fleet.ask(grants[1], *CHAT, worker=1), turned_away)

    assert [status for status, _, _ in (other, *answers)] == [200, 200, 200]
    assert recorded(grants[1])[0]["waited_s"] > 0
    assert recorded(grants[2])[0]["waited_s"] == 0
    assert len(fleet.models.asked) == 4


async def test_a_provider_that_asks_for_very_long_is_asked_again_after_a_minute(fleet: Fleet) -> None:
    fleet.models.script = Script(statuses=(429,), retry_after_s=900)
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant):
        status, _, _ = await fleet.ask(grant, *CHAT)
        await asyncio.to_thread(until, lambda: fleet.ledger.rates.known().closed)

    assert status == 429
    assert 50 < fleet.ledger.rates.known().closed["x X_API_KEY"] <= 60


async def test_calls_go_on_while_the_ledger_does_not_answer_and_it_is_told_once(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.ledger.set_limit(BUCKET, HALF_A_REQUEST)
    grant = fleet.grant()
    with fleet.gateways[0].granted(grant), caplog.at_level(logging.INFO, "benchflow_workers.gateway"):
        limited = [(await fleet.ask(grant, *CHAT))[0] for _ in range(2)]
        fleet.rates.is_down = True
        lost = [(await fleet.ask(grant, *CHAT))[0] for _ in range(9)]

    assert (limited, lost) == ([200, 429], [200] * 9)
    assert [vars(record)["action"] for record in caplog.records] == ["limits_lost"]
