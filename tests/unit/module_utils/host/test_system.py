"""Kernels, Python, compiler and disk of a host."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.host import system
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Kernel, Machine
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json

from tests.unit.module_utils.host_files import link, put


def test_kernels_and_headers_follow_links_within_the_root(tmp_path: Path) -> None:
    put(tmp_path, "/boot/vmlinuz-6.1.0-9-amd64")
    put(tmp_path, "/boot/vmlinuz-6.1.0-56-amd64")
    put(tmp_path, "/usr/src/linux-headers-6.1.0-56-amd64/Makefile")
    link(tmp_path, "/lib/modules/6.1.0-56-amd64/build", "/usr/src/linux-headers-6.1.0-56-amd64")
    link(tmp_path, "/lib/modules/6.1.0-9-amd64/build", "/usr/src/linux-headers-6.1.0-9-amd64")  # Ubuntu's dangling link
    put(tmp_path, "/lib/modules/6.8.0-45-generic/kernel/x.ko")
    put(tmp_path, "/boot/initrd.img-6.1.0-9-amd64", "x")
    put(tmp_path, "/boot/initramfs-6.1.0-56-amd64.img", "x" * (2 * 2**20 + 1))  # as dracut names it
    assert system.kernel(str(tmp_path), "6.1.0-9-amd64") == Kernel(
        running="6.1.0-9-amd64",
        installed=("6.1.0-9-amd64", "6.1.0-56-amd64", "6.8.0-45-generic"),
        headers=("6.1.0-56-amd64",),
        next_boot="6.1.0-56-amd64",
        next_boot_unknown="",
        menu_entries={},
        grub_defaults={},
        held_back=None,
        initramfs_mib=3,
        build_jobs=int(subprocess.run(["nproc"], capture_output=True, check=True).stdout),
    )


def test_the_machine_is_what_its_firmware_says(tmp_path: Path) -> None:
    """Without the texts that a maker did not fill in, and without the serial number where that is for root alone."""
    assert system.machine(str(tmp_path)) is None
    for name, text in (("sys_vendor", "Supermicro"), ("product_name", "Default string"), ("product_serial", "S411")):
        put(tmp_path, f"/sys/class/dmi/id/{name}", f"{text}\n")
    assert system.machine(str(tmp_path)) == Machine("Supermicro", "", "S411")


def test_the_serial_number_of_a_machine_is_for_root_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "/sys/class/dmi/id/product_name", "SYS-821GE\n")
    read = system.files.read_text

    def denied(root: str, path: str) -> str | None:
        if path.endswith("product_serial"):
            raise PermissionError(path)
        return read(root, path)

    monkeypatch.setattr(system.files, "read_text", denied)
    assert system.machine(str(tmp_path)) == Machine("", "SYS-821GE")


def test_an_image_that_vanishes_meanwhile_is_not_counted(tmp_path: Path) -> None:
    """At boot, update-initramfs may rename its new image; a dangling link is as gone."""
    link(tmp_path, "/boot/initrd.img-6.1.0-56-amd64.new", "gone")
    put(tmp_path, "/boot/initrd.img-6.1.0-56-amd64", "x" * 2**20)
    assert system.kernel(str(tmp_path), "6.1.0-56-amd64").initramfs_mib == 1


def test_interpreters_in_usr_bin_take_precedence(tmp_path: Path) -> None:
    for name in ("python3.9", "python3.11", "python3.11-config", "python3-futurize", "python2.7"):
        put(tmp_path, f"/usr/bin/{name}")
    put(tmp_path, "/usr/local/bin/python3.11")
    put(tmp_path, "/usr/local/bin/python3.13")
    link(tmp_path, "/usr/bin/python3", "python3.11")
    found = system.python(str(tmp_path))
    assert found.default == "3.11"
    assert list(found.interpreters.items()) == [
        ("3.9", "/usr/bin/python3.9"),
        ("3.11", "/usr/bin/python3.11"),
        ("3.13", "/usr/local/bin/python3.13"),
    ]
    assert not found.ensurepip  # Debian's python3-venv, which has it, is a package of its own
    put(tmp_path, "/usr/lib/python3.11/ensurepip/__init__.py")
    put(tmp_path, "/usr/include/python3.11/Python.h")
    put(tmp_path, "/usr/include/python3.9/pyconfig.h")
    assert system.python(str(tmp_path)).headers == ("3.11",)
    put(tmp_path, "/usr/include/python3.13/Python.h")  # which one in /usr/local does not find
    assert system.python(str(tmp_path)).headers == ("3.11",)
    put(tmp_path, "/usr/local/include/python3.13/Python.h")
    assert system.python(str(tmp_path)).headers == ("3.11", "3.13")
    link(tmp_path, "/usr/local/bin/python3.14", "/opt/python3.14/bin/python3.14")
    put(tmp_path, "/opt/python3.14/bin/python3.14")
    put(tmp_path, "/opt/python3.14/include/python3.14/Python.h")
    assert system.python(str(tmp_path)).headers == ("3.11", "3.13", "3.14")
    assert system.python(str(tmp_path)).ensurepip
    nothing = {"default": None, "ensurepip": False, "interpreters": {}, "headers": []}
    assert to_json(system.python(str(tmp_path / "nothing"))) == nothing


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_who_may_write_to_a_directory_that_exists_or_not() -> None:
    """Asked by an ordinary user, in another process: root may write everywhere."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        for directory in ("own", "foreign"):
            os.makedirs(f"{root}/opt/{directory}")
        Path(root, "opt/file").touch()
        os.chown(f"{root}/opt/own", 65534, 65534)
        own = {"/opt/own": True, "/opt/own/missing": True}
        wanted = {**own, "/opt/foreign": False, "/opt/missing": False, "/opt/file": False}
        child = os.fork()
        if child == 0:
            os.setgid(65534)
            os.setuid(65534)
            os._exit(int({path: system.may_write(root, path) for path in wanted} != wanted))
        assert os.waitpid(child, 0)[1] == 0
        assert system.may_write(root, "/opt/missing")
        assert not system.may_write(root, "/opt/file")


