"""Compare the catalog with the answers of its live sources, for script/catalog-check.

Runs on the controller; pure functions. Only packages that the catalog names are looked up; live_sources.py queries
the sources.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    AndCuda,
    Catalog,
    Distro,
    DistroCuda,
    DistroDriver,
    FrameworkRelease,
    PytorchRelease,
    TensorflowRelease,
)
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.catalog.options import ARCHITECTURE

_TORCH = "torch"  # PyTorch's name on the package index
_PYPI = "PyPI"  # an entry with this `source` can be compared with the index
_NOT_OFFERED = "not offered"
_PYTHON = r"python(3\.\d+)"
_GCC = r"gcc-(\d+)"
_ABSENT = "absent"

Offered = Mapping[str, tuple[str, ...]]  # package name -> versions, newest first


@dataclasses.dataclass(frozen=True)
class Finding:
    """One difference: `new` (the catalog lacks it), `differs`, or `gone` (the source lacks it)."""

    source: str
    kind: str
    where: str
    catalog: str
    observed: str


@dataclasses.dataclass(frozen=True)
class WheelMetadata:
    """A wheel's METADATA, as pip reports it."""

    name: str
    version: str
    requires_python: str | None
    requires_dist: tuple[str, ...]
    url: str = ""


@dataclasses.dataclass(frozen=True)
class NvidiaIndex:
    """The packages of one of NVIDIA's repositories; the fingerprint is None if the key file does not exist."""

    offered: Offered
    key_fingerprint: str | None


# The frameworks' wheels ---------------------------------------------------------------------------------------------


def framework(release: FrameworkRelease) -> str:
    """Return the release's framework: its source here, and the name of its file in the catalog."""
    return "tensorflow" if isinstance(release, TensorflowRelease) else "pytorch"


def package(release: FrameworkRelease) -> str:
    """Return the release's name on the package index: `tensorflow`, `tensorflow-gpu` for 1.x and 2.0, or `torch`."""
    return release.package if isinstance(release, TensorflowRelease) else _TORCH


def place(release: FrameworkRelease) -> str:
    """Return the release's place in the catalog."""
    return f"{framework(release)}.yml releases[{release.version}]"


def pythons_to_ask(catalog: Catalog) -> list[str]:
    """Return all Pythons that the catalog names, those between, and the next two."""
    named = {p for file in (catalog.tensorflow, catalog.pytorch) for r in file.releases for p in r.pythons}
    named |= {p for d in catalog.distros.values() for p in d.python.available}
    minors = [int(p.split(".")[1]) for p in named if p.startswith("3.")]
    between = {f"3.{minor}" for minor in range(min(minors), max(minors) + 3)}
    return sorted(named | between, key=versions.key)


def on_pypi(catalog: Catalog, framework: str) -> Sequence[FrameworkRelease]:
    """Return the releases of a framework that PyPI has wheels of; it has all of TensorFlow's."""
    if framework == "tensorflow":
        return catalog.tensorflow.releases
    return [release for release in catalog.pytorch.releases if release.pypi_build]


def wheel_pythons(wheels: Mapping[str, tuple[str, ...]], version: str) -> tuple[str, ...]:
    """Return the Pythons for which the index offers a wheel of a version. wheels: versions by Python."""
    return tuple(sorted((p for p, offered in wheels.items() if version in offered), key=versions.key))


def compare_wheels(release: FrameworkRelease, wheels: Mapping[str, tuple[str, ...]]) -> list[Finding]:
    """Compare a release's Pythons with those that the index offers a wheel for."""
    observed = wheel_pythons(wheels, release.version)
    if not observed:
        found = f"{package(release)} {release.version}: no wheel for this architecture"
        return [Finding(framework(release), "gone", place(release), release.version, found)]
    if set(observed) == set(release.pythons):
        return []
    return [_differs(release, "pythons", ", ".join(release.pythons), ", ".join(observed))]


def _differs(release: FrameworkRelease, field: str, mine: str, observed: str) -> Finding:
    return Finding(framework(release), "differs", f"{place(release)}.{field}", mine, observed)


