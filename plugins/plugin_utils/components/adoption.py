"""Plan what is installed, whoever installed it: for `gpu_stack_adopt`, and to check hosts that gpuhost has not set up.

The plan changes nothing: a driver stays as it is, and each other component is planned in the version and with the
packages that are there. These must fit together, the GPUs and the catalog all the same. Runs on the controller; pure
functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import playbook_call
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem, Reason
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import KeptDriver, Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import staying
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME, CHOICES, PACKAGED
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, Present
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import keeping
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.scenarios import Attempt

CODE = "cannot-adopt"
_CHANGE = playbook_call.call("gpu_host", f"{PREFIX}adopt=false")
PROBLEMS = {
    "cannot-adopt": "`gpu_stack_adopt`, and there is no driver to adopt (what is there besides is adopted with "
    "`gpu_stack_driver=none`), or a variable asks for another version than the installed one",
}
WARNINGS = {
    "not-adopted": "`gpu_stack_adopt`, and a component stays out of what is adopted: only a part of it is installed, "
    "it is for another CUDA, or what it is for is not adopted",
}
_DRIVER = "driver"
_NEEDED = frozenset(part.name for part in PACKAGED) - {_DRIVER}  # by what is built for it
_THERE = "installed, and adopted as it is"


def is_asked(request: Mapping[str, str]) -> bool:
    """Return whether a request is for what is installed."""
    return request["adopt"] == "true"


def plan(catalog: Catalog, request: Request, probe: Probe, host: Host, once: Attempt, is_recorded: bool = True) -> Plan:
    """Return the plan of what is installed on a host, or what prevents that.

    once: plans a request on a host as if nothing were there. is_recorded: whether it will count as verified; where it
    is only checked, what a part cannot be adopted for is a warning, and the checks tell what it does.
    """
    found = {choice.name: BY_NAME[choice.name].all_installed(probe, catalog) for choice in CHOICES}
    known = {name: [version.partition("+")[0] for version in each] for name, each in found.items() if each}
    # Of several the one in use, or the one that is asked for.
    there = {
        name: next((version for version in each if versions.has_prefix(version, request[name])), each[0])
        for name, each in known.items()
    }
    kept = staying.installed(ResolveContext(catalog, host, request, ()))
    findings = Findings(_contradictions(request, known, kept))
    host = dataclasses.replace(host, staying=kept, foreign_holds=(), present=Present())
    driver = "auto" if kept else request[_DRIVER]
    asked = request.but(**{**{choice.name: "none" for choice in CHOICES}, _DRIVER: driver})
    made, adopted = once(asked, host), dict[str, Any]()
    for choice in CHOICES if made.ok and not findings.problems else ():
        name = choice.name
        if name == _DRIVER or request[name] == "none":
            continue
        if kept and (unfit := BY_NAME[name].unadoptable(there.get(name), kept, host, catalog)):
            if is_recorded:
                findings.problems.append(unfit)
            else:
                findings.warn(unfit.code, unfit.message)
            continue
        if name not in there:
            continue
        if beside := [other for other in choice.after if other in _NEEDED and other not in adopted]:
            labels = " and ".join(BY_NAME[other].label for other in beside)
            text = f"{choice.label} {there[name]} is not adopted, since {labels} is not; it stays as it is"
            findings.warn("not-adopted", f"{text}, and is not checked")
            continue
        wanted = asked.but(**{part: there[part] for part in (*adopted, name)})
        trial, component = _with(wanted, probe, host, name, once)
        if not trial.ok:
            remedy = f"set {PREFIX}{name}=none, to leave it out; or run `{_CHANGE}`"
            findings.problems += [dataclasses.replace(problem, remedy=remedy) for problem in trial.problems]
            break
        if component is None:
            what = f"{choice.label} {there[name]} is not adopted: not all packages of one build of it are installed"
            findings.warn("not-adopted", f"{what}; it stays as it is, and is not checked")
        else:
            made, adopted[name] = trial, component
    if request["scope"] == "host":
        findings.problems += made.problems
    if findings.problems:
        adopted = {}
    shown = [choice.name for choice in CHOICES if BY_NAME[choice.name].is_common or choice.name in there]
    return dataclasses.replace(
        made,
        request=request,
        components=made.components.but(**{**dict.fromkeys(made.components), **adopted}),
        repository=None,
        reasons=tuple(_reason(request, name, there, adopted, kept) for name in shown),
        problems=tuple(dict.fromkeys(findings.problems)),
        warnings=tuple(w for w in (*made.warnings, *findings.warnings) if w.code != "repository-not-read"),
        remedies=(),
    )


def _contradictions(request: Request, known: Mapping[str, Sequence[str]], kept: KeptDriver | None) -> list[Problem]:
    """Return the problems of a request that what is installed does not meet."""
    if request["scope"] != "host":
        text = f"gpu_stack_adopt is for whole hosts, and gpu_stack_scope is {request['scope']}"
        return [Problem(CODE, text, "remove one of the two")]
    found = []
    if kept is None and request[_DRIVER] != "none":
        found.append(_without_driver(known))
    for choice in CHOICES:
        wanted, there = request[choice.name], known.get(choice.name, ())
        if wanted in (*keeping.FREE, "latest", "none") or any(versions.has_prefix(v, wanted) for v in there):
            continue
        text = f"{PREFIX}{choice.name} is {wanted}, and the host has {' and '.join(there) or 'none'}"
        remedy = f"remove {PREFIX}{choice.name}, to take what is there; or run `{_CHANGE}`, to change it"
        found.append(Problem(CODE, text, remedy))
    return found


def _without_driver(known: Mapping[str, Sequence[str]]) -> Problem:
    """Return the problem of a host without a driver, which can have something else to adopt."""
    text, other = "no NVIDIA driver is installed on this host", "run this without gpu_stack_adopt, which installs"
    found = {name: each[0] for name, each in known.items() if name != _DRIVER}
    there = " and ".join(f"{BY_NAME[name].label} {version}" for name, version in found.items())
    if not there:
        return Problem(CODE, f"{text}: there is nothing to adopt", f"{other} what is planned")
    alone = f"set {PREFIX}{_DRIVER}=none, to adopt {there} alone"
    return Problem(CODE, f"{text}, and gpu_stack_adopt expects one beside {there}", f"{alone}; or {other} a driver")


def _with(request: Request, probe: Probe, host: Host, name: str, once: Attempt) -> tuple[Plan, Any]:
    """Return the plan with a component that is installed, and the component; None where it is not whole.

    What is there is what can be had; where that does not suffice, all that the catalog has, of which some may be there.
    """
    offers = {package.name: (package.version,) for package in host.packages if package.version}
    for known in (offers, None):
        trial = once(request, dataclasses.replace(host, offers=known))
        component = trial.components.get(name)
        if trial.ok and component is not None:
            return trial, BY_NAME[name].adopted(component, probe)
    return trial, None


def _reason(
    request: Request, name: str, there: Mapping[str, str], adopted: Mapping[str, Any], kept: KeptDriver | None
) -> Reason:
    if name == _DRIVER and kept:
        return Reason(name, "none", f"driver {kept.version} stays: {_THERE} ({kept.origin})")
    if name in adopted:
        return Reason(name, adopted[name].full_version, _THERE)
    if request[name] == "none":
        return Reason(name, "none", f"not managed ({PREFIX}{name}=none): what is installed stays")
    return Reason(name, "none", "not adopted" if name in there else "not installed")
