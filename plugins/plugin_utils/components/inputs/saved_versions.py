"""A file of a fleet's versions: what one host got, so that the others get it too, though the repository has moved on.

`script/plan --save-versions` writes it, `--versions` and `gpu_stack_versions_file` read it. Each component is requested
in the version of the file, its packages and those that they depend on count as offered in these versions alone, and
what is installed in others does not stay. Runs on the controller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import PackagedComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import LATEST, PlanInputError, Request
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import decisions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME, CHOICES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe, VerifiedComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX

SCHEMA = 1
VARIABLE = "gpu_stack_versions_file"
PROBLEMS = {
    "versions-file": "the file of `gpu_stack_versions_file` is for another distribution or architecture, contradicts a "
    "variable, or has a version that the repository no longer offers",
}
_OPEN = ("auto", "fallback", LATEST)  # requests that the file decides
_NEW_FILE = "save another file (script/plan --probe FILE --save-versions FILE)"
_KEEP = f"set gpu_stack_repository_url to a mirror that keeps them, or {_NEW_FILE}"
_HEADER = """\
# The versions of a plan of gpuhost, for other hosts of the same kind: gpu_stack_versions_file, script/plan --versions.
# Written by script/plan --save-versions.
"""


@dataclasses.dataclass(frozen=True)
class Saved:
    """The content of a file.

    request: exact values of variables, by name without the prefix; packages: versions by component and name.
    """

    schema: int
    distribution: str
    architecture: str
    request: Mapping[str, str]
    packages: Mapping[str, Mapping[str, str]]
    path: str = ""

    @classmethod
    def read(cls, path: Path) -> Saved:
        """Return the content of a file; raises PlanInputError with the path and what is wrong with it."""
        expected = "expected a file that script/plan --save-versions wrote"
        try:
            found = records.from_json(cls, load_yaml(path), "the file")
        except OSError as error:
            raise PlanInputError(f"{path}: {error.strerror}; {expected}") from error
        except (ValueError, yaml.YAMLError) as error:
            raise PlanInputError(f"{path}: {error}; {expected}") from error
        if found.schema != SCHEMA:
            raise PlanInputError(f"{path}: schema {found.schema}; this release reads {SCHEMA}; {_NEW_FILE}")
        fields = {field for choice in CHOICES for field in choice.options} | {choice.name for choice in CHOICES}
        if unknown := sorted({*found.request, *found.packages} - fields):
            raise PlanInputError(f"{path}: {', '.join(unknown)}: this release has no such component; {_NEW_FILE}")
        return dataclasses.replace(found, path=str(path))


# Write ----------------------------------------------------------------------------------------------------------


def text(plan: Plan, architecture: str, probe: Probe | None, catalog: Catalog) -> str:
    """Return a file for a plan; with a probe, also the versions there of what its packages depend on.

    Raises PlanInputError where a driver of others stays, which no other host would get by the file.
    """
    if plan.kept_driver is not None:
        raise PlanInputError(
            f"driver {plan.kept_driver.version} ({plan.kept_driver.origin}) stays as others installed it: the plan "
            "has none of its packages to save. Save the versions of a host whose driver gpuhost has installed"
        )
    request: dict[str, str] = {}
    packages: dict[str, dict[str, str]] = {}
    for choice in CHOICES:
        component = plan.components.get(choice.name)
        if component is None:
            if BY_NAME[choice.name].is_common:
                request[choice.name] = "none"
            continue
        request[choice.name] = component.full_version
        request |= {field: str(getattr(component, attribute)) for field, attribute in choice.options.items()}
        if isinstance(component, PackagedComponent):
            packages[choice.name] = dict(sorted(_closure(component, probe, catalog).items()))
    content = {"schema": SCHEMA, "distribution": plan.distribution, "architecture": architecture}
    return _HEADER + yaml.safe_dump({**content, "request": request, "packages": packages}, sort_keys=False)


def _closure(component: PackagedComponent, probe: Probe | None, catalog: Catalog) -> dict[str, str]:
    """Return the versions of a component's packages, and of the parts of the stack that those depend on."""
    present = probe.present_packages if probe else {}
    found: dict[str, str] = {}
    waiting = []
    for package in component.all_packages:
        there = present.get(package.name)
        if package.version or there:
            found[package.name] = package.version or there.version  # type: ignore[union-attr]
        if there and package.version in (None, there.version):
            waiting.append(package.name)
    parts = [*catalog.packages.driver_parts, *catalog.packages.cuda_parts]
    return {**{n: present[n].version for n in decisions.dependencies(waiting, present, parts)}, **found}


