"""What several roles install, as one transaction; that it is rendered as the roles' own is shown by their tasks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.playbooks import rendering

DRIVER: dict[str, Any] = {
    "nvidia_driver_version": "595.71.05",
    "nvidia_driver_packages": ["driver=1"],
    "nvidia_driver_kernel_headers": ["headers"],
    "nvidia_driver_kernel_compilers": ["gcc"],
    "nvidia_driver_pinning_packages": ["pin"],
    "nvidia_driver_replaces": ["old"],
}
TRANSITIONS = ("replaces", "may_remove", "reinstall")
CUDA = {"cuda_toolkit_packages": ["cuda=2"], "cuda_toolkit_host_compilers": ["gcc", "g++"]}


def merged(*roles: str) -> dict[str, Any]:
    transitions = [f"{role}_{kind}" for role in ("nvidia_driver", "cuda_toolkit", "nccl") for kind in TRANSITIONS]
    variables = {**{name: [] for name in transitions}, **DRIVER, **CUDA, "nccl_packages": ["nccl=3", "cuda=2"]}
    variables |= {"roles": roles, "found": "{{ lookup('gpuhost.stack.role_transaction', *roles) }}"}
    (answer,) = rendering.rendered([{"variables": variables, "names": ["found"]}])
    assert isinstance(answer, dict), answer
    return dict(answer["found"])


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        (
            ["nvidia_driver", "cuda_toolkit", "nccl"],
            {"packages": ["driver=1", "cuda=2", "nccl=3"], "helpers": ["headers", "gcc", "g++"], "pins": ["pin"]},
        ),
        (["nccl", "cuda_toolkit"], {"packages": ["nccl=3", "cuda=2"], "helpers": ["gcc", "g++"]}),
        (["packages", "env_paths", "plan"], {"packages": []}),
        ([], {"packages": []}),
    ],
)
def test_packages_are_merged_in_the_order_of_the_roles_without_duplicates(
    roles: list[str], expected: dict[str, Any]
) -> None:
    found = merged(*roles)
    assert {kind: values for kind, values in found.items() if kind in ("packages", "helpers", "pins")} == expected


def test_the_list_of_a_role_is_not_changed() -> None:
    assert merged("nccl", "cuda_toolkit") == merged("nccl", "cuda_toolkit")
    assert merged("nccl")["packages"] == ["nccl=3", "cuda=2"]
