"""role_inputs.yml, templated by Ansible: which packages apt may take, and what variables of a run set in roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.drift import ManagedPart

from tests.unit.ansible_runs import run_play

PROJECT = Path(__file__).resolve().parents[3]
LIMITS = f"""
- hosts: localhost
  gather_facts: false
  vars_files:
    - {PROJECT}/playbooks/group_vars/all/role_inputs.yml
    - {PROJECT}/roles/framework_env/vars/main.yml
  tasks:
    - ansible.builtin.debug: {{msg: "{{{{ item }}}}: within {{{{ __framework_env_timeout }}}} s"}}
      vars: {{framework_env_timeout_factor: "{{{{ lookup('ansible.builtin.vars', item) }}}}"}}
      loop: [tensorflow_env_timeout_factor, pytorch_env_timeout_factor]
"""
PLAY = f"""
- hosts: localhost
  gather_facts: false
  vars_files: ["{PROJECT}/playbooks/group_vars/all/role_inputs.yml"]
  tasks:
    - ansible.builtin.copy:
        content: "{{{{ nvidia_repo_blocked_packages | to_json }}}}"
        dest: "{{{{ playbook_dir }}}}/blocked.json"
        mode: "0644"
"""
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
def test_nvidias_driver_must_not_replace_the_distributions(tmp_path, source, kept, blocked):
    plan = {"components": {"driver": {"source": source} if source else None}, "kept_driver": kept}
    done = run_play(tmp_path, PLAY, "-e", json.dumps({"gpu_stack_plan": plan}))
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("libnvidia-*" in json.loads((tmp_path / "blocked.json").read_text())) == blocked


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_repository_is_that_of_the_hosts_architecture(tmp_path, machine):
    shown = "    - ansible.builtin.debug: {msg: 'reads {{ nvidia_repo_url }}'}\n"
    play = PLAY.split("    - ansible.builtin.copy:")[0] + shown
    urls = {"ubuntu-24.04": {name: f"https://mirror.example/{name}/" for name in ("x86_64", "aarch64")}}
    variables = {"gpu_stack_repositories": urls, "gpu_stack_probe": {"architecture": machine}}
    done = run_play(tmp_path, play, "-e", json.dumps({**variables, "gpu_stack_plan": {"distribution": "ubuntu-24.04"}}))
    assert f"reads https://mirror.example/{machine}/" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(("framework", "count"), [("tensorflow", "1"), ("pytorch", "2")])
def test_a_framework_trains_on_the_gpus_that_it_does_not_leave_out(tmp_path, framework, count):
    play = PLAY.split("    - ansible.builtin.copy:")[0] + "    - ansible.builtin.debug: {var: smoke_train_gpus}\n"
    plan = {"gpus": [{"pci_id": "10de:1c82", "left_out_by": "tensorflow"}, {"pci_id": "10de:2204"}]}
    variables = {"gpu_stack_plan": plan, "smoke_train_framework": framework}
    done = run_play(tmp_path, play, "-e", json.dumps(variables))
    assert f'"smoke_train_gpus": {count}' in done.stdout.replace(f'"{count}"', count), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("code", "seconds"), [(framework_checks.UNPROVEN, framework_checks.COMPILE_SECONDS), ("ptx-jit", 0)]
)
def test_training_waits_as_long_as_the_checks_for_a_release_that_is_not_known_to_run(tmp_path, code, seconds):
    shown = "    - ansible.builtin.debug: {var: smoke_train_compile_time}\n"
    play = PLAY.split("    - ansible.builtin.copy:")[0] + shown
    done = run_play(tmp_path, play, "-e", json.dumps({"gpu_stack_plan": {"warnings": [{"code": code}]}}))
    assert f'"smoke_train_compile_time": {seconds}' in done.stdout.replace(f'"{seconds}"', str(seconds))


@pytest.mark.parametrize(("factor", "seconds"), [({}, 7200), ({"gpu_stack_timeout_factor": 2.5}, 18000)])
def test_the_time_limit_of_environments_follows_gpu_stack_timeout_factor(tmp_path, factor, seconds):
    done = run_play(tmp_path, LIMITS, "-e", json.dumps(factor))
    for framework in ("tensorflow", "pytorch"):
        assert f"{framework}_env_timeout_factor: within {seconds} s" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({}, "fail"), ({"gpu_stack_unknown": ""}, "fail"), ({"gpu_stack_unknown": "warn"}, "warn")],
)
def test_gpu_stack_unknown_is_also_for_the_training(tmp_path, variables, expected):
    inputs = f"{PROJECT}/playbooks/group_vars/all/role_inputs.yml"
    tasks = [{"ansible.builtin.debug": {"msg": "unknown is {{ smoke_train_unknown }}"}}]
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [inputs], "tasks": tasks}
    done = run_play(tmp_path, play, "-e", json.dumps(variables))
    assert f"unknown is {expected}" in done.stdout, done.stdout + done.stderr


def managed(tmp_path, **variables):
    """Return gpu_stack_managed and gpu_stack_managed_files as Ansible renders them."""
    inputs = f"{PROJECT}/playbooks/group_vars/all/managed.yml"
    content = "{{ [gpu_stack_managed, gpu_stack_managed_files] | to_json }}"
    tasks = [{"ansible.builtin.copy": {"content": content, "dest": f"{tmp_path}/managed.json", "mode": "0644"}}]
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [inputs], "tasks": tasks}
    done = run_play(tmp_path, play, "-e", json.dumps({"__gpu_stack_is_whole": True, **variables}))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "managed.json").read_text())


@pytest.mark.parametrize(
    ("scope", "is_recorded"), [(True, True), (False, False)], ids=["the whole host", "frameworks alone"]
)
def test_commands_of_the_users_own_are_watched_and_restored(tmp_path, scope, is_recorded):
    parts, files = managed(tmp_path, env_paths_commands=["nvcc", "nsys"], __gpu_stack_is_whole=scope)
    watched = ManagedPart.from_json(parts["env_paths"]).watch
    assert "commands" not in watched
    assert watched["files"].count("/usr/local/bin/nvcc") == watched["files"].count("/usr/local/bin/nsys") == 1
    assert ("/usr/local/bin/nsys" in files) == ("/usr/local/bin/nvcc" in files) == is_recorded


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
def test_what_of_the_driver_is_watched(tmp_path, variables, driver, modules):
    parts, _files = managed(tmp_path, **variables)
    # Services that start with the host, uv, and each environment with all its files.
    assert parts["nvidia_driver"]["services"] == ["nvidia-persistenced", "nvidia-fabricmanager"]
    assert parts["fabric"]["services"] == ["nvidia-fabricmanager"]
    assert parts["nvidia_driver"]["blacklists"] is True
    assert parts["nvidia_driver"]["trees"] == ["/var/lib/gpuhost/module_signing"]
    assert (parts["nvidia_driver"]["driver"], parts["nvidia_driver"]["modules"]) == (driver, modules)
    for framework in ("tensorflow", "pytorch"):
        assert parts[f"{framework}_env"]["environments"] == [f"/opt/gpuhost/{framework}"]
        assert parts[f"{framework}_env"]["trees"] == ["/opt/gpuhost/uv"]
