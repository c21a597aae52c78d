"""Which kernel GRUB boots next: gpuhost's probe and the kernel guard, which runs alone, give one answer.

The configurations are grub-mkconfig's own: see tests/fixtures/grub/README.md. With another case, record again what GRUB
boots: tests/record_grub.py.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import grub, system
from syrupy.assertion import SnapshotAssertion

from tests import record_grub
from tests.unit.module_utils.host_files import put
from tests.unit.roles.nvidia_driver.test_kernel_guard import PROGRAMS, PROJECT, UUID, install_guard


def published(name: str) -> str:
    return (PROJECT / f"tests/fixtures/grub/{name}.cfg").read_text()


D12, D13 = published("debian-12"), published("debian-13")
U22, U24, TWO, PARTUUID = (published(f"ubuntu-{name}") for name in ("22.04", "24.04", "5.11", "partuuid"))
OLD12, NEW12 = "6.1.0-50-amd64", "6.1.0-56-amd64"
OLD13, NEW13, CLOUD13 = "6.12.41+deb13-amd64", "6.12.57+deb13-amd64", "6.12.9+deb13-cloud-amd64"
OLDU, NEWU, CMA = "5.11.0-41-generic", "5.11.0-43-generic", "6.5.13"


def identifier(kernel: str, kind: str = "advanced") -> str:
    return f"gnulinux-advanced-{UUID}>gnulinux-{kernel}-{kind}-{UUID}"


def default(entry: str, text: str = D12) -> str:
    """Return a configuration with another GRUB_DEFAULT, which grub-mkconfig only copies."""
    changed = re.sub(
        r'(?<=\nelse\n)   set default="(0|\$\{saved_entry\})"', lambda _: f'   set default="{entry}"', text
    )
    assert changed != text or f'"{entry}"' in text
    return changed


def flavours(first: str) -> str:
    """Return Debian 13's configuration with another kernel at the top, as GRUB_FLAVOUR_ORDER of Ubuntu's GRUB sorts."""
    simple = D13[D13.index("menuentry 'Debian GNU/Linux' ") : D13.index("submenu ")]
    return default("0", D13.replace(simple, simple.replace(NEW13, first)))


def before(script: str, text: str = TWO) -> str:
    """Return a configuration with another script before its first entry, as /etc/grub.d/09_custom would write it."""
    return text.replace("menuentry 'Ubuntu' ", script + "\nmenuentry 'Ubuntu' ", 1)


def extra(title: str = "X", kernel: str = OLDU) -> str:
    return f"menuentry '{title}' --id x {{\n linux /boot/vmlinuz-{kernel}\n}}\n"


def after(script: str, text: str = TWO) -> str:
    """Return a configuration with another script at its end, as /etc/grub.d/42_custom would write it."""
    return f"{text}{script}\n"


def without_guard() -> str:
    return D12[: D12.index("### BEGIN /etc/grub.d/07_gpuhost")] + D12[D12.index("### BEGIN /etc/grub.d/10_linux") :]


WINDOWS = """menuentry 'Windows Boot Manager (on /dev/sda1)' $menuentry_id_option 'osprober-efi-1A2B-3C4D' {
	insmod chain
	chainloader /EFI/Microsoft/Boot/bootmgfw.efi
}
"""
# Of another partition; as 30_os-prober of GRUB 2.06 writes it, which has the options of its own Linux.
OTHER_LINUX = f"""menuentry 'Debian GNU/Linux 12 (on /dev/sda3)' $menuentry_id_option 'osprober-gnulinux-simple-9f' {{
	linux /boot/vmlinuz-{OLD12} root=/dev/sda3
}}
"""
GUARDED = f"gpuhost_kernel={NEW12}\ngpuhost_entry={identifier(OLD12)}\ngpuhost_tries="
TITLE = "Advanced options for GNU/Linux>GNU/Linux, with Linux "
NO_ENTRY = "unknown: GRUB's menu has no entry "
WAITS = "unknown: entry {} of GRUB's menu is a submenu, which waits for a choice"
SYSTEM = "unknown: entry {} of GRUB's menu starts another system"
OTHER = "unknown: entry {} of GRUB's menu boots no kernel in /boot"
WHICH = "unknown: which entry of GRUB's menu is {} depends on a condition of GRUB"
DEPENDS = "unknown: entry {} of GRUB's menu depends on a condition of GRUB"
DEFAULT = "unknown: which entry of GRUB's menu is its default depends on a condition of GRUB"
SEVERAL = "unknown: entry {} of GRUB's menu boots what a condition of GRUB selects"
# As Linux From Scratch has it: no environment, nothing but two entries.
ENTRIES = f"""menuentry "new" {{
        linux   /boot/vmlinuz-{NEWU} root=/dev/sda2 ro
}}
menuentry "old" {{
        linux   /boot/vmlinuz-{OLDU} root=/dev/sda2 ro
}}
"""
BY_HAND = "set default=0\nset timeout=5\n" + ENTRIES
# A switch at the computer, a USB device with that file system, selects the entry: as its makers have it in /etc/grub.d.
SWITCH = """search --no-floppy --fs-uuid --set hdswitch 55AA-6922
if [ "${hdswitch}" ] ; then
  set default="1"