def compare_metadata(catalog: Catalog, release: FrameworkRelease, metadata: WheelMetadata) -> list[Finding]:
    """Compare a release's Pythons and CUDA libraries with its wheel's METADATA."""
    findings = []
    allowed = SpecifierSet(metadata.requires_python or "")
    if refused := [p for p in release.pythons if not allowed.contains(f"{p}.99")]:
        findings.append(_differs(release, "pythons", ", ".join(refused), f"Requires-Python {metadata.requires_python}"))
    if isinstance(release, TensorflowRelease):
        return findings + _compare_and_cuda(release, metadata)
    return findings + _compare_pins(catalog, release, metadata)


def and_cuda(metadata: WheelMetadata) -> AndCuda | None:
    """Return the requirements of the and-cuda extra on cuDNN and NCCL; None without such an extra."""
    wanted: dict[str, tuple[int, str]] = {}
    for text in metadata.requires_dist:
        requirement = Requirement(text)
        match = re.fullmatch(r"nvidia-(cudnn|nccl)-cu(\d+)", requirement.name)
        marker = requirement.marker
        if match and marker and marker.evaluate({"extra": "and-cuda"}) and not marker.evaluate({"extra": ""}):
            wanted[match.group(1)] = (int(match.group(2)), str(requirement.specifier))
    if not wanted:
        return None
    cuda_major = max(major for major, _unused in wanted.values())
    cudnn, nccl = (wanted.get(name, (0, _ABSENT))[1] for name in ("cudnn", "nccl"))
    return AndCuda(cuda_major, cudnn, nccl)


def _clauses(extra: AndCuda | None) -> Any:
    return extra and (extra.cuda_major, SpecifierSet(extra.cudnn), SpecifierSet(extra.nccl))


def _and_cuda_text(extra: AndCuda | None) -> str:
    return f"CUDA {extra.cuda_major}, cuDNN {extra.cudnn}, NCCL {extra.nccl}" if extra else "no such extra"


def _compare_and_cuda(release: TensorflowRelease, metadata: WheelMetadata) -> list[Finding]:
    observed = and_cuda(metadata)
    if _clauses(release.and_cuda) == _clauses(observed):
        return []
    return [_differs(release, "and_cuda", _and_cuda_text(release.and_cuda), _and_cuda_text(observed))]


def pins(catalog: Catalog, metadata: WheelMetadata) -> dict[str, str]:
    """Return the exact versions of CUDA, cuDNN and NCCL that a wheel requires, by `cuda`, `cudnn` and `nccl`."""
    found = {}
    for text in metadata.requires_dist:
        requirement = Requirement(text)
        exact = re.fullmatch(r"==([\d.]+)", str(requirement.specifier))
        for library, name in catalog.packages.wheels.items():
            if exact and re.fullmatch(name.format(cuda_major=r"\d+"), requirement.name):
                found[library.partition("_")[0]] = exact[1]
    return found


def _compare_pins(catalog: Catalog, release: PytorchRelease, metadata: WheelMetadata) -> list[Finding]:
    observed, findings = pins(catalog, metadata), []
    build = release.pypi_build
    for library, mine in (("cuda", build.cuda), ("cudnn", build.cudnn), ("nccl", build.nccl)) if build else ():
        live = observed.get(library, _ABSENT)
        # The index adds a fourth number to some releases of CUDA: 13.0.3.0.
        if mine != (versions.series(live, 3) if library == "cuda" else live):
            findings.append(_differs(release, f"builds.{library}", mine, live))
    return findings


