"""NVIDIA's kernel modules: built, loaded, and the order in which they are unloaded."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules

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
        {"version": "535.261.03", "kernel_modules": "proprietary"},
        {"version": "595.71.05", "kernel_modules": "open"},
    ]
    assert kernel_modules.built(str(tmp_path), NEXT, run) == []


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
