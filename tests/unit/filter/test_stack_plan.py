"""The filters: what they pass on and how they fail."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.filter.stack_plan import FilterModule

FILTERS = FilterModule().filters()
PROBE = {"distribution": {"id": "debian-12"}, "gpus": [{"pci_id": "10de:2335", "class": "0302"}]}


def test_plan_and_table():
    made = FILTERS["stack_plan"](PROBE, {"cuda": 13.2})
    assert made["components"]["cuda"]["version"] == "13.2"
    assert FILTERS["plan_table"](made).startswith("debian-12: 1 x NVIDIA H200 (9.0)")


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("stack_plan", ("text",), "expected a probe"),
        ("stack_plan", ({},), "lacks distribution"),
        ("stack_plan", (PROBE, {"colour": "red"}), "unknown request 'colour'"),
        ("stack_plan", (PROBE, "cuda=13"), "expected the request as a dict"),
        ("plan_table", ({},), "expected the result of gpuhost.stack.stack_plan"),
    ],
)
def test_errors(name, arguments, message):
    with pytest.raises(AnsibleFilterError, match=message):
        FILTERS[name](*arguments)
