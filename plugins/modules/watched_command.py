#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documents the action plugin of this name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: watched_command
short_description: Run a long command on a host and print how far it is
description:
  - Runs M(ansible.builtin.command) as a job of the host, which continues while the connection is lost, and prints the
    last line of a file that the command writes, if it begins with C(step:).
  - The keywords C(async) and C(poll) do the same, but print only that the job is running.
version_added: "0.2.0"
options:
  argv:
    description: The command and its arguments.
    type: list
    elements: str
    required: true
  stdin:
    description: The command's standard input.
    type: str
  progress:
    description: The file on the host.
    type: path
    required: true
  timeout:
    description: Seconds after which the command is killed.
    type: int
    required: true
attributes:
  check_mode:
    description: Is skipped.
    support: none
  diff_mode:
    description: There is no diff.
    support: none
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Run the training
  gpuhost.stack.watched_command:
    argv: [/opt/gpuhost/tensorflow/bin/python, train.py]
    progress: /var/lib/gpuhost/smoke_train/progress
    timeout: 900
  changed_when: false
"""

RETURN = r"""
rc:
  description: The exit status, and all else that M(ansible.builtin.command) returns.
  returned: unless the command was killed
  type: int
  sample: 0
"""
