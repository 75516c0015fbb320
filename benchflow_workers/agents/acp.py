"""Agents that speak the Agent Client Protocol: programs that are talked to in the sandbox.

Each starts in the workspace as the agent's user; every line it prints that is no message of
the protocol is its log. Prompts are given one after the other in one session. It has the
tools it brings: the worker offers it neither files nor terminals.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import AgentUsage
from benchflow_workers.agents.acp_choice import Wishes, choose
from benchflow_workers.agents.acp_errors import failure_of_words
from benchflow_workers.agents.acp_session import (
    CANCEL_S,
    HANDSHAKE_S,
    AgentAnswerError,
    Ending,
    Limits,
    NoHandshakeError,
    Session,
    connected,
    open_session,
)
from benchflow_workers.agents.acp_trajectory import Trajectory
from benchflow_workers.agents.base import AgentContext, AgentRun, followed
from benchflow_workers.agents.program import check_started
from benchflow_workers.agents.ready import OfTheUser, Ready, Start, install
from benchflow_workers.agents.turn import UNLIMITED_S
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import OUTPUT_LIMIT_BYTES, Sandbox, Upload
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = ["AcpAgent", "ready_acp"]

EXIT_S: Final = 5.0
"""How long a program that broke off is waited for, to learn how it ended."""


@dataclass(frozen=True, slots=True)
class AcpAgent:
    """Talks to a program.

    Attributes:
        start: How the program gets there and is started.
        handshake_s: Seconds for each answer before the first prompt.
        cancel_s: Seconds it has for a clean end when it is told to stop.
    """

    start: Start = field(default_factory=OfTheUser)
    handshake_s: float = HANDSHAKE_S
    cancel_s: float = CANCEL_S

    @property
    def is_control(self) -> bool:
        """It is an agent under test."""
        return False

    @property
    def runs_as_user(self) -> bool:
        """It runs as the unprivileged user."""
        return True

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the program.

        Raises:
            AgentError: `agent.not_runnable` when there is no such file, or nothing could run it.
        """
        return self.start.uploads(context)

    async def install(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Install it, where its definition has a script for it.

        Raises:
            AgentError: `agent.install_failed`.
            SandboxError: The sandbox failed under it.
        """
        await install(sandbox, context)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Give the agent its prompts, until one is not answered or the time is over.

        Raises:
            AgentError: `agent.not_runnable` when it could not be started at all.
            SandboxError: The sandbox failed under it.
        """
        timeout_s = context.timeout_s or UNLIMITED_S
        command = await self.start.command(sandbox, context, timeout_s)
        limits = Limits(
            time.monotonic() + timeout_s, context.spec.idle_timeout_s or None, self.handshake_s, self.cancel_s
        )
        turn = _Turn(context, limits, sandbox.workdir)
        async with followed(context, turn.trajectory), sandbox.attach(command) as process:
            await turn.take(process)
        return turn.run()


@dataclass
class _Turn:
    """One turn while it is taken."""

    context: AgentContext
    limits: Limits
    workdir: str
    trajectory: Trajectory = field(default_factory=Trajectory)
    noise: CappedOutput = field(default_factory=lambda: CappedOutput(OUTPUT_LIMIT_BYTES))
    usage: AgentUsage = field(default_factory=AgentUsage)
    ending: Ending = Ending.ANSWERED
    failure: Failure | None = None
    exit_code: int | None = None
    errors: CappedOutput = field(default_factory=lambda: CappedOutput(0))
    is_ready: bool = False
    version: str = ""

    async def take(self, process: Process) -> None:
        """Talk until the prompts are answered or something is in the way."""
        try:
            async with connected(process, self.noise, self.trajectory) as connection:
                session = await open_session(
                    connection, self.trajectory, self.limits, cwd=self.workdir, servers=self._servers()
                )
                self.version = session.version
                await choose(session, self._wishes(), self.limits)
                self.is_ready = True
                await self._talk(session)
        except AgentAnswerError as error:
            self.failure = failure_of_words(error.message, error.data)
        except NoHandshakeError as error:
            self.failure = self._no_handshake(error)
        except ConnectionError:
            await self._gone(process)
        self.errors = process.stderr
        if self.failure is None and self.ending is Ending.ANSWERED:
            self.failure = self._silence()

    def _wishes(self) -> Wishes:
        """Return what the agent is asked for over the protocol."""
        definition, env = self.context.definition, self.context.env
        model = env.get("BENCHFLOW_PROVIDER_MODEL")
        if definition is None:
            return Wishes(model, self.context.spec.effort)
        if definition.model_format == "provider/model" and model is not None:
            model = f"{env['BENCHFLOW_PROVIDER_NAME']}/{model}"
        return Wishes(
            model=model if definition.model_by_protocol else None,
            effort=self.context.spec.effort if definition.effort_option is not None else None,
            effort_option=definition.effort_option,
        )

    def _servers(self) -> list[dict[str, Any]]:
        return [_server(name, entry) for name, entry in self.context.mcp_servers.items()]

    async def _talk(self, session: Session) -> None:
        for prompt in self.context.prompts:
            self.usage = self.usage.model_copy(update={"n_prompts": self.usage.n_prompts + 1})
            try:
                self.ending = await session.prompt(prompt, self.limits)
            finally:
                self._count(session)
            if self.ending is not Ending.ANSWERED:
                self._stopped()
                return

    def _count(self, session: Session) -> None:
        self.usage = session.usage.model_copy(
            update={"n_prompts": self.usage.n_prompts, "n_tool_calls": self.trajectory.n_tool_calls}
        )

    def _stopped(self) -> None:
        pending = self.trajectory.pending()
        self.trajectory.mark({
            "type": "agent_timeout",
            "reason": self.ending.value,
            "pending_tool_call_ids": list(pending),
            "terminal_trajectory_complete": not pending,
        })

    def _no_handshake(self, error: NoHandshakeError) -> Failure:
        text = f"The agent did not answer {error.method} within {self.limits.handshake_s:g} s."
        return Failure(code="agent.no_handshake", message=text)

    async def _gone(self, process: Process) -> None:
        """Find out how a program ended that talks no more."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_S):
                self.exit_code = await process.wait()
        self.errors = process.stderr
        if not self.is_ready and self.exit_code is not None:
            check_started(self.context, self.exit_code, self._log())
        how = "closed its output" if self.exit_code is None else f"ended with exit code {self.exit_code}"
        self.failure = Failure(
            code="agent.disconnected",
            message=f"The agent {how} {'in the middle of its turn' if self.is_ready else 'before it was ready'}.",
            detail=tail_text(self._log()),
        )

    def _silence(self) -> Failure | None:
        """Return why a turn in which nothing happened is no attempt at the task."""
        if self.trajectory.has_acted or self.usage.n_output_tokens:
            return None
        return Failure(
            code="agent.silent",
            message="The agent answered without a word, a thought or a tool call, so there is nothing to score.",
            detail=tail_text(self._log()),
        )

    def _log(self) -> bytes:
        return b"".join(with_gap_marked(kept.kept(), kept.total_bytes) for kept in (self.noise, self.errors))

    def run(self) -> AgentRun:
        """Return the record of the turn."""
        failures = [] if self.failure is None else [self.failure]
        if self.ending is Ending.IDLE:
            text = f"The agent did nothing for {self.limits.idle_s:g} s and was stopped."
            failures.append(Failure(code="agent.idle", message=text))
        return AgentRun(
            exit_code=self.exit_code,
            timed_out=self.ending is Ending.WALL_CLOCK,
            events=self.trajectory.events(),
            log=self._log(),
            usage=self.usage,
            failures=failures,
            is_broken=self.failure is not None,
            version=self.version,
        )


def _server(name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool server as the protocol has it; what narrows its tools stands beside it."""
    filters = {key: entry[key] for key in ("tools", "include_tags", "exclude_tags") if key in entry}
    meta = {"_meta": {"benchflow": {"mcp_tool_filters": filters}}} if filters else {}
    if "command" in entry:
        cwd = {"cwd": entry["cwd"]} if "cwd" in entry else {}
        env = _pairs(entry.get("env", {}))
        return {
            "name": name,
            "command": entry["command"],
            "args": entry.get("args", []),
            "env": env,
            **cwd,
            **meta,
        }
    headers = _pairs(entry.get("headers", {}))
    return {"type": entry["type"], "name": name, "url": entry["url"], "headers": headers, **meta}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def ready_acp() -> AcpAgent:
    """Return what talks to a ready-made program."""
    return AcpAgent(Ready())
