"""Trees made to break whoever walks them: the holder copies and replaces them all the same."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_workers.sandbox.archive import pack
from benchflow_workers.sandbox.base import Upload
from benchflow_workers.sandbox.holder import files, wire


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    # The holder's process places files without a mask; this one goes on to other tests.
    mask = os.umask(0o022)
    try:
        with ours, theirs:
            yield ours, theirs
    finally:
        os.umask(mask)


@pytest.fixture(params=[(1500, "d"), (120, "d" * 70)], ids=["deeper than a stack", "longer than a path"])
def deep(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield a folder with a tree nobody can name the end of, and a file beside it."""
    depth, name = request.param
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "zfile").write_text("x")
    script = (
        "import os, sys\nfor _ in range(int(sys.argv[1])):\n os.mkdir(sys.argv[2])\n os.chdir(sys.argv[2])"
    )
    command = [sys.executable, "-c", script, str(depth), name]
    subprocess.run(command, cwd=tmp_path / "out", check=True)
    yield tmp_path / "out"
    subprocess.run(["rm", "-rf", str(tmp_path / "out")], check=True)


def test_tree_of_any_depth_is_collected_as_far_as_it_can_be_named(
    pair: tuple[socket.socket, socket.socket], deep: Path
) -> None:
    ours, theirs = pair
    with tempfile.TemporaryFile() as stream:
        wire.send(ours, {"path": str(deep)}, [stream.fileno()])
        files.get(theirs)
        stream.seek(0)
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            names = archive.getnames()

    assert wire.receive(ours)[0] == {"done": True}
    assert names[-1] == "out/zfile"
    assert len(names) > 50


def test_tree_of_any_depth_is_replaced(deep: Path, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pack([Upload(str(deep), b"new")]) as archive:
        wire.send(ours, {"has_users": False}, [archive.fileno()])
    files.put(theirs)

    assert wire.receive(ours)[0] == {"done": True}
    assert deep.read_bytes() == b"new"


@pytest.mark.parametrize("name", ["locked", "vanished"])
def test_what_cannot_be_read_for_reasons_of_its_own_is_left_out(name: str) -> None:
    code = {"locked": errno.EACCES, "vanished": errno.ENOENT}[name]

    with files._left_out():
        raise OSError(code, name)
    with pytest.raises(OSError, match="broken"), files._left_out():
        raise OSError(errno.EIO, "broken")
