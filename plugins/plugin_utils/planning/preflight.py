"""Preflight: what on a host stands in the way of its plan, each thing with a remedy. Runs on the controller.

Pure, but for the sizes that are read from catalog/disk.yml. The codes are listed in docs/preflight.md.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Iterable, Mapping
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia.installed_stack import PYTORCH, TENSORFLOW
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import LABELS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.findings import Findings

SCHEMA = 1
PEER_TO_PEER_REDIRECTS = ("ReqRedir", "CmpltRedir")
ENVIRONMENTS = {"tensorflow": TENSORFLOW, "pytorch": PYTORCH}

Data = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Options:
    """What the inventory says and no probe can know.

    own_kernel: whether the host loads modules into a kernel of its own (a container borrows one).
    kernel_headers: the packages that will be installed for them; None: those of the plan.
    """

    own_kernel: bool = True
    kernel_headers: tuple[str, ...] | None = None
    locks: tuple[str, ...] | None = None
    environments: str = "/opt/gpuhost/environments"
    cache: str = "/var/cache/gpuhost/uv"


@dataclasses.dataclass(frozen=True)
class _Case:
    """One host: its plan, its probe, and the difference between them."""

    plan: Data
    probe: Data
    options: Options
    changes: Mapping[str, Data]
    catalog: Catalog

    def planned(self, name: str) -> Data | None:
        return (self.plan.get("components") or {}).get(name)

    def moves(self, name: str) -> bool:
        """Whether the plan changes this component."""
        return self.planned(name) is not None and self.changes[name]["action"] != plan_diff.KEEP

    @property
    def builds_modules(self) -> bool:
        """Whether kernel modules have to be built and loaded on this host: by DKMS, not an archive's signed ones."""
        driver = self.planned("driver")
        if driver is None or not self.options.own_kernel:
            return False
        if any(fnmatch.fnmatchcase(name, self.catalog.packages.prebuilt_modules) for name in driver["packages"]):
            return False
        return self.moves("driver") or not (self.probe.get("driver") or {}).get("loaded")


def preflight(plan: Data, probe: Data, options: Options | None = None, sizes: Data | None = None) -> dict[str, Any]:
    """Problems and warnings of a host, as plain data; `sizes` is the content of catalog/disk.yml."""
    catalog = load_catalog()
    changes = plan_diff.by_component(plan_diff.plan_diff(plan, probe, catalog))
    case = _Case(plan, probe, options or Options(), changes, catalog)
    findings = Findings()
    for check in (
        _package_manager,
        _leftovers,
        _gpu_users,
        _secure_boot,
        _kernel_headers,
        _nouveau,
        _links,
        _lock,
        _path_taken,
    ):
        check(case, findings)
    _peer_to_peer(case, findings)
    _disk(case, sizes or _sizes(), findings)
    return {
        "schema": SCHEMA,
        "ok": not findings.problems,
        "problems": [dataclasses.asdict(problem) for problem in findings.problems],
        "warnings": [dataclasses.asdict(warning) for warning in findings.warnings],
    }


def _lock(case: _Case, findings: Findings) -> None:
    """An environment is made from a lock file with hashes or not at all; told here, before the driver has moved."""
    for name in ENVIRONMENTS:
        planned = case.planned(name)
        if planned is None or case.options.locks is None or planned["lock"] in case.options.locks:
            continue
        label = LABELS[name]
        findings.problem(
            "lock-missing",
            f"{label} {planned['version']} was planned, but roles/{name}_env/files holds no lock {planned['lock']}",
            f"make one (script/lock {planned['lock'].removesuffix('.txt')}), ask for another version with "
            f"gpu_stack_{name}, or leave {label} out with gpu_stack_{name}=none",
        )


def _path_taken(case: _Case, findings: Findings) -> None:
    """The role would refuse, too, but after the driver has moved."""
    for name, usual in ENVIRONMENTS.items():
        found = case.probe.get(f"{name}_in_the_way")
        if found and case.planned(name):
            path = (case.probe.get(name) or {}).get("path") or usual
            label = LABELS[name]
            findings.problem(
                "path-taken",
                f"{found} stands at {path}, where a link to the {label} environment goes",
                f"move it away (sudo mv {path} {path}.old), or leave {label} out with gpu_stack_{name}=none",
            )


