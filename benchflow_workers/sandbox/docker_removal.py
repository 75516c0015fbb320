"""Removing what an engine holds: it may be busy with it for a while, and refuse meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.docker_http import EngineError, EngineHttp, Request

DEADLINE_S: Final = 30.0
"""After it what is left is for the reaper, which finds it by its labels."""

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 1.0


async def remove_stubborn(http: EngineHttp, path: str, *, query: Mapping[str, str] | None = None) -> str:
    """Ask an engine to delete a thing until it is gone, for `DEADLINE_S` at most.

    Returns:
        Why it is still there; empty = it is gone.
    """
    wait_s, reason = _FIRST_WAIT_S, ""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                try:
                    await http.call(Request("DELETE", path, query=dict(query or {})))
                except EngineError as error:
                    if error.status == 404:
                        return ""
                    reason = error.message  # its removal is in progress, a mount is busy, or another uses it
                else:
                    return ""
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
    except (TimeoutError, SandboxError) as error:
        return reason or str(error)
