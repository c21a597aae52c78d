"""Start or remove the lab that an inventory describes: script/lab up|down INVENTORY.

Every host of the inventory becomes a container, or a virtual machine if its variable `lab_machine` is `vm`, under
Secure Boot with `lab_secure_boot: true`. Its variables `lab_gpus` (a list of product names) and `lab_image` (auto,
debian-12, ubuntu-24.04, ...) are read as well; the environment variable GPUHOST_LAB_IMAGE takes the place of every
`lab_image`. A container with `lab_behind: HOST` is in a network without a way out, in which HOST, which comes before
it, is as well.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.configurations import IMAGE_VARIABLE
from tests.doubles.lab import containers, images, pci, repository, vm_image

PROJECT = Path(__file__).resolve().parents[3]


def read_inventory(path: Path) -> dict[str, dict[str, Any]]:
    """Return the variables of each host, as ansible-inventory prints them, with its `lab_image`."""
    command = [str(Path(sys.executable).with_name("ansible-inventory")), "-i", str(path), "--list"]
    output = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    hosts: dict[str, dict[str, Any]] = json.loads(output)["_meta"]["hostvars"]
    if not hosts:
        raise SystemExit(f"lab: no hosts in {path}; add them to the group gpu_hosts")
    chosen = os.environ.get(IMAGE_VARIABLE)
    return {
        name: {**found, "lab_image": str(chosen or found.get("lab_image", "auto"))} for name, found in hosts.items()
    }


def bring_up(inventory: Path, lab: containers.Lab) -> None:
    """Start the hosts of the lab that do not run yet, and write its ssh_config."""
    hosts = read_inventory(inventory)
    lab.prepare_state()
    gpus = {name: pci.find_products(variables.get("lab_gpus", [])) for name, variables in hosts.items()}
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
    parser = argparse.ArgumentParser(prog="script/lab", description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    parser.add_argument("inventory", type=Path, help="inventory file or directory; the directory's name is the lab's")
    arguments = parser.parse_args()
    inventory = arguments.inventory.resolve()
    folder = inventory if inventory.is_dir() else inventory.parent
    lab = containers.Lab(folder.name, PROJECT)
    if arguments.action == "down":
        lab.remove()
    else:
        bring_up(inventory, lab)
    return 0


if __name__ == "__main__":
    sys.exit(main())
