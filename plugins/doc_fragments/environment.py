# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""The option `environment` of modules that download, for ansible-doc."""

from __future__ import annotations


class ModuleDocFragment:
    """The fragment `gpuhost.stack.environment`."""

    DOCUMENTATION = r"""
options:
  environment:
    description:
      - Environment variables that nobody else on the host may see, such as a proxy's address with a password. Unlike
        those of the keyword C(environment) they are on no command line.
      - The action plugin adds those of C(gpu_stack_environment) that have a login.
    type: dict
    default: {}
"""
