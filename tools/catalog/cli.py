"""script/catalog-check: compare the catalog with its live sources and print the differences.

Runs on the controller. Exit status 0: no difference; 1: differences; 2: bad usage; 3: no difference, but a source could
not be reached (0 with --offline-ok).
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import gzip
import json
import os
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO, TypeVar

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line, versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    Distro,
    FrameworkRelease,
    TensorflowRelease,
    Toolkit,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tools.catalog import comparison, device_code, live_sources, verdicts
from tools.catalog.comparison import Finding
from tools.catalog.live_sources import SourceUnreachable
from tools.catalog.options import ARCHITECTURE, DEEP_SOURCES, SOURCES, parser
from tools.catalog.verdicts import Evidence, Verdict

PARALLEL = 4  # concurrent requests, few enough for any package index
_Made = TypeVar("_Made")


@dataclasses.dataclass(frozen=True)
class Unreachable:
    """A source that did not answer."""

    source: str
    reason: str


@dataclasses.dataclass
class Result:
    """The result of a run."""

    compared: list[str] = dataclasses.field(default_factory=list)
    evidence: list[Evidence] = dataclasses.field(default_factory=list)  # one for each entry that was compared whole
    findings: list[Finding] = dataclasses.field(default_factory=list)
    unreachable: list[Unreachable] = dataclasses.field(default_factory=list)
    machine: str = ARCHITECTURE

    def status(self, offline_ok: bool) -> int:
        """Return the exit status."""
        if self.findings:
            return 1
        return 3 if self.unreachable and not offline_ok else 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data for --json."""
        return {
            "schema": 1,
            "compared": self.compared,
            "findings": [dataclasses.asdict(f) for f in self.findings],
            "unreachable": [dataclasses.asdict(u) for u in self.unreachable],
        }


Log = Callable[[str], object]


def _each(items: Sequence[Any], work: Callable[[Any], _Made], result: Result, source: str) -> list[_Made]:
    """Return the results of `work` on the items, a few at a time; add sources that cannot be reached to the result."""
    made: list[_Made] = []
    with ThreadPoolExecutor(PARALLEL) as pool:
        for future in [pool.submit(work, item) for item in items]:
            try:
                made.append(future.result())
            except SourceUnreachable as error:
                result.unreachable.append(Unreachable(source, str(error)))
    return made


def check_framework(framework: str, catalog: Catalog, result: Result, log: Log) -> None:
    """Compare wheel tags and METADATA of each release of a framework; find releases that the catalog lacks."""
    pip = live_sources.find_pip()
    releases, pythons = comparison.on_pypi(catalog, framework), comparison.pythons_to_ask(catalog)
    names = sorted({comparison.package(release) for release in releases})

    def listed(pair: tuple[str, str]) -> tuple[str, str, tuple[str, ...]]:
        log(f"{framework}: wheels of {pair[0]} for Python {pair[1]}")
        return (*pair, live_sources.pip_versions(pip, *pair, machine=result.machine))

    def compared(release: FrameworkRelease) -> list[Finding]:
        name = comparison.package(release)
        findings = comparison.compare_wheels(release, wheels[name])
        if offered := comparison.wheel_pythons(wheels[name], release.version):
            log(f"{framework}: METADATA of {name} {release.version}")
            metadata = live_sources.pip_metadata(pip, name, release.version, offered[-1], result.machine)
            findings += comparison.compare_metadata(catalog, release, metadata)
        place = comparison.place(release)
        result.evidence.append(Evidence(place, "METADATA and wheels of PyPI", True, ""))
        return findings

    pairs = [(name, python) for name in names for python in pythons]
    wheels: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in names}
    for name, python, found in _each(pairs, listed, result, framework):
        wheels[name][python] = found
    if incomplete := [name for name in names if len(wheels[name]) < len(pythons) or not any(wheels[name].values())]:
        reason = f"the package index did not list the wheels of {', '.join(incomplete)}"
        result.unreachable.append(Unreachable(framework, reason))
        return
    for findings in _each(releases, compared, result, framework):
        result.findings += findings
    result.findings += comparison.compare_new_releases(releases, wheels)
    result.compared.append(f"{framework}: {len(releases)} releases")


