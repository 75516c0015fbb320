"""What a secret looks like, and a quick way to every place where one may begin.

A regular expression with all shapes reads a few megabytes in a second. So single rare bytes of
the shapes are looked for first, and the expression is tried only where they stand: the same
matches, some fifty times as fast on text that holds none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["LOOKBEHIND_BYTES", "SHAPE_BYTES", "Secrets"]

SHAPE_BYTES = 16 << 10
"""No shape is longer, so that nothing hides on the border of two pieces of a file."""

LOOKBEHIND_BYTES = 16
"""Bytes a shape may want to see before it begins."""

_SHAPES = (
    rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))sk-[A-Za-z0-9_-]{16,4096}",  # OpenAI, Anthropic; not `task-list-of-...`
    rb"(?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,512}|github_pat_[A-Za-z0-9_]{20,512}",  # GitHub
    rb"glpat-[A-Za-z0-9_-]{16,512}",  # GitLab
    rb"xox[abprs]-[A-Za-z0-9-]{10,512}",  # Slack
    rb"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}",  # AWS key ids
    rb"AIza[0-9A-Za-z_-]{30,512}",  # Google
    rb"hf_[A-Za-z0-9]{20,512}",  # Hugging Face
    rb"npm_[A-Za-z0-9]{30,512}",  # npm
    rb"dtn_[A-Za-z0-9]{20,512}",  # Daytona
    # JSON web tokens; possessive and short-headed, since `eyJeyJ...` is tried at every step
    rb"eyJ[A-Za-z0-9_-]{8,512}+\.[A-Za-z0-9_-]{8,8192}+\.[A-Za-z0-9_-]{8,4096}",
    rb"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{16,8192}",  # HTTP authorization
    # private keys; no `-----` inside, so that a file of first lines is read once
    rb"-----BEGIN [A-Z ]{0,64}PRIVATE KEY-----(?:[^-]|-(?!----)){0,8192}+-----END [A-Z ]{0,64}PRIVATE KEY-----",
    rb"(?<=://)[^/\s:@]{1,64}:[^/\s:@]{3,128}(?=@)",  # user:password@ in a URL
    # a header that holds a key, and variables called like one: with a digit, or it is a word of a program
    rb"(?P<kept>(?i:x-api-key)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?)[A-Za-z0-9._~+/=-]{16,512}+",
    rb"(?P<named>(?i:api_?key|_token|_secret|_password)\\?[\"']?[ \t]{0,4}[:=][ \t]{0,4}\\?[\"']?)"
    rb"(?=[A-Za-z_~+/=-]{0,512}[0-9])[A-Za-z0-9_~+/=-]{16,512}+(?![.(\[])",
)
"""Every repetition has an end: what a sandbox printed must not decide how long a worker is busy."""

_AFTER_API = rb"(?:(?<=(?i:apikey))|(?<=(?i:api[_-]key)))"

_ANCHORS: tuple[tuple[re.Pattern[bytes], tuple[int, ...]], ...] = (
    (re.compile(rb"k(?:-(?<=sk-)|(?i:ey)" + _AFTER_API + rb")"), (-1, -3, -4, -6)),
    (re.compile(rb"K(?i:ey)" + _AFTER_API), (-3, -4, -6)),
    (re.compile(rb"_(?:(?<=hf_)|(?<=npm_)|(?<=dtn_)|(?<=gh[pousr]_)|(?<=github_pat_))"), (-2, -3, -10)),
    (re.compile(rb"_(?i:token|secret|password)(?=\\?[\"']?[ \t]{0,4}[:=])"), (0,)),
    (re.compile(rb"g(?=lpat-)"), (0,)),
    (re.compile(rb"x(?=ox[abprs]-)"), (0,)),
    (re.compile(rb"A(?=KIA|SIA|Iza)"), (0,)),
    (re.compile(rb"J(?<=eyJ)"), (-2,)),
    (re.compile(rb"B(?:earer |EGIN (?<=-----BEGIN ))"), (7, -5)),
    (re.compile(rb"b(?=earer )"), (7,)),
)
"""Expressions that begin with one byte, which is what makes them fast, and where a shape begins from there."""

_SIGN = re.compile(rb"@(?<=[^/\s:@]{3}@)")
_SIGN_REACH = 200  # bytes: the longest `://user:password`


class Secrets:
    """Finds values and shapes of secrets in bytes.

    Args:
        values: Literal secrets, longest first.
    """

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values = values
        self._pattern = re.compile(b"|".join([*map(re.escape, values), *_SHAPES]))

    def find(self, data: bytes, start: int = 0) -> Iterator[re.Match[bytes]]:
        """Yield every secret from `start` on, the first first, none overlapping another."""
        end = start
        for place in sorted(self._starts(data, start)):
            if place >= end and (match := self._pattern.match(data, place)):
                yield match
                end = match.end()

    def _starts(self, data: bytes, start: int) -> set[int]:
        """Return every place where a secret may begin."""
        first = max(0, start - LOOKBEHIND_BYTES)
        found = {
            match.start() + offset
            for anchor, offsets in _ANCHORS
            for match in anchor.finditer(data, first)
            for offset in offsets
        }
        found.update(_logins(data, first))
        for value in self._values:
            found.update(_places(data, value, first))
        return found


def _logins(data: bytes, first: int) -> Iterator[int]:
    """Yield where names before a `@` begin: a shape has no slash, so the last `://` is the only one."""
    for match in _SIGN.finditer(data, first):
        slashes = data.rfind(b"://", max(0, match.start() - _SIGN_REACH), match.start())
        if slashes >= 0:
            yield slashes + 3


def _places(data: bytes, value: bytes, first: int) -> Iterator[int]:
    place = data.find(value, first)
    while place >= 0:
        yield place
        place = data.find(value, place + 1)
