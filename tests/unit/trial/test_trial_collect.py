"""Whatever an agent leaves behind, collecting it costs no verdict and earns no second attempt."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.store.files import FileStore
from benchflow_workers.testing import ScriptedSandbox
from benchflow_workers.trial import phases
from benchflow_workers.trial.prepare import prepare
from benchflow_workers.trial.recorder import result_of, write_attempt
from benchflow_workers.trial.records import Prepared, Rollout
from benchflow_workers.trial.redact import Redactor
from tests.worlds import World

MakeWorld = Callable[..., World]
TOO_MUCH = (1 << 30) + 1  # never written, so never in memory


async def opened(world: World) -> tuple[Prepared, ScriptedSandbox]:
    prepared = prepare(world.attempt(), world.parts)
    sandbox = await world.sandboxes.open(prepared.sandbox)
    sandbox.files.clear()
    world.sandboxes.events.clear()
    return prepared, sandbox


async def test_logs_of_ordinary_size_are_fetched_at_once(world: World) -> None:
    prepared, sandbox = await opened(world)
    sandbox.files["/logs/agent/log"] = b"log"

    warnings = await phases.collect(prepared, sandbox, world.scratch)

    assert warnings == ()
    assert world.sandboxes.events == ["get"]


@pytest.mark.parametrize("name", ["agent", "artifacts"])
async def test_too_much_of_the_agent_is_a_warning_and_the_rest_is_kept(world: World, name: str) -> None:
    prepared, sandbox = await opened(world)
    folder = world.scratch
    other = {"agent": "artifacts", "artifacts": "agent"}[name]
    sandbox.files.update({
        f"/logs/{name}/flood": bytes(TOO_MUCH),
        f"/logs/{other}/small": b"small",
        "/logs/verifier/reward.txt": b"1",
    })

    warnings = await phases.collect(prepared, sandbox, folder)

    assert [warning.partition(".")[0] for warning in warnings] == [f"Not all of /logs/{name} was kept"]
    assert (folder / "verifier/reward.txt").read_bytes() == b"1"
    assert (folder / other / "small").read_bytes() == b"small"


async def test_flood_beside_the_verdict_leaves_the_verdict(world: World) -> None:
    prepared, sandbox = await opened(world)
    folder = world.scratch
    sandbox.files.update({
        "/logs/verifier/flood": bytes(TOO_MUCH),
        "/logs/verifier/reward.json": b'{"reward": 1}',
    })

    warnings = await phases.collect(prepared, sandbox, folder)

    assert [warning.partition(".")[0] for warning in warnings] == ["Not all of /logs/verifier was kept"]
    assert [item.name for item in (folder / "verifier").iterdir()] == ["reward.json"]


async def test_artifact_that_is_too_large_is_a_warning(make: MakeWorld) -> None:
    world = make(toml='[[artifacts]]\nsource = "/app/out"\n')
    prepared, sandbox = await opened(world)
    sandbox.files["/app/out"] = bytes(TOO_MUCH)

    warnings = await phases.collect(prepared, sandbox, world.scratch)

    assert [warning.partition(".")[0] for warning in warnings] == ["Not all of /app/out was kept"]


async def test_sandbox_that_is_lost_is_still_a_failure(world: World) -> None:
    prepared, sandbox = await opened(world)
    sandbox.is_closed = True

    with pytest.raises(SandboxError) as caught:
        await phases.collect(prepared, sandbox, world.scratch)

    assert caught.value.code == "sandbox.lost"


@pytest.mark.parametrize("name", ["config.json", "result.json"])
@pytest.mark.parametrize("is_folder", [True, False])
def test_what_a_sandbox_leaves_in_the_place_of_our_documents_goes(
    world: World, name: str, is_folder: bool
) -> None:
    attempt, store = world.attempt(), FileStore(world.folder / "own-store")
    folder = world.scratch
    place = folder / name / "x" if is_folder else folder / name
    place.parent.mkdir(exist_ok=True)
    place.write_text("{}")
    result = result_of(attempt, Rollout(), Redactor())

    write_attempt(store, result, Rollout(), folder=folder, redactor=Redactor())

    prefix = f"{result.job}/{result.rollout_name}/"
    assert json.loads(store.get(prefix + "result.json"))["trial"] == result.trial
    assert not any(key.startswith(prefix + "config.json") for key in store.list(result.job))


def test_longest_and_oddest_names_are_stored(world: World) -> None:
    attempt, store = world.attempt(), FileStore(world.folder / "own-store")
    folder = world.scratch
    (folder / "agent").mkdir()
    for name in ("\x01" * 255, "n" * 255):
        (folder / "agent" / name).write_text("x")
    folder.joinpath("agent", *["d" * 200] * 6).mkdir(parents=True)
    folder.joinpath("agent", *["d" * 200] * 6, "left-out").write_text("x")
    result = result_of(attempt, Rollout(), Redactor())

    write_attempt(store, result, Rollout(), folder=folder, redactor=Redactor())

    names = sorted(key.rpartition("/")[2] for key in store.list(result.job) if "/agent/" in key)
    assert len(names) == 2
    assert names[0].startswith("\\x01\\x01")
    assert names[1] == "n" * 255
