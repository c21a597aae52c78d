"""Which installed driver stays: whose it is, whether it works, what is asked for, and the answer of the plan."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import host_from_probe
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.components.driver.test_driver_sets import ADDITIONAL_DRIVERS, DKMS
from tests.unit.plugin_utils.resolver.present.present_cases import Root
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers

AZURE = "6.17.0-1022-azure"  # driver 550 does not build for it
CLOSED = {"modules": "Kernel Module"}
SERVER = ("nvidia-driver-570-server-open", "nvidia-utils-570-server", "nvidia-dkms-570-server-open")
# As the init script of GoogleCloudDataproc/initialization-actions#1220 has and holds them.
SERVER_570 = dict.fromkeys(SERVER, "570.211.01-0ubuntu0.24.04.1")
SERVER_535 = dict.fromkeys(("nvidia-utils-535-server", "nvidia-dkms-535-server"), "535.288.01-0ubuntu0.24.04.1")
SERVER_580 = dict.fromkeys(("nvidia-utils-580-server", "nvidia-dkms-580-server"), "580.126.09-0ubuntu0.24.04.1")
UTILS_550 = {"nvidia-utils-550-server": "550.163.01-0ubuntu0.24.04.1"}
DKMS_550 = {**UTILS_550, "nvidia-dkms-550-server-open": "550.163.01-0ubuntu0.24.04.1"}
BUILT_550 = {**UTILS_550, f"linux-modules-nvidia-550-server-open-{AZURE}": "1"}
DEBIAN_535 = dict.fromkeys(("nvidia-smi", "libcuda1", "nvidia-kernel-dkms"), "535.216.01-1~deb12u1")
DEBIAN_580 = dict.fromkeys(("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "nvidia-smi"), "580.126.16-1")
OTHERS: dict[str, Any] = {"packages": SERVER_570, "loaded": "570.211.01"}
UBUNTUS: dict[str, Any] = {"packages": SERVER_580, "loaded": "580.126.09", **CLOSED}
NVIDIAS: dict[str, Any] = {"distribution": "debian-12", "packages": DEBIAN_580, "offers": debian_offers()}
HELD: dict[str, Any] = {**NVIDIAS, "held": ["nvidia-driver-cuda"]}
PREBUILT: dict[str, Any] = {"packages": ADDITIONAL_DRIVERS, "loaded": "580.126.09", **CLOSED}
HOSTS: dict[str, dict[str, Any]] = {
    "others'": OTHERS,
    "others', no GPU is listed": {**OTHERS, "works": False},
    "others', not loaded": {"packages": SERVER_570},
    "others', waits for a reboot": {**OTHERS, "loaded": "570.124.06", "works": False},
    "others', beside a B300": {**OTHERS, "beside": "3182"},  # branch 580 is its first
    "gpuhost's, not verified": {**OTHERS, "ours": "nvidia_utils_570_server"},
    "NVIDIA's": {**NVIDIAS, "loaded": "580.126.16"},
    "Debian's 535": {"distribution": "debian-12", "packages": DEBIAN_535, "loaded": "535.216.01", **CLOSED},
    "Ubuntu's 535": {"packages": SERVER_535, "loaded": "535.288.01", **CLOSED},
    "Ubuntu's 580": UBUNTUS,
    "Ubuntu's 580, beside a B200": {**UBUNTUS, "beside": "2901"},  # which needs the open modules
    "open ones loaded, beside a B200": {**UBUNTUS, "beside": "2901", "modules": "Open Kernel Module"},
    "550 by hand": {"packages": UTILS_550, "loaded": "550.163.01", "kernel": AZURE},
    "550 by DKMS": {"packages": DKMS_550, "loaded": "550.163.01", "kernel": AZURE},
    "550 prebuilt": {"packages": BUILT_550, "loaded": "550.163.01", "kernel": AZURE},
    "held": HELD,
    "held, works": {**HELD, "loaded": "580.126.16"},
    "held, gone": {**HELD, "held": [*DEBIAN_580], "offers": debian_offers(drivers=("595.71.05",))},
    "held by its branch": {"packages": {**SERVER_570, SERVER[0]: "570.172.08-0ubuntu0.24.04.1"}, "held": SERVER[:1]},
    **{
        f"{name} held": {"packages": {**SERVER_570, name: "570.211.01-1"}, "held": [name]}
        for name in ("libnvidia-nscq-570", "nvidia-imex-570", "nvidia-fabricmanager-570")
    },
    "the container toolkit held": {
        **NVIDIAS,
        "packages": {**DEBIAN_580, "nvidia-container-toolkit": "1.17.8-1"},
        "held": ["nvidia-container-toolkit"],
    },
    "held, 535": {"packages": SERVER_535, "held": [*SERVER_535]},
    "held, 390": {"packages": {"nvidia-utils-390": "390.157-0ubuntu8"}, "held": ["nvidia-utils-390"]},
    "Additional Drivers": PREBUILT,
    "the same, not loaded": {"packages": ADDITIONAL_DRIVERS},
    "the same by DKMS": {"packages": DKMS},
    "the same and DKMS": {"packages": {**ADDITIONAL_DRIVERS, "nvidia-dkms-580": "580.126.09-0ubuntu0.24.04.2"}},
    "the same without modules": {
        "packages": {"nvidia-driver-580": "580.126.09-1", "linux-modules-nvidia-535-generic": "6.8.0-90.91"}
    },
}
# stays: as it is; managed: in its version, with the plan's packages; left: on hold, or not asked for; else replaced, or
# refused for each of the variables.
ANSWERS = [
    ("others'", "stays", ["", "driver=570", "driver_module_source=dkms"]),
    ("others'", "replaced", ["driver=latest", "driver=595", "driver_source=nvidia", "driver_profile=compute"]),
    ("others'", "replaced", ["cuda=13"]),
    ("others', no GPU is listed", "replaced", [""]),
    ("others', not loaded", "replaced", [""]),
    ("others', waits for a reboot", "stays", [""]),
    ("others', beside a B300", "replaced", [""]),
    ("gpuhost's, not verified", "replaced", [""]),
    ("NVIDIA's", "managed", [""]),
    ("NVIDIA's", "replaced", ["driver=latest"]),
    ("Debian's 535", "stays", [""]),
    ("Ubuntu's 535", "stays", [""]),
    ("Ubuntu's 580", "stays", [""]),
    ("Ubuntu's 580, beside a B200", "replaced", [""]),
    ("open ones loaded, beside a B200", "stays", [""]),
    ("550 by hand", "stays", [""]),
    ("550 by DKMS", "replaced", [""]),
    ("550 prebuilt", "stays", [""]),
    ("held", "left", ["", "driver=580", "driver=580.126.16 driver_source=nvidia driver_kernel_modules=open"]),
    ("held", "left", ["driver=none"]),
    ("held", "package-held", ["driver=595", "driver=580.95", "driver_source=distro", "driver_profile=full"]),
    ("held", "package-held", ["driver_kernel_modules=proprietary", "driver_module_source=prebuilt"]),
    ("held, works", "left", [""]),
    ("held, works", "package-held", ["driver=latest"]),
    ("held, gone", "left", [""]),
    ("held by its branch", "left", [""]),
    ("libnvidia-nscq-570 held", "left", [""]),
    ("libnvidia-nscq-570 held", "package-held", ["driver=595"]),
    ("nvidia-imex-570 held", "left", [""]),
    ("nvidia-fabricmanager-570 held", "left", [""]),
    ("the container toolkit held", "replaced", [""]),
    ("held, 535", "package-held", ["cuda=13.0"]),
    ("held, 390", "package-held", [""]),
    ("Additional Drivers", "stays", ["", "driver=580", "driver=580.126.09", "driver=580 driver_source=distro"]),
    ("Additional Drivers", "stays", ["driver_kernel_modules=proprietary", "driver_profile=full"]),
    ("Additional Drivers", "stays", ["driver_module_source=prebuilt"]),
    ("Additional Drivers", "left", ["driver=none"]),
    ("Additional Drivers", "prebuilt-driver-set", ["driver=595 driver_source=nvidia", "driver=580.178.04"]),
    ("Additional Drivers", "prebuilt-driver-set", ["driver_kernel_modules=open", "driver_profile=compute"]),
    ("Additional Drivers", "prebuilt-driver-set", ["driver_module_source=dkms"]),
    ("the same, not loaded", "stays", [""]),
    ("the same by DKMS", "replaced", [""]),
    ("the same and DKMS", "replaced", [""]),
    ("the same without modules", "replaced", [""]),
]  # fmt: skip


def host(
    path: Path,
    packages: dict[str, str],
    distribution: str = "ubuntu-24.04",
    loaded: str = "",
    modules: str = "Open Kernel Module",
    works: bool = True,
    held: Any = (),
    ours: str = "",
    kernel: str = "",
    beside: str = "",
    offers: Any = None,
) -> Root:
    """Return a host of HOSTS; modules: as /proc names them; ours: what gpuhost installed; beside: a second GPU."""
    root = Root(path, distribution)
    root.add(packages, held)
    if loaded:
        root.load(loaded, modules)
    if not works:
        root.smi = ""
    if ours:
        root.journal(**{ours: None})
    if kernel:
        put(path, "/proc/sys/kernel/osrelease", f"{kernel}\n")
    if beside:
        root.gpu(beside, "0000:06:00.0")
    return root


def planned(root: Root, name: str, words: str) -> Plan:
    return root.plan(HOSTS[name].get("offers"), **dict(word.split("=") for word in words.split()))


def answer(plan: Plan, loaded: str) -> str:
    if plan.problems:
        return " ".join(problem.code for problem in plan.problems)
    if plan.kept_driver:
        return "stays"
    driver = plan.components["driver"]
    return "left" if driver is None else "managed" if driver.version == loaded else "replaced"


@pytest.mark.parametrize(("name", "expected", "asked"), [(n, e, words) for n, e, each in ANSWERS for words in each])
def test_the_driver_stays_or_is_replaced_or_the_request_is_refused(
    name: str, expected: str, asked: str, tmp_path: Path
) -> None:
    root, loaded = host(tmp_path, **HOSTS[name]), HOSTS[name].get("loaded", "580.126.16")
    plan = planned(root, name, asked)
    assert answer(plan, loaded) == expected
    if plan.ok and asked != "driver=none":
        assert plan.components["cuda"], "the rest is planned around it"
    for would in (re.search(r"(gpu_stack_\S+(?: and gpu_stack_\S+)*) would", p.message) for p in plan.problems):
        assert not would or would.group(1) == " and ".join(f"gpu_stack_{word}" for word in asked.split())
    assert bool(plan.remedies) == (expected == "prebuilt-driver-set")
    for remedy in plan.remedies:
        words = " ".join([asked, *(f"{name}={value}" for name, value in remedy.request.items())])
        assert answer(planned(root, name, words), loaded) == "stays"


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("held", {"driver": "595", "driver_kernel_modules": "open"}),
        ("held, 535", {"cuda": "13.0"}),  # which it is too old for
        ("held, 390", {}),  # which does not drive the GPU
        ("Additional Drivers", {"driver": "580", "driver_kernel_modules": "open"}),
    ],
    ids=["asked for another", "too old", "another GPU", "Additional Drivers"],
)
def test_what_a_refusal_says(name: str, asked: dict[str, str], tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Without the remedies that are tried."""
    found = host_from_probe(host(tmp_path, **HOSTS[name]).probe(HOSTS[name].get("offers")))
    (problem,) = plan_once(frozen_catalog(), asking(tensorflow="none", pytorch="none", **asked), found).problems
    assert [problem.message, problem.remedy] == snapshot


@pytest.mark.parametrize(
    ("name", "asked", "why"),
    [
        ("others'", "cuda=13.2", "the NVIDIA driver 570.211.01 that others installed is not kept: "),
        ("others', beside a B300", "", "does not support"),
        ("others', waits for a reboot", "", "570.211.01 stays"),
        ("held", "", "driver 580.126.16 stays: nvidia-driver-cuda held by"),
        ("Additional Drivers", "", "nvidia-driver-580 580.126.09 stays: its prebuilt kernel modules"),
    ],
)
def test_the_reason_says_why(name: str, asked: str, why: str, tmp_path: Path) -> None:
    reasons = planned(host(tmp_path, **HOSTS[name]), name, asked).reasons
    assert why in next(reason.because for reason in reasons if reason.component == "driver")


@pytest.mark.parametrize(
    ("name", "expected"), [("the same, not loaded", "proprietary"), ("others', waits for a reboot", "open")]
)
def test_packages_name_the_modules_of_a_driver_that_is_not_loaded(name: str, expected: str, tmp_path: Path) -> None:
    kept = planned(host(tmp_path, **HOSTS[name]), name, "").kept_driver
    assert kept is not None
    assert kept.kernel_modules == expected
