"""Hosts that somebody else set up: adopted, changed, and given back as they were.

One by NVIDIA's guide, and one with a driver of a `.run` installer (simulated) and no package of NVIDIA.

GPUs and driver are simulated; packages, apt, its marks and sources are real. The tests run in order.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

SOURCE = "/etc/apt/sources.list.d/cuda-ubuntu2404-x86_64.list"
OWN_SOURCE = "/etc/apt/sources.list.d/nvidia-cuda.sources"
PROJECT = Path(__file__).resolve().parents[3]
METAS = {"cuda-13-0", "cuda-runtime-13-0", "cuda-drivers"}
# A login shell that prefers the old toolkit fails the new one's checks.
IN_THE_WAY = "/usr/local/lib/gpuhost"  # as a file, of what roles write into this directory after the packages
BROUGHT, REQUESTED = "595.71.05", "580.126.16"

HOST = "adopt-guide"
THIS = ("--limit", HOST)


@pytest.fixture(scope="module")
def before(sections) -> dict[str, list[str]]:
    """Return the state that somebody left."""
    path = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "results/before/adopt-guide"
    return sections(path.read_text())


def removable(as_root) -> list[str]:
    """Return what `apt-get autoremove` would remove."""
    output = as_root.run_expect([0], "apt-get --simulate autoremove").stdout
    return [line.split()[1] for line in output.splitlines() if line.startswith("Remv ")]


def driver(host) -> str:
    return host.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.strip()


def of_stack(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return a state without gpuhost's records, and the empty directories that it leaves until a teardown."""
    left = ("/var/lib/gpuhost", "/usr/local/lib/gpuhost 755", "/etc/ansible 755", "/etc/ansible/facts.d 755")
    without = {name: [x for x in lines if not any(path in x for path in left)] for name, lines in found.items()}
    return {name: lines for name, lines in without.items() if name != "repository lists"}  # a cache


def test_adoption_has_changed_nothing_and_recorded_what_is_there(before, state, differences, as_root):
    assert "\n".join(differences(of_stack(before), of_stack(state()))) == ""
    record = json.loads(as_root.file("/var/lib/gpuhost/verified.json").content_string)
    assert record["plan"]["kept_driver"]["version"] == BROUGHT
    planned = {name: part and part["version"] for name, part in record["plan"]["components"].items()}
    assert {name: version for name, version in planned.items() if version} == {"cuda": "13.0"}
    checks = record["evidence"]["checks"]
    assert checks["driver.nvidia_smi"] == checks["cuda.nvcc_version"] == checks["packages.installed"] == "pass"
    assert checks["packages.held"] == checks["env.login_shell"] == "skip"


def test_verify_goes_on_comparing_with_what_was_adopted(playbook, as_root):
    playbook("verify", *THIS)
    as_root.run_expect([0], "mv /usr/local/cuda-13.0/bin/nvcc /usr/local/cuda-13.0/bin/nvcc.away")
    assert "cuda.nvcc_version" in playbook("verify", *THIS, expect=2).stdout
    as_root.run_expect([0], "mv /usr/local/cuda-13.0/bin/nvcc.away /usr/local/cuda-13.0/bin/nvcc")


def test_variables_that_ask_for_something_else_are_refused(playbook, state):
    before = state()
    done = playbook("gpu_host", *THIS, "-e", "gpu_stack_adopt=true", "-e", "gpu_stack_cuda=13.2", expect=2)
    assert "cannot-adopt: gpu_stack_cuda is 13.2, and the host has 13.0." in done.stdout
    done = playbook("verify", *THIS, "-e", "gpu_stack_cuda=13.2", expect=2)
    assert "cannot-adopt: gpu_stack_cuda is 13.2, and the host has 13.0." in done.stdout
    assert state() == before


def test_a_change_that_fails_goes_back_to_what_was_adopted(playbook, state, differences, as_root):
    as_root.run_expect([0], f"touch {IN_THE_WAY}")
    before = state()
    done = playbook("gpu_host", *THIS, "-e", "gpu_stack_driver=580", "-e", "gpu_stack_cuda=13.2", expect=2)
    assert "It was rolled back: the last verified configuration is restored" in done.stdout
    assert "\n".join(differences(of_stack(before), of_stack(state()))) == ""
    as_root.run_expect([0], f"rm {IN_THE_WAY}")


def test_the_driver_that_works_is_kept(playbook, host, as_root):
    playbook("gpu_host", *THIS)
    plan = json.loads(as_root.file("/etc/ansible/facts.d/gpu_stack.fact").content_string)
    assert plan["components"]["cuda"]["version"]
    assert driver(host) == BROUGHT


def test_the_repository_of_cuda_keyring_is_used_as_it_is(host, as_root):
    assert host.file(SOURCE).exists
    assert not host.file(OWN_SOURCE).exists
    assert as_root.run("apt-get update").rc == 0


@pytest.fixture(scope="module")
def versions(playbook, reports, tmp_path_factory) -> str:
    """Return the path of a file with the versions of this host, as for the other hosts of its fleet."""
    playbook("gpu_host", *THIS)
    path = tmp_path_factory.mktemp("versions") / "versions.yml"
    probe = reports / "newest/adopt-guide/probe.json"
    command = ["script/plan", "--probe", str(probe), "--request", "tensorflow=none", "--save-versions", str(path)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    # 1: of the host itself, here of a container's kernel, which keeps no version from being written.
    assert done.returncode in (0, 1), done.stderr
    return str(path)


def test_a_file_of_its_own_versions_changes_nothing(versions, playbook, reports, read_installed):
    saved = yaml.safe_load(Path(versions).read_text())
    assert saved["request"]["driver"] == BROUGHT
    there = read_installed()
    assert {name: there[name] for name in saved["packages"]["cuda"]} == saved["packages"]["cuda"]
    assert len(saved["packages"]["cuda"]) > 5, "what the toolkit depends on is in the file"
    playbook("gpu_host", *THIS, "-e", f"gpu_stack_versions_file={versions}")  # which records the new request
    plan = json.loads((reports / "newest/adopt-guide/plan.json").read_text())
    assert "cuda-nvcc-13-0=13.0.88-1" in plan["versions"]
    assert "changed=0 " in playbook("gpu_host", *THIS, "-e", f"gpu_stack_versions_file={versions}").stdout
    assert read_installed() == there


def test_a_variable_that_contradicts_the_file_is_refused(versions, playbook, read_installed):
    there = read_installed()
    options = (*THIS, "-e", f"gpu_stack_versions_file={versions}", "-e", "gpu_stack_cuda=13.2")
    assert "versions-file: gpu_stack_cuda is 13.2, and " in playbook("gpu_host", *options, expect=2).stdout
    assert read_installed() == there


def test_a_change_removes_the_metapackages_and_nothing_that_they_brought(host, as_root, playbook, read_installed):
    there = read_installed()
    assert there.keys() >= METAS
    playbook("gpu_host", *THIS, "-e", "gpu_stack_driver=580", "-e", "gpu_stack_cuda=13.0")
    assert driver(host) == REQUESTED
    after = read_installed()
    assert not METAS & after.keys()
    assert {name for name in there if name.startswith("cuda-") and "driver" not in name} - METAS <= after.keys()
    assert [name for name in removable(as_root) if "cuda" in name or "nvidia" in name] == []


def test_teardown_gives_the_host_back_as_it_was(before, playbook, state, differences, host):
    playbook("teardown", *THIS)
    after = state()
    for of_host in (before, after):
        of_host.pop("repository lists")  # a cache
    assert "\n".join(differences(before, after)) == ""
    assert driver(host) == BROUGHT
