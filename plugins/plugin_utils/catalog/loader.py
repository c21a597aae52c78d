"""Load catalog/ into the dataclasses of schema.py, and check its schema and its references.

Runs on the controller. One CatalogError reports all problems of all files, each with file and key.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model import records
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.spelling import counted
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
    OtherDistributionsFile,
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
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{counted(len(problems), 'problem')} in the catalog:{listed}")


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
    "other_distributions": OtherDistributionsFile,
}
# Files that people write: a mistake in a key or a version is no plan from another one.
_RULES = records.Rules(
    exact=True,
    labels=("version", "branch", "name", "running"),
    never_empty={"source": "empty; every entry names its source"},
    number=" (quote it)",
)


def _build(data: Any, kind: type, where: str, problems: list[str]) -> Any:
    """Return plain data as `kind`; None where it does not fit, and what does not is appended to problems."""
    try:
        return records.from_json(kind, data, where, _RULES)
    except records.RecordError as error:
        problems += [f"{path}: {reason}" for path, reason in error.problems]
        return None


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


def _read_csv(path: Path, kind: type, keys: Sequence[str], problems: list[str]) -> list[Any]:
    """Return the rows of a table whose columns are the fields of `kind`; none if it cannot be read.

    keys: the columns that name a row.
    """
    fields = [f.name for f in dataclasses.fields(kind)]
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            columns, *rows = list(csv.reader(stream)) or [[]]
    except OSError as error:
        problems.append(f"{path.name}: cannot be read: {error}")
        return []
    if columns != fields:
        problems.append(f"{path.name}: expected the columns {', '.join(fields)}, found {columns}")
        return []
    found: list[Any] = []
    for values in rows:
        row = dict(itertools.zip_longest(fields, values, fillvalue=""))
        try:
            found.append(records.from_json(kind, row, "", _RULES))
        except records.RecordError as error:
            where = f"{path.name}[{' '.join(row[key] for key in keys)}]"
            problems += [f"{where}{field}: {reason}" for field, reason in error.problems]
    return found


def _read_table(path: Path, kind: type, keys: Sequence[str], problems: list[str]) -> dict[Any, Any]:
    """Return the rows of a table by their keys, of which no two may be the same."""
    table: dict[Any, Any] = {}
    key_of = operator.attrgetter(*keys)
    for row in _read_csv(path, kind, keys, problems):
        if key_of(row) in table:
            problems.append(f"{path.name}[{' '.join(getattr(row, key) for key in keys)}]: duplicate entry")
        table[key_of(row)] = row
    return table


def _read_products(path: Path, problems: list[str]) -> dict[str, Product]:
    products = _read_table(path, Product, ("device",), problems)
    wrong = [device for device in products if not re.fullmatch(r"[0-9a-f]{4}", device)]
    problems += [f"{path.name}[{device}].device: expected four lower-case hexadecimal digits" for device in wrong]
    return products


def _read_user_settings(path: Path, problems: list[str]) -> tuple[UserSetting, ...]:
    found = _read_csv(path, UserSetting, ("name",), problems)
    wrong = [row.name for row in found if (row.use == "set") is not bool(row.value)]
    problems += [f"{path.name}[{name}].value: expected one for `set`, and for nothing else" for name in wrong]
    return tuple(found)


def _read_xids(path: Path, kind: type, problems: list[str]) -> tuple[Any, ...]:
    found = _read_csv(path, kind, ("number",), problems)
    for row in found:
        where = f"{path.name}[{row.number}]"
        if not row.number.isdecimal():
            problems.append(f"{where}.number: expected a number")
        if kind is Xid and row.blame not in (("", "hardware") if row.outcome == "fail" else ("",)):
            problems.append(f"{where}.blame: expected hardware or nothing, with the outcome fail; found {row.blame!r}")
    return tuple(found)


def read_catalog(folder: Path, components: Mapping[str, type[ComponentFile]] | None = None) -> Catalog:
    """Return the catalog in a directory; raises CatalogError with all problems.

    components: the types of the files that one component alone reads, by its name.
    """
    problems: list[str] = []
    parts: dict[str, Any] = {name: _read_yaml(folder / f"{name}.yml", kind, problems) for name, kind in _FILES.items()}
    parts["components"] = {n: _read_yaml(folder / f"{n}.yml", kind, problems) for n, kind in (components or {}).items()}
    parts["products"] = _read_products(folder / "gpu_products.csv", problems)
    parts["gpu_names"] = tuple(_read_csv(folder / "gpu_names.csv", GpuName, ("name",), problems))
    parts["vgpus"] = tuple(_read_csv(folder / "vgpus.csv", Vgpu, ("device", "first"), problems))
    parts["user_settings"] = _read_user_settings(folder / "user_settings.csv", problems)
    parts["xids"] = _read_xids(folder / "xids.csv", Xid, problems)
    parts["xid_nvlink"] = _read_xids(folder / "xid_nvlink.csv", XidNvlink, problems)
    parts["distros"] = {}
    for path in sorted((folder / "distro").glob("*.yml")):
        distro = _read_yaml(path, Distro, problems)
        if distro is not None and distro.id != path.stem:
            problems.append(f"{path.name}.id: expected {path.stem}, found {distro.id}")
        parts["distros"] |= {each.id: each for each in distro.releases()} if distro is not None else {}
    if not parts["distros"] and not problems:
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
