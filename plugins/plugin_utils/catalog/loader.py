"""Load catalog/ into the dataclasses of schema.py, and check its schema and its references.

Runs on the controller. One CatalogError reports all problems of all files, each with file and key.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.references import cross_check
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    ComponentFile,
    CpuFile,
    CudaFile,
    CudnnFile,
    Distro,
    DriverFile,
    GpuFile,
    GpuName,
    GpuThresholdFile,
    KnownBadFile,
    LockFiles,
    NcclFile,
    PackagesFile,
    Product,
    PytorchFile,
    RepositoryFile,
    TensorflowFile,
    UserSetting,
    Vgpu,
    Xid,
    XidNvlink,
)

# The collection reaches this file through a link, so the real path is in the repository.
CATALOG_FOLDER = PROJECT / "catalog"
_YAML = "tag:yaml.org,2002:"


class CatalogError(Exception):
    """Files of the catalog that break the schema; the message lists each place."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(f"{len(problems)} problem(s) in the catalog:\n" + "\n".join(f"  {p}" for p in problems))


_FILES: dict[str, type] = {
    "gpu": GpuFile,
    "gpu_thresholds": GpuThresholdFile,
    "driver": DriverFile,
    "cuda": CudaFile,
    "cudnn": CudnnFile,
    "nccl": NcclFile,
    "tensorflow": TensorflowFile,
    "pytorch": PytorchFile,
    "cpu": CpuFile,
    "repository": RepositoryFile,
    "packages": PackagesFile,
    "known_bad": KnownBadFile,
}
# Values that are one of a few.
_MODULES = ("proprietary", "either", "open")
_FAMILIES = ("debian", "ubuntu")
_CHOICES = {
    "ModuleRule.accepts": _MODULES,
    "Branch.type": ("LTSB", "PB", "NFB", "legacy", "unknown"),
    "DriverPackages.family": _FAMILIES,
    "BadDriver.archive": ("nvidia", "distro"),
    "Distro.family": _FAMILIES,
    "TensorflowRelease.package": ("tensorflow", "tensorflow-gpu"),
    "PytorchBuild.index": ("pypi", "own"),
    "Xid.outcome": ("fail", "warn", "pass", "decode"),
    "XidNvlink.outcome": ("fail", "pass"),
    "UserSetting.use": ("dropped", "replaced", "asked", "kept", "set"),
    "UserSetting.programs": ("all", "build"),
}


class _Field(typing.NamedTuple):
    """A field of a dataclass: its type, whether its key may be missing, the values that are allowed if they are few."""

    kind: Any
    is_optional: bool
    choices: tuple[str, ...]


@functools.cache
def _fields(kind: type) -> dict[str, _Field]:
    hints = typing.get_type_hints(kind)
    return {
        f.name: _Field(
            hints[f.name], f.default is not dataclasses.MISSING, _CHOICES.get(f"{kind.__name__}.{f.name}", ())
        )
        for f in dataclasses.fields(kind)
    }


def _build(value: Any, kind: Any, where: str, problems: list[str]) -> Any:
    """Return plain YAML data as `kind`; append to problems what does not fit."""
    if kind is str and isinstance(value, str):  # as most values
        return value
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
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        hint = " (quote it)" if kind is str and isinstance(value, (int, float)) else ""
        problems.append(f"{where}: expected {kind.__name__}, found {value!r}{hint}")
    return value


