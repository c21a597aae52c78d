"""Read JSON into frozen dataclasses and write them as JSON, at the edge of the process.

Field types may be str, int, float, bool, Any, other dataclasses, `X | None`, `tuple[X, ...]` and `Mapping[str, X]`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_Reader = Callable[[Any, str], Any]
_JSON_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


class RecordError(ValueError):
    """JSON does not fit its dataclass; the message starts with the path of the wrong field."""


def from_json(kind: type[T], data: Any, path: str) -> T:
    """Return `data` as an instance of the dataclass `kind`; `path` is the name of `data` in error messages.

    Unknown keys are ignored. An absent key and null give the field's default. A list instead of an object holds the
    fields in their order. Raises RecordError for a value of the wrong type and for a missing field without a default.
    """
    record: T = _read_record(kind, data, path)
    return record


def to_json(value: Any) -> Any:
    """Return dataclasses, mappings and sequences, however nested, as dicts and lists."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


@functools.cache
def _reader(kind: Any) -> _Reader:
    """Return the function that reads a value of a type; made once, since a probe holds thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value, path: value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return functools.partial(_read_record, kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _reader(inner)  # null gets the default of the field before any reader is asked
    if origin is tuple:
        return functools.partial(_read_list, _reader(arguments[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return functools.partial(_read_mapping, _reader(arguments[1]), type(None) in typing.get_args(arguments[1]))
    return functools.partial(_read_scalar, kind)


@functools.cache
def _fields(kind: type) -> list[tuple[str, str, _Reader, bool]]:
    """(name, key in JSON, reader, whether there is a default) of each field."""
    hints = typing.get_type_hints(kind)
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


def _read_record(kind: Any, value: Any, path: str) -> Any:
    fields = _fields(kind)
    if isinstance(value, list):
        value = {key: item for (_, key, _, _), item in zip(fields, value, strict=False)}
    if not isinstance(value, Mapping):
        raise RecordError(f"{path}: expected an object, found {value!r:.80}")
    found = {}
    for name, key, read, has_default in fields:
        item = value.get(key)
        if item is not None:
            found[name] = read(item, f"{path}.{key}")
        elif not has_default:
            raise RecordError(f"{path}.{key}: missing")
    return kind(**found)


def _read_list(read: _Reader, value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise RecordError(f"{path}: expected a list, found {value!r:.80}")
    return tuple(read(item, f"{path}[{index}]") for index, item in enumerate(value))


def _read_mapping(read: _Reader, nullable: bool, value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RecordError(f"{path}: expected an object, found {value!r:.80}")
    return {str(key): None if nullable and item is None else read(item, f"{path}.{key}") for key, item in value.items()}


def _read_scalar(kind: type, value: Any, path: str) -> Any:
    # Subclasses count as well: Ansible tags strings with where they are from.
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise RecordError(f"{path}: expected {_JSON_NAMES[kind]}, found {value!r:.80}")
    return value
