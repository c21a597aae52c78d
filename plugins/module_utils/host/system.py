# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read a host's machine, kernels, Python, compiler and disk space. Runs on the managed host."""

from __future__ import annotations

import contextlib
import os
import re
from typing import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version, files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.host import grub
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import (
    Cpu,
    DiskSpace,
    Kernel,
    Machine,
    Python,
    Toolchain,
)

MOUNTS = (
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
)
TEMPORARY = "/tmp"  # of apt, DKMS and the compiler, unless TMPDIR is set
CPUS = "/proc/cpuinfo"
DMI = "/sys/class/dmi/id/"
# Without spaces, as in systemd's 20-dmi-id.hwdb, and their like for a serial number.
_UNFILLED = (
    *("defaultstring", "n/a", "o.e.m.", "oem", "systemmanufacturer", "systemname", "systemproductname"),
    *("tobefilledbyo.e.m.", "systemserialnumber", "notspecified"),
)
OSRELEASE = "/proc/sys/kernel/osrelease"
_CPU_FLAGS = re.compile(r"^flags[ \t]*:(.*)$", re.MULTILINE)
_CPU_MODEL = re.compile(r"^model name[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_PLACES = ("/usr/local/bin", "/usr/bin")  # of programs, the last one takes precedence
_PYTHON = re.compile(r"^python(3\.\d+)$")
_GCC = re.compile(r"(?:^|-)gcc-(\d+)$")
_IN_MEMORY = ("tmpfs", "ramfs", "rootfs")
_OVERLAYROOT = re.compile(r"(?:^|\s)(overlayroot=[\"']?tmpfs\S*)")
_LIVE = re.compile(r"(?:^|\s)(boot=(?:live|casper))(?=\s|$)")
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def machine(root: str) -> Machine | None:
    """Return what the firmware says of the machine; None without DMI."""
    said = [_of_firmware(root, name) for name in ("sys_vendor", "product_name", "product_serial")]
    return Machine(*said) if any(said) else None


def _of_firmware(root: str, name: str) -> str:
    """Return a text of DMI, empty where its maker left it as it was, or root alone may read it (serial numbers)."""
    try:
        text = (files.read_text(root, DMI + name) or "").strip()
    except PermissionError:
        return ""
    return "" if text.replace(" ", "").lower() in _UNFILLED else text


def cpu(root: str) -> Cpu | None:
    """Return name and flags of the processors, the flags that all of them have; None where none is listed.

    Arm's list has neither under these names.
    """
    text = files.read_text(root, CPUS) or ""
    flags = [set(line.split()) for line in dict.fromkeys(_CPU_FLAGS.findall(text))]
    if not flags:
        return None
    model = _CPU_MODEL.search(text)
    return Cpu(model.group(1) if model else "", tuple(sorted(set.intersection(*flags))))


def kernel(root: str, running: str) -> Kernel:
    """Return the kernel releases: running, installed (bootable or with modules), with headers, next-boot, held back.

    Also why the next-boot kernel is unknown, the entries of kernels in GRUB's menu, what each file of GRUB's settings
    has as the default entry, the size of the largest initramfs, and how many files DKMS compiles at a time.
    """
    modules = files.names(root, "/lib/modules")
    images = [name for name in files.names(root, "/boot") if name.startswith("vmlinuz-")]
    booted = _without_copies({name[len("vmlinuz-") :] for name in images}, set(modules))
    installed = booted | {v for v in modules if os.path.isdir(files.under(root, "/lib/modules/%s/kernel" % v))}
    boots = grub.ask(root, _by_version(booted))
    headers = [v for v in modules if files.resolve(root, "/lib/modules/%s/build" % v)]
    return Kernel(
        running=running,
        installed=tuple(_by_version(installed)),
        headers=tuple(_by_version(headers)),
        next_boot=boots.next,
        next_boot_unknown=boots.reason,
        next_boot_system=boots.system,
        menu_entries={release: entry for release, entry in boots.entries if entry},
        grub_defaults=_grub_defaults(root),
        held_back=held_back(root, booted),
        initramfs_mib=_largest_initramfs(root),
        build_jobs=len(os.sched_getaffinity(0)),  # DKMS asks nproc
    )


def _without_copies(images: set[str], modules: set[str]) -> set[str]:
    """Return the releases; the name of a copy (.old, .efi.signed) goes on after one, and no modules have it."""
    releases = images | modules
    copies = {name for name in images - modules if any(name.startswith(release + ".") for release in releases)}
    # dpkg is about to rename one; the other is a copy that nothing updates.
    return {name for name in images - copies if ".dpkg-" not in name and not name.startswith(grub.RESCUE)}


def _grub_defaults(root: str) -> dict[str, str]:
    """Return {file: GRUB_DEFAULT} of the files that set it, in the order in which grub-mkconfig reads them."""
    drop_ins = ["/etc/default/grub.d/" + name for name in files.names(root, "/etc/default/grub.d")]
    found = {}
    for path in ["/etc/default/grub", *(path for path in drop_ins if path.endswith(".cfg"))]:
        value = assignments(re.sub(r"[ \t]#.*", "", files.read_text(root, path) or "")).get("GRUB_DEFAULT")
        if value is not None:
            found[path] = value
    return found


def running(root: str) -> str:
    """Return the release of the running kernel."""
    return (files.read_text(root, OSRELEASE) or os.uname().release).strip()


def _largest_initramfs(root: str) -> int:
    """Return the size of the largest initramfs in MiB, rounded up; 0 without any."""
    sizes = []
    for name in files.names(root, "/boot"):
        if re.match(r"initr(d\.img|amfs)-", name):
            with contextlib.suppress(FileNotFoundError):  # an update renames its new image
                sizes.append(os.stat(files.under(root, "/boot/" + name)).st_size)
    return -(-max(sizes, default=0) >> 20)


def held_back(root: str, kernels: Iterable[str]) -> str | None:
    """Return the kernel that the kernel guard keeps GRUB from booting (07_gpuhost of the role nvidia_driver)."""
    kept = assignments(grub.environment(root))
    left = kept.get("gpuhost_tries") in ("1", "2", "3")
    return next((name for name in kernels if name == kept.get("gpuhost_kernel") and not left), None)


def assignments(text: str) -> dict[str, str]:
    """Return the NAME=value lines, unquoted; `export` before a name is ignored."""
    return {name: value.strip("\"'") for name, value in _ASSIGNMENT.findall(text)}


def login_environment(root: str) -> dict[str, str]:
    """Return the variables in /etc/environment, which pam_env sets for every login."""
    return assignments(files.read_text(root, "/etc/environment") or "")


def _by_version(releases: Iterable[str]) -> list[str]:
    """Sort releases, oldest first, in Debian's order: 6.1.0-56-amd64 splits at its last hyphen."""
    return sorted(releases, key=debian_version.key)


def python(root: str) -> Python:
    """Return the interpreters by version; one in /usr/bin takes precedence over one in /usr/local/bin."""
    interpreters: dict[str, str] = {}
    for directory in _PLACES:
        for name in files.names(root, directory):
            match = _PYTHON.match(name)
            if match:
                interpreters[match.group(1)] = "%s/%s" % (directory, name)
    default = _PYTHON.match(os.path.basename(files.resolve(root, "/usr/bin/python3") or ""))
    ordered = sorted(interpreters, key=lambda version: int(version.split(".")[1]))
    version = default.group(1) if default else None
    return Python(
        default=version,
        # Debian has it in a package of its own, python3-venv; without it `python3 -m venv` fails.
        ensurepip=os.path.exists(files.under(root, "/usr/lib/python%s/ensurepip/__init__.py" % version)),
        interpreters={version: interpreters[version] for version in ordered},
        headers=tuple(v for v in ordered if _has_headers(root, v, interpreters[v])),
    )


def _has_headers(root: str, version: str, interpreter: str) -> bool:
    """Return whether Python.h is where an interpreter looks for it: beside its directory, or the one that it is in."""
    found = {interpreter, files.resolve(root, interpreter) or interpreter}
    prefixes = [os.path.dirname(os.path.dirname(path)) for path in found]
    return any(os.path.exists(files.under(root, "%s/include/python%s/Python.h" % (p, version))) for p in prefixes)


def may_write(root: str, directory: str) -> bool:
    """Return whether this user may write to a directory, or may create it where it is missing."""
    path = files.under(root, directory)
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)