def check_pypi(catalog: Catalog, result: Result, log: Log) -> None:
    """Compare the versions of cuDNN, NCCL and CUDA."""
    pip = live_sources.find_pip()
    # These wheels are not tied to a Python; the newest that PyTorch is known for sees all of them.
    python = max((p for r in catalog.pytorch.releases for p in r.pythons), key=versions.key)

    def listed(name: str) -> tuple[str, tuple[str, ...]]:
        log(f"pypi: versions of {name}")
        found = live_sources.pip_versions(pip, name, python, machine=result.machine)
        if not found:
            raise SourceUnreachable(f"{name}: the package index lists no wheel for Python {python}")
        return name, found

    names = comparison.index_names(catalog)
    index = dict(_each(names, listed, result, "pypi"))
    if len(index) == len(names):
        result.findings += comparison.compare_index(catalog, index)
        result.compared.append(f"pypi: {', '.join(names)}")
        result.evidence += [
            Evidence(f"cudnn.yml versions[{v.version}]", "PyPI", True, "")
            for v in catalog.cudnn.versions
            if "PyPI" in v.source
        ]


def _served(catalog: Catalog, result: Result) -> list[Distro]:
    """Return the distribution releases that serve the architecture that is compared."""
    return [distro for distro in catalog.distros.values() if result.machine in supported(catalog, distro.id)]


def check_archive(family: str, catalog: Catalog, result: Result, log: Log) -> None:
    """Compare the distribution files of Debian or Ubuntu with the archive."""
    mirror = live_sources.find_mirror(family)

    def offered(distro: Any) -> tuple[str, dict[str, tuple[str, ...]]]:
        log(f"{family}: package lists of {distro.id}")
        return distro.id, live_sources.archive_offers(mirror, catalog, distro, machine=result.machine)

    own = [distro for distro in _served(catalog, result) if distro.family == family]
    archives = dict(_each(own, offered, result, family))
    for name, packages in archives.items():
        result.findings += comparison.compare_archive(catalog, catalog.distros[name], packages, result.machine)
        result.compared.append(f"{family}: {name}")
        result.evidence.append(Evidence(f"distro/{name}.yml", f"{family.capitalize()}'s archive", True, ""))
    result.findings += comparison.compare_archived_drivers(catalog, family, archives)


def check_nvidia(catalog: Catalog, result: Result, log: Log) -> None:
    """Compare NVIDIA's repository for each distribution release that has apt: those of rpm packages are not read."""

    def compared(distro: Any) -> list[Finding]:
        log(f"nvidia: index of {distro.nvidia_repository.slug}")
        findings = comparison.compare_nvidia(
            catalog, distro, live_sources.nvidia_index(catalog, distro, machine=result.machine)
        )
        result.compared.append(f"nvidia: {distro.nvidia_repository.slug}")
        return findings

    for findings in _each([each for each in _served(catalog, result) if not each.dist], compared, result, "nvidia"):
        result.findings += findings


# --deep ---------------------------------------------------------------------------------------------------------------


def deep(
    catalog: Catalog, sources: Sequence[str], wheels: int, log: Log, machine: str = ARCHITECTURE
) -> tuple[list[Verdict], Result]:
    """Return a verdict on each entry, and the comparison that it rests on. wheels: how many releases' code is read."""
    result = check(catalog, [source for source in sources if source in SOURCES], log, machine)
    evidence = result.evidence + [
        Evidence(_entry(finding.where), finding.source, False, f"catalog {finding.catalog}, live {finding.observed}")
        for finding in result.findings
    ]
    works = {"wheels": deep_wheels, "compilers": deep_compilers, "debian": deep_debian}
    for source in (source for source in works if source in sources):
        try:
            made = works[source](catalog, wheels, result, log)
            evidence += made
            result.compared += [f"{source}: deep"] if made else []
        except SourceUnreachable as error:
            result.unreachable.append(Unreachable(source, str(error)))
    return verdicts.verdicts(catalog, evidence), result


def _entry(where: str) -> str:
    """Return the entry of a finding's place: `tensorflow.yml releases[2.4.4].pythons` is about releases[2.4.4]."""
    return where[: where.index("]") + 1] if "]" in where else where


