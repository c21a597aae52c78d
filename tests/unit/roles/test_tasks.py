"""Which tasks of a role run on a host, in which order and with what: its files, read and rendered as Ansible does.

What tasks register is given, since nothing runs. A line is a task that runs, with its name, module and options, and how
its result is judged; one that is skipped has no line.
"""

from __future__ import annotations

import functools
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from syrupy.assertion import SnapshotAssertion

from tests.unit.playbooks import rendering

ROLES = rendering.PROJECT / "roles"
INCLUDES = ("import_tasks", "include_tasks", "import_role", "include_role")
FACTS = {
    "distribution": "Ubuntu",
    "distribution_version": "24.04",
    "architecture": "x86_64",
    "pkg_mgr": "apt",
    "python": {"executable": "/usr/bin/python3", "version": {"major": 3, "minor": 12}},
}
BASE: dict[str, Any] = {
    **{"ansible_facts": FACTS, "ansible_check_mode": False, "ansible_connection": "ssh"},
    "ansible_play_hosts_all": ["a", "b", "c"],
}
CHECK = {"ansible_check_mode": True}
UNIT = "/usr/lib/systemd/system/nvidia-persistenced.service"
# Ubuntu's (nvidia-persistenced of nvidia-compute-utils-580) leaves persistence mode off, and has no [Install].
UBUNTU_UNIT = (
    "[Service]\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose\n"
)
DRIVER: dict[str, Any] = {
    "nvidia_driver_version": "580.126.09",
    "nvidia_driver_kernel_modules": "open",
    "nvidia_driver_packages": ["nvidia-open-580=580.126.09-1"],
    "nvidia_driver_pinning_packages": [],
    "nvidia_driver_kernel_compilers": ["gcc-13"],
    "nvidia_driver_apt_components": [],
    "nvidia_driver_kernel_headers": ["linux-headers-6.8.0-90-generic"],
    "nvidia_driver_replaces": ["nvidia-driver-570"],
    "nvidia_driver_reinstall": [],
    "nvidia_driver_reboot": "if_needed",
    "nvidia_driver_module_signing_key": "",
    "nvidia_driver_disabled_lines": [{"file": "/etc/modprobe.d/x.conf", "line": "blacklist nvidia"}],
    "nvidia_driver_services": ["nvidia-fabricmanager"],
    "__nvidia_driver_installation": {"changed": True, "installed": {"nvidia-open-580": "580.126.09-1"}},
    "__nvidia_driver_built": {"stdout": "built nvidia/580.126.09 for 6.8.0-90-generic\n"},
    "__nvidia_driver_initramfs": {"stdout": "rebuilt the initramfs of 6.8.0-90-generic\n"},
    "__nvidia_driver_signed": {"stdout": "rebuilt nvidia/580.126.09\n"},
    "__nvidia_driver_unit": {"stdout": f"{UNIT}\n"},
    "__nvidia_driver_unit_text": {"content": b64encode(UBUNTU_UNIT.encode()).decode()},
    "__nvidia_driver_enabled": {"stat": {"exists": True, "lnk_target": "/dev/null"}},
    "__nvidia_driver_update_grub": {"stdout": "updated /boot/grub/grub.cfg\n"},
    "__nvidia_driver_guarded": {"stdout_lines": ["kernel 6.8.0-90-generic stays the default"]},
    "__nvidia_driver_module": {"reboot_needed": False, "reasons": [], "boot_id": "1"},
}
REBOOTS = {
    "nvidia_driver_module_signing_key": "/mok.key",
    "nvidia_driver_module_signing_certificate": "/mok.der",
    "nvidia_driver_uninstallers": ["/usr/bin/nvidia-uninstall"],
    "nvidia_driver_apt_components": ["non-free"],
    "nvidia_driver_services": [],
    "nvidia_driver_disabled_lines": [],
    "__nvidia_driver_module": {"reboot_needed": True, "reasons": ["nouveau is loaded"], "boot_id": "1"},
    "__nvidia_driver_enabled": {"stat": {"exists": True, "lnk_target": UNIT}},
    "__nvidia_driver_guarded": {"stdout_lines": []},
}
UNMANAGED = {
    **CHECK,
    "nvidia_driver_load_module": False,
    "nvidia_driver_persistence": False,
    "__nvidia_driver_unit": {"stdout": "\n"},
    "__nvidia_driver_unit_text": {},
}
ENVIRONMENT: dict[str, Any] = {
    "tensorflow_env_version": "2.21.0",
    "tensorflow_env_python": "3.12",
    "tensorflow_env_lock": "own.txt",
    "__framework_env_lock": "tensorflow==2.21.0\n",
    "__framework_env_uv_lock": "uv==0.9.13\n",
    "__framework_env_settings": [{"name": "PIP_TARGET", "use": "dropped"}, {"name": "PIP_INDEX_URL", "use": "kept"}],
    "tensorflow_env_cache": "/var/cache/gpuhost/uv",
    "tensorflow_env_system_packages": ["python3-venv"],
    "tensorflow_env_keep_cache": False,
    "__framework_env_waited": {"rc": 0},
    "__framework_env_built": {
        "rc": 0,
        "ansible_job_id": "1.2",
        "stdout_lines": ['{"tensorflow": "2.21.0"}'],
        "stderr": "",
    },
    "__framework_env_job": {"ansible_job_id": "1.2", "results_file": "/root/.ansible_async/1.2"},
}
NEW = {
    "problem": "",
    "uv": False,
    "complete": False,
    "linked": False,
    "reason": "it is missing",
    "current": "tensorflow-2.20.0",
    "environment": "tensorflow-2.21.0",
    "remove": ["tensorflow-2.18.0"],
    "verified": {},
}
ENVIRONMENT["__framework_env_inspected"] = {"stdout": json.dumps(NEW)}
MIRROR = {
    "nvidia_repo_url": "https://mirror.example/rhel9/",
    "nvidia_repo_key_url": "https://mirror.example/rhel9/D42D0685.pub",
    "nvidia_repo_key_fingerprint": "610C7B14E068A878070DA4E99CD0A493D42D0685",
}
TOOLKIT: dict[str, Any] = {"cuda_toolkit_version": "13.0.2", "cuda_toolkit_reinstall": []}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("nvidia_driver", "a host with services and a line in the way", DRIVER),
    ("nvidia_driver", "a reboot, a key, an uninstaller", {**DRIVER, **REBOOTS}),
    ("nvidia_driver", "not loaded, without persistence and in check mode", {**DRIVER, **UNMANAGED}),
    ("nvidia_driver", "no guard", {**DRIVER, "nvidia_driver_kernel_guard": False, "nvidia_driver_services": []}),
    (
        "nvidia_repo",
        "others' sources and packages",
        {
            "nvidia_repo_set_aside": ["/etc/apt/sources.list.d/cuda.list"],
            "nvidia_repo_purged_packages": ["cuda-repo-ubuntu+local"],
        },
    ),
    ("nvidia_repo", "an adopted source", {"nvidia_repo_adopted_source": "/etc/apt/sources.list.d/cuda.list"}),
    (
        "nvidia_repo",
        "a host with dnf",
        {
            **MIRROR,
            "ansible_facts": {**FACTS, "distribution": "Rocky", "distribution_version": "9.6", "pkg_mgr": "dnf"},
        },
    ),
    (
        "cuda_toolkit",
        "a host with a .run toolkit",
        {**TOOLKIT, "cuda_toolkit_uninstallers": ["/usr/local/cuda-12.9/bin/cuda-uninstaller"]},
    ),
    ("cuda_toolkit", "beside the default one", {**TOOLKIT, "cuda_toolkit_default": False}),
    (
        "cuda_toolkit",
        "the distribution's",
        {
            **TOOLKIT,
            "cuda_toolkit_home": "/usr",
            "cuda_toolkit_apt_components": ["non-free"],
            "cuda_toolkit_reinstall": ["cuda-toolkit-13-0"],
        },
    ),
    (
        "env_paths",
        "a line in the way",
        {
            "env_paths_disabled_lines": [{"file": "/etc/environment", "line": "LD_LIBRARY_PATH=/x"}],
            "__env_paths_linker": {"stdout": "refreshed\n"},
        },
    ),
    (
        "fabric",
        "a loaded driver",
        {
            "fabric_version": "580.126.09",
            "fabric_packages": ["nvidia-fabricmanager-580=580.126.09-1"],
            "fabric_services": ["nvidia-fabricmanager"],
            "fabric_modules": ["ib_umad"],
            "__fabric_driver": {"rc": 0, "stdout_lines": ["580.126.09"]},
        },
    ),
    (
        "fabric",
        "a loaded driver, in check mode",
        {
            **CHECK,
            "fabric_version": "580.126.09",
            "fabric_packages": ["nvidia-fabricmanager-580=580.126.09-1"],
            "fabric_services": ["nvidia-fabricmanager"],
            "fabric_modules": ["ib_umad"],
            "__fabric_driver": {"rc": 0, "stdout_lines": ["580.126.09"]},
        },
    ),
    (
        "fabric",
        "another driver is loaded",
        {
            "fabric_version": "580.126.09",
            "fabric_packages": ["nvidia-fabricmanager-580=580.126.09-1"],
            "fabric_services": ["nvidia-fabricmanager"],
            "fabric_modules": [],
            "__fabric_driver": {"rc": 0, "stdout_lines": ["570.86.15"]},
        },
    ),
    (
        "nvidia_driver",
        "a reboot, in check mode",
        {**DRIVER, **REBOOTS, **CHECK, "__nvidia_driver_installation": {"changed": False}},
    ),
    ("host_verify", "no timer", {}),
    ("host_verify", "a timer", {"host_verify_prometheus": True}),
    (
        "tensorflow_env",
        "a new environment",
        {**ENVIRONMENT, "__framework_env_states": {}},
    ),
    (
        "tensorflow_env",
        "a new environment, in check mode",
        {**ENVIRONMENT, **CHECK, "__framework_env_states": {}},
    ),
    (
        "tensorflow_env",
        "while another environment is being built",
        {**ENVIRONMENT, "__framework_env_states": {"pytorch": {"job": {}}}},
    ),
    (
        "tensorflow_env",
        "a build that failed",
        {
            **ENVIRONMENT,
            "__framework_env_built": {**ENVIRONMENT["__framework_env_built"], "rc": 1, "stderr": "bad certificate"},
            "__framework_env_states": {},
        },
    ),
]
TRAINED = {
    **{"status": "pass", "framework": "tensorflow", "replicas": 2, "virtual_kind": None, "steps": 100, "cluster": None},
    **{"data": {"kind": "real"}, "loss": {"first": 2.3, "last": 1.1}, "images_per_second": 900},
    "checks": [{"id": "training", "status": "pass"}],
}
TRAINING: dict[str, Any] = {
    "__smoke_train_secrets": {},
    "__smoke_train_run": {"rc": 0, "finished": 1, "stdout": json.dumps(TRAINED)},
}
PASSWORD = "hunter2"
CLUSTER: dict[str, Any] = {
    **TRAINING,
    "smoke_train_scope": "cluster",
    "__smoke_train_secrets": {"https_proxy": f"http://me:{PASSWORD}@proxy:3128"},
    "__smoke_train_job": {"ansible_job_id": "1.2"},
    "ansible_facts": {**FACTS, "default_ipv4": {"address": "192.0.2.1"}},
    "ansible_play_hosts": ["a", "b", "c"],
    # c is of another batch of the play, and has trained or will.
    "ansible_play_batch": ["a", "b"],
    "hostvars": {name: {"__smoke_train_address": f"192.0.2.{n}:12345"} for n, name in enumerate("abc", 1)},
}
BENCHMARK: dict[str, Any] = {
    "gpu_stack_environment": CLUSTER["__smoke_train_secrets"],
    "__gpu_benchmark_environment": {"stat": {"exists": True}},
    "__gpu_benchmark_directory": {"path": "/tmp/x.gpu_benchmark"},
    "__gpu_benchmark_run": {"rc": 0, "stdout": json.dumps({"status": "pass", "checks": []}), "stderr": ""},
}
CASES += [
    ("gpu_benchmark", "through a proxy with a password", BENCHMARK),
    ("smoke_train", "on a host", TRAINING),
    ("smoke_train", "in a cluster, through a proxy with a password", CLUSTER),
    ("smoke_train", "in check mode", {**TRAINING, **CHECK}),
]


