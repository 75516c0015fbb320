"""Every phrase that is known to say 'a tool could not be installed', and some that do not say it."""

from __future__ import annotations

import pytest

from benchflow_workers.verifiers.dependency_markers import failed_install

KNOWN = [
    "/tests/test.sh: line 2: curl: command not found",  # bash
    "/tests/test.sh: 2: uvx: not found",  # dash
    "/usr/bin/env: 'x': Permission denied\nexec: pytest: No such file or directory",
    "/usr/bin/python3: No module named pytest",
    "ModuleNotFoundError: No module named 'pytest'",
    "curl: (6) Could not resolve host: astral.example",
    "curl: (22) The requested URL returned error: 503",
    "wget: unable to resolve host address 'pypi.example'",
    "wget: bad address 'pypi.example'",
    "Temporary failure resolving 'deb.example'",
    "fatal: unable to access 'https://git.example/x/': Could not resolve host: git.example",
    "ERROR: Could not find a version that satisfies the requirement pytest==8.4.1 (from versions: none)",
    "ERROR: No matching distribution found for pytest==8.4.1",
    "urllib3.connection.HTTPSConnection object: NewConnectionError: Failed to establish a new connection",
    "error: Failed to fetch: `https://pypi.example/simple/pytest/`",
    "error: Request failed after 3 retries",
    "  × No solution found when resolving tool dependencies:",
    "error: Failed to download `pytest`",
    "E: Unable to locate package python3-pytest",
    "E: Package 'python3-pytest' has no installation candidate",
    "npm ERR! code ENOTFOUND",
    "npm error code EAI_AGAIN",
    "ERROR: unable to select packages:",
]
ORDINARY = [
    "AssertionError: file not found",
    "1 failed, 2 passed in 0.12s",
    "ls: cannot access 'out.txt': No such file or directory",
    "fetched with curl: 200 OK",
    "ModuleNotFoundError: No module named 'solution'",
    "answer: not found",
    "",
]


@pytest.mark.parametrize("text", KNOWN)
def test_a_known_phrase_is_recognised(text: str) -> None:
    assert failed_install(f"start\n{text}\nend\n".encode())


@pytest.mark.parametrize("text", ORDINARY)
def test_an_ordinary_failure_is_not_taken_for_one(text: str) -> None:
    assert not failed_install(f"start\n{text}\nend\n".encode())
