"""Warnings about a platform."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import COMPONENTS

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import plan


def warned(made):
    """The warning codes of a plan."""
    return [w["code"] for w in made["warnings"]]


@pytest.mark.parametrize(
    ("distro", "gpus", "request_", "host", "code"),
    [
        ("ubuntu-22.04", ["H200"], {}, {"secure_boot": "enabled"}, "secure-boot"),
        (
            "ubuntu-24.04",
            ["K40c"],
            {"cuda": "none", "tensorflow": "none"},
            {"kernel": "7.0.0-43-generic"},
            "kernel-newer-than-driver",
        ),
        ("ubuntu-22.04", ["RTX 5090"], {}, {}, "ptx-jit"),
        ("ubuntu-22.04", ["H200"], {"tensorflow": "2.15"}, {}, "ptx-jit"),
        ("ubuntu-22.04", ["H200"], {"driver": "615"}, {}, "new-feature-branch"),
        ("ubuntu-22.04", ["H200"], {"driver": "620"}, {}, "new-feature-branch"),
        ("ubuntu-22.04", ["K40c"], {}, {}, "branch-end-of-life"),
        ("ubuntu-22.04", ["H200"], {"driver": "580", "cuda": "13.2"}, {}, "minor-version-compatibility"),
        ("debian-13", ["V100"], {}, {}, "source-fallback"),
        ("debian-12", ["V100"], {"cuda": "12.9"}, {}, "not-in-repository"),  # no NCCL for CUDA 12 there
    ],
    ids=["secure-boot", "470-on-7.0", "blackwell-jit", "hopper-jit", "nfb", "620", "eol", "minor", "archive", "nccl"],
)
def test_warning(distro, gpus, request_, host, code):
    made = plan(distro, *gpus, host=host, **request_)
    assert made["ok"], made["problems"]
    assert code in warned(made)


def because(made, component):
    """The reason for a component of a plan."""
    return next(r["because"] for r in made["reasons"] if r["component"] == component)


def test_kinds_of_driver_branches_are_not_abbreviated():
    catalog, kinds = frozen_catalog(), set()
    for branch in catalog.driver.branches:
        for gpu in ("K520", "K40c", "V100", "H200"):
            made = plan("ubuntu-22.04", gpu, driver=branch.branch, cuda="none", tensorflow="none")
            if made["ok"]:
                kinds.add(branch.type)
                texts = [r["because"] for r in made["reasons"]] + [w["message"] for w in made["warnings"]]
                assert not re.search(r"\b(PB|NFB|LTSB)\b", " ".join(texts))
    assert kinds == {branch.type for branch in catalog.driver.branches}
    assert "production branch 595" in because(plan("ubuntu-22.04", "H200"), "driver")


@pytest.mark.parametrize("component", COMPONENTS)
def test_none_means_that_what_is_installed_stays(component):
    request = {
        "pytorch": "auto",
        **({"cudnn": "none", "nccl": "none"} if component == "cuda" else {}),
        component: "none",
    }
    made = plan("ubuntu-22.04", "H200", **request)
    assert made["ok"], made["problems"]
    assert because(made, component) == f"not managed (gpu_stack_{component}=none): what is installed stays"


def test_no_warning_for_a_kernel_that_the_branch_builds_for():
    made = plan("ubuntu-22.04", "K40c", host={"kernel": "5.15.0-203-generic"})
    assert "kernel-newer-than-driver" not in warned(made)


def test_the_reason_against_pytorch_names_the_variable_that_a_user_sets():
    why = because(plan("ubuntu-22.04", "H200"), "pytorch")
    assert why == "only where gpu_stack_tensorflow=auto finds no release that works"
