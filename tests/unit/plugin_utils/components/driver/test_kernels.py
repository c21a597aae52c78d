"""What DKMS builds with: headers, compilers and tools, for a described host and for one that was probed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import kernels
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu, host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import plan

PASTED = yaml.safe_load((Path(__file__).parents[4] / "fixtures/kernels/proc_version.yml").read_text())

# Every flavour: the running and the next-boot kernel, what follows them, and the compilers.
DESCRIBED = [
    ("debian-12", "6.1.0-50-amd64", "6.1.0-56-amd64", "linux-headers-amd64", ["gcc-12"]),
    ("debian-12", "6.1.0-56-cloud-amd64", None, "linux-headers-cloud-amd64", ["gcc-12"]),
    ("debian-13", "6.12.86+deb13-amd64", None, "linux-headers-amd64", ["gcc-14"]),
    ("debian-13", "6.12.74+deb13+1-amd64", None, "linux-headers-amd64", ["gcc-14"]),  # of linux 6.12.74-2
    ("debian-13", "6.12.74+deb13+1-cloud-amd64", None, "linux-headers-cloud-amd64", ["gcc-14"]),
    ("ubuntu-20.04", "5.4.0-216-generic", None, "linux-headers-generic", ["gcc-9"]),
    ("ubuntu-20.04", "5.15.0-139-generic", None, "linux-headers-generic-hwe-20.04", ["gcc-9"]),
    ("ubuntu-20.04", "5.4.0-1029-aws", None, "linux-headers-aws-lts-20.04", ["gcc-9"]),
    ("ubuntu-20.04", "5.15.0-1084-aws", None, "linux-headers-aws", ["gcc-9"]),
    ("ubuntu-22.04", "5.15.0-203-generic", None, "linux-headers-generic", ["gcc-11"]),
    ("ubuntu-22.04", "6.8.0-90-generic", "6.8.0-149-generic", "linux-headers-generic-hwe-22.04", ["gcc-12"]),
    ("ubuntu-22.04", "5.15.0-138-lowlatency", None, "linux-headers-lowlatency", ["gcc-11"]),
    ("ubuntu-22.04", "5.15.0-1101-aws", None, "linux-headers-aws-lts-22.04", ["gcc-11"]),
    ("ubuntu-22.04", "5.15.0-1102-azure", None, "linux-headers-azure-lts-22.04", ["gcc-11"]),
    ("ubuntu-22.04", "5.15.0-1087-gcp", None, "linux-headers-gcp-lts-22.04", ["gcc-11"]),
    ("ubuntu-22.04", "5.15.0-1085-oracle", None, "linux-headers-oracle-lts-22.04", ["gcc-11"]),
    ("ubuntu-22.04", "6.5.0-1025-azure", None, "linux-headers-azure", ["gcc-11"]),
    ("ubuntu-22.04", "6.8.0-1015-aws", "6.8.0-1063-aws", "linux-headers-aws", ["gcc-11", "gcc-12"]),
    ("ubuntu-22.04", "6.2.0-1019-gcp", None, "linux-headers-gcp", ["gcc-12"]),
    ("ubuntu-22.04", "5.15.0-1074-nvidia", None, "linux-headers-nvidia", ["gcc-11"]),
    ("ubuntu-24.04", "6.8.0-71-generic", "6.8.0-90-generic", "linux-headers-generic", ["gcc-13"]),
    ("ubuntu-24.04", "7.0.0-43-generic", None, "linux-headers-generic-hwe-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-85-lowlatency", None, "linux-headers-lowlatency", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-1029-aws", None, "linux-headers-aws-lts-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "7.0.0-1011-aws", None, "linux-headers-aws", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-1044-azure", None, "linux-headers-azure-lts-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.17.0-1022-azure", "7.0.0-1012-azure", "linux-headers-azure", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-1041-gcp", None, "linux-headers-gcp-lts-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-1041-oracle", None, "linux-headers-oracle-lts-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-1030-nvidia", None, "linux-headers-nvidia", ["gcc-13"]),
    ("ubuntu-24.04", "6.17.0-1032-nvidia", None, "linux-headers-nvidia-hwe-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.17.0-1009-oem", None, None, ["gcc-13"]),  # its track is not in its release
    ("ubuntu-24.04", "6.8.0-1030-azure-fde", None, None, ["gcc-13"]),
    ("ubuntu-24.04", "6.8.1-1022-realtime", "6.8.1-1048-realtime", None, ["gcc-13"]),  # of Linux 6.8.1, not 6.8.0
    ("ubuntu-26.04", "7.0.0-29-generic", None, "linux-headers-generic", ["gcc-15"]),
    ("ubuntu-26.04", "7.0.0-1011-gcp", None, "linux-headers-gcp", ["gcc-15"]),
]


def driver(
    distro: str, kernel: str | None, following: str | None = None, **host: Any
) -> tuple[dict[str, Any], list[str]]:
    made = plan(distro, "A100", driver_source="nvidia", host={"kernel": kernel, "next_kernel": following, **host})
    return made["components"]["driver"], [w["code"] for w in made["warnings"] if w["code"] == "compiler-unknown"]


@pytest.mark.parametrize(("distro", "running", "following", "meta", "compilers"), DESCRIBED)
def test_a_described_host_has_exact_headers_the_metapackage_and_the_compilers(
    distro: str, running: str, following: str | None, meta: str | None, compilers: list[str]
) -> None:
    component, warnings = driver(distro, running, following)
    exact = [f"linux-headers-{release}" for release in (running, following) if release]
    assert component["kernel_headers"] == exact + ([meta] if meta else [])
    assert (component["kernel_compilers"], warnings) == (compilers, [])


@pytest.mark.parametrize(
    ("distro", "running"),
    [
        ("ubuntu-24.04", "6.8.0-1040-nvidia-lowlatency"),
        ("ubuntu-24.04", "6.8.0-1025-azure-nvidia"),
        ("ubuntu-24.04", "6.14.0-1010-azure-nvidia"),
        ("debian-12", "6.12.100+deb12-amd64"),
    ],
)
def test_a_flavour_that_the_catalog_does_not_know_gets_no_other_kernels_metapackage(distro: str, running: str) -> None:
    component, _warnings = driver(distro, running)
    assert component["kernel_headers"] == [f"linux-headers-{running}"]


def test_no_flavour_that_ends_like_another_gets_its_metapackage() -> None:
    """Ubuntu's flavours can be combined, as in azure-nvidia."""
    for catalog in (load_catalog(), frozen_catalog()):
        for distro in (distro for distro in catalog.distros.values() if distro.family == "ubuntu"):
            for row in distro.kernel.headers:
                flavour = row.running.rpartition(r"\d-")[2].removesuffix("$")
                abis = [f"{series}.0-1001" for series in (distro.kernel.default, "5.15", "6.17")]
                assert any(facts.kernel_headers(distro, f"{abi}-{flavour}") == row for abi in abis)
                assert not any(facts.kernel_headers(distro, f"{abi}-intel-{flavour}") for abi in abis)


