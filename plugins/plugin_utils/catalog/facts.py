"""Combine several files of the catalog into the facts that modules and the lookup need.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    Distro,
    KernelCompiler,
    KernelHeaders,
)


def repository_facts(
    catalog: Catalog, distribution: str, architecture: str, base_url: str | None = None
) -> dict[str, str]:
    """Return `url`, `key_url`, `key_fingerprint` and `slug` of NVIDIA's repository for a distribution release.

    The fingerprint is empty where the catalog has none.
    base_url: that of a mirror, without distribution and architecture. Raises KeyError for an unknown distribution, and
    for an architecture that it has no repository for.
    """
    if architecture not in supported(catalog, distribution):
        raise KeyError(architecture)
    entry = catalog.distros[distribution].nvidia_repository
    base = (base_url or catalog.repository.base_url).rstrip("/")
    url = f"{base}/{entry.slug}/{catalog.repository.architectures[architecture]}/"
    fingerprint = entry.key_fingerprint or ""
    return {"url": url, "key_url": url + entry.key_file, "key_fingerprint": fingerprint, "slug": entry.slug}


def repositories(catalog: Catalog, base_url: str | None = None) -> dict[str, dict[str, str]]:
    """Return the URL of NVIDIA's repository by distribution id and CPU architecture."""
    return {
        name: {each: repository_facts(catalog, name, each, base_url)["url"] for each in supported(catalog, name)}
        for name in catalog.distros
    }


def triton_packages(
    catalog: Catalog, family: str, python: str, packaged: bool, version: str | None = None
) -> tuple[tuple[str, ...], ...]:
    """Return the packages of a compiler and of Python's headers; none for a PyTorch that compiles nothing on hosts.

    packaged: whether that Python is the distribution's; no other one's headers are in the archive. version: None for
    what any release compiles with where users ask for it.
    """
    triton = catalog.pytorch.triton
    if triton is None or (version is not None and not versions.satisfies(version, triton.releases)):
        return (), ()
    names = next(row for row in triton.packages if family in row.families)
    return names.compiler, (names.headers.format(python=python),) if packaged else ()


def gpu_thresholds(catalog: Catalog, pci_ids: Iterable[str]) -> dict[str, dict[str, str | float | None]]:
    """Return minimum bandwidths in GB/s (`host`, `memory`, `nvlink`) and `name`, by PCI id such as 10de:2335.

    A GPU without a threshold in the catalog is left out; `nvlink` is None where the catalog has no figure.
    """
    file = catalog.gpu_thresholds
    models = {f"10de:{device}": model for model in file.models for device in model.devices}
    found: dict[str, dict[str, str | float | None]] = {}
    for pci_id, model in ((pci_id, models[pci_id]) for pci_id in pci_ids if pci_id in models):
        host, memory = (model.host * file.host_percent / 100, model.memory * file.memory_percent / 100)
        nvlink = None if model.nvlink is None else model.nvlink * file.nvlink_percent / 100
        found[pci_id] = {"name": model.name, "host": host, "memory": memory, "nvlink": nvlink}
    return found


