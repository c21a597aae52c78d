"""gpu_verify's action plugin: alone, and in ansible-playbook with a stub of nvcc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.action import gpu_verify
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles import simulated_cuda
from tests.unit import plans
from tests.unit.ansible_runs import COLLECTIONS, run_play

PROJECT = Path(__file__).resolve().parents[3]
H200 = {"pci_id": "10de:2335", "name": "NVIDIA H200", "compute_capability": "9.0"}
# Answers what the checks ask of nvcc, and "compiles" cuda_check.cu, but no other source, to the simulated program.
NVCC = """#!/bin/sh
case "$1" in
  --version) echo "Cuda compilation tools, release 13.2, V13.2.78" ;;
  --list-gpu-code) echo sm_90 ;;
  *)
    for word; do
      case "$last" in -o) out="$word" ;; esac
      case "$word" in *.cu) source="$word" ;; esac
      last="$word"
    done
    cmp "$source" {source} && exec cp {program} "$out" ;;
esac
"""


def test_program_thresholds_and_package_names_are_added() -> None:
    plan = {"gpus": [H200, {"pci_id": "10de:ffff"}]}
    args = gpu_verify.arguments({"plan": plan, "fail": True})
    assert (args["plan"], args["fail"]) == (plan, True)
    assert args["cuda_check_source"] == simulated_cuda.SOURCE.read_text()
    assert list(args["gpu_thresholds"]) == ["10de:2335"]
    assert args["gpu_thresholds"]["10de:2335"]["memory"] == 2400
    assert args["link_thresholds"] == facts.link_thresholds(load_catalog())
    assert args["fabric_manager_packages"] == list(load_catalog().packages.fabric_manager)
    assert args["user_settings"] == facts.user_settings(load_catalog())
    assert args["gpu_counters"] == facts.gpu_counters(load_catalog())
    assert args["xid_errors"] == facts.xid_errors(load_catalog())


@pytest.mark.parametrize("given", [{}, {"10de:2335": {"host": 20}}])
def test_arguments_of_the_task_are_kept(given: dict[str, Any]) -> None:
    args = {
        "plan": {"gpus": [H200]},
        "gpu_thresholds": given,
        "link_thresholds": {},
        "cuda_check_source": "mine",
        "fabric_manager_packages": [],
        "user_settings": [],
        "gpu_counters": [],
        "xid_errors": {},
    }
    assert gpu_verify.arguments(args) == args


@pytest.mark.parametrize("args", [{}, {"plan": "no plan"}, {"plan": {}}, {"plan": {"gpus": None}}])
def test_invalid_plan_is_left_to_the_module(args: dict[str, Any]) -> None:
    assert gpu_verify.arguments(args)["gpu_thresholds"] == {}


def test_documentation_names_the_action() -> None:
    command = [str(Path(sys.executable).with_name("ansible-doc")), "-t", "module", "gpuhost.stack.gpu_verify", "--json"]
    environment = {**os.environ, **COLLECTIONS}
    answer = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True)
    doc = json.loads(answer.stdout)["gpuhost.stack.gpu_verify"]["doc"]
    assert doc["has_action"] is True
    assert {"cuda_check_source", "gpu_thresholds"} < set(doc["options"])


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the evidence of a play in check mode on this machine, with two simulated GPUs."""
    directory = tmp_path_factory.mktemp("play")
    (directory / "cuda/bin").mkdir(parents=True)
    (directory / "cuda/bin/nvcc").write_text(NVCC.format(source=simulated_cuda.SOURCE, program=simulated_cuda.built()))
    (directory / "cuda/bin/nvcc").chmod(0o755)
    plan = {
        "components": {
            "cuda": {"version": "13.2", "home": str(directory / "cuda")},
            "cudnn": {"version": "9.28.0.42"},
            "nccl": {"version": "2.29.7"},
        },
        "gpus": [H200, H200],
    }
    waived = [
        {"check": "cuda.memory_copies", "reason": "it passes", "until": "2999-12-31"},
        {"check": "env.login_shell", "reason": "nvcc is not in PATH", "until": "2999-12-31"},
        {"check": "env.ssh_no_profile", "reason": "an expired waiver", "until": "2000-01-01"},
    ]
    task = {
        "gpuhost.stack.gpu_verify": {"plan": plans.plan_json(plan), "kernel_module": "not_managed", "waivers": waived}
    }
    environment = {
        "ANSIBLE_CALLBACKS_ENABLED": "gpuhost.stack.evidence",
        "GPUHOST_REPORTS": str(directory / "reports"),
        "SIMULATED_CUDA_WRONG": "peer@0-1",
    }
    play = {"hosts": "localhost", "gather_facts": False, "tasks": [task]}
    answer = run_play(directory, play, "--check", **environment)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (evidence,) = (directory / "reports").glob("*/localhost/verify.json")
    return dict(json.loads(evidence.read_text()))


def test_program_runs_on_the_host_and_its_document_is_in_the_evidence(verified: dict[str, Any]) -> None:
    document = verified["cuda_check"]
    assert "in the place of GPUs" in document["simulated"]
    assert [device["index"] for device in document["devices"]] == [0, 1]


def test_play_finds_the_fault(verified: dict[str, Any]) -> None:
    found = {check["id"]: check for check in verified["checks"]}
    assert found["cuda.nccl_all_reduce"]["status"] == found["cuda.memory_copies"]["status"] == "pass"
    assert found["cuda.peer_access"]["status"] == "fail"
    assert "0-1 copy: " in found["cuda.peer_access"]["found"]
    assert verified["status"] == "fail"


def test_waiver_serves_until_it_expires(verified: dict[str, Any]) -> None:
    found = {check["id"]: check for check in verified["checks"]}
    assert found["cuda.memory_copies"]["status"] == "pass"
    assert found["env.login_shell"]["status"] == "waived"
    assert found["env.login_shell"]["reason"] == "waived until 2999-12-31: nvcc is not in PATH"
    assert found["env.login_shell"]["found"]
    assert found["env.ssh_no_profile"]["status"] == "fail"
    assert verified["counts"]["waived"] == 1
