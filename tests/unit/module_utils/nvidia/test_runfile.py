"""Drivers and toolkits that `.run` installers installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import runfile

from tests.unit.module_utils.host_files import put


@pytest.mark.parametrize(
    ("there", "packaged", "traces"),
    [
        ({}, "", None),
        ({"/usr/bin/nvidia-uninstall": ""}, "", ["/usr/bin/nvidia-uninstall"]),
        ({"/usr/bin/nvidia-uninstall": ""}, "/usr/bin/nvidia-uninstall\n", None),
        ({"/var/log/nvidia-installer.log": ""}, "", None),
        (
            {"/var/log/nvidia-installer.log": "", "/usr/lib/x86_64-linux-gnu/libcuda.so.1": ""},
            "",
            ["/var/log/nvidia-installer.log", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"],
        ),
        (
            {"/var/log/nvidia-installer.log": "", "/usr/lib/x86_64-linux-gnu/libcuda.so.1": ""},
            "/lib/x86_64-linux-gnu/libcuda.so.1\n",
            None,
        ),
    ],
    ids=["nothing", "uninstaller", "of a package", "old log", "log and library", "library of a package, merged /usr"],
)
def test_driver_of_a_run_file(tmp_path: Path, there: dict[str, str], packaged: str, traces: list[str] | None) -> None:
    put(tmp_path, "/var/lib/dpkg/info/nvidia.list", "/.\n" + packaged)
    for path, text in there.items():
        put(tmp_path, path, text)
    found = runfile.read(str(tmp_path)).driver
    assert (found and list(found.traces)) == traces


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("nvidia-installer command line:\n    ./nvidia-installer\nDriver Version: 550.54.14\n", "550.54.14"),
        ("Unpacking NVIDIA-Linux-x86_64-470.256.02.run\n", "470.256.02"),
        ("nvidia-installer log file\n", None),
    ],
)
def test_version_of_the_driver_is_in_the_log(tmp_path: Path, line: str, version: str | None) -> None:
    put(tmp_path, "/usr/bin/nvidia-uninstall")
    put(tmp_path, runfile.DRIVER_LOG, line)
    found = runfile.read(str(tmp_path)).driver
    assert found is not None
    assert found.version == version


def test_toolkits_of_run_files(tmp_path: Path) -> None:
    put(tmp_path, "/usr/local/cuda-12.4/bin/cuda-uninstaller")
    put(tmp_path, "/usr/local/cuda-13.2/bin/nvcc")
    assert to_json(runfile.read(str(tmp_path)).toolkits) == [
        {"version": "12.4", "uninstaller": "/usr/local/cuda-12.4/bin/cuda-uninstaller"}
    ]


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-uninstall", "/usr/local/bin/nvidia-uninstall"])
def test_uninstaller_of_a_driver(tmp_path: Path, path: str) -> None:
    put(tmp_path, path)
    assert to_json(runfile.read(str(tmp_path))) == {
        "driver": {"uninstaller": path, "traces": [path], "version": None},
        "toolkits": [],
    }


@pytest.mark.parametrize(
    ("machine", "library"),
    [
        ("x86_64", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"),
        ("aarch64", "/usr/lib/aarch64-linux-gnu/libcuda.so.1"),
        ("aarch64", "/usr/lib64/libcuda.so.1"),
    ],
)
def test_library_counts_beside_a_log_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, library: str
) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "host", "6.8.0", "#1", machine)))
    put(tmp_path, library)
    assert runfile.read(str(tmp_path)).driver is None
    put(tmp_path, runfile.DRIVER_LOG, "NVIDIA-Linux-aarch64-470.256.run\nDriver Version: 550.54.14\n")
    assert to_json(runfile.read(str(tmp_path)).driver) == {
        "uninstaller": None,
        "traces": [runfile.DRIVER_LOG, library],
        "version": "470.256",
    }


@pytest.mark.parametrize(
    ("name", "text", "foreign"),
    [
        ("cuda.list", "/.\n/usr/local/cuda-12.4/bin/cuda-uninstaller\n", False),
        ("cuda.list", "/usr/local/cuda-12.4/bin/cuda-uninstaller\n", False),
        ("cuda.list", "/local/cuda-12.4/bin/cuda-uninstaller\n", False),
        ("cuda.list", "/opt/usr/local/cuda-12.4/bin/cuda-uninstaller\n", True),
        ("cuda.list", "/usr/local/cuda-12.4/bin/cuda-uninstaller.1\n", True),
        ("cuda.md5sums", "/.\n/usr/local/cuda-12.4/bin/cuda-uninstaller\n", True),
        ("cuda.list", "", True),
    ],
    ids=["of a package", "first line", "merged /usr", "another path", "another name", "another file", "empty"],
)
def test_toolkit_of_a_package_is_none_of_a_run_file(tmp_path: Path, name: str, text: str, foreign: bool) -> None:
    put(tmp_path, "/usr/local/cuda-12.4/bin/cuda-uninstaller")
    put(tmp_path, "/usr/local/cuda-old/bin/cuda-uninstaller")
    put(tmp_path, f"/var/lib/dpkg/info/{name}", text)
    put(tmp_path, "/var/lib/dpkg/info/base-files.list", "/.\n/etc\n")
    assert [found.version for found in runfile.read(str(tmp_path)).toolkits] == (["12.4"] if foreign else [])
