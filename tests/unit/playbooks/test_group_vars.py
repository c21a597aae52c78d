"""What a plan gives to the variables of roles, the package transaction, and what is recorded and restored.

A snapshot has all of it for one host, and of others what differs from that, so that any other list, default or
condition there is a reviewed diff.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs, SettingsLine
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff
from syrupy.assertion import SnapshotAssertion

from tests.unit.playbooks import rendering
from tests.unit.plugin_utils.planning.planning_cases import PLANNED, planned

PROJECT = rendering.PLAYBOOKS.parent
ROLES = {role: rendering.role_variables(role) for role in role_inputs.roles()}
INPUTS = {
    name: role
    for role, variables in ROLES.items()
    for name, value in variables.items()
    if name in role_inputs.roles()[role] and re.search(rf"__{role}_(inputs|defaults|\w+_planned)\b", str(value))
}
FOLDERS = ("gpu_stack_left_out", "gpu_stack_own_folders", "gpu_stack_state_directory", "gpu_stack_cache_directory")
RESTORED = ("gpu_stack_managed_resources",)

DIFF = PlanDiff(
    (),
    Cleanup(
        does=("removes the driver of a .run file",),
        set_aside=("/etc/apt/sources.list.d/cuda.list",),
        purge=("cuda-repo-ubuntu+local",),
        driver_uninstallers=("/usr/bin/nvidia-uninstall",),
        cuda_uninstallers=("/usr/local/cuda-12.9/bin/cuda-uninstaller",),
    ),
    {
        **{part.name: Removal() for part in PARTS},
        "driver": Removal(replaces=("nvidia-driver-580",), may_remove=("nvidia-settings",)),
        "cuda": Removal(replaces=("cuda-12-9",), may_remove=("cuda-drivers",)),
        "cudnn": Removal(replaces=("libcudnn8",)),
    },
    adopted_source="/etc/apt/sources.list.d/nvidia.list",
)
NO_DIFF = PlanDiff((), Cleanup(), {part.name: Removal() for part in PARTS})
REPAIRS = Repairs(
    ("libcudnn9-cuda-13",),
    ("/opt/gpuhost/tensorflow",),
    ("nvidia-persistenced", "nvidia-fabricmanager"),
    tuple(SettingsLine(f"/etc/{folder}/x.conf", "x") for folder in ("modprobe.d", "profile.d")),
)
NO_REPAIRS = Repairs()
NOTHING_PLANNED = planned().to_json()
OWN_PYTORCH: dict[str, Any] = {
    "version": "2.9.0",
    "python": "3.11",
    "cuda": "12.8",
    "requirements": ["torch==2.9.0"],
    "lock": "own.txt",
}
OWN_PYTORCH |= {"index": "https://download.pytorch.org/whl/cu128", "compiler_packages": ["gcc"]}
OWN_PYTORCH |= {"header_packages": ["python3.11-dev"]}
WITH_PYTORCH = {**PLANNED, "components": {**PLANNED["components"], "pytorch": OWN_PYTORCH}}
FACTS = {"distribution": "Debian", "distribution_version": "12", "architecture": "x86_64"}
FACTS |= {"distribution_major_version": "12"}
LOCKS = {"tensorflow": "tensorflow-2.21.0-py3.11.txt", "pytorch": "/inventory/gpu_stack_locks/own.txt"}


def values(plan: dict[str, Any], diff: PlanDiff, repairs: Repairs, **variables: Any) -> dict[str, Any]:
    """Return the variables of a host with this plan, as its roles have them; what has no value is `(none)`."""
    needed = {name for name, planned in plan["components"].items() if planned}
    inputs = role_inputs.of_plan(plan_from_json(plan), diff, repairs, LOCKS, load_catalog())
    decided = {
        "gpu_stack_plan": plan,
        "gpu_stack_probe": {"architecture": "x86_64"},
        "gpu_stack_parts": [name for name, part in rendering.managed().items() if needed.intersection(part["for"])],
        "gpu_stack_role_inputs": inputs.all,
    }
    run = {"__gpu_stack_planned": {"state": "drift", "decided": decided}, "ansible_facts": FACTS, **variables}
    rows = [{"variables": {**ROLES[role], **run}, "names": [name]} for name, role in INPUTS.items()]
    rows += [{"variables": run, "names": [name]} for name in (*FOLDERS, *RESTORED)]
    found = rendering.rendered([*rows, {"variables": run, "transaction": [decided, repairs.packages]}])
    names = [*INPUTS, *FOLDERS, *RESTORED]
    given = {
        name: "(none)" if isinstance(answer, str) else answer[name]
        for name, answer in zip(names, found[:-1], strict=True)
    }
    transitions = [name for name in INPUTS if role_inputs.is_transition(name, inputs)]
    return {**given, "transaction": found[-1], "transitions": transitions}


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """Return the variables of a host with leftovers and damage that gets every component."""
    return values(WITH_PYTORCH, DIFF, REPAIRS)


def text(found: dict[str, Any]) -> str:
    return yaml.safe_dump(found, sort_keys=False, width=120)


def test_variables_of_a_host_with_everything(whole: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert text(whole) == snapshot


@pytest.mark.parametrize(
    ("plan", "diff", "repairs", "variables"),
    [
        pytest.param(NOTHING_PLANNED, NO_DIFF, NO_REPAIRS, {}, id="nothing"),
        pytest.param(
            {
                **NOTHING_PLANNED,
                "request": {"scope": "frameworks"},
                "components": {**NOTHING_PLANNED["components"], "pytorch": OWN_PYTORCH},
            },
            NO_DIFF,
            NO_REPAIRS,
            {"gpu_stack_scope": "frameworks", "gpu_stack_timeout_factor": 2},
            id="frameworks",
        ),
        pytest.param(
            WITH_PYTORCH,
            DIFF,
            REPAIRS,
            {
                "__gpu_stack_packages": {"changed": True},
                "ansible_skip_tags": ["cudnn", "verify"],
                "gpu_stack_reboot": "never",
                "gpu_stack_rollback": False,
                "gpu_stack_repository_key_url": "https://mirror.example/key.asc",
                "gpu_stack_unknown": "warn",
                "env_paths_commands": ["nsys"],
            },
            id="options",
        ),
    ],
)
def test_variables_of_other_hosts(
    whole: dict[str, Any],
    plan: dict[str, Any],
    diff: PlanDiff,
    repairs: Repairs,
    variables: dict[str, Any],
    snapshot: SnapshotAssertion,
) -> None:
    found = values(plan, diff, repairs, **variables)
    assert text({name: value for name, value in found.items() if value != whole[name]}) == snapshot


# What is listed twice -------------------------------------------------------------------------------------------------


def keys(node: yaml.MappingNode) -> list[str]:
    """Return the keys of a mapping with those that it merges, as Ansible's loader reads them."""
    merged = [value for key, value in node.value if key.value == "<<"]
    own = [key.value for key, _value in node.value if key.value != "<<"]
    return own + [key for value in merged for key in keys(value)]


def test_no_mapping_has_a_key_twice_of_which_ansible_warns_in_each_run() -> None:
    """Also a key that overrides a merged one, which YAML allows."""
    paths = [path for folder in ("playbooks", "roles") for path in (PROJECT / folder).rglob("*.yml")]
    todo = [yaml.compose(path.read_text(), Loader=yaml.SafeLoader) for path in paths]
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.MappingNode):
            assert sorted(keys(node)) == sorted(set(keys(node))), node.start_mark
            todo += [value for _key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
