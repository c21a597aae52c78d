"""Which set of driver packages a host gets or keeps, from probes of desktops and servers."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import driver_name_pattern
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe, plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import host_from_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import PROBE
from tests.unit.requested import requested

RTX_4090 = {"pci_address": "0000:01:00.0", "pci_id": "10de:2684", "class": "0300", "kernel_driver": "nvidia"}
GDM = {"manager": "gdm3.service", "graphical": True, "connected": ["card1-DP-1"]}
MONITOR = {"manager": None, "graphical": True, "connected": ["card1-HDMI-A-1"]}
# dpkg on an Ubuntu 24.04 desktop after "Additional Drivers" installed nvidia-driver-580 (public apt logs of noble).
_580 = "580.126.09-0ubuntu0.24.04.2"
ADDITIONAL_DRIVERS = {
    **dict.fromkeys(
        [
            *(f"libnvidia-{part}-580" for part in "cfg1 compute decode encode extra fbc1 gl".split()),
            *(f"nvidia-{part}-580" for part in "compute-utils driver kernel-common kernel-source utils".split()),
            "nvidia-firmware-580-580.126.09",
            "xserver-xorg-video-nvidia-580",
            "libnvidia-common-580",
        ],
        _580,
    ),
    "linux-modules-nvidia-580-6.8.0-90-generic": "6.8.0-90.91",
    "linux-modules-nvidia-580-generic": "6.8.0-90.91",
    "linux-objects-nvidia-580-6.8.0-90-generic": "6.8.0-90.91",
    "linux-signatures-nvidia-6.8.0-90-generic": "6.8.0-90.91",
    "nvidia-prime": "0.8.17.2",
    "nvidia-settings": "510.47.03-0ubuntu4",
    "screen-resolution-extra": "0.18.3",
}
WITH_APT = sorted(distro.id for distro in load_catalog().distros.values() if not distro.dist)
DKMS = {name: version for name, version in ADDITIONAL_DRIVERS.items() if not name.startswith("linux-")}
DKMS["nvidia-dkms-580"] = _580


def installed(packages: dict[str, str]) -> dict[str, Any]:
    return {name: {"version": version, "status": "installed", "held": False} for name, version in packages.items()}


def probe(
    display: dict[str, Any] | None = None,
    packages: dict[str, str] | None = None,
    distro: str = "ubuntu-24.04",
    **more: Any,
) -> Probe:
    parts = {
        "distribution": {"id": distro},
        "gpus": [RTX_4090],
        "display": display,
        "packages": installed(packages or {}),
    }
    python = {"default": "3.12", "interpreters": {"3.12": "/usr/bin/python3.12"}}
    toolchain = {"gcc": "13", "glibc": "2.39"}
    return Probe.from_json({**PROBE, "python": python, "toolchain": toolchain, **parts, **more})


def made(found: Probe, **request: str) -> Plan:
    return plan_for_probe(found, request)


def names(plan: Plan) -> list[str]:
    assert plan.components["driver"] is not None, plan.problems
    return [package.name for package in plan.components["driver"].packages]


def because(plan: Plan) -> str:
    return next(reason.because for reason in plan.reasons if reason.component == "driver")


# The profile ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["nvidia", "distro"])
@pytest.mark.parametrize("distro", WITH_APT)
def test_a_server_gets_cuda_and_video_and_no_x_server(distro: str, source: str) -> None:
    plan = made(probe(distro=distro), driver_source=source, tensorflow="none", cuda="none", cudnn="none", nccl="none")
    assert plan.ok, plan.problems
    found = names(plan)
    assert not [name for name in found if re.search(r"-gl|glx|egl|xserver|driver-libs", name)]
    assert [name for name in found if "encode" in name]
    assert [name for name in found if re.search("decode|nvcuvid", name)]
    assert "profile" not in because(plan)


@pytest.mark.parametrize("source", ["nvidia", "distro"])
@pytest.mark.parametrize("display", [GDM, MONITOR, {**GDM, "graphical": False}], ids=["gdm", "monitor", "console"])
@pytest.mark.parametrize("distro", WITH_APT)
def test_a_host_with_a_display_gets_opengl_and_x_too(distro: str, display: dict[str, Any], source: str) -> None:
    alone = {"tensorflow": "none", "cuda": "none", "cudnn": "none", "nccl": "none"}
    plan = made(probe(display, distro=distro), driver_source=source, **alone)
    assert plan.ok, plan.problems
    assert plan.components["driver"] is not None
    assert plan.components["driver"].profile == "full"
    found = names(plan)
    assert [name for name in found if name.startswith("xserver-xorg-video-nvidia")]
    assert [name for name in found if re.match(r"libnvidia-gl|nvidia-(tesla-\d+-)?driver-libs", name)]
    assert [name for name in found if "encode" in name]
    assert "profile full: display" in because(plan)
    # What is requested is carried out, on a server too.
    asked = made(probe(distro=distro), driver_source=source, driver_profile="full", **alone)
    assert names(asked) == found


def test_a_set_changes_as_a_whole_set_of_its_kind() -> None:
    """A workstation whose display is on another card may have a driver for compute only."""
    compute = {"libnvidia-compute-570": "570.211.01-0ubuntu1", "nvidia-dkms-570-open": "570.211.01-0ubuntu1"}
    plan = made(probe(GDM, compute))
    assert plan.components["driver"] is not None
    assert plan.components["driver"].profile == "compute"
    assert "no OpenGL packages (display manager gdm3.service; display at card1-DP-1)" in because(plan)
    assert (
        made(probe(GDM, {**compute, "libnvidia-gl-570": "570.211.01-0ubuntu1"})).components["driver"].profile == "full"
    )
    for foreign in ("libnvidia-gl-570:i386", "libgl1-nvidia-glvnd-glx:i386"):
        found = probe(GDM, {**compute, foreign: "570.211.01-0ubuntu1"})
        assert made(found).components["driver"].profile == "compute"


def test_an_empty_metapackage_has_no_opengl() -> None:
    """cuda-drivers of 615 has no dependencies (cupy/cupy#10295); that of 610 brought a display's packages."""
    compute = {"libnvidia-compute": "595.71.05-1ubuntu1", "nvidia-dkms-open": "595.71.05-1ubuntu1"}
    for version, profile in {"615.71.09-1ubuntu1": "compute", "595.71.05-1ubuntu1": "full"}.items():
        found = probe(GDM, {**compute, "cuda-drivers": version})
        assert made(found).components["driver"].profile == profile
        assert made(found, driver_profile="compute").ok == (profile == "compute")


def test_compute_is_refused_where_it_would_take_the_display() -> None:
    plan = made(probe(GDM, DKMS), driver_profile="compute")
    (problem,) = plan.problems
    assert problem.code == "display-needs-full"
    assert "libnvidia-gl-580" in problem.message
    assert "gdm3.service" in problem.message
    assert plan.remedies
    for remedy in plan.remedies:
        assert made(probe(GDM, DKMS), **{"driver_profile": "compute", **dict(remedy.request)}).ok
    # Without such packages nothing is lost, and without a display they are the user's to give up.
    assert made(probe(GDM), driver_profile="compute").ok
    assert made(probe(None, DKMS), driver_profile="compute").ok


def test_other_packages_than_a_drivers_say_nothing_about_the_set() -> None:
    for packages in ({}, {"gdm3": "46.2-1ubuntu1", "libgl1": "1.7.0-1build1"}, {"nvidia-settings": "510.47.03"}):
        plan = made(probe(GDM, packages))
        assert plan.components["driver"] is not None
        assert plan.components["driver"].profile == "full"


@pytest.mark.parametrize(
    ("request_", "packages"),
    [
        ({"driver_profile": "full"}, {}),
        ({}, {}),
        ({}, {"libnvidia-compute-570": "570.211.01-0ubuntu1"}),
    ],
    ids=["requested", "display", "installed without OpenGL"],
)
def test_the_reason_for_a_profile(
    request_: dict[str, str], packages: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    said = because(made(probe(GDM, packages), **request_))
    assert said[said.index("profile ") : said.index("; open kernel modules")] == snapshot  # the rest is of the release


def test_what_a_display_loses_with_the_profile_compute(snapshot: SnapshotAssertion) -> None:
    """Without the remedies that are tried."""
    asked = user_request.asking(driver_profile="compute")
    (problem,) = plan_once(load_catalog(), asked, host_from_probe(probe(GDM, DKMS))).problems
    assert [problem.message, problem.remedy] == snapshot


# Ubuntu's prebuilt modules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("series", "flavour"), [("580", "proprietary"), ("580-open", "open"), ("580-server", "proprietary")]
)
def test_the_set_that_stays_has_its_branch_and_flavour(series: str, flavour: str) -> None:
    base = series.removesuffix("-open")
    packages = {f"nvidia-driver-{series}": _580, f"linux-modules-nvidia-{series}-generic": "6.8.0-90.91"}
    found = probe(GDM, {**packages, f"libnvidia-gl-{base}": _580})
    plan = made(found)
    kept = plan.kept_driver
    assert kept is not None
    assert plan_diff.plan_diff(plan, found).of("driver").note == f"{kept.package} with prebuilt kernel modules"
    assert (kept.package, kept.version) == (f"nvidia-driver-{series}", "580.126.09")
    assert (kept.branch, kept.kernel_modules) == ("580", flavour)


def test_an_older_driver_that_stays_limits_cuda() -> None:
    old = {
        name.replace("580", "535"): version.replace("580.126.09", "535.274.02")
        for name, version in ADDITIONAL_DRIVERS.items()
    }
    found = probe(GDM, old)
    plan = made(found)
    assert plan.ok, plan.problems
    assert plan.components["cuda"] is not None
    assert plan.components["cuda"].version.startswith("12.")
    assert "security-floor" in [warning.code for warning in plan.warnings]
    refused = made(found, cuda="13.2")
    assert [p.code for p in refused.problems] == ["driver-too-old-for-cuda"]
    assert "the installed driver is 535.274.02" in refused.problems[0].message


# What is removed --------------------------------------------------------------------------------------------------

SETS = {
    "additional": ADDITIONAL_DRIVERS,
    "dkms": DKMS,
    "server": {f"{name}-server" if name.endswith("-580") else name: version for name, version in DKMS.items()},
    "nvidia 570": {
        **{name.replace("580", "570"): "570.211.01-0ubuntu1" for name in DKMS if name.endswith("-580")},
        "nvidia-open-570": "570.211.01-0ubuntu1",
        "nvidia-settings": "610.57.04-1ubuntu1",
    },
    "nvidia 595": dict.fromkeys(
        "cuda-drivers nvidia-driver nvidia-dkms libnvidia-gl libnvidia-compute libnvidia-decode libnvidia-encode "
        "libnvidia-cfg1 libnvidia-fbc1 xserver-xorg-video-nvidia nvidia-kernel-common nvidia-persistenced".split(),
        "595.71.05-1ubuntu1",
    ),
    "debian": dict.fromkeys(
        "nvidia-driver nvidia-driver-libs nvidia-driver-bin libgl1-nvidia-glvnd-glx libglx-nvidia0 libegl-nvidia0 "
        "nvidia-egl-icd nvidia-vulkan-icd nvidia-vdpau-driver xserver-xorg-video-nvidia nvidia-kernel-dkms nvidia-smi "
        "libcuda1 libnvidia-ml1 libnvidia-glcore libnvidia-eglcore".split(),
        "535.309.01-0+deb12u1",
    ),
}
# What a desktop's OpenGL, X and Wayland consist of beside a driver.
DESKTOP = {
    "nvidia-prime": "0.8.17.2",
    "libnvidia-egl-wayland1": "1:1.1.13-1build1",
    "libnvidia-egl-gbm1": "1.1.1-2",
    "glx-alternative-nvidia": "1.2.2",
    "xserver-xorg-core": "2:21.1.12-1ubuntu1",
    "xserver-xorg-video-nouveau": "1:1.0.17-2",
    "libgl1": "1.7.0-1build1",
    "libgl1-mesa-dri": "25.0.7-0ubuntu0.24.04.2",
    "libegl-mesa0": "25.0.7-0ubuntu0.24.04.2",
    "xwayland": "2:23.2.6-1",
    "gdm3": "46.2-1ubuntu1",
}
FUNCTIONS = {
    "OpenGL": r"libnvidia-gl(-\d+(-server)?)?|nvidia-(tesla-\d+-)?driver-libs",
    "X": r"xserver-xorg-video-nvidia(-\d+(-server)?|-tesla-\d+)?",
    "Vulkan": r"libnvidia-gl(-\d+(-server)?)?|nvidia-(tesla-\d+-)?vulkan-icd",
}


def index_of(plan: Plan) -> dict[str, Any]:
    """Return NVIDIA's repository with the planned driver; nothing of the old one is a dependency of it."""
    packages = plan.components["driver"].packages if plan.components["driver"] else ()
    sizes = {package.name: {package.version: [1, 1, []]} for package in packages if package.version}
    return {"url": "https://repository.example/", "sizes": sizes}


@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    kind=st.sampled_from(sorted(SETS)),
    dropped=st.sets(st.integers(0, 25), max_size=6),
    extra=st.sets(st.sampled_from(sorted(DESKTOP))),
    display=st.sampled_from([GDM, MONITOR]),
    indexed=st.booleans(),
    request_=st.fixed_dictionaries(
        {"driver": st.sampled_from(["auto", "570", "580", "590", "595", "610", "535", "470"])},
        optional={
            "driver_source": st.sampled_from(["auto", "nvidia", "distro"]),
            "driver_kernel_modules": st.sampled_from(["auto", "open", "proprietary"]),
            "driver_profile": st.sampled_from(["auto", "compute", "full"]),
        },
    ),
)
def test_a_display_keeps_what_it_needs(
    kind: str,
    dropped: set[int],
    extra: set[str],
    display: dict[str, Any],
    indexed: bool,
    request_: dict[str, str],
) -> None:
    """Nothing beside the driver is removed, whatever is installed and requested, and OpenGL and X are replaced."""
    packages = {name: version for n, (name, version) in enumerate(SETS[kind].items()) if n not in dropped}
    packages |= {name: DESKTOP[name] for name in extra}
    distro = "debian-12" if kind == "debian" else "ubuntu-24.04"
    found = probe(display, packages, distro)
    plan = made(found, tensorflow="none", **request_)
    if not plan.ok:
        return
    diff = plan_diff.plan_diff(plan, probe(display, packages, distro, repository=index_of(plan) if indexed else None))
    removed = {change.name for row in diff.components for change in row.packages if change.action == "remove"}
    purged = {n for removal in diff.removals.values() for e in removal.replaces for n in packages if re.fullmatch(e, n)}
    assert not (removed | purged) & {*DESKTOP, "nvidia-settings"}
    planned = set(names(plan)) if plan.components["driver"] else set()
    after = set(packages) - removed - purged | planned
    for function, expression in FUNCTIONS.items():
        had = any(re.fullmatch(expression, name) for name in packages)
        assert not had or any(re.fullmatch(expression, name) for name in after), (function, removed)
    if plan.components["driver"] is None:
        assert not removed
        assert not purged
    # What apt may remove to resolve conflicts is of the driver as well.
    may = {n for removal in diff.removals.values() for e in removal.may_remove for n in packages if re.fullmatch(e, n)}
    assert not may & set(DESKTOP)