fi
"""
OLDER = 'set default="1>2"'

CONDITIONAL = (
    "if a; then\n" + extra() + "fi",
    "if a; then\nif b; then\n" + extra() + "fi\nfi",
    "if a; then\nset c=1\nelse\n" + extra() + "fi",
)
# Each is decided by what is on the host.
DECIDED = (
    f"if [ a = a ]; then\n{OLDER}\nfi",
    f"if [ a == b ]; then\ntrue\nelif [ a != b ]; then\n{OLDER}\nfi",
    f"if [ '' ]; then\ntrue\nelse\n{OLDER}\nfi",
    f"if [ -z '' -a -n a ]; then\n{OLDER}\nfi",
    f"if [ -f $prefix/none.cfg ]; then\nset default=0\nelse\n{OLDER}\nfi",
    f"if [ -e $prefix/grub.cfg -a -s ${{config_directory}}/grub.cfg ]; then\n{OLDER}\nfi",
    'set a=1\nset b="$a>2"\nif [ x$a = x1 ]; then\nset default=${b}\nfi',
)
# Each may set the default, or does not: GRUB alone knows.
PERHAPS = (
    SWITCH,
    f"if [ $grub_platform = emu ]; then\n{OLDER}\nfi",
    f'if [ "${{mine}}" -a -z "${{boot_once}}" ]; then\n{OLDER}\nfi',
    f'if [ "$?" = 1 ]; then\n{OLDER}\nfi',
    f"if [ -f /vmlinuz ]; then\n{OLDER}\nfi",
    "if a; then\nb=2\nelse\nb=0\nfi\nset default='1>'$b",
)
# What grub-mkconfig and the scripts of distributions do not write: each may add entries or choose another one.
UNREAD = (
    f"for a in b; do {OLDER}; done",
    f"if a; then {OLDER}; fi",
    f"if a\nthen\n{OLDER}\nfi",
    f"function f {{\n {OLDER}\n}}\nf",
    f"function f {{\n{extra()}}}\nf",
    "read default",
    "search --set=default --label b",
    "unset default",
    "load_env --file (hd0,1)/grubenv",
    "source (hd0,1)/grub/grub.cfg",
    "source /boot/grub/other.cfg",
    f"eval '{OLDER}'",
    "$a",
    "configfile $prefix/a.cfg",
    "menuentry X { linux /boot/vmlinuz-1 }",
    "submenu X {\nsource $prefix/a.cfg\n}",
)
# What the header of GRUB 2.14 has after load_env, in a menu of Debian unstable of March 2026.
ENV_BLOCK = """
if [ "${env_block}" ] ; then
  set env_block="(${root})${env_block}"
  export env_block
  load_env -f "${env_block}"
