"""Checks of the TensorFlow environment and the probe in it: on what TensorFlow 2.21 said, and on real libraries."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, tensorflow_checks, tensorflow_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command

PREFIX = "/opt/gpuhost/environments/tensorflow-2.21.0-py3.11"
WHEELS = PREFIX + "/lib/python3.11/site-packages/nvidia"
ON_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def library(name: str, folder: str) -> dict[str, Any]:
    return {"soname": name, "path": f"{folder}/{name}", "with_tensorflow": False}


# What the probe prints on a machine without a GPU, with TensorFlow 2.21.0 and its CUDA wheels.
SAID: dict[str, Any] = {
    "version": "2.21.0",
    "cuda_build": True,
    "cuda": "12.5.1",
    "cudnn": "9",
    "prefix": PREFIX,
    "search_path": "",
    "pinned": {"cudnn": "9.28.0.42", "nccl": "2.32.3"},
    "libraries": {
        "libcudart": library("libcudart.so.12", WHEELS + "/cuda_runtime/lib"),
        "libcublas": library("libcublas.so.12", WHEELS + "/cublas/lib"),
        "libcudnn": library("libcudnn.so.9", WHEELS + "/cudnn/lib"),
        "libnccl": library("libnccl.so.2", WHEELS + "/nccl/lib"),
    },
    "called": {"cudnn": 92800, "nccl": 23203},
    "devices": [],
    "matmul": [{"device": "/CPU:0", "ran_on": ON_CPU, "difference": 4.774903413092975e-07}],
}


def on_gpu(number: int, difference: float = 6e-7, **more: Any) -> dict[str, Any]:
    ran_on = f"/job:localhost/replica:0/task:0/device:GPU:{number}"
    return {"device": f"/GPU:{number}", "ran_on": ran_on, "difference": difference, **more}


TWO = {
    "devices": ["/physical_device:GPU:0", "/physical_device:GPU:1"],
    "matmul": [on_gpu(0), on_gpu(1)],
}
SIMULATED = {"simulated": ["PCI devices", "NVIDIA driver 595.71.05"]}
SHADOWED = {
    "libraries": {**SAID["libraries"], "libcudnn": library("libcudnn.so.9", "/usr/local/cuda/lib64")},
    "search_path": "/usr/local/cuda/lib64",
    "called": {"cudnn": 91002, "nccl": 23203},
}
MISSING = {
    "libraries": {**SAID["libraries"], "libnccl": {"soname": "libnccl.so.2", "error": "libnccl.so.2: cannot open"}},
    "called": {"cudnn": 92800},
}


def told(run: Callable[..., command.Answer], **changes: Any) -> model.Context:
    plan = {"components": {"tensorflow": {"version": "2.21.0", "cuda_libraries": "wheel"}}}
    base = model.Context(plan, "/nonexistent", run, 2, "loaded", "working", PREFIX, 2, None)
    return dataclasses.replace(base, **changes)


def says(exit_code: int = 0, without: tuple[str, ...] = (), **changes: Any) -> Callable[..., command.Answer]:
    """The probe's lines, one for each part, as it prints them."""
    said = {name: value for name, value in {**SAID, **changes}.items() if name not in without}
    first = {name: said.pop(name) for name in list(said) if name not in ("libraries", "called", "devices", "matmul")}
    lines = [first, *({name: value} for name, value in said.items())]
    output = "some log line\n" + "".join(f"\n{tensorflow_probe.MARK}{json.dumps(line)}\n" for line in lines)
    return lambda argv, timeout, env: command.Answer(exit_code, output.encode(), b"Segmentation fault\n")


P, F, S = "pass", "fail", "skip"