# Releases of kernels that no archive has, as `uname -r` printed them in public reports.
OTHERS = [
    ("ubuntu-24.04", "6.17.11-061711-generic"),  # mainline: NVIDIA/open-gpu-kernel-modules#951
    ("ubuntu-24.04", "6.14.0-061400-generic"),  # mainline: ROCm/legacy-rocm-build#4619
    ("ubuntu-22.04", "6.9.3-76060903-generic"),  # System76: pop-os/linux
    ("ubuntu-22.04", "6.15.2-1-liquorix-amd64"),  # damentz/liquorix-package#198
    ("ubuntu-20.04", "5.14.0-6.2-liquorix-amd64"),  # damentz/liquorix-package#66
    ("debian-12", "6.8.4-2-liquorix-amd64"),  # damentz/liquorix-package#166
    ("debian-12", "6.1.7-x64v3-xanmod1"),  # of the series of the archive's kernel
    ("ubuntu-26.04", "7.0.10-x64v3-xanmod1"),
    ("ubuntu-24.04", "6.14.2-surface-1"),
    ("ubuntu-24.04", "6.8.0-49-custom"),
    ("debian-13", "6.12.9-custom"),
]


@pytest.mark.parametrize(("distro", "running"), OTHERS)
@pytest.mark.parametrize("role", ["kernel", "next_kernel"])
def test_a_described_kernel_that_no_archive_has_is_planned_with_what_is_not_known(
    distro: str, running: str, role: str
) -> None:
    for catalog in (load_catalog(), frozen_catalog()):
        made = plan(distro, "A100", driver_source="nvidia", host={role: running}, catalog=catalog)
        component = made["components"]["driver"]
        assert (component["kernel_headers"], component["kernel_compilers"]) == ([f"linux-headers-{running}"], [])
        codes = [w["code"] for w in made["warnings"] if w["code"] in kernels.WARNINGS]
        assert codes == ["headers-unknown", "compiler-unknown"]


