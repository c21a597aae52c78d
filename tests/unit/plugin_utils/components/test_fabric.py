"""Fabric Manager: planned where a host has NVSwitches, in the driver's version, and refused where there is none.

A host is a directory: PCI devices as in sysfs, os-release and the driver's version as captured, and dpkg's database. An
HGX H100 has eight GPUs and four NVSwitches `10de:22a3`, an HGX A100 six `10de:1af1` (captured lspci in leptonai/gpud's
test data); a B200 has none on the bus, but ConnectX-7 functions whose vital product data has `SMDL=SW_MNG`
(NVIDIA/gpu-driver-container, _assert_nvlink5_system).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci as host_pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from syrupy.assertion import SnapshotAssertion

from tests.doubles.lab import pci
from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import link, put

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"
LOADED = FIXTURES / "proc-driver-nvidia-version-open-580.txt"  # 580.95.05
OLD, NEW, PREVIOUS = "580.95.05", "595.71.05", "570.211.01"
CODE = "fabric-manager-missing"
H100, A100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA B200"


class Host:
    """A machine below a directory."""

    def __init__(
        self, root: Path, gpu: str = H100, switches: int = 4, switch: str = "22a3", distro: str = "ubuntu-22.04"
    ):
        self.root, self.status, self.offers = root, "", None
        self.kernel: dict[str, Any] = {"running": "5.15.0-101-generic"}
        put(root, "/etc/os-release", (FIXTURES / f"os-release-{distro}.txt").read_text())
        put(root, "/usr/bin/python3.10")
        put(root, "/var/lib/dpkg/status")
        pci.write_tree(root / host_pci.DEVICES.lstrip("/"), pci.find_products([gpu] * 8))
        for number in range(switches):
            self.add(f"0000:c{number}:00.0", vendor="0x10de", device=f"0x{switch}", **{"class": "0x068000"})

    def add(self, address: str, **files: str) -> None:
        for name, value in files.items():
            put(self.root, f"{host_pci.DEVICES}/{address}/{name}", f"{value}\n")

    def install(self, *specs: str) -> None:
        for name, _equals, version in (spec.partition("=") for spec in specs):
            self.status += f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: amd64\n\n"
        put(self.root, "/var/lib/dpkg/status", self.status)

    def install_driver(self, version: str, *, loaded: bool = True) -> None:
        """Install what is planned for this version, and load its module, whose captured file is of 580.95.05."""
        driver = self.plan(driver=version, fabric="none").components["driver"]
        assert driver is not None
        self.install(*map(str, (*driver.pinning_packages, *driver.packages)))
        if loaded:
            put(self.root, proc_driver.PATH, LOADED.read_text().replace(OLD, version))

    def probe(self) -> Probe:
        options = probe.Options(None, {}, False, tensorflow_path="/opt/gpuhost/tensorflow", **self.names())
        found = to_json(probe.probe(str(self.root), options))
        repository = {"url": "http://repository/", "packages": self.offers} if self.offers else None
        # What is this machine's, and not in files.
        own = {"toolchain": None, "disk": {}, "kernel": self.kernel, "repository": repository}
        return Probe.from_json({**found, **own})

    @staticmethod
    def names() -> dict[str, Any]:
        names = probe_options(load_catalog())
        return {key: tuple(value) if isinstance(value, list) else value for key, value in names.items()}

    def plan(self, catalog: Catalog | None = None, **request: str) -> Plan:
        return plan_for_probe(self.probe(), {"pytorch": "none", "tensorflow": "none", **request}, catalog)


def fabric(plan: Plan) -> dict[str, Any]:
    assert plan.ok, plan.problems
    found = plan.to_json()["components"]["fabric"]
    assert found is not None
    return dict(found)


def driver(plan: Plan) -> str:
    return str(plan.to_json()["components"]["driver"]["version"])


def requested(remedy: str) -> dict[str, str]:
    return dict(re.findall(r"gpu_stack_(\w+)=([\w.]+)", remedy))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    assert len(found.probe().nvswitches) == 4
    return found


def test_it_has_a_version_that_only_the_repository_knows(host: Host) -> None:
    version, none = "580.199.01", dict.fromkeys(("cuda", "cudnn", "nccl"), "none")
    known = host.plan(driver="580", **none).components
    parts = [part for part in (known["driver"], known["fabric"]) if part]
    host.offers = {package.name: (f"{version}-1ubuntu1",) for part in parts for package in part.all_packages}
    plan = host.plan(driver="580", **none)
    assert (driver(plan), fabric(plan)["version"]) == (version, version)


# What is planned ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "packages"),
    [
        (NEW, ["nvidia-fabricmanager=595.71.05-1ubuntu1", "libnvidia-nscq=595.71.05-1ubuntu1"]),
        (OLD, ["nvidia-fabricmanager=580.95.05-1ubuntu1", "libnvidia-nscq=580.95.05-1ubuntu1"]),
        # The last branch with a suffix (NVIDIA/gpu-driver-container ubuntu24.04/precompiled/local-repo.sh).
        ("575.57.08", ["nvidia-fabricmanager-575=575.57.08-1", "libnvidia-nscq-575=575.57.08-1"]),
        (PREVIOUS, ["nvidia-fabricmanager-570=570.211.01-1", "libnvidia-nscq-570=570.211.01-1"]),
    ],
)
def test_it_has_the_driver_s_version_under_the_right_name(host: Host, version: str, packages: list[str]) -> None:
    found = fabric(host.plan(driver=version))
    assert (found["version"], found["packages"]) == (version, packages)
    assert (found["services"], found["modules"]) == (["nvidia-fabricmanager"], [])


def test_the_newest_driver_gets_its_own(host: Host) -> None:
    plan = host.plan()
    assert fabric(plan)["version"] == driver(plan)


@pytest.mark.parametrize(("gpu", "switches", "switch"), [(A100, 6, "1af1"), ("NVIDIA H200", 4, "22a3")])
def test_other_boards_with_switches(tmp_path: Path, gpu: str, switches: int, switch: str) -> None:
    assert fabric(Host(tmp_path, gpu, switches, switch).plan())["services"] == ["nvidia-fabricmanager"]


def nvlink5(root: Path) -> Host:
    host = Host(root, B200, switches=0)
    for number in range(4):
        vpd = "\x82\x10\x00ConnectX-7\x00SMDL=SW_MNG"
        host.add(f"0000:d{number}:00.0", vendor="0x15b3", device="0x1021", vpd=vpd, **{"class": "0x020700"})
    return host


def test_nvlink_5_is_found_by_the_functions_that_manage_its_switches(tmp_path: Path) -> None:
    host = nvlink5(tmp_path)
    plan = host.plan()
    found = fabric(plan)
    names = [spec.partition("=")[0] for spec in found["packages"]]
    assert names == ["nvidia-fabricmanager", "libnvsdm", "libnvidia-nscq", "nvlsm", "infiniband-diags"]
    assert found["modules"] == ["ib_umad", "mlx5_ib"]
    # Ubuntu's archive has no nvlsm.
    assert [problem.code for problem in host.plan(driver_source="distro").problems] == [CODE]


@pytest.mark.parametrize(
    "card",
    [
        {},
        {"vendor": "0x15b3", "device": "0x1021", "vpd": "\x82ConnectX-7\x00SMDL=NIC", "class": "0x020000"},
        {"vendor": "0x10de", "device": "0x0269", "class": "0x068000"},  # a chip set's bridge, not an NVSwitch
    ],
    ids=["a GPU alone", "a network card", "another bridge"],
)
def test_nothing_is_planned_where_nothing_needs_it(tmp_path: Path, card: dict[str, str]) -> None:
    """An SXM GPU in a virtual machine without switches is such a host, where Fabric Manager cannot start."""
    host = Host(tmp_path, B200, switches=0)
    if card:
        host.add("0000:d0:00.0", **card)
    made = host.plan().to_json()
    assert (made["ok"], made["components"]["fabric"]) == (True, None)
    assert "fabric" not in {reason["component"] for reason in made["reasons"]}


def test_ubuntu_s_own_is_for_the_server_packages(host: Host) -> None:
    found = fabric(host.plan(driver="580", driver_source="distro"))
    assert found["packages"] == ["nvidia-fabricmanager-580", "libnvidia-nscq-580"]
    refused = host.plan(driver="580", driver_source="distro", driver_profile="full")
    assert [problem.code for problem in refused.problems] == [CODE]


# Modules of the kernel ------------------------------------------------------------------------------------------------

AWS, NEXT = "6.8.0-1029-aws", "6.8.0-1041-aws"
EXTRA = "linux-modules-extra-"


def lacking(*releases: str, offers: dict[str, str] | None, has: str = "") -> dict[str, Any]:
    """Return the kernels of a host: that of its cloud's metapackage, without mlx5_ib but for one."""
    image = "linux-image-aws"
    rows = {each: {"metas": [image], "lacks": [] if each == has else ["mlx5_ib"]} for each in releases}
    found = {"running": releases[0], "next_boot": releases[-1], "installed": list(releases), "releases": rows}
    return {**found, "extra_modules": offers}


