"""Agents that are Python code on the worker: entry points of the group `benchflow.agent_factories`.

Contract with the code: the entry point is called without arguments, once for each turn, and
returns an object with `connect(sandbox, role)`. That returns a session with `prompt(text)`, called
for each prompt; what it returns, if it is a text, is what the agent said. A session may have
`steps`, a list of events as objects, and `cancel()`, called when the time is over. Each of these
may be a coroutine; what is none runs in a thread. The sandbox is a `FactorySandbox`.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from benchflow_client.catalog.agents import FACTORY_PREFIX
from benchflow_client.errors import AgentError, BenchflowError
from benchflow_client.schema.failure import Failure
from benchflow_client.schema.trial import AgentUsage
from benchflow_client.store.documents import plain_json
from benchflow_workers.agents.acp_trajectory import Trajectory
from benchflow_workers.agents.base import AgentContext, AgentRun, followed
from benchflow_workers.agents.cli_events import chunk
from benchflow_workers.agents.turn import UNLIMITED_S
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, Upload

__all__ = ["GROUP", "FactoryAgent", "FactorySandbox"]

GROUP: Final = "benchflow.agent_factories"
"""Each entry point is a factory."""

CANCEL_S: Final = 5.0
"""Seconds a session has to take note that its time is over."""

DOWNLOAD_LIMIT_BYTES: Final = 256 << 20
DOWNLOAD_S: Final = 600.0
MOST_STEPS: Final = 100_000


@dataclass(frozen=True, slots=True)
class FactorySandbox:
    """The sandbox as code on the worker sees it; all it does is done as the agent's user.

    Attributes:
        agent_env: The agent's variables: those of the job, and where its model is.
        agent_cwd: The workspace.
    """

    agent_env: Mapping[str, str]
    agent_cwd: str
    _sandbox: Sandbox = field(repr=False)
    _user: str

    async def exec(
        self, command: str | Sequence[str], *, timeout_s: float = 600.0, stdin: bytes | None = None
    ) -> Completed:
        """Run a command in the workspace: a text by `sh`, a list as it is.

        Raises:
            SandboxError: The sandbox failed under it.
        """
        argv = ("sh", "-c", command) if isinstance(command, str) else tuple(command)
        return await self._sandbox.exec(
            Command(argv, timeout_s=timeout_s, user=self._user, env=self.agent_env, stdin=stdin)
        )

    async def upload(self, path: str, content: bytes) -> None:
        """Write a file, as the agent's user.

        Args:
            path: Relative to the workspace, or absolute.
            content: All of it.

        Raises:
            AgentError: It cannot be written.
            SandboxError: The sandbox failed under it.
        """
        script = 'mkdir -p "$(dirname "$1")" && cat >"$1"'
        done = await self.exec(("sh", "-c", script, "upload", path), stdin=content)
        if done.exit_code != 0:
            raise AgentError("agent.protocol", f"{path!r} cannot be written: {done.stderr[:300]!r}.")

    async def download(self, path: str) -> bytes:
        """Return a file the agent's user can read.

        Args:
            path: Relative to the workspace, or absolute.

        Raises:
            AgentError: There is no such file, or it cannot be read or is too large.
            SandboxError: The sandbox failed under it.
        """
        script = '[ -f "$1" ] && exec cat "$1"'
        argv = ("sh", "-c", script, "download", path)
        limit = DOWNLOAD_LIMIT_BYTES
        done = await self._sandbox.exec(
            Command(argv, timeout_s=DOWNLOAD_S, user=self._user, env=self.agent_env, output_limit_bytes=limit)
        )
        if done.exit_code != 0 or done.timed_out or done.stdout_bytes > limit:
            raise AgentError("agent.protocol", f"There is no file {path!r} that the agent can read.")
        return done.stdout


class FactoryAgent:
    """Lets installed code take the turn."""

    @property
    def is_control(self) -> bool:
        """It is an agent under test."""
        return False

    @property
    def runs_as_user(self) -> bool:
        """What it does in the sandbox it does as the unprivileged user."""
        return True

    @property
    def is_on_worker(self) -> bool:
        """Its model is asked from the worker's own network."""
        return True

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return no files.

        Raises:
            AgentError: `agent.not_runnable` when none of that name is installed here.
        """
        _point(context.spec.name)
        return ()

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Give the session every prompt, until one fails or the time is over.

        Raises:
            AgentError: `agent.not_runnable`: the factory cannot be loaded.
            SandboxError: The sandbox failed under it.
        """
        seen = FactorySandbox(context.env, sandbox.workdir, sandbox, context.user)
        turn = _Turn(context, time.monotonic() + (context.timeout_s or UNLIMITED_S))
        async with followed(context, turn.trajectory):
            await turn.take(_point(context.spec.name), seen)
        return turn.run()


