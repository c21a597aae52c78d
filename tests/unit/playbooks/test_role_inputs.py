"""What a plan and the variables of a run give to roles, as their defaults; what roles list of a host."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

from tests.unit.playbooks import rendering
from tests.unit.plugin_utils.planning.planning_cases import PLANNED

DIFF = PlanDiff((), Cleanup(), {part.name: Removal() for part in PARTS})


def variable(name: str, **variables: Any) -> Any:
    """Return what a variable of the playbooks is with these others."""
    (answer,) = rendering.rendered([{"variables": variables, "names": [name]}])
    assert isinstance(answer, dict), answer
    return answer[name]


def of_role(role: str, name: str, decided: dict[str, Any] | None = None, **variables: Any) -> Any:
    """Return what a variable of a role is in a play of ours; decided: facts of the run, if it has planned."""
    run = {} if decided is None else {"__gpu_stack_planned": {"state": "drift", "decided": decided}}
    return variable(name, **{**rendering.role_variables(role), **run, **variables})


def given(**changes: Any) -> dict[str, Any]:
    """Return what a plan gives to the roles; changes: of its JSON."""
    return role_inputs.of_plan(plan_from_json({**PLANNED, **changes}), DIFF, Repairs(), {}, load_catalog()).all


KEPT = {"version": "580.126.09", "branch": "580", "kernel_modules": "open", "package": "nvidia-driver-580-open"}
KEPT |= {"source": "distro"}


@pytest.mark.parametrize(
    ("source", "kept", "blocked"),
    [
        ("nvidia", None, False),
        ("distro", None, True),
        (None, None, False),
        (None, KEPT, True),
        (None, {**KEPT, "source": "nvidia"}, False),
    ],
    ids=["nvidia", "distro", "not managed", "kept", "kept of NVIDIA's"],
)
def test_nvidias_driver_must_not_replace_the_distributions(source, kept, blocked):
    driver = {**PLANNED["components"]["driver"], "source": source} if source else None
    found = given(components={**PLANNED["components"], "driver": driver}, kept_driver=kept)
    assert ("libnvidia-*" in found["nvidia_repo_blocked_packages"]) == blocked


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_repository_is_that_of_the_hosts_architecture_with_the_login_of_a_mirror(machine):
    urls = {"ubuntu-24.04": {name: f"https://me:secret@mirror.example/{name}/" for name in ("x86_64", "aarch64")}}
    key = {"key_url": "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/3bf863cc.pub"}
    plan = {"distribution": "ubuntu-24.04", "repository": {**key, "key_fingerprint": "EB69"}}
    decided = {"gpu_stack_plan": plan, "gpu_stack_probe": {"architecture": machine}}
    url = f"https://me:secret@mirror.example/{machine}/"
    for name, expected in (("nvidia_repo_url", url), ("nvidia_repo_key_url", f"{url}3bf863cc.pub")):
        assert of_role("nvidia_repo", name, decided, gpu_stack_repositories=urls) == expected
    own = {"nvidia_repo_url": "https://own.example/", "gpu_stack_repositories": urls}
    variables = rendering.role_variables("nvidia_repo") | own
    run = {"__gpu_stack_planned": {"decided": decided}}
    assert variable("nvidia_repo_key_url", **variables, **run) == "https://own.example/3bf863cc.pub"


@pytest.mark.parametrize(("framework", "count"), [("tensorflow", 1), ("pytorch", 2)])
def test_a_framework_trains_on_the_gpus_that_it_does_not_leave_out(framework, count):
    gpus = [{"name": "x", "compute_capability": "8.6", "architecture": "Ampere", "pci_id": "10de:2204"}]
    gpus += [{**gpus[0], "pci_id": "10de:1c82", "left_out_by": "tensorflow"}]
    decided = {"gpu_stack_role_inputs": given(gpus=gpus)}
    assert of_role("smoke_train", "smoke_train_gpus", decided, smoke_train_framework=framework) == count


def test_it_trains_on_the_gpus_that_the_run_has_chosen():
    chosen = {"gpu_stack_trainings": {"pytorch": {"action": "train", "gpus": [0, 2]}}}
    found = [
        of_role("smoke_train", "smoke_train_gpu_indices", {}, smoke_train_framework=name, **chosen)
        for name in ("tensorflow", "pytorch")
    ]
    assert found == [[], [0, 2]]


@pytest.mark.parametrize(
    ("code", "seconds"), [(framework_checks.UNPROVEN, framework_checks.COMPILE_SECONDS), ("ptx-jit", 0)]
)
def test_training_waits_as_long_as_the_checks_for_a_release_that_is_not_known_to_run(code, seconds):
    assert given(warnings=[{"code": code, "message": "x"}])["smoke_train_compile_time"] == seconds


def test_the_decision_that_is_being_made_counts_and_not_an_earlier_one_of_the_run():
    earlier = {"gpu_stack_role_inputs": {"cudnn_replaces": ["libcudnn8"]}}
    found = of_role("cudnn", "cudnn_replaces", earlier, gpu_stack_role_inputs={"cudnn_replaces": ["libcudnn7"]})
    assert found == ["libcudnn7"]


def test_a_role_alone_has_the_defaults_of_its_readme():
    """In a play with roles of ours that is none of our playbooks, nothing is given, even after one of them has run."""
    decided = {"gpu_stack_role_inputs": {"cudnn_replaces": ["libcudnn8"]}}
    assert of_role("cudnn", "cudnn_replaces", decided) == ["libcudnn8"]
    row = {"variables": {**rendering.role_variables("cudnn"), "__gpu_stack_planned": {"decided": decided}}}
    (answer,) = rendering.rendered([{**row, "names": ["cudnn_replaces"]}], base={})
    assert answer == {"cudnn_replaces": []}


@pytest.mark.parametrize(("factor", "seconds"), [({}, 7200), ({"gpu_stack_timeout_factor": 2.5}, 18000)])
def test_the_time_limit_of_environments_follows_gpu_stack_timeout_factor(factor, seconds):
    for framework in ("tensorflow", "pytorch"):
        values = {**rendering.role_variables("framework_env"), "framework_env_name": framework, **factor}
        assert of_role(f"{framework}_env", "__framework_env_timeout", **values) == seconds


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "fail"), ({"gpu_stack_unknown": ""}, "fail"), ({"gpu_stack_unknown": "warn"}, "warn")],
)
def test_gpu_stack_unknown_is_also_for_the_training(variables, expected):
    assert of_role("smoke_train", "smoke_train_unknown", **variables) == expected


def managed(**variables):
    """Return gpu_stack_managed and gpu_stack_managed_resources."""
    names = ("gpu_stack_managed", "gpu_stack_managed_resources")
    return [variable(name, **{"__gpu_stack_is_whole": True, **variables}) for name in names]


@pytest.mark.parametrize(
    ("scope", "is_recorded"), [(True, True), (False, False)], ids=["the whole host", "frameworks alone"]
)
def test_commands_of_the_users_own_are_watched_and_restored(scope, is_recorded):
    parts, recorded = managed(env_paths_commands=["nvcc", "nsys"], __gpu_stack_is_whole=scope)
    watched = ManagedPart.from_json(parts["env_paths"]).watch
    assert watched["files"].count("/usr/local/bin/nvcc") == watched["files"].count("/usr/local/bin/nsys") == 1
    files = recorded.get("files", [])
    assert files.count("/usr/local/bin/nsys") == files.count("/usr/local/bin/nvcc") == is_recorded
    assert recorded["environments"] == ["/opt/gpuhost/tensorflow", "/opt/gpuhost/pytorch"]
    assert (recorded.get("alternatives") == ["cuda"]) == ("services" in recorded) == is_recorded


@pytest.mark.parametrize(
    ("variables", "driver", "modules"),
    [
        ({}, True, True),
        ({"nvidia_driver_load_module": False}, False, False),
        # As where an image of a host is made: built for a kernel that does not run.
        ({"nvidia_driver_load_module": False, "gpu_stack_kernel_module": "built"}, False, True),
    ],
    ids=["a host", "a container", "an image"],
)
def test_what_of_the_driver_is_watched(variables, driver, modules):
    parts, _recorded = managed(**variables)
    # Services that start with the host, uv, and each environment with all its files.
    assert parts["nvidia_driver"]["services"] == ["nvidia-persistenced", "nvidia-fabricmanager"]
    assert parts["fabric"]["services"] == ["nvidia-fabricmanager"]
    assert parts["nvidia_driver"]["blacklists"] is True
    keys = [f"/var/lib/gpuhost/module_signing/{name}" for name in ("key", "certificate")]
    assert parts["nvidia_driver"]["secrets"] == keys
    assert {*keys, "/var/lib/gpuhost/module_signing"} <= set(parts["nvidia_driver"]["files"])
    assert (parts["nvidia_driver"]["driver"], parts["nvidia_driver"]["modules"]) == (driver, modules)
    for framework in ("tensorflow", "pytorch"):
        assert parts[f"{framework}_env"]["environments"] == [f"/opt/gpuhost/{framework}"]
        assert parts[f"{framework}_env"]["trees"] == ["/opt/gpuhost/uv"]
