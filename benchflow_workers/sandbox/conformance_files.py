"""Conformance checks of `Sandbox.put` and `Sandbox.get`."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from benchflow_workers.sandbox.base import Mount, SandboxSpec, Upload
from benchflow_workers.sandbox.conformance_bench import (
    Bench,
    Check,
    ConformanceError,
    check,
    expect_code,
    expect_equal,
    fresh_path,
    output,
    sh,
)

_MIB = 1 << 20


async def check_content_is_placed_with_owner_and_mode(bench: Bench) -> None:
    """Bytes land under their path with the asked owner and mode, parents belong to root."""
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await sandbox.put([
            Upload(f"{path}/a/b/tool", b"#!/bin/sh\necho hi\n", mode=0o750, uid=4242, gid=4343),
            Upload(f"{path}/plain", b"\x00\xff"),
        ])
        stats = await output(sandbox, f"cd {path}; stat -c '%u %g %a' a/b/tool plain a/b")
        ran = await output(sandbox, f"{path}/a/b/tool")

    expect_equal(stats.splitlines(), ["4242 4343 750", "0 0 644", "0 0 755"], "owners and modes")
    expect_equal(ran, "hi", "output of the placed script")


async def check_folder_is_placed_whole(bench: Bench) -> None:
    """A folder keeps exec bits, empty folders and links inside it, and gets its owner throughout."""
    source = bench.scratch / "folder"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("echo run")
    (source / "sub" / "run.sh").chmod(0o755)
    (source / "data.txt").write_text("data")
    (source / "data.txt").chmod(0o644)
    (source / "link").symlink_to("sub/run.sh")
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await sandbox.put([Upload(path, source=source, uid=77, gid=78)])
        script = f"cd {path}; stat -c '%n %u %g %A' data.txt sub sub/empty sub/run.sh link; readlink link"
        listing = await output(sandbox, script)

    expected = [
        "data.txt 77 78 -rw-r--r--",
        "sub 77 78 drwxr-xr-x",
        "sub/empty 77 78 drwxr-xr-x",
        "sub/run.sh 77 78 -rwxr-xr-x",
        "link 77 78 lrwxrwxrwx",
        "sub/run.sh",
    ]
    expect_equal(listing.splitlines(), expected, "placed folder")


async def check_empty_folder_and_link_are_placed(bench: Bench) -> None:
    """An upload without content is a folder; `link_to` is a link, also a dangling one."""
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        uploads = [Upload(f"{path}/d", mode=0o1777), Upload(f"{path}/l", link_to="/nowhere/at/all")]
        await sandbox.put(uploads)
        found = await output(sandbox, f"stat -c '%a %F' {path}/d; ls {path}/d; readlink {path}/l")

    expect_equal(found.splitlines(), ["1777 directory", "/nowhere/at/all"], "folder and link")


async def check_put_replaces_what_is_there(bench: Bench) -> None:
    """A file is replaced, and a planted link is replaced itself, not what it points to."""
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(
            sandbox, f"mkdir {path}; cd {path}; echo old >file; echo safe >victim; ln -s victim trap"
        )
        await sandbox.put([Upload(f"{path}/file", b"new"), Upload(f"{path}/trap", b"mine")])
        found = await output(sandbox, f"cd {path}; cat file; echo; cat victim; test ! -L trap && cat trap")

    expect_equal(found.split(), ["new", "safe", "mine"], "file, link's target, former link")


async def check_put_of_a_folder_merges(bench: Bench) -> None:
    """A folder placed over another keeps files that only the older one has, and the mode of parents."""
    source = bench.scratch / "merge"
    source.mkdir()
    (source / "new").write_text("new")
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(sandbox, f"mkdir -p -m 711 {path}; mkdir {path}/d; echo old >{path}/d/old")
        await sandbox.put([Upload(f"{path}/d", source=source)])
        found = await output(sandbox, f"ls {path}/d; stat -c %a {path}")

    expect_equal(found.split(), ["new", "old", "711"], "files, and the parent's mode")


async def check_uploads_of_the_spec_are_there_first(bench: Bench) -> None:
    """Uploads named in the spec are in place for the first command."""
    spec = bench.make_spec()
    uploads = (Upload("/bf-first/note", b"hello", mode=0o600), Upload("/bf-first/out", mode=0o777))
    async with bench.fresh(_with_uploads(spec, uploads)) as sandbox:
        found = await output(sandbox, "cat /bf-first/note; stat -c ' %a' /bf-first/out")

    expect_equal(found.split(), ["hello", "777"], "uploads")


def _with_uploads(spec: SandboxSpec, uploads: tuple[Upload, ...]) -> SandboxSpec:
    return replace(spec, uploads=(*spec.uploads, *uploads))


async def check_big_file_survives_both_ways(bench: Bench) -> None:
    """40 MB go up and come down unchanged."""
    block = os.urandom(_MIB)
    source, back = bench.scratch / "big", bench.scratch / "big-back"
    source.write_bytes(block * 40)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await sandbox.put([Upload(path, source=source)])
        inside = await output(sandbox, f"sha256sum <{path}")
        found = await sandbox.get(path, back)

    expect_equal(inside.split()[0], digest, "digest inside the sandbox")
    expect_equal((found, hashlib.sha256(back.read_bytes()).hexdigest()), (True, digest), "digest of the copy")


async def check_get_copies_a_folder(bench: Bench) -> None:
    """A folder's content lands in the target with its modes, empty folders and second names of a file included."""
    target = bench.scratch / "got" / "deep"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        script = (
            "mkdir sub empty; echo one >sub/one; chmod 640 sub/one; echo two >two; chmod 755 two; ln two same"
        )
        await output(sandbox, f"mkdir {path}; cd {path}; {script}")
        found = await sandbox.get(path, target)

    expect_equal(found, True, "found")
    expect_equal(_tree(target), ["empty", "same", "sub", "sub/one", "two"], "files")
    modes = [oct((target / name).stat().st_mode & 0o777) for name in ("sub/one", "two")]
    expect_equal(modes, ["0o640", "0o755"], "modes")
    contents = [(target / name).read_text() for name in ("sub/one", "two", "same")]
    expect_equal(contents, ["one\n", "two\n", "two\n"], "contents")


