#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The documentation of the action of this name; nothing of it runs on the host but M(gpuhost.stack.gpu_probe)."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_plan
short_description: Probes a host and decides what it is to have
description:
  - Probes the host with M(gpuhost.stack.gpu_probe), picks the newest consistent set for its GPUs that the request
    allows, and holds it against the host. Shows the plan and what it does to the host. Changes nothing.
  - Refuses variables that begin with C(gpu_stack_) and that nothing reads.
options:
  request:
    description:
      - "What is wanted, each V(auto), a version, a prefix of one, or V(none): C(driver), C(cuda), C(cudnn), C(nccl),
        C(tensorflow), C(pytorch), C(tensorflow_cuda_libraries), C(driver_source), C(cuda_source), C(expect_gpus)."
      - C(driver_kernel_modules) is V(auto), V(open) or V(proprietary).
      - C(keep_cuda) is V(all), or how many toolkits stay.
      - C(leftovers) says whether what other installers left on the host is a problem (V(refuse)) or goes (V(remove)).
      - C(repository_url) (without slug and architecture), C(repository_key_url) and C(repository_key_fingerprint)
        replace NVIDIA's own by those of a mirror.
      - A value that cannot be meant is a problem of the plan; a name that nothing reads is an error.
    type: dict
    required: true
  variables:
    description: The names of all variables that a user may set.
    type: list
    elements: str
    required: true
  internal_variables:
    description: The names of further variables that begin so.
    type: list
    elements: str
    required: true
  repositories:
    description: NVIDIA's repository for each distribution.
    type: dict
    required: true
  own_kernel:
    description: Whether the host runs a kernel of its own, for which modules are built.
    type: bool
    default: true
  managed:
    description: What each part of the stack manages on a host; C(for) names the components that it is there for.
    type: dict
    required: true
  transitions:
    description: Names of role variables that say how to get there, and not where.
    type: list
    elements: str
    default: []
  converge:
    description: V(drift) enters what has moved; V(always), every part.
    type: str
    choices: [drift, always]
    default: drift
attributes:
  check_mode:
    description: Changes nothing in either mode.
    support: full
author:
  - the gpuhost contributors
"""

EXAMPLES = r"""
- name: Probe the host and plan
  gpuhost.stack.stack_plan:
    request: "{{ gpu_stack_request }}"
    variables: "{{ gpu_stack_variables }}"
    internal_variables: "{{ gpu_stack_internal_variables }}"
    repositories: "{{ gpu_stack_repositories }}"
    managed: "{{ gpu_stack_managed }}"
"""

RETURN = r"""
probe:
  description: What M(gpuhost.stack.gpu_probe) found.
  returned: always
  type: dict
ansible_facts:
  description:
    - C(gpu_stack_plan), the plan, with C(ok), C(components), C(repository), C(reasons), C(problems), C(warnings) and,
      where there are problems, C(remedies).
    - C(gpu_stack_diff), what the plan does to the host; C(gpu_stack_preflight), the host's own problems and warnings.
    - C(gpu_stack_parts), what is watched of each part; C(gpu_stack_drift), why each part is entered, empty where the
      host has what is planned.
    - C(gpu_stack_probe), the probe.
  returned: always
  type: dict
"""