# Of the archives, backports among them; Debian's are named so since 6.9 (linux-headers-6.12.12+bpo-amd64).
ARCHIVE = [
    *((distro, running) for distro, running, *_rest in DESCRIBED),
    ("debian-12", "6.12.12+bpo-amd64"),
    ("debian-12", "6.12.12+bpo-cloud-amd64"),
    ("debian-12", "6.5.0-0.deb12.4-amd64"),
    ("debian-13", "6.12.41+deb13-rt-amd64"),
    ("debian-13", "6.18.5+deb13-amd64"),
    ("ubuntu-22.04", "6.8.1-1048-realtime"),
    ("ubuntu-24.04", "6.8.0-1040-nvidia-lowlatency"),
]


@pytest.mark.parametrize(("distro", "running"), ARCHIVE)
def test_headers_of_the_archives_kernels_are_not_doubted(distro: str, running: str) -> None:
    for catalog in (load_catalog(), frozen_catalog()):
        made = plan(distro, "A100", driver_source="nvidia", host={"kernel": running}, catalog=catalog)
        assert "headers-unknown" not in [w["code"] for w in made["warnings"]]


def test_the_warning_of_unknown_headers_names_them(snapshot: str) -> None:
    made = plan("ubuntu-24.04", "RTX 5090", host={"kernel": "6.17.11-061711-generic"})
    assert [w["message"] for w in made["warnings"] if w["code"] == "headers-unknown"] == snapshot


@pytest.mark.parametrize("pasted", PASTED, ids=lambda row: f"{row['distribution']} {row['version'].split()[2]}")
def test_the_compilers_of_the_catalog_are_those_that_kernels_print(pasted: dict[str, Any]) -> None:
    for catalog in (load_catalog(), frozen_catalog()):
        row = facts.kernel_compiler(catalog.distros[pasted["distribution"]], pasted["version"].split()[2])
        assert row
        assert row.gcc == pasted["gcc"]


@pytest.mark.parametrize(
    ("distro", "kernel", "meta"),
    [
        ("ubuntu-22.04", "6.8.0-1040-aws", "linux-headers-aws"),
        ("ubuntu-22.04", "6.8.0-1044-azure", "linux-headers-azure"),
        ("ubuntu-24.04", "6.11.0-26-generic", "linux-headers-generic-hwe-24.04"),
        ("ubuntu-24.04", "6.11.0-1016-lowlatency", "linux-headers-lowlatency-hwe-24.04"),
    ],
)
def test_an_unknown_compiler_is_a_warning(distro: str, kernel: str, meta: str) -> None:
    component, warnings = driver(distro, kernel)
    assert component["kernel_headers"] == [f"linux-headers-{kernel}", meta]
    assert (component["kernel_compilers"], warnings) == ([], ["compiler-unknown"])


@pytest.mark.parametrize(
    ("distro", "kernel", "meta", "compilers", "tools"),
    [
        ("ubuntu-22.04", None, "linux-headers-generic", ["gcc-11"], ["gcc", "make"]),
        ("ubuntu-22.04", "6.8", "linux-headers-generic-hwe-22.04", ["gcc-12"], ["gcc", "make"]),
        ("ubuntu-24.04", None, "linux-headers-generic", ["gcc-13"], ["gcc", "make", "zstd"]),
        ("debian-12", None, "linux-headers-amd64", ["gcc-12"], ["gcc", "make"]),
        ("debian-13", None, "linux-headers-amd64", ["gcc-14"], ["gcc", "make", "xz-utils"]),
    ],
)
def test_a_series_has_no_exact_headers(
    distro: str, kernel: str | None, meta: str, compilers: list[str], tools: list[str]
) -> None:
    component, _warnings = driver(distro, kernel)
    assert component["kernel_headers"] == [meta]
    assert (component["kernel_compilers"], component["kernel_tools"]) == (compilers, tools)


# A host: the probe decides, and the catalog only what the host does not say -----------------------------------------