async def check_get_copies_a_file(bench: Bench) -> None:
    """A file becomes the target, replacing an older one."""
    target = bench.scratch / "file" / "copy"
    target.parent.mkdir()
    target.write_text("older and longer")
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(sandbox, f"printf new >{path}")
        found = await sandbox.get(path, target)

    expect_equal((found, target.read_bytes()), (True, b"new"), "copy")


async def check_get_of_nothing_is_false(bench: Bench) -> None:
    """A path that does not exist is False and writes nothing."""
    target = bench.scratch / "nothing"
    async with bench.sandbox() as sandbox:
        missing = await sandbox.get("/no/such/path", target)
        below_file = await sandbox.get("/etc/passwd/x", target)

    expect_equal((missing, below_file, target.exists()), (False, False, False), "found, found, written")


async def check_get_of_an_empty_folder_is_true(bench: Bench) -> None:
    """An empty folder exists, so it is found and made."""
    target = bench.scratch / "hollow"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(sandbox, f"mkdir {path}")
        found = await sandbox.get(path, target)

    expect_equal((found, target.is_dir()), (True, True), "found, made")


async def check_get_leaves_out_links_and_devices(bench: Bench) -> None:
    """Links, pipes and devices never make a file outside the target, nor block."""
    target = bench.scratch / "guarded" / "in"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        script = (
            "ln -s ../../escape up; ln -s /etc/passwd abs; ln -s /etc etc; mkfifo pipe; "
            "mknod dev c 1 3 2>/dev/null; mkdir d; ln -s ../.. d/out; echo ok >d/ok"
        )
        await output(sandbox, f"mkdir {path}; cd {path}; {script}")
        found = await sandbox.get(path, target)

    expect_equal(found, True, "found")
    expect_equal(_tree(target), ["d", "d/ok"], "what was copied")
    expect_equal(_tree(target.parent), ["in", "in/d", "in/d/ok"], "what is beside the target")


async def check_get_of_a_link_is_false(bench: Bench) -> None:
    """A link at the path itself is left out like any other, so nothing is found."""
    target = bench.scratch / "linked"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(sandbox, f"ln -s /etc/passwd {path}")
        found = await sandbox.get(path, target)

    expect_equal((found, target.exists()), (False, False), "found, written")


async def check_unreadable_modes_stay_usable_here(bench: Bench) -> None:
    """Set-id bits are dropped, and the worker can read and delete what it copied."""
    target = bench.scratch / "locked"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        script = "mkdir dark; echo x >dark/file; echo y >suid; chmod 4755 suid; chmod 0 dark/file dark"
        await output(sandbox, f"mkdir {path}; cd {path}; {script}")
        await sandbox.get(path, target)

    expect_equal((target / "dark/file").read_text(), "x\n", "content")
    mode = (target / "suid").stat().st_mode & 0o7777
    expect_equal(oct(mode), "0o755", "mode of a set-uid file")