def test_the_property_sees_what_a_compute_driver_removes() -> None:
    """The same diff of a server removes OpenGL and X, so that the property above could fail."""
    removed = set()
    for kind in ("nvidia 570", "dkms"):
        found = probe(None, SETS[kind])
        diff = plan_diff.plan_diff(made(found, tensorflow="none", driver="595"), found)
        removed |= {change.name for change in diff.of("driver").packages if change.action == "remove"}
    assert {"libnvidia-gl-570", "libnvidia-gl-580", "xserver-xorg-video-nvidia-580"} <= removed


# The catalog ------------------------------------------------------------------------------------------------------


def test_every_set_has_its_full_counterpart_and_known_names() -> None:
    catalog = load_catalog()
    rules = [*catalog.driver.packages, *itertools.chain(*(d.distro_drivers for d in catalog.distros.values()))]
    assert len(rules) > 15
    graphics = "|".join(f"(?:{e})" for e in catalog.packages.graphics)
    for rule in rules:
        for flavour in ("open", "proprietary"):
            compute, full = rule.of("compute", flavour), rule.of("full", flavour)
            assert bool(compute) == bool(full)
            blank = [name.format(branch="580") for name in compute]
            assert not [name for name in blank if re.fullmatch(graphics, name)]
            assert not compute or len([n for n in full if re.fullmatch(graphics, n.format(branch="580"))]) >= 2
            every = [name.format(branch="580") for name in (*compute, *full)]
            assert not [name for name in every if not re.fullmatch(driver_name_pattern(catalog), name)]


def test_the_request_knows_the_profiles() -> None:
    assert requested({})["driver_profile"] == "auto"
    (problem,) = made(probe(), driver_profile="desktop").problems
    assert problem.code == "invalid-request"
    assert "gpu_stack_driver_profile is 'desktop'; expected one of auto, compute, full" in problem.message
