"""The example tasks on every sandbox that needs no account: oracle 1.0, nop 0.0, nothing left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = [sys.executable, "-c", "import sys; from benchflow_client.cli.main import main; sys.exit(main())"]
TASKS = sorted(folder.name for folder in (ROOT / "examples/tasks").iterdir() if folder.is_dir())
NOBODY = 65534

AS_NOBODY = r"""
# Run the rest as a user without rights. What stands below a folder that only root may enter
# (a checkout or a Python in /root) is shown to the user at the same place, in this mount
# namespace only.
stage=$(mktemp -d) && number=0
for place in "$1" "$2" "$3"; do
    case $place in /root/*)
        number=$((number + 1)) && mkdir "$stage/$number" && mount --bind "$place" "$stage/$number" ;;
    esac
done
mount -t tmpfs -o mode=755 tmpfs /root
number=0
for place in "$1" "$2" "$3"; do
    case $place in /root/*)
        number=$((number + 1)) && mkdir -p "$place" && mount --bind "$stage/$number" "$place" ;;
    esac
done
shift 3
exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all -- "$@"
"""


def environment(home: Path) -> dict[str, str]:
    """Return variables of a user with an empty home and no fleet."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BENCHFLOW_")}
    return kept | {"HOME": str(home), "XDG_STATE_HOME": str(home / "state"), "PYTHONPATH": str(ROOT)}


def run_bench(
    arguments: list[str], home: Path, *, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run the command line in an empty home and return what it left."""
    return subprocess.run(
        [*prefix, *BENCH, *arguments],
        cwd=home,
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def results(jobs: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return every trial's result by task and agent."""
    documents = [json.loads(path.read_text()) for path in jobs.rglob("result.json")]
    return {(item["task_name"], item["agent"]): item for item in documents}


def rewards(jobs: Path) -> dict[tuple[str, str], float | None]:
    """Return every trial's reward by task and agent; None = no verdict."""
    return {key: (item["rewards"] or {}).get("reward") for key, item in results(jobs).items()}


def both_controls(sandbox: str) -> list[str]:
    """Return the arguments of a run of both controls over all examples."""
    tasks = str(ROOT / "examples/tasks")
    return ["run", tasks, "--agent", "oracle", "--agent", "nop", "--sandbox", sandbox]


EXPECTED = {(task, "oracle"): 1.0 for task in TASKS} | {(task, "nop"): 0.0 for task in TASKS}


@pytest.mark.docker
def test_controls_hold_on_docker(tmp_path: Path) -> None:
    done = run_bench(both_controls("docker"), tmp_path)

    assert rewards(tmp_path / "jobs") == EXPECTED, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.root
def test_controls_hold_on_local_as_root(tmp_path: Path) -> None:
    done = run_bench(both_controls("local"), tmp_path)

    assert rewards(tmp_path / "jobs") == EXPECTED, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.root
def test_controls_hold_on_local_as_a_user() -> None:
    """Run by root only because a test can become a user, but not the reverse."""
    home = Path(tempfile.mkdtemp(prefix="benchflow-home-", dir="/var/tmp"))
    os.chown(home, NOBODY, NOBODY)
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", AS_NOBODY, "as-nobody")
    try:
        done = run_bench(
            both_controls("local"), home, prefix=(*prefix, str(ROOT), sys.prefix, sys.base_prefix)
        )

        assert rewards(home / "jobs") == EXPECTED, done.stderr
        assert done.returncode == 0, done.stderr
    finally:
        shutil.rmtree(home)


@pytest.mark.root
@pytest.mark.parametrize("agent", ["hello_agent.sh", "hello_agent.py"])
def test_an_example_agent_solves_its_task(agent: str, tmp_path: Path) -> None:
    task = str(ROOT / "examples/tasks/write-release-note")
    script = str(ROOT / "examples/agents" / agent)

    done = run_bench(["run", task, "--agent", script, "--sandbox", "local"], tmp_path)

    assert rewards(tmp_path / "jobs") == {("write-release-note", "hello_agent"): 1.0}, done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.root
def test_partial_work_earns_partial_credit(tmp_path: Path) -> None:
    script = tmp_path / "half.sh"
    script.write_text(
        "#!/bin/sh\nprintf '1 2500\\n2 9\\n5 604800\\n9 135\\n10 wrong\\n' > /app/answers.txt\n"
    )
    task = str(ROOT / "examples/tasks/convert-units")

    run_bench(["run", task, "--agent", str(script), "--sandbox", "local"], tmp_path)

    assert rewards(tmp_path / "jobs") == {("convert-units", "half"): 0.3}