def compare_new_releases(
    releases: Sequence[FrameworkRelease], wheels: Mapping[str, Mapping[str, tuple[str, ...]]]
) -> list[Finding]:
    """Return the releases of a framework that the catalog lacks, from its oldest one on.

    wheels: versions by package name and Python. Each X.Y is looked for under the name that it has in the catalog. Local
    versions such as 2.13.0+cpu are left out: pip finds them in a directory of this machine, and not on the index.
    """
    by_age = sorted(releases, key=lambda release: versions.key(release.version))
    known, newest = {r.version for r in by_age}, {versions.series(r.version): r for r in by_age}
    findings = []
    for name, by_python in wheels.items():
        for version in sorted({v for offered in by_python.values() for v in offered}, key=versions.key):
            nearest = newest.get(versions.series(version))
            is_new = version not in known and versions.key(version) > versions.key(by_age[0].version)
            if is_new and "+" not in version and package(nearest or by_age[-1]) == name:
                where = f"{framework(by_age[0])}.yml releases"
                mine = nearest.version if nearest else f"no {versions.series(version)}"
                findings.append(Finding(framework(by_age[0]), "new", where, mine, f"{name} {version}"))
    return findings


# Other packages of the index ----------------------------------------------------------------------------------------


def cudnn_majors(catalog: Catalog) -> list[int]:
    """Return the CUDA majors whose cuDNN versions the catalog has from the index, which has cuDNN since CUDA 11."""
    return sorted({m for v in catalog.cudnn.versions if _PYPI in v.source for m in v.cuda_majors if m >= 11})


def nccl_majors(catalog: Catalog) -> list[int]:
    """Return the CUDA majors that NVIDIA still builds NCCL for: those of the newest cuDNN."""
    return list(max(catalog.cudnn.versions, key=lambda v: versions.key(v.version)).cuda_majors)


def index_names(catalog: Catalog) -> list[str]:
    """Return the packages whose versions are compared."""
    cudnn = [_wheel(catalog, "cudnn", major) for major in cudnn_majors(catalog)]
    nccl = [_wheel(catalog, "nccl", major) for major in nccl_majors(catalog)]
    return [*cudnn, *nccl, _wheel(catalog, "cuda")]


def _wheel(catalog: Catalog, library: str, cuda_major: int | None = None) -> str:
    return catalog.packages.wheels[library].format(cuda_major=cuda_major)


def _compare_cudnn(catalog: Catalog, index: Offered) -> list[Finding]:
    known = {v.version: v for v in catalog.cudnn.versions}
    observed: dict[str, set[int]] = {}
    for major in cudnn_majors(catalog):
        for version in index.get(_wheel(catalog, "cudnn", major), ()):
            observed.setdefault(re.sub(r"\.post\d+$", "", version), set()).add(major)
    oldest = min((v for v in known if _PYPI in known[v].source), key=versions.key)
    findings = []
    for version, majors in sorted(observed.items(), key=lambda item: versions.key(item[0])):
        text, where = f"for CUDA {_numbers(majors)}", f"cudnn.yml versions[{version}]"
        if version not in known:
            if versions.key(version) > versions.key(oldest):
                findings.append(Finding("pypi", "new", "cudnn.yml versions", _ABSENT, f"{version} {text}"))
        elif not majors <= set(known[version].cuda_majors):
            # The apt repositories may have more builds than the index, never fewer.
            mine = f"for CUDA {_numbers(known[version].cuda_majors)}"
            findings.append(Finding("pypi", "differs", f"{where}.cuda_majors", mine, text))
    findings += [
        Finding("pypi", "gone", f"cudnn.yml versions[{v.version}]", f"source: {v.source}", _NOT_OFFERED)
        for v in known.values()
        if _PYPI in v.source and v.version not in observed
    ]
    return findings


def _numbers(majors: Iterable[int]) -> str:
    return ", ".join(str(major) for major in sorted(majors))


def _compare_nccl(catalog: Catalog, index: Offered) -> list[Finding]:
    newest = max((b.version for b in catalog.nccl.builds), key=versions.key)
    wheels = [_wheel(catalog, "nccl", major) for major in nccl_majors(catalog)]
    return [
        Finding("pypi", "new", "nccl.yml builds", newest, f"{wheel} {offered[0]}")
        for wheel in wheels
        if (offered := index.get(wheel, ())) and versions.key(offered[0]) > versions.key(newest)
    ]