@pytest.mark.parametrize(
    ("kernel", "helpers"),
    [
        ({"running": AWS, "releases": {AWS: {"lacks": []}}}, []),
        ({"running": AWS, "releases": {AWS: {}}}, []),
        (lacking(AWS, offers={EXTRA + AWS: AWS}), [EXTRA + AWS]),
        (lacking(AWS, offers={EXTRA + AWS: AWS, EXTRA + "aws": AWS}), [EXTRA + AWS, EXTRA + "aws"]),
        (lacking(AWS, offers={EXTRA + "aws": AWS}), [EXTRA + "aws"]),
        (
            lacking(AWS, NEXT, offers={EXTRA + AWS: AWS, EXTRA + NEXT: NEXT, EXTRA + "aws": NEXT}),
            [EXTRA + AWS, EXTRA + NEXT, EXTRA + "aws"],
        ),
        (lacking(AWS, NEXT, offers={EXTRA + NEXT: NEXT}, has=AWS), [EXTRA + NEXT]),
        (lacking(AWS, offers={EXTRA + AWS: AWS, EXTRA + "azure": AWS}), [EXTRA + AWS]),
        (lacking(AWS, offers=None), [EXTRA + AWS]),
    ],
    ids=["has them", "unknown", "exact", "with what follows updates", "by that alone", "both kernels", "the next one",
         "of another flavour", "no lists"],
)  # fmt: skip
def test_the_packages_with_modules_that_a_kernel_lacks_are_planned(
    tmp_path: Path, kernel: dict[str, Any], helpers: list[str]
) -> None:
    host = nvlink5(tmp_path)
    host.kernel = kernel
    plan = host.plan()
    assert fabric(plan)["helpers"] == helpers
    assert not set(helpers) & {spec.partition("=")[0] for spec in fabric(plan)["packages"]}, "these are held"
    part = BY_NAME["fabric"]
    assert list(part.missing_to_compile(plan.components["fabric"], host.probe())) == helpers


