"""Turn plain data into validated records, and validation errors into lines an author understands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from benchflow_client.tasks.findings import Findings, nearest
from benchflow_client.tasks.raw import KeyPath, Raw, dotted, value_at

_Model = TypeVar("_Model", bound=BaseModel)

_OLD_NAMES = {"environment": "sandbox", "environment_mode": "sandbox_mode", "timeout": "timeout_sec"}
"""Keys people write out of habit, and what the format calls them."""

_EXPECTED = {
    "bool_type": "expected true or false",
    "dict_type": "expected a table",
    "float_type": "expected a number",
    "int_type": "expected a whole number",
    "missing": "is missing",
    "model_type": "expected a table",
    "string_type": "expected text in quotes",
    "tuple_type": "expected a list",
}
"""What a type error means in a task file."""


def validate(
    model: type[_Model], raw: Raw, findings: Findings, *, known: tuple[str, ...] = ()
) -> _Model | None:
    """Return the record the data describes, or None when problems were added; no unknown key is accepted.

    Args:
        model: The record.
        raw: The file; `raw.data` is validated as a whole.
        findings: Gets one problem per wrong or unknown key.
        known: Top-level keys the file may also hold, for suggestions.
    """
    try:
        return model.model_validate(raw.data)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            findings.problem(_problem(model, raw, details, known))
    return None


def validate_leniently(
    model: type[_Model], raw: Raw, findings: Findings
) -> tuple[_Model | None, tuple[str, ...]]:
    """Return the record and the unknown keys, which are left out with a warning each."""
    ignored = []
    for path in _unknown_keys(model, raw.data):
        written = raw.as_written(path)
        ignored.append(dotted(written))
        names = [str(raw.as_written((*path[:-1], name))[-1]) for name in _field_names(model, path[:-1])]
        findings.warning(raw.says(path, f"unknown key, ignored{nearest(str(written[-1]), names)}"))
        value_at(raw.data, path[:-1]).pop(path[-1])
    return validate(model, raw, findings), tuple(sorted(ignored))


def _unknown_keys(model: type[BaseModel], data: dict[str, Any]) -> list[KeyPath]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        return [entry["loc"] for entry in details if entry["type"] == "extra_forbidden"]
    return []


def _problem(model: type[BaseModel], raw: Raw, details: ErrorDetails, known: tuple[str, ...]) -> str:
    """Return one validation error as a line that names file, line, key, value and expectation."""
    path: KeyPath = tuple(part for part in details["loc"] if part != "[key]")
    kind = details["type"]
    if kind == "extra_forbidden":
        return raw.says(path, _unknown(model, path, known))
    value = None if kind == "missing" else details["input"]
    shown = None if isinstance(value, dict | tuple) or value == [] else value
    return raw.says(path, _reason(str(path[-1]) if path else "", kind, value, details), shown)


def _unknown(model: type[BaseModel], path: KeyPath, known: tuple[str, ...]) -> str:
    """Return what to say about a key nobody knows."""
    key, names = str(path[-1]), _field_names(model, path[:-1])
    if _OLD_NAMES.get(key) in names:
        return f"unknown key; write {_OLD_NAMES[key]!r}"
    return f"unknown key{nearest(key, [*names, *(known if len(path) == 1 else ())])}"


def _reason(key: str, kind: str, value: Any, details: ErrorDetails) -> str:
    """Return what was expected instead."""
    context: Mapping[str, Any] = details.get("ctx", {})
    is_seconds = key.endswith("_sec")
    if kind == "float_type" and is_seconds:
        return f"expected a number of seconds{_unquoted(value)}"
    if kind in _EXPECTED:
        return _EXPECTED[kind] + (_unquoted(value) if kind in {"float_type", "int_type"} else "")
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind == "value_error":
        return str(context["error"])
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"expected a finite number{' of seconds' if is_seconds else ''}"
    return _bound(kind, context, " seconds" if is_seconds else "") or details["msg"]


def _bound(kind: str, context: Mapping[str, Any], unit: str) -> str:
    """Return a limit in words, empty for other kinds of error."""
    names = {"greater_than": ("gt", "more than"), "greater_than_equal": ("ge", "at least")}
    names |= {"less_than_equal": ("le", "at most")}
    if kind == "string_pattern_mismatch":
        return f"does not match {context['pattern']}"
    if kind not in names:
        return ""
    limit, words = names[kind]
    return f"expected {words} {context[limit]:g}{unit}"


def _unquoted(value: Any) -> str:
    """Return advice for a number written as text."""
    is_number = isinstance(value, str) and value.strip().lstrip("+-").replace(".", "", 1).isdecimal()
    return "; remove the quotes" if is_number else ""


def _field_names(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Return the keys a table of the schema knows; none where it is a free map."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None:
            return []
        if isinstance(part, str) and part in current.model_fields:
            current = _table_type(current.model_fields[part].annotation)
    return [] if current is None else list(current.model_fields)


def _table_type(annotation: Any) -> type[BaseModel] | None:
    """Return the record inside an annotation such as `tuple[Record, ...]` or `Record | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _table_type(inner))), None)