def gcc(root: str, run: Run) -> str | None:
    """Return the major version of the default gcc, from its link or else from the compiler; None without one."""
    target = files.resolve(root, "/usr/bin/gcc")
    if target is None:
        return None
    match = _GCC.search(os.path.basename(target))
    if match:
        return match.group(1)
    answer = run([files.under(root, "/usr/bin/gcc"), "-dumpversion"], 10)
    major = answer.output.strip().split(".", 1)[0]
    return major if answer.exit_code == 0 and major.isdigit() else None


def c_compilers(root: str) -> list[str]:
    """Return the compilers with which Triton can compile C; none without the C library's headers.

    That of CC if it is set, else gcc and clang (triton/runtime/build.py); gcc only recommends the headers.
    """
    if not os.path.exists(files.under(root, "/usr/include/stdlib.h")):
        return []
    chosen = login_environment(root).get("CC")
    paths = [os.path.join(place, name) for name in ([chosen] if chosen else ["gcc", "clang"]) for place in _PLACES]
    return [path for path in dict.fromkeys(paths) if files.resolve(root, path) is not None]


def glibc() -> str | None:
    """Return the version of the running glibc; None with another C library (musl)."""
    try:
        name, _unused, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" else None


def toolchain(root: str, run: Run) -> Toolchain:
    """Return the versions of the default gcc and of glibc, and the C compilers that Triton finds."""
    return Toolchain(gcc(root, run), glibc(), tuple(c_compilers(root)))


