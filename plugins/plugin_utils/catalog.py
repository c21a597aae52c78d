"""The catalog: loads catalog/*.yml into frozen dataclasses and checks the schema.

Runs on the controller. Every problem of every file is reported in one CatalogError, with file and key.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
import types
import typing
from pathlib import Path
from typing import Any

import yaml

# The collection reaches this file through a link, so the real path leads to the repository's root.
CATALOG_FOLDER = Path(__file__).resolve().parents[2] / "catalog"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class CatalogError(Exception):
    """The catalog's files break their schema; the message lists every place."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{len(problems)} problem(s) in the catalog:\n" + "\n".join(f"  {p}" for p in problems))


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A GPU architecture and its compute capabilities."""

    name: str
    compute_capabilities: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class ModuleRule:
    """Which kernel modules the GPUs of some architectures accept: proprietary, either or open."""

    architectures: tuple[str, ...]
    accepts: str
    source: str


@dataclasses.dataclass(frozen=True)
class GpuFile:
    """gpu.yml."""

    schema: int
    architectures: tuple[Architecture, ...]
    kernel_modules: tuple[ModuleRule, ...]


@dataclasses.dataclass(frozen=True)
class Product:
    """One PCI device id of NVIDIA's, as in gpu_products.csv."""

    device: str
    name: str
    chip: str
    architecture: str
    compute_capability: str
    kernel_modules: str
    last_driver_branch: str
    source: str


