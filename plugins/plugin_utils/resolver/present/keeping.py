"""Keep what fits: a verified configuration, and a working driver that others installed, where the request is `auto`.

Runs on the controller; pure functions. As with Ansible's packages, `auto` means present and `latest` means newest: what
is there is requested as it is, and given up only where no plan has it. Driver, toolkit, frameworks and libraries are
tried in this order, so that a version which is requested changes what it must and nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    FRAMEWORKS,
    LABELS,
    CudaComponent,
    DriverComponent,
    full_version,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, PlanWarning, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import LATEST, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad, relaxation
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import driver_sets, drivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

Attempt = Callable[[Request, Host], Plan]

_FREE = ("auto", "fallback")  # what is there may stay
_NATIVE = "minor-version-compatibility"
# What else decides a component, by the field of the request and the attribute of the component.
DECIDED_BY = {
    "driver": {
        "driver_source": "source",
        "driver_kernel_modules": "kernel_modules",
        "driver_profile": "profile",
        "driver_module_source": "module_source",
    },
    "cuda": {"cuda_source": "source"},
    "tensorflow": {"tensorflow_cuda_libraries": "cuda_libraries"},
    "pytorch": {"pytorch_cuda": "cuda"},
}


@dataclasses.dataclass(frozen=True)
class Part:
    """What stays or is planned anew as a whole.

    names: the components; version: of the first one; asks: the request that keeps it; packages: what it consists of;
    stays: an installed driver that is not managed. of_others: others installed it.
    """

    names: tuple[str, ...]
    version: str
    asks: Mapping[str, str]
    packages: tuple[Package, ...] = ()
    stays: KeptDriver | None = None
    of_others: bool = False


@dataclasses.dataclass(frozen=True)
class Kept:
    """The request and the host to resolve in order to keep the parts.

    asked: the user's request and host. newest: the plan that keeps nothing; newer: the versions that `latest` would
    give, where they are others than those that stay. there: names of packages of what may stay; given_up: why a part is
    not kept, by its first component.
    """

    request: Request
    host: Host
    asked: tuple[Request, Host]
    parts: tuple[Part, ...] = ()
    newest: Plan | None = None
    newer: Mapping[str, str] = dataclasses.field(default_factory=dict)
    there: frozenset[str] = frozenset()
    given_up: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> dict[str, Part]:
        """The components that stay."""
        return {name: part for part in self.parts for name in part.names}

    def freed(self, part: Part) -> dict[str, str]:
        """Return what was requested in place of what keeps a part."""
        return {name: getattr(self.asked[0].newest(), name) for name in part.asks}


def keep(catalog: Catalog, request: Request, host: Host, attempt: Attempt) -> Kept:
    """Return what to resolve so that the parts of a host stay which fit the request, its GPUs and the catalog."""
    free = request.newest()
    choices = list(_choices(catalog, request, host))
    held = [name for name in request.latest if name in holds.of_components(catalog, host)]
    if not choices and not held:
        return Kept(free, host, (request, host))
    newest = attempt(free, host)
    unheld = attempt(free, dataclasses.replace(host, foreign_holds=())) if held else newest
    asked = dataclasses.replace(free, **_of_plan(unheld, request.latest, free, held))
    there = frozenset(package.name for parts in choices for part in parts for package in part.packages)
    kept = Kept(asked, host, (request, host), newest=newest, there=there)
    together = _with(kept, [alternatives[0] for alternatives in choices])
    if _misfit(catalog, together, attempt) is None:
        return dataclasses.replace(together, newer=_newer(together, attempt))
    given_up: dict[str, str] = {}
    for alternatives in choices:
        for part in alternatives:
            trial = _with(kept, [part])
            why = _misfit(catalog, trial, attempt)
            if why is None:
                kept = trial
                given_up.pop(part.names[0], None)
                break
            given_up[part.names[0]] = f"{_label(part)} is not kept: {why}"
    if not kept.parts and not held:
        kept = dataclasses.replace(kept, request=free)
    return dataclasses.replace(kept, given_up=given_up, newer=_newer(kept, attempt))


def _newer(kept: Kept, attempt: Attempt) -> dict[str, str]:
    """Return the versions that `latest` would give, by component, as far as something stays in another version."""
    found: dict[str, str] = {}
    for part in kept.parts:
        plan = kept.newest
        if part.names[0] not in ("driver", "cuda"):  # these are the newest beside what stays
            others = [other for other in kept.parts if other is not part]
            plan = attempt(dataclasses.replace(kept.request, **kept.freed(part)), _host(kept, others))
        if plan is None or not plan.ok:
            continue
        for name in part.names:
            component = plan.components.get(name)
            version = full_version(component) if component else ""
            is_lacking = part.version == "none" or name != part.names[0]
            if version and (is_lacking or relaxation.is_newer(version, part.version)):
                found[name] = version
    return found


def explained(kept: Kept, plan: Plan, catalog: Catalog) -> Plan:
    """Return the plan of what is kept as the answer to the user's request, with the reasons for what stays."""
    request, host = kept.asked
    reasons = tuple(_reason(kept, plan, reason) for reason in plan.reasons)
    warnings = plan.warnings
    component, context = plan.components.driver, ResolveContext(catalog, host, request, plan.gpus)
    installed = driver_sets.packaged(context) if "driver" in kept.names else None
    if plan.ok and installed and (component is None or _is_archives(component, installed.version)):
        findings = Findings()
        known_bad.warn_of_driver(context, installed.version, findings)
        others = (warning for warning in warnings if warning.code != known_bad.SECURITY_FLOOR)
        warnings = (*others, *findings.warnings)
        exact = installed.version if component else "none"
        reasons = tuple(dataclasses.replace(r, choice=exact) if r.component == "driver" else r for r in reasons)
    plan = dataclasses.replace(plan, request=request, reasons=reasons, warnings=warnings)
    for name in request.latest:  # where the version in its place contradicts a hold
        plan = _renamed(plan, f"gpu_stack_{name}={getattr(kept.request, name)}", f"gpu_stack_{name}={LATEST}")
    return plan


