"""Prebuilt, signed kernel modules in place of DKMS; kernels and branches as in catalog/distro, by Ubuntu's indexes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Kernel, KernelRelease
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once, resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from syrupy.assertion import SnapshotAssertion

H100, GTX_1080 = HostGpu("10de:2330"), HostGpu("10de:1b80")
OLD, NOW = "6.8.0-90-generic", "6.8.0-149-generic"
STEM = "linux-modules-nvidia-595-server-open-"


def plan(host: dict[str, Any] | None = None, distribution: str = "ubuntu-24.04", **request: str) -> Plan:
    return resolve(load_catalog(), *question(host, distribution, request))


def plan_untried(
    host: dict[str, Any] | None = None,
    distribution: str = "ubuntu-24.04",
    catalog: Catalog | None = None,
    **request: str,
) -> Plan:
    """Return a plan with the remedies that the rules give instead of those that were tried."""
    return plan_once(catalog or load_catalog(), *question(host, distribution, request))


def question(host: dict[str, Any] | None, distribution: str, request: dict[str, str]) -> tuple[Request, Host]:
    described = {"gpus": (H100,), "secure_boot": "enabled", "kernel": NOW, **(host or {})}
    return asking(**{"tensorflow": "none", "pytorch": "none", **request}), Host(distribution, "x86_64", **described)


def driver(found: Plan) -> Any:
    assert found.ok, found.problems
    assert found.components["driver"] is not None
    return found.components["driver"]


def names(component: Any) -> tuple[str, ...]:
    return tuple(package.name for package in component.packages)


def on_host(running: str, following: str, meta: str | None, prebuilt: dict[str, str]) -> dict[str, Any]:
    """Return a host whose probe has read apt's lists."""
    release = KernelRelease(metas=(meta,) if meta else ())
    kernels = Kernel(running=running, next_boot=following, releases={following: release}, prebuilt=prebuilt)
    return {"kernel": running, "next_kernel": following, "kernels": kernels}


def test_with_secure_boot_ubuntus_modules_take_the_place_of_dkms() -> None:
    found = driver(plan())
    assert (found.module_source, found.source, found.version) == ("prebuilt", "distro", "595")
    assert names(found) == (
        "nvidia-headless-no-dkms-595-server-open",
        "nvidia-utils-595-server",  # the headless set has no nvidia-smi
        "libnvidia-decode-595-server",
        "libnvidia-encode-595-server",
        f"{STEM}{NOW}",
    )
    assert found.module_metas == (f"{STEM}generic",)
    assert (found.kernel_headers, found.kernel_compilers, found.kernel_tools) == ((), (), ())
    warnings = {warning.code for warning in plan().warnings}
    assert not warnings & {"secure-boot", "source-fallback", "compiler-unknown", "kernel-newer-than-driver"}
    assert plan().to_json()["components"]["driver"]["module_source"] == "prebuilt"


@pytest.mark.parametrize(
    ("host", "request_", "expected"),
    [
        ({"secure_boot": "disabled"}, {}, "dkms"),
        ({"secure_boot": "unknown"}, {}, "dkms"),
        ({"secure_boot": "disabled"}, {"driver_module_source": "prebuilt"}, "prebuilt"),
        ({}, {"driver_module_source": "dkms"}, "dkms"),
        ({}, {"driver_source": "nvidia"}, "dkms"),
        ({"module_key_enrolled": True}, {}, "dkms"),
        ({"secure_boot": "disabled", "signatures_enforced": True}, {}, "prebuilt"),
        ({"secure_boot": "disabled", "signatures_enforced": True, "module_key_enrolled": True}, {}, "dkms"),
        ({"loaded_driver": "595.71.05", "packages": (Package("nvidia-dkms-595-server-open", "1"),)}, {}, "dkms"),
        ({"loaded_driver": "595.71.05", "packages": (Package(f"{STEM}{NOW}", "1"),)}, {}, "prebuilt"),
    ],
    ids=[
        "off",
        "unknown",
        "asked",
        "DKMS asked",
        "NVIDIA's asked",
        "key enrolled",
        "enforced",
        "enforced, key known",
        "others sign",
        "prebuilt loaded",
    ],
)
def test_where_the_modules_come_from(host: dict[str, Any], request_: dict[str, str], expected: str) -> None:
    assert driver(plan(host, **request_)).module_source == expected


