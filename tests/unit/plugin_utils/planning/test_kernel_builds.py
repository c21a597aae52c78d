"""Headers and compilers that cannot be had: refused before a change, with remedies that are typed here.

A host is a directory with the files that a probe reads; the remedies run in a shell, with the administrator's commands
replaced by ones that change that directory.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import kernels
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import kernel_builds, plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options, Preflight

from tests.unit.module_utils.host_files import put, put_grub_menu

KERNELS = Path(__file__).parents[3] / "fixtures/kernels"
BOOKWORM, LIST = (KERNELS / "debian-12.packages").read_text(), "deb.debian.org_bookworm_main_binary-amd64_Packages"
TWELVE = "gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0"  # of /boot/config-6.1.0-55-cloud-amd64
FIFTEEN = "x86_64-linux-gnu-gcc-15 (Debian 15.2.0-11) 15.2.0"  # of Debian's 6.18-amd64, as its users report it
OLD, NEW, BACKPORT, OWN = "6.1.0-50-amd64", "6.1.0-56-amd64", "6.18-amd64", "6.9.1"  # the archive has the first two
GONE = "6.1.0-37-amd64"  # of an older point release
REQUEST = {"driver": "580", "driver_source": "nvidia", "cuda": "none", "tensorflow": "none", "pytorch": "none"}


class Host:
    """A Debian 12 host below a directory, which boots with GRUB."""

    def __init__(self, root: Path, running: str, *others: str, lists: str = BOOKWORM) -> None:
        self.root, self.running = root, running
        self.status = ""
        (root / "etc/default/grub.d").mkdir(parents=True)
        put(root, "/etc/default/grub", "# If you change this file, run 'update-grub' afterwards\nGRUB_DEFAULT=0\n")
        self.install("make", "gcc")
        for release in (running, *others):
            self.add_kernel(release)
        if lists:
            put(root, f"/var/lib/apt/lists/{LIST}", lists)

    def install(self, *names: str) -> None:
        self.status += "".join(
            f"Package: {name}\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n\n" for name in names
        )
        put(self.root, "/var/lib/dpkg/status", self.status)

    def add_kernel(self, release: str) -> None:
        compiler = FIFTEEN if release == BACKPORT else TWELVE
        put(self.root, f"/boot/config-{release}", f'CONFIG_CC_VERSION_TEXT="{compiler}"\n')
        put(self.root, f"/boot/vmlinuz-{release}")
        if release != OWN:
            self.install(f"linux-image-{release}")
            put(self.root, f"/var/lib/dpkg/info/linux-image-{release}.list", f"/boot/vmlinuz-{release}\n")
        self.update_grub()

    def update_grub(self) -> None:
        """Write the menu, the newest kernel first, with the default of the administrator, as grub-mkconfig reads it."""
        releases = [path.name.partition("-")[2] for path in (self.root / "boot").glob("vmlinuz-*")]
        script = '. "$1/etc/default/grub"; for x in "$1"/etc/default/grub.d/*.cfg; do [ ! -e "$x" ] || . "$x"; done'
        command = ["sh", "-c", f'{script}; echo "$GRUB_DEFAULT"', "sh", str(self.root)]
        default = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        put_grub_menu(self.root, sorted(releases, key=debian_version.key, reverse=True), default)

    def probe(self) -> Probe:
        root, packages = str(self.root), kernels.images(str(self.root))
        found = system.kernel(root, self.running)
        releases = {name: kernels.release(root, name, name == self.running, packages) for name in found.installed}
        tools = {"": list(load_catalog().packages.kernel_tools)}
        found = kernels.building(root, dataclasses.replace(found, releases=releases), tools, True, command.run)
        gpu = {"pci_address": "0000:05:00.0", "pci_id": "10de:20b0", "class": "0302"}
        host = {"distribution": {"id": "debian-12"}, "architecture": "x86_64"}
        return Probe.from_json({**host, "gpus": [gpu], "kernel": to_json(found)})

    def check(self, options: Options | None = None) -> Preflight:
        probe = self.probe()
        plan = plan_for_probe(probe, REQUEST)
        assert plan.ok
        return checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe), options)

    def type(self, remedy: str) -> None:
        """Run what a remedy says to type, with its files below this host's directory."""
        text = remedy.split("ype: ", 1)[1].rstrip(")").replace("/etc/", f"{self.root}/etc/")
        shell = 'sudo() { "$@"; }; apt-get() { echo "$@"; }\n'
        shell += "update-grub() { echo update-grub; }; reboot() { echo reboot; }\n"
        lines = subprocess.run(["bash", "-c", shell + text], capture_output=True, text=True, check=True).stdout
        for line in lines.splitlines():
            if line.startswith("install linux-image-amd64"):
                self.add_kernel(NEW)
            elif line == "update":
                put(self.root, f"/var/lib/apt/lists/{LIST}", BOOKWORM)
            elif line == "update-grub":
                self.update_grub()
            elif line == "reboot":
                self.running = str(system.kernel(str(self.root), self.running).next_boot)
            else:
                assert "GRUB_DEFAULT=" in line, line

    def follow(self) -> list[tuple[str, str]]:
        """Type the first remedy until there is no problem; return (code, the first words of the remedy) of each."""
        steps: list[tuple[str, str]] = []
        while problems := self.kernel_problems():
            assert len(steps) < 4, f"the remedies go in a circle: {steps}"
            steps.append((problems[0].code, re.split(r"\. Type|,| \(", problems[0].remedy)[0]))
            self.type(problems[0].remedy)
        return steps

    def kernel_problems(self) -> list[Problem]:
        codes = [spec.code for spec in kernel_builds.FINDINGS]
        return [problem for problem in self.check().problems if problem.code in codes]


