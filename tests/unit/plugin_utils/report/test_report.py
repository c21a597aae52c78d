"""The report: statuses from evidence with parts missing, versions of each stage, nothing missing looks like success."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import rendering
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import STAGES, build_report, host_report

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


@pytest.mark.parametrize(
    ("parts", "status", "reasons"),
    [
        (evidence(), "pass", []),
        (evidence(smoke_train=None), "incomplete", ["smoke training was not run"]),
        (evidence(smoke_train=None, plan=NO_TENSORFLOW), "pass", []),
        (evidence(verify=None), "incomplete", ["the checks were not run"]),
        (
            {},
            "incomplete",
            ["the host was not probed", "no plan was made", "the checks were not run", "smoke training was not run"],
        ),
        (evidence(verify=failing(VERIFY, "packages.held")), "fail", ["verify failed: packages.held"]),
        (evidence(smoke_train=failing(TRAINING, "loss")), "fail", ["smoke training failed: loss"]),
        (evidence(verify={**VERIFY, "status": "fail"}), "fail", ["verify ended with status fail"]),
        (evidence(smoke_train={**TRAINING, "status": None}), "fail", ["smoke training ended without a status"]),
        (
            evidence(plan=REFUSED, verify=None, smoke_train=None, probe_after=None),
            "refused",
            ["no-gpu: no GPU was found"],
        ),
        (
            evidence(preflight=FULL_DISK, verify=None, smoke_train=None, probe_after=None),
            "refused",
            ["disk-full: /opt is full"],
        ),
        (
            evidence(plan=REFUSED, verify=failing(VERIFY, "a"), smoke_train=None),
            "fail",
            ["no-gpu: no GPU was found", "verify failed: a", "smoke training was not run"],
        ),
        (
            evidence(verify=failing(VERIFY, "a"), smoke_train=None),
            "fail",
            ["verify failed: a", "smoke training was not run"],
        ),
    ],
    ids=[
        "all",
        "not trained",
        "nothing to train",
        "not verified",
        "nothing",
        "check fails",
        "training fails",
        "failed without a check",
        "no status",
        "refused by the plan",
        "refused by the host",
        "refused after a failure",
        "fails and misses",
    ],
)
def test_status_of_a_host(parts: dict[str, Any], status: str, reasons: list[str]) -> None:
    entry = host_report("a", parts)
    assert (entry.status, list(entry.reasons)) == (status, reasons)


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        ({"a": evidence()}, "pass"),
        ({"a": evidence(), "b": {}}, "incomplete"),
        ({"a": evidence(verify=failing(VERIFY, "x")), "b": {}}, "fail"),
        ({}, "incomplete"),
    ],
    ids=["pass", "incomplete", "fail", "no host"],
)
def test_overall_status(hosts: dict[str, Any], status: str) -> None:
    made = build_report("r", hosts)
    assert made.status == status
    assert made.counts["pass"] == sum(host.checks.counts["pass"] for host in made.hosts)
    assert f"# GPU hosts: {status}" in rendering.markdown(made)
    assert f"Overall: {status}" in rendering.table(made)


def rows(parts: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    components = host_report("a", parts).components
    return {row.component: tuple(getattr(row, stage) for stage in STAGES) for row in components}


def test_versions_of_each_stage() -> None:
    assert rows(evidence()) == {
        "driver": ("auto", "595.71.05 (open)", "595.71.05-1", "595.71.05 (open)", "595.71.05"),
        "cuda": ("13.2", "13.2.1", "13.2.1-1", "13.2", "13.2"),
        "cudnn": ("auto", "9.28.0.42", "9.28.0.42-1", "9.28.0", "9.28.0"),
        "nccl": ("auto", "2.32.3", "2.32.3-1+cuda13.2", "2.32.3", "2.32.3"),
        "tensorflow": ("auto", "2.21.0 (CUDA from wheels)", "2.21.0", "2.21.0", "2.21.0, trained"),
        "pytorch": ("none", "left out", "-", "-", "-"),
    }


def test_missing_evidence_is_not_run() -> None:
    found = rows({})
    assert found["driver"] == ("not recorded", "not run", "not run", "not run", "not run")
    assert found["cuda"] == ("not recorded", "not run", "not run", "not run", "not run")


def test_a_probe_from_before_the_change_is_marked() -> None:
    found = rows(evidence(probe=PROBE, probe_after=None))
    assert found["cuda"][2] == "13.2.1-1 (before the change)"
    assert found["tensorflow"][2] == "2.21.0 (before the change)"


def test_a_half_installed_component_is_not_reported_as_installed() -> None:
    packages = {**PACKAGES, "libnccl-dev": {"version": "2.32.3-1+cuda13.2", "status": "half-configured", "held": True}}
    found = rows(evidence(probe_after={**PROBE, "packages": packages, "driver": {"loaded": None}}))
    assert found["nccl"][2] == "1 of 2 packages"
    assert found["driver"][3] == "no module"
    assert rows(evidence(probe_after={**PROBE, "packages": None}))["nccl"][2] == "could not be read"


def test_a_plan_without_a_request_is_not_recorded() -> None:
    plan = {key: value for key, value in PLAN.items() if key != "request"}
    assert rows(evidence(plan=plan))["cuda"][0] == "not recorded"
    assert rows(evidence(plan={**plan, "request": {"cuda": "13"}}))["cuda"][0] == "13"


def test_simulated_parts_are_listed_first_and_once() -> None:
    virtual = {**TRAINING, "virtual": True, "simulated": ["PCI devices"], "proves": "A", "proves_not": "B"}
    virtual["data"] = {"kind": "simulated", "description": "generated set"}
    parts = evidence(
        probe_after={**PROBE, "simulated": ["PCI devices", "NVIDIA driver 595.71.05"]}, smoke_train=virtual
    )
    made = build_report("r", {"b": parts, "a": evidence()})
    assert list(made.simulated) == [
        "b: PCI devices",
        "b: NVIDIA driver 595.71.05",
        "b: training data (generated set)",
        "b: 2 replicas on virtual CPU devices instead of GPUs",
    ]
    text = rendering.markdown(made)
    assert text.splitlines()[2].startswith("**Simulated:** b: PCI devices; b: NVIDIA driver 595.71.05;")
    assert "2 replicas on virtual CPU devices instead of GPUs, 60 steps" in text
    assert "This verifies A; it does not verify B." in text
    assert rendering.table(made).splitlines()[0] == "Simulated: b: PCI devices"


def test_the_same_evidence_in_any_order_gives_the_same_report() -> None:
    hosts = {"b": evidence(), "a": evidence(verify=None)}
    turned = {name: dict(reversed(list(hosts[name].items()))) for name in reversed(list(hosts))}
    first, second = build_report("r", hosts), build_report("r", turned)
    assert json.dumps(first.to_json()) == json.dumps(second.to_json())
    assert rendering.markdown(first) == rendering.markdown(second)


def test_a_failed_task_is_a_reason() -> None:
    found = host_report("a", evidence(verify=None, failure={"task": "Install", "message": "no route"}))
    assert found.status == "fail"
    assert found.reasons[0] == "Install: no route"


def test_a_failure_does_not_hide_the_refusal_that_caused_it() -> None:
    plan = {"ok": False, "problems": [{"code": "no-gpu", "message": "none", "remedy": "add one"}]}
    found = host_report("a", {"plan": plan, "failure": {"task": "Refuse this host", "message": "no-gpu"}})
    assert (found.status, found.reasons) == ("refused", ("no-gpu: none",))


def test_a_training_skipped_in_check_mode_is_not_a_failure() -> None:
    skipped = {"schema": 1, "status": "skip", "framework": "tensorflow", "checks": []}
    found = host_report("a", evidence(smoke_train=skipped))
    assert (found.status, found.reasons) == ("incomplete", ("smoke training was not run",))
    assert "images/s" not in rendering.table(build_report("r", {"a": evidence(smoke_train=skipped)}))


@pytest.mark.parametrize(
    ("parts", "status", "reasons"),
    [
        ({"smoke_train_pytorch": TORCH}, "pass", []),
        ({}, "incomplete", ["smoke training with PyTorch was not run"]),
        (
            {"smoke_train_pytorch": failing(TORCH, "replicas")},
            "fail",
            ["smoke training with PyTorch failed: replicas"],
        ),
    ],
)
def test_a_planned_pytorch_must_be_trained(parts: dict[str, Any], status: str, reasons: list[str]) -> None:
    entry = host_report("h", evidence(plan=WITH_PYTORCH, **parts))
    assert (entry.status, list(entry.reasons)) == (status, reasons)


def test_a_rollback_is_reported_and_the_host_has_still_failed() -> None:
    verify = {**VERIFY, "counts": {"pass": 9, "fail": 0, "skip": 1}}
    rollback = {"restored": {"changes": ["a", "b"]}, "verify_after_undo": verify}
    entry = host_report("h", {**evidence(verify=failing(VERIFY, "driver.nvidia_smi")), **rollback})
    assert entry.status == "fail"
    assert list(entry.reasons) == [
        "verify failed: driver.nvidia_smi",
        "rolled back: 2 changes restored the last verified configuration; of its checks, 9 passed and 0 failed",
    ]
    assert "rolled back: 2 changes" in rendering.markdown(build_report("run", {"h": {**evidence(), **rollback}}))


def test_unreadable_evidence_is_a_failure_that_names_the_field() -> None:
    verify = {**VERIFY, "checks": [{"id": "a", "status": 5}]}
    made = build_report("r", {"a": evidence(verify=verify), "b": evidence()})
    broken, good = made.hosts
    expected = "the evidence cannot be read: evidence.verify.checks[0].status: expected a string, found 5"
    assert (broken.status, broken.reasons) == ("fail", (expected,))
    assert (good.status, made.status) == ("pass", "fail")
    assert expected in rendering.markdown(made)
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
