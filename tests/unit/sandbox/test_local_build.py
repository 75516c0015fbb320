"""Dockerfiles become layers: what steps see, what is cached, what a failure tells."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxSpec
from benchflow_workers.sandbox.local import LocalOptions, LocalSandbox, LocalSandboxes
from benchflow_workers.sandbox.local.modes import try_mode

IS_ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local") / "state"


@pytest.fixture
async def provider(state_dir: Path) -> AsyncIterator[LocalSandboxes]:
    if not IS_ROOT and (problem := try_mode("rootless", state_dir).problem):
        pytest.skip(problem)
    provider = LocalSandboxes(LocalOptions(state_dir))
    yield provider
    await provider.close()
    assert list((state_dir / "sandboxes").glob("*")) == []
    assert not is_mounted(state_dir)


def is_mounted(folder: Path) -> bool:
    return str(folder) in Path("/proc/mounts").read_text()


def spec_of(context: Path, dockerfile: str, **files: str) -> SandboxSpec:
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    for name, text in files.items():
        (context / name).write_text(text)
    name = f"build-{uuid.uuid4().hex[:8]}"
    return SandboxSpec(name=name, labels={"t": name}, image=None, build_context=context, build_digest=name)


async def run(sandbox: LocalSandbox, script: str) -> str:
    done = await sandbox.exec(Command(("sh", "-c", script), timeout_s=30))
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode().strip()


async def output_of(provider: LocalSandboxes, spec: SandboxSpec, script: str) -> str:
    sandbox = await provider.open(spec)
    try:
        return await run(sandbox, script)
    finally:
        await sandbox.close()


async def build_error(provider: LocalSandboxes, spec: SandboxSpec) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        await provider.open(spec)
    assert await provider.list(spec.labels) == []
    return caught.value


async def test_steps_build_on_each_other(provider: LocalSandboxes, tmp_path: Path) -> None:
    text = (
        "ARG BASE=debian\nFROM $BASE\nARG WHO=you\nENV GREETING=hello COLOR='a b'\nWORKDIR /app\nWORKDIR sub\n"
        'RUN echo "$GREETING $WHO $PWD" >one\nSHELL ["/bin/sh", "-ec"]\nRUN ["sh", "-c", "cat one >two"]\n'
        "CMD sleep 1\nEXPOSE 80\nCOPY note .\nRUN cat note >>two\n"
    )
    sandbox = await provider.open(spec_of(tmp_path / "context", text, note="a note"))
    try:
        seen = await run(sandbox, 'pwd; cat two; echo; echo "$GREETING|$COLOR|$WHO|"')

        assert sandbox.workdir == "/app/sub"
        assert seen.splitlines() == ["/app/sub", "hello you /app/sub", "a note", "hello|a b||"]
        assert "local: image debian ignored (host root used)" in sandbox.notes
        assert "local: CMD, EXPOSE ignored" in sandbox.notes
    finally:
        await sandbox.close()


async def test_a_step_runs_once_whoever_asks_again(provider: LocalSandboxes, tmp_path: Path) -> None:
    text = "FROM x\nRUN cat /proc/sys/kernel/random/uuid >/made\nCOPY f /f\n"
    spec = spec_of(tmp_path / "context", text, f="1")
    first = await output_of(provider, spec, "cat /made")

    again = await output_of(provider, replace(spec, name=f"{spec.name}-2"), "cat /made")
    changed = spec_of(tmp_path / "context", text, f="2")
    prefix = await output_of(provider, changed, "cat /made /f")
    other = spec_of(tmp_path / "context", text.replace(">/made", ">/made # new"), f="2")
    rebuilt = await output_of(provider, other, "cat /made")

    assert again == first
    assert prefix.split() == [first, "2"]
    assert rebuilt != first


async def test_deleted_files_stay_deleted_in_later_layers(provider: LocalSandboxes, tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path / "context",
        "FROM x\nRUN mkdir /d; echo 1 >/d/a; echo 2 >/d/b\nRUN rm /d/a\nRUN mv /d/b /d/c\n",
    )

    assert await output_of(provider, spec, "ls /d; cat /d/c") == "c\n2"


async def test_copy_places_files_folders_and_patterns(provider: LocalSandboxes, tmp_path: Path) -> None:
    context = tmp_path / "context"
    (context / "data" / "deep").mkdir(parents=True)
    (context / "data" / "deep" / "x").write_text("x")
    (context / "data" / "link").symlink_to("deep/x")
    (context / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (context / "run.sh").chmod(0o755)
    (context / ".dockerignore").write_text("*.log\n# comment\n\n!keep.log\n")
    text = (
        "FROM x\nWORKDIR /w\nCOPY data /data\nCOPY data/ ./sub/\nCOPY *.txt *.log /texts/\nCOPY run.sh /tmp\n"
        'COPY ["a.txt", "/new/name"]\nADD --chmod=600 a.txt /secret\n'
    )
    spec = spec_of(context, text, **{"a.txt": "a", "b.txt": "b", "no.log": "n", "keep.log": "k"})

    script = "cat /data/link /w/sub/deep/x; ls /texts | tr '\\n' ' '; /tmp/run.sh; cat /new/name; stat -c %a /secret"
    seen = await output_of(provider, spec, script)

    assert seen == "xxa.txt b.txt keep.log ran\na600"


@pytest.mark.root
async def test_copy_and_run_know_users_of_the_image(provider: LocalSandboxes, tmp_path: Path) -> None:
    text = (
        "FROM x\nRUN echo 'zoe:x:4321:4322::/home/zoe:/bin/sh' >>/etc/passwd && echo 'zoo:x:4323:' >>/etc/group\n"
        "COPY --chown=zoe f /one\nCOPY --chown=zoe:zoo f /two\nCOPY --chown=7:8 f /three\nCOPY --chown=9 f /four\n"
        "USER zoe\nRUN id -u >/tmp/who; umask >>/tmp/who\n"
    )
    spec = spec_of(tmp_path / "context", text, f="f")

    seen = await output_of(provider, spec, "stat -c %u:%g /one /two /three /four; cat /tmp/who; id -u")

    assert seen.split() == ["4321:4322", "4321:4323", "7:8", "9:9", "4321", "0022", "0"]


@pytest.mark.root
async def test_an_unknown_owner_is_told(provider: LocalSandboxes, tmp_path: Path) -> None:
    error = await build_error(
        provider, spec_of(tmp_path / "context", "FROM x\nCOPY --chown=nobodyknows f /f\n", f="f")
    )

    assert error.code == "sandbox.build_failed"
    assert "line 2: --chown=nobodyknows names nobody" in error.message


async def test_a_failing_step_tells_line_command_and_output(provider: LocalSandboxes, tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "context", "FROM x\n\nRUN echo before; echo why >&2; exit 7\n")

    error = await build_error(provider, spec)

    assert error.code == "sandbox.build_failed"
    assert "Dockerfile line 3: RUN echo before; echo why >&2; exit 7 ended with exit code 7" in error.message
    assert "before\nwhy" in error.message


async def test_a_step_over_the_build_timeout_is_stopped(provider: LocalSandboxes, tmp_path: Path) -> None:
    spec = replace(spec_of(tmp_path / "context", "FROM x\nRUN sleep 300\n"), build_timeout_s=1.0)

    error = await build_error(provider, spec)

    assert "was stopped after build_timeout_sec = 1" in error.message


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        ("FROM x\nCOPY nothing /x\n", "sandbox.build_failed", "'nothing' names nothing"),
        ("FROM x\nCOPY only\n", "sandbox.build_failed", "names no target"),
        ("FROM x\nCOPY out /x\n", "sandbox.build_failed", "links out of the build context"),
        ("FROM x\nCOPY ../../etc/passwd /x\n", "sandbox.build_failed", "names nothing"),
        ("FROM x\nADD https://example.invalid/a /x\n", "sandbox.build_failed", "is an address"),
        ("FROM x\nADD a.tar.gz /x\n", "task.unsupported", "ADD of an archive"),
        ("FROM x\nFROM y\n", "task.unsupported", "multi-stage"),
    ],
)
async def test_what_cannot_be_built_is_told(
    provider: LocalSandboxes, tmp_path: Path, text: str, code: str, part: str
) -> None:
    context = tmp_path / "context"
    context.mkdir()
    (context / "out").symlink_to("/etc/passwd")

    error = await build_error(provider, spec_of(context, text, **{"a.tar.gz": ""}))

    assert error.code == code
    assert part in error.message


async def test_a_context_without_dockerfile_is_told(provider: LocalSandboxes, tmp_path: Path) -> None:
    spec = spec_of(tmp_path / "context", "FROM x")
    (tmp_path / "context" / "Dockerfile").unlink()

    error = await build_error(provider, spec)

    assert error.code == "sandbox.build_failed"
    assert "Dockerfile cannot be read" in error.message


async def test_a_single_user_is_told_why_packages_cannot_be_installed(
    state_dir: Path, tmp_path: Path
) -> None:
    if problem := try_mode("rootless", state_dir).problem:
        pytest.skip(problem)
    provider = LocalSandboxes(LocalOptions(state_dir / "rootless", mode="rootless"))
    spec = spec_of(tmp_path / "context", "FROM x\nRUN chown 1234:1234 /tmp && apt-get update\n")

    error = await build_error(provider, spec)
    await provider.close()

    assert "single user" in error.hint
    assert "--sandbox docker" in error.hint


async def test_an_image_can_be_a_folder(state_dir: Path, tmp_path: Path) -> None:
    """A name in the options stands for an unpacked root; nothing of the host shows through."""
    rootfs = tmp_path / "rootfs"
    make_tiny_root(rootfs)
    provider = LocalSandboxes(LocalOptions(state_dir, rootfs={"tiny": rootfs}))
    spec = spec_of(tmp_path / "context", "FROM tiny:latest\nRUN echo built >/built\n")
    try:
        built = await output_of(provider, spec, "cat /built /etc/marker; echo /usr/*")
        named = replace(spec, name=f"{spec.name}-2", image="tiny", build_context=None)
        plain = await output_of(provider, named, "cat /etc/marker; echo /b*")
    finally:
        await provider.close()

    assert built == "built\ntiny\n/usr/*"
    assert plain == "tiny\n/bin"
    assert not (rootfs / "built").exists()


async def test_a_folder_that_is_no_root_is_told(state_dir: Path, tmp_path: Path) -> None:
    provider = LocalSandboxes(LocalOptions(state_dir, rootfs={"gone": tmp_path / "gone"}))
    spec = replace(spec_of(tmp_path / "c", "FROM x"), image="gone", build_context=None)

    error = await build_error(provider, spec)
    await provider.close()

    assert error.code == "sandbox.image_missing"


def make_tiny_root(rootfs: Path) -> None:
    """Make a root of one shell and the libraries it links."""
    for name in ("bin", "etc", "lib64", "lib/x86_64-linux-gnu", "usr"):
        (rootfs / name).mkdir(parents=True)
    (rootfs / "etc/marker").write_text("tiny\n")
    linked = subprocess.run(["ldd", "/bin/sh", "/bin/cat"], capture_output=True, text=True, check=True).stdout
    libraries = {Path(word) for word in linked.split() if word.startswith("/") and not word.endswith(":")}
    for path in (Path("/bin/sh"), Path("/bin/cat"), *libraries):
        target = rootfs / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(0o755)
