"""What group_vars/all makes of a plan: the roles' variables, the package transaction, what is recorded and restored.

A snapshot has all of it for one host, and of others what differs from that, so that any other list, default or
condition there is a reviewed diff.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs
from syrupy.assertion import SnapshotAssertion

from tests.unit.playbooks import rendering
from tests.unit.plugin_utils.planning.planning_cases import PLANNED, planned

PROJECT = rendering.PLAYBOOKS.parent
INPUTS = list(role_inputs.inputs())
OTHERS = (
    "__gpu_stack_transaction",
    "__gpu_stack_apt_components",
    "__gpu_stack_reinstall",
    "gpu_stack_left_out",
    "gpu_stack_transitions",
)
FOLDERS = (
    "gpu_stack_own_folders",
    "gpu_stack_state_directory",
    "gpu_stack_cache_directory",
)
RESTORED = ("gpu_stack_managed_resources",)
NAMES = [*INPUTS, *OTHERS, *FOLDERS, *RESTORED]

LEFTOVERS = {
    "does": ["removes the driver of a .run file"],
    "set_aside": ["/etc/apt/sources.list.d/cuda.list"],
    "purge": ["cuda-repo-ubuntu+local"],
    "driver_uninstallers": ["/usr/bin/nvidia-uninstall"],
    "cuda_uninstallers": ["/usr/local/cuda-12.9/bin/cuda-uninstaller"],
}
NO_LEFTOVERS = {name: [] for name in LEFTOVERS}
DIFF = {
    "leftovers": LEFTOVERS,
    "replaces": {"driver": ["nvidia-driver-580"], "cuda": ["cuda-12-9"], "fabric": [], "cudnn": ["libcudnn8"]},
    "may_remove": {"driver": ["nvidia-settings"], "cuda": ["cuda-drivers"]},
}
NO_DIFF = {
    "leftovers": NO_LEFTOVERS,
    "replaces": {"driver": [], "fabric": [], "cuda": [], "cudnn": []},
    "may_remove": {"driver": [], "cuda": []},
}
LINES = [{"file": f"/etc/{folder}/x.conf", "line": "x"} for folder in ("modprobe.d", "profile.d")]
REPAIRS = {
    "packages": ["libcudnn9-cuda-13"],
    "environments": ["/opt/gpuhost/tensorflow"],
    "services": ["nvidia-persistenced", "nvidia-fabricmanager"],
    "lines": LINES,
}
NO_REPAIRS: dict[str, Any] = {"packages": [], "environments": [], "services": [], "lines": []}
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
LOCKS = {"tensorflow": "tensorflow-2.21.0-py3.11.txt", "pytorch": "/inventory/gpu_stack_locks/own.txt"}


def values(plan: dict[str, Any], diff: dict[str, Any], repairs: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """Return the variables of a host with this plan; what its plan gives no value is `(none)`."""
    needed = {name for name, planned in plan["components"].items() if planned}
    decided = {
        "gpu_stack_plan": plan,
        "gpu_stack_diff": diff,
        "gpu_stack_repairs": repairs,
        "gpu_stack_probe": {"architecture": "x86_64"},
        "gpu_stack_lock_files": LOCKS,
        "gpu_stack_parts": [name for name, part in rendering.managed().items() if needed.intersection(part["for"])],
    }
    run = {
        "__gpu_stack_planned": {"state": "drift", "decided": decided},
        "smoke_train_framework": "tensorflow",
    }
    found = rendering.rendered([{"variables": {**run, **variables}, "names": [name]} for name in NAMES])
    return {
        name: "(none)" if isinstance(answer, str) else answer[name] for name, answer in zip(NAMES, found, strict=True)
    }


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
            {**NOTHING_PLANNED, "components": {**NOTHING_PLANNED["components"], "pytorch": OWN_PYTORCH}},
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
    diff: dict[str, Any],
    repairs: dict[str, Any],
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
