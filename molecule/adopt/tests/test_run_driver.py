"""A host whose (simulated) driver no package has, as NVIDIA's `.run` installer leaves it."""

import json

HOST = "adopt-run"
THIS = ("--limit", HOST)
VERSION = "595.71.05"


def driver(host) -> str:
    return host.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.strip()


def test_a_driver_without_packages_is_adopted(as_root):
    record = json.loads(as_root.file("/var/lib/gpuhost/verified.json").content_string)
    kept = record["plan"]["kept_driver"]
    assert (kept["version"], kept["package"], kept["source"]) == (VERSION, "", "runfile")
    assert record["evidence"]["checks"]["driver.nvidia_smi"] == "pass"
    assert record["packages"] == {}


def test_it_stays_and_cuda_is_installed_beside_it(playbook, host, read_installed):
    playbook("gpu_host", *THIS, "-e", "gpu_stack_cudnn=none", "-e", "gpu_stack_nccl=none")
    assert driver(host) == VERSION
    assert "cuda-toolkit-13-2" in read_installed()
    assert [name for name in read_installed() if name.startswith(("nvidia-", "libnvidia-"))] == []


def test_another_driver_is_refused_with_the_steps(playbook, host, state):
    before = state()
    done = playbook("gpu_host", *THIS, "-e", "gpu_stack_driver=580", expect=2)
    assert f"runfile-install: driver {VERSION} was installed by NVIDIA's .run installer" in done.stdout
    assert "sudo /usr/bin/nvidia-uninstall --silent" in done.stdout
    assert state() == before
    assert driver(host) == VERSION