@pytest.mark.parametrize(
    "chain", [["gcc-12"], ["/etc/alternatives/gcc", "/usr/bin/gcc-12"], ["x86_64-linux-gnu-gcc-12"]]
)
def test_the_version_of_gcc_is_in_the_name_of_its_link(tmp_path: Path, chain: list[str]) -> None:
    at = "/usr/bin/gcc"
    for target in chain:
        link(tmp_path, at, target)
        at = target if target.startswith("/") else f"/usr/bin/{target}"
    put(tmp_path, at)
    assert system.gcc(str(tmp_path), command.run) == "12"


def test_a_gcc_without_a_version_in_its_name_prints_it(tmp_path: Path) -> None:
    assert system.gcc(str(tmp_path), command.run) is None
    put(tmp_path, "/usr/bin/gcc", "#!/bin/sh\necho 13.2.0\n")
    (tmp_path / "usr/bin/gcc").chmod(0o755)
    assert system.gcc(str(tmp_path), command.run) == "13"


@pytest.mark.parametrize(
    ("there", "settings", "found"),
    [
        (["/usr/bin/gcc"], "", ["/usr/bin/gcc"]),
        (["/usr/bin/clang"], "", ["/usr/bin/clang"]),
        (["/opt/llvm/bin/clang-18"], "CC=/opt/llvm/bin/clang-18\n", ["/opt/llvm/bin/clang-18"]),
        (["/usr/bin/clang-18"], 'CC="clang-18"\n', ["/usr/bin/clang-18"]),
        (["/usr/bin/clang-18", "/usr/bin/cc", "/usr/bin/gcc-12"], "", []),
        (["/usr/bin/gcc"], "CC=/opt/gone/cc\n", []),
        ([], "", []),
    ],
)
def test_c_compilers_are_those_that_triton_looks_for(
    tmp_path: Path, there: list[str], settings: str, found: list[str]
) -> None:
    """triton/runtime/build.py: CC alone where it is set, else gcc, else clang."""
    put(tmp_path, "/etc/environment", settings)
    for path in there:
        put(tmp_path, path)
    assert system.c_compilers(str(tmp_path)) == []  # gcc only recommends libc6-dev
    put(tmp_path, "/usr/include/stdlib.h")
    assert system.c_compilers(str(tmp_path)) == found