def root_in_memory(root: str) -> str:
    """Return what has the root file system in memory, where a boot loses what is written to it; empty on a disk.

    A tmpfs, an overlay whose upper directory is on one, or a kernel option of overlayroot (overlayroot.conf) or of live
    images, whose upper directory is mounted out of sight (live-boot(7), casper(7)).
    """
    options = files.read_text(root, "/proc/cmdline") or ""
    if option := _OVERLAYROOT.search(options):
        return option.group(1)
    lines = [line.split() for line in (files.read_text(root, "/proc/mounts") or "").splitlines()]
    mounts = {words[1]: words for words in lines if len(words) > 3}
    kind = mounts["/"][2] if "/" in mounts else ""
    upper = re.search(r"\bupperdir=([^,]*)", mounts["/"][3]) if kind == "overlay" else None
    if upper:
        above = [path for path in mounts if (upper.group(1) + "/").startswith(path.rstrip("/") + "/")]
        kind = mounts[max(above, key=len)][2]
        if kind in _IN_MEMORY:
            return "an overlay, whose changes are in %s, a %s" % (upper.group(1), kind)
        live = None if "persisten" in options else _LIVE.search(options)
        return live.group(1) if live else ""
    return "a %s" % kind if kind in _IN_MEMORY else ""


def disk(root: str, directories: Iterable[str] = ()) -> dict[str, DiskSpace]:
    """Return, by directory of MOUNTS and of `directories`, the space for ordinary users in MiB and the mount point.

    TEMPORARY is the directory of TMPDIR if that is set, as it is for what the tasks run.
    """
    space = {}
    for directory in dict.fromkeys((*MOUNTS, *directories)):
        path = _existing(root, (directory == TEMPORARY and os.environ.get("TMPDIR")) or directory)
        found = os.statvfs(files.under(root, path))
        unit = found.f_frsize
        space[directory] = DiskSpace(
            free_mib=found.f_bavail * unit >> 20, total_mib=found.f_blocks * unit >> 20, mount=_mount(root, path)
        )
    return space


def _existing(root: str, path: str) -> str:
    """Return the nearest directory of a path that exists, without links, since `_mount` looks at its parents."""
    real, links = "/", 0
    names = [name for name in path.split("/") if name]
    while names:
        here = os.path.normpath(os.path.join(real, names[0]))
        target = files.link_target(root, here)
        if target is not None and links < files.MAX_LINKS:
            links += 1
            real = "/" if target.startswith("/") else real
            names[:1] = [name for name in target.split("/") if name]
        elif os.path.exists(files.under(root, here)):
            real = here
            del names[0]
        else:
            break
    return real


def _mount(root: str, path: str) -> str:
    """Return the topmost parent on the same device."""
    device = os.stat(files.under(root, path)).st_dev
    while path != "/" and os.stat(files.under(root, os.path.dirname(path))).st_dev == device:
        path = os.path.dirname(path)
    return path
