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
from benchflow_workers.agents.base import Agent, AgentContext, AgentRun
from benchflow_workers.agents.ready import Installs
from benchflow_workers.output import tail_text
from benchflow_workers.sandbox.base import ROOT, Command, Sandbox, Upload

__all__ = ["LoginAgent", "LoginFiles"]

STAGED_DIR: Final = "/opt/benchflow/login"
"""Where files stand for a moment, root's alone."""

_PRIVATE: Final = 0o600
_TIMEOUT_S: Final = 60.0
_SHORTEST_SECRET: Final = 16
"""Shorter texts of a login are names of plans and kinds, not tokens."""

_HOME: Final = """
user=$1; shift
home=$(awk -F: -v user="$user" '$1 == user || $3 == user {print $6; exit}' /etc/passwd)
group=$(awk -F: -v user="$user" '$1 == user || $3 == user {print $4; exit}' /etc/passwd)
[ -n "$home" ] || exit 3
"""
_PLACE: Final = f"""set -eu{_HOME}
for path in "$@"; do
  folder="$home/$(dirname "$path")"
  if [ ! -d "$folder" ]; then mkdir -p "$folder" && chown "$user:$group" "$folder" && chmod 700 "$folder"; fi
  install -m 600 -o "$user" -g "$group" "{STAGED_DIR}/$path" "$home/$path"
done
rm -rf {STAGED_DIR}
"""
_REMOVE: Final = f"""{_HOME}
for path in "$@"; do rm -f "$home/$path"; done
"""


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
        await self._place(sandbox, context)
        try:
            return await self.inner.run(sandbox, self._context(context))
        finally:
            await sandbox.exec(self._command(_REMOVE, context))

    async def _place(self, sandbox: Sandbox, context: AgentContext) -> None:
        uploads = [Upload(STAGED_DIR, mode=0o700)]
        uploads += [
            Upload(f"{STAGED_DIR}/{path}", content=content, mode=_PRIVATE)
            for path, content in self.login.files.items()
        ]
        await sandbox.put(uploads)
        done = await sandbox.exec(self._command(_PLACE, context))
        if done.exit_code != 0:
            raise AgentError(
                "agent.not_runnable",
                f"The login {self.login.name} cannot be placed in the sandbox of task {context.task.name!r}: "
                f"{tail_text(done.stderr).strip() or 'its user has no home folder'}.",
                hint="Give the worker a key of the provider instead.",
            )

    def _command(self, script: str, context: AgentContext) -> Command:
        argv = ("sh", "-c", script, "benchflow-login", context.user, *self.login.files)
        return Command(argv, timeout_s=_TIMEOUT_S, user=ROOT)

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
