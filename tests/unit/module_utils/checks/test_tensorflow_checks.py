"""Checks of the TensorFlow environment: on the probe's output, captured from TensorFlow 2.21.0 and then changed."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    framework_checks,
    framework_probe,
    model,
    tensorflow_checks,
)
from syrupy.assertion import SnapshotAssertion

from tests.unit import plans

PREFIX = "/opt/gpuhost/environments/tensorflow-2.21.0-py3.11"
SITE = PREFIX + "/lib/python3.11/site-packages"
WHEELS = SITE + "/nvidia"
NAMES = {
    "libcublas": "libcublas.so.12",
    "libcudart": "libcudart.so.12",
    "libcudnn": "libcudnn.so.9",
    "libnccl": "libnccl.so.2",
}
BUILD = {"cuda_version": "12.5.1", "cudnn_version": "9", "is_cuda_build": True, "is_rocm_build": False}
# Output of the probe on a machine without a GPU, with TensorFlow 2.21.0 and its CUDA wheels, shortened.
CAPTURED: dict[str, Any] = {
    "version": "2.21.0",
    "build": BUILD,
    "loaded": {"path": SITE + "/tensorflow/libtensorflow_framework.so.2", "version": "2.21.0"},
    "prefix": PREFIX,
    "search_path": "",
    "pinned": {"cudnn": "9.28.0.42", "nccl": "2.32.3"},
    "asked": NAMES,
    "errors": {},
    "libraries": [
        WHEELS + "/cublas/lib/libcublas.so.12",
        WHEELS + "/cuda_runtime/lib/libcudart.so.12",
        WHEELS + "/cudnn/lib/libcudnn.so.9",
        WHEELS + "/cudnn/lib/libcudnn_graph.so.9",
        WHEELS + "/nccl/lib/libnccl.so.2",
    ],
    "called": {"cudnn": 92800, "nccl": 23203},
    "devices": [],
    "matmul": [{"device": "/CPU:0", "ran_on": "/CPU:0", "difference": 4.774903413092975e-07}],
    "convolution": [{"device": "/CPU:0", "ran_on": "/CPU:0", "difference": 5.407762030242837e-07}],
    "ended": True,
}
LIBRARIES = ("asked", "errors", "libraries", "called")


def on_gpu(number: int, difference: float = 6e-7, **more: Any) -> dict[str, Any]:
    return {"device": f"/GPU:{number}", "ran_on": f"/GPU:{number}", "difference": difference, **more}


BOTH = [on_gpu(0), on_gpu(1)]
TWO = {"devices": ["/physical_device:GPU:0", "/physical_device:GPU:1"], "matmul": BOTH, "convolution": BOTH}
SIMULATED = {"simulated": ["PCI devices", "NVIDIA driver 595.71.05"]}


def mapped(*others: str, without: str = "") -> list[str]:
    """Return the captured paths without those of a library, and others."""
    return [path for path in CAPTURED["libraries"] if not without or f"/{without}.so" not in path] + list(others)


SYSTEM_CUDNN = "/usr/local/cuda/lib64/libcudnn.so.9"
SHADOWED = {
    "libraries": mapped(SYSTEM_CUDNN, without="libcudnn"),
    "search_path": "/usr/local/cuda/lib64",
    "called": {"cudnn": 91002, "nccl": 23203},
}
MISSING = {
    "libraries": mapped(without="libnccl"),
    "errors": {"libnccl.so.2": "libnccl.so.2: cannot open"},
    "called": {"cudnn": 92800},
}
# TensorFlow 2.22.0rc0's build information has neither version.
NO_VERSIONS = {"is_cuda_build": True, "is_rocm_build": False}


def host(run: Callable[..., command.Answer], **changes: Any) -> model.Context:
    plan = {"components": {"tensorflow": {"version": "2.21.0", "cuda_libraries": "wheel"}}}
    base = model.Context(
        plans.plan(changes.pop("plan", plan)),
        "/nonexistent",
        run,
        2,
        "loaded",
        "working",
        {"tensorflow": PREFIX},
        2,
        None,
    )
    return dataclasses.replace(base, **changes)


def printed(exit_code: int = 0, without: tuple[str, ...] = (), **changes: Any) -> Callable[..., command.Answer]:
    """Return a run() that prints the captured output with changes, one line per part."""
    parts = {name: value for name, value in {**CAPTURED, **changes}.items() if name not in without}
    lines = [{name: value} for name, value in parts.items()]
    output = "some log line\n" + "".join(f"\n{framework_probe.MARK}{json.dumps(line)}\n" for line in lines)
    return lambda argv, timeout, env: command.Answer(exit_code, output.encode(), b"Segmentation fault\n")


P, F, S, U = "pass", "fail", "skip", "unknown"


@pytest.mark.parametrize(
    ("run", "changes", "statuses"),
    [
        (printed(**TWO), {}, [P, P, P, P, P, P, P, P]),
        (printed(), SIMULATED, [P, P, S, P, P, P, S, S]),
        (printed(), {"driver_state": "not_loaded"}, [P, P, S, P, P, P, S, S]),
        (printed(), {}, [P, P, F, P, P, P, U, U]),
        (printed(**TWO), SIMULATED, [P, P, P, P, P, P, P, P]),
        (printed(version="2.20.0", **TWO), {}, [F, P, P, P, P, P, P, P]),
        (printed(without=LIBRARIES, build={"is_cuda_build": False}), {}, [P, F, F, S, S, S, U, U]),
        (printed(build=NO_VERSIONS, **TWO), {}, [P, U, P, P, P, P, P, P]),
        (printed(build={}, **TWO), {}, [P, U, P, P, P, P, P, P]),
        (printed(**{**TWO, **SHADOWED}), {}, [P, P, P, F, F, P, P, P]),
        (printed(**{**TWO, "libraries": mapped("/usr/lib/libcudnn_engines_tensor_ir.so.9")}), {},
         [P, P, P, F, P, P, P, P]),
        # The release of the wheel, and another one:
        (printed(**{**TWO, "libraries": mapped("/usr/lib/libcudnn_graph.so.9.28.0")}), {}, [P, P, P, P, P, P, P, P]),
        (printed(**{**TWO, "libraries": mapped("/usr/lib/libcudnn_graph.so.9.27.0")}), {}, [P, P, P, F, P, P, P, P]),
        (printed(**{**TWO, "libraries": mapped("/usr/local/cuda/lib64/libcufft.so.11")}), {}, [P, P, P, F, P, P, P, P]),
        (printed(**{**TWO, **MISSING}), {}, [P, P, P, F, P, U, P, P]),
        (printed(**{**TWO, "libraries": [], "called": {}}), {}, [P, P, P, F, U, U, P, P]),
        (printed(**{**TWO, "build": NO_VERSIONS, "asked": {"libnccl": "libnccl.so.2"},
                    "libraries": [WHEELS + "/nccl/lib/libnccl.so.2"], "called": {"nccl": 23203}}), {},
         [P, U, P, U, U, P, P, P]),
        (printed(**TWO, pinned={}), {}, [P, P, P, P, U, U, P, P]),
        (printed(**{**TWO, "called": {"cudnn": 92800, "nccl": None}}), {}, [P, P, P, P, P, U, P, P]),
        (printed(**{**TWO, "matmul": [on_gpu(0), on_gpu(1, 3e-4)]}), {}, [P, P, P, P, P, P, F, P]),
        (printed(**{**TWO, "matmul": [on_gpu(0), on_gpu(1, float("nan"))]}), {}, [P, P, P, P, P, P, F, P]),
        (printed(**{**TWO, "convolution": [on_gpu(0), on_gpu(1, float("nan"))]}), {}, [P, P, P, P, P, P, P, F]),
        (printed(139, without=("convolution",), devices=TWO["devices"], matmul=BOTH), {}, [P, P, P, U, P, P, P, F]),
        (printed(-6, without=("matmul", "convolution"), devices=TWO["devices"]), {}, [P, P, P, U, P, P, F, F]),
        (printed(124, without=("devices", "matmul", "convolution")), {}, [P, P, U, U, P, P, U, U]),
        (printed(-11, **TWO), {}, [P, P, P, U, P, P, P, P]),
        (printed(without=("ended",), **TWO), {}, [P, P, P, U, P, P, P, P]),
        (printed(-11, **{**TWO, **SHADOWED}), {}, [P, P, P, F, F, P, P, P]),
        (printed(139, without=(*LIBRARIES, "devices", "matmul", "convolution")), {}, [P, P, F, F, F, F, F, F]),
        (lambda argv, timeout, env: command.Answer(1, b"", b"ImportError: x\n"), {}, [F, U, U, U, U, U, U, U]),
        (lambda argv, timeout, env: command.Answer(124, b"", b""), {}, [U, U, U, U, U, U, U, U]),
    ],
    ids=[
        "healthy", "simulated", "not loaded", "no devices", "simulated with devices", "another version",
        "built without CUDA", "build without versions", "build without anything", "shadowed cuDNN",
        "second cuDNN", "part of the same release", "part of another release",
        "cuFFT of the system", "NCCL missing", "no library at all", "no wheel and no version",
        "nothing pinned", "NCCL without a version", "TF32 or worse", "NaN", "convolution NaN", "crashed in convolution",
        "aborted in matmul", "hung listing devices", "crashed at its end", "no list of what computing loads",
        "shadowed and crashed", "crashed loading libraries", "no import", "import hangs",
    ],
)  # fmt: skip
def test_outcomes(run: Callable[..., command.Answer], changes: dict[str, Any], statuses: list[str]) -> None:
    found = tensorflow_checks.run(host(run, **changes))
    assert [check.id for check in found] == [spec.id for spec in tensorflow_checks.CHECKS]
    assert [check.status for check in found] == statuses
    assert all(check.remedy and check.expected for check in found if check.status == "fail")
    assert all(check.reason for check in found if check.status in ("skip", "unknown"))


def by_id(run: Callable[..., command.Answer], **changes: Any) -> dict[str, model.Check]:
    return {check.id: check for check in tensorflow_checks.run(host(run, **changes))}


def test_shadowed_library_is_named_with_the_search_path(snapshot: SnapshotAssertion) -> None:
    found = by_id(printed(**SHADOWED))
    assert found["tensorflow.libraries"].found == f"libcudnn from {SYSTEM_CUDNN}"
    assert found["tensorflow.libraries"].remedy == snapshot
    assert (found["tensorflow.cudnn_version"].found, found["tensorflow.cudnn_version"].expected) == (
        "9.10.2",
        "9.28.0.42",
    )


OWN = "libcublas, libcudart, libcudnn, libcudnn_graph, libnccl from "


def test_texts_of_a_healthy_environment(snapshot: SnapshotAssertion) -> None:
    found = by_id(printed(**TWO))
    assert {name.partition(".")[2]: check.found for name, check in found.items()} == {
        "version": "2.21.0",
        "built_for_cuda": "built for CUDA 12.5.1, cuDNN 9",
        "devices": "2",
        "libraries": f"{OWN}{PREFIX}/",
        "cudnn_version": "9.28.0",
        "nccl_version": "2.32.3",
        "matmul": "/GPU:0 differs by 6.0e-07; /GPU:1 differs by 6.0e-07",
        "convolution": "/GPU:0 differs by 6.0e-07; /GPU:1 differs by 6.0e-07",
    }
    assert found["tensorflow.libraries"].expected == snapshot
    assert found["tensorflow.version"].expected == "2.21.0"


@pytest.mark.parametrize(
    ("run", "name", "text"),
    [
        (printed(build={"is_cuda_build": False}, **TWO), "built_for_cuda", "built without CUDA"),
        (printed(build={"is_cuda_build": False}, **TWO), "libraries",
         "TensorFlow was built without CUDA, see tensorflow.built_for_cuda"),
        (printed(build={"is_cuda_build": False}, **TWO), "nccl_version",
         "TensorFlow was built without CUDA, see tensorflow.built_for_cuda"),
        (printed(build=NO_VERSIONS, **TWO), "built_for_cuda",
         "the build information of TensorFlow has no cuda_version, cudnn_version"),
        (printed(build={**BUILD, "is_cuda_build": None}, **TWO), "built_for_cuda",
         "the build information of TensorFlow has no is_cuda_build"),
        (printed(**{**TWO, **MISSING}), "libraries", "libnccl.so.2: libnccl.so.2: cannot open"),
        (printed(**{**TWO, **MISSING, "errors": {}}), "libraries", "libnccl.so.2: not loaded"),
        (printed(**{**TWO, **MISSING}), "nccl_version", "the library is not loaded, see tensorflow.libraries"),
        (printed(**{**TWO, **MISSING, "asked": {}}), "libraries",
         "neither a wheel nor the build information has the version of libnccl"),
        (printed(**{**TWO, "called": {"cudnn": 92800, "nccl": None}}), "nccl_version",
         "the library returns no version"),
        (printed(**TWO, pinned={}), "cudnn_version",
         "the environment has no wheel of this library, nor the plan a version"),
        (printed(1, without=("ended",), **TWO), "libraries",
         "the process ended before it listed what computing loads: exit 1: Segmentation fault"),
        (printed(1, without=("called", "ended"), **TWO), "nccl_version",
         "the process ended early: exit 1: "),
    ],
)  # fmt: skip
def test_texts_of_what_is_wrong_or_unknown(run: Callable[..., command.Answer], name: str, text: str) -> None:
    check = by_id(run)["tensorflow." + name]
    assert str(check.reason or check.found).startswith(text)
    assert check.status != "unknown" or name != "libraries" or str(check.found).startswith("libcublas, libcudart, ")


def test_libraries_of_the_system_are_named_so() -> None:
    plan = {"components": {"tensorflow": {"version": "2.21.0", "cuda_libraries": "system"}, "cudnn": None}}
    found = by_id(printed(**TWO), plan=plan)
    assert found["tensorflow.libraries"].found == OWN + "the system"
    assert found["tensorflow.libraries"].expected == "each is found"
    assert found["tensorflow.cudnn_version"].status == "unknown"


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


def test_without_a_gpu_the_result_of_the_cpu_is_shown(snapshot: SnapshotAssertion) -> None:
    check = by_id(printed(), **SIMULATED)["tensorflow.matmul"]
    assert check.found == snapshot
    assert check.reason == snapshot


def test_loaded_is_what_is_recorded_beside_the_library_in_the_process() -> None:
    found = by_id(printed(**{**TWO, "loaded": {**CAPTURED["loaded"], "version": "2.20.0"}}))["tensorflow.version"]
    assert (found.loaded, found.versions) == (
        {"tensorflow": "2.20.0 (tensorflow-2.21.0-py3.11)"},
        {"tensorflow": "2.21.0"},
    )
    assert by_id(printed(**TWO, loaded=None))["tensorflow.version"].loaded is None


@pytest.mark.parametrize(("changes", "alone"), [({}, True), (SIMULATED, False)], ids=["GPUs", "none"])
def test_gpus_are_locked_only_where_the_probe_uses_them(changes: dict[str, Any], alone: bool) -> None:
    held: list[bool] = []
    context = host(
        lambda argv, timeout, env: held.append(context.gpus_alone.locked()) or printed()(argv, timeout, env), **changes
    )
    tensorflow_checks.run(context)
    assert held == [alone]
    assert not context.gpus_alone.locked()


REAL = Path(os.environ.get("GPUHOST_TENSORFLOW_PYTHON") or "/opt/gpuhost/tensorflow/bin/python")


@pytest.mark.skipif(
    not REAL.exists(), reason="no TensorFlow environment on this machine (GPUHOST_TENSORFLOW_PYTHON names one)"
)
def test_output_of_a_real_tensorflow() -> None:
    source = Path(framework_probe.__file__).read_text()
    environment = {**os.environ, "LD_LIBRARY_PATH": "/nonexistent", "TF_CPP_MIN_LOG_LEVEL": "2"}
    answer = subprocess.run([REAL, "-c", source, "tensorflow"], capture_output=True, check=True, env=environment)
    output = framework_checks.parse(command.Answer(0, answer.stdout, b""))
    assert (output.ended, output.search_path) == (True, "/nonexistent")
    assert output.loaded is not None
    assert output.loaded.version == output.version
    assert output.devices is not None
    for name, tolerance in (("matmul", 1e-5), ("convolution", 1e-4)):
        devices = [f"/GPU:{number}" for number in range(len(output.devices))] or ["/CPU:0"]
        results = output.results(name) or ()
        assert [(result.device, result.ran_on) for result in results] == [(one, one) for one in devices]
        assert all(1e-9 < result.difference < tolerance for result in results)
    assert (output.called is not None) == bool(output.build.is_cuda_build)
    if output.called is not None:
        assert set(output.asked) == set(framework_probe.NEEDED)
        assert (output.errors, set(output.called)) == ({}, {"cudnn", "nccl"})
        assert framework_checks.missing_libraries(output) == []


@pytest.mark.skipif(
    not REAL.exists(), reason="no TensorFlow environment on this machine (GPUHOST_TENSORFLOW_PYTHON names one)"
)
def test_probe_in_a_real_tensorflow_environment() -> None:
    """A build without CUDA, as the CPU wheels are, fails for that alone."""
    metadata = "from importlib.metadata import version; print(version('tensorflow'))"
    version = subprocess.run([REAL, "-c", metadata], capture_output=True, check=True, text=True).stdout.strip()
    plan = {"components": {"tensorflow": {"version": version, "cuda_libraries": "wheel"}}}
    context = host(
        command.run, root="/", environment_paths={"tensorflow": str(REAL.parents[1])}, plan=plan, **SIMULATED
    )
    found = {check.id: check for check in tensorflow_checks.run(context)}
    without_cuda = found["tensorflow.built_for_cuda"].found == "built without CUDA"
    failed = {check.id: check.found for check in found.values() if check.status not in ("pass", "skip")}
    assert failed == ({"tensorflow.built_for_cuda": "built without CUDA"} if without_cuda else {})
    assert str((found["tensorflow.version"].loaded or {})["tensorflow"]).startswith(version + " (")
    for name in ("matmul", "convolution"):
        assert "differs by" in str(found["tensorflow." + name].found)


def test_without_tensorflow_in_the_plan_all_are_skipped() -> None:
    checks = tensorflow_checks.run(host(printed(), plan={"components": {"tensorflow": None}}))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in tensorflow_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no TensorFlow"}
