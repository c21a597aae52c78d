# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Write frozen dataclasses as JSON and read them, at the edge of a process, on the managed host or the controller.

Types of the fields that are read may be str, int, float, bool, Any, Package (in JSON its text), other dataclasses,
named tuples, `X | None`, `tuple[X, ...]` and `Mapping[str, X]`. A record that a host reads has them as Python 3.8 knows
them: `Optional[X]` and `Tuple[X, ...]`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from typing import Any, Callable, Mapping, Type, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package

T = TypeVar("T")
_Reader = Callable[[Any], Any]
_JSON_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))  # the second since Python 3.10

# Metadata of a field with the default None: in that case its key is absent from the JSON, and not null.
OMITTED = {"omitted": True}


def to_json(value: Any) -> Any:
    """Return dataclasses, mappings and sequences, however nested, as dicts and lists.

    The key of a field is its name, or `key` of its metadata. A named tuple is a list, a Package its text.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Package):
        return str(value)
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        items = [(key, getattr(value, name), omitted) for name, key, omitted in _fields(kind)]
        return {key: to_json(item) for key, item, omitted in items if item is not None or not omitted}
    return value


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> list[tuple[str, str, bool]]:
    """Return (name, key in JSON, whether it is omitted without a value) of each field; cached, as they take time."""
    fields = dataclasses.fields(kind)
    return [(field.name, field.metadata.get("key", field.name), "omitted" in field.metadata) for field in fields]


class RecordError(ValueError):
    """JSON does not fit its dataclass; the message is the path of the wrong field and what was expected."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__("%s: %s" % (path, reason))
        self.reason, self.path = reason, path

    def inside(self, step: str) -> RecordError:
        """Return the error with a step before its path. Paths are built for errors alone, since that takes time."""
        return RecordError(self.reason, step + self.path)


def from_json(kind: Type[T], data: Any, path: str) -> T:
    """Return `data` as an instance of `kind`, a dataclass or named tuple; `path` is its name in error messages.

    Unknown keys are ignored. An absent key and null give the field's default. A list instead of an object holds the
    fields in their order. Raises RecordError for a value of the wrong type and for a missing field without a default.
    """
    try:
        record: T = _read_record(kind, data)
    except RecordError as error:
        raise error.inside(path) from None
    return record


@functools.lru_cache(maxsize=None)
def _reader(kind: Any) -> _Reader:
    """Return the function that reads a value of a type; cached, since a probe has thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind is Package:
        return lambda value: Package.parse(_read_scalar(str, value))
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults")):
        return functools.partial(_read_record, kind)
    if origin in _UNIONS:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return functools.partial(_read_optional, _reader(inner))
    if origin is tuple:
        return functools.partial(_read_list, _reader(arguments[0]))
    if isinstance(kind, type) and issubclass(kind, collections.abc.Mapping):
        return functools.partial(_read_own_mapping, kind)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return functools.partial(_read_mapping, lambda _name: arguments[1])
    return functools.partial(_read_scalar, kind)


@functools.lru_cache(maxsize=None)
def _read_fields(kind: Any) -> list[tuple[str, str, _Reader, bool]]:
    """Return (name, key in JSON, reader, whether there is a default) of each field."""
    hints = typing.get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):  # a named tuple
        return [(name, name, _reader(hint), name in kind._field_defaults) for name, hint in hints.items()]
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
    fields = _read_fields(kind)
    if isinstance(value, list):
        value = {key: item for (_name, key, _read, _optional), item in zip(fields, value)}  # noqa: B905
    if not isinstance(value, Mapping):
        raise RecordError("expected an object, found %.80r" % (value,))
    found = {}
    for name, key, read, has_default in fields:
        item = value.get(key)
        if item is None and not has_default:
            raise RecordError("missing", "." + key)
        if item is not None:
            try:
                found[name] = read(item)
            except RecordError as error:
                raise error.inside("." + key) from None
    return kind(**found)


def _read_optional(read: _Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _read_list(read: _Reader, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise RecordError("expected a list, found %.80r" % (value,))
    found = []
    for index, item in enumerate(value):
        try:
            found.append(read(item))
        except RecordError as error:
            raise error.inside("[%d]" % index) from None
    return tuple(found)


def _read_own_mapping(kind: Any, value: Any) -> Any:
    return kind(_read_mapping(kind.type_of, value))


def _read_mapping(type_of: Callable[[str], Any], value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise RecordError("expected an object, found %.80r" % (value,))
    found = {}
    for key, item in value.items():
        try:
            found[str(key)] = _reader(type_of(key))(item)
        except RecordError as error:
            raise error.inside(".%s" % key) from None
    return found


def _read_scalar(kind: type, value: Any) -> Any:
    # Subclasses count as well: Ansible tags strings with their origin.
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise RecordError("expected %s, found %.80r" % (_JSON_NAMES[kind], value))
    return value
