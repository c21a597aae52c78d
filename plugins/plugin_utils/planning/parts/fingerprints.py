"""Fingerprints of the parts of a stack: a hash of all that determines what a part does on a host.

These are its variables, its role's tasks, templates, files and defaults, the statements of our modules and action
plugins that those tasks run, and the facts of the catalog that they look up. Comments, docstrings, documents and code
that a part does not run do not enter it, so that a new release of gpuhost applies to a host what has changed for it and
nothing else. Reads the project's files alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.memory import remembered
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import gpu_counters, user_settings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift, running_code
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate

SIGNING_KEY, SIGNING_CERTIFICATE = "nvidia_driver_module_signing_key", "nvidia_driver_module_signing_certificate"
# What modules are built with: a host that borrows its kernel sets these role variables to nothing.
KERNEL_PACKAGES = ("nvidia_driver_kernel_headers", "nvidia_driver_kernel_compilers")
# Returns the role variables whose names begin with one of the prefixes, rendered with the facts of a plan.
RoleVariables = Callable[[dict[str, Any], tuple[str, ...]], dict[str, Any]]

# Documents, and what editors leave.
_DOCUMENTS = re.compile(r"meta/(main|argument_specs)\.yml|(.*/)?(README\.md|[^/]*(~|\.swp|\.pyc)|\.[^/]+)")
_PLUGIN = re.compile(r"\bgpuhost\.stack\.(\w+)")
_FILE_OUTSIDE = re.compile(r"\.\./\.\./(plugins/[\w/]+\.py)")  # that a role copies to the host
_TEMPLATE_COMMENT = re.compile(r"^\{#(?!-).*?(?<!-)#\}\n", re.DOTALL | re.MULTILINE)
_SHELL_COMMENT = re.compile(r"^[ \t]*#(?!!).*\n", re.MULTILINE)
_HERE_DOCUMENT = re.compile(r"(?<!<)<<(?!<)")  # whose lines may look like comments
_FACTS = re.compile(r"lookup\('gpuhost\.stack\.catalog', ('\w+'(?:, '\w+')*)\)")
# What starts in a plugin: of a module its main, of an action plugin its class.
_ENTRIES = {"plugins/modules": "main", "plugins/action": "ActionModule"}
_FILTER = r'"{}": ([a-z_]+)'  # in the table of a file of filters
_PRINTING = ("plugins/plugin_utils/report/", "plugins/plugin_utils/base/escaping.py")  # on the controller
_TRANSACTION_TASKS = "playbooks/tasks/install_packages_apt.yml"
_TRANSACTION_VARIABLES = "playbooks/group_vars/all/transaction.yml"
_CALLS = ("install",)  # of the roles, in playbooks/tasks
_COMPONENT_CALLS = ("install_components",)  # a loop over the roles of components that no task of `_CALLS` names
# Those of every role that includes this one, in loops over such roles.
_ENVIRONMENT_ROLE, _ENVIRONMENT_CALLS = "framework_env", ("start_environments", "finish_environments")


def of_parts(
    plan: Plan,
    managed: drift.Managed,
    transitions: Sequence[str],
    facts: dict[str, Any],
    role_variables: RoleVariables,
    signing: SigningCertificate | None = None,
    project: Path = PROJECT,
) -> dict[str, str]:
    """Return the fingerprint of each part that a plan needs, but for `plan`, which has none of its own.

    Left out are variables that affect the transition only, and packages that follow the host's kernels and Python.
    """
    follow_host = {name for component in plan.components.values() if component for name in component.build_packages}
    build_variables = {name for part in PARTS for name in part.build_variables}
    found: dict[str, str] = {}
    of_packages: dict[str, Any] = {}
    planned = drift.planned(plan, managed)
    for role in planned:
        if role in (drift.PACKAGES, drift.PLAN):
            continue
        variables = role_variables(facts, (f"{role}_",))
        desired = {name: value for name, value in variables.items() if name not in transitions}
        for name in desired.keys() & build_variables:
            desired[name] = [package for package in desired[name] if package not in follow_host]
        lock = Path(str(desired.get(f"{role}_lock", "")))
        if lock.is_absolute() and lock.is_file():  # of the user's own: not where it is, but what it pins
            desired[f"{role}_lock"] = lock_texts.read(lock, str(desired.get(f"{role}_python", "")))
        if signing and SIGNING_KEY in desired:  # likewise: another key in the same file is drift
            desired |= {SIGNING_KEY: "", SIGNING_CERTIFICATE: signing.sha256}
        found[role] = of_role(desired, [role, *managed[role].includes], project)
        of_packages |= desired
    if drift.PACKAGES in planned:
        found[drift.PACKAGES] = of_transaction(of_packages, project)
    return found


def of_role(variables: Mapping[str, Any], roles: Sequence[str], project: Path = PROJECT) -> str:
    """Return the fingerprint of a role and those that it includes, with their variables.

    A variable that ends in `_lock` is the name of the lock that is used, or the content of a user's own: of a
    framework's locks that one alone counts, as it reads for its Python. Raises FileNotFoundError for a role that does
    not exist, and ValueError for code that cannot be followed.
    """
    locks = {str(value) for name, value in variables.items() if name.endswith("_lock")}
    python = str(variables.get(f"{roles[0]}_python", ""))
    files: list[list[str]] = []
    for role in roles:
        directory = project / "roles" / role
        if not directory.is_dir():
            raise FileNotFoundError(f"{directory} is not a role of this project")
        contents = {path: _content(path, project) for path in _files(directory) if not lock_texts.is_lock(path.name)}
        for lock in filter(lock_texts.is_lock, locks):
            if path := lock_texts.find(lock, directory / "files"):
                text = lock_texts.read(path, lock_texts.python_of(lock) or python)
                contents[directory / "files" / lock] = hashlib.sha256(text.encode()).hexdigest()
        files += [[str(path.relative_to(project)), content] for path, content in sorted(contents.items())]
    return _hash([variables, _calls(roles, project), files])


def of_transaction(variables: Mapping[str, Any], project: Path = PROJECT) -> str:
    """Return the fingerprint of the package transaction, with those of the roles' variables that it uses."""
    text = (project / _TRANSACTION_VARIABLES).read_text(encoding="utf-8")
    of_components = role_inputs.packages()
    used = {
        name: value for name, value in variables.items() if name in of_components or re.search(rf"\b{name}\b", text)
    }
    return _hash([used, *(_content(project / name, project) for name in (_TRANSACTION_TASKS, _TRANSACTION_VARIABLES))])


