"""What preflight looks at: locks, half-done packages, .run installers, sources, links, processes, kernels, sizes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command, pcie, system
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes, runfile
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import (
    apt_lists,
    apt_sizes,
    apt_sources,
    openpgp,
    package_manager,
)

FIXTURES = Path(__file__).parents[3] / "fixtures"
CAPTURED = FIXTURES / "preflight"


def put(root: Path, path: str, content: str | bytes = "") -> Path:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


# Package manager ------------------------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys
with open(sys.argv[1], "r+b") as handle:
    fcntl.lockf(handle, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_and_its_holder_are_found_without_waiting(tmp_path: Path) -> None:
    put(tmp_path, package_manager.STATUS_FILE)
    path = put(tmp_path, "/var/lib/dpkg/lock-frontend")
    assert package_manager.read(str(tmp_path)) == {"name": "apt", "locks": [], "broken": [], "interrupted": False}
    argv = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        found = package_manager.read(str(tmp_path))
        holder.stdin.close()
    assert found is not None
    assert [(lock["path"], lock["pid"]) for lock in found["locks"]] == [("/var/lib/dpkg/lock-frontend", holder.pid)]
    assert found["locks"][0]["command"].startswith(sys.executable)


def test_asking_for_a_lock_takes_none(tmp_path: Path) -> None:
    put(tmp_path, package_manager.STATUS_FILE)
    path = put(tmp_path, "/var/lib/dpkg/lock")
    with path.open("r+b") as handle:
        package_manager.read(str(tmp_path))
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    ("file", "holder"),
    [("00:72:1640114", 103), ("00:72:1640115", 103), ("00:06:3", 0), ("fe:00:1640114", None)],
    ids=["dpkg's lock", "its frontend lock", "of no process", "on another device"],
)
def test_proc_locks_of_a_host_where_dpkg_runs(file: str, holder: int | None) -> None:
    assert package_manager.parse_locks((CAPTURED / "proc-locks.txt").read_text(), file) == holder


def test_packages_left_half_done() -> None:
    assert package_manager.broken((CAPTURED / "dpkg-status-half-configured.txt").read_bytes()) == [
        {"name": "gpuhost-test", "state": "half-configured"}
    ]
    assert package_manager.broken((FIXTURES / "probe/dpkg-status-debian-12.txt").read_bytes()) == []
    status = (
        b"Package: a\nStatus: install reinstreq half-installed\n\nPackage: b\nStatus: install ok triggers-pending\n"
    )
    assert package_manager.broken(status) == [{"name": "a", "state": "reinstreq half-installed"}]


def test_states_are_those_of_dpkg_query() -> None:
    lines = (FIXTURES / "probe/dpkg-query-states.txt").read_text().splitlines()
    unwell = {line.split("|")[0] for line in lines if line.split()[-1] in ("half-configured", "unpacked")}
    found = package_manager.broken((FIXTURES / "probe/dpkg-status-states.txt").read_bytes())
    assert {package["name"] for package in found} == {name.split(":")[0] for name in unwell}


def test_an_unfinished_journal_is_told_and_dpkgs_own_scratch_file_is_not(tmp_path: Path) -> None:
    put(tmp_path, package_manager.STATUS_FILE)
    put(tmp_path, "/var/lib/dpkg/updates/tmp.i")
    assert package_manager.read(str(tmp_path))["interrupted"] is False  # type: ignore[index]
    put(tmp_path, "/var/lib/dpkg/updates/0003")
    assert package_manager.read(str(tmp_path))["interrupted"] is True  # type: ignore[index]


def test_without_dpkg_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert package_manager.read(str(tmp_path)) is None


# .run installers ------------------------------------------------------------------------------------------------


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
def test_a_driver_of_a_run_file(tmp_path: Path, there: dict[str, str], packaged: str, traces: list[str] | None) -> None:
    put(tmp_path, "/var/lib/dpkg/info/nvidia.list", "/.\n" + packaged)
    for path, text in there.items():
        put(tmp_path, path, text)
    found = runfile.read(str(tmp_path))["driver"]
    assert (found and found["traces"]) == traces


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("nvidia-installer command line:\n    ./nvidia-installer\nDriver Version: 550.54.14\n", "550.54.14"),
        ("Unpacking NVIDIA-Linux-x86_64-470.256.02.run\n", "470.256.02"),
        ("nvidia-installer log file\n", None),
    ],
)
def test_its_version_is_in_the_log(tmp_path: Path, line: str, version: str | None) -> None:
    put(tmp_path, "/usr/bin/nvidia-uninstall")
    put(tmp_path, runfile.DRIVER_LOG, line)
    assert runfile.read(str(tmp_path))["driver"]["version"] == version


def test_toolkits_of_run_files(tmp_path: Path) -> None:
    put(tmp_path, "/usr/local/cuda-12.4/bin/cuda-uninstaller")
    put(tmp_path, "/usr/local/cuda-13.2/bin/nvcc")
    assert runfile.read(str(tmp_path))["toolkits"] == [
        {"version": "12.4", "uninstaller": "/usr/local/cuda-12.4/bin/cuda-uninstaller"}
    ]


# Package sources ------------------------------------------------------------------------------------------------

NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("cuda.list", f"deb {NVIDIA} /\n# deb {NVIDIA} /\n", [(NVIDIA, "/", None)]),
        ("k.list", f"deb [arch=amd64 signed-by=/k.gpg] {NVIDIA} /\n", [(NVIDIA, "/", "/k.gpg")]),
        ("s.list", f"deb-src {NVIDIA} /\n", []),
        ("d.list", "deb http://deb.debian.org/debian bookworm main\n", []),
        ("a.sources", f"Types: deb\nURIs: {NVIDIA}\nSuites: /\nSigned-By: /k.asc\n", [(NVIDIA, "/", "/k.asc")]),
        ("o.sources", f"Enabled: no\nTypes: deb\nURIs: {NVIDIA}\nSuites: /\n", []),
        (
            "p.sources",
            "Types: deb\nURIs: https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/\nSuites: noble\n"
            "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBA==\n",
            [("https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/", "noble", "a key within the file")],
        ),
        ("x.save", f"deb {NVIDIA} /\n", []),
    ],
    ids=[
        "one line",
        "signed-by",
        "sources only",
        "Debian's",
        "deb822",
        "not enabled",
        "PPA with key",
        "not read by apt",
    ],
)
def test_sources_of_nvidias_software(tmp_path: Path, name: str, text: str, entries: list[tuple[Any, ...]]) -> None:
    path = f"/etc/apt/sources.list.d/{name}"
    put(tmp_path, path, text)
    found = apt_sources.read(str(tmp_path), None)["entries"]
    assert [(e["uri"], e["suite"], e["signed_by"]) for e in found] == entries
    assert {e["file"] for e in found} <= {path}


def test_a_mirror_counts_when_it_is_the_hosts_repository(tmp_path: Path) -> None:
    put(tmp_path, "/etc/apt/sources.list", "deb http://mirror.lab/cuda/debian12/x86_64 /\n")
    assert apt_sources.read(str(tmp_path), None)["entries"] == []
    assert len(apt_sources.read(str(tmp_path), "http://mirror.lab/cuda/debian12/x86_64/")["entries"]) == 1


@pytest.mark.parametrize(
    ("text", "mixed"),
    [
        (f"deb {NVIDIA} /\n# deb http://deb.debian.org/debian bookworm main\n", False),
        (f"deb {NVIDIA} /\ndeb http://deb.debian.org/debian bookworm main\n", True),
        ("deb http://deb.debian.org/debian bookworm main\n", False),
    ],
    ids=["alone", "with Debian's", "Debian's alone"],
)
def test_a_file_in_which_other_repositories_stand_too_is_named(tmp_path: Path, text: str, mixed: bool) -> None:
    put(tmp_path, "/etc/apt/sources.list", text)
    put(tmp_path, "/etc/apt/sources.list.d/debian.list", "deb http://deb.debian.org/debian bookworm contrib\n")
    assert apt_sources.read(str(tmp_path), None)["mixed"] == (["/etc/apt/sources.list"] if mixed else [])


def test_keys_that_are_not_nvidias_are_left_out_and_broken_ones_too(tmp_path: Path) -> None:
    debian = (FIXTURES / "openpgp/debian-archive-bullseye-stable.gpg").read_bytes()
    put(tmp_path, "/etc/apt/trusted.gpg.d/debian.gpg", debian)
    put(tmp_path, "/etc/apt/trusted.gpg.d/broken.gpg", b"nonsense")
    assert apt_sources.read(str(tmp_path), None)["keys"] == {}
    uid = b"cudatools <cudatools@nvidia.com>"
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", debian + bytes([0xB4, len(uid)]) + uid)
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.asc", openpgp.armour(debian + bytes([0xB4, len(uid)]) + uid))
    found = apt_sources.read(str(tmp_path), None)
    there = openpgp.public_keys(debian)
    files = [f"/etc/apt/trusted.gpg.d/cuda.{form}" for form in ("asc", "gpg")]
    assert found["keys"] == dict.fromkeys(files, [key.fingerprint for key in there][-1:])
    assert found["mixed"] == (files if len(there) > 1 else [])
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", there[0].raw + bytes([0xB4, len(uid)]) + uid)
    (tmp_path / "etc/apt/trusted.gpg.d/cuda.asc").unlink()
    assert apt_sources.read(str(tmp_path), None)["mixed"] == [], "the key is alone in its file"
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", debian + there[0].raw + bytes([0xB4, len(uid)]) + uid)
    assert apt_sources.read(str(tmp_path), None)["mixed"] == ["/etc/apt/trusted.gpg.d/cuda.gpg"]


# PCIe -----------------------------------------------------------------------------------------------------------


def hex_dump(path: Path) -> bytes:
    """Configuration space from `lspci -xxxx`; lines of zeros are left out of the file."""
    config = bytearray(4096)
    for line in path.read_text().splitlines()[1:]:
        offset, _, data = line.partition(": ")
        values = bytes.fromhex(data)
        config[int(offset, 16) : int(offset, 16) + len(values)] = values
    return bytes(config)


def test_acs_is_read_as_lspci_reads_it() -> None:
    text = (CAPTURED / "plx-downstream-port-lspci.txt").read_text()
    flags = re.search(r"ACSCtl:\t(.*)", text).group(1).split()  # type: ignore[union-attr]
    assert pcie.acs_controls(hex_dump(CAPTURED / "plx-downstream-port.txt")) == [f[:-1] for f in flags if f[-1] == "+"]


def test_a_bridge_without_acs_and_one_that_may_not_be_read(tmp_path: Path) -> None:
    assert pcie.acs_controls(bytes(4096)) == []
    assert pcie.acs_controls(b"\1\0\1\x10" * 1024) == []  # a list that leads round in a circle
    put(tmp_path, "/sys/bus/pci/devices/0000:00:01.0/config", bytes(64))
    assert pcie._acs(str(tmp_path), "0000:00:01.0") is None


def test_links_groups_and_bridges(tmp_path: Path) -> None:
    real = "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/0000:05:00.0"
    for name, text in {
        "current_link_speed": "2.5 GT/s PCIe",
        "max_link_speed": "16.0 GT/s PCIe",
        "current_link_width": "8",
        "max_link_width": "16",
    }.items():
        put(tmp_path, f"{real}/{name}", text + "\n")
    put(tmp_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/max_link_width", "8\n")
    put(tmp_path, "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/current_link_width", "255\n")
    devices = tmp_path / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    (devices / "0000:05:00.0").symlink_to("../../.." + real.removeprefix("/sys"))
    (devices / "0000:02:08.0").symlink_to("../../../devices/pci0000:00/0000:00:01.0/0000:02:08.0")
    put(
        tmp_path,
        "/sys/devices/pci0000:00/0000:00:01.0/0000:02:08.0/config",
        hex_dump(CAPTURED / "plx-downstream-port.txt"),
    )
    (tmp_path / real.lstrip("/") / "iommu_group").symlink_to("../../../../../kernel/iommu_groups/7")
    put(tmp_path, "/sys/kernel/iommu_groups/7/type", "DMA-FQ\n")
    put(tmp_path, "/proc/cmdline", "BOOT_IMAGE=/vmlinuz ro quiet intel_iommu=on iommu=pt\n")
    found = pcie.read(str(tmp_path), ["0000:05:00.0"])
    assert found == {
        "gpus": {
            "0000:05:00.0": {
                "link": {"speed": 2.5, "max_speed": 16.0, "width": 8, "max_width": 16},
                "slot": {"speed": None, "max_speed": None, "width": None, "max_width": 8},
                "iommu_group": "7",
                "iommu_type": "DMA-FQ",
                "bridges": ["0000:02:08.0", "0000:00:01.0"],
            }
        },
        "acs": {"0000:00:01.0": None, "0000:02:08.0": ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]},
        "kernel_options": ["intel_iommu=on", "iommu=pt"],
    }
    json.dumps(found)


# Processes ------------------------------------------------------------------------------------------------------


def test_users_of_the_gpus_by_nvidia_smi_and_by_open_devices(tmp_path: Path) -> None:
    put(tmp_path, "/dev/nvidiactl")
    put(tmp_path, "/proc/41/comm", "nvidia-persistenced"[:15] + "\n")
    put(tmp_path, "/proc/42/cmdline", "python3\0train.py\0")
    put(tmp_path, "/proc/42/comm", "python3\n")
    for pid, device in {"41": "/dev/nvidia0", "42": "/dev/nvidia-uvm", "43": "/dev/null"}.items():
        folder = tmp_path / "proc" / pid / "fd"
        folder.mkdir(parents=True)
        (folder / "3").symlink_to(device)
    answer = command.Answer(0, b"42, python3, 6144\n42, python3, 512\n77, /opt/a, b/prog, [N/A]\n", b"")
    found = gpu_processes.read(str(tmp_path), {"path": "/usr/bin/nvidia-smi", "exit_code": 0}, lambda *_: answer)
    assert [(p["pid"], p["name"], p["program"], p["computes"], p["devices"]) for p in found] == [
        (41, "nvidia-persiste", "nvidia-persiste", False, ["nvidia0"]),
        (42, "python3 train.py", "python3", True, ["nvidia-uvm"]),
        (77, "/opt/a,b/prog", "prog", True, []),
    ]


def test_without_a_working_driver_nobody_uses_the_gpus(tmp_path: Path) -> None:
    def refuse(*_: object) -> command.Answer:
        raise AssertionError("asked")

    assert gpu_processes.read(str(tmp_path), None, refuse) == []
    assert gpu_processes.read(str(tmp_path), {"path": "x", "exit_code": 9}, refuse) == []


def test_an_old_module_under_new_libraries_still_has_its_users(tmp_path: Path) -> None:
    """After an upgrade nvidia-smi refuses with 18, and the program that computes has not noticed."""
    put(tmp_path, "/dev/nvidia-uvm")
    put(tmp_path, "/proc/42/comm", "python3\n")
    (tmp_path / "proc/42/fd").mkdir()
    (tmp_path / "proc/42/fd/5").symlink_to("/dev/nvidia-uvm")

    def refuse(*_: object) -> command.Answer:
        raise AssertionError("asked")

    (found,) = gpu_processes.read(str(tmp_path), {"path": "nvidia-smi", "exit_code": 18}, refuse)
    assert (found["pid"], found["program"], found["computes"]) == (42, "python3", False)
    assert gpu_processes.is_job(found)


def test_a_driver_that_fails_to_answer_is_no_idle_gpu(tmp_path: Path) -> None:
    failed = command.Answer(15, b"GPU is lost\n", b"")
    with pytest.raises(ValueError, match="ended 15: GPU is lost"):
        gpu_processes.read(str(tmp_path), {"path": "nvidia-smi", "exit_code": 0}, lambda *_: failed)


# Kernel, keys, disk ---------------------------------------------------------------------------------------------

ENTRY = "gnulinux-advanced-1b2c>gnulinux-6.1.0-50-amd64-advanced-1b2c"


@pytest.mark.parametrize(
    ("default", "environment", "expected"),
    [
        (None, None, "6.1.0-56-amd64"),
        ("0", None, "6.1.0-56-amd64"),
        (f'"{ENTRY}"', None, "6.1.0-50-amd64"),
        ("saved", f"saved_entry={ENTRY}\n", "6.1.0-50-amd64"),
        ("saved", None, "6.1.0-56-amd64"),
        ("0", f"next_entry={ENTRY}\n", "6.1.0-50-amd64"),
        ("1>2", None, None),
        ('"Windows Boot Manager"', None, None),
    ],
    ids=["no GRUB files", "first", "named", "saved", "saved, never set", "once", "by number", "another system"],
)
def test_the_kernel_that_starts_next(
    tmp_path: Path, default: str | None, environment: str | None, expected: Any
) -> None:
    for release in ("6.1.0-9-amd64", "6.1.0-50-amd64", "6.1.0-56-amd64"):
        put(tmp_path, f"/boot/vmlinuz-{release}")
    if default:
        put(tmp_path, system.GRUB_DEFAULTS, f"# GRUB_DEFAULT=9\nGRUB_TIMEOUT=5\nGRUB_DEFAULT={default}\n")
    if environment:
        put(tmp_path, system.GRUB_ENVIRONMENT, "# GRUB Environment Block\n" + environment)
    assert system.kernel(str(tmp_path), "6.1.0-9-amd64")["next_boot"] == expected


def test_packages_that_bring_headers_are_those_of_the_newest_version(tmp_path: Path) -> None:
    archive = (CAPTURED / "linux-headers-debian-12.txt").read_text()
    put(tmp_path, "/var/lib/apt/lists/deb.debian.org_debian_dists_bookworm_main_binary-amd64_Packages", archive)
    wanted = ["6.1.0-56-amd64", "6.1.0-50-amd64", "6.18.44"]
    assert apt_lists.header_packages(str(tmp_path), wanted, command.run) == {
        "6.1.0-56-amd64": ["linux-headers-6.1.0-56-amd64", "linux-headers-amd64"],
        "6.1.0-50-amd64": [],
        "6.18.44": [],
    }
    assert apt_lists.header_packages(str(tmp_path / "nothing"), wanted, command.run) is None


@pytest.mark.parametrize(
    ("enrolled", "expected"),
    [(b"\x06\0\0\0....certificate....", True), (b"\x06\0\0\0....", False), (None, None)],
    ids=["enrolled", "not enrolled", "not readable"],
)
def test_keys_for_signing_modules(tmp_path: Path, enrolled: bytes | None, expected: bool | None) -> None:
    assert system.secure_boot_keys(str(tmp_path)) == []
    put(tmp_path, "/var/lib/dkms/mok.pub", b"certificate")
    if enrolled is not None:
        put(tmp_path, system.ENROLLED_KEYS, enrolled)
    assert system.secure_boot_keys(str(tmp_path)) == [{"path": "/var/lib/dkms/mok.pub", "enrolled": expected}]


def test_mounts_are_those_of_this_machine() -> None:
    for directory, space in system.disk("/").items():
        path = directory
        while not os.path.exists(path):
            path = os.path.dirname(path)
        assert os.stat(space["mount"]).st_dev == os.stat(path).st_dev
        assert path.startswith(space["mount"])


# Sizes ----------------------------------------------------------------------------------------------------------

PACKAGES = b"""\
Package: cuda-toolkit-13-2
Version: 13.2.1-1
Installed-Size: 1
Depends: cuda-nvcc-13-2 (>= 13.2.75), cuda-libraries-13-2 | cuda-libraries, libc6 (>= 2.17)
Size: 10240

