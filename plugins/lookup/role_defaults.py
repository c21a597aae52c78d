# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up defaults of role variables on the controller; see plugin_utils/actions/role_defaults.py."""

from __future__ import annotations

DOCUMENTATION = r"""
name: role_defaults
short_description: Packages of one component for this host
version_added: "0.1.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns what the catalog knows of one component for the host's distribution release and kernel, which are read from
    the host's facts. So a role that is used alone needs a version and nothing else.
  - The host's GPUs and what its repository offers are not known here; M(gpuhost.stack.stack_plan) knows them.
options:
  _terms:
    description:
      - V(repository), or a component (V(driver), V(cuda), V(cudnn) or V(nccl)) and its version or a prefix of one.
      - An empty version returns an empty dictionary.
      - V(python_packages) and a Python such as C(3.12) are the names of the packages that its environments need,
        V(build_packages) and a Python those that PyTorch's Triton compiles with.
    required: true
  kernel_modules:
    description: The flavour of the driver's kernel modules; V(auto) takes the open ones if the branch has them.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  profile:
    description: The driver's packages, V(compute), or V(full) with OpenGL, X and Wayland.
    type: str
    choices: [compute, full]
    default: compute
  cuda:
    description: The CUDA release that cuDNN or NCCL is chosen for, such as V(12) or V(12.9); V(auto) is the newest.
    type: str
    default: auto
"""

EXAMPLES = r"""
- name: Show the packages of a driver
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.role_defaults', 'driver', '580').packages }}"

- name: Show NVIDIA's repository for this host
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.role_defaults', 'repository').url }}"
"""

RETURN = r"""
_raw:
  description: The component as in a plan, what is known of the repository, or names of packages.
  type: list
  elements: raw
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import role_defaults
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError

PACKAGES = {"python_packages": role_defaults.python_packages, "build_packages": role_defaults.build_packages}


def look_up(terms: list[Any], facts: dict[str, Any], **options: str) -> list[Any]:
    """Return the facts in a list; raise AnsibleLookupError for terms or versions that cannot be found."""
    try:
        if terms == ["repository"]:
            return [role_defaults.repository(facts)]
        if len(terms) != 2:
            raise ValueError(f"expected 'repository', or a component and its version; found {len(terms)} terms")
        if terms[0] in PACKAGES:
            return [PACKAGES[terms[0]](facts, str(terms[1]))]
        return [role_defaults.component(facts, *terms, **options)]
    except (CatalogError, ValueError) as error:
        raise AnsibleLookupError(f"gpuhost.stack.role_defaults: {error}") from error


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.role_defaults`."""

    def run(self, terms: list[Any], variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the component, or other facts, for the host's facts; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        options = {name: self.get_option(name) for name in ("kernel_modules", "cuda", "profile")}
        # A version that is omitted is none: the arguments of the role say that it is missing.
        known = [term if isinstance(term, (str, int, float)) else "" for term in terms]
        return look_up(known, (variables or {}).get("ansible_facts") or {}, **options)
