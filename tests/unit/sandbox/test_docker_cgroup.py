import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchflow_workers.sandbox.docker_cgroup import (
    ContainerCgroup,
    Process,
    keepers,
    owned,
    parse_oom_kills,
    parse_passwd,
    read_passwd,
    tagged,
)
from benchflow_workers.sandbox.docker_exec import is_refusal, refusal_code

OOM_V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
OOM_V2 = "low 0\nhigh 0\nmax 12\noom 2\noom_kill 2\noom_group_kill 0\n"


def process(pid: int, parent: int = 1, **changes: object) -> Process:
    fields = {"session": pid, "started": pid, "uids": frozenset({0}), "tag": "", **changes}
    return Process(pid=pid, parent=parent, **fields)  # type: ignore[arg-type]


def make_cgroup(mount: Path, name: str, pids: list[int]) -> Path:
    folder = mount / name
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    return folder


def test_command_is_its_tag_its_sessions_and_its_descendants() -> None:
    processes = [
        process(10, tag="mine"),
        process(11, parent=10, tag="mine"),
        process(12, parent=11, session=12),  # emptied its environment and made a session
        process(13, parent=1, session=10),  # lost its parent, kept the session
        process(14, parent=13, session=14),
        process(20, tag="other"),
        process(21, parent=20),
    ]

    assert [item.pid for item in tagged(processes, "mine")] == [10, 11, 12, 13, 14]
    assert tagged(processes, "unknown") == []


def test_the_oldest_process_and_its_oldest_child_keep_the_container() -> None:
    processes = [
        process(30, parent=5, started=9),  # a command: its parent is outside
        process(8, parent=5, started=1),
        process(9, parent=8, started=1),
        process(31, parent=8, started=7),
    ]

    init, main = keepers(processes)

    assert (init, main) == (processes[1], processes[2])
    assert [item.pid for item in owned(processes, 0)] == [30, 31]
    assert keepers([]) == (None, None)


def test_a_process_belongs_to_each_of_its_uids() -> None:
    processes = [
        process(1, parent=0),
        process(2),
        process(3, uids=frozenset({1000, 0})),
        process(4, uids=frozenset({7})),
    ]

    assert [item.pid for item in owned(processes, 1000)] == [3]


@pytest.mark.parametrize(("text", "count"), [(OOM_V1, 3), (OOM_V2, 2), ("", None), ("oom_kill x", None)])
def test_oom_kills_are_read_in_both_forms(text: str, count: int | None) -> None:
    assert parse_oom_kills(text) == count


@pytest.mark.parametrize(
    "name",
    [
        "memory/docker/abc",
        "docker/abc",
        "memory/system.slice/docker-abc.scope",
        "system.slice/docker-abc.scope",
    ],
)
def test_control_group_is_found_under_both_versions_and_drivers(tmp_path: Path, name: str) -> None:
    folder = make_cgroup(tmp_path, name, [])
    (folder / ("memory.oom_control" if name.startswith("memory") else "memory.events")).write_text(OOM_V2)

    cgroup = ContainerCgroup.find("abc", "TAG", mount=tmp_path)

    assert cgroup is not None
    assert cgroup.oom_kills() == 2


def test_container_of_another_host_has_no_control_group(tmp_path: Path) -> None:
    assert ContainerCgroup.find("abc", "TAG", mount=tmp_path) is None


def test_processes_that_are_not_visible_cannot_be_killed(tmp_path: Path) -> None:
    """A worker in a pid namespace of its own reads foreign processes as 0."""
    make_cgroup(tmp_path, "docker/abc", [0, 0])
    cgroup = ContainerCgroup.find("abc", "TAG", mount=tmp_path)

    assert cgroup is not None
    assert not cgroup.can_kill()
    assert cgroup.oom_kills() is None
    assert cgroup.init_pid() == 0


