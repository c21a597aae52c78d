"""Which packages of which roles are in the transaction."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.package_transaction import package_transaction

ROLES = {
    "nvidia_driver": {"packages": ["driver=1"], "helpers": ["headers", "gcc"], "pins": ["pin"]},
    "cuda_toolkit": {"packages": ["cuda=2"], "helpers": ["gcc"]},
    "nccl": {"packages": ["nccl=3"]},
}
ALL = list(ROLES)


def test_packages_are_merged_in_the_order_of_the_roles_without_duplicates():
    assert package_transaction(ROLES, ALL, []) == {
        "packages": ["driver=1", "cuda=2", "nccl=3"],
        "helpers": ["headers", "gcc"],
        "pins": ["pin"],
    }


@pytest.mark.parametrize(
    ("parts", "left_out"), [(["cuda_toolkit", "nccl"], []), (ALL, ["nvidia_driver"])], ids=["not planned", "skipped"]
)
def test_roles_that_are_not_planned_or_skipped_contribute_nothing(parts, left_out):
    merged = package_transaction(ROLES, parts, left_out)
    assert merged == {"packages": ["cuda=2", "nccl=3"], "helpers": ["gcc"], "pins": []}


def test_without_parts_every_kind_is_empty():
    assert package_transaction(ROLES, [], []) == {"packages": [], "helpers": [], "pins": []}


def test_the_lists_of_the_roles_are_not_modified():
    roles = {"nccl": {"packages": ["a"]}, "cudnn": {"packages": ["b"]}}
    package_transaction(roles, ["nccl", "cudnn"], [])
    assert roles == {"nccl": {"packages": ["a"]}, "cudnn": {"packages": ["b"]}}
