"""The lab's virtual machines without starting one, and the simulated kernel modules of their driver packages."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_modules as host_modules
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver

from tests import runner
from tests.doubles.lab import images, vm, vm_image
from tests.doubles.nvidia_repository import build, contents, kernel_modules
from tests.doubles.simulated_driver import nvidia_smi

PROJECT = Path(__file__).resolve().parents[3]
FIXTURES = PROJECT / "tests/fixtures/probe"
SLUGS = {"debian": "debian12", "ubuntu": "ubuntu2404"}


def packages(family: str = "debian"):
    """Return {(name, version): package} of the driver, with the source of the modules."""
    made = [
        kernel_modules.with_sources(package) for package in contents.driver_packages(contents.slug(SLUGS[family], ""))
    ]
    return {(package.control["Package"], package.control["Version"]): package for package in made}


OPEN, PROPRIETARY = (packages()[name, "580.126.16-1"] for name in ("nvidia-kernel-open-dkms", "nvidia-kernel-dkms"))


def source(package, name: str) -> str:
    return package.text[f"/usr/src/nvidia-580.126.16/{name}"]


# The modules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "flavour", "captured"),
    [(OPEN, "open", "open-580"), (PROPRIETARY, "proprietary", "proprietary-515")],
    ids=["open", "proprietary"],
)
def test_module_describes_itself_like_a_real_one_of_its_flavour(package, flavour, captured):
    (title,) = re.findall(r'SIMULATED_TITLE "(.*)"', source(package, "release.h"))
    (line,) = re.findall(r'"(NVRM version: NVIDIA UNIX )" SIMULATED_TITLE "(  .*)\\n"', source(package, "nvidia.c"))
    text = line[0] + title + line[1]
    assert proc_driver.parse(text + "\n") == proc_driver.KernelModule("580.126.16", flavour)
    real = (FIXTURES / f"proc-driver-nvidia-version-{captured}.txt").read_text().splitlines()[0]
    # Only version, builder and date differ.
    shape = [re.sub(r"\(.*?\)|\d+\.[\d.]+\d|  \w{3} \w{3} .*", "*", line) for line in (text, real)]
    assert shape[0] == shape[1]


@pytest.mark.parametrize(("package", "flavour"), [(OPEN, "open"), (PROPRIETARY, "proprietary")], ids=["open", "closed"])
def test_module_declares_the_licence_of_its_flavour(package, flavour):
    assert f'SIMULATED_LICENCE "{host_modules.LICENCES[flavour]}"' in source(package, "release.h")


def test_simulated_modules_and_packages_are_marked():
    descriptions = re.findall(r'MODULE_DESCRIPTION\("(\w+)', source(OPEN, "nvidia.c") + source(OPEN, "nvidia_uvm.c"))
    assert descriptions == ["SIMULATED", "SIMULATED"]
    assert "loading SIMULATED" in source(OPEN, "nvidia.c")
    assert OPEN.control["Description"].startswith("SIMULATED")
    assert "simulated" in OPEN.text[kernel_modules.NOTE]


@pytest.mark.parametrize("family", ["debian", "ubuntu"])
def test_packages_with_modules_contain_a_dkms_source(family):
    with_modules = {key: package for key, package in packages(family).items() if kernel_modules.NOTE in package.text}
    branches = contents.slug(SLUGS[family], "").drivers
    drivers = [driver for driver in contents.driver_contents()["drivers"] if driver["branch"] in branches]
    assert len(with_modules) == 2 * len(drivers) > 0
    for (_, full), package in with_modules.items():
        version = full.partition("-")[0]
        folder = f"/usr/src/nvidia-{version}/"
        assert f'PACKAGE_VERSION="{version}"' in package.text[folder + "dkms.conf"]
        assert {"Makefile", "nvidia.c", "nvidia_uvm.c", "simulated.h", "release.h"} < {
            path.removeprefix(folder) for path in package.text if path.startswith(folder)
        }
        assert not re.search(r"@\w+@", "".join(package.text.values()))
        assert "dkms" in package.control["Depends"].split(", ")
        for script in package.scripts.values():
            subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_only_module_packages_of_the_machines_repository_have_sources(tmp_path):
    if shutil.which("gpg") is None:
        pytest.skip("gpg is not installed")
    plain = {
        (p.control["Package"], p.control["Version"]): p for p in contents.driver_packages(contents.slug("debian12", ""))
    }
    changed = [key for key, package in packages().items() if package != plain[key]]
    assert {name for name, _ in changed} == {"nvidia-kernel-open-dkms", "nvidia-kernel-dkms"}
    out = tmp_path / "out"
    usual = build.build(out, contents.slug("debian12", "http://repository.lab"), tmp_path, True, True)
    other = out / kernel_modules.FOLDER / usual.relative_to(out)
    name = "nvidia-kernel-open-dkms_580.126.16-1_amd64.deb"
    listed = [subprocess.run(["dpkg-deb", "-c", str(folder / name)], capture_output=True, text=True, check=True).stdout
              for folder in (usual, other)]  # fmt: skip
    assert ["/usr/src/" in text for text in listed] == [False, True]
    keys = {(folder / "3bf863cc.pub").read_bytes() for folder in (usual, other)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("installed", "loaded", "code"),
    [(False, None, 0), (True, "580.126.16", 0), (True, None, 9), (True, "570.211.01", 18)],
    ids=["container", "loaded", "not loaded", "another version"],
)
def test_nvidia_smi_reads_the_loaded_driver_from_the_kernel(tmp_path, installed, loaded, code):
    """The genuine program exits with 9 and 18, too (captured)."""
    note = tmp_path / "usr/share/gpuhost-simulated/nvidia-smi.json"
    note.parent.mkdir(parents=True)
    note.write_text(contents.product_table("580.126.16", "13.0"))
    if installed:
        (tmp_path / kernel_modules.LOADABLE.lstrip("/")).touch()
    if loaded:
        version = tmp_path / "proc/driver/nvidia/version"
        version.parent.mkdir(parents=True)
        version.write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {loaded}  Release Build\n")
    gpu = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    gpu.mkdir(parents=True)
    for name, value in {"vendor": "0x10de", "device": "0x2335", "class": "0x030200"}.items():
        (gpu / name).write_text(value)
    environment = {**os.environ, "GPUHOST_SIMULATED_ROOT": str(tmp_path)}
    done = subprocess.run([*nvidia_smi(), "-L"], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stdout


# The machine ----------------------------------------------------------------------------------------------------


def test_process_id_reused_by_another_program_is_not_the_machine(tmp_path):
    machine = vm.Machine("trial", tmp_path, tmp_path / "key")
    assert machine.process is None
    (tmp_path / "pid").write_text(f"{os.getpid()}\n")
    assert machine.process is None
    machine.stop()


def test_port_does_not_change(tmp_path):
    ports = {vm.Machine("trial", tmp_path, tmp_path / "key").port for _ in range(3)}
    assert len(ports) == 1


@pytest.mark.parametrize(
    ("output", "chosen"), [("[    0.000000] Linux version 6.1.0", "kvm"), ("", "tcg")], ids=["starts", "hangs"]
)
def test_kvm_is_used_only_if_a_kernel_starts_with_it(monkeypatch, tmp_path, output, chosen):
    monkeypatch.setattr(os, "access", lambda *_: True)
    monkeypatch.setattr(vm, "TRIAL_SECONDS", 1)
    monkeypatch.setattr(vm, "QEMU", ["sh", "-c", f"echo '{output}'; exec sleep 5", "qemu"])
    assert vm.accelerator(vm_image.Disk(tmp_path, "debian-12")) == chosen


def test_disk_has_the_containers_packages_and_is_named_after_its_recipe(monkeypatch, tmp_path):
    asked: list[list[str]] = []
    monkeypatch.setattr(vm_image, "cache", lambda: tmp_path)
    monkeypatch.setattr(vm_image, "_build", lambda disk, names: asked.append(names))
    first = vm_image.ensure("debian-12")
    assert {*images.PACKAGES, "shim-signed", "grub-efi-amd64-signed"} < set(asked[0])
    monkeypatch.setattr(vm_image, "DISK_MIB", 7000)
    assert vm_image.ensure("debian-12").folder != first.folder


def test_distribution_without_a_disk_is_reported_with_the_known_ones():
    with pytest.raises(SystemExit, match="set lab_image to one of debian-12, debian-13"):
        vm_image.ensure("ubuntu-24.04")


def test_scenarios_with_virtual_machines_are_the_tier_of_that_name_and_not_in_the_default_run():
    found = {path.parent.name for path in PROJECT.glob("molecule/*/hosts.yml") if "lab_machine: vm" in path.read_text()}
    assert found == {name for _, name in runner.MACHINES}
    assert found.isdisjoint(runner.by_default())
