"""Running all checks of a host: order, errors in a group, and the evidence."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import cuda_checks, driver_checks, model, verify

from tests.unit import plans
from tests.unit.module_utils.checks.contexts import NO_DEVICE, cuda_host, host, prints
from tests.unit.module_utils.simulated_host import H200, SimulatedHost, use_simulated_nvidia_smi


def erring(host: SimulatedHost) -> model.Context:
    """Return the context of a host whose driver checks end with an error: no kernel module has the planned flavour."""
    host.write("lib/modules/6.8.0-41-generic/kernel/x.ko", "")
    plan = {"components": {"driver": {"version": "595.71.05", "kernel_modules": "none"}}}
    return dataclasses.replace(host.context(), plan=plans.plan(plan))


def test_error_in_a_group_makes_its_checks_unknown_and_the_other_groups_run(tmp_path: Path) -> None:
    evidence = verify.verify(erring(SimulatedHost(tmp_path, [H200])))
    unknown = {check["id"]: check["reason"] for check in evidence["checks"] if check["status"] == "unknown"}
    with_error = {check_id for check_id, reason in unknown.items() if "KeyError: 'none' (driver_checks.py:" in reason}
    assert with_error == {spec.id for spec in driver_checks.CHECKS}
    assert {check["id"] for check in evidence["checks"]} > {"cuda.nvcc_version", "tensorflow.version", "packages.held"}


@pytest.mark.parametrize(("unknown", "counts"), [("fail", True), ("warn", False)])
def test_unknown_checks_count_unless_the_operator_says_otherwise(unknown: str, counts: bool) -> None:
    evidence = verify.verify(host(kernel_module="not_managed", smi=None, unknown=unknown))
    assert evidence["counts"]["unknown"]
    assert evidence["unknown_counts"] is counts


@pytest.mark.parametrize("gpu", [None, "0"])
def test_waiver_of_the_whole_host_serves_every_check(gpu: str | None) -> None:
    waiver = model.Waiver("driver.nvidia_smi", "replaced next week", "2027-06-30", gpu)
    evidence = verify.verify(host(kernel_module="not_managed", smi=None, waivers=[waiver]))
    found = {check["id"]: check for check in evidence["checks"]}["driver.nvidia_smi"]
    assert found["status"] == ("fail" if gpu else "waived")
    if not gpu:
        assert found["reason"] == "waived until 2027-06-30: replaced next week"
        assert (found["found"], "cause" in found, "remedy" in found) == ("nvidia-smi is not installed", False, False)


def test_measurements_are_stored_beside_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "GROUPS", {"cuda": verify.GROUPS["cuda"]})
    evidence = verify.verify(cuda_host(prints(NO_DEVICE), simulated=["NVIDIA driver 580.95.05"]))
    assert evidence["cuda_check"] == json.loads(NO_DEVICE)
    assert "data" not in evidence["checks"][1]
    assert evidence["simulated"] == ["NVIDIA driver 580.95.05"]


@pytest.mark.parametrize("group", verify.GROUPS)
def test_ids_begin_with_the_name_of_their_group(group: str) -> None:
    assert [spec.id for spec in verify.GROUPS[group].CHECKS if not spec.id.startswith(group + ".")] == []


@pytest.mark.parametrize(
    ("arguments", "expect_gpus", "driver_state"),
    [
        ((None, "loaded", "auto"), 2, "working"),
        ((3, "loaded", "auto"), 3, "working"),
        ((0, "built", "auto"), 0, "not_loaded"),
        ((None, "built", "working"), 2, "working"),
        ((None, "not_managed", "auto"), 2, "working"),
    ],
)
def test_context_has_defaults_from_the_plan(
    tmp_path: Any, arguments: tuple[Any, ...], expect_gpus: int, driver_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify.nvidia_smi, "find", lambda: None)
    context = verify.context(verify.Options(plans.plan_json({"gpus": [{}, {}]}), *arguments), root=str(tmp_path))
    assert (context.expect_gpus, context.driver_state) == (expect_gpus, driver_state)


def test_pci_devices_that_cannot_be_read_make_the_drivers_checks_unknown(tmp_path: Path) -> None:
    """It is a result, not the end of the module, after which a change would be rolled back."""
    (tmp_path / "sys/bus/pci/devices/0000:1a:00.0/vendor").mkdir(parents=True)
    plan = {"components": {"driver": {"version": "595.71.05", "kernel_modules": "open"}}, "gpus": [{}]}
    context = verify.context(verify.Options(plans.plan_json(plan)), root=str(tmp_path))
    found = {check["id"]: check for check in verify.verify(context)["checks"]}
    drivers = [check for id_, check in found.items() if id_.startswith("driver.")]
    assert {check["status"] for check in drivers} == {"unknown"}
    assert "Is a directory" in str(drivers[0]["reason"])
    assert found["packages.installed"]["status"] == "skip"


# A job on the GPUs ----------------------------------------------------------------------------------------------


def test_what_computes_on_the_gpus_is_deferred_while_they_run_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "GROUPS", {"cuda": verify.GROUPS["cuda"]})
    environments = []

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        environments.append((argv[0].rsplit("/", 1)[-1], (env or {}).get("CUDA_VISIBLE_DEVICES")))
        return prints(NO_DEVICE)(argv, timeout, env)

    evidence = verify.verify(cuda_host(run, gpu_jobs="4242 (python3 train.py)"))
    outcomes = {check["id"]: check["status"] for check in evidence["checks"]}
    assert {name for name, status in outcomes.items() if status == "deferred"} == {
        spec.id for spec in cuda_checks.USES_GPUS
    }
    assert outcomes["cuda.nvcc_version"] == outcomes["cuda.compile_link_run"] == "pass"
    assert (evidence["status"], evidence["gpu_jobs"]) == ("deferred", "4242 (python3 train.py)")
    assert ("cuda_check", "") in environments


def test_nothing_is_deferred_of_what_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = ("cuda", "tensorflow", "pytorch")
    monkeypatch.setattr(verify, "GROUPS", {name: verify.GROUPS[name] for name in groups})
    plan = {"components": {}, "gpus": []}
    evidence = verify.verify(cuda_host(prints(NO_DEVICE), plan=plan, gpu_jobs="4242 (python3)"))
    assert {check["status"] for check in evidence["checks"]} == {"skip"}


def test_the_jobs_of_others_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_simulated_nvidia_smi(monkeypatch)
    host = SimulatedHost(tmp_path, [H200])
    host.state(processes=[{"gpu": 0, "pid": 4242, "type": "C", "name": "python3", "used_mib": 6144}])
    assert host.context().gpu_jobs == "4242 (python3)"


def test_without_nvidia_smi_an_open_device_is_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvidia-smi lists the GPUs, and fails when it is asked for their processes."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia-uvm").write_text("")
    fd = tmp_path / "proc/77/fd"
    fd.mkdir(parents=True)
    (fd / "3").symlink_to("/dev/nvidia-uvm")
    (tmp_path / "proc/77/comm").write_text("python3\n")

    def run(argv: list[str], timeout: float, env: dict[str, str] | None = None) -> command.Answer:
        is_query = argv[1].startswith("--query-compute-apps")
        return command.Answer(255, b"", b"Unknown Error") if is_query else command.Answer(0, b"", b"")

    monkeypatch.setattr(verify.nvidia_smi, "find", lambda: "/usr/bin/nvidia-smi")
    context = verify.context(verify.Options({"gpus": []}), root=str(tmp_path), run=run)
    assert context.gpu_jobs.startswith("77 (")


def test_every_check_that_computes_on_the_gpus_is_one_of_its_group() -> None:
    for name in ("cuda", "tensorflow", "pytorch"):
        group = verify.GROUPS[name]
        assert set(group.USES_GPUS) < set(group.CHECKS), name


@pytest.mark.parametrize("simulated", [[], ["NVIDIA driver 580.95.05"]])
def test_values_of_a_simulated_driver_are_marked(simulated: list[str]) -> None:
    evidence = verify.verify(host(plan={"components": {}}, smi=None, simulated=simulated))
    marked = {check["id"].split(".")[0] for check in evidence["checks"] if check.get("simulated")}
    assert marked == ({"driver", "gpu"} if simulated else set())


def test_context_has_what_the_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_simulated_nvidia_smi(monkeypatch)
    machine = SimulatedHost(tmp_path, [H200, H200])
    machine.write("usr/share/gpuhost-simulated/nvidia-driver.txt", "NVIDIA driver 580.95.05 (simulated)\n")
    context = machine.context(timeout_factor=2.0, unknown="warn", state_directory="/srv/state")
    assert (context.pci_gpus, context.expect_gpus, len(context.smi_gpus)) == (2, 2, 2)
    assert context.simulated == ["NVIDIA driver 580.95.05 (simulated)"]
    assert (context.timeout_factor, context.unknown, context.state_directory) == (2.0, "warn", "/srv/state")
    assert (context.waivers, context.gpu_thresholds, context.link_thresholds, context.gpu_jobs) == ([], {}, {}, "")


def test_time_limits_are_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        limits.append(timeout)
        return command.Answer(9, b"", b"")

    monkeypatch.setattr(verify.nvidia_smi, "find", lambda: "/usr/bin/nvidia-smi")
    verify.context(verify.Options({}, timeout_factor=3.0), root=str(tmp_path), run=run)
    verify.context(verify.Options({}), root=str(tmp_path), run=run)
    assert limits == [270.0, 90.0]


def test_checks_are_in_the_order_of_their_groups() -> None:
    found = [check["id"] for check in verify.verify(host(smi=None))["checks"]]
    assert found == [spec.id for group in verify.GROUPS.values() for spec in group.CHECKS if "pytorch" not in spec.id]


def test_programs_see_no_gpu_beside_a_job_and_keep_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "GROUPS", {"cuda": verify.GROUPS["cuda"]})
    monkeypatch.setenv("MARK", "kept")
    environments: dict[str, Any] = {}

    def run(argv: list[str], timeout: float, env: Any = None) -> command.Answer:
        environments[" ".join(argv[1:2])] = env
        return prints(NO_DEVICE)(argv, timeout, env)

    verify.verify(cuda_host(run, gpu_jobs="4242 (python3 train.py)"))
    assert environments["--version"]["CUDA_VISIBLE_DEVICES"] == ""
    assert (environments["--version"]["MARK"], environments["--version"]["LC_ALL"]) == ("kept", "C")
    verify.verify(cuda_host(run, visible="GPU-1"))  # beside one that is left alone
    assert environments["--version"]["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    environments.clear()
    verify.verify(cuda_host(run))
    assert environments["--version"] is None


def test_waiver_does_not_change_what_passes_or_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_simulated_nvidia_smi(monkeypatch)
    machine = SimulatedHost(tmp_path, [H200])
    waivers = [model.Waiver(name, "later", "2027-06-30") for name in ("driver.nvidia_smi", "gpu.xid_errors")]
    found = machine.verify(waivers=[dataclasses.asdict(waiver) for waiver in waivers])
    assert [found[name]["status"] for name in ("driver.nvidia_smi", "gpu.xid_errors")] == ["pass", "unknown"]
