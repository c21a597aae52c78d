"""Plans for Enterprise Linux 9 and 10, with the rows of the real catalog, and what is refused in their place."""

from __future__ import annotations

import dataclasses
import io
import itertools
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_defaults
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import host_of, resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli

from tests.unit.plugin_utils.resolver.present.present_cases import Root

MEMBERS = ("rocky", "almalinux", "rhel", "centos")
H100 = HostGpu("10de:2330", compute_capability="9.0")
HOST = Host("rocky-9", "x86_64", gpus=(H100,), described=True)
SWITCHES = ("10de:22a3",) * 4
EL9 = "5.14.0-570.23.1.el9_6.x86_64"


def planned(request: dict[str, str] | None = None, **host: Any) -> Plan:
    return resolve(load_catalog(), asking(**(request or {})), dataclasses.replace(HOST, **host))


def driver(request: dict[str, str] | None = None, **host: Any) -> DriverComponent:
    plan = planned(request, **host)
    assert plan.ok, plan.problems
    component = DriverComponent.of(plan.components)
    assert component is not None
    return component


@pytest.mark.parametrize(("member", "release"), [*itertools.product(MEMBERS, ("9", "10"))])
def test_every_component_is_planned_in_the_words_of_dnf(member: str, release: str) -> None:
    plan = planned(distribution=f"{member}-{release}", nvswitches=SWITCHES)
    assert plan.ok
    assert [warning.code for warning in plan.warnings].count("planned-only") == 1
    parts = plan.components
    assert all(parts[name] for name in ("driver", "fabric", "cuda", "cudnn", "nccl", "tensorflow"))
    texts = [str(package) for part in parts.packaged() for package in part.all_packages]
    assert all("=" not in text and ":" in text for text in texts)
    assert [str(Package.parse(text)) for text in texts] == texts
    component = driver(distribution=f"{member}-{release}")
    assert f"kmod-nvidia-open-dkms-3:{component.version}-1.el{release}" in texts
    assert component.module_stream == (f"nvidia-driver:{component.branch}-open" if release == "9" else None)
    ready = f"codeready-builder-for-rhel-{release}-x86_64-rpms" if member == "rhel" else "crb"
    assert component.repositories == (ready, "epel")


def test_older_gpus_have_the_stream_with_the_proprietary_modules() -> None:
    component = driver(gpus=(HostGpu("cc:7.0", compute_capability="7.0"),))
    assert component.module_stream == "nvidia-driver:580-dkms"
    assert "kmod-nvidia-latest-dkms" in [package.name for package in component.packages]


@pytest.mark.parametrize(
    ("kernels", "expected"),
    [
        ({}, ["kernel-devel-matched"]),
        ({"kernel": EL9}, [f"kernel-devel-{EL9}", "kernel-devel-matched"]),
        (
            {"architecture": "aarch64", "kernel": "5.14.0-570.23.1.el9_6.aarch64+64k"},
            [
                "kernel-64k-devel-5.14.0-570.23.1.el9_6.aarch64",
                "kernel-64k-devel-matched",
            ],
        ),
    ],
    ids=["no kernel", "a kernel", "64k pages"],
)
def test_headers_are_those_of_exactly_the_kernel(kernels: dict[str, str], expected: list[str]) -> None:
    component = driver({"tensorflow": "none"}, **kernels)
    assert list(component.kernel_headers) == expected
    assert set(component.kernel_compilers) <= {"gcc"}


def test_a_realtime_kernel_is_refused() -> None:
    assert [problem.code for problem in planned(kernel=f"{EL9}+rt").problems] == ["realtime-kernel"]


@pytest.mark.parametrize(
    ("distribution", "release", "expected"),
    [
        ("almalinux-9", "", "almalinux-nvidia"),
        ("rhel-10", "10.1", "rhel-10-for-x86_64-extensions-rpms"),
        ("rhel-10", "10.0", None),
        ("rocky-9", "", None),
        ("centos-10", "", None),
    ],
)
def test_modules_that_a_distribution_signs_are_planned_where_it_does(
    distribution: str, release: str, expected: str | None
) -> None:
    request = {"driver_module_source": "prebuilt"}
    if expected is None:
        plan = planned(request, distribution=distribution, distribution_release=release)
        assert "no-prebuilt-modules" in [problem.code for problem in plan.problems]
        return
    component = driver(request, distribution=distribution, distribution_release=release)
    assert (component.module_source, component.source) == ("prebuilt", "distro")
    assert expected in component.repositories
    assert component.kernel_headers == ()


