#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action of the same name; nothing runs on the host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_variables
short_description: Refuse misspelt variables of a host and values that are not accepted
description:
  - Checks the names of the host's variables, and the values of the C(gpu_stack_) variables and of those of the roles.
    Fails with all mistakes at once. Does not connect to the host.
  - M(gpuhost.stack.stack_plan) checks the same. This is for playbooks without a plan.
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
attributes:
  check_mode:
    description: Changes nothing in either mode.
    support: full
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Refuse misspelt variables and values that are not accepted
  gpuhost.stack.check_variables:
    variables: "{{ gpu_stack_variables }}"
    internal_variables: "{{ gpu_stack_internal_variables }}"
"""

RETURN = r""" # """
