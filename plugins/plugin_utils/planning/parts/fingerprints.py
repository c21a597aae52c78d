"""Fingerprints of the parts of a stack: a hash of all that determines what a part does on a host.

These are its variables, the content of the files that its role lists, and a number for the steps that are neither: its
`revision`, which is raised by hand when a release changes what the role does on a host that has it. So a
new release of gpuhost applies to a host what has changed for it and nothing else. Reads the project's files alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.role_inputs import RoleInputs, is_transition
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate

SIGNING_KEY, SIGNING_CERTIFICATE = "nvidia_driver_module_signing_key", "nvidia_driver_module_signing_certificate"
# What modules are built with: a host that borrows its kernel sets these role variables to nothing.
KERNEL_PACKAGES = ("nvidia_driver_kernel_headers", "nvidia_driver_kernel_compilers")
RESOURCES = "_resources"  # how the lists in vars/main.yml end that the module `apply` writes
_DESIRED = ("packages", "helpers", "pins")  # of its options: what is to be installed, whatever was before


class RoleValues(Protocol):
    """The variables of roles on a host (plugin_utils/actions/role_values.py); facts: those of a decision."""

    def of(self, facts: Mapping[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        """Return the values of those that the user or the run sets, and whose names begin with one of the prefixes."""

    def transaction(self, facts: Mapping[str, Any], parts: Iterable[str]) -> dict[str, list[Any]]:
        """Return what the roles of these parts install, as options of package_transaction."""


def of_parts(
    plan: Plan,
    managed: drift.Managed,
    inputs: RoleInputs,
    facts: Mapping[str, Any],
    roles: RoleValues,
    signing: SigningCertificate | None = None,
    project: Path = PROJECT,
) -> dict[str, str]:
    """Return the fingerprint of each part that a plan needs, but for `plan`, which has none of its own.

    Left out are variables that affect the transition only, and packages that follow the host's kernels and Python.
    """
    follow_host = {name for component in plan.components.values() if component for name in component.build_packages}
    build_variables = {name for part in PARTS for name in part.build_variables}
    found: dict[str, str] = {}
    planned = drift.planned(plan, managed)
    for role in planned:
        if role in (drift.PACKAGES, drift.PLAN):
            continue
        variables = roles.of(facts, (f"{role}_",))
        desired = {name: value for name, value in variables.items() if not is_transition(name, inputs)}
        for name in desired.keys() & build_variables:
            desired[name] = [package for package in desired[name] if package not in follow_host]
        lock = Path(str(desired.get(f"{role}_lock", "")))
        if lock.is_absolute() and lock.is_file():  # of the user's own: not where it is, but what it pins
            desired[f"{role}_lock"] = lock_texts.read(lock, str(desired.get(f"{role}_python", "")))
        if signing and SIGNING_KEY in desired:  # likewise: another key in the same file is drift
            desired |= {SIGNING_KEY: "", SIGNING_CERTIFICATE: signing.sha256}
        found[role] = of_role(desired, [role, *managed[role].includes], managed[role].revision, project)
    if drift.PACKAGES in planned:
        # A part that a run leaves out is no change of what the complete transaction has.
        options = roles.transaction(facts, planned)
        wanted = [[name for name in options.get(kind, ()) if name not in follow_host] for kind in _DESIRED]
        found[drift.PACKAGES] = _hash([wanted, managed[drift.PACKAGES].revision])
    return found


def of_role(variables: Mapping[str, Any], roles: Sequence[str], revision: int = 1, project: Path = PROJECT) -> str:
    """Return the fingerprint of a role and those that it includes, with their variables.

    A variable that ends in `_lock` is the name of the lock that is used, or the content of a user's own: of a
    framework's locks that one alone counts, as it reads for its Python. Raises FileNotFoundError for a role that does
    not exist.
    """
    locks = {str(value) for name, value in variables.items() if name.endswith("_lock")}
    python = str(variables.get(f"{roles[0]}_python", ""))
    sent: dict[str, str] = {}
    for role in roles:
        directory = project / "roles" / role
        if not directory.is_dir():
            raise FileNotFoundError(f"{directory} is not a role of this project")
        for name, path in content(directory).items():
            sent[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        for lock in filter(lock_texts.is_lock, locks):
            if found := lock_texts.find(lock, directory / "files"):
                text = lock_texts.read(found, lock_texts.python_of(lock) or python)
                sent[lock] = hashlib.sha256(text.encode()).hexdigest()
    return _hash([variables, revision, sent])


def content(role: Path) -> dict[str, Path]:
    """Return the files and templates that a role lists as the content of others, by the names that it has for them."""
    variables = load_yaml(role / "vars/main.yml") if (role / "vars/main.yml").exists() else {}
    found: dict[str, Path] = {}
    for each in (each for name, listed in variables.items() if name.endswith(RESOURCES) for each in listed):
        for key, folder in (("template", "templates"), ("src", "files")):
            place = str(each.get(key, "")).replace("{{ role_path }}", str(role))
            if place and "{{" not in place:  # else it is the user's own
                found[each[key]] = role / folder / place
    return found


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()