def deep_wheels(catalog: Catalog, wheels: int, result: Result, log: Log) -> list[Evidence]:
    """Compare the device code of TensorFlow's wheels, and of PyTorch's on PyPI."""
    pip = live_sources.find_pip()

    def read(release: FrameworkRelease) -> tuple[Mapping[device_code.Group, int], str]:
        package = comparison.package(release)
        metadata = live_sources.pip_metadata(pip, package, release.version, release.pythons[-1], result.machine)
        name = metadata.url.rsplit("/", 1)[-1]
        log(f"wheels: device code of {name}")
        with live_sources.open_wheel(metadata.url) as wheel:
            return device_code.wheel_groups(wheel), name

    def compared(release: FrameworkRelease) -> Evidence:
        groups, name = read(release)
        if isinstance(release, TensorflowRelease):
            return verdicts.wheel_code(release, device_code.summary(groups), name)
        return verdicts.pytorch_code(release, groups, name)

    inspected = [release for release in catalog.tensorflow.releases if release.sass]
    newest = [
        *verdicts.newest_of_series(inspected, wheels),
        *verdicts.newest_of_series(comparison.on_pypi(catalog, "pytorch"), wheels),
    ]
    return _each(newest, compared, result, "wheels")


def deep_compilers(catalog: Catalog, wheels: int, result: Result, log: Log) -> list[Evidence]:
    """Compare the compilers in NVIDIA's wheels: crt/host_config.h, and what ptxas lists."""
    pip = live_sources.find_pip()
    python = max((p for r in catalog.pytorch.releases for p in r.pythons), key=versions.key)

    def compared(toolkit: Toolkit) -> list[Evidence]:
        files: dict[str, bytes] = {}
        major = versions.major(toolkit.version)
        for package in catalog.packages.compiler_wheels:
            name = package.format(cuda_major=major)
            offered = live_sources.pip_versions(pip, name, python, machine=result.machine)
            of_series = [v for v in offered if versions.series(v) == toolkit.version]
            if not of_series or {"host_config.h", "ptxas"} <= set(files):
                continue
            log(f"compilers: {name} {of_series[0]}")
            url = live_sources.pip_metadata(pip, name, of_series[0], python, result.machine).url
            with live_sources.open_wheel(url) as wheel, zipfile.ZipFile(wheel) as archive:
                for member in archive.namelist():
                    if member.endswith(("/crt/host_config.h", "/bin/ptxas")):
                        files[member.rsplit("/", 1)[-1]] = archive.read(member)
        if not {"host_config.h", "ptxas"} <= set(files):
            return []
        is_own = result.machine == os.uname().machine  # or it does not run here
        listed = live_sources.run_binary(files["ptxas"], ["--help"]) if is_own else None
        return verdicts.compiler(toolkit, files["host_config.h"].decode(errors="replace"), listed)

    return [found for made in _each(catalog.cuda.toolkits, compared, result, "compilers") for found in made]


def deep_debian(catalog: Catalog, wheels: int, result: Result, log: Log) -> list[Evidence]:
    """Simulate each driver set of Debian's releases, and read NVIDIA's list of GPUs and pci.ids from their packages."""
    mirror = live_sources.find_mirror("debian")
    made: list[Evidence] = []
    for distro in (d for d in _served(catalog, result) if d.family == "debian"):
        with live_sources.private_apt(mirror, distro, machine=result.machine) as environment:
            for driver in distro.distro_drivers:
                for flavour in ("open", "proprietary"):
                    if getattr(driver, flavour):
                        log(f"debian: {distro.id}'s {driver.branch} {flavour}")
                        lacking, error = live_sources.simulate_driver(catalog, driver, flavour, environment)
                        made.append(verdicts.simulation(distro, driver, flavour, lacking, error))
            for package in catalog.packages.gpu_list_packages:
                found = live_sources.packaged_file(package, "supported-gpus.json.gz", environment)
                if found:
                    log(f"debian: supported-gpus.json of {package} {found[0]}")
                    chips = json.loads(gzip.decompress(found[1]))["chips"]
                    made += verdicts.supported_gpus(catalog, versions.upstream(found[0]), chips)
            ids = live_sources.packaged_file("pci.ids", "/pci.ids", environment)
            if ids:
                log(f"debian: pci.ids {ids[0]}")
                made += verdicts.pci_ids(catalog, ids[1].decode(errors="replace"))
    return made


