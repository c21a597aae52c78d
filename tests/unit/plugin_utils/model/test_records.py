"""JSON into dataclasses and back."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.records import RecordError, from_json, to_json


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    points: tuple[Point, ...] = ()
    is_closed: bool = False
    origin: Point | None = None
    by_name: Mapping[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    kind: str = dataclasses.field(default="any", metadata={"key": "class"})
    extra: Any = None


SHAPE = {
    "name": "triangle",
    "points": [{"x": 1, "y": 2.5}, [3, 4]],
    "is_closed": True,
    "origin": {"x": 0},
    "by_name": {"a": ["b"], "c": None},
    "class": "flat",
    "extra": {"any": ["thing"]},
    "unknown": "ignored",
}


def test_values_of_all_kinds_are_read() -> None:
    assert from_json(Shape, SHAPE, "shape") == Shape(
        "triangle", (Point(1, 2.5), Point(3, 4)), True, Point(0), {"a": ("b",), "c": None}, "flat", {"any": ["thing"]}
    )


def test_absent_and_null_fields_have_their_defaults() -> None:
    assert from_json(Shape, {"name": "a", "points": None, "by_name": None}, "shape") == Shape("a")


def test_records_become_plain_json() -> None:
    plain = to_json(from_json(Shape, SHAPE, "shape"))
    assert plain == json.loads(json.dumps(plain))
    assert plain["points"] == [{"x": 1, "y": 2.5}, {"x": 3, "y": 4}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, r"shape\.name: missing"),
        ({"name": 5}, r"shape\.name: expected a string, found 5"),
        ({"is_closed": 1}, r"shape\.is_closed: expected true or false, found 1"),
        ({"points": [{"x": True}]}, r"shape\.points\[0\]\.x: expected an integer, found True"),
        ({"points": "none"}, r"shape\.points: expected a list, found 'none'"),
        ({"origin": 3}, r"shape\.origin: expected an object, found 3"),
        ({"by_name": {"a": [1]}}, r"shape\.by_name\.a\[0\]: expected a string, found 1"),
        ({"by_name": []}, r"shape\.by_name: expected an object, found \[\]"),
    ],
)
def test_errors_name_the_path_and_the_expected_type(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"^{message}$"):
        from_json(Shape, {**SHAPE, **changes}, "shape")
