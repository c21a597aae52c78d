"""Keep what fits: a verified configuration, and a working driver that others installed, where the request is `auto`.

Runs on the controller; pure functions. As with Ansible's packages, `auto` means present and `latest` means newest: what
is there is requested as it is, and given up only where no plan has it. Driver, toolkit, frameworks and libraries are
tried in this order, so that a version which is requested changes what it must and nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import (
    FRAMEWORKS,
    LABELS,
    CudaComponent,
    DriverComponent,
    full_version,
    split_spec,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings, PlanWarning, Reason
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import LATEST, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import known_bad, relaxation
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import driver_sets, drivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver.driver_sets import PackagedDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

Attempt = Callable[[Request, Host], Plan]

_FREE = ("auto", "fallback")  # what is there may stay
_NATIVE = "minor-version-compatibility"


@dataclasses.dataclass(frozen=True)
class Part:
    """What stays or is planned anew as a whole.

    names: the components; version: of the first one; asks: the request that keeps it; packages: what it consists of,
    `name=version`; because: why it stays. stays: an installed driver that is not managed. adopted: a driver that others
    installed, with exactly the packages that the plan has.
    """

    names: tuple[str, ...]
    version: str
    asks: Mapping[str, str]
    because: str
    packages: tuple[str, ...] = ()
    stays: PackagedDriver | None = None
    adopted: bool = False


@dataclasses.dataclass(frozen=True)
class Kept:
    """The request and the host to resolve in order to keep the parts.

    asked: the user's request and host; newest: the plan that keeps nothing; there: names of packages of what may stay;
    given_up: why a part is not kept, by its first component.
    """

    request: Request
    host: Host
    asked: tuple[Request, Host]
    parts: tuple[Part, ...] = ()
    newest: Plan | None = None
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
    there = frozenset(split_spec(spec)[0] for parts in choices for part in parts for spec in part.packages)
    kept = Kept(asked, host, (request, host), newest=newest, there=there)
    together = _with(kept, [alternatives[0] for alternatives in choices])
    if _misfit(catalog, together, attempt) is None:
        return together
    given_up: dict[str, str] = {}
    for alternatives in choices:
        for part in alternatives:
            trial = _with(kept, [part])
            why = _misfit(catalog, trial, attempt)
            if why is None:
                kept = trial
                break
            given_up[part.names[0]] = f"{_label(part)} is not kept: {why}"
        else:
            continue
        given_up.pop(part.names[0], None)
    if not kept.parts and not held:
        kept = dataclasses.replace(kept, request=free)
    return dataclasses.replace(kept, given_up=given_up)


def told(kept: Kept, plan: Plan, catalog: Catalog) -> Plan:
    """Return the plan of what is kept as the answer to the user's request, with the reasons for what stays."""
    request, host = kept.asked
    reasons = tuple(_reason(kept, plan, reason) for reason in plan.reasons)
    warnings, kept_driver = plan.warnings, plan.kept_driver
    if "tensorflow" in kept.names:  # it has run on this host
        warnings = tuple(warning for warning in warnings if warning.code != "no-published-run-asked")
    driver = kept.names["driver"].stays if "driver" in kept.names else None
    if driver and plan.ok:
        findings = Findings()
        known_bad.warn_of_driver(ResolveContext(catalog, host, request, plan.gpus), driver.version, findings)
        warnings = (*warnings, *findings.warnings)
        if driver.source != "nvidia":
            branch = str(versions.major(driver.version))
            kept_driver = KeptDriver(driver.version, branch, driver.kernel_modules, driver.package, prebuilt=False)
    plan = dataclasses.replace(plan, request=request, reasons=reasons, warnings=warnings, kept_driver=kept_driver)
    for name in request.latest:  # where the version in its place contradicts a hold
        plan = _renamed(plan, f"gpu_stack_{name}={getattr(kept.request, name)}", f"gpu_stack_{name}={LATEST}")
    return plan


def _renamed(plan: Plan, old: str, new: str) -> Plan:
    problems = tuple(
        dataclasses.replace(p, message=p.message.replace(old, new), remedy=p.remedy.replace(old, new))
        for p in plan.problems
    )
    warnings = tuple(PlanWarning(w.code, w.message.replace(old, new)) for w in plan.warnings)
    return dataclasses.replace(plan, problems=problems, warnings=warnings)


