"""The report as Markdown and as a table."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import os_release
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import rendering
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.about import About
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import build_report
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.report.report_cases import (
    BEFORE,
    PLAN,
    PROBE,
    REFUSED,
    REPOSITORY,
    TORCH,
    VERIFY,
    WITH_PYTORCH,
    evidence,
    failing,
)


def test_markdown_lists_every_skip_and_every_failure() -> None:
    parts = evidence(verify=failing(VERIFY, "packages.held"))
    parts["plan"]["warnings"] = [{"code": "w", "message": "be warned"}]
    text = rendering.markdown(build_report("20261121-101010", {"hopper": parts}))
    for line in (
        "| Host | Status | GPUs | Why |",
        "| hopper | failed | 2 x NVIDIA H200 | verify failed: packages.held |",
        "| NVIDIA driver | auto | 595.71.05 (open) | 595.71.05-1 | 595.71.05 (open) | 595.71.05 |",
        "| CUDA toolkit | 13.2 | 13.2.1 | 13.2.1-1 | not recorded | 13.2 |",
        "| packages.held | x\\|y | z |  | do this |",
        "| env.sudo | sudo is not installed |  |",
        "Checks: 4 passed, 1 failed, 1 skipped.",
        "- warning `w`: be warned",
        "Smoke training with tensorflow: pass, ResNet-8 on real data, 2 replicas, 60 steps, loss 2.41 to 1.32, "
        "5120 images/s, 12.5 s.",
    ):
        assert line in text.splitlines(), line


def test_markdown_says_what_was_run_and_found(snapshot: SnapshotAssertion) -> None:
    """When and how, each GPU, and the checks that passed with their values."""
    card = {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-a", "pci_address": "0000:05:00.0", "memory_mib": 143771}
    probe = {**PROBE, "driver": {**PROBE["driver"], "nvidia_smi": {"gpus": [card]}}}
    verify = copy.deepcopy(VERIFY)
    verify["checks"][0]["found"] = "works | 2 GPUs"
    run = About(
        "2026-11-27T16:12:00Z", "2026-11-27T16:21:22Z", 562, "ansible-playbook a.yml", "me@lab", "0.1.0", "1a2b"
    )
    made = build_report("r", {"h": evidence(verify=verify, probe=probe, probe_after=probe)}, about=run)
    text = rendering.markdown(made)
    assert text[: text.index("| Component")] == snapshot
    assert "| driver.nvidia_smi | works \\| 2 GPUs |" in text[text.index("Passed:") :].splitlines()
    assert rendering.table(made).splitlines()[-1] == "Overall: verified after 9 min 22 s"
    document = made.to_json()
    assert (document["about"]["seconds"], document["hosts"][0]["cards"][0]["uuid"]) == (562, "GPU-a")
    assert len(document["hosts"][0]["checks"]["passed"]) == document["counts"]["pass"]


def test_what_all_hosts_simulate_is_said_once() -> None:
    simulated = {**PROBE, "simulated": ["PCI devices"]}
    hosts = {name: evidence(probe=simulated, probe_after=simulated) for name in ("a", "b")}
    first, _head, row, *_rest, last = rendering.table(build_report("r", hosts)).splitlines()
    assert first == "Simulated: PCI devices"
    assert "  verified (simulated)  " in row
    assert last == "Overall: verified (simulated)"
    assert rendering.markdown(build_report("r", hosts)).startswith("# GPU hosts: verified (simulated)")


def test_a_failure_of_the_host_is_shown_with_the_setting_that_explains_it() -> None:
    setting = "LD_LIBRARY_PATH=/opt/x in /etc/environment"
    made = build_report("r", {"h": evidence(verify=failing(VERIFY, "a.b", cause="host", setting=setting))})
    assert f"| a.b | x\\|y | z | host: {setting} | do this |" in rendering.markdown(made).splitlines()
    (failed,) = made.to_json()["hosts"][0]["checks"]["failed"]
    assert (failed["cause"], failed["setting"]) == ("host", setting)


def test_damage_that_was_repaired_or_accepted_is_shown(snapshot: SnapshotAssertion) -> None:
    before = {"env_paths": {"damage": {"file /a": "file /a is new"}, "accepted": {"c": "c was x, is y"}}}
    after = {"env_paths": {"accepted": {"c": "c was x, is y"}}}
    parts = evidence(probe={**PROBE, "applied": before}, probe_after={**PROBE, "applied": after})
    made = build_report("r", {"h": parts})
    text = rendering.markdown(made)
    assert text[text.index("Damage:") :] == snapshot
    assert [line for line in rendering.table(made).splitlines() if line.startswith("h: ")] == snapshot


NVCC = "files of cuda-nvcc-13-2=13.2.78-1"
NO_NVCC = {"damage": {NVCC: f"{NVCC}: /usr/local/cuda-13.2/bin/nvcc is missing"}}
CHECKED_WITHOUT_NVCC = [
    *({"id": f"env.{name}", "status": "fail", "found": "exit 127", "expected": "release 13.2", "remedy": "look"}
      for name in ("login_shell", "sudo")),
    {"id": "cuda.compile_link_run", "status": "fail", "found": "no nvcc", "remedy": "Install a header."},
    {"id": "cuda.devices", "status": "unknown", "reason": "the program was not compiled"},
    {"id": "gpu.ecc_errors", "status": "fail", "found": "GPU 0: 5", "cause": "hardware", "remedy": "Replace it."},
]  # fmt: skip
ENCRYPTED = {"task": "Probe the host and plan", "message": "Attempting to decrypt but no vault secrets found"}
DIFF = {"components": [{"component": "cuda", "action": "upgrade", "installed": "13.0.2", "planned": "13.2.1"}]}


@pytest.mark.parametrize(
    "parts",
    [
        evidence(
            probe={**PROBE, "applied": {"packages": NO_NVCC}},
            verify={"status": "fail", "checks": [*VERIFY["checks"], *CHECKED_WITHOUT_NVCC]},
            failure={"task": "Fail", "message": "Checks failed: ..."},
            probe_after=None,
            smoke_train=None,
        ),
        evidence(
            probe={**PROBE, "applied": {"packages": NO_NVCC}},
            preflight=REPOSITORY,
            **dict.fromkeys(("probe_after", "verify", "smoke_train")),
        ),
        evidence(
            probe={**PROBE, "applied": {"packages": NO_NVCC}},
            preflight=REPOSITORY,
            verify=failing(VERIFY, "env.sudo"),
            **dict.fromkeys(("probe_after", "smoke_train")),
        ),
        evidence(
            probe={**PROBE, "applied": {"packages": NO_NVCC}},
            verify=failing(VERIFY, "cuda.nccl_all_reduce"),
            changed=True,
            applied=True,
            **dict.fromkeys(("probe_after", "smoke_train")),
        ),
        evidence(
            probe={**PROBE, "pending": {"since": "2026-11-02T10:00:00Z"}},
            diff=DIFF,
            verify=failing(failing(VERIFY, "cuda.nvcc_version"), "gpu.mig"),
            **dict.fromkeys(("probe_after", "smoke_train")),
        ),
        {"probe": PROBE, "restored": {"changes": ["a", "b"]}, "changed": True, "torn_down": True},
        {"probe": PROBE, "torn_down": False},
        {"failure": ENCRYPTED},
    ],
    ids=[
        "damaged",
        "damaged and refused",
        "damaged and checked, with a problem",
        "repaired, and another failure",
        "pending",
        "torn down",
        "nothing to tear down",
        "without the password of the vault",
    ],
)
def test_the_summary_begins_with_the_cause_and_what_to_do(parts: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    made = build_report("r", {"h": parts})
    assert rendering.table(made) == snapshot
    assert len(rendering.table(made).splitlines()) < 15
    damaged = [entry["part"] for entry in made.to_json()["hosts"][0]["checks"]["failed"] if "symptom_of" in entry]
    assert ("Follows from" in rendering.markdown(made)) == bool(damaged)


@pytest.mark.parametrize("pytorch", ["none", "fallback"])
def test_the_report_says_why_a_component_that_was_asked_for_is_left_out(pytorch: str) -> None:
    """PyTorch in place of TensorFlow: `left out` alone would not say what the host lacks."""
    parts = evidence()
    parts["plan"]["request"]["pytorch"] = pytorch
    parts["plan"]["components"]["cudnn"] = parts["plan"]["components"]["nccl"] = None
    reasons = {"cudnn": "it has | no code for the GPU", "pytorch": "not managed", "driver": "the newest release"}
    parts["plan"]["reasons"] = [{"component": name, "choice": "x", "because": text} for name, text in reasons.items()]
    made = build_report("r", {"h": parts})
    found = [line for line in rendering.markdown(made).splitlines() if " left out: " in line]
    assert found == [r"- cuDNN is left out: it has \| no code for the GPU"], "NCCL has no reason, nobody wants PyTorch"
    rows = {row["component"]: row["left_out"] for row in made.to_json()["hosts"][0]["components"]}
    assert rows["cudnn"] == reasons["cudnn"]
    assert not any(text for name, text in rows.items() if name != "cudnn")
    parts["plan"]["problems"] = REFUSED["problems"]
    assert " left out: " not in rendering.markdown(build_report("r", {"h": parts}))


def test_a_reused_training_is_printed_with_its_date_and_a_deferred_one_with_its_reason() -> None:
    checks = [{"id": "training", "status": "reused", "reason": "trained on 2026-11-01"}]
    reused = {**evidence()["smoke_train"], "status": "reused", "finished": "2026-11-01T00:00:00Z", "checks": checks}
    made = build_report("r", {"h": evidence(smoke_train=reused)})
    assert made.status == "verified"
    assert "Smoke training with tensorflow: reused from 2026-11-01T00:00:00Z, ResNet-8 on" in rendering.markdown(made)
    assert "  reused from 2026-11-01, 5120 images/s" in rendering.table(made)
    checks = [{"id": "training", "status": "deferred", "reason": "programs use the GPUs: 42 (python3)"}]
    deferred = {"framework": "tensorflow", "status": "deferred", "checks": checks}
    made = build_report("r", {"h": evidence(smoke_train=deferred)})
    assert made.status == "not changed"
    assert "Smoke training with tensorflow: deferred, programs use the GPUs: 42 (python3)." in rendering.markdown(made)
    assert rendering.table(made).splitlines()[1].endswith("  deferred")


def test_other_outcomes_are_counted_and_listed_where_they_occur() -> None:
    unknown = {"id": "gpu.nvlink", "status": "unknown", "reason": "nvidia-smi hangs"}
    verify = {**VERIFY, "checks": [*VERIFY["checks"], unknown]}
    made = build_report("r", {"a": evidence(verify=verify), "b": evidence()})
    assert made.counts["unknown"] == 1
    assert [host.checks.counts.get("unknown") for host in made.hosts] == [1, None]
    text = rendering.markdown(made)
    assert "1 unknown, " in text
    assert "| gpu.nvlink | unknown |  | nvidia-smi hangs |" in text
    assert text.count("Other outcomes:") == 1


def test_missing_parts_are_printed() -> None:
    text = rendering.markdown(build_report("r", {"a": {}}))
    assert "Smoke training: not run." in text
    assert "(verify: not run)" in text
    assert "| CUDA toolkit | not recorded | not run | not run | not run | not run |" in text
    table = rendering.table(build_report("r", {"a": {}}))
    assert table.splitlines()[1].split("  ")[0] == "a"
    assert "not run" in table
    assert "nothing was run" in rendering.markdown(build_report("r", {}))


def test_both_trainings_are_printed_with_their_measurements() -> None:
    made = build_report("r", {"h": evidence(plan=WITH_PYTORCH, smoke_train_pytorch=TORCH)})
    text = rendering.markdown(made)
    for part in (
        "Smoke training with tensorflow: pass",
        "Smoke training with pytorch on 2 hosts (this one is worker 1): pass",
        "The losses of 2 replicas differ from those of one by at most 2.5e-06 (tolerance 0.001).",
        "All-reduce: gloo (two replicas share GPU 0).",
        "| 0: NVIDIA H200 | 97 | 5120 | 512.5 | 51 |",
        "| GPU | Counted during the training |\n| --- | --- |\n| 0 | Recovery Errors (link 14: +3); FEC Errors - ",
    ):
        assert part in text, part
    assert "tensorflow pass, 5120 images/s; pytorch pass, 5120 images/s" in rendering.table(made)
    components = {row.component: row for row in made.hosts[0].components}
    assert components["pytorch"].measured == "2.11.0+cu130, trained"


def test_the_summary_of_a_run_leaves_out_the_columns_without_a_value(snapshot: SnapshotAssertion) -> None:
    skipped = {"id": "gpu.mig", "status": "skip", "reason": "no MIG"}
    warned = {"id": "gpu.persistence", "status": "warn", "found": "off"}
    verify = {**VERIFY, "checks": [*VERIFY["checks"], skipped, warned]}
    held = evidence(verify=failing(VERIFY, "packages.held"))
    lost = [
        {"id": f"gpu.check_{n}", "status": "fail", "found": "no answer", "remedy": f"Reboot. Then ask GPU {n % 2}."}
        for n in range(7)
    ]
    many = {**VERIFY, "checks": [*VERIFY["checks"], *lost]}
    refused = {"probe": BEFORE, "plan": {**PLAN, "ok": False, "problems": REFUSED["problems"]}}
    pytorch = {"path": "/opt/gpuhost/pytorch", "version": "2.11.0+cu130", "python": "3.11"}
    both = {"plan": WITH_PYTORCH, "smoke_train_pytorch": TORCH, "probe_after": {**PROBE, "pytorch": pytorch}}
    runs = {
        "of both frameworks": {"h": evidence(**both)},
        "with a warning on one host": {"one": evidence(), "two": evidence(verify=verify)},
        "without a training": {"h": {"probe": BEFORE, "plan": PLAN, "probe_after": PROBE, "verify": VERIFY}},
        "of a refused host": {"h": refused},
        "with a failure on two hosts": {"a": evidence(), "b": held, "c": held, "d": evidence(verify=many)},
    }
    assert {name: rendering.table(build_report("r", hosts)) for name, hosts in runs.items()} == snapshot


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("cpu", "replicas on virtual CPU devices instead of GPUs"),
        ("gpu", "virtual GPUs (replicas that share a physical GPU)"),
    ],
)
def test_virtual_replicas_are_named_as_such(kind: str, words: str) -> None:
    training = {**TORCH, "virtual": True, "virtual_kind": kind}
    made = build_report("r", {"h": evidence(smoke_train=training)})
    assert any(words in line for line in made.simulated)
    assert words in rendering.markdown(made)


# What somebody may write into /etc/os-release, call a host, or let a program print.
HOSTILE = (
    "<b>evil|host</b> ![x](http://e/x.png) [a](http://e) *a* `b` &lt; \033[31mRED\033[0m\x9b0m\u202e"
    "\n# c\n---\n| d |\n|---|"
)


def hostile(part: Any) -> Any:
    """Return evidence in which all that a host can choose ends with HOSTILE."""
    if isinstance(part, dict):
        ours = ("id", "status", "code", "kind", "framework", "kernel_modules", "cuda_libraries", "version", "pci_id")
        return {key: value if key in ours else hostile(value) for key, value in part.items()}
    if isinstance(part, list):
        return [hostile(value) for value in part]
    return f"{part} {HOSTILE}" if isinstance(part, str) else part


def kinds(text: str) -> list[str]:
    """Return the elements of a Markdown document that are more than text."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    inner = [inner for token in tokens for inner in ([token, *(token.children or ())])]
    return [token.type for token in inner if token.type not in ("text", "text_special", "softbreak")]


