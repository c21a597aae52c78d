"""Filters that make a plan from a probe and show it. Controller side; thin wrappers around plugin_utils."""

from __future__ import annotations

DOCUMENTATION = r"""
name: stack_plan
short_description: Make a plan from a host's probe and a request
version_added: "0.1.0"
author: gpuhost contributors
description:
  - Picks the newest consistent driver, CUDA toolkit, cuDNN, NCCL and TensorFlow for the host's GPUs, or gives every
    problem with a remedy. Nothing is changed.
positional: request
options:
  _input:
    description: The C(probe) that M(gpuhost.stack.gpu_probe) returned.
    type: dict
    required: true
  request:
    description:
      - "What is wanted, each V(auto), a version, a prefix of one, or V(none): C(driver), C(cuda), C(cudnn), C(nccl),
        C(tensorflow), C(pytorch), C(tensorflow_cuda_libraries), C(driver_source), C(cuda_source), C(expect_gpus)."
      - C(driver_kernel_modules) is V(auto), V(open) or V(proprietary).
      - C(keep_cuda) is V(all), or how many toolkits stay.
      - C(leftovers) says whether what other installers left on the host is a problem (V(refuse)) or goes (V(remove)).
      - A value that cannot be meant is a problem of the plan; a name that nothing reads is an error.
      - C(repository_url) (without slug and architecture), C(repository_key_url) and C(repository_key_fingerprint)
        replace NVIDIA's own by those of a mirror.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Plan
  ansible.builtin.set_fact:
    stack_plan: "{{ probed.probe | gpuhost.stack.stack_plan({'cuda': '13.2', 'tensorflow': 'auto'}) }}"
"""

RETURN = r"""
_value:
  description:
    - "The plan: C(ok), C(components), C(repository), C(reasons), C(problems), C(warnings) and, where there are
      problems, C(remedies): changes of the request or the host that were tried and plan."
  type: dict
"""

from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan import PlanInputError, plan_table
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import plan_for_probe


def stack_plan(probe, request=None):
    """The plan for a probe, as plain data."""
    if not isinstance(probe, dict):
        raise AnsibleFilterError(f"gpuhost.stack.stack_plan: expected a probe (a dict), found {type(probe).__name__}")
    if request is not None and not isinstance(request, dict):
        raise AnsibleFilterError(
            f"gpuhost.stack.stack_plan: expected the request as a dict, found {type(request).__name__}"
        )
    try:
        return plan_for_probe(probe, request or {}).to_json()
    except (PlanInputError, CatalogError) as error:
        raise AnsibleFilterError(f"gpuhost.stack.stack_plan: {error}") from error


def table(plan):
    """A plan as a table for people."""
    try:
        return plan_table(plan)
    except (KeyError, TypeError) as error:
        raise AnsibleFilterError(
            f"gpuhost.stack.plan_table: expected the result of gpuhost.stack.stack_plan, could not read {error}"
        ) from error


class FilterModule:
    """The filters."""

    def filters(self):
        """Names and functions."""
        return {"stack_plan": stack_plan, "plan_table": table}
