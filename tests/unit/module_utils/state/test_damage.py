"""The messages of differences; test_applied.py has the damage and the repairs of whole hosts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import damage


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "d": 4}, "x was b=2 c=3 d=None, is b=9 c=None d=4"),
        ({"a": "0123456789" * 5}, {"a": ""}, "x was a=" + "0123456789" * 4 + ", is a="),
        (None, {"b": 1, "a": 2}, "x was missing, is a=2 b=1"),
        ({"a": 1}, None, "x was a=1, is missing"),
        (["one", "two"], ["two"], "x was one; two, is two"),
        ("current", "older than /etc/ld.so.conf.d/a.conf", "x was current, is older than /etc/ld.so.conf.d/a.conf"),
    ],
)
def test_a_message_has_what_differs(before: Any, now: Any, message: str) -> None:
    assert damage.messages({"x": before, "same": 1}, {"x": now, "same": 1}) == {"x": message}


def test_a_continued_line_of_modprobe_is_one_in_a_message() -> None:
    thing = "blacklist in /etc/modprobe.d/a.conf"
    message = f"{thing} was missing, is install nvidia   /bin/false"
    assert damage.messages({}, {thing: ["install nvidia \\\n  /bin/false"]}) == {thing: message}
