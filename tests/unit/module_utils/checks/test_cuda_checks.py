"""Checks of CUDA, cuDNN and NCCL: on the captured output of cuda_check without a device, and on a real nvcc."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_checks, model
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

from tests.unit.module_utils.checks.contexts import NO_DEVICE, Run, by_id, cuda_host, prints, toolkit

IDS = [spec.id for spec in cuda_checks.CHECKS]
SIMULATED_DRIVER = {"simulated": ["PCI devices", "NVIDIA driver 580.95.05"]}


def outcomes(found: list[model.Check], status: str) -> list[str]:
    """Return the ids of the checks with this status; assert that each result has the texts of its status."""
    assert [check.id for check in found] == IDS
    for check in found:
        assert (check.status == "fail") == bool(check.remedy), check
        assert (check.status in ("skip", "unknown")) == bool(check.reason), check
        assert check.reason or (check.found and check.expected), check
    return [check.id for check in found if check.status == status]


HUNG = command.Answer(command.TIMED_OUT, b"", b"nvcc did not end within 60 s")
TOGETHER = ["cuda.nvcc_version", "cuda.compile_link_run"]


@pytest.mark.parametrize(
    ("run", "changes", "passed", "failed"),
    [
        (prints(NO_DEVICE), SIMULATED_DRIVER, TOGETHER, []),
        (prints(NO_DEVICE), {"driver_state": "not_loaded"}, TOGETHER, []),
        (prints(NO_DEVICE), {"expect_gpus": 0}, TOGETHER, []),
        (prints(NO_DEVICE), {}, TOGETHER, ["cuda.devices"]),
        (prints(NO_DEVICE.replace("35", "802")), SIMULATED_DRIVER, TOGETHER, ["cuda.devices"]),
        (prints(NO_DEVICE.replace("92800", "91002")), SIMULATED_DRIVER, TOGETHER[:1], TOGETHER[1:]),
        (prints(NO_DEVICE.replace(', "nccl": 22907', "")), SIMULATED_DRIVER, TOGETHER[:1], TOGETHER[1:]),
        (prints(NO_DEVICE.replace("22907", "null")), SIMULATED_DRIVER, TOGETHER[:1], TOGETHER[1:]),
        (prints(NO_DEVICE.replace("13020", "13000")), SIMULATED_DRIVER, TOGETHER[:1], TOGETHER[1:]),
        (toolkit(lambda argv: command.Answer(0, b"", b""), built=1), SIMULATED_DRIVER, TOGETHER[:1], TOGETHER[1:]),
        (prints("", 127), SIMULATED_DRIVER, TOGETHER[:1], TOGETHER[1:]),
    ],
    ids=[
        "simulated driver", "not loaded", "no GPU planned", "GPU expected", "fabric", "another cuDNN", "no NCCL",
        "NCCL returns no version", "another CUDA", "not compiled", "not run",
    ],
)  # fmt: skip
def test_without_a_device(run: Run, changes: dict[str, Any], passed: list[str], failed: list[str]) -> None:
    found = cuda_checks.run(cuda_host(run, **changes))
    assert outcomes(found, "pass") == passed
    assert outcomes(found, "fail") == failed


@pytest.mark.parametrize(
    ("ran", "status"),
    [
        (command.Answer(0, b"", b""), "unknown"),
        (command.Answer(0, b"nonsense", b""), "unknown"),
        (command.Answer(0, b'{"schema": 1}', b""), "unknown"),
        (HUNG, "unknown"),
        (command.Answer(-9, b"", b""), "unknown"),
        (command.Answer(127, b"", b"cuda_check: libcudnn.so.9: cannot open shared object file"), "fail"),
        (command.Answer(-11, b"", b""), "fail"),
    ],
    ids=["silent", "nonsense", "another document", "hangs", "killed", "library missing", "crashes"],
)
def test_program_without_a_document(ran: command.Answer, status: str) -> None:
    """Every check that needs the document is unknown, unless no program can use a GPU here."""
    found = by_id(cuda_checks.run(cuda_host(toolkit(lambda argv: ran))))
    assert found["cuda.compile_link_run"].status == status
    assert {check.status for check in list(found.values())[2:]} == {"unknown"}
    found = by_id(cuda_checks.run(cuda_host(toolkit(lambda argv: ran), simulated=["NVIDIA driver 580"])))
    assert {check.status for check in list(found.values())[2:]} == {"skip"}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (command.Answer(0, b"Cuda compilation tools, release 13.2, V13.2.78\n", b""), "pass"),
        (command.Answer(0, b"Cuda compilation tools, release 13.20, V13.20.1\n", b""), "fail"),
        (command.Answer(0, b"", b""), "unknown"),
        (command.Answer(0, b"release of nothing\n", b""), "unknown"),
        (command.Answer(0, b"", b"Cuda compilation tools, release 13.2, V13.2.78\n"), "unknown"),
        (command.Answer(0, b"Welcome to release 13.2\n", b""), "unknown"),
        (command.Answer(0, b"Cluster OS release 4.2\nCuda compilation tools, release 13.2, V13.2.78\n", b""), "pass"),
        (HUNG, "unknown"),
        (command.Answer(-15, b"", b""), "unknown"),
        (command.Answer(1, b"Cuda compilation tools, release 13.2, V13.2.78\n", b"broken"), "fail"),
        (command.Answer(-11, b"", b""), "fail"),
        (command.Answer(127, b"", b"nvcc: No such file or directory"), "fail"),
    ],
    ids=["planned", "another", "silent", "nonsense", "on stderr", "a greeting", "after a greeting", "hangs", "killed",
         "fails", "crashes", "missing"],
)  # fmt: skip
def test_nvcc_version(answer: command.Answer, status: str) -> None:
    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        return answer if argv[1:] == ["--version"] else prints(NO_DEVICE)(argv, timeout, env)

    assert by_id(cuda_checks.run(cuda_host(run)))["cuda.nvcc_version"].status == status


def test_compiler_that_hangs_is_unknown() -> None:
    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        return HUNG if "-Wno-deprecated-gpu-targets" in argv else prints(NO_DEVICE)(argv, timeout, env)

    assert by_id(cuda_checks.run(cuda_host(run)))["cuda.compile_link_run"].status == "unknown"


def test_the_program_is_built_and_run_in_the_workspace_with_its_temporary_files(tmp_path: Path) -> None:
    environments = {}
    nvcc = toolkit(lambda argv: command.Answer(0, NO_DEVICE.encode(), b""))

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        if env and "TMPDIR" in env:
            environments[Path(argv[0]).name] = (Path(env["TMPDIR"]), Path(argv[0]))
        return nvcc(argv, timeout, env)

    (tmp_path / "work").mkdir()
    cuda_checks.run(cuda_host(run, workspaces=(str(tmp_path / "work"),)))
    assert {name: scratch.parent for name, (scratch, _program) in environments.items()} == {
        "nvcc": tmp_path / "work",
        "cuda_check": tmp_path / "work",
    }
    assert environments["cuda_check"][1].is_relative_to(tmp_path / "work")


def test_libraries_that_are_not_planned_are_not_linked() -> None:
    commands = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        commands.append(argv)
        return command.Answer(1, b"", b"")

    plan = {"components": {"cuda": {"version": "13.2"}}, "gpus": []}
    cuda_checks.run(cuda_host(run, plan=plan))
    assert [argv for argv in commands if "nvcc" in argv[0] and len(argv) > 3], commands
    assert not [word for argv in commands for word in argv if "nccl" in word or "NCCL" in word or "cudnn" in word]


def test_only_one_program_at_a_time_uses_the_gpus() -> None:
    """The lock is held while the program runs, but not while nvcc compiles it."""
    held = []

    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        held.append((Path(argv[0]).name, context.gpus_alone.locked()))
        return prints(NO_DEVICE)(argv, timeout)

    context = cuda_host(run)
    cuda_checks.run(context)
    assert held[:3] == [("nvcc", False)] * 3
    assert held[-1] == ("cuda_check", True)
    assert all(locked for _name, locked in held[3:])
    assert not context.gpus_alone.locked()


def test_missing_source_is_an_error() -> None:
    with pytest.raises(ValueError, match="is missing"):
        cuda_checks.run(cuda_host(prints(NO_DEVICE), cuda_check_source=""))


def test_without_cuda_in_the_plan_all_are_skipped() -> None:
    found = cuda_checks.run(cuda_host(prints(""), plan={"components": {"cuda": None}}))
    assert outcomes(found, "skip") == list(IDS)


NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine; the lab's hosts compile the program")
def test_real_nvcc_compiles_links_and_runs_the_program() -> None:
    assert NVCC is not None
    text = command.run([NVCC, "--version"], 30).text()
    release = text.split("release ", 1)[1].split(",", 1)[0]
    home = next(path for path in (f"/usr/local/cuda-{release}", "/usr") if Path(path, "bin/nvcc").exists())
    plan = {"components": {"cuda": {"version": release, "home": home}}, "gpus": []}
    context = cuda_host(command.run, plan=plan, expect_gpus=0, driver_state="not_loaded", smi=None)
    found = by_id(cuda_checks.run(context))
    assert found["cuda.nvcc_version"].status == found["cuda.compile_link_run"].status == "pass"
    assert found["cuda.compile_link_run"].versions == {"cuda": release}
    assert cuda_program.parse(json.dumps((found["cuda.compile_link_run"].data or {})["cuda_check"]))