def preload(project: Path = PROJECT) -> None:
    """Read all roles and the code that they run, most of the work of a fingerprint, unless an earlier run did."""
    contents = remembered("fingerprints", lambda: dict(_read(project)), project)
    _contents.update({(project / name, project): content for name, content in contents.items()})


def _read(project: Path) -> Iterator[tuple[str, str]]:
    """Yield the path of each file that fingerprints are made of, and a hash of what it does."""
    yield from ((name, _content(project / name, project)) for name in (_TRANSACTION_TASKS, _TRANSACTION_VARIABLES))
    for role in project.glob("roles/*/"):
        for path in _files(role):
            if not lock_texts.is_lock(path.name):
                yield str(path.relative_to(project)), _content(path, project)


def _calls(roles: Sequence[str], project: Path) -> list[Any]:
    """Return the tasks of the playbooks that run a role; roles: that, and those that it includes."""

    def tasks(names: Sequence[str]) -> Iterator[Any]:
        for name in names:
            yield from load_yaml(project / "playbooks/tasks" / f"{name}.yml")

    own = [task for task in tasks(_CALLS) if f'"gpuhost.stack.{roles[0]}"' in json.dumps(task)]
    if _ENVIRONMENT_ROLE in roles:
        return [*own, *tasks(_ENVIRONMENT_CALLS)]
    return own or list(tasks(_COMPONENT_CALLS))


def _hash(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()


def _files(directory: Path) -> list[Path]:
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path for path in found if not _DOCUMENTS.fullmatch(str(path.relative_to(directory))))


_contents: dict[tuple[Path, Path], str] = {}  # by file and project


def _content(path: Path, project: Path) -> str:
    """Return a hash of what a file does; computed once a process, since parts share roles and modules."""
    if (path, project) not in _contents:
        _contents[path, project] = _read_content(path, project)
    return _contents[path, project]


def _read_content(path: Path, project: Path) -> str:
    data = path.read_bytes()
    if path.suffix == ".py":
        return _hash(running_code.statements(path, project))
    is_shell = data.startswith(b"#!/bin/sh") or path.suffix == ".sh"
    if path.suffix not in (".yml", ".j2") and not is_shell:
        return hashlib.sha256(data).hexdigest()
    text = data.decode()
    return _hash([_without_comments(path, text), list(_code(text, project)), _facts(text, project)])


def _without_comments(path: Path, text: str) -> Any:
    """Return what a text says; the text itself where what looks like a comment may be part of it."""
    if path.suffix == ".yml":
        # What only Ansible's own loader reads (`!vault`, `!unsafe`) counts as it is written.
        with contextlib.suppress(yaml.YAMLError):
            return load_yaml(path)
        return text
    if path.suffix == ".j2":
        return text if "raw %}" in text else _TEMPLATE_COMMENT.sub("", text)
    code = _SHELL_COMMENT.sub("", text)
    has_long_strings = any(line.count(quote) % 2 for line in code.splitlines() for quote in "\"'") or "\\\n" in text
    return text if has_long_strings or _HERE_DOCUMENT.search(text) else code


def _code(text: str, project: Path) -> Iterator[tuple[str, ...]]:
    """Yield the statements of the plugins that a text names, and of the files of this project that it copies."""
    routes = (load_yaml(project / "meta/runtime.yml").get("plugin_routing") or {}).get("modules") or {}
    for name in sorted(set(_PLUGIN.findall(text))):
        for folder, entry in _ENTRIES.items():
            plugin = name
            if folder == "plugins/action" and name in routes:
                plugin = routes[name]["action_plugin"].rpartition(".")[2]
            path = project / folder / f"{plugin}.py"
            if path.exists():
                yield running_code.statements(path, project, [entry], _PRINTING)
        for path in sorted(project.glob("plugins/filter/*.py")):
            if found := re.search(_FILTER.format(name), path.read_text(encoding="utf-8")):
                yield running_code.statements(path, project, [found[1]])
    for name in sorted(set(_FILE_OUTSIDE.findall(text))):
        yield running_code.statements(project / name, project)


def _facts(text: str, project: Path) -> list[Any]:
    """Return the facts of the catalog that a text looks up by name; those of a release come with its variables."""
    catalog = load_catalog(project / "catalog")
    topics: dict[str, Callable[..., Any]] = {
        "packages": lambda key: getattr(catalog.packages, key),
        "kernel_drivers": lambda: [driver.module for driver in catalog.known_bad.kernel_drivers],
        "user_settings": lambda: user_settings(catalog),
        "gpu_counters": lambda: gpu_counters(catalog),
    }
    found = [re.findall(r"\w+", terms) for terms in _FACTS.findall(text)]
    return [[terms, topics[terms[0]](*terms[1:])] for terms in found]
