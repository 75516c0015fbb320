"""What an agent knows and prints reaches no document, no message, no event and no log in clear."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchflow_client.schema.agent import AgentSpec
from benchflow_client.schema.job import JobSpec
from benchflow_client.schema.trial import TrialResult
from benchflow_workers.trial.redact import Redactor
from tests.fleets import CASES, embedded_fleet, instance_of, recorded_events
from tests.waiting import until
from tests.worlds import write_task

SCRIPT = CASES / "62-prints-secrets" / "agent.sh"
HARMLESS = "ASIAPACIFIC sk-learn dtn_x stay readable"
TEST = "#!/bin/sh\ncat out.txt\nif grep -qx finished out.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"

SHAPES = (
    "-".join(("sk", "ant", "F" * 24)),
    "-".join(("sk", "proj", "F" * 24)),
    "AI" + "zaSy" + "F" * 33,
    "AK" + "IA" + "F" * 16,
    "dt" + "n_" + "f" * 32,
    "x-api-key: " + "F" * 24,
)
"""What the agent prints; nobody told the worker of them."""

VARIABLES = {
    "COOKIE": "visit=made-up-cookie-value",
    "AUTHORIZATION": "Bearer made.up.value",
    "MY_API_KEY": "made-up-key-0123456789",
}
"""What the worker hands to the agent by name."""

FORBIDDEN = (*SHAPES, "F" * 16, *VARIABLES.values(), "made.up.value")


@dataclass(frozen=True)
class Traces:
    """Everything one trial left anywhere."""

    files: Mapping[str, bytes]
    broker: bytes
    events: tuple[Mapping[str, Any], ...]
    result: TrialResult

    def file(self, name: str) -> str:
        (found,) = [data for path, data in self.files.items() if path.endswith(name)]
        return found.decode("utf-8")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    """Run the talkative agent once; the broker's own journal keeps every command it was sent."""
    home = tmp_path_factory.mktemp("secrets")
    task = write_task(home / "tasks" / "quiet", files={"tests/test.sh": TEST})
    agent = AgentSpec(name=str(SCRIPT), env=(*VARIABLES, "PUBLIC_FLAG=on"))
    with embedded_fleet(home, **VARIABLES) as client:
        warm = JobSpec(tasks=str(task), agent=("nop",), sandbox="null")
        client.submit(warm).wait(timeout_s=60)
        with recorded_events(instance_of(home).url) as events:
            handle = client.submit(JobSpec(tasks=str(task), agent=(agent,), sandbox="local"))
            handle.wait(timeout_s=60)
            (trial,) = handle.trials()
            wait_for_end(events, trial_id=str(trial.result and trial.result.trial))
        journal = b"".join(read_files((home / "state" / "embedded").rglob("appendonlydir/*")).values())
        left = read_files(path for path in home.rglob("*") if "server" not in path.parts)
    assert trial.result is not None
    return Traces(left, journal, tuple(events), trial.result)


def read_files(paths: Iterable[Path]) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in paths if path.is_file() and not path.is_symlink()}


def wait_for_end(events: list[Mapping[str, Any]], *, trial_id: str) -> None:
    until(
        lambda: any(e["type"] == "task-succeeded" and e["uuid"] == trial_id for e in events),
        what=lambda: [event["type"] for event in events],
    )


@pytest.mark.root
@pytest.mark.parametrize("secret", FORBIDDEN, ids=range(len(FORBIDDEN)))
def test_no_secret_is_in_any_file_message_or_event(traces: Traces, secret: str) -> None:
    written = json.dumps(secret)[1:-1].encode()

    assert [path for path, data in traces.files.items() if secret.encode() in data or written in data] == []
    assert secret.encode() not in traces.broker
    assert secret not in repr(traces.events)


@pytest.mark.root
def test_the_search_looks_where_secrets_would_be(traces: Traces) -> None:
    names = {path.rpartition("__")[2].partition("/")[2] for path in traces.files}

    assert {
        "config.json",
        "result.json",
        "agent/agent.txt",
        "agent/environment.txt",
        "agent/events.jsonl",
        "artifacts/large.txt",
        "trajectory/acp_trajectory.jsonl",
        "verifier/test-stdout.txt",
    } <= names
    assert traces.result.trial.encode() in traces.broker
    assert any(traces.result.trial in repr(event) for event in traces.events)
    assert len(traces.file("artifacts/large.txt")) > 4 << 20


@pytest.mark.root
def test_what_is_harmless_stays_readable(traces: Traces) -> None:
    log = traces.file("agent/agent.txt")

    assert HARMLESS in log
    assert "PUBLIC_FLAG=on\n" in log
    assert "MY_API_KEY=[redacted]\n" in log
    assert log.count("[redacted]") >= 2 * len(SHAPES) + len(VARIABLES)
    assert HARMLESS in traces.file("trajectory/acp_trajectory.jsonl")
    assert traces.file("verifier/test-stdout.txt") == "[redacted]\nfinished\n"
    assert traces.result.reward == 1.0


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("x-api-key: " + "F" * 24 + " end", "x-api-key: [redacted] end"),
        ('{"X-Api-Key":"' + "f" * 24 + '"}', '{"X-Api-Key":"[redacted]"}'),
        (r'{"log": "{\"api_key\": \"abcdefgh12345678\"}"}', r'{"log": "{\"api_key\": \"[redacted]\"}"}'),
        ("export SERVICE_TOKEN=abcdefgh12345678\n", "export SERVICE_TOKEN=[redacted]\n"),
        ("db_password = 'abcdefgh12345678'", "db_password = '[redacted]'"),
        ("dt" + "n_" + "0" * 32, "[redacted]"),
        ("api_key = settings.keys.service_number_1", "api_key = settings.keys.service_number_1"),
        ("api_key=find_key_in_environment_1()", "api_key=find_key_in_environment_1()"),
        ("api_key = a_variable_without_digits", "api_key = a_variable_without_digits"),
        ("MAX_TOKENS=4096 dtn_x x-api-key: none", "MAX_TOKENS=4096 dtn_x x-api-key: none"),
    ],
)
def test_value_behind_the_name_of_a_key_is_masked_and_programs_are_not(text: str, masked: str) -> None:
    assert Redactor().text(text) == masked
