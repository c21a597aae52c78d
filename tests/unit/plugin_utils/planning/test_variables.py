"""The variables of a host: names, and values of the request, of a run and of roles."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.modules import gpu_verify
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared, of_runs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs, variables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import training
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog

PROJECT = Path(__file__).resolve().parents[4]
INTERNAL = yaml.safe_load((PROJECT / "playbooks/group_vars/all/internal.yml").read_text())[
    "gpu_stack_internal_variables"
]
KNOWN = sorted(name for name in declared() if name.startswith("gpu_stack_"))
TODAY = date(2027, 1, 1)


def misspelt(*names: str) -> list[str]:
    return variables.misspelt(names, KNOWN, INTERNAL)


def wrong(**values: Any) -> list[str]:
    return variables.wrong_values(values, frozen_catalog(), TODAY)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("gpu_stack_cude", "gpu_stack_cuda"),
        ("gpustack_cuda", "gpu_stack_cuda"),
        ("GPU_STACK_CUDA", "gpu_stack_cuda"),
        ("gpu-stack-driver-source", "gpu_stack_driver_source"),
        ("gpu_stak_driver", "gpu_stack_driver"),
        ("tensorflow_env_ca_bundel", "tensorflow_env_ca_bundle"),
        ("nvidia_driver_reboots", "nvidia_driver_reboot"),
        ("smoke_train_max_ages", "smoke_train_max_age"),
        ("gpu_monitor_second", "gpu_monitor_seconds"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_known_one(name: str, meant: str) -> None:
    assert misspelt(name) == [f"{name}: no such variable; did you mean {meant}?"]


def test_a_name_like_no_other_gets_all_known_ones() -> None:
    (mistake,) = misspelt("gpu_stack_xyzzy")
    assert mistake.endswith("no such variable; known are " + ", ".join(KNOWN))


@pytest.mark.parametrize(
    "name",
    ["nccl_debug", "cuda_version", "tensorflow_version", "nvidia_version", "lab_gpus", "ansible_user", "__gpu_stack_x"],
)
def test_names_of_others_are_left_alone(name: str) -> None:
    assert misspelt(name) == []


# Of its defaults/main.yml at 01a9b37e, which also has epel_* and old_*.
OF_NVIDIAS_ROLE = """
    package_state package_version persistence_mode_on skip_reboot module_file module_params add_repos branch
    rhel_cuda_repo_baseurl rhel_cuda_repo_gpgkey rhel_branch debian_branch debian_install_from_cuda_repo debian_packages
    debian_install_tesla_driver debian_tesla_package debian_cuda_repo_baseurl debian_cuda_keyring_package
    debian_cuda_keyring_url debian_cuda_package ubuntu_branch ubuntu_install_from_cuda_repo ubuntu_packages_suffix
    ubuntu_packages ubuntu_cuda_repo_baseurl ubuntu_cuda_keyring_package ubuntu_cuda_keyring_url ubuntu_cuda_package