@pytest.mark.parametrize(
    ("distribution", "kernel", "meta"),
    [
        ("ubuntu-22.04", "5.15.0-203-generic", "generic"),
        ("ubuntu-22.04", "6.8.0-149-generic", "generic-hwe-22.04"),
        ("ubuntu-24.04", "6.8.0-149-generic", "generic"),
        ("ubuntu-24.04", "7.0.0-43-generic", "generic-hwe-24.04"),
        ("ubuntu-26.04", "7.0.0-43-generic", "generic"),
    ],
)
def test_metapackages_of_the_flavours(distribution: str, kernel: str, meta: str) -> None:
    found = driver(plan({"kernel": kernel}, distribution, driver="595"))
    assert found.module_metas == (STEM + meta,)


def test_old_gpus_get_the_proprietary_modules() -> None:
    found = driver(plan({"gpus": (GTX_1080,)}))
    assert names(found)[0] == "nvidia-headless-no-dkms-580-server"
    assert names(found)[-1] == f"linux-modules-nvidia-580-server-{NOW}"


def test_the_metapackage_serves_the_kernel_that_it_follows() -> None:
    prebuilt = {f"{STEM}{NOW}": NOW, f"{STEM}generic": NOW, f"{STEM}{OLD}": OLD}
    found = driver(plan(on_host(NOW, NOW, "linux-image-generic", prebuilt)))
    assert (names(found)[4:], found.module_metas) == ((), (f"{STEM}generic",))
    virtual = driver(plan(on_host(NOW, NOW, "linux-image-virtual", prebuilt)))
    assert virtual.module_metas == (f"{STEM}generic",)
    both = driver(plan(on_host(OLD, NOW, "linux-image-generic", prebuilt)))
    assert (names(both)[4:], both.module_metas) == ((f"{STEM}{OLD}",), (f"{STEM}generic",))


@pytest.mark.parametrize("meta", ["linux-image-generic", None])
def test_a_metapackage_that_would_install_another_kernel_is_left_out(meta: str | None) -> None:
    """The probe lists the packages for the host's kernels alone: this one follows a newer kernel."""
    found = driver(plan(on_host(OLD, OLD, meta, {f"{STEM}{OLD}": OLD})))
    assert (names(found)[4:], found.module_metas) == ((f"{STEM}{OLD}",), ())


def test_another_branch_that_has_modules_for_the_kernel_is_taken() -> None:
    stem = "linux-modules-nvidia-580-server-open-"
    found = driver(plan(on_host(OLD, OLD, None, {f"{stem}{OLD}": OLD})))
    assert (found.version, names(found)[-1]) == ("580", f"{stem}{OLD}")


def test_a_kernel_without_modules_is_a_problem_with_remedies_that_were_tried() -> None:
    found = plan(on_host(OLD, NOW, "linux-image-generic", {f"{STEM}generic": NOW}))
    (problem,) = found.problems
    assert problem.code == "no-prebuilt-modules"
    assert f"kernel {OLD} (running)" in problem.message
    texts = [remedy.text for remedy in found.remedies]
    assert texts[0].startswith(f"reboot into kernel {NOW} and run this again (gives NVIDIA driver 595")
    assert "gpu_stack_module_signing_key" in texts[1]
    assert "gpu_stack_driver_module_source=dkms" in texts[1]
    rebooted = on_host(NOW, NOW, "linux-image-generic", {f"{STEM}generic": NOW})
    assert driver(plan(rebooted)).module_source == "prebuilt"


