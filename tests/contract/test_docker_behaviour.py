"""What only the Docker provider promises: images, limits, and killing without the host's help."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.base import Command, SandboxSpec, Upload
from benchflow_workers.sandbox.docker import DockerOptions, DockerSandboxes
from benchflow_workers.sandbox.docker_engine import connect, find_endpoint
from benchflow_workers.sandbox.docker_http import EngineHttp, Request
from benchflow_workers.sandbox.docker_sandbox import DockerSandbox

pytestmark = pytest.mark.docker

MakeSpec = Callable[..., SandboxSpec]


@pytest.fixture
def provider(tmp_path: Path) -> DockerSandboxes:
    return DockerSandboxes(DockerOptions(state_dir=tmp_path / "state"))


@pytest.fixture
def make_spec(docker_image: str) -> MakeSpec:
    def make(**changes: object) -> SandboxSpec:
        name = f"behaviour-{secrets.token_hex(6)}"
        spec = SandboxSpec(
            name=name,
            labels={"bf.trial": name},
            image=docker_image,
            build_context=None,
            build_digest="",
            network="no-network",
            memory_mb=256,
        )
        return replace(spec, **changes)  # type: ignore[arg-type]

    return make


@pytest_asyncio.fixture
async def http() -> EngineHttp:
    return await connect(find_endpoint(None))


@pytest_asyncio.fixture
async def sandbox(provider: DockerSandboxes, make_spec: MakeSpec) -> AsyncGenerator[DockerSandbox, None]:
    sandbox = await provider.open(make_spec())
    yield sandbox
    await sandbox.close()


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """An empty build context whose image is new with every test."""
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "unique").write_text(secrets.token_hex(8))
    return folder


async def run(sandbox: DockerSandbox, *argv: str, timeout_s: float = 60, user: str | int = "root") -> str:
    done = await sandbox.exec(Command(argv, timeout_s=timeout_s, user=user))
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode().strip()


async def open_and_read(provider: DockerSandboxes, spec: SandboxSpec, *argv: str) -> str:
    sandbox = await provider.open(spec)
    try:
        return await run(sandbox, *argv)
    finally:
        await sandbox.close()


def build_spec(make_spec: MakeSpec, context: Path, dockerfile: str, **changes: object) -> SandboxSpec:
    (context / "Dockerfile").write_text(dockerfile)
    return make_spec(image=None, build_context=context, build_digest=secrets.token_hex(32), **changes)


async def commands_with(http: EngineHttp, marker: str) -> list[str]:
    """Return the commands of all containers, running or not, that carry the marker."""
    found = await http.call(Request("GET", "/containers/json", query={"all": "1"}))
    return [item["Command"] for item in found if marker in item["Command"]]


def tag_of(spec: SandboxSpec) -> str:
    return f"bf/{spec.build_digest[:12]}"


async def test_image_is_built_once_and_only_ours_is_removed(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path, docker_image: str, tmp_path: Path
) -> None:
    spec = build_spec(make_spec, context, f"FROM {docker_image}\nCOPY unique /unique\nWORKDIR /made\n")
    other = DockerSandboxes(DockerOptions(state_dir=tmp_path / "state"))

    outputs = await asyncio.gather(
        open_and_read(provider, spec, "sh", "-c", "pwd; cat /unique"),
        open_and_read(other, spec, "sh", "-c", "pwd; cat /unique"),
    )

    assert outputs == ["/made\n" + (context / "unique").read_text()] * 2
    (context / "Dockerfile").write_text("FROM never.invalid/read:again\n")
    assert await open_and_read(provider, spec, "pwd") == "/made"
    assert await other.remove_image(tag_of(spec))
    assert not await other.remove_image(tag_of(spec))
    assert not await other.remove_image(docker_image)


async def test_image_removed_from_the_host_is_built_again(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path, docker_image: str, tmp_path: Path
) -> None:
    spec = build_spec(make_spec, context, f"FROM {docker_image}\nCOPY unique /unique\n")
    spec = replace(spec, uploads=(Upload("/up/loaded", b"twice"),))
    other = DockerSandboxes(DockerOptions(state_dir=tmp_path / "state"))

    await open_and_read(provider, spec, "true")
    await other.remove_image(tag_of(spec))

    assert await open_and_read(provider, spec, "cat", "/up/loaded") == "twice"
    await provider.remove_image(tag_of(spec))


async def test_context_without_digest_is_told_apart_by_its_content(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path, docker_image: str, http: EngineHttp
) -> None:
    spec = replace(build_spec(make_spec, context, f"FROM {docker_image}\nCOPY unique /u\n"), build_digest="")
    texts, images = [], []

    for text in ("first", "second"):
        (context / "unique").write_text(f"{text} {spec.name}")
        sandbox = await provider.open(spec)
        texts.append(await run(sandbox, "cat", "/u"))
        images.append((await http.call(Request("GET", f"/containers/{sandbox.id}/json")))["Image"])
        await sandbox.close()

    assert texts == [f"first {spec.name}", f"second {spec.name}"]
    assert [await provider.remove_image(image) for image in images] == [True, True]


async def test_failed_build_names_step_line_and_output(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path, docker_image: str
) -> None:
    spec = build_spec(make_spec, context, f"FROM {docker_image}\n\nRUN echo telling; exit 7\n")

    with pytest.raises(SandboxError, match="Dockerfile line 3") as caught:
        await provider.open(spec)

    assert caught.value.code == "sandbox.build_failed"
    assert "step 2 `RUN echo telling; exit 7`" in caught.value.message
    assert "| telling" in caught.value.message
    assert "Fix the Dockerfile" in caught.value.hint


async def test_failed_build_leaves_no_container(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path, docker_image: str, http: EngineHttp
) -> None:
    marker = secrets.token_hex(6)
    spec = build_spec(make_spec, context, f"FROM {docker_image}\nRUN : {marker}; false\n")

    with pytest.raises(SandboxError, match="failed at step"):
        await provider.open(spec)

    assert await commands_with(http, marker) == []


async def test_buildkit_feature_is_named_in_the_hint_where_no_plugin_is_installed(
    make_spec: MakeSpec, context: Path, docker_image: str, tmp_path: Path
) -> None:
    provider = DockerSandboxes(DockerOptions(tmp_path / "state", program="/nonexistent/docker"))
    spec = build_spec(make_spec, context, f"FROM {docker_image}\nRUN --mount=type=cache,target=/c true\n")

    with pytest.raises(SandboxError) as caught:
        await provider.open(spec)

    assert caught.value.code == "sandbox.build_failed"
    assert "RUN --mount: only BuildKit builds this" in caught.value.hint


async def test_broken_dockerfile_is_a_failed_build(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path
) -> None:
    with pytest.raises(SandboxError, match=r"(?i)nonsense") as caught:
        await provider.open(build_spec(make_spec, context, "NONSENSE here\n"))

    assert caught.value.code == "sandbox.build_failed"


async def test_missing_base_image_is_told(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path
) -> None:
    spec = build_spec(make_spec, context, "FROM bf-no-such.invalid/base:1\nRUN true\n")

    with pytest.raises(SandboxError, match=r"FROM bf-no-such\.invalid/base:1") as caught:
        await provider.open(spec)

    assert caught.value.code == "sandbox.image_missing"


async def test_slow_build_ends_at_its_timeout_with_its_container(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path, docker_image: str, http: EngineHttp
) -> None:
    marker = secrets.token_hex(6)
    dockerfile = f"FROM {docker_image}\nRUN : {marker}; sleep 300\n"
    spec = build_spec(make_spec, context, dockerfile, build_timeout_s=4.0)

    with pytest.raises(SandboxError, match="not built within 4 s") as caught:
        await provider.open(spec)

    assert caught.value.code == "sandbox.build_failed"
    async with asyncio.timeout(30):
        while await commands_with(http, marker):  # ruff: ignore[async-busy-wait]
            await asyncio.sleep(0.1)


async def test_missing_context_and_missing_dockerfile_are_told(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path
) -> None:
    with pytest.raises(SandboxError, match="neither an image nor a build context"):
        await provider.open(make_spec(image=None))
    with pytest.raises(SandboxError, match=r"Dockerfile cannot be read") as caught:
        await provider.open(make_spec(image=None, build_context=context, build_digest="d"))

    assert caught.value.code == "sandbox.build_failed"


async def test_pull_policy_never_asks_no_registry(make_spec: MakeSpec, context: Path, tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(state_dir=tmp_path, pull="never"))

    for spec in (make_spec(image="bf-none:1"), build_spec(make_spec, context, "FROM bf-none:1\n")):
        with pytest.raises(
            SandboxError, match="'bf-none:1' is not on this host, and the pull policy"
        ) as caught:
            await provider.open(spec)
        assert caught.value.code == "sandbox.image_missing"


async def test_pull_policy_always_asks_even_for_what_is_there(
    make_spec: MakeSpec, docker_image: str, context: Path, tmp_path: Path, http: EngineHttp
) -> None:
    """The name is one whose registry does not exist, so asking it fails."""
    name = f"bf-registry.invalid/{secrets.token_hex(4)}"
    await http.call(Request("POST", f"/images/{docker_image}/tag", query={"repo": name, "tag": "1"}))
    provider = DockerSandboxes(DockerOptions(state_dir=tmp_path, pull="always"))
    try:
        for spec in (make_spec(image=f"{name}:1"), build_spec(make_spec, context, f"FROM {name}:1\n")):
            with pytest.raises(SandboxError) as caught:
                await provider.open(spec)
            assert caught.value.code == "sandbox.image_missing"
    finally:
        await http.call(Request("DELETE", f"/images/{name}:1"))


@pytest.mark.parametrize("is_built", [True, False])
async def test_extra_certificate_is_trusted_in_built_and_ready_images(
    make_spec: MakeSpec, context: Path, docker_image: str, tmp_path: Path, http: EngineHttp, *, is_built: bool
) -> None:
    certificate = tmp_path / "extra.crt"
    certificate.write_text(
        f"-----BEGIN CERTIFICATE-----\n{secrets.token_hex(8)}\n-----END CERTIFICATE-----\n"
    )
    provider = DockerSandboxes(DockerOptions(state_dir=tmp_path / "state", extra_ca=certificate))
    spec = build_spec(make_spec, context, f"FROM {docker_image}\n") if is_built else make_spec()

    sandbox = await provider.open(spec)
    try:
        seen = await run(
            sandbox,
            "sh",
            "-c",
            'tail -n 3 "$SSL_CERT_FILE"; cat /usr/local/share/ca-certificates/bf-extra-ca.crt',
        )
        facts = await http.call(Request("GET", f"/containers/{sandbox.id}/json"))
    finally:
        await sandbox.close()

    assert seen == (certificate.read_text() * 2).strip()
    image = await http.call(Request("GET", f"/images/{facts['Image']}/json"))
    assert await provider.remove_image(image["RepoTags"][0])


async def test_cpus_beyond_the_host_and_no_limits_are_accepted(
    provider: DockerSandboxes, make_spec: MakeSpec, http: EngineHttp
) -> None:
    limited = await provider.open(make_spec(cpus=64.0))
    free = await provider.open(make_spec(cpus=None, memory_mb=None))
    try:
        limits = (await http.call(Request("GET", f"/containers/{limited.id}/json")))["HostConfig"]
        none = (await http.call(Request("GET", f"/containers/{free.id}/json")))["HostConfig"]
    finally:
        await asyncio.gather(limited.close(), free.close())

    assert limits["CpuQuota"] / limits["CpuPeriod"] == 64
    assert (limits["Memory"], limits["MemorySwap"], limits["PidsLimit"]) == (256 << 20, 256 << 20, 4096)
    assert (none["CpuQuota"], none["Memory"]) == (0, 0)
    assert (limits["LogConfig"]["Type"], limits["Binds"], limits["Init"]) == ("none", None, True)


async def test_impossible_limits_do_not_start(provider: DockerSandboxes, make_spec: MakeSpec) -> None:
    with pytest.raises(SandboxError, match=r"did not start: .*memory") as caught:
        await provider.open(make_spec(memory_mb=1))

    assert caught.value.code == "sandbox.start_failed"


async def test_image_without_sleep_is_told_by_the_first_command(
    provider: DockerSandboxes, make_spec: MakeSpec, context: Path
) -> None:
    spec = build_spec(make_spec, context, "FROM scratch\nCOPY unique /unique\n")
    sandbox = await provider.open(spec)
    try:
        with pytest.raises(SandboxError, match="its image has no program 'sleep'") as caught:
            await run(sandbox, "/unique")
    finally:
        await sandbox.close()
        await provider.remove_image(tag_of(spec))

    assert caught.value.code == "sandbox.start_failed"


async def test_start_that_takes_too_long_is_told(provider: DockerSandboxes, make_spec: MakeSpec) -> None:
    spec = make_spec(start_timeout_s=0.001)

    with pytest.raises(SandboxError, match="it took more than 0 s") as caught:
        await provider.open(spec)

    assert caught.value.code == "sandbox.start_failed"
    assert await provider.list(spec.labels) == []


async def test_upload_to_a_tmpfs_is_there_at_the_start(
    provider: DockerSandboxes, make_spec: MakeSpec
) -> None:
    spec = make_spec(uploads=(Upload("/dev/shm/x", b"in memory"), Upload("/x", b"on disk")))

    assert await open_and_read(provider, spec, "cat", "/dev/shm/x", "/x") == "in memoryon disk"


async def test_public_network_is_a_bridge_and_bare_root_becomes_root_home(
    provider: DockerSandboxes, make_spec: MakeSpec
) -> None:
    routes = await open_and_read(
        provider, make_spec(network="public"), "sh", "-c", "pwd; cat /proc/net/route"
    )

    assert routes.splitlines()[0] == "/root"
    assert len(routes.splitlines()) > 2


async def test_user_who_forks_without_end_is_killed(provider: DockerSandboxes, make_spec: MakeSpec) -> None:
    sandbox = await provider.open(make_spec(pids=150))
    try:
        bomb = "bomb() { bomb & bomb & }; while :; do bomb; done >/dev/null 2>&1 & echo lit"
        await run(sandbox, "sh", "-c", bomb, user=4949)
        await sandbox.kill(4949)
        left = await run(
            sandbox, "sh", "-c", "grep -l '^Uid:[[:space:]]*4949' /proc/[0-9]*/status 2>/dev/null; true"
        )
    finally:
        await sandbox.close()

    assert left == ""


async def test_deadline_holds_where_no_process_can_be_made_any_more(
    provider: DockerSandboxes, make_spec: MakeSpec
) -> None:
    sandbox = await provider.open(make_spec(pids=30))
    try:
        script = "i=0; while [ $i -lt 60 ]; do (sleep 98799 &) 2>/dev/null; i=$((i+1)); done; sleep 98799"
        done = await sandbox.exec(Command(("sh", "-c", f"{script}; while :; do :; done"), timeout_s=2))
        alive = await run(sandbox, "echo", "alive")
    finally:
        await sandbox.close()

    assert (done.timed_out, alive) == (True, "alive")


async def test_cancelled_opening_does_not_cost_a_start_slot(make_spec: MakeSpec, tmp_path: Path) -> None:
    provider = DockerSandboxes(DockerOptions(state_dir=tmp_path, start_slots=1))
    opening = [asyncio.create_task(provider.open(make_spec())) for _ in range(3)]
    await asyncio.wait(opening, timeout=0.1)
    for task in opening:
        task.cancel()
    ended = await asyncio.gather(*opening, return_exceptions=True)
    for sandbox in ended:
        if isinstance(sandbox, DockerSandbox):
            await sandbox.close()

    async with asyncio.timeout(60):
        assert await open_and_read(provider, make_spec(), "echo", "open") == "open"
