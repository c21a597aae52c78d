"""Which parts a change of the project's files concerns, on a copy of them and the record of a host of 4f3b739."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift, fingerprints
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.role_inputs import RoleInputs

PROJECT = Path(__file__).resolve().parents[5]
INSTALLED = PROJECT / "tests/fixtures/state/4f3b739/installed"
PLAN = plan_from_json(json.loads((INSTALLED / "verified.json").read_text())["plan"])
MANAGED = {name: ManagedPart.from_json(entry) for name, entry in parts({}).items()}
LOCK = PLAN.components["tensorflow"].lock if PLAN.components["tensorflow"] else ""
LOCKS, PYTHON = "roles/tensorflow_env/files", lock_texts.python_of(LOCK)

Change = Callable[[Path], list[str]]  # changes a copy of the project, and returns the names of the files


class Roles:
    """The values of role variables, and of options of the transaction: `values` in the place of some."""

    def __init__(self, **values: Any) -> None:
        self.values = values

    def of(self, _facts: Any, prefixes: tuple[str, ...]) -> dict[str, Any]:
        (prefix,) = prefixes
        found = {"packages": ["a=1"], "persistence": True, "lock": LOCK, "damaged": []}
        return {f"{prefix}{key}": self.values.get(f"{prefix}{key}", value) for key, value in found.items()}

    def transaction(self, _facts: Any, names: Any) -> dict[str, Any]:
        assert names == drift.planned(PLAN, MANAGED)
        found = {"packages": ["a=1", "b=1"], "helpers": [], "replaces": ["c"]}
        return {option: self.values.get(option, value) for option, value in found.items()}


def computed(project: Path, roles: Any = None, managed: Any = MANAGED) -> dict[str, str]:
    inputs = RoleInputs({}, {"tensorflow_env_damaged": []})
    return fingerprints.of_parts(PLAN, managed, inputs, {}, roles or Roles(), project=project)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what the parts are made of."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("roles", "playbooks", "plugins/module_utils"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return copy


@pytest.fixture(scope="module")
def before(project: Path) -> dict[str, str]:
    return computed(project)


def write(name: str) -> Change:
    def change(project: Path) -> list[str]:
        (project / name).write_text("changed")
        return [name]

    return change


def relock(python: str, entry: str) -> Change:
    """Return a change that locks another package for one of the Pythons of the planned lock's file."""

    def change(project: Path) -> list[str]:
        name = f"{LOCKS}/{lock_texts.of_all(LOCK)}"
        text = (project / name).read_text()
        texts = {each: lock_texts.for_python(text, each) for each in lock_texts.pythons(text)}
        (project / name).write_text(lock_texts.merge({**texts, python: texts[python] + entry}))
        return [name]

    return change


def alone(project: Path) -> list[str]:
    """Give the planned lock a file of its own, as in earlier releases."""
    text = lock_texts.read(project / LOCKS / lock_texts.of_all(LOCK), PYTHON)
    (project / LOCKS / LOCK).write_text(text)
    return [f"{LOCKS}/{LOCK}"]


NOTHING: set[str] = set()
CHANGES: dict[str, tuple[Change, set[str]]] = {
    "a task, for which a revision is raised": (write("roles/nccl/tasks/main.yml"), NOTHING),
    "a default, which a variable has": (write("roles/cudnn/defaults/main.yml"), NOTHING),
    "what a role's README says": (write("roles/nccl/README.md"), NOTHING),
    "what an editor left": (write("roles/nvidia_driver/files/.07_gpuhost.swp"), NOTHING),
    "a lock for another architecture": (write(f"{LOCKS}/tensorflow-2.21.0-py3.12-aarch64.txt"), NOTHING),
    "a lock of another release": (write(f"{LOCKS}/tensorflow-2.2.0-system-py3.8.txt"), NOTHING),
    "the planned lock": (write(f"{LOCKS}/{LOCK}"), {"tensorflow_env"}),
    "the planned lock in the file of all Pythons": (relock(PYTHON, "numpy==1\n"), {"tensorflow_env"}),
    "the lock of another Python beside it": (relock("3.12", "numpy==1\n"), NOTHING),
    "the planned lock in a file of its own": (alone, NOTHING),
    "a program that tasks run, for which a revision is raised": (write("roles/framework_env/files/build.py"), NOTHING),
    "a template": (write("roles/env_paths/templates/cuda.sh.j2"), {"env_paths"}),
    "a unit": (write("roles/nvidia_driver/files/gpuhost-kernel-guard.service"), {"nvidia_driver"}),
    "a module of ours that the host gets": (write("plugins/module_utils/host/grub.py"), {"nvidia_driver"}),
    "what the transaction gets, for which a revision is raised": (
        write("playbooks/tasks/install_packages.yml"),
        NOTHING,
    ),
}


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {part for part in before if before[part] != after[part]}


@pytest.mark.parametrize("name", CHANGES)
def test_a_host_gets_the_files_that_changed_in_its_parts_and_nothing_else(
    name: str, project: Path, before: dict[str, str]
) -> None:
    change, expected = CHANGES[name]
    changed = change(project)
    try:
        assert differing(before, computed(project)) == expected
    finally:
        for file in changed:
            if (PROJECT / file).exists():
                shutil.copy(PROJECT / file, project / file)
            else:
                (project / file).unlink()


@pytest.mark.parametrize("part", ["nccl", "packages", "nvidia_driver"])
def test_a_raised_revision_applies_the_part_alone(part: str, project: Path, before: dict[str, str]) -> None:
    raised = {**MANAGED, part: dataclasses.replace(MANAGED[part], revision=MANAGED[part].revision + 1)}
    assert differing(before, computed(project, managed=raised)) == {part}


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("nccl_packages", {"nccl"}),
        ("packages", {"packages"}),
        ("helpers", {"packages"}),
        ("replaces", set()),
        ("nvidia_driver_persistence", {"nvidia_driver"}),
        ("tensorflow_env_damaged", set()),
    ],
)
def test_a_variable_concerns_its_part_and_an_option_what_is_to_be_installed(
    variable: str, expected: set[str], project: Path, before: dict[str, str]
) -> None:
    assert differing(before, computed(project, Roles(**{variable: ["b=2"]}))) == expected


def test_a_role_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="roles/none is not a role"):
        fingerprints.of_role({}, ["none"], project=tmp_path)
