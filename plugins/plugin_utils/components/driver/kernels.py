"""Select what DKMS builds the kernel modules with: headers, the kernels' own compilers, and tools.

Runs on the controller; pure functions. On a host, the packages that own the kernels and the kernels' configuration
decide; for a described host the rows of the catalog.
"""

from __future__ import annotations

import dataclasses
import re

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import Kernel, KernelRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import BadKernel, PoorKernel
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext, gpu_label

PROBLEMS = {
    "realtime-kernel": "modules are to be built for a kernel with PREEMPT_RT, which NVIDIA's driver does not support",
    "clang-kernel": "modules are to be built for a kernel that clang has built, for which NVIDIA's do not build",
    "raspberry-pi-kernel": "the host has a kernel of Raspberry Pi, on which NVIDIA's driver does not initialize a GPU",
}
WARNINGS = {
    "compiler-unknown": "the compiler of a kernel is not known: DKMS takes the default one, which may not fit",
    "poor-kernel": "a kernel runs, and its flavour hurts on these GPUs: `poor_kernels` of `catalog/known_bad.yml`",
    "headers-unknown": "a described kernel is not named as those of the archive, which then has no headers of it",
}
HEADERS, IMAGE = "linux-headers-", "linux-image-"
_SERIES = re.compile(r"\d+\.\d+")  # which script/plan is given where the release does not matter, such as 6.8


def with_build_packages(context: ResolveContext, driver: DriverComponent, findings: Findings) -> DriverComponent:
    """Return a driver with the packages that its kernel modules are built with on this host, if they are."""
    if driver.module_source != "dkms":
        return driver
    headers = _headers(context)
    _refuse_kernels(context, findings)
    _warn_of_other_kernels(context, findings)
    return dataclasses.replace(
        driver,
        kernel_headers=headers,
        kernel_compilers=_compilers(context, headers, findings),
        kernel_tools=_tools(context),
    )


def _refuse_kernels(context: ResolveContext, findings: Findings) -> None:
    """Add a problem for kernels that NVIDIA's modules do not build for.

    Not where the running one is of that kind and has them loaded: whoever built these can build the next ones.
    """
    for bad in context.catalog.known_bad.kernels:
        found = [name for name in releases(context) if not _is_borrowed(context, name) and _is(bad, context, name)]
        if not found or (context.host.loaded_driver and context.host.kernel in found):
            continue
        row = facts.kernel_headers(context.distro, _standard(context, context.distro.kernel.default))
        image = context.distro.kernel.image or (row.package if row else HEADERS + "generic").replace(HEADERS, IMAGE)
        names = ", ".join(found)
        start = context.distro.words.START.format(kernel="RELEASE")
        default = f"sudo {start}" if start else "GRUB_DEFAULT in /etc/default/grub, sudo update-grub"
        why = f"build for kernel {names} (CONFIG_{bad.setting}=y)" if bad.setting else f"serve kernel {names}"
        findings.problem(
            bad.code,
            f"NVIDIA's modules do not {why}: {bad.symptom} ({bad.source})",
            bad.instead
            or f"start a standard kernel instead: type: sudo {context.distro.words.install([image])}, "
            f"make that GRUB's default ({default}) or remove {names}, and type: sudo reboot",
        )


def warn_of_poor_kernels(context: ResolveContext, findings: Findings) -> None:
    """Warn of kernels of a flavour that hurts on a GPU of the host; of a described host those that it names."""
    for poor in context.catalog.known_bad.poor_kernels:
        gpus = [gpu for gpu in context.gpu_kinds if gpu.pci_id.removeprefix("10de:") in poor.devices]
        own = [name for name in context.host.kernel_releases if not is_series(name) and _is(poor, context, name)]
        if gpus and own:
            findings.warn(
                "poor-kernel",
                f"kernel {', '.join(own)} with {', '.join(map(gpu_label, gpus))}: {poor.symptom} ({poor.source}); take "
                f"{poor.instead}",
            )


def _is(bad: BadKernel | PoorKernel, context: ResolveContext, release: str) -> bool:
    """Return whether a kernel is of a kind, by its configuration, else by its name."""
    settings = _release(context, release).settings
    if bad.setting and settings is not None:
        return bad.setting in settings
    return bool(bad.named and re.search(bad.named, release))


def _warn_of_other_kernels(context: ResolveContext, findings: Findings) -> None:
    """Warn of a described host's kernel of somebody else: on a host its packages and apt's lists say what it has."""
    if context.host.kernels is not None:
        return
    for release in context.host.kernel_releases:
        if not is_series(release) and not facts.is_archive_kernel(context.distro, release):
            headers = facts.exact_headers(context.distro, release)
            findings.warn(
                "headers-unknown",
                f"kernel {release} is not named as those of {context.distro.id}'s archive, which then has no headers "
                f"of it: {headers} must come from where the kernel is from; without them, the host is refused",
            )


def _kernels(context: ResolveContext) -> Kernel:
    return context.host.kernels or Kernel()


def _release(context: ResolveContext, release: str) -> KernelRelease:
    return _kernels(context).releases.get(release, KernelRelease())


def is_series(release: str) -> bool:
    """Return whether a kernel is known by its series alone, such as 6.8."""
    return _SERIES.fullmatch(release) is not None


