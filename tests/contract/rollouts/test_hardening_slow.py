"""The whole verify phase in a sandbox where everything begins late, as on a loaded engine: no step is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Command, Completed, Sandbox, Upload
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.harden_baseline import take_baseline
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
MakeTask = Callable[..., Task]

pytestmark = [pytest.mark.root, pytest.mark.parametrize("kind", ["local"], indirect=True)]

LATENCY_S = 1.0
"""A twelfth of what commands took where trials were lost; the limits below are a twelfth of the usual ones too."""

TESTS_S, SETUP_S = 50.0, 50.0


@dataclass
class SlowSandbox:
    """A real sandbox whose every answer comes late; a command's own limit counts from the call."""

    real: Sandbox
    commands: list[Command] = field(default_factory=list)
    puts: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def exec(self, command: Command) -> Completed:
        self.commands.append(command)
        await asyncio.sleep(LATENCY_S)
        return await self.real.exec(replace(command, timeout_s=command.timeout_s - LATENCY_S))

    async def kill(self, user: str | int) -> None:
        await asyncio.sleep(LATENCY_S)
        await self.real.kill(user)

    async def put(self, uploads: Sequence[Upload]) -> None:
        self.puts += 1
        await asyncio.sleep(LATENCY_S)
        await self.real.put(uploads)


PLANT = """
while touch /tmp/late; ! find /tmp/late -newer /opt/benchflow/agent-started | grep -q .; do :; done
cd /app
(trap '' HUP TERM; while :; do echo 1 >/logs/verifier/reward.txt; sleep 0.1; done) </dev/null >/dev/null 2>&1 &
echo changed >kept; echo evil >setup.py; echo x >conftest.py; echo x >usercustomize.py; echo x >/tmp/os.py
mkdir -p new/__pycache__; echo x >new/__pycache__/a.pyc; ln -s /tests/expected out; echo job >/var/spool/cron/crontabs/agent
echo x >/logs/verifier/ctrf.json; mkdir -p bin; echo x >bin/python3; echo 1 >answer
"""

SCRIPT = """
say() { [ "$2" = "$3" ] || echo "$1: $2"; }
say processes "$(cat /proc/[0-9]*/status 2>/dev/null | grep -c "^Uid:.$(stat -c %u /home/agent)")" 0
say logs "$(ls -A /logs/verifier)" ""
say reclaim "$(ls /var/spool/cron/crontabs)" ""
say links "$(ls -d out 2>/dev/null)" ""
say bytecode "$(ls -d new/__pycache__ 2>/dev/null)" ""
say owner "$(stat -c %U .)" root
say conftests "$(ls conftest.py 2>/dev/null)" ""
say temporary "$(ls /tmp/*.py 2>/dev/null)" ""
say startup "$(ls usercustomize.py 2>/dev/null)" ""
case :$PATH: in *:/app/bin:*) echo path ;; esac
say environment "$PYTEST_DISABLE_PLUGIN_AUTOLOAD" 1
say fresh "$(ls /tests)" test.sh
"""
"""Says each step whose work is not done, and nothing when all is."""


@pytest.mark.parametrize(
    ("restores", "left"), [(False, "changed evil 1"), (True, "first original")], ids=["as-left", "restored"]
)
async def test_every_step_is_taken_although_every_command_begins_late(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell, restores: bool, left: str
) -> None:
    slow = SlowSandbox(sandbox)
    await shell(
        sandbox,
        "cd /app; echo first >kept; echo original >setup.py; mkdir -p /var/spool/cron/crontabs; rm -rf /tests; "
        "chmod 1777 /var/spool/cron/crontabs; rm -f /var/spool/cron/crontabs/*",
    )
    if restores:
        await take_baseline(slow, "/app", timeout_s=SETUP_S)
    await prepare_user(slow, "agent", "/app", timeout_s=SETUP_S)
    await shell(sandbox, PLANT, user="agent")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.sh").write_text(SCRIPT + "echo $(cat kept setup.py answer 2>/dev/null)\n")
    task = make_task(verifier={"hardening": {"restore_workspace": restores}})
    slow.commands.clear()

    run = await ScriptVerifier().run(slow, VerifyContext(task, tmp_path, {}, TESTS_S, SETUP_S, "agent"))

    assert run.stdout.decode() == f"{left}\n"
    assert [command.timeout_s for command in slow.commands] == [SETUP_S, TESTS_S]
    assert slow.puts == 1