fi
"""
# As 10_linux_zfs of Ubuntu has them: a function of entries, which a submenu calls.
ZFS = f"""function zsyshistorymenu {{
    set kernel="${{4}}"
    menuentry 'Revert system only' ${{menuentry_id_option}} 'gnulinux-${{root_dataset}}-${{kversion}}' {{
        recordfail
        if [ ${{boot_device}} = /dev/nvme0n1p3 ]; then
            insmod zfs
        fi
        linux "${{kernel}}" root=ZFS="${{root_dataset}}" ro
    }}
}}
menuentry 'Ubuntu 22.04.1 LTS' ${{menuentry_id_option}} 'gnulinux-rpool/ROOT/ubuntu_2cwpns-{OLDU}' {{
    linux "/BOOT/ubuntu_2cwpns@/vmlinuz-{OLDU}" root=ZFS="rpool/ROOT/ubuntu_2cwpns" ro ${{vt_handoff}}
}}
submenu 'History for Ubuntu 22.04.1 LTS' ${{menuentry_id_option}} 'gnulinux-history-rpool/ROOT/ubuntu_2cwpns' {{
    zsyshistorymenu "rpool/ROOT/ubuntu_2cwpns@a" "/dev/nvme0n1p3" "initrd.img" "vmlinuz" "{OLDU}"
}}"""
CASES = {
    "no GRUB": (None, "", NEW12),
    "the first entry": (D12, "", NEW12),
    "a number": (default("1>2"), "", OLD12),
    "a number, recovery": (default("1>3"), "", OLD12),
    "an identifier": (default(identifier(OLD12)), "", OLD12),
    "a title": (default(TITLE + OLD12), "", OLD12),
    "a number, then an identifier": (default("1>" + identifier(OLD12).split(">")[1]), "", OLD12),
    "a submenu": (default("1"), "", WAITS.format("1")),
    "no such number": (default("1>9"), "", NO_ENTRY + "1>9"),
    "no such identifier": (default(identifier("5.10.0-9-amd64")), "", NO_ENTRY + identifier("5.10.0-9-amd64")),
    "part of an identifier": (default(identifier(OLD12)[:-1]), "", NO_ENTRY + identifier(OLD12)[:-1]),
    "of the top level alone": (
        default(identifier(OLD12).split(">")[1]),
        "",
        NO_ENTRY + identifier(OLD12).split(">")[1],
    ),
    "another system": (D12.replace("submenu ", WINDOWS + "submenu ").replace('"0"', '"1"'), "", SYSTEM.format("1")),
    "another system moves the numbers": (default("2>2", D12.replace("submenu ", WINDOWS + "submenu ")), "", OLD12),
    "another Linux": (D12.replace("submenu ", OTHER_LINUX + "submenu ").replace('"0"', '"1"'), "", SYSTEM.format("1")),
    "another system is first": (D12.replace("menuentry 'GNU", WINDOWS + "menuentry 'GNU", 1), "", SYSTEM.format("0")),
    "once": (D12, f"next_entry={identifier(OLD12)}\n", OLD12),
    "once, by number": (D12, "next_entry=1>2\n", OLD12),
    "once, then the default": (D12, "next_entry=\n", NEW12),
    "saved, never set": (D13, "", NEW13),
    "saved": (D13, f"saved_entry={identifier(OLD13)}\n", OLD13),
    "saved, by number": (D13, "saved_entry=1>4\n", CLOUD13),
    "saved, removed since": (D13, "saved_entry=1>9\n", NO_ENTRY + "1>9"),
    "saved, but not asked for": (D12, f"saved_entry={identifier(OLD12)}\n", NEW12),
    "firmware": (default("uefi-firmware", D13), "", OTHER.format("uefi-firmware")),
    "a number after a condition": (default("2", D13), "", WHICH.format("2")),
    "sorted by flavours": (flavours(CLOUD13), "", CLOUD13),
    "two defaults": (after("set default='1>2'", D12), "", OLD12),
    "held back, no module": (D12, GUARDED + "no-module\n", OLD12),
    "held back, boots used up": (D12, GUARDED + "0\n", OLD12),
    "new": (D12, GUARDED + "3\n", NEW12),
    "one boot left": (D12, GUARDED + "1\n", NEW12),
    "held back, another one once": (D12, GUARDED + f"no-module\nnext_entry={identifier(NEW12)}\n", NEW12),
    "held back, not yet in grub.cfg": (without_guard(), GUARDED + "no-module\n", NEW12),
    "Ubuntu 22.04": (U22, "", "5.15.0-91-generic"),
    "Ubuntu 24.04": (U24, "", "6.8.0-88-generic"),
    "Ubuntu, the newer one": (TWO, "", NEWU),
    "Ubuntu, a number": (default("1>2", TWO), "", OLDU),
    "Ubuntu, once": (TWO, f"next_entry={identifier(OLDU)}\n", OLDU),
    "Ubuntu, firmware that no condition hides": (default("2", TWO), "", OTHER.format("2")),
    "GRUB_FORCE_PARTUUID": (PARTUUID, "", CMA),
    "another kernel in one branch": (PARTUUID.replace(CMA + " root", OLDU + " root", 1), "", SEVERAL.format("0")),
    **{f"before the menu: {script}": (before(script), "", WHICH.format("0")) for script in CONDITIONAL},
    "below a condition, by identifier": (default("x", before(f"if a; then\n{extra()}fi")), "", DEPENDS.format("x")),
    "below a condition, in a submenu": (
        default("s>x", before(f"if a; then\nsubmenu S --id s {{\n{extra()}}}\nfi")),
        "",
        DEPENDS.format("s>x"),
    ),
    "a title with a quote": (default("Bob's", before(extra("Bob'\\''s"))), "", OLDU),
    "a title with the sign of a submenu": (default("a>>b", before(extra("a>b"))), "", OLDU),
    "a title that begins with a digit is a number": (default("1.1", before(extra("1.1"))), "", NEWU),
    "options of an entry": (
        default(
            "y",
            before(f"menuentry --class a --users '' --unrestricted --id=y \"T\" {{\n linux /vmlinuz-{OLDU}\n}}"),
        ),
        "",
        OLDU,
    ),
    "a default without set": (after("default='1>2'"), "", OLDU),
    "a default of an entry": (before("menuentry X {\n set default=1\n linux /vmlinuz-" + OLDU + "\n}"), "", OLDU),
    "the kernel held back was removed": (D12, GUARDED.replace(NEW12, "6.12.100+deb12-amd64", 1) + "0\n", OLD12),
    "held back, another default once": (D12, GUARDED + "no-module\nprev_saved_entry=0\n", NEW12),
    "the entry before a boot without an initramfs failed": (TWO, "initrdfail=1\nprev_entry=1>2\n", OLDU),
    "by hand, once": (BY_HAND, "next_entry=1\n", NEWU),
    "by hand, saved": (BY_HAND.replace("=0", '="${saved_entry}"'), "saved_entry=1\n", NEWU),
    "by hand, loaded": ("load_env\n" + BY_HAND.replace("=0", '="${saved_entry}"'), "saved_entry=1\n", OLDU),
    "the environment is not loaded": (TWO.replace("  load_env\n", "  true\n"), "next_entry=1>2\n", NEWU),
    "an entry for one boot is not asked for": (TWO.replace('"${next_entry}" ] ;', '"" ] ;'), "next_entry=1>2\n", NEWU),
    "a switch": (SWITCH + ENTRIES, "", DEFAULT),
    **{f"perhaps the default: {script}": (after(script), "", DEFAULT) for script in PERHAPS},
    **{f"the default: {script}": (after(script), "", OLDU) for script in DECIDED},
    "a file that is missing": (after("source $prefix/other.cfg"), "", NEWU),
    "a file beside grub.cfg": (after("source $prefix/a.cfg"), "", OLDU, {"a.cfg": f"set timeout=5\n{OLDER}\n"}),
    "a file before the menu": (before(". $prefix/a.cfg"), "", OLDU, {"a.cfg": extra()}),
    "a file of the administrator": (TWO, "", OLDU, {"custom.cfg": OLDER + "\n"}),
    "entries of the administrator": (default("3", TWO), "", OLDU, {"custom.cfg": extra()}),
    "GRUB 2.14": (TWO.replace("  load_env\nfi\n", "  load_env\nfi\n" + ENV_BLOCK, 1), "next_entry=1>2\n", OLDU),
    "ZFS": (before(ZFS), "", OLDU),
    "ZFS, an entry of the history": (default("1>0", before(ZFS)), "", NO_ENTRY + "1>0"),
}


def case_of(name: str) -> tuple[str | None, str, str, dict[str, str]]:
    """Return a case's configuration, environment block, next-boot kernel and files beside grub.cfg."""
    configuration, environment, boots, *files = CASES[name]
    return configuration, environment, boots, files[0] if files else {}


