"""role_inputs.yml, templated by Ansible: which packages apt may take, and what variables of a run set in roles."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart

from tests.unit.playbooks import rendering


def variable(name: str, **variables: Any) -> Any:
    """Return what a variable of the playbooks is with these others."""
    (answer,) = rendering.rendered([{"variables": variables, "names": [name]}])
    assert isinstance(answer, dict), answer
    return answer[name]


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
    plan = {"components": {"driver": {"source": source} if source else None}, "kept_driver": kept}
    assert ("libnvidia-*" in variable("nvidia_repo_blocked_packages", gpu_stack_plan=plan)) == blocked


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_repository_is_that_of_the_hosts_architecture(machine):
    urls = {"ubuntu-24.04": {name: f"https://mirror.example/{name}/" for name in ("x86_64", "aarch64")}}
    host = {"gpu_stack_probe": {"architecture": machine}, "gpu_stack_plan": {"distribution": "ubuntu-24.04"}}
    assert variable("nvidia_repo_url", gpu_stack_repositories=urls, **host) == f"https://mirror.example/{machine}/"


@pytest.mark.parametrize(("framework", "count"), [("tensorflow", 1), ("pytorch", 2)])
def test_a_framework_trains_on_the_gpus_that_it_does_not_leave_out(framework, count):
    plan = {"gpus": [{"pci_id": "10de:1c82", "left_out_by": "tensorflow"}, {"pci_id": "10de:2204"}]}
    assert variable("smoke_train_gpus", gpu_stack_plan=plan, smoke_train_framework=framework) == count


@pytest.mark.parametrize(
    ("code", "seconds"), [(framework_checks.UNPROVEN, framework_checks.COMPILE_SECONDS), ("ptx-jit", 0)]
)
def test_training_waits_as_long_as_the_checks_for_a_release_that_is_not_known_to_run(code, seconds):
    assert variable("smoke_train_compile_time", gpu_stack_plan={"warnings": [{"code": code}]}) == seconds


@pytest.mark.parametrize(("factor", "seconds"), [({}, 7200), ({"gpu_stack_timeout_factor": 2.5}, 18000)])
def test_the_time_limit_of_environments_follows_gpu_stack_timeout_factor(factor, seconds):
    role = yaml.safe_load((rendering.PROJECT / "roles/framework_env/vars/main.yml").read_text())
    for framework in ("tensorflow", "pytorch"):
        own = f"{{{{ lookup('ansible.builtin.vars', '{framework}_env_timeout_factor') }}}}"
        values = {**role, "framework_env_timeout_factor": own, **factor}
        assert variable("__framework_env_timeout", **values) == seconds


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "fail"), ({"gpu_stack_unknown": ""}, "fail"), ({"gpu_stack_unknown": "warn"}, "warn")],
)
def test_gpu_stack_unknown_is_also_for_the_training(variables, expected):
    assert variable("smoke_train_unknown", **variables) == expected


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


def test_what_a_part_has_of_a_kind_that_no_playbook_names_is_watched_and_recorded():
    listed = {name: {"files": []} for name in ("packages", "plan")} | {"lab": {"for": ["cuda"], "sysctls": ["vm/swap"]}}
    parts, recorded = managed(__gpu_stack_listed=listed)
    assert (ManagedPart.from_json(parts["lab"]).watch, recorded["sysctls"]) == ({"sysctls": ["vm/swap"]}, ["vm/swap"])


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
