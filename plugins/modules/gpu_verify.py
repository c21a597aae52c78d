#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Check on the host that what was planned is there and works. Runs on the target; leaves nothing behind."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Checks driver, CUDA, cuDNN, NCCL, environment paths, packages and TensorFlow in one round trip
description:
  - Each check has a stable id and ends C(pass), C(fail) with what was found, expected and a remedy, or C(skip) with a
    reason.
  - Compiles, links and runs a CUDA program, and imports TensorFlow, side by side; what uses the GPUs, one after the
    other.
  - "The CUDA program (C(cuda_check.cu)) calls cuDNN and NCCL, and with GPUs it copies data in every direction, between
    each pair and in an all-reduce, checks what arrives and measures the bandwidth; some seconds for eight GPUs."
options:
  plan:
    description: The host's plan, as made by this run.
    type: dict
    required: true
  expect_gpus:
    description: How many GPUs the host must have; without it as many as the plan has.
    type: int
  kernel_module:
    description:
      - C(loaded), the kernel runs the driver's module.
      - C(built), a module is built for an installed kernel that does not run.
      - C(not_managed), the host only borrows its kernel (a container).
    type: str
    choices: [loaded, built, not_managed]
    default: loaded
  driver_state:
    description:
      - What nvidia-smi must find. With C(not_loaded) its exit code 9 is the expected outcome.
      - C(auto) means C(not_loaded) where I(kernel_module=built), else C(working).
    type: str
    choices: [auto, working, not_loaded]
    default: auto
  tensorflow_path:
    description: Where the TensorFlow environment lies.
    type: path
    default: /opt/gpuhost/tensorflow
  cuda_check_source:
    description:
      - The text of C(cuda_check.cu). The action plugin of this name adds it; a user has no need to.
    type: str
  gpu_thresholds:
    description:
      - By PCI id (C(10de:2335)), what a GPU must reach at least, in GB/s, as C(host), C(memory) and C(nvlink), with
        C(name) for people; each may be missing. GPUs that are not named are measured and never fail on a number.
      - Without it the action plugin adds what the catalog (C(catalog/gpu_thresholds.yml)) has for the planned GPUs.
    type: dict
  fabric_manager_packages:
    description: Globs of Fabric Manager's packages. Without it the action plugin adds the catalog's.
    type: list
    elements: str
  fail:
    description: Whether the task fails when a check fails.
    type: bool
    default: false
author:
  - the gpuhost contributors
attributes:
  action:
    description: An action plugin of the same name adds program, thresholds and package names on the controller.
    support: full
  check_mode:
    description: Compiles in a temporary folder and changes nothing in either mode.
    support: full
"""

EXAMPLES = r"""
- name: Check the host
  gpuhost.stack.gpu_verify:
    plan: "{{ gpu_stack_plan }}"
  register: checked

- name: Check the host, and judge no bandwidth
  gpuhost.stack.gpu_verify:
    plan: "{{ gpu_stack_plan }}"
    gpu_thresholds: {}
    fail: true
"""

RETURN = r"""
verify:
  description:
    - C(status), C(counts) by outcome, C(checks) in a fixed order, and what is C(simulated) on the host.
    - "C(cuda_check): the document of the CUDA program, where it ran: versions, devices, copies, the matrix of peer
      access, the all-reduce, bandwidths in GB/s."
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "expect_gpus": {"type": "int"},
            "kernel_module": {"choices": ["loaded", "built", "not_managed"], "default": "loaded"},
            "driver_state": {"choices": ["auto", "working", "not_loaded"], "default": "auto"},
            "tensorflow_path": {"type": "path", "default": "/opt/gpuhost/tensorflow"},
            # Twenty kilobytes of C++ that belong into no journal, hence no_log; there is nothing secret in it.
            "cuda_check_source": {"type": "str", "no_log": True},
            "gpu_thresholds": {"type": "dict"},
            "fabric_manager_packages": {"type": "list", "elements": "str"},
            "fail": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not isinstance(params["plan"].get("components"), dict):
        module.fail_json(
            msg="plan has no `components`, expected the plan that stack_plan makes; found the keys %s. "
            "Pass the whole plan." % (", ".join(sorted(params["plan"])) or "none")
        )
    if not params["cuda_check_source"]:
        module.fail_json(
            msg="cuda_check_source is missing: the module was started without the action plugin of its name, which "
            "adds the CUDA program. Call gpuhost.stack.gpu_verify from a task, with plugins/action/gpu_verify.py "
            "beside plugins/modules; else pass the text of plugins/module_utils/nvidia/cuda_check.cu."
        )
    told = verify.context(
        params["plan"],
        params["expect_gpus"],
        params["kernel_module"],
        params["driver_state"],
        params["tensorflow_path"],
        cuda_check_source=params["cuda_check_source"],
        gpu_thresholds=params["gpu_thresholds"],
        fabric_manager_packages=params["fabric_manager_packages"],
    )
    result = verify.verify(told)
    failed = [check for check in result["checks"] if check["status"] == "fail"]
    if params["fail"] and result["status"] == "fail":
        lines = ["%(id)s: found %(found)s, expected %(expected)s. %(remedy)s" % check for check in failed]
        module.fail_json(msg="\n".join(lines) or "no check passed", verify=result)
    module.exit_json(changed=False, verify=result)


if __name__ == "__main__":
    main()