async def check_tree_without_end_is_copied_in_part(bench: Bench) -> None:
    """A tree deeper than the longest path costs no more than itself: what is beside it is copied."""
    target = bench.scratch / "endless"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        name = "d" * 70
        script = f"i=0; while [ $i -lt 80 ]; do mkdir {name} && cd -P ./{name} || exit 1; i=$((i+1)); done"
        await output(sandbox, f"mkdir {path}; cd {path}; echo x >beside; ({script})")
        found = await sandbox.get(path, target)

    expect_equal((found, (target / "beside").read_text()), (True, "x\n"), "found, content")


async def check_get_stops_at_its_limit(bench: Bench) -> None:
    """More than `limit_bytes` is an error, and not much more is written."""
    target = bench.scratch / "limited"
    async with bench.sandbox() as sandbox:
        path = fresh_path()
        await output(sandbox, f"mkdir {path}; head -c 30000000 /dev/zero >{path}/zeros")
        call = sandbox.get(path, target, limit_bytes=_MIB)
        await expect_code(call, "sandbox.transfer_failed", "get over its limit")

    written = sum(item.stat().st_size for item in target.rglob("*") if item.is_file())
    if written > _MIB:
        raise ConformanceError(f"get wrote {written} bytes under a limit of {_MIB}.")


async def check_tmpfs_paths_work_both_ways(bench: Bench) -> None:
    """Files in a tmpfs go up and come down like all others."""
    folder, target = f"/dev/shm/{fresh_path()[5:]}", bench.scratch / "shm"
    async with bench.sandbox() as sandbox:
        uploads = [Upload(f"{folder}/up", b"up", mode=0o640, uid=5, gid=6), Upload(fresh_path(), b"disk")]
        await sandbox.put(uploads)
        seen = await output(
            sandbox, f"cat {folder}/up; stat -c ' %u %g %a' {folder}/up; cat {uploads[1].target}"
        )
        await output(sandbox, f"echo down >{folder}/down; mkdir {folder}/empty; ln -s /etc {folder}/etc")
        found = await sandbox.get(folder, target)
        single = await sandbox.get(f"{folder}/down", bench.scratch / "shm-file")
        missing = await sandbox.get(f"{folder}/none", bench.scratch / "shm-none")
        over = sandbox.get(folder, bench.scratch / "shm-over", limit_bytes=3)
        await expect_code(over, "sandbox.transfer_failed", "get from tmpfs over its limit")

    expect_equal(seen.split(), ["up", "5", "6", "640", "disk"], "placed file as seen inside")
    expect_equal((found, single, missing), (True, True, False), "found")
    expect_equal(_tree(target), ["down", "empty", "up"], "copied files")


def _tree(root: Path) -> list[str]:
    """Return everything below a folder as sorted relative paths."""
    return sorted(str(item.relative_to(root)) for item in root.rglob("*"))


async def check_a_mount_is_seen_and_cannot_be_changed(bench: Bench) -> None:
    """A folder of the host is there with its exec bits, and stays as it is whatever root does inside."""
    folder = bench.scratch / "mounted"
    folder.mkdir(exist_ok=True)
    program = folder / "program"
    program.write_text("#!/bin/sh\necho mounted\n")
    program.chmod(0o755)
    spec = replace(bench.make_spec(), mounts=(Mount(folder, "/opt/bf-mounted"),))
    async with bench.fresh(spec) as sandbox:
        said = await output(sandbox, "/opt/bf-mounted/program")
        await sh(
            sandbox,
            "echo no >/opt/bf-mounted/program; rm -rf /opt/bf-mounted; chmod 777 /opt/bf-mounted/program",
        )

    expect_equal(said, "mounted", "output of a program in it")
    expect_equal(program.read_text(), "#!/bin/sh\necho mounted\n", "the program on the host")


FILE_CHECKS: tuple[Check, ...] = (
    check(check_a_mount_is_seen_and_cannot_be_changed),
    check(check_content_is_placed_with_owner_and_mode, "users"),
    check(check_folder_is_placed_whole, "users"),
    check(check_empty_folder_and_link_are_placed),
    check(check_put_replaces_what_is_there),
    check(check_put_of_a_folder_merges),
    check(check_uploads_of_the_spec_are_there_first),
    check(check_big_file_survives_both_ways),
    check(check_get_copies_a_folder),
    check(check_get_copies_a_file),
    check(check_get_of_nothing_is_false),
    check(check_get_of_an_empty_folder_is_true),
    check(check_get_leaves_out_links_and_devices),
    check(check_get_of_a_link_is_false),
    check(check_unreadable_modes_stay_usable_here),
    check(check_tree_without_end_is_copied_in_part),
    check(check_get_stops_at_its_limit),
    check(check_tmpfs_paths_work_both_ways, "tmpfs", "users"),
)
"""Checks of moving files."""
