# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0 OR GPL-3.0-or-later
# Apache License 2.0, or GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
"""Look up facts of the catalog on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
name: catalog
short_description: Facts of the version catalog
version_added: "0.1.0"
author: gpuhost contributors (!UNKNOWN)
description:
  - Returns facts of the catalog, so that playbooks contain no version, URL or package name of their own.
options:
  _terms:
    description:
      - "A topic and a key."
      - "V(repository) and a distribution id: C(url), C(key_url), C(key_fingerprint), C(slug)."
      - "V(distro) and a distribution id; V(cuda) and C(X.Y); V(driver) and a branch; V(tensorflow) and a version;
        V(gpu) and a PCI id such as C(10de:2335)."
      - "V(repositories) alone: the URL of NVIDIA's repository by distribution id."
      - "V(repositories_by_architecture) alone: these URLs by distribution id and CPU architecture."
      - "V(driver_packages) alone: apt patterns of the driver packages' names, NVIDIA's and the distributions'."
      - "V(driver_exceptions) alone: apt patterns of names that these match and that are not part of the driver."
      - "V(kernel_drivers) alone: kernel modules other than NVIDIA's that take its GPUs, such as C(nouveau)."
      - "V(user_settings) alone: the rows of catalog/user_settings.csv, what our programs drop, keep or set."
      - "V(gpu_counters) alone: the rows of catalog/gpu_thresholds.yml by which counters of GPUs are judged."
      - "V(python_packages), a distribution id and a Python such as C(3.12): the packages that its environments need."
      - "V(lock), a framework, a version and a Python such as C(3.12): the name of the lock file."
      - "V(lock_text), the name of a lock among the files of a role or the path of a lock file, and a Python: what it
        locks for that Python. A name finds also the file that has the locks of all Pythons."
      - "V(packages) and a key of catalog/packages.yml: names of packages that belong to no single release."
      - "Any other topic alone: the list of its keys, newest first."
    required: true
  base_url:
    description: The URL of a mirror of NVIDIA's site, without distribution and architecture.
    type: str
    default: auto
  architecture:
    description:
      - The CPU architecture of which entries are returned, as C(uname -m) prints it, such as V(x86_64).
      - V(auto) is that of the host's facts; without facts the only one that the catalog serves.
    type: str
    default: auto
    version_added: "0.1.0"
"""

EXAMPLES = r"""
- name: NVIDIA's repository for this host
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.catalog', 'repository', 'debian-12').key_fingerprint }}"

- name: What CUDA 13.2 needs
  ansible.builtin.debug:
    msg: "{{ lookup('gpuhost.stack.catalog', 'cuda', '13.2') }}"
"""

RETURN = r"""
_raw:
  description: One dictionary of facts, or the topic's keys.
  type: list
  elements: raw
"""