class Role:
    """A role on a host with these variables; ended: whether a task has failed."""

    def __init__(self, name: str, variables: dict[str, Any]) -> None:
        self.variables = {**BASE, "ansible_search_path": []}
        self.enter(name)
        self.given, self.ended = variables, False

    def enter(self, name: str) -> Path:
        """Add a role's defaults and variables, and return its folder."""
        folder = ROLES / name
        for kind in ("defaults", "vars"):
            path = folder / kind / "main.yml"
            self.variables |= (yaml.safe_load(path.read_text()) or {}) if path.exists() else {}
        self.variables["role_path"] = str(folder)
        self.variables["ansible_search_path"] = [str(folder), *self.variables["ansible_search_path"]]
        return folder

    def value(self, value: Any, extra: dict[str, Any]) -> Any:
        variables = {**self.variables, **self.given, **extra, "each": value}
        (answer,) = rendering.rendered([{"variables": variables, "names": ["each"]}])
        assert isinstance(answer, dict), f"{value}: {answer}"
        return answer["each"]

    def holds(self, conditions: Any, extra: dict[str, Any]) -> bool:
        wanted = [str(each) for each in (conditions if isinstance(conditions, list) else [conditions])]
        variables = {**self.variables, **self.given, **extra}
        (answer,) = rendering.rendered([{"variables": variables, "conditions": wanted}])
        assert isinstance(answer, bool), f"{conditions}: {answer}"
        return answer

    def run(self, folder: Path, name: str, extra: dict[str, Any]) -> Iterator[str]:
        """Yield a line for each task of a file that runs."""
        yield from self.all(folder, yaml.safe_load((folder / "tasks" / name).read_text()), extra)

    def all(self, folder: Path, tasks: list[dict[str, Any]], extra: dict[str, Any]) -> Iterator[str]:
        for task in tasks:
            values = {**extra, **task.get("vars", {})}
            variable = task.get("loop_control", {}).get("loop_var", "item")
            for item in self.value(task["loop"], values) if "loop" in task else [None]:
                looped = {**values, **({variable: item} if "loop" in task else {})}
                if not self.ended and ("when" not in task or self.holds(task["when"], looped)):
                    yield from self.block(folder, task, looped) if "block" in task else self.one(folder, task, looped)

    def block(self, folder: Path, task: dict[str, Any], extra: dict[str, Any]) -> Iterator[str]:
        yield from self.all(folder, task["block"], extra)
        failed, self.ended = self.ended, False
        yield from self.all(folder, task["always"], extra)
        self.ended = self.ended or failed

    def one(self, folder: Path, task: dict[str, Any], extra: dict[str, Any]) -> Iterator[str]:
        (module,) = [key for key in task if "." in key]
        short = module.rpartition(".")[2]
        if short.endswith("_tasks"):
            yield from self.run(folder, self.value(task[module], extra), extra)
        elif short.endswith("_role"):
            role = self.enter(task[module]["name"].rpartition(".")[2])
            yield from self.run(role, f"{task[module].get('tasks_from', 'main')}.yml", extra)
        else:
            yield self.text(folder, task, module, extra)
            if short == "set_fact":
                self.given = {**self.given, **self.value(task[module], extra)}
            self.ended = short == "fail" or ("failed_when" in task and self.holds(task["failed_when"], extra))

    def text(self, folder: Path, task: dict[str, Any], module: str, extra: dict[str, Any]) -> str:
        judged = [
            f"{key}={self.holds(task[key], extra)}" for key in ("changed_when", "failed_when", "until") if key in task
        ]
        more = [
            f"{key}={self.value(task[key], extra)}"
            for key in ("async", "check_mode", "environment", "no_log", "notify", "poll", "throttle")
            if key in task
        ]
        # What it writes, test_role_files.py shows.
        options = task[module] if module.endswith(".apply") else self.value(task[module], extra)
        shown = yaml.safe_dump(without_programs(options), sort_keys=False, width=100000, default_flow_style=None)
        shown = shown.replace(str(rendering.PROJECT), "PROJECT")
        lines = [
            " ".join([f"{task['name']}: {module}", *judged, *more]),
            *(f"    {line}" for line in shown.splitlines()),
        ]
        return "\n".join(lines)


