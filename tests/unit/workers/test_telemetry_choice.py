"""Whether a worker sends spans, as the standard variables say; none of them keeps it from its work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchflow_client.errors import MissingExtraError, WorkerError
from benchflow_workers.settings import load_otel
from benchflow_workers.telemetry.base import CURRENT, NO_TELEMETRY, Done
from benchflow_workers.telemetry.otlp import OtlpTelemetry
from benchflow_workers.telemetry.registry import open_telemetry, telemetry_of
from tests.collectors import collector

ROOT = Path(__file__).parents[3]
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
WITHOUT_LIBRARIES = """
import sys

class Missing:
    def find_spec(self, name, path, target=None):
        if name == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from benchflow_workers.settings import OtelSettings
from benchflow_workers.telemetry.registry import open_telemetry
print(open_telemetry(OtelSettings(True, ""), worker="host/1").begin("trial", {}).is_taken)
"""


@pytest.fixture
def silent() -> Iterator[str]:
    """A collector that takes connections and says nothing; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("variables", "sends"),
    [
        ({}, False),
        ({ENDPOINT: ""}, False),
        ({ENDPOINT: "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_spans_are_sent_where_a_collector_is_named(variables: dict[str, str], sends: bool) -> None:
    assert load_otel(variables).sends_spans is sends


def test_nobody_takes_spans_where_no_collector_is_named() -> None:
    telemetry = telemetry_of(load_otel({}), worker="host/1")
    span = telemetry.begin("trial", {"bf.job": "j"}).begin("agent", {})
    span.record(Done("chat m", {}, 1, 2))
    span.end({}, error="lost")
    telemetry.close()

    assert telemetry is NO_TELEMETRY
    assert not span.is_taken
    assert not CURRENT.get().is_taken


def test_a_missing_extra_is_told_in_the_log_and_keeps_no_worker_from_its_work() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LIBRARIES], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "False"
    assert "benchflow-workers[otel]" in done.stderr
    assert MissingExtraError("x", "otel").hint in done.stderr


def test_a_variable_that_is_not_valid_is_told_and_no_spans_are_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "many")
    otel = load_otel({ENDPOINT: "http://127.0.0.1:9"})

    assert open_telemetry(otel, worker="host/1") is NO_TELEMETRY
    assert "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT" in caplog.text
    with pytest.raises(WorkerError):
        telemetry_of(otel, worker="host/1")


def test_another_protocol_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with collector() as seen:
        monkeypatch.setenv(ENDPOINT, seen.url)
        otel = load_otel({ENDPOINT: seen.url, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        telemetry = open_telemetry(otel, worker="host/1")
        telemetry.begin("trial", {}).end({})
        telemetry.close()

    assert "grpc" in caplog.text
    assert [span.name for span in seen.spans] == ["trial"]


@pytest.mark.parametrize("answers", [False, None])
def test_a_collector_that_is_not_there_holds_nothing_up_and_is_told_once(
    answers: bool | None, silent: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """More spans are made than are kept, and the end comes although nothing was taken."""
    monkeypatch.setenv(ENDPOINT, silent if answers is None else "http://127.0.0.1:9")
    telemetry = OtlpTelemetry("host/1")
    trial = telemetry.begin("trial", {})
    for _ in range(3000):
        trial.begin("agent", {}).end({})
    trial.end({})
    telemetry.close()

    told = [entry.getMessage() for entry in caplog.records if entry.name.startswith("benchflow_workers")]
    assert len([line for line in told if "does not answer" in line]) == 1
    assert len(told) <= 2
