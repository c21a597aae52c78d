"""Defaults of role variables, so that a role that is used alone needs a version and nothing else.

The facts are those that Ansible gathers (`min` is enough). The host's repository and GPUs are not read: the result is
what the catalog has for the distribution release.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts as facts_of_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import repository_facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import registry
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import of_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import distributions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.architectures import where_supported

_OF_FACTS = {"redhat": "rhel"}  # os-release's ID by Ansible's name, where they differ in more than capital letters


def distribution(facts: Mapping[str, Any]) -> str:
    """Return the catalog's id of the host's distribution release; raise ValueError if there is none."""
    if not facts.get("distribution"):
        raise ValueError("the facts of the host are missing: expected gather_facts: true in the play")
    name = str(facts["distribution"]).lower()
    name = _OF_FACTS.get(name, name)
    candidates = [f"{name}-{facts.get(key)}" for key in ("distribution_version", "distribution_major_version")]
    known = load_catalog().distros
    for candidate in candidates:
        if candidate in known:
            enforcing = (facts.get("selinux") or {}).get("mode") == "enforcing"
            if known[candidate].planned_only and enforcing:
                raise ValueError(distributions.planned_only(known[candidate]))
            return candidate
    raise ValueError(f"the host runs {candidates[0]}; the catalog has {', '.join(sorted(known))}")


def architecture(facts: Mapping[str, Any]) -> str:
    """Return the host's CPU architecture; raise ValueError if the facts have none."""
    if not facts.get("architecture"):
        raise ValueError("the host's architecture is not among its facts: expected gather_facts: true in the play")
    return str(facts["architecture"])


def repository(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return NVIDIA's repository for the host: url, key_url, key_fingerprint, slug; raise ValueError without one."""
    catalog, name, machine = load_catalog(), distribution(facts), architecture(facts)
    if machine not in supported(catalog, name):
        raise ValueError(
            f"the catalog has no NVIDIA repository for {name} on {machine}; supported are {where_supported(catalog)}"
        )
    return repository_facts(catalog, name, machine)


def python_packages(facts: Mapping[str, Any], python: str) -> list[str]:
    """Return the packages that make environments of a Python possible on the host."""
    return facts_of_catalog.python_packages(load_catalog().distros[distribution(facts)], python)


def build_packages(facts: Mapping[str, Any], python: str) -> list[str]:
    """Return the packages that PyTorch's Triton compiles with; python: such as 3.12, empty for the host's python3."""
    catalog, name = load_catalog(), distribution(facts)
    distro = catalog.distros[name]
    # Where the archive has other Pythons, python3 is the package manager's own; uv brings another, with its headers.
    packaged = python in distro.python.available if python else not distro.python.packages
    compiler, headers = facts_of_catalog.triton_packages(catalog, distro.family, python or "3", packaged)
    return [*compiler, *headers]


def component(
    facts: Mapping[str, Any],
    name: str,
    version: str,
    kernel_modules: str = "auto",
    cuda: str = "auto",
    profile: str = "compute",
) -> dict[str, Any]:
    """Return one component as in a plan's JSON, for a version or a prefix of one.

    kernel_modules, profile: of the driver; cuda: the release that cuDNN or NCCL is chosen for, the newest by default.
    An empty version gives an empty component, so that a missing role variable is reported by its own name.
    Raises ValueError for a name or version that the catalog does not have for the host's distribution release.
    """
    packaged = [part.name for part in registry.PACKAGED]
    if name not in packaged:
        raise ValueError(f"expected one of {', '.join(packaged)}, found {name!r}")
    if not version:
        return {}
    host = Host(distribution(facts), architecture(facts), kernel=str(facts.get("kernel") or ""), unread=True)
    return _component(host, name, str(version), kernel_modules, str(cuda), profile)


@functools.cache
def _component(host: Host, name: str, version: str, kernel_modules: str, cuda: str, profile: str) -> dict[str, Any]:
    asked = {**dict.fromkeys(registry.BY_NAME, "none"), "expect_gpus": "0", name: version}
    options = {f"{name}_kernel_modules": kernel_modules, f"{name}_profile": profile}
    asked |= {option: value for option, value in options.items() if option in of_request()}
    problems = ""
    for release in _cuda_releases(cuda) if "cuda" in registry.AFTER[name] else [asked["cuda"]]:
        request = asking(**{**asked, "cuda": release})
        plan = resolve(load_catalog(), request, host)
        if plan.ok:
            return dict(to_json(plan.components.get(name)))
        problems = problems or "; ".join(problem.message for problem in plan.problems)
    raise ValueError(problems)


def _cuda_releases(cuda: str) -> list[str]:
    """Return the CUDA releases to try for a library; by default each major, since the newest may have no build yet."""
    if cuda != "auto":
        return [cuda]
    majors = {versions.major(toolkit.version) for toolkit in load_catalog().cuda.toolkits}
    return [str(major) for major in sorted(majors, reverse=True)]