@functools.cache
def programs() -> dict[str, str]:
    """Return the names of the roles' programs by their text, and by that in a text of JSON."""
    found = {json.dumps(facts.gpu_counters(load_catalog())): "(the catalog's counters)"}
    for path in sorted(path for suffix in ("py", "sh") for path in ROLES.glob(f"*/files/*.{suffix}")):
        content = path.read_text().rstrip()
        found |= dict.fromkeys((content, json.dumps(content)[1:-1]), f"(files/{path.name})")
    return found


def without_programs(value: Any) -> Any:
    """Return a value with the names of programs in place of their texts."""
    if isinstance(value, dict):
        return {name: without_programs(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_programs(each) for each in value]
    if isinstance(value, str):
        for content, name in programs().items():
            value = value.replace(content, name)
    return value


@pytest.mark.parametrize(("role", "case", "variables"), CASES, ids=[f"{role}-{case}" for role, case, _v in CASES])
def test_tasks_of_a_role(role: str, case: str, variables: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    host = Role(role, variables)
    assert "\n".join(host.run(ROLES / role, "main.yml", {})) == snapshot


@pytest.mark.parametrize(
    ("role", "given"),
    [
        ("smoke_train", {**CLUSTER, "smoke_train_scope": "host"}),
        ("smoke_train", CLUSTER),
        ("gpu_benchmark", BENCHMARK),
    ],
    ids=["host", "cluster", "benchmark"],
)
def test_a_password_of_a_proxy_is_in_no_output_of_a_training(role: str, given: dict[str, Any]) -> None:
    """Ansible prints what a task was given, and what it returned with that; no_log=true hides both."""
    lines = list(Role(role, given).run(ROLES / role, "main.yml", {}))
    having = [line for line in lines if PASSWORD in line]
    assert having
    assert all("--environment-from-stdin" in line for line in having)
    # What started the training, and what returns its result.
    ran = [line for line in lines if "async_status" in line or "watched_command" in line or line in having]
    shown = [line.partition(":")[0] for line in ran if "no_log=True" not in line and "mode: cleanup" not in line]
    assert shown == []


@pytest.mark.parametrize(
    "given",
    [
        {"tensorflow_env_index_url": f"https://me:{PASSWORD}@pypi.example/simple"},
        {"tensorflow_env_index_url": f"https://{PASSWORD}@pypi.example/simple"},  # a token
    ],
    ids=["password", "token"],
)
def test_a_login_of_a_package_index_is_in_no_output_of_a_build(given: dict[str, Any]) -> None:
    role = Role("tensorflow_env", {**ENVIRONMENT, "__framework_env_states": {}, **given})
    lines = list(role.run(ROLES / "tensorflow_env", "main.yml", {}))
    having = [line for line in lines if PASSWORD in line or ("async_status" in line and "mode: cleanup" not in line)]
    assert len(having) >= 2
    assert [line.partition(":")[0] for line in having if "no_log=True" not in line] == []


@pytest.mark.parametrize(
    ("damaged", "builds"),
    [([], False), (["/opt/gpuhost/environments/tensorflow-2.20.0"], False), (["/opt/gpuhost/uv"], True)],
    ids=["nothing", "another environment", "uv"],
)
def test_below_a_whole_environment_a_damaged_uv_alone_is_built_again(damaged: list[str], builds: bool) -> None:
    """The build installs uv, and then finds the environment complete (test_build.py)."""
    whole = {"stdout": json.dumps({**NEW, "complete": True, "linked": True})}
    given = {"__framework_env_inspected": whole, "__framework_env_states": {}, "tensorflow_env_damaged": damaged}
    lines = list(Role("tensorflow_env", {**ENVIRONMENT, **given}).run(ROLES / "tensorflow_env", "main.yml", {}))
    started = [line for line in lines if line.startswith("Start building and verifying the environment")]
    assert [f'"damaged": {json.dumps(damaged)}' in line for line in started] == ([True] if builds else [])


@pytest.mark.parametrize(
    ("url", "passes"),
    [
        ("", True),
        ("https://mirror.example/a@b/cifar-10-binary.tar.gz", True),
        (f"https://me:{PASSWORD}@mirror.example/cifar-10-binary.tar.gz", False),
        (f"http://{PASSWORD}@mirror.example", False),
    ],
)
def test_a_mirror_of_the_training_has_no_login(url: str, passes: bool) -> None:
    """It is an option of the training, whose error about it is in the result and the report."""
    refused, *_others = yaml.safe_load((ROLES / "smoke_train/tasks/main.yml").read_text())
    role = Role("smoke_train", {"smoke_train_mirror_url": url})
    assert role.holds(refused["ansible.builtin.assert"]["that"], {}) is passes
    assert PASSWORD not in role.value(refused["ansible.builtin.assert"]["fail_msg"], {})


@pytest.mark.parametrize("scope", ["host", "cluster"])
@pytest.mark.parametrize(("status", "is_reported"), [(0, True), (1, True), (2, False), (-9, False), (None, False)])
def test_a_complete_training_is_judged_by_its_result(scope: str, status: int | None, is_reported: bool) -> None:
    """Exit status 1 is a check that failed (README of smoke_train); else there is no result to judge."""
    ended = {**TRAINING["__smoke_train_run"], "rc": status}
    if status is None:
        del ended["rc"]
    role = Role("smoke_train", {**CLUSTER, "smoke_train_scope": scope, "__smoke_train_run": ended})
    lines = list(role.run(ROLES / "smoke_train", "main.yml", {}))
    assert any(line.startswith("Fail if a check failed") for line in lines) is is_reported
    assert role.ended is not is_reported
    # The status file has what the job was given, such as a proxy with a password.
    assert [line.partition(":")[0] for line in lines if "mode: cleanup" in line] == (
        ["Remove the job's status file"] if scope == "cluster" else []
    )


def test_a_cluster_is_of_the_hosts_that_train_at_this_time() -> None:
    """As the task says that refuses a cluster of one: in the same play, and in the same batch, if it has `serial`."""
    lines = list(Role("smoke_train", CLUSTER).run(ROLES / "smoke_train", "main.yml", {}))
    (start,) = [line for line in lines if line.startswith("Start the training on every host")]
    assert "--cluster-workers, '192.0.2.1:12345,192.0.2.2:12345', --cluster-index, 0" in start


# nvidia-smi(1), RETURN VALUE: 6 no device, 9 the module is not loaded, 15 the GPU is lost; 18 libraries of another
# version than the module (NVML_ERROR_LIB_RM_VERSION_MISMATCH); 2 is Ansible's where the program is missing.
@pytest.mark.parametrize(
    ("status", "fails"), [(2, False), (6, False), (9, False), (18, False), (15, True), (255, True)]
)
def test_fabric_manager_waits_for_a_driver_that_is_not_loaded(status: int, fails: bool) -> None:
    role = Role(
        "fabric",
        {
            "fabric_version": "580.126.09",
            "fabric_packages": ["nvidia-fabricmanager=580.126.09-1"],
            "fabric_services": ["nvidia-fabricmanager"],
            "fabric_modules": ["ib_umad"],
            "__fabric_driver": {"rc": status, "stdout_lines": []},
        },
    )
    lines = list(role.run(ROLES / "fabric", "main.yml", {}))
    assert role.ended is fails
    assert not [line for line in lines if "modprobe" in line or "state: started" in line]


@pytest.mark.parametrize("adopted", ["", "/etc/apt/sources.list.d/cuda.list"])
def test_the_package_lists_of_the_repository_in_use_are_refreshed(adopted: str) -> None:
    (handler,) = yaml.safe_load((ROLES / "nvidia_repo/handlers/main.yml").read_text())
    role = Role("nvidia_repo", {"nvidia_repo_adopted_source": adopted})
    refreshed = role.value(handler["gpuhost.stack.apt_update"]["sources"], {})
    written = [
        line
        for line in role.run(ROLES / "nvidia_repo", "main.yml", {})
        if line.startswith("Add NVIDIA's repository") and f"dest: {refreshed[0]}" in line
    ]
    assert (refreshed == [adopted]) if adopted else written
