# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read which package a kernel is from, how it was compiled, and what there is to build modules for it.

Runs on the managed host.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Iterable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version, files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Kernel, KernelRelease
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import ModulesOfOthers
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database, words_of
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.installed import InstalledPackage
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.lists import lists
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Words

# Make's own file quotes the value up to Linux 6.5 and from 6.12 on, and does not in between.
_COMPILER = re.compile(r'^CONFIG_CC_VERSION_TEXT="?(.*?)"?$', re.MULTILINE)
_CONFIGURATIONS = (
    *("/boot/config-%s", "/lib/modules/%s/config"),
    *("/lib/modules/%s/build/include/config/auto.conf", "/lib/modules/%s/build/.config"),
)
# _FULL before 5.4. The others are of kernels that hurt some GPUs.
_SETTINGS = "PREEMPT_RT|CC_IS_CLANG|KEXEC_HANDOVER_ENABLE_DEFAULT|ARM64_4K_PAGES"
_SETTING = re.compile(r"^CONFIG_(%s)(?:_FULL)?=y$" % _SETTINGS, re.MULTILINE)
_OFF = {"KEXEC_HANDOVER_ENABLE_DEFAULT": "kho=off"}  # the kernel option that undoes a setting
_SAID = {"PREEMPT_RT": "PREEMPT_RT", "clang version": "CC_IS_CLANG"}
_RUNNING_COMPILER = re.compile(r"^Linux version \S+ \([^)]*\) \(((?:[^()]|\([^()]*\))*?)(?:, GNU ld .*)?\) #")
PREBUILT = "linux-modules-nvidia-"  # Ubuntu's (catalog/packages.yml, `prebuilt`), of a kernel or of its flavour
_PREBUILT = re.compile(PREBUILT + r"((\d{3})(?:-server)?(?:-open)?-)[a-z\d]")
_NAMED = re.compile(r"\bgcc-(\d+)\b")
_VERSION = re.compile(r"\bgcc\b.*?(?:\)|version) (\d+)\.\d+")  # 26.04's has no number in its name
_FLAVOUR = re.compile(r"-([a-z][a-z0-9-]*)$")
_DKMS_NAME = re.compile(r"""^\s*(?:PACKAGE_NAME|BUILT_MODULE_NAME\[\d+\])=["']?([^"'\s]+)""", re.MULTILINE)
_MODULE = re.compile(r"^(?:\S*/)?([^/\s]+)\.ko(?:\.(?:gz|xz|zst))?(?::|$)", re.MULTILINE)
_COMPRESSED = re.compile(r"\.ko(?:\.(gz|xz|zst))?:")


def prebuilt_modules(names: Iterable[str], branch: str, kernel: str) -> str:
    """Return the package with a driver's prebuilt modules for a kernel, by that for another one; empty without one."""
    stems = (PREBUILT + match.group(1) for match in map(_PREBUILT.match, names) if match and match.group(2) == branch)
    return next((stem + kernel for stem in stems), "")


def without_driver(words: Words, kernel: str, package: str) -> str:
    """Return what to type for a kernel that has no module of a driver that others installed.

    words: of the host's package manager; package: the one with prebuilt modules; empty where DKMS builds them
    """
    if package:
        return "type: sudo " + words.install([package])
    return "install the headers of kernel %s (%s) and type: sudo dkms autoinstall -k %s" % (
        kernel, words.headers(kernel), kernel,
    )  # fmt: skip


def release(
    root: str, name: str, running: bool, packages: dict[str, InstalledPackage], modules: Sequence[str] = ()
) -> KernelRelease:
    """Return what is known of a kernel by its release, such as 6.8.0-90-generic. modules: that the host needs of it."""
    compiler = _compiler(root, name, running)
    version = _text(root, "/proc/version") if running else ""
    return KernelRelease(
        package=_owner(root, name),
        metas=tuple(_metas(name, packages)),
        compiler=compiler,
        gcc=gcc_major(compiler or ""),
        compression=_compression(root, name),
        lacks=_lacks(root, name, modules) if modules else None,
        settings=_settings(root, name, "%s %s" % (compiler, version)),
    )


def images(root: str) -> dict[str, InstalledPackage]:
    """Return the installed packages with kernels, and the metapackages that depend on them."""
    found = database(root).read([*words_of(root).KERNELS])
    return {name: package for name, package in found.items() if package.status == "installed"}


def gcc_major(compiler: str) -> int | None:
    """Return the major of a compiler by its description, None where it is not gcc."""
    match = _NAMED.search(compiler) or _VERSION.search(compiler)
    return int(match.group(1)) if match else None


def _compiler(root: str, name: str, running: bool) -> str | None:
    for path in _CONFIGURATIONS:
        match = _COMPILER.search(_text(root, path % name))
        if match and match.group(1):
            return match.group(1)
    match = _RUNNING_COMPILER.match(_text(root, "/proc/version")) if running else None
    return match.group(1) if match else None


def _settings(root: str, name: str, said: str) -> tuple[str, ...] | None:
    """Return which settings of a kernel matter to NVIDIA's modules or GPUs; None where neither tells.

    By the first of its configurations that is there, and what it says of itself: its compiler and /proc/version. What
    an option of the running kernel undoes is left out, since the next one has it as well.
    """
    text = next(filter(None, (_text(root, path % name) for path in _CONFIGURATIONS)), None)
    options = _text(root, "/proc/cmdline").split()
    found = {setting for word, setting in _SAID.items() if word in said} | set(_SETTING.findall(text or ""))
    found -= {setting for setting, option in _OFF.items() if option in options}
    return tuple(sorted(found)) if found or text is not None else None