def test_what_a_host_says_is_text_in_the_report(tmp_path: Path) -> None:
    put(tmp_path, "/etc/os-release", f"ID=debian\nVERSION_ID=12\nPRETTY_NAME='{HOSTILE.splitlines()[0]}'\n")
    name = os_release.read(str(tmp_path)).pretty_name
    verify = failing(VERIFY, "packages.held")
    parts = copy.deepcopy(evidence(plan=WITH_PYTORCH, verify=verify, smoke_train_pytorch=TORCH))
    parts["plan"]["problems"] = [{"code": "no-gpu", "message": "no GPU", "remedy": "put one in"}]
    parts["plan"]["warnings"] = [{"code": "w", "message": "be warned"}]
    parts["probe_after"]["simulated"] = ["driver"]
    evil = {part: hostile(value) for part, value in parts.items()}
    evil["probe_after"]["distribution"]["pretty_name"] = name
    made, plain = build_report("r", {"<b>evil|host</b>": evil}), build_report("r", {"host": parts})
    text, table = rendering.markdown(made), rendering.table(made)
    assert kinds(text) == kinds(rendering.markdown(plain))
    assert made.to_json()["hosts"][0]["distribution"] == name, "JSON has what the host says"
    assert r"\x1b[31mRED\x1b[0m\x9b0m\u202e" in table
    assert {char for char in text + table if not char.isprintable()} == {"\n"}


