"""The variables of a host: names, and values of the request, of a run and of roles."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.modules import gpu_verify
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import declared, of_runs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import variables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts import drift
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import training

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
    prefixes = "|".join([*variables.roles(), "gpu_monitor"])
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
    ("name", "value", "expected"),
    [
        ("gpu_stack_cuda", ">13", "such as 13.2; did you mean 13?"),
        (
            "gpu_stack_reboot",
            False,
            "is false (YAML reads no, off and false without quotes so); expected one of if_needed",
        ),
        ("gpu_stack_reboot", "if-needed", "did you mean if_needed?"),
        ("gpu_stack_converge", "allways", "did you mean always?"),
        ("gpu_stack_rollback", "perhaps", "expected true or false"),
        ("gpu_stack_partial", None, "is empty; expected true or false"),
        ("gpu_stack_serial", "half", "expected a number of hosts such as 2, a percentage such as 25%"),
        ("gpu_stack_serial", 0, "expected a number of hosts"),
        ("gpu_stack_serial", "101%", "expected a number of hosts"),
        ("gpu_stack_serial", True, "expected a number of hosts"),
        ("gpu_stack_module_signing_key", "mok.key", "expected the absolute path of a file on the controller"),
        ("gpu_stack_module_signing_certificate", ["/mok.der"], "expected the absolute path of a file"),
        ("gpu_stack_environment", "http_proxy=x", "expected a dictionary such as {http_proxy: "),
        ("gpu_stack_timeout_factor", "slow", "expected a number such as 2, at most 100"),
        ("gpu_stack_timeout_factor", 0, "expected a number such as 2"),
        ("gpu_stack_timeout_factor", -1, "expected a number such as 2"),
        ("gpu_stack_timeout_factor", "nan", "expected a number such as 2"),
        ("gpu_stack_timeout_factor", True, "expected a number such as 2"),
        ("gpu_stack_timeout_factor", 101, "expected a number such as 2"),
        ("gpu_stack_wait", "10 min", "is '10 min'; expected a number of seconds such as 600, or 0 not to wait"),
        ("gpu_stack_wait", -1, "expected a number of seconds"),
        ("gpu_stack_wait", True, "expected a number of seconds"),
        ("gpu_stack_wait", None, "expected a number of seconds"),
        ("gpu_stack_waivers", [{"check": "no.such"}], "no reason"),
        ("gpu_stack_pytorch", 2.1, 'is the number 2.1, and YAML reads 2.10 so; expected it in quotes: "2.10"'),
        ("gpu_stack_tensorflow", 2.2, 'expected it in quotes: "2.20" or "2.2"'),
        ("tensorflow_env_python", 3.1, 'expected it in quotes: "3.10"'),
        ("pytorch_env_version", 2.1, 'expected it in quotes: "2.10"'),
        ("nvidia_driver_reboot", True, "is true (YAML reads yes, on and true without quotes so); expected one of"),
        ("nvidia_driver_load_module", "maybe", "expected true or false"),
        ("nvidia_driver_kernel_headers", {"a": 1}, "is the mapping {'a': 1}; expected a list"),
        ("smoke_train_steps", "many", "is 'many'; expected a whole number"),
        ("tensorflow_env_ca_bundle", ["/a"], "is the list ['/a']; expected text"),
        ("nvidia_driver_disabled_lines", [{"file": "/a"}], "missing required arguments: line"),
        ("pytorch_env_index_url", "pypi.org/simple", "expected an address such as https://"),
        ("nvidia_repo_url", "mirror.example.org", "expected an address such as https://"),
        ("nvidia_driver_persistence", None, "is empty; remove the line to get the role's default"),
        ("tensorflow_env_path", "/opt/gpuhost/tensorflow/", "expected the role's default, /opt/gpuhost/tensorflow: "),
        ("pytorch_env_path", "/srv/pytorch", "expected the role's default, /opt/gpuhost/pytorch: "),
        ("tensorflow_env_uv_path", "/srv/uv", "expected the role's default, /opt/gpuhost/uv: "),
        ("nvidia_repo_key_path", "/etc/apt/keyrings/cuda.asc", "expected the role's default, /etc/apt/keyrings/nv"),
        ("nvidia_repo_set_aside_folder", "/root", "expected the role's default, /var/lib/gpuhost/set_aside: "),
        ("smoke_train_python", "/opt/gpuhost/tensorflow/bin/python", "expected the role's default, /opt/gpuhost/{{ "),
        ("framework_env_path", "/srv/tensorflow", "expected no such line: the roles that use framework_env set it"),
        ("framework_env_cache", "/srv/uv", "expected tensorflow_env_cache and pytorch_env_cache"),
        ("framework_env_extra_index_url", "https://a.example.org", "expected pytorch_env_extra_index_url"),
        ("nvidia_driver_module_signing_key", "/k", "expected gpu_stack_module_signing_key, which the plan reads, too"),
        ("nvidia_driver_module_signing_certificate", "/c", "expected gpu_stack_module_signing_certificate, which"),
        ("env_paths_commands", [], "expected nvcc in it, which the checks start in every kind of shell"),
    ],
)
def test_a_value_that_is_not_accepted(name: str, value: Any, expected: str) -> None:
    (mistake,) = wrong(**{name: value})
    assert mistake.startswith((name, f"{name}, entry"))
    assert expected in mistake


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
    ],
)
def test_a_value_that_is_accepted(name: str, value: Any) -> None:
    assert wrong(**{name: value}) == []


@pytest.mark.parametrize(
    ("values", "mistakes"),
    [
        (
            {"nvidia_driver_version": "580.999"},
            ["and the plan has NVIDIA driver 595.91.07; expected gpu_stack_driver to"],
        ),
        ({"nvidia_driver_version": 595, "tensorflow_env_version": "2.21"}, []),
        ({"tensorflow_env_version": "2.99"}, ["the plan has TensorFlow 2.21.0; expected gpu_stack_tensorflow to ask"]),
        (
            {"tensorflow_env_python": "3.6"},
            ["and the plan has Python 3.12 for TensorFlow; expected tensorflow_env_lock with"],
        ),
        ({"tensorflow_env_version": "2.99", "tensorflow_env_lock": "/srv/own.txt"}, []),
        ({"cudnn_version": "8", "cudnn_packages": ["libcudnn8=8.9.6.50-1"]}, []),
        (
            {"nvidia_driver_kernel_modules": "proprietary"},
            ["the plan has open; expected gpu_stack_driver_kernel_modules to ask for it, without nvidia_driver"],
        ),
        ({"nvidia_driver_profile": "full"}, ["the plan has compute; expected gpu_stack_driver_profile to ask for it"]),
        ({"nvidia_driver_profile": "compute", "nvidia_driver_kernel_modules": "open"}, []),
        ({"nvidia_driver_kernel_modules": "proprietary", "nvidia_driver_packages": ["nvidia-driver-580"]}, []),
        ({"cuda_toolkit_home": "/usr/local/cuda-12.9"}, ["the plan has /usr/local/cuda-13.2; expected no cuda_toolki"]),
        ({"cuda_toolkit_home": "/usr/local/cuda-13.2"}, []),
        (
            {"env_paths_cuda_home": "/usr/local/cuda-12.9"},
            ["and the plan has CUDA toolkit 13.2 in /usr/local/cuda-13.2; expected that, or no env_paths_cuda_home"],
        ),
        ({"env_paths_cuda_home": "/usr/local/cuda-13.2", "cuda_toolkit_default": False}, []),
        ({"env_paths_cuda_home": "/usr/local/cuda", "cuda_toolkit_default": "yes"}, []),
        (
            {"cuda_toolkit_default": "no"},
            ["/usr/local/cuda may point to another toolkit than the plan's; expected env_paths_cuda_home: /usr/loca"],
        ),
        ({"env_paths_state": "present"}, []),
        ({"env_paths_state": "absent"}, ["the plan has present; expected no env_paths_state"]),
        ({"pytorch_env_version": "2.7"}, []),
    ],
)
def test_a_version_of_a_role_is_the_plans_unless_its_packages_are_the_users(
    values: dict[str, Any], mistakes: list[str]
) -> None:
    """What a role installs comes from the plan: with another version it would fail after the packages have changed."""
    host = Host("ubuntu-24.04", "x86_64", gpus=(HostGpu("10de:2330"),))
    plan = resolve(frozen_catalog(), Request(), host)
    found = variables.other_than_planned(values, plan.components)
    assert len(found) == len(mistakes)
    assert all(mistake in text for mistake, text in zip(mistakes, found, strict=True))


# What all read that use it. The playbooks leave a directory outside of gpuhost's own ones to the user at a teardown.
FOLLOWED = {
    *("gpu_benchmark_python", "gpu_benchmark_data_directory"),
    *("smoke_train_directory", "smoke_train_data_directory", "smoke_train_job_directory"),
    *("tensorflow_env_cache", "pytorch_env_cache"),
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
    mapped = variables.role_inputs()["cudnn_packages"]
    found = {"cudnn_packages": mapped, "nccl_packages": ["x"], "gpu_stack_cuda": "13", "lab_gpus": []}
    assert set(variables.set_by_user(found, KNOWN)) == {"nccl_packages", "gpu_stack_cuda"}