@pytest.mark.parametrize(
    "kernel", [(OLD, NEW), (OLD,), (NEW,)], ids=["not rebooted", "one behind the archive", "newest"]
)
def test_what_the_archive_has_is_planned_and_no_problem(tmp_path: Path, kernel: tuple[str, ...]) -> None:
    assert Host(tmp_path, *kernel).kernel_problems() == []


UNREACHABLE: dict[str, tuple[tuple[str, ...], list[tuple[str, str]], str]] = {
    "the running kernel's headers are gone, and a newer kernel waits": (
        (GONE, NEW), [("kernel-headers-missing", f"boot {NEW}")], NEW,
    ),
    "of the only kernel": ((GONE,), [("kernel-headers-missing", "install a kernel of the archive")], NEW),
    "a kernel of one's own that is to start next": (
        (NEW, OWN), [("kernel-headers-missing", f"make {NEW} the kernel that starts")], NEW,
    ),
    "of several kernels that would do, the running one": (
        (OLD, NEW, OWN), [("kernel-headers-missing", f"make {OLD} the kernel that starts")], OLD,
    ),
    "a kernel of one's own runs, and stays the newest": (
        (OWN,),
        [
            ("kernel-headers-missing", "install a kernel of the archive"),
            ("kernel-headers-missing", f"make {NEW} the kernel that starts"),
        ],
        NEW,
    ),
    "headers gone, kernel of one's own next, an old one installed": (
        (GONE, OLD, OWN), [("kernel-headers-missing", f"make {OLD} the kernel that starts")], OLD,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("installed", "steps", "runs"), UNREACHABLE.values(), ids=UNREACHABLE)
def test_the_remedies_for_headers_lead_to_a_host_without_problems(
    tmp_path: Path, installed: tuple[str, ...], steps: list[tuple[str, str]], runs: str
) -> None:
    host = Host(tmp_path, *installed)
    assert host.follow() == steps
    assert host.running == runs


PROXMOX = """
Package: proxmox-headers-6.14.11-2-pve
Architecture: amd64
Version: 6.14.11-2
Provides: linux-headers-6.14.11-2-pve-amd64, pve-headers-6.14.11-2-pve
"""


@pytest.mark.parametrize("lists", [BOOKWORM, BOOKWORM + PROXMOX], ids=["Debian's", "Proxmox' (its debian/control.in)"])
def test_a_container_on_proxmox_is_never_offered_a_kernel(tmp_path: Path, snapshot: str, lists: str) -> None:
    """It has none of the hypervisor's kernels, so that it is planned for."""
    host = Host(tmp_path, "6.14.11-2-pve", lists=lists)
    shutil.rmtree(tmp_path / "boot")
    (problem,) = host.kernel_problems()
    assert (problem.code, f"{problem.message}; {problem.remedy}") == ("proxmox", snapshot)
    assert "linux-image" not in problem.remedy
    assert host.check(Options(own_kernel=False)).ok


PINS = {
    "the distribution's own default": ("/etc/default/grub", "GRUB_DEFAULT=0 # the first\n"),
    "a drop-in of a provider": ("/etc/default/grub.d/99-pin.cfg", f'GRUB_DEFAULT="gnulinux-{GONE}-advanced-1"\n'),
    "proxmox-boot-tool kernel pin": (
        "/etc/default/grub.d/proxmox-kernel-pin.cfg",
        f'GRUB_DEFAULT="gnulinux-advanced-1>gnulinux-{GONE}-advanced-1"\n',
    ),
    "a drop-in that is read last": (
        "/etc/default/grub.d/zzz-pin.cfg",
        "# GRUB_DEFAULT=1\n  export GRUB_DEFAULT='1>0'\n",
    ),
    "not a setting of GRUB": ("/etc/default/grub.d/zzzz-pin.conf", "GRUB_DEFAULT=2\n"),
    "the first remedy": ("/etc/default/grub.d/zz-kernel.cfg", "GRUB_DEFAULT=0\n"),
}


@pytest.mark.parametrize(("path", "content"), PINS.values(), ids=PINS)
def test_the_remedy_names_the_file_that_sets_the_default_and_wins_over_it(
    tmp_path: Path, snapshot: str, path: str, content: str
) -> None:
    host = Host(tmp_path, GONE, OLD, OWN)
    put(tmp_path, path, content)
    host.update_grub()
    problem = next(problem for problem in host.kernel_problems() if "make" in problem.remedy)
    assert problem.remedy == snapshot
    host.type(problem.remedy)
    assert (host.running, host.kernel_problems()) == (OLD, [])


def test_a_kernel_that_grubs_menu_does_not_have_is_left_to_the_administrator(tmp_path: Path, snapshot: str) -> None:
    host = Host(tmp_path, GONE, OLD, OWN)
    (tmp_path / "boot/grub/grub.cfg").unlink()
    assert host.kernel_problems()[0].remedy == snapshot


def test_a_compiler_that_cannot_be_had_is_refused_with_another_kernel(tmp_path: Path) -> None:
    """A kernel from elsewhere was built with a compiler that this release of the distribution does not have."""
    offered = (
        BOOKWORM + BOOKWORM.split("\n\n", 1)[0].replace("linux-headers-amd64", f"linux-headers-{BACKPORT}") + "\n\n"
    )
    host = Host(tmp_path, BACKPORT, OLD, lists=offered)
    (problem,) = host.kernel_problems()
    assert problem.code == "kernel-compiler-missing"
    assert f"{BACKPORT} (running) was built with gcc-15" in problem.message
    assert host.follow() == [("kernel-compiler-missing", f"make {OLD} the kernel that starts")]
    host.install("gcc-15")
    host.running = BACKPORT
    (tmp_path / "etc/default/grub.d/zz-kernel.cfg").unlink()
    assert host.kernel_problems() == []


def test_a_compiler_of_the_archive_that_apt_does_not_read_is_refused(tmp_path: Path) -> None:
    without = "\n\n".join(part for part in BOOKWORM.split("\n\n") if "Package: gcc-12\n" not in part)
    host = Host(tmp_path, NEW, lists=without)
    assert host.follow() == [("kernel-compiler-missing", "let apt read the whole archive of debian-12")]


def test_a_tool_that_apt_does_not_offer_is_refused(tmp_path: Path) -> None:
    without = "\n\n".join(part for part in BOOKWORM.split("\n\n") if "Package: make\n" not in part)
    host = Host(tmp_path, NEW, lists=without)
    host.status = ""
    host.install("gcc", f"linux-image-{NEW}")
    (problem,) = host.kernel_problems()
    assert (problem.code, "with make," in problem.message) == ("kernel-compiler-missing", True)
    assert host.follow() == [("kernel-compiler-missing", "let apt read the whole archive of debian-12")]


def test_headers_that_the_inventory_replaced_are_left_to_the_plan(tmp_path: Path) -> None:
    """One exact package was the remedy once: it helped one of the two kernels, and never both."""
    host = Host(tmp_path, OLD, NEW)
    for name in (OLD, NEW):
        (problem,) = host.check(Options(kernel_headers=(f"linux-headers-{name}",), kernel_compilers=())).problems
        assert problem.code == "kernel-headers-missing"
        assert f"linux-headers-{OLD}, linux-headers-{NEW}" in problem.remedy
        assert problem.remedy.startswith("remove nvidia_driver_kernel_headers from the inventory")
    assert host.check().problems == ()


def test_without_lists_of_apt_nothing_is_known(tmp_path: Path) -> None:
    found = Host(tmp_path, NEW, lists="").check()
    assert [problem.code for problem in found.problems] == []
    texts = {warning.code: warning.message for warning in found.warnings}
    assert "(apt has no lists yet)" in texts["kernel-headers-missing"]
    assert "gcc-12" in texts["kernel-compiler-missing"]


def hold_back(host: Host, kernel: str) -> None:
    """Write what the role's kernel guard writes."""
    entry = f"gnulinux-advanced-1>gnulinux-{host.running}-advanced-1"
    text = f"# GRUB Environment Block\ngpuhost_kernel={kernel}\ngpuhost_tries=no-module\ngpuhost_entry={entry}\n"
    put(host.root, "/boot/grub/grubenv", text)


def test_a_kernel_that_is_held_back_gets_its_headers(tmp_path: Path) -> None:
    """It waits for its module, which a rerun builds."""
    host = Host(tmp_path, OLD, NEW)
    hold_back(host, NEW)
    driver = plan_for_probe(host.probe(), REQUEST).components["driver"]
    assert driver
    assert {f"linux-headers-{OLD}", f"linux-headers-{NEW}"} <= set(driver.kernel_headers)


def test_a_kernel_that_is_held_back_and_cannot_be_built_for_is_no_problem(tmp_path: Path) -> None:
    host = Host(tmp_path, NEW, OWN)
    assert [problem.code for problem in host.kernel_problems()] == ["kernel-headers-missing"]
    hold_back(host, OWN)
    assert host.kernel_problems() == []
    (warning,) = [warning for warning in host.check().warnings if warning.code == "kernel-headers-missing"]
    assert f"no module can be built for kernel {OWN}, which is kept from being the default" in warning.message


def test_a_next_kernel_that_is_not_known_is_named_with_its_reason(tmp_path: Path, snapshot: str) -> None:
    host = Host(tmp_path, OLD, NEW)
    put(host.root, "/etc/default/grub.d/99-kernel.cfg", "GRUB_DEFAULT=1\n")
    host.update_grub()
    found = host.check()
    (warning,) = [warning for warning in found.warnings if warning.code == "next-boot-unknown"]
    assert warning.message == snapshot
    assert found.ok
    put(host.root, "/etc/default/grub.d/99-kernel.cfg", "GRUB_DEFAULT='1>1'\n")
    host.update_grub()
    assert host.probe().kernel.next_boot == OLD
    assert "next-boot-unknown" not in [warning.code for warning in host.check().warnings]
