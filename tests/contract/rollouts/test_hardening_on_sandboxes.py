"""Whom the tests trust: search paths, Python's own start-up files, pytest's plugins, lost sandboxes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import SandboxError, VerifierError
from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.task import Task
from benchflow_workers.agents.base import AgentContext
from benchflow_workers.agents.oracle import OracleAgent
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
Open = Callable[..., Awaitable[Sandbox]]
MakeTask = Callable[..., Task]

STANDARD = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def with_tests(task: Task, root: Path, script: str, **changes: Any) -> VerifyContext:
    folder = root / str(task.verifier_dir)
    folder.mkdir(exist_ok=True)
    (folder / "test.sh").write_text(script, encoding="utf-8")
    fields = {"env": {}, "timeout_s": 30.0, "setup_timeout_s": 120.0, "agent_user": None}
    return VerifyContext(task=task, task_dir=root, **{**fields, **changes})


async def output(sandbox: Sandbox, context: VerifyContext) -> str:
    return (await ScriptVerifier().run(sandbox, context)).stdout.decode()


@pytest.mark.parametrize("agent_user", [None, "agent"])
async def test_programs_of_the_image_keep_their_order_where_only_root_can_write(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path, shell: Shell, agent_user: str | None
) -> None:
    declared = f"/opt/tools/bin:/home/agent/bin:/opt/open:{STANDARD}:/opt/gone:relative:/app/bin:/opt/late"
    env = {"PATH": declared, "PYTHONPATH": "/app:/opt/tools/lib:/opt/open"}
    sandbox = await open_sandbox((Upload("/opt/tools/lib", mode=0o755), Upload("/opt/late", mode=0o755)), env)
    await shell(sandbox, "mkdir -p /opt/tools/bin /opt/open /home/agent/bin /app/bin; chmod 0777 /opt/open")
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)

    said = await output(
        sandbox, with_tests(make_task(), tmp_path, "echo $PATH; echo $PYTHONPATH\n", agent_user=agent_user)
    )

    assert said == f"/opt/tools/bin:{STANDARD}:/opt/late\n/opt/tools/lib\n"


async def test_files_python_runs_at_its_start_are_removed_where_an_agent_could_write(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    asked = "#!/bin/sh\necho /opt/site; echo /usr/lib/site; echo /opt/none\n"
    sandbox = await open_sandbox((Upload("/usr/local/bin/python3", content=asked.encode(), mode=0o755),))
    await shell(sandbox, "mkdir -p /opt/site /usr/lib/site; chmod 0777 /opt/site; touch /opt/site/own.pth")
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    await shell(
        sandbox,
        "while touch /tmp/later; ! find /tmp/later -newer /opt/benchflow/agent-started | grep -q .; do :; done; "
        "cd /opt/site; touch sitecustomize.py usercustomize.py evil.pth module.py",
        user="agent",
    )

    said = await output(sandbox, with_tests(make_task(), tmp_path, "ls /opt/site\n", agent_user="agent"))

    assert said == "module.py\nown.pth\n"


async def test_plugins_of_the_image_are_loaded_where_only_root_can_write(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    """Where the image has no Python, the tests' own options stand alone."""
    made = (
        "command -v python3 >/dev/null || exit 0; "
        "site=$(python3 -I -c 'import site; print(site.getsitepackages()[0])'); "
        'mkdir -p "$site/known-1.dist-info"; cd "$site/known-1.dist-info"; '
        "printf 'Name: known\\nVersion: 1\\n' > METADATA; "
        "printf '[pytest11]\\nknown_plugin = known\\n' > entry_points.txt; "
        'while :; do chmod go-w .; [ "$PWD" = / ] && break; cd ..; done; echo "$site"'
    )
    site = (await shell(sandbox, made)).strip()
    context = with_tests(make_task(), tmp_path, "# pytest\necho $PYTEST_ADDOPTS\n")
    own = " -c /dev/null --confcutdir=/tests -p no:cacheprovider --rootdir=/app"

    trusted = await output(sandbox, context)
    await shell(sandbox, f"[ -z '{site}' ] || chmod 0777 '{site}'")
    distrusted = await output(sandbox, context)

    assert re.match(rf"-p guard_[0-9a-f]+{own}", trusted)
    assert ("-p known_plugin" in trusted) == bool(site)
    assert "known_plugin" not in distrusted


async def test_conftests_stay_where_the_author_wants_them(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    task = make_task(verifier={"hardening": {"cleanup_conftests": False}})
    await shell(sandbox, "touch /app/conftest.py")

    assert await output(sandbox, with_tests(task, tmp_path, "ls -A\n", agent_user="root")) == "conftest.py\n"


async def test_tests_an_agent_with_roots_rights_wrote_are_replaced(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    planted = "mkdir -p /tests; echo x > /tests/planted; rm -rf /logs/verifier; ln -s /etc /logs/verifier"
    await shell(sandbox, planted)
    script = "ls /tests; stat -c '%A %U' /logs/verifier\n"

    said = await output(sandbox, with_tests(make_task(), tmp_path, script, agent_user="root"))

    assert said == "test.sh\ndrwxr-xr-x root\n"


async def test_the_mark_of_an_agent_that_was_root_is_not_trusted(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await prepare_user(sandbox, "root", "/app", timeout_s=60)
    await shell(sandbox, "touch /app/conftest.py; touch -d 2099-01-01 /opt/benchflow/agent-started")

    assert await output(sandbox, with_tests(make_task(), tmp_path, "ls -A\n", agent_user="root")) == ""


async def test_a_solution_that_ends_every_process_never_passes_in_silence(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, cases: Path
) -> None:
    task, case = make_task(), cases / "50-ends-everything"
    context = with_tests(task, tmp_path, (cases / "16-plain/tests/test.sh").read_text(encoding="utf-8"))
    oracle = AgentContext(task, case, AgentSpec(name="oracle"), None, {}, {}, 30, "root", ("",))

    try:
        await sandbox.put(OracleAgent().uploads(oracle))
        await OracleAgent().run(sandbox, oracle)
        run = await ScriptVerifier().run(sandbox, context)
        await sandbox.get("/logs/verifier", tmp_path / "logs")
        verdict = ScriptVerifier().judge(context, run, tmp_path / "logs")
        ending = verdict.failure.code if verdict.failure else f"reward {(verdict.rewards or {})['reward']}"
    except (SandboxError, VerifierError) as error:
        ending = error.code

    assert ending in {"sandbox.lost", "verifier.sandbox_lost", "reward 0.0"}
