"""Foreign text that says a test script could not install its tools; the only place that matches it."""

from __future__ import annotations

import re

__all__ = ["failed_install"]

_MARKERS: tuple[re.Pattern[bytes], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?:curl|wget|uv|uvx|pip3?|pipx|pytest|py\.test|apt-get|apt|apk|npm|npx|node|cargo|go): "
        rb"(?:command )?not found",  # bash and dash
        rb"(?:curl|wget|uv|uvx|pip3?|pipx|pytest|apt-get|apk|npm|npx): No such file or directory",  # env, exec
        rb"No module named '?(?:pytest|pip|uv|ensurepip|ctrf)\b",  # python -m
        rb"curl: \((?:5|6|7|16|18|22|28|35|52|56|60|77)\) ",  # resolve, connect, HTTP error, TLS
        rb"wget: (?:unable to resolve host|bad address|can't connect)",  # GNU and BusyBox
        rb"Temporary failure (?:in name resolution|resolving)",  # glibc, apt
        rb"Could not resolve (?:host|proxy|'[^']+')",  # curl, git, apt
        rb"Could not find a version that satisfies the requirement",  # pip
        rb"No matching distribution found for",  # pip
        rb"NewConnectionError|ConnectTimeoutError|NameResolutionError",  # pip's urllib3
        rb"error: (?:Failed to fetch|Could not connect|Request failed after \d+ retries)",  # uv
        rb"No solution found when resolving",  # uv
        rb"error: Failed to (?:download|install|prepare)",  # uv
        rb"E: (?:Unable to locate package|Unable to fetch|Failed to fetch|Package .* has no installation candidate)",
        rb"npm (?:ERR!|error) (?:code|network) ?(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|request to)",
        rb"ERROR: unable to select packages",  # apk
    )
)


def failed_install(output: bytes) -> bool:
    """Return whether an output shows that installing or finding a tool of the tests failed."""
    return any(marker.search(output) for marker in _MARKERS)
