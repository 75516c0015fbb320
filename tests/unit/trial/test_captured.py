"""What setup commands leave for those after them."""

from __future__ import annotations

import base64
import io
import os
import tarfile
from pathlib import Path

import pytest

from benchflow_client.errors import SandboxError
from benchflow_client.schema.task import SetupCommand, Task, TaskConfig
from benchflow_workers.sandbox.base import Sandbox, SandboxSpec
from benchflow_workers.testing import ScriptedSandboxes
from benchflow_workers.trial.captured import FILE_LIMIT_BYTES, Captured, capture, place_captured
from benchflow_workers.trial.variables import resolve_variables


async def opened(files: dict[str, bytes]) -> Sandbox:
    sandbox = await ScriptedSandboxes().open(SandboxSpec("s", {}, "image", None, ""))
    sandbox.files.update(files)
    return sandbox


async def captured(tmp_path: Path, files: dict[str, bytes], **asked: str) -> Captured:
    command = SetupCommand(command="make it", capture_dir="/srv/it", **asked)
    folder = tmp_path / "attempt"
    return await capture(command, await opened(files), Captured(), number=2, attempt_folder=folder)


async def test_a_folder_is_given_on_as_an_archive_and_kept_by_the_number_of_its_command(
    tmp_path: Path,
) -> None:
    left = await captured(tmp_path, {"/srv/it/a/b": b"bb"}, capture_dir_b64_env="IT")

    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(left.env["IT"])), mode="r:gz") as archive:
        assert archive.getnames() == ["a", "a/b"]
    assert left.fill_in({"X": "${IT}", "Y": "$IT"}) == {"IT": left.env["IT"], "X": left.env["IT"], "Y": "$IT"}
    attempt = tmp_path / "attempt"
    (attempt / "setup").mkdir(parents=True)
    (attempt / "setup/planted").write_text("by a sandbox")
    place_captured(attempt)
    assert [str(path.relative_to(attempt)) for path in attempt.rglob("*") if path.is_file()] == [
        "setup/2/a/b"
    ]


async def test_a_secret_is_masked_and_not_kept(tmp_path: Path) -> None:
    left = await captured(tmp_path, {"/srv/it/a": b"a"}, capture_dir_b64_env_file_var="LOGIN_TOKEN_FILE")

    assert left.env == {"LOGIN_TOKEN_FILE": "/opt/benchflow/captured/LOGIN_TOKEN_FILE"}
    assert [upload.target for upload in left.files] == ["/opt/benchflow/captured/LOGIN_TOKEN_FILE"]
    assert left.secrets == {(left.files[0].content or b"").decode()}
    assert not (tmp_path / "attempt.captured").exists()


@pytest.mark.parametrize(
    ("files", "asked", "reason"),
    [
        ({}, {}, "/srv/it after setup command 'make it' is no folder"),
        ({"/srv/it": b"a file"}, {}, "is no folder"),
        ({"/srv/it/a": os.urandom(100_000)}, {"capture_dir_b64_env": "IT"}, "in IT at most 98304 fit"),
        ({"/srv/it/a": os.urandom(FILE_LIMIT_BYTES)}, {"capture_dir_b64_env_file_var": "IT"}, "at most 4194304"),
        ({"/srv/it/a": os.urandom(100_000)}, {"capture_dir_b64_env_file_var": "KEY"}, "in KEY at most 98304 fit"),
    ],
)  # fmt: skip
async def test_what_cannot_be_given_on_ends_the_setup_with_the_reason(
    tmp_path: Path, files: dict[str, bytes], asked: dict[str, str], reason: str
) -> None:
    with pytest.raises(SandboxError, match=reason) as caught:
        await captured(tmp_path, files, **asked)

    assert caught.value.code == "sandbox.start_failed"


def test_variables_of_later_commands_wait_for_what_is_captured() -> None:
    commands = [
        {"command": "a", "env": {"OLD": "${IT:-none}"}, "capture_dir": "/it", "capture_dir_b64_env": "IT"},
        {"command": "b", "env": {"NEW": "${IT}", "OTHER": "${HOST}"}},
    ]
    task = Task(
        name="t", form="task.toml", instruction="x", verifier_dir=None, oracle_dir=None, has_dockerfile=True,
        has_compose=False, config=TaskConfig.model_validate({"sandbox": {"setup_commands": commands}}),
    )  # fmt: skip

    assert resolve_variables(task, (), {"HOST": "h"}).setup == (
        {"OLD": "none"},
        {"NEW": "${IT}", "OTHER": "h"},
    )