@pytest.mark.parametrize(
    ("run", "changes", "statuses"),
    [
        (says(**TWO), {}, [P, P, P, P, P, P, P]),
        (says(), SIMULATED, [P, P, S, P, P, P, S]),
        (says(), {"driver_state": "not_loaded"}, [P, P, S, P, P, P, S]),
        (says(), {}, [P, P, F, P, P, P, S]),
        (says(**TWO), SIMULATED, [P, P, P, P, P, P, P]),
        (says(version="2.20.0", **TWO), {}, [F, P, P, P, P, P, P]),
        (says(without=("libraries", "called"), cuda_build=False), {}, [P, F, F, S, S, S, S]),
        (says(**TWO, **SHADOWED), {}, [P, P, P, F, F, P, P]),
        (says(**TWO, **MISSING), {}, [P, P, P, F, P, S, P]),
        (says(**{**TWO, "matmul": [on_gpu(0), on_gpu(1, 3e-4)]}), {}, [P, P, P, P, P, P, F]),
        (says(**{**TWO, "matmul": [on_gpu(0), on_gpu(1, ran_on=ON_CPU)]}), {}, [P, P, P, P, P, P, F]),
        (says(**{**TWO, "matmul": [on_gpu(0), {"device": "/GPU:1", "error": "OOM"}]}), {}, [P, P, P, P, P, P, F]),
        (says(matmul=[{"device": "/CPU:0", "ran_on": ON_CPU, "difference": 0.5}]), SIMULATED, [P, P, S, P, P, P, F]),
        (says(139, without=("matmul",), devices=TWO["devices"]), {}, [P, P, P, P, P, P, F]),
        (says(124, without=("devices", "matmul")), {}, [P, P, F, P, P, P, F]),
        (says(139, without=("libraries", "called", "devices", "matmul")), {}, [P, P, F, F, F, F, F]),
        (lambda argv, timeout, env: command.Answer(1, b"", b"ImportError: x\n"), {}, [F, S, S, S, S, S, S]),
        (lambda argv, timeout, env: command.Answer(127, b"", b"python: No such file"), {}, [F, S, S, S, S, S, S]),
    ],
    ids=[
        "well", "simulated", "not loaded", "no devices", "simulated sees some", "another version", "built without CUDA",
        "shadowed cuDNN", "NCCL missing", "TF32 or worse", "computed elsewhere", "out of memory", "the CPU is wrong",
        "died in matmul", "hung listing devices", "died loading libraries", "no import", "no Python",
    ],
)  # fmt: skip
def test_tensorflow(run: Callable[..., command.Answer], changes: dict[str, Any], statuses: list[str]) -> None:
    found = tensorflow_checks.run(told(run, **changes))
    assert tuple(check.id for check in found) == tensorflow_checks.IDS
    assert [check.status for check in found] == statuses
    assert all(check.remedy and check.expected for check in found if check.status == "fail")
    assert all(check.reason for check in found if check.status == "skip")


def by_id(run: Callable[..., command.Answer], **changes: Any) -> dict[str, model.Check]:
    return {check.id: check for check in tensorflow_checks.run(told(run, **changes))}


def test_a_shadowed_library_is_named_with_what_leads_to_it() -> None:
    found = by_id(says(**SHADOWED))
    assert found["tensorflow.libraries"].found == "libcudnn.so.9 from /usr/local/cuda/lib64/libcudnn.so.9"
    assert str(found["tensorflow.libraries"].remedy).startswith("LD_LIBRARY_PATH is /usr/local/cuda/lib64. ")
    assert (found["tensorflow.cudnn_version"].found, found["tensorflow.cudnn_version"].expected) == (
        "9.10.2",
        "9.28.0.42",
    )


def test_a_path_that_only_begins_like_the_environment_is_elsewhere() -> None:
    libraries = {**SAID["libraries"], "libcudnn": library("libcudnn.so.9", PREFIX + "-old/lib")}
    assert by_id(says(libraries=libraries))["tensorflow.libraries"].status == "fail"


def test_the_system_s_libraries_are_held_against_the_plan() -> None:
    plan = {
        "components": {
            "tensorflow": {"version": "2.21.0", "cuda_libraries": "system"},
            "cudnn": {"version": "9.10.2.21"},
            "nccl": {"version": "2.30.7"},
        }
    }
    found = by_id(says(**SHADOWED), plan=plan)
    assert [found["tensorflow." + name].status for name in ("libraries", "cudnn_version", "nccl_version")] == [P, P, F]


def test_no_gpu_tells_what_the_cpu_computed() -> None:
    check = by_id(says(), **SIMULATED)["tensorflow.matmul"]
    assert check.found == "the same code on the CPU: /CPU:0 differs by 4.8e-07"
    assert "simulated" in str(check.reason)


@pytest.mark.parametrize(
    ("name", "number", "version"),
    [("cudnn", 8907, "8.9.7"), ("cudnn", 92800, "9.28.0"), ("cudnn", 91002, "9.10.2"), ("nccl", 2708, "2.7.8"),
     ("nccl", 21703, "2.17.3"), ("nccl", 23203, "2.32.3")],
)  # fmt: skip
def test_version_numbers(name: str, number: int, version: str) -> None:
    found = by_id(says(called={"cudnn": 0, "nccl": 0, name: number}))
    assert found[f"tensorflow.{name}_version"].found == version


