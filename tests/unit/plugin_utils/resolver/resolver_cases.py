"""GPUs, a repository and plans as JSON, for the tests of the resolver."""

from __future__ import annotations

import dataclasses

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import PublishedRun
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once, resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.requested import requested

# PCI ids as lspci prints them for these cards (pci.ids), with NVIDIA's published compute capability.
GPUS = {
    "K520": ("10de:118a", "3.0"),
    "K40c": ("10de:1024", "3.5"),
    "M60": ("10de:13f2", "5.2"),
    "GTX 1080": ("10de:1b80", "6.1"),
    "V100": ("10de:1db4", "7.0"),
    "T4": ("10de:1eb8", "7.5"),
    "A100": ("10de:20b0", "8.0"),
    "RTX 4090": ("10de:2684", "8.9"),
    "H100": ("10de:2330", "9.0"),
    "H200": ("10de:2335", "9.0"),
    "B200": ("10de:2901", "10.0"),
    "B300": ("10de:3182", "10.3"),
    "RTX 5090": ("10de:2b85", "12.0"),
}


def debian_offers(
    cuda=("13.0.2", "13.2.1"), drivers=("580.126.16", "595.71.05"), nccl=("2.28.9-1+cuda13.0", "2.29.7-1+cuda13.2")
):
    """Return the offers of a repository like NVIDIA's for Debian, with these versions."""
    offers = {f"cuda-toolkit-{'-'.join(c.split('.')[:2])}": (f"{c}-1",) for c in cuda}
    for name in ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-kernel-dkms"):
        offers[name] = tuple(f"{d}-1" for d in drivers)
    for name in ("libcudnn9-cuda-13", "libcudnn9-headers-cuda-13", "libcudnn9-dev-cuda-13"):
        offers[name] = ("9.28.0.42-1",)
    offers["libnccl2"] = offers["libnccl-dev"] = tuple(nccl)
    offers["nvidia-driver-pinning-595"] = ("595-1",)
    return offers


def plan(distro, *gpus, offers=None, host=None, catalog=None, **request):
    """Return a plan as JSON; for the frozen catalog where none is given."""
    return _planned(resolve, distro, gpus, offers, host, catalog, request)


def plan_untried(distro, *gpus, offers=None, host=None, catalog=None, **request):
    """Return a plan as `plan` does, with the remedies that the rules give instead of those that were tried."""
    return _planned(plan_once, distro, gpus, offers, host, catalog, request)


def _planned(by, distro, gpus, offers, host, catalog, request):
    devices = tuple(HostGpu(GPUS[g][0] if g in GPUS else g) for g in gpus)
    made = Host(distro, **{"architecture": "x86_64", "gpus": devices, "offers": offers, **(host or {})})
    return by(catalog or frozen_catalog(), requested(request), made).to_json()


def with_published_run(first, capability):
    """Return the frozen catalog as if a run of TensorFlow had been published, from a release on, for a capability."""
    catalog = frozen_catalog()
    runs = (PublishedRun(first, None, (capability,), source="of a test", xla="of a test"),)
    return dataclasses.replace(catalog, tensorflow=dataclasses.replace(catalog.tensorflow, published_runs=runs))


def problems(distro, *gpus, host=None, catalog=None, **request):
    """Return code, message and general remedy of each problem, which users see where no plan is a remedy."""
    devices = tuple(HostGpu(GPUS[g][0] if g in GPUS else g) for g in gpus)
    made = Host(distro, **{"architecture": "x86_64", "gpus": devices, **(host or {})})
    made = plan_once(catalog or frozen_catalog(), requested(request), made)
    return [(problem.code, problem.message, problem.remedy) for problem in made.problems]


def texts(found):
    """Return message and remedy of each problem of a plan, or of `problems`."""
    parts = [(p["message"], p["remedy"]) if isinstance(p, dict) else p[1:] for p in found]
    return [text for part in parts for text in part]


def picked(made):
    """Return the versions of a plan by component."""
    parts = made["components"]
    return {name: (parts[name].get("release") or parts[name]["version"]) if parts[name] else None for name in parts}


def codes(made):
    """Return the problem codes of a plan."""
    return [p["code"] for p in made["problems"]]


def warned(made):
    """Return the warning codes of a plan."""
    return [w["code"] for w in made["warnings"]]


def reason(made, component):
    """Return the choice and the reason for a component of a plan; None without one."""
    return next(((r["choice"], r["because"]) for r in made["reasons"] if r["component"] == component), None)
