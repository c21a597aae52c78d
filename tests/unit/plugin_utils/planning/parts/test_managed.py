"""gpu_stack_managed with what follows from the registry of components."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.libraries import Nccl
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import with_components

LISTED = {"packages": {"files": ["/a"]}, "cuda_toolkit": {"for": ["cuda"]}, "plan": {"files": ["/b"]}}


def test_a_component_that_is_not_listed_is_a_part() -> None:
    found = with_components(LISTED, {})
    assert found["nccl"] == {"for": ["nccl"], "component": True}
    assert found["cuda_toolkit"] == {"for": ["cuda"]}
    assert ManagedPart.from_json(found["nccl"]) == ManagedPart(("nccl",), (), {})


def test_packages_are_for_what_consists_of_them_and_the_plan_comes_last_for_all() -> None:
    found = with_components(LISTED, {})
    assert found["packages"] == {"for": ["driver", "fabric", "cuda", "cudnn", "nccl"], "files": ["/a"]}
    assert list(found)[-1] == "plan"
    assert found["plan"] == {
        "files": ["/b"],
        "for": ["driver", "fabric", "cuda", "cudnn", "nccl", "tensorflow", "pytorch"],
    }


def test_what_a_component_manages_besides_its_packages_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Nccl, "managed", {"services": ["nccl"]})
    assert ManagedPart.from_json(with_components(LISTED, {})["nccl"]).watch == {"services": ["nccl"]}
