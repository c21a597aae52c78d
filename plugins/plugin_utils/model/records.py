"""Read JSON into frozen dataclasses, at the edge of the process; module_utils/model/records.py writes them.

Field types may be str, int, float, bool, Any, Package (in JSON its text), other dataclasses, named tuples, `X | None`,
`tuple[X, ...]` and `Mapping[str, X]`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_JSON_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


class RecordError(ValueError):
    """JSON does not fit its dataclass; the message is the path of the wrong field and what was expected."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}")
        self.reason, self.path = reason, path

    def inside(self, step: str) -> RecordError:
        """Return the error with a step before its path. Paths are built for errors alone, since that takes time."""
        return RecordError(self.reason, step + self.path)


def from_json(kind: type[T], data: Any, path: str) -> T:
    """Return `data` as an instance of `kind`, a dataclass or named tuple; `path` is its name in error messages.

    Unknown keys are ignored. An absent key and null give the field's default. A list instead of an object holds the
    fields in their order. Raises RecordError for a value of the wrong type and for a missing field without a default.
    """
    try:
        record: T = _read_record(kind, data)
    except RecordError as error:
        raise error.inside(path) from None
    return record


@functools.cache
def _reader(kind: Any) -> _Reader:
    """Return the function that reads a value of a type; cached, since a probe has thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind is Package:
        return lambda value: Package.parse(_read_scalar(str, value))
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults")):
        return functools.partial(_read_record, kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return functools.partial(_read_optional, _reader(inner))
    if origin is tuple:
        return functools.partial(_read_list, _reader(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return functools.partial(_read_mapping, _reader(arguments[1]))
    return functools.partial(_read_scalar, kind)


@functools.cache
def _fields(kind: type) -> list[tuple[str, str, _Reader, bool]]:
    """Return (name, key in JSON, reader, whether there is a default) of each field."""
    hints = typing.get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):  # a named tuple
        return [(name, name, _reader(hint), name in kind._field_defaults) for name, hint in hints.items()]  # type: ignore[attr-defined]
    missing = dataclasses.MISSING
    return [
        (
            field.name,
            field.metadata.get("key", field.name),
            _reader(hints[field.name]),
            field.default is not missing or field.default_factory is not missing,
        )
        for field in dataclasses.fields(kind)
    ]


def _read_record(kind: Any, value: Any) -> Any:
    fields = _fields(kind)
    if isinstance(value, list):
        value = {key: item for (_name, key, _read, _optional), item in zip(fields, value, strict=False)}
    if not isinstance(value, Mapping):
        raise RecordError(f"expected an object, found {value!r:.80}")
    found = {}
    for name, key, read, has_default in fields:
        item = value.get(key)
        if item is None and not has_default:
            raise RecordError("missing", f".{key}")
        if item is not None:
            try:
                found[name] = read(item)
            except RecordError as error:
                raise error.inside(f".{key}") from None
    return kind(**found)


def _read_optional(read: _Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _read_list(read: _Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise RecordError(f"expected a list, found {value!r:.80}")
    found = []
    for index, item in enumerate(value):
        try:
            found.append(read(item))
        except RecordError as error:
            raise error.inside(f"[{index}]") from None
    return tuple(found)


def _read_mapping(read: _Reader, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RecordError(f"expected an object, found {value!r:.80}")
    found = {}
    for key, item in value.items():
        try:
            found[str(key)] = read(item)
        except RecordError as error:
            raise error.inside(f".{key}") from None
    return found


def _read_scalar(kind: type, value: Any) -> Any:
    # Subclasses count as well: Ansible tags strings with their origin.
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise RecordError(f"expected {_JSON_NAMES[kind]}, found {value!r:.80}")
    return value
