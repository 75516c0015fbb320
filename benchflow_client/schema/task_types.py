"""Scalar types of task files: numbers, users, hosts and paths that mean what the author wrote.

Text is never turned into a number and a boolean is never one, so that a wrong
type is refused where it is read and not met hours later.
"""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, Strict

NetworkMode = Literal["public", "no-network", "allowlist", "denylist"]
"""What a sandbox may reach: everything, nothing, only or all but the named hosts."""

_TEN_YEARS_S = 10 * 365.25 * 86400
"""Longest timeout: far above any real one, far below where clocks overflow."""

_MAX_MIB = 1 << 33
"""Most memory or disk (8 PiB): its number of bytes still fits every back end's integer."""

_HOSTNAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")


def _whole(value: Any) -> Any:
    """Accept 2048.0 where 2048 is meant; a reader of YAML or TOML may write either."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _bounded(value: Any) -> Any:
    """Refuse integers no float can hold before they are converted to one."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 1 << 64:
        raise ValueError("the number is too large")
    return value


def _user(value: Any) -> Any:
    is_name = isinstance(value, str) and bool(value.strip()) and "\0" not in value
    is_id = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32
    if not (is_name or is_id):
        raise ValueError("expected a user name or a numeric id")
    return value


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("a NUL character cannot be passed on")
    return value


def _variable_name(value: str) -> str:
    if not value or "=" in value or "\0" in value:
        raise ValueError("expected a variable name: not empty, no '='")
    return value


def finite(value: Any) -> Any:
    """Return plain data with inf and nan as text, since JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def is_ip(host: str) -> bool:
    """Return whether a host is written as an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _allowed_host(value: str) -> str:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        if not _HOSTNAME.fullmatch(value.removeprefix("*.")):
            raise ValueError("expected a host, *.host, an IP address or a CIDR block") from None
    return value


def _blocked_host(value: str) -> str:
    if is_ip(value) or not _HOSTNAME.fullmatch(value):
        raise ValueError("expected a host name, not an address or a URL")
    return value


def _blocked_url(value: str) -> str:
    url = urlsplit(value)
    host = url.hostname or ""
    if url.scheme not in {"http", "https"} or not _HOSTNAME.fullmatch(host) or is_ip(host):
        raise ValueError("expected an http or https URL with a host name")
    if url.port is not None or url.username is not None:
        raise ValueError("a blocked URL has no port and no user")
    return f"{url.scheme}://{host}{url.path}"


def _absolute(value: str) -> str:
    if not value.startswith("/") or ".." in value.split("/"):
        raise ValueError("expected an absolute path without '..'")
    return value


def _workdir(value: str) -> str:
    if not _absolute(value).strip("/"):
        raise ValueError("expected a folder below /")
    return value


TimeoutS = Annotated[
    float, Strict(), BeforeValidator(_bounded), Field(gt=0, le=_TEN_YEARS_S, allow_inf_nan=False)
]
"""A positive, finite number of seconds."""

DelayS = Annotated[
    float, Strict(), BeforeValidator(_bounded), Field(ge=0, le=_TEN_YEARS_S, allow_inf_nan=False)
]
"""A finite number of seconds, 0 allowed."""

Cores = Annotated[float, Strict(), BeforeValidator(_bounded), Field(gt=0, le=1e6, allow_inf_nan=False)]
"""Processor cores, fractions allowed."""

Mebibytes = Annotated[int, Strict(), BeforeValidator(_whole), Field(gt=0, le=_MAX_MIB)]
"""A size in MiB."""

Count = Annotated[int, Strict(), BeforeValidator(_whole), Field(ge=0, le=1_000_000)]
"""A whole number of things."""

Flag = Annotated[bool, Strict()]
"""true or false, never text or a number."""

Reward = Annotated[float, Strict(), BeforeValidator(_bounded), Field(allow_inf_nan=False)]
"""A finite reward."""

User = Annotated[str | int, BeforeValidator(_user)]
"""A user of the sandbox by name or numeric id."""

PlainText = Annotated[str, AfterValidator(_no_nul)]
"""Text that can be passed to a program."""

ImageName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$", max_length=1024)]
"""A container image: `name`, `name:tag` or `registry/name@sha256:...`."""

FreeMap = Annotated[dict[str, Any], AfterValidator(finite)]
"""Data with a meaning for others; it stays the same through JSON."""

EnvMap = dict[Annotated[str, AfterValidator(_variable_name)], PlainText]
"""Variables; a value that is wholly `${NAME}` or `${NAME:-default}` is filled in on the worker."""

AbsolutePath = Annotated[PlainText, AfterValidator(_absolute)]
"""An absolute path in the sandbox."""

Workdir = Annotated[PlainText, AfterValidator(_workdir)]
"""An absolute folder in the sandbox, not `/` itself."""

AllowedHost = Annotated[str, AfterValidator(_allowed_host)]
"""A host, `*.host`, an IP address or a CIDR block."""

BlockedHost = Annotated[str, AfterValidator(_blocked_host)]
"""A host name."""

BlockedUrl = Annotated[str, AfterValidator(_blocked_url)]
"""An http or https URL prefix; a query is dropped."""
