"""What the whole fleet may ask of a provider, a model and a key: every call waits here for its turn.

The ledger decides, for all workers together. It is asked only about calls that a limit or a provider's
wish to wait concerns; which those are is looked up once a second. While it does not answer, calls go on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from benchflow_client.errors import BenchflowError
from benchflow_client.ledger.admission import Limit
from benchflow_client.ledger.rates import CLOSED, MOST_CLOSED_S, Known, ModelCall, Rates, Turn
from benchflow_workers.gateway.calls import Call

__all__ = ["LimitedError", "Pace", "Pacer"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

PATIENCE_S: Final = 60.0
"""How long a call waits here, all in all; one that would have to wait longer is sent back to its agent."""

KNOWN_S: Final = 1.0
"""How long is relied on what was looked up: so long after a change of limits the old ones may hold."""

LOST_S: Final = 5.0
"""Seconds until a ledger that did not answer is asked again."""

ANSWER_S: Final = 2.0
"""How long a call waits for an answer; the first that gets none is the last to wait for a while."""

SETTLE_S: Final = 0.1
"""Seconds for which what calls used is gathered before it is told."""

_THREADS: Final = 4
_SPREAD: Final = 0.25
"""Part of a provider's wait by which calls come back later at most, so that they do not come all at once."""

_TOO_MANY: Final = 429
_LEFT: Final = 499
"""Status of a call of which nobody was asked anything: it is no call that was answered, nor one that was limited."""


class LimitedError(Exception):
    """A call that would have to wait too long.

    Attributes:
        text: Why, for the agent.
        wait_s: When it may come again.
    """

    def __init__(self, text: str, wait_s: float) -> None:
        super().__init__(text)
        self.text = text
        self.wait_s = wait_s


@dataclass
class _Habit:
    """What the last calls of a model used, to guess what the next one will."""

    input_per_byte: float = 0.25  # of the request, as it is sent
    output: float = 500.0

    def guess(self, size: int) -> int:
        return math.ceil(size * self.input_per_byte + self.output)

    def learn(self, size: int, *, given: int, made: int) -> None:
        """Follow the last calls, about ten of them."""
        self.input_per_byte += (given / max(1, size) - self.input_per_byte) / 5
        self.output += (made - self.output) / 5


class Pacer:
    """Asks the ledger for the turns of calls; used by the gateway's loop alone.

    Args:
        rates: The fleet's; None = nothing is limited.
    """

    def __init__(self, rates: Rates | None) -> None:
        self._rates = rates
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="gateway-pace")
        self._limits: Mapping[str, Limit] = {}
        self._closed: dict[str, float] = {}  # account -> until when, by this process's clock
        self._habits: dict[tuple[str, str], _Habit] = {}
        self._known_until = 0.0
        self._look: asyncio.Task[None] | None = None
        self._notes: set[asyncio.Task[object]] = set()
        self._owed: Counter[tuple[str, ...]] = Counter()  # tokens beyond what was counted, by buckets
        self._is_lost = False

    def pace(self, call: Call) -> Pace:
        """Return the way of a call."""
        return Pace(self, call)

    async def close(self) -> None:
        """Tell the ledger what it is still to know, and ask nothing more."""
        if self._notes:
            await asyncio.wait(self._notes, timeout=ANSWER_S)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def concerns(self, call: Call) -> bool:
        """Return whether anything can be limited for a call."""
        return self._rates is not None and call.rules.is_generation(call.path)

    def habit(self, call: Call) -> _Habit:
        """Return what the calls of a model use."""
        target = call.grant.target
        return self._habits.setdefault((target.provider, target.model), _Habit())

    async def look(self) -> None:
        """Learn the limits, where they are not known or no longer."""
        if self._rates is None or time.monotonic() < self._known_until:
            return
        if self._look is None:
            self._look = asyncio.ensure_future(self._look_up(self._rates))
        await asyncio.shield(self._look)

    def guess(self, call: Call) -> int:
        """Return about how many tokens a call will use; a minute of a limit at most, so that none keeps all others waiting for long."""
        found = (
            self._limits.get(bucket, Limit()).tokens_per_min for bucket in call.grant.target.account.buckets
        )
        most = min((limit for limit in found if limit is not None), default=math.inf)
        return math.floor(min(self.habit(call).guess(call.request_bytes), most))

    async def ask(self, call: ModelCall, *, within_s: float, is_kept: bool) -> Turn | None:
        """Return when a call may be made; None = nothing limits it, or nobody can say."""
        rates = self._rates
        if rates is None:
            return None
        await self.look()
        closed_s = self._closed.get(call.account, 0.0) - time.monotonic()
        if closed_s > 0:
            return Turn(closed_s, CLOSED, is_refused=closed_s > within_s)
        if not any(bucket in self._limits for bucket in call.buckets):
            return None
        return await self._answer(partial(rates.take, call, within_s=within_s, is_kept=is_kept))

    def shut(self, account: str, seconds: float) -> None:
        """Let nobody of the fleet call for an account, as its provider asked."""
        seconds = min(seconds, MOST_CLOSED_S)
        self._closed[account] = max(self._closed.get(account, 0.0), time.monotonic() + seconds)
        if self._rates is not None:
            self._note(self._answer(partial(self._rates.close, account, seconds)))

    def leave(self, call: ModelCall, turn: Turn) -> None:
        """Tell that a call is not made for which a time was kept."""
        if self._rates is not None:
            self._note(self._answer(partial(self._rates.leave, call, turn)))

    def settle(self, call: ModelCall, used: int) -> None:
        """Tell what a call used that was counted."""
        has_tokens = any(
            limit.tokens_per_min is not None
            for bucket in call.buckets
            if (limit := self._limits.get(bucket)) is not None
        )
        if self._rates is None or not has_tokens:
            return
        if not self._owed:
            self._note(self._settle(self._rates))
        self._owed[call.buckets] += used - call.tokens

    async def _settle(self, rates: Rates) -> None:
        """Tell what the calls of a moment used, as one."""
        await asyncio.sleep(SETTLE_S)
        owed, self._owed = self._owed, Counter()
        for buckets, tokens in owed.items():
            if tokens:
                await self._answer(partial(rates.settle, buckets, tokens))

    def _note(self, telling: Coroutine[None, None, object]) -> None:
        """Tell the ledger something beside the calls."""
        task = asyncio.ensure_future(telling)
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _look_up(self, rates: Rates) -> None:
        """Learn which limits there are and who is closed."""
        try:
            known = await self._answer(rates.known)
            if known is None:
                return
            now = time.monotonic()
            self._limits, self._known_until = known.limits, now + KNOWN_S
            self._closed = {account: until for account, until in self._closed.items() if until > now}
            self._closed |= _later(self._closed, known, now)
            if self._is_lost:
                self._is_lost = False
                logger.info("limits of models hold again", extra={"action": "limits_found"})
        finally:
            self._look = None

    async def _answer(self, work: Callable[[], _T]) -> _T | None:
        """Return what the ledger answers; None = it does not, and is left in peace for a while."""
        try:
            loop = asyncio.get_running_loop()
            return await asyncio.wait_for(loop.run_in_executor(self._pool, work), ANSWER_S)
        except (BenchflowError, TimeoutError) as error:
            if not self._is_lost:
                self._is_lost = True
                logger.warning(
                    "no limits of models hold until the ledger answers again: %s", error or "it is silent",
                    extra={"action": "limits_lost"},
                )  # fmt: skip
            self._limits, self._known_until = {}, time.monotonic() + LOST_S
            return None


