"""What is kept of a workspace: its limits, what cannot be kept, and what is masked in it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from benchflow_client.schema.trial import FrozenWorkspace
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.testing import ScriptedSandbox, ScriptedSandboxes, completed
from benchflow_workers.trial import frozen as module
from benchflow_workers.trial.frozen import ENTRY_LIMIT, FILE_LIMIT_BYTES, freeze, freeze_files
from benchflow_workers.trial.redact import Redactor

SECRET = "s3cr3t-value-of-a-key"
Make = Callable[..., ScriptedSandbox]


def listed(
    count: int, *, links: Mapping[str, str] | None = None, modes: Mapping[str, str] | None = None
) -> bytes:
    records = [("place", "/app", ""), ("count", str(count), "")]
    records += [("link", f"./{path}", target) for path, target in (links or {}).items()]
    records += [("mode", f"./{path}", mode) for path, mode in (modes or {}).items()]
    return b"".join("\0".join(record).encode() + b"\0" for record in records)


@pytest.fixture
def make() -> Make:
    sandboxes = ScriptedSandboxes()

    def made(
        files: Mapping[str, bytes], listing: bytes, code: int = 0, error: bytes = b""
    ) -> ScriptedSandbox:
        sandboxes.on("benchflow-list", completed(code, listing, error))
        spec = SandboxSpec(
            name="one", labels={}, image="x", build_context=None, build_digest="", workdir="/app"
        )
        sandbox = ScriptedSandbox(sandboxes, spec)
        sandbox.files.update(files)
        return sandbox

    return made


async def kept(
    sandbox: ScriptedSandbox, room: Path, *secrets: str
) -> tuple[FrozenWorkspace | None, tuple[str, ...]]:
    return await freeze(sandbox, room, redactor=Redactor(frozenset(secrets)), timeout_s=5)


def packed(room: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(room / "workspace.tar.gz") as tar:
        return {entry.name: entry for entry in tar.getmembers()}


async def test_files_links_and_modes_are_kept_with_their_digests(make: Make, tmp_path: Path) -> None:
    listing = listed(5, links={"sub/link": "../a"}, modes={"a": "400"})
    sandbox = make({"/app/a": b"one", "/app/sub/b": b"four"}, listing)

    frozen, warnings = await kept(sandbox, tmp_path / "room")

    assert warnings == ()
    assert frozen is not None
    assert (frozen.workdir, frozen.entries, frozen.size_bytes, frozen.is_whole) == ("/app", 4, 7, True)
    found = packed(tmp_path / "room")
    assert sorted(found) == ["workspace/a", "workspace/sub", "workspace/sub/b", "workspace/sub/link"]
    assert (found["workspace/a"].mode, found["workspace/sub/link"].linkname) == (0o400, "../a")
    lines = {
        line["path"]: line for line in json.loads((tmp_path / "room/manifest.json").read_text())["files"]
    }
    assert lines["sub/b"]["sha256"] == "04efaf080f5a3e74e1c29d1ca6a48569382cbbcd324e8d59d2b83ef21c039f00"


async def test_secrets_are_masked_and_a_warning_says_in_how_many_files(make: Make, tmp_path: Path) -> None:
    files = {"/app/a": f"key {SECRET}\n".encode(), "/app/b": b"plain", "/app/c": SECRET.encode()}

    frozen, warnings = await kept(make(files, listed(4)), tmp_path / "room", SECRET)

    assert frozen is not None
    assert warnings == ("Secrets were masked in 2 files of the kept workspace; judged again it may differ.",)
    with tarfile.open(tmp_path / "room/workspace.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    assert (tmp_path / "workspace/b").read_bytes() == b"plain"
    assert (
        SECRET.encode()
        not in (tmp_path / "workspace/a").read_bytes() + (tmp_path / "workspace/c").read_bytes()
    )
    assert SECRET not in (tmp_path / "room/manifest.json").read_text()


async def test_too_many_entries_are_not_kept_and_cost_nothing_but_a_warning(
    make: Make, tmp_path: Path
) -> None:
    frozen, warnings = await kept(make({}, b"", 98, b"200002\n"), tmp_path / "room")

    assert frozen is None
    assert warnings == (
        "The workspace was not kept, so it cannot be judged again. It holds 200002 entries; 200000 are kept.",
    )
    assert ENTRY_LIMIT == 200_000


async def test_too_many_bytes_are_not_kept(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIZE_LIMIT_BYTES", 10)

    frozen, (warning,) = await kept(make({"/app/a": b"eleven bytes"}, listed(2)), tmp_path / "room")

    assert frozen is None
    assert warning.endswith("More than 10 bytes would be written.")


async def test_what_a_sandbox_could_not_hand_out_is_counted(make: Make, tmp_path: Path) -> None:
    frozen, warnings = await kept(make({"/app/a": b"x"}, listed(5)), tmp_path / "room")

    assert frozen is not None
    assert warnings == ("3 entries of the workspace could not be kept; judged again it may differ.",)


async def test_links_that_cannot_be_where_a_listing_says_are_not_packed(make: Make, tmp_path: Path) -> None:
    """A changed `find` could lead what is written later out of the workspace, through a link it made up."""
    links = {
        "../out": "/etc",
        "/etc/out": "/etc",
        "a": "/etc/passwd",
        "fine": "/usr/local/bin",
        "fine/python3": "/app/evil",
        "none/python3": "/app/evil",
        "sub/fine": "a",
    }
    sandbox = make({"/app/a": b"x", "/app/sub/b": b"y"}, listed(9, links=links))

    await kept(sandbox, tmp_path / "room")

    assert sorted(packed(tmp_path / "room")) == [
        "workspace/a",
        "workspace/fine",
        "workspace/sub",
        "workspace/sub/b",
        "workspace/sub/fine",
    ]


@pytest.mark.parametrize("listing", [b"", b"nonsense", b"place\0/app\0\0count\0many\0\0"])
async def test_listing_that_is_none_costs_no_more_than_a_warning(
    make: Make, tmp_path: Path, listing: bytes
) -> None:
    frozen, (warning,) = await kept(make({}, listing), tmp_path / "room")

    assert frozen is None
    assert warning.endswith("Its links could not be listed: what came is no listing.")


async def test_submission_files_are_kept_alone_and_what_was_not_left_is_named(
    make: Make, tmp_path: Path
) -> None:
    sandbox = make({"/app/a": b"one", "/srv/b": b"two", "/app/other": b"three"}, b"")

    frozen, warnings = await freeze_files(
        sandbox, ("/app/a", "/srv/b", "/app/none"), tmp_path / "room", redactor=Redactor()
    )

    assert (warnings, frozen and frozen.missing) == ((), ("/app/none",))
    assert frozen is not None
    assert (frozen.workdir, frozen.is_whole, frozen.size_bytes) == ("/", False, 6)
    files = [name for name, entry in packed(tmp_path / "room").items() if entry.isfile()]
    assert files == ["workspace/app/a", "workspace/srv/b"]


@pytest.mark.parametrize(
    ("limit", "value"), [("FILE_LIMIT_BYTES", 3), ("FILES_LIMIT_BYTES", 6)], ids=["one", "all"]
)
async def test_submission_that_is_too_large_is_not_kept(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(module, limit, value - 512)
    sandbox = make({"/app/a": b"four", "/app/b": b"five."}, b"")

    frozen, (warning,) = await freeze_files(
        sandbox, ("/app/a", "/app/b"), tmp_path / "room", redactor=Redactor()
    )

    assert frozen is None
    assert warning.startswith("The submission was not kept, so it cannot be judged again. More than ")
    assert FILE_LIMIT_BYTES == 128 << 20
