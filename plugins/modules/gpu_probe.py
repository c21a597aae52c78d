#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Say what a host has: GPUs, driver, CUDA, packages, repository. Runs on the target; changes nothing."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_probe
short_description: Says what a GPU host has, in one round trip
description:
  - Reads the distribution, the kernels, the GPUs on the PCI bus, the driver, the packages of the deep learning
    stack, what NVIDIA's repository offers, the plan that was applied last, and what could stand in the way of a change
    (package manager, C(.run) installations, programs on the GPUs, disk, Secure Boot, PCIe links).
  - Changes nothing, needs no root rights, no driver and no GPU.
options:
  repository_url:
    description:
      - Base URL of the flat apt repository to look into; wins over C(repositories). Without either
        C(probe.repository) is null.
    type: str
  repositories:
    description:
      - Base URL by distribution id (C(debian-12), C(ubuntu-24.04)); the host's own is looked into.
        A host whose distribution is not among them gets C(probe.repository) null.
    type: dict
    default: {}
  repository_check:
    description:
      - Whether apt's lists on the host count only while the repository's release file is still the same.
        Otherwise the package list is downloaded.
      - A repository that does not answer within 5 seconds leaves apt's lists valid.
    type: bool
    default: true
  package_patterns:
    description:
      - Globs of the installed packages to report. The action plugin of this name adds the catalog's, as it does for
        C(repository_patterns), C(driver_packages) and C(distro_cuda_package).
    type: list
    elements: str
  repository_patterns:
    description: Globs of the repository's packages to report.
    type: list
    elements: str
  driver_packages:
    description: Regular expression of the names of driver packages; those that another package needs are reported.
    type: str
  distro_cuda_package:
    description: The package of the distribution's own CUDA toolkit.
    type: str
  tensorflow_path:
    description: Where the TensorFlow environment lies.
    type: path
    default: /opt/gpuhost/tensorflow
  pytorch_path:
    description: Where the PyTorch environment lies.
    type: path
    default: /opt/gpuhost/pytorch
  kernel_header_offers:
    description:
      - Whether to look for packages with the headers of the running kernel and of the one that starts next, where they
        are missing. For hosts that build kernel modules; takes a few tenths of a second.
    type: bool
    default: false
author:
  - the gpuhost contributors
attributes:
  action:
    description: An action plugin of the same name adds the catalog's package names on the controller.
    support: full
  check_mode:
    description: Changes nothing in either mode.
    support: full
"""

EXAMPLES = r"""
- name: Look at the host
  gpuhost.stack.gpu_probe:
    repositories: "{{ lookup('gpuhost.stack.catalog', 'repositories') }}"
  register: gpu_host
"""

RETURN = r"""
probe:
  description: What was found. A part that could not be read is null and has a line in C(errors).
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.host import probe

FROM_THE_CATALOG = ("package_patterns", "repository_patterns", "driver_packages", "distro_cuda_package")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "repository_url": {"type": "str"},
            "repositories": {"type": "dict", "default": {}},
            "repository_check": {"type": "bool", "default": True},
            "package_patterns": {"type": "list", "elements": "str"},
            "repository_patterns": {"type": "list", "elements": "str"},
            "driver_packages": {"type": "str"},
            "distro_cuda_package": {"type": "str"},
            "tensorflow_path": {"type": "path", "default": "/opt/gpuhost/tensorflow"},
            "pytorch_path": {"type": "path", "default": "/opt/gpuhost/pytorch"},
            "kernel_header_offers": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    missing = [name for name in FROM_THE_CATALOG if module.params[name] is None]
    if missing:
        module.fail_json(
            msg="%s missing: the module was started without the action plugin of its name, which adds the catalog's "
            "package names. Call gpuhost.stack.gpu_probe from a task, with plugins/action/gpu_probe.py beside "
            "plugins/modules; else pass them." % ", ".join(missing)
        )
    options = probe.Options(
        repository_url=module.params["repository_url"],
        repositories=module.params["repositories"],
        repository_check=module.params["repository_check"],
        repository_patterns=tuple(module.params["repository_patterns"]),
        package_patterns=tuple(module.params["package_patterns"]),
        driver_packages=module.params["driver_packages"],
        distro_cuda_package=module.params["distro_cuda_package"],
        tensorflow_path=module.params["tensorflow_path"],
        pytorch_path=module.params["pytorch_path"],
        kernel_header_offers=module.params["kernel_header_offers"],
    )
    module.exit_json(changed=False, probe=probe.probe("/", options))


if __name__ == "__main__":
    main()