def deep_table(found: Sequence[Verdict], result: Result) -> str:
    """Return the contradicted entries, the sources that were not reached, and the share of each verdict by file."""
    lines = [f"{v.entry}  contradicted by {v.by}\n    {v.text}" for v in found if v.verdict == "contradicted"]
    lines += [f"{u.source}  not reached: {u.reason}" for u in result.unreachable]
    for file, counts in verdicts.shares(found).items():
        lines.append(f"{file}: " + ", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return "\n".join(lines)


def default_sources() -> list[str]:
    """Return all sources; of the two archives the one in this machine's apt sources, else debian."""
    left_out = "ubuntu"
    try:
        live_sources.find_mirror("ubuntu")
        left_out = "debian"
    except SourceUnreachable:
        pass  # reported when debian is compared
    return [source for source in SOURCES if source != left_out]


def check(catalog: Catalog, sources: Sequence[str], log: Log, machine: str = ARCHITECTURE) -> Result:
    """Return the differences between the catalog and the sources."""
    result = Result(machine=machine)
    for source in sources:
        try:
            if source in ("tensorflow", "pytorch"):
                check_framework(source, catalog, result, log)
            elif source == "pypi":
                check_pypi(catalog, result, log)
            elif source == "nvidia":
                check_nvidia(catalog, result, log)
            else:
                check_archive(source, catalog, result, log)
        except SourceUnreachable as error:
            result.unreachable.append(Unreachable(source, str(error)))
    return dataclasses.replace(result, findings=merged(result.findings))


def merged(findings: Sequence[Finding]) -> list[Finding]:
    """Return each finding once: one that several releases of a distribution share is one change of the catalog."""
    observed: dict[tuple[str, str, str, str], list[str]] = {}
    for f in findings:
        texts = observed.setdefault((f.source, f.kind, f.where, f.catalog), [])
        texts += [f.observed] if f.observed not in texts else []
    return [Finding(*key, "; ".join(texts)) for key, texts in observed.items()]


def table(result: Result) -> str:
    """Return the result as text: a block per finding, the sources that were not reached, the count."""
    lines = []
    for finding in result.findings:
        lines += [f"{finding.source}  {finding.kind}  {finding.where}"]
        lines += [f"    catalog: {finding.catalog}", f"    live:    {finding.observed}"]
    lines += [f"{u.source}  not reached: {u.reason}" for u in result.unreachable]
    lines += [f"compared {text}" for text in result.compared]
    return "\n".join([*lines, f"{len(result.findings)} differences, {len(result.unreachable)} not reached"])


def main(argv: Sequence[str] | None = None, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> int:
    """Run the command and return the exit status."""
    try:
        arguments = parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        catalog = of_architecture(load_catalog(CATALOG_FOLDER), arguments.arch)
    except CatalogError as error:
        print(f"script/catalog-check: {error}", file=err)
        return 2
    if arguments.deep:
        return main_deep(catalog, arguments, out, err)
    result = check(catalog, arguments.only or default_sources(), lambda text: err.write(f"{text}\n"), arguments.arch)
    print(json.dumps(result.to_json(), indent=2) if arguments.json else table(result), file=out)
    return result.status(arguments.offline_ok)


def main_deep(catalog: Catalog, arguments: argparse.Namespace, out: TextIO, err: TextIO) -> int:
    """Run --deep and return the exit status."""
    sources = arguments.only or DEEP_SOURCES
    found, result = deep(catalog, sources, arguments.wheels, lambda text: err.write(f"{text}\n"), arguments.arch)
    shares = verdicts.shares(found)
    if arguments.record:
        document = {"date": datetime.date.today().isoformat(), "sources": list(sources), "shares": shares}
        Path(arguments.record).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if arguments.json:
        answer = {
            "schema": 1,
            "verdicts": [dataclasses.asdict(verdict) for verdict in found],
            "unreachable": [dataclasses.asdict(u) for u in result.unreachable],
        }
        print(json.dumps(answer, indent=1), file=out)
    else:
        print(deep_table(found, result), file=out)
    if any(verdict.verdict == "contradicted" for verdict in found):
        return 1
    return 3 if result.unreachable and not arguments.offline_ok else 0


if __name__ == "__main__":
    command_line.run(main)
