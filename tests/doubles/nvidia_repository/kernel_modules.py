"""Add the source of simulated kernel modules to the driver packages, as DKMS expects it.

Virtual machines have a kernel of their own, where modules built by these packages can be loaded and unloaded.
"""

import dataclasses
from pathlib import Path

from tests.doubles.nvidia_repository.package import Package

SOURCE = Path(__file__).resolve().parents[1] / "simulated_driver" / "kernel_module"
FOLDER = "kernel-modules"
NOTE = "/usr/share/gpuhost-simulated/nvidia-kernel-modules.txt"
# If this file exists, the simulated nvidia-smi reads the loaded driver's version from the kernel.
LOADABLE = "/usr/share/gpuhost-simulated/kernel-modules-are-loadable"
# Captured from each flavour: the text after "NVIDIA UNIX" in /proc/driver/nvidia/version, and the license in modinfo.
FLAVOURS = {
    "open": ("Open Kernel Module for x86_64  {}  Release Build  (simulated@gpuhost)", "Dual MIT/GPL"),
    "proprietary": ("x86_64 Kernel Module  {}", "NVIDIA"),
}
# Like the scripts that dh_dkms writes: build for all installed kernels, and remove all builds.
POSTINST = """#!/bin/sh
set -e
if [ "$1" = configure ]; then
    sh /usr/lib/dkms/common.postinst nvidia {version} "" "$(uname -m)" "$2"
fi
"""
PRERM = """#!/bin/sh
set -e
if [ -e /var/lib/dkms/nvidia/{version} ]; then
    dkms remove -m nvidia -v {version} --all
fi
"""


def with_sources(package: Package) -> Package:
    """Return the package with the source of its modules, or unchanged if it has no kernel modules."""
    if NOTE not in package.text:
        return package
    version = package.control["Version"].partition("-")[0]
    flavour = "open" if "open" in package.control["Package"] else "proprietary"
    title, licence = FLAVOURS[flavour]
    control = dict(package.control)
    control["Depends"] = ", ".join(filter(None, [control.get("Depends"), "dkms", "gcc", "make"]))
    control["Description"] = control["Description"].replace("no source inside", "source of simulated modules inside")
    filled = {"@driver@": version, "@licence@": licence, "@title@": title.format(version)}
    source = {f"/usr/src/nvidia-{version}/{path.name}": _fill(path, filled) for path in sorted(SOURCE.iterdir())}
    return dataclasses.replace(
        package,
        control=control,
        text={
            **package.text,
            NOTE: f"NVIDIA {flavour} kernel modules {version} (simulated, built by DKMS)\n",
            LOADABLE: "",
            **source,
        },
        scripts={
            **package.scripts,
            "postinst": POSTINST.format(version=version),
            "prerm": PRERM.format(version=version),
        },
    )


def _fill(path: Path, values: dict[str, str]) -> str:
    text = path.read_text()
    for name, value in values.items():
        text = text.replace(name, value)
    return text
