"""Bundles are the same bytes everywhere, and nothing gets out of their folder."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import tarfile
from pathlib import Path

import pytest

from benchflow_client.errors import StoreError, TaskError
from benchflow_client.tasks.bundle import digest_of, pack, unpack
from benchflow_client.tasks.digest import folder_digest
from benchflow_client.tasks.read import read_task


def listing(folder: Path) -> dict[str, object]:
    """Return everything below a folder as data."""
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_dir():
            found[name] = None
        else:
            found[name] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_unpacked_bundle_is_the_folder_again(make_task, tmp_path):
    folder = make_task({"environment/data/ünï.bin": b"\x00\xff" * 5000, "environment/empty": b""})
    (folder / "environment" / "nothing").mkdir()
    (folder / "tests" / "test.sh").chmod(0o700)
    os.symlink("../instruction.md", folder / "environment" / "inside-up")
    os.symlink("Dockerfile", folder / "environment" / "inside")

    bundle = pack(folder, tmp_path / "store" / "b.tar")
    unpack(tmp_path / "store" / "b.tar", tmp_path / "copy", digest=bundle.digest)

    assert listing(tmp_path / "copy") == listing(folder)
    assert (tmp_path / "copy" / "tests" / "test.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o755
    assert read_task(tmp_path / "copy").instruction == read_task(folder).instruction
    assert digest_of(tmp_path / "copy") == bundle.digest
    assert bundle.files == 9
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["b.tar"]


def test_digest_is_the_sha256_of_the_file_and_its_size_is_told(make_task, tmp_path):
    bundle = pack(make_task(), tmp_path / "b.tar")

    data = (tmp_path / "b.tar").read_bytes()
    assert bundle.digest == hashlib.sha256(data).hexdigest()
    assert bundle.size_bytes == len(data)


def test_times_owners_modes_and_left_out_names_do_not_change_a_digest(make_task):
    one, two = make_task(name="one"), make_task(name="two")
    for path in (".git/HEAD", "environment/__pycache__/x.pyc", "tests/.DS_Store"):
        (two / path).parent.mkdir(exist_ok=True)
        (two / path).write_text("x")
    os.utime(two / "task.toml", (1, 1))
    (two / "task.toml").chmod(0o604)

    assert digest_of(one) == digest_of(two)
    assert folder_digest(one) == folder_digest(two)


@pytest.mark.parametrize("change", ["content", "name", "exec bit", "link", "empty folder"])
def test_whatever_can_change_a_score_changes_both_digests(make_task, change):
    folder = make_task()
    os.symlink("Dockerfile", folder / "environment" / "link")
    before = digest_of(folder), folder_digest(folder / "environment")

    target = folder / "environment" / "Dockerfile"
    if change == "content":
        target.write_text("FROM debian:12\n")
    elif change == "name":
        target.rename(target.with_name("dockerfile"))
    elif change == "exec bit":
        target.chmod(0o755)
    elif change == "link":
        (folder / "environment" / "link").unlink()
        os.symlink("./Dockerfile", folder / "environment" / "link")
    else:
        (folder / "environment" / "new").mkdir()

    after = digest_of(folder), folder_digest(folder / "environment")
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_links_that_leave_the_folder_are_refused_by_reader_and_bundle_alike(make_task, tmp_path):
    folder = make_task()
    environment = folder / "environment"
    os.symlink("/etc/passwd", environment / "host-link")
    os.symlink("/etc", environment / "host-dir")
    os.symlink("../../other", environment / "sibling")
    os.symlink(".", environment / "here")
    os.symlink("here/here/../../..", environment / "winding")
    os.symlink("../instruction.md", environment / "inside-up")

    with pytest.raises(TaskError) as packed:
        pack(folder, tmp_path / "b.tar")
    with pytest.raises(TaskError) as read:
        read_task(folder)

    leaves = "the link leaves the task folder (it points to {}); copy what it points to"
    assert packed.value.problems == read.value.problems
    assert read.value.problems == (
        f"environment/host-dir: {leaves.format('/etc')}",
        f"environment/host-link: {leaves.format('/etc/passwd')}",
        f"environment/sibling: {leaves.format('../../other')}",
        f"environment/winding: {leaves.format('here/here/../../..')}",
    )
    assert not (tmp_path / "b.tar").exists()


def test_pipes_and_names_that_are_no_text_are_refused(make_task):
    folder = make_task()
    os.mkfifo(folder / "tests" / "pipe")
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff")).write_text("x")

    with pytest.raises(TaskError) as caught:
        digest_of(folder)

    assert caught.value.problems == (
        "'bad\\udcff': the name is not UTF-8",
        "tests/pipe: a device, socket or pipe cannot be copied",
    )


def test_many_obstacles_are_counted_not_listed(make_task):
    folder = make_task()
    for number in range(25):
        os.symlink("/etc", folder / f"link{number:02}")

    with pytest.raises(TaskError) as caught:
        digest_of(folder)

    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == "and 5 more of this kind"


def test_folder_that_is_not_there_has_no_digest(tmp_path):
    with pytest.raises(TaskError, match="cannot be read: No such file"):
        digest_of(tmp_path / "absent")
    with pytest.raises(TaskError, match="cannot be read: No such file"):
        folder_digest(tmp_path / "absent")


def test_pipe_has_no_digest(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(TaskError, match="not a file, folder or link"):
        folder_digest(tmp_path)


def test_task_larger_than_the_limit_is_refused_by_the_file_that_breaks_it(make_task, tmp_path):
    folder = make_task({"environment/big.bin": b"x" * 5000})

    with pytest.raises(TaskError, match=r"environment/big\.bin makes the task larger"):
        pack(folder, tmp_path / "b.tar", limit_bytes=4000)

    assert not list(tmp_path.glob("*.tar"))


def test_target_that_cannot_be_written_is_the_stores_fault(make_task, tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(StoreError, match="cannot be written"):
        pack(make_task(), tmp_path / "file" / "b.tar")


def test_full_disk_is_told_apart(make_task):
    with pytest.raises(StoreError, match="No space left on device"):
        pack_to_full_device(make_task())


def pack_to_full_device(folder: Path) -> None:
    from benchflow_client.tasks.bundle import _write

    with open("/dev/full", "wb", buffering=0) as full:
        _write(folder, full, 1 << 20)


def tar_of(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"x"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info, content if kind == tarfile.REGTYPE else b""


@pytest.mark.parametrize(
    "members",
    [
        [member("../evil")],
        [member("/{root}/evil")],
        [member("a/../../evil")],
        [member("./evil")],
        [member("no-folder/evil")],
        [member("a"), member("a")],
        [member("a", tarfile.DIRTYPE), member("a", tarfile.DIRTYPE)],
        [member("a"), member("a", tarfile.SYMTYPE, "b")],
        [member("a", tarfile.SYMTYPE, "/etc")],
        [member("a", tarfile.SYMTYPE, "../b")],
        [member("a", tarfile.SYMTYPE, "")],
        [member("a", tarfile.SYMTYPE, "."), member("b", tarfile.SYMTYPE, "a/a/../..")],
        [member("a", tarfile.SYMTYPE, "/tmp"), member("a/evil")],
        [member("a"), member("b", tarfile.LNKTYPE, "a")],
        [member("a", tarfile.FIFOTYPE)],
        [member("a", tarfile.CHRTYPE)],
        [member("big", content=b"x" * 200_000)],
    ],
)
def test_bundle_that_pack_would_not_write_is_refused_whole(tmp_path, members):
    for info, _ in members:
        info.name = info.name.replace("/{root}", str(tmp_path))
    bundle = tar_of(tmp_path / "b.tar", members)

    with pytest.raises(TaskError, match="The bundle cannot be unpacked"):
        unpack(bundle, tmp_path / "inner" / "copy", limit_bytes=100_000)

    assert list((tmp_path / "inner").iterdir()) == []
    assert not (tmp_path / "evil").exists()


def test_damaged_and_foreign_files_are_refused(make_task, tmp_path):
    bundle = pack(make_task(), tmp_path / "b.tar")
    data = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:3000])
    (tmp_path / "noise.tar").write_bytes(b"\xff" * 2048)
    (tmp_path / "scratched.tar").write_bytes(data[:1030] + b"\xff" + data[1031:])

    for name in ("cut.tar", "noise.tar", "scratched.tar"):
        with pytest.raises(TaskError, match="cannot be unpacked"):
            unpack(tmp_path / name, tmp_path / "copy")
    with pytest.raises(TaskError, match="its digest is"):
        unpack(tmp_path / "cut.tar", tmp_path / "copy", digest=bundle.digest)
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        unpack(tmp_path / "absent.tar", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_folder_that_is_unpacked_already_is_left_alone(make_task, tmp_path):
    pack(make_task(), tmp_path / "b.tar")
    (tmp_path / "copy").mkdir()
    unpack(tmp_path / "b.tar", tmp_path / "copy")
    (tmp_path / "copy" / "mark").write_text("x")

    unpack(tmp_path / "b.tar", tmp_path / "copy")

    assert (tmp_path / "copy" / "mark").exists()
    assert (tmp_path / "copy" / "task.toml").exists()


def unpack_and_count(paths: tuple[str, str]) -> int:
    unpack(Path(paths[0]), Path(paths[1]))
    return sum(1 for _ in Path(paths[1]).rglob("*"))


def test_processes_that_unpack_at_once_all_find_the_whole_folder(make_task, tmp_path):
    files = {f"environment/data/{number}": b"x" * 100 for number in range(200)}
    pack(make_task(files), tmp_path / "b.tar")
    target = tmp_path / "inner" / "copy"

    with multiprocessing.get_context("spawn").Pool(4) as pool:
        counts = pool.map(unpack_and_count, [(str(tmp_path / "b.tar"), str(target))] * 8, chunksize=1)

    assert counts == [209] * 8
    assert [path.name for path in target.parent.iterdir()] == ["copy"]
