"""meta/variables.yml: each variable that a user may set is declared there, accepted as declared, and read."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import (
    declared,
    of_request,
    of_runs,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model import user_variables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables

from tests.unit.ansible_runs import run_playbook
from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.requested import requested

PROJECT = Path(__file__).resolve().parents[4]
INTERNAL = yaml.safe_load((PROJECT / "playbooks/group_vars/all/internal.yml").read_text())
TODAY = date(2027, 1, 1)
# Ansible renders `hosts` and `serial` without the inventory's variables, so this file reads hostvars, too.
WITHOUT_VARIABLES = "playbooks/vars/batches.yml"
ADDED = """
gpu_stack_colour:
  type: choice
  meaning: The colour of the GPUs.
  choices: {green: as they are sold, black: null}
  default: green
  read_by: [playbooks/teardown.yml]
"""


def texts(*folders: str) -> dict[str, str]:
    """Return the source files below folders by name, those that Ansible or Python reads."""
    found = {path for folder in folders for end in ("yml", "py", "j2") for path in PROJECT.glob(f"{folder}/**/*.{end}")}
    return {
        str(path.relative_to(PROJECT)): path.read_text() for path in sorted(found) if "/collections/" not in str(path)
    }


def test_the_fields_of_the_request_are_the_declared_variables_in_their_order() -> None:
    assert list(asking()) == list(of_request())
    assert asking() == requested({})


@pytest.mark.parametrize("name", declared())
def test_default_and_choices_are_accepted_and_nonsense_is_not(name: str) -> None:
    variable = declared()[name]
    for value in (variable.default, *variable.choices):
        assert variables.wrong_values({name: value}, frozen_catalog(), TODAY) == [], value
    assert not variable.choices or variable.default in variable.choices
    if variable.type != "text":
        nonsense = "?" if variable.type == "mapping" else {"no such": "value"}
        (mistake,) = variables.wrong_values({name: nonsense}, frozen_catalog(), TODAY)
        assert re.match(rf"{name} is .+[;,] expected (?!one of $)\w", mistake), mistake


@pytest.mark.parametrize("name", declared())
def test_every_variable_is_read_where_its_declaration_says(name: str) -> None:
    """By its name; that of a component in the module that chooses it."""
    variable = declared()[name]
    assert variable.read_by
    for file in variable.read_by:
        pattern = (
            rf'request(?:"\))?\["{variable.option}"\]|"{name}"'
            if file.endswith(".py")
            else rf"\b{name}\b|request\.{variable.option}\b"
        )
        if variable.option in BY_NAME:
            pattern = f"^(CHOICE|{variable.option.upper()}) = "
        assert re.search(pattern, (PROJECT / file).read_text(), re.MULTILINE), f"{file} does not read {name}"


def test_every_name_that_is_read_is_declared() -> None:
    read = {
        (file, name)
        for file, text in texts("playbooks", "roles", "plugins").items()
        for name in re.findall(r"(?<!\w)gpu_stack_\w*[a-z]\b", text)
    }
    known = {*declared(), *INTERNAL["gpu_stack_internal_variables"]}
    assert len(read) > 100
    assert {found for found in read if found[1] not in known} == set()


def test_no_default_is_repeated_where_a_variable_is_read() -> None:
    names = "|".join(declared())
    for file, text in texts("playbooks").items():
        if file != WITHOUT_VARIABLES:
            assert re.findall(rf"\b(?:{names}) *\| *default\b", text) == [], file


def test_an_unknown_key_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "variables.yml").write_text(f"{ADDED}  defualt: green\n")
    monkeypatch.setattr(user_variables, "DECLARATION", tmp_path / "variables.yml")
    with pytest.raises(ValueError, match=r"variables\.yml: gpu_stack_colour: .*defualt"):
        declared.__wrapped__()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project that declares one more variable, and is changed nowhere else."""
    copy = tmp_path_factory.mktemp("copy") / "clone"
    left_out = shutil.ignore_patterns(".*", "reports", "__pycache__")
    shutil.copytree(PROJECT, copy, symlinks=True, ignore=left_out)
    with (copy / "meta/variables.yml").open("a") as file:
        file.write(ADDED)
    return copy


def test_a_declaration_is_enough_for_the_check_of_values_and_names(clone: Path) -> None:
    hosts = {
        "one": {"gpu_stack_colour": "blck"},
        "two": {"gpu_stack_color": "black"},
        "right": {"gpu_stack_colour": "black"},
    }
    inventory = {"gpu_hosts": {"vars": {"ansible_connection": "local"}, "hosts": hosts}}
    (clone / "hosts.yml").write_text(yaml.safe_dump(inventory))
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(clone / "collections"), "GPUHOST_REPORTS": str(clone / "reports")}
    done = run_playbook(clone, "playbooks/monitor.yml", "-i", "hosts.yml", **settings)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "- gpu_stack_colour is 'blck'; expected one of green, black; did you mean black?" in done.stdout
    assert "- gpu_stack_color: no such variable; did you mean gpu_stack_colour?" in done.stdout
    assert re.search(r"^right +: ok=1 .*failed=0", done.stdout, re.MULTILINE)


def test_a_declaration_is_enough_for_the_table_of_variables(clone: Path) -> None:
    command = [sys.executable, str(clone / "script/docs"), "--check"]
    assert "docs/usage.md is stale" in subprocess.run(command, capture_output=True, text=True).stdout
    done = subprocess.run(command[:2], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["wrote docs/usage.md"], done.stdout + done.stderr
    row = "| `gpu_stack_colour` | `green` | The colour of the GPUs. `green`: as they are sold; `black`. |"
    assert row in (clone / "docs/usage.md").read_text().splitlines()


def test_script_plan_says_that_a_variable_of_runs_changes_no_plan(clone: Path) -> None:
    module = "ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command"
    command = [
        sys.executable,
        "-m",
        module,
        "--distro",
        "debian-12",
        "--gpu",
        "NVIDIA H200",
        "--request",
        "colour=black",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=clone / "collections")
    assert done.returncode == 2
    assert "gpu_stack_colour changes no plan" in done.stderr


def test_names_of_runs_are_those_outside_the_request() -> None:
    assert not of_runs().keys() & of_request().keys()
    assert "wait" in of_runs()
    assert "smoke_train_max_age" not in of_runs()
