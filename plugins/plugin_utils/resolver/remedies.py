"""What would work instead: changes of the request or the host, each tried out before it is offered.

Runs on the controller; pure functions. Cheapest first: the fewest parts of the request left to the resolver and then
set to the nearest version that fits; another Python; a component left out; fewer kinds of GPUs; another distribution.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Iterable, Iterator

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import COMPONENTS, LABELS, full_version
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan import Plan, Remedy
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import Request

Attempt = Callable[[Request, Host], Plan]

_CHOICES = ("tensorflow_cuda_libraries", "driver_kernel_modules", "driver_source", "cuda_source")
_MOST = 3  # remedies that are offered
_TRIED = 7  # versions around the asked one that are tried
_GPU_CODES = ("gpu-", "mixed-gpus", "unknown-gpu")


def find_remedies(catalog: Catalog, plan: Plan, host: Host, attempt: Attempt) -> tuple[Remedy, ...]:
    """Up to three remedies that plan; none where nothing tried does."""
    codes = {p.code for p in plan.problems}
    request = plan.request
    if "no-gpu" in codes:
        request = dataclasses.replace(request, expect_gpus=str(len(plan.gpus)))
    found: list[Remedy] = []
    kinds: tuple[Iterable[Remedy], ...] = (
        _requests(catalog, plan, request, host, attempt),
        _pythons(catalog, plan, request, host, attempt) if "python-not-supported" in codes else (),
        _gpus(plan, request, host, attempt) if any(c.startswith(_GPU_CODES) for c in codes) else (),
    )
    for kind in kinds:
        found += kind
    if not found:
        found += _left_out(plan, request, host, attempt)
    if not found:
        found += _elsewhere(catalog, plan, request, host, attempt)
    return tuple(dict.fromkeys(found))[:_MOST]


def remedy_text(remedies: Iterable[Remedy]) -> str:
    """All remedies in one sentence."""
    return "; or ".join(remedy.text for remedy in remedies)


# Of the request ---------------------------------------------------------------------------------------------------


def _asked(request: Request) -> list[str]:
    """The parts of a request that ask for something, in the order in which they are given up."""
    return [name for name in (*_CHOICES, *COMPONENTS[::-1]) if getattr(request, name) not in ("auto", "none")]


def _free(request: Request) -> Request:
    return dataclasses.replace(request, **dict.fromkeys(_asked(request), "auto"))


def _differences(before: Request, after: Request) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f.name, getattr(after, f.name))
        for f in dataclasses.fields(Request)
        if getattr(before, f.name) != getattr(after, f.name)
    )


def _requests(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """The smallest sets of asked versions that, given up, leave a plan; each then moved to the nearest that fits."""
    if request != plan.request and attempt(request, host).ok:
        yield _remedy(plan, request, host, attempt)
        return
    asked = _asked(request)
    freed = _free(request)
    if not asked or not attempt(freed, host).ok:
        return
    for order in (asked, asked[::-1]):
        kept = freed
        for name in order[::-1]:  # what comes last in the order is restored first, so it is kept if it can be
            restored = dataclasses.replace(kept, **{name: getattr(request, name)})
            if attempt(restored, host).ok:
                kept = restored
        yield _remedy(plan, _nearest(catalog, request, kept, host, attempt), host, attempt)


def _nearest(catalog: Catalog, request: Request, freed: Request, host: Host, attempt: Attempt) -> Request:
    """The freed components set to versions as near to the asked ones as the host allows."""
    for name in COMPONENTS:
        asked = getattr(request, name)
        if getattr(freed, name) == asked or asked in ("auto", "none"):
            continue
        for version in [*_neighbours(catalog, name, asked), *_chosen(name, attempt(freed, host))]:
            closer = dataclasses.replace(freed, **{name: version})
            if version != asked and attempt(closer, host).ok:
                freed = closer
                break
    return freed


def _neighbours(catalog: Catalog, name: str, asked: str) -> list[str]:
    """The known versions around the asked one, the nearest first, of two as near the newer."""
    known = {
        "driver": [b.branch for b in catalog.driver.branches],
        "cuda": [t.version for t in catalog.cuda.toolkits],
        "cudnn": [versions.series(v.version) for v in catalog.cudnn.versions],
        "nccl": [b.version for b in catalog.nccl.builds],
        "tensorflow": [versions.series(r.version) for r in catalog.tensorflow.releases if r.sass],
        "pytorch": [versions.series(r.version) for r in catalog.pytorch.releases],
    }[name]
    ordered = sorted(set(known), key=versions.key)
    place = bisect.bisect_left([versions.key(v) for v in ordered], versions.key(asked))
    near = sorted(range(len(ordered)), key=lambda n: (abs(n - place) if n >= place else abs(n - place + 1), -n))
    return [ordered[n] for n in near[:_TRIED]]


def _chosen(name: str, plan: Plan) -> list[str]:
    """What a plan took for a component that was left free."""
    component = plan.components.get(name)
    return [] if component is None else [getattr(component, "branch", None) or component.version]


def _remedy(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Remedy:
    changes = _differences(plan.request, request)
    asks = " and ".join(f"{name}={value}" for name, value in changes)
    return Remedy(f"ask for {asks} ({_outcome(attempt(request, host))})", changes)


def _outcome(plan: Plan) -> str:
    """What a plan would install, in short."""
    parts = []
    for name, label in LABELS.items():
        component = plan.components.get(name)
        if component is not None:
            parts.append(f"{label} {full_version(component)}")
    return "gives " + ", ".join(parts) if parts else "installs nothing"


def _left_out(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Components set to none: the frameworks first, then the toolkit, the driver last."""
    free = _free(request)
    for base in dict.fromkeys((request, free)):
        for names in (("tensorflow",), ("pytorch",), ("cuda",), ("tensorflow", "cuda")):
            less = dataclasses.replace(base, **dict.fromkeys(names, "none"))
            if less != base and attempt(less, host).ok:
                yield _remedy(plan, less, host, attempt)
                return


