"""An agent on an account of the worker's user: its login is copied into the sandbox and taken out again.

It talks to its provider itself, so no gateway counts its calls or keeps the login from it: whoever
lets a worker do that trusts agents and tasks with the account.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from benchflow_client.errors import AgentError
from benchflow_client.schema.failure import Failure
from benchflow_workers.agents.base import Agent, AgentContext, AgentRun
from benchflow_workers.agents.program import FIND_HOME
from benchflow_workers.agents.ready import Installs
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import Command, Sandbox, Upload

__all__ = ["LoginAgent", "LoginFiles"]

_TIMEOUT_S: Final = 60.0
_SHORTEST_SECRET: Final = 16
"""Shorter texts of a login are names of plans and kinds, not tokens."""

_SIGNS: Final = frozenset({"agent_message", "agent_thought", "tool_call"})
"""Events that show that a model answered."""

_PLACE: Final = f"""set -e
user=$1 path=$2
{FIND_HOME}
[ -n "${{HOME:-}}" ] || exit 3
umask 077
mkdir -p "$(dirname "$HOME/$path")"
rm -f "$HOME/$path"
cat >"$HOME/$path"
"""
_REMOVE: Final = f"""
user=$1; shift
{FIND_HOME}
for path in "$@"; do rm -f "$HOME/$path"; done
"""
"""Both are the agent's user's: its home may lead wherever it likes, and root would follow."""


@dataclass(frozen=True, slots=True)
class LoginFiles:
    """A login, read on the worker.

    Attributes:
        name: Where it is from, for people.
        files: Path below the home folder -> content.
        env: Variables that the agent reads it from.
    """

    name: str
    files: Mapping[str, bytes] = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def secrets(self) -> frozenset[str]:
        """Return the values of it that must not be written anywhere."""
        texts = {text for content in self.files.values() for text in _texts(content)}
        return frozenset(text for text in (*texts, *self.env.values()) if len(text) >= _SHORTEST_SECRET)


@dataclass(frozen=True, slots=True)
class LoginAgent:
    """Another agent, on an account.

    Attributes:
        inner: Who works.
        login: The login.
        model: What it is asked to work with.
        provider: Whose.
    """

    inner: Agent
    login: LoginFiles
    model: str
    provider: str

    @property
    def is_control(self) -> bool:
        """Whether the inner agent is one."""
        return self.inner.is_control

    @property
    def runs_as_user(self) -> bool:
        """Whether the inner agent does."""
        return self.inner.runs_as_user

    def uploads(self, context: AgentContext) -> Sequence[Upload]:
        """Return the inner agent's files; the login is placed for its turn only.

        Raises:
            AgentError: `agent.not_runnable`: the task's network keeps it from its provider.
        """
        _check_reach(context)
        return self.inner.uploads(context)

    async def install(self, sandbox: Sandbox, context: AgentContext) -> None:
        """Install the inner agent, where it is installed in each sandbox.

        Raises:
            AgentError: `agent.install_failed`.
            SandboxError: The sandbox failed under it.
        """
        if isinstance(self.inner, Installs):
            await self.inner.install(sandbox, context)

    async def run(self, sandbox: Sandbox, context: AgentContext) -> AgentRun:
        """Let the inner agent take its turn with the login, which is gone from its home afterwards.

        Raises:
            AgentError: `agent.not_runnable`: the login cannot be placed.
            SandboxError: The sandbox failed under it.
        """
        try:
            await self._place(sandbox, context)
            return _heard(await self.inner.run(sandbox, self._context(context)), self.provider)
        finally:
            await sandbox.exec(self._command(context, _REMOVE, *self.login.files))

    async def _place(self, sandbox: Sandbox, context: AgentContext) -> None:
        for path, content in self.login.files.items():
            done = await sandbox.exec(self._command(context, _PLACE, path, content=content))
            if done.exit_code != 0:
                raise AgentError(
                    "agent.not_runnable",
                    f"The login {self.login.name} cannot be placed in the sandbox of task {context.task.name!r}: "
                    f"{tail_text(done.stderr).strip() or 'its user has no home folder'}.",
                    hint="Give the worker a key of the provider instead.",
                )

    def _command(
        self, context: AgentContext, script: str, *paths: str, content: bytes | None = None
    ) -> Command:
        """Return a script that finds the home folder as the agent itself will."""
        home = {name: value for name, value in context.env.items() if name == "HOME"}
        argv = ("sh", "-c", script, "benchflow-login", "" if home else context.user, *paths)
        return Command(argv, timeout_s=_TIMEOUT_S, user=context.user, env=home, stdin=content)

    def _context(self, context: AgentContext) -> AgentContext:
        """Return the context with the model, and with the launch that a login needs."""
        env = {
            "BENCHFLOW_PROVIDER_MODEL": self.model,
            "BENCHFLOW_PROVIDER_NAME": self.provider,
            **self.login.env,
            **context.env,
        }
        definition = context.definition
        if definition is None or definition.login is None or definition.login.launch is None:
            return replace(context, env=env)
        own = definition.model_copy(update={"launch": definition.login.launch})
        return replace(context, env=env, definition=own)


def _heard(run: AgentRun, provider: str) -> AgentRun:
    """Return the record of a turn; nothing shows that a model answered an agent that did nothing to the end of its time."""
    if not run.timed_out or any(event.get("type") in _SIGNS for event in run.events):
        return run
    failure = Failure(
        code="agent.silent",
        message=f"The agent did nothing in all its time, and nothing shows that {provider or 'its provider'} answered it.",
        hint="See whether the login is still good, and whether the sandbox reaches the provider.",
    )
    return replace(run, failures=(failure, *run.failures), is_broken=True)


def _check_reach(context: AgentContext) -> None:
    """Refuse an agent whose network does not let it reach its own provider."""
    definition, network = context.definition, context.network
    if definition is None or definition.login is None or network.mode in {"public", "denylist"}:
        return
    hosts = definition.login.hosts
    if network.mode == "allowlist" and set(hosts) <= set(network.allowed):
        return
    raise AgentError(
        "agent.not_runnable",
        f"Agent {definition.name!r} on a login talks to {', '.join(hosts)} itself, which the network of task "
        f"{context.task.name!r} does not allow.",
        hint="Give the worker a key of the provider: then the agent needs no network of its own.",
    )


def _texts(content: bytes) -> list[str]:
    """Return every text of a JSON file, or the whole of another one."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return [content.decode("utf-8", "replace").strip()]
    found: list[str] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)
