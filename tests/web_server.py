"""A web server of this host on port 80 with a name that only the egress options under test know."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchflow_workers.sandbox.network_gateway import EgressOptions

NAME = "web.example"
BLOCK = "127.77.0.0/16"
"""Addresses of the servers: any process may listen there, and nothing else does."""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = f"host {self.headers['Host']}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


@dataclass(frozen=True)
class WebServer:
    """A running server."""

    address: str
    name: str = NAME

    async def resolve(self, name: str) -> Sequence[str]:
        """Know the server's name and those below it, and a name with an address of the host's own."""
        if name == "private.example":
            return ["127.0.0.1"]
        if name == self.name or name.endswith(f".{self.name}"):
            return [self.address]
        raise OSError(f"no address of {name}")

    @property
    def egress(self) -> EgressOptions:
        """Options of a provider that reaches it."""
        return EgressOptions(private=(BLOCK,), resolve=self.resolve)


@contextmanager
def web_server(*ports: int) -> Generator[WebServer, None, None]:
    """Serve on port 80 and 8080 of one address, which needs root, or on other ports."""
    address = f"127.77.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
    servers = [ThreadingHTTPServer((address, port), _Page) for port in ports or (80, 8080)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield WebServer(address)
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