def _reason(kept: Kept, plan: Plan, reason: Reason) -> Reason:
    part = kept.names.get(reason.component)
    if part is None:
        given_up = kept.given_up.get(reason.component)
        because = "; ".join(text for text in (reason.because, given_up) if text)
        return dataclasses.replace(reason, because=because)
    newest = kept.newest.components.get(reason.component) if kept.newest and kept.newest.ok else None
    component = plan.components.get(reason.component)
    if component is None and part.stays is None and newest is None and kept.newest:  # it would be left out, too
        return next(known for known in kept.newest.reasons if known.component == reason.component)
    found = full_version(component) if component else part.version if part.stays else ""
    version = full_version(newest) if newest else ""
    newer = f"; {version} fits, too (gpu_stack_{reason.component}={LATEST})"
    is_newer = version and (not found or relaxation.is_newer(version, found))
    return dataclasses.replace(reason, because=part.because + (newer if is_newer else ""))


def _label(part: Part) -> str:
    whose = "that others installed" if part.stays or part.adopted else "that was verified"
    return f"{LABELS[part.names[0]]} {part.version}, {whose},"


# What may stay ----------------------------------------------------------------------------------------------------


def _choices(catalog: Catalog, request: Request, host: Host) -> Iterator[list[Part]]:
    """Yield what may stay, in the order in which it is tried; several ways to keep a driver are alternatives."""
    if host.distribution not in catalog.distros:
        return
    present = host.present
    date = present.verified_at.partition("T")[0]
    because = f"kept: verified {date}" if date else "kept: verified"
    verified = present.verified if present.verified else {}
    is_host = request.scope == "host"
    if is_host:
        context = ResolveContext(catalog, host, request, ())
        of_driver = list(_of_verified(("driver",), request, host, because))
        if not _is_ours(catalog, host):
            of_driver += _of_others(context)
        if of_driver:
            yield of_driver
        yield from ([part] for part in _of_verified(("cuda",), request, host, because))
    if verified.get("tensorflow") is None and verified.get("pytorch") and _left_out(present, request, "tensorflow"):
        found = list(_of_verified(("pytorch",), request, host, because))
        yield from ([dataclasses.replace(p, names=FRAMEWORKS, asks={**p.asks, "tensorflow": "none"})] for p in found)
    else:
        yield from ([part] for part in _of_verified(FRAMEWORKS, request, host, because))
    if is_host:
        yield from ([part] for part in _of_verified(("cudnn", "nccl"), request, host, because))


def _left_out(present: Present, request: Request, name: str) -> bool:
    """Return whether the verified configuration lacks a component that was to be there, as now, if one fits."""
    is_lacking = name in present.verified and present.verified[name] is None
    return is_lacking and getattr(request, name) == "auto" and present.requested.get(name) in ("auto", LATEST)


def _of_verified(names: Iterable[str], request: Request, host: Host, because: str) -> Iterator[Part]:
    present = host.present
    for name in names:
        if name not in present.verified:
            continue
        component, wanted = present.verified[name], getattr(request, name)
        if component is None:
            if name in ("cudnn", "nccl") and _left_out(present, request, name):  # the repository had none
                yield Part((name,), "none", {name: "none"}, because)
            continue
        version = component.release or component.version
        if wanted not in _FREE and not versions.has_prefix(version, wanted):
            continue
        packages = (*component.packages, *component.pinning_packages)
        yield Part((name,), version, _requests(name, version, component, request), because, packages)


def _requests(name: str, version: str, component: Any, request: Request) -> dict[str, str]:
    """Return the request of a component as it is: its version, and what else decides it where that is free."""
    asks = {
        "driver": {
            "driver_source": "source",
            "driver_kernel_modules": "kernel_modules",
            "driver_profile": "profile",
            "driver_module_source": "module_source",
        },
        "cuda": {"cuda_source": "source"},
        "tensorflow": {"tensorflow_cuda_libraries": "cuda_libraries"},
        "pytorch": {"pytorch_cuda": "cuda"},
    }.get(name, {})
    found = {field: getattr(component, attribute) for field, attribute in asks.items()}
    free = {field: value for field, value in found.items() if value and getattr(request, field) == "auto"}
    return {name: version, **free}


def _of_plan(plan: Plan, names: Iterable[str], request: Request, held: Iterable[str]) -> dict[str, str]:
    """Return the versions of a plan for these components as a request, with the archives of those not on hold."""
    asks: dict[str, str] = {}
    for name in names:
        component = plan.components.get(name) if plan.ok else None
        if component is not None:
            asks[name] = full_version(component)
        if isinstance(component, (DriverComponent, CudaComponent)) and name not in held:
            asks |= {f"{name}_source": component.source} if getattr(request, f"{name}_source") == "auto" else {}
    return asks


