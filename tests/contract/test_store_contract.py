"""What every store promises, over a folder and over a loopback S3 server."""

from __future__ import annotations

import http.client
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pydantic import SecretStr

from benchflow_client.errors import ObjectExistsError, ObjectNotFoundError, StoreError
from benchflow_client.store.base import Store
from benchflow_client.store.options import S3Options
from benchflow_client.store.registry import open_store

_NUMBERS = count()


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port, timeout=10)
    connection.request("PUT", "/bench")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["files", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "files":
        return open_store(str(tmp_path / "store"))
    options = S3Options(
        endpoint=request.getfixturevalue("s3_endpoint"),
        access_key_id=SecretStr("AKIAEXAMPLE"),
        secret_access_key=SecretStr("not-a-real-secret"),
    )
    return open_store(f"s3://bench/test/{next(_NUMBERS)}", s3=options)


def test_document_is_read_as_written(store: Store) -> None:
    store.put("job/spec.json", b'{"a": 1}\n')

    assert store.get("job/spec.json") == b'{"a": 1}\n'


def test_empty_document_is_a_document(store: Store) -> None:
    store.put("job/empty", b"")

    assert store.get("job/empty") == b""
    assert store.exists("job/empty")


def test_put_replaces_what_is_there(store: Store) -> None:
    store.put("job/k", b"a long first version")
    store.put("job/k", b"second")

    assert store.get("job/k") == b"second"


def test_missing_document_is_named(store: Store) -> None:
    with pytest.raises(ObjectNotFoundError, match="job/none") as caught:
        store.get("job/none")

    assert store.url in caught.value.message


def test_missing_document_does_not_exist(store: Store) -> None:
    assert not store.exists("job/none")


def test_folder_is_no_document(store: Store) -> None:
    store.put("job/a/b", b"1")

    assert not store.exists("job/a")
    with pytest.raises(ObjectNotFoundError):
        store.get("job/a")


def test_first_creator_wins(store: Store) -> None:
    store.create("job/spec.json", b"first")

    with pytest.raises(ObjectExistsError, match=r"job/spec\.json"):
        store.create("job/spec.json", b"second")
    assert store.get("job/spec.json") == b"first"


def test_same_bytes_are_no_excuse_to_create_twice(store: Store) -> None:
    store.create("job/spec.json", b"same")

    with pytest.raises(ObjectExistsError):
        store.create("job/spec.json", b"same")


def test_reader_sees_an_old_or_a_new_document_but_no_part(store: Store) -> None:
    versions = [bytes([65 + number]) * 200_000 for number in range(8)]
    store.put("job/k", versions[0])
    is_done = threading.Event()

    def write() -> None:
        for version in versions:
            store.put("job/k", version)
        is_done.set()

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        seen = [store.get("job/k")]
        while not is_done.is_set():
            seen.append(store.get("job/k"))
        writing.result()

    assert set(seen) <= set(versions)
    assert store.get("job/k") == versions[-1]


def test_list_yields_every_key_below_a_folder_and_no_neighbour(store: Store) -> None:
    for key in ("job/a", "job/x/b", "job/x/y/c", "job-2/d", "job.txt"):
        store.put(key, b"1")

    assert sorted(store.list("job/")) == ["job/a", "job/x/b", "job/x/y/c"]
    assert sorted(store.list("job")) == ["job/a", "job/x/b", "job/x/y/c"]


def test_list_of_everything_is_the_empty_prefix(store: Store) -> None:
    store.put("job/a", b"1")
    store.put("b", b"1")

    assert sorted(store.list("")) == ["b", "job/a"]


def test_list_below_nothing_is_empty(store: Store) -> None:
    store.put("job/a", b"1")

    assert list(store.list("other/")) == []
    assert list(store.list("job/a/")) == []


@pytest.mark.parametrize(
    "key",
    ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/", "a\0b", "a\nb", "a\udcffb"],
)
@pytest.mark.parametrize("method", ["put", "create", "get", "exists"])
def test_key_that_is_no_relative_path_is_refused(store: Store, key: str, method: str) -> None:
    arguments = (key, b"1") if method in {"put", "create"} else (key,)

    with pytest.raises(StoreError, match="cannot be a key"):
        getattr(store, method)(*arguments)


@pytest.mark.parametrize(
    "key", ["a b/c", "a%20b", "a#?&=+c", "é/ü漢", "x\\y", "a:b", "~t", "[x]", "'q'", "..a", "a..", "*"]
)
def test_key_may_have_any_printable_character(store: Store, key: str) -> None:
    store.put(f"job/{key}", b"1")

    assert store.get(f"job/{key}") == b"1"
    assert list(store.list("job")) == [f"job/{key}"]


def test_large_file_makes_the_round_trip(store: Store, tmp_path: Path) -> None:
    content = os.urandom(20 * 1024 * 1024 + 7)
    source, target = tmp_path / "source", tmp_path / "new" / "target"
    source.write_bytes(content)

    store.put_file("job/big", source)
    store.get_file("job/big", target)

    assert target.read_bytes() == content


def test_empty_file_makes_the_round_trip(store: Store, tmp_path: Path) -> None:
    (tmp_path / "source").touch()

    store.put_file("job/empty", tmp_path / "source")
    store.get_file("job/empty", tmp_path / "target")

    assert (tmp_path / "target").read_bytes() == b""


def test_missing_document_leaves_no_file(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="job/none"):
        store.get_file("job/none", tmp_path / "out" / "target")

    assert not list(tmp_path.rglob("target"))


def test_missing_source_is_a_store_error_with_its_path(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent") as caught:
        store.put_file("job/k", tmp_path / "absent")

    assert not isinstance(caught.value, ObjectNotFoundError)


def test_symlink_and_pipe_are_no_source(store: Store, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")

    for name in ("link", "pipe", "."):
        with pytest.raises(StoreError):
            store.put_file("job/k", tmp_path / name)
    assert not store.exists("job/k")


def test_tree_makes_the_round_trip_with_its_executables(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "er").mkdir(parents=True)
    (source / "top.txt").write_text("top")
    (source / "deep" / "er" / "run.sh").write_text("#!/bin/sh\n")
    (source / "deep" / "er" / "run.sh").chmod(0o755)

    store.put_tree("job/trial/", source)
    copied = store.get_tree("job/trial", tmp_path / "out")

    assert copied == 2
    assert (tmp_path / "out" / "top.txt").read_text() == "top"
    script = tmp_path / "out" / "deep" / "er" / "run.sh"
    assert stat.S_IMODE(script.stat().st_mode) & 0o111
    assert not (tmp_path / "out" / "top.txt").stat().st_mode & 0o111


def test_tree_leaves_out_symlinks_pipes_and_unfinished_files(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "plain").write_text("x")
    (source / "link").symlink_to("/etc/hostname")
    (source / "linked-folder").symlink_to("/etc")
    (source / ".benchflow-tmp-0011").write_text("half")
    os.mkfifo(source / "pipe")

    store.put_tree("job/trial", source)

    assert list(store.list("job")) == ["job/trial/plain"]


def test_tree_keeps_files_with_names_no_key_may_have(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "two\nlines").write_text("1")
    Path(os.fsdecode(os.fsencode(source) + b"/caf\xe9")).write_text("2")

    store.put_tree("job/trial", source)

    assert sorted(store.list("job")) == ["job/trial/caf\\xe9", "job/trial/two\\x0alines"]


def test_tree_of_a_missing_folder_is_an_error(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent"):
        store.put_tree("job/trial", tmp_path / "absent")


def test_tree_is_not_copied_twice(store: Store, tmp_path: Path) -> None:
    store.put("job/a", b"kept")
    store.get_tree("job", tmp_path / "out")
    before = (tmp_path / "out" / "a").stat()

    count_again = store.get_tree("job", tmp_path / "out")

    after = (tmp_path / "out" / "a").stat()
    assert count_again == 1
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"k"), lambda path: os.utime(path, (1, 1))])
def test_local_file_of_other_size_or_older_time_is_replaced(
    store: Store, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    store.put("job/a", b"kept")
    store.get_tree("job", tmp_path / "out")
    spoil(tmp_path / "out" / "a")

    store.get_tree("job", tmp_path / "out")

    assert (tmp_path / "out" / "a").read_bytes() == b"kept"
    assert (tmp_path / "out" / "a").stat().st_mtime > 1


def test_nothing_lands_outside_the_folder(store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "door").symlink_to(outside)
    (out / "kept").symlink_to(outside / "kept")
    for key in ("job/door/evil", "job/kept", "job/fine"):
        store.put(key, b"theirs")

    copied = store.get_tree("job", out)

    assert copied == 2
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "mine"
    assert (out / "kept").read_bytes() == b"theirs"


def test_delete_tree_removes_what_is_below_and_nothing_else(store: Store) -> None:
    for key in ("job/a", "job/x/b", "job-2/c"):
        store.put(key, b"1")

    store.delete_tree("job/")
    store.delete_tree("job/")

    assert list(store.list("")) == ["job-2/c"]


def test_whole_store_is_never_deleted_by_an_empty_prefix(store: Store) -> None:
    store.put("job/a", b"1")

    for prefix in ("", "/", "job/.."):
        with pytest.raises(StoreError):
            store.delete_tree(prefix)
    assert store.exists("job/a")


def test_store_serves_several_threads(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: store.put(f"job/{number}", str(number).encode()), range(40)))
        read = list(pool.map(lambda number: store.get(f"job/{number}"), range(40)))

    assert read == [str(number).encode() for number in range(40)]
    assert len(list(store.list("job"))) == 40