JAMMY = "x86_64-linux-gnu-gcc-12 (Ubuntu 12.3.0-1ubuntu1~22.04.3) 12.3.0"


def probed(kernel: dict[str, Any], distribution: str = "ubuntu-22.04") -> tuple[dict[str, Any], list[str]]:
    gpus = [{"pci_id": "10de:20b0", "class": "0302"}]
    probe = Probe.from_json(
        {"distribution": {"id": distribution}, "architecture": "x86_64", "gpus": gpus, "kernel": kernel}
    )
    made = resolve(frozen_catalog(), asking(driver_source="nvidia"), host_from_probe(probe)).to_json()
    return made["components"]["driver"], [w["code"] for w in made["warnings"] if w["code"] == "compiler-unknown"]


RT = {"compiler": JAMMY, "gcc": 12, "settings": ["PREEMPT_RT"]}
CLANG = {"compiler": "Debian clang version 19.1.7", "settings": ["CC_IS_CLANG"]}
BAD_KERNELS: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "realtime, by its configuration": ({"6.6.30-studio": RT}, {}, ["realtime-kernel"]),
    "realtime, by its name": ({"6.6.30-rt30": {}}, {}, ["realtime-kernel"]),
    "another, in spite of its name": ({"6.6.30-rt30": {"settings": []}}, {}, []),
    "clang": ({"6.15.5-x64v3-xanmod1": CLANG}, {}, ["clang-kernel"]),
    "of a Raspberry Pi": ({"6.12.47+rpt-rpi-2712": {"settings": []}}, {}, ["raspberry-pi-kernel"]),
    "of Ubuntu for a Raspberry Pi": ({"6.8.0-1010-raspi": {}}, {}, ["raspberry-pi-kernel"]),
    "the next-boot one": ({"6.6.30": {"settings": []}, "6.6.31-rt30": RT}, {}, ["realtime-kernel"]),
    "the running and the next-boot one": ({"6.6.30-rt30": RT, "6.6.31-rt30": RT}, {}, ["realtime-kernel"]),
    "one for which somebody has built them": ({"6.6.30-rt30": RT}, {"loaded": {"version": "595.71.05"}}, []),
    "of a container's machine": ({"6.6.30-rt30": RT}, {"installed": False}, []),
}


@pytest.mark.parametrize(("releases", "host", "expected"), BAD_KERNELS.values(), ids=BAD_KERNELS)
def test_a_kernel_that_the_modules_do_not_build_for_is_refused(
    releases: dict[str, Any], host: dict[str, Any], expected: list[str], snapshot: Any
) -> None:
    names = list(releases)
    kernel = {"running": names[0], "next_boot": names[-1], "releases": releases}
    made = resolve(
        load_catalog(),
        asking(driver_source="nvidia"),
        host_from_probe(
            Probe.from_json(
                {
                    "distribution": {"id": "ubuntu-22.04"},
                    "architecture": "x86_64",
                    "gpus": [{"pci_id": "10de:20b0", "class": "0302"}],
                    "kernel": {**kernel, "installed": names if host.get("installed", True) else []},
                    "driver": {"loaded": host.get("loaded")},
                }
            )
        ),
    )
    assert [problem.code for problem in made.problems] == expected
    assert not expected or [(problem.message, problem.remedy) for problem in made.problems] == snapshot


# On Arm: the release, its metapackage, and the compilers where a row has them.
ON_ARM = [
    ("ubuntu-22.04", "5.15.0-139-generic", "linux-headers-generic", ["gcc-11"]),
    ("ubuntu-22.04", "6.8.0-136-generic-64k", "linux-headers-generic-64k-hwe-22.04", []),
    ("ubuntu-22.04", "6.8.0-1045-nvidia-64k", "linux-headers-nvidia-64k-hwe-22.04", []),
    ("ubuntu-24.04", "6.8.0-149-generic-64k", "linux-headers-generic-64k", ["gcc-13"]),
    ("ubuntu-24.04", "6.17.0-20-generic-64k", "linux-headers-generic-64k-hwe-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.8.0-1045-nvidia-64k", "linux-headers-nvidia-64k", ["gcc-13"]),
    ("ubuntu-24.04", "6.14.0-1008-nvidia-64k", "linux-headers-nvidia-64k-hwe-24.04", ["gcc-13"]),
    ("ubuntu-24.04", "6.17.0-1014-nvidia", "linux-headers-nvidia-hwe-24.04", ["gcc-13"]),
    ("debian-12", "6.1.0-57-arm64", "linux-headers-arm64", ["gcc-12"]),
    ("debian-12", "6.1.0-57-cloud-arm64", "linux-headers-cloud-arm64", ["gcc-12"]),
    ("debian-13", "6.12.115+deb13.1-arm64", "linux-headers-arm64", ["gcc-14"]),
    ("debian-13", "6.12.118+deb13-arm64-16k", "linux-headers-arm64-16k", ["gcc-14"]),
]


