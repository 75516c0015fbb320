"""Declared artifacts come to the trial's folder, and a manifest says what became of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchflow_workers.testing import ScriptedSandbox
from benchflow_workers.trial import phases
from benchflow_workers.trial.prepare import prepare
from tests.worlds import World

MakeWorld = Callable[..., World]


async def collected(world: World, files: dict[str, bytes]) -> tuple[Path, list[dict[str, Any]]]:
    prepared = prepare(world.attempt(), world.parts)
    sandbox: ScriptedSandbox = await world.sandboxes.open(prepared.sandbox)
    sandbox.files.clear()
    sandbox.files.update(files)
    folder = world.scratch
    await phases.collect(prepared, sandbox, folder)
    manifest = folder / "artifacts" / "manifest.json"
    return folder / "artifacts", json.loads(manifest.read_text()) if manifest.is_file() else []


async def test_artifacts_keep_their_path_or_get_the_one_they_are_given(make: MakeWorld) -> None:
    world = make(toml='artifacts = ["/app/out", {source = "/app/a.txt", destination = "found/b.txt"}]\n')

    folder, manifest = await collected(
        world, {"/app/out/x": b"x", "/app/a.txt": b"a", "/logs/artifacts/own": b"o"}
    )

    assert (folder / "app/out/x").read_bytes() == b"x"
    assert (folder / "found/b.txt").read_bytes() == b"a"
    assert manifest == [
        {"source": "/logs/artifacts", "destination": "artifacts", "type": "directory", "status": "ok"},
        {"source": "/app/out", "destination": "artifacts/app/out", "type": "directory", "status": "ok"},
        {"source": "/app/a.txt", "destination": "artifacts/found/b.txt", "type": "file", "status": "ok"},
    ]


async def test_what_is_not_there_or_holds_nothing_is_a_line_and_no_failure(make: MakeWorld) -> None:
    world = make(toml='artifacts = ["/gone", {source = "/app", exclude = ["*"]}]\n')

    _, manifest = await collected(world, {"/app/x": b"x"})

    assert [(line["source"], line["status"]) for line in manifest] == [("/gone", "failed"), ("/app", "empty")]


async def test_excluded_paths_are_left_out_by_name_and_by_path(make: MakeWorld) -> None:
    world = make(toml='artifacts = [{source = "/app", exclude = ["*.pyc", "node_modules/", "a/b"]}]\n')
    kept = {"/app/main.py": b"", "/app/b": b"", "/app/c/a/b": b""}
    left = {"/app/x/main.pyc": b"", "/app/web/node_modules/m/i.js": b"", "/app/a/b": b""}

    folder, _ = await collected(world, {**kept, **left})

    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {"manifest.json", "app/main.py", "app/b", "app/c/a/b"}


async def test_relative_source_is_one_of_the_workspace(make: MakeWorld) -> None:
    world = make(toml='artifacts = ["out.txt"]\n[environment]\nworkdir = "/srv"\n')

    folder, manifest = await collected(world, {"/srv/out.txt": b"o"})

    assert (folder / "srv/out.txt").read_bytes() == b"o"
    assert manifest[0]["source"] == "out.txt"


@pytest.mark.parametrize("source", ["/", "/app/../.."])
async def test_whole_file_system_is_not_kept(make: MakeWorld, source: str) -> None:
    world = make(toml=f'artifacts = ["{source}"]\n')

    folder, manifest = await collected(world, {"/etc/passwd": b"root"})

    assert not (folder / "etc").exists()
    assert manifest[0]["status"] == "failed"


async def test_place_that_is_taken_costs_that_artifact_alone(make: MakeWorld) -> None:
    world = make(toml='artifacts = [{source = "/app/x", destination = "own/x"}, "/app/x"]\n')

    folder, manifest = await collected(world, {"/app/x": b"x", "/logs/artifacts/own": b"o"})

    assert (folder / "own").read_bytes() == b"o"
    assert [line["status"] for line in manifest] == ["ok", "failed", "ok"]


async def test_manifest_is_ours_whatever_the_sandbox_left_under_its_name(make: MakeWorld) -> None:
    world = make()

    _, manifest = await collected(world, {"/logs/artifacts/manifest.json/x": b"{}"})

    assert [line["source"] for line in manifest] == ["/logs/artifacts"]


async def test_nothing_to_keep_leaves_no_manifest(world: World) -> None:
    _, manifest = await collected(world, {"/logs/agent/log": b"l"})

    assert manifest == []