def refusal(plan: Data, found: Data) -> str:
    """Every problem of a host for a terminal: one line a problem, its remedy below."""
    problems = [*(plan.get("problems") or []), *found["problems"]]
    lines = [f"{len(problems)} problem(s) stand in the way; nothing was changed on this host."]
    for problem in problems:
        lines += [f"- {problem['code']}: {problem['message']}", f"  Remedy: {problem['remedy']}"]
    return "\n".join(lines)


@functools.cache
def _sizes() -> Data:
    return dict(yaml.safe_load((CATALOG_FOLDER / "disk.yml").read_text()))


# Packages -------------------------------------------------------------------------------------------------------


def _package_manager(case: _Case, findings: Findings) -> None:
    state = case.probe.get("package_manager")
    if not state:
        return
    needed = any(case.moves(name) for name in ("driver", "cuda", "cudnn", "nccl", *ENVIRONMENTS))
    if state["locks"]:
        message = f"{state['name']} is busy: {_holders(state['locks'])}"
        if needed:
            findings.problem("apt-busy", message, "wait until it has ended, then run this again")
        else:
            findings.warn("apt-busy", message)
    if not needed or state["locks"]:
        return  # while it works, packages are half done by nature
    broken = state["broken"]
    if broken or state["interrupted"]:
        listed = ", ".join(f"{package['name']} is {package['state']}" for package in broken[:5])
        more = f" and {len(broken) - 5} more" if len(broken) > 5 else ""
        findings.warn(
            "dpkg-interrupted",
            f"dpkg was interrupted: {listed + more if broken else 'its journal is not worked off'}; this run finishes "
            "that first (dpkg --configure -a, apt-get --fix-broken install)",
        )


def _holders(locks: Iterable[Data]) -> str:
    """Each process once, with the locks that it holds."""
    by_process: dict[str, list[str]] = {}
    for lock in locks:
        who = f"process {lock['pid']} ({lock['command'] or 'of unknown name'})" if lock["pid"] else "a process"
        by_process.setdefault(who, []).append(lock["path"])
    return "; ".join(f"{who} holds {', '.join(paths)}" for who, paths in by_process.items())


def _leftovers(case: _Case, findings: Findings) -> None:
    """What the user lets the run put away is a warning that says so; the rest stands in the way, or is to be known."""
    remove = leftovers.removed(case.plan)
    for found in leftovers.find(case.plan, case.probe):
        if remove and found.does:
            findings.warn(found.code, f"{found.message}; gpu_stack_leftovers=remove: {found.does}")
        elif found.blocks:
            findings.problem(found.code, found.message, found.remedy)
        else:
            findings.warn(found.code, found.message)


# GPUs in use ----------------------------------------------------------------------------------------------------


def _gpu_users(case: _Case, findings: Findings) -> None:
    """Displays and monitors may go on with the old driver."""
    if not case.moves("driver"):
        return
    users = [p for p in case.probe.get("gpu_processes") or [] if p["program"] not in gpu_processes.SERVICES]
    jobs = gpu_processes.jobs(users)
    others = [user for user in users if user not in jobs]
    if jobs:
        findings.problem(
            "gpu-busy",
            f"the driver would change under programs that use the GPUs: {gpu_processes.listed(jobs)}",
            "wait for them or end them (drain the node), then run this again",
        )
    if others:
        findings.warn(
            "gpu-busy",
            f"{gpu_processes.listed(others)}: no job, but start it again (or reboot) after the driver changed",
        )


def _nouveau(case: _Case, findings: Findings) -> None:
    if case.planned("driver") is None or not case.options.own_kernel:
        return
    held = [gpu["pci_address"] for gpu in case.probe.get("gpus") or [] if gpu.get("kernel_driver") == "nouveau"]
    if held or (case.probe.get("driver") or {}).get("nouveau_loaded"):
        gpus = f" and drives {', '.join(held)}" if held else ""
        findings.warn(
            "nouveau-in-use",
            f"nouveau is loaded{gpus}: it will be kept from loading; NVIDIA's module needs a reboot first",
        )


# Kernel ---------------------------------------------------------------------------------------------------------


