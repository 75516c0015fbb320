"""The two kinds of pydantic record everything else builds on."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
"""Version of every stored document and message; raised when a reader must change."""


class Record(BaseModel):
    """An immutable record that refuses unknown keys: what users write and what travels."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Document(BaseModel):
    """An immutable stored document; readers ignore keys of newer versions."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: int = Field(default=SCHEMA_VERSION, description="Version of the document's layout.")


def utc_now() -> datetime:
    """Return the present moment as an aware UTC datetime."""
    return datetime.now(UTC)
