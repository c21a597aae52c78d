"""The simulated Fabric Manager starts, ends and writes what public logs of the genuine one show, below a directory."""

from __future__ import annotations

import configparser
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.doubles import simulated_driver
from tests.doubles.nvidia_repository.contents import product_table

FILES = simulated_driver.NVIDIA_SMI.parent
VERSION, OTHER = "595.71.05", "590.48.01"
PROGRAM, START = "usr/bin/nv-fabricmanager", "usr/bin/nvidia-fabricmanager-start.sh"
CONFIG = "usr/share/nvidia/nvswitch/fabricmanager.cfg"
PID_FILE, LOG = "run/nvidia-fabricmanager/nv-fabricmanager.pid", "var/log/fabricmanager.log"
JOINED = "run/gpuhost-simulated-fabric"
LOADED = "proc/driver/nvidia/version"
# Public log of a host whose driver was upgraded without a reboot, 595.71.05 beside 590.48.01.
MISMATCH = (
    "fabric manager NVIDIA GPU driver interface version 595.71.05 don't match with driver version 590.48.01. Please "
    "update with matching NVIDIA driver package."
)


class Host:
    """A root directory with GPUs, NVSwitches, the double's files, and the simulated nvidia-smi in its path."""

    def __init__(self, root: Path, switches: int = 4) -> None:
        self.root = root
        self.write("usr/share/gpuhost-simulated/nvidia-smi.json", product_table(VERSION, "13.2"))
        for path, text in packaged()["text"].items():
            self.write(path[1:], text.replace("@driver@", VERSION))
        for path, source in packaged()["copies"].items():
            self.write(path[1:], (FILES.parent / source).read_text()).chmod(0o755)
        self.write("var/log/README", "")
        self.device("0000:1a:00.0", "2330", "0x030200")
        for number in range(switches):
            self.device(f"0000:c{number}:00.0", "22a3", "0x068000")
        smi = " ".join(map(str, simulated_driver.nvidia_smi()))
        self.write("bin/nvidia-smi", f'#!/bin/sh\nexec {smi} "$@"\n').chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def device(self, address: str, device: str, pci_class: str) -> None:
        for name, text in {"vendor": "0x10de", "device": f"0x{device}", "class": pci_class}.items():
            self.write(f"sys/bus/pci/devices/{address}/{name}", text + "\n")

    def load(self, version: str) -> None:
        text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (root@host)\n"
        self.write(LOADED, text)

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.root / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.root}/bin:{os.environ['PATH']}"
        return {**os.environ, "GPUHOST_SIMULATED_ROOT": str(self.root), "PATH": path}

    def run(self, *argv: str) -> tuple[int, list[str]]:
        """Return exit status and lines of a command, as soon as the process that was started ends."""
        log = self.root / "output"
        with log.open("w") as output:
            command = [str(self.root / argv[0]), *argv[1:]]
            code = subprocess.run(
                command, stdout=output, stderr=output, env=self.environment, timeout=30, check=False
            ).returncode
        return code, log.read_text().splitlines()

    def pid(self) -> int:
        return int((self.root / PID_FILE).read_text())


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    if (tmp_path / PID_FILE).exists():
        os.kill(found.pid(), signal.SIGKILL)


def packaged() -> dict[str, dict[str, str]]:
    found = yaml.safe_load((FILES.parent / "packages.yml").read_text())
    return dict(found["fabric"]["service"])


