"""The conformance tasks about preparation and steps, run whole in real sandboxes."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from benchflow_workers.sandbox.base import SandboxProvider
from tests.rollouts import Ran, Rollouts

TASKS = Path(__file__).parents[2] / "assets" / "tasks"


Run = Callable[..., Awaitable[Ran]]


@pytest.fixture
def run(provider: SandboxProvider, kind: str, tmp_path: Path) -> Run:
    """Run a task with an agent: `oracle`, or a program given as text."""
    return Rollouts(provider, kind, tmp_path).run


@pytest.mark.parametrize("task", ["healthcheck", "setup-commands", "workdir"])
async def test_task_finds_its_sandbox_as_it_declares_it(run: Run, task: str) -> None:
    ran = await run(TASKS / task)

    assert ran.result.reward == 1.0, ran.said()


async def test_agent_runs_as_the_tasks_user_behind_its_setup_commands(run: Run) -> None:
    ran = await run(TASKS / "setup-commands", "#!/bin/sh\nid -un > user; cat user\n")

    assert ran.rollout.agent_log == b"worker\n"
    assert ran.result.reward == 1.0, ran.said()


async def test_what_setup_commands_leave_is_given_on_and_kept_unless_it_is_a_secret(run: Run) -> None:
    ran = await run(TASKS / "setup-capture")

    kept = ran.folder / "setup"
    assert ran.result.reward == 1.0, ran.said()
    assert {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()} == {"1/deep/note"}
    assert (kept / "1/deep/note").read_text() == "first\n"
    assert (ran.folder / "agent/oracle.txt").read_text() == "the door opens with [redacted]\n"


async def test_services_of_a_manifest_answer_before_the_agent_starts_and_outlive_it(run: Run) -> None:
    """The agent runs as a user of its own, all of whose processes are killed before the tests."""
    program = (
        "#!/bin/bash\nexec 3<>/dev/tcp/localhost/9001; printf 'GET /note HTTP/1.0\\r\\n\\r\\n' >&3\n"
        "tail -n 1 <&3 > answer.txt; echo x > /logs/services/notes.log\n"
    )

    ran = await run(TASKS / "environment-manifest", program)

    assert ran.result.reward == 1.0, ran.said()
    assert ran.result.warnings == ("Service 'calendar' was not started: the image has no program of it.",)
    assert (ran.folder / "services/notes.log").read_text() == "notes of environment-manifest listen\n"
    assert (ran.folder / "artifacts/state/srv/notes/asked.db").read_text() == "asked\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo no disk >&2; exit 3", r"lost its service 'notes': exit code 3\.\nnotes\.log:\n  \| no disk"),
        ("echo slow; exec sleep 600", r"was not ready after 2 s: http://localhost:9001/health did not answer\.\nnotes\.log:\n  \| slow"),
        ("no-such-program", "has no service whose program is in the image"),
    ],
)  # fmt: skip
async def test_services_that_do_not_come_up_end_the_trial_with_their_words(
    run: Run, tmp_path: Path, command: str, reason: str
) -> None:
    task = tmp_path / "environment-manifest"
    await asyncio.to_thread(shutil.copytree, TASKS / "environment-manifest", task)
    text = (task / "environment.toml").read_text().replace("exec perl /srv/notes.pl 9001 /srv/notes", command)
    (task / "environment.toml").write_text(text.replace("timeout_sec = 60", "timeout = 2"))

    ran = await run(task)

    failure = ran.rollout.failures[0]
    assert failure.code == "sandbox.start_failed"
    said = f"{failure.message}\n{failure.detail}"
    assert re.search(reason, said), said


async def test_artifacts_come_without_what_is_excluded_and_no_link_is_followed(run: Run) -> None:
    ran = await run(TASKS / "artifacts")

    kept = ran.folder / "artifacts"
    assert {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()} == {
        "app/report.txt", "manifest.json", "own.txt", "pages/deep/page.html", "pages/index.html",
    }  # fmt: skip
    assert [
        (line["source"], line["status"]) for line in json.loads((kept / "manifest.json").read_text())
    ] == [
        ("/logs/artifacts", "ok"),
        ("/app/report.txt", "ok"),
        ("/app/site", "ok"),
        ("/app/never-written", "failed"),
        ("/app/link-to-a-secret", "failed"),
    ]


async def test_agent_reads_of_the_tasks_tool_servers(run: Run) -> None:
    ran = await run(TASKS / "mcp-servers", '#!/bin/sh\ncat "$BENCHFLOW_MCP_CONFIG" > seen.json\n')

    assert ran.result.reward == 1.0, ran.said()


async def test_steps_share_a_sandbox_and_have_their_own_tests_files_and_folder(run: Run) -> None:
    ran = await run(TASKS / "steps-mean")

    assert ran.result.rewards == {"reward": 0.75, "speed": 0.25}, ran.said()
    assert [(step.name, step.reward) for step in ran.result.steps] == [("build", 1.0), ("ship it", 0.5)]
    assert all(step.timings.verifier is not None for step in ran.result.steps)
    assert b"left over" not in ran.rollout.agent_log
    steps = ran.folder / "steps"
    assert (steps / "build/agent/instruction.md").read_text() == 'Write "built" into /app/state.\n'
    assert (steps / "build/verifier/test-stdout.txt").read_text() == "task yes\n"
    assert (steps / "ship it/verifier/test-stdout.txt").read_text() == "step yes\nbuilt\n"
    assert (steps / "ship it/artifacts/app/shipped").read_text() == "built\n"


async def test_agent_of_a_step_owns_the_workspace_and_sees_no_earlier_tests(run: Run) -> None:
    """The tests of the first step ran as root and took the workspace; its agent gets it back."""
    program = (
        "#!/bin/sh\nid -un; ls -A /logs/agent; ls -d /tests /solution 2>/dev/null; ls /logs/verifier\n"
        "if [ -f state ]; then mv state shipped && cat set-up; else echo built > state; fi\n"
    )

    ran = await run(TASKS / "steps-mean", program)

    assert ran.rollout.agent_log == b"== step build ==\nagent\n\n== step ship it ==\nagent\nagent\n\n"
    assert ran.result.rewards == {"reward": 0.75, "speed": 0.25}, ran.said()


async def test_last_step_decides_where_the_task_says_so(run: Run) -> None:
    ran = await run(TASKS / "steps-final")

    assert ran.result.rewards == {"reward": 1.0}, ran.said()
    assert [step.reward for step in ran.result.steps] == [0.25, 1.0]


async def test_missed_least_reward_ends_the_trial_and_what_was_not_done_counts_zero(run: Run) -> None:
    ran = await run(TASKS / "steps-min-reward")

    assert [(step.name, step.rewards) for step in ran.result.steps] == [
        ("one", {"reward": 1.0, "style": 0.6, "steps": 1}),
        ("two", {"reward": 1.0, "style": 0.6, "steps": 2}),
    ], ran.said()
    assert ran.result.rewards == pytest.approx({"reward": 2 / 3, "style": 0.4, "steps": 1.0})
    assert "Stopped after step 'two', 2 of 3: its reward is below min_reward." in ran.result.warnings
