"""Spans sent to a collector by OTLP over HTTP; the one file that knows the libraries of OpenTelemetry.

Where they go, with which headers and how often is said by the standard variables (`OTEL_*`),
which the libraries read themselves.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context

from benchflow_client.errors import WorkerError
from benchflow_client.version import __version__
from benchflow_workers.telemetry.base import SHARED_PREFIX, Attributes, Done, Span

__all__ = ["OtlpTelemetry"]

logger = logging.getLogger(__name__)

CLOSE_S: Final = 5.0
"""How long a worker that ends waits for its collector."""

_SCOPE: Final = "benchflow_workers"
_NOTHING_ABOVE: Final = Context()
_ERROR_TYPE: Final = "error.type"

_Told = Mapping[str, str | bool | int | float | Sequence[str]]


class OtlpTelemetry:
    """Collects spans and sends them from a thread of its own, many at once; where nobody takes them they are dropped.

    Args:
        worker: Name of this process.

    Raises:
        WorkerError: A variable that says how they are sent is not valid.
    """

    def __init__(self, worker: str) -> None:
        # They would tell every attempt to send, with the address and what stands in it.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._provider = _provider(worker)
        self._tracer = self._provider.get_tracer(_SCOPE, __version__)

    def begin(self, name: str, attributes: Attributes) -> Span:
        """Return a span that begins now and has none above it."""
        told = _told(attributes)
        span = self._tracer.start_span(name, context=_NOTHING_ABOVE, attributes=told)
        return _OtlpSpan(self._tracer, span, _shared(told))

    def close(self) -> None:
        """Hand over what is left, within a few seconds; safe to call twice."""
        closing = threading.Thread(target=self._provider.shutdown, name="telemetry-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        if closing.is_alive():
            logger.warning(
                "The collector of spans does not answer; the last ones are lost.",
                extra={"action": "spans_lost"},
            )


class _Sender(SpanExporter):
    """Sends spans, and says once that they are not taken, and once that they are again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._is_refused = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; those that are not taken after a few attempts are dropped."""
        result = self._exporter.export(spans)
        is_refused = result is not SpanExportResult.SUCCESS
        if is_refused and not self._is_refused:
            logger.warning(
                "The collector of OTEL_EXPORTER_OTLP_ENDPOINT takes no spans; they are dropped until it does.",
                extra={"action": "spans_refused"},
            )
        elif self._is_refused and not is_refused:
            logger.info("The collector takes spans again.", extra={"action": "spans_taken"})
        self._is_refused = is_refused
        return result

    def shutdown(self) -> None:
        """End attempts that are under way."""
        self._exporter.shutdown()


def _provider(worker: str) -> TracerProvider:
    own = {"service.name": "benchflow-worker", "service.version": __version__, "service.instance.id": worker}
    resource = Resource.create(own).merge(OTELResourceDetector().detect())
    try:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(_Sender(OTLPSpanExporter())))
    except ValueError as error:
        raise WorkerError(
            f"A variable of OpenTelemetry (OTEL_...) is not valid: {error}.", hint="Correct or unset it."
        ) from error
    return provider


class _OtlpSpan:
    """One span, with what holds for all below it."""

    def __init__(self, tracer: Tracer, span: SdkSpan, shared: _Told) -> None:
        self._tracer = tracer
        self._span = span
        self._shared = shared

    @property
    def is_taken(self) -> bool:
        """Whether it is sampled."""
        return self._span.is_recording()

    def begin(self, name: str, attributes: Attributes) -> Span:
        """Return a span below this one that begins now."""
        told = {**self._shared, **_told(attributes)}
        span = self._tracer.start_span(
            name, context=set_span_in_context(self._span, _NOTHING_ABOVE), attributes=told
        )
        return _OtlpSpan(self._tracer, span, _shared(told))

    def record(self, done: Done) -> None:
        """Make a span below this one of a request that is over."""
        span = self._tracer.start_span(
            done.name,
            context=set_span_in_context(self._span, _NOTHING_ABOVE),
            kind=SpanKind.CLIENT,
            attributes={**self._shared, **_told(done.attributes)},
            start_time=done.started_ns,
        )
        _set_error(span, done.error)
        span.end(done.ended_ns)

    def end(self, attributes: Attributes, *, error: str = "") -> None:
        """End it now; only the first time counts."""
        if self._span.is_recording():
            self._span.set_attributes(_told(attributes))
            _set_error(self._span, error)
            self._span.end()


def _set_error(span: SdkSpan, error: str) -> None:
    if error:
        span.set_attribute(_ERROR_TYPE, error)
        span.set_status(Status(StatusCode.ERROR))


def _told(attributes: Attributes) -> dict[str, str | bool | int | float | Sequence[str]]:
    return {name: value for name, value in attributes.items() if value is not None}


def _shared(told: _Told) -> _Told:
    return {name: value for name, value in told.items() if name.startswith(SHARED_PREFIX)}
