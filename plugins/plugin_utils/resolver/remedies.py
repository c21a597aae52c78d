"""Find remedies for a plan with problems: changes of the request or of the host, each planned before it is offered.

Runs on the controller; pure functions. The cheapest remedies come first: the fewest requested versions changed, to the
nearest ones that fit; another Python; fewer kinds of GPUs; the release's own kernel; a component left out; another
distribution release.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import published_versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import COMPONENTS, LABELS, full_version
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan, Remedy
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad, locks

Attempt = Callable[[Request, Host], Plan]

_CHOICES = (
    *("tensorflow_cuda_libraries", "pytorch_cuda", "driver_kernel_modules", "driver_module_source", "driver_profile"),
    "driver_source",
    "cuda_source",
)
_NOTHING_ASKED = ("auto", "none", "fallback")
_MAX_REMEDIES = 3
# How many parts of a component's version name a series, the versions that a remedy names first.
_PARTS = {"driver": 1, "cuda": 2, "cudnn": 2, "nccl": 3, "tensorflow": 2, "pytorch": 2, "pytorch_cuda": 2}
_GPU_CODES = ("gpu-", "mixed-gpus", "unknown-gpu")


def find_remedies(
    catalog: Catalog, plan: Plan, host: Host, attempt: Attempt, attempt_unlocked: Attempt
) -> tuple[Remedy, ...]:
    """Return up to three remedies with which there is a plan; none where no attempt has one.

    attempt: plans a changed request for a changed host; attempt_unlocked: as if every lock existed.
    """
    codes = {p.code for p in plan.problems}
    request = plan.request
    if "no-gpu" in codes:
        request = dataclasses.replace(request, expect_gpus=str(len(plan.gpus)))
    if "no-framework" in codes:
        request = dataclasses.replace(request, tensorflow="auto")
    # What gives a TensorFlow comes before what gives PyTorch in its place.
    attempts = [attempt]
    if request.pytorch == "fallback":
        attempts.insert(0, lambda tried, there: attempt(dataclasses.replace(tried, pytorch="none"), there))
    found: list[Remedy] = []
    if "no-gpu" in codes and host.described:
        found += _more_gpus(plan, host, attempt)
    if "no-lock" in codes:
        found += _locks(catalog, request, host, attempt_unlocked)
    for each in attempts:
        found += _requests(catalog, plan, request, host, each)
        if "no-prebuilt-modules" in codes:
            found += _prebuilt(plan, request, host, each)
        if "python-not-supported" in codes:
            found += _pythons(catalog, plan, request, host, each)
        if any(c.startswith(_GPU_CODES) for c in codes):
            found += _gpus(plan, request, host, each)
        if "no-published-run" in codes:
            found += _unproven(catalog, plan, request, host, each)
    if not found:
        found += _older_kernel(catalog, plan, request, host, attempt)
    if not found:
        found += _left_out(plan, request, host, attempt)
    if not found and request.scope == "frameworks":
        found += _whole_host(plan, request, host, attempt)
    for each in attempts:
        if not found:
            found += _elsewhere(catalog, plan, request, host, each)
    return tuple(dict.fromkeys(found))[:_MAX_REMEDIES]


# Of the request ---------------------------------------------------------------------------------------------------


def asked_for(request: Request) -> list[str]:
    """Return the fields of a request that ask for something, in the order in which they are given up."""
    return [name for name in (*_CHOICES, *COMPONENTS[::-1]) if getattr(request, name) not in _NOTHING_ASKED]


def _free(request: Request) -> Request:
    return dataclasses.replace(request, **dict.fromkeys(asked_for(request), "auto"))


def _differences(before: Request, after: Request) -> dict[str, str]:
    return {
        f.name: getattr(after, f.name)
        for f in dataclasses.fields(Request)
        if getattr(before, f.name) != getattr(after, f.name)
    }


def _requests(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield the smallest changes of the requested versions that leave a plan, each to the nearest version that fits."""
    if request != plan.request and attempt(request, host).ok:
        yield _remedy(plan, request, host, attempt)
        return
    asked = asked_for(request)
    freed = _free(request)
    if not asked or not attempt(freed, host).ok:
        return
    for order in (asked, asked[::-1]):
        kept = freed
        for name in order[::-1]:  # what is given up last is restored first
            restored = dataclasses.replace(kept, **{name: getattr(request, name)})
            if attempt(restored, host).ok:
                kept = restored
        yield _remedy(plan, _nearest(catalog, request, kept, host, attempt), host, attempt)


def _nearest(catalog: Catalog, request: Request, freed: Request, host: Host, attempt: Attempt) -> Request:
    """Return the request with the freed components set to versions as near to the requested ones as the host allows."""
    for name in (*COMPONENTS, "pytorch_cuda"):
        asked = getattr(request, name)
        if getattr(freed, name) == asked or asked in _NOTHING_ASKED:
            continue
        vulnerable: list[Request] = []
        for version in [*_neighbours(catalog, name, asked), *_chosen(name, attempt(freed, host))]:
            closer = dataclasses.replace(freed, **{name: version})
            made = attempt(closer, host) if version != asked else None
            if made is None or not _is_known_to_run(made):
                continue
            if not any(warning.code == known_bad.SECURITY_FLOOR for warning in made.warnings):
                freed = closer
                break
            vulnerable.append(closer)
        else:
            freed = vulnerable[0] if vulnerable else freed
    return freed