@pytest.mark.parametrize(
    "kernel",
    [
        lacking(AWS, offers={}),
        lacking(AWS, NEXT, offers={EXTRA + "aws": NEXT}),
        lacking(AWS, NEXT, offers={EXTRA + AWS: AWS}),
        lacking(AWS, NEXT, offers={}, has=NEXT),
        lacking(AWS, NEXT, offers={}, has=AWS),
    ],
    ids=["none", "the running one", "the next one", "a reboot gives them", "a reboot takes them"],
)
def test_a_module_that_nothing_offers_is_a_problem(
    tmp_path: Path, kernel: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    host = nvlink5(tmp_path)
    host.kernel = kernel
    plan = host.plan()
    assert [problem.code for problem in plan.problems] == ["fabric-module-missing"]
    assert plan.problems == snapshot
    assert host.plan(fabric="none").ok
    assert host.plan(driver="none", cuda="none", cudnn="none", nccl="none").ok, "nothing needs them without a driver"


def test_other_boards_need_no_module(host: Host) -> None:
    host.kernel = lacking(AWS, offers={})
    assert fabric(host.plan())["helpers"] == []


def test_a_kernel_that_gets_its_modules_is_no_other_plan(tmp_path: Path) -> None:
    """Once they are installed the kernel lacks nothing, and a rerun changes nothing."""
    host, managed = nvlink5(tmp_path), {"plan": drift.ManagedPart(("fabric",), (), {})}
    host.kernel = lacking(AWS, offers={EXTRA + AWS: AWS})
    before = host.plan()
    host.kernel = lacking(AWS, offers=None, has=AWS)
    assert fabric(before) != fabric(host.plan())
    assert drift.parts(before, managed, {})["plan"] == drift.parts(host.plan(), managed, {})["plan"]


# What a repository offers ---------------------------------------------------------------------------------------------


def offered(*plans: Plan) -> dict[str, list[str]]:
    """Return what a repository offers that has the driver and Fabric Manager of plans."""
    offers: dict[str, list[str]] = {}
    for made in plans:
        for component in ("driver", "fabric"):
            planned = made.components[component]
            for package in (*getattr(planned, "pinning_packages", ()), *planned.packages):
                offers.setdefault(package.name, []).append(package.version or "580-1")
    return offers


@pytest.mark.parametrize(
    ("package", "problems"),
    [
        ("libnvidia-nscq", []),
        *((name, ["not-in-repository"]) for name in ("nvidia-fabricmanager", "libnvsdm", "nvlsm")),
    ],
)
def test_nvlink_5_needs_all_but_the_library_of_older_switches(
    tmp_path: Path, package: str, problems: list[str]
) -> None:
    host, alone = nvlink5(tmp_path), {"driver": NEW, "cuda": "none", "cudnn": "none", "nccl": "none"}
    offers = offered(host.plan(**alone))
    del offers[package]
    host.offers = offers
    assert [problem.code for problem in host.plan(**alone).problems] == problems


def test_a_driver_without_it_is_no_candidate(host: Host) -> None:
    """Of the two patches that the repository offers, the newer one has no Fabric Manager."""
    offers = offered(*(host.plan(driver=version) for version in (OLD, "580.126.16")))
    offers["nvidia-fabricmanager"].remove("580.126.16-1ubuntu1")
    host.offers = offers
    plan = host.plan(cuda="none", cudnn="none", nccl="none")
    assert (driver(plan), fabric(plan)["version"]) == (OLD, OLD)
    reason = next(reason for reason in plan.reasons if reason.component == "driver")
    assert [(limit.by, limit.newer) for limit in reason.limits] == [(CODE, "580.126.16")]
    refused = host.plan(driver="580.126.16", cuda="none", cudnn="none", nccl="none")
    assert [problem.code for problem in refused.problems] == [CODE]
    assert "none for driver 580.126.16" in refused.problems[0].message
    (remedy, *_others) = refused.remedies
    assert host.plan(**{"cuda": "none", "cudnn": "none", "nccl": "none", **requested(remedy.text)}).ok


# Beside what is there -------------------------------------------------------------------------------------------------


def test_another_driver_takes_it_along(host: Host) -> None:
    host.install_driver(PREVIOUS)
    host.install(
        f"nvidia-fabricmanager-570={PREVIOUS}-1",
        f"libnvidia-nscq-570={PREVIOUS}-1",
        f"cuda-drivers-fabricmanager-570={PREVIOUS}-1",
    )
    plan = host.plan(driver=NEW)
    diff = plan_diff.plan_diff(plan, host.probe())
    row = diff.of("fabric")
    assert (row.installed, row.planned, row.action) == (PREVIOUS, NEW, "upgrade")
    assert set(row.removed) == {"cuda-drivers-fabricmanager-570", "libnvidia-nscq-570", "nvidia-fabricmanager-570"}


def test_what_fits_stays(host: Host) -> None:
    host.install_driver(OLD)
    host.install(f"nvidia-fabricmanager={OLD}-1ubuntu1", f"libnvidia-nscq={OLD}-1ubuntu1")
    plan = host.plan(driver=OLD)
    assert plan_diff.plan_diff(plan, host.probe()).of("fabric").action == "keep"


def test_one_that_somebody_installed_stays_beside_an_unmanaged_driver(host: Host) -> None:
    """Such as that of another vendor's archive, in a version that no repository has."""
    put(host.root, proc_driver.PATH, LOADED.read_text().replace(OLD, "580.126.99"))
    host.install("nvidia-fabricmanager-580=580.126.99-0lambda0.22.04.1")
    plan = host.plan(driver="none", cuda="none", cudnn="none", nccl="none", tensorflow="auto", fabric="auto")
    assert plan.to_json()["components"]["fabric"] is None
    assert [p for p in plan.problems if p.code == CODE] == []
    reason = next(reason for reason in plan.reasons if reason.component == "fabric")
    assert "580.126.99-0lambda0.22.04.1 stays" in reason.because


def test_an_unmanaged_driver_without_one_gets_it(host: Host) -> None:
    put(host.root, proc_driver.PATH, LOADED.read_text())
    assert fabric(host.plan(driver="none"))["version"] == OLD


def test_a_gpu_that_a_virtual_machine_has_is_refused(host: Host) -> None:
    address = sorted(path.name for path in (host.root / host_pci.DEVICES.lstrip("/")).iterdir())[0]
    link(host.root, f"{host_pci.DEVICES}/{address}/driver", "../../../../bus/pci/drivers/vfio-pci")
    plan = host.plan()
    found = checks.preflight(plan, host.probe(), plan_diff.plan_diff(plan, host.probe()))
    (problem,) = [problem for problem in found.problems if problem.code == "fabric-gpu-passed-through"]
    assert address in problem.message


# Requests -------------------------------------------------------------------------------------------------------------


def test_none_leaves_it_to_others_and_warns_unless_there_is_one(host: Host) -> None:
    for warned in (True, False):
        made = host.plan(fabric="none")
        assert (made.ok, made.to_json()["components"]["fabric"]) == (True, None)
        assert ("fabric-left-out" in [warning.code for warning in made.warnings]) == warned
        host.install(f"nvidia-fabricmanager={NEW}-1ubuntu1")


def test_a_version_decides_the_driver(host: Host) -> None:
    plan = host.plan(fabric=OLD)
    assert (driver(plan), fabric(plan)["version"]) == (OLD, OLD)


def test_a_version_on_a_host_without_switches_is_refused(tmp_path: Path) -> None:
    made = Host(tmp_path, switches=0).plan(fabric=OLD)
    assert [problem.code for problem in made.problems] == [CODE]


def test_messages(host: Host, tmp_path: Path, snapshot: object) -> None:
    frozen = frozen_catalog()
    refused = host.plan(frozen, driver="580", driver_source="distro", driver_profile="full")
    plain = Host(tmp_path / "plain", switches=0).plan(frozen, fabric=OLD)
    reasons = [reason.because for reason in host.plan(frozen).reasons if reason.component == "fabric"]
    problems = [(problem.message, problem.remedy) for made in (refused, plain) for problem in made.problems]
    assert (problems, reasons) == snapshot