def installed(root: Path, configuration: str | None, environment: str, files: dict[str, str] | None = None) -> None:
    for name, content in (files or {}).items():
        put(root, f"/boot/grub/{name}", content)
    for kernel in re.findall(r"vmlinuz-([^\s;]+)", configuration or D12):
        put(root, f"/boot/vmlinuz-{kernel}")
    put(root, "/boot/grub/grubenv", environment)
    if configuration is not None:
        put(root, "/boot/grub/grub.cfg", configuration)


def probed(root: Path) -> str:
    found = system.kernel(str(root), OLD12)
    return found.next_boot or f"unknown: {found.next_boot_unknown}"


def guarded(root: Path, programs: Path) -> str:
    guard = install_guard(programs)
    for name, body in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    command = ["sh", str(guard), "--next", str(root)]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize("case", CASES)
def test_probe_and_guard_name_the_same_kernel(tmp_path: Path, case: str) -> None:
    configuration, environment, expected, files = case_of(case)
    installed(tmp_path / "root", configuration, environment, files)
    said = {"probe": probed(tmp_path / "root"), "guard": guarded(tmp_path / "root", tmp_path / "bin")}
    assert said == {"probe": expected, "guard": expected}


@pytest.mark.parametrize(
    ("entry", "system"),
    [
        (WINDOWS, "Windows Boot Manager (on /dev/sda1)"),
        (OTHER_LINUX, "Debian GNU/Linux 12 (on /dev/sda3)"),
        ("menuentry 'Windows 11' {\n\tchainloader (hd0,gpt1)/EFI/Microsoft/Boot/bootmgfw.efi\n}\n", "Windows 11"),
        ("menuentry 'Own' {\n\tchainloader /EFI/Linux/debian.efi\n}\n", ""),
        ("menuentry 'Xen' {\n\tmultiboot2 /boot/xen.gz\n}\n", ""),
        (f"if loadfont x; then\n{WINDOWS}fi\n", ""),
    ],
    ids=["Windows", "another Linux", "by hand", "a kernel as an EFI program", "a hypervisor", "perhaps"],
)
def test_another_system_that_grub_starts_is_named(tmp_path: Path, entry: str, system: str) -> None:
    configuration = D12.replace("menuentry 'GNU", f"{entry}menuentry 'GNU", 1)
    installed(tmp_path, configuration, "")
    assert grub.ask(str(tmp_path), [OLD12, NEW12]).system == system


