"""A collector of OpenTelemetry on the loopback: takes spans over HTTP and decodes them."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


@dataclass(frozen=True)
class Told:
    """One span as it came."""

    name: str
    id: str
    parent: str
    trace: str
    kind: int
    seconds: float
    is_error: bool
    attributes: Mapping[str, Any]

    @property
    def is_request(self) -> bool:
        return self.kind == Span.SPAN_KIND_CLIENT


@dataclass
class Collector:
    """What came to a collector."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def spans(self) -> list[Told]:
        """Every span, in the order in which they began."""
        found = [
            span
            for request in self._requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return [_told(span) for span in sorted(found, key=lambda span: span.start_time_unix_nano)]

    @property
    def resources(self) -> list[Mapping[str, Any]]:
        """What was said of the senders."""
        return [
            {item.key: _value(item.value) for item in resource.resource.attributes}
            for request in self._requests()
            for resource in request.resource_spans
        ]

    def below(self, parent: Told) -> list[Told]:
        """Every span right below another."""
        return [span for span in self.spans if span.parent == parent.id]

    def _requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]


def _told(span: Span) -> Told:
    return Told(
        name=span.name,
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        trace=span.trace_id.hex(),
        kind=span.kind,
        seconds=(span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        is_error=span.status.code == Status.STATUS_CODE_ERROR,
        attributes={item.key: _value(item.value) for item in span.attributes},
    )


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)


@contextmanager
def collector() -> Generator[Collector, None, None]:
    """Run a collector for as long as the block runs."""
    seen = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            seen.paths.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    seen.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