def _text(root: str, path: str) -> str:
    """Return a file below /lib/modules/RELEASE/build, which is a link to an absolute path."""
    head, build, tail = path.partition("/build/")
    real = files.resolve(root, head + "/build") if build else None
    if build and real is None:
        return ""
    return files.read_text(root, "%s/%s" % (real, tail) if build else path) or ""


def _compression(root: str, name: str) -> str | None:
    match = _COMPRESSED.search(files.read_text(root, "/lib/modules/%s/modules.dep" % name) or "")
    return match.group(1) if match else None


def _lacks(root: str, name: str, modules: Sequence[str]) -> tuple[str, ...] | None:
    """Return which modules a kernel lacks by the lists of depmod(8), in which `-` may stand for `_`."""
    lists = [files.read_text(root, "/lib/modules/%s/%s" % (name, kind)) for kind in ("modules.dep", "modules.builtin")]
    if not lists[0]:
        return None
    there = {found.replace("-", "_") for text in lists for found in _MODULE.findall(text or "")}
    return tuple(module for module in modules if module not in there)


def _owner(root: str, name: str) -> str | None:
    """Return the package with the image of a kernel, such as linux-image-RELEASE or proxmox-kernel-RELEASE-signed."""
    owners = database(root).owners(["/boot/vmlinuz-" + name], within=name)
    return next((package.partition(":")[0] for package in owners.values()), None)


def _metas(name: str, packages: dict[str, InstalledPackage]) -> list[str]:
    """Return the metapackages of the newest installed kernel of the same flavour that has any.

    A metapackage depends on the newest kernel alone, so that an older one has no metapackage of its own. dnf's kernels
    have none: each version of a package is installed beside the others.
    """
    kernels = [n for n in packages if re.match(r"linux-image-(?:unsigned-)?\d", n)]
    same = [n for n in kernels if _flavour(n) == _flavour(name)]
    for kernel in sorted(same, key=debian_version.key, reverse=True):
        metas = [n for n, package in packages.items() if kernel in package.depends and n not in kernels]
        if metas:
            return sorted(metas)
    return []


def _flavour(name: str) -> str:
    match = _FLAVOUR.search(name)
    return match.group(1) if match else ""


def building(root: str, kernel: Kernel, tools: dict[str, list[str]], search: bool, run: Run) -> Kernel:
    """Return the kernels with the installed packages to build modules with, and what is offered.

    tools: the packages that a build needs by the compression of the modules, those that each needs under "". The lists
    are searched only where something is missing or a compiler is not known, which takes a few tenths of a second.
    """
    words = words_of(root)
    built_for = {kernel.running, kernel.next_boot or kernel.running, kernel.held_back}
    releases = {name: row for name, row in kernel.releases.items() if name in built_for}
    needed = set(map(words.headers, releases))
    for row in releases.values():
        needed |= set(map(words.headers_of_meta, row.metas))
        needed |= {words.compiler(row.gcc or 0)} | {*tools[""], *tools.get(row.compression or "", ())}
    globs = sorted({*needed, *(name for names in tools.values() for name in names), "gcc-?", "gcc-??"})
    installed = sorted(n for n, package in database(root).read(globs).items() if package.status == "installed")
    kernel = replace(kernel, installed_packages=tuple(installed))
    without = sorted({*releases, *kernel.installed} - set(kernel.headers))
    if not search or (needed.issubset(installed) and not set(without) & set(releases)):
        return replace(kernel, headers_from={})
    offered = lists(root, run).kernel_offers(globs, without)
    if offered is None:
        return kernel
    offers, providers = offered
    present = images(root)
    offers = {
        name: replace(offer, images=tuple(image for image in offer.images if image not in present))
        for name, offer in offers.items()
    }
    return replace(kernel, offers=offers, headers_from=providers)


def of_others(root: str) -> tuple[ModulesOfOthers, ...]:
    """Return whose kernel modules the host depends on beside NVIDIA's: `zfs` and `ofed`, with the evidence.

    The evidence is state: what is mounted or loaded, DKMS's sources, the program `ofed_info`.
    """
    built = set()
    for folder in files.names(root, "/usr/src"):
        built.update(_DKMS_NAME.findall(files.read_text(root, "/usr/src/%s/dkms.conf" % folder) or ""))
    mounts = [line.split() for line in (files.read_text(root, "/proc/mounts") or "").splitlines()]
    pools = [words[1] for words in mounts if len(words) > 2 and words[2] == "zfs"]
    found = []
    if "/" in pools:
        found.append(ModulesOfOthers("zfs", "the root file system is ZFS", "zfs" in built))
    elif pools:
        found.append(ModulesOfOthers("zfs", "ZFS is mounted at %s" % ", ".join(pools[:3]), "zfs" in built))
    elif "zfs" in built or "zfs" in (files.read_text(root, "/proc/filesystems") or "").split():
        found.append(ModulesOfOthers("zfs", "the module of ZFS is installed", "zfs" in built))
    ofed = bool(built & {"mlx5_core", "mlnx-ofed-kernel"})
    if ofed or files.read_bytes(root, "/usr/bin/ofed_info") is not None:
        modules = (files.read_text(root, "/proc/modules") or "").splitlines()
        loaded = any(line.split(" ")[0] == "nvidia_peermem" for line in modules)
        found.append(ModulesOfOthers("ofed", "NVIDIA's DOCA-OFED is installed", ofed, peermem=loaded))
    return tuple(found)
