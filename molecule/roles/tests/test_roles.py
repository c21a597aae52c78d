"""The result of each role on its host; the versions are read from the example playbooks."""

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts

from tests import packages
from tests.distributions import MANAGER

PROJECT = Path(__file__).resolve().parents[3]
EXAMPLES = PROJECT / "playbooks" / "examples"
ROLES = PROJECT / "roles"
SOURCE = "/etc/apt/sources.list.d/nvidia-cuda.sources"
APT_ALONE = pytest.mark.skipif(MANAGER != "apt", reason="apt's alone")
# What NVIDIA's repositories for Debian 12 and EL 9 call the packages of the examples' versions.
PACKAGES = {
    "apt": {
        "nvidia_driver": ["nvidia-driver-cuda=580.126.16-1", "nvidia-kernel-open-dkms=580.126.16-1"],
        "fabric": ["nvidia-fabricmanager=580.126.16-1", "libnvidia-nscq=580.126.16-1"],
        "cuda_toolkit": ["cuda-toolkit-13-0=13.0.2-1"],
        "cudnn": [
            "libcudnn9-cuda-13=9.28.0.42-1",
            "libcudnn9-headers-cuda-13=9.28.0.42-1",
            "libcudnn9-dev-cuda-13=9.28.0.42-1",
        ],
        "nccl": ["libnccl2=2.28.9-1+cuda13.0", "libnccl-dev=2.28.9-1+cuda13.0"],
    },
    "dnf": {
        "nvidia_driver": ["nvidia-driver-cuda-3:580.126.16-1.el9", "kmod-nvidia-open-dkms-3:580.126.16-1.el9"],
        "fabric": ["nvidia-fabricmanager-0:580.126.16-1", "libnvidia-nscq-0:580.126.16-1"],
        "cuda_toolkit": ["cuda-toolkit-13-0-0:13.0.2-1"],
        "cudnn": [
            "libcudnn9-cuda-13-0:9.28.0.42-1",
            "libcudnn9-headers-cuda-13-0:9.28.0.42-1",
            "libcudnn9-devel-cuda-13-0:9.28.0.42-1",
        ],
        "nccl": ["libnccl-0:2.28.9-1+cuda13.0", "libnccl-devel-0:2.28.9-1+cuda13.0"],
    },
}[MANAGER]


def given(role: str) -> dict[str, Any]:
    """Return the variables of the role in its example playbook."""
    (play,) = yaml.safe_load((EXAMPLES / f"{role}.yml").read_text())
    return next(entry.get("vars", {}) for entry in play["roles"] if entry["role"] == f"gpuhost.stack.{role}")


@pytest.fixture
def on(request):
    """Return a function: on("nccl") is the host of that role."""

    def connect(name: str):
        from testinfra import get_host

        inventory = request.config.option.ansible_inventory
        return get_host(f"ansible://alone-{name}?ansible_inventory={inventory}")

    return connect


def assert_installed_and_held(host, specs: list[str]) -> None:
    assert specs
    manager = packages.of(host)
    for name, version in map(manager.parse, specs):
        assert manager.versions(name) == {name: version}
        assert name in manager.held()


def test_nvidia_repo_offers_nvidia_packages_and_installs_none(on):
    manager = packages.of(on("nvidia-repo"))
    assert manager.candidate("cuda-toolkit-13-2").startswith("13.2")
    assert manager.versions("cuda-*", "nvidia-*") == {}


@APT_ALONE
def test_nvidia_repo_key_is_trusted_for_this_repository_only(on):
    host = on("nvidia-repo")
    assert not host.file("/etc/apt/trusted.gpg").exists
    # A key that the role had put there would belong to no package.
    host.run_expect([0], "dpkg-query --search /etc/apt/trusted.gpg.d/*")
    (keyring,) = re.findall("^Signed-By: (.+)$", host.file(SOURCE).content_string, re.MULTILINE)
    assert host.file(keyring).exists
    assert not keyring.startswith("/etc/apt/trusted.gpg.d/")


@pytest.mark.parametrize(
    ("name", "offered"), [("nvidia-repo", True), ("cuda-toolkit", False)], ids=["default", "blocked"]
)
def test_nvidia_repo_can_block_driver_packages(on, name, offered):
    assert bool(packages.of(on(name)).candidate("nvidia-driver-cuda")) == offered


def test_nvidia_driver_is_the_requested_branch_although_a_newer_one_exists(on):
    host = on("nvidia-driver")
    assert_installed_and_held(host, PACKAGES["nvidia_driver"])
    version = host.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.strip()
    assert version == given("nvidia_driver")["nvidia_driver_version"]
    assert packages.of(on("nvidia-repo")).candidate("nvidia-driver-cuda").startswith("595.")


def test_fabric_has_the_version_of_the_driver_and_runs(on):
    host = on("nvidia-driver")
    assert_installed_and_held(host, PACKAGES["fabric"])
    service = host.service("nvidia-fabricmanager")
    assert (service.is_enabled, service.is_running) == (True, True)


