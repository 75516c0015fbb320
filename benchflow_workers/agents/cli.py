"""Ready-made agents by their own command line: one run for each prompt, its events read as they come."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from benchflow_client.catalog.agent_programs import Program
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import AgentUsage
from benchflow_workers.agents.acp_errors import failure_of_words
from benchflow_workers.agents.acp_trajectory import Trajectory
from benchflow_workers.agents.base import INSTRUCTION_PATH, AgentContext, AgentRun, prompt_bytes
from benchflow_workers.agents.lines import JsonLines
from benchflow_workers.agents.program import FROM_PROMPT, start_command
from benchflow_workers.agents.toolbox import argv_of
from benchflow_workers.agents.turn import UNLIMITED_S, joined_runs
from benchflow_workers.output import tail_text, with_gap_marked
from benchflow_workers.sandbox.base import OUTPUT_LIMIT_BYTES, Sandbox, Upload
from benchflow_workers.sandbox.output import CappedOutput
from benchflow_workers.sandbox.process import Process

__all__ = ["CliAgent", "CommandLine"]

EXIT_S: Final = 10.0
"""How long a program that prints no more is waited for."""


class CommandLine(Protocol):
    """What is particular to one program."""

    @property
    def program(self) -> Program:
        """What is installed."""
        ...

    def arguments(self, context: AgentContext, *, is_first: bool) -> Sequence[str]:
        """Return the arguments for a prompt that comes on standard input."""
        ...

    def env(self, context: AgentContext) -> Mapping[str, str]:
        """Return variables on top of the agent's."""
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


@dataclass(frozen=True, slots=True)
class CliAgent:
    """Runs a command line.

    Attributes:
        line: What is particular to it.
        exit_s: Seconds that it has to end once it prints no more.
    """

    line: CommandLine
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
        """Return no files: its program is mounted."""
        del context
        return ()

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Run the program once for each prompt, until one does not end well or the time is over.

        Raises:
            SandboxError: The sandbox failed under it.
        """
        deadline = time.monotonic() + (context.timeout_s or UNLIMITED_S)
        runs: list[AgentRun] = []
        for prompt in context.prompts:
            if runs:
                await sandbox.put([Upload(INSTRUCTION_PATH, content=prompt_bytes(prompt), mode=0o644)])
            runs.append(await self._run_once(sandbox, context, prompt, deadline, is_first=not runs))
            if runs[-1].failures or runs[-1].timed_out:
                break
        return joined_runs(runs)

    async def _run_once(
        self, sandbox: Sandbox, context: AgentContext, prompt: str, deadline: float, *, is_first: bool
    ) -> AgentRun:
        turn = _Turn(self.line, deadline, context.spec.idle_timeout_s or None, self.exit_s)
        turn.trajectory.told(prompt)
        argv = [*argv_of(self.line.program), *self.line.arguments(context, is_first=is_first)]
        env = {**self.line.env(context), **context.env}
        async with sandbox.attach(start_command(context, FROM_PROMPT, argv, env=env)) as process:
            await turn.follow(process)
        return turn.record()


@dataclass
class _Turn:
    """One run while it lasts."""

    line: CommandLine
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

    async def follow(self, process: Process) -> None:
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
        lines = JsonLines(process, self.noise)
        while (event := await lines.next()) is not None:
            for update in self.line.updates(event):
                self.trajectory.update(update)
            self.said = self.line.error(event) or self.said
            self.has_ended = self.has_ended or self.line.is_end(event)
        with contextlib.suppress(TimeoutError):  # it is killed then: what it said counts
            async with asyncio.timeout(self.exit_s):
                self.exit_code = await process.wait()

    def record(self) -> AgentRun:
        """Return the record of the run."""
        failures = list(self._failures())
        usage = AgentUsage(n_prompts=1, n_tool_calls=self.trajectory.n_tool_calls)
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
