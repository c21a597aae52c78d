"""A host that somebody set up by NVIDIA's guide: adopted, changed, and given back as it was.

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
BROUGHT, REQUESTED = "595.71.05", "580.126.16"

pytestmark = pytest.mark.usefixtures("host")


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


def test_the_driver_that_works_is_kept(host, as_root):
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
    playbook("gpu_host")
    path = tmp_path_factory.mktemp("versions") / "versions.yml"
    probe = reports / "newest/adopt-guide/probe.json"
    command = ["script/plan", "--probe", str(probe), "--request", "tensorflow=none", "--save-versions", str(path)]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    return str(path)


def test_a_file_of_its_own_versions_changes_nothing(versions, playbook, reports, read_installed):
    saved = yaml.safe_load(Path(versions).read_text())
    assert saved["request"]["driver"] == BROUGHT
    there = read_installed()
    assert {name: there[name] for name in saved["packages"]["cuda"]} == saved["packages"]["cuda"]
    assert len(saved["packages"]["cuda"]) > 5, "what the toolkit depends on is in the file"
    playbook("gpu_host", "-e", f"gpu_stack_versions_file={versions}")  # which records the new request
    plan = json.loads((reports / "newest/adopt-guide/plan.json").read_text())
    assert "cuda-nvcc-13-2=13.2.78-1" in plan["versions"]
    assert "changed=0 " in playbook("gpu_host", "-e", f"gpu_stack_versions_file={versions}").stdout
    assert read_installed() == there


def test_a_variable_that_contradicts_the_file_is_refused(versions, playbook, read_installed):
    there = read_installed()
    options = ("-e", f"gpu_stack_versions_file={versions}", "-e", "gpu_stack_cuda=13.0")
    assert "versions-file: gpu_stack_cuda is 13.0, and " in playbook("gpu_host", *options, expect=2).stdout
    assert read_installed() == there


def test_a_change_removes_the_metapackages_and_nothing_that_they_brought(host, as_root, playbook, read_installed):
    there = read_installed()
    assert there.keys() >= METAS
    playbook("gpu_host", "-e", "gpu_stack_driver=580", "-e", "gpu_stack_cuda=13.0")
    assert driver(host) == REQUESTED
    after = read_installed()
    assert not METAS & after.keys()
    assert {name for name in there if name.startswith("cuda-") and "driver" not in name} - METAS <= after.keys()
    assert [name for name in removable(as_root) if "cuda" in name or "nvidia" in name] == []


def test_teardown_gives_the_host_back_as_it_was(before, playbook, state, differences, host):
    playbook("teardown")
    after = state()
    for of_host in (before, after):
        of_host.pop("repository lists")  # a cache
    assert "\n".join(differences(before, after)) == ""
    assert driver(host) == BROUGHT
