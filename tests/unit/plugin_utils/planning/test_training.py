"""Which frameworks the smoke training uses."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import COMPONENTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.training import (
    training_frameworks,
    training_refusal,
)


def plan(*components: str) -> dict[str, Any]:
    return {"components": {name: {"version": "1"} if name in components else None for name in COMPONENTS}}


@pytest.mark.parametrize(
    ("planned", "requested", "expected"),
    [
        (["driver", "tensorflow"], None, ["tensorflow"]),
        (["pytorch", "tensorflow"], None, ["tensorflow", "pytorch"]),
        (["driver"], None, []),
        (["pytorch", "tensorflow"], "pytorch", ["pytorch"]),
    ],
)
def test_training_uses_the_planned_frameworks_or_the_requested_one(planned, requested, expected):
    assert training_frameworks(plan(*planned), requested) == expected


@pytest.mark.parametrize(("planned", "named"), [(["tensorflow"], "tensorflow"), ([], "no framework")])
def test_a_framework_that_is_not_planned_is_refused(planned, named):
    refusal = training_refusal(plan(*planned), "pytorch")
    assert f"=pytorch, but the plan of this host has {named}: set gpu_stack_pytorch=auto" in refusal


@pytest.mark.parametrize("requested", [None, "", "tensorflow"])
def test_a_planned_framework_is_not_refused(requested):
    assert training_refusal(plan("tensorflow"), requested) == ""
