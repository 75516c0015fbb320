"""Which paths of a host a denylist blocks: a URL blocks all that begins with it.

Pure functions over what an agent asked for: a path is compared in every form a server
may read it in, so that no other spelling of it goes round the list.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

_DECODINGS = 3
"""Times a path is percent-decoded: servers behind one another each decode it once."""

_PARAMETERS = re.compile(r";[^/]*")
"""What some servers leave out of each part of a path."""


def hosts_of(urls: Iterable[str]) -> frozenset[str]:
    """Return the hosts that have a blocked URL, lower case."""
    return frozenset(_host(url) for url in urls)


def is_blocked(urls: Iterable[str], host: str, target: str) -> bool:
    """Return whether a request begins with a blocked URL.

    Whether it is sent over http or https makes no difference, and neither do the case of
    its letters and the query: where one way to a page is blocked the others are as well.

    Args:
        urls: Blocked URLs, `http://host/path` or `https://host/path`.
        host: The host asked, lower case, without a last dot.
        target: The target of the request: a path, or a whole URL.
    """
    prefixes = [_plain(urlsplit(url).path or "/") for url in urls if _host(url) == host]
    return bool(prefixes) and any(
        form.startswith(prefix) or f"{form}/" == prefix for form in _forms(target) for prefix in prefixes
    )


def shown_url(scheme: str, host: str, target: str) -> str:
    """Return the URL of a request for the log: without query and fragment, which may hold secrets."""
    return f"{scheme}://{host}{_path_of(target)}"


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".")


def _forms(target: str) -> set[str]:
    """Return the path of a request as each server on its way may read it."""
    path, forms = _path_of(target), set[str]()
    for _ in range(_DECODINGS + 1):
        forms |= {
            form for text in (path, _PARAMETERS.sub("", path)) for form in (_slashed(text), _plain(text))
        }
        path = unquote(path, errors="replace")
    return forms


def _path_of(target: str) -> str:
    if "://" in target.partition("?")[0]:
        rest = target.partition("://")[2]
        at = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
        target = rest[at:]
    path = target.partition("?")[0].partition("#")[0]
    return path if path.startswith("/") else f"/{path}"


def _plain(path: str) -> str:
    """Return a path in the one form that is compared, dots resolved, the slash at its end kept."""
    slashed = _slashed(unquote(path, errors="replace"))
    resolved = posixpath.normpath(slashed)
    return f"{resolved}/" if slashed.endswith("/") and resolved != "/" else resolved


def _slashed(path: str) -> str:
    joined = path.replace("\\", "/").casefold()
    while "//" in joined:
        joined = joined.replace("//", "/")
    return joined
