"""Components and the specs of their packages."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components

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


def test_planned_components_are_found_by_name() -> None:
    components = Components({"driver": DRIVER, "cuda": CUDA, "cudnn": None})
    assert list(components.values()) == [DRIVER, CUDA, None]
    assert components.but(cuda=None) == {"driver": DRIVER, "cuda": None, "cudnn": None}
    assert list(components.packaged()) == [DRIVER, CUDA]
    assert components.framework("pytorch") is None


def test_the_full_version_of_cuda_is_its_release() -> None:
    assert (DRIVER.full_version, CUDA.full_version) == ("595.71.05", "13.2.1")


def test_pinning_packages_come_first() -> None:
    assert list(map(str, DRIVER.all_packages)) == ["nvidia-driver-pinning-595=595-1", "nvidia-driver-cuda=595.71.05-1"]