def _is_archives(component: DriverComponent, version: str) -> bool:
    """Return whether the archive decides the version of a driver, and has given it this one."""
    return component.source == "distro" and versions.has_prefix(version, component.branch)


def _renamed(plan: Plan, old: str, new: str) -> Plan:
    problems = tuple(
        dataclasses.replace(p, message=p.message.replace(old, new), remedy=p.remedy.replace(old, new))
        for p in plan.problems
    )
    warnings = tuple(PlanWarning(w.code, w.message.replace(old, new)) for w in plan.warnings)
    return dataclasses.replace(plan, problems=problems, warnings=warnings)


def _reason(kept: Kept, plan: Plan, reason: Reason) -> Reason:
    name, part = reason.component, kept.names.get(reason.component)
    request = kept.asked[0]
    if part is None:
        asked, latest = f"requested ({getattr(kept.request, name)})", f"requested ({LATEST})"
        because = reason.because.replace(asked, latest) if name in request.latest else reason.because
        because = "; ".join(text for text in (because, kept.given_up.get(name)) if text)
        return dataclasses.replace(reason, because=because)
    date = kept.asked[1].present.verified_at.partition("T")[0]
    because = f"kept: verified {date}" if date else "kept: verified"
    if part.of_others:
        because = reason.because if part.stays else "kept: it works, and others installed it"
    elif plan.components.get(name) is None:
        because = _why_without(kept, name) or f"{because} without it"
    version, wanted = kept.newer.get(name), getattr(request, name)
    instead = LATEST if wanted in _FREE else version
    return dataclasses.replace(
        reason, because=because + (f"; {version} also fits (gpu_stack_{name}={instead})" if version else "")
    )


def _why_without(kept: Kept, name: str) -> str:
    """Return why no TensorFlow works on the host, if that is still so; PyTorch takes its place."""
    if name != "tensorflow" or name in kept.newer or kept.newest is None:
        return ""
    return next((reason.because for reason in kept.newest.reasons if reason.component == name), "")


def _label(part: Part) -> str:
    label = f"{LABELS[part.names[0]]} {part.version}"
    return f"the {label} that others installed" if part.of_others else f"the verified {label}"


# What may stay ----------------------------------------------------------------------------------------------------


