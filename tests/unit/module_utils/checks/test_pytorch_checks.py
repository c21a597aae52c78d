"""Checks of the PyTorch environment: on the probe's output, captured from PyTorch 2.15.0 and then changed."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    framework_checks,
    framework_probe,
    model,
    pytorch_checks,
    verify,
)
from syrupy.assertion import SnapshotAssertion

from tests.unit import plans

OWN = "/opt/gpuhost/environments/pytorch-2.15.0-py3.11-5fc5f6ce"
SITE = OWN + "/lib/python3.11/site-packages/nvidia"
# Output of the probe in an environment of the lock file pytorch-2.15.0-cu132-py3.11.txt, on a machine without a GPU.
CAPTURED: dict[str, Any] = {
    "version": "2.15.0+cu132",
    "cuda": "13.2",
    "loaded": {"path": OWN + "/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so", "version": "2.15.0"},
    "prefix": OWN,
    "search_path": "",
    "pinned": {"cudnn": "9.26.0.51", "nccl": "2.30.7"},
    "libraries": [
        SITE + "/cu13/lib/libcublas.so.13",
        SITE + "/cu13/lib/libcudart.so.13",
        SITE + "/cu13/lib/libcufft.so.12",
        SITE + "/cudnn/lib/libcudnn.so.9",
        SITE + "/nccl/lib/libnccl.so.2",
    ],
    "called": {"cudnn": 92600, "nccl": "2.30.7"},
    "devices": [],
    "matmul": [{"device": "cpu", "ran_on": "cpu", "difference": 4.410498168568738e-07}],
    "convolution": [{"device": "cpu", "ran_on": "cpu", "difference": 5.407762030242837e-07}],
    "triton": [{"device": "cpu", "ran_on": "cpu", "difference": 4.014893570599688e-08}],
    "compiles_with": {"compiler": "/usr/bin/gcc", "headers": "/usr/include/python3.11", "has_headers": True},
    "ended": True,
}
BOTH = [{"device": f"cuda:{n}", "ran_on": f"cuda:{n}", "difference": 5.1e-07} for n in range(2)]
TWO_GPUS = {**CAPTURED, "devices": ["cuda:0", "cuda:1"], "matmul": BOTH, "convolution": BOTH, "triton": BOTH}
PLANNED = {"version": "2.15.0", "python": "3.11", "cuda": "13.2", "lock": "pytorch-2.15.0-cu132-py3.11.txt"}


def context(
    answer: Answer,
    planned: Any = PLANNED,
    simulated: tuple[str, ...] = (),
    gpus: int = 2,
    commands: list[Any] | None = None,
) -> model.Context:
    commands = [] if commands is None else commands

    def run(argv: list[str], timeout: float, env: dict[str, str]) -> Answer:
        commands.append(argv)
        return answer

    return model.Context(
        plan=plans.plan({"components": {"pytorch": planned}}),
        root="/nonexistent",
        run=run,
        expect_gpus=gpus,
        kernel_module="loaded",
        driver_state="working",
        environment_paths={"pytorch": "/opt/gpuhost/pytorch"},
        pci_gpus=gpus,
        smi=None,
        simulated=list(simulated),
        workspaces=(tempfile.gettempdir(),),
    )


def printed(*parts: dict[str, Any], exit_code: int = 0, stderr: str = "") -> Answer:
    lines = "".join(f"\n{framework_probe.MARK}{json.dumps(part)}\n" for part in parts)
    return Answer(exit_code, ("noise of a library" + lines).encode(), stderr.encode())


def judged(answer: Answer, **more: Any) -> dict[str, model.Check]:
    found = pytorch_checks.run(context(answer, **more))
    assert [check.id for check in found] == [spec.id for spec in pytorch_checks.CHECKS]
    for check in found:
        if check.status == "fail":
            assert check.found
            assert check.expected
            assert check.remedy
        assert (check.status in ("skip", "unknown")) == (check.reason is not None)
    return {check.id: check for check in found}


def statuses(found: dict[str, model.Check]) -> dict[str, str]:
    return {name.split(".")[1]: check.status for name, check in found.items() if check.status != "pass"}


def test_without_pytorch_in_the_plan_there_is_no_check() -> None:
    commands: list[Any] = []
    assert pytorch_checks.run(context(printed(TWO_GPUS), planned=None, commands=commands)) == []
    assert commands == []
    assert pytorch_checks.run(context(printed(TWO_GPUS), commands=commands))
    assert len(commands) == 1


def test_two_healthy_gpus(snapshot: SnapshotAssertion) -> None:
    found = judged(printed(TWO_GPUS))
    assert statuses(found) == {}
    assert found["pytorch.version"].versions == {"pytorch": "2.15.0"}
    assert found["pytorch.cuda_libraries"].found == snapshot


def test_gpu_checks_are_skipped_with_a_simulated_driver(snapshot: SnapshotAssertion) -> None:
    found = judged(printed(CAPTURED), simulated=("NVIDIA driver 595.71.05 (simulated)",))
    assert statuses(found) == dict.fromkeys(("devices", "matmul", "convolution", "triton"), "skip")
    assert found["pytorch.matmul"].reason == snapshot


@pytest.mark.parametrize(
    ("change", "failed", "text"),
    [
        ({"version": "2.14.1+cu130"}, ["version"], "2.14.1+cu130"),
        ({"cuda": "12.8"}, ["built_for_cuda"], "built for CUDA 12.8"),
        (
            {"libraries": [*CAPTURED["libraries"], "/usr/lib/x86_64-linux-gnu/libcudnn_engines_tensor_ir.so.9"]},
            ["cuda_libraries"],
            "libcudnn_engines_tensor_ir from /usr/lib/x86_64-linux-gnu/libcudnn_engines_tensor_ir.so.9",
        ),
        ({"called": {"cudnn": 91002, "nccl": "2.30.7"}}, ["cuda_libraries"], "cudnn returns 9.10.2 when called, "),
        ({"called": {"cudnn": 92600, "nccl": None}}, ["cuda_libraries"], "nccl returns None when called"),
        (
            {"libraries": CAPTURED["libraries"][1:2]},
            ["cuda_libraries"],
            "libcublas is not loaded; libcudnn is not loaded; libnccl is not loaded",
        ),
        ({"libraries": []}, ["cuda_libraries"], "libcudart is not loaded; "),
        ({"called": {}}, ["cuda_libraries"], "cudnn returns None when called"),
        ({"devices": ["cuda:0"]}, ["devices"], "1"),
        (
            {"convolution": [*BOTH[:1], {"device": "cuda:1", "error": "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"}]},
            ["convolution"],
            "cuda:0 differs by 5.1e-07; cuda:1 cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        ),
    ],
    ids=["release", "CUDA", "shadowed", "another cuDNN", "no NCCL", "libraries", "no library", "nothing called",
         "lost GPU", "convolution"],
)  # fmt: skip
def test_fault_fails_its_own_check_only(change: dict[str, Any], failed: list[str], text: str) -> None:
    found = judged(printed({**TWO_GPUS, **change}))
    assert statuses(found) == dict.fromkeys(failed, "fail")
    assert text in str(found[f"pytorch.{failed[0]}"].found)


def test_remedy_for_a_shadowed_library_names_the_search_path(snapshot: SnapshotAssertion) -> None:
    libraries = [*CAPTURED["libraries"][:-1], "/opt/old/libnccl.so.2"]
    found = judged(printed({**TWO_GPUS, "libraries": libraries, "search_path": "/opt/old"}))
    assert found["pytorch.cuda_libraries"].remedy == snapshot


def test_a_build_without_cuda() -> None:
    found = judged(printed({**CAPTURED, "cuda": None, "called": None}))
    assert statuses(found) == {
        "built_for_cuda": "fail",
        "cuda_libraries": "skip",
        "devices": "fail",
        "matmul": "unknown",
        "convolution": "unknown",
        "triton": "unknown",
    }


def test_failed_import_is_one_failure() -> None:
    found = judged(Answer(1, b"", b"Traceback\nImportError: libcudnn.so.9: cannot open shared object file"))
    assert statuses(found) == {
        "version": "fail",
        **dict.fromkeys(("built_for_cuda", "cuda_libraries", "devices", "matmul", "convolution", "triton"), "unknown"),
    }
    assert "libcudnn.so.9: cannot open" in str(found["pytorch.version"].found)


def test_output_before_a_crash_is_judged(snapshot: SnapshotAssertion) -> None:
    crashed = {name: value for name, value in TWO_GPUS.items() if name not in ("convolution", "ended")}
    found = judged(printed(crashed, exit_code=-11, stderr="Fatal Python error: Segmentation fault"))
    assert statuses(found) == {"cuda_libraries": "unknown", "convolution": "fail"}
    assert found["pytorch.cuda_libraries"].reason == snapshot
    assert "Segmentation fault" in str(found["pytorch.convolution"].found)
    assert found["pytorch.convolution"].remedy == snapshot


@pytest.mark.parametrize("exit_code", [-11, 1, 124])
def test_process_that_ends_badly_after_its_last_part_is_unknown(exit_code: int, snapshot: SnapshotAssertion) -> None:
    found = judged(printed(TWO_GPUS, exit_code=exit_code))
    assert statuses(found) == {"cuda_libraries": "unknown"}
    assert found["pytorch.cuda_libraries"].reason == snapshot


def test_only_one_program_at_a_time_uses_the_gpus() -> None:
    host = context(printed(TWO_GPUS))
    done = threading.Event()
    with host.gpus_alone:
        other = threading.Thread(target=lambda: (pytorch_checks.run(host), done.set()))
        other.start()
        assert not done.wait(0.3)
    assert done.wait(10)
    other.join()


def test_pytorch_is_part_of_the_verification() -> None:
    assert verify.GROUPS["pytorch"] is pytorch_checks


TORCH = os.environ.get("GPUHOST_PYTORCH_PYTHON") or "/opt/gpuhost/pytorch/bin/python"


@pytest.mark.skipif(not shutil.which(TORCH), reason=f"no PyTorch here: {TORCH} (GPUHOST_PYTORCH_PYTHON names another)")
def test_probe_in_a_real_pytorch_environment(tmp_path: Path) -> None:
    source = Path(framework_probe.__file__).read_text()
    environment = {**os.environ, "LD_LIBRARY_PATH": "/nonexistent", "TRITON_CACHE_DIR": str(tmp_path)}
    answer = subprocess.run([TORCH, "-c", source, "pytorch"], capture_output=True, check=True, env=environment)
    output = framework_checks.parse(Answer(0, answer.stdout, b""))
    assert (output.ended, output.search_path) == (True, "/nonexistent")
    version = str(output.version).split("+")[0]
    assert output.loaded is not None
    assert output.loaded.version == version
    for name, tolerance in (("matmul", 1e-5), ("convolution", 1e-4), ("triton", 1e-5)):
        devices = output.devices or ["cpu"]
        results = output.results(name) or ()
        assert [(result.device, result.ran_on) for result in results] == [(one, one) for one in devices]
        assert all(1e-9 < result.difference < tolerance for result in results)
    planned = {**PLANNED, "version": version, "cuda": output.cuda or PLANNED["cuda"]}
    found = judged(Answer(0, answer.stdout, b""), planned=planned, gpus=len(output.devices or ()))
    without_cuda = {"built_for_cuda": "fail", "cuda_libraries": "skip"} if output.cuda is None else {}
    without_gpus = {} if output.devices else dict.fromkeys(("devices", "matmul", "convolution", "triton"), "skip")
    assert statuses(found) == {**without_cuda, **without_gpus}
    for name in ("matmul", "convolution"):
        assert "differs by" in str(found["pytorch." + name].found)