@dataclass
class _Turn:
    """One turn while it is taken."""

    context: AgentContext
    deadline: float
    trajectory: Trajectory = field(default_factory=Trajectory)
    n_prompts: int = 0
    timed_out: bool = False
    failure: Failure | None = None
    steps: list[Mapping[str, Any]] = field(default_factory=list)

    async def take(self, point: EntryPoint, sandbox: FactorySandbox) -> None:
        session: Any = None
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + self._left_s()):
                made = await asyncio.to_thread(lambda: point.load()())
                session = await _called(made.connect, sandbox, None)
                for prompt in self.context.prompts:
                    self.n_prompts += 1
                    self.trajectory.told(prompt)
                    said = await _called(session.prompt, prompt)
                    if isinstance(said, str) and said:
                        self.trajectory.update(chunk(said))
            self._read_steps(session)
        except TimeoutError:
            self.timed_out = time.monotonic() >= self.deadline
            if not self.timed_out:
                self.failure = Failure(code="agent.protocol", message="The agent's code raised TimeoutError.")
            await _cancel(session)
        except BenchflowError:
            raise
        except (Exception, SystemExit) as error:  # ruff: ignore[blind-except]  somebody else's code: whatever it raises ends its turn
            text = f"The agent's code raised {type(error).__name__}: {error}"
            self.failure = Failure(code="agent.protocol", message=text[:2000])
        if not self.steps:
            with contextlib.suppress(Exception):  # of a turn that was cut off: what can be read
                self._read_steps(session)

    def _left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _read_steps(self, session: Any) -> None:
        steps = getattr(session, "steps", None)
        if isinstance(steps, Sequence) and not isinstance(steps, str | bytes):
            self.steps = [plain_json(step) for step in steps[:MOST_STEPS] if isinstance(step, Mapping)]

    def run(self) -> AgentRun:
        """Return the record of the turn."""
        calls = sum(step.get("type") == "tool_call" for step in self.steps)
        failures = [] if self.failure is None else [self.failure]
        return AgentRun(
            exit_code=None,
            timed_out=self.timed_out,
            events=[*self.trajectory.events(), *self.steps],
            usage=AgentUsage(n_prompts=self.n_prompts, n_tool_calls=calls),
            failures=failures,
            is_broken=bool(failures),
        )


def _point(name: str) -> EntryPoint:
    """Return the factory of a name."""
    found = {point.name: point for point in entry_points(group=GROUP)}
    own = name.removeprefix(FACTORY_PREFIX)
    if own in found:
        return found[own]
    near = difflib.get_close_matches(own, found, n=1)
    known = f"there are {', '.join(sorted(found))}" if found else "none is installed"
    raise AgentError(
        "agent.not_runnable",
        f"No agent factory {own!r} is installed on this worker: {known}.",
        hint=(f"Did you mean {near[0]!r}? " if near else "")
        + f"Install a package with an entry point {own!r} in the group {GROUP} where the workers run.",
    )


async def _called(function: Any, *arguments: Any) -> Any:
    """Return what a function of somebody else's returns, be it a coroutine's or not."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments)
    value = await asyncio.to_thread(function, *arguments)
    return await value if inspect.isawaitable(value) else value


async def _cancel(session: Any) -> None:
    """Tell a session that its time is over, and give it a moment."""
    cancel = getattr(session, "cancel", None)
    if cancel is None:
        return
    with contextlib.suppress(Exception, SystemExit):  # how it takes it tells nothing
        async with asyncio.timeout(CANCEL_S):
            await _called(cancel)