@pytest.mark.parametrize(
    ("distribution", "kernel"),
    [
        ("ubuntu-22.04", "5.15.0-1102-azure"),
        ("ubuntu-24.04", "6.8.0-1029-aws"),
        ("ubuntu-24.04", "6.8.0-1041-gcp"),
        ("ubuntu-24.04", "6.17.0-1009-oem"),
    ],
)
def test_modules_of_a_flavour_that_the_catalog_does_not_list_are_planned_with_a_warning(
    distribution: str, kernel: str
) -> None:
    """Ubuntu has them for clouds; which branches, only its indexes say."""
    made = plan({"kernel": kernel}, distribution, driver="580")
    found = driver(made)
    assert (names(found)[-1], found.module_metas) == (f"linux-modules-nvidia-580-server-open-{kernel}", ())
    (warning,) = [warning for warning in made.warnings if warning.code == "prebuilt-unknown"]
    assert kernel in warning.message


def test_modules_that_the_catalog_or_the_host_lists_are_no_matter_of_a_warning() -> None:
    cloud = "6.8.0-1029-aws"
    stem = "linux-modules-nvidia-580-server-open-"
    for host in ({}, on_host(cloud, cloud, None, {f"{stem}{cloud}": cloud})):
        assert "prebuilt-unknown" not in {warning.code for warning in plan(host).warnings}
    (problem,) = plan(on_host(cloud, cloud, None, {})).problems
    assert problem.code == "no-prebuilt-modules"


@pytest.mark.parametrize(
    ("distribution", "request_", "why"),
    [
        ("debian-12", {}, "debian-12 builds and signs none"),
        ("ubuntu-24.04", {"driver_source": "nvidia"}, "NVIDIA's repository has none"),
        ("ubuntu-24.04", {"driver_profile": "full"}, "Ubuntu's own tool installs them"),
    ],
)
def test_a_request_that_no_prebuilt_modules_fit(distribution: str, request_: dict[str, str], why: str) -> None:
    kernel = load_catalog().distros[distribution].kernel.default
    found = plan({"kernel": kernel}, distribution, driver_module_source="prebuilt", **request_)
    assert [problem.code for problem in found.problems] == ["no-prebuilt-modules"]
    assert why in found.problems[0].message
    assert found.remedies


@pytest.mark.parametrize(("driver", "is_refused"), [("auto", False), ("580", True)])
def test_without_a_gpu_the_modules_of_a_driver_matter_where_one_is_asked_for(driver: str, is_refused: bool) -> None:
    request = {"driver": driver, "driver_module_source": "prebuilt", "expect_gpus": "0"}
    found = plan({"kernel": "6.1.0-56-amd64", "gpus": ()}, "debian-12", **request)
    assert [problem.code for problem in found.problems] == ["no-prebuilt-modules"] * is_refused


def test_debian_with_secure_boot_builds_its_modules() -> None:
    found = driver(plan({"kernel": "6.1.0-56-amd64"}, "debian-12"))
    assert found.module_source == "dkms"
    assert "linux-headers-6.1.0-56-amd64" in found.kernel_headers


def test_every_branch_with_prebuilt_modules_is_in_the_archive() -> None:
    """The rows of the catalog name a flavour that a header metapackage has, and a set of the archive."""
    with_sets = [distro for distro in load_catalog().distros.values() if distro.prebuilt_modules]
    assert with_sets
    for distro in with_sets:
        flavours = {row.package.removeprefix("linux-headers-") for row in distro.kernel.headers}
        series = {entry.prebuilt for entry in distro.distro_drivers if entry.prebuilt}
        for row in distro.prebuilt_modules:
            assert {branch.removesuffix("-open") for branch in row.branches} == series
            assert row.flavour in flavours or row.flavour == "generic-hwe-26.04"  # the same kernel for now


_580 = "linux-modules-nvidia-580-server-open-"


