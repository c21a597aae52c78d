"""Plan COUNT hosts of all distributions and GPUs of the catalog in one process; print the number of kinds of host."""

from __future__ import annotations

import sys

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu


def main(count: int) -> int:
    """Plan `count` hosts and return the number of kinds of host.

    One process shares what depends on the catalog alone; a playbook plans each host in a worker of its own.
    """
    catalog = load_catalog()
    gpus = {product.compute_capability: HostGpu(f"10de:{device}") for device, product in catalog.products.items()}
    kinds = [Host(distro, "x86_64", gpus=(gpu,) * 2) for distro in catalog.distros for gpu in gpus.values()]
    plans = [resolve(catalog, asking(), kinds[number % len(kinds)]) for number in range(count)]
    return len({id(kind) for kind in kinds[: len(plans)]})


if __name__ == "__main__":
    print(main(int(sys.argv[1])))
