"""What the store in a folder promises beyond the contract: the disk, symlinks, other processes."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchflow_client.errors import ObjectExistsError, ObjectNotFoundError, StoreError, StoreFullError
from benchflow_client.store.files import FileStore
from benchflow_client.store.local import disk_error

NOBODY = 65534


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def as_user(user: int) -> Generator[None, None, None]:
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)


CREATE_MANY = """
import sys
from pathlib import Path
from benchflow_client.errors import ObjectExistsError
from benchflow_client.store.files import FileStore
root, name = sys.argv[1:]
store = FileStore(Path(root))
print("ready", flush=True)
sys.stdin.readline()
for number in range(100):
    try:
        store.create(f"job/{number}", f"{name} {number}".encode())
        print(number)
    except ObjectExistsError:
        pass
"""
"""A process that tries to create the same hundred keys as others and prints those it won."""


def test_folder_is_made_with_the_first_write(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "new" / "store")
    assert not (tmp_path / "new").exists()

    store.put("job/spec.json", b"{}")

    assert (tmp_path / "new" / "store" / "job" / "spec.json").read_bytes() == b"{}"


def test_reading_an_absent_folder_finds_nothing_and_makes_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "absent")

    assert list(store.list("")) == []
    assert not store.exists("job/spec.json")
    store.delete_tree("job/")
    assert not (tmp_path / "absent").exists()


def test_url_is_a_file_address_without_symlinks(tmp_path: Path) -> None:
    (tmp_path / "real dir").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real dir")

    store = FileStore(tmp_path / "link")

    assert store.url == f"file://{tmp_path}/real%20dir"
    assert store.root == tmp_path / "real dir"


def test_documents_are_readable_for_others_as_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        FileStore(tmp_path).put("job/spec.json", b"{}")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "job" / "spec.json").stat().st_mode) == 0o644


def test_no_write_leaves_a_hidden_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("job/a", b"1")
    store.create("job/b", b"1")
    with pytest.raises(ObjectExistsError):
        store.create("job/b", b"2")
    with pytest.raises(StoreError):
        store.put("job", b"a folder is there")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "job"]


def test_unfinished_file_of_a_killed_writer_is_never_listed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("job/a", b"1")
    (tmp_path / "job" / ".benchflow-tmp-00ff").write_bytes(b"half")

    assert list(store.list("job")) == ["job/a"]
    store.delete_tree("job")
    assert not (tmp_path / "job").exists()


def test_other_hidden_files_are_documents(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("job/.env.example", b"A=")

    assert list(store.list("job")) == ["job/.env.example"]


def test_of_several_processes_exactly_one_creates_each_key(tmp_path: Path) -> None:
    names = ("ann", "bob", "cid")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE_MANY, str(tmp_path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()

    won = [racer.communicate(timeout=60)[0].split() for racer in racers]

    assert sorted(int(number) for numbers in won for number in numbers) == list(range(100))
    for name, numbers in zip(names, won, strict=True):
        for number in numbers:
            assert FileStore(tmp_path).get(f"job/{number}") == f"{name} {number}".encode()


@pytest.mark.parametrize("key", ["door/passwd", "door", "job/door/x"])
def test_symlink_out_of_the_store_is_not_followed(tmp_path: Path, key: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "passwd").write_text("secret")
    root = tmp_path / "store"
    (root / "job").mkdir(parents=True)
    (root / "door").symlink_to(outside)
    (root / "job" / "door").symlink_to(outside)
    store = FileStore(root)

    with pytest.raises(StoreError, match="symlink"):
        store.get(key)
    with pytest.raises(StoreError, match="symlink"):
        list(store.list(key))
    with pytest.raises(StoreError, match="symlink"):
        store.delete_tree(key)
    with pytest.raises(StoreError, match="symlink"):
        store.put(f"{key}/new", b"1")
    assert [path.name for path in outside.iterdir()] == ["passwd"]


def test_symlink_to_a_file_outside_is_neither_read_nor_listed_but_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "store"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "secret")
    store = FileStore(root)

    assert list(store.list("")) == []
    with pytest.raises(StoreError, match="symlink"):
        store.get("link")
    with pytest.raises(ObjectExistsError):
        store.create("link", b"mine")
    store.put("link", b"mine")

    assert store.get("link") == b"mine"
    assert (tmp_path / "secret").read_text() == "secret"


def test_symlink_within_the_store_may_be_used(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("job/a", b"1")
    (tmp_path / "alias").symlink_to(tmp_path / "job")

    assert store.get("alias/a") == b"1"


def test_document_in_the_place_of_a_folder_is_a_store_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("job/a", b"1")

    with pytest.raises(StoreError, match="job/a/b"):
        store.put("job/a/b", b"1")
    with pytest.raises(ObjectNotFoundError):
        store.get("job/a/b")
    assert store.get("job/a") == b"1"


def test_name_too_long_for_the_disk_is_a_store_error(tmp_path: Path) -> None:
    store = FileStore(tmp_path)

    with pytest.raises(StoreError, match="File name too long"):
        store.put("x" * 300, b"1")
    with pytest.raises(StoreError, match="File name too long"):
        store.exists("x" * 300)


@pytest.mark.root
def test_full_disk_keeps_the_old_document_and_leaves_no_half(small_disk: Path, tmp_path: Path) -> None:
    store = FileStore(small_disk)
    store.put("job/result.json", b"old")
    (tmp_path / "big").write_bytes(b"x" * 200_000)

    with pytest.raises(StoreFullError, match="no space left") as caught:
        store.put("job/result.json", b"x" * 200_000)
    with pytest.raises(StoreFullError):
        store.create("job/new.json", b"x" * 200_000)
    with pytest.raises(StoreFullError):
        store.put_file("job/new.json", tmp_path / "big")

    assert "Free space" in caught.value.hint
    assert store.get("job/result.json") == b"old"
    assert [path.name for path in (small_disk / "job").iterdir()] == ["result.json"]
    store.put("job/small.json", b"fits")


@pytest.mark.root
def test_full_target_disk_leaves_no_half_file(small_disk: Path, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put("job/big", b"x" * 200_000)

    with pytest.raises(StoreFullError, match=str(small_disk)):
        store.get_tree("job", small_disk)

    assert list(small_disk.iterdir()) == []


@pytest.mark.root
def test_read_only_disk_names_the_folder_and_what_to_do(small_disk: Path) -> None:
    store = FileStore(small_disk)
    store.put("job/a", b"1")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    with pytest.raises(StoreError, match=str(small_disk)) as caught:
        store.put("job/a", b"2")

    assert not isinstance(caught.value, StoreFullError)
    assert "write access" in caught.value.hint
    assert store.get("job/a") == b"1"


@pytest.mark.root
def test_folder_of_another_user_names_who_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "store"
    FileStore(root).put("job/a", b"1")
    root.chmod(0o700)

    with as_user(NOBODY), pytest.raises(StoreError, match=f"user {NOBODY}") as caught:
        FileStore(root).put("job/b", b"1")
    with as_user(NOBODY), pytest.raises(StoreError, match="job/a"):
        FileStore(root).exists("job/a")

    assert str(root) in caught.value.message


def test_disk_quota_counts_as_full() -> None:
    error = disk_error(OSError(errno.EDQUOT, "Disk quota exceeded"), "write 'k'", Path("/store"))

    assert isinstance(error, StoreFullError)
    assert "Disk quota exceeded" in error.message


def test_error_without_a_text_still_has_a_reason() -> None:
    error = disk_error(OSError(), "write 'k'", Path("/store"))

    assert type(error) is StoreError
    assert error.message == "Cannot write 'k': /store: OSError."


def test_copied_file_keeps_time_and_execute_permission(tmp_path: Path) -> None:
    source = tmp_path / "run.sh"
    source.write_text("#!/bin/sh\n")
    source.chmod(0o744)
    os.utime(source, ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789))
    store = FileStore(tmp_path / "store")

    store.put_file("job/run.sh", source)
    store.get_file("job/run.sh", tmp_path / "back.sh")

    assert (tmp_path / "back.sh").stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert os.access(tmp_path / "back.sh", os.X_OK)


def test_copying_the_store_onto_itself_changes_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put("job/a", b"1")
    before = (tmp_path / "job" / "a").stat()

    assert store.get_tree("job", tmp_path / "job") == 1

    after = (tmp_path / "job" / "a").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_lost_answer_of_a_network_disk_is_no_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a link whose answer was lost and reports the name as taken, by itself."""
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    store = FileStore(tmp_path)

    store.create("job/spec.json", b"mine")
    with pytest.raises(ObjectExistsError):
        store.create("job/spec.json", b"theirs")

    assert store.get("job/spec.json") == b"mine"


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_disk_without_hard_links_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(StoreError, match="no hard links") as caught:
        FileStore(tmp_path).create("job/spec.json", b"mine")

    assert "s3://" in caught.value.hint
    assert list((tmp_path / "job").iterdir()) == []


def test_other_trouble_with_a_link_is_a_store_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_source: Path, _target: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", refuse)

    with pytest.raises(StoreError, match="Input/output error"):
        FileStore(tmp_path).create("job/spec.json", b"mine")