def test_disk_space_is_that_of_statvfs(tmp_path: Path) -> None:
    (tmp_path / "usr").mkdir()
    found = system.disk(str(tmp_path))
    here = os.statvfs(tmp_path)
    assert set(found) == {
        "/",
        "/boot",
        "/usr",
        "/usr/local",
        "/opt/gpuhost/environments",
        "/var",
        "/var/cache/gpuhost/uv",
        "/var/lib/gpuhost",
        "/var/tmp",
        "/tmp",
    }
    assert {space.mount for space in found.values()} == {"/"}
    assert {space.total_mib for space in found.values()} == {here.f_blocks * here.f_frsize // 2**20}
    assert abs(found["/usr"].free_mib - here.f_bavail * here.f_frsize // 2**20) < 512


def test_temporary_files_are_where_tmpdir_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    assert system.disk("/")["/tmp"].mount == system.disk("/")["/"].mount or os.path.ismount("/tmp")
    monkeypatch.setenv("TMPDIR", "/proc/self")
    assert system.disk("/")["/tmp"].mount == "/proc"
    monkeypatch.setenv("TMPDIR", "/nonexistent/folder")
    assert system.disk("/")["/tmp"].mount == "/"


def test_a_directory_that_was_moved_is_measured_where_it_is(tmp_path: Path) -> None:
    """By its path, whether it exists or not, or by a link: as `ln -s /scratch/uv /var/cache/gpuhost/uv` leaves it."""
    link = tmp_path / "uv"
    link.symlink_to("/proc/self")
    found = system.disk("/", ["/proc/gpuhost/uv", str(link), f"{link}/wheels"])
    assert {found[path].mount for path in ("/proc/gpuhost/uv", str(link), f"{link}/wheels")} == {"/proc"}
    assert set(found) - set(system.disk("/")) == {"/proc/gpuhost/uv", str(link), f"{link}/wheels"}


# As the role's kernel guard writes them, with an entry of tests/fixtures/grub/debian-12.cfg. Which kernel GRUB boots
# then, and with other settings, is in tests/unit/module_utils/host/test_grub.py.
GUARDED = (
    "gpuhost_kernel=6.1.0-56-amd64\ngpuhost_entry=gnulinux-advanced-11111111-2222-3333-4444-555555555555"
    ">gnulinux-6.1.0-50-amd64-advanced-11111111-2222-3333-4444-555555555555\ngpuhost_tries="
)


@pytest.mark.parametrize(
    ("environment", "held"),
    [
        (GUARDED + "no-module\n", "6.1.0-56-amd64"),
        (GUARDED + "0\n", "6.1.0-56-amd64"),
        (GUARDED + "3\n", None),
        (GUARDED + "1\n", None),
        (GUARDED.replace("-56", "-57") + "no-module\n", None),
    ],
    ids=["no module", "boots used up", "new", "one boot left", "removed since"],
)
def test_the_kernel_that_the_guard_holds_back(tmp_path: Path, environment: str, held: str | None) -> None:
    for release in ("6.1.0-9-amd64", "6.1.0-50-amd64", "6.1.0-56-amd64"):
        put(tmp_path, f"/boot/vmlinuz-{release}")
    put(tmp_path, "/boot/grub/grubenv", "# GRUB Environment Block\n" + environment)
    assert system.kernel(str(tmp_path), "6.1.0-50-amd64").held_back == held


def test_mount_points_are_on_the_device_of_their_directory() -> None:
    for directory, space in system.disk("/").items():
        path = directory
        while not os.path.exists(path):
            path = os.path.dirname(path)
        assert os.stat(space.mount).st_dev == os.stat(path).st_dev
        assert path.startswith(space.mount)


OVERLAY = "overlay / overlay rw,relatime,lowerdir=/l,upperdir=%s,workdir=/w 0 0\n"
ROOTS: dict[str, tuple[str, str, str]] = {  # /proc/mounts, /proc/cmdline
    "a disk": ("/dev/sda2 / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n", "root=/dev/sda2 ro", ""),
    "overlayroot": ("/dev/sda2 / ext4 rw 0 0\n", "ro overlayroot=tmpfs:recurse=0 quiet", "overlayroot=tmpfs:recurse=0"),
    "overlayroot on a disk": (
        f"/dev/sdb1 /media/root-rw ext4 rw 0 0\n{OVERLAY % '/media/root-rw/o'}",
        "overlayroot=disk",
        "",
    ),
    "an overlay": (
        f"tmpfs /run tmpfs rw 0 0\n{OVERLAY % '/run/rw/o'}",
        "",
        "an overlay, whose changes are in /run/rw/o, a tmpfs",
    ),
    "a container": (OVERLAY % "/var/lib/docker/overlay2/9f/diff", "root=/dev/sda2 ro", ""),
    "a live image": (OVERLAY % "/cow/upper", "boot=casper quiet splash", "boot=casper"),
    "a live image that keeps changes": (OVERLAY % "/cow/upper", "boot=casper persistent", ""),
    "netboot": ("tmpfs / tmpfs rw 0 0\n", "", "a tmpfs"),
    "a disk over the initramfs": ("rootfs / rootfs rw 0 0\n/dev/sda2 / ext4 rw 0 0\n", "", ""),
    "nothing is known": ("", "", ""),
}


@pytest.mark.parametrize(("mounts", "options", "expected"), ROOTS.values(), ids=ROOTS)
def test_a_root_in_memory(tmp_path: Path, mounts: str, options: str, expected: str) -> None:
    put(tmp_path, "/proc/mounts", mounts)
    put(tmp_path, "/proc/cmdline", f"{options}\n")
    assert system.root_in_memory(str(tmp_path)) == expected
