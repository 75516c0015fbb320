"""Ready-made agents by their own command line: one run for each prompt, its events read as they come."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import AgentUsage
from benchflow_workers.agents.acp_errors import failure_of_words
from benchflow_workers.agents.acp_trajectory import Trajectory
from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext, AgentRun, followed, prompt_bytes
from benchflow_workers.agents.launch import started
from benchflow_workers.agents.lines import JsonLines, PlainLines
from benchflow_workers.agents.ready import install, prompt_command
from benchflow_workers.agents.turn import UNLIMITED_S, joined_runs
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import OUTPUT_LIMIT_BYTES, Command, Sandbox, Upload
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = ["CliAgent", "Events"]

EXIT_S: Final = 10.0
"""How long a program that prints no more is waited for."""


class Events(Protocol):
    """What is particular to the output of one program."""

    @property
    def is_plain(self) -> bool:
        """Whether its output is text for people, one event `{"text": ...}` a line, and its exit code tells its end."""
        ...

    def updates(self, event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """Yield an event's part of the trajectory, as updates of the Agent Client Protocol."""
        ...

    def error(self, event: Mapping[str, Any]) -> str | None:
        """Return what an event says went wrong for good; None = nothing."""
        ...

    def is_end(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event ends the turn well."""
        ...

    def usage(self, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what an event says the turn used, as fields of `AgentUsage`; empty = nothing."""
        ...


@dataclass(frozen=True, slots=True)
class CliAgent:
    """Runs a command line.

    Attributes:
        reads: How its output is read.
        exit_s: Seconds that it has to end once it prints no more.
    """

    reads: Events
    exit_s: float = EXIT_S

    @property
    def is_control(self) -> bool:
        """It is an agent under test."""
        return False

    @property
    def runs_as_user(self) -> bool:
        """It runs as the unprivileged user."""
        return True

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return no files: its program is mounted or installed."""
        del context
        return ()

    async def install(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Install it, where its definition has a script for it.

        Raises:
            AgentError: `agent.install_failed`.
            SandboxError: The sandbox failed under it.
        """
        await install(sandbox, context)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Run the program once for each prompt, until one does not end well or the time is over.

        Raises:
            AgentError: `agent.not_runnable`: its definition is not complete.
            SandboxError: The sandbox failed under it.
        """
        what = started(context)
        await sandbox.put(what.uploads())
        deadline = time.monotonic() + (context.timeout_s or UNLIMITED_S)
        runs: list[AgentRun] = []
        for prompt in context.prompts:
            if runs:
                await sandbox.put([Upload(INSTRUCTION_PATH, content=prompt_bytes(prompt), mode=0o644)])
            command = prompt_command(context, what, is_first=not runs)
            turn = _Turn(self.reads, deadline, context.spec.idle_timeout_s or None, self.exit_s)
            runs.append(await turn.taken(sandbox, command, prompt, context))
            if runs[-1].failures or runs[-1].timed_out:
                break
        return joined_runs(runs)


@dataclass
class _Turn:
    """One run while it lasts."""

    reads: Events
    deadline: float
    idle_s: float | None
    exit_s: float
    trajectory: Trajectory = field(default_factory=Trajectory)
    noise: CappedOutput = field(default_factory=lambda: CappedOutput(OUTPUT_LIMIT_BYTES))
    errors: CappedOutput = field(default_factory=lambda: CappedOutput(0))
    said: str | None = None
    has_ended: bool = False
    timed_out: bool = False
    idle: bool = False
    exit_code: int | None = None
    used: dict[str, Any] = field(default_factory=dict)

    async def taken(self, sandbox: Sandbox, command: Command, prompt: str, context: AgentContext) -> AgentRun:
        """Run the command and return its record."""
        self.trajectory.told(prompt)
        async with followed(context, self.trajectory), sandbox.attach(command) as process:
            await self._follow(process)
        return self._record()

    async def _follow(self, process: Process) -> None:
        """Read events until the program ends or a limit comes."""
        self.errors = process.stderr
        reading = asyncio.ensure_future(self._read(process))
        try:
            while not reading.done():
                now, until = time.monotonic(), self.deadline
                if self.idle_s is not None:
                    until = min(until, self.trajectory.idle_since(self.idle_s))
                if now >= until:
                    self.timed_out, self.idle = now >= self.deadline, now < self.deadline
                    return
                await asyncio.wait({reading}, timeout=until - now)
            reading.result()
        finally:
            reading.cancel()

    async def _read(self, process: Process) -> None:
        lines = PlainLines(process, self.noise) if self.reads.is_plain else JsonLines(process, self.noise)
        while (event := await lines.next()) is not None:
            for update in self.reads.updates(event):
                self.trajectory.update(update)
            self.said = self.reads.error(event) or self.said
            self.has_ended = self.has_ended or self.reads.is_end(event)
            self.used |= self.reads.usage(event)
        with contextlib.suppress(TimeoutError):  # it is killed then: what it said counts
            async with asyncio.timeout(self.exit_s):
                self.exit_code = await process.wait()
        self.has_ended = self.has_ended or (self.reads.is_plain and self.exit_code is not None)

    def _record(self) -> AgentRun:
        """Return the record of the run."""
        failures = list(self._failures())
        source = {"usage_source": "agent_native_cli"} if self.used else {}
        usage = AgentUsage(n_prompts=1, n_tool_calls=self.trajectory.n_tool_calls, **self.used, **source)
        return AgentRun(
            exit_code=self.exit_code,
            timed_out=self.timed_out,
            events=self.trajectory.events(),
            log=self._log(),
            usage=usage,
            failures=failures,
            is_broken=bool(failures) and not self.idle,
        )

    def _failures(self) -> Iterator[Failure]:
        if self.idle:
            text = f"The agent did nothing for {self.idle_s:g} s and was stopped."
            yield Failure(code="agent.idle", message=text)
        elif self.timed_out:
            return
        elif self.said is not None:
            yield failure_of_words(self.said, None)
        elif not self.has_ended:
            text = f"The agent ended with exit code {self.exit_code} in the middle of its turn."
            yield Failure(code="agent.disconnected", message=text, detail=tail_text(self._log()))
        elif not self.trajectory.has_acted:
            yield Failure(
                code="agent.silent",
                message="The agent ended its turn without a word or a tool call, so there is nothing to score.",
                detail=tail_text(self._log()),
            )

    def _log(self) -> bytes:
        return b"".join(with_gap_marked(kept.kept(), kept.total_bytes) for kept in (self.noise, self.errors))
