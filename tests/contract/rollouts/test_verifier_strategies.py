"""What verifier.md runs in place of test.sh: a command of its folder, or a reward kit with its criteria."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.errors import VerifierError
from benchflow_client.schema.task import Task
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.verifiers.base import Verdict, VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

MakeTask = Callable[..., Task]
Open = Callable[..., Awaitable[Sandbox]]

# The image has no Python; what stands in for it runs the kit as a shell script, as any program would be run.
PYTHON = (Upload("/usr/local/bin/python3", content=b'#!/bin/sh\nexec sh "$@"\n', mode=0o755),)
KIT = """set -e
[ "$PWD" = /verifier ]
grep -q '"version": "benchflow.reward-kit.v1"' "$BENCHFLOW_REWARD_KIT_MANIFEST"
[ "$BENCHFLOW_REWARD_KIT_ROOT" = /verifier/kit ]
[ -f "$BENCHFLOW_REWARD_KIT_CRITERIA" ]
echo '{"why": "half"}' >"$BENCHFLOW_REWARD_DETAILS_JSON"
cat answer >"$BENCHFLOW_REWARD_JSON"
"""
CRITERIA = '[[criterion]]\nname = "form"\nweight = 3\n[[criterion]]\nid = "tone"\n'
RIGHT = '{"metrics": {"form": 1, "tone": 0.5}}'


def with_files(
    task: Task, root: Path, strategy: Mapping[str, Any], files: Mapping[str, str]
) -> VerifyContext:
    for name, text in files.items():
        (root / "verifier" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "verifier" / name).write_text(text, encoding="utf-8")
    document = {"verifier_strategy": {"name": "main", **strategy}}
    return VerifyContext(
        task=task.model_copy(update={"document": document}),
        task_dir=root,
        env={},
        timeout_s=60.0,
        setup_timeout_s=120.0,
        agent_user=None,
    )


async def verdict(sandbox: Sandbox, context: VerifyContext, folder: Path) -> Verdict:
    verifier = ScriptVerifier()
    run = await verifier.run(sandbox, context)
    await sandbox.get("/logs/verifier", folder)
    return verifier.judge(context, run, folder)


async def test_a_command_runs_in_the_folder_of_the_verifier(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    files = {"checks/run.sh": "#!/bin/sh\ncat share >/logs/verifier/reward.$1\npwd\n", "share": "0.25\n"}
    strategy = {"type": "script", "command": "./checks/run.sh txt && echo ended"}
    context = with_files(make_task(native=True), tmp_path, strategy, files)

    found = await verdict(sandbox, context, tmp_path / "logs")

    assert found.rewards == {"reward": 0.25}


async def test_a_reward_kit_is_told_its_criteria_and_they_make_its_reward(
    open_sandbox: Open, make_task: MakeTask, tmp_path: Path
) -> None:
    sandbox = await open_sandbox(PYTHON)
    files = {"kit/reward.py": KIT, "kit/criteria.toml": CRITERIA, "answer": RIGHT}
    strategy = {"type": "reward-kit", "root": "kit", "criteria": "kit/criteria.toml"}
    context = with_files(make_task(native=True), tmp_path, strategy, files)

    found = await verdict(sandbox, context, tmp_path / "logs")

    assert found.rewards == {"reward": 0.875, "metrics": {"form": 1.0, "tone": 0.5}}
    assert json.loads((tmp_path / "logs" / "reward-details.json").read_text()) == {"why": "half"}
    assert (tmp_path / "logs" / "reward-kit-manifest.json").is_file()


async def test_a_kit_whose_program_is_missing_is_named_before_anything_runs(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path
) -> None:
    context = with_files(make_task(native=True), tmp_path, {"type": "reward-kit", "root": "kit"}, {"x": ""})

    with pytest.raises(VerifierError) as caught:
        await ScriptVerifier().run(sandbox, context)

    assert caught.value.code == "verifier.no_tests"
    assert "verifier/kit/reward.py" in caught.value.message