@pytest.mark.root
def test_vanished_process_makes_killing_unavailable(tmp_path: Path) -> None:
    make_cgroup(tmp_path, "docker/abc", [2**22 + 5])
    cgroup = ContainerCgroup.find("abc", "TAG", mount=tmp_path)

    assert cgroup is not None
    assert not cgroup.can_kill()
    assert cgroup.processes() == []


def test_a_container_that_is_gone_has_no_processes(tmp_path: Path) -> None:
    folder = make_cgroup(tmp_path / "memory", "docker/abc", [os.getpid()])
    group = ContainerCgroup.find("abc", "BF_EXEC_ID", mount=tmp_path)
    assert group is not None
    (folder / "cgroup.procs").unlink()
    folder.rmdir()

    assert (group.processes(), group.init_pid(), group.can_kill()) == ([], 0, False)


@pytest.mark.root
def test_chosen_process_is_killed_and_others_live(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        subprocess.Popen(sleeper, stdin=subprocess.PIPE, env={"TAG": "one"}) as one,
        subprocess.Popen(sleeper, stdin=subprocess.PIPE, env={"TAG": "two"}) as two,
    ):
        make_cgroup(tmp_path, "docker/abc", [one.pid, two.pid])
        cgroup = ContainerCgroup.find("abc", "TAG", mount=tmp_path)
        assert cgroup is not None

        assert cgroup.can_kill()
        assert asyncio.run(cgroup.kill(lambda items: [item for item in items if item.tag == "one"]))

        assert one.wait(20) == -9
        assert two.poll() is None
        two.terminate()


@pytest.mark.root
def test_freezing_kills_what_outruns_one_signal_each(tmp_path: Path) -> None:
    """A process that is chosen late, as a fork bomb's children are, is killed in a frozen group."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as child:
        folder = make_cgroup(tmp_path, "docker/abc", [child.pid])
        (folder / "cgroup.freeze").write_text("0")
        cgroup = ContainerCgroup.find("abc", "TAG", mount=tmp_path)
        assert cgroup is not None
        frozen_states: list[str] = []

        def choose(items: list[Process]) -> list[Process]:
            frozen_states.append((folder / "cgroup.freeze").read_text())
            if frozen_states[-1] == "1":
                return items
            return [process(2**22 + 9)] if items else []

        assert asyncio.run(cgroup.kill(choose))
        assert "1" in frozen_states
        assert (folder / "cgroup.freeze").read_text() == "0"
        assert child.wait(20) == -9


def test_user_is_found_in_passwd() -> None:
    text = "root:x:0:0:root:/root:/bin/sh\nbroken\nagent:x:1000:1000::/:/bin/sh\nodd:x:x:1::/:\n"

    assert [parse_passwd(text, name) for name in ("root", "agent", "odd", "none")] == [0, 1000, None, None]


@pytest.mark.root
def test_passwd_is_read_below_the_root_of_a_process() -> None:
    assert read_passwd(os.getpid(), "root") == 0
    assert read_passwd(2**22 + 5, "root") is None


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (
            b'OCI runtime exec failed: exec failed: exec: "x": executable file not found in $PATH: unknown',
            127,
        ),
        (b'OCI runtime exec failed: exec: "/x": stat /x: no such file or directory: unknown', 127),
        (b'OCI runtime exec failed: exec: "/x.sh": no such file or directory', 127),
        (
            b'OCI runtime exec failed: chdir to cwd ("/w") set in config.json failed: no such file or directory',
            126,
        ),
        (b'OCI runtime exec failed: exec: "/etc/passwd": permission denied: unknown', 126),
        (b"unable to find user bob: no matching entries in passwd file", 126),
    ],
)
def test_reasons_of_the_engine_become_exit_codes(reason: bytes, code: int) -> None:
    assert is_refusal(126, reason)
    assert refusal_code(reason) == code


def test_output_of_a_command_is_no_refusal() -> None:
    assert not is_refusal(0, b"OCI runtime exec failed: ")
    assert not is_refusal(126, b"sh: 1: x: Permission denied")
