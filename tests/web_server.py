"""A web server of this host on ports 80 and 443 with a name that only the egress options under test know."""

from __future__ import annotations

import secrets
import ssl
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchflow_workers.sandbox.network_authority import Authority
from benchflow_workers.sandbox.network_egress import EgressOptions

NAME = "web.example"
BLOCK = "127.77.0.0/16"
"""Addresses of the servers: any process may listen there, and nothing else does."""


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length).decode("latin-1")
        assert isinstance(self.server, _Server)
        self.server.asked.append(self.path)
        body = f"host {self.headers['Host']} path {self.path} sent {sent}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Stay quiet."""


class _Server(ThreadingHTTPServer):
    def __init__(self, address: str, port: int, asked: list[str], tls: ssl.SSLContext | None) -> None:
        super().__init__((address, port), _Page)
        self.asked = asked
        self._tls = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Speak TLS, where it is asked for, in the thread of the connection."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        with self._tls.wrap_socket(request, server_side=True) as plain:
            super().finish_request(plain, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay quiet where a client does not trust the server."""


@dataclass(frozen=True)
class WebServer:
    """A running server.

    Attributes:
        asked: Paths it was asked for, over all ports.
        extra_ca: Certificate of who signed for it; None = it speaks no TLS.
    """

    address: str
    name: str = NAME
    asked: list[str] = field(default_factory=list)
    extra_ca: Path | None = None

    async def resolve(self, name: str) -> Sequence[str]:
        """Know the server's name and those below it, and a name with an address of the host's own."""
        if name == "private.example":
            return ["127.0.0.1"]
        if name == "metadata.example":
            return ["169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe"]
        if name == self.name or name.endswith(f".{self.name}"):
            return [self.address]
        raise OSError(f"no address of {name}")

    @property
    def egress(self) -> EgressOptions:
        """Options of a provider that reaches it."""
        return EgressOptions(
            private=(BLOCK,), resolve=self.resolve, authority=Authority, extra_ca=self.extra_ca
        )


@contextmanager
def web_server(*ports: int, tls_folder: Path | None = None) -> Generator[WebServer, None, None]:
    """Serve on port 80 and 8080 of one address, which needs root, or on other ports.

    Args:
        ports: Ports; none = 80 and 8080.
        tls_folder: Empty folder for the certificate of a server on port 443; None = there is none.
    """
    address = f"127.77.{secrets.randbelow(250) + 1}.{secrets.randbelow(250) + 1}"
    asked: list[str] = []
    servers = [_Server(address, port, asked, None) for port in ports or (80, 8080)]
    extra_ca = None
    if tls_folder is not None:
        signer = Authority([NAME])
        extra_ca = tls_folder / "signer.pem"
        extra_ca.write_text(signer.certificate)
        servers.append(_Server(address, 443, asked, signer.context(NAME)))
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield WebServer(address, asked=asked, extra_ca=extra_ca)
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
