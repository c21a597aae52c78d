"""Checks of CUDA, cuDNN and NCCL: on the captured output of cuda_check without a device, and on a real nvcc."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_checks, model
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program
from syrupy.assertion import SnapshotAssertion

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


PLANNED = "cuda 13.2, cudnn 9.28.0.42, nccl 2.29.7"
NO_GPU = "; no device: cudaErrorInsufficientDriver (35)"
CRASHED = NO_DEVICE.replace('"unfinished": null', '"unfinished": {"step": "cudnnGetVersion", "signal": 6}')


@pytest.mark.parametrize(
    ("ran", "status", "found"),
    [
        (command.Answer(0, NO_DEVICE.encode(), b""), "pass", "cuda 13.2, cudnn 9.28.0, nccl 2.29.7" + NO_GPU),
        (
            command.Answer(0, NO_DEVICE.replace("92800", "92700").encode(), b""),
            "fail",
            "cuda 13.2, cudnn 9.27.0, nccl 2.29.7" + NO_GPU,
        ),
        (
            command.Answer(1, CRASHED.encode(), b"1\n2\n3\n4\n5\n"),
            "pass",
            "cuda 13.2, cudnn 9.28.0, nccl 2.29.7; the program crashed (signal 6) in its step 'cudnnGetVersion': "
            "2 | 3 | 4 | 5",
        ),
        (
            command.Answer(1, CRASHED.encode(), b""),
            "pass",
            "cuda 13.2, cudnn 9.28.0, nccl 2.29.7; the program crashed (signal 6) in its step 'cudnnGetVersion': "
            "no message on stderr",
        ),
        (command.Answer(127, b"", b"no libcudnn"), "fail", "the program: exit 127: no libcudnn"),
    ],
    ids=["works", "another cuDNN", "crashes", "crashes silently", "library missing"],
)
def test_texts_of_the_program(ran: command.Answer, status: str, found: str, snapshot: SnapshotAssertion) -> None:
    check = by_id(cuda_checks.run(cuda_host(toolkit(lambda argv: ran), expect_gpus=0)))["cuda.compile_link_run"]
    assert (check.status, check.found, check.expected) == (status, found, PLANNED)
    assert check.remedy == (snapshot if status == "fail" else None)


def test_program_that_is_not_compiled_is_explained(snapshot: SnapshotAssertion) -> None:
    found = by_id(cuda_checks.run(cuda_host(toolkit(lambda argv: HUNG, built=1))))
    check = found.pop("cuda.compile_link_run")
    assert check.found == snapshot
    assert check.remedy == snapshot
    version = found.pop("cuda.nvcc_version")
    assert (version.found, version.expected) == ("release 13.2", "release 13.2")
    assert {check.reason for check in found.values()} == {"the CUDA program did not run, see cuda.compile_link_run"}
    skipped = cuda_checks.run(cuda_host(toolkit(lambda argv: HUNG, built=1), expect_gpus=0))[2:]
    assert {check.reason for check in skipped} == {"no GPU is expected on this host"}


def test_versions_that_are_recorded() -> None:
    document = NO_DEVICE.replace('"outcome"', '"libraries": ["/usr/lib/libcudnn.so.9.28.0"],\n "outcome"')
    check = by_id(cuda_checks.run(cuda_host(prints(document))))["cuda.compile_link_run"]
    assert check.versions == {"cuda": "13.2", "cudnn": "9.28.0", "nccl": "2.29.7"}
    assert check.loaded == {"cudnn": "9.28.0"}
    assert by_id(cuda_checks.run(cuda_host(prints(NO_DEVICE))))["cuda.compile_link_run"].loaded is None


@pytest.mark.parametrize(("factor", "limit"), [(1.0, "180"), (2.5, "450")])
def test_time_limit_of_the_program(factor: float, limit: str) -> None:
    """It ends itself before it is killed, so that its document tells in which step it hung."""
    calls: list[tuple[list[str], float, Any]] = []

    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        calls.append((argv, timeout, env))
        return prints(NO_DEVICE)(argv, timeout, env)

    cuda_checks.run(cuda_host(run, timeout_factor=factor))
    argv, timeout, env = calls[-1]
    assert argv[1:] == ["--time-limit", limit]
    assert timeout > 180
    assert env["LC_ALL"] == "C"


@pytest.mark.parametrize(
    ("gpus", "options"),
    [
        ([{"compute_capability": "9.0"}, {"compute_capability": None}], ["-gencode=arch=compute_90,code=sm_90"]),
        ([{}], []),
        ([], []),
        (None, []),
    ],
)
def test_program_is_compiled_for_the_planned_gpus(gpus: Any, options: list[str]) -> None:
    commands: list[list[str]] = []
    nvcc = toolkit(lambda argv: HUNG)

    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        commands.append(argv)
        return command.Answer(1, b"", b"") if "-o" in argv else nvcc(argv, timeout, env)

    cuda_checks.run(cuda_host(run, plan={"components": {"cuda": {"version": "13.2"}}, "gpus": gpus}))
    assert {argv[0] for argv in commands} == {"/usr/local/cuda-13.2/bin/nvcc"}
    assert [word for word in commands[-1] if word.startswith("-gencode")] == options
    assert (["/usr/local/cuda-13.2/bin/nvcc", "--list-gpu-code"] in commands) is bool(options)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (command.Answer(0, b"Cuda compilation tools, release 12.9, V12.9.86\n", b""), "release 12.9"),
        (command.Answer(127, b"", b"nvcc: not found"), "exit 127: nvcc: not found"),
        (command.Answer(0, b"nonsense", b""), "nvcc --version: exit 0: nonsense"),
    ],
)
def test_text_of_the_release(answer: command.Answer, text: str) -> None:
    check = cuda_checks.compare_release(cuda_host(prints("")), cuda_checks.NVCC_VERSION, answer)
    assert (check.reason or check.found) == text


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
    with pytest.raises(ValueError, match="CUDA program"):
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
