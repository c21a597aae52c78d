"""Records as JSON, and JSON as records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import (
    OMITTED,
    RecordError,
    Rules,
    from_json,
    to_json,
)


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    points: tuple[Point, ...] = ()
    inner: Shape | None = None
    colour: str | None = dataclasses.field(default=None, metadata=OMITTED)
    kind: str = dataclasses.field(default="any", metadata={"key": "class"})
    by_name: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def test_records_become_plain_json() -> None:
    inner = Shape("b", colour="red", by_name={"c": (Shape("d"),)})
    found = to_json(Shape("a", (Point(1, 2.5), Point(3)), inner))
    assert found == {
        "name": "a",
        "points": [[1, 2.5], [3, 0.0]],
        "inner": {
            "name": "b",
            "points": [],
            "inner": None,
            "colour": "red",
            "class": "any",
            "by_name": {"c": [{"name": "d", "points": [], "inner": None, "class": "any", "by_name": {}}]},
        },
        "class": "any",
        "by_name": {},
    }
    assert found == json.loads(json.dumps(found))


# Reading ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Corner:
    x: int
    y: float = 0.0


class Label(NamedTuple):
    text: str
    size: int = 10


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    points: tuple[Corner, ...] = ()
    is_closed: bool = False
    origin: Corner | None = None
    by_name: Mapping[str, tuple[str, ...] | None] = dataclasses.field(default_factory=dict)
    kind: str = dataclasses.field(default="any", metadata={"key": "class"})
    extra: Any = None
    labels: tuple[Label, ...] = ()
    colour: Literal["red", "blue"] = "red"


FIGURE = {
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
    assert from_json(Figure, FIGURE, "figure") == Figure(
        "triangle",
        (Corner(1, 2.5), Corner(3, 4)),
        True,
        Corner(0),
        {"a": ("b",), "c": None},
        "flat",
        {"any": ["thing"]},
        (Label("A"), Label("B", 8)),
    )


def test_absent_and_null_fields_have_their_defaults() -> None:
    assert from_json(Figure, {"name": "a", "points": None, "by_name": None}, "figure") == Figure("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": None}, r"figure\.name: missing"),
        ({"name": 5}, r"figure\.name: expected a string, found 5"),
        ({"is_closed": 1}, r"figure\.is_closed: expected true or false, found 1"),
        ({"points": [{"x": True}]}, r"figure\.points\[0\]\.x: expected an integer, found True"),
        ({"points": "none"}, r"figure\.points: expected a list, found 'none'"),
        ({"labels": [[]]}, r"figure\.labels\[0\]\.text: missing"),
        ({"labels": [["A", "B"]]}, r"figure\.labels\[0\]\.size: expected an integer, found 'B'"),
        ({"origin": 3}, r"figure\.origin: expected an object, found 3"),
        ({"by_name": {"a": [1]}}, r"figure\.by_name\.a\[0\]: expected a string, found 1"),
        ({"colour": "green"}, r"figure\.colour: expected one of red, blue, found 'green'"),
        ({"by_name": []}, r"figure\.by_name: expected an object, found \[\]"),
    ],
)
def test_errors_name_the_path_and_the_expected_type(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=f"^{message}$"):
        from_json(Figure, {**FIGURE, **changes}, "figure")


def test_every_wrong_place_is_named() -> None:
    changes = {"points": [{"x": 1}, {"y": "a"}, [2, "b"]], "by_name": {"a": 1, "b": [], "c": "d"}, "is_closed": "no"}
    with pytest.raises(RecordError) as caught:
        from_json(Figure, {**FIGURE, **changes}, "figure")
    assert [path for path, _reason in caught.value.problems] == [
        *("figure.points[1].x", "figure.points[1].y", "figure.points[2].y", "figure.is_closed"),
        *("figure.by_name.a", "figure.by_name.c"),
    ]
    assert str(caught.value) == "; ".join(f"{path}: {reason}" for path, reason in caught.value.problems)


@dataclasses.dataclass(frozen=True)
class Drawing:
    name: str
    source: str
    figures: tuple[Figure, ...] = ()
    scale: float | None = None


def test_rules_of_files_that_people_write() -> None:
    rules = Rules(exact=True, labels=("id", "name"), never_empty={"source": "empty"}, number=" (quote it)")
    given: dict[str, Any] = {"name": "d", "source": "a book", "scale": None, "figures": [{"name": "a"}]}
    assert from_json(Drawing, given, "drawing", rules) == Drawing("d", "a book", (Figure("a"),))
    figures = [{"name": "a", "points": None}, {"name": 5, "size": 1}, {"points": [[1, 2]]}, []]
    with pytest.raises(RecordError) as caught:
        from_json(Drawing, {"name": None, "source": "", "figures": figures, "size": 1}, "drawing", rules)
    assert caught.value.problems == [
        ("drawing.name", "expected a string, found None"),
        ("drawing.source", "empty"),
        ("drawing.figures[a].points", "expected a list, found None"),
        ("drawing.figures[5].name", "expected a string, found 5 (quote it)"),
        ("drawing.figures[5].size", "unknown key"),
        ("drawing.figures[2].name", "missing"),
        ("drawing.figures[2].points[0]", "expected an object, found [1, 2]"),
        ("drawing.figures[3]", "expected an object, found []"),
        ("drawing.size", "unknown key"),
    ]