def _is_known_to_run(plan: Plan) -> bool:
    return plan.ok and "no-published-run-asked" not in [warning.code for warning in plan.warnings]


def _unproven(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield PyTorch, then the newest TensorFlow by its version, although it is not known to run on the GPUs."""
    newest = max(published_versions(catalog, "tensorflow"), key=versions.key)
    for changes in ({"pytorch": "fallback"}, {"tensorflow": newest}):
        changed = dataclasses.replace(request, **changes)
        if changed != request and attempt(changed, host).ok:
            yield _remedy(plan, changed, host, attempt)


def _neighbours(catalog: Catalog, name: str, asked: str) -> list[str]:
    """Return the known versions around the requested one, the nearest first; of two equally near ones, the newer.

    They are as long as the request: releases for a release, series for a series. First comes the version that YAML
    reads as the requested one where it is not quoted; then, of a request that is between the two, its series.
    """
    published = _published(catalog, name)
    parts = _PARTS[name]
    known = {versions.series(version, parts) for version in published}
    first = [meant] if (meant := versions.before_yaml(asked, published)) else []
    if asked.count(".") >= parts:
        series = versions.series(asked, parts)
        whole = max((version.count(".") for version in published if versions.has_prefix(version, series)), default=0)
        first += [series] if asked.count(".") < whole else []
        known.update(published)
    return list(dict.fromkeys([*first, *versions.by_nearness(asked, known)]))


def _published(catalog: Catalog, name: str) -> list[str]:
    if name == "pytorch_cuda":
        return [build.cuda for release in catalog.pytorch.releases for build in release.builds]
    return published_versions(catalog, name)


def _chosen(name: str, plan: Plan) -> list[str]:
    """Return the version that a plan selected for a component that was left at auto."""
    component = plan.components.get(name) if name in COMPONENTS else None
    return [] if component is None else [getattr(component, "branch", None) or component.version]


def _remedy(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Remedy:
    changes = _differences(plan.request, request)
    return Remedy(f"{_settings(changes)} ({_outcome(attempt(request, host))})", changes)


def _settings(changes: Mapping[str, str]) -> str:
    """Return what to set, with quotes where YAML would drop a zero."""
    quoted = {
        name: f'"{value}"' if re.fullmatch(r"\d+\.\d*[1-9]0+", value) else value for name, value in changes.items()
    }
    return "set " + " and ".join(f"gpu_stack_{name}={value}" for name, value in quoted.items())


def _outcome(plan: Plan) -> str:
    """Return in short what a plan installs."""
    parts = []
    for name, label in LABELS.items():
        component = plan.components.get(name)
        if component is not None:
            parts.append(f"{label} {full_version(component)}")
    return "gives " + ", ".join(parts) if parts else "installs nothing"


def _left_out(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield a remedy with components set to none: a framework, then the toolkit, then both."""
    free = _free(request)
    for base in dict.fromkeys((request, free)):
        for names in (("tensorflow",), ("pytorch",), ("cuda",), ("tensorflow", "cuda")):
            less = dataclasses.replace(base, **dict.fromkeys(names, "none"))
            if less != base and attempt(less, host).ok:
                yield _remedy(plan, less, host, attempt)
                return


def _whole_host(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield the remedy to let the driver change as well, if that helps."""
    wider = dataclasses.replace(request, scope="host")
    if attempt(wider, host).ok:
        yield _remedy(plan, wider, host, attempt)


def _locks(catalog: Catalog, request: Request, host: Host, attempt_unlocked: Attempt) -> Iterator[Remedy]:
    """Yield a remedy with the locks that the request lacks."""
    made = attempt_unlocked(request, host)
    if made.ok:
        names = locks.missing(catalog, made.components)
        yield Remedy(f"{locks.make_command(catalog, names)} ({_outcome(made)})", host={"locks": names})


# Of the host ------------------------------------------------------------------------------------------------------


def _prebuilt(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield the next-boot kernel, if there are prebuilt modules for it, and DKMS with a key that is enrolled."""
    if host.next_kernel not in (None, host.kernel):
        booted = attempt(request, dataclasses.replace(host, kernel=host.next_kernel))
        if booted.ok:
            text = f"reboot into kernel {host.next_kernel} and run this again ({_outcome(booted)})"
            yield Remedy(text, _differences(plan.request, request), {"kernel": (str(host.next_kernel),)})
    built = dataclasses.replace(request, driver_module_source="dkms")
    made = attempt(built, host)
    if made.ok:
        changes = _differences(plan.request, built)
        key = "enrol a key for the modules of DKMS, or name an enrolled one with gpu_stack_module_signing_key"
        yield Remedy(f"{key}, and {_settings(changes)} ({_outcome(made)})", changes)


def _older_kernel(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield the kernel of the distribution release itself, where a newer one runs."""
    distro = catalog.distros.get(host.distribution)
    if distro is None or host.newest_kernel is None:
        return
    own = distro.kernel.default
    if versions.key(versions.kernel_series(host.newest_kernel)) <= versions.key(own):
        return
    made = attempt(request, dataclasses.replace(host, kernel=own, next_kernel=None, kernels=None))
    if made.ok:
        text = f"boot a kernel {own}, that of {host.distribution} itself ({_outcome(made)})"
        yield Remedy(text, _differences(plan.request, request), {"kernel": (own,)})


def _pythons(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield one more Python with which the request can be planned unchanged.

    One of the distribution release comes first, then the one nearest to its default.
    """
    offered = catalog.distros[host.distribution].python
    own = host.default_python or offered.default
    known = {p for r in catalog.tensorflow.releases for p in r.pythons}
    known |= {p for r in catalog.pytorch.releases for p in r.pythons}
    have = host.pythons or offered.available
    near = sorted(
        known - set(have),
        key=lambda p: (p not in offered.available, abs(_minor(p) - _minor(offered.default)), -_minor(p)),
    )
    for python in near[:8]:
        changed = dataclasses.replace(host, pythons=(*have, python), default_python=own)
        made = attempt(request, changed)
        if made.ok:
            where = f"as python{python} in /usr/bin or /usr/local/bin"
            text = f"install Python {python} beside Python {own}, {where} ({_outcome(made)})"
            yield Remedy(text, _differences(plan.request, request), {"python": (python,)})
            return


def _minor(python: str) -> int:
    major, minor = python.split(".")[:2]
    return int(major) * 100 + int(minor)


def _gpus(plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield remedies with fewer kinds of GPUs: all but one kind, else one kind alone."""
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


def _more_gpus(plan: Plan, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield the description with as many GPUs as are expected, where it has one kind of them, but fewer."""
    kinds = {gpu.pci_id: gpu.name for gpu in plan.gpus}
    if len(kinds) != 1 or len(plan.gpus) != len(host.gpus):
        return
    (kind, name), expected = next(iter(kinds.items())), int(plan.request.expect_gpus)
    changed = dataclasses.replace(host, gpus=(host.gpus[0],) * expected)
    made = attempt(plan.request, changed)
    if made.ok:
        text = f"describe all of them, with --gpu {expected}x{kind} for {name} ({_outcome(made)})"
        yield Remedy(text, host={"gpus": (kind,) * expected})


def _subsets(host: Host) -> list[tuple[str, ...]]:
    """Return the sets of GPU kinds to keep: first those without the rarest kind, last single kinds."""
    kinds = sorted(dict.fromkeys(g.pci_id for g in host.gpus), key=lambda k: -sum(g.pci_id == k for g in host.gpus))
    if len(kinds) < 2:
        return []
    found = [tuple(k for k in kinds if k != dropped) for dropped in reversed(kinds)]
    return found + ([(kind,) for kind in kinds] if len(kinds) > 2 else [])


def _elsewhere(catalog: Catalog, plan: Plan, request: Request, host: Host, attempt: Attempt) -> Iterator[Remedy]:
    """Yield another distribution release, of the same family and the newest first; if necessary with other changes."""
    family = host.distribution.partition("-")[0]
    names = [n for n in catalog.distros if n != host.distribution]
    names.sort(key=lambda n: (n.startswith(family), versions.key(n)), reverse=True)
    like = Host(
        host.distribution,
        host.architecture,
        host.gpus,
        secure_boot=host.secure_boot,
        signatures_enforced=host.signatures_enforced,
        cpu=host.cpu,
        cpu_flags=host.cpu_flags,
    )
    elsewhere = [dataclasses.replace(like, distribution=name) for name in names]
    free = _free(request)
    no_framework = dataclasses.replace(free, tensorflow="none", pytorch="none")
    bases = list(dict.fromkeys((request, free, no_framework, dataclasses.replace(no_framework, cuda="none"))))
    for places, kinds in ((elsewhere, [None]), ([host, *elsewhere], _subsets(host))):
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
    """Return the remedy that consists of the differences between two hosts and two requests."""
    changes: dict[str, tuple[str, ...]] = {}
    words = []
    if changed.distribution != host.distribution:
        changes["distribution"] = (changed.distribution,)
        words.append(f"use {changed.distribution}")
    kept = tuple(dict.fromkeys(g.pci_id for g in changed.gpus))
    gone = [k for k in dict.fromkeys(g.pci_id for g in host.gpus) if k not in kept]
    if gone:
        names = {g.pci_id: g.name for g in plan.gpus}
        changes["gpus"] = kept
        words.append(f"move {', '.join(names.get(k, f'the device {k}') for k in gone)} to another host")
    asks = _differences(plan.request, request)
    if asks:
        words.append(_settings(asks))
    return Remedy(f"{' and '.join(words)} ({_outcome(made)})", asks, changes)
