"""The variables the tests see: nothing an agent may have set, nothing that loads code it may have left."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import SYSTEM_PATH
from benchflow_workers.verifiers.base import VERIFIER_LOGS_DIR

__all__ = ["SYSTEM_PATH", "place_of_tests", "verifier_environment"]

CONSTANT: Mapping[str, str] = {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # else a planted package is a plugin
    "PYTEST_PLUGINS": "",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONPYCACHEPREFIX": "/nonexistent",  # else planted byte code is run instead of the source
    "PYTHONSTARTUP": "",
    "PYTHONNOUSERSITE": "1",
    "PYTHONBREAKPOINT": "0",
    "LD_PRELOAD": "",
    "LD_LIBRARY_PATH": "",
    "PIP_USER": "0",
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",  # tests may install their tools on Debian-like images
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "HOME": "/root",
    "COVERAGE_PROCESS_START": "",
    "DJANGO_SETTINGS_MODULE": "",
    "CELERY_CONFIG_MODULE": "",
}
"""What is the same for every task. PATH and PYTHONPATH are made in the sandbox: `programs` says how."""


def place_of_tests(task: Task) -> str:
    """Return where the tests of a task stand in its sandbox."""
    return "/verifier" if task.verifier_dir == "verifier" else "/tests"


def verifier_environment(
    task: Task, workdir: str, declared: Mapping[str, str], plugins: Sequence[str]
) -> dict[str, str]:
    """Return the variables of a task's tests.

    Args:
        task: The task.
        workdir: Workspace in the sandbox.
        declared: Resolved `verifier.env`; wins over everything else.
        plugins: Pytest plugins to load by name, since none is loaded by itself.
    """
    tests = place_of_tests(task)
    pytest_options = [
        "-c /dev/null",
        f"--confcutdir={tests}",
        "-p no:cacheprovider",
        f"--rootdir={shlex.quote(workdir)}",
        *(f"-p {name}" for name in plugins),
    ]
    return {
        **CONSTANT,
        "PYTEST_ADDOPTS": " ".join(pytest_options),
        "BENCHFLOW_REWARD_TEXT": f"{VERIFIER_LOGS_DIR}/reward.txt",
        "BENCHFLOW_REWARD_JSON": f"{VERIFIER_LOGS_DIR}/reward.json",
        "BENCHFLOW_REWARD_DETAILS_JSON": f"{VERIFIER_LOGS_DIR}/reward-details.json",
        "BENCHFLOW_VERIFIER_DIR": tests,
        "BENCHFLOW_TASK_ID": task.name,
        "BENCHFLOW_AGENT_CWD": workdir,
        **declared,
    }
