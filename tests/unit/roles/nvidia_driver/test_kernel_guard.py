"""Which kernel GRUB boots after a new one was installed, with its module and without.

GRUB itself counts in the scenario kernel_update, in a virtual machine.
"""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
FILES = PROJECT / "roles/nvidia_driver/files"
# Written by Debian 12's grub-mkconfig, with 07_gpuhost in /etc/grub.d: see the README beside it.
CONFIGURATION = PROJECT / "tests/fixtures/grub/debian-12.cfg"
UUID = "11111111-2222-3333-4444-555555555555"
OLD, NEW = "6.1.0-50-amd64", "6.1.0-56-amd64"
NEWER = "6.12.100+deb12-amd64"
OLD_ENTRY = f"gnulinux-advanced-{UUID}>gnulinux-{OLD}-advanced-{UUID}"
# modinfo prints the version of a module; grub-editenv as its man page and GRUB 2.06 have it, on a file of lines.
PROGRAMS = {
    "uname": 'cat "$RUNNING"',
    "modinfo": 'cat "$3"',
    "logger": 'shift 4; echo "$*" >> "$LOG"',
    "grub-editenv": """file=$1 command=$2; shift 2; touch "$file"
[ "$command" = list ] && exec cat "$file"
for word; do name=${word%%=*}; sed -i "/^$name=/d" "$file"; [ "$command" = unset ] || echo "$word" >> "$file"; done""",
}


