"""docker-compose.yml and deploy/ fit together, keep secrets out, and scale."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
SECRETS = (
    "BENCHFLOW_REDIS_PASSWORD",
    "BENCHFLOW_S3_ACCESS_KEY_ID",
    "BENCHFLOW_S3_SECRET_ACCESS_KEY",
    "FLOWER_PASSWORD",
)


def services() -> dict[str, dict[str, Any]]:
    """Return the services as written."""
    return dict(yaml.safe_load(COMPOSE.read_text())["services"])


def example_names() -> set[str]:
    """Return the variables that .env.example lists."""
    return set(re.findall(r"^([A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))


def has_compose() -> bool:
    """Return whether `docker compose` exists here."""
    if shutil.which("docker") is None:
        return False
    probe = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=30, check=False)
    return probe.returncode == 0


def test_the_fleet_has_its_five_services() -> None:
    assert sorted(services()) == ["control", "flower", "redis", "store", "worker"]


@pytest.mark.parametrize("name", ["worker", "control"])
def test_workers_can_be_scaled(name: str) -> None:
    """A fixed name or a host port would let only one start."""
    service = services()[name]

    assert "container_name" not in service
    assert "ports" not in service
    assert "hostname" not in service


@pytest.mark.parametrize("name", SECRETS)
def test_an_empty_secret_stops_the_start(name: str) -> None:
    uses = re.findall(r"\$\{" + name + r"([^A-Z_][^}]*)\}", COMPOSE.read_text())

    assert uses
    assert all(use.startswith(":?") for use in uses), uses


def test_every_variable_is_explained_in_the_example() -> None:
    used = set(re.findall(r"\$\{([A-Z0-9_]+)", COMPOSE.read_text()))

    assert used - example_names() == set()


def test_the_example_holds_no_secret() -> None:
    filled = re.findall(
        r"^([A-Z0-9_]*(?:PASSWORD|KEY_ID|ACCESS_KEY))=(.+)$", (ROOT / ".env.example").read_text(), re.M
    )

    assert filled == []


def test_ports_are_published_on_loopback_unless_asked() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]

    assert len(ports) == 3
    assert all(port.startswith("${BENCHFLOW_BIND:-127.0.0.1}:") for port in ports)


def test_every_image_names_its_version() -> None:
    images = [service["image"] for service in services().values() if "image" in service]

    assert len(images) == 2
    assert all(re.search(r":\d", image) for image in images)


def test_every_build_names_a_target_of_the_dockerfile() -> None:
    targets = {service["build"]["target"] for service in services().values() if "build" in service}
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, flags=re.MULTILINE))

    assert targets == {"worker", "control", "flower"}
    assert targets <= stages


def test_entry_points_get_the_signals() -> None:
    """The shell form would put `sh` between Docker's SIGTERM and the worker."""
    commands = re.findall(r"^(?:ENTRYPOINT|CMD) (.+)$", DOCKERFILE, flags=re.MULTILINE)

    assert len(commands) == 6
    assert all(isinstance(json.loads(command), list) for command in commands)


def test_only_the_docker_worker_runs_as_root() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    as_root = [stage.split()[2] for stage in stages if "\nUSER benchflow" not in stage]

    assert as_root == ["base", "worker"]


def test_what_the_dockerfile_copies_is_in_its_context() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        source
        for line in re.findall(r"^COPY (.+)$", DOCKERFILE, flags=re.MULTILINE)
        for source in line.split()[:-1]
    }

    assert all(any(source == name or source.startswith(f"{name}/") for name in allowed) for source in copied)


def test_the_broker_keeps_its_data_and_never_drops_keys() -> None:
    lines = (ROOT / "deploy/redis/server.conf").read_text().splitlines()

    assert "appendonly yes" in lines
    assert "maxmemory-policy noeviction" in lines


def render(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `docker compose config` with these variables and no .env file."""
    return subprocess.run(
        ["docker", "compose", "--env-file", os.devnull, "config", "--format", "json"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def interpolate(text: str, environment: dict[str, str]) -> str:
    """Fill in `${NAME}`, `${NAME:-default}`, `${NAME:+other}` and `${NAME:?message}` like compose does."""
    innermost = re.compile(r"\$\{([A-Z0-9_]+)(?::([-+?])([^${}]*))?\}")
    while match := innermost.search(text):
        name, kind, word = match.groups()
        value = environment.get(name, "")
        if kind == "?" and not value:
            raise LookupError(f"{name}: {word}")
        filled = (word if value else "") if kind == "+" else value or (word or "" if kind == "-" else "")
        text = text[: match.start()] + filled + text[match.end() :]
    return text


def configuration(environment: dict[str, str]) -> dict[str, Any]:
    """Return the services as compose would start them; by compose itself where it exists."""
    if has_compose():
        run = render(environment)
        if run.returncode != 0:
            raise LookupError(run.stderr)
        return dict(json.loads(run.stdout)["services"])
    return dict(yaml.safe_load(interpolate(COMPOSE.read_text(), environment))["services"])


def test_one_password_is_enough_for_the_broker() -> None:
    found = configuration(dict.fromkeys(SECRETS, "s3cret"))

    assert found["worker"]["environment"]["BENCHFLOW_BROKER_URL"] == "redis://:s3cret@redis:6379/0"
    assert found["flower"]["environment"]["BENCHFLOW_BROKER_URL"] == "redis://:s3cret@redis:6379/0"
    assert found["flower"]["environment"]["FLOWER_BASIC_AUTH"] == "benchflow:s3cret"


def test_a_role_with_its_own_password_uses_its_own_user() -> None:
    roles = {
        "BENCHFLOW_REDIS_WORKER_PASSWORD": "w0rker",
        "BENCHFLOW_REDIS_FLOWER_PASSWORD": "fl0wer",
        "BENCHFLOW_REDIS_CLIENT_PASSWORD": "cl1ent",
    }

    found = configuration(dict.fromkeys(SECRETS, "s3cret") | roles)

    assert found["control"]["environment"]["BENCHFLOW_BROKER_URL"] == "redis://worker:w0rker@redis:6379/0"
    assert found["flower"]["environment"]["BENCHFLOW_BROKER_URL"] == "redis://flower:fl0wer@redis:6379/0"


@pytest.mark.parametrize("name", SECRETS)
def test_the_configuration_is_refused_without_a_secret(name: str) -> None:
    others = {secret: "s3cret" for secret in SECRETS if secret != name}

    with pytest.raises(LookupError, match=name):
        configuration(others)
