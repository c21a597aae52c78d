"""A made-up component: it runs with drivers from a version on, and one release of it not beside one CUDA."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import PackagedComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings, Problem
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, ComponentFile
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import Candidate, Choice, Facts, Rule
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    not_in_repository,
    offered,
    offered_version,
)

PROBLEMS = {"telemetry-conflict": "a release of telemetry runs with other drivers, or beside other toolkits"}


@dataclasses.dataclass(frozen=True)
class Release:
    """A release; min_driver: the first driver that it runs with; not_cuda: the toolkits that it does not run beside."""

    version: str
    min_driver: str
    not_cuda: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TelemetryFile(ComponentFile):
    """telemetry.yml."""

    name: ClassVar[str] = "telemetry"
    package: str
    releases: tuple[Release, ...]


@dataclasses.dataclass(frozen=True)
class TelemetryComponent(PackagedComponent):
    """The telemetry to install."""

    name: ClassVar[str] = "telemetry"
    label: ClassVar[str] = "telemetry"
    version: str
    packages: tuple[Package, ...]


def _published(catalog: Catalog) -> list[str]:
    return [release.version for release in TelemetryFile.of(catalog).releases]


def _candidates(context: ResolveContext, _facts: Facts) -> Sequence[Candidate]:
    wanted, file = context.request["telemetry"], TelemetryFile.of(context.catalog)
    if wanted == "none":
        return [Candidate("absent", because=context.unmanaged("telemetry"))]
    fitting = [release for release in file.releases if wanted == "auto" or versions.has_prefix(release.version, wanted)]
    return [_candidate(context, file.package, release) for release in fitting]


def _candidate(context: ResolveContext, package: str, release: Release) -> Candidate:
    known = f"{release.version}-1" if context.host.offers is None else None
    found = known or offered_version(context, package, release.version)
    exist = [versions.upstream(version) for version in offered(context, package)]
    missing = not_in_repository(context, f"telemetry {release.version}", [package], exist, "telemetry")
    return Candidate(
        "install",
        {"telemetry.version": release.version, "telemetry.needs_driver": release.min_driver},
        TelemetryComponent(release.version, (Package(package, found),)),
        () if found else (missing,),
    )


def _rules(context: ResolveContext) -> Sequence[Rule]:
    excluded = {release.version: release.not_cuda for release in TelemetryFile.of(context.catalog).releases}

    def runs(facts: Facts) -> bool:
        return versions.key(facts["driver.version"]) >= versions.key(facts["telemetry.needs_driver"])

    def too_old(facts: Facts) -> list[Problem]:
        what = f"telemetry {facts['telemetry.version']} needs driver {facts['telemetry.needs_driver']} or newer"
        return [Problem("telemetry-conflict", f"{what}, not {facts['driver.version']}", "set gpu_stack_driver=auto")]

    def is_beside(facts: Facts) -> bool:
        return facts["cuda.version"] not in excluded[facts["telemetry.version"]]

    def excludes(facts: Facts) -> list[Problem]:
        what = f"telemetry {facts['telemetry.version']} does not run beside CUDA {facts['cuda.version']}"
        return [Problem("telemetry-conflict", what, "set gpu_stack_cuda=auto")]

    return (
        Rule(("telemetry.needs_driver", "driver.version"), runs, too_old),
        Rule(("telemetry.version", "cuda.version"), is_beside, excludes),
    )


def _explain(_context: ResolveContext, _candidate: Candidate, facts: Facts, findings: Findings) -> None:
    needs = f"runs with driver {facts['telemetry.needs_driver']} and newer"
    findings.reason("telemetry", facts["telemetry.version"], needs)


CHOICE = Choice(
    record=TelemetryComponent,
    candidates=_candidates,
    known=lambda context: _published(context.catalog),
    published=_published,
    rules=_rules,
    explain=_explain,
)


class Telemetry(PackagedPart[TelemetryComponent]):
    """Telemetry from NVIDIA's repository."""

    record = TelemetryComponent
    role = "telemetry"
    catalog_file = TelemetryFile

    def entries(self, catalog: Catalog) -> Mapping[str, Release]:
        """Return the releases by version."""
        return {release.version: release for release in TelemetryFile.of(catalog).releases}
