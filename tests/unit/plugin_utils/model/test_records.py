"""JSON into dataclasses and named tuples."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.records import RecordError, from_json


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


class Label(NamedTuple):
    text: str
    size: int = 10


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    points: tuple[Point, ...] = ()
    is_closed: bool = False
    origin: Point | None = None
    by_name: Mapping[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    kind: str = dataclasses.field(default="any", metadata={"key": "class"})
    extra: Any = None
    labels: tuple[Label, ...] = ()


SHAPE = {
    "name": "triangle",
    "points": [{"x": 1, "y": 2.5}, [3, 4]],
    "is_closed": True,
    "origin": {"x": 0},
    "by_name": {"a": ["b"], "c": None},
    "class": "flat",
    "extra": {"any": ["thing"]},
    "unknown": "ignored",
    "labels": [["A"], {"text": "B", "size": 8}],
}


def test_values_of_all_kinds_are_read() -> None:
    assert from_json(Shape, SHAPE, "shape") == Shape(
        "triangle",
        (Point(1, 2.5), Point(3, 4)),
        True,
        Point(0),
        {"a": ("b",), "c": None},
        "flat",
        {"any": ["thing"]},
        (Label("A"), Label("B", 8)),
    )


def test_absent_and_null_fields_have_their_defaults() -> None:
    assert from_json(Shape, {"name": "a", "points": None, "by_name": None}, "shape") == Shape("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, r"shape\.name: missing"),
        ({"name": 5}, r"shape\.name: expected a string, found 5"),
        ({"is_closed": 1}, r"shape\.is_closed: expected true or false, found 1"),
        ({"points": [{"x": True}]}, r"shape\.points\[0\]\.x: expected an integer, found True"),
        ({"points": "none"}, r"shape\.points: expected a list, found 'none'"),
        ({"labels": [[]]}, r"shape\.labels\[0\]\.text: missing"),
        ({"labels": [["A", "B"]]}, r"shape\.labels\[0\]\.size: expected an integer, found 'B'"),
        ({"origin": 3}, r"shape\.origin: expected an object, found 3"),
        ({"by_name": {"a": [1]}}, r"shape\.by_name\.a\[0\]: expected a string, found 1"),
        ({"by_name": []}, r"shape\.by_name: expected an object, found \[\]"),
    ],
)
def test_errors_name_the_path_and_the_expected_type(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"^{message}$"):
        from_json(Shape, {**SHAPE, **changes}, "shape")