def _compare_cuda(catalog: Catalog, index: Offered) -> list[Finding]:
    """Compare CUDA releases; the index adds a fourth number to some: 13.4.1.0 is CUDA 13.4.1."""
    toolkits = {t.version: [r.version for r in t.releases] for t in catalog.cuda.toolkits}
    oldest = min(toolkits, key=versions.key)
    offered = {versions.series(version, 3) for version in index.get(_wheel(catalog, "cuda"), ())}
    findings = []
    for version in sorted(offered, key=versions.key):
        series = versions.series(version)
        if version in toolkits.get(series, ()) or versions.key(version) < versions.key(oldest):
            continue
        where = f"cuda.yml toolkits[{series}].releases" if series in toolkits else "cuda.yml toolkits"
        mine = ", ".join(toolkits.get(series, [])) or _ABSENT
        findings.append(Finding("pypi", "new", where, mine, f"{_wheel(catalog, 'cuda')} {version}"))
    return findings


def compare_index(catalog: Catalog, index: Offered) -> list[Finding]:
    """Compare the versions of cuDNN, NCCL and CUDA on the index."""
    return [*_compare_cudnn(catalog, index), *_compare_nccl(catalog, index), *_compare_cuda(catalog, index)]


# The distributions' archives ----------------------------------------------------------------------------------------


def archive_packages(distro: Distro) -> list[str]:
    """Return the packages whose versions the distribution's file depends on."""
    names = {"python3", "gcc", "libc6", *(headers.package for headers in distro.kernel.headers)}
    for driver in distro.distro_drivers:
        names |= {*driver.names()}
    for cuda in distro.distro_cuda:
        names |= {*cuda.packages}
    return sorted(names)


def branch_patterns(catalog: Catalog, family: str) -> list[re.Pattern[str]]:
    """Return the patterns of drivers of other branches: the family's names that contain a branch, with any number."""
    drivers = [driver for d in catalog.distros.values() if d.family == family for driver in d.distro_drivers]
    names = {(n, d.branch) for d in drivers for n in d.names() if d.branch in n}
    return [re.compile(re.escape(n).replace(branch, r"(\d{3})", 1)) for n, branch in sorted(names)]


def archive_patterns(catalog: Catalog, distro: Distro) -> list[re.Pattern[str]]:
    """Return further patterns to look for: drivers of other branches, Python interpreters, compilers."""
    return [re.compile(_PYTHON), re.compile(_GCC), *branch_patterns(catalog, distro.family)]


def archive_components(distro: Distro) -> list[str]:
    """Return the archive's components that contain those packages."""
    wanted = {c for driver in distro.distro_drivers for c in driver.apt_components}
    wanted |= {c for cuda in distro.distro_cuda for c in cuda.apt_components}
    return ["main", *sorted(wanted - {"main"})]


def _newest(offered: Offered, name: str) -> str | None:
    found = offered.get(name, ())
    return versions.upstream(found[0]) if found else None


def driver_versions(driver: DistroDriver, offered: Offered) -> list[str]:
    """Return a branch's driver versions: those that two packages of the set share.

    Helpers such as nvidia-persistenced have numbers of their own.
    """
    by_version: dict[str, set[str]] = {}
    for name in driver.names():
        for version in offered.get(name, ()):
            by_version.setdefault(versions.upstream(version), set()).add(name)
    shared = [v for v, names in by_version.items() if len(names) > 1 and versions.has_prefix(v, driver.branch)]
    return sorted(shared, key=versions.key, reverse=True)


def _compare_driver(catalog: Catalog, distro: Distro, driver: DistroDriver, offered: Offered) -> list[Finding]:
    where = f"distro/{distro.id}.yml distro_drivers[{driver.branch}]"
    names = sorted(driver.names())
    findings = [Finding(distro.family, "gone", where, name, _NOT_OFFERED) for name in names if not offered.get(name)]
    if findings:
        return findings
    found = driver_versions(driver, offered)
    if not found:
        text = ", ".join(f"{name} {_newest(offered, name)}" for name in names)
        return [Finding(distro.family, "differs", where, f"branch {driver.branch}", text)]
    known = _archived(catalog, distro.family, driver.branch)
    new = [v for v in found if v not in known]
    place, mine = f"driver.yml branches[{driver.branch}].versions", ", ".join(known) or _ABSENT
    return [Finding(distro.family, "new", place, mine, f"{v} in {distro.id}") for v in new]