# Of the host ------------------------------------------------------------------------------------------------------


def _pythons(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """A further Python: the one nearest to the host's own that makes the request as it is possible."""
    own = host.default_python or catalog.distros[host.distribution].python.default
    known = {p for r in catalog.tensorflow.releases for p in r.pythons}
    known |= {p for r in catalog.pytorch.releases for p in r.pythons}
    have = host.pythons or catalog.distros[host.distribution].python.available
    near = sorted(known - set(have), key=lambda p: (abs(_minor(p) - _minor(own)), -_minor(p)))
    for python in near[:8]:
        changed = dataclasses.replace(host, pythons=(*have, python), default_python=own)
        made = attempt(request, changed)
        if made.ok:
            text = f"install Python {python} beside Python {own} ({_outcome(made)})"
            yield Remedy(text, _differences(plan.request, request), (("python", (python,)),))
            return


def _minor(python: str) -> int:
    major, minor = python.split(".")[:2]
    return int(major) * 100 + int(minor)


def _gpus(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Fewer kinds of GPUs: all but one kind, else one kind alone."""
    found = 0
    for base in dict.fromkeys((request, _free(request))):
        for kept in _subsets(host):
            changed = dataclasses.replace(host, gpus=tuple(g for g in host.gpus if g.pci_id in kept))
            made = attempt(base, changed)
            if made.ok:
                yield _host_remedy(plan, host, base, changed, made)
                found += 1
        if found:
            return


def _subsets(host: Host) -> list[tuple[str, ...]]:
    """The kinds of GPUs to keep: first without the rarest kind, last a single one."""
    kinds = sorted(dict.fromkeys(g.pci_id for g in host.gpus), key=lambda k: -sum(g.pci_id == k for g in host.gpus))
    if len(kinds) < 2:
        return []
    found = [tuple(k for k in kinds if k != dropped) for dropped in reversed(kinds)]
    return found + ([(kind,) for kind in kinds] if len(kinds) > 2 else [])


def _elsewhere(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Another distribution release, the nearest kind and newest first; if need be with other changes as well."""
    family = host.distribution.split("-")[0]
    names = [n for n in catalog.distros if n != host.distribution]
    names.sort(key=lambda n: (n.startswith(family), versions.key(n)), reverse=True)
    moved = [Host(name, host.architecture, host.gpus, secure_boot=host.secure_boot) for name in names]
    free = _free(request)
    no_framework = dataclasses.replace(free, tensorflow="none", pytorch="none")
    bases = list(dict.fromkeys((request, free, no_framework, dataclasses.replace(no_framework, cuda="none"))))
    for places, kinds in ((moved, [None]), ([host, *moved], _subsets(host))):
        for base in bases:
            for place in places:
                for kept in kinds:
                    gpus = tuple(g for g in host.gpus if kept is None or g.pci_id in kept)
                    changed = dataclasses.replace(place, gpus=gpus)
                    made = attempt(base, changed)
                    if made.ok:
                        yield _host_remedy(plan, host, base, changed, made)
                        return


def _host_remedy(plan: Plan, host: Host, request: Request, changed: Host, made: Plan) -> Remedy:
    """The remedy that turns a host into another, and its request too."""
    changes: list[tuple[str, tuple[str, ...]]] = []
    words = []
    if changed.distribution != host.distribution:
        changes.append(("distribution", (changed.distribution,)))
        words.append(f"use {changed.distribution}")
    kept = tuple(dict.fromkeys(g.pci_id for g in changed.gpus))
    gone = [k for k in dict.fromkeys(g.pci_id for g in host.gpus) if k not in kept]
    if gone:
        names = {g.pci_id: g.name for g in plan.gpus}
        changes.append(("gpus", kept))
        words.append(f"move {', '.join(names.get(k, f'the device {k}') for k in gone)} to another host")
    asks = _differences(plan.request, request)
    if asks:
        words.append(f"ask for {' and '.join(f'{n}={v}' for n, v in asks)}")
    return Remedy(f"{' and '.join(words)} ({_outcome(made)})", asks, tuple(changes))
