"""NVIDIA's kernel modules: built, loaded, and the order in which they are unloaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import KernelModule
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules

from tests.unit.module_utils.host_files import put

RUNNING, NEXT = "6.1.0-50-amd64", "6.1.0-56-amd64"


def test_modules_that_use_it_are_unloaded_first(tmp_path: Path) -> None:
    """/proc/modules of a workstation with a display."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text(
        "nvidia_uvm 1789952 2 - Live 0x0000000000000000 (POE)\n"
        "nvidia_drm 122880 5 - Live 0x0000000000000000 (POE)\n"
        "nvidia_modeset 1605632 3 nvidia_drm, Live 0x0000000000000000 (POE)\n"
        "nvidia 60653568 74 nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 (POE)\n"
    )
    modules = kernel_modules.loaded(str(tmp_path))
    assert kernel_modules.unload_order(modules, "nvidia") == ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"]
    assert [name for name in modules if modules[name].busy] == ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"]
    assert kernel_modules.unload_order(modules, "nouveau") == []


def test_a_kernel_that_unloads_no_modules_does_not_count_their_uses(tmp_path: Path) -> None:
    """/proc/modules of a virtual machine with an H100, whose kernel 6.18 has no CONFIG_MODULE_UNLOAD."""
    text = "nvidia_uvm 1830912 - - Live 0xffffffffc080c000 (O)\nnvidia 14299136 - - Live 0xffffffffc0400000 (O)\n"
    put(tmp_path, "/proc/modules", text)
    modules = kernel_modules.loaded(str(tmp_path))
    assert {name: (module.uses, module.busy) for name, module in modules.items()} == {
        "nvidia_uvm": (None, False),
        "nvidia": (None, False),
    }


def test_built_modules_have_version_and_flavour(tmp_path: Path) -> None:
    directory = tmp_path / f"lib/modules/{RUNNING}/updates/dkms"
    directory.mkdir(parents=True)
    for name in ("nvidia-current.ko", "nvidia-current-uvm.ko", "nvidia.ko.xz", "nvidia-fs.ko"):
        (directory / name).touch()
    fields = {
        ("nvidia-current.ko", "version"): "535.261.03", ("nvidia-current.ko", "license"): "NVIDIA",
        ("nvidia.ko.xz", "version"): "595.71.05", ("nvidia.ko.xz", "license"): "Dual MIT/GPL",
    }  # fmt: skip

    def run(argv: list[str], _: float) -> command.Answer:
        return command.Answer(0, (fields[Path(argv[-1]).name, argv[2]] + "\n").encode(), b"")

    assert kernel_modules.built(str(tmp_path), RUNNING, run) == [
        KernelModule("535.261.03", "proprietary"),
        KernelModule("595.71.05", "open"),
    ]
    assert kernel_modules.built(str(tmp_path), NEXT, run) == []


@pytest.mark.parametrize(
    ("version", "licence", "found"),
    [
        ("595.71.05", "GPL", [KernelModule("595.71.05", "GPL")]),
        ("", "NVIDIA", []),
        ("595.71.05", "", []),
        ("", "", []),
    ],
    ids=["another licence", "no version", "no licence", "neither"],
)
@pytest.mark.parametrize("noise", ["", "modinfo: ERROR"])
def test_module_that_modinfo_does_not_describe_is_none(
    tmp_path: Path, version: str, licence: str, found: list[KernelModule], noise: str
) -> None:
    """Where modinfo fails, what it printed does not count."""
    put(tmp_path, f"/lib/modules/{RUNNING}/updates/dkms/nvidia.ko")
    values = {"version": version, "license": licence}

    def run(argv: list[str], timeout: float) -> command.Answer:
        assert argv[:2] == ["/sbin/modinfo", "-F"]
        value = values[argv[2]]
        return command.Answer(0 if value else 1, (value or noise).encode(), b"")

    assert kernel_modules.built(str(tmp_path), RUNNING, run) == found


def test_uses_by_other_modules_do_not_keep_a_module_busy(tmp_path: Path) -> None:
    lines = ("nvidia 9 1 nvidia_uvm,", "nvidia_uvm 9 0 -", "video 9 2 nvidia,")
    put(tmp_path, "/proc/modules", "".join(f"{line} Live 0x0\n" for line in lines))
    modules = kernel_modules.loaded(str(tmp_path))
    assert {name: (module.uses, module.users, module.busy) for name, module in modules.items()} == {
        "nvidia": (1, ("nvidia_uvm",), False),
        "nvidia_uvm": (0, (), False),
        "video": (2, ("nvidia",), True),
    }
    assert kernel_modules.unload_order(modules, "video") == ["nvidia_uvm", "nvidia", "video"]
    assert kernel_modules.loaded(str(tmp_path / "nothing")) == {}


def test_module_of_the_driver_itself(tmp_path: Path) -> None:
    """Debian names it by its branch; the files beside it are other modules."""
    names = ["nvidia-current.ko", "nvidia-legacy-390xx.ko", "nvidia-tesla-470.ko.xz", "nvidia.ko.gz", "nvidia.ko.zst"]
    for name in [*names, "nvidia-uvm.ko", "nvidia-current-drm.ko", "nvidia-fs.ko"]:
        put(tmp_path, f"/lib/modules/{RUNNING}/updates/dkms/{name}")
    assert [Path(path).name for path in kernel_modules.paths(str(tmp_path), RUNNING)] == names


def test_all_modules_of_the_driver_are_found(tmp_path: Path) -> None:
    """Names of NVIDIA's and of Debian's packages; nvidia-fs and the kernel's own modules are others."""
    directory = tmp_path / f"lib/modules/{RUNNING}/updates/dkms"
    directory.mkdir(parents=True)
    ours = [
        "nvidia-current-drm.ko",
        "nvidia-drm.ko.zst",
        "nvidia-modeset.ko",
        "nvidia-peermem.ko.xz",
        "nvidia-uvm.ko",
        "nvidia.ko",
    ]
    for name in [*ours, "nvidia-fs.ko", "nvidiafb.ko", "nvidia-wmi-ec-backlight.ko", "nvidia.ko.bak"]:
        (directory / name).touch()
    assert [Path(path).name for path in kernel_modules.all_paths(str(tmp_path), RUNNING)] == ours
    assert kernel_modules.all_paths(str(tmp_path), NEXT) == []