def _archived(catalog: Catalog, family: str, branch: str) -> list[str]:
    """Return the versions of a branch that the catalog has for the family's archive."""
    entries = [b for b in catalog.driver.branches if b.branch == branch]
    return [v.version for b in entries for v in b.versions if family in v.archives]


def _compare_new_branches(catalog: Catalog, distro: Distro, offered: Offered) -> list[Finding]:
    """Find driver sets of branches that the file lacks; transitional packages have another branch's version."""
    known = {d.branch for d in distro.distro_drivers}
    new: dict[str, list[str]] = {}
    for name in sorted(offered):
        matches = [match for pattern in branch_patterns(catalog, distro.family) if (match := pattern.fullmatch(name))]
        newest = _newest(offered, name)
        if matches and newest and matches[0].group(1) not in known:
            branch = matches[0].group(1)
            if versions.has_prefix(newest, branch):
                new.setdefault(branch, []).append(f"{name} {newest}")
    where, mine = f"distro/{distro.id}.yml distro_drivers", _listed(known)
    return [Finding(distro.family, "new", where, mine, ", ".join(found)) for found in new.values()]


def _compare_distro_cuda(distro: Distro, cuda: DistroCuda, offered: Offered) -> list[Finding]:
    """Compare a toolkit with the archive, whose versions begin with nvcc's: `12.4.131~12.4.1-2` is CUDA 12.4.1."""
    where = f"distro/{distro.id}.yml distro_cuda[{cuda.version}]"
    findings = [Finding(distro.family, "gone", where, n, _NOT_OFFERED) for n in cuda.packages if not offered.get(n)]
    found = [v for name in cuda.packages for v in offered.get(name, ())]
    release = re.compile(rf"(?:^|[~:]){re.escape(cuda.release)}(?:[-+~]|$)")
    if found and not any(release.search(version) for version in found):
        findings.append(Finding(distro.family, "differs", f"{where}.release", cuda.release, ", ".join(found)))
    return findings


def _compare_toolchain(distro: Distro, offered: Offered, machine: str) -> list[Finding]:
    standard = facts.kernel_headers(distro, facts.kernel_of_series(distro, distro.kernel.default, machine))
    headers = standard.package if standard else _ABSENT
    newest = {name: _newest(offered, name) or _ABSENT for name in ("python3", "gcc", "libc6", headers)}
    gcc = newest["gcc"].split(".")[0]
    rows = [
        ("python.default", distro.python.default, versions.series(newest["python3"])),
        ("gcc.default", str(distro.gcc.default), gcc),
        ("glibc", distro.glibc, versions.series(newest["libc6"])),
        ("kernel.default", distro.kernel.default, versions.series(newest[headers])),
        ("python.available", _listed(distro.python.available), _listed(_suffixes(offered, _PYTHON))),
        ("gcc.available", _listed(map(str, distro.gcc.available)), _listed(_suffixes(offered, _GCC))),
    ]
    where = f"distro/{distro.id}.yml"
    findings = [Finding(distro.family, "differs", f"{where} {key}", a, b) for key, a, b in rows if a != b]
    return findings + [
        Finding(distro.family, "gone", f"{where} kernel.headers", row.package, _NOT_OFFERED)
        for row in distro.kernel.headers
        if not offered.get(row.package)
    ]


def _suffixes(offered: Offered, pattern: str) -> list[str]:
    matches = [re.fullmatch(pattern, name) for name, found in offered.items() if found]
    return [match.group(1) for match in matches if match]


def _listed(found: Iterable[str]) -> str:
    return ", ".join(sorted(found, key=versions.key)) or _ABSENT


def compare_archive(catalog: Catalog, distro: Distro, offered: Offered, machine: str = ARCHITECTURE) -> list[Finding]:
    """Compare a distribution's file and the driver versions with the distribution's archive."""
    findings = []
    for driver in distro.distro_drivers:
        findings += _compare_driver(catalog, distro, driver, offered)
    for cuda in distro.distro_cuda:
        findings += _compare_distro_cuda(distro, cuda, offered)
    return findings + _compare_new_branches(catalog, distro, offered) + _compare_toolchain(distro, offered, machine)


