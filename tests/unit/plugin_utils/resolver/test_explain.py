"""Warnings about a platform."""

from __future__ import annotations

import pytest

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


def test_no_warning_for_a_kernel_that_the_branch_builds_for():
    made = plan("ubuntu-22.04", "K40c", host={"kernel": "5.15.0-203-generic"})
    assert "kernel-newer-than-driver" not in warned(made)