def _choices(catalog: Catalog, request: Request, host: Host) -> Iterator[list[Part]]:
    """Yield what may stay, in the order in which it is tried; several ways to keep a driver are alternatives."""
    if host.distribution not in catalog.distros:
        return
    verified, is_host = host.present.verified.components, request.scope == "host"
    if is_host:
        of_driver = [part for found in _of_verified(("driver",), request, host) for part in found]
        of_driver += _of_others(ResolveContext(catalog, host, request, ()))
        if of_driver:
            yield of_driver
        yield from _of_verified(("cuda",), request, host)
    if verified.get("pytorch") and _left_out(host.present, request, "tensorflow"):
        for found in _of_verified(("pytorch",), request, host):
            yield [dataclasses.replace(p, names=FRAMEWORKS[::-1], asks={**p.asks, "tensorflow": "none"}) for p in found]
    else:
        yield from _of_verified(FRAMEWORKS, request, host)
    if is_host:
        yield from _of_verified(("cudnn", "nccl"), request, host)


def _left_out(present: Present, request: Request, name: str) -> bool:
    """Return whether the verified configuration lacks a component that was to be there, as now, if one fits."""
    verified = present.verified.components
    is_lacking = name in verified and verified[name] is None
    return is_lacking and getattr(request, name) == "auto" and present.requested.get(name) in ("auto", LATEST)


def _of_verified(names: Iterable[str], request: Request, host: Host) -> Iterator[list[Part]]:
    present = host.present
    verified = present.verified.components
    for name in names:
        component, wanted = verified.get(name), getattr(request, name)
        if component is None:
            # The repository offered none for that toolkit. Beside the archive's toolkit there is never one.
            cuda = verified.get("cuda")
            if name in ("cudnn", "nccl") and cuda and cuda.source == "nvidia" and _left_out(present, request, name):
                yield [Part((name,), "none", {name: "none"})]
            continue
        version = component.release or component.version
        if wanted not in _FREE and not versions.has_prefix(version, wanted):
            continue
        fields = DECIDED_BY.get(name, {})
        exact = {field: getattr(component, attribute) for field, attribute in fields.items()}
        exact = {field: value for field, value in exact.items() if value and getattr(request, field) == "auto"}
        packages = (*component.packages, *component.pinning_packages)
        parts = [Part((name,), version, {name: version, **exact}, packages)]
        if name == "driver":  # another set of packages, or other modules, in the same version
            source = {field: value for field, value in exact.items() if field == "driver_source"}
            parts.append(Part((name,), version, {name: version, **source}, packages))
        yield parts


def _of_plan(plan: Plan, names: Iterable[str], request: Request, held: Iterable[str]) -> dict[str, str]:
    """Return the newest driver and toolkit as a request, and of what is on hold the version that contradicts that.

    Frameworks and libraries are the newest beside what stays.
    """
    asks: dict[str, str] = {}
    for name in names:
        component = plan.components.get(name) if plan.ok else None
        if component is not None and (name in held or isinstance(component, (DriverComponent, CudaComponent))):
            asks[name] = full_version(component)
        if isinstance(component, (DriverComponent, CudaComponent)) and name not in held:
            asks |= {f"{name}_source": component.source} if getattr(request, f"{name}_source") == "auto" else {}
    return asks


def _of_others(context: ResolveContext) -> list[Part]:
    """Return the ways to keep a working driver of others: managed, if it has the plan's packages, or not.

    It works if nvidia-smi lists GPUs. Where another version is loaded, the host waits for a reboot.
    """
    host, request, present = context.host, context.request, context.host.present
    if host.foreign_driver or driver_sets.kept(context) or "driver" in holds.of_components(context.catalog, host):
        return []
    installed = driver_sets.packaged(context)
    if installed is None or installed.package in present.changed_packages or not host.loaded_driver:
        return []
    is_loaded = installed.version == host.loaded_driver
    if is_loaded and not present.driver_works:
        return []
    modules = present.loaded_modules if is_loaded and present.loaded_modules else installed.kernel_modules
    installed = dataclasses.replace(installed, kernel_modules=modules)
    wanted = {field: getattr(request, field) for field in DECIDED_BY["driver"]}
    if any(value not in ("auto", getattr(installed, DECIDED_BY["driver"][field])) for field, value in wanted.items()):
        return []
    if request.driver != "auto" and not versions.has_prefix(installed.version, request.driver):
        return []
    version, branch = installed.version, str(versions.major(installed.version))
    exact = {"driver_source": installed.source, "driver_kernel_modules": modules}
    asks = {"driver": version if installed.source == "nvidia" else branch, **exact}
    stays = KeptDriver(
        version,
        branch,
        modules,
        installed.package,
        source=installed.source,
        prebuilt=installed.module_source == "prebuilt",
        of_others=True,
    )
    return [
        Part(("driver",), version, asks, of_others=True),
        Part(("driver",), version, {}, stays=stays, of_others=True),
    ]


