"""Plans COUNT hosts in one process, over all distributions and GPUs of the catalog; prints how many kinds that were."""

from __future__ import annotations

import sys

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import resolve


def main(count: int) -> int:
    """A plan for each host; what the resolver concludes from catalog and kinds of GPU alone it keeps, as for users."""
    catalog = load_catalog()
    gpus = {product.compute_capability: HostGpu(f"10de:{device}") for device, product in catalog.products.items()}
    kinds = [Host(distro, gpus=(gpu,) * 2) for distro in catalog.distros for gpu in gpus.values()]
    plans = [resolve(catalog, Request(), kinds[number % len(kinds)]) for number in range(count)]
    return len({id(kind) for kind in kinds[: len(plans)]})


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