@pytest.mark.parametrize(("distro", "running", "meta", "compilers"), ON_ARM)
def test_a_flavour_of_arm_has_headers_of_its_own(
    distro: str, running: str, meta: str | None, compilers: list[str]
) -> None:
    """Those with pages of 64 KiB above all: the headers of another flavour build modules that do not load."""
    host = Host(distro, "aarch64", gpus=(HostGpu("10de:2342"),), kernel=running, described=True)
    made = resolve(load_catalog(), asking(), host).to_json()
    assert made["components"]["driver"]["kernel_headers"] == [f"linux-headers-{running}", *([meta] if meta else [])]
    assert made["components"]["driver"]["kernel_compilers"] == compilers
    assert "headers-unknown" not in {warning["code"] for warning in made["warnings"]}


KHO, SMALL = "KEXEC_HANDOVER_ENABLE_DEFAULT", "ARM64_4K_PAGES"
POOR: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "KHO on a GB10": ("2e12", {"7.0.0-1019-nvidia": {"settings": [KHO, SMALL]}}, ["kho=off"]),
    "KHO on the next kernel alone": ("2e12", {"6.17.0-1014-nvidia": {}, "7.0.0-31-generic": {}}, ["kho=off"]),
    "before KHO was on": ("2e12", {"7.0.0-30-generic": {}}, []),
    "switched off": ("2e12", {"7.0.0-31-generic": {"settings": [SMALL]}}, []),
    "KHO beside another GPU": ("27b8", {"7.0.0-1019-nvidia": {"settings": [KHO, SMALL]}}, []),
    "4 KiB on a GH200": ("2342", {"6.8.0-90-generic": {"settings": [SMALL]}}, ["64 KiB"]),
    "4 KiB by its name": ("2342", {"6.8.0-1030-nvidia": {}}, ["64 KiB"]),
    "64 KiB": ("2342", {"6.8.0-1013-nvidia-64k": {}}, []),
    "64 KiB of one's own": ("2342", {"6.18.0-hpc": {"settings": []}}, []),
}


@pytest.mark.parametrize(("device", "releases", "expected"), POOR.values(), ids=POOR)
def test_a_flavour_that_hurts_a_gpu_is_a_warning(device: str, releases: dict[str, Any], expected: list[str]) -> None:
    """Also where the driver stays: by the kernel's configuration, else by its name."""
    names = list(releases)
    kernel = {"running": names[0], "next_boot": names[-1], "releases": releases, "installed": names}
    for request in (asking(), asking(driver="none")):
        probe = Probe.from_json(
            {
                "distribution": {"id": "ubuntu-24.04"},
                "architecture": "aarch64",
                "gpus": [{"pci_id": f"10de:{device}", "class": "0302"}],
                "kernel": kernel,
                "driver": {"loaded": {"version": "595.71.05"}},
            }
        )
        made = resolve(load_catalog(), request, host_from_probe(probe))
        found = [warning.message for warning in made.warnings if warning.code == "poor-kernel"]
        assert len(found) == len(expected)
        assert all(text in message for text, message in zip(expected, found, strict=True))
        assert all(names[-1] in message for message in found)


def azure(**parts: Any) -> dict[str, Any]:
    """Return an image with Azure's long-term kernel, one behind the archive, on which nothing was built yet."""
    release = {"metas": ["linux-image-azure-lts-22.04"], "compiler": JAMMY, "gcc": 12, "compression": None}
    return {
        "running": "5.15.0-1087-azure",
        "next_boot": "5.15.0-1102-azure",
        "installed": ["5.15.0-1087-azure", "5.15.0-1102-azure"],
        "headers": [],
        "releases": {"5.15.0-1087-azure": {**release, "compiler": None, "gcc": None}, "5.15.0-1102-azure": release},
        "installed_packages": [],
        "offers": {
            "linux-headers-5.15.0-1087-azure": {"headers": ["5.15.0-1087-azure"], "images": []},
            "linux-headers-5.15.0-1102-azure": {"headers": ["5.15.0-1102-azure"], "images": []},
            "linux-headers-azure-lts-22.04": {"headers": ["5.15.0-1102-azure"], "images": []},
        },
        "headers_from": {},
        **parts,
    }


