"""Start or remove the lab that an inventory describes: script/lab up|down INVENTORY.

Every host of the inventory becomes a container, or a virtual machine if its variable `lab_machine` is `vm`, under
Secure Boot with `lab_secure_boot: true`. Its variables `lab_gpus` (a list of product names), `lab_nvswitches` (of PCI
ids) and `lab_image` (auto, debian-12, ubuntu-24.04, ...) are read as well; the environment variable GPUHOST_LAB_IMAGE
takes the place of every `lab_image`. A container with `lab_behind: HOST` is in a network without a way out, in which
HOST, which comes before it, is as well.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError

from tests.configurations import IMAGE_VARIABLE
from tests.doubles.lab import containers, images, options, pci, repository, vm_image

PROJECT = Path(__file__).resolve().parents[3]


class WrongInventoryError(Exception):
    """An inventory that describes no lab."""


def read_inventory(path: Path) -> dict[str, dict[str, Any]]:
    """Return the variables of each host, as ansible-inventory prints them, with its `lab_image`."""
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(path), "--list"]
    listed = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)
    if listed.returncode:
        why = " ".join((listed.stderr.strip() or listed.stdout.strip()).split())
        raise WrongInventoryError(f"cannot read {os.path.relpath(path, PROJECT)}: {why}")
    hosts: dict[str, dict[str, Any]] = json.loads(listed.stdout)["_meta"]["hostvars"]
    if not hosts:
        raise WrongInventoryError(f"no hosts in {os.path.relpath(path, PROJECT)}; add them to the group gpu_hosts")
    chosen = os.environ.get(IMAGE_VARIABLE)
    return {
        name: {**found, "lab_image": str(chosen or found.get("lab_image", "auto"))} for name, found in hosts.items()
    }


def bring_up(inventory: Path, lab: containers.Lab) -> None:
    """Start the hosts of the lab that do not run yet, and write its ssh_config."""
    hosts = read_inventory(inventory)
    lab.prepare_state()
    gpus = {
        name: pci.find_products(found.get("lab_gpus", [])) + pci.find_switches(found.get("lab_nvswitches", []))
        for name, found in hosts.items()
    }
    made = {choice: images.ensure(choice) for choice in {v["lab_image"] for v in hosts.values()}}
    slugs = sorted({image.repository_slug for image in made.values()})
    machines = [name for name, variables in hosts.items() if variables.get("lab_machine") == "vm"]
    served = repository.build(slugs, kernel_modules=bool(machines))
    lab.ensure_network()
    lab.ensure_repository(next(iter(made.values())), served)
    for name, variables in hosts.items():
        image = made[variables["lab_image"]]
        pci.write_tree(lab.pci_tree(name), gpus[name])
        if name in machines:
            lab.machine(name).ensure(vm_image.ensure(image.distribution), variables.get("lab_secure_boot", False))
        else:
            behind = variables.get("lab_behind")
            if behind:
                lab.put_behind(behind)
            lab.ensure_host(name, image, gpus[name], lab.inner if behind else None)
    lab.wait_until_ready([name for name in hosts if name not in machines])
    for name in machines:
        lab.machine(name).wait_until_ready()
        lab.machine(name).configure(lab.repository_address(), gpus[name], lab.pci_tree(name))
    lab.write_ssh_config(list(hosts), machines)
    (lab.state / "repository-key-fingerprint").write_text(repository.key_fingerprint(served) + "\n")
    for name, variables in hosts.items():
        image = made[variables["lab_image"]]
        system = f"{image.distribution} {image.origin}"
        system = f"virtual machine, {image.distribution}" if name in machines else system
        print(f"lab: {name}: {system}, simulated GPUs: {pci.describe(gpus[name])}", flush=True)


def main() -> int:
    """Start or remove a lab and return the exit status."""
    arguments = options.parser().parse_args()
    lab = containers.Lab(options.name(arguments.inventory), PROJECT)
    if arguments.action == "down":
        lab.remove()
        return 0
    try:
        bring_up(arguments.inventory.resolve(), lab)
    except (CatalogError, WrongInventoryError) as error:
        print(f"script/lab: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
