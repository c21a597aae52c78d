"""What the last complete run left: each kind of managed thing is changed in turn, and reported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer
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
# `systemctl show --property=Id,LoadState,UnitFileState,ActiveState` of systemd 252.
SERVICE = "Id=nvidia-persistenced.service\nLoadState=loaded\nActiveState=active\nUnitFileState=enabled\n"
ALTERNATIVE = "auto\n/usr/local/cuda\n\n/usr/local/cuda-13.2\n132\n\n"
LOADED = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build  (dvs-builder@U22-I3-B01-1-1)\n"
)
WATCH = {
    "files": ["/etc/profile.d/cuda.sh", "/usr/local/bin/nvcc", "/etc/absent"],
    "alternatives": ["cuda"],
    "services": ["nvidia-persistenced"],
    "packages": ["libnccl2", "libcudnn9"],
    "environments": ["/opt/gpuhost/tensorflow"],
    "driver": True,
    "linker_cache": True,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
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
    write(f"lib/modules/{os.uname().release}/updates/dkms/nvidia.ko.xz", "")
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
    return tmp_path


class Systemd:
    """Answer as systemctl; `text` is what it prints."""

    def __init__(self) -> None:
        self.text, self.code = SERVICE, 0

    def __call__(self, argv: list[str], timeout: float) -> Answer:
        assert argv[:2] == ["systemctl", "show"]
        assert argv[-1] == "nvidia-persistenced.service"
        return Answer(self.code, self.text.encode(), b"")


@pytest.fixture
def systemd() -> Systemd:
    return Systemd()


@pytest.fixture
def changes(root: Path, systemd: Systemd) -> Callable[[], list[str]]:
    """Record the host as it is; return a function that reports what differs from then on."""
    parts = {"all": {"fingerprint": "f", "watch": WATCH}}
    assert applied.record(str(root / "var/lib/gpuhost"), parts, str(root), systemd)

    def read() -> list[str]:
        found = applied.differences("/var/lib/gpuhost", str(root), systemd)
        assert found["all"]["fingerprint"] == "f"
        return list(found["all"]["changed"])

    return read


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
CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is edited": (replace("etc/profile.d/cuda.sh", "PATH", "path"), "file /etc/profile.d/cuda.sh was"),
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
        replace("var/lib/dpkg/status", "Package: bash", "Package: libcudnn9"),
        "libcudnn9 was missing",
    ),
    "the alternative points elsewhere": (
        link("etc/alternatives/cuda", "/usr/local/cuda-13.0"),
        "value=/usr/local/cuda-13.0",
    ),
    "the alternative is set manually": (replace("var/lib/dpkg/alternatives/cuda", "auto", "manual"), "mode=manual"),
    "another module is loaded": (replace("proc/driver/nvidia/version", "595.71.05", "580.95.05"), "version=580.95.05"),
    "no module is loaded": (lambda root: (root / "proc/driver/nvidia/version").unlink(), "is missing"),
    "nouveau is loaded": (replace("proc/modules", "nvidia", "nouveau"), "nouveau was loaded=False, is loaded=True"),
    "the module is gone": (
        lambda root: (root / f"lib/modules/{os.uname().release}/updates/dkms/nvidia.ko.xz").unlink(),
        "modules=none",
    ),
    "a setting of the linker is newer": (later("etc/ld.so.conf.d/gpuhost-cuda.conf"), "is older than"),
    "the linker's cache is gone": (lambda root: (root / "etc/ld.so.cache").unlink(), "is missing"),
    "a package of the environment is gone": (
        lambda root: (root / ENVIRONMENT / "lib/python3.11/site-packages/numpy-2.1.0.dist-info").rename(root / "gone"),
        "environment /opt/gpuhost/tensorflow",
    ),
    "the environment's lock is another": (replace(f"{ENVIRONMENT}/gpuhost.lock", "2.21.0", "2.20.0"), "lock="),
    "the environment's Python is gone": (lambda root: (root / ENVIRONMENT / "bin/python").unlink(), "python=False"),
    "the environment's link dangles": (link("opt/gpuhost/tensorflow", "environments/none"), "is missing"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_reported_alone(name: str, root: Path, changes: Callable[[], list[str]]) -> None:
    assert changes() == []
    change, words = CHANGES[name]
    change(root)
    found = changes()
    assert len(found) == 1, found
    assert words in found[0]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (SERVICE.replace("=enabled", "=disabled"), 0, "enabled=disabled"),
        (SERVICE.replace("=active", "=inactive"), 0, "active=inactive"),
        ("Failed to connect to bus", 1, "unknown=Failed"),
    ],
)
def test_a_changed_service_is_reported(
    text: str, code: int, words: str, changes: Callable[[], list[str]], systemd: Systemd
) -> None:
    assert changes() == []
    systemd.text, systemd.code = text, code
    found = changes()
    assert len(found) == 1
    assert words in found[0]


def test_parts_that_are_about_to_be_changed_are_dropped(root: Path, systemd: Systemd) -> None:
    directory = str(root / "var/lib/gpuhost")
    parts = {name: {"fingerprint": name, "watch": {"files": ["/etc/absent"]}} for name in ("a", "b")}
    assert applied.record(directory, parts, str(root), systemd)
    assert not applied.record(directory, parts, str(root), systemd), "nothing changed"
    assert applied.clear(directory, ["a", "unknown"])
    assert list(applied.differences("/var/lib/gpuhost", str(root), systemd)) == ["b"]
    assert not applied.clear(directory, ["a"])
    assert applied.clear(directory)
    assert applied.differences("/var/lib/gpuhost", str(root), systemd) == {}


def test_a_host_without_a_record_has_no_parts(tmp_path: Path) -> None:
    assert applied.differences("/var/lib/gpuhost", str(tmp_path)) == {}
    assert not applied.clear(str(tmp_path))


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot watch mounts"):
        applied.observe(str(tmp_path), {"mounts": ["/"]})
