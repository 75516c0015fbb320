"""What is closed and kept in a real sandbox before the agent has its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchflow_workers.agents.build_files import BUILD_FILES, BUILD_SNAPSHOT
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox

Shell = Callable[..., Awaitable[str]]

READ_ALL = "cat /tests/key /srv/data/key /srv/file 2>/dev/null; true"


async def test_paths_a_job_locks_are_closed_to_the_agent_and_links_are_left_alone(
    sandbox: Sandbox, shell: Shell
) -> None:
    await shell(
        sandbox,
        "mkdir -p /tests /srv/data /srv/open; for f in /tests/key /srv/data/key /srv/file /srv/open/key; do "
        "echo $f >$f; done; ln -s /srv/open /srv/link",
    )

    await prepare_user(sandbox, "agent", "/app", 60, locked=("/tests", "/srv/data", "/srv/file", "/srv/link"))

    assert await shell(sandbox, READ_ALL, user="agent") == ""
    assert await shell(sandbox, "cat /srv/link/key", user="agent") == "/srv/open/key\n"
    modes = await shell(sandbox, "stat -c '%a %U %n' /tests /srv/data /srv/file /srv/open")
    assert modes.splitlines()[:3] == ["700 root /tests", "700 root /srv/data", "700 root /srv/file"]
    assert modes.splitlines()[3] == "755 root /srv/open"


async def test_a_job_that_locks_nothing_leaves_even_the_tests_open(sandbox: Sandbox, shell: Shell) -> None:
    await shell(
        sandbox,
        "mkdir -p /tests /srv/data; for f in /tests/key /srv/data/key /srv/file; do echo $f >$f; done",
    )

    await prepare_user(sandbox, "agent", "/app", 60, locked=())

    assert await shell(sandbox, READ_ALL, user="agent") == "/tests/key\n/srv/data/key\n/srv/file\n"


async def test_build_files_are_kept_with_the_names_of_those_that_were_not_there(
    sandbox: Sandbox, shell: Shell
) -> None:
    """A second call, before another step's agent, does not take what the first agent wrote for the original."""
    await shell(sandbox, "cd /app; echo all: >Makefile; echo one >setup.py; ln -s Makefile tox.ini")

    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    await shell(sandbox, "echo two >/app/setup.py; echo new >/app/setup.cfg", user="agent")
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)

    looked = await shell(sandbox, f"ls {BUILD_SNAPSHOT} 2>&1 || true", user="agent")
    assert "Makefile" not in looked
    kept = await shell(sandbox, f"cd {BUILD_SNAPSHOT}; ls; cat Makefile setup.py; cat absent")
    absent = [name for name in BUILD_FILES if name not in {"Makefile", "setup.py", "tox.ini"}]
    assert kept.split("\n") == ["Makefile", "absent", "setup.py", "all:", "one", *absent, ""]
