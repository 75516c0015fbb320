"""Ready-made agents by their command line: what they are started with, what their events become, how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.catalog.agent_table import CLAUDE_CODE, CODEX_CLI, MINI, OPENHANDS, PI
from benchflow_client.errors import AgentError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.agent_definition import AgentDefinition, Npm
from benchflow_client.schema.task import Task, TaskConfig
from benchflow_workers.agents.base import AgentContext, AgentRun
from benchflow_workers.agents.cli_claude import claude_stream
from benchflow_workers.agents.cli_codex import codex_events
from benchflow_workers.agents.cli_openhands import openhands_events
from benchflow_workers.agents.cli_pi import pi_events
from benchflow_workers.agents.cli_text import plain_text
from benchflow_workers.agents.toolbox import TOOLBOX_DIR, Toolbox, toolbox_argv
from benchflow_workers.sandbox.base import Command, SandboxSpec
from benchflow_workers.testing import ScriptedProcess, ScriptedSandbox, ScriptedSandboxes, completed

CODEX_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "thread.started", "thread_id": "t"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "i0", "type": "reasoning", "text": "think"}},
    {
        "type": "item.started",
        "item": {"id": "i1", "type": "command_execution", "command": "ls", "status": "in_progress"},
    },
    {
        "type": "item.completed",
        "item": {
            "id": "i1",
            "type": "command_execution",
            "command": "ls",
            "aggregated_output": "a\n",
            "exit_code": 2,
        },
    },
    {"type": "item.completed", "item": {"id": "i2", "type": "agent_message", "text": "done"}},
    {"type": "turn.completed", "usage": {"input_tokens": 20, "cached_input_tokens": 9, "output_tokens": 3}},
)
CLAUDE_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "system", "subtype": "init"},
    {"type": "assistant", "message": {"content": [{"type": "thinking", "thinking": "think"}]}},
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "u1", "name": "Bash", "input": {"command": "ls"}}]}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "u1", "content": "a", "is_error": True}]}},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "done"}]}},
    {"type": "result", "subtype": "success", "is_error": False, "result": "done",
     "usage": {"input_tokens": 11, "cache_read_input_tokens": 9, "cache_creation_input_tokens": 0, "output_tokens": 3}},
)  # fmt: skip
PI_EVENTS: tuple[dict[str, Any], ...] = (
    {"type": "agent_start"},
    {"type": "message_end", "message": {"role": "user", "content": "Work."}},
    {"type": "message_end", "message": {"role": "assistant", "content": [{"type": "thinking", "thinking": "think"}]}},
    {"type": "tool_execution_start", "toolCallId": "c1", "toolName": "bash", "args": {"command": "ls"}},
    {"type": "tool_execution_end", "toolCallId": "c1", "result": "a", "isError": True},
    {"type": "message_end", "message": {"role": "assistant", "content": [{"type": "text", "text": "done"}]}},
    {"type": "agent_end"},
)  # fmt: skip
OPENHANDS_EVENTS: tuple[dict[str, Any], ...] = (
    {"kind": "MessageEvent", "source": "user", "llm_message": {"content": [{"type": "text", "text": "Work."}]}},
    {"kind": "ActionEvent", "tool_call_id": "c1", "tool_name": "terminal", "thought": [{"text": "think"}], "action": {"command": "ls"}},
    {"kind": "AgentErrorEvent", "tool_call_id": "c1", "error": "a"},
    {"kind": "MessageEvent", "source": "agent", "llm_message": {"content": [{"type": "text", "text": "done"}]}},
)  # fmt: skip
AGENTS = {
    "codex": (codex_events, CODEX_EVENTS, CODEX_CLI),
    "claude": (claude_stream, CLAUDE_EVENTS, CLAUDE_CODE),
    "openhands": (openhands_events, OPENHANDS_EVENTS, OPENHANDS),
    "pi": (pi_events, PI_EVENTS, PI),
}


def context(folder: Path, name: str, **changes: Any) -> AgentContext:
    task = Task(
        name="fetch-note", form="task.toml", instruction="Work.", config=TaskConfig(), verifier_dir="tests",
        oracle_dir="solution", has_dockerfile=True, has_compose=False,
    )  # fmt: skip
    env = {"BENCHFLOW_PROVIDER_MODEL": "large-1", "BENCHFLOW_PROVIDER_BASE_URL": "http://127.0.0.1:1/v1"}
    made = AgentContext(
        task=task, task_dir=folder, spec=AgentSpec(name="ready"), script=None, env=env, oracle_env={},
        timeout_s=30, user="agent", prompts=("Work.",), definition=AGENTS[name][2],
    )  # fmt: skip
    return replace(made, **changes)


def printed(*events: dict[str, Any]) -> bytes:
    return b"a banner\n" + b"".join(json.dumps(event).encode() + b"\n" for event in events)


async def run(
    name: str,
    folder: Path,
    *events: dict[str, Any],
    exit_code: int = 0,
    prompts: tuple[str, ...] = ("Work.",),
) -> tuple[AgentRun, ScriptedSandboxes]:
    sandboxes = ScriptedSandboxes()
    sandboxes.on("benchflow-agent", completed(exit_code, printed(*events), b"complaint\n"))
    spec = SandboxSpec(name="s", labels={}, image="i", build_context=None, build_digest="")
    sandbox = await sandboxes.open(spec)
    return await AGENTS[name][0]().run(sandbox, context(folder, name, prompts=prompts)), sandboxes


@pytest.mark.parametrize("name", AGENTS)
async def test_events_of_every_agent_become_the_same_trajectory(name: str, tmp_path: Path) -> None:
    _, events, _ = AGENTS[name]

    done, _ = await run(name, tmp_path, *events)

    kinds = [event["type"] for event in done.events]
    assert kinds == ["user_message", "agent_thought", "tool_call", "agent_message"]
    assert done.events[2]["status"] == "failed"
    assert done.events[2]["raw_output"] in {"a", "a\n", '"a"'}
    assert (done.failures, done.is_broken, done.exit_code, done.usage.n_tool_calls) == ([], False, 0, 1)
    assert b"a banner" in done.log
    assert b"complaint" in done.log


@pytest.mark.parametrize(
    ("name", "tokens"), [("codex", (20, 3, 23)), ("claude", (20, 3, 23)), ("pi", (None, None, None))]
)
async def test_what_an_agent_says_it_used_is_kept(
    name: str, tokens: tuple[int | None, ...], tmp_path: Path
) -> None:
    done, _ = await run(name, tmp_path, *AGENTS[name][1])

    usage = done.usage
    assert (usage.n_input_tokens, usage.n_output_tokens, usage.total_tokens) == tokens
    assert usage.usage_source == ("unavailable" if tokens[0] is None else "agent_native_cli")


@pytest.mark.parametrize(
    "told", [{"input_tokens": -1, "output_tokens": 3}, {"input_tokens": "9"}, {}, None, 7]
)
async def test_numbers_that_cannot_be_true_are_not_known(told: Any, tmp_path: Path) -> None:
    events = (*CODEX_EVENTS[:-1], {"type": "turn.completed", "usage": told})

    done, _ = await run("codex", tmp_path, *events)

    assert (done.failures, done.usage.total_tokens) == ([], None)


@pytest.mark.parametrize("name", [name for name, (_, _, made) in AGENTS.items() if made.later is not None])
async def test_later_prompts_go_on_with_the_session(name: str, tmp_path: Path) -> None:
    _, events, _ = AGENTS[name]

    done, sandboxes = await run(name, tmp_path, *events, prompts=("One.", "Two."))

    first, second = (list(command.argv) for command in sandboxes.commands)
    more = {"codex": "--last", "claude": "--continue", "pi": "--continue"}[name]
    assert (more in first, more in second) == (False, True)
    assert sandboxes.opened[0].files["/instruction.md"] == b"Two."
    assert done.usage.n_prompts == 2


class Lingering(ScriptedProcess):
    """A program that prints no more and does not end."""

    async def wait(self) -> int:
        await asyncio.Event().wait()
        return 0


class LingeringSandbox(ScriptedSandbox):
    """A sandbox of such programs."""

    @asynccontextmanager
    async def attach(self, command: Command) -> AsyncGenerator[ScriptedProcess, None]:
        yield Lingering(await self.exec(command))


@pytest.mark.parametrize("name", AGENTS)
async def test_a_program_that_does_not_end_after_its_last_word_has_worked(name: str, tmp_path: Path) -> None:
    make, events, _ = AGENTS[name]
    sandboxes = ScriptedSandboxes()
    sandboxes.on("benchflow-agent", completed(0, printed(*events)))
    spec = SandboxSpec(name="s", labels={}, image="i", build_context=None, build_digest="")

    done = await replace(make(), exit_s=0.05).run(LingeringSandbox(sandboxes, spec), context(tmp_path, name))

    assert (done.failures, done.is_broken, done.exit_code) == ([], False, None)


@pytest.mark.parametrize("name", AGENTS)
async def test_no_secret_stands_in_an_argument(name: str, tmp_path: Path) -> None:
    make, events, _ = AGENTS[name]
    sandboxes = ScriptedSandboxes()
    sandboxes.on("benchflow-agent", completed(0, printed(*events)))
    spec = SandboxSpec(name="s", labels={}, image="i", build_context=None, build_digest="")
    about = context(tmp_path, name)
    about = replace(
        about, env={**about.env, "BENCHFLOW_PROVIDER_API_KEY": "bf-token", "OPENAI_API_KEY": "bf-token"}
    )

    await make().run(await sandboxes.open(spec), about)

    (command,) = sandboxes.commands
    assert "bf-token" not in " ".join(command.argv)
    assert command.env["BENCHFLOW_PROVIDER_API_KEY"] == "bf-token"
    assert command.user == "agent"


@pytest.mark.parametrize(
    ("name", "events", "code"),
    [
        (
            "codex",
            ({"type": "turn.failed", "error": {"message": "429 Too Many Requests"}},),
            "agent.rate_limited",
        ),
        (
            "claude",
            ({"type": "result", "is_error": True, "result": "API Error: 401 unauthorized"},),
            "agent.provider_auth",
        ),
        ("claude", ({"type": "result", "is_error": True, "subtype": "error_max_turns"},), "agent.protocol"),
        ("codex", CODEX_EVENTS[:-1], "agent.disconnected"),
        ("claude", CLAUDE_EVENTS[:-1], "agent.disconnected"),
        ("codex", (CODEX_EVENTS[-1],), "agent.silent"),
        ("claude", (CLAUDE_EVENTS[-1],), "agent.silent"),
        (
            "pi",
            ({"type": "message_end", "message": {"stopReason": "error", "errorMessage": "429"}},),
            "agent.rate_limited",
        ),
        ("pi", PI_EVENTS[:-1], "agent.disconnected"),
        (
            "openhands",
            ({"kind": "ConversationErrorEvent", "code": "LLMRateLimitError", "detail": "429"},),
            "agent.rate_limited",
        ),
        ("openhands", OPENHANDS_EVENTS[:-1], "agent.disconnected"),
    ],
)
async def test_a_turn_that_did_not_really_happen_is_not_scored(
    name: str, events: tuple[dict[str, Any], ...], code: str, tmp_path: Path
) -> None:
    done, _ = await run(name, tmp_path, *events, exit_code=1, prompts=("One.", "Two."))

    assert ([failure.code for failure in done.failures], done.is_broken) == ([code], True)
    assert done.usage.n_prompts == 1


@pytest.mark.parametrize("code", [0, 3])
async def test_of_a_program_that_prints_text_the_exit_code_tells_the_end(code: int, tmp_path: Path) -> None:
    sandboxes = ScriptedSandboxes()
    sandboxes.on("sh", completed(code, b"hello\nworld\n", b""))
    sandbox = await sandboxes.open(
        SandboxSpec(name="s", labels={}, image="i", build_context=None, build_digest="")
    )

    done = await plain_text().run(sandbox, replace(context(tmp_path, "codex"), definition=MINI))

    assert [event["type"] for event in done.events] == ["user_message", "agent_message"]
    assert done.events[1]["text"] == "hello\nworld\n"
    assert (done.exit_code, done.failures, done.log) == (code, [], b"hello\nworld\n")


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the program that is found as npm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "npm"


def write(program: Path, script: str) -> None:
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def inside(definition: AgentDefinition) -> str:
    """Return the program below the folder it is seen in."""
    return toolbox_argv(definition)[0].removeprefix(f"{TOOLBOX_DIR}/").partition("/")[2]


def test_agents_of_one_name_and_version_stand_in_folders_of_their_own(npm: Path, tmp_path: Path) -> None:
    inner = inside(CODEX_CLI)
    write(npm, f'mkdir -p "$(dirname {inner})"; : >{inner}')
    packages = ("of-somebody@1", "@openai/codex@${version}")
    install = (
        Npm(packages=packages, argv=CODEX_CLI.install.argv) if isinstance(CODEX_CLI.install, Npm) else None
    )
    other = CODEX_CLI.model_copy(update={"install": install})
    toolbox = Toolbox(tmp_path / "toolbox")

    mounts = [*toolbox.mounts(CODEX_CLI), *toolbox.mounts(other)]

    assert len({mount.source for mount in mounts}) == len({mount.target for mount in mounts}) == 2
    assert [toolbox_argv(one)[0] for one in (CODEX_CLI, other)] == [f"{m.target}/{inner}" for m in mounts]
    assert all(len(mount.source.name.rpartition("-")[2]) == 32 for mount in mounts)


def test_a_program_is_installed_once(npm: Path, tmp_path: Path) -> None:
    inner = inside(CODEX_CLI)
    write(
        npm,
        f'echo run >>{tmp_path}/runs; echo "$*" >{tmp_path}/asked; mkdir -p "$(dirname {inner})"; : >{inner}',
    )
    toolbox = Toolbox(tmp_path / "toolbox")

    places = [toolbox.prepared(CODEX_CLI) for _ in range(2)]

    assert places[0] == places[1]
    assert (places[0] / inner).is_file()
    assert (tmp_path / "runs").read_text() == "run\n"
    assert "--ignore-scripts" in (tmp_path / "asked").read_text()
    assert f" -- @openai/codex@{CODEX_CLI.version}\n" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("script", "reason"),
    [("echo no such package >&2; exit 1", "no such package"), ("exit 0", "brings no"), (None, "no `npm`")],
)
def test_what_cannot_be_installed_is_told_and_leaves_nothing(
    npm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, reason: str
) -> None:
    if script is None:
        monkeypatch.setenv("PATH", str(npm.parent))
    else:
        write(npm, script)

    with pytest.raises(AgentError, match=reason) as caught:
        Toolbox(tmp_path / "toolbox").prepared(CLAUDE_CODE)

    assert caught.value.code == "agent.install_failed"
    assert [path.suffix for path in (tmp_path / "toolbox").iterdir()] == [".lock"]
