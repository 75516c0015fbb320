"""The small parts that run beside sandboxes: frames, users, the server loop, killing, moving files."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchflow_workers.sandbox.holder import files, killing, nursery, users, wire
from benchflow_workers.sandbox.holder.server import Server

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_the_holder_imports_nothing_but_the_standard_library() -> None:
    """It is forked for every sandbox, so its memory and its start are everybody's."""
    program = (
        "import sys; sys.path.append(sys.argv[1]); import benchflow_workers.sandbox.holder.nursery\n"
        "ours = [n for n in sys.modules if n.startswith('benchflow') and not n.startswith('benchflow_workers.sandbox.holder')]\n"
        "print(sorted(ours), 'asyncio' in sys.modules, 'pydantic' in sys.modules)"
    )

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(REPOSITORY)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.strip() == "['benchflow_workers', 'benchflow_workers.sandbox'] False False", (
        done.stderr
    )


def test_a_frame_keeps_any_text_and_carries_descriptors(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    message = {"text": "ü\udcff", "big": "x" * 300_000, "n": [1, None]}
    reader, writer = os.pipe()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)

    wire.send(ours, message, [writer])
    found, fds = wire.receive(theirs)

    assert found == message
    os.write(fds[0], b"through")
    assert os.read(reader, 7) == b"through"
    assert not os.get_inheritable(fds[0])
    wire.close_all([*fds, reader, writer, writer])


def test_a_closed_peer_is_the_end_for_readers_and_no_error_for_writers(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    theirs.sendall(b"\0\0")
    theirs.close()

    wire.send(ours, {"a": 1})
    with pytest.raises(EOFError):
        wire.receive(ours)


def etc(folder: Path) -> Path:
    (folder / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nbroken line\nann:x:1000:100::/home/ann:/bin/sh\nodd:x:no:1::/:\nbob:x:7:8:::\n"
    )
    (folder / "group").write_text("users:x:100:\nsudo:x:27:bob,ann\nother:x:28:bob\n")
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ann", users.User(1000, 100, (27, 100), "/home/ann")),
        ("1000", users.User(1000, 100, (27, 100), "/home/ann")),
        ("bob", users.User(7, 8, (8, 27, 28), "/")),
        ("root", users.User(0, 0, (0,), "/root")),
        ("4242", users.User(4242, 4242, (4242,), "/")),
        ("odd", None),
        ("nobody-knows", None),
    ],
)
def test_users_are_found_by_name_and_number(tmp_path: Path, name: str, expected: users.User | None) -> None:
    assert users.find(name, etc(tmp_path)) == expected


def test_root_is_known_where_there_is_no_passwd(tmp_path: Path) -> None:
    assert users.find("root", tmp_path) == users.User(0, 0, (0,), "/root")
    assert users.find("ann", tmp_path) is None