def test_the_packages_of_a_host_decide_and_not_the_name_of_its_kernel() -> None:
    component, warnings = probed(azure())
    assert component["kernel_headers"] == [
        "linux-headers-5.15.0-1087-azure",
        "linux-headers-5.15.0-1102-azure",
        "linux-headers-azure-lts-22.04",
    ]
    assert component["kernel_compilers"] == ["gcc-11", "gcc-12"]  # of the catalog, and of the configuration
    assert component["kernel_tools"] == ["gcc", "make"]
    assert warnings == []


def test_each_of_two_flavours_has_its_own_headers_metapackage_and_compiler() -> None:
    """An image of a cloud to which somebody added the generic kernel, and chose it in GRUB."""
    generic = {"metas": ["linux-image-generic"], "compiler": JAMMY.replace("12", "11"), "gcc": 11, "compression": "zst"}
    kernel = azure(next_boot="5.15.0-203-generic", installed=["5.15.0-1087-azure", "5.15.0-203-generic"])
    kernel["releases"]["5.15.0-203-generic"] = generic
    kernel["releases"]["5.15.0-1087-azure"] = azure()["releases"]["5.15.0-1102-azure"]
    kernel["offers"] |= {
        "linux-headers-5.15.0-203-generic": {"headers": ["5.15.0-203-generic"], "images": []},
        "linux-headers-generic": {"headers": ["5.15.0-203-generic"], "images": []},
    }
    component, warnings = probed(kernel)
    assert component["kernel_headers"] == [
        "linux-headers-5.15.0-1087-azure",
        "linux-headers-5.15.0-203-generic",
        "linux-headers-azure-lts-22.04",
        "linux-headers-generic",
    ]
    assert component["kernel_compilers"] == ["gcc-11", "gcc-12"]
    assert component["kernel_tools"] == ["gcc", "make", "zstd"]
    assert warnings == []


def test_a_kernel_that_nothing_follows_was_pinned() -> None:
    release = {"metas": [], "compiler": JAMMY, "gcc": 12}
    kernel = azure(releases={"5.15.0-1087-azure": release, "5.15.0-1102-azure": release})
    assert probed(kernel)[0]["kernel_headers"] == ["linux-headers-5.15.0-1087-azure", "linux-headers-5.15.0-1102-azure"]


def test_a_metapackage_that_would_install_another_kernel_is_left_out() -> None:
    """Debian 13's headers depend on their kernel, so that the archive's newest headers bring the newest kernel."""
    release = {
        "metas": ["linux-image-amd64"],
        "compiler": "x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0",
        "gcc": 14,
    }
    newest = "6.12.107+deb13-amd64"
    kernel = {
        "running": "6.12.86+deb13-amd64",
        "installed": ["6.12.86+deb13-amd64"],
        "releases": {"6.12.86+deb13-amd64": {**release, "compression": "xz"}},
        "offers": {"linux-headers-amd64": {"headers": [newest], "images": [f"linux-image-{newest}"]}},
    }
    component, _warnings = probed(kernel, "debian-13")
    assert component["kernel_headers"] == ["linux-headers-6.12.86+deb13-amd64"]
    assert component["kernel_tools"] == ["gcc", "make", "xz-utils"]
    installed = probed({**kernel, "installed_packages": ["linux-headers-amd64"]}, "debian-13")[0]["kernel_headers"]
    assert installed == ["linux-headers-6.12.86+deb13-amd64", "linux-headers-amd64"]


def test_the_compiler_of_the_kernel_whose_headers_the_metapackage_brings_is_there_too() -> None:
    """DKMS builds for these headers as soon as they are installed, and a failure would fail the transaction."""
    eleven = "x86_64-linux-gnu-gcc-11 (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"
    kernel = {
        "running": "6.8.0-1015-aws",
        "installed": ["6.8.0-1015-aws"],
        "releases": {"6.8.0-1015-aws": {"metas": ["linux-image-aws"], "compiler": eleven, "gcc": 11}},
        "offers": {"linux-headers-aws": {"headers": ["6.8.0-1063-aws"], "images": []}},
    }
    assert probed(kernel)[0]["kernel_compilers"] == ["gcc-11", "gcc-12"]


