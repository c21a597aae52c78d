"""The TensorFlow environment: the planned version, built for CUDA, its libraries from the wheels, its device list."""

import json
import re

import pytest

SCRIPT = r"""
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
build = tf.sysconfig.get_build_info()
gpus = [device.name for device in tf.config.list_physical_devices("GPU")]
# Without a GPU, TensorFlow loads no CUDA library. load_op_library opens one from where TensorFlow itself would.
cuda, cudnn = build["cuda_version"].split(".")[0], build["cudnn_version"].split(".")[0]
for name, major in ("libcudart", cuda), ("libcublas", cuda), ("libcudnn", cudnn), ("libnccl", "2"):
    tf.load_op_library(name + ".so." + major)
maps = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
print("ANSWER" + json.dumps({
    "version": tf.__version__, "cuda_build": bool(build["is_cuda_build"]), "gpus": gpus,
    "cpus": len(tf.config.list_physical_devices("CPU")), "libraries": sorted(maps),
}))
"""


@pytest.fixture(scope="module")
def answer(host, component):
    component("tensorflow")
    result = host.run(f"/opt/gpuhost/tensorflow/bin/python -c '{SCRIPT}'")
    assert result.rc == 0, result.stderr[-2000:]
    line = next(line for line in result.stdout.splitlines() if line.startswith("ANSWER"))
    return json.loads(line.removeprefix("ANSWER"))


def test_planned_version_built_for_cuda(answer, component):
    assert answer["version"] == component("tensorflow")["version"]
    assert answer["cuda_build"] is True


def test_device_list_has_every_planned_gpu(answer, plan, variables):
    if variables.get("nvidia_driver_load_module", True):
        assert len(answer["gpus"]) == len(plan["gpus"])
    else:
        # The lab's GPUs are simulated: TensorFlow asks the real kernel and must see none of them.
        assert answer["gpus"] == []
        assert answer["cpus"] == 1


def test_environment_is_a_relative_link(host, component):
    planned = component("tensorflow")
    target = host.run_expect([0], "readlink /opt/gpuhost/tensorflow").stdout.strip()
    assert re.fullmatch(
        rf"environments/tensorflow-{planned['version']}-py{planned['python']}-[0-9a-f]{{8}}(-[0-9]+)?", target
    )


def test_every_cuda_library_is_in_the_environment(host, answer, component):
    if component("tensorflow")["cuda_libraries"] != "wheel":
        pytest.skip("the plan uses the system's CUDA libraries")
    names = ("libcudart", "libcudnn", "libcublas", "libnccl", "libcufft", "libcusolver", "libcusparse")
    found = [path for path in answer["libraries"] if path.rsplit("/", 1)[-1].startswith(names)]
    environment = host.run_expect([0], "readlink -f /opt/gpuhost/tensorflow").stdout.strip()
    loaded = {path.rsplit("/", 1)[-1].split(".so")[0] for path in found}
    assert loaded >= {"libcudart", "libcudnn", "libcublas", "libnccl"}
    assert [path for path in found if not path.startswith(f"{environment}/")] == []


def test_cuda_wheels_are_in_the_environment(host, component):
    if component("tensorflow")["cuda_libraries"] != "wheel":
        pytest.skip("the plan uses the system's CUDA libraries")
    libraries = host.run_expect([0], "ls /opt/gpuhost/tensorflow/lib/python3*/site-packages/nvidia").stdout.split()
    assert {"cudnn", "nccl", "cuda_runtime", "cublas"} <= set(libraries)
