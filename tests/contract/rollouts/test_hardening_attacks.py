"""Ways to have root run an agent's files before or beside the tests, tried in real sandboxes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import VerifierError
from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.pytest_plugins import pytest_use
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
Open = Callable[..., Awaitable[Sandbox]]
MakeTask = Callable[..., Task]

LATER = (
    "while touch /tmp/late; ! find /tmp/late -newer /opt/benchflow/agent-started | grep -q .; do :; done\n"
)
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHIMS = """
mkdir -p /app/bin /app/src/deep
for name in find rm chown chmod mkdir readlink ls ln mv cat cp id; do
  printf '#!/bin/sh\\necho %s $(/usr/bin/id -u) >>/tmp/ran\\nexec /usr/bin/%s "$@"\\n' $name $name >/app/bin/$name
done
chmod 755 /app/bin/*
echo 'echo env >>/tmp/ran' >/app/env.sh
for name in pytest.py email.py _heapq.py honest.py; do echo x >/app/src/$name; echo x >/app/src/deep/$name; done
: >/tmp/ran
"""


async def output(sandbox: Sandbox, task: Task, root: Path, script: str, **changes: Any) -> str:
    (root / "tests").mkdir(exist_ok=True)
    (root / "tests" / "test.sh").write_text(script, encoding="utf-8")
    fields = {"env": {}, "timeout_s": 60.0, "setup_timeout_s": 120.0, "agent_user": "agent", **changes}
    run = await ScriptVerifier().run(sandbox, VerifyContext(task=task, task_dir=root, **fields))
    return run.stdout.decode()


async def test_root_runs_nothing_of_the_agents_where_image_and_task_point_into_the_workspace(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    """The image's PATH and BASH_ENV lead there, the tests have a PATH of their own, and run pytest in a folder of it."""
    path = f"/app/bin:{SYSTEM}"
    sandbox = await open_sandbox((Upload("/opt/site"),), {"PATH": path, "BASH_ENV": "/app/env.sh"})
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    await shell(sandbox, f"export PATH={SYSTEM}; unset BASH_ENV; {LATER}{SHIMS}", user="agent")
    script = (
        f"#!/bin/bash\nPATH={SYSTEM}\ncat /tmp/ran; cd src; ls; cd deep; ls; cd $BENCHFLOW_AGENT_CWD/src\n"
        "# python3 -m pytest\n"
    )

    said = await output(sandbox, make_task(), tmp_path, script, env={"PATH": SYSTEM})

    assert said.split() == ["deep", "honest.py", "_heapq.py", "email.py", "honest.py", "pytest.py"]


@dataclass
class Elsewhere:
    """A sandbox whose workspace is another folder."""

    real: Sandbox
    workdir: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


async def test_a_workspace_that_became_a_link_is_not_where_the_tests_run(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(sandbox, "mkdir -p /home/agent/work")
    await prepare_user(sandbox, "agent", "/home/agent/work", timeout_s=60)
    await shell(sandbox, "cd /home/agent; mv work old; ln -s /tests work", user="agent")

    said = await output(Elsewhere(sandbox, "/home/agent/work"), make_task(), tmp_path, "pwd -P; ls\n")

    assert said == "/home/agent/work\n"


async def test_a_workspace_whose_folder_became_a_link_gives_no_verdict(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(sandbox, "mkdir -p /home/agent/deep/work; ln -s /home/agent/deep/work /srv/work")
    await prepare_user(sandbox, "agent", "/srv/work", timeout_s=60)
    untouched = await output(Elsewhere(sandbox, "/srv/work"), make_task(), tmp_path, "pwd -P\n")
    await shell(sandbox, "chown -R agent /home/agent")
    await shell(sandbox, "cd /home/agent; mv deep old; mkdir -p new/work; ln -s new deep", user="agent")

    with pytest.raises(VerifierError, match="has lost its workspace") as caught:
        await output(Elsewhere(sandbox, "/srv/work"), make_task(), tmp_path, "pwd -P\n")

    assert untouched == "/home/agent/deep/work\n"
    assert caught.value.code == "verifier.sandbox_lost"


@pytest.mark.parametrize(
    ("script", "kept"),
    [
        ("python3 -m pytest test_all.py\n", {"calendar", "html", "array"}),
        ("cd sub && python3 -m pytest test_all.py\n", {"calendar", "html", "array"}),
        ("python3 -m pytest test_calendar.py  # of calendar.py\n", {"html", "array"}),
        ("pytest /tests\n", set()),
    ],
)
def test_modules_an_answer_may_be_called_by_are_kept_where_the_tests_name_them(
    make_task: MakeTask, tmp_path: Path, script: str, kept: set[str]
) -> None:
    (tmp_path / "test.sh").write_text(script)

    use = pytest_use(make_task(), tmp_path)

    assert set(use.shadows) & {"calendar", "html", "array"} == kept
    assert ("email" in use.shadows) == bool(kept)
    assert tuple(use.folders) == (("sub",) if "sub" in script else ())


async def test_a_pipe_in_the_place_of_an_answer_is_no_answer(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(sandbox, "mkfifo /app/of-the-image")
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    await shell(sandbox, f"{LATER} mkfifo /app/answer", user="agent")

    said = await output(sandbox, make_task(), tmp_path, "ls\n")

    assert said.split() == ["of-the-image"]
