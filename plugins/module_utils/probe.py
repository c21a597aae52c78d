# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Assemble the probe of a host. Runs on the managed host; changes nothing and needs no driver."""

from __future__ import annotations

import fnmatch
import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.host import (
    cloud_init,
    display,
    module_keys,
    os_release,
    pci,
    pcie,
    secure_boot,
    system,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import (
    foreign_driver,
    gpu_processes,
    installed_driver,
    installed_stack,
    module_loading,
    nvidia_smi,
    proc_driver,
    runfile,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import kernels, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists, apt_sources, apt_state, dpkg
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.model import Journal, foreign_holds
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, file_contents, last_result, run_lock

SCHEMA = 1
UNIT_DIRECTORIES = ("/etc/systemd/system", "/run/systemd/system")
OWN_FOLDERS = (os.path.dirname(installed_stack.TENSORFLOW),)  # all that a run with frameworks alone writes to


@dataclass(frozen=True)
class Options:
    """What to probe; the options of the module gpu_probe, where they are documented.

    Those with the default None in the specification are names from the catalog, which the action plugin gives.
    """

    repository_url: Optional[str] = None
    repositories: Dict[str, Any] = option({})
    repository_check: bool = True
    repository_patterns: List[str] = option([], default=None)
    package_patterns: List[str] = option([], default=None)
    tensorflow_path: str = option(installed_stack.TENSORFLOW, type="path")
    driver_packages: str = option("(?!)", default=None)  # a regular expression of their names
    distro_cuda_package: str = option("", default=None)
    kernel_header_offers: bool = False
    kernel_tools: List[str] = option([], default=None)
    module_compressors: Dict[str, Any] = option({}, default=None)
    prebuilt_modules: str = option("", default=None)  # a glob of their packages
    pytorch_path: str = option(installed_stack.PYTORCH, type="path")
    contents: bool = False
    accept_damage: List[str] = option([])
    managed: Dict[str, Any] = option({})
    state_directory: str = option(store.DIRECTORY, type="path")
    timeout_factor: float = 1


def probe(root: str, options: Options, run: Run = command.run) -> dict[str, Any]:
    """Return the probe. A part that cannot be read is None and has a message in `errors`."""
    errors: list[str] = []

    def attempt(part: str, read: Callable[[], Any], default: Any = None) -> Any:
        try:
            return read()
        except (OSError, ValueError) as error:
            errors.append("%s: %s" % (part, error))
            return default

    machine = os.uname().machine
    distribution = attempt("distribution", lambda: os_release.read(root))
    gpus, switches = attempt("PCI devices", lambda: pci.read(root), ([], []))
    tf_path, torch_path = options.tensorflow_path, options.pytorch_path
    driver = _driver(root, run, attempt)
    smi = driver["nvidia_smi"]
    repository = _repository(root, options, machine, run, distribution)
    source = (repository or {}).get("url")
    sources = attempt("package sources", lambda: apt_sources.read(root, source))
    if sources is not None:
        found = attempt("preferred sources", lambda: _preferred(root, options, sources, repository, distribution, run))
        sources["preferred"] = found or []
    state = files.under(root, options.state_directory)
    journal = attempt("record of changed packages", lambda: store.journal(state), {})
    kernel = attempt("kernel", lambda: _kernel(root, system.running(root), options, run))
    signed = attempt("enforced module signatures", lambda: _signatures_enforced(root, kernel or {}))
    result = {
        "schema": SCHEMA,
        "uid": os.geteuid(),
        "may_write": {path: system.may_write(root, path) for path in OWN_FOLDERS},
        "distribution": distribution,
        "architecture": machine,
        "cpu": attempt("CPU", lambda: system.cpu(root)),
        "kernel": kernel,
        "python": attempt("python", lambda: system.python(root)),
        "toolchain": attempt("toolchain", lambda: system.toolchain(root, run)),
        "gpus": gpus,
        "nvswitches": switches,
        "pcie": attempt("PCIe links", lambda: pcie.read(root, [gpu["pci_address"] for gpu in gpus])),
        "display": attempt("display", lambda: display.read(root)),
        "driver": driver,
        "modules_of_others": attempt("kernel modules of others", lambda: kernels.of_others(root), []),
        "foreign_driver": attempt("driver of others", lambda: foreign_driver.read(root)),
        "gpu_processes": attempt("GPU processes", lambda: gpu_processes.read(root, smi, run)),
        "packages": attempt("packages", lambda: _packages(root, options)),
        "foreign_holds": attempt("packages on hold", lambda: _foreign_holds(root, journal), {}),
        "package_manager": attempt("package manager", lambda: apt_state.read(root, journal)),
        "transaction": attempt("package transaction", lambda: transaction_lock.read(root, options.state_directory), {}),
        "run": attempt("run that changes the host", lambda: run_lock.living(state, root)),
        "cloud_init_running": attempt("cloud-init", lambda: cloud_init.running(root, run), False),
        "runfile": attempt("run file installations", lambda: runfile.read(root)),
        "repository": repository,
        "repository_files": sources,
        "cuda": attempt("CUDA", lambda: installed_stack.cuda(root, options.distro_cuda_package)),
        "tensorflow": attempt("TensorFlow", lambda: installed_stack.tensorflow(root, tf_path)),
        "tensorflow_in_the_way": attempt("TensorFlow's path", lambda: installed_stack.in_the_way(root, tf_path)),
        "pytorch": attempt("PyTorch", lambda: installed_stack.pytorch(root, torch_path)),
        "pytorch_in_the_way": attempt("PyTorch's path", lambda: installed_stack.in_the_way(root, torch_path)),
        "secure_boot": attempt("Secure Boot", lambda: secure_boot.state(root), "unknown"),
        "secure_boot_keys": attempt("module signing keys", lambda: module_keys.dkms_keys(root), []),
        "trusted_certificates": attempt("trusted certificates", lambda: secure_boot.trusted_certificates(root)),
        "signatures_enforced": signed,
        "kernel_keys": module_keys.key_ids(root) if signed else None,
        "modules_disabled": attempt("kernel.modules_disabled", lambda: module_loading.disabled(root)),
        "disk": attempt("disk", lambda: system.disk(root)),
        "applied": attempt("record of the last run", lambda: _applied(root, options, run), {}),
        "masked_services": attempt("masked services", lambda: _masked(root, options), []),
        "verified": attempt("record of the verified configuration", lambda: store.evidence(state)),
        "requested": attempt("request of the verified configuration", lambda: store.requested(state)),
        "verified_plan": attempt("plan of the verified configuration", lambda: store.verified_plan(state)),
        "changed_packages": sorted(journal),
        "pending": attempt("record of a pending change", lambda: store.read(state, store.PENDING)),
        "last_result": attempt("last result", lambda: last_result.read(state)),
        "newer_state": attempt("newer records", lambda: _newer_state(state)),
        "applied_plan": attempt("applied plan", lambda: installed_stack.applied_plan(root)),
        "simulated": attempt("simulated parts", lambda: installed_stack.simulated(root), []),
    }
    if options.contents:
        attempt("content of packages", file_contents.check_md5)
    return dict(result, errors=errors)


def _kernel(root: str, running: str, options: Options, run: Run) -> dict[str, Any]:
    """Return the kernels, what is known of each, and what apt has to build modules."""
    found = system.kernel(root, running)
    packages = kernels.images(root)
    found["releases"] = {
        name: kernels.release(root, name, name == running, packages) for name in sorted({running, *found["installed"]})
    }
    tools = {"": list(options.kernel_tools), **{how: [name] for how, name in options.module_compressors.items()}}
    found.update(kernels.building(root, found, tools, options.kernel_header_offers, run))
    signed = secure_boot.state(root) != "disabled" or _signatures_enforced(root, found)
    if options.prebuilt_modules and options.kernel_header_offers and signed:
        releases = list(found["releases"])
        found["prebuilt"] = apt_lists.prebuilt_modules(root, options.prebuilt_modules, releases, run)
    return found


def _preferred(
    root: str,
    options: Options,
    sources: dict[str, Any],
    repository: dict[str, Any] | None,
    distribution: dict[str, str] | None,
    run: Run,
) -> list[dict[str, Any]]:
    """Return the sources whose packages apt prefers; say of the entries whether they offer what a plan may install."""
    if repository is None or repository["error"] or distribution is None:
        return []
    globs = sorted({*options.repository_patterns, *options.package_patterns})
    name = distribution["id"].partition("-")[0]
    others = apt_sources.Others(root, name, repository["url"], repository["packages"], globs, run)
    matches = re.compile("|".join(fnmatch.translate(glob) for glob in options.repository_patterns) or r"(?!)").match
    for entry in sources["entries"]:
        offering = others.offering(entry["uri"])
        entry["offers"] = None if offering is None else any(map(matches, offering))
    return others.preferred()


def _signatures_enforced(root: str, kernel: dict[str, Any]) -> dict[str, list[str]] | None:
    following = kernel.get("next_boot")
    running = kernel.get("running") or system.running(root)
    return module_loading.signatures_enforced(root, running, [following] if following else [])


def _packages(root: str, options: Options) -> dict[str, dict[str, Any]]:
    found = dpkg.read(root, list(options.package_patterns))
    return {name: dict(package.to_json(), depends=list(package.depends)) for name, package in found.items()}


def _newer_state(directory: str) -> str | None:
    error = store.newer(directory)
    return error.found if error else None


def _foreign_holds(root: str, journal: Journal) -> dict[str, str]:
    """Return the installed versions of the packages that somebody else holds, "" for one that is not installed."""
    held = dpkg.held(root)
    absent = ("config-files", "not-installed")
    return {name: "" if held[name].status in absent else held[name].version for name in foreign_holds(held, journal)}


def _applied(root: str, options: Options, run: Run) -> dict[str, Any]:
    place, names = options.state_directory, options.accept_damage
    return applied.differences(place, root, run, options.contents, options.managed, names)


def _masked(root: str, options: Options) -> list[str]:
    """Return the managed services that an administrator has masked (systemctl mask), which nothing can enable."""
    names = sorted({name for watch in options.managed.values() for name in watch.get("services") or []})
    units = {name: [os.path.join(place, name + ".service") for place in UNIT_DIRECTORIES] for name in names}
    return [name for name in names if any(files.link_target(root, path) == "/dev/null" for path in units[name])]


def _driver(root: str, run: Run, attempt: Callable[..., Any]) -> dict[str, Any]:
    def smi() -> Any:
        found = nvidia_smi.read(nvidia_smi.find() if root == "/" else None, run)
        return dict(found, mig=nvidia_smi.in_mig_mode(found, run)) if found else None

    return {
        "loaded": attempt("loaded driver", lambda: proc_driver.read(root)),
        "nouveau_loaded": proc_driver.nouveau_loaded(root),
        "nvidia_smi": attempt("nvidia-smi", smi),
        "installed": attempt("installed driver", lambda: installed_driver.read(root)),
        "dkms_leftovers": attempt("modules of DKMS", lambda: installed_driver.dkms_leftovers(root), []),
    }


def _repository(
    root: str, options: Options, machine: str, run: Run, distribution: dict[str, str] | None
) -> dict[str, Any] | None:
    name = (distribution or {}).get("id", "")
    url = options.repository_url or options.repositories.get(name)
    if not url:
        return None
    patterns = list(options.repository_patterns)
    return apt_lists.read(root, url, patterns, options.driver_packages, machine, options.repository_check, run)
