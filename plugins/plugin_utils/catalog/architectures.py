"""The catalog of one CPU architecture, by the names that `uname -m` prints.

Runs on the controller; pure functions. An entry is for the architectures that it names, else for those of its file.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog

FIELD = "cpu_architectures"
_FILES = ("driver", "cuda", "cudnn", "nccl", "tensorflow", "pytorch", "cpu")


@functools.lru_cache(maxsize=16)
def of_architecture(catalog: Catalog, architecture: str) -> Catalog:
    """Return the catalog with the entries for a CPU architecture alone; the same one where all of them are for it.

    Distribution releases stay: `supported` says which serve it.
    """
    parts = {name: _of(getattr(catalog, name), architecture, ()) for name in _FILES}
    distros = {name: _of(distro, architecture, ()) for name, distro in catalog.distros.items()}
    changed = {name: part for name, part in parts.items() if part is not getattr(catalog, name)}
    components = {name: _of(file, architecture, ()) for name, file in catalog.components.items()}
    if any(file is not catalog.components[name] for name, file in components.items()):
        changed["components"] = components
    if any(distro is not catalog.distros[name] for name, distro in distros.items()):
        changed["distros"] = distros
    return dataclasses.replace(catalog, **changed) if changed else catalog


def _of(entry: Any, architecture: str, inherited: tuple[str, ...]) -> Any:
    """Return an entry with those of the entries in it that are for an architecture; the same one where all are."""
    own = _architectures(entry, inherited)
    changes: dict[str, Any] = {}
    for name, entries in _lists(entry):
        kept = tuple(_of(each, architecture, own) for each in entries if _is_for(each, architecture, own))
        if len(kept) < len(entries) or any(new is not old for new, old in zip(kept, entries, strict=True)):
            changes[name] = kept
    for name, part in _parts(entry):
        if (kept_part := _of(part, architecture, own)) is not part:
            changes[name] = kept_part
    return dataclasses.replace(entry, **changes) if changes else entry


def _is_for(entry: Any, architecture: str, inherited: tuple[str, ...]) -> bool:
    """Return whether an entry is for an architecture; one of which only the parts say so is where one of them is."""
    if not hasattr(entry, FIELD):
        return any(_is_for(each, architecture, inherited) for _name, entries in _lists(entry) for each in entries)
    return architecture in _architectures(entry, inherited)


def _architectures(entry: Any, inherited: tuple[str, ...]) -> tuple[str, ...]:
    own = getattr(entry, FIELD, None)
    return inherited if own is None else tuple(own)


def _lists(entry: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Yield the fields with entries that depend on the architecture."""
    for field in dataclasses.fields(entry):
        entries = getattr(entry, field.name)
        if isinstance(entries, tuple) and entries and dataclasses.is_dataclass(entries[0]) and _depends(entries[0]):
            yield field.name, entries


def _parts(entry: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are no lists, with entries in them that depend on the architecture."""
    for field in dataclasses.fields(entry):
        part = getattr(entry, field.name)
        if dataclasses.is_dataclass(part) and any(True for _each in _lists(part)):
            yield field.name, part


def _depends(entry: Any) -> bool:
    return hasattr(entry, FIELD) or any(True for _each in _lists(entry))


def supported(catalog: Catalog, distribution: str | None = None) -> tuple[str, ...]:
    """Return the architectures that a distribution release serves; without one, those that any of them does."""
    distros = catalog.distros.values() if distribution is None else [catalog.distros[distribution]]
    served = {name for distro in distros for name in distro.cpu_architectures} & {*catalog.repository.architectures}
    return tuple(name for name in catalog.cpu.known_architectures if name in served)


def declared(catalog: Catalog) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each place that names architectures, as `driver.yml.branches[580]`, with these."""
    yield "repository.yml.architectures", tuple(catalog.repository.architectures)
    yield "cpu.yml.unmarked_locks", (catalog.cpu.unmarked_locks,)
    files = {f"{name}.yml": getattr(catalog, name) for name in _FILES}
    files |= {f"{name}.yml": file for name, file in catalog.components.items()}
    for where, file in (files | {distro.path: distro for distro in catalog.distros.values()}).items():
        yield from _declared(where, file)


def _declared(where: str, entry: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    own = getattr(entry, FIELD, None)
    if own is not None:
        yield f"{where}.{FIELD}", tuple(own)
    for name, entries in _lists(entry):
        for index, each in enumerate(entries):
            label = next(
                (str(getattr(each, key)) for key in ("version", "branch", "cuda") if hasattr(each, key)), index
            )
            yield from _declared(f"{where}.{name}[{label}]", each)
    for name, part in _parts(entry):
        yield from _declared(f"{where}.{name}", part)