def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((FILES / "nvidia-fabricmanager.service").read_text())
    return parser["Service"]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while not has_ended(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_forks_when_it_has_set_up_the_fabric(host: Host) -> None:
    host.load(VERSION)
    code, lines = host.run(PROGRAM, "-c", str(host.root / CONFIG))
    assert code == 0
    assert lines[0].startswith("Connected to 1 node.")
    assert lines[1].startswith("Successfully configured all the available NVSwitches to route GPU NVLink traffic.")
    assert all("simulated" in line for line in lines)
    pid = host.pid()
    assert Path(f"/proc/{pid}/comm").read_text() == "nv-fabricmanage\n"
    assert os.getsid(pid) != os.getsid(0)
    assert (host.root / JOINED).read_text() == VERSION + "\n"
    os.kill(pid, signal.SIGTERM)
    wait_for_end(pid)
    assert not (host.root / PID_FILE).exists()
    assert (host.root / JOINED).exists(), "the GPUs stay in the fabric"


def test_its_log_has_the_format_of_the_genuine_one(host: Host) -> None:
    host.load(VERSION)
    host.run(PROGRAM)
    line = re.compile(r"\[[A-Z][a-z]{2} \d\d \d{4} \d\d:\d\d:\d\d\] \[(INFO|ERROR)\] \[tid \d+\] \S.*simulated.*")
    lines = (host.root / LOG).read_text().splitlines()
    assert len(lines) == 2
    assert all(line.fullmatch(each) for each in lines)


def test_it_ends_beside_a_loaded_module_of_another_version(host: Host) -> None:
    """Whatever the user space is, which has its own version here."""
    host.load(OTHER)
    code, lines = host.run(PROGRAM)
    assert (code, lines) == (1, [MISMATCH + " (simulated)"])
    assert "[ERROR]" in (host.root / LOG).read_text()
    assert not (host.root / PID_FILE).exists()
    assert not (host.root / JOINED).exists()


def test_it_ends_where_no_module_is_loaded(host: Host) -> None:
    host.write("usr/share/gpuhost-simulated/kernel-modules-are-loadable", "")
    code, lines = host.run(PROGRAM)
    assert code == 1
    assert "driver version unknown" in lines[0]


def test_a_container_without_modules_has_the_version_of_nvidia_smi(host: Host) -> None:
    assert host.run(PROGRAM)[0] == 0


def test_it_ends_without_switches(tmp_path: Path) -> None:
    host = Host(tmp_path, switches=0)
    host.load(VERSION)
    code, lines = host.run(PROGRAM)
    assert code == 1
    assert lines[0].startswith("request to query NVSwitch device information from NVSwitch driver failed with error:")


def test_it_ends_where_it_cannot_write_its_directory(host: Host) -> None:
    host.load(VERSION)
    host.write("run/nvidia-fabricmanager", "in the way")
    code, lines = host.run(PROGRAM)
    assert code == 1
    assert "fabric manager don't have access permissions to directory" in lines[0]
    (host.root / "run/nvidia-fabricmanager").unlink()


def test_without_daemonize_it_stays_in_the_foreground(host: Host) -> None:
    host.load(VERSION)
    host.edit(CONFIG, "DAEMONIZE=1", "DAEMONIZE=0")
    command = [str(host.root / PROGRAM), "-c", str(host.root / CONFIG)]
    with subprocess.Popen(command, env=host.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        assert b"Connected" in process.stdout.readline()
        assert b"Successfully" in process.stdout.readline()
        assert process.poll() is None
        process.terminate()
        assert process.wait(10) == 0


def test_its_version_needs_no_driver(host: Host) -> None:
    assert host.run(PROGRAM, "--version") == (0, [f"Fabric Manager version is : {VERSION}"])


def test_the_start_script_says_what_it_started(host: Host) -> None:
    """As in public logs of H100 and H200 systems: the precheck prints nothing."""
    host.load(VERSION)
    assert host.run(START, "--mode", "precheck") == (0, [])
    code, lines = host.run(START, "--mode", "start")
    assert (code, lines[0], lines[-1]) == (
        0, "Detected Pre-NVL5 system (simulated)", 'Started "Nvidia Fabric Manager" (simulated)',
    )  # fmt: skip
    assert host.pid()


def test_the_start_script_fails_as_the_program_does(host: Host) -> None:
    host.load(OTHER)
    code, lines = host.run(START, "--mode", "start")
    program = f"{host.root}/{PROGRAM} -c {host.root}/{CONFIG}"
    assert (code, lines[1:]) == (1, [MISMATCH + " (simulated)", f'"{program}" failed! Exit code: 1 (simulated)'])


def test_the_unit_starts_what_the_package_has_and_reads_its_pid_file() -> None:
    service, copies = unit(), packaged()["copies"]
    assert service["Type"] == "forking"
    assert service["PIDFile"] == f"/var/{PID_FILE}"
    assert {service[key].split()[0] for key in ("ExecStart", "ExecStartPre")} == {f"/{START}"}
    assert {f"/{START}", f"/{PROGRAM}", f"/{CONFIG}"} < copies.keys()
    assert {f"/{START}", f"/{PROGRAM}"} == set(packaged()["executable"])
