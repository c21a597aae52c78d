"""The report: statuses from evidence with parts missing, versions side by side, nothing missing looks green."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import rendering, report

PACKAGES = {
    "nvidia-driver-cuda": {"version": "595.71.05-1", "status": "installed", "held": True},
    "cuda-toolkit-13-2": {"version": "13.2.1-1", "status": "installed", "held": True},
    "libcudnn9-cuda-13": {"version": "9.28.0.42-1", "status": "installed", "held": True},
    "libnccl2": {"version": "2.32.3-1+cuda13.2", "status": "installed", "held": True},
    "libnccl-dev": {"version": "2.32.3-1+cuda13.2", "status": "installed", "held": True},
}
PROBE: dict[str, Any] = {
    "distribution": {"id": "debian-12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"},
    "kernel": {"running": "6.1.0-56-amd64"},
    "gpus": [{"pci_id": "10de:2335"}, {"pci_id": "10de:2335"}],
    "driver": {"loaded": {"version": "595.71.05", "kernel_modules": "open"}},
    "packages": PACKAGES,
    "tensorflow": {"path": "/opt/gpuhost/tensorflow", "version": "2.21.0", "python": "3.11"},
    "simulated": [],
}
BEFORE: dict[str, Any] = {**PROBE, "driver": {"loaded": None}, "packages": {}, "tensorflow": None}
PLAN: dict[str, Any] = {
    "ok": True,
    "request": {
        "driver": "auto",
        "cuda": "13.2",
        "cudnn": "auto",
        "nccl": "auto",
        "tensorflow": "auto",
        "pytorch": "none",
    },
    "gpus": [{"pci_id": "10de:2335", "name": "NVIDIA H200", "compute_capability": "9.0", "architecture": "Hopper"}] * 2,
    "components": {
        "driver": {"version": "595.71.05", "kernel_modules": "open", "packages": ["nvidia-driver-cuda=595.71.05-1"]},
        "cuda": {"version": "13.2", "release": "13.2.1", "packages": ["cuda-toolkit-13-2=13.2.1-1"]},
        "cudnn": {"version": "9.28.0.42", "packages": ["libcudnn9-cuda-13=9.28.0.42-1"]},
        "nccl": {"version": "2.32.3", "packages": ["libnccl2=2.32.3-1+cuda13.2", "libnccl-dev=2.32.3-1+cuda13.2"]},
        "tensorflow": {"version": "2.21.0", "python": "3.11", "cuda_libraries": "wheel"},
        "pytorch": None,
    },
    "problems": [],
    "warnings": [],
}
VERIFY: dict[str, Any] = {
    "status": "pass",
    "simulated": [],
    "checks": [
        {"id": "driver.nvidia_smi", "status": "pass", "versions": {"driver": "595.71.05"}},
        {
            "id": "cuda.compile_link_run",
            "status": "pass",
            "versions": {"cuda": "13.2", "cudnn": "9.28.0", "nccl": "2.32.3"},
        },
        {"id": "tensorflow.version", "status": "pass", "versions": {"tensorflow": "2.21.0"}},
        {"id": "env.sudo", "status": "skip", "reason": "sudo is not installed"},
    ],
}
TRAINING: dict[str, Any] = {
    "status": "pass",
    "framework": "tensorflow",
    "version": "2.21.0",
    "checks": [{"id": "data", "status": "pass"}],
    "replicas": 2,
    "virtual": False,
    "simulated": [],
    "data": {"kind": "real", "description": "CIFAR-10"},
    "model": {"name": "ResNet-8"},
    "steps": 60,
    "loss": {"first": 2.41, "last": 1.32},
    "images_per_second": 5120.5,
    "seconds": 12.5,
}
FULL = {"probe": BEFORE, "plan": PLAN, "probe_after": PROBE, "verify": VERIFY, "smoke_train": TRAINING}


def evidence(**changes: Any) -> dict[str, Any]:
    """FULL with parts replaced; None takes a part away."""
    parts = {**copy.deepcopy(FULL), **changes}
    return {name: part for name, part in parts.items() if part is not None}


def failing(part: dict[str, Any], check_id: str) -> dict[str, Any]:
    check = {"id": check_id, "status": "fail", "found": "x|y", "expected": "z", "remedy": "do this"}
    return {**part, "status": "fail", "checks": [*part["checks"], check]}


REFUSED = {
    **PLAN,
    "ok": False,
    "components": {},
    "problems": [{"code": "no-gpu", "message": "no GPU was found", "remedy": "put one in"}],
}
IN_THE_WAY = {"problems": [{"code": "disk-full", "message": "/opt is full", "remedy": "make room"}], "warnings": []}
NO_TENSORFLOW = {**PLAN, "components": {**PLAN["components"], "tensorflow": None}}


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
        (evidence(verify={**VERIFY, "status": "fail"}), "fail", ["verify ended fail"]),
        (evidence(smoke_train={**TRAINING, "status": None}), "fail", ["smoke training ended without a status"]),
        (
            evidence(plan=REFUSED, verify=None, smoke_train=None, probe_after=None),
            "refused",
            ["no-gpu: no GPU was found"],
        ),
        (
            evidence(preflight=IN_THE_WAY, verify=None, smoke_train=None, probe_after=None),
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
    entry = report.host_entry("a", parts)
    assert (entry["status"], entry["reasons"]) == (status, reasons)


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
    made = report.summary("r", hosts)
    assert made["status"] == status
    assert made["counts"]["pass"] == sum(entry["checks"]["counts"]["pass"] for entry in made["hosts"])
    assert f"# GPU hosts: {status}" in rendering.markdown(made)
    assert f"Overall: {status}" in rendering.table(made)


def rows(parts: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    components = report.host_entry("a", parts)["components"]
    return {row["component"]: tuple(row[stage] for stage in report.STAGES) for row in components}


def test_versions_side_by_side() -> None:
    assert rows(evidence()) == {
        "driver": ("auto", "595.71.05 (open)", "595.71.05-1", "595.71.05 (open)", "595.71.05"),
        "cuda": ("13.2", "13.2.1", "13.2.1-1", "13.2", "13.2"),
        "cudnn": ("auto", "9.28.0.42", "9.28.0.42-1", "9.28.0", "9.28.0"),
        "nccl": ("auto", "2.32.3", "2.32.3-1+cuda13.2", "2.32.3", "2.32.3"),
        "tensorflow": ("auto", "2.21.0 (CUDA from wheels)", "2.21.0", "2.21.0", "2.21.0, trained"),
        "pytorch": ("none", "left out", "-", "-", "-"),
    }


def test_what_was_not_looked_at_is_not_run() -> None:
    found = rows({})
    assert found["driver"] == ("not recorded", "not run", "not run", "not run", "not run")
    assert found["cuda"] == ("not recorded", "not run", "not run", "not run", "not run")


def test_a_probe_from_before_the_change_is_marked() -> None:
    found = rows(evidence(probe=PROBE, probe_after=None))
    assert found["cuda"][2] == "13.2.1-1 (before the change)"
    assert found["tensorflow"][2] == "2.21.0 (before the change)"


def test_a_half_installed_component_does_not_look_installed() -> None:
    packages = {**PACKAGES, "libnccl-dev": {"version": "2.32.3-1+cuda13.2", "status": "half-configured", "held": True}}
    found = rows(evidence(probe_after={**PROBE, "packages": packages, "driver": {"loaded": None}}))
    assert found["nccl"][2] == "1 of 2 packages"
    assert found["driver"][3] == "no module"
    assert rows(evidence(probe_after={**PROBE, "packages": None}))["nccl"][2] == "could not be read"


def test_a_plan_that_records_no_request_is_told() -> None:
    plan = {key: value for key, value in PLAN.items() if key != "request"}
    assert rows(evidence(plan=plan))["cuda"][0] == "not recorded"
    assert rows(evidence(plan={**plan, "request": {"cuda": "13"}}))["cuda"][0] == "13"


def test_simulated_parts_come_first_and_once() -> None:
    virtual = {**TRAINING, "virtual": True, "simulated": ["PCI devices"], "proves": "A", "proves_not": "B"}
    virtual["data"] = {"kind": "simulated", "description": "generated set"}
    parts = evidence(
        probe_after={**PROBE, "simulated": ["PCI devices", "NVIDIA driver 595.71.05"]}, smoke_train=virtual
    )
    made = report.summary("r", {"b": parts, "a": evidence()})
    assert made["simulated"] == [
        "b: PCI devices",
        "b: NVIDIA driver 595.71.05",
        "b: training data (generated set)",
        "b: 2 replicas on virtual CPU devices instead of GPUs",
    ]
    text = rendering.markdown(made)
    assert text.splitlines()[2].startswith("**Simulated:** b: PCI devices; b: NVIDIA driver 595.71.05;")
    assert "2 replicas on virtual CPU devices instead of GPUs, 60 steps" in text
    assert "Proves A; not B." in text
    assert rendering.table(made).splitlines()[0] == "Simulated: b: PCI devices"


def test_markdown_lists_every_skip_and_every_failure() -> None:
    parts = evidence(verify=failing(VERIFY, "packages.held"))
    parts["plan"]["warnings"] = [{"code": "w", "message": "be warned"}]
    text = rendering.markdown(report.summary("20261121-101010", {"hopper": parts}))
    for line in (
        "| Host | Status | GPUs | Why |",
        "| hopper | fail | 2 x NVIDIA H200 | verify failed: packages.held |",
        "| NVIDIA driver | auto | 595.71.05 (open) | 595.71.05-1 | 595.71.05 (open) | 595.71.05 |",
        "| packages.held | x\\|y | z | do this |",
        "| env.sudo | sudo is not installed |  |",
        "Checks: 4 passed, 1 failed, 1 skipped.",
        "- warning `w`: be warned",
        "Smoke training with tensorflow: pass, ResNet-8 on real data, 2 replicas, 60 steps, loss 2.41 to 1.32, "
        "5120 images/s, 12.5 s.",
    ):
        assert line in text.splitlines(), line


def test_outcomes_other_than_pass_fail_and_skip_are_counted_and_listed_where_they_occur() -> None:
    unknown = {"id": "gpu.nvlink", "status": "unknown", "reason": "nvidia-smi hangs"}
    verify = {**VERIFY, "checks": [*VERIFY["checks"], unknown]}
    made = report.summary("r", {"a": evidence(verify=verify), "b": evidence()})
    assert made["counts"]["unknown"] == 1
    assert [entry["checks"]["counts"].get("unknown") for entry in made["hosts"]] == [1, None]
    text = rendering.markdown(made)
    assert "1 unknown, " in text
    assert "| gpu.nvlink | unknown |  | nvidia-smi hangs |" in text
    assert text.count("Other outcomes:") == 1


def test_missing_parts_are_printed() -> None:
    text = rendering.markdown(report.summary("r", {"a": {}}))
    assert "Smoke training: not run." in text
    assert "(verify: not run)" in text
    assert "| CUDA toolkit | not recorded | not run | not run | not run | not run |" in text
    table = rendering.table(report.summary("r", {"a": {}}))
    assert table.splitlines()[1].split("  ")[0] == "a"
    assert "not run" in table
    assert "nothing was run" in rendering.markdown(report.summary("r", {}))


def test_the_same_evidence_in_any_order_gives_the_same_report() -> None:
    hosts = {"b": evidence(), "a": evidence(verify=None)}
    turned = {name: dict(reversed(list(hosts[name].items()))) for name in reversed(list(hosts))}
    first, second = report.summary("r", hosts), report.summary("r", turned)
    assert json.dumps(first) == json.dumps(second)
    assert rendering.markdown(first) == rendering.markdown(second)


def test_a_failure_that_no_check_tells_of_is_told() -> None:
    found = report.host_entry("a", evidence(verify=None, failure={"task": "Install", "message": "no route"}))
    assert found["status"] == "fail"
    assert found["reasons"][0] == "Install: no route"


def test_a_failure_does_not_hide_the_refusal_that_caused_it() -> None:
    plan = {"ok": False, "problems": [{"code": "no-gpu", "message": "none", "remedy": "add one"}]}
    found = report.host_entry("a", {"plan": plan, "failure": {"task": "Refuse this host", "message": "no-gpu"}})
    assert (found["status"], found["reasons"]) == ("refused", ["no-gpu: none"])


def test_check_mode_trains_nothing_and_is_no_failure() -> None:
    skipped = {"schema": 1, "status": "skip", "framework": "tensorflow", "checks": []}
    found = report.host_entry("a", evidence(smoke_train=skipped))
    assert (found["status"], found["reasons"]) == ("incomplete", ["smoke training was not run"])
    assert "images/s" not in rendering.table(report.summary("r", {"a": evidence(smoke_train=skipped)}))


WITH_PYTORCH = {**PLAN, "components": {**PLAN["components"], "pytorch": {"version": "2.11.0", "python": "3.11"}}}
TORCH = {
    **TRAINING,
    "framework": "pytorch",
    "version": "2.11.0+cu130",
    "all_reduce": {"implementation": "gloo", "fallbacks": ["two replicas share GPU 0"]},
    "agreement": {"replicas": [1, 2], "largest_relative_difference": 2.5e-06, "tolerance": 0.001},
    "scaling": [
        {"replicas": 1, "batch_size": 64, "images_per_second": 100.0, "efficiency": 1.0},
        {"replicas": 2, "batch_size": 128, "images_per_second": 180.0, "efficiency": 0.9},
    ],
    "monitor": {
        "gpus": [
            {
                "index": 0,
                "name": "NVIDIA H200",
                "utilization_max": 97,
                "memory_used_max_mib": 5120,
                "power_max_w": 512.5,
                "temperature_max_c": 51,
            }
        ]
    },
    "cluster": {"workers": ["a:12345", "b:12345"], "index": 1},
}


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
def test_a_planned_pytorch_must_train_too(parts: dict[str, Any], status: str, reasons: list[str]) -> None:
    entry = report.host_entry("h", evidence(plan=WITH_PYTORCH, **parts))
    assert (entry["status"], entry["reasons"]) == (status, reasons)


def test_both_trainings_stand_in_the_report_with_what_they_measured() -> None:
    made = report.summary("r", {"h": evidence(plan=WITH_PYTORCH, smoke_train_pytorch=TORCH)})
    text = rendering.markdown(made)
    for part in (
        "Smoke training with tensorflow: pass",
        "Smoke training with pytorch over 2 hosts, this one worker 1: pass",
        "2 replicas gave the losses of one within 2.5e-06 (allowed: 0.001).",
        "All-reduce: gloo (two replicas share GPU 0).",
        "| Replicas | Global batch | Images/s | Scaling efficiency |",
        "| 2 | 128 | 180 | 0.9 |",
        "| 0: NVIDIA H200 | 97 | 5120 | 512.5 | 51 |",
    ):
        assert part in text, part
    assert "tensorflow pass, 5120 images/s; pytorch pass, 5120 images/s" in rendering.table(made)
    components = {row["component"]: row for row in made["hosts"][0]["components"]}
    assert components["pytorch"]["measured"] == "2.11.0+cu130, trained"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cpu", "replicas on virtual CPU devices instead of GPUs"),
        ("gpu", "virtual GPUs: replicas that share a physical"),
    ],
)
def test_virtual_replicas_are_named_for_what_they_are(kind: str, words: str) -> None:
    training = {**TORCH, "virtual": True, "virtual_kind": kind}
    made = report.summary("r", {"h": evidence(smoke_train=training)})
    assert any(words in line for line in made["simulated"])
    assert words in rendering.markdown(made)
    assert "no speed-up is to be expected" in rendering.markdown(made)


def test_an_undo_stands_beside_what_failed_and_does_not_make_it_good() -> None:
    proof = {**VERIFY, "counts": {"pass": 9, "fail": 0, "skip": 1}}
    undone = {"restored": {"changes": ["a", "b"]}, "verify_after_undo": proof}
    entry = report.host_entry("h", {**evidence(verify=failing(VERIFY, "driver.nvidia_smi")), **undone})
    assert entry["status"] == "fail"
    assert entry["reasons"] == [
        "verify failed: driver.nvidia_smi",
        "undone: 2 changes brought the last proved set back; on it 9 checks passed, 0 failed",
    ]
    assert "undone: 2 changes" in rendering.markdown(report.summary("run", {"h": {**evidence(), **undone}}))