def test_grub_itself_boots_the_kernels_that_are_named() -> None:
    """The record is of GRUB as a program: see tests/record_grub.py."""
    record = json.loads(record_grub.RECORD.read_text())["booted"]
    known = record_grub.known({name: case_of(name) for name in CASES})
    assert {name: record[name]["of"] for name in known} == {name: record_grub.digest(*known[name]) for name in known}
    assert {name: record[name]["kernel"] for name in known} == {name: CASES[name][2] for name in known}


def test_a_kernel_that_was_removed_without_update_grub_is_not_booted(tmp_path: Path) -> None:
    installed(tmp_path / "root", D12, "")
    (tmp_path / f"root/boot/vmlinuz-{NEW12}").unlink()
    assert [probed(tmp_path / "root"), guarded(tmp_path / "root", tmp_path / "bin")] == [OTHER.format("0")] * 2


@pytest.mark.parametrize("script", [*UNREAD, "if [ a ]; then\n", "fi\n", "}\n", "menuentry X {\n", "else\n"])
def test_what_is_not_followed_is_a_reason(tmp_path: Path, snapshot: SnapshotAssertion, script: str) -> None:
    installed(tmp_path / "root", after(script), "")
    said = probed(tmp_path / "root")
    assert said == guarded(tmp_path / "root", tmp_path / "bin")
    assert said == snapshot


