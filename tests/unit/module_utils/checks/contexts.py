"""Contexts of healthy hosts for the tests of the checks; each test changes what it is about."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks, framework_probe, model
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document
from ansible_collections.gpuhost.stack.plugins.module_utils.model.framework_output import Output
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

from tests.doubles import simulated_cuda
from tests.unit import plans

Run = Callable[..., command.Answer]
PROBE_FIXTURES = Path(__file__).parents[3] / "fixtures/probe"
CUDA_FIXTURES = Path(__file__).parents[3] / "fixtures/cuda_check"

PLAN: dict[str, Any] = {
    "components": {
        "driver": {"version": "580.95.05", "kernel_modules": "open", "packages": ["nvidia-driver-cuda=580.95.05-1"]},
        "cuda": {"version": "13.2", "home": "/usr/local/cuda-13.2", "packages": ["cuda-toolkit-13-2=13.2.1-1"]},
        "cudnn": {"version": "9.28.0.42", "packages": []},
        "nccl": {"version": "2.32.3", "packages": []},
        "tensorflow": {"version": "2.21.0"},
    },
    "gpus": [{"pci_id": "10de:2335"}, {"pci_id": "10de:2335"}],
}
PATHS = {"tensorflow": "/opt/tf", "pytorch": "/opt/torch"}


def nvidia_smi(count: int = 2, version: str = "580.95.05", exit_code: int = 0, message: str = "") -> NvidiaSmi:
    """Return nvidia_smi.read's result for GPUs of one driver version."""
    return of_versions(*[version] * count, exit_code=exit_code, message=message)


def of_versions(*versions: str | None, exit_code: int = 0, message: str = "") -> NvidiaSmi:
    """Return nvidia_smi.read's result for GPUs with these driver versions."""
    gpus = tuple(SmiGpu(index=i, driver_version=version) for i, version in enumerate(versions))
    return NvidiaSmi(gpus, path="/usr/bin/nvidia-smi", exit_code=exit_code, message=message)


def refuse(*args: object) -> command.Answer:
    raise AssertionError(f"no program was expected to run: {args}")


def host(root: Path = Path("/nonexistent"), **changes: Any) -> model.Context:
    """Return a host with two GPUs on which everything is as planned; plan: in JSON."""
    base = model.Context(
        plans.plan(changes.pop("plan", PLAN)), str(root), refuse, 2, "loaded", "working", PATHS, 2,
        nvidia_smi(), workspaces=(tempfile.gettempdir(),),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def without(name: str) -> dict[str, Any]:
    """Return the plan without a component."""
    return {**PLAN, "components": {**PLAN["components"], name: None}}


def probe_output(**parts: Any) -> Output:
    """Return what the probe of a framework printed if it printed these parts."""
    line = f"{framework_probe.MARK}{json.dumps(parts)}\n"
    return framework_checks.parse(command.Answer(0, line.encode(), b""))


def by_id(checks: list[model.Check]) -> dict[str, model.Check]:
    return {check.id: check for check in checks}


# --- three simulated GPUs on which cuda_check runs ---

CUDA_SOURCE = simulated_cuda.SOURCE.read_text()
CUDA_PLAN: dict[str, Any] = {
    "components": {
        "cuda": {"version": "13.2", "home": "/usr/local/cuda-13.2"},
        "cudnn": {"version": "9.28.0.42"},
        "nccl": {"version": "2.29.7"},
    },
    "gpus": [{"pci_id": "10de:2335", "compute_capability": "9.0"} for _ in range(3)],
}
NO_DEVICE = (CUDA_FIXTURES / "no-device.json").read_text()
GPU_CODES = (CUDA_FIXTURES / "nvcc-13.2-list-gpu-code.txt").read_bytes()


def simulated_gpus(**changes: Any) -> NvidiaSmi:
    """Return nvidia_smi.read's result for the simulated GPUs, with changes to the one at 1b:00.0."""
    gpus = [
        SmiGpu(
            name="Simulated GPU",
            compute_capability="9.0",
            uuid=f"GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe{i:02}",
            pci_address=f"0000:{0x1A + i:02x}:00.0",
        )
        for i in range(3)
    ]
    gpus[1] = dataclasses.replace(gpus[1], **changes)
    return NvidiaSmi(tuple(gpus), path="/usr/bin/nvidia-smi")


def cuda_host(run: Run, **changes: Any) -> model.Context:
    """Return a host with three GPUs on which everything is as planned; plan: in JSON."""
    base = model.Context(
        plans.plan(changes.pop("plan", CUDA_PLAN)), "/nonexistent", run, 3, "loaded", "working", PATHS, 3,
        simulated_gpus(), cuda_check_source=CUDA_SOURCE, workspaces=(tempfile.gettempdir(),),
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def toolkit(ran: Callable[[list[str]], command.Answer], built: int = 0) -> Run:
    """Return a run() that prints what nvcc 13.2 prints; `ran` answers for the compiled program."""

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        if argv[1:] == ["--version"]:
            return command.Answer(0, b"Cuda compilation tools, release 13.2, V13.2.78\n", b"")
        if argv[1:] == ["--list-gpu-code"]:
            return command.Answer(0, GPU_CODES, b"")
        if argv[0].endswith("/nvcc"):
            assert Path(argv[argv.index("-o") + 2]).read_text() == CUDA_SOURCE
            assert argv[-5:] == ["-gencode=arch=compute_90,code=sm_90", "-DWITH_CUDNN", "-DWITH_NCCL", "-lcudnn",
                                 "-lnccl"]  # fmt: skip
            return command.Answer(built, b"", b"cuda_check.cu(8): fatal error: cudnn.h: No such file\n" * bool(built))
        return ran(argv)

    return run


def of_program(document: Mapping[str, Any]) -> Document:
    """Return the document of the CUDA program if it printed this JSON."""
    return cuda_program.parse(json.dumps(document))


def prints(output: str, exit_code: int = 0) -> Run:
    """Return a run() in which the compiled program prints `output`."""
    return toolkit(lambda argv: command.Answer(exit_code, output.encode(), b""))
