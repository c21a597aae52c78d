"""The two configurations between which the scenarios change a host: the newest two that its repository offers.

Imports packages as late as possible: any Python can read the options of script/test.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

MOLECULE = Path(__file__).resolve().parents[1] / "molecule"
# The distribution of all hosts of a lab, in place of the one in the inventory.
IMAGE_VARIABLE = "GPUHOST_LAB_IMAGE"


class Configuration(NamedTuple):
    """A driver branch and a CUDA series."""

    driver: str
    cuda: str

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ansible-playbook that request it."""
        return "-e", f"gpu_stack_driver={self.driver}", "-e", f"gpu_stack_cuda={self.cuda}"


def of_distribution(distribution: str) -> tuple[Configuration, Configuration]:
    """Return the older and the newer configuration; with one CUDA series both have it."""
    from tests.doubles.lab import images
    from tests.doubles.nvidia_repository import contents

    slug = contents.slug(images.repository_slug(distribution), "")
    old, new = (Configuration(slug.drivers[n], slug.cuda[max(n, -len(slug.cuda))]) for n in (-2, -1))
    return old, new


def of_scenario(name: str) -> tuple[Configuration, Configuration]:
    """Return the configurations of the distribution that the scenario runs on (`auto` chooses among alike ones)."""
    import yaml

    hosts = yaml.safe_load((MOLECULE / name / "hosts.yml").read_text())["gpu_hosts"]["hosts"].values()
    image = os.environ.get(IMAGE_VARIABLE) or next(iter(hosts)).get("lab_image", "auto")
    return of_distribution("ubuntu-24.04" if image == "auto" else image)