# The entries of a host with RHEL 10.2, and what `grub2-editenv list` prints there with two and with three kernels; the
# image has another identifier of the machine (a course's laboratory of October 2026).
IMAGE, OWN = "f" * 32, "ec2e861e25a5b84dae694a5a8a2360fc"
EL53, EL61, EL62 = (f"6.12.0-211.{number}.1.el10_2.x86_64" for number in (53, 61, 62))
RHEL = {EL53: IMAGE, EL61: OWN, EL62: OWN}
SAVED = default("${saved_entry}", published("rocky-8"))


def with_files(root: Path, environment: str, entries: dict[str, str], configuration: str = SAVED) -> list[str]:
    """Put the entries {kernel: identifier of the machine}, as kernel-install writes them; return the answers."""
    for kernel, machine in {**entries, f"0-rescue-{OWN}": OWN}.items():
        put(root, f"/boot/vmlinuz-{kernel}")
        text = f"title Red Hat Enterprise Linux ({kernel}) 10.2 (Coughlan)\nversion {kernel}\nlinux /vmlinuz-{kernel}\n"
        name = f"{machine}-0-rescue" if kernel.startswith("0-") else f"{machine}-{kernel}"
        put(root, f"/boot/loader/entries/{name}.conf", f"{text}initrd /initramfs-{kernel}.img $tuned_initrd\n")
    put(root, "/boot/grub2/grubenv", environment)
    put(root, "/boot/grub2/grub.cfg", configuration)
    return [probed(root), guarded(root, root.parent / "bin")]


@pytest.mark.parametrize(
    ("environment", "kernels", "expected"),
    [
        (f"saved_entry={OWN}-{EL61}\nboot_success=1\n", (EL53, EL61), EL61),
        (f"saved_entry={IMAGE}-{EL53}\nboot_success=1\n", (EL53, EL61), EL53),
        (f"saved_entry={IMAGE}-{EL53}\nboot_success=1\nnext_entry=1\n", (EL53, EL61), EL61),
        (f"saved_entry={OWN}-{EL62}\nboot_success=1\n", (EL53, EL61, EL62), EL62),
        ("", (EL53, EL61, EL62), EL53),
        ("saved_entry=1\n", (EL53, EL61, EL62), EL62),
        ("saved_entry=2\n", (EL53, EL61, EL62), EL61),
        (f"saved_entry=Red Hat Enterprise Linux ({EL61}) 10.2 (Coughlan)\n", (EL53, EL61, EL62), EL61),
        (f"saved_entry={OWN}-{EL61}\n", (EL62,), NO_ENTRY + f"{OWN}-{EL61}"),
        (f"saved_entry={OWN}-0-rescue\n", (EL61,), OTHER.format("1")),
        ("saved_entry=0\nboot_counter=0\nboot_success=0\n", (EL61,), DEFAULT),
    ],
)
def test_entries_that_are_files_are_the_menu_of_enterprise_linux(
    tmp_path: Path, environment: str, kernels: tuple[str, ...], expected: str
) -> None:
    entries = {kernel: RHEL[kernel] for kernel in kernels}
    assert with_files(tmp_path / "root", environment, entries) == [expected] * 2


