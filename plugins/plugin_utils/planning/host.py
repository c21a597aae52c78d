"""The host as the resolver sees it: the part of a probe that decides which versions fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import PlanInputError


@dataclasses.dataclass(frozen=True)
class HostGpu:
    """A GPU as the host shows it."""

    pci_id: str
    pci_address: str = ""
    name: str | None = None
    compute_capability: str | None = None


@dataclasses.dataclass(frozen=True)
class Host:
    """What of a host the resolver looks at. offers is None where no repository could be read."""

    distribution: str
    architecture: str = "x86_64"
    gpus: tuple[HostGpu, ...] = ()
    pythons: tuple[str, ...] = ()
    default_python: str | None = None
    gcc: int | None = None
    glibc: str | None = None
    kernel: str | None = None
    offers: Mapping[str, tuple[str, ...]] | None = None
    offers_error: str | None = None
    repository_url: str | None = None
    repository_configured: bool = False
    secure_boot: str = "unknown"
    loaded_driver: str | None = None


def host_from_probe(probe: Mapping[str, Any]) -> Host:
    """The resolver's view of a probe; raises PlanInputError where the probe lacks what a plan needs."""
    missing = [name for name in ("distribution", "gpus") if name not in probe]
    if "id" not in (probe.get("distribution") or {}):
        missing.append("distribution.id")
    if missing:
        raise PlanInputError(f"the probe lacks {', '.join(missing)}; expected the `probe` of gpuhost.stack.gpu_probe")
    repository = probe.get("repository") or {}
    offers = None
    if repository and not repository.get("error"):
        offers = {name: tuple(found) for name, found in (repository.get("packages") or {}).items()}
    toolchain, python = probe.get("toolchain") or {}, probe.get("python") or {}
    driver = probe.get("driver") or {}
    gcc = toolchain.get("gcc")
    return Host(
        distribution=probe["distribution"]["id"],
        architecture=probe.get("architecture") or "x86_64",
        gpus=_probe_gpus(probe["gpus"], (driver.get("nvidia_smi") or {}).get("gpus") or []),
        pythons=tuple((python.get("interpreters") or {}).keys()),
        default_python=python.get("default"),
        gcc=int(str(gcc).split(".")[0]) if gcc else None,
        glibc=toolchain.get("glibc"),
        kernel=(probe.get("kernel") or {}).get("running"),
        offers=offers,
        offers_error=repository.get("error") or None,
        repository_url=repository.get("url"),
        repository_configured=_is_configured(probe, repository.get("url")),
        secure_boot=probe.get("secure_boot") or "unknown",
        loaded_driver=(driver.get("loaded") or {}).get("version"),
    )


def _is_configured(probe: Mapping[str, Any], url: str | None) -> bool:
    """Whether the host's apt takes packages from NVIDIA's repository already."""
    entries = (probe.get("repository_files") or {}).get("entries") or []
    return url is not None and any(entry["uri"].rstrip("/") == url.rstrip("/") for entry in entries)


def _probe_gpus(devices: Iterable[Mapping[str, Any]], seen: Iterable[Mapping[str, Any]]) -> tuple[HostGpu, ...]:
    """Display and 3D controllers of NVIDIA's, with what a running driver says about each."""
    by_address = {gpu.get("pci_address"): gpu for gpu in seen}
    gpus = []
    for device in devices:
        if not str(device.get("class") or "03").startswith("03"):
            continue
        smi = by_address.get(device.get("pci_address")) or {}
        gpus.append(
            HostGpu(
                pci_id=device["pci_id"].lower(),
                pci_address=device.get("pci_address") or "",
                name=smi.get("name"),
                compute_capability=smi.get("compute_capability"),
            )
        )
    return tuple(gpus)