def install_guard(folder: Path) -> Path:
    """Copy the guard and what reads GRUB's menu for it, as the role does; return the guard."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROJECT / "plugins/module_utils/host/grub.py", folder / "grub.py")
    return Path(shutil.copy(FILES / "kernel-guard.sh", folder / "kernel-guard"))


class Host:
    """A host that runs the kernel OLD and has NEW; `modules`: the version of each kernel's module."""

    def __init__(self, folder: Path, modules: dict[str, str], running: str = OLD, loaded: bool = True) -> None:
        self.root, self.log, self.running = folder / "root", folder / "log", folder / "running"
        self.environment = self.root / "boot/grub/grubenv"
        self.configuration = self.root / "boot/grub/grub.cfg"
        self.configuration.parent.mkdir(parents=True)
        self.configuration.write_text(CONFIGURATION.read_text())
        self.environment.write_text("")
        self.programs = folder / "bin"
        self.installed = install_guard(folder / "lib")
        self.programs.mkdir()
        for name, body in PROGRAMS.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (self.programs / name).chmod(0o755)
        for kernel in (OLD, NEW):
            (self.root / f"boot/vmlinuz-{kernel}").write_text("")
            (self.root / f"lib/modules/{kernel}/kernel/drivers/net").mkdir(parents=True)
        for kernel, version in modules.items():
            self.build(kernel, version)
        self.boot(running, loaded)

    def build(self, kernel: str, version: str, path: str = "updates/dkms/nvidia.ko") -> None:
        module = self.root / "lib/modules" / kernel / path
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(version + "\n")

    def install(self, *kernels: str, order: tuple[str, ...] = ()) -> None:
        """Have these kernels alone, as update-grub leaves them; `order`: of the menu, by default the newest first.

        The entries are those of the configuration that grub-mkconfig wrote, with the release replaced.
        """
        for image in (self.root / "boot").glob("vmlinuz-*"):
            image.unlink()
        for kernel in kernels:
            (self.root / f"boot/vmlinuz-{kernel}").write_text("")
        order = order or tuple(reversed(kernels))
        text = CONFIGURATION.read_text()
        simple = text[text.index("menuentry 'GNU/Linux'") : text.index("submenu ")]
        entries = text[text.index(f"\tmenuentry 'GNU/Linux, with Linux {NEW}'") : text.index("\n}\n\n### END")]
        (one,) = re.findall(rf"\tmenuentry 'GNU/Linux, with Linux {NEW}'.*?(?=\tmenuentry '[^']*{OLD}')", entries, re.S)
        text = text.replace(simple, simple.replace(NEW, order[0]))
        self.configuration.write_text(text.replace(entries, "".join(one.replace(NEW, kernel) for kernel in order)))

    def boot(self, kernel: str, loaded: bool = True) -> None:
        self.running.write_text(kernel + "\n")
        module = self.root / "sys/module/nvidia"
        module.mkdir(parents=True, exist_ok=True)
        if not loaded:
            module.rmdir()

    def guard(self, *options: str, path: str | None = None) -> str:
        """Run the guard as apt does; return what it says."""
        environment = {
            "PATH": path or f"{self.programs}:{os.environ['PATH']}",
            "RUNNING": str(self.running),
            "LOG": str(self.log),
        }
        command = ["sh", str(self.installed), *options, str(self.root)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    @property
    def state(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.environment.read_text().splitlines())

    def set(self, **values: str) -> None:
        self.environment.write_text("".join(f"{key}={value}\n" for key, value in {**self.state, **values}.items()))


def state(tries: str) -> dict[str, str]:
    return {"gpuhost_kernel": NEW, "gpuhost_tries": tries, "gpuhost_entry": OLD_ENTRY}


@pytest.mark.parametrize("modules", [{OLD: "580.1"}, {OLD: "580.1", NEW: "570.1"}])
def test_a_kernel_without_the_drivers_module_does_not_become_the_default(tmp_path, modules):
    host = Host(tmp_path, modules)
    assert f"kernel {OLD} stays the default" in host.guard()
    assert host.state == state("no-module")
    assert f"kernel {NEW} has no module of NVIDIA's driver 580.1" in host.log.read_text()
    assert f"kernel {OLD} stays the default" in host.guard(), "said again, as the host must not be rebooted into it"


def test_of_two_modules_of_a_kernel_the_one_counts_that_is_loaded(tmp_path):
    """A prebuilt one of an older driver lies beside DKMS's, which depmod prefers (search updates ubuntu built-in)."""
    host = Host(tmp_path, {})
    for kernel, prebuilt in ((OLD, "570.1"), (NEW, "535.1")):
        host.build(kernel, prebuilt, "kernel/nvidia-570/nvidia.ko")
        host.build(kernel, "580.1", "updates/dkms/nvidia.ko.zst")
    assert f"kernel {NEW} has 3 boots to load NVIDIA's module" in host.guard()


def test_a_kernel_gets_its_boots_when_the_module_is_there(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.guard()
    host.build(NEW, "580.1", "kernel/nvidia-580-open/nvidia.ko.zst")
    assert f"kernel {NEW} has 3 boots to load NVIDIA's module" in host.guard()
    assert host.state == state("3")
    assert host.guard() == ""


def test_the_first_boot_that_loads_the_module_makes_the_kernel_the_default(tmp_path):
    host = Host(tmp_path, {OLD: "580.1", NEW: "580.1"})
    host.guard()
    host.set(gpuhost_tries="2")  # as GRUB leaves it
    host.boot(NEW, loaded=False)
    assert "after 2 more boots GRUB boots the kernel before it" in host.guard()
    assert host.state == state("2")
    host.boot(NEW)
    assert "it is the default now" in host.guard()
    assert host.state == {}
    assert host.guard() == ""


def test_a_kernel_that_used_its_boots_up_stays_out_until_another_one_comes(tmp_path):
    host = Host(tmp_path, {OLD: "580.1", NEW: "580.1"})
    host.guard()
    host.set(gpuhost_tries="0")
    assert f"kernel {NEW} was booted 3 times and did not load NVIDIA's module" in host.guard()
    assert host.state == state("0")
    host.install(OLD, NEW, NEWER)
    host.build(NEWER, "580.1")
    assert f"kernel {NEWER} has 3 boots" in host.guard()
    assert host.state == {**state("3"), "gpuhost_kernel": NEWER}


def test_the_operators_choice_of_a_kernel_stays(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.set(saved_entry="gnulinux-simple", **state("3"))
    host.configuration.write_text(CONFIGURATION.read_text().replace('default="0"', 'default="${saved_entry}"'))
    host.guard()
    assert host.state == {"saved_entry": "gnulinux-simple"}
    host.set(saved_entry="0")
    host.guard()
    assert host.state == {"saved_entry": "0", **state("no-module")}


@pytest.mark.parametrize("modules", [{}, {NEW: "580.1"}])
def test_without_a_module_of_the_running_kernel_there_is_nothing_to_keep(tmp_path, modules):
    host = Host(tmp_path, modules)
    host.set(**state("no-module"))
    assert host.guard() == ""
    assert host.state == {}


def test_of_two_new_kernels_without_a_module_neither_becomes_the_default(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.install(OLD, NEW, NEWER)
    assert f"kernel {NEWER} has no module" in host.guard()
    assert host.state == {**state("no-module"), "gpuhost_kernel": NEWER}
    host.install(OLD, NEW)  # the newest was removed again
    assert f"kernel {NEW} has no module" in host.guard()
    assert host.state == state("no-module")
    host.install(OLD, NEW, NEWER)
    host.build(NEWER, "580.1")
    assert f"kernel {NEWER} has 3 boots" in host.guard(), "the one between them is not booted"
    assert host.state == {**state("3"), "gpuhost_kernel": NEWER}


@pytest.mark.parametrize("decided", [True, False])
def test_a_boot_of_a_kernel_without_the_module_does_not_end_the_decision(tmp_path, decided):
    """The operator has booted NEW once (grub-reboot): NEWER, which has no module either, stays out."""
    host = Host(tmp_path, {OLD: "580.1"})
    host.install(OLD, NEW, NEWER)
    if decided:
        host.guard()
    host.boot(NEW, loaded=False)
    assert f"kernel {OLD} stays the default until it has one" in host.guard()
    assert host.state == {**state("no-module"), "gpuhost_kernel": NEWER}
    host.build(NEWER, "580.1")
    assert f"kernel {NEWER} has 3 boots to load NVIDIA's module, then kernel {OLD} is the default again" in host.guard()
    assert host.state == {**state("3"), "gpuhost_kernel": NEWER}


@pytest.mark.parametrize("decided", [True, False])
def test_the_default_that_runs_without_a_module_gives_way_to_the_kernel_that_has_one(tmp_path, decided):
    host = Host(tmp_path, {OLD: "580.1"})
    if decided:
        host.guard()
    host.boot(NEW, loaded=False)
    assert f"kernel {OLD} stays the default until it has one" in host.guard()
    assert host.state == state("no-module")
    host.build(NEW, "580.1")
    assert f"kernel {NEW} has NVIDIA's module now: it is the default" in host.guard()
    assert host.state == {}
    assert host.guard() == ""


@pytest.mark.parametrize("tries", ["no-module", "0", "2"])
def test_the_entry_follows_the_kernel_that_is_kept(tmp_path, tries):
    """GRUB would boot the first entry in place of one that is no more."""
    host = Host(tmp_path, {OLD: "580.1", NEW: "580.1"})
    host.install(OLD, NEW, NEWER)
    if tries != "no-module":
        host.build(NEWER, "580.1")
    host.set(**{**state(tries), "gpuhost_kernel": NEWER})
    host.boot(NEW)
    host.install(NEW, NEWER)
    said = host.guard()
    assert (f"kernel {NEW} stays the default" in said) == (tries != "2")
    assert host.state["gpuhost_entry"] == OLD_ENTRY.replace(OLD, NEW)
    assert (host.state["gpuhost_kernel"], host.state["gpuhost_tries"]) == (NEWER, tries)


GENERIC, OTHER = "6.8.0-149-generic", "6.8.0-1030-nvidia"


@pytest.mark.parametrize(
    ("built", "held"), [(GENERIC, False), (OTHER, True)], ids=["the default has it", "another one has it"]
)
def test_the_first_entry_of_the_menu_counts_and_not_the_newest_version(tmp_path, built, held):
    """GRUB_FLAVOUR_ORDER of Ubuntu's GRUB sorts the menu by flavours first."""
    host = Host(tmp_path, {OLD: "580.1"})
    host.install(OLD, GENERIC, OTHER, order=(GENERIC, OTHER, OLD))
    host.build(built, "580.1")
    assert f"kernel {GENERIC} has {'no module' if held else '3 boots'}" in host.guard()
    assert host.state == {**state("no-module" if held else "3"), "gpuhost_kernel": GENERIC}


@pytest.mark.parametrize(
    "entry",
    [
        "1>2",
        f"gnulinux-advanced-{UUID}>gnulinux-{NEW}-advanced-{UUID}",
        f"Advanced options for GNU/Linux>GNU/Linux, with Linux {NEW}",
    ],
)
def test_a_kernel_without_the_module_that_the_operator_chose_is_named(tmp_path, entry):
    """The newest has its module; the default is another."""
    host = Host(tmp_path, {OLD: "580.1", NEWER: "580.1"})
    host.install(OLD, NEW, NEWER)
    host.set(**state("no-module"))
    host.configuration.write_text(host.configuration.read_text().replace('default="0"', f'default="{entry}"'))
    assert f"kernel {NEW}, which GRUB is set to start, has no module of NVIDIA's driver 580.1" in host.guard()
    assert host.state == {}, "the choice is the operator's"
    host.build(NEW, "580.1")
    assert host.guard() == ""


def test_a_first_entry_that_boots_no_kernel_is_named(tmp_path):
    """The newest kernel is not taken for the default."""
    host = Host(tmp_path, {OLD: "580.1"})
    text = host.configuration.read_text()
    other = "menuentry 'Windows' $menuentry_id_option 'osprober-efi-1' {\n\tchainloader /bootmgfw.efi\n}\n"
    host.configuration.write_text(text.replace("menuentry 'GNU/Linux'", other + "menuentry 'GNU/Linux'", 1))
    assert "boots next is unknown: entry 0 of GRUB's menu starts another system" in host.guard()
    assert host.state == {}


def test_a_configuration_that_does_not_count_is_named(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.configuration.write_text(
        re.sub(r"### BEGIN \S+07_gpuhost.*END \S+07_gpuhost ###", "", CONFIGURATION.read_text(), flags=re.S)
    )
    assert "does not allow to keep" in host.guard()
    assert host.state == {}


def test_where_grub_cannot_write_a_kernel_with_its_module_is_not_held_back(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.configuration.write_text(CONFIGURATION.read_text().replace("save_env gpuhost_tries", ""))
    host.guard()
    assert host.state == state("no-module"), "reading the environment is enough"
    host.build(NEW, "580.1")
    assert "cannot count boots" in host.guard()
    assert host.state == {}


def test_without_grub_the_guard_warns(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.configuration.unlink()
    assert "this host has no GRUB" in host.guard()


def test_a_container_and_missing_programs_are_no_error(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    for name in ("grub-editenv", "logger"):
        (host.programs / name).unlink()
    host.guard(path=f"{host.programs}:/usr/bin:/bin")
    for image in (host.root / "boot").glob("vmlinuz-*"):
        image.unlink()
    assert host.guard() == ""
    (host.root / "boot/grub/grub.cfg").unlink()
    assert host.guard() == ""


# What /usr/bin/python3 of Debian 12 prints in a root without its library, and the dynamic linker without libexpat.
NO_LIBRARY = """Could not find platform independent libraries <prefix>
  stdlib dir = '/usr/lib/python3.11'
Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding
Python runtime state: core initialized
ModuleNotFoundError: No module named 'encodings'

Current thread 0x00007f58dbb3c040 (most recent call first):
  <no Python frame>"""
NOT_LINKED = "python3: error while loading shared libraries: libexpat.so.1: cannot open shared object file"


@pytest.mark.parametrize(
    "python",
    [None, f"echo '{NOT_LINKED}' >&2; exit 127", f'echo "{NO_LIBRARY}" >&2; exit 1', "exit 0"],
    ids=["none", "not linked", "without its library", "silent"],
)
def test_without_python_the_guard_says_so_and_changes_nothing_until_it_is_back(tmp_path, snapshot, python):
    """apt may be replacing it; the guard runs again at the end of apt, and at the next boot."""
    host = Host(tmp_path, {OLD: "580.1"})
    host.set(**state("3"))
    broken = Path(shutil.copytree(host.programs, tmp_path / "broken"))
    for name in ("cat", "echo", "find", "grep", "head", "sed", "sh", "sort", "tail", "touch"):
        (broken / name).symlink_to(str(shutil.which(name)))
    if python:
        (broken / "python3").write_text(f"#!/bin/sh\n{python}\n")
        (broken / "python3").chmod(0o755)
    said = host.guard(path=str(broken))
    assert said.removeprefix("gpuhost: ") in host.log.read_text()
    said = re.sub(r"guard: \d+: ", "guard: ", said.replace(str(host.installed.parent), "/usr/local/lib/gpuhost"))
    assert said == snapshot
    assert host.guard("--next", path=str(broken)).startswith("unknown: GRUB's menu cannot be read: python3 does not")
    assert host.state == state("3")
    assert f"kernel {OLD} stays the default" in host.guard()
    assert host.state == state("no-module")
    assert host.guard("--off", path=str(broken)) == ""
    assert host.state == {}


def test_switched_off_the_choice_is_grubs(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    host.guard()
    host.set(saved_entry="x")
    assert host.guard("--off") == ""
    assert host.state == {"saved_entry": "x"}


IMAGE, MACHINE = "f" * 32, "1c2e861e25a5b84dae694a5a8a2360fc"
OLD_EL, NEW_EL = "5.14.0-570.12.1.el9_6.x86_64", "5.14.0-570.17.1.el9_6.x86_64"
SAVED_EL = {kernel: f"{machine}-{kernel}" for kernel, machine in ((OLD_EL, IMAGE), (NEW_EL, MACHINE))}


class EnterpriseLinux(Host):
    """A host whose menu has a file for each kernel, with the newer one as the saved entry (UPDATEDEFAULT=yes)."""

    def __init__(self, folder: Path, modules: dict[str, str]) -> None:
        super().__init__(folder, {})
        (self.root / "boot/grub").rename(self.root / "boot/grub2")
        self.environment = self.root / "boot/grub2/grubenv"
        text = CONFIGURATION.with_name("rocky-8.cfg").read_text().replace('default="0"', 'default="${saved_entry}"')
        (self.root / "boot/grub2/grub.cfg").write_text(text)
        (self.programs / "grub-editenv").rename(self.programs / "grub2-editenv")
        self.install(OLD_EL, NEW_EL)
        entries = self.root / "boot/loader/entries"
        entries.mkdir(parents=True)
        for kernel, entry in SAVED_EL.items():
            (entries / f"{entry}.conf").write_text(f"title Rocky Linux ({kernel})\nlinux /vmlinuz-{kernel}\n")
            if kernel in modules:
                self.build(kernel, modules[kernel], "extra/nvidia.ko.xz")
        (self.root / f"boot/vmlinuz-0-rescue-{MACHINE}").touch()
        self.set(saved_entry=SAVED_EL[NEW_EL], boot_success="1")
        self.boot(OLD_EL)

    def install(self, *kernels: str, order: tuple[str, ...] = ()) -> None:
        for image in (self.root / "boot").glob("vmlinuz-*"):
            image.unlink()
        for kernel in kernels:
            (self.root / f"boot/vmlinuz-{kernel}").touch()

    @property
    def saved(self) -> str:
        return self.state["saved_entry"]


def test_on_enterprise_linux_a_kernel_without_the_module_is_not_the_saved_entry(tmp_path):
    host = EnterpriseLinux(tmp_path, {OLD_EL: "580.1"})
    for _ in range(2):
        assert f"kernel {OLD_EL} stays the default until it has one" in host.guard()
        assert host.saved == SAVED_EL[OLD_EL]
        assert host.guard("--next").strip() == OLD_EL
    host.set(saved_entry=SAVED_EL[NEW_EL])  # as each installation of a kernel does
    host.guard()
    assert host.saved == SAVED_EL[OLD_EL]
    host.build(NEW_EL, "580.1", "extra/nvidia.ko.xz")
    assert f"kernel {NEW_EL} is the default from the next boot on" in host.guard()
    assert host.state == {"boot_success": "1", "saved_entry": SAVED_EL[NEW_EL]}


def test_on_enterprise_linux_the_operators_choice_stays(tmp_path):
    host = EnterpriseLinux(tmp_path, {NEW_EL: "580.1"})
    host.boot(NEW_EL)
    host.set(saved_entry=SAVED_EL[OLD_EL])
    assert f"kernel {OLD_EL}, which GRUB is set to start, has no module of NVIDIA's driver 580.1" in host.guard()
    assert host.saved == SAVED_EL[OLD_EL]


def test_on_enterprise_linux_a_guard_that_is_switched_off_gives_the_saved_entry_back(tmp_path):
    host = EnterpriseLinux(tmp_path, {OLD_EL: "580.1"})
    host.guard()
    assert host.guard("--off") == ""
    assert host.state == {"boot_success": "1", "saved_entry": SAVED_EL[NEW_EL]}
    host.guard()
    host.set(saved_entry="0")  # chosen since
    host.guard("--off")
    assert host.saved == "0"


def test_the_entry_of_a_configuration_without_submenus_has_none(tmp_path):
    host = Host(tmp_path, {OLD: "580.1"})
    text, levels = re.subn(r"submenu [^\n]*\n(.*?\n)}\n", r"\1", CONFIGURATION.read_text(), flags=re.S)
    assert levels == 1
    host.configuration.write_text(text)
    host.guard()
    assert host.state["gpuhost_entry"] == f"gnulinux-{OLD}-advanced-{UUID}"


def test_grubs_script_counts_each_number_of_boots_that_the_guard_allows():
    guard, script = (FILES / "kernel-guard.sh").read_text(), (FILES / "07_gpuhost").read_text()
    (tries,) = re.findall(r"^tries=(\d)$", guard, re.M)
    counted = re.findall(r'gpuhost_tries}" = (\d) ]; then\n    set gpuhost_tries=(\d)$', script, re.M)
    assert counted == [(str(number), str(number - 1)) for number in range(int(tries), 0, -1)]
    text = CONFIGURATION.read_text()
    output = subprocess.run(["sh", FILES / "07_gpuhost"], capture_output=True, text=True, check=True).stdout
    assert output in text, "the fixture is of another version of this script"


@pytest.mark.parametrize(
    ("abstraction", "fs", "counts"),
    [("", "ext2", True), ("lvm", "ext2", False), ("diskfilter mdraid1x", "xfs", False), ("", "btrfs", False),
     ("cryptodisk luks2", "ext2", True), ("", "zfs", False)],
)  # fmt: skip
def test_grub_counts_only_where_it_can_write(tmp_path, abstraction, fs, counts):
    """As 00_header of Ubuntu's GRUB, after what grub-probe prints of /boot/grub."""
    probe = tmp_path / "grub-probe"
    probe.write_text(f"#!/bin/sh\n[ $1 = --target=fs ] && echo {fs} || echo {abstraction}\n")
    probe.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    output = subprocess.run(["sh", FILES / "07_gpuhost"], capture_output=True, text=True, check=True, env=environment)
    assert ("save_env" in output.stdout) == counts


def test_a_module_that_hangs_does_not_hold_the_boot_up():
    """A oneshot unit has no time limit of its own, and multi-user.target waits for what it wants."""
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str
    unit.read(FILES / "gpuhost-kernel-guard.service")
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert 180 < int(unit["Service"]["TimeoutStartSec"]) <= 600  # the module's own limit in a run, and gpu_stack_wait


def test_the_guard_runs_where_the_module_does_not_load():
    """It is there for that; "-" has systemd go on after a command that fails (systemd.service(5))."""
    unit = (FILES / "gpuhost-kernel-guard.service").read_text()
    assert re.findall(r"^ExecStartPre=(.).*modprobe", unit, re.M) == ["-"]


def test_selinux_lets_systemd_start_the_guard():
    """A script below /usr/lib is no program for systemd, its interpreter is: SELinuxProject/selinux#492."""
    unit = (FILES / "gpuhost-kernel-guard.service").read_text()
    programs = re.findall(r"^Exec\w+=-?(\S+)", unit, re.M)
    assert all(re.fullmatch(r"/(usr/(local/)?)?s?bin/\w+", program) for program in programs), programs