def test_python_is_not_that_of_dnf() -> None:
    plan = planned()
    assert plan.components["tensorflow"].python == "3.12"
    assert (
        planned(pythons=("3.9", "3.11"), default_python="3.9", described=False).components["tensorflow"].python
        == "3.11"
    )


def test_another_python_is_one_of_a_run_that_installs_packages(tmp_path: Path) -> None:
    probe = Root(tmp_path, "rocky-9").probe()
    pythons = {scope: host_of(load_catalog(), asking(scope=scope), probe).pythons for scope in ("host", "frameworks")}
    assert {scope: "3.12" in found for scope, found in pythons.items()} == {"host": True, "frameworks": False}


@pytest.mark.parametrize(("member", "release"), [*itertools.product(MEMBERS, ("9", "10"))])
def test_arm_has_what_a_source_says_and_no_more(member: str, release: str) -> None:
    host = {"distribution": f"{member}-{release}", "architecture": "aarch64"}
    assert [problem.code for problem in planned({"tensorflow": "auto"}, **host).problems] in (
        [],
        ["distro-not-supported"],
    )
    plan = planned({"tensorflow": "none", "pytorch": "auto"}, **host)
    assert plan.ok
    assert all(plan.components[name] for name in ("cudnn", "nccl", "pytorch"))
    assert {warning.code for warning in plan.warnings} >= {"planned-only"}


@pytest.mark.parametrize(
    ("distribution", "name"),
    [
        ("ol-9", "Oracle Linux"),
        ("centos-7", "CentOS Linux"),
        ("centos-8", "CentOS Linux"),
        ("rocky-8", "Enterprise Linux 8"),
        ("rhel-8.10", "Enterprise Linux 8"),
        ("fedora-42", "Fedora"),
        ("amzn-2023", "Amazon Linux"),
        ("sles-15.7", "SUSE"),
        ("opensuse-leap-15.6", "SUSE"),
        ("opensuse-tumbleweed", "SUSE"),
    ],
)
def test_others_are_refused_by_name_with_what_to_use(distribution: str, name: str) -> None:
    (problem,) = planned(distribution=distribution).problems
    assert problem.code == "distro-not-supported"
    assert f"not supported: {name}: " in problem.message
    assert problem.remedy.startswith("use ")


def test_a_release_that_does_not_exist_is_refused_with_the_list() -> None:
    (problem,) = planned(distribution="rocky-11").problems
    assert "; where SELinux is not enforcing: almalinux-10" in problem.message
    assert "Enterprise" not in problem.message


def test_a_minor_release_describes_a_host() -> None:
    out = io.StringIO()
    assert plan_cli.main(["--distro", "rocky-9.6", "--gpu", "8xH100", "--pci", "4x10de:22a3"], out) == 0
    assert "rocky-9 is planned only" in " ".join(out.getvalue().split())
    assert "Next:" in out.getvalue()


@pytest.mark.parametrize("name", ["Rocky", "AlmaLinux", "RedHat", "CentOS"])
def test_a_role_alone_refuses_a_host_where_selinux_is_enforcing(name: str) -> None:
    facts: dict[str, Any] = {
        "distribution": name,
        "distribution_version": "9.6",
        "distribution_major_version": "9",
        "architecture": "x86_64",
        "selinux": {"status": "enabled", "mode": "permissive"},
    }
    assert role_defaults.repository(facts)["slug"] == "rhel9"
    facts["selinux"] = {"status": "enabled", "mode": "enforcing"}
    with pytest.raises(ValueError, match="-9 is planned only where SELinux is enforcing"):
        role_defaults.repository(facts)
