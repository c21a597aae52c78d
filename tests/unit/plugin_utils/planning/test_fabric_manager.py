"""Changes of the driver on hosts with NVSwitches: refused without Fabric Manager, with a remedy that is planned here.

A host is a directory: PCI devices as in sysfs (an HGX H100's eight GPUs and four NVSwitches), os-release and the
driver's version as captured, and dpkg's database with the packages of a driver.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci as host_pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks

from tests.doubles.lab import pci
from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"
LOADED = FIXTURES / "proc-driver-nvidia-version-open-580.txt"  # 580.95.05
OLD, NEW = "580.95.05", "595.71.05"
CODE = "fabric-manager-missing"


class Host:
    """A machine below a directory."""

    def __init__(self, root: Path, gpu: str = "NVIDIA H100 80GB HBM3", switches: int = 4, distro: str = "ubuntu-22.04"):
        self.root, self.status = root, ""
        put(root, "/etc/os-release", (FIXTURES / f"os-release-{distro}.txt").read_text())
        put(root, "/usr/bin/python3.10")
        put(root, "/var/lib/dpkg/status")
        pci.write_tree(root / host_pci.DEVICES.lstrip("/"), pci.find_products([gpu] * 8))
        for number in range(switches):
            for name, value in {"vendor": "0x10de", "device": "0x22a3", "class": "0x068000"}.items():
                put(root, f"{host_pci.DEVICES}/0000:c{number}:00.0/{name}", f"{value}\n")

    def install(self, *specs: str) -> None:
        for name, _equals, version in (spec.partition("=") for spec in specs):
            self.status += f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: amd64\n\n"
        put(self.root, "/var/lib/dpkg/status", self.status)

    def install_driver(self, version: str, *, loaded: bool = True) -> None:
        """Install what is planned for this version, and load its module, whose captured file is of 580.95.05."""
        driver = self.plan(driver=version)[0].components["driver"]
        assert driver is not None
        self.install(*map(str, (*driver.pinning_packages, *driver.packages)))
        if loaded:
            put(self.root, proc_driver.PATH, LOADED.read_text().replace(OLD, version))

    def probe(self) -> Probe:
        options = probe.Options(None, {}, False, tensorflow_path="/opt/gpuhost/tensorflow", **self.names())
        found = to_json(probe.probe(str(self.root), options))
        # What is this machine's, and not in files.
        return Probe.from_json({**found, "toolchain": None, "disk": {}, "kernel": {"running": "5.15.0-101-generic"}})

    @staticmethod
    def names() -> dict[str, Any]:
        names = probe_options(load_catalog())
        return {key: tuple(value) if isinstance(value, list) else value for key, value in names.items()}

    def plan(self, **request: str) -> tuple[Plan, list[tuple[str, str, str]]]:
        """Return the plan for a request, and this problem where the preflight has it."""
        found = self.probe()
        plan = plan_for_probe(found, {"pytorch": "none", "tensorflow": "none", **request})
        checked = checks.preflight(plan, found, plan_diff.plan_diff(plan, found))
        return plan, [(p.code, p.message, p.remedy) for p in checked.problems if p.code == CODE]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    found = Host(tmp_path)
    assert len(found.probe().nvswitches) == 4
    return found


def requested(remedy: str) -> dict[str, str]:
    return dict(re.findall(r"gpu_stack_(\w+)=([\w.]+)", remedy))


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "installed, not loaded"])
@pytest.mark.parametrize("manager", [None, OLD], ids=["without Fabric Manager", "with that of the old driver"])
def test_another_driver_is_refused_and_the_remedy_keeps_that_of_the_host(
    host: Host, manager: str | None, loaded: bool, snapshot: object
) -> None:
    host.install_driver(OLD, loaded=loaded)
    if manager:
        host.install(f"nvidia-fabricmanager={manager}-1")
    plan, problems = host.plan(driver=NEW)
    assert plan.ok
    ((_code, message, remedy),) = problems
    assert (message, remedy) == snapshot
    kept, none = host.plan(**requested(remedy))
    assert (kept.ok, none) == (True, [])
    assert requested(remedy) == {"driver": OLD}


@pytest.mark.parametrize("request_", [{"driver": NEW}, {}, {"driver": "595"}, {"cuda": "13.2"}], ids=str)
def test_every_way_to_another_driver_is_refused(host: Host, request_: dict[str, str]) -> None:
    host.install_driver(OLD)
    _plan, problems = host.plan(**request_)
    assert len(problems) == 1
    kept, none = host.plan(**{**request_, **requested(problems[0][2])})
    assert (kept.ok, none) == (True, [])


def test_a_driver_that_no_archive_offers_is_kept_unmanaged(host: Host) -> None:
    """Such as that of a .run file or of another vendor's archive: no version can be requested that means it."""
    put(host.root, proc_driver.PATH, LOADED.read_text().replace(OLD, "580.126.99"))
    _plan, ((_code, message, remedy),) = host.plan(cuda="12.9")
    assert "from 580.126.99 " in message
    assert requested(remedy) == {"driver": "none"}
    kept, none = host.plan(cuda="12.9", **requested(remedy))
    assert (kept.ok, none) == (True, [])


def test_a_request_that_needs_a_newer_driver_is_left_out_in_the_remedy(host: Host) -> None:
    """CUDA 13 needs driver 580 at least: only without that request the driver can stay."""
    host.install_driver("550.54.15")
    _plan, ((_code, _message, remedy),) = host.plan(cuda="13.2")
    assert requested(remedy) == {"driver": "550.54.15", "cuda": "auto"}
    kept, none = host.plan(**requested(remedy))
    assert (kept.ok, none) == (True, [])


@pytest.mark.parametrize(
    ("driver", "package"),
    [(NEW, "nvidia-fabricmanager"), (OLD, "nvidia-fabricmanager"), ("570.211.01", "nvidia-fabricmanager-570")],
)
def test_a_bare_host_is_told_which_package_to_install_and_is_planned_with_it(
    host: Host, driver: str, package: str, snapshot: object
) -> None:
    _plan, ((_code, message, remedy),) = host.plan(driver=driver)
    assert f"'{package}={driver}*'" in remedy
    assert (message, remedy) == snapshot
    host.install(f"{package}={driver}-1")
    plan, none = host.plan(driver=driver)
    assert (plan.ok, none) == (True, [])


def test_ubuntus_own_package_has_the_branch_in_its_name(host: Host) -> None:
    _plan, ((_code, _message, remedy),) = host.plan(driver="580", driver_source="distro")
    assert "'nvidia-fabricmanager-580=580*'" in remedy


@pytest.mark.parametrize("manager", [None, "575.57.08"], ids=["none", "of another version"])
def test_a_driver_that_stays_is_no_problem_whatever_fabric_manager_is(host: Host, manager: str | None) -> None:
    host.install_driver(OLD)
    if manager:
        host.install(f"nvidia-fabricmanager={manager}-1")
    for request in ({"driver": OLD}, {"driver": "none"}):
        plan, problems = host.plan(**request)
        assert (plan.ok, problems) == (True, [])


def test_a_host_without_switches_needs_no_fabric_manager(tmp_path: Path) -> None:
    host = Host(tmp_path, switches=0)
    assert host.plan(driver=NEW)[1] == []
    host.install_driver(OLD)
    assert host.plan(driver=NEW)[1] == []