def test_an_identifier_that_begins_with_a_digit_is_no_number_of_an_entry(tmp_path: Path) -> None:
    """As it is in every other system: the identifier of the machine is hexadecimal."""
    entries = dict.fromkeys((EL61, EL62), "1" + OWN[1:])
    assert with_files(tmp_path / "root", f"saved_entry=1{OWN[1:]}-{EL62}\n", entries) == [EL62] * 2


def test_newer_versions_come_first_in_a_menu_of_files(tmp_path: Path) -> None:
    """As versions: 99 is older than 100, a release candidate than its release."""
    kernels = ("5.14.0-99.el9.x86_64", "5.14.0-100.el9.x86_64", "5.14.0-100~rc1.el9.x86_64")
    for number, kernel in enumerate((kernels[1], kernels[2], kernels[0])):
        root = tmp_path / str(number) / "root"
        assert with_files(root, f"saved_entry={number}\n", dict.fromkeys(kernels, OWN)) == [kernel] * 2


def test_a_rescue_image_is_no_kernel(tmp_path: Path) -> None:
    with_files(tmp_path / "root", "", {EL61: OWN})
    assert system.kernel(str(tmp_path / "root"), EL61).installed == (EL61,)


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/boot/loader/loader.conf", f"default debian-{OLD12}.conf\n"),
        ("/boot/efi/loader/loader.conf", "timeout 3\n"),
        ("/efi/loader/loader.conf", ""),
        ("/boot/extlinux/extlinux.conf", "default l1\n"),
        ("/boot/grub/menu.lst", "default 2\n"),
    ],
)
def test_another_boot_loader_may_boot_any_kernel(tmp_path: Path, path: str, content: str) -> None:
    root = tmp_path / "root"
    installed(root, None, "")
    put(root, path, content)
    expected = f"unknown: {path} is of another boot loader, whose choice is not read"
    assert [probed(root), guarded(root, tmp_path / "bin")] == [expected, expected]
    put(root, "/boot/grub/grub.cfg", D12)
    assert [probed(root), guarded(root, tmp_path / "bin")] == [NEW12, NEW12], "GRUB is what this reads"


@pytest.mark.parametrize("suffix", [".dpkg-new", ".old", ".efi.signed"])
def test_a_copy_of_an_image_is_no_kernel(tmp_path: Path, suffix: str) -> None:
    """dpkg was interrupted, installkernel kept it, or somebody signed it: without a menu it would be the newest."""
    root = tmp_path / "root"
    installed(root, None, "")
    put(root, f"/boot/vmlinuz-{NEW12}{suffix}")
    assert [probed(root), guarded(root, tmp_path / "bin")] == [NEW12, NEW12]
    assert system.kernel(str(root), OLD12).installed == (OLD12, NEW12)


def test_a_release_that_goes_on_after_another_has_modules_of_its_own(tmp_path: Path) -> None:
    root = tmp_path / "root"
    put(root, "/boot/vmlinuz-6.12")
    put(root, "/boot/vmlinuz-6.12.9")
    put(root, "/lib/modules/6.12.9/modules.dep")
    assert [probed(root), guarded(root, tmp_path / "bin")] == ["6.12.9", "6.12.9"]


def test_a_configuration_that_cannot_be_read_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    """As of an ordinary user; GRUB's passwords make it root's. The tests may run as root, who may read everything."""
    installed(tmp_path, D12, "")

    def refuse(_root: str, path: str) -> str:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(system.grub, "_read", refuse)
    found = system.grub.ask(str(tmp_path), [OLD12])
    assert found.next is None
    assert found.reason == snapshot