# Apply ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Applied:
    """What to plan for a file: the request and the host that it leaves, and what prevents that."""

    saved: Saved
    request: Request
    host: Host
    problems: tuple[Problem, ...] = ()

    def finish(self, plan: Plan) -> Plan:
        """Return the plan with the versions of the file, and its problems first; remedies do not name others."""
        if self.problems:
            others = tuple(problem for problem in plan.problems if problem.code != "not-in-repository")
            return dataclasses.replace(plan, problems=(*self.problems, *others), remedies=())
        if any(problem.code == "not-in-repository" for problem in plan.problems):
            problems = tuple(
                dataclasses.replace(p, remedy=_KEEP) if p.code == "not-in-repository" else p for p in plan.problems
            )
            return dataclasses.replace(plan, problems=problems, remedies=())
        components = {name: self._exact(component) for name, component in plan.components.items() if component}
        plan = dataclasses.replace(plan, components=plan.components.but(**components))
        named = {package.name for part in plan.components.packaged() for package in part.all_packages}
        of_parts = {name: v for part in plan.components.packaged() for name, v in self._of(part.name).items()}
        rest = tuple(Package(name, version) for name, version in sorted(of_parts.items()) if name not in named)
        return dataclasses.replace(plan, versions=rest)

    def _of(self, component: str) -> Mapping[str, str]:
        return self.saved.packages.get(component, {})

    def _exact(self, component: Any) -> Any:
        """Return a component with the versions of the file, also where the archive or the catalog would decide them."""
        if not isinstance(component, PackagedComponent):
            return component
        known = self._of(component.name)
        packages = tuple(Package(p.name, known.get(p.name, p.version)) for p in component.packages)
        return dataclasses.replace(cast(Any, component), packages=packages)


def apply(saved: Saved, request: Request, host: Host, catalog: Catalog) -> Applied:
    """Return what to plan on a host for a file."""
    if (saved.distribution, saved.architecture) != (host.distribution, host.architecture):
        message = (
            f"{saved.path} has the versions of {saved.distribution} on {saved.architecture}; this host has "
            f"{host.distribution} on {host.architecture}"
        )
        remedy = f"set {VARIABLE} for each distribution release in a file of its own, or leave it out for this host"
        return Applied(saved, request, host, (Problem("versions-file", message, remedy),))
    asked, problems = _asked(saved, request)
    wanted = {
        name: version
        for component, packages in saved.packages.items()
        if asked[component] != "none" and asked["scope"] == "host"
        for name, version in packages.items()
    }
    there = {package.name: package.version for package in host.packages}
    if host.offers is None:
        return Applied(saved, asked, _host(host, None, wanted), tuple(problems))
    known = {name: (*host.offers.get(name, ()), there.get(name)) for name in wanted}
    lost = [name for name, version in wanted.items() if name in host.offers and version not in known[name]]
    problems += [_lost(saved, host.offers, lost)] if lost else []
    offers = dict(host.offers) | dict.fromkeys(lost, ())
    offers |= {name: (version,) for name, version in wanted.items() if version in known[name]}
    pins = [name for name in offers if decisions.matches(name, catalog.packages.driver_pins)]
    if any(name in wanted for name in pins):
        offers = {name: v for name, v in offers.items() if name not in pins or name in wanted}
    return Applied(saved, asked, _host(host, offers, wanted), tuple(problems))


def _asked(saved: Saved, request: Request) -> tuple[Request, list[Problem]]:
    """Return the request with the values of the file, and a problem for each that contradicts a variable."""
    values, problems = {}, []
    for name, version in saved.request.items():
        wanted = request[name]
        if wanted in _OPEN or wanted == version or versions.has_prefix(version, wanted):
            values[name] = version
        elif wanted != "none":
            message = f"{PREFIX}{name} is {wanted}, and {saved.path} has {version}"
            problems.append(Problem("versions-file", message, f"remove {PREFIX}{name}, or {_NEW_FILE}"))
    return request.but(**values), problems


def _lost(saved: Saved, offers: Mapping[str, tuple[str, ...]], names: list[str]) -> Problem:
    versions_of = {name: v for packages in saved.packages.values() for name, v in packages.items()}
    listed = [f"{name} {versions_of[name]} (it offers {', '.join(offers[name][:3]) or 'none'})" for name in names[:4]]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return Problem("versions-file", f"the repository no longer offers {', '.join(listed)}{more} of {saved.path}", _KEEP)


def _host(host: Host, offers: Mapping[str, tuple[str, ...]] | None, wanted: Mapping[str, str]) -> Host:
    """Return the host with these offers, of whose verified components only those stay that agree with the file."""

    def agrees(component: VerifiedComponent | None) -> bool:
        packages = (*component.packages, *component.pinning_packages) if component else ()
        return all(wanted.get(package.name) == package.version for package in packages if package.version)

    verified = host.present.verified
    kept = {name: component for name, component in verified.components.items() if agrees(component)}
    present = dataclasses.replace(host.present, verified=dataclasses.replace(verified, components=kept))
    return dataclasses.replace(host, offers=offers, present=present)


def differing(plan: Plan, probe: Probe) -> list[str]:
    """Return which parts of the planned packages are there in another version than that of the file, for messages."""
    present = probe.present_packages
    return [
        f"{package.name} is {present[package.name].version}, and {VARIABLE} has {package.version}"
        for package in plan.versions
        if package.name in present
        and package.name not in probe.foreign_holds
        and present[package.name].version != package.version
    ]