def link_thresholds(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Return what gpu_verify needs to judge links; keys are text, as numbers are not in JSON.

    `pcie`: `percent`, and `lanes`, the GB/s of a lane by GT/s. `nvlink`: `percent`, `rates`, the GB/s of a link by the
    speed that nvidia-smi prints, and `links`, the number of links of a GPU by PCI id.
    """
    file = catalog.gpu_thresholds
    links = {f"10de:{device}": model.links for model in file.models for device in model.devices if model.links}
    return {
        "pcie": {"percent": file.pcie_percent, "lanes": {f"{rate.speed:g}": rate.lane for rate in file.pcie_rates}},
        "nvlink": {
            "percent": file.pair_percent,
            "rates": {f"{rate.printed:g}": rate.gb_per_second for rate in file.nvlink_rates},
            "links": links,
        },
    }


def python_packages(distro: Distro, python: str) -> list[str]:
    """Return the packages that make environments of one of the distribution's Pythons, such as 3.12, possible."""
    own = distro.python
    return [*own.venv, *filter(None, [own.packages.get(python)])]


def gpu_counters(catalog: Catalog) -> list[dict[str, Any]]:
    """Return the rows of gpu_thresholds.yml as module_utils/checks/gpu_counters.py reads them."""
    return [dataclasses.asdict(row) for row in catalog.gpu_thresholds.counters]


def user_settings(catalog: Catalog) -> list[dict[str, str]]:
    """Return the rows of user_settings.csv as module_utils/state/user_settings.py reads them."""
    return [dataclasses.asdict(row) for row in catalog.user_settings]


def xid_errors(catalog: Catalog) -> dict[str, Any]:
    """Return what module_utils/nvidia/kernel_log.py needs: `numbers`, by number, and the rows of `nvlink`."""
    return {
        "numbers": {
            row.number: {"outcome": row.outcome, "blame": row.blame, "meaning": row.meaning} for row in catalog.xids
        },
        "nvlink": [dataclasses.asdict(row) for row in catalog.xid_nvlink],
    }


def is_archive_kernel(distro: Distro, release: str) -> bool:
    """Return whether a kernel is named as those of the distribution's archive: who builds others, and how, is open."""
    return re.fullmatch(distro.kernel.releases, release) is not None


def kernel_headers(distro: Distro, release: str) -> KernelHeaders | None:
    """Return the row of the flavour of a kernel; None for a flavour that the catalog does not know."""
    rows = distro.kernel.headers if is_archive_kernel(distro, release) else ()
    return next((row for row in rows if re.search(row.running, release)), None)


def kernel_build(release: str) -> str:
    """Return a kernel's release without the flavour that rpm's releases have behind a plus sign: `+64k`."""
    return release.partition("+")[0]


def exact_headers(distro: Distro, release: str) -> str:
    """Return the package with the headers of one kernel, by the row of its flavour if that has a name of its own."""
    row = kernel_headers(distro, release)
    name = row.exact if row and row.exact else distro.kernel.exact
    return name.format(release=release, build=kernel_build(release))


def kernel_compiler(distro: Distro, release: str) -> KernelCompiler | None:
    """Return the row of the compiler that built a kernel; None where the catalog does not know it."""
    rows = distro.kernel.compilers if is_archive_kernel(distro, release) else ()
    return next((row for row in rows if re.search(row.running, release)), None)


def kernel_of_series(distro: Distro, series: str, architecture: str) -> str:
    """Return the release of a distribution's standard kernel of a series such as 6.8, without a real build number.

    Raises KeyError for an architecture that the distribution release does not serve.
    """
    return distro.kernel.standard.format(series=series, flavour=distro.kernel.flavours[architecture])


def proxmox_headers(catalog: Catalog, releases: Iterable[str]) -> list[str]:
    """Return the packages with the headers of those kernels that are Proxmox', then the one that follows updates."""
    names = catalog.packages.proxmox_kernels
    own = [release for release in releases if release.endswith(names["suffix"])]
    return [*(names["headers"].format(release=release) for release in own), names["default_headers"]]


def driver_name_pattern(catalog: Catalog) -> str:
    """Return the regular expression that matches the whole names of driver packages, NVIDIA's and the archives'."""
    return f"(?!(?:{_globs(catalog.driver.name_exceptions)})$)(?:{_globs(catalog.driver.name_patterns)})"


def driver_series(catalog: Catalog, name: str) -> str | None:
    """Return the branch in the name of a driver's package, with Ubuntu's `-server`: two sets of one branch conflict."""
    matches = (re.fullmatch(expression, name) for expression in catalog.packages.driver_branch)
    return next((match.group(1) for match in matches if match), None)


def is_empty_meta(catalog: Catalog, name: str, version: str) -> bool:
    """Return whether a package is a metapackage that has lost its dependencies: it says nothing of a driver."""
    first = catalog.packages.empty_metas.get(name)
    return first is not None and versions.key(versions.upstream(version)) >= versions.key(first)


def serves_displays(catalog: Catalog, name: str, version: str) -> bool:
    """Return whether a package of a driver serves displays, or brings those that do."""
    is_of_them = any(re.fullmatch(expression, name) for expression in catalog.packages.graphics)
    return is_of_them and not is_empty_meta(catalog, name, version)


def _globs(patterns: Iterable[str]) -> str:
    return "|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns)


def probe_options(catalog: Catalog) -> dict[str, Any]:
    """Return the options of the module gpu_probe that name packages."""
    files = catalog.components.values()
    return {
        "package_patterns": [*catalog.packages.installed, *(glob for file in files for glob in file.names.installed)],
        "repository_patterns": [*catalog.packages.offered, *(glob for file in files for glob in file.names.offered)],
        "driver_packages": driver_name_pattern(catalog),
        "distro_cuda_package": catalog.packages.distro_cuda,
        "kernel_tools": list(catalog.packages.kernel_tools),
        "module_compressors": {
            name: {**catalog.packages.module_compressors, **distro.kernel.compressors}
            for name, distro in catalog.distros.items()
        },
        "archive_drivers": {
            name: sorted({package for rule in distro.distro_drivers for package in rule.names()})
            for name, distro in catalog.distros.items()
        },
        "prebuilt_modules": catalog.packages.prebuilt_modules,
        "switch_modules": [name for file in files for name in file.names.kernel_modules],
        "extra_modules": catalog.packages.extra_modules,
    }