@pytest.mark.parametrize("name", ["nvidia-driver", "cuda-toolkit", "cudnn", "nccl"])
def test_an_upgrade_changes_no_part_of_the_stack(on, name):
    manager = packages.of(on(name))
    held = manager.held()
    assert held
    assert manager.upgradable() & held == set()
    # The repository has a newer NCCL and Fabric Manager, which would be installed without the hold.
    assert bool(manager.upgradable(with_held=True) & held) == (name in ("nvidia-driver", "nccl"))


def test_cuda_toolkit_is_the_default_and_compiles(on):
    host = on("cuda-toolkit")
    assert_installed_and_held(host, PACKAGES["cuda_toolkit"])
    assert host.run_expect([0], "readlink -f /usr/local/cuda").stdout.strip() == "/usr/local/cuda-13.0"
    host.run_expect([0], "echo 'int main() { return 0; }' > /tmp/a.cu && nvcc -o /tmp/a /tmp/a.cu && /tmp/a")


def test_cuda_toolkit_installs_no_driver(on):
    assert packages.of(on("cuda-toolkit")).versions("nvidia-*") == {}


def test_env_paths_follow_the_default_toolkit_in_every_shell(on):
    host = on("cuda-toolkit")
    release = "release 13.0,"
    for shell in ("nvcc --version", "bash -lc 'nvcc --version'", "sudo nvcc --version"):
        assert release in host.run_expect([0], shell).stdout


def test_env_paths_report_a_command_that_the_toolkit_lacks(on):
    answer = on("cuda-toolkit").run("cuda-gdb")
    assert answer.rc == 127
    assert "cuda-gdb: not part of the CUDA toolkit" in answer.stderr


def test_cudnn_has_library_and_headers_of_one_version(on):
    host = on("cudnn")
    assert_installed_and_held(host, PACKAGES["cudnn"])
    files = packages.of(host).files("libcudnn9-headers-cuda-13")
    paths = [path for path in files if re.search(r"/cudnn_version.*[.]h$", path)]  # a file, and a link to it
    header = host.file(paths[0]).content_string
    major, minor, patch = given("cudnn")["cudnn_version"].split(".")[:3]
    assert [f"#define CUDNN_{name} {value}" in header for name, value in
            (("MAJOR", major), ("MINOR", minor), ("PATCHLEVEL", patch))] == [True] * 3  # fmt: skip


def test_nccl_packages_are_installed_and_held(on):
    assert_installed_and_held(on("nccl"), PACKAGES["nccl"])


FRAMEWORKS = [("tensorflow", "tensorflow"), ("pytorch", "torch")]


@pytest.mark.parametrize(("name", "package"), FRAMEWORKS)
def test_environment_imports_its_framework_in_its_version(on, name, package):
    question = f"import {package}; print({package}.__version__)"
    answer = on("tensorflow").run_expect([0], f"/opt/gpuhost/{name}/bin/python -c '{question}' 2>/dev/null")
    assert answer.stdout.strip().split("+")[0] == given(f"{name}_env")[f"{name}_env_version"]


@pytest.mark.parametrize(("name", "package"), FRAMEWORKS)
def test_environment_has_one_framework(on, name, package):
    (other,) = [other for _, other in FRAMEWORKS if other != package]
    answer = on("tensorflow").run(f"/opt/gpuhost/{name}/bin/python -c 'import {other}'")
    assert answer.rc == 1
    assert f"No module named '{other}'" in answer.stderr


@pytest.mark.parametrize(("name", "package"), FRAMEWORKS)
def test_environment_is_a_relative_link_to_a_directory_named_after_its_contents(on, name, package):
    version = given(f"{name}_env")[f"{name}_env_version"]
    target = on("tensorflow").run_expect([0], f"readlink /opt/gpuhost/{name}").stdout
    (python,) = re.findall("-py([0-9.]+)-", target)
    build = {"tensorflow": "", "pytorch": "cu132-"}[name]
    lock = lock_texts.read(ROLES / f"{name}_env/files/{name}-{version}-{build}py3.txt", python)
    directory = f"{name}-{version}-py{python}-{hashlib.sha256(lock.encode()).hexdigest()[:8]}"
    assert target == f"environments/{directory}\n"


@pytest.mark.parametrize(("name", "package"), FRAMEWORKS)
def test_scripts_of_an_environment_have_its_real_path(on, name, package):
    directory = on("tensorflow").run_expect([0], f"readlink -f /opt/gpuhost/{name}").stdout.strip()
    scripts = on("tensorflow").run_expect([0], f"grep -l -I '^#!' {directory}/bin/*").stdout.split()
    first_lines = on("tensorflow").run_expect([0], f"head -q -n 1 {' '.join(scripts)}").stdout.splitlines()
    interpreters = [line.removeprefix("#!") for line in first_lines if "python" in line]
    assert interpreters
    assert [path for path in interpreters if path.rpartition("/")[0] != f"{directory}/bin"] == []


def test_smoke_train_wrote_its_result(on):
    host = on("tensorflow")
    with host.sudo():
        assert '"status": "pass"' in host.file("/var/lib/gpuhost/smoke_train/result.json").content_string