# Whether it fits --------------------------------------------------------------------------------------------------


def _with(kept: Kept, more: Iterable[Part]) -> Kept:
    """Return what to resolve with more parts that stay."""
    parts = (*kept.parts, *more)
    asks = {name: value for part in parts for name, value in part.asks.items()}
    request = dataclasses.replace(kept.request, **asks)
    return dataclasses.replace(kept, request=request, host=_host(kept, parts), parts=parts)


def _host(kept: Kept, parts: Sequence[Part]) -> Host:
    """Return the host with parts that stay: with their packages in these versions, and in no other.

    What is there counts as offered.
    """
    host = kept.asked[1]
    names = tuple(name for part in parts for name in part.names)
    host = dataclasses.replace(host, keeping=names, staying=next((p.stays for p in parts if p.stays), None))
    if host.offers is None:
        return host
    exact = {p.name: (p.version,) for part in parts for p in part.packages if p.version}
    there = {p.name: (p.version,) for p in host.packages if p.name in kept.there and p.version}
    found = {name: tuple(dict.fromkeys((*host.offers.get(name, ()), *v))) for name, v in there.items()}
    known = {name: v for name, v in exact.items() if v[0] in found.get(name, host.offers.get(name, ()))}
    return dataclasses.replace(host, offers={**host.offers, **found, **known})


def _misfit(catalog: Catalog, kept: Kept, attempt: Attempt) -> str | None:
    """Return why a host cannot keep its parts; None if it can."""
    plan = attempt(kept.request, kept.host)
    if not plan.ok:
        return plan.problems[0].message
    parts, (request, host) = kept.names, kept.asked
    if "driver" in parts and (why := _misfit_of_driver(catalog, parts["driver"], plan, kept)):
        return why
    if "tensorflow" in parts and {gpu.pci_id for gpu in host.gpus} - set(host.present.verified.gpus):
        unproven = (warning.message for warning in plan.warnings if warning.code == "no-published-run-asked")
        if why := next(unproven, None):  # it has not run on these GPUs
            return why
    # A toolkit that is asked for is to be used: the programs of one that is newer than its driver run without PTX.
    if request.cuda not in ("auto", "none") and not {"driver", "cuda"} <= parts.keys():
        return None if kept.newest and _without_ptx(kept.newest) else _without_ptx(plan)
    return None


def _misfit_of_driver(catalog: Catalog, part: Part, plan: Plan, kept: Kept) -> str | None:
    """Return why a driver of others does not fit: a GPU that it does not drive, the known-bad list, other packages."""
    if part.stays is None:
        is_whole = not part.of_others or _is_installed(plan.components.driver, kept.host)
        return None if is_whole else "its packages are others than the plan's"
    driver, context = part.stays, ResolveContext(catalog, kept.host, kept.request, plan.gpus)
    problems = [] if driver.prebuilt else known_bad.driver_problems(context, driver.version, driver.source)
    for branch in catalog.driver.branches:
        if versions.has_prefix(driver.version, branch.branch):
            problems += drivers.gpu_driver_problems(context, branch, driver.version, driver.kernel_modules)
    if driver.kernel_modules not in drivers.accepted_modules(plan.gpus):
        problems += [drivers.unfit_modules(context, driver.kernel_modules)]
    return problems[0].message if problems else None


def _is_installed(component: DriverComponent | None, host: Host) -> bool:
    """Return whether a host has all packages of a driver, in the planned versions where the plan has them."""
    present = {package.name: package.version for package in host.packages}
    planned = component.packages if component else ()
    return all(p.name in present and p.version in (None, present[p.name]) for p in planned)


def _without_ptx(plan: Plan) -> str | None:
    return next((warning.message for warning in plan.warnings if warning.code == _NATIVE), None)
