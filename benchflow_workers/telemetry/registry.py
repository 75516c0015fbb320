"""What takes this worker's spans, as its variables say; the libraries are imported only where they are needed."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Final, cast

from benchflow_client.errors import MissingExtraError, WorkerError
from benchflow_workers.settings import OtelSettings
from benchflow_workers.telemetry.base import NO_TELEMETRY, Telemetry

__all__ = ["open_telemetry", "telemetry_of"]

logger = logging.getLogger(__name__)

PROTOCOL: Final = "http/protobuf"
"""The one that is spoken to collectors."""


def open_telemetry(otel: OtelSettings, *, worker: str) -> Telemetry:
    """Return what takes the spans of this process; a lack of it is told in the log and keeps no worker from its work.

    The variables are not ours: a host may have them for other programs.
    """
    try:
        return telemetry_of(otel, worker=worker)
    except (MissingExtraError, WorkerError) as error:
        logger.warning(
            "No spans are sent: %s %s", error.message, error.hint, extra={"action": "no_telemetry"}
        )
        return NO_TELEMETRY


def telemetry_of(otel: OtelSettings, *, worker: str) -> Telemetry:
    """Return what takes spans.

    Args:
        otel: What the variables say.
        worker: Name of this process.

    Raises:
        MissingExtraError: They are to be sent, and the extra is not installed.
        WorkerError: A variable that says how is not valid.
    """
    if not otel.sends_spans:
        return NO_TELEMETRY
    if otel.protocol not in {"", PROTOCOL}:
        logger.warning(
            "Spans are sent as %s, not as OTEL_EXPORTER_OTLP_PROTOCOL says: %s.", PROTOCOL, otel.protocol,
            extra={"action": "other_protocol"},
        )  # fmt: skip
    try:
        otlp = import_module("benchflow_workers.telemetry.otlp")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise MissingExtraError("Spans for a collector of OpenTelemetry", "otel") from error
    return cast("Telemetry", otlp.OtlpTelemetry(worker))
