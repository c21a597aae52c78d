"""gpu_stack_managed: the parts that follow from the registry of components, and what roles list."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts

PACKAGED = ["driver", "fabric", "cuda", "cudnn", "nccl"]


def test_each_role_is_a_part_in_the_order_of_the_installation() -> None:
    roles = ["nvidia_driver", "fabric", "cuda_toolkit", "cudnn", "nccl", "tensorflow_env", "pytorch_env"]
    found = parts({})
    assert list(found) == ["packages", "nvidia_repo", *roles, "env_paths", "host_verify", "plan"]
    assert [name for name, part in found.items() if part.get("component")] == ["fabric", "cudnn", "nccl"]
    assert [name for name, part in found.items() if "with" in part] == ["tensorflow_env", "pytorch_env"]
    assert (found["packages"]["for"], found["plan"]["for"]) == (PACKAGED, [*PACKAGED, "tensorflow", "pytorch"])


def test_what_a_role_lists_of_any_kind_is_watched() -> None:
    found = parts({"nccl": {"sysctls": ["vm/swap"], "revision": 2}, "smoke_train": {"files": ["/a"]}})
    assert ManagedPart.from_json(found["nccl"]) == ManagedPart(("nccl",), (), {"sysctls": ["vm/swap"]}, 2)
    assert "smoke_train" not in found
