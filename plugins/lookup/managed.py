# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up on the controller what the parts of the stack have on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
name: managed
short_description: What each part of the stack has on a host
version_added: "0.3.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns the parts in the order of their installation. A part is a role, C(packages) for the one transaction of
    all roles, or C(plan) for its record on the host.
  - A role lists in its C(vars/main.yml) what it has on a host, which is rendered with its defaults and the host's
    variables. Names that end in C(_resources) are what M(gpuhost.stack.apply) writes, in C(_written) paths that other
    tasks write, in C(_managed) other things by kind, such as C(services).
  - All of it is recorded before the first change and after each verification, so that it can be restored, and is
    compared with the host at each rerun, which applies only parts with drift.
options:
  _terms:
    description: None are expected.
    required: false
"""

EXAMPLES = r"""
- name: Show the files that the role env_paths writes
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.managed').env_paths.files }}"
"""

RETURN = r"""
_raw:
  description:
    - One dictionary, the parts by name. C(for) are the components that need a part, C(with) the roles that it includes,
      C(component) says that its role has no steps of its own in tasks/install.yml, C(revision) (default 1) is
      raised when a release changes what its tasks do on a host that has it, C(secrets) are the files of which a record
      has a digest in place of the content. All else is what the part has on a host, by kind.
  type: list
  elements: dict
  sample: [{"env_paths": {"for": ["cuda"], "files": ["/etc/profile.d/cuda.sh"], "secrets": [], "library_path": true}}]
"""

from typing import Any

from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions.role_values import RoleValues
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import managed


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.managed`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the parts; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        return [managed.parts(RoleValues(self._templar, variables or {}).managed())]