def compare_archived_drivers(catalog: Catalog, family: str, archives: Mapping[str, Offered]) -> list[Finding]:
    """Find driver versions that the catalog has for the family's archive and none of its releases offers.

    Returns nothing unless the archives of all releases were read.
    """
    distros = [d for d in catalog.distros.values() if d.family == family]
    if {d.id for d in distros} - set(archives):
        return []
    found = {v for d in distros for driver in d.distro_drivers for v in driver_versions(driver, archives[d.id])}
    return [
        Finding(family, "gone", f"driver.yml branches[{branch.branch}].versions", version, _NOT_OFFERED)
        for branch in catalog.driver.branches
        for version in _archived(catalog, family, branch.branch)
        if version not in found
    ]


# NVIDIA's repositories ----------------------------------------------------------------------------------------------


def nvidia_globs(catalog: Catalog, distro: Distro) -> list[str]:
    """Return the globs of the compared packages in NVIDIA's repository, for apt_lists.parse."""
    blanks = {"major": "*", "minor": "*", "branch": "*", "cuda_major": "*"}
    names = [catalog.cuda.names.toolkit, catalog.driver.pinning.package, *_nccl_names(catalog, distro)]
    names += [row.runtime for row in catalog.cudnn.names if distro.family in row.families]
    for packages in catalog.driver.packages:
        if packages.family == distro.family:
            names += packages.names()
    return sorted({name.format(**blanks) for name in names})


def _nccl_names(catalog: Catalog, distro: Distro) -> list[str]:
    return [name for row in catalog.nccl.names if distro.family in row.families for name in row.packages]