@pytest.mark.parametrize(
    ("running", "following", "prebuilt", "missing"),
    [
        (OLD, NOW, {f"{_580}{NOW}": NOW}, ["6.8.0-90-generic"]),
        (OLD, NOW, {}, ["6.8.0-90-generic", "6.8.0-149-generic"]),
        (OLD, NOW, {f"{_580}{OLD}": OLD}, ["6.8.0-149-generic"]),
        (OLD, OLD, {f"{_580}{NOW}": NOW}, ["6.8.0-90-generic"]),
        (OLD, None, {}, ["6.8.0-90-generic"]),
    ],
    ids=["the next one has some", "neither", "only the running one", "the one that is booted again", "one kernel"],
)
def test_a_missing_module_is_named_with_its_kernel_and_what_to_do(
    running: str, following: str | None, prebuilt: dict[str, str], missing: list[str], snapshot: SnapshotAssertion
) -> None:
    host = {**on_host(running, following or running, None, prebuilt), "next_kernel": following}
    found = plan_untried(host, driver="580").problems
    assert [problem.code for problem in found] == ["no-prebuilt-modules"] * len(missing)
    assert all(f"{_580}{release}" in problem.message for problem, release in zip(found, missing, strict=True))
    assert [text for problem in found for text in (problem.message, problem.remedy)] == snapshot


def test_of_a_described_host_the_catalog_says_which_modules_are_missing(snapshot: SnapshotAssertion) -> None:
    """As if Ubuntu had stopped to build them for branch 580."""
    catalog = load_catalog()
    distro = catalog.distros["ubuntu-24.04"]
    rows = tuple(dataclasses.replace(row, branches=("595-server-open",)) for row in distro.prebuilt_modules)
    distros = {**catalog.distros, "ubuntu-24.04": dataclasses.replace(distro, prebuilt_modules=rows)}
    found = plan_untried(catalog=dataclasses.replace(catalog, distros=distros), driver="580")
    assert [text for problem in found.problems for text in (problem.message, problem.remedy)] == snapshot


def test_a_host_that_boots_one_kernel_gets_one_metapackage() -> None:
    metas = ("linux-image-generic", "linux-image-generic-hwe-24.04")
    prebuilt = {f"{_580}{NOW}": NOW, f"{_580}generic": NOW, f"{_580}generic-hwe-24.04": NOW}
    kernels = Kernel(running=NOW, next_boot=NOW, releases={NOW: KernelRelease(metas=metas)}, prebuilt=prebuilt)
    found = driver(plan({"kernel": NOW, "next_kernel": None, "kernels": kernels}, driver="580"))
    assert (names(found)[4:], found.module_metas) == ((), (f"{_580}generic",))


@pytest.mark.parametrize(
    ("distribution", "request_"),
    [
        ("debian-12", {}),
        ("ubuntu-24.04", {"driver_source": "nvidia"}),
        ("ubuntu-24.04", {"driver_profile": "full"}),
    ],
    ids=["Debian", "NVIDIA's driver", "full"],
)
def test_prebuilt_modules_that_no_driver_could_have(
    distribution: str, request_: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    kernel = load_catalog().distros[distribution].kernel.default
    (problem,) = plan_untried({"kernel": kernel}, distribution, driver_module_source="prebuilt", **request_).problems
    assert [problem.message, problem.remedy] == snapshot


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({}, "the firmware trusts no key of DKMS"),
        ({"driver_module_source": "prebuilt"}, "requested"),
    ],
)
def test_the_reason_says_why_the_modules_are_prebuilt(request_: dict[str, str], why: str) -> None:
    (because,) = [reason.because for reason in plan(**request_).reasons if reason.component == "driver"]
    assert f"; prebuilt and signed by ubuntu-24.04's archive: {why}" in because
    (because,) = [r.because for r in plan(driver_module_source="dkms").reasons if r.component == "driver"]
    assert "prebuilt" not in because
