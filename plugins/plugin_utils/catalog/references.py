"""Check the references between the files of the catalog: a version that one file names must be in its own file.

Runs on the controller; pure functions. Each problem names the file, the entry and what to add.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_counters
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import declared, of_architecture
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    Distro,
    RuntimeLibrary,
    TensorflowRelease,
    Toolkit,
)

# What is counted before a training is no failure: nobody knows when it was counted.
COUNTER_OUTCOMES = ("ignored", "pass", "warn", "fail")


def cross_check(catalog: Catalog) -> list[str]:
    """Return a problem for each missing partner and each duplicate entry."""
    checks = (_architectures, _gpus, _xids, _thresholds, _branches, _toolkits, _cudnn, _nccl, _distros)
    found = [problem for check in checks for problem in check(catalog)]
    # An architecture may have its own entry of a version; what an entry names must be there for its architectures.
    for architecture in catalog.cpu.known_architectures:
        own = of_architecture(catalog, architecture)
        for check in (_repeated, _tensorflow, _pytorch, _archives):
            found += [problem if own is catalog else f"{problem} (for {architecture})" for problem in check(own)]
    return found


def _architectures(catalog: Catalog) -> Iterator[str]:
    known = catalog.cpu.known_architectures
    for where, names in declared(catalog):
        if not names:
            yield f"{where}: empty; expected one or more of {', '.join(known)}"
        for name in names:
            if name not in known:
                yield f"{where}: {name} is not under known_architectures in cpu.yml; expected one of {', '.join(known)}"
    for distro in catalog.distros.values():
        where = distro.path
        for name in distro.cpu_architectures:
            if name not in catalog.repository.architectures:
                yield f"{where}.cpu_architectures: {name} is not under architectures in repository.yml"
            if name not in distro.kernel.flavours:
                yield f"{where}.kernel.flavours: {name} is missing; name the standard kernel's flavour"


def _repeated(catalog: Catalog) -> Iterator[str]:
    yield from _duplicates("driver.yml.branches", (b.branch for b in catalog.driver.branches))
    yield from _duplicates("cuda.yml.toolkits", (t.version for t in catalog.cuda.toolkits))
    yield from _duplicates("cudnn.yml.versions", (v.version for v in catalog.cudnn.versions))
    yield from _duplicates("nccl.yml.builds", (f"{b.version}+cuda{b.cuda}" for b in catalog.nccl.builds))
    yield from _duplicates("tensorflow.yml.releases", (r.version for r in catalog.tensorflow.releases))


def _toolkit_versions(catalog: Catalog) -> set[str]:
    return {t.version for t in catalog.cuda.toolkits}


def _missing_toolkits(catalog: Catalog, where: str, named: Iterable[str]) -> Iterator[str]:
    known = _toolkit_versions(catalog)
    for version in named:
        if version not in known:
            yield f"{where}: CUDA {version} is not in cuda.yml; add its stanza there"


def _duplicates(file: str, named: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in named:
        if name in seen:
            yield f"{file}[{name}]: duplicate entry"
        seen.add(name)


def _gpus(catalog: Catalog) -> Iterator[str]:
    known = {a.name: a.compute_capabilities for a in catalog.gpu.architectures}
    for product in catalog.products.values():
        if product.compute_capability not in known.get(product.architecture, ()):
            yield (
                f"gpu_products.csv[{product.device}]: {product.architecture} "
                f"{product.compute_capability} is not in gpu.yml"
            )
    ruled = {name for rule in catalog.gpu.kernel_modules for name in rule.architectures}
    for name in known:
        if name not in ruled:
            yield f"gpu.yml.architectures[{name}]: no rule under kernel_modules has the ones it accepts"
    rules = catalog.gpu.first_drivers.gpus if catalog.gpu.first_drivers else ()
    yield from _duplicates("gpu.yml.first_drivers", (device for rule in rules for device in rule.devices))
    branches = {b.branch for b in catalog.driver.branches}
    for rule in rules:
        for device in rule.devices:
            if device not in catalog.products:
                yield f"gpu.yml.first_drivers: device {device} is not in gpu_products.csv"
        for driver in rule.drivers:
            if driver.split(".")[0] not in branches:
                yield f"gpu.yml.first_drivers: branch {driver} is not in driver.yml"
    small = catalog.gpu.few_multiprocessors.gpus if catalog.gpu.few_multiprocessors else ()
    for unknown in {device for row in small for device in row.devices} - {*catalog.products}:
        yield f"gpu.yml.few_multiprocessors: device {unknown} is not in gpu_products.csv"
    for unknown in {chip for row in small for chip in row.chips} - {gpu.chip for gpu in catalog.products.values()}:
        yield f"gpu.yml.few_multiprocessors: chip {unknown} is not in gpu_products.csv"
    for named in catalog.gpu_names:
        if named.device not in catalog.products:
            yield f"gpu_names.csv[{named.name}]: device {named.device} is not in gpu_products.csv"
    for vgpu in catalog.vgpus:
        where = f"vgpus.csv[{vgpu.device} {vgpu.first}]"
        if vgpu.device not in catalog.products:
            yield f"{where}: device {vgpu.device} is not in gpu_products.csv"
        if not re.fullmatch("[0-9a-f]{4} [0-9a-f]{4}", f"{vgpu.first} {vgpu.last}") or vgpu.first > vgpu.last:
            yield f"{where}: expected four lower-case hexadecimal digits each, the last one not before the first"
    machines = [device for row in catalog.gpu.other_machines for device in row.devices]
    yield from _duplicates("gpu.yml.other_machines", machines)
    for unknown in {*machines} - {*catalog.products}:
        yield f"gpu.yml.other_machines: device {unknown} is not in gpu_products.csv"
    legacy = [device for entry in catalog.gpu.legacy for device in entry.devices]
    yield from _duplicates("gpu.yml.legacy", legacy)
    chip_only = [entry.device for entry in catalog.gpu.chip_only]
    yield from _duplicates("gpu.yml.chip_only", chip_only)
    for device in sorted(({*legacy} & {*catalog.products}) | ({*chip_only} & {*legacy, *catalog.products})):
        yield f"gpu.yml: device {device} is in two of gpu_products.csv, legacy and chip_only"


def _xids(catalog: Catalog) -> Iterator[str]:
    yield from _duplicates("xids.csv", (row.number for row in catalog.xids))
    decoded = {row.number for row in catalog.xids if row.outcome == "decode"}
    for row in catalog.xid_nvlink:
        where = f"xid_nvlink.csv[{row.number} {row.unit} {row.status}]"
        if row.number not in decoded:
            yield f"{where}: xids.csv has no such number with the outcome decode"
        if not all(re.fullmatch("[01-]{32}", bits) for bits in (row.info, row.older_info)):
            yield f"{where}: expected 32 of 0, 1 and - as bits"
        if not re.fullmatch("0x[0-9a-f]{8}", row.status):
            yield f"{where}.status: expected 0x and eight hexadecimal digits"


def _thresholds(catalog: Catalog) -> Iterator[str]:
    models = catalog.gpu_thresholds.models
    yield from _duplicates("gpu_thresholds.yml.models", (device for model in models for device in model.devices))
    for model in models:
        for device in model.devices:
            if device not in catalog.products:
                yield f"gpu_thresholds.yml.models[{model.name}]: device {device} is not in gpu_products.csv"
    for row in catalog.gpu_thresholds.counters:
        where = f"gpu_thresholds.yml.counters[{row.names[0] if row.names else ''}]"
        outcomes = {"total": (row.total, COUNTER_OUTCOMES[:-1]), "grows": (row.grows, COUNTER_OUTCOMES)}
        if row.limit is not None:
            outcomes["over"] = (str(row.over), ("warn", "fail"))
            if row.unit not in gpu_counters.UNITS:
                yield f"{where}.unit: expected one of {', '.join(gpu_counters.UNITS)}, found {row.unit}"
        for name, (value, expected) in outcomes.items():
            if value not in expected:
                yield f"{where}.{name}: expected one of {', '.join(expected)}, found {value}"


def _branches(catalog: Catalog) -> Iterator[str]:
    known = {a.name for a in catalog.gpu.architectures}
    for branch in catalog.driver.branches:
        where = f"driver.yml.branches[{branch.branch}]"
        for name in branch.architectures:
            if name not in known:
                yield f"{where}.architectures: {name} is not in gpu.yml"
        for version in branch.versions:
            if not version.version.startswith(branch.branch + "."):
                yield f"{where}.versions[{version.version}]: not of this branch"
        if not set(branch.kernel_modules) <= {"open", "proprietary"} or not branch.kernel_modules:
            yield f"{where}.kernel_modules: expected open and proprietary, found {branch.kernel_modules}"
        if versions.major(branch.native_cuda) not in {versions.major(t) for t in _toolkit_versions(catalog)}:
            yield f"{where}.native_cuda: no CUDA {versions.major(branch.native_cuda)}.x is in cuda.yml"
    for name in known:
        if not any(name in b.architectures for b in catalog.driver.branches):
            yield f"gpu.yml.architectures[{name}]: no branch of driver.yml supports it"


def _toolkits(catalog: Catalog) -> Iterator[str]:
    for toolkit in catalog.cuda.toolkits:
        where = f"cuda.yml.toolkits[{toolkit.version}]"
        if not any(versions.key(b.native_cuda) >= versions.key(toolkit.version) for b in catalog.driver.branches):
            yield f"{where}: no driver branch has native_cuda {toolkit.version} or newer; add the branch to driver.yml"
        for release in toolkit.releases:
            if not versions.has_prefix(release.version, toolkit.version):
                yield f"{where}.releases[{release.version}]: not a release of CUDA {toolkit.version}"
        if libcudart(catalog, toolkit.version) is None:
            yield f"{where}: no entry of cuda.yml.libcudart covers it"
        yield from _floor(catalog, toolkit, where)


def _floor(catalog: Catalog, toolkit: Toolkit, where: str) -> Iterator[str]:
    # Minor version compatibility began with CUDA 11; before that each release has its own floor.
    major = versions.major(toolkit.version)
    floors = {m.cuda_major for m in catalog.cuda.minor_version_compatibility}
    if major >= 11 and major not in floors:
        yield f"{where}: CUDA {major} has no entry under minor_version_compatibility"
    if major < 11 and any(r.min_driver is None for r in toolkit.releases):
        yield f"{where}: a release before CUDA 11 needs its min_driver"


def libcudart(catalog: Catalog, cuda: str) -> str | None:
    """Return the runtime library that programs of a CUDA release load, such as libcudart.so.10.0; None if unknown."""
    return _soname(catalog.cuda.libcudart, cuda)


@functools.lru_cache(maxsize=1024)
def loaded_libraries(catalog: Catalog, cuda: str) -> tuple[str, ...]:
    """Return the names by which a framework that was built for a CUDA release loads its libraries, libcudart first."""
    found = (_soname(rules, cuda) for rules in (catalog.cuda.libcudart, catalog.cuda.libcusolver))
    return tuple(name for name in found if name)


def _soname(rules: Iterable[RuntimeLibrary], cuda: str) -> str | None:
    for rule in rules:
        if versions.key(cuda) >= versions.key(rule.first) and (rule.last is None or versions.at_most(cuda, rule.last)):
            major, minor = cuda.split(".")[:2]
            return rule.soname.format(major=major, minor=minor)
    return None


def _cudnn(catalog: Catalog) -> Iterator[str]:
    known = [v.version for v in catalog.cudnn.versions]
    for build in catalog.cudnn.apt_builds:
        where = f"cudnn.yml.apt_builds[{build.version}]"
        yield from _missing_toolkits(catalog, where, build.cuda)
        if build.version not in known:
            yield f"{where}: {build.version} is not under versions"
    majors = {a.cudnn_major for a in catalog.cudnn.names}
    for entry in catalog.cudnn.versions:
        where = f"cudnn.yml.versions[{entry.version}]"
        if entry.version.count(".") == 1:
            continue  # a series without a package
        if versions.major(entry.version) not in majors:
            yield f"{where}: no entry under names has the packages of cuDNN {versions.major(entry.version)}"
        for cuda_major in entry.cuda_majors:
            if not any(
                cuda_major in s.cuda_majors
                and versions.key(entry.version) >= versions.key(s.first)
                and (s.last is None or versions.at_most(entry.version, s.last))
                for s in catalog.cudnn.support
            ):
                yield f"{where}: no entry under support has the GPUs of its build for CUDA {cuda_major}"


def _nccl(catalog: Catalog) -> Iterator[str]:
    for build in catalog.nccl.builds:
        where = f"nccl.yml.builds[{build.version}]"
        yield from _missing_toolkits(catalog, where, [build.cuda])
        covered = any(
            versions.major(build.cuda) == s.cuda_major
            and versions.key(build.version) >= versions.key(s.first)
            and (s.last is None or versions.at_most(build.version, s.last))
            for s in catalog.nccl.support
        )
        if not covered and build.slugs != ():
            yield f"{where}: no entry under support has the GPUs of its build for CUDA {build.cuda}"


def _tensorflow(catalog: Catalog) -> Iterator[str]:
    for release in catalog.tensorflow.releases:
        where = f"tensorflow.yml.releases[{release.version}]"
        yield from _missing_toolkits(catalog, f"{where}.tested.cuda", [release.tested.cuda])
        if not any(versions.has_prefix(v.version, release.tested.cudnn) for v in catalog.cudnn.versions):
            yield f"{where}.tested.cudnn: no cuDNN {release.tested.cudnn} is in cudnn.yml; add it under versions"
        if not release.pythons:
            yield f"{where}.pythons: empty; a release without a wheel cannot be planned"
        if bool(release.sass) != bool(release.ptx):
            yield f"{where}: sass and ptx are both known or both empty"
        yield from _and_cuda(catalog, release, where)


def _and_cuda(catalog: Catalog, release: TensorflowRelease, where: str) -> Iterator[str]:
    wheel = release.and_cuda
    if wheel is None:
        return
    if not any(
        wheel.cuda_major in v.cuda_majors and versions.satisfies(v.version, wheel.cudnn) for v in catalog.cudnn.versions
    ):
        yield (
            f"{where}.and_cuda.cudnn: no cuDNN {wheel.cudnn} for CUDA {wheel.cuda_major} is in cudnn.yml; "
            "add it under versions"
        )


def _pytorch(catalog: Catalog) -> Iterator[str]:
    known = {v.version for v in catalog.cudnn.versions}
    for release in catalog.pytorch.releases:
        of_release = f"pytorch.yml.releases[{release.version}]"
        for build in release.builds:
            where = f"{of_release}.builds[{build.cuda}]"
            yield from _missing_toolkits(catalog, f"{where}.cuda", [versions.series(build.cuda)])
            if build.cudnn not in known:
                yield f"{where}.cudnn: {build.cudnn} is not in cudnn.yml; add it under versions"
        on_pypi = [build.cuda for build in release.builds if build.index == "pypi"]
        if len(on_pypi) > 1:
            yield f"{of_release}.builds: PyPI has one wheel of a release, found {', '.join(on_pypi)}"


def _archives(catalog: Catalog) -> Iterator[str]:
    branches = {b.branch for b in catalog.driver.branches}
    for distro in catalog.distros.values():
        where = distro.path
        for driver in distro.distro_drivers:
            if driver.branch not in branches:
                yield f"{where}.distro_drivers[{driver.branch}]: the branch is not in driver.yml; add its stanza there"
        yield from _missing_toolkits(catalog, f"{where}.distro_cuda", (c.version for c in distro.distro_cuda))


def _distros(catalog: Catalog) -> Iterator[str]:
    branches = {b.branch for b in catalog.driver.branches}
    for distro in catalog.distros.values():
        where = distro.path
        repository = distro.nvidia_repository
        limits = distro.nvidia_branches
        for branch in (limits.first, limits.last) if limits else ():
            if branch is not None and branch not in branches:
                yield f"{where}.nvidia_branches: branch {branch} is not in driver.yml; add its stanza there"
        named = [c for c in (repository.first_cuda, repository.last_cuda) if c is not None]
        yield from _missing_toolkits(catalog, f"{where}.nvidia_repository", named)
        for own in distro.nvidia_limits:
            yield from _missing_toolkits(catalog, f"{where}.nvidia_limits", [own.first_cuda])
            if own.first_branch not in branches:
                yield f"{where}.nvidia_limits: branch {own.first_branch} is not in driver.yml; add its stanza there"
        yield from _own_versions(distro, where)


def _own_versions(distro: Distro, where: str) -> Iterator[str]:
    if distro.python.default not in distro.python.available:
        yield f"{where}.python: the default {distro.python.default} is not under available"
    if distro.gcc.default not in distro.gcc.available:
        yield f"{where}.gcc: the default {distro.gcc.default} is not under available"
