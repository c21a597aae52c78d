"""Components and the specs of their packages."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    COMPONENTS,
    FRAMEWORKS,
    PACKAGED,
    Components,
    all_packages,
    full_version,
)

from tests.unit.plugin_utils.planning.planning_cases import component

DRIVER = component(
    "driver",
    {
        "version": "595.71.05",
        "branch": "595",
        "kernel_modules": "open",
        "source": "nvidia",
        "packages": ["nvidia-driver-cuda=595.71.05-1"],
        "pinning_packages": ["nvidia-driver-pinning-595=595-1"],
    },
)
CUDA = component("cuda", {"version": "13.2", "release": "13.2.1", "source": "nvidia"})


def test_every_component_is_packaged_or_a_framework() -> None:
    assert (*PACKAGED, *FRAMEWORKS) == COMPONENTS


def test_planned_components_are_found_by_name() -> None:
    components = Components(driver=DRIVER, cuda=CUDA)
    assert [components.get(name) for name in COMPONENTS] == [DRIVER, CUDA, None, None, None, None]
    assert list(components.packaged()) == [DRIVER, CUDA]
    assert components.framework("pytorch") is None


def test_the_full_version_of_cuda_is_its_release() -> None:
    assert (full_version(DRIVER), full_version(CUDA)) == ("595.71.05", "13.2.1")


def test_pinning_packages_come_first() -> None:
    assert list(map(str, all_packages(DRIVER))) == ["nvidia-driver-pinning-595=595-1", "nvidia-driver-cuda=595.71.05-1"]
