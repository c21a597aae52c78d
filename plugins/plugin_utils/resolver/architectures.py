"""Refuse a plan for a CPU architecture that the catalog has nothing for: no entry, no plan.

Runs on the controller; pure functions.
"""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.driver import driver_sets
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

CODE = "distro-not-supported"


def check(context: ResolveContext, findings: Findings) -> bool:
    """Return whether the catalog lacks what the request needs for the host's architecture, with one problem for all.

    context: with the catalog of the host's architecture.
    """
    host, catalog = context.host, context.catalog
    lacking = _lacking(context)
    if host.architecture not in supported(catalog, host.distribution):
        lacking.insert(0, f"NVIDIA repository for {host.distribution}")
    if not lacking:
        return False
    named = " and ".join(text for text in (", ".join(lacking[:-1]), lacking[-1]) if text)
    findings.problem(
        CODE,
        f"{host.distribution} on {host.architecture} is not supported: the catalog has no {named} for "
        f"{host.architecture}; supported are {where_supported(catalog)}",
        "use one of those",
    )
    return True


def where_supported(catalog: Catalog) -> str:
    """Return the distribution releases and the architectures that they serve, for a message."""
    served: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(catalog.distros):
        served.setdefault(supported(catalog, name), []).append(name)
    return "; ".join(f"{', '.join(names)} on {' and '.join(on)}" for on, names in served.items() if on)


def _lacking(context: ResolveContext) -> list[str]:
    """Return what the request needs and the catalog has no entry of, in the words of messages."""
    catalog, request = context.catalog, context.request
    needed = {
        "driver branch": _needs_driver(context) and not (catalog.driver.branches and catalog.driver.packages),
        "CUDA toolkit": request.cuda != "none" and not catalog.cuda.toolkits,
        # At auto they are left out.
        "cuDNN": request.cudnn not in ("auto", "none") and not catalog.cudnn.versions,
        "NCCL": request.nccl not in ("auto", "none") and not catalog.nccl.builds,
        "TensorFlow wheel": request.tensorflow != "none" and not catalog.tensorflow.releases,
    }
    needs_pytorch = request.pytorch not in ("none", "fallback")
    needs_pytorch |= request.pytorch == "fallback" and needed["TensorFlow wheel"]
    needed["PyTorch wheel"] = needs_pytorch and not catalog.pytorch.releases
    return [name for name, is_lacking in needed.items() if is_lacking]


def _needs_driver(context: ResolveContext) -> bool:
    request = context.request
    if request.driver == "none" or (request.driver == "auto" and not context.host.gpus):
        return False
    return driver_sets.kept(context) is None and holds.driver(context, Findings()) is None
