"""The report: statuses from evidence with parts missing, versions of each stage, nothing missing looks like success."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import rendering
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import (
    STAGES,
    ComponentRow,
    build_report,
    host_report,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import VERDICTS, RunMode
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.report.report_cases import (
    FULL_DISK,
    NO_TENSORFLOW,
    PACKAGES,
    PLAN,
    PROBE,
    REFUSED,
    TORCH,
    TRAINING,
    VERIFY,
    WITH_PYTORCH,
    evidence,
    failing,
)

CHANGED = {"changed": True}
WAITING = {**PROBE, "pending": {"since": "2026-11-02T10:00:00Z"}}
KNOWN = {**PROBE, "verified": {"at": "2026-11-01T10:00:00Z"}}
UNANSWERED = {"id": "gpu.nvlink", "status": "unknown", "reason": "nvidia-smi hangs"}
UNKNOWN = {**VERIFY, "status": "unknown", "checks": [*VERIFY["checks"], UNANSWERED]}
BUSY = {"id": "cuda.bandwidth", "status": "deferred", "reason": "a job runs"}
DEFERRED = {**VERIFY, "status": "deferred", "checks": [*VERIFY["checks"], BUSY]}
EXPIRED = {"framework": "tensorflow", "status": "deferred", "expired": "the GPUs have changed", "checks": []}
ASSERTION = {"task": "Fail if a check failed", "message": "gpu.nvlink is unknown"}
GONE = {"task": "Probe the host and plan", "message": "no route to host", "unreachable": True}
VULNERABLE = {**PLAN, "warnings": [{"code": "security-floor", "message": "driver 580.95.05 has known vulnerabilities"}]}
ONLY_PLANNED = {"verify": None, "smoke_train": None, "probe_after": None}


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        (evidence(), "verified"),
        (evidence(recorded=True, **CHANGED), "verified"),
        (evidence(**CHANGED), "pending"),
        (evidence(probe=WAITING), "pending"),
        (evidence(probe=WAITING, verify=None), "pending"),
        (evidence(smoke_train=None), "not changed"),
        (evidence(smoke_train=None, **CHANGED), "pending"),
        (evidence(smoke_train=None, plan=NO_TENSORFLOW), "verified"),
        (evidence(verify=None), "not changed"),
        (evidence(verify=None, **CHANGED), "pending"),
        ({}, "not changed"),
        (evidence(verify=failing(VERIFY, "packages.held", cause="stack")), "failed"),
        (evidence(verify=failing(VERIFY, "a", cause="host")), "failed"),
        (evidence(smoke_train=failing(TRAINING, "loss")), "failed"),
        (evidence(verify={**VERIFY, "status": "fail"}), "failed"),
        (evidence(smoke_train={**TRAINING, "status": None}), "failed"),
        (evidence(plan=REFUSED, **ONLY_PLANNED), "failed"),
        (evidence(preflight=FULL_DISK, **ONLY_PLANNED), "failed"),
        (evidence(plan=REFUSED, verify=failing(VERIFY, "a"), smoke_train=None), "failed"),
        (evidence(verify=failing(VERIFY, "a"), smoke_train=None), "failed"),
        ({"failure": GONE}, "unreachable"),
        (
            evidence(spared_for=["b", "c"], failure={"task": "Refuse", "message": "others"}, **ONLY_PLANNED),
            "not changed",
        ),
        (evidence(verify=UNKNOWN, smoke_train=None, failure=ASSERTION, **CHANGED), "unknown"),
        (evidence(verify=failing(UNKNOWN, "a"), smoke_train=None, failure=ASSERTION), "failed"),
        (evidence(verify=DEFERRED), "not changed"),
        (evidence(verify=DEFERRED, **CHANGED), "pending"),
        (evidence(probe=KNOWN, verify=DEFERRED), "verified"),
        (evidence(probe=KNOWN, verify=DEFERRED, smoke_train=EXPIRED, failure=ASSERTION), "unknown"),
        (evidence(probe=KNOWN, verify=None), "not changed"),
        (evidence(smoke_train={**TRAINING, "status": "unknown"}), "unknown"),
        (evidence(smoke_train={**TRAINING, "status": "reused"}), "verified"),
        (evidence(smoke_train=None, recorded=True, **CHANGED), "verified"),
        (evidence(verify=failing(VERIFY, "a"), recorded=True, **CHANGED), "failed"),
    ],
    ids=[
        "all",
        "changed and all",
        "changed and not recorded",
        "changed earlier and not recorded",
        "changed earlier and not verified",
        "not trained",
        "changed and not trained",
        "nothing to train",
        "not verified",
        "changed and not verified",
        "nothing",
        "check fails",
        "check fails because of the host",
        "training fails",
        "failed without a check",
        "no status",
        "refused by the plan",
        "refused by the host",
        "refused after a failure",
        "fails and misses",
        "unreachable at once",
        "spared",
        "unknown",
        "unknown and failed",
        "deferred",
        "changed and deferred",
        "deferred and verified before",
        "deferred and expired",
        "not verified and verified before",
        "unknown training",
        "reused training",
        "rolled back on request",
        "failed after it was recorded",
    ],
)
def test_verdict_of_a_host(parts: dict[str, Any], status: str, snapshot: SnapshotAssertion) -> None:
    entry = host_report("a", parts)
    assert entry.status == status
    assert list(entry.reasons) == snapshot


@pytest.mark.parametrize(
    ("parts", "mode", "status"),
    [
        (evidence(), RunMode(check_mode=True), "not changed"),
        (evidence(), RunMode(interrupted=True), "not changed"),
        (evidence(**CHANGED), RunMode(interrupted=True), "pending"),
        (evidence(running="Install", **CHANGED), RunMode(interrupted=True), "pending"),
        ({"failure": GONE}, RunMode(interrupted=True), "unreachable"),
    ],
    ids=["check mode", "interrupted", "interrupted change", "interrupted task", "unreachable"],
)
def test_a_run_that_did_not_end_verifies_nothing(
    parts: dict[str, Any], mode: RunMode, status: str, snapshot: SnapshotAssertion
) -> None:
    entry = host_report("a", parts, mode)
    assert entry.status == status
    assert list(entry.reasons) == snapshot


@pytest.mark.parametrize("outcome", ["warn", "waived", "unknown", "reused"])
def test_a_verified_host_is_marked_with_outcomes_that_somebody_should_see(outcome: str) -> None:
    """With gpu_stack_unknown=warn the checks pass although one had no answer."""
    verify = {**VERIFY, "checks": [*VERIFY["checks"], {"id": "gpu.power", "status": outcome, "reason": "r"}]}
    made = build_report("r", {"a": evidence(verify=verify)})
    assert (made.status, made.hosts[0].reasons) == ("verified", (f"see gpu.power ({outcome})",))
    assert f"gpu.power ({outcome})" in rendering.table(made)


@pytest.mark.parametrize(
    ("training", "verify", "status"),
    [
        ({}, VERIFY, "unknown"),
        ({"unknown_accepted": False}, VERIFY, "unknown"),
        ({"unknown_accepted": True}, VERIFY, "verified"),
        ({"unknown_accepted": True}, UNKNOWN, "unknown"),
        ({"unknown_accepted": True}, failing(VERIFY, "a"), "failed"),
    ],
    ids=["default", "not accepted", "accepted", "a check without an answer", "a check that fails"],
)
def test_a_training_without_an_answer_verifies_a_host_if_that_is_accepted(
    training: dict[str, Any], verify: dict[str, Any], status: str, snapshot: SnapshotAssertion
) -> None:
    activity = {"id": "gpu-activity", "status": "unknown", "found": "GPU 0: not recorded"}
    trained = {**TRAINING, "status": "unknown", "checks": [*TRAINING["checks"], activity], **training}
    made = build_report("r", {"a": evidence(smoke_train=trained, verify=verify, recorded=True, **CHANGED)})
    assert made.status == status
    assert made.hosts[0].reasons == snapshot
    assert made.counts["unknown"] >= 1
    assert "unknown, 5120 images/s" in rendering.table(made)  # nobody takes the training for one that passed


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ({"a": evidence()}, "verified"),
        ({"a": evidence(), "b": {}}, "not changed"),
        ({"a": evidence(), "b": evidence(verify=None, **CHANGED)}, "pending"),
        ({"a": evidence(verify=UNKNOWN), "b": evidence(verify=None, **CHANGED)}, "unknown"),
        ({"a": evidence(verify=UNKNOWN), "b": {"failure": GONE}}, "unreachable"),
        ({"a": evidence(verify=failing(VERIFY, "x")), "b": {"failure": GONE}}, "failed"),
        ({}, "not changed"),
    ],
)
def test_overall_status_is_the_worst_verdict(hosts: dict[str, Any], status: str) -> None:
    made = build_report("r", hosts)
    assert status in VERDICTS
    assert made.status == status
    assert made.counts["pass"] == sum(host.checks.counts["pass"] for host in made.hosts)
    assert f"# GPU hosts: {status}" in rendering.markdown(made)
    assert f"Overall: {status}" in rendering.table(made)


@pytest.mark.parametrize(
    ("hosts", "mode", "count"),
    [
        ({"a": evidence()}, RunMode(), 0),
        ({"a": evidence(**ONLY_PLANNED)}, RunMode(), 1),
        ({"a": evidence(**ONLY_PLANNED, **CHANGED)}, RunMode(), 0),
        ({"a": evidence(plan=VULNERABLE), "b": evidence(), "c": evidence(plan=VULNERABLE)}, RunMode(), 1),
        ({"a": evidence()}, RunMode(check_mode=True), 1),
        ({"a": evidence(running="Install"), "b": evidence()}, RunMode(interrupted=True), 2),
    ],
    ids=["verified", "only planned", "changed", "known vulnerabilities", "check mode", "interrupted"],
)
def test_notes_say_what_limits_a_report(
    hosts: dict[str, Any], mode: RunMode, count: int, snapshot: SnapshotAssertion
) -> None:
    made = build_report("r", hosts, mode)
    assert len(made.notes) == count
    assert list(made.notes) == snapshot
    for note in made.notes:
        assert f"**{note}.**" in rendering.markdown(made)
        assert f"{note}." in rendering.table(made)


def rows(parts: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    components = host_report("a", parts).components
    return {row.component: tuple(getattr(row, stage) for stage in STAGES) for row in components}


TENSORFLOW = "2.21.0 (tensorflow-2.21.0-py3.11)"  # the environment whose files the process has loaded


def test_versions_of_each_stage() -> None:
    """Loaded is never taken from what a program returns: here another NCCL is loaded, and nothing tells the runtime."""
    assert rows(evidence()) == {
        "driver": ("auto", "595.71.05 (open)", "595.71.05-1", "595.71.05 (open)", "595.71.05"),
        "cuda": ("13.2", "13.2.1", "13.2.1-1", "not recorded", "13.2"),
        "cudnn": ("auto", "9.28.0.42", "9.28.0.42-1", "9.28.0", "9.28.0"),
        "nccl": ("auto", "2.32.3", "2.32.3-1+cuda13.2", "2.31.1", "2.32.3"),
        "tensorflow": ("auto", "2.21.0 (CUDA from wheels)", "2.21.0", TENSORFLOW, "2.21.0, trained"),
        "pytorch": ("none", "left out", "-", "-", "-"),
    }


@pytest.mark.parametrize(
    ("resolved", "measured", "expected"),
    [
        ("595.71.05 (open)", "595.71.05", True),
        ("13.2.1", "13.2", True),
        ("13.2.1", "13.1", False),
        ("13.21", "13.2", False),
        ("2.11.0 (CUDA from wheels)", "2.11.0+cu130, trained", True),
        ("2.32.3", "-", False),
        ("not run", "not run", False),
    ],
)
def test_whether_what_was_measured_is_what_was_planned(resolved: str, measured: str, expected: bool) -> None:
    assert ComponentRow("x", "auto", resolved, "", "", measured).as_planned is expected


def test_missing_evidence_is_not_run() -> None:
    found = rows({})
    assert found["driver"] == ("not recorded", "not run", "not run", "not run", "not run")
    assert found["cuda"] == ("not recorded", "not run", "not run", "not run", "not run")


def test_a_probe_from_before_the_change_is_marked() -> None:
    found = rows(evidence(probe=PROBE, probe_after=None, **CHANGED))
    assert found["cuda"][2] == "13.2.1-1 (before the change)"
    assert found["tensorflow"][2] == "2.21.0 (before the change)"
    unchanged = rows(evidence(probe=PROBE, probe_after=None))
    assert (unchanged["cuda"][2], unchanged["tensorflow"][2]) == ("13.2.1-1", "2.21.0")
    # A run that completes an interrupted one: the change is what the first probe found.
    diff = {"components": [{"component": "cuda", "action": "keep"}, {"component": "tensorflow", "action": "upgrade"}]}
    completing = rows(evidence(probe=PROBE, probe_after=None, diff=diff, **CHANGED))
    assert (completing["cuda"][2], completing["tensorflow"][2]) == ("13.2.1-1", "2.21.0 (before the change)")


def test_a_half_installed_component_is_not_reported_as_installed() -> None:
    packages = {**PACKAGES, "libnccl-dev": {"version": "2.32.3-1+cuda13.2", "status": "half-configured", "held": True}}
    found = rows(evidence(probe_after={**PROBE, "packages": packages, "driver": {"loaded": None}}))
    assert found["nccl"][2] == "2.32.3 (1 of 2 planned packages)"
    assert found["driver"][3] == "no module"
    assert rows(evidence(probe_after={**PROBE, "packages": None}))["nccl"][2] == "could not be read"


# Versions of the archives of 2026, beside a toolkit that was unpacked by hand.
OTHERS = {
    "nvidia-driver-cuda": "580.126.09-1",
    "nvidia-utils-580": "580.126.09-1",
    "cuda-toolkit-12-9": "12.9.1-1",
    "libcudnn9-cuda-12": "9.10.2.21-1",
    "libnccl2": "2.27.7-1+cuda12.9",
}


@pytest.mark.parametrize("plan", [REFUSED, PLAN, None], ids=["no plan fits", "the plan is refused", "no plan"])
def test_what_is_installed_is_shown_whatever_was_planned(plan: dict[str, Any] | None) -> None:
    packages = {name: {"version": version, "status": "installed"} for name, version in OTHERS.items()}
    probe = {**PROBE, "packages": packages, "cuda": {"installed": ["12.4", "12.9"], "default": "12.9"}}
    found = rows(evidence(plan=plan, probe=probe, probe_after=None, verify=None, smoke_train=None, preflight=FULL_DISK))
    assert {name: row[2] for name, row in found.items()} == {
        "driver": "580.126.09-1" if plan is PLAN else "580.126.09",
        "cuda": "12.9.1",
        "cudnn": "9.10.2.21",
        "nccl": "2.27.7 (1 of 2 planned packages)" if plan is PLAN else "2.27.7",
        "tensorflow": "2.21.0",
        "pytorch": "-",
    }
    assert found["driver"][3] == "595.71.05 (open)"


def test_a_toolkit_without_a_compiler_is_installed_by_its_package() -> None:
    packages = {"cuda-toolkit-12-9": {"version": "12.9.1-1", "status": "installed"}}
    assert rows({"probe": {**PROBE, "packages": packages}})["cuda"][2] == "12.9.1"
    removed = {"cuda-toolkit-12-9": {"version": "12.9.1-1", "status": "config-files"}}
    assert rows({"probe": {**PROBE, "packages": removed}})["cuda"][2] == "-"
    assert rows({"probe": {**PROBE, "packages": {}, "cuda": {"installed": ["12.4", "12.9"]}}})["cuda"][2] == "12.9"


def test_a_plan_without_a_request_is_not_recorded() -> None:
    plan = {key: value for key, value in PLAN.items() if key != "request"}
    assert rows(evidence(plan=plan))["cuda"][0] == "not recorded"
    assert rows(evidence(plan={**plan, "request": {"cuda": "13"}}))["cuda"][0] == "13"


def test_simulated_parts_are_listed_first_and_once(snapshot: SnapshotAssertion) -> None:
    virtual = {**TRAINING, "virtual": True, "simulated": ["PCI devices"], "proves": "A", "proves_not": "B"}
    virtual["data"] = {"kind": "simulated", "description": "generated set"}
    parts = evidence(
        probe_after={**PROBE, "simulated": ["PCI devices", "NVIDIA driver 595.71.05"]}, smoke_train=virtual
    )
    made = build_report("r", {"b": parts, "a": evidence()})
    assert list(made.simulated) == snapshot
    text = rendering.markdown(made)
    assert text.splitlines()[2].startswith("**Simulated:** b: PCI devices; b: NVIDIA driver 595.71.05;")
    assert "2 replicas on virtual CPU devices instead of GPUs, 60 steps" in text
    assert "This verifies A; it does not verify B." in text
    assert rendering.table(made).splitlines()[0].startswith("Simulated on b: PCI devices; NVIDIA driver 595.71.05; ")


def test_the_same_evidence_in_any_order_gives_the_same_report() -> None:
    hosts = {"b": evidence(), "a": evidence(verify=None)}
    turned = {name: dict(reversed(list(hosts[name].items()))) for name in reversed(list(hosts))}
    first, second = build_report("r", hosts), build_report("r", turned)
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
    assert rendering.markdown(first) == rendering.markdown(second)


def test_a_failed_task_is_a_reason() -> None:
    found = host_report("a", evidence(verify=None, failure={"task": "Install", "message": "no route"}))
    assert found.status == "failed"
    assert found.reasons[0] == "Install: no route"


def test_a_failure_does_not_hide_the_refusal_that_caused_it() -> None:
    plan = {"ok": False, "problems": [{"code": "no-gpu", "message": "none", "remedy": "add one"}]}
    found = host_report("a", {"plan": plan, "failure": {"task": "Refuse this host", "message": "no-gpu"}})
    assert (found.status, found.reasons) == ("failed", ("no-gpu: none",))


def test_a_training_skipped_in_check_mode_is_not_a_failure() -> None:
    skipped = {"schema": 1, "status": "skip", "framework": "tensorflow", "checks": []}
    found = host_report("a", evidence(smoke_train=skipped))
    assert (found.status, found.reasons) == ("not changed", ("smoke training was not run",))
    assert "images/s" not in rendering.table(build_report("r", {"a": evidence(smoke_train=skipped)}))


@pytest.mark.parametrize(
    ("parts", "status"),
    [
        ({"smoke_train_pytorch": TORCH}, "verified"),
        ({}, "not changed"),
        ({"smoke_train_pytorch": failing(TORCH, "replicas")}, "failed"),
    ],
    ids=["trained", "not trained", "failed"],
)
def test_a_planned_pytorch_must_be_trained(parts: dict[str, Any], status: str, snapshot: SnapshotAssertion) -> None:
    entry = host_report("h", evidence(plan=WITH_PYTORCH, **parts))
    assert entry.status == status
    assert list(entry.reasons) == snapshot


def test_a_rollback_is_reported_and_the_host_has_still_failed(snapshot: SnapshotAssertion) -> None:
    verify = {**VERIFY, "counts": {"pass": 9, "fail": 0, "skip": 1}}
    rollback = {"restored": {"changes": ["a", "b"]}, "verify_after_undo": verify}
    entry = host_report("h", {**evidence(verify=failing(VERIFY, "driver.nvidia_smi")), **rollback})
    assert entry.status == "failed"
    assert list(entry.reasons) == snapshot
    assert "rolled back: 2 changes" in rendering.markdown(build_report("run", {"h": {**evidence(), **rollback}}))


DAMAGED = {
    "env_paths": {"damage": {"file /a": "file /a is new", "file /b": "file /b is new"}, "accepted": {"c": "c is x"}}
}
STILL = {"env_paths": {"damage": {"file /b": "file /b is new"}, "accepted": {"c": "c is x"}}}
REPAIRED = {"file /a": "file /a is new"}


@pytest.mark.parametrize(
    ("before", "after", "parts", "status", "repaired", "left"),
    [
        (DAMAGED, {}, {}, "verified", DAMAGED["env_paths"]["damage"], {}),
        (DAMAGED, STILL, {}, "failed", REPAIRED, STILL["env_paths"]["damage"]),
        (DAMAGED, None, {}, "failed", {}, DAMAGED["env_paths"]["damage"]),
        (DAMAGED, None, {"verify": None, "smoke_train": None}, "not changed", {}, DAMAGED["env_paths"]["damage"]),
        ({}, None, {}, "verified", {}, {}),
    ],
    ids=["repaired", "a part is left", "checked only", "planned only", "none"],
)
def test_damage_is_reported_and_a_host_with_some_is_not_verified(
    before: Any, after: Any, parts: dict[str, Any], status: str, repaired: dict[str, str], left: dict[str, str]
) -> None:
    probe_after = None if after is None else {**PROBE, "applied": after}
    made = host_report("a", evidence(probe={**PROBE, "applied": before}, probe_after=probe_after, **parts))
    assert (made.status, made.damage.repaired, made.damage.left) == (status, repaired, left)
    assert [reason for reason in made.reasons if reason.startswith("damaged: ")] == [
        f"damaged: {t}" for t in left.values()
    ]
    assert made.to_json()["damage"] == {"repaired": repaired, "left": left, "accepted": made.damage.accepted}


def test_damage_does_not_hide_why_a_run_failed_and_is_named_once() -> None:
    failure = {"task": "Record the applied state", "message": "These differences were not repaired: file /a is new"}
    parts = evidence(
        probe={**PROBE, "applied": DAMAGED}, probe_after=None, verify=None, smoke_train=None, failure=failure
    )
    made = host_report("a", {**parts, "changed": True})
    assert made.status == "failed"
    assert made.reasons[:2] == (f"{failure['task']}: {failure['message']}", "damaged: file /b is new")


def test_unreadable_evidence_is_a_failure_that_names_the_field(snapshot: SnapshotAssertion) -> None:
    verify = {**VERIFY, "checks": [{"id": "a", "status": 5}]}
    made = build_report("r", {"a": evidence(verify=verify), "b": evidence()})
    broken, good = made.hosts
    (expected,) = broken.reasons
    assert broken.status == "failed"
    assert expected == snapshot
    assert (good.status, made.status) == ("verified", "failed")
    assert expected in rendering.table(made)


def test_the_json_has_plain_entries_for_each_host() -> None:
    parts = evidence(verify=failing(VERIFY, "packages.held"), plan=WITH_PYTORCH, smoke_train_pytorch=TORCH)
    made = build_report("r", {"a": parts}).to_json()
    assert made == json.loads(json.dumps(made))
    (host,) = made["hosts"]
    check = {"id": "packages.held", "status": "fail", "found": "x|y", "expected": "z", "remedy": "do this"}
    assert host["checks"]["failed"] == [{"part": "verify", **check}]
    assert [training["framework"] for training in host["trainings"]] == ["tensorflow", "pytorch"]
    assert host["trainings"][1]["monitor"]["gpus"][0]["power_max_w"] == 512.5
    assert host["gpus"] == [{"name": "NVIDIA H200", "compute_capability": "9.0", "pci_id": "10de:2335", "count": 2}]


def test_passes_on_simulated_values_are_counted_apart() -> None:
    checks = [
        {"id": "driver.nvidia_smi", "status": "pass", "simulated": True},
        {"id": "gpu.mig", "status": "skip", "reason": "no MIG", "simulated": True},
        {"id": "cuda.nvcc_version", "status": "pass"},
    ]
    made = build_report("r", {"one": evidence(verify={**VERIFY, "checks": checks})})
    passed = made.counts["pass"]
    assert (made.on_simulated_values, made.to_json()["on_simulated_values"]) == (1, 1)
    assert made.hosts[0].to_json()["checks"]["on_simulated_values"] == 1
    text = f"{passed} passed (1 on simulated values), "
    assert text in rendering.markdown(made)
    assert text in rendering.table(made)
    assert "on simulated values" not in rendering.markdown(build_report("r", {"one": evidence()}))


SEEN = {"index": 0, "pci_address": "0000:05:00.0", "name": "NVIDIA H200", "uuid": "GPU-a", "memory_mib": 143771}
OTHER = {**SEEN, "index": 1, "pci_address": "0000:06:00.0", "uuid": "GPU-b"}
LINK = {"link": {"width": 8, "max_width": 16}}


def test_cards_are_those_of_the_probe_with_what_the_checks_found() -> None:
    """A GPU that the checks did not find any more stays; without checks its link is the kernel's."""
    probe = {**PROBE, "driver": {**PROBE["driver"], "nvidia_smi": {"gpus": [SEEN, OTHER]}}}
    probe["pcie"] = {"gpus": {"0000:05:00.0": LINK, "0000:06:00.0": LINK}}
    checked = {"index": 0, "pci_address": "0000:05:00.0", "name": "NVIDIA H200", "uuid": "GPU-a", "serial": "165"}
    checked |= {"memory": "143771 MiB", "pcie_width": 16, "pcie_max_width": 16, "pcie_max_generation": 5}
    links = {"nvlinks": 18, "nvlinks_up": 17, "nvlink_gb_per_second": 26.562}
    made = host_report("h", evidence(probe_after=probe, verify={**VERIFY, "gpus": [checked | links]}))
    assert [(card.serial, card.pcie, card.nvlink) for card in made.cards] == [
        ("165", "x16 of x16, up to gen 5", "17 of 18, 26.6 GB/s each"),
        ("", "x8 of x16", ""),
    ]
    for up, number, said in ((0, None, "all down"), (0, 0, "none"), (None, None, ""), (0, 18, "0 of 18")):
        verify = {**VERIFY, "gpus": [checked | {"nvlinks_up": up, "nvlinks": number}]}
        assert host_report("h", evidence(probe_after=probe, verify=verify)).cards[0].nvlink == said
    assert [card.pcie for card in host_report("h", evidence(probe_after=probe)).cards] == ["x8 of x16"] * 2


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({}, "planned"),
        ({"changed": True}, "made"),
        ({"changed": True, "failure": {"task": "a", "message": "b"}}, "begun"),
        ({"changed": True, "running": "Install"}, "begun"),
        ({"changed": True, "verify_after_undo": {**VERIFY, "counts": {"pass": 1, "fail": 0}}}, "undone"),
    ],
)
def test_changes_are_those_of_the_plan_without_what_it_keeps(more: dict[str, Any], state: str) -> None:
    packages = [{"name": "a", "action": "keep", "installed": "1"}, {"name": "b", "action": "remove", "installed": "1"}]
    diff = {
        "components": [
            {"component": "driver", "action": "upgrade", "installed": "580", "planned": "595", "packages": packages},
            {"component": "cuda", "action": "keep", "installed": "13.2", "planned": "13.2"},
            {"component": "pytorch", "action": "undecided"},
        ],
        "leftovers": {"does": ["x is removed"]},
        "others": ["the driver changes"],
    }
    found = host_report("h", evidence(diff=diff, **more)).to_json()["changes"]
    assert found["state"] == state
    assert [(row["component"], [package["name"] for package in row["packages"]]) for row in found["components"]] == [
        ("driver", ["b"])
    ]
    assert (found["removed"], found["others"]) == (["x is removed"], ["the driver changes"])