def _build_list(value: Any, inner: Any, where: str, problems: list[str]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        problems.append(f"{where}: expected a list, found {value!r}")
        return ()
    if inner is str and all(isinstance(item, str) for item in value):
        return tuple(value)
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
    fields = _fields(kind)
    missing = [name for name, field in fields.items() if name not in value and not field.is_optional]
    problems += [f"{where}.{name}: missing" for name in missing]
    problems += [f"{where}.{name}: unknown key" for name in value if name not in fields]
    built = {}
    for name, field in fields.items():
        if name in value:
            built[name] = _build(value[name], field.kind, f"{where}.{name}", problems)
            if field.choices and value[name] not in field.choices:
                problems.append(f"{where}.{name}: expected one of {', '.join(field.choices)}, found {value[name]!r}")
            if name == "source" and not value[name]:
                problems.append(f"{where}.source: empty; every entry names its source")
    return None if missing else kind(**built)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Read YAML, with libyaml about ten times as fast as without.

    PyYAML builds texts, lists and mappings by generators, which data that contains itself needs, and no file here has.
    That took as long as libyaml itself.
    """

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the data of a document; called by PyYAML."""
        if node.tag == _YAML + "str":
            return node.value
        if node.tag == _YAML + "seq":
            return [self.construct_document(item) for item in node.value]
        if node.tag == _YAML + "map" and all(key.tag == _YAML + "str" for key, _value in node.value):
            return {key.value: self.construct_document(value) for key, value in node.value}
        return self.construct_object(node, deep=True)


def load_yaml(path: Path) -> Any:
    """Return what is in a YAML file; raises OSError and YAMLError."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)


def _read_yaml(path: Path, kind: type, problems: list[str]) -> Any:
    try:
        data = load_yaml(path)
    except (OSError, yaml.YAMLError) as error:
        problems.append(f"{path.name}: cannot be read: {error}")
        return None
    return _build(data, kind, path.name, problems)


def _read_csv(path: Path, kind: type, problems: list[str]) -> list[dict[str, str]]:
    """Return the rows of a table whose columns are the fields of `kind`; none if it cannot be read."""
    fields = [f.name for f in dataclasses.fields(kind)]
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream, restval="")
            if reader.fieldnames != fields:
                problems.append(f"{path.name}: expected the columns {', '.join(fields)}, found {reader.fieldnames}")
                return []
            return list(reader)
    except OSError as error:
        problems.append(f"{path.name}: cannot be read: {error}")
        return []


def _read_products(path: Path, problems: list[str]) -> dict[str, Product]:
    products: dict[str, Product] = {}
    for row in _read_csv(path, Product, problems):
        where = f"{path.name}[{row['device']}]"
        if not re.fullmatch(r"[0-9a-f]{4}", row["device"]):
            problems.append(f"{where}.device: expected four lower-case hexadecimal digits")
        if row["kernel_modules"] not in _MODULES:
            problems.append(f"{where}.kernel_modules: unknown value {row['kernel_modules']!r}")
        if not row["source"]:
            problems.append(f"{where}.source: empty; every entry names its source")
        if row["device"] in products:
            problems.append(f"{where}: duplicate entry")
        products[row["device"]] = Product(**row)
    return products


def _read_vgpus(path: Path, problems: list[str]) -> dict[tuple[str, str], Vgpu]:
    vgpus: dict[tuple[str, str], Vgpu] = {}
    for row in _read_csv(path, Vgpu, problems):
        key = row["device"], row["subsystem"]
        if key in vgpus:
            problems.append(f"{path.name}[{' '.join(key)}]: duplicate entry")
        vgpus[key] = Vgpu(**row)
    return vgpus


def _read_user_settings(path: Path, problems: list[str]) -> tuple[UserSetting, ...]:
    found = [UserSetting(**row) for row in _read_csv(path, UserSetting, problems)]
    for row in found:
        for name in ("use", "programs"):
            choices, value = _CHOICES[f"UserSetting.{name}"], getattr(row, name)
            if value not in choices:
                where = f"{path.name}[{row.name}].{name}"
                problems.append(f"{where}: expected one of {', '.join(choices)}, found {value!r}")
        if (row.use == "set") is not bool(row.value):
            problems.append(f"{path.name}[{row.name}].value: expected one for `set`, and for nothing else")
        if not row.source:
            problems.append(f"{path.name}[{row.name}].source: empty; every entry names its source")
    return tuple(found)


def _read_xids(path: Path, kind: type, problems: list[str]) -> tuple[Any, ...]:
    found = [kind(**row) for row in _read_csv(path, kind, problems)]
    for row in found:
        where, choices = f"{path.name}[{row.number}]", _CHOICES[f"{kind.__name__}.outcome"]
        if not row.number.isdecimal():
            problems.append(f"{where}.number: expected a number")
        if row.outcome not in choices:
            problems.append(f"{where}.outcome: expected one of {', '.join(choices)}, found {row.outcome!r}")
        if kind is Xid and row.blame not in (("", "hardware") if row.outcome == "fail" else ("",)):
            problems.append(f"{where}.blame: expected hardware or nothing, with the outcome fail; found {row.blame!r}")
        if not row.source:
            problems.append(f"{where}.source: empty; every entry names its source")
    return tuple(found)


def read_catalog(folder: Path, components: Mapping[str, type[ComponentFile]] | None = None) -> Catalog:
    """Return the catalog in a directory; raises CatalogError with all problems.

    components: the types of the files that one component alone reads, by its name.
    """
    problems: list[str] = []
    parts: dict[str, Any] = {name: _read_yaml(folder / f"{name}.yml", kind, problems) for name, kind in _FILES.items()}
    parts["components"] = {n: _read_yaml(folder / f"{n}.yml", kind, problems) for n, kind in (components or {}).items()}
    parts["products"] = _read_products(folder / "gpu_products.csv", problems)
    parts["gpu_names"] = tuple(GpuName(**row) for row in _read_csv(folder / "gpu_names.csv", GpuName, problems))
    parts["vgpus"] = _read_vgpus(folder / "vgpus.csv", problems)
    parts["user_settings"] = _read_user_settings(folder / "user_settings.csv", problems)
    parts["xids"] = _read_xids(folder / "xids.csv", Xid, problems)
    parts["xid_nvlink"] = _read_xids(folder / "xid_nvlink.csv", XidNvlink, problems)
    parts["distros"] = {}
    for path in sorted((folder / "distro").glob("*.yml")):
        distro = _read_yaml(path, Distro, problems)
        if distro is not None and distro.id != path.stem:
            problems.append(f"{path.name}.id: expected {path.stem}, found {distro.id}")
        parts["distros"][path.stem] = distro
    if not parts["distros"]:
        problems.append(f"{folder / 'distro'}: contains no distribution file")
    if not problems:
        problems += cross_check(Catalog(**parts))
    if problems:
        raise CatalogError(problems)
    return Catalog(**parts)


def _shipped() -> Iterable[Path]:
    return PROJECT.glob("roles/*_env/files/*-py*.txt")


def lock_files(*folders: Path) -> LockFiles:
    """Return the project's locks, and those in other folders."""
    own = (path for folder in folders for path in folder.glob("*.txt"))
    # The collection is shipped without scripts.
    command = "script/lock {names}"
    if not (PROJECT / "script" / "lock").exists():
        command = "ansible-playbook gpuhost.stack.plan -i INVENTORY"
    return LockFiles(frozenset(name for path in (*_shipped(), *own) for name in lock_texts.names(path)), command)


def with_locks(catalog: Catalog, folder: Path) -> Catalog:
    """Return a catalog with the lock files of a folder besides the project's."""
    pinned = {**catalog.pinned, **_pinned(catalog, folder.glob("*.txt"))}
    return dataclasses.replace(catalog, locks=lock_files(folder), pinned=pinned)


def _pinned(catalog: Catalog, paths: Iterable[Path]) -> dict[str, dict[str, str]]:
    """Return the versions of the packages in cpu.yml that locks pin, by the names of the locks."""
    pins = tuple(f"{row.package}==" for row in catalog.cpu.wheels)
    found = {}
    # As where a lock is looked for, a file of one Python comes before one of all.
    for path in sorted(paths, key=lambda path: lock_texts.python_of(path.name)):
        marked = (name for name in catalog.cpu.known_architectures if path.stem.endswith(f"-{name}"))
        machine, text = next(marked, catalog.cpu.unmarked_locks), path.read_text(encoding="utf-8")
        lines = "\n".join(line for line in text.splitlines() if line.startswith(pins))  # faster: a few
        for name in filter(lock_texts.python_of, lock_texts.names(path)):
            found[name] = lock_texts.pins(lines, lock_texts.python_of(name), machine)
    return found


def with_own_locks(catalog: Catalog) -> Catalog:
    """Return a catalog with the project's locks."""
    return dataclasses.replace(catalog, locks=lock_files(), pinned=_pinned(catalog, _shipped()))