def test_one_process_in_the_environment_of_a_login(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text('# comment\nLANG=C\nexport LD_LIBRARY_PATH="/opt/old/lib"\n')
    calls: list[tuple[list[str], Mapping[str, str]]] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> command.Answer:
        calls.append((argv, env))
        return says()(argv, timeout, env)

    tensorflow_checks.run(told(run, root=str(tmp_path), **SIMULATED))
    ((argv, env),) = calls
    assert argv[:5] == ["/bin/bash", "-lc", 'exec "$0" "$@"', PREFIX + "/bin/python", "-c"]
    assert argv[5] == Path(tensorflow_probe.__file__).read_text()
    assert env["LD_LIBRARY_PATH"] == "/opt/old/lib"


@pytest.mark.parametrize(("changes", "alone"), [({}, True), (SIMULATED, False)], ids=["GPUs", "none"])
def test_where_it_uses_gpus_no_other_program_does(changes: dict[str, Any], alone: bool) -> None:
    held: list[bool] = []
    context = told(
        lambda argv, timeout, env: held.append(context.gpus_alone.locked()) or says()(argv, timeout, env), **changes
    )
    tensorflow_checks.run(context)
    assert held == [alone]
    assert not context.gpus_alone.locked()


# --- the probe, on real shared libraries ---

GCC = shutil.which("gcc")
# In place of TensorFlow: its load_op_library is a dlopen by name from TensorFlow's own library, which finds its wheels
# through RUNPATH; here they stand in LD_LIBRARY_PATH's last folder. Both let an earlier folder of that variable win.
RUNNER = """
import ctypes, json, sys
import tensorflow_probe as probe

class errors:
    OpError = KeyError

class TensorFlow:
    errors = errors
    load_op_library = staticmethod(ctypes.CDLL)

found = probe.load(TensorFlow, probe.sonames({"cuda_version": "12.5.1", "cudnn_version": "9"}))
print(json.dumps([found, probe.call_versions(found)]))
"""


def build(folder: Path, name: str, source: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command_line = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", str(folder / name)]
    subprocess.run(command_line, input=source.encode(), check=True)


@pytest.mark.skipif(GCC is None, reason="no gcc on this machine to build a library with")
@pytest.mark.parametrize("shadowed", [False, True])
def test_the_probe_calls_the_library_that_answers(tmp_path: Path, shadowed: bool) -> None:
    wheels, other = tmp_path / "wheels", tmp_path / "other"
    build(wheels, "libcudnn.so.9", "#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 92800; }")
    build(wheels, "libnccl.so.2", "int ncclGetVersion(int *version) { *version = 23203; return 0; }")
    build(wheels, "libcudart.so.12", "int x;")
    build(other, "libcudnn.so.9", "#include <stddef.h>\nsize_t cudnnGetVersion(void) { return 91002; }")
    path = f"{other}:{wheels}" if shadowed else str(wheels)
    folder = str(Path(tensorflow_probe.__file__).parent)
    env = {"LD_LIBRARY_PATH": path, "PYTHONPATH": folder, "PATH": os.environ["PATH"]}
    answer = subprocess.run([sys.executable, "-c", RUNNER], env=env, capture_output=True, text=True, check=True)
    found, versions = json.loads(answer.stdout)
    assert found["libcudnn"]["path"] == str((other if shadowed else wheels) / "libcudnn.so.9")
    assert found["libnccl"]["path"] == str(wheels / "libnccl.so.2")
    assert "libcublas.so.12" in found["libcublas"]["error"]
    assert versions == {"cudnn": 91002 if shadowed else 92800, "nccl": 23203}


def test_the_library_s_names_are_those_of_the_build() -> None:
    assert tensorflow_probe.sonames({"cuda_version": "13.0.1", "cudnn_version": "9"}) == {
        "libcudart": "libcudart.so.13",
        "libcublas": "libcublas.so.13",
        "libcudnn": "libcudnn.so.9",
        "libnccl": "libnccl.so.2",
    }
    assert list(tensorflow_probe.sonames({})) == ["libnccl"]


REAL = Path(os.environ.get("GPUHOST_TENSORFLOW", "/opt/gpuhost/tensorflow")) / "bin/python"


@pytest.mark.skipif(
    not REAL.exists(), reason="no TensorFlow environment on this machine (GPUHOST_TENSORFLOW names one)"
)
def test_the_real_tensorflow_answers_everything() -> None:
    context = told(command.run, root="/", tensorflow_path=str(REAL.parents[1]), **SIMULATED)
    found = {check.id: check for check in tensorflow_checks.run(context)}
    assert {check.id: check.found for check in found.values() if check.status == "fail"} == {}
    assert found["tensorflow.matmul"].found