def test_headers_of_a_kernel_that_somebody_built_are_no_package() -> None:
    release = {"compiler": JAMMY, "gcc": 12}
    kernel = {"running": "6.9.1", "installed": ["6.9.1"], "headers": ["6.9.1"], "releases": {"6.9.1": release}}
    assert probed({**kernel, "offers": {}})[0]["kernel_headers"] == []


def test_headers_of_another_name_are_planned_where_apt_says_that_they_are_those_of_the_kernel() -> None:
    release = {"compiler": JAMMY, "gcc": 12}
    kernel = {"running": "6.9.1", "installed": ["6.9.1"], "releases": {"6.9.1": release}, "offers": {}}
    assert probed({**kernel, "headers_from": {"6.9.1": ["lab-headers-6.9.1"]}})[0]["kernel_headers"] == [
        "lab-headers-6.9.1"
    ]
    both = {**kernel, "headers_from": {"6.9.1": ["lab-headers-6.9.1", "linux-headers-6.9.1"]}}
    both["offers"] = {"linux-headers-6.9.1": {"headers": ["6.9.1"], "images": []}}
    assert probed(both)[0]["kernel_headers"] == ["linux-headers-6.9.1"]
    assert probed({**kernel, "headers_from": {"6.9.1": []}})[0]["kernel_headers"] == ["linux-headers-6.9.1"]


@pytest.mark.parametrize(
    ("distribution", "running", "meta", "follows"),
    [
        ("ubuntu-22.04", "6.17.11-061711-generic", "generic-hwe-22.04", False),
        ("ubuntu-22.04", "6.15.2-1-liquorix-amd64", "liquorix-amd64", True),
        ("ubuntu-22.04", "6.8.0-90-generic", "generic-hwe-22.04", True),
        ("debian-13", "6.12.74+deb13+1-amd64", "amd64", True),
    ],
)
def test_a_metapackage_of_the_archive_does_not_follow_a_kernel_of_others(
    distribution: str, running: str, meta: str, follows: bool
) -> None:
    """The flavour of Ubuntu's mainline builds is that of the archive's kernels beside them."""
    release = {"metas": [f"linux-image-{meta}"], "compiler": JAMMY, "gcc": 12}
    kernel = {"running": running, "installed": [running, "6.8.0-90-generic"], "releases": {running: release}}
    headers = probed(kernel, distribution)[0]["kernel_headers"]
    assert headers == [f"linux-headers-{running}"] + [f"linux-headers-{meta}"] * follows


@pytest.mark.parametrize(
    ("running", "brought", "expected"),
    [
        (
            "6.17.11-061711-generic",
            {"virtual": "6.8.0-149-generic", "generic-hwe-24.04-edge": "7.0.0-43-generic"},
            [],
        ),
        ("6.15.2-1-liquorix-amd64", {"liquorix-amd64": "6.15.2-1-liquorix-amd64"}, ["liquorix-amd64"]),
        # Pop!_OS: the archive's name, and System76's kernels
        ("6.9.3-76060903-generic", {"generic": "6.9.3-76060903-generic"}, ["generic"]),
        (
            "6.8.0-90-generic",
            {"virtual": "6.8.0-149-generic", "generic-6.8": "6.8.0-149-generic"},
            ["virtual", "generic-6.8"],
        ),
    ],
)
def test_the_headers_that_a_metapackage_brings_say_whose_kernels_it_follows(
    running: str, brought: dict[str, str], expected: list[str]
) -> None:
    """Ubuntu has more metapackages of a flavour than the catalog: the probe reports all that are installed."""
    release = {"metas": [f"linux-image-{meta}" for meta in brought], "compiler": JAMMY, "gcc": 12}
    offers = {f"linux-headers-{meta}": {"headers": [headers], "images": []} for meta, headers in brought.items()}
    kernel = {"running": running, "installed": [running], "releases": {running: release}, "offers": offers}
    headers = probed(kernel, "ubuntu-24.04")[0]["kernel_headers"]
    assert headers == [f"linux-headers-{name}" for name in (running, *expected)]


