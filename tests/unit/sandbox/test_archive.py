import io
import os
import tarfile
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.archive import pack, sandbox_path, unpack
from benchflow_workers.sandbox.base import Upload

LIMIT = 1 << 20


def entry(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


def tar_of(*entries: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for item in entries:
            info, content = item if isinstance(item, tuple) else (item, b"")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    stream.seek(0)
    return stream


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def packed(*uploads: Upload) -> dict[str, tarfile.TarInfo]:
    with pack(uploads) as stream, tarfile.open(fileobj=stream) as archive:
        return {info.name: info for info in archive.getmembers()}


def test_upload_holds_only_what_was_asked_for() -> None:
    entries = packed(
        Upload("/a/b/c.sh", b"hi", mode=0o755, uid=7, gid=8), Upload("/e"), Upload("/l", link_to="x")
    )

    assert list(entries) == ["a/b/c.sh", "e", "l"]
    script = entries["a/b/c.sh"]
    assert (script.mode, script.uid, script.gid, script.size) == (0o755, 7, 8, 2)
    assert (entries["e"].isdir(), entries["e"].mode) == (True, 0o755)
    assert (entries["l"].issym(), entries["l"].linkname) == (True, "x")


def test_folder_upload_skips_pipes_and_keeps_links(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "deep" / "run").write_bytes(b"#!")
    (tmp_path / "src" / "deep" / "run").chmod(0o755)
    (tmp_path / "src" / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "src" / "pipe")

    entries = packed(Upload("/w/", source=tmp_path / "src", mode=0o700, uid=3))

    assert list(entries) == ["w", "w/deep", "w/deep/run", "w/link"]
    assert [entries[name].mode & 0o777 for name in ("w", "w/deep/run")] == [0o700, 0o755]
    assert entries["w/link"].linkname == "/etc/passwd"
    assert {info.uid for info in entries.values()} == {3}


def test_source_that_is_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")

    entries = packed(Upload("/f", source=tmp_path / "link"))

    assert (entries["f"].isreg(), entries["f"].size) == (True, 7)


def test_folder_can_be_placed_at_the_root_of_the_sandbox(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")

    entries = packed(Upload("/", source=tmp_path))

    assert "x" in entries


def test_missing_source_names_source_and_target(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="absent cannot be placed at /x: No such file") as caught:
        pack([Upload("/x", source=tmp_path / "absent")])

    assert caught.value.code == "sandbox.transfer_failed"


@pytest.mark.parametrize("target", ["relative", "", "/a/../etc"])
def test_target_outside_the_sandbox_is_refused(target: str) -> None:
    with pytest.raises(SandboxError, match="not an absolute path"):
        pack([Upload(target, b"")])


def test_paths_are_shortened() -> None:
    assert [sandbox_path(path) for path in ("/", "//a//b/", "/a/./b")] == ["/", "/a/b", "/a/b"]


def test_folder_comes_out_below_the_target(tmp_path: Path) -> None:
    stream = tar_of(
        entry("logs", tarfile.DIRTYPE, mode=0o000),
        (entry("logs/a.txt", mode=0o4751), b"A"),
        (entry("logs/sub/b.txt", mode=0o000), b"B"),
    )

    assert unpack(stream, tmp_path / "out", limit_bytes=LIMIT)

    assert names_below(tmp_path / "out") == ["a.txt", "sub", "sub/b.txt"]
    assert (tmp_path / "out/sub/b.txt").read_bytes() == b"B"
    modes = [(tmp_path / "out" / name).stat().st_mode & 0o7777 for name in ("", "a.txt", "sub/b.txt")]
    assert modes == [0o700, 0o751, 0o600]


def test_single_file_becomes_the_target(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("older")

    assert unpack(tar_of((entry("reward.txt"), b"1")), tmp_path / "out", limit_bytes=LIMIT)

    assert (tmp_path / "out").read_bytes() == b"1"


def test_links_and_devices_are_left_out(tmp_path: Path) -> None:
    stream = tar_of(
        entry("d", tarfile.DIRTYPE, mode=0o755),
        entry("d/soft", tarfile.SYMTYPE, linkname="/etc"),
        (entry("d/soft/passwd"), b"not outside"),
        entry("d/hard", tarfile.LNKTYPE, linkname="/etc/passwd"),
        entry("d/fifo", tarfile.FIFOTYPE),
        entry("d/null", tarfile.CHRTYPE),
    )

    unpack(stream, tmp_path / "out", limit_bytes=LIMIT)

    assert names_below(tmp_path / "out") == ["soft", "soft/passwd"]
    assert not (tmp_path / "out/soft").is_symlink()


def test_second_hard_link_becomes_a_copy(tmp_path: Path) -> None:
    stream = tar_of((entry("d/one"), b"same"), entry("d/two", tarfile.LNKTYPE, linkname="d/one", mode=0o600))

    unpack(stream, tmp_path / "out", limit_bytes=LIMIT)

    assert (tmp_path / "out/two").read_bytes() == b"same"
    assert (tmp_path / "out/two").stat().st_nlink == 1


@pytest.mark.parametrize("name", ["d/../../escape", "d/sub/../../../escape"])
def test_names_that_climb_are_left_out(tmp_path: Path, name: str) -> None:
    stream = tar_of((entry("d/ok"), b"ok"), (entry(name), b"evil"))

    unpack(stream, tmp_path / "a" / "b" / "out", limit_bytes=LIMIT)

    assert names_below(tmp_path) == ["a", "a/b", "a/b/out", "a/b/out/ok"]


def test_absolute_names_stay_below_the_target(tmp_path: Path) -> None:
    unpack(tar_of((entry("/d/etc/x"), b"x")), tmp_path / "out", limit_bytes=LIMIT)

    assert names_below(tmp_path / "out") == ["etc", "etc/x"]


def test_a_lone_link_is_nothing(tmp_path: Path) -> None:
    assert not unpack(tar_of(entry("l", tarfile.SYMTYPE, linkname="x")), tmp_path / "out", limit_bytes=LIMIT)
    assert not (tmp_path / "out").exists()


def test_more_bytes_than_the_limit_stop_the_copy(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="More than 100000 bytes") as caught:
        unpack(tar_of((entry("d/big"), b"x" * 600_000)), tmp_path / "out", limit_bytes=100_000)

    assert caught.value.code == "sandbox.transfer_failed"
    assert (tmp_path / "out/big").stat().st_size <= 100_000


def test_empty_files_count_against_the_limit(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="More than 4096 bytes"):
        unpack(tar_of(*(entry(f"d/{n}") for n in range(100))), tmp_path / "out", limit_bytes=4096)


def test_header_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    bomb = entry("long", tarfile.GNUTYPE_LONGNAME)
    bomb.size = 7 << 30

    with pytest.raises(SandboxError, match=r"broken archive.*extended header of 7516192768 bytes"):
        unpack(io.BytesIO(bomb.tobuf() + b"x" * 1024), tmp_path / "out", limit_bytes=LIMIT)


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 200, b"\xff" * 4096])
def test_garbage_is_a_broken_archive(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SandboxError, match="broken archive") as caught:
        unpack(io.BytesIO(data), tmp_path / "out", limit_bytes=LIMIT)

    assert caught.value.code == "sandbox.transfer_failed"


def test_truncated_archive_is_told(tmp_path: Path) -> None:
    data = tar_of((entry("d/file"), b"x" * 5000)).getvalue()[:2000]

    with pytest.raises(SandboxError, match="broken archive"):
        unpack(io.BytesIO(data), tmp_path / "out", limit_bytes=LIMIT)


def test_path_too_long_for_this_host_is_left_out(tmp_path: Path) -> None:
    stream = tar_of((entry("d/" + "x" * 300), b"long"), (entry("d/ok"), b"ok"), (entry("d/ok/below"), b"no"))

    unpack(stream, tmp_path / "out", limit_bytes=LIMIT)

    assert names_below(tmp_path / "out") == ["ok"]


def test_disk_that_refuses_is_told() -> None:
    with pytest.raises(SandboxError, match="cannot be written to") as caught:
        unpack(tar_of((entry("d/name"), b"x")), Path("/proc/no-such-place"), limit_bytes=LIMIT)

    assert caught.value.code == "sandbox.transfer_failed"


def test_file_whose_place_a_folder_took_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "out" / "name").mkdir(parents=True)

    unpack(tar_of((entry("d/name"), b"x"), (entry("d/other"), b"y")), tmp_path / "out", limit_bytes=LIMIT)

    assert names_below(tmp_path / "out") == ["name", "other"]


@pytest.mark.parametrize("part", ["d", "d" * 70], ids=["many", "long"])
def test_what_lies_too_deep_is_left_out_and_the_rest_is_kept(tmp_path: Path, part: str) -> None:
    deep = "logs/" + "/".join([part] * 1500) + "/file"

    unpack(tar_of((entry(deep), b"x"), (entry("logs/file"), b"y")), tmp_path / "out", limit_bytes=1 << 20)

    assert names_below(tmp_path / "out") == ["file"]
