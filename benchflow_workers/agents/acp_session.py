"""One session with an agent over the Agent Client Protocol: handshake, prompts, deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from acp.connection import Connection, StreamDirection, StreamEvent
from acp.exceptions import RequestError

from benchflow_client.schema.trial import AgentUsage
from benchflow_client.version import __version__
from benchflow_workers.agents.acp_lines import LineTransport
from benchflow_workers.agents.acp_trajectory import Trajectory
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = [
    "AgentAnswerError",
    "Ending",
    "Limits",
    "NoHandshakeError",
    "Session",
    "ask",
    "connected",
    "open_session",
]

PROTOCOL_VERSION: Final = 1
HANDSHAKE_S: Final = 60.0
"""Seconds for an answer."""

CANCEL_S: Final = 5.0
"""Seconds for a clean end."""

MOST_TOKENS: Final = 10**12
"""More than any session uses."""

_ALLOWED: Final = ("allow_always", "allow_once")
_FREE_MODES: Final = ("bypassPermissions", "agent-full-access", "yolo")
_METHOD_NOT_FOUND: Final = -32601
_HELLO: Final = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "benchflow", "version": __version__},
}


class Ending(Enum):
    """Why the answer to a prompt is not waited for any longer."""

    ANSWERED = "answered"
    WALL_CLOCK = "wall_clock_timeout"
    IDLE = "idle_timeout"


class AgentAnswerError(Exception):
    """The agent answered a request with an error.

    Attributes:
        message: Its words.
        data: What came with them, any JSON value.
    """

    def __init__(self, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.message = message
        self.data = data


class NoHandshakeError(Exception):
    """The agent did not get ready in time.

    Attributes:
        method: The request it did not answer.
    """

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.method = method


@dataclass(frozen=True, slots=True)
class Limits:
    """How long an agent is waited for.

    Attributes:
        deadline: End of the turn (monotonic seconds).
        idle_s: Seconds it may show no sign of work; None = any.
        handshake_s: Seconds for each answer before the first prompt.
        cancel_s: Seconds it has for a clean end when it is told to stop.
    """

    deadline: float
    idle_s: float | None
    handshake_s: float = HANDSHAKE_S
    cancel_s: float = CANCEL_S


@dataclass
class Session:
    """An agent that is ready for prompts.

    Attributes:
        connection: To the agent.
        identity: The agent's name of the session.
        version: What it says it is; empty = nothing.
        offers: What it said of models, modes and options when the session was opened.
        usage: What it says it used, all prompts so far.
    """

    connection: Connection
    identity: str
    version: str
    offers: Mapping[str, Any]
    trajectory: Trajectory
    usage: AgentUsage

    async def prompt(self, text: str, limits: Limits) -> Ending:
        """Give the agent a prompt and wait for its answer, or stop it at a limit.

        Raises:
            AgentAnswerError: The agent's error.
            ConnectionError: The agent is gone.
        """
        self.trajectory.told(text)
        content = [{"type": "text", "text": text}]
        request = self.connection.send_request(
            "session/prompt", {"sessionId": self.identity, "prompt": content}
        )
        asking = asyncio.ensure_future(request)
        try:
            ending = await self._wait(asking, limits)
            if ending is not Ending.ANSWERED:
                await self._cancel(asking, limits.cancel_s)
            elif isinstance(answer := asking.result(), Mapping):
                self._answered(answer)
        except RequestError as error:
            raise AgentAnswerError(str(error), error.data) from error
        finally:
            asking.cancel()
        return ending

    async def _wait(self, asking: asyncio.Future[Any], limits: Limits) -> Ending:
        while not asking.done():
            now = time.monotonic()
            until = limits.deadline
            if limits.idle_s is not None:
                until = min(until, self.trajectory.idle_since(limits.idle_s))
            if now >= until:
                return Ending.WALL_CLOCK if now >= limits.deadline else Ending.IDLE
            await asyncio.wait({asking}, timeout=until - now)
        return Ending.ANSWERED

    async def _cancel(self, asking: asyncio.Future[Any], patience_s: float) -> None:
        """Tell the agent to stop, and give it a moment."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.connection.send_notification("session/cancel", {"sessionId": self.identity})
                await asyncio.wait({asking})
        if asking.done():
            asking.exception()  # seen: how an agent that was stopped ends tells nothing

    def _answered(self, answer: Mapping[str, Any]) -> None:
        self.trajectory.mark({"type": "turn_end", "stop_reason": str(answer.get("stopReason"))})
        usage = answer.get("usage")
        if isinstance(usage, Mapping):
            counts = {name: _count(usage.get(key)) for name, key in _USAGE_KEYS.items()}
            self.usage = self.usage.model_copy(update={**counts, "usage_source": "agent_native_acp"})


_USAGE_KEYS: Final = {
    "n_input_tokens": "inputTokens",
    "n_output_tokens": "outputTokens",
    "total_tokens": "totalTokens",
}


