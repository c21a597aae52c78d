# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Write frozen dataclasses as JSON and read them, at the edge of a process, on the managed host or the controller.

Types of the fields that are read may be str, int, float, bool, Any, Package (in JSON its text), other dataclasses,
named tuples, `Literal[...]`, `X | None`, `tuple[X, ...]`, `Mapping[str, X]` and `ByName`. A record that a host reads
has them as Python 3.8 knows them: `Optional[X]` and `Tuple[X, ...]`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import types
import typing
from typing import Any, Callable, Iterator, List, Mapping, Tuple, Type, TypeVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package

T = TypeVar("T")
_Reader = Callable[[Any], Any]
Problems = List[Tuple[str, str]]  # the path of each wrong place, and what is wrong there
_JSON_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))  # the second since Python 3.10

V = TypeVar("V")


class ByName(Mapping[str, V]):
    """Values by name, which do not change; of texts, where a class does not say another type."""

    def __init__(self, values: Mapping[str, V] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> V:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return "%s(%r)" % (type(self).__name__, self._values)

    @staticmethod
    def type_of(name: str) -> Any:
        """Return the type of what is read from JSON, by its name."""
        return str


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
    """Data does not fit its dataclass; the message has the path of each wrong place and what was expected there."""

    def __init__(self, problems: Problems) -> None:
        super().__init__("; ".join("%s: %s" % problem for problem in problems))
        self.problems = problems

    def inside(self, step: str) -> Problems:
        """Return the problems with a step before each path. Paths are built for errors alone, since that takes time."""
        return [(step + path, reason) for path, reason in self.problems]


@dataclasses.dataclass(frozen=True, eq=False)  # compared by identity, since caches take them as a key
class Rules:
    """What is asked of data beyond its types; by default that of a program, perhaps of another release.

    exact: an unknown key is refused, null is no absent key, and a list no record. labels: the keys of which the first
    that an item of a list has names it in paths. never_empty: what is wrong with an empty value, by key. number: what
    is added about a number in place of a text.
    """

    exact: bool = False
    labels: Tuple[str, ...] = ()
    never_empty: Mapping[str, str] = dataclasses.field(default_factory=dict)
    number: str = ""


_OF_PROGRAMS = Rules()


def from_json(kind: Type[T], data: Any, path: str, rules: Rules = _OF_PROGRAMS) -> T:
    """Return `data` as an instance of `kind`, a dataclass or named tuple; `path` is its name in error messages.

    By default unknown keys are ignored, an absent key and null give the field's default, and a list instead of an
    object holds the fields in their order. Raises RecordError with each value of the wrong type, and each missing field
    without a default.
    """
    try:
        record: T = _read_record(kind, rules, data)
    except RecordError as error:
        raise RecordError(error.inside(path)) from None
    return record


def _wrong(expected: str, value: Any, hint: str = "") -> RecordError:
    return RecordError([("", "expected %s, found %.80r%s" % (expected, value, hint))])


@functools.lru_cache(maxsize=None)
def _reader(kind: Any, rules: Rules) -> _Reader:
    """Return the function that reads a value of a type; cached, since a probe has thousands of values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if kind is Package:
        return lambda value: Package.parse(_read_scalar(str, rules, value))
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults")):
        return functools.partial(_read_record, kind, rules)
    if origin is typing.Literal:
        return functools.partial(_read_choice, arguments)
    if origin in _UNIONS:
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return functools.partial(_read_optional, _reader(inner, rules))
    if origin is tuple:
        return functools.partial(_read_list, _reader(arguments[0], rules), rules)
    if isinstance(kind, type) and issubclass(kind, ByName):
        return functools.partial(_read_by_name, kind, rules)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Mapping):
        return functools.partial(_read_mapping, lambda _key: arguments[1], rules)
    return functools.partial(_read_scalar, kind, rules)


@functools.lru_cache(maxsize=None)
def _read_fields(kind: Any, rules: Rules) -> Mapping[str, tuple[str, _Reader | None, bool]]:
    """Return (name, reader, whether there is a default) of each field by its key in JSON."""
    hints = typing.get_type_hints(kind)
    if not dataclasses.is_dataclass(kind):  # a named tuple
        return {name: (name, _reader(hint, rules), name in kind._field_defaults) for name, hint in hints.items()}
    missing = dataclasses.MISSING
    return {
        field.metadata.get("key", field.name): (
            field.name,
            _field_reader(hints[field.name], field.name, rules),
            field.default is not missing or field.default_factory is not missing,
        )
        for field in dataclasses.fields(kind)
    }


def _field_reader(kind: Any, name: str, rules: Rules) -> _Reader | None:
    """Return the function that reads a field; None for a text, as most are, which is read without a call."""
    if name in rules.never_empty:
        return functools.partial(_read_filled, _reader(kind, rules), rules.never_empty[name])
    return None if kind is str else _reader(kind, rules)


def _read_filled(read: _Reader, why: str, value: Any) -> Any:
    if not value:
        raise RecordError([("", why)])
    return read(value)


def _read_record(kind: Any, rules: Rules, value: Any) -> Any:
    fields = _read_fields(kind, rules)
    if isinstance(value, list) and not rules.exact:
        value = dict(zip(fields, value))  # noqa: B905  # strict= is of Python 3.10
    if not isinstance(value, Mapping):
        raise _wrong("an object", value)
    found, problems = {}, []
    for key, (name, read, has_default) in fields.items():
        item = value.get(key)
        if item is None and not (rules.exact and key in value):
            if not has_default:
                problems.append(("." + key, "missing"))
        elif read is None and item.__class__ is str:  # as most values
            found[name] = item
        else:
            try:
                found[name] = (read or _reader(str, rules))(item)
            except RecordError as error:
                problems += error.inside("." + key)
    if rules.exact and len(found) < len(value):
        problems += [(".%s" % key, "unknown key") for key in value if key not in fields]
    if problems:
        raise RecordError(problems)
    return kind(**found)


def _read_by_name(kind: Type[ByName[Any]], rules: Rules, value: Any) -> Any:
    return kind(_read_mapping(kind.type_of, rules, value))


def _read_optional(read: _Reader, value: Any) -> Any:
    return None if value is None else read(value)


def _read_list(read: _Reader, rules: Rules, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _wrong("a list", value)
    found, problems = [], []
    for index, item in enumerate(value):
        try:
            found.append(read(item))
        except RecordError as error:
            labels = [item[name] for name in rules.labels if name in item] if isinstance(item, Mapping) else []
            problems += error.inside("[%s]" % (labels or [index])[0])
    if problems:
        raise RecordError(problems)
    return tuple(found)


def _read_mapping(type_of: Callable[[str], Any], rules: Rules, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _wrong("an object", value)
    found, problems = {}, []
    for key, item in value.items():
        try:
            found[str(key)] = _reader(type_of(key), rules)(item)
        except RecordError as error:
            problems += error.inside(".%s" % key)
    if problems:
        raise RecordError(problems)
    return found


def _read_choice(choices: tuple[Any, ...], value: Any) -> Any:
    if value not in choices:
        raise _wrong("one of " + ", ".join(choices), value)
    return value


def _read_scalar(kind: type, rules: Rules, value: Any) -> Any:
    # Subclasses count as well: Ansible tags strings with their origin.
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise _wrong(_JSON_NAMES[kind], value, rules.number if kind is str and isinstance(value, (int, float)) else "")
    return value
