"""Warnings about a platform."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import plan, plan_untried, reason, warned


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
    assert "production branch 595" in reason(plan("ubuntu-22.04", "H200"), "driver")[1]


@pytest.mark.parametrize("component", BY_NAME)
def test_none_means_that_what_is_installed_stays(component, snapshot):
    request = {
        "pytorch": "auto",
        **({"cudnn": "none", "nccl": "none"} if component == "cuda" else {}),
        component: "none",
    }
    made = plan("ubuntu-22.04", "H200", **request)
    assert made["ok"], made["problems"]
    choice, because = reason(made, component)
    assert choice == "none"
    assert f"gpu_stack_{component}=none" in because
    assert because == snapshot


def test_no_warning_for_a_kernel_that_the_branch_builds_for():
    made = plan("ubuntu-22.04", "K40c", host={"kernel": "5.15.0-203-generic"})
    assert "kernel-newer-than-driver" not in warned(made)


ALONE = {"cuda": "none", "tensorflow": "none"}


@pytest.mark.parametrize(
    ("distro", "gpu", "host", "request_", "codes"),
    [
        ("ubuntu-22.04", "T4", {}, ALONE, []),
        ("ubuntu-22.04", "T4", {"secure_boot": "disabled"}, ALONE, []),
        ("ubuntu-22.04", "T4", {"secure_boot": "enabled"}, ALONE, ["secure-boot"]),
        ("ubuntu-22.04", "T4", {"secure_boot": "enabled"}, {**ALONE, "driver": "none"}, []),
        ("ubuntu-22.04", "T4", {}, {**ALONE, "driver_source": "distro"}, []),
        (
            "ubuntu-22.04",
            "T4",
            {},
            {**ALONE, "driver": "615"},
            ["new-feature-branch"],
        ),
        (
            "ubuntu-22.04",
            "T4",
            {},
            {**ALONE, "driver": "620"},
            ["new-feature-branch"],
        ),
        (
            "ubuntu-22.04",
            "T4",
            {},
            {**ALONE, "driver": "610"},
            ["new-feature-branch", "branch-end-of-life"],
        ),
        (
            "ubuntu-22.04",
            "M60",
            {},
            {**ALONE, "driver": "390", "driver_source": "distro"},
            ["branch-end-of-life"],
        ),
        ("ubuntu-22.04", "K40c", {}, ALONE, ["branch-end-of-life", "source-fallback"]),
        (
            "ubuntu-24.04",
            "K40c",
            {"kernel": "7.0.0-43-generic"},
            {**ALONE, "driver_source": "distro"},
            ["branch-end-of-life", "kernel-newer-than-driver"],
        ),
        (
            "debian-12",
            "T4",
            {},
            {**ALONE, "driver": "580.126.16"},
            ["security-floor"],
        ),
        (
            "debian-13",
            "V100",
            {},
            {"tensorflow": "none"},
            ["branch-end-of-life", "source-fallback", "source-fallback"],
        ),
        (
            "debian-13",
            "V100",
            {},
            {"tensorflow": "none", "driver_source": "distro", "cuda_source": "distro"},
            ["branch-end-of-life"],
        ),
        (
            "ubuntu-22.04",
            "T4",
            {},
            {"tensorflow": "none", "driver": "580", "cuda": "13.2"},
            ["minor-version-compatibility"],
        ),
        (
            "ubuntu-22.04",
            "T4",
            {"loaded_driver": "580.95.05"},
            {"tensorflow": "none", "driver": "none", "cuda": "13.2"},
            ["minor-version-compatibility"],
        ),
        (
            "ubuntu-22.04",
            "T4",
            {},
            {"tensorflow": "none", "driver": "595", "cuda": "13.5"},
            ["minor-version-compatibility"],
        ),
        ("ubuntu-22.04", "T4", {}, {"tensorflow": "none", "driver": "none", "cuda": "13.2"}, []),
        ("ubuntu-22.04", "T4", {}, {"tensorflow": "none", "driver": "580", "cuda": "13.0"}, []),
        ("debian-12", "V100", {}, {"tensorflow": "none", "cuda": "12.9"}, ["not-in-repository"]),
    ],
    ids=[
        "none",
        "no Secure Boot",
        "Secure Boot",
        "Secure Boot without a driver of ours",
        "the archive's driver on request",
        "new feature branch",
        "kind unknown",
        "old feature branch",
        "end of life at an unknown time",
        "fallback",
        "kernel",
        "vulnerable",
        "fallback of both",
        "both on request",
        "minor version",
        "minor version of the loaded driver",
        "a CUDA of which no driver is recorded",
        "no driver",
        "the driver of the CUDA",
        "no NCCL for the CUDA",
    ],
)
def test_all_warnings_of_a_plan(distro, gpu, host, request_, codes, snapshot):
    made = plan(distro, gpu, host=host, **request_)
    assert made["ok"], made["problems"]
    assert warned(made) == ["repository-not-read", *codes]
    assert not codes or [w["message"] for w in made["warnings"][1:]] == snapshot


@pytest.mark.parametrize(
    ("gpus", "host", "request_", "choice"),
    [
        (["T4"], {}, ALONE, "595.91.07"),
        (["B200"], {}, {**ALONE, "driver": "590"}, "590.48.01"),
        (["V100", "T4"], {}, ALONE, "580.178.04"),
        (["M60"], {}, {**ALONE, "driver": "390"}, "390.157"),
        (["T4"], {}, {**ALONE, "driver": "620"}, "620.70.06"),
        (["T4"], {}, {**ALONE, "driver_kernel_modules": "proprietary"}, "595.91.07"),
        ([], {}, {**ALONE, "driver": "580", "expect_gpus": "0"}, "580.178.04"),
        (["T4"], {"display": "display at card1"}, ALONE, "595.91.07"),
        (["T4"], {}, {**ALONE, "driver_profile": "full"}, "595.91.07"),
        (["T4"], {}, {"tensorflow": "none", "driver": "580", "cuda": "13.2"}, "580.178.04"),
    ],
    ids=[
        "production branch",
        "new feature branch",
        "long-term support branch",
        "legacy branch of the archive",
        "kind unknown",
        "proprietary on request",
        "no GPU",
        "display",
        "full on request",
        "older than the CUDA",
    ],
)
def test_the_reason_for_a_driver_is_its_branch_and_its_kernel_modules(gpus, host, request_, choice, snapshot):
    made = plan_untried("ubuntu-22.04", *gpus, host=host, **request_)
    assert made["ok"], made["problems"]
    chosen, because = reason(made, "driver")
    assert chosen == choice
    assert because == snapshot


@pytest.mark.parametrize(
    ("scope", "component", "choice"),
    [
        ("host", "cuda", "13.0.3"),
        ("host", "tensorflow", "2.21.0"),
        ("frameworks", "tensorflow", "2.21.0"),
        ("frameworks", "cuda", "none"),
        (
            "frameworks",
            "driver",
            "none",
        ),
    ],
)
def test_each_component_has_its_choice_and_reason(scope, component, choice, snapshot):
    made = plan_untried("ubuntu-22.04", "T4", host={"loaded_driver": "580.95.05"}, scope=scope, driver="none")
    chosen, because = reason(made, component)
    assert chosen == choice
    assert because == snapshot