@dataclasses.dataclass(frozen=True)
class DriverVersion:
    """A driver release and the archives it was seen in."""

    version: str
    archives: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Branch:
    """A driver branch."""

    branch: str
    type: str
    maintained: bool
    end_of_life: str | None
    native_cuda: str
    architectures: tuple[str, ...]
    without: tuple[str, ...]
    kernel_modules: tuple[str, ...]
    versions: tuple[DriverVersion, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class DriverPackages:
    """The package names of a range of branches in NVIDIA's repository."""

    family: str
    first_branch: str
    last_branch: str | None
    open: tuple[str, ...]
    proprietary: tuple[str, ...]
    revision: str
    source: str


@dataclasses.dataclass(frozen=True)
class Pinning:
    """NVIDIA's package that keeps apt on a driver branch."""

    package: str
    first_branch: str
    source: str


@dataclasses.dataclass(frozen=True)
class DriverFile:
    """driver.yml."""

    schema: int
    branches: tuple[Branch, ...]
    packages: tuple[DriverPackages, ...]
    pinning: Pinning


@dataclasses.dataclass(frozen=True)
class MinorVersionCompatibility:
    """The oldest driver that runs programs of a CUDA major."""

    cuda_major: int
    min_driver: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudaApt:
    """How NVIDIA names the toolkit's packages."""

    toolkit: str
    revision: str
    home: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudaRelease:
    """A published X.Y.Z and the driver it came with."""

    version: str
    min_driver: str | None
    source: str


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit X.Y."""

    version: str
    releases: tuple[CudaRelease, ...]
    compute_capabilities: tuple[str, ...]
    max_gcc: int
    max_glibc: str | None
    source: str


@dataclasses.dataclass(frozen=True)
class CudaFile:
    """cuda.yml."""

    schema: int
    minor_version_compatibility: tuple[MinorVersionCompatibility, ...]
    apt: CudaApt
    toolkits: tuple[Toolkit, ...]


@dataclasses.dataclass(frozen=True)
class CudnnApt:
    """How NVIDIA names the packages of a cuDNN major."""

    cudnn_major: int
    runtime: str
    development: tuple[str, ...]
    version: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudnnSupport:
    """The compute capabilities that a range of cuDNN versions carries code for."""

    first: str
    last: str | None
    cuda_majors: tuple[int, ...]
    min_compute_capability: str
    max_compute_capability: str
    source: str


@dataclasses.dataclass(frozen=True)
class CudnnAptBuild:
    """A cuDNN 8 package and the CUDA releases it was built for."""

    version: str
    cuda: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class CudnnVersion:
    """A published cuDNN and the CUDA majors it was built for."""

    version: str
    cuda_majors: tuple[int, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class CudnnFile:
    """cudnn.yml."""

    schema: int
    apt: tuple[CudnnApt, ...]
    support: tuple[CudnnSupport, ...]
    apt_builds: tuple[CudnnAptBuild, ...]
    versions: tuple[CudnnVersion, ...]


@dataclasses.dataclass(frozen=True)
class NcclApt:
    """How NVIDIA names NCCL's packages."""

    packages: tuple[str, ...]
    version: str
    source: str


@dataclasses.dataclass(frozen=True)
class NcclSupport:
    """The compute capabilities that a range of NCCL versions carries code for."""

    first: str
    last: str | None
    cuda_major: int
    min_compute_capability: str
    max_compute_capability: str
    source: str


@dataclasses.dataclass(frozen=True)
class NcclBuild:
    """A published NCCL package; slugs is None where every repository of NVIDIA's may have it."""

    version: str
    cuda: str
    slugs: tuple[str, ...] | None
    source: str


@dataclasses.dataclass(frozen=True)
class NcclFile:
    """nccl.yml."""

    schema: int
    apt: NcclApt
    support: tuple[NcclSupport, ...]
    builds: tuple[NcclBuild, ...]


@dataclasses.dataclass(frozen=True)
class TestedBuild:
    """The CUDA and cuDNN that a framework's release was built and tested with."""

    cuda: str
    cudnn: str


@dataclasses.dataclass(frozen=True)
class AndCuda:
    """What tensorflow[and-cuda] asks of the CUDA wheels."""

    cuda_major: int
    cudnn: str
    nccl: str


@dataclasses.dataclass(frozen=True)
class TensorflowRelease:
    """A TensorFlow release."""

    version: str
    pythons: tuple[str, ...]
    tested: TestedBuild
    sass: tuple[str, ...]
    ptx: tuple[str, ...]
    and_cuda: AndCuda | None
    source: str


@dataclasses.dataclass(frozen=True)
class TensorflowFile:
    """tensorflow.yml."""

    schema: int
    releases: tuple[TensorflowRelease, ...]


@dataclasses.dataclass(frozen=True)
class PytorchRelease:
    """A PyTorch release."""

    version: str
    pythons: tuple[str, ...]
    cuda: str
    cudnn: str
    nccl: str
    min_compute_capability: str
    source: str


@dataclasses.dataclass(frozen=True)
class PytorchFile:
    """pytorch.yml."""

    schema: int
    releases: tuple[PytorchRelease, ...]


@dataclasses.dataclass(frozen=True)
class RepositoryFile:
    """repository.yml: where NVIDIA's apt repositories stand."""

    schema: int
    base_url: str
    architectures: dict[str, str]
    keyring: str
    source: str


@dataclasses.dataclass(frozen=True)
class OsRelease:
    """The fields of /etc/os-release that identify a distribution release."""

    id: str
    version_id: str
    codename: str


@dataclasses.dataclass(frozen=True)
class DistroPython:
    """The distribution's Python interpreters."""

    default: str
    available: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class DistroGcc:
    """The distribution's compilers."""

    default: int
    available: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class KernelHeaders:
    """The header meta package for kernels whose release matches an expression."""

    running: str
    package: str


@dataclasses.dataclass(frozen=True)
class DistroKernel:
    """The distribution's kernel."""

    default: str
    headers: tuple[KernelHeaders, ...]


@dataclasses.dataclass(frozen=True)
class NvidiaRepository:
    """NVIDIA's repository for a distribution release."""

    slug: str
    key_file: str
    key_fingerprint: str
    first_cuda: str
    nccl_cuda_majors: tuple[int, ...] | None
    source: str


@dataclasses.dataclass(frozen=True)
class DistroDriver:
    """A driver branch in the distribution's own archive."""

    branch: str
    open: tuple[str, ...]
    proprietary: tuple[str, ...]
    apt_components: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class DistroCuda:
    """A CUDA toolkit in the distribution's own archive."""

    version: str
    release: str
    packages: tuple[str, ...]
    home: str
    host_compilers: tuple[str, ...]
    apt_components: tuple[str, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class Distro:
    """distro/<id>.yml."""

    schema: int
    id: str
    os_release: OsRelease
    family: str
    python: DistroPython
    gcc: DistroGcc
    glibc: str
    kernel: DistroKernel
    nvidia_repository: NvidiaRepository
    distro_drivers: tuple[DistroDriver, ...]
    distro_cuda: tuple[DistroCuda, ...]
    source: str


@dataclasses.dataclass(frozen=True)
class Catalog:
    """Everything that is known about versions."""

    gpu: GpuFile
    products: dict[str, Product]
    driver: DriverFile
    cuda: CudaFile
    cudnn: CudnnFile
    nccl: NcclFile
    tensorflow: TensorflowFile
    pytorch: PytorchFile
    repository: RepositoryFile
    distros: dict[str, Distro]


_FILES: dict[str, type] = {
    "gpu": GpuFile,
    "driver": DriverFile,
    "cuda": CudaFile,
    "cudnn": CudnnFile,
    "nccl": NcclFile,
    "tensorflow": TensorflowFile,
    "pytorch": PytorchFile,
    "repository": RepositoryFile,
}
# Values that are one of a few.
_CHOICES = {"accepts": ("proprietary", "either", "open"), "type": ("LTSB", "PB", "NFB"), "family": ("debian", "ubuntu")}


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(value: Any, kind: Any, where: str, problems: list[str]) -> Any:
    """Turns plain YAML data into `kind`; appends to problems what does not fit."""
    origin = typing.get_origin(kind)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(value, typing.cast(type, kind), where, problems)
    if origin in (typing.Union, types.UnionType):
        inner = next(a for a in typing.get_args(kind) if a is not type(None))
        return None if value is None else _build(value, inner, where, problems)
    if origin is tuple:
        return _build_list(value, typing.get_args(kind)[0], where, problems)
    if origin is dict:
        if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
            return value
        problems.append(f"{where}: expected a mapping of texts, found {value!r}")
        return {}
    if type(value) is not kind:
        hint = " (quote it)" if kind is str and isinstance(value, (int, float)) else ""
        problems.append(f"{where}: expected {kind.__name__}, found {value!r}{hint}")
    return value


def _build_list(value: Any, inner: Any, where: str, problems: list[str]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        problems.append(f"{where}: expected a list, found {value!r}")
        return ()
    return tuple(_build(item, inner, f"{where}[{_label(item, i)}]", problems) for i, item in enumerate(value))


def _label(item: Any, index: int) -> str:
    if isinstance(item, dict):
        for name in ("version", "branch", "name", "running"):
            if name in item:
                return str(item[name])
    return str(index)


def _build_dataclass(value: Any, kind: type, where: str, problems: list[str]) -> Any:
    if not isinstance(value, dict):
        problems.append(f"{where}: expected a mapping, found {value!r}")
        return None
    fields = [f.name for f in dataclasses.fields(kind)]
    problems += [f"{where}.{name}: missing" for name in fields if name not in value]
    problems += [f"{where}.{name}: unknown key" for name in value if name not in fields]
    built = {}
    for name in fields:
        if name in value:
            built[name] = _build(value[name], _hints(kind)[name], f"{where}.{name}", problems)
            if name in _CHOICES and value[name] not in _CHOICES[name]:
                problems.append(f"{where}.{name}: expected one of {', '.join(_CHOICES[name])}, found {value[name]!r}")
            if name == "source" and not value[name]:
                problems.append(f"{where}.source: empty; every entry says where it is from")
    return kind(**built) if set(built) == set(fields) else None


def _read_yaml(path: Path, kind: type, problems: list[str]) -> Any:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, yaml.YAMLError) as error:
        problems.append(f"{path.name}: cannot be read: {error}")
        return None
    return _build(data, kind, path.name, problems)


def _read_products(path: Path, problems: list[str]) -> dict[str, Product]:
    products: dict[str, Product] = {}
    fields = [f.name for f in dataclasses.fields(Product)]
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            if reader.fieldnames != fields:
                problems.append(f"{path.name}: expected the columns {', '.join(fields)}, found {reader.fieldnames}")
                return products
            for row in reader:
                where = f"{path.name}[{row['device']}]"
                if not re.fullmatch(r"[0-9a-f]{4}", row["device"]):
                    problems.append(f"{where}.device: expected four lower-case hexadecimal digits")
                if row["kernel_modules"] not in _CHOICES["accepts"]:
                    problems.append(f"{where}.kernel_modules: unknown value {row['kernel_modules']!r}")
                if row["device"] in products:
                    problems.append(f"{where}: stands twice")
                products[row["device"]] = Product(**row)
    except OSError as error:
        problems.append(f"{path.name}: cannot be read: {error}")
    return products


def _cross_check(parts: dict[str, Any], problems: list[str]) -> None:
    """What holds between files: products and branches name architectures that gpu.yml knows."""
    known = {a.name: a.compute_capabilities for a in parts["gpu"].architectures}
    for product in parts["products"].values():
        if product.compute_capability not in known.get(product.architecture, ()):
            problems.append(
                f"gpu_products.csv[{product.device}]: {product.architecture} "
                f"{product.compute_capability} is not in gpu.yml"
            )
    for branch in parts["driver"].branches:
        problems += [
            f"driver.yml.branches[{branch.branch}].architectures: {name} is not in gpu.yml"
            for name in branch.architectures
            if name not in known
        ]
        problems += [
            f"driver.yml.branches[{branch.branch}].versions[{v.version}]: not of this branch"
            for v in branch.versions
            if not v.version.startswith(branch.branch + ".")
        ]
    branches = {b.branch for b in parts["driver"].branches}
    for distro in parts["distros"].values():
        problems += [
            f"distro/{distro.id}.yml.distro_drivers[{d.branch}]: the branch is not in driver.yml"
            for d in distro.distro_drivers
            if d.branch not in branches
        ]


def read_catalog(folder: Path) -> Catalog:
    """Reads and checks a catalog folder; raises CatalogError with every problem found."""
    problems: list[str] = []
    parts: dict[str, Any] = {name: _read_yaml(folder / f"{name}.yml", kind, problems) for name, kind in _FILES.items()}
    parts["products"] = _read_products(folder / "gpu_products.csv", problems)
    parts["distros"] = {}
    for path in sorted((folder / "distro").glob("*.yml")):
        distro = _read_yaml(path, Distro, problems)
        if distro is not None and distro.id != path.stem:
            problems.append(f"{path.name}.id: expected {path.stem}, found {distro.id}")
        parts["distros"][path.stem] = distro
    if not parts["distros"]:
        problems.append(f"{folder / 'distro'}: holds no distribution file")
    if not problems:
        _cross_check(parts, problems)
    if problems:
        raise CatalogError(problems)
    return Catalog(**parts)


@functools.cache
def load_catalog(folder: Path = CATALOG_FOLDER) -> Catalog:
    """The catalog, read once a process."""
    return read_catalog(folder)


def repository_facts(
    catalog: Catalog, distribution: str, architecture: str = "x86_64", base_url: str | None = None
) -> dict[str, str]:
    """URL, key and fingerprint of NVIDIA's repository for a distribution release."""
    entry = catalog.distros[distribution].nvidia_repository
    base = (base_url or catalog.repository.base_url).rstrip("/")
    url = f"{base}/{entry.slug}/{catalog.repository.architectures[architecture]}/"
    return {"url": url, "key_url": url + entry.key_file, "key_fingerprint": entry.key_fingerprint, "slug": entry.slug}
