"""Checks of the TensorFlow environment: on the probe's output, captured from TensorFlow 2.21.0 and then changed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, tensorflow_checks, tensorflow_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command

PREFIX = "/opt/gpuhost/environments/tensorflow-2.21.0-py3.11"
WHEELS = PREFIX + "/lib/python3.11/site-packages/nvidia"
ON_CPU = "/job:localhost/replica:0/task:0/device:CPU:0"


def library(name: str, directory: str) -> dict[str, Any]:
    return {"soname": name, "path": f"{directory}/{name}"}


# Output of the probe on a machine without a GPU, with TensorFlow 2.21.0 and its CUDA wheels.
CAPTURED: dict[str, Any] = {
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
    "libraries": {**CAPTURED["libraries"], "libcudnn": library("libcudnn.so.9", "/usr/local/cuda/lib64")},
    "search_path": "/usr/local/cuda/lib64",
    "called": {"cudnn": 91002, "nccl": 23203},
}
MISSING = {
    "libraries": {**CAPTURED["libraries"], "libnccl": {"soname": "libnccl.so.2", "error": "libnccl.so.2: cannot open"}},
    "called": {"cudnn": 92800},
}


def host(run: Callable[..., command.Answer], **changes: Any) -> model.Context:
    plan = {"components": {"tensorflow": {"version": "2.21.0", "cuda_libraries": "wheel"}}}
    base = model.Context(plan, "/nonexistent", run, 2, "loaded", "working", PREFIX, 2, None)
    return dataclasses.replace(base, **changes)


def printed(exit_code: int = 0, without: tuple[str, ...] = (), **changes: Any) -> Callable[..., command.Answer]:
    """Return a run() that prints the captured output with changes, one line per part."""
    parts = {name: value for name, value in {**CAPTURED, **changes}.items() if name not in without}
    first = {name: parts.pop(name) for name in list(parts) if name not in ("libraries", "called", "devices", "matmul")}
    lines = [first, *({name: value} for name, value in parts.items())]
    output = "some log line\n" + "".join(f"\n{tensorflow_probe.MARK}{json.dumps(line)}\n" for line in lines)
    return lambda argv, timeout, env: command.Answer(exit_code, output.encode(), b"Segmentation fault\n")


P, F, S = "pass", "fail", "skip"


@pytest.mark.parametrize(
    ("run", "changes", "statuses"),
    [
        (printed(**TWO), {}, [P, P, P, P, P, P, P]),
        (printed(), SIMULATED, [P, P, S, P, P, P, S]),
        (printed(), {"driver_state": "not_loaded"}, [P, P, S, P, P, P, S]),
        (printed(), {}, [P, P, F, P, P, P, S]),
        (printed(**TWO), SIMULATED, [P, P, P, P, P, P, P]),
        (printed(version="2.20.0", **TWO), {}, [F, P, P, P, P, P, P]),
        (printed(without=("libraries", "called"), cuda_build=False), {}, [P, F, F, S, S, S, S]),
        (printed(**TWO, **SHADOWED), {}, [P, P, P, F, F, P, P]),
        (printed(**TWO, **MISSING), {}, [P, P, P, F, P, S, P]),
        (printed(**{**TWO, "matmul": [on_gpu(0), on_gpu(1, 3e-4)]}), {}, [P, P, P, P, P, P, F]),
        (printed(**{**TWO, "matmul": [on_gpu(0), on_gpu(1, ran_on=ON_CPU)]}), {}, [P, P, P, P, P, P, F]),
        (printed(**{**TWO, "matmul": [on_gpu(0), {"device": "/GPU:1", "error": "OOM"}]}), {}, [P, P, P, P, P, P, F]),
        (printed(matmul=[{"device": "/CPU:0", "ran_on": ON_CPU, "difference": 0.5}]), SIMULATED, [P, P, S, P, P, P, F]),
        (printed(139, without=("matmul",), devices=TWO["devices"]), {}, [P, P, P, P, P, P, F]),
        (printed(124, without=("devices", "matmul")), {}, [P, P, F, P, P, P, F]),
        (printed(139, without=("libraries", "called", "devices", "matmul")), {}, [P, P, F, F, F, F, F]),
        (lambda argv, timeout, env: command.Answer(1, b"", b"ImportError: x\n"), {}, [F, S, S, S, S, S, S]),
        (lambda argv, timeout, env: command.Answer(127, b"", b"python: No such file"), {}, [F, S, S, S, S, S, S]),
    ],
    ids=[
        "healthy", "simulated", "not loaded", "no devices", "simulated with devices", "another version",
        "built without CUDA",
        "shadowed cuDNN", "NCCL missing", "TF32 or worse", "computed elsewhere", "out of memory", "the CPU is wrong",
        "crashed in matmul", "hung listing devices", "crashed loading libraries", "no import", "no Python",
    ],
)  # fmt: skip
def test_outcomes(run: Callable[..., command.Answer], changes: dict[str, Any], statuses: list[str]) -> None:
    found = tensorflow_checks.run(host(run, **changes))
    assert [check.id for check in found] == [spec.id for spec in tensorflow_checks.CHECKS]
    assert [check.status for check in found] == statuses
    assert all(check.remedy and check.expected for check in found if check.status == "fail")
    assert all(check.reason for check in found if check.status == "skip")


def by_id(run: Callable[..., command.Answer], **changes: Any) -> dict[str, model.Check]:
    return {check.id: check for check in tensorflow_checks.run(host(run, **changes))}


def test_shadowed_library_is_named_with_the_search_path() -> None:
    found = by_id(printed(**SHADOWED))
    assert found["tensorflow.libraries"].found == "libcudnn.so.9 from /usr/local/cuda/lib64/libcudnn.so.9"
    assert str(found["tensorflow.libraries"].remedy).startswith("LD_LIBRARY_PATH is /usr/local/cuda/lib64. ")
    assert (found["tensorflow.cudnn_version"].found, found["tensorflow.cudnn_version"].expected) == (
        "9.10.2",
        "9.28.0.42",
    )


def test_path_that_merely_begins_like_the_environments_is_foreign() -> None:
    libraries = {**CAPTURED["libraries"], "libcudnn": library("libcudnn.so.9", PREFIX + "-old/lib")}
    assert by_id(printed(libraries=libraries))["tensorflow.libraries"].status == "fail"


def test_system_libraries_are_compared_with_the_plan() -> None:
    plan = {
        "components": {
            "tensorflow": {"version": "2.21.0", "cuda_libraries": "system"},
            "cudnn": {"version": "9.10.2.21"},
            "nccl": {"version": "2.30.7"},
        }
    }
    found = by_id(printed(**SHADOWED), plan=plan)
    assert [found["tensorflow." + name].status for name in ("libraries", "cudnn_version", "nccl_version")] == [P, P, F]


def test_without_a_gpu_the_result_of_the_cpu_is_shown() -> None:
    check = by_id(printed(), **SIMULATED)["tensorflow.matmul"]
    assert check.found == "the same code on the CPU: /CPU:0 differs by 4.8e-07"
    assert "simulated" in str(check.reason)


@pytest.mark.parametrize(
    ("name", "number", "version"),
    [("cudnn", 8907, "8.9.7"), ("cudnn", 92800, "9.28.0"), ("cudnn", 91002, "9.10.2"), ("nccl", 2708, "2.7.8"),
     ("nccl", 21703, "2.17.3"), ("nccl", 23203, "2.32.3")],
)  # fmt: skip
def test_version_numbers(name: str, number: int, version: str) -> None:
    found = by_id(printed(called={"cudnn": 0, "nccl": 0, name: number}))
    assert found[f"tensorflow.{name}_version"].found == version


def test_probe_runs_with_the_environment_of_a_login(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text('# comment\nLANG=C\nexport LD_LIBRARY_PATH="/opt/old/lib"\n')
    calls: list[tuple[list[str], Mapping[str, str]]] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> command.Answer:
        calls.append((argv, env))
        return printed()(argv, timeout, env)

    tensorflow_checks.run(host(run, root=str(tmp_path), **SIMULATED))
    ((argv, env),) = calls
    assert argv[:5] == ["/bin/bash", "-lc", 'exec "$0" "$@"', PREFIX + "/bin/python", "-c"]
    assert argv[5] == Path(tensorflow_probe.__file__).read_text()
    assert env["LD_LIBRARY_PATH"] == "/opt/old/lib"


@pytest.mark.parametrize(("changes", "alone"), [({}, True), (SIMULATED, False)], ids=["GPUs", "none"])
def test_gpus_are_locked_only_where_the_probe_uses_them(changes: dict[str, Any], alone: bool) -> None:
    held: list[bool] = []
    context = host(
        lambda argv, timeout, env: held.append(context.gpus_alone.locked()) or printed()(argv, timeout, env), **changes
    )
    tensorflow_checks.run(context)
    assert held == [alone]
    assert not context.gpus_alone.locked()


REAL = Path(os.environ.get("GPUHOST_TENSORFLOW", "/opt/gpuhost/tensorflow")) / "bin/python"


@pytest.mark.skipif(
    not REAL.exists(), reason="no TensorFlow environment on this machine (GPUHOST_TENSORFLOW names one)"
)
def test_probe_in_a_real_tensorflow_environment() -> None:
    context = host(command.run, root="/", tensorflow_path=str(REAL.parents[1]), **SIMULATED)
    found = {check.id: check for check in tensorflow_checks.run(context)}
    assert {check.id: check.found for check in found.values() if check.status == "fail"} == {}
    assert found["tensorflow.matmul"].found


def test_without_tensorflow_in_the_plan_all_are_skipped() -> None:
    checks = tensorflow_checks.run(host(printed(), plan={"components": {"tensorflow": None}}))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in tensorflow_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no TensorFlow"}