def test_what_is_true_of_several_hosts_is_said_once() -> None:
    mistake = {"task": "Probe the host and plan", "message": "1 mistake(s):\n- gpu_stack_rebot: no such variable"}
    away = {"task": "Probe the host and plan", "message": "no route to host", "unreachable": True}
    hosts = {f"gpu{number:02}": {"failure": mistake} for number in range(1, 26)} | {"login": {"failure": away}}
    lines = rendering.table(build_report("r", hosts)).splitlines()
    assert [line for line in lines if "rebot" in line] == ["- gpu_stack_rebot: no such variable"]
    (first,) = (line for line in lines if line.endswith("1 mistake(s):"))
    assert first.startswith("gpu01, gpu02, ")
    assert ", gpu20, ... (25 hosts): Probe the host and plan" in first
    assert "login: Probe the host and plan: no route to host" in lines
    assert not any("was not probed" in line or "no plan was made" in line for line in lines)


def test_of_a_fleet_the_hosts_with_the_worst_verdicts_have_a_line_and_the_rest_is_counted() -> None:
    failed = {**evidence(), "verify": failing(VERIFY, "gpu.count")}
    hosts = {f"gpu{number:03}": failed if number % 50 == 0 else evidence() for number in range(1, 501)}
    lines = rendering.table(build_report("r", hosts)).splitlines()
    rows = [line for line in lines if re.match(r"gpu\d+ ", line)]
    assert [line.split()[0] for line in rows if " failed " in line] == [f"gpu{n:03}" for n in range(50, 501, 50)]
    assert len(rows) == 29
    assert "and 471 more hosts: 471 verified (the report lists them)" in lines
    assert len(lines) < 50


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"diff": {"components": [
            {"component": "driver", "action": "upgrade", "installed": "580.1", "planned": "595.2"},
            {"component": "cuda", "action": "install", "installed": None, "planned": "13.2.1"},
            {"component": "cudnn", "action": "keep", "installed": "9.1", "planned": "9.1"},
            {"component": "nccl", "action": "remove", "installed": "2.1", "planned": None},
        ], "leftovers": {"does": ["purge nvidia-340"]}}},
         "changed: NVIDIA driver 580.1 -> 595.2, CUDA toolkit 13.2.1, NCCL 2.1 removed, purge nvidia-340"),
        ({"drift": {"env_paths": ["a file is missing"], "plan": ["new"]}},
         "changed: no version; applied again: env_paths, plan"),
        ({"restored": {"changes": ["package driver", "file a"]}},
         "changed: restored 2 packages, files and settings"),
        ({}, None),
    ],
    ids=["versions", "again", "restored", "nothing"],
)  # fmt: skip
def test_the_summary_says_what_was_changed(parts: dict[str, Any], line: str | None) -> None:
    made = build_report("r", {"h": {**evidence(), **parts, "changed": True, "recorded": True}})
    found = [text for text in rendering.table(made).splitlines() if text.startswith("h: changed")]
    assert found == ([f"h: {line}"] if line else [])