def test_another_compiler_than_gcc_is_named() -> None:
    clang = {"compiler": "Ubuntu clang version 18.1.3 (1ubuntu1)", "gcc": None}
    kernel = {"running": "6.8.0-90-generic", "installed": ["6.8.0-90-generic"], "releases": {"6.8.0-90-generic": clang}}
    component, warnings = probed(kernel)
    assert (component["kernel_compilers"], warnings) == ([], ["compiler-unknown"])


def test_a_container_builds_nothing_for_the_kernel_of_its_machine() -> None:
    """Its compiler is in /proc/version, and is not the container's concern."""
    release = {"compiler": "gcc (GCC) 15.3.0", "gcc": 15}
    component, warnings = probed({"running": "6.18.44-fc-v669", "releases": {"6.18.44-fc-v669": release}})
    assert (component["kernel_compilers"], warnings) == ([], [])
    assert component["kernel_headers"] == []


def test_a_kernel_whose_package_was_removed_while_it_runs_is_still_built_for() -> None:
    kernel = azure(installed=["5.15.0-1102-azure"])
    assert "linux-headers-5.15.0-1087-azure" in probed(kernel)[0]["kernel_headers"]


def test_a_brought_kernel_whose_compiler_is_not_known_needs_none() -> None:
    eleven = "x86_64-linux-gnu-gcc-11 (Ubuntu 11.4.0-1ubuntu1~22.04) 11.4.0"
    kernel = {
        "running": "6.8.0-1015-aws",
        "installed": ["6.8.0-1015-aws"],
        "releases": {"6.8.0-1015-aws": {"metas": ["linux-image-aws"], "compiler": eleven, "gcc": 11}},
        "offers": {"linux-headers-aws": {"headers": ["6.14.0-1018-aws"], "images": []}},
    }
    component, warnings = probed(kernel)
    assert component["kernel_headers"] == ["linux-headers-6.8.0-1015-aws", "linux-headers-aws"]
    assert (component["kernel_compilers"], warnings) == (["gcc-11"], [])


def test_nothing_is_built_where_the_distribution_has_the_modules() -> None:
    host = {"kernel": "6.8.0-149-generic"}
    made = plan("ubuntu-24.04", "A100", host=host, catalog=load_catalog(), driver_module_source="prebuilt")
    component = made["components"]["driver"]
    assert component["module_source"] == "prebuilt"
    assert (component["kernel_headers"], component["kernel_compilers"], component["kernel_tools"]) == ([], [], [])


@pytest.mark.parametrize(
    ("release", "compiler", "message"),
    [
        (
            "6.8.0-90-generic",
            {"compiler": "Ubuntu clang version 18.1.3 (1ubuntu1)", "gcc": None},
            "the compiler of kernel 6.8.0-90-generic is Ubuntu clang version 18.1.3 (1ubuntu1), not gcc: its modules "
            "are built with the default one, gcc 11, which may not fit",
        ),
        (
            "6.9.1",
            {},
            "the compiler of kernel 6.9.1 is not known: its modules are built with the default one, gcc 11, which may "
            "not fit",
        ),
    ],
)
def test_the_warning_names_the_compiler_that_is_taken(release: str, compiler: dict[str, Any], message: str) -> None:
    kernel = {"running": release, "installed": [release], "releases": {release: compiler}}
    gpus = [{"pci_id": "10de:20b0", "class": "0302"}]
    probe = Probe.from_json(
        {"distribution": {"id": "ubuntu-22.04"}, "architecture": "x86_64", "gpus": gpus, "kernel": kernel}
    )
    made = resolve(frozen_catalog(), asking(driver_source="nvidia"), host_from_probe(probe))
    assert [w.message for w in made.warnings if w.code == "compiler-unknown"] == [message]


def test_headers_that_the_archive_offers_are_a_package_even_of_a_kernel_that_is_not_installed() -> None:
    kernel = {"running": "6.9.1", "headers": ["6.9.1"], "releases": {"6.9.1": {"compiler": JAMMY, "gcc": 12}}}
    name = "linux-headers-6.9.1"
    offers = {name: {"headers": ["6.9.1"], "images": []}}
    assert probed({**kernel, "offers": offers})[0]["kernel_headers"] == [name]
    assert probed({**kernel, "installed_packages": [name]})[0]["kernel_headers"] == [name]
    assert probed(kernel)[0]["kernel_headers"] == []
