"""What of the host is used: control groups, mounts, folders, the interpreter, and what is told about it."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxRef, SandboxSpec
from benchflow_workers.sandbox.local import LocalOptions, LocalSandboxes, modes, probe
from benchflow_workers.sandbox.local.cgroups import Limits, make_group, remove_groups
from benchflow_workers.sandbox.local.host_root import (
    Mount,
    Survey,
    hidden_paths,
    make_root,
    read_mounts,
    slot_key,
)
from benchflow_workers.sandbox.local.launch import PYTHON_FOLDER, Python, find_python
from benchflow_workers.sandbox.local.places import Places, Record, discard, start_time, wait_for_end

LIMITS = Limits(memory_bytes=64 << 20, pids=7, cpus=0.5)
IS_ROOT = os.geteuid() == 0


def version_1(root: Path, *names: str) -> None:
    for name in names:
        (root / name / "own").mkdir(parents=True)
        (root / name / "cgroup.procs").touch()


def read(folder: Path, *names: str) -> list[str]:
    return [(folder / name).read_text() for name in names]


def test_version_1_groups_are_made_below_the_workers_own(tmp_path: Path) -> None:
    version_1(tmp_path, "memory", "pids", "cpu")

    group = make_group(tmp_path, "s1", LIMITS, membership="3:cpu,cpuacct:/own\n2:memory:/own\n1:pids:/gone\n")

    memory, pids, cpu = (tmp_path / "memory/own", tmp_path / "pids", tmp_path / "cpu/own")
    assert group.folders == tuple(folder / "benchflow-s1" for folder in (memory, pids, cpu))
    assert group.limited == {"memory", "pids", "cpu"}
    assert read(memory / "benchflow-s1", "memory.limit_in_bytes") == ["67108864"]
    assert read(pids / "benchflow-s1", "pids.max") == ["7"]
    assert read(cpu / "benchflow-s1", "cpu.cfs_period_us", "cpu.cfs_quota_us") == ["100000", "50000"]
    assert group.procs[0] == memory / "benchflow-s1/cgroup.procs"


def test_version_2_is_one_group_whose_parent_hands_controllers_down(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids\n")

    group = make_group(tmp_path, "s2", LIMITS, membership="0::/\n")

    folder = tmp_path / "benchflow-s2"
    assert group.folders == (folder,)
    assert group.limited == {"memory", "pids", "cpu"}
    assert read(folder, "memory.max", "pids.max", "cpu.max") == ["67108864", "7", "50000 100000"]
    assert read(tmp_path, "cgroup.subtree_control") == ["+memory +pids +cpu"]


def test_version_2_takes_the_mount_where_the_own_group_cannot_be_divided(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids")
    own = tmp_path / "own"
    own.mkdir()
    (own / "cgroup.controllers").write_text("pids")
    (own / "cgroup.subtree_control").mkdir()  # a write fails, as EBUSY does for a group with processes

    group = make_group(tmp_path, "s3", LIMITS, membership="0::/own\n")

    assert group.folders == (tmp_path / "benchflow-s3",)
    assert group.limited == {"pids"}


def test_a_host_that_lets_nothing_be_written_limits_nothing(tmp_path: Path) -> None:
    version_1(tmp_path, "memory")
    (tmp_path / "memory/benchflow-s4").write_text("in the way")
    (tmp_path / "cgroup.controllers").write_text("pids")
    (tmp_path / "cgroup.subtree_control").mkdir()

    group = make_group(tmp_path, "s4", LIMITS, membership="2:memory:/\n0::/\n")

    assert (group.folders, group.limited, group.oom_file) == ((), frozenset(), None)
    assert group.oom_kills() == 0


def test_a_limit_that_is_refused_does_not_count_as_one(tmp_path: Path) -> None:
    version_1(tmp_path, "pids", "memory")
    (tmp_path / "pids/benchflow-s5/pids.max").mkdir(parents=True)
    (tmp_path / "memory/benchflow-s5").mkdir(parents=True)
    (tmp_path / "memory/benchflow-s5/memory.memsw.limit_in_bytes").touch()

    group = make_group(tmp_path, "s5", LIMITS, membership="2:memory:/\n1:pids:/\n")

    assert group.limited == {"memory"}
    assert read(group.folders[0], "memory.memsw.limit_in_bytes") == ["67108864"]


def test_no_limit_asked_is_no_file_written(tmp_path: Path) -> None:
    version_1(tmp_path, "memory", "cpu")

    group = make_group(tmp_path, "s6", Limits(None, 7, None), membership="")

    assert [list(folder.iterdir()) for folder in group.folders] == [[], []]


def test_kills_for_memory_are_counted(tmp_path: Path) -> None:
    version_1(tmp_path, "memory")
    group = make_group(tmp_path, "s7", LIMITS, membership="")
    assert group.oom_file is not None

    assert group.oom_kills() == 0
    group.oom_file.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert group.oom_kills() == 3
    group.oom_file.write_text("low 0\n")
    assert group.oom_kills() == 0


def test_groups_are_removed_once_and_again(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    (tmp_path / "full/x").mkdir(parents=True)

    remove_groups((tmp_path / "g", tmp_path / "full"))
    remove_groups((tmp_path / "g",))

    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_mounts_are_read_with_their_odd_names(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n2 1 8:2 / /a\\040b rw - xfs /dev/b rw\n")

    assert read_mounts(table) == [Mount("/", "ext4"), Mount("/a b", "xfs")]


def test_slots_of_different_folders_never_share_a_name() -> None:
    names = ["/", "/var", "/var/lib", "/var_lib", "/var__lib", "/var_/lib", "/var_slib"]

    assert len({slot_key(name) for name in names}) == len(names)
    assert slot_key("/") == "root"


def survey(state: Path, *mounts: Mount, is_single_user: bool = True) -> Survey:
    return Survey(Path("/"), str(state), hidden_paths([]), is_single_user=is_single_user, mounts=mounts)


def targets(root_survey: Survey, cache: Path) -> list[str]:
    return [slot.target for slot in make_root(root_survey, cache).slots]


def test_a_folder_with_a_mount_below_is_taken_apart(tmp_path: Path) -> None:
    whole = targets(survey(tmp_path), tmp_path / "one")
    parted = targets(survey(tmp_path, Mount("/usr/lib/none", "fuse.x")), tmp_path / "two")

    assert {"/usr", "/etc"} <= set(whole)
    assert not any(target.startswith("/usr/") for target in whole)
    assert {"/usr", "/usr/lib", "/usr/bin"} <= set(parted)
    assert parted == sorted(parted, key=lambda target: target.count("/") if target != "/" else 0) or (
        parted.index("/usr") < parted.index("/usr/lib")
    )


def test_a_mount_of_another_kind_is_left_out(tmp_path: Path) -> None:
    found = targets(survey(tmp_path, Mount("/usr/share", "fuse.sshfs")), tmp_path / "cache")

    assert "/usr/share" not in found
    assert "/usr/bin" in found


def test_layers_never_lie_below_a_folder_they_cover(tmp_path: Path) -> None:
    """The kernel refuses an overlay one of whose layers lies inside another."""
    state = Path("/usr/lib/benchflow-state")

    found = targets(survey(state), tmp_path / "cache")

    assert "/usr/lib" in found
    assert "/usr/lib/benchflow-state" not in found


def test_a_root_is_made_once_and_found_again(tmp_path: Path) -> None:
    first = make_root(survey(tmp_path), tmp_path / "cache")
    again = make_root(survey(tmp_path), tmp_path / "cache")
    other = make_root(survey(tmp_path, Mount("/usr/lib/x", "proc")), tmp_path / "cache")

    assert again == first
    assert other.identity != first.identity
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == sorted([
        first.identity,
        other.identity,
    ])


@pytest.mark.root
def test_as_root_hidden_places_are_covered(tmp_path: Path) -> None:
    root = make_root(survey(tmp_path, is_single_user=False), tmp_path / "cache")

    cover = Path(next(slot for slot in root.slots if slot.target == "/var").lowers[0])
    assert oct((cover / "tmp").stat().st_mode) == "0o41777"
    assert os.getxattr(cover / "tmp", "trusted.overlay.opaque") == b"y"
    assert oct(cover.stat().st_mode) == oct(os.stat("/var").st_mode)


def test_another_root_folder_is_one_slot(tmp_path: Path) -> None:
    base = tmp_path / "rootfs"
    (base / "etc").mkdir(parents=True)

    root = make_root(Survey(base, str(tmp_path), (), is_single_user=True, mounts=()), tmp_path / "cache")

    assert [(slot.target, slot.lowers) for slot in root.slots] == [("/", (str(base),))]


def python_at(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python3").touch(mode=0o755)
    return folder


def test_a_python_of_the_system_wins(tmp_path: Path) -> None:
    bins = [python_at(tmp_path / "usr") / "bin"]

    assert find_python(python_at(tmp_path / "own"), system_bins=bins, visible=frozenset()) == Python()


def test_the_workers_python_is_shown_where_the_system_has_none(tmp_path: Path) -> None:
    prefix = python_at(tmp_path / "own")
    top = prefix.parts[1]

    hidden = find_python(prefix, system_bins=[tmp_path / "none"], visible=frozenset())
    visible = find_python(prefix, system_bins=[tmp_path / "none"], visible=frozenset({top}))
    missing = find_python(tmp_path / "nothing", system_bins=[tmp_path / "none"], visible=frozenset())

    assert hidden == Python(f"{PYTHON_FOLDER}/bin", (str(prefix), PYTHON_FOLDER))
    assert visible == Python(str(prefix / "bin"), None)
    assert missing == Python()


def test_a_record_is_found_by_its_labels_from_its_first_moment(tmp_path: Path) -> None:
    places = Places(tmp_path / "state")
    assert places.records({}) == []
    places.prepare()
    record = Record("a-1", {"job": "j", "trial": "t"})

    folder = places.claim(record)
    started = places.started(record, os.getpid())

    assert places.records({"job": "j"}) == [started]
    assert places.records({"job": "other"}) == []
    assert (started.pid, started.pid_started) == (os.getpid(), start_time(os.getpid()))
    assert (folder / "root").is_dir()


def test_removal_spares_a_process_that_only_has_the_same_number(tmp_path: Path) -> None:
    places = Places(tmp_path / "state")
    places.prepare()
    process = subprocess.Popen(["sleep", "4717"])
    record = Record("a-1", {}, pid=process.pid, pid_started=1)
    places.claim(record)

    places.remove("a-1")

    assert process.poll() is None
    assert places.read("a-1") is None
    process.kill()
    process.wait()


def test_removal_ends_the_process_of_the_record(tmp_path: Path) -> None:
    places = Places(tmp_path / "state")
    places.prepare()
    process = subprocess.Popen(["sleep", "4718"])
    record = places.started(Record("a-2"), process.pid)
    places.claim(record)

    places.remove("a-2")

    assert process.wait(timeout=10) == -9
    pidfd = os.pidfd_open(os.getpid())
    assert not wait_for_end(pidfd, 0)
    os.close(pidfd)


@pytest.mark.parametrize("name", ["never-was", "../../etc", ".hidden", ""])
def test_what_is_no_sandbox_is_not_removed(tmp_path: Path, name: str) -> None:
    places = Places(tmp_path / "state")
    places.prepare()

    places.remove(name)

    assert places.read(name) is None
    assert places.sandboxes.is_dir()


def test_a_record_whose_process_is_gone_is_removed(tmp_path: Path) -> None:
    places = Places(tmp_path / "state")
    places.prepare()
    process = subprocess.Popen(["true"])
    process.wait()
    places.claim(Record("a-3", {}, pid=process.pid, pid_started=1))

    places.remove("a-3")

    assert places.records({}) == []
    assert start_time(process.pid) is None


def test_a_folder_of_locked_folders_is_deleted(tmp_path: Path) -> None:
    overlay = tmp_path / "box" / "work" / "root" / "work"
    (overlay / "index").mkdir(parents=True)
    (tmp_path / "box/deep/locked").mkdir(parents=True)
    overlay.chmod(0)
    (tmp_path / "box/deep").chmod(0)

    discard(tmp_path / "box")
    discard(tmp_path / "box")

    assert list(tmp_path.iterdir()) == []


def test_a_state_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SandboxError, match="cannot be made") as caught:
        Places(tmp_path / "file" / "state").prepare()

    assert caught.value.code == "sandbox.unavailable"


async def test_a_host_without_any_way_says_what_to_change(tmp_path: Path) -> None:
    """A state folder that cannot hold an overlay stands for a host that lacks something."""
    (tmp_path / "file").write_text("")
    options = LocalOptions(tmp_path / "file" / "state")

    with pytest.raises(SandboxError) as caught:
        modes.choose_mode(options)

    assert caught.value.code == "sandbox.unavailable"
    assert "rootless fails at overlay" in caught.value.message
    assert "ext4" in caught.value.hint
    with pytest.raises(SandboxError):
        await LocalSandboxes(options).check()
    assert {finding.is_ok for finding in probe(options) if "sandboxes" in finding.name} == {False}


def test_a_user_cannot_have_the_mode_of_root(tmp_path: Path) -> None:
    trial = modes.Trial("namespaces", "namespaces: the worker does not run as root")

    assert "CAP_SYS_ADMIN" in trial.fix
    assert modes.Trial("rootless").fix == ""
    if not IS_ROOT:
        assert modes.try_mode("namespaces", tmp_path).problem == trial.problem


def test_the_probe_names_what_works_and_leaves_nothing(tmp_path: Path) -> None:
    rootfs = tmp_path / "rootfs"
    (rootfs / "etc").mkdir(parents=True)
    options = LocalOptions(tmp_path / "state", rootfs={"good": rootfs, "bad": tmp_path / "no"})

    findings = {finding.name: finding for finding in probe(options)}

    assert set(findings) == {
        "local sandboxes, namespaces",
        "local sandboxes, rootless",
        "local limits",
        "local image good",
        "local image bad",
    }
    assert findings["local image good"].is_ok
    assert not findings["local image bad"].is_ok
    assert all(finding.fix for finding in findings.values() if not finding.is_ok)
    assert list((tmp_path / "state").iterdir()) == []


def test_limits_that_cannot_be_set_are_told(tmp_path: Path) -> None:
    options = LocalOptions(tmp_path / "state", cgroup_root=tmp_path / "none")

    limits = next(finding for finding in probe(options) if finding.name == "local limits")

    assert not limits.is_ok
    assert "memory, pids, cpu" in limits.detail


async def test_a_place_is_this_host_and_the_state_folder(tmp_path: Path) -> None:
    provider = LocalSandboxes(LocalOptions(tmp_path))

    assert await provider.place() == f"{socket.gethostname()}:{tmp_path}"


async def test_limits_of_each_process_stand_in_for_control_groups(tmp_path: Path) -> None:
    if problem := modes.try_mode("rootless", tmp_path).problem:
        pytest.skip(problem)
    provider = LocalSandboxes(
        LocalOptions(tmp_path / "state", mode="rootless", cgroup_root=tmp_path / "none")
    )
    spec = SandboxSpec(
        name="limited",
        labels={},
        image="some:image",
        build_context=None,
        build_digest="",
        memory_mb=64,
        storage_mb=1,
    )
    sandbox = await provider.open(spec)

    script = "ulimit -a; head -c 3000000 /dev/zero >/tmp/big; echo $?; ulimit -d; ulimit -u; ulimit -c"
    done = await sandbox.exec(Command(("bash", "-c", script), timeout_s=20))
    await sandbox.close()
    await provider.remove(SandboxRef("local", sandbox.id, {}))
    await provider.close()

    assert done.stdout.split()[-4:] == [b"153", b"65536", b"4096", b"0"]
    assert sandbox.notes == ("local: image some:image ignored (host root used)",)