import dataclasses
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import (
    gpu_counters,
    python_packages,
    repositories,
    repository_facts,
    user_settings,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.locks import UnknownLockError, default_lock


def _only_architecture(catalog: Catalog) -> str:
    """Return the one CPU architecture that the catalog serves; raises AnsibleLookupError where there are more."""
    served = supported(catalog)
    if len(served) != 1:
        raise AnsibleLookupError(
            f"gpuhost.stack.catalog: the catalog serves {', '.join(served)}; gather the host's facts, or set "
            "architecture"
        )
    return served[0]


def _common(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Return the topics that are the same for every CPU architecture."""
    return {
        "distro": dict(catalog.distros),
        "packages": {f.name: getattr(catalog.packages, f.name) for f in dataclasses.fields(catalog.packages)},
        "gpu": {f"10de:{device}": product for device, product in catalog.products.items()},
    }


def _of_one(catalog: Catalog, architecture: str) -> dict[str, dict[str, Any]]:
    """Return the topics with the entries of one CPU architecture."""
    served = [name for name in catalog.distros if architecture in supported(catalog, name)]
    own = of_architecture(catalog, architecture)
    return {
        "repository": {name: repository_facts(catalog, name, architecture) for name in served},
        **{part.name: dict(part.entries(own)) for part in PARTS},
    }


def look_up(terms: list[Any], base_url: str | None = None, architecture: str | None = None) -> list[Any]:
    """Return the facts that the terms name, as a list for Ansible; raises AnsibleLookupError.

    architecture: of the host, None where it is not known.
    """
    if terms == ["repositories_by_architecture"]:
        return [repositories(load_catalog(), base_url)]
    if terms == ["repositories"]:
        machine = architecture or _only_architecture(load_catalog())
        by_architecture = repositories(load_catalog(), base_url)
        return [{name: urls[machine] for name, urls in by_architecture.items() if machine in urls}]
    if terms == ["driver_packages"]:
        return [list(load_catalog().driver.name_patterns)]
    if terms == ["driver_exceptions"]:
        return [list(load_catalog().driver.name_exceptions)]
    if terms == ["kernel_drivers"]:
        return [[driver.module for driver in load_catalog().known_bad.kernel_drivers]]
    if terms == ["user_settings"]:
        return [user_settings(load_catalog())]
    if terms == ["gpu_counters"]:
        return [gpu_counters(load_catalog())]
    if terms[:1] == ["python_packages"] and len(terms) == 3:
        distribution, python = (str(term) for term in terms[1:])
        return [python_packages(load_catalog().distros[distribution], python)]
    if terms[:1] == ["lock"] and len(terms) == 4:
        try:
            machine = architecture or _only_architecture(load_catalog())
            framework, version, python = (str(term) for term in terms[1:])
            return [default_lock(load_catalog(), framework, version, python, machine)]
        except UnknownLockError as error:
            raise AnsibleLookupError(f"gpuhost.stack.catalog: {error}") from error
    topics = _common(load_catalog())
    if not terms or str(terms[0]) not in topics:
        topics |= _of_one(load_catalog(), architecture or _only_architecture(load_catalog()))
    if not terms or str(terms[0]) not in topics:
        raise AnsibleLookupError(
            f"gpuhost.stack.catalog: expected one of {', '.join(topics)} as the first term, "
            f"found {terms[0] if terms else 'none'!r}"
        )
    if len(terms) > 2:
        raise AnsibleLookupError(f"gpuhost.stack.catalog: expected a topic and a key, found {len(terms)} terms")
    entries = topics[str(terms[0])]
    if len(terms) == 1:
        return [sorted(entries, key=versions.key, reverse=True)]
    key = str(terms[1])
    if key not in entries:
        near = versions.nearest(key, list(entries)) if key[:1].isdigit() else sorted(entries)[:10]
        raise AnsibleLookupError(
            f"gpuhost.stack.catalog: the catalog has no {terms[0]} {key!r}"
            f"{f' for {architecture}' if architecture else ''}; it has, for example, {', '.join(near) or 'none'}"
        )
    return [to_json(entries[key])]


class LookupModule(LookupBase):
    """The lookup `gpuhost.stack.catalog`."""

    def run(self, terms: Any, variables: dict[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return the facts that the terms name; called by Ansible."""
        self.set_options(var_options=variables, direct=kwargs)
        if terms[:1] == ["lock_text"] and len(terms) == 3:
            return [self._lock_text(str(terms[1]), str(terms[2]), variables)]
        try:
            base_url, architecture = self.get_option("base_url"), self.get_option("architecture")
            known = ((variables or {}).get("ansible_facts") or {}).get("architecture")
            return look_up(
                list(terms),
                None if base_url == "auto" else base_url,
                known if architecture == "auto" else architecture,
            )
        except CatalogError as error:
            raise AnsibleLookupError(f"gpuhost.stack.catalog: {error}") from error

    def _lock_text(self, file: str, python: str, variables: dict[str, Any] | None) -> str:
        """Return what a lock file has for a Python; raises AnsibleLookupError if there is none, or for others alone."""
        names = dict.fromkeys((file, lock_texts.of_all(file)))
        found = (self.find_file_in_search_path(variables, "files", name, ignore_missing=True) for name in names)
        path = next(filter(None, found), None)
        if path is None:
            raise AnsibleLookupError(f"gpuhost.stack.catalog: found no lock file {' nor '.join(names)}")
        text, wanted = self._loader.get_text_file_contents(path), lock_texts.python_of(file) or python
        listed = lock_texts.pythons(text)
        if listed and wanted not in listed:
            raise AnsibleLookupError(
                f"gpuhost.stack.catalog: {path} has locks for Python {', '.join(listed)}, expected one for {wanted}"
            )
        return lock_texts.for_python(text, wanted)
