"""Work that is done to its end, whoever stops waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def finish(work: Awaitable[T]) -> T:
    """Await work to its end even when cancelled meanwhile, then let the cancellation through."""
    task = asyncio.ensure_future(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancellation = error
    if cancellation is not None:
        if not task.cancelled():
            task.exception()  # seen, so that asyncio does not report it as lost
        raise cancellation
    return task.result()
