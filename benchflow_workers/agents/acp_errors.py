"""What an agent's protocol errors mean: their words are other programs', so they are matched in one table."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from benchflow_client.schema.failure import Failure

__all__ = ["failure_of_words"]

_TEXT_LIMIT_CHARS: Final = 2000

_WORDS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    (
        "agent.usage_limit",
        re.compile(
            r"insufficient_quota|usage limit|credit balance|billing|quota exceeded|out of credits", re.I
        ),
    ),
    (
        "agent.rate_limited",
        re.compile(r"\b429\b|rate.?limit|too many requests|\b529\b|overloaded", re.I),
    ),
    (
        "agent.provider_auth",
        re.compile(
            r"\b40[13]\b|unauthori[sz]ed|invalid.{0,10}api.?key|authentication|permission.?denied|not logged in",
            re.I,
        ),
    ),
    (
        "agent.context_overflow",
        re.compile(
            r"context.?(length|window|limit)|maximum context|prompt is too long|too many (input )?tokens",
            re.I,
        ),
    ),
    ("agent.rejected", re.compile(r"\b400\b|invalid_request|bad request", re.I)),
    ("agent.provider_failed", re.compile(r"\b50[0234]\b|service unavailable|bad gateway", re.I)),
)
"""First match counts: a spent quota is also answered with 429."""

_RETRY_AFTER: Final = re.compile(r"retry.?after[\"']?\s*[:=]?\s*[\"']?(\d{1,6}(?:\.\d+)?)", re.I)
_LONGEST_WAIT_S: Final = 3600.0


def failure_of_words(message: str, data: Any) -> Failure:
    """Return the failure an agent's error stands for; `agent.protocol` where its words say nothing known.

    Args:
        message: The error's message.
        data: What came with it, any JSON value.
    """
    text = f"{message} {'' if data is None else json.dumps(data)}"[:_TEXT_LIMIT_CHARS].strip()
    code = next((code for code, words in _WORDS if words.search(text)), "agent.protocol")
    wait = _RETRY_AFTER.search(text)
    return Failure(
        code=code,
        message=f"The agent answered with an error: {text[:300]}",
        retry_after_s=min(float(wait.group(1)), _LONGEST_WAIT_S)
        if wait and code == "agent.rate_limited"
        else None,
    )
