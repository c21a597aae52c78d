#!/usr/bin/python
# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write an apt source file that apt can read. Runs on the managed host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_source
short_description: Write an apt source file, but only if apt can read its repository
description:
  - Before a changed file is written, apt downloads and reads the repository into lists of its own. Where that fails
    (a signature, an index that does not parse, a contradiction with another source), the module fails with apt's
    message and writes nothing, so that the host's apt keeps working.
  - Does not refresh the host's own package lists.
version_added: "0.1.0"
options:
  dest:
    description: The file to write, ending in C(.sources) or C(.list).
    type: path
    required: true
  content:
    description: Its content.
    type: str
    required: true
  mode:
    description: The file's mode.
    type: raw
    default: '0644'
extends_documentation_fragment:
  - gpuhost.stack.environment
  - ansible.builtin.files
attributes:
  check_mode:
    description: Reports a change, and tries nothing.
    support: full
  diff_mode:
    description: Shows the file.
    support: full
author: gpuhost contributors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Add NVIDIA's repository
  gpuhost.stack.apt_source:
    dest: /etc/apt/sources.list.d/nvidia-cuda.sources
    content: |
      Types: deb
      URIs: https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/
      Suites: /
      Signed-By: /etc/apt/keyrings/nvidia-cuda.asc
"""

RETURN = r"""
dest:
  description: The file.
  returned: success
  type: str
"""

import dataclasses
import os
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files, module_options, workspace
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_trial


@dataclasses.dataclass(frozen=True)
class Options:
    """The options that DOCUMENTATION describes."""

    content: str
    dest: str = option(type="path")
    mode: Any = "0644"
    environment: Dict[str, Any] = option({}, no_log=True)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=module_options.argument_spec(Options),
        add_file_common_args=True,
        supports_check_mode=True,
    )
    options = module_options.read(Options, module.params)
    dest, content = options.dest, options.content
    current = files.read_text("/", dest)
    changed = current != content
    if changed and not module.check_mode:
        with workspace.directory("apt-source-") as directory:
            os.chmod(directory, 0o755)
            problem = apt_trial.problem(module.run_command, directory, dest, content, os.path.dirname(dest))
        if problem:
            module.fail_json(
                msg="apt cannot use the repository of %s, which was tried with lists of its own:\n%s\nNothing was "
                "written, and the host's apt works as before. Check the URL, the proxy and the mirror: an index that "
                "does not parse or match is often a mirror in the middle of an update." % (dest, problem)
            )
        files.write(dest, content.encode())
    if os.path.exists(dest):
        file_args = module.load_file_common_arguments(module.params)
        changed = module.set_fs_attributes_if_different(file_args, changed)
    diff = {"before": current or "", "after": content, "before_header": dest, "after_header": dest}
    module.exit_json(changed=changed, dest=dest, diff=diff)


if __name__ == "__main__":
    main()
