"""The role_defaults lookup: what it returns, and its errors."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleLookupError
from ansible_collections.gpuhost.stack.plugins.lookup.role_defaults import look_up

FACTS = {"distribution": "Debian", "distribution_version": "12.9", "distribution_major_version": "12"}
FACTS["architecture"] = "x86_64"


def test_facts_of_the_host_choose_the_packages():
    (cudnn,) = look_up(["cudnn", "9.28.0.42"], FACTS, cuda="12")
    assert cudnn["packages"][0] == "libcudnn9-cuda-12=9.28.0.42-1"
    (repository,) = look_up(["repository"], FACTS)
    assert repository["slug"] == "debian12"


@pytest.mark.parametrize(
    ("distribution", "python", "packages"),
    [
        ("Debian", "", ["gcc", "libc6-dev", "python3-dev"]),
        ("Debian", "3.11", ["gcc", "libc6-dev", "python3.11-dev"]),
        ("Debian", "3.13", ["gcc", "libc6-dev"]),  # which uv downloads with its headers
        ("Rocky", "", ["gcc", "glibc-devel"]),  # python3 is dnf's own
        ("Rocky", "3.12", ["gcc", "glibc-devel", "python3.12-devel"]),
    ],
)
def test_what_pytorch_compiles_with_has_the_distributions_names(distribution, python, packages):
    version = {"Debian": "12", "Rocky": "9"}[distribution]
    facts = {**FACTS, "distribution": distribution, "distribution_version": version}
    assert look_up(["build_packages", python], {**facts, "distribution_major_version": version}) == [packages]


@pytest.mark.parametrize(
    ("terms", "message"),
    [(["driver"], "found 1 terms"), (["driver", "7777"], "role_defaults: there is no NVIDIA driver 7777")],
)
def test_errors_name_the_lookup(terms, message):
    with pytest.raises(AnsibleLookupError, match=message):
        look_up(terms, FACTS)
