"""A host with one thing of each kind that is watched, and a change of each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied

STATUS = """Package: libnccl2
Status: hold ok installed
Architecture: amd64
Version: 2.32.3-1+cuda13.2

Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b8
"""
LIBCUDNN = "Package: libcudnn9\nStatus: install ok installed\nArchitecture: amd64\nVersion: 9.28\n"
LISTING = "/.\n/usr\n/usr/lib\n/usr/lib/libnccl.so.2.32.3\n/usr/lib/libnccl.so.2\n"
# The kernel that GRUB starts next: the newest one.
NEXT = "9999.1.0-1-amd64"
# `systemctl show --property=Id,LoadState,UnitFileState,ActiveState` of systemd 252.
SERVICE = (
    "Id=nvidia-fabricmanager.service\nLoadState=not-found\nActiveState=inactive\nUnitFileState=\n\n"
    "Id=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
)
ALTERNATIVE = "auto\n/usr/local/cuda\n\n/usr/local/cuda-13.2\n132\n\n"
LOADED = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build  (dvs-builder@U22-I3-B01-1-1)\n"
)
# As the package nvidia-persistenced enables its service, by deb-systemd-helper.
WANTS = "etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service"
WATCH = {
    "files": ["/etc/profile.d/cuda.sh", "/usr/local/bin/nvcc", "/etc/absent"],
    "alternatives": ["cuda"],
    "services": ["nvidia-fabricmanager", "nvidia-persistenced"],
    "packages": ["libnccl2", "libcudnn9", "bash"],
    "exact_packages": ["libnccl2"],
    "environments": ["/opt/gpuhost/tensorflow"],
    "trees": ["/opt/gpuhost/uv"],
    "driver": True,
    "modules": True,
    "blacklists": True,
    "library_path": True,
    "linker_cache": True,
}


def build(tmp_path: Path) -> Path:
    """Create the host below a directory."""

    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("etc/profile.d/cuda.sh", "PATH=$PATH:/usr/local/cuda/bin\n")
    write("usr/local/lib/gpuhost/cuda-command", "#!/bin/sh\n")
    write("var/lib/dpkg/status", STATUS)
    write("var/lib/dpkg/alternatives/cuda", ALTERNATIVE)
    write("proc/driver/nvidia/version", LOADED)
    write("proc/modules", "nvidia 1 0 - Live 0x0\n")
    for kernel in (os.uname().release, NEXT):
        for module in ("nvidia.ko.xz", "nvidia-uvm.ko.xz", "nvidia-drm.ko"):
            write(f"lib/modules/{kernel}/updates/dkms/{module}", "module")
        write(f"lib/modules/{kernel}/kernel/drivers/video/nvidiafb.ko", "")
        write(f"boot/vmlinuz-{kernel}", "")
    write("var/lib/dpkg/info/libnccl2.list", LISTING)
    write("usr/lib/libnccl.so.2.32.3", "library")
    (tmp_path / "usr/lib/libnccl.so.2").symlink_to("libnccl.so.2.32.3")
    write("opt/gpuhost/uv/bin/uv", "uv")
    write("etc/ld.so.conf.d/gpuhost-cuda.conf", "/usr/local/cuda/lib64\n")
    write("etc/ld.so.cache", "")
    environment = "opt/gpuhost/environments/tensorflow-2.21.0-py3.11-0a1b2c3d"
    write(f"{environment}/gpuhost.lock", "tensorflow==2.21.0\n")
    write(f"{environment}/bin/python", "")
    for package in ("tensorflow-2.21.0", "numpy-2.1.0"):
        write(f"{environment}/lib/python3.11/site-packages/{package}.dist-info/METADATA", "")
    (tmp_path / "opt/gpuhost/tensorflow").symlink_to(environment.removeprefix("opt/gpuhost/"))
    (tmp_path / "usr/local/bin").mkdir()
    (tmp_path / "usr/local/bin/nvcc").symlink_to("/usr/local/lib/gpuhost/cuda-command")
    (tmp_path / "etc/alternatives").mkdir()
    (tmp_path / "etc/alternatives/cuda").symlink_to("/usr/local/cuda-13.2")
    (tmp_path / "usr/local/cuda").symlink_to("/etc/alternatives/cuda")
    (tmp_path / WANTS).parent.mkdir(parents=True)
    (tmp_path / WANTS).symlink_to("/lib/systemd/system/nvidia-persistenced.service")
    return tmp_path


class Systemd:
    """Answer as systemctl; `text` is what it prints."""

    def __init__(self) -> None:
        self.text, self.code = SERVICE, 0

    def __call__(self, argv: list[str], timeout: float) -> Answer:
        properties = "--property=Id,LoadState,UnitFileState,ActiveState"
        assert argv[:3] == ["systemctl", "show", properties]
        assert argv[3:] == ["nvidia-fabricmanager.service", "nvidia-persistenced.service"]
        assert timeout == 60
        return Answer(self.code, self.text.encode(), b"")


def replace(path: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / path).read_text()
        assert old in text
        (root / path).write_text(text.replace(old, new))

    return change


def link(path: str, target: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / path).unlink()
        (root / path).symlink_to(target)

    return change


def later(path: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        made = os.stat(root / "etc/ld.so.cache").st_mtime
        os.utime(root / path, (made + 10, made + 10))

    return change


ENVIRONMENT = "opt/gpuhost/environments/tensorflow-2.21.0-py3.11-0a1b2c3d"
KERNELS = (os.uname().release, NEXT)
CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is edited": (
        replace("etc/profile.d/cuda.sh", "PATH", "path"),
        "file /etc/profile.d/cuda.sh has another content",
    ),
    "a file is deleted": (lambda root: (root / "etc/profile.d/cuda.sh").unlink(), "is missing"),
    "a file gets another mode": (lambda root: (root / "etc/profile.d/cuda.sh").chmod(0o600), "mode=0600"),
    "a file appears": (lambda root: (root / "etc/absent").write_text("x"), "file /etc/absent was missing"),
    "a link points elsewhere": (link("usr/local/bin/nvcc", "/usr/bin/nvcc"), "link=/usr/bin/nvcc"),
    "a link becomes a file": (
        lambda root: ((root / "usr/local/bin/nvcc").unlink(), (root / "usr/local/bin/nvcc").write_text("")),
        "file /usr/local/bin/nvcc",
    ),
    "a hold is removed": (replace("var/lib/dpkg/status", "hold ok", "install ok"), "package libnccl2 was held=True"),
    "a package is downgraded": (replace("var/lib/dpkg/status", "2.32.3-1+cuda13.2", "2.29.7-1"), "version=2.29.7-1"),
    "a package is half installed": (
        replace("var/lib/dpkg/status", "hold ok installed", "hold ok unpacked"),
        "unpacked",
    ),
    "a package is installed": (
        lambda root: (root / "var/lib/dpkg/status").write_text(STATUS + "\n" + LIBCUDNN),
        "libcudnn9 was missing",
    ),
    "the alternative points elsewhere": (
        link("etc/alternatives/cuda", "/usr/local/cuda-13.0"),
        "value=/usr/local/cuda-13.0",
    ),
    "the alternative is set manually": (replace("var/lib/dpkg/alternatives/cuda", "auto", "manual"), "mode=manual"),
    "the link of a service points elsewhere": (
        link(WANTS, "/bin/true"),
        "link that enables nvidia-persistenced was /lib/systemd/system/nvidia-persistenced.service, is /bin/true",
    ),
    "the link of a service is gone": (
        lambda root: (root / WANTS).unlink(),
        "nvidia-persistenced was /lib/systemd/system/nvidia-persistenced.service, is missing",
    ),
    "another module is loaded": (replace("proc/driver/nvidia/version", "595.71.05", "580.95.05"), "version=580.95.05"),
    "no module is loaded": (lambda root: (root / "proc/driver/nvidia/version").unlink(), "is missing"),
    "nouveau is loaded": (replace("proc/modules", "nvidia", "nouveau"), "nouveau was loaded=False, is loaded=True"),
    "a module of the running kernel is gone": (
        lambda root: (root / f"lib/modules/{os.uname().release}/updates/dkms/nvidia-uvm.ko.xz").unlink(),
        f"NVIDIA modules of kernel {os.uname().release} was nvidia-uvm.ko.xz=6 bytes",
    ),
    "a module of the next-boot kernel is truncated": (
        lambda root: (root / f"lib/modules/{NEXT}/updates/dkms/nvidia.ko.xz").write_text(""),
        f"NVIDIA modules of kernel {NEXT} was nvidia.ko.xz=6 bytes",
    ),
    "all modules of a kernel are gone": (
        lambda root: shutil.rmtree(root / f"lib/modules/{NEXT}/updates"),
        "modules=none",
    ),
    "a library is deleted": (
        lambda root: (root / "usr/lib/libnccl.so.2.32.3").unlink(),
        "files of libnccl2=2.32.3-1+cuda13.2: /usr/lib/libnccl.so.2.32.3 is missing",
    ),
    "a library's link points elsewhere": (link("usr/lib/libnccl.so.2", "/x"), "libnccl.so.2 pointed to"),
    "uv is deleted": (lambda root: shutil.rmtree(root / "opt/gpuhost/uv"), "/opt/gpuhost/uv is missing"),
    "/usr/local/cuda points elsewhere": (
        link("usr/local/cuda", "/usr/local/cuda-12.9"),
        "points=/usr/local/cuda-12.9",
    ),
    "/usr/local/cuda is deleted": (lambda root: (root / "usr/local/cuda").unlink(), "points=missing"),
    "/usr/local/cuda is a directory": (
        lambda root: ((root / "usr/local/cuda").unlink(), (root / "usr/local/cuda").mkdir()),
        "points=not a link",
    ),
    "LD_LIBRARY_PATH is set for everybody": (
        lambda root: (root / "etc/environment").write_text("LD_LIBRARY_PATH=/x\n"),
        "LD_LIBRARY_PATH in /etc/environment was missing, is LD_LIBRARY_PATH=/x",
    ),
    "the module is blacklisted": (
        lambda root: (
            (root / "etc/modprobe.d").mkdir(),
            (root / "etc/modprobe.d/a.conf").write_text("blacklist nvidia"),
        ),
        "blacklist in /etc/modprobe.d/a.conf was missing, is blacklist nvidia",
    ),
    "the module is blacklisted for the kernel": (
        lambda root: (root / "proc/cmdline").write_text("ro modprobe.blacklist=nvidia"),
        "blacklist in /proc/cmdline",
    ),
    "a setting of the linker is newer": (later("etc/ld.so.conf.d/gpuhost-cuda.conf"), "is older than"),
    "the linker's cache is gone": (lambda root: (root / "etc/ld.so.cache").unlink(), "is missing"),
    "a package of the environment is gone": (
        lambda root: (root / ENVIRONMENT / "lib/python3.11/site-packages/numpy-2.1.0.dist-info").rename(root / "gone"),
        "numpy-2.1.0.dist-info is missing",
    ),
    "the environment's lock is another": (
        replace(f"{ENVIRONMENT}/gpuhost.lock", "2.21.0", "2.20.10"),
        "gpuhost.lock size was 19, is 20",
    ),
    "the environment's Python is gone": (
        lambda root: (root / ENVIRONMENT / "bin/python").unlink(),
        "bin/python is missing",
    ),
    "the environment's link dangles": (link("opt/gpuhost/tensorflow", "environments/none"), "is missing"),
}


def differences(*arguments: Any, **options: Any) -> Any:
    """Return what differs from the record, as the probe prints it."""
    return to_json(applied.differences(*arguments, **options))
