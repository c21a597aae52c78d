"""What frameworks have in common: a wheel for a Python of the host and its processor, and a lock.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import CpuOnly, FrameworkRelease
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext

PROBLEMS = {
    "python-not-supported": "the framework has no wheel for a Python of the host",
    "cpu-feature-missing": "the wheels need instructions that the processor, often that of a virtual machine, lacks",
}
CPU_LACKS = "cpu-feature-missing"
_VIRTUAL = "hypervisor"  # the feature of a processor that a hypervisor shows


def _pythons(context: ResolveContext) -> tuple[str, tuple[str, ...]]:
    """Return the default Python, and all that the host has or its distribution release offers."""
    own = context.distro.python
    return context.host.default_python or own.default, tuple(context.host.pythons or own.available)


def reduced(context: ResolveContext) -> ResolveContext:
    """Return the question with what locks depend on; GPUs have nothing to do with them."""
    return context.reduced(host=("pythons", "default_python", "cpu", "cpu_flags")).with_gpus(())


@functools.lru_cache(maxsize=8192)  # a few hundred for each set of Pythons
def lock_for(
    context: ResolveContext, lock: locks.Lock, variant: str, offered: tuple[str, ...]
) -> tuple[locks.Lock, tuple[Problem, ...]]:
    """Return a lock for one of the host's Pythons, and the problem if there is none.

    context: as `reduced` returns it, for all releases at once; variant: what messages add to the release; offered: the
    Pythons that it has wheels for.
    """
    default, pythons = _pythons(context)
    supporting = [p for p in pythons if p in offered]
    if supporting:
        known = {p: dataclasses.replace(lock, python=p) for p in supporting}
        lacking = {p: locks.source_only(context.catalog, each) for p, each in known.items()}
        whole = [p for p in supporting if lacking[p] is None]
        started = [p for p in whole if not _cpu_problems(context, known[p])]
        chosen = locks.choose_python(context.catalog, lock, default, started or whole or supporting)
        package = lacking[chosen.python]
        problems = [locks.no_wheel(chosen, package)] if package else locks.no_lock(context.catalog, chosen)
        return chosen, (*problems, *_cpu_problems(context, chosen))
    unserved = Problem(
        "python-not-supported",
        f"{lock.label}{variant} is made for Python {', '.join(offered)}; this host has Python {', '.join(pythons)}",
        f"install one of those Pythons, or set gpu_stack_{lock.framework} to another release",
    )
    return dataclasses.replace(lock, python=default), (unserved,)


def _cpu_problems(context: ResolveContext, lock: locks.Lock) -> list[Problem]:
    """Return the problem of a lock whose wheels need what the host's processor lacks; none where it is not known."""
    flags = context.host.cpu_flags
    if flags is None:
        return []
    label = lock.label
    lacking: list[str] = []
    for row in context.catalog.cpu.wheels:
        is_framework = row.package == lock.framework
        version = lock.version if is_framework else context.catalog.pinned.get(lock.file, {}).get(row.package)
        missing = [flag for flag in row.flags if flag not in flags]
        if version and missing and versions.satisfies(version, row.releases):
            wheel = label if is_framework else f"{row.package} {version} in the lock of {label}"
            lacking.append(f"{', '.join(missing)} (for {wheel})")
    if not lacking:
        return []
    processor = f"the processor ({context.host.cpu})" if context.host.cpu else "the processor"
    message = f"{processor} lacks what the wheels need: {'; '.join(lacking)}"
    return [Problem(CPU_LACKS, message, _cpu_remedy(lock.framework, _VIRTUAL in flags))]


def _cpu_remedy(framework: str, is_virtual: bool) -> str:
    leave_out = f"leave {frameworks.LABELS[framework]} out with gpu_stack_{framework}=none"
    if is_virtual:
        return (
            "give the virtual machine the processor of its host (CPU type `host`: `<cpu mode='host-passthrough'/>` of "
            f"libvirt, `qm set ID --cpu host` of Proxmox, `-cpu host` of QEMU), and start it anew; or {leave_out}"
        )
    return f"use a computer whose processor has that; or {leave_out}"


def lacking_wheel(label: str, asked: str, releases: Iterable[FrameworkRelease], cpu_only: Sequence[CpuOnly]) -> str:
    """Return in the words of messages which wheel there is none of; empty where a release that is asked for has one.

    asked: `auto`, or the beginning of a version. A version that nothing is known of is no wheel that lacks.
    """
    known = [release.version for release in releases]
    if asked == "auto":
        rows = () if known else cpu_only
        lacks = not known
    else:
        rows = [row for row in cpu_only if versions.satisfies(asked, row.releases)]
        lacks = not known or bool(rows and not any(versions.has_prefix(version, asked) for version in known))
    if not lacks:
        return ""
    why = "; ".join(row.source for row in rows)
    return f"{label} wheel with CUDA ({why})" if why else f"{label} wheel"


def has_code(sass: tuple[str, ...], gpu: Gpu) -> bool:
    """Return whether machine code for these compute capabilities runs on a GPU: it does on later ones of its major."""
    capability, major = versions.key(gpu.compute_capability), versions.major(gpu.compute_capability)
    return any(versions.major(s) == major and versions.key(s) <= capability for s in sass)
