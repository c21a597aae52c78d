"""Records as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import OMITTED, to_json


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