"""


@pytest.mark.parametrize("name", [f"nvidia_driver_{name}" for name in OF_NVIDIAS_ROLE.split()])
def test_a_variable_of_nvidias_role_is_named_as_such_and_may_stay_beside_ours(name: str) -> None:
    (mistake,) = misspelt(name)
    assert mistake.startswith(f"{name} is a variable of NVIDIA's role nvidia.nvidia_driver, not of gpuhost; ")
    asks_for = re.findall(r"set (\w+), beside it or in its place", mistake)
    assert asks_for or "none of ours means the same; remove the line" in mistake
    for ours in asks_for:
        assert ours in {*KNOWN, *variables.role_options()}
        assert misspelt(name, ours) == []


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("smoke_train_enabled", "add --skip-tags smoke_train to the command"),
        ("gpu_stack_smoke_train_enabled", "add --skip-tags smoke_train to the command"),
        ("pytorch_env_install", "set gpu_stack_pytorch=none"),
    ],
)
def test_a_switch_that_a_role_does_not_have(name: str, instead: str) -> None:
    (mistake,) = misspelt(name)
    assert mistake.endswith(f" out, {instead}")


def test_a_name_that_is_a_number_is_left_to_ansible() -> None:
    """{gpu_stack_cuda: 13,2} has a second variable, 2, of which Ansible warns."""
    named: Any = {"gpu_stack_cuda": 13, 2: None}
    assert variables.misspelt(named, KNOWN, INTERNAL) == []


def test_every_known_name_is_accepted() -> None:
    assert misspelt(*KNOWN, *INTERNAL, *variables.role_options(), *variables.RESULTS) == []


def test_what_roles_set_is_accepted() -> None:
    found = set()
    for path in [*PROJECT.glob("roles/*/tasks/*.yml"), *PROJECT.glob("playbooks/**/*.yml")]:
        pending: list[Any] = [yaml.safe_load(path.read_text())]
        while pending:
            item = pending.pop()
            if isinstance(item, dict):
                found |= {item["register"]} if "register" in item else set()
                facts = item.get("ansible.builtin.set_fact", {})
                found |= set(facts) if isinstance(facts, dict) else set()
                pending += item.values()
            elif isinstance(item, list):
                pending += item
    assert "smoke_train_result" in found
    assert misspelt(*found) == []


def test_what_playbooks_read_is_accepted() -> None:
    prefixes = "|".join([*role_inputs.roles(), "gpu_monitor"])
    text = "\n".join(path.read_text() for path in PROJECT.glob("playbooks/**/*.yml"))
    found = set(re.findall(rf"(?<![\w./])(?:{prefixes})_\w+(?= *\||'\))", text))
    assert {"smoke_train_max_age", "gpu_monitor_seconds"} <= found
    assert misspelt(*found) == []


def test_choices_are_those_of_who_reads_them() -> None:
    documented = yaml.safe_load(gpu_verify.DOCUMENTATION)["options"]
    choices = {name: list(variable.choices) for name, variable in of_runs().items()}
    assert choices["kernel_module"] == documented["kernel_module"]["choices"]
    assert choices["unknown"] == documented["unknown"]["choices"]
    assert choices["reboot"] == variables.role_options()["nvidia_driver_reboot"]["choices"]
    assert set(choices["converge"]) == set(drift.CONVERGE)
    assert set(choices["smoke_train"]) == {training.AUTO, training.ALWAYS}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_stack_cuda", ">13"),
        ("gpu_stack_reboot", False),
        ("gpu_stack_reboot", "if-needed"),
        ("gpu_stack_converge", "allways"),
        ("gpu_stack_rollback", "perhaps"),
        ("gpu_stack_partial", None),
        ("gpu_stack_max_failed", "half"),
        ("gpu_stack_serial", "half"),
        ("gpu_stack_serial", 0),
        ("gpu_stack_serial", "101%"),
        ("gpu_stack_serial", True),
        ("gpu_stack_module_signing_key", "mok.key"),
        ("gpu_stack_module_signing_certificate", ["/mok.der"]),
        ("gpu_stack_environment", "http_proxy=x"),
        ("gpu_stack_timeout_factor", "slow"),
        ("gpu_stack_timeout_factor", 0),
        ("gpu_stack_timeout_factor", -1),
        ("gpu_stack_timeout_factor", "nan"),
        ("gpu_stack_timeout_factor", True),
        ("gpu_stack_timeout_factor", 101),
        ("gpu_stack_wait", "10 min"),
        ("gpu_stack_wait", -1),
        ("gpu_stack_wait", True),
        ("gpu_stack_wait", None),
        ("gpu_stack_waivers", [{"check": "no.such"}]),
        ("gpu_stack_pytorch", 2.1),
        ("gpu_stack_tensorflow", 2.2),
        ("tensorflow_env_python", 3.1),
        ("pytorch_env_version", 2.1),
        ("nvidia_driver_reboot", True),
        ("nvidia_driver_load_module", "maybe"),
        ("nvidia_driver_kernel_headers", {"a": 1}),
        ("smoke_train_steps", "many"),
        ("tensorflow_env_ca_bundle", ["/a"]),
        ("host_verify_prometheus_directory", "metrics"),
        ("nvidia_driver_disabled_lines", [{"file": "/a"}]),
        ("pytorch_env_index_url", "pypi.org/simple"),
        ("nvidia_repo_url", "mirror.example.org"),
        ("nvidia_driver_persistence", None),
        ("tensorflow_env_path", "/opt/gpuhost/tensorflow/"),
        ("pytorch_env_path", "/srv/pytorch"),
        ("tensorflow_env_uv_path", "/srv/uv"),
        ("nvidia_repo_key_path", "/etc/apt/keyrings/cuda.asc"),
        ("nvidia_repo_set_aside_folder", "/root"),
        ("smoke_train_python", "/opt/gpuhost/tensorflow/bin/python"),
        ("framework_env_path", "/srv/tensorflow"),
        ("framework_env_cache", "/srv/uv"),
        ("framework_env_extra_index_url", "https://a.example.org"),
        ("nvidia_driver_module_signing_key", "/k"),
        ("nvidia_driver_module_signing_certificate", "/c"),
        ("smoke_train_mirror_url", "https://me:secret@mirror.example.org/cifar-10-binary.tar.gz"),
        ("env_paths_commands", []),
    ],
    ids=str,
)
def test_a_value_that_is_not_accepted(name: str, value: Any, snapshot: SnapshotAssertion) -> None:
    (mistake,) = wrong(**{name: value})
    assert mistake.startswith((name, f"{name}, entry"))
    assert mistake == snapshot


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_stack_cuda", 13.2),
        ("gpu_stack_cuda", None),
        ("gpu_stack_tensorflow", "2.2"),
        ("gpu_stack_reboot", ""),
        ("gpu_stack_rollback", "no"),
        ("gpu_stack_serial", [1, "25%", "33.3%"]),
        ("gpu_stack_module_signing_key", "~/mok.key"),
        ("gpu_stack_module_signing_certificate", "/keys/mok.der"),
        ("gpu_stack_timeout_factor", 1.5),
        ("gpu_stack_timeout_factor", "3"),
        ("gpu_stack_timeout_factor", None),
        ("gpu_stack_wait", 0),
        ("gpu_stack_wait", "900"),
        ("gpu_stack_waivers", []),
        ("nvidia_driver_load_module", "false"),
        ("nvidia_driver_kernel_headers", []),
        ("smoke_train_steps", "30"),
        ("tensorflow_env_version", 2.21),
        ("tensorflow_env_index_url", ""),
        ("tensorflow_env_index_url", "https://me:secret@pypi.example.org/simple"),
        ("tensorflow_env_index_url", "/srv/wheels"),
        ("nvidia_repo_url", "file:/srv/cuda"),
        ("tensorflow_env_python", "3.10"),
        ("tensorflow_env_path", "/opt/gpuhost/tensorflow"),
        ("pytorch_env_cache", "/srv/uv"),
        ("smoke_train_data_directory", "/srv/cifar10"),
        ("env_paths_commands", ["nvcc", "nsys"]),
        ("nvidia_driver_module_signing_key", ""),
        ("smoke_train_mirror_url", "https://mirror.example.org/a@b.tar.gz"),
    ],
)
def test_a_value_that_is_accepted(name: str, value: Any) -> None:
    assert wrong(**{name: value}) == []


@pytest.mark.parametrize(
    ("values", "is_refused"),
    [
        ({"nvidia_driver_version": "580.999"}, True),
        ({"nvidia_driver_version": 595, "tensorflow_env_version": "2.21"}, False),
        ({"tensorflow_env_version": "2.99"}, True),
        ({"tensorflow_env_python": "3.6"}, True),
        ({"tensorflow_env_version": "2.99", "tensorflow_env_lock": "/srv/own.txt"}, False),
        ({"cudnn_version": "8", "cudnn_packages": ["libcudnn8=8.9.6.50-1"]}, False),
        ({"nvidia_driver_kernel_modules": "proprietary"}, True),
        ({"nvidia_driver_profile": "full"}, True),
        ({"nvidia_driver_profile": "compute", "nvidia_driver_kernel_modules": "open"}, False),
        ({"nvidia_driver_kernel_modules": "proprietary", "nvidia_driver_packages": ["nvidia-driver-580"]}, False),
        ({"cuda_toolkit_home": "/usr/local/cuda-12.9"}, True),
        ({"cuda_toolkit_home": "/usr/local/cuda-13.2"}, False),
        ({"env_paths_cuda_home": "/usr/local/cuda-12.9"}, True),
        ({"env_paths_cuda_home": "/usr/local/cuda-13.2", "cuda_toolkit_default": False}, False),
        ({"env_paths_cuda_home": "/usr/local/cuda", "cuda_toolkit_default": "yes"}, False),
        ({"cuda_toolkit_default": "no"}, True),
        ({"env_paths_state": "present"}, False),
        ({"env_paths_state": "absent"}, True),
        ({"pytorch_env_version": "2.7"}, False),
    ],
    ids=str,
)
def test_a_version_of_a_role_is_the_plans_unless_its_packages_are_the_users(
    values: dict[str, Any], is_refused: bool, snapshot: SnapshotAssertion
) -> None:
    """What a role installs comes from the plan: with another version it would fail after the packages have changed."""
    host = Host("ubuntu-24.04", "x86_64", gpus=(HostGpu("10de:2330"),))
    plan = resolve(frozen_catalog(), asking(), host)
    found = variables.other_than_planned(values, plan.components)
    assert len(found) == is_refused
    assert not is_refused or found == snapshot


# What all read that use it. The playbooks leave a directory outside of gpuhost's own ones to the user at a teardown.
FOLLOWED = {
    *("gpu_benchmark_python", "gpu_benchmark_data_directory"),
    *("smoke_train_directory", "smoke_train_data_directory", "smoke_train_job_directory"),
    *("tensorflow_env_cache", "pytorch_env_cache", "host_verify_prometheus_directory"),
}


def test_each_path_of_a_role_is_followed_by_all_or_is_not_the_users() -> None:
    """Else the role obeys, and the probe, the checks and the teardown look elsewhere."""
    paths = {name for name, option in variables.role_options().items() if option["type"] == "path"}
    assert {"tensorflow_env_path", "nvidia_repo_key_path"} <= paths
    refused = {name for name in paths if name in variables.PLANNED or wrong(**{name: "/srv/elsewhere"})}
    assert paths - refused == FOLLOWED


def test_every_mistake_is_listed_without_passwords() -> None:
    found = wrong(
        gpu_stack_repository_url=["https://me:secret@mirror.example.org"], gpu_stack_cuda="x", smoke_train_steps="y"
    )
    assert len(found) == 3
    assert not any("secret" in mistake for mistake in found)


def test_only_what_the_user_has_set_is_checked() -> None:
    found = {"nccl_packages": ["x"], "gpu_stack_cuda": "13", "lab_gpus": []}
    assert set(variables.set_by_user(found, KNOWN)) == {"nccl_packages", "gpu_stack_cuda"}