def releases(context: ResolveContext) -> tuple[str, ...]:
    """Return the kernels that modules are built for: the running and the next-boot one, or the distribution's own."""
    return tuple(
        _standard(context, release) if is_series(release) else release
        for release in context.host.kernel_releases or (context.distro.kernel.default,)
    )


def _standard(context: ResolveContext, series: str) -> str:
    return facts.kernel_of_series(context.distro, series, context.host.architecture)


def _headers(context: ResolveContext) -> tuple[str, ...]:
    """Return the exact headers of each kernel, then the metapackages of their flavours, which follow updates."""
    own = [release for release in context.host.kernel_releases if not is_series(release)]
    exact = [_exact(context, release) for release in own if _needs(context, release)]
    if context.distro.kernel.metas_of_build:
        return tuple(dict.fromkeys([*exact, *_meta_of_build(context)]))
    metas = [meta for release in releases(context) for meta in _header_metas(context, release)]
    return tuple(dict.fromkeys([*exact, *metas]))


def _meta_of_build(context: ResolveContext) -> list[str]:
    """Return the metapackage of the next-boot kernel's headers, which dnf takes in the version of a kernel there is."""
    newest = (context.host.kernel_releases or (context.distro.kernel.default,))[-1]
    row = facts.kernel_headers(context.distro, _standard(context, newest) if is_series(newest) else newest)
    return [row.package] if row else []


def _exact(context: ResolveContext, release: str) -> str:
    """Return the package with the headers of a kernel: that of its name, else one that apt says provides them."""
    kernels, name = _kernels(context), facts.exact_headers(context.distro, release)
    others = [other for other in (kernels.headers_from or {}).get(release, ()) if not other.startswith(HEADERS)]
    if name in kernels.installed_packages or name in (kernels.offers or ()) or not others:
        return name
    return others[0]


def _needs(context: ResolveContext, release: str) -> bool:
    """Return whether exact headers are a package: those of a kernel that somebody built or lends are not."""
    kernels, name = _kernels(context), facts.exact_headers(context.distro, release)
    if release not in kernels.headers and not _is_borrowed(context, release):
        return True
    return name in kernels.installed_packages or name in (kernels.offers or ())


def _header_metas(context: ResolveContext, release: str) -> list[str]:
    """Return those of the kernel's own metapackages; a kernel that none follows was pinned, and gets none."""
    if context.host.kernels is None:
        row = facts.kernel_headers(context.distro, release)
        return [row.package] if row else []
    metas = [HEADERS + meta.removeprefix(IMAGE) for meta in _release(context, release).metas]
    if not facts.is_archive_kernel(context.distro, release):  # a mainline build has the flavour of the archive's
        metas = [meta for meta in metas if _is_of_others(context, meta)]
    return [meta for meta in metas if _can_have(context, meta)]


def _is_of_others(context: ResolveContext, meta: str) -> bool:
    """Return whether a metapackage follows kernels that are not the archive's, by the headers it brings if known."""
    offer = (_kernels(context).offers or {}).get(meta)
    if offer is None:
        return meta not in {row.package for row in context.distro.kernel.headers}
    return any(not facts.is_archive_kernel(context.distro, release) for release in offer.headers)


def _can_have(context: ResolveContext, meta: str) -> bool:
    """Return whether a metapackage can be installed without another kernel, which Debian 13's headers depend on."""
    kernels = _kernels(context)
    if kernels.offers is None or meta in kernels.installed_packages:
        return True
    return meta in kernels.offers and not kernels.offers[meta].images


def _compilers(context: ResolveContext, headers: tuple[str, ...], findings: Findings) -> tuple[str, ...]:
    """Return the gcc of each kernel that DKMS builds for, those included whose headers a metapackage brings."""
    offers = _kernels(context).offers or {}
    majors = []
    for release in (release for release in releases(context) if not _is_borrowed(context, release)):
        major = _gcc(context, release)
        if major is None and "CC_IS_CLANG" not in (_release(context, release).settings or ()):
            found = _release(context, release).compiler
            findings.warn(
                "compiler-unknown",
                f"the compiler of kernel {release} is {f'{found}, not gcc' if found else 'not known'}: its modules are "
                f"built with the default one, gcc {context.host.gcc or context.distro.gcc.default}, which may not fit",
            )
        elif major is not None:
            majors.append(major)
    brought = [release for name in headers if name in offers for release in offers[name].headers]
    majors += [major for major in (_gcc(context, release) for release in brought) if major is not None]
    named = (context.distro.gcc.for_modules(major) for major in sorted(set(majors)))
    return tuple(name for name in named if name)


def _is_borrowed(context: ResolveContext, release: str) -> bool:
    """Return whether a host runs a kernel that is not installed on it, as a container does."""
    return context.host.kernels is not None and release not in context.host.kernels.installed


def _gcc(context: ResolveContext, release: str) -> int | None:
    known = _release(context, release)
    if known.compiler:
        return known.gcc
    row = facts.kernel_compiler(context.distro, release)
    return row.gcc if row else None


def _tools(context: ResolveContext) -> tuple[str, ...]:
    packages = context.catalog.packages
    compressions = [
        context.distro.kernel.compression if context.host.kernels is None else _release(context, release).compression
        for release in releases(context)
    ]
    names = {**packages.module_compressors, **context.distro.kernel.compressors}
    compressors = [names[how] for how in compressions if how in names]
    return tuple(dict.fromkeys([*packages.kernel_tools, *compressors]))
