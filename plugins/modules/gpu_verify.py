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
  - Compiles, links and runs a CUDA program, and imports TensorFlow, side by side.
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
  fail:
    description: Whether the task fails when a check fails.
    type: bool
    default: false
author:
  - the gpuhost contributors
attributes:
  check_mode:
    description: Compiles in a temporary folder and changes nothing in either mode.
    support: full
"""

EXAMPLES = r"""
- name: Check the host
  gpuhost.stack.gpu_verify:
    plan: "{{ gpu_stack_plan }}"
  register: checked
"""

RETURN = r"""
verify:
  description: C(status), C(counts) by outcome, C(checks) in a fixed order, and what is C(simulated) on the host.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils import verify


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "plan": {"type": "dict", "required": True},
            "expect_gpus": {"type": "int"},
            "kernel_module": {"choices": ["loaded", "built", "not_managed"], "default": "loaded"},
            "driver_state": {"choices": ["auto", "working", "not_loaded"], "default": "auto"},
            "tensorflow_path": {"type": "path", "default": "/opt/gpuhost/tensorflow"},
            "fail": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    if not isinstance(params["plan"].get("components"), dict):
        module.fail_json(
            msg="plan has no `components`, expected what the filter stack_plan returns; found the keys %s. "
            "Pass the whole plan." % (", ".join(sorted(params["plan"])) or "none")
        )
    told = verify.context(
        params["plan"],
        params["expect_gpus"],
        params["kernel_module"],
        params["driver_state"],
        params["tensorflow_path"],
    )
    result = verify.verify(told)
    failed = [check for check in result["checks"] if check["status"] == "fail"]
    if params["fail"] and result["status"] == "fail":
        lines = ["%(id)s: found %(found)s, expected %(expected)s. %(remedy)s" % check for check in failed]
        module.fail_json(msg="\n".join(lines) or "no check passed", verify=result)
    module.exit_json(changed=False, verify=result)


if __name__ == "__main__":
    main()
