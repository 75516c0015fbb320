"""The gateway's connections to providers: kept open, through the host's proxy where there is one."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aiohttp import ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

__all__ = ["Outward", "outward"]

CONNECT_S: Final = 15.0
SILENCE_S: Final = 900.0
"""How long a provider may say nothing: models that think for long do."""

LARGE_BYTES: Final = 1 << 20
"""Larger bodies are sent in pieces, so that other calls go on meanwhile."""


class Outward:
    """Sends calls to providers; made by `outward`.

    Args:
        session: The connections.
    """

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], query: Mapping[str, str]
    ) -> AbstractAsyncContextManager[ClientResponse]:
        """Send a body and return the answer as it begins; a redirect is an answer.

        Raises:
            ClientError: The provider cannot be reached, or says no HTTP.
            TimeoutError: It was silent for too long.
        """
        # Bytes are sent at once; a file costs several changes of the thread.
        data = body if len(body) <= LARGE_BYTES else io.BytesIO(body)
        return self._session.post(
            url, data=data, headers=headers, params=query or None, allow_redirects=False, proxy=_proxy(url)
        )


@asynccontextmanager
async def outward() -> AsyncGenerator[Outward, None]:
    """Hold connections for as long as the block runs; no cookie of one trial is seen by another."""
    timeout = ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
    connector = TCPConnector(limit=0, keepalive_timeout=30)
    async with ClientSession(timeout=timeout, connector=connector, cookie_jar=DummyCookieJar()) as session:
        yield Outward(session)


def _proxy(url: str) -> str | None:
    parts = urlsplit(url)
    return _proxy_to(parts.scheme, parts.hostname or "")


@lru_cache(maxsize=256)
def _proxy_to(scheme: str, host: str) -> str | None:
    """Return the proxy of `http_proxy`, `https_proxy` and `no_proxy`, read once a host: it takes long."""
    return None if proxy_bypass(host) else getproxies().get(scheme)