def _is_ours(catalog: Catalog, host: Host) -> bool:
    """Return whether gpuhost has installed or changed a package of the driver."""
    return any(re.fullmatch(catalog.packages.leading["driver"], name) for name in host.present.changed_packages)


def _of_others(context: ResolveContext) -> list[Part]:
    """Return the ways to keep a working driver of others: managed, if it has the plan's packages, or not."""
    host, request = context.host, context.request
    if host.foreign_driver or driver_sets.kept(context) or "driver" in holds.of_components(context.catalog, host):
        return []
    installed = driver_sets.packaged(context)
    if installed is None or not host.present.driver_works or installed.version != host.loaded_driver:
        return []
    fields = ("driver_source", "driver_kernel_modules", "driver_module_source", "driver_profile")
    wanted = {name: getattr(request, name) for name in fields if getattr(request, name) != "auto"}
    if any(value != getattr(installed, name.removeprefix("driver_")) for name, value in wanted.items()):
        return []
    if request.driver != "auto" and not versions.has_prefix(installed.version, request.driver):
        return []
    because = f"driver {installed.version} stays: it works, and others installed it ({installed.package})"
    version = installed.version if installed.source == "nvidia" else str(versions.major(installed.version))
    asks = {"driver_source": installed.source, "driver_kernel_modules": installed.kernel_modules}
    adopted = Part(("driver",), installed.version, {"driver": version, **asks}, because, adopted=True)
    untouched = {"driver": "none", **dict.fromkeys(fields, "auto")}
    return [adopted, Part(("driver",), installed.version, untouched, because, stays=installed)]


# Whether it fits --------------------------------------------------------------------------------------------------


def _with(kept: Kept, parts: Iterable[Part]) -> Kept:
    """Return what to resolve with more parts that stay: with their packages in these versions, and in no other.

    What is there counts as offered.
    """
    parts = (*kept.parts, *parts)
    asks = {name: value for part in parts for name, value in part.asks.items()}
    host = kept.asked[1]
    if host.offers is not None:
        exact = {name: (version,) for p in parts for name, version in map(split_spec, p.packages) if version}
        there = {name: (version,) for name, version in map(split_spec, host.packages) if name in kept.there and version}
        found = {name: tuple(dict.fromkeys((*host.offers.get(name, ()), *v))) for name, v in there.items()}
        known = {name: v for name, v in exact.items() if v[0] in found.get(name, host.offers.get(name, ()))}
        host = dataclasses.replace(host, offers={**host.offers, **found, **known})
    return dataclasses.replace(kept, request=dataclasses.replace(kept.request, **asks), host=host, parts=parts)


def _misfit(catalog: Catalog, kept: Kept, attempt: Attempt) -> str | None:
    """Return why a host cannot keep its parts; None if it can."""
    plan = attempt(kept.request, kept.host)
    if not plan.ok:
        return plan.problems[0].message
    part = kept.names.get("driver")
    if part and part.stays and (why := _misfit_of(part.stays, plan, kept, catalog)):
        return why
    if part and part.adopted and not _is_installed(plan.components.driver, kept.host):
        return "its packages are others than the plan's"
    # Programs of a toolkit that is newer than its driver run without PTX: what was verified so may stay.
    if {"driver", "cuda"} <= kept.names.keys() or (kept.newest and _without_ptx(kept.newest)):
        return None
    return _without_ptx(plan)


def _misfit_of(driver: PackagedDriver, plan: Plan, kept: Kept, catalog: Catalog) -> str | None:
    """Return why a driver that is not managed does not fit: a GPU that it does not support, or the known-bad list."""
    context = ResolveContext(catalog, kept.host, kept.request, plan.gpus)
    problems = known_bad.driver_problems(context, driver.version, driver.source)
    for branch in catalog.driver.branches:
        if versions.has_prefix(driver.version, branch.branch):
            problems += drivers.gpu_driver_problems(context, branch, driver.version, driver.kernel_modules)
    return problems[0].message if problems else None


def _is_installed(component: DriverComponent | None, host: Host) -> bool:
    """Return whether a host has all packages of a driver, in the planned versions where the plan has them."""
    present = dict(map(split_spec, host.packages))
    specs = map(split_spec, component.packages if component else ())
    return all(name in present and version in (None, present[name]) for name, version in specs)


def _without_ptx(plan: Plan) -> str | None:
    return next((warning.message for warning in plan.warnings if warning.code == _NATIVE), None)