def _secure_boot(case: _Case, findings: Findings) -> None:
    if case.probe.get("secure_boot") != "enabled" or not case.builds_modules:
        return
    keys = case.probe.get("secure_boot_keys") or []
    if any(key["enrolled"] for key in keys):
        return
    message = "Secure Boot is enabled, and the firmware trusts no key that DKMS signs modules with: they would not load"
    turn_off = "or turn Secure Boot off in the firmware's setup"
    if keys:
        path = keys[0]["path"]
        message += f" ({path} is there but {'not enrolled' if keys[0]['enrolled'] is False else 'may not be enrolled'})"
        remedy = f"run sudo mokutil --import {path}, reboot, confirm the key at the console (MOK manager), {turn_off}"
    elif case.plan.get("distribution", "").startswith("ubuntu"):
        remedy = f"run sudo update-secureboot-policy --new-key and --enroll-key, reboot, confirm there, {turn_off}"
    else:
        remedy = (
            "install dkms, run sudo dkms generate_mok and sudo mokutil --import /var/lib/dkms/mok.pub, reboot, "
            f"confirm the key at the console (MOK manager), {turn_off}"
        )
    findings.problem("secure-boot", message, remedy)


def _kernel_headers(case: _Case, findings: Findings) -> None:
    """A module is needed for the kernel that runs and for the one that starts next."""
    if not case.builds_modules:
        return
    kernel = case.probe.get("kernel") or {}
    wanted = {kernel.get("running"): "running", kernel.get("next_boot"): "next to start"}
    if kernel.get("running") == kernel.get("next_boot"):
        wanted = {kernel.get("running"): "running"}
    for release, which in wanted.items():
        if release and release not in (kernel.get("headers") or []):
            _missing_headers(case, release, which, findings)


def _missing_headers(case: _Case, release: str, which: str, findings: Findings) -> None:
    planned = case.options.kernel_headers
    if planned is None:
        planned = tuple((case.planned("driver") or {}).get("kernel_headers") or ())
    offers = (case.probe.get("kernel") or {}).get("headers_from")
    bringing = (offers or {}).get(release)
    if bringing and set(bringing) & set(planned):
        return
    missing = f"headers of kernel {release} ({which}) are not installed"
    if planned and bringing is None:
        findings.warn(
            "kernel-headers-missing", f"{missing}; whether {', '.join(planned)} brings them is not known (no apt lists)"
        )
        return
    brought = f"{', '.join(planned)} does not bring them" if planned else "no package for them is planned"
    exact = [name for name in bringing or [] if name == f"linux-headers-{release}"]
    remedy = (
        f"set nvidia_driver_kernel_headers to [{exact[0]}]"
        if exact
        else "install and start a kernel whose headers the archive has (its newest), or install the headers by hand"
    )
    findings.problem("kernel-headers-missing", f"{missing}, and {brought}: no module can be built for it", remedy)


# Links between GPUs ---------------------------------------------------------------------------------------------


def _links(case: _Case, findings: Findings) -> None:
    """Width; and speed while no driver is loaded, as a driver lowers it on an idle GPU."""
    loaded = (case.probe.get("driver") or {}).get("loaded")
    for address, gpu in ((case.probe.get("pcie") or {}).get("gpus") or {}).items():
        link, slot = gpu["link"], gpu["slot"] or {}
        below = []
        if _less(link["width"], link["max_width"]):
            below.append(
                f"x{link['width']} of x{link['max_width']}{_because(slot.get('max_width'), link['max_width'], 'x')}"
            )
        if not loaded and _less(link["speed"], link["max_speed"]):
            slow = _because(slot.get("max_speed"), link["max_speed"], "")
            below.append(f"{link['speed']:g} of {link['max_speed']:g} GT/s{slow}")
        if below:
            findings.warn(
                "pcie-link-below-ability",
                f"the PCIe link of GPU {address} runs below the card's ability: {', '.join(below)}; "
                "where the slot is able to do more, reseat the card or its riser, look at the firmware's settings",
            )


