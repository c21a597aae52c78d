"""Puts the source of the simulated kernel modules into the driver's packages, as DKMS expects it.

For hosts with a kernel of their own (virtual machines): what their packages build there can be loaded and unloaded.
"""

import dataclasses
from pathlib import Path

from tests.doubles.nvidia_repository.deb import Package

SOURCE = Path(__file__).resolve().parents[1] / "simulated_driver" / "kernel_module"
FOLDER = "kernel-modules"
NOTE = "/usr/share/gpuhost-simulated/nvidia-kernel-modules.txt"
# The simulated nvidia-smi, which finds this, asks the kernel which driver is loaded.
LOADABLE = "/usr/share/gpuhost-simulated/kernel-modules-are-loadable"
# What /proc/driver/nvidia/version says after "NVIDIA UNIX", and what modinfo says: as captured from each flavour.
FLAVOURS = {
    "open": ("Open Kernel Module for x86_64  {}  Release Build  (simulated@gpuhost)", "Dual MIT/GPL"),
    "proprietary": ("x86_64 Kernel Module  {}", "NVIDIA"),
}
# As the scripts that dh_dkms writes: build for the kernels that are there, and take all builds away again.
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
    """The package with the source of its modules; one that holds no kernel modules stays as it is."""
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
