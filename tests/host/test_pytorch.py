"""The PyTorch environment: the planned version, its libraries from the wheels, its list of devices."""

import json
import re

import pytest

SCRIPT = r"""
import json
import torch
maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print("ANSWER" + json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda,
    "gpus": torch.cuda.device_count() if torch.cuda.is_available() else 0, "libraries": sorted(maps),
}))
"""


@pytest.fixture(scope="module")
def answer(host, component):
    component("pytorch")
    result = host.run(f"/opt/gpuhost/pytorch/bin/python -c '{SCRIPT}'")
    assert result.rc == 0, result.stderr[-2000:]
    line = next(line for line in result.stdout.splitlines() if line.startswith("ANSWER"))
    return json.loads(line.removeprefix("ANSWER"))


def test_planned_version_for_the_planned_cuda(answer, component):
    assert answer["version"].split("+")[0] == component("pytorch")["version"]
    assert answer["cuda"] == component("pytorch")["cuda"]


def test_device_list_has_every_planned_gpu(answer, plan, variables):
    # The lab's GPUs are simulated: PyTorch asks the real kernel and must see none of them.
    assert answer["gpus"] == (len(plan["gpus"]) if variables.get("nvidia_driver_load_module", True) else 0)


def test_environment_is_a_relative_link(host, component):
    planned = component("pytorch")
    target = host.run_expect([0], "readlink /opt/gpuhost/pytorch").stdout.strip()
    assert re.fullmatch(
        rf"environments/pytorch-{planned['version']}-py{planned['python']}-[0-9a-f]{{8}}(-[0-9]+)?", target
    )


def test_every_cuda_library_is_in_the_environment(host, answer):
    names = ("libcudart", "libcudnn", "libcublas", "libnccl", "libcufft", "libcusolver", "libcusparse")
    found = [path for path in answer["libraries"] if path.rsplit("/", 1)[-1].startswith(names)]
    environment = host.run_expect([0], "readlink -f /opt/gpuhost/pytorch").stdout.strip()
    assert {path.rsplit("/", 1)[-1].split(".so")[0] for path in found} >= {
        "libcudart",
        "libcudnn",
        "libcublas",
        "libnccl",
    }
    assert [path for path in found if not path.startswith(f"{environment}/")] == []