class Pace:
    """The way of one call to its provider, which it may take several times.

    Args:
        pacer: Asks for its turns.
        call: The call; it learns what it waited for.
    """

    def __init__(self, pacer: Pacer, call: Call) -> None:
        self._pacer = pacer
        self._call = call
        self._account = call.grant.target.account
        self._counted: ModelCall | None = None
        self._is_limited = bool(self._account.name) and pacer.concerns(call)

    async def turn(self) -> None:
        """Wait until the provider may be asked.

        Raises:
            LimitedError: That is too long.
        """
        if not self._is_limited:
            return
        account, tokens = self._account, 0
        try:
            if self._counted is None:
                await self._pacer.look()
                tokens = self._pacer.guess(self._call)
            await self._wait(ModelCall(account.buckets, account.name, tokens))
        except asyncio.CancelledError:
            self._call.status = _TOO_MANY if self._call.waited_s else _LEFT
            self._call.error = self._call.error or "the agent went away before its turn"
            raise

    def answered(self, status: int, asked_s: float | None) -> None:
        """Tell what the provider answered; one that asks to wait is left in peace by the whole fleet."""
        if self._is_limited and status == _TOO_MANY and asked_s:
            self._pacer.shut(self._account.name, asked_s)

    def settle(self) -> None:
        """Count what the call used in the place of what was guessed."""
        used = self._call.used
        given = made = 0
        if used is not None:
            cached = 0 if self._account.limits_cached else used.cache_read
            given, made = used.input - cached, used.output
            self._pacer.habit(self._call).learn(self._call.request_bytes, given=given, made=made)
        if self._counted is not None:
            self._pacer.settle(self._counted, given + made)

    async def _wait(self, asked: ModelCall) -> None:
        """Ask until the call may be made, and wait in between as it is told."""
        kept: Turn | None = None
        try:
            while True:
                left_s = max(0.0, PATIENCE_S - self._call.waited_s)
                turn = await self._pacer.ask(asked, within_s=left_s, is_kept=kept is not None)
                if turn is None or not turn.cause:
                    kept = None
                    self._counted = self._counted or (None if turn is None else asked)
                    return
                if turn.is_refused:
                    raise self._refused(turn)
                kept = kept or (turn if turn.is_kept else None)
                spread = random.uniform(0.0, _SPREAD) if turn.cause == CLOSED else 0.0
                await self._sleep(turn, min(turn.wait_s * (1 + spread), max(turn.wait_s, left_s)))
        finally:
            if kept is not None:
                self._pacer.leave(asked, kept)

    async def _sleep(self, turn: Turn, seconds: float) -> None:
        """Wait; where the agent leaves meanwhile, say for what."""
        begun = time.monotonic()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self._call.error = f"the agent went away while it waited for {_named(turn)}"
            raise
        finally:
            self._call.waited_s += time.monotonic() - begun

    def _refused(self, turn: Turn) -> LimitedError:
        self._call.status = _TOO_MANY
        self._call.error = f"{_named(turn)}: {turn.wait_s:.0f} s to wait"
        self._call.grant.asked_to_wait(turn.wait_s)
        return LimitedError(
            f"The workers wait for {_named(turn)}; come again in {turn.wait_s:.0f} s.", turn.wait_s
        )


def _named(turn: Turn) -> str:
    return "the provider, which asked for it" if turn.cause == CLOSED else f"the limit of {turn.cause}"


def _later(closed: Mapping[str, float], known: Known, now: float) -> dict[str, float]:
    """Return who is closed for longer than was known."""
    found = {account: now + left for account, left in known.closed.items()}
    return {account: until for account, until in found.items() if until > closed.get(account, 0.0)}