@pytest.fixture
def serve() -> Iterator[Callable[[Server], None]]:
    """Runs a server until its control socket ends, then gives this process its signals back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD)}
    yield lambda server: server.serve()
    for fd in (signal.set_wakeup_fd(-1),):
        os.close(fd)
    for number, handler in before.items():
        signal.signal(number, handler)


def ask(control: socket.socket, datagram: bytes, *requests: dict[str, object]) -> socket.socket:
    ours, theirs = socket.socketpair()
    with theirs:
        socket.send_fds(control, [datagram], [theirs.fileno()])
    for request in requests:
        wire.send(ours, request)
    return ours


def answers(channel: socket.socket) -> dict[str, object]:
    found: dict[str, object] = {}
    with channel:
        channel.settimeout(20)
        while True:
            try:
                found.update(wire.receive(channel)[0])
            except EOFError:
                return found


def test_the_server_forks_for_requests_and_tells_how_each_ended(serve: Callable[[Server], None]) -> None:
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def echo(channel: socket.socket) -> None:
        wire.send(channel, {"got": wire.receive(channel)[0]["n"], "pid": os.getpid()})

    def refuse(channel: socket.socket) -> None:
        raise PermissionError(13, "not you")

    def die(channel: socket.socket) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def inline(server: Server, request: dict[str, object]) -> dict[str, object]:
        # Requests before this one were forked; wait for their end, so that it is told before we stop.
        while server.own_pids:
            server.reap()
        control.shutdown(socket.SHUT_RDWR)
        return {"answer": request["n"]}

    server = Server(theirs, {b"x": echo, b"r": refuse, b"d": die}, {b"i": inline})
    asked = [ask(control, b"x", {"n": 5}), ask(control, b"r"), ask(control, b"d"), ask(control, b'i{"n": 7}')]

    with control, theirs:
        serve(server)

    echoed, refused, died, inlined = map(answers, asked)
    assert (echoed["got"], echoed["status"]) == (5, 0)
    assert echoed["pid"] != os.getpid()
    assert (refused["error"], refused["errno"], refused["exit"]) == ("[Errno 13] not you", 13, 126)
    assert died == {"status": -9}
    assert inlined == {"answer": 7}


def test_a_marked_tree_is_killed_and_nothing_else() -> None:
    tag = f"{os.getpid()}-tag"
    script = "trap '' TERM; setsid sleep 4713 & env -i sleep 4713 & echo up; wait"
    marked = subprocess.Popen(
        ["sh", "-c", script], env={"BF_EXEC_ID": tag, "PATH": os.defpath}, stdout=subprocess.PIPE
    )
    spared = subprocess.Popen(["sleep", "4714"], env={"BF_EXEC_ID": "other"})
    assert marked.stdout is not None
    with marked.stdout:
        assert marked.stdout.readline() == b"up\n"
        children = {process.pid for process in killing.scan() if process.parent == marked.pid}

        left = killing.kill_all(killing.by_tag(tag), exempt=frozenset, deadline_s=10)

    assert left == []
    assert marked.wait(10) == -signal.SIGKILL
    assert children & {process.pid for process in killing.scan()} == set()
    assert spared.poll() is None
    spared.kill()
    spared.wait()


def test_the_first_process_kills_by_mark_and_spares_unknown_users() -> None:
    process = subprocess.Popen(["sleep", "4719"], env={"BF_EXEC_ID": "asked"})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server = Server(theirs, {})
        unknown = nursery.kill(server, {"user": "nobody-knows", "has_users": True, "deadline_s": 1})
        alive = process.poll()
        killed = nursery.kill(server, {"tag": "asked", "deadline_s": 10})

    assert (unknown, alive, killed) == ({"left": []}, None, {"left": []})
    assert Path(f"/proc/{process.pid}").exists() is False
    process.wait()


def test_what_is_still_there_at_the_deadline_is_told() -> None:
    process = subprocess.Popen(["sleep", "4715"], env={"BF_EXEC_ID": "late"})

    left = killing.kill_all(killing.by_tag("late"), exempt=frozenset, deadline_s=-1)

    assert left == [process.pid]
    process.kill()
    process.wait()


def test_an_exempt_process_is_not_touched() -> None:
    process = subprocess.Popen(["sleep", "4716"], env={"BF_EXEC_ID": "own"})

    left = killing.kill_all(killing.by_tag("own"), exempt=lambda: frozenset({process.pid}), deadline_s=10)

    assert (left, process.poll()) == ([], None)
    process.kill()
    process.wait()


def test_a_user_is_matched_by_any_of_its_ids() -> None:
    process = killing.Process(5, 1, frozenset({0, 1000}), b"")

    assert killing.by_uid(1000)(process)
    assert not killing.by_uid(1001)(process)


def archive_of(folder: Path, entries: list[tarfile.TarInfo], content: bytes = b"") -> int:
    path = folder / "archive.tar"
    with tarfile.open(path, "w") as archive:
        for entry in entries:
            entry.size = len(content) if entry.isreg() else 0
            archive.addfile(entry, io.BytesIO(content))
    return os.open(path, os.O_RDONLY)


def entry(path: Path, kind: bytes = tarfile.REGTYPE, *, mode: int = 0o644, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(str(path).lstrip("/"))
    info.type, info.mode, info.linkname = kind, mode, link
    return info


def put(pair: tuple[socket.socket, socket.socket], fd: int) -> dict[str, object]:
    ours, theirs = pair
    wire.send(ours, {"has_users": False}, [fd])
    os.close(fd)
    mask = os.umask(0o022)
    try:
        files.put(theirs)
    finally:
        os.umask(mask)
    return wire.receive(ours)[0]


def test_entries_replace_what_is_in_their_way(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    root = tmp_path / "root"
    (root / "folder" / "deep").mkdir(parents=True)
    (root / "kept").mkdir(mode=0o711)
    (root / "kept" / "old").write_text("old")
    (root / "victim").write_text("safe")
    (root / "trap").symlink_to("victim")
    (root / "dangling").symlink_to("nowhere")
    fifo = entry(root / "pipe", tarfile.FIFOTYPE)
    entries = [
        entry(root / "folder"),
        entry(root / "trap", mode=0o750),
        entry(root / "kept", tarfile.DIRTYPE, mode=0o700),
        entry(root / "dangling" / "file"),
        entry(root / "new", tarfile.DIRTYPE, mode=0o1777),
        entry(root / "link", tarfile.SYMTYPE, link="/nowhere"),
        fifo,
    ]

    answer = put(pair, archive_of(tmp_path, entries, b"data"))

    assert answer == {"done": True}
    assert (root / "folder").read_bytes() == b"data"
    assert (root / "victim").read_text() == "safe"
    assert oct((root / "trap").lstat().st_mode) == "0o100750"
    assert ((root / "kept" / "old").read_text(), oct((root / "kept").stat().st_mode)) == ("old", "0o40700")
    assert (root / "dangling" / "file").read_bytes() == b"data"
    assert oct((root / "new").stat().st_mode) == "0o41777"
    assert os.readlink(root / "link") == "/nowhere"
    assert not (root / "pipe").exists()


def get(pair: tuple[socket.socket, socket.socket], path: Path) -> list[tuple[str, str]]:
    ours, theirs = pair
    reader, writer = os.pipe()
    wire.send(ours, {"path": str(path)}, [writer])
    os.close(writer)
    files.get(theirs)
    assert wire.receive(ours)[0] == {"done": True}
    with os.fdopen(reader, "rb") as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        return [(item.name, "folder" if item.isdir() else "file") for item in archive]


def test_only_folders_and_regular_files_are_collected(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    root = tmp_path / "out"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "file").write_text("x")
    (root / "link").symlink_to("/etc/passwd")
    os.mkfifo(root / "pipe")

    assert get(pair, root) == [("out", "folder"), ("out/sub", "folder"), ("out/sub/file", "file")]


@pytest.mark.parametrize("name", ["missing", "file/below", "link"])
def test_nothing_is_collected_of_what_is_no_file_or_folder(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")

    assert get(pair, tmp_path / name) == []


def test_a_reader_that_goes_away_ends_the_copy(
    pair: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    (tmp_path / "big").write_bytes(b"x" * (1 << 20))
    reader, writer = os.pipe()
    os.close(reader)
    ours, theirs = pair
    wire.send(ours, {"path": str(tmp_path / "big")}, [writer])
    os.close(writer)

    files.get(theirs)
    theirs.close()

    with pytest.raises(EOFError):
        wire.receive(ours)


def test_a_file_that_shrinks_while_it_is_copied_is_filled_up() -> None:
    padded = files.Padded(io.BytesIO(b"abc"), 6)

    assert padded.read(4) == b"abc\0"
    assert padded.read() == b"\0\0"
    assert padded.read() == b""
