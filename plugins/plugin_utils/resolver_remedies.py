"""What would work instead: changes of the request or the host, each tried out before it is offered.

Runs on the controller; pure functions. Cheapest first: the fewest parts of the request left to the resolver and then
set to the nearest version that fits; another Python; a component left out; fewer kinds of GPUs; another distribution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog_types import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan import COMPONENTS, Gpu, Host, Plan, Remedy, Request

Attempt = Callable[[Request, Host], Plan]

_CHOICES = ("tensorflow_cuda_libraries", "driver_source", "cuda_source")
_MOST = 3
_GPU_CODES = ("gpu-", "mixed-gpus", "unknown-gpu")


def find_remedies(catalog: Catalog, plan: Plan, host: Host, attempt: Attempt) -> tuple[Remedy, ...]:
    """Up to three remedies that plan; none where nothing tried does."""
    codes = {p.code for p in plan.problems}
    request = plan.request
    if "no-gpu" in codes:
        request = dataclasses.replace(request, expect_gpus=str(len(plan.gpus)))
    found: list[Remedy] = []
    kinds: tuple[Iterable[Remedy], ...] = (
        _requests(plan, request, host, attempt),
        _pythons(catalog, plan, request, host, attempt) if "python-not-supported" in codes else (),
        _gpus(plan, request, host, attempt) if any(c.startswith(_GPU_CODES) for c in codes) else (),
    )
    for kind in kinds:
        found += kind
    if not found:
        found += _left_out(plan, request, host, attempt)
    if not found or "distro-not-supported" in codes:
        found += _distributions(catalog, plan, request, host, attempt)
    return tuple(dict.fromkeys(found))[:_MOST]


def remedy_text(remedies: Iterable[Remedy]) -> str:
    """All remedies in one sentence."""
    return "; or ".join(remedy.text for remedy in remedies)


# Of the request ---------------------------------------------------------------------------------------------------


def _asked(request: Request) -> list[str]:
    """The parts of a request that ask for something, in the order in which they are given up."""
    return [name for name in (*_CHOICES, *COMPONENTS[::-1]) if getattr(request, name) not in ("auto", "none")]


def _differences(before: Request, after: Request) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f.name, getattr(after, f.name))
        for f in dataclasses.fields(Request)
        if getattr(before, f.name) != getattr(after, f.name)
    )


def _requests(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """The smallest sets of asked versions that, given up, leave a plan; each then moved to the nearest that fits."""
    if request != plan.request and attempt(request, host).ok:
        yield _remedy(plan, request, host, attempt)
        return
    asked = _asked(request)
    freed = dataclasses.replace(request, **dict.fromkeys(asked, "auto"))
    if not asked or not attempt(freed, host).ok:
        return
    for order in (asked, asked[::-1]):
        kept = freed
        for name in order[::-1]:  # what comes last in the order is restored first, so it is kept if it can be
            restored = dataclasses.replace(kept, **{name: getattr(request, name)})
            if attempt(restored, host).ok:
                kept = restored
        yield _remedy(plan, _nearest(request, kept, host, attempt), host, attempt)


def _nearest(request: Request, freed: Request, host: Host, attempt: Attempt) -> Request:
    """The freed components set to versions as near to the asked ones as the host allows."""
    for name in COMPONENTS:
        asked = getattr(request, name)
        if getattr(freed, name) == asked or asked in ("auto", "none"):
            continue
        for version in _candidates(name, asked, attempt(freed, host)):
            closer = dataclasses.replace(freed, **{name: version})
            if attempt(closer, host).ok:
                freed = closer
                break
    return freed


def _candidates(name: str, asked: str, plan: Plan) -> list[str]:
    """Versions to try for a component that is free: those of the plan that freeing it made."""
    component = plan.components.get(name)
    if component is None:
        return []
    version = getattr(component, "branch", None) or component.version
    return [version] if version != asked else []


def _remedy(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Remedy:
    changes = _differences(plan.request, request)
    asks = " and ".join(f"{name}={value}" for name, value in changes)
    return Remedy(f"ask for {asks} ({_outcome(attempt(request, host))})", changes)


def _outcome(plan: Plan) -> str:
    """What a plan would install, in short."""
    words = {"driver": "driver", "cuda": "CUDA", "cudnn": "cuDNN", "tensorflow": "TensorFlow", "pytorch": "PyTorch"}
    parts = []
    for name, word in words.items():
        component = plan.components.get(name)
        if component is not None:
            parts.append(f"{word} {getattr(component, 'release', None) or component.version}")
    return "gives " + ", ".join(parts) if parts else "installs nothing"


def _left_out(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Components set to none: the frameworks first, then the toolkit, the driver last."""
    free = dataclasses.replace(request, **dict.fromkeys(_asked(request), "auto"))
    for base in dict.fromkeys((request, free)):
        for names in (("tensorflow",), ("pytorch",), ("cuda",), ("tensorflow", "cuda"), ("tensorflow", "driver")):
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
    """Fewer kinds of GPUs: all but one kind, else one kind alone; the larger part of the host stays first."""
    kinds: dict[str, str] = {g.pci_id: g.pci_id for g in host.gpus}
    kinds.update({g.pci_id: g.name for g in plan.gpus})
    if len(kinds) < 2:
        return
    count = {kind: sum(g.pci_id == kind for g in host.gpus) for kind in kinds}
    names = sorted(kinds, key=lambda k: -count[k])
    subsets = [tuple(n for n in names if n != dropped) for dropped in reversed(names)]
    subsets += [(name,) for name in names] if len(names) > 2 else []
    free = dataclasses.replace(request, **dict.fromkeys(_asked(request), "auto"), expect_gpus="auto")
    found = 0
    for base in dict.fromkeys((request, free)):
        for kept in subsets:
            changed = dataclasses.replace(host, gpus=tuple(g for g in host.gpus if g.pci_id in kept))
            made = attempt(base, changed)
            if made.ok:
                moved = ", ".join(_short(plan.gpus, k) for k in names if k not in kept)
                changes = _differences(plan.request, base)
                asks = f" and ask for {' and '.join(f'{n}={v}' for n, v in changes)}" if changes else ""
                text = f"move {moved} to another host{asks} ({_outcome(made)})"
                yield Remedy(text, changes, (("gpus", kept),))
                found += 1
        if found:
            return


def _short(gpus: tuple[Gpu, ...], pci_id: str) -> str:
    return next((g.name for g in gpus if g.pci_id == pci_id), f"the device {pci_id}")


def _distributions(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Another distribution release, the newest first; as asked, else with the parts of the request left free."""
    family = host.distribution.split("-")[0]
    names = [n for n in catalog.distros if n != host.distribution]
    names.sort(key=lambda n: (n.startswith(family), versions.key(n)), reverse=True)
    free = dataclasses.replace(request, **dict.fromkeys(_asked(request), "auto"))
    no_framework = dataclasses.replace(free, tensorflow="none", pytorch="none")
    for base in dict.fromkeys((request, free, no_framework)):
        for name in names:
            changed = Host(name, host.architecture, host.gpus, secure_boot=host.secure_boot)
            made = attempt(base, changed)
            if made.ok:
                changes = _differences(plan.request, base)
                asks = f" and ask for {' and '.join(f'{n}={v}' for n, v in changes)}" if changes else ""
                yield Remedy(f"use {name}{asks} ({_outcome(made)})", changes, (("distribution", (name,)),))
                return
