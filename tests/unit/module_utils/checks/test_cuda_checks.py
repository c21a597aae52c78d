"""gpu_verify's CUDA checks: on what cuda_check really printed without a device, and live on simulated GPUs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_checks, cuda_device_checks, model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts, loader

from tests.doubles import simulated_cuda

FIXTURES = Path(__file__).parents[3] / "fixtures/cuda_check"
SOURCE = simulated_cuda.SOURCE.read_text()
IDS = ("cuda.nvcc_version", "cuda.compile_link_run", *cuda_device_checks.IDS)
NO_DEVICE = (FIXTURES / "no-device.json").read_text()
LISTED = (FIXTURES / "nvcc-13.2-list-gpu-code.txt").read_bytes()
PLAN: dict[str, Any] = {
    "components": {
        "cuda": {"version": "13.2", "home": "/usr/local/cuda-13.2"},
        "cudnn": {"version": "9.28.0.42"},
        "nccl": {"version": "2.29.7"},
    },
    "gpus": [{"pci_id": "10de:2335", "compute_capability": "9.0"} for _ in range(3)],
}
SIMULATED_DRIVER = {"simulated": ["PCI devices", "NVIDIA driver 580.95.05"]}
Run = Callable[..., command.Answer]


def smi(**changes: Any) -> dict[str, Any]:
    """nvidia-smi as it would speak of the simulated GPUs; changes are of the one at 1b:00.0."""
    gpus = [
        {
            "name": "Simulated GPU",
            "compute_capability": "9.0",
            "uuid": f"GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfe{i:02}",
            "pci_address": f"0000:{0x1A + i:02x}:00.0",
        }
        for i in range(3)
    ]
    gpus[1].update(changes)
    return {"path": "/usr/bin/nvidia-smi", "exit_code": 0, "message": "", "gpus": gpus}


def told(run: Run, **changes: Any) -> model.Context:
    """A host of three GPUs on which all is well, with changes."""
    base = model.Context(
        PLAN, "/nonexistent", run, 3, "loaded", "working", "/opt/tf", 3, smi(), cuda_check_source=SOURCE
    )
    return dataclasses.replace(base, **changes)


def toolkit(ran: Callable[[list[str]], command.Answer], built: int = 0) -> Run:
    """Stands in for nvcc, which says what the real one says; the program's answer is `ran`'s."""

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        if argv[1:] == ["--version"]:
            return command.Answer(0, b"Cuda compilation tools, release 13.2, V13.2.78\n", b"")
        if argv[1:] == ["--list-gpu-code"]:
            return command.Answer(0, LISTED, b"")
        if argv[0].endswith("/nvcc"):
            assert Path(argv[argv.index("-o") + 2]).read_text() == SOURCE
            assert argv[-5:] == ["-gencode=arch=compute_90,code=sm_90", "-DWITH_CUDNN", "-DWITH_NCCL", "-lcudnn",
                                 "-lnccl"]  # fmt: skip
            return command.Answer(built, b"", b"cuda_check.cu(8): fatal error: cudnn.h: No such file\n" * bool(built))
        return ran(argv)

    return run


def prints(output: str, exit_code: int = 0) -> Run:
    return toolkit(lambda argv: command.Answer(exit_code, output.encode(), b""))


@pytest.fixture
def live(program: Path) -> Callable[..., Run]:
    """live(knobs): the program on three simulated GPUs, run as the checks run it."""

    def make(*words: str, **knobs: str) -> Run:
        settings = {f"SIMULATED_CUDA_{name.upper()}": value for name, value in {"devices": "3", **knobs}.items()}

        def ran(argv: list[str]) -> command.Answer:
            own = [str(program), *argv[1:], "--bytes", str(simulated_cuda.BYTES), *words]
            return command.run(own, 60, {**os.environ, **settings})

        return toolkit(ran)

    return make


def by_id(found: list[model.Check]) -> dict[str, model.Check]:
    return {check.id: check for check in found}


def outcomes(found: list[model.Check], status: str) -> list[str]:
    """Ids of the checks with this status; each check must say what its status asks for."""
    assert tuple(check.id for check in found) == IDS
    for check in found:
        assert (check.status == "fail") == bool(check.remedy), check
        assert (check.status == "skip") == bool(check.reason), check
        assert check.status == "skip" or (check.found and check.expected), check
    return [check.id for check in found if check.status == status]


TOGETHER = ["cuda.nvcc_version", "cuda.compile_link_run"]
EACH = list(cuda_device_checks.IDS)


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
        "simulated driver", "not loaded", "no GPU planned", "a GPU is expected", "fabric", "another cuDNN", "no NCCL",
        "NCCL does not tell its version", "another CUDA", "not compiled", "not run",
    ],
)  # fmt: skip
def test_without_a_device(run: Run, changes: dict[str, Any], passed: list[str], failed: list[str]) -> None:
    found = cuda_checks.run(told(run, **changes))
    assert outcomes(found, "pass") == passed
    assert outcomes(found, "fail") == failed


def test_three_gpus_on_which_all_is_well(live: Callable[..., Run]) -> None:
    found = cuda_checks.run(told(live()))
    assert outcomes(found, "pass") == [*TOGETHER, *EACH[:-1]]
    assert outcomes(found, "skip") == ["cuda.bandwidth"]
    texts = {check.id: str(check.found) for check in found}
    assert texts["cuda.compile_link_run"] == "cuda 13.2, cudnn 9.28.0, nccl 2.29.7; 3 devices"
    assert texts["cuda.devices"] == "3 devices, a kernel ran on 3"
    assert texts["cuda.device_query"].startswith("0: Simulated GPU, 9.0, 0.1 GiB, 0000:1a:00.0; 1: ")
    expected = "1: host to device 25, device to host 25, within the device 2000 GB/s"
    assert expected in texts["cuda.memory_copies"]
    assert texts["cuda.peer_access"] == "6 of 6 pairs with peer access (0 -yy, 1 y-y, 2 yy-); 200 to 200 GB/s"
    assert texts["cuda.nccl_all_reduce"].startswith("the exact sum over 3 GPUs, bus bandwidth ")


@pytest.mark.parametrize(
    ("knobs", "failed", "text"),
    [
        ({"wrong": "peer@0-1"}, ["cuda.peer_access"], "0-1 copy: 16384 of 16384 words wrong"),
        ({"wrong": "read@2-1"}, ["cuda.peer_access"], "2-1 read: "),
        ({"fail": "cudaMemcpyPeerAsync@2"}, ["cuda.peer_access"], "2-0 copy: cudaMemcpyPeerAsync: cudaErrorDevices"),
        ({"fail": "cudaDeviceEnablePeerAccess@0"}, ["cuda.peer_access"], "0-1: cudaDeviceEnablePeerAccess: "),
        ({"wrong": "sum@1"}, ["cuda.nccl_all_reduce"], "wrong words by device 0: 0, 1: 2, 2: 0"),
        ({"fail": "ncclCommInitAll@0"}, ["cuda.nccl_all_reduce"], "no network interface was found"),
        ({"fail": "cudnnCreate@0"}, ["cuda.cudnn_handle"], "CUDNN_STATUS_NOT_INITIALIZED"),
        ({"wrong": "to@1"}, ["cuda.memory_copies"], "1 host to device: 1 of 16384 words wrong"),
        ({"fail": "cudaHostAlloc@1"}, ["cuda.memory_copies"], "1 device to host: cudaHostAlloc: "),
        (
            {"fail": "cudaMemGetInfo@1"},
            ["cuda.memory_copies", "cuda.nccl_all_reduce"],
            "1: cudaMemGetInfo: cudaErrorDevicesUnavailable (46)",
        ),
        (
            {"fail": "cudaSetDevice@1"},
            ["cuda.devices", "cuda.memory_copies", "cuda.nccl_all_reduce"],
            "3 devices, a kernel ran on 2; 1: cudaSetDevice: cudaErrorDevicesUnavailable (46)",
        ),
        (
            {"wrong": "kernel@1"},
            ["cuda.devices", "cuda.memory_copies", "cuda.nccl_all_reduce"],
            "3 devices, a kernel ran on 2; 1: a wrong result",
        ),
        (
            {"fail": "cudaGetDeviceProperties@1"},
            ["cuda.device_query", "cuda.memory_copies", "cuda.nccl_all_reduce"],
            "1: cudaGetDeviceProperties: cudaErrorDevicesUnavailable (46)",
        ),
        ({"devices": "2"}, ["cuda.devices", "cuda.nccl_all_reduce"], "2 devices, a kernel ran on 2"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_each_fault_fails_its_check(
    live: Callable[..., Run], knobs: dict[str, str], failed: list[str], text: str
) -> None:
    found = cuda_checks.run(told(live(**knobs)))
    assert outcomes(found, "fail") == failed
    assert text in str(by_id(found)[failed[0]].found)


@pytest.mark.parametrize(
    ("words", "knobs", "failed"),
    [
        ([], {"crash": "cudaMalloc@1"}, ["cuda.devices", "cuda.nccl_all_reduce"]),
        ([], {"crash": "cudaHostAlloc@1"}, ["cuda.devices", "cuda.memory_copies"]),
        ([], {"crash": "cudaGetDeviceProperties@2"}, ["cuda.devices", "cuda.device_query"]),
        ([], {"crash": "cudaMemcpyPeerAsync@1"}, ["cuda.peer_access"]),
        ([], {"crash": "cudnnCreate@0"}, ["cuda.cudnn_handle"]),
        (["--time-limit", "1"], {"hang": "ncclGroupEnd@0"}, ["cuda.nccl_all_reduce"]),
    ],
    ids=["kernel", "copies", "properties", "pair", "cuDNN", "NCCL hangs"],
)
def test_a_crash_or_a_hang_fails_its_check_and_what_came_before_is_judged(
    live: Callable[..., Run], words: list[str], knobs: dict[str, str], failed: list[str]
) -> None:
    found = by_id(cuda_checks.run(told(live(*words, **knobs))))
    outcomes(list(found.values()), "pass")
    assert found["cuda.compile_link_run"].status == "pass"
    assert found[failed[0]].status == "fail"
    ended = "did not end within its time" if words else "crashed (signal 11)"
    assert any(ended in str(found[check_id].found) for check_id in failed)
    assert ended in str(found["cuda.compile_link_run"].found)
    if "pair" in failed[0]:
        assert found["cuda.memory_copies"].status == "pass"


def test_a_library_that_ends_the_program_is_told_in_its_own_words(live: Callable[..., Run]) -> None:
    found = cuda_checks.run(told(live(crash="cudnnGetVersion@0")))
    assert outcomes(found, "fail") == ["cuda.compile_link_run", "cuda.devices"]
    assert found[1].found == (
        "cuda 13.2; the program crashed (signal 6) in its step 'cudnnGetVersion': "
        "Could not load library libcudnn_ops_infer.so.8. (simulated)"
    )


def test_a_pair_without_access_is_told_and_does_not_fail(live: Callable[..., Run]) -> None:
    check = by_id(cuda_checks.run(told(live(no_peer="0-2"))))["cuda.peer_access"]
    assert check.status == "pass"
    assert check.found == (
        "4 of 6 pairs with peer access (0 -yn, 1 y-y, 2 ny-); 10 to 200 GB/s; "
        "without access, through the host's memory: 0-2, 2-0"
    )


def test_wrong_data_of_a_pair_name_the_known_cause(live: Callable[..., Run]) -> None:
    check = by_id(cuda_checks.run(told(live(wrong="peer@1-0"))))["cuda.peer_access"]
    assert "iommu=pt" in str(check.remedy)
    assert "ACS" in str(check.remedy)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"smi": smi(name="NVIDIA H100")}, "0000:1b:00.0: name Simulated GPU, by nvidia-smi NVIDIA H100"),
        ({"smi": smi(uuid="GPU-x")}, "by nvidia-smi GPU-x"),
        ({"smi": smi(compute_capability="8.0")}, "compute_capability 9.0, by nvidia-smi 8.0"),
        ({"smi": smi(pci_address="0000:2b:00.0")}, "0000:1b:00.0: unknown to nvidia-smi, which has 0000:1a:00.0, "),
        (
            {"plan": {**PLAN, "gpus": [{"compute_capability": v} for v in ("9.0", "8.0", "9.0")]}},
            "compute capabilities 9.0, 9.0, 9.0, planned 8.0, 9.0, 9.0",
        ),
    ],
    ids=["name", "uuid", "capability", "address", "plan"],
)
def test_devices_must_be_those_of_nvidia_smi_and_of_the_plan(program: Path, changes: dict[str, Any], text: str) -> None:
    document = simulated_cuda.run(program, devices="3")[1]
    check = by_id(cuda_device_checks.run(told(prints(""), **changes), document))["cuda.device_query"]
    assert (check.status, text in str(check.found)) == ("fail", True), check.found


@pytest.mark.parametrize("changes", [{"smi": None}, {"smi": smi(name=None, compute_capability=None)}])
def test_what_nvidia_smi_does_not_tell_is_no_difference(program: Path, changes: dict[str, Any]) -> None:
    document = simulated_cuda.run(program, devices="3")[1]
    check = by_id(cuda_device_checks.run(told(prints(""), **changes), document))["cuda.device_query"]
    assert check.status == "pass"


def test_one_gpu_has_no_pair_and_sums_alone(live: Callable[..., Run]) -> None:
    one = {**PLAN, "gpus": PLAN["gpus"][:1]}
    found = by_id(cuda_checks.run(told(live(devices="1"), plan=one, expect_gpus=1)))
    assert found["cuda.peer_access"].reason == "there is one usable GPU, and no pair"
    assert found["cuda.nccl_all_reduce"].found == "the exact sum over 1 GPUs"


def test_libraries_that_the_plan_leaves_out_are_not_compiled_in() -> None:
    asked = []

    def run(argv: list[str], timeout: float) -> command.Answer:
        asked.append(argv)
        return command.Answer(1, b"", b"")

    plan = {"components": {"cuda": {"version": "13.2"}}, "gpus": []}
    cuda_checks.run(told(run, plan=plan))
    assert not [word for argv in asked for word in argv if "nccl" in word or "NCCL" in word or "cudnn" in word]
    document = json.loads((FIXTURES / "simulated-3-gpus.json").read_text())
    found = by_id(cuda_device_checks.run(told(run, plan=plan), document))
    assert [found[name].reason for name in ("cuda.cudnn_handle", "cuda.nccl_all_reduce")] == [
        "the plan leaves cuDNN out",
        "the plan leaves NCCL out",
    ]


def pci_tree(root: Path, *device_ids: str) -> Path:
    """A PCI bus with one GPU for each id, at the addresses of the simulated ones."""
    for index, device in enumerate(device_ids):
        folder = root / f"sys/bus/pci/devices/0000:{0x1A + index:02x}:00.0"
        folder.mkdir(parents=True)
        for name, value in (("vendor", "0x10de"), ("device", f"0x{device}"), ("class", "0x030200")):
            (folder / name).write_text(value + "\n")
    return root


H200 = {"name": "H200 SXM", "host": 9.6, "memory": 1900.0, "nvlink": 90.0}


@pytest.mark.parametrize(
    ("knobs", "limits", "status", "text"),
    [
        ({}, {"10de:2335": H200 | {"nvlink": None}}, "pass", "9 figures, each at its threshold or above"),
        ({"rate": "9.7"}, {"10de:2335": H200 | {"nvlink": None}}, "pass", "9 figures"),
        (
            {"rate": "9.5"},
            {"10de:2335": H200 | {"nvlink": None}},
            "fail",
            "0 host to device 9.5 GB/s, at least 9.6; 0 device to host 9.5 GB/s, at least 9.6; 1 host",
        ),
        ({}, {"10de:2335": H200 | {"memory": 2001}}, "fail", "0 within the device 2000 GB/s, at least 2001"),
        ({}, {"10de:2335": {"nvlink": 201}}, "fail", "0-1 200 GB/s, at least 201"),
        ({}, {"10de:2335": {"nvlink": 1e6}}, "fail", "all-reduce "),
        ({"no_peer": "0-1,0-2,1-2"}, {"10de:2335": {"nvlink": 1e-6}}, "pass", "1 figures"),
        ({"rate": "0.01"}, {}, "skip", "0 host to device 0.01 GB/s; "),
        ({"rate": "0.01"}, {"10de:ffff": H200}, "skip", "0 host to device 0.01 GB/s; "),
    ],
    ids=[
        "well", "just", "slow bus", "slow memory", "slow links", "slow all-reduce", "staged pairs are not judged",
        "unknown", "another model",
    ],
)  # fmt: skip
def test_bandwidth_is_judged_where_there_is_a_threshold(
    tmp_path: Path, live: Callable[..., Run], knobs: dict[str, str], limits: dict[str, Any], status: str, text: str
) -> None:
    root = str(pci_tree(tmp_path, "2335", "2335", "2335"))
    context = told(live(**knobs), root=root, gpu_thresholds=limits)
    check = by_id(cuda_checks.run(context))["cuda.bandwidth"]
    assert (check.status, text in str(check.found)) == (status, True), check.found
    if status == "skip":
        assert check.reason == "no threshold for Simulated GPU (10de:2335)"


def test_a_model_without_a_threshold_is_told_beside_those_with_one(tmp_path: Path, live: Callable[..., Run]) -> None:
    root = str(pci_tree(tmp_path, "2335", "ffff", "2335"))
    context = told(live(rate="3"), root=root, gpu_thresholds={"10de:2335": H200 | {"nvlink": None}})
    check = by_id(cuda_checks.run(context))["cuda.bandwidth"]
    assert check.status == "fail"
    assert str(check.found).endswith("; no threshold for Simulated GPU (10de:ffff)")
    assert "1 host to device" not in str(check.found)
    assert check.expected == "at least, in GB/s: H200 SXM host 9.6, memory 1900"


def test_the_catalogs_thresholds_fit_the_check(tmp_path: Path, live: Callable[..., Run]) -> None:
    """The simulated copies (25, 2000 and 200 GB/s) are under what an H200 must do within the device alone."""
    limits = facts.gpu_thresholds(loader.load_catalog(), ["10de:2335"])
    root = str(pci_tree(tmp_path, "2335", "2335", "2335"))
    check = by_id(cuda_checks.run(told(live(), root=root, gpu_thresholds=limits)))["cuda.bandwidth"]
    below = str(check.found).split("; ")
    assert [text for text in below if "all-reduce" not in text] == [
        f"{index} within the device 2000 GB/s, at least 2400" for index in range(3)
    ]


def test_the_document_is_kept_in_the_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    context = told(prints(NO_DEVICE), **SIMULATED_DRIVER)
    monkeypatch.setattr(verify, "_guarded", lambda name, make: make() if name == "cuda" else [])
    evidence = verify.verify(context)
    assert evidence["cuda_check"] == json.loads(NO_DEVICE)
    assert "data" not in evidence["checks"][1]


def test_two_programs_do_not_use_the_gpus_at_once() -> None:
    """The lock is held while the program runs, and not while nvcc compiles it."""
    held = []

    def run(argv: list[str], timeout: float) -> command.Answer:
        held.append((Path(argv[0]).name, context.gpus_alone.locked()))
        return prints(NO_DEVICE)(argv, timeout)

    context = told(run)
    cuda_checks.run(context)
    assert held == [("nvcc", False), ("nvcc", False), ("nvcc", False), ("cuda_check", True)]
    assert not context.gpus_alone.locked()


def test_without_the_source_nothing_is_claimed() -> None:
    with pytest.raises(ValueError, match="was not handed over"):
        cuda_checks.run(told(prints(NO_DEVICE), cuda_check_source=""))


def test_without_cuda_all_are_skipped() -> None:
    found = cuda_checks.run(told(prints(""), plan={"components": {"cuda": None}}))
    assert outcomes(found, "skip") == list(IDS)


NVCC = shutil.which("nvcc")


@pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine; the lab's hosts compile the program")
def test_the_program_really_compiles_links_and_runs() -> None:
    assert NVCC is not None
    text = command.run([NVCC, "--version"], 30).text()
    release = text.split("release ", 1)[1].split(",", 1)[0]
    home = next(path for path in (f"/usr/local/cuda-{release}", "/usr") if Path(path, "bin/nvcc").exists())
    plan = {"components": {"cuda": {"version": release, "home": home}}, "gpus": []}
    context = told(command.run, plan=plan, expect_gpus=0, driver_state="not_loaded", smi=None)
    found = by_id(cuda_checks.run(context))
    assert found["cuda.nvcc_version"].status == found["cuda.compile_link_run"].status == "pass"
    assert found["cuda.compile_link_run"].versions == {"cuda": release}
    assert cuda_program.parse(json.dumps((found["cuda.compile_link_run"].data or {})["cuda_check"]))
