#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action of the same name; only M(gpuhost.stack.gpu_probe) runs on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: stack_plan
short_description: Probe a host and plan its GPU stack
description:
  - Probes the host with M(gpuhost.stack.gpu_probe), plans the newest consistent versions for its GPUs that the request
    allows, and compares them with the host. Prints the plan and the diff. Changes nothing.
  - Refuses misspelt variables and values that are not accepted, also those of roles, before it probes the host.
options:
  variables:
    description: Names of all variables that a user may set.
    type: list
    elements: str
    required: true
  internal_variables:
    description: Names of all other variables that begin with C(gpu_stack_).
    type: list
    elements: str
    required: true
  repositories:
    description:
      - URL of NVIDIA's repository for each distribution release, such as C(ubuntu-24.04), or a dictionary of URLs by
        CPU architecture.
    type: dict
    required: true
  own_kernel:
    description: Whether the host runs a kernel of its own and loads modules into it, which a container does not.
    type: bool
    default: true
  managed:
    description:
      - What each part of the stack has on a host, as the lookup P(gpuhost.stack.managed#lookup) returns it.
    type: dict
    required: true
  accept_damage:
    description:
      - Names of damage that stays as it is, as RV(decided) has them. One that is no damage of the host is a warning.
    type: list
    elements: str
    default: []
  accept_no_return:
    description: As in M(gpuhost.stack.package_transaction), where O(rollback) is called C(undo).
    type: list
    elements: str
    default: []
  rollback:
    description: Whether a transaction that fails is undone.
    type: bool
    default: true
  left_out:
    description: The parts that this run does not install.
    type: list
    elements: str
    default: []
  state_directory:
    description: The directory of the host's records, as of M(gpuhost.stack.stack_state).
    type: str
    default: /var/lib/gpuhost
  converge:
    description:
      - With V(drift) only parts with drift are applied, with V(always) every part. Both V(always) and V(deep) compare
        the content of files, too; V(deep) then applies parts with drift.
    type: str
    choices: [drift, always, deep]
    default: drift
  locks:
    description:
      - The folder with lock files of the user's own, on the controller. Where a plan lacks one that can be resolved,
        it is resolved with C(uv) by the package index and written there.
    type: str
    default: ""
  extra:
    description:
      - For each framework a requirements file on the controller, whose packages are added to its environment. They are
        resolved together with the framework's lock, with C(uv) by the package index, and kept in O(locks).
    type: dict
    default: {}
  as_it_is:
    description:
      - Whether to plan what is installed, as with C(gpu_stack_adopt), on a host that gpuhost has not set up.
    type: bool
    default: false
  wait:
    description:
      - Seconds to wait for a host that could not be changed now, because a process holds a lock of apt or dpkg or
        cloud-init still sets it up. It is probed until that has ended. The reason and the limit are printed.
    type: int
    default: 0
  timeout_factor:
    description: As of M(gpuhost.stack.gpu_probe).
    type: float
    default: 1
  waivers:
    description:
      - The failures of checks that are accepted, as for the option O(gpuhost.stack.gpu_verify#module:waivers).
        They are only validated here, before anything is changed; one that has expired is a warning.
    type: raw
    default: []
attributes:
  check_mode:
    description: Changes nothing in either mode.
    support: full
extends_documentation_fragment: [gpuhost.stack.variables]
author: gpuhost contributors (!UNKNOWN)
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
  description: The probe of M(gpuhost.stack.gpu_probe).
  returned: always
  type: dict
state:
  description:
    - What a run has to do with the host. V(refused) because of problems; V(drift) has parts to apply; V(pending) has
      none, but the last change waits to be verified, and may be rolled back; V(unchanged).
  returned: when the host was probed
  type: str
decided:
  description:
    - The decisions. The playbooks register them, so that the following plays can read them. They are no facts, which
      Ansible would keep in a fact cache and, depending on its configuration, make variables of.
  returned: when the host was probed
  type: dict
  contains:
    gpu_stack_probe:
      description: The probe.
      type: dict
    gpu_stack_plan:
      description:
        - The plan, with C(ok), C(request), C(gpus), C(components), C(repository), C(reasons), C(problems), C(warnings)
          and C(remedies).
      type: dict
    gpu_stack_plan_before:
      description:
        - The plan of what others have installed on a host that was never changed, which the checks before the first
          change are asked for. Null on every other host.
      type: dict
    gpu_stack_diff:
      description: What the plan changes on the host, by component.
      type: dict
    gpu_stack_preflight:
      description: Problems and warnings of the host itself, with C(ok).
      type: dict
    gpu_stack_parts:
      description: For each planned part its C(fingerprint) and what is watched (C(watch)).
      type: dict
    gpu_stack_damage:
      description:
        - What is damaged, a message by name. C(left) is to be repaired, C(accepted) is in O(accept_damage); C(text)
          names what is left for people.
      type: dict
    gpu_stack_drift:
      description: The reasons to apply each part; empty if the host matches the plan.
      type: dict
"""
