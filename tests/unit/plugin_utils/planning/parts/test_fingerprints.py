"""Which parts a change of the project's files concerns, on a copy of them and the record of a host of 4f3b739."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import memory
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import catalogs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift, fingerprints, running_code
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import with_components
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

PROJECT = Path(__file__).resolve().parents[5]
INSTALLED = PROJECT / "tests/fixtures/state/4f3b739/installed"
PLAN = plan_from_json(json.loads((INSTALLED / "verified.json").read_text())["plan"])
MANAGED = {
    name: ManagedPart.from_json(entry)
    for name, entry in with_components(
        yaml.safe_load((PROJECT / "playbooks/group_vars/all/managed.yml").read_text())["__gpu_stack_listed"]
    ).items()
}
LOCK = PLAN.components["tensorflow"].lock if PLAN.components["tensorflow"] else ""
LOCKS, PYTHON = "roles/tensorflow_env/files", lock_texts.python_of(LOCK)
HAVE_PACKAGES = {"packages", "nvidia_driver", "cuda_toolkit", "cudnn", "nccl", "tensorflow_env"}
PACKAGED = HAVE_PACKAGES | {"nvidia_repo"}  # with the repository's packages of before
UTILS, TRANSACTION = "plugins/module_utils", "plugins/module_utils/packages/transaction.py"

Change = Callable[[Path], list[str]]  # changes a copy of the project, and returns the names of the files


def variables(_facts: Any, prefixes: tuple[str, ...]) -> dict[str, Any]:
    """Return role variables as the plan of the host gives them."""
    (prefix,) = prefixes
    return {f"{prefix}packages": ["a=1"], f"{prefix}persistence": True, f"{prefix}lock": LOCK, f"{prefix}damaged": []}


def computed(project: Path, values: Any = variables, **options: Any) -> dict[str, str]:
    fingerprints._contents.clear()
    running_code._module.cache_clear()
    catalogs._read_once.cache_clear()
    memory._version.cache_clear()
    fingerprints.preload(project)  # with what the project was before
    return fingerprints.of_parts(PLAN, MANAGED, ["tensorflow_env_damaged"], {}, values, project=project, **options)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what the parts are made of."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("roles", "plugins", "playbooks", "catalog", "meta"):
        shutil.copytree(PROJECT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    return copy


@pytest.fixture(scope="module")
def before(project: Path) -> dict[str, str]:
    return computed(project)


def edit(name: str, old: str, new: str) -> Change:
    def change(project: Path) -> list[str]:
        text = (project / name).read_text()
        assert old in text, f"{name} has no {old!r}"
        (project / name).write_text(text.replace(old, new, 1))
        return [name]

    return change


def insert(name: str, function: str, line: str) -> Change:
    """Return a change that inserts a line at the beginning of a function, in the place of its docstring if any."""

    def change(project: Path) -> list[str]:
        text = (project / name).read_text()
        (node,) = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == function)
        lines = text.split("\n")
        first = node.body[0]
        is_documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        assert first.end_lineno is not None
        lines[first.lineno - 1 : first.end_lineno if is_documented else first.lineno - 1] = [
            " " * first.col_offset + line
        ]
        (project / name).write_text("\n".join(lines))
        return [name]

    return change


def statement(name: str, function: str) -> Change:
    return insert(name, function, "changed = True")


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


def rename(name: str, new: str) -> Change:
    def change(project: Path) -> list[str]:
        (project / name).rename(project / new)
        return [name, new]

    return change


NOTHING: set[str] = set()
CHANGES: dict[str, tuple[Change, set[str]]] = {
    "a comment of a module": (insert(TRANSACTION, "_hold", "# Changed."), NOTHING),
    "a docstring": (insert(f"{UTILS}/packages/apt/apt_commands.py", "packages", '"""Changed."""'), NOTHING),
    "a document of a module": (
        edit("plugins/modules/driver_load.py", "short_description: ", "short_description: A "),
        NOTHING,
    ),
    "a check, which no part runs": (statement(f"{UTILS}/checks/driver_checks.py", "run"), NOTHING),
    "a function of a module that it does not run": (statement(f"{UTILS}/packages/apt/apt_sources.py", "read"), NOTHING),
    "the resolver": (statement("plugins/plugin_utils/components/plans.py", "resolve"), NOTHING),
    "the place of a function": (edit(f"{UTILS}/base/command.py", "\ndef ", "\nOTHER = 1\n\n\ndef "), NOTHING),
    "a comment of a role": (edit("roles/nccl/tasks/main.yml", "\n", "\n# Changed.\n"), NOTHING),
    "a comment of a script": (
        edit("roles/nvidia_driver/files/update_grub.sh", "\n\n", "\n# Changed.\n\n"),
        NOTHING,
    ),
    "a comment of a template": (edit("roles/nvidia_repo/templates/auth.conf.j2", "Tokens", "Changed: tokens"), NOTHING),
    "a comment of a copied file": (insert(f"{UTILS}/host/grub.py", "_lines", "# Changed."), NOTHING),
    "what a role's README says": (write("roles/nccl/README.md"), NOTHING),
    "what a role's specification says": (write("roles/nccl/meta/argument_specs.yml"), NOTHING),
    "what a role's documents say of it": (write("roles/nccl/meta/main.yml"), NOTHING),
    "what an editor left": (write("roles/nccl/tasks/.main.yml.swp"), NOTHING),
    "a lock for another architecture": (
        write("roles/tensorflow_env/files/tensorflow-2.21.0-py3.12-aarch64.txt"),
        NOTHING,
    ),
    "what the controller prints": (statement("plugins/plugin_utils/report/terminal.py", "show"), NOTHING),
    "a release of the catalog": (
        edit("catalog/nccl.yml", 'first: "2.13", last: "2.21.5"', 'first: "2.13", last: "2.21.4"'),
        NOTHING,
    ),
    "a lock of another release": (write("roles/tensorflow_env/files/tensorflow-2.2.0-system-py3.8.txt"), NOTHING),
    "a new file": (write("roles/tensorflow_env/files/new.sh"), {"tensorflow_env"}),
    "the planned lock": (write(f"roles/tensorflow_env/files/{LOCK}"), {"tensorflow_env"}),
    "the planned lock in the file of all Pythons": (relock(PYTHON, "numpy==1\n"), {"tensorflow_env"}),
    "the lock of another Python beside it": (relock("3.12", "numpy==1\n"), NOTHING),
    "the planned lock in a file of its own": (alone, NOTHING),
    "a condition beside a byte string with #": (
        edit("roles/framework_env/files/gpuhost_env.py", "theirs.encode() in head", "theirs.encode() not in head"),
        {"tensorflow_env"},
    ),
    "the order of assignments": (
        edit(f"{UTILS}/host/grub.py", "SUBMENU, SEVERAL, OTHER = ", "SUBMENU, OTHER, SEVERAL = "),
        {"nvidia_driver"},
    ),
    "an import": (
        edit("roles/framework_env/files/build.py", "\nimport time\n", "\nimport fast as time\n"),
        {"tensorflow_env"},
    ),
    "a pattern of packages": (
        edit("catalog/packages.yml", "driver_parts: [", "driver_parts: ['x-new', "),
        {"nvidia_driver", "packages"},
    ),
    "a driver that rivals NVIDIA's": (
        edit(
            "catalog/known_bad.yml",
            "\nkernel_drivers:\n",
            "\nkernel_drivers:\n  - {module: x_new, symptom: x, instead: x, source: x}\n",
        ),
        {"nvidia_driver"},
    ),
    "what composes the transaction": (
        statement("plugins/plugin_utils/planning/package_transaction.py", "package_transaction"),
        {"packages"},
    ),
    "how a role is run": (
        edit(
            "playbooks/tasks/install.yml",
            "    name: gpuhost.stack.cuda_toolkit\n",
            "    name: gpuhost.stack.cuda_toolkit\n    tasks_from: x\n",
        ),
        {"cuda_toolkit"},
    ),
    "how package-only components are run": (
        edit("playbooks/tasks/install_components.yml", "  loop: ", "  when: true\n  loop: "),
        {"cudnn", "nccl"},
    ),
    "how environments are started": (
        edit("playbooks/tasks/start_environments.yml", "tasks_from: begin", "tasks_from: x"),
        {"tensorflow_env"},
    ),
    "how environments are finished": (
        edit("playbooks/tasks/finish_environments.yml", "tasks_from: finish", "tasks_from: x"),
        {"tensorflow_env"},
    ),
    "a task of another framework": (edit("roles/pytorch_env/tasks/begin.yml", "- name: ", "- name: Changed "), NOTHING),
    "an input of another framework": (
        edit("roles/pytorch_env/vars/main.yml", "package: torch", "package: x"),
        NOTHING,
    ),
    "what waits for apt's lock": (
        statement("plugins/action/apt_update.py", "run"),
        {"nvidia_repo", "nvidia_driver", "cuda_toolkit", "packages"},
    ),
    "a task": (edit("roles/nccl/tasks/main.yml", "- name: ", "- name: Changed "), {"nccl"}),
    "a default": (edit("roles/cudnn/defaults/main.yml", "cudnn_cuda: auto", "cudnn_cuda: none"), {"cudnn"}),
    "a template": (edit("roles/env_paths/templates/cuda.sh.j2", "\n", "\n# Changed, on the host.\n"), {"env_paths"}),
    "a script": (edit("roles/nvidia_driver/files/kernel-guard.sh", "\n\n", "\ntrue\n\n"), {"nvidia_driver"}),
    "a unit": (edit("roles/nvidia_driver/files/gpuhost-kernel-guard.service", "[Unit]", "[Unit]\n"), {"nvidia_driver"}),
    "the name of a file": (
        rename("roles/nvidia_driver/files/07_gpuhost", "roles/nvidia_driver/files/08_gpuhost"),
        {"nvidia_driver"},
    ),
    "a copied file": (statement(f"{UTILS}/host/grub.py", "_lines"), {"nvidia_driver"}),
    "a program of an included role": (
        edit("roles/framework_env/files/build.py", "\nimport ", "\nOTHER = 1\nimport "),
        {"tensorflow_env"},
    ),
    "a module": (statement("plugins/modules/openpgp_key.py", "main"), {"nvidia_repo"}),
    "what a module runs": (statement(f"{UTILS}/base/openpgp.py", "public_keys"), {"nvidia_repo"}),
    "what that uses": (statement(f"{UTILS}/nvidia/driver_load.py", "decide"), {"nvidia_driver"}),
    "the transaction": (statement(TRANSACTION, "_hold"), PACKAGED),
    "the job that runs it": (
        statement("plugins/plugin_utils/actions/host_job.py", "run_as_job"),
        PACKAGED,
    ),
    "what the transaction gets": (edit("playbooks/group_vars/all/transaction.yml", "undo: ", "undo: 1"), {"packages"}),
    "the transaction's task": (
        edit("playbooks/tasks/install_packages_apt.yml", "  register:", "  no_log: 1\n  register:"),
        {"packages"},
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_host_of_yesterday_gets_what_changed_in_its_parts_and_nothing_else(
    name: str, project: Path, before: dict[str, str]
) -> None:
    change, expected = CHANGES[name]
    changed = change(project)
    try:
        desired = drift.parts(PLAN, MANAGED, computed(project))
    finally:
        for file in changed:
            if (PROJECT / file).exists():
                shutil.copy(PROJECT / file, project / file)
            else:
                (project / file).unlink()
    applied = {part: AppliedPart(fingerprint) for part, fingerprint in before.items()}
    plan = desired.pop(drift.PLAN)
    assert plan.fingerprint
    found = drift.drift(desired, applied, PlanDiff((), Cleanup(), {}), MANAGED, "drift")
    assert set(found) == expected
    assert {reason for reasons in found.values() for reason in reasons} <= {
        "its variables or files have changed since the last run"
    }


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("nccl_packages", {"nccl", "packages"}),
        ("nvidia_driver_persistence", {"nvidia_driver"}),
        ("tensorflow_env_damaged", set()),
    ],
)
def test_a_variable_concerns_its_part_and_the_transaction_that_gets_it(
    variable: str, expected: set[str], project: Path, before: dict[str, str]
) -> None:
    def other(facts: Any, prefixes: tuple[str, ...]) -> dict[str, Any]:
        values = variables(facts, prefixes)
        return {name: ["b=2"] if name == variable else value for name, value in values.items()}

    after = computed(project, other)
    assert {part for part in before if before[part] != after[part]} == expected


def test_a_role_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="roles/none is not a role"):
        fingerprints.of_role({}, ["none"], tmp_path)


def test_a_file_that_only_ansible_reads_counts_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "playbooks/tasks").mkdir(parents=True)
    (tmp_path / "meta").mkdir()
    (tmp_path / "roles/nccl/vars").mkdir(parents=True)
    for name in ("install", "install_components", "start_environments", "finish_environments"):
        (tmp_path / f"playbooks/tasks/{name}.yml").write_text("[]")
    (tmp_path / "meta/runtime.yml").write_text("{}")
    shutil.copytree(PROJECT / "catalog", tmp_path / "catalog")
    found = set()
    for value in ("!unsafe a", "!unsafe b"):
        (tmp_path / "roles/nccl/vars/main.yml").write_text(f"x: {value}\n")
        fingerprints._contents.clear()
        found.add(fingerprints.of_role({}, ["nccl"], tmp_path))
    assert len(found) == 2