Package: cuda-nvcc-13-2
Version: 13.2.75-1
Installed-Size: 100
Size: 20480

Package: cuda-nvcc-13-2
Version: 13.2.80-1
Installed-Size: 200
Depends: cuda-toolkit-13-2
Size: 40960

Package: cuda-libraries-13-2
Version: 13.2.1-1
Installed-Size: 3000
Depends: cuda-nvcc-13-2 (= 13.2.75-1)
Size: 1048576
"""


DRIVER_PACKAGES = b"""\
Package: nvidia-driver-cuda
Version: 595.71.05-1
Installed-Size: 1
Depends: python3, libcuda1 (= 595.71.05-1), libnvidia-ml1 (= 595.71.05-1), libgcc-s1
Size: 1024

Package: libcuda1
Version: 595.71.05-1
Installed-Size: 1
Depends: libnvidia-nvvm4 (= 595.71.05-1)
Size: 1024

Package: libnvidia-ml1
Version: 595.71.05-1
Installed-Size: 1
Size: 1024

Package: libnvidia-nvvm4
Version: 595.71.05-1
Installed-Size: 1
Size: 1024
"""


def test_a_drivers_parts_are_named_though_nobody_asked_for_their_versions() -> None:
    found = apt_sizes.sizes(DRIVER_PACKAGES, {"nvidia-driver-cuda": ["595.71.05-1"]}, "libcuda1|libnvidia-.*")
    parts = ["libcuda1", "libnvidia-ml1", "libnvidia-nvvm4"]
    assert found == {"nvidia-driver-cuda": {"595.71.05-1": [4, 4, parts]}}


def test_sizes_follow_dependencies_once_each() -> None:
    offered = {"cuda-toolkit-13-2": ["13.2.1-1"], "cuda-libraries-13-2": ["13.2.1-1"], "libnccl2": ["2.1-1"]}
    assert apt_sizes.sizes(PACKAGES, offered, "(?!)") == {
        # the toolkit, the newest nvcc, the libraries, and the very nvcc that those ask for
        "cuda-toolkit-13-2": {"13.2.1-1": [10 + 40 + 1024 + 20, 1 + 200 + 3000 + 100, ["cuda-libraries-13-2"]]},
        "cuda-libraries-13-2": {"13.2.1-1": [1024 + 20, 3000 + 100, []]},
    }