def _matching(offered: Offered, template: str) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Return versions by the numbers in the names that a template such as cuda-toolkit-{major}-{minor} matches."""
    pattern = re.compile(re.sub(r"\\\{\w+\\\}", r"(\\d+)", re.escape(template)))
    matches = [(pattern.fullmatch(name), found) for name, found in offered.items()]
    return {match.groups(): found for match, found in matches if match and found}


def _compare_nvidia_cuda(catalog: Catalog, distro: Distro, offered: Offered) -> list[Finding]:
    toolkits = {t.version: [r.version for r in t.releases] for t in catalog.cuda.toolkits}
    found = {".".join(numbers): v for numbers, v in _matching(offered, catalog.cuda.names.toolkit).items()}
    slug, findings = distro.nvidia_repository.slug, []
    for series, packages in sorted(found.items(), key=lambda item: versions.key(item[0])):
        newest = versions.upstream(packages[0])
        if newest not in toolkits.get(series, ()) and versions.key(series) >= min(map(versions.key, toolkits)):
            where = f"cuda.yml toolkits[{series}].releases" if series in toolkits else "cuda.yml toolkits"
            mine = ", ".join(toolkits.get(series, [])) or _ABSENT
            findings.append(Finding("nvidia", "new", where, mine, f"{newest} in {slug}"))
    oldest = min(found, key=versions.key) if found else _ABSENT
    if oldest != distro.nvidia_repository.first_cuda:
        where = f"distro/{distro.id}.yml nvidia_repository.first_cuda"
        findings.append(Finding("nvidia", "differs", where, distro.nvidia_repository.first_cuda, oldest))
    return findings


def _nvidia_drivers(catalog: Catalog, distro: Distro, offered: Offered) -> dict[str, str]:
    """Return the newest driver of each branch that the repository offers."""
    found: set[str] = set()
    for packages in catalog.driver.packages:
        if packages.family == distro.family:
            for template in packages.names():
                found |= {versions.upstream(v) for vs in _matching(offered, template).values() for v in vs}
    return {version.split(".")[0]: version for version in sorted(found, key=versions.key)}


def _compare_nvidia_driver(catalog: Catalog, distro: Distro, offered: Offered) -> list[Finding]:
    branches = {b.branch: [v.version for v in b.versions] for b in catalog.driver.branches}
    slug, findings = distro.nvidia_repository.slug, []
    drivers = _nvidia_drivers(catalog, distro, offered)
    for branch, version in drivers.items():
        if branch not in branches and int(branch) > max(map(int, branches)):
            findings.append(Finding("nvidia", "new", "driver.yml branches", f"no {branch}", f"{version} in {slug}"))
        elif version not in branches.get(branch, [version]):
            where, mine = f"driver.yml branches[{branch}].versions", ", ".join(branches[branch])
            findings.append(Finding("nvidia", "new", where, mine, f"{version} in {slug}"))
    pinned = {numbers[0] for numbers in _matching(offered, catalog.driver.pinning.package)}
    first = int(catalog.driver.pinning.first_branch)
    for branch in sorted(b for b in drivers if int(b) >= first and b not in pinned):
        name = catalog.driver.pinning.package.format(branch=branch)
        findings.append(Finding("nvidia", "gone", "driver.yml pinning", name, f"{_NOT_OFFERED} in {slug}"))
    return findings


def _newest_nccl(builds: Iterable[tuple[str, str]]) -> dict[int, tuple[str, str]]:
    """Return the newest (version, CUDA) of each CUDA major."""
    ordered = sorted(builds, key=lambda build: (versions.key(build[0]), versions.key(build[1])))
    return {versions.major(cuda): (version, cuda) for version, cuda in ordered}


def _compare_nvidia_cudnn(catalog: Catalog, distro: Distro, offered: Offered) -> list[Finding]:
    known = [v.version for v in catalog.cudnn.versions]
    found = {
        versions.upstream(v) for a in catalog.cudnn.names for vs in _matching(offered, a.runtime).values() for v in vs
    }
    newest = max(found, key=versions.key, default=_ABSENT)
    if newest == _ABSENT or newest in known:
        return []
    text = f"{newest} in {distro.nvidia_repository.slug}"
    return [Finding("nvidia", "new", "cudnn.yml versions", max(known, key=versions.key), text)]


def _compare_nvidia_nccl(catalog: Catalog, distro: Distro, offered: Offered) -> list[Finding]:
    slug, findings = distro.nvidia_repository.slug, []
    known = {(b.version, b.cuda) for b in catalog.nccl.builds if b.slugs is None or slug in b.slugs}
    found = {
        (versions.upstream(version), cuda)
        for name in _nccl_names(catalog, distro)
        for version in offered.get(name, ())
        if (cuda := versions.cuda_suffix(version))
    }
    mine = _newest_nccl(known)
    for major, (version, cuda) in _newest_nccl(found).items():
        if (version, cuda) not in known:
            have = "{} for CUDA {}".format(*mine[major]) if major in mine else _ABSENT
            findings.append(Finding("nvidia", "new", "nccl.yml builds", have, f"{version} for CUDA {cuda} in {slug}"))
    majors, seen = distro.nvidia_repository.nccl_cuda_majors, {versions.major(cuda) for _unused, cuda in found}
    if majors is not None and seen != set(majors):
        where = f"distro/{distro.id}.yml nvidia_repository.nccl_cuda_majors"
        findings.append(Finding("nvidia", "differs", where, _numbers(majors), _numbers(seen) or _ABSENT))
    return findings


def compare_nvidia(catalog: Catalog, distro: Distro, index: NvidiaIndex) -> list[Finding]:
    """Compare the catalog with NVIDIA's repository for a distribution release."""
    entry, findings = distro.nvidia_repository, []
    if index.key_fingerprint != entry.key_fingerprint:
        where = f"distro/{distro.id}.yml nvidia_repository.key_file {entry.key_file}"
        observed = index.key_fingerprint or _NOT_OFFERED
        kind = "differs" if index.key_fingerprint else "gone"
        findings.append(Finding("nvidia", kind, where, entry.key_fingerprint or _ABSENT, observed))
    findings += _compare_nvidia_cuda(catalog, distro, index.offered)
    findings += _compare_nvidia_driver(catalog, distro, index.offered)
    findings += _compare_nvidia_cudnn(catalog, distro, index.offered)
    return findings + _compare_nvidia_nccl(catalog, distro, index.offered)