def _less(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value < limit


def _because(slot: float | None, card: float, unit: str) -> str:
    return f" (the slot is able to {unit}{slot:g})" if slot is not None and slot < card else ""


def _peer_to_peer(case: _Case, findings: Findings) -> None:
    """Between GPUs that reach each other by PCIe alone; NVSwitch carries it elsewhere."""
    pcie = case.probe.get("pcie") or {}
    gpus = pcie.get("gpus") or {}
    if len(gpus) < 2 or case.probe.get("nvswitches"):
        return
    translated = [address for address, gpu in gpus.items() if (gpu["iommu_type"] or "").startswith("DMA")]
    if len(translated) > 1:
        options = " ".join(pcie["kernel_options"]) or "none"
        findings.warn(
            "peer-to-peer-blocked",
            f"the IOMMU translates what GPUs {', '.join(translated)} write to each other (kernel options: {options}); "
            "NCCL may hang or compute NaN: start the kernel with iommu=pt",
        )
    redirecting = [bridge for bridge, on in pcie["acs"].items() if on and set(on) & set(PEER_TO_PEER_REDIRECTS)]
    if redirecting:
        findings.warn(
            "peer-to-peer-blocked",
            f"ACS of the PCIe bridges {', '.join(redirecting)} sends what GPUs write to each other through the root; "
            "turn ACS off in the firmware's setup, or with setpci on each of them",
        )


# Disk -----------------------------------------------------------------------------------------------------------


def _disk(case: _Case, sizes: Data, findings: Findings) -> None:
    space = case.probe.get("disk") or {}
    needs: dict[str, list[tuple[str, int]]] = {}
    for directory, what, mib in _needs(case, sizes):
        mount = space.get(directory, {}).get("mount")
        if mount and mib:
            needs.setdefault(mount, []).append((what, mib))
    for mount, parts in needs.items():
        free = min(entry["free_mib"] for entry in space.values() if entry["mount"] == mount)
        total = sum(mib for _, mib in parts) + sizes["reserve_mib"]
        if total > free:
            listed = ", ".join(f"{what} {mib} MiB" for what, mib in parts)
            findings.problem(
                "disk-full",
                f"the file system at {mount} has {free} MiB free; needed are {total} MiB "
                f"({listed}, reserve {sizes['reserve_mib']} MiB)",
                f"free {total - free} MiB there (sudo apt-get clean, old toolkits and environments), or enlarge it",
            )


def _needs(case: _Case, sizes: Data) -> list[tuple[str, str, int]]:
    """(directory, what, MiB) for all that the plan writes. Directories are those of the probe's `disk`."""
    found = []
    for name in ("driver", "cuda", "cudnn", "nccl"):
        if case.moves(name):
            download, installed = _package_sizes(case, name, sizes)
            label = LABELS[name]
            target = "/usr/local" if name == "cuda" and (case.planned("cuda") or {})["source"] == "nvidia" else "/usr"
            found += [("/var", f"{label} download", download), (target, label, installed)]
    for name in ENVIRONMENTS:
        if case.moves(name):
            found += _environment_needs(case, name, sizes)
    return found


def _environment_needs(case: _Case, name: str, sizes: Data) -> list[tuple[str, str, int]]:
    size = _environment_size(name, (case.planned(name) or {})["version"], sizes)
    options, space = case.options, case.probe.get("disk") or {}
    found = [(options.environments, f"{LABELS[name]} environment", size)]
    path, cache = (space.get(directory, {}).get("mount") for directory in (options.environments, options.cache))
    if path != cache:  # on one file system the environment is hard links into the cache
        found.append((options.cache, f"{LABELS[name]} packages", size))
    return found


def _environment_size(name: str, version: str, sizes: Data) -> int:
    known = {entry["version"]: int(entry["installed_mib"]) for entry in sizes[name]}
    return known.get(version, max(known.values()))


def _package_sizes(case: _Case, name: str, sizes: Data) -> tuple[int, int]:
    """(download, installed) in MiB of the packages that change; one that is there already is replaced."""
    moving = [p for p in case.changes[name]["packages"] if p["action"] not in (plan_diff.KEEP, plan_diff.REMOVE)]
    if (case.planned(name) or {}).get("source") == "distro":
        entry = next((e for e in sizes["archive"] if e["component"] == name), None)
        fresh = any(p["installed"] is None for p in moving)
        return (entry["download_mib"], entry["installed_mib"] if fresh else 0) if entry and moving else (0, 0)
    offered = (case.probe.get("repository") or {}).get("sizes") or {}
    known = {p["name"]: offered.get(p["name"], {}).get(p["planned"]) for p in moving}
    counted = {other for size in known.values() if size for other in size[2]}
    download = sum(size[0] for package, size in known.items() if size and package not in counted)
    installed = sum(
        known[p["name"]][1] for p in moving if known[p["name"]] and p["installed"] is None and p["name"] not in counted
    )
    return download >> 10, installed >> 10