def _count(value: Any) -> int | None:
    """Return a number of tokens; None = it is none, or one that cannot be true and would spoil every sum."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
    return value if is_count else None


async def open_session(
    connection: Connection,
    trajectory: Trajectory,
    limits: Limits,
    *,
    cwd: str,
    servers: Sequence[Mapping[str, Any]],
) -> Session:
    """Shake hands and open a session.

    Args:
        connection: To the agent; made by `connected`.
        trajectory: Where events go.
        limits: How long it is waited for.
        cwd: Absolute workspace.
        servers: Tool servers, as the protocol has them.

    Raises:
        NoHandshakeError: An answer did not come in time.
        AgentAnswerError: The agent's error.
        ConnectionError: The agent is gone.
    """
    ready = await ask(connection, "initialize", _HELLO, limits)
    opened = await ask(connection, "session/new", {"cwd": cwd, "mcpServers": list(servers)}, limits)
    identity = opened.get("sessionId")
    if not isinstance(identity, str):
        raise AgentAnswerError("session/new was answered without a sessionId")
    mode = _free_mode(opened.get("modes"))
    if mode is not None:
        await ask(connection, "session/set_mode", {"sessionId": identity, "modeId": mode}, limits)
    return Session(
        connection=connection,
        identity=identity,
        version=_version(ready.get("agentInfo")),
        offers=opened,
        trajectory=trajectory,
        usage=AgentUsage(),
    )


def _free_mode(modes: Any) -> str | None:
    """Return the mode in which an agent asks nobody, where it has one and is in another: its sandbox is the fence."""
    if not isinstance(modes, Mapping):
        return None
    offered = modes.get("availableModes")
    ids = (
        [mode.get("id") for mode in offered if isinstance(mode, Mapping)] if isinstance(offered, list) else []
    )
    mode = next((name for name in _FREE_MODES if name in ids), None)
    return None if mode == modes.get("currentModeId") else mode


def _version(info: Any) -> str:
    """Return name and version of an agent that tells them."""
    parts = (info.get("name"), info.get("version")) if isinstance(info, Mapping) else ()
    return " ".join(part for part in parts if isinstance(part, str))[:200]


async def ask(
    connection: Connection, method: str, params: Mapping[str, Any], limits: Limits
) -> Mapping[str, Any]:
    """Return the answer to a request before the first prompt.

    Raises:
        NoHandshakeError: It did not come in time.
        AgentAnswerError: The agent's error.
        ConnectionError: The agent is gone.
    """
    left_s = min(limits.handshake_s, limits.deadline - time.monotonic())
    try:
        async with asyncio.timeout(left_s):
            answer = await connection.send_request(method, dict(params))
    except TimeoutError as error:
        raise NoHandshakeError(method) from error
    except RequestError as error:
        raise AgentAnswerError(str(error), error.data) from error
    if answer is None:
        return {}
    if not isinstance(answer, Mapping):
        raise AgentAnswerError(f"{method} was answered with {type(answer).__name__}, not with an object")
    return answer


@asynccontextmanager
async def connected(
    process: Process, noise: CappedOutput, trajectory: Trajectory
) -> AsyncGenerator[Connection, None]:
    """Yield a connection to an agent whose updates are recorded and whose requests are answered.

    Args:
        process: The agent.
        noise: Takes every line that is no message.
        trajectory: Where events go.
    """

    def observe(event: StreamEvent) -> None:
        # Observers are called in the order of the messages; answers need not be.
        if event.direction is StreamDirection.INCOMING and event.message.get("method") == "session/update":
            params = event.message.get("params")
            update = params.get("update") if isinstance(params, Mapping) else None
            if isinstance(update, Mapping):
                trajectory.update(update)

    async def answer(method: str, params: Any, *is_notification: bool) -> Any:
        await asyncio.sleep(0)  # nothing takes time here, but the connection waits for its answers
        if method == "session/request_permission" and isinstance(params, Mapping):
            chosen = _permission(params.get("options"))
            trajectory.mark({"type": "permission", "option_id": chosen})
            return {"outcome": {"outcome": "selected", "optionId": chosen}}
        if any(is_notification):
            return None
        raise RequestError(_METHOD_NOT_FOUND, f"{method} is not offered here")

    connection = Connection(answer, LineTransport(process, noise), observers=[observe])
    try:
        yield connection
    finally:
        await connection.close()


def _permission(options: Any) -> str:
    """Return the option that lets the agent go on: `bypassPermissions`, always, once, else the first."""
    offered = [option for option in options or () if isinstance(option, Mapping)]
    ids = [str(option.get("optionId")) for option in offered]
    if "bypassPermissions" in ids:
        return "bypassPermissions"
    for kind in _ALLOWED:
        for option in offered:
            if option.get("kind") == kind:
                return str(option.get("optionId"))
    return ids[0] if ids else "default"
