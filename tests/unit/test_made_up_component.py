"""A component that nobody has thought of, in a copy of the project: what it takes is in tests/made_up_component.

Its module, its line in the registry, its catalog file and its role are all that the copy has more. The tier `component`
installs it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import made_up_component
from tests.unit.plugin_utils.planning.preflight_cases import DIRECTORIES as MOUNTS

# A host with an H200 and no packages, for which everything is decided; prints it as JSON.
DECIDE = """
import json, sys
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import decision
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import report
from tests.unit.plugin_utils.planning.role_values import Roles

root, request, applied, more = json.load(sys.stdin)
options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
found = to_json(probe.probe(root, options))
gpu = {"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "class": "0302", "kernel_driver": None}
found |= {"gpus": [gpu], "distribution": {"id": "debian-12"}, "disk": None, "gpu_processes": [], "applied": applied}
found = {**found, "packages": {}, **more}
args = {"request": request, "own_kernel": False, "managed": parts({}), "converge": "drift"}
roles = Roles({name: [] for name in decision.KERNEL_PACKAGES})
decided = decision.decide(found, args, roles)
print(json.dumps({
    "facts": decided.facts,
    "text": decided.text("gpu-01"),
    "report": to_json(report.host_report("gpu-01", {"probe": found, "plan": decided.facts["gpu_stack_plan"]})),
    "problems": [problem.message for problem in decided.preflight.problems],
}))
"""
MODULE = "ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with the component."""
    copy = made_up_component.copy_of_the_project(tmp_path_factory.mktemp("copy") / "clone")
    made_up_component.add_to(copy)
    return copy


def python(project: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (project / "collections", project)))}
    command = [sys.executable, "-P", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=project, env=environment)


def plan(project: Path, *requests: str) -> dict[str, Any]:
    """Return the plan of script/plan for an H100 with some requests."""
    asked = [word for request in requests for word in ("--request", request)]
    done = python(project, "-m", MODULE, "--distro", "ubuntu-24.04", "--gpu", "H100", "--json", *asked)
    assert done.returncode in (0, 1), done.stderr
    return dict(json.loads(done.stdout))


def decide(project: Path, tmp_path: Path, applied: Any = None, probed: Any = None, **request: str) -> dict[str, Any]:
    """Return what is decided for a host without packages. probed: what is different on it."""
    given = [str(tmp_path), {"cuda": "13.0", "tensorflow": "none", **request}, applied or {}, probed or {}]
    done = python(project, "-c", DECIDE, stdin=json.dumps(given))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_it_is_planned_with_a_reason_in_the_newest_release_that_fits(project: Path) -> None:
    """Without a word in the module about what its candidates depend on: its rules say so."""
    made = plan(project, "cuda=13.2")
    assert (made["components"]["cuda"]["version"], made["components"]["telemetry"]["version"]) == ("13.2", "1.4.2")
    (reason,) = [reason for reason in made["reasons"] if reason["component"] == "telemetry"]
    assert reason["because"] == (
        "the newest that fits; runs with driver 570 and newer; not 2.0.0: telemetry 2.0.0 does not run beside CUDA 13.2"
    )
    assert plan(project, "cuda=13.0")["components"]["telemetry"]["packages"] == ["gpu-telemetry=2.0.0-1"]
    assert plan(project, "telemetry=none")["components"]["telemetry"] is None


def test_it_alone_needs_the_repository_too(project: Path) -> None:
    made = plan(project, "driver=none", "cuda=none", "tensorflow=none", "expect_gpus=1")
    assert [name for name, part in made["components"].items() if part] == ["telemetry"]
    assert made["repository"]["slug"] == "ubuntu2404"


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        (("telemetry=2", "cuda=13.2"), "telemetry 2.0.0 does not run beside CUDA 13.2"),
        (("telemetry=2", "driver=570"), "telemetry 2.0.0 needs driver 580 or newer, not 570"),
        (("telemetry=3",), "there is no telemetry 3 in the catalog"),
    ],
)
def test_what_does_not_fit_is_refused_with_remedies_of_the_search(
    project: Path, requests: tuple[str, ...], text: str
) -> None:
    made = plan(project, *requests)
    assert any(text in problem["message"] for problem in made["problems"])
    assert "telemetry" in {name for remedy in made["remedies"] for name in remedy["request"]}
    for remedy in made["remedies"]:
        changed = dict(request.split("=") for request in requests) | remedy["request"]
        assert plan(project, *(f"{name}={value}" for name, value in changed.items()))["ok"], remedy


def test_it_is_in_plan_diff_drift_and_role_inputs(project: Path, tmp_path: Path) -> None:
    found = decide(project, tmp_path)
    facts = found["facts"]
    assert facts["gpu_stack_plan"]["ok"], facts["gpu_stack_plan"]["problems"]
    assert "telemetry: install 2.0.0" in facts["gpu_stack_drift"]["telemetry"]
    assert "telemetry: install 2.0.0" in facts["gpu_stack_drift"]["packages"]
    assert "gpu-telemetry" in facts["gpu_stack_parts"]["packages"]["watch"]["packages"]
    (row,) = [line.split() for line in found["text"].splitlines() if " telemetry " in line]
    assert row[:3] == ["+", "telemetry", "2.0.0"]
    inputs = facts["gpu_stack_role_inputs"]
    assert set(inputs["telemetry_packages"]) <= set(facts["gpu_stack_transaction"]["options"]["packages"])
    assert inputs["telemetry_reinstall"] == []


def test_drift_sees_another_version_and_nothing_on_a_converged_host(project: Path, tmp_path: Path) -> None:
    parts = decide(project, tmp_path)["facts"]["gpu_stack_parts"]
    applied = {name: {"fingerprint": part["fingerprint"], "changed": []} for name, part in parts.items()}
    there = {"gpu-telemetry": {"version": "2.0.0-1", "status": "installed", "held": True, "automatic": False}}
    assert "telemetry" not in decide(project, tmp_path, applied, {"packages": there})["facts"]["gpu_stack_drift"]
    there["gpu-telemetry"]["version"] = "1.4.2-1"
    drift = decide(project, tmp_path, applied, {"packages": there})["facts"]["gpu_stack_drift"]
    assert drift["telemetry"] == ["telemetry: upgrade 2.0.0"]


def test_the_preflight_knows_its_size_and_the_report_its_versions(project: Path, tmp_path: Path) -> None:
    full = {path: {"free_mib": 1500, "total_mib": 10**6, "mount": "/"} for path in MOUNTS}
    sizes = {"gpu-telemetry": {"2.0.0-1": {"download_kib": 300 << 10, "installed_kib": 900 << 10}}}
    repository = {"source": "http", "packages": {"gpu-telemetry": ["2.0.0-1"]}, "sizes": sizes}
    there = {"gpu-telemetry": {"version": "1.4.2-1", "status": "installed", "held": True, "automatic": False}}
    alone = {"driver": "none", "cuda": "none"}
    found = decide(project, tmp_path, None, {"disk": full, "repository": repository}, **alone)
    (problem,) = [text for text in found["problems"] if "free" in text]
    assert "telemetry" in problem
    (row,) = [
        row
        for row in decide(project, tmp_path, None, {"packages": there})["report"]["components"]
        if row["component"] == "telemetry"
    ]
    assert (row["requested"], row["resolved"], row["installed"]) == ("auto", "2.0.0", "1.4.2-1")


def test_a_misspelt_variable_gets_its_name_as_a_hint(project: Path) -> None:
    done = python(project, "-m", MODULE, "--distro", "ubuntu-24.04", "--gpu", "H100", "--request", "telemetri=2")
    assert (done.returncode, "did you mean telemetry?" in done.stderr) == (2, True), done.stderr


def test_a_mistake_in_its_catalog_file_is_reported_with_all_others(project: Path, tmp_path: Path) -> None:
    copy = made_up_component.copy_of_the_project(tmp_path / "clone")
    made_up_component.add_to(copy)
    for name, old, new in (("telemetry", "min_driver", "driver"), ("nccl", "builds:", "bilds:")):
        path = copy / f"catalog/{name}.yml"
        path.write_text(path.read_text().replace(old, new))
    done = python(copy, "-m", MODULE, "--distro", "ubuntu-24.04", "--gpu", "H100")
    assert done.returncode == 2
    assert "telemetry.yml.releases[2.0.0].driver: unknown key" in done.stderr
    assert "nccl.yml.bilds: unknown key" in done.stderr


def test_without_pytorch_s_module_tensorflow_is_still_planned(tmp_path: Path) -> None:
    copy = made_up_component.copy_of_the_project(tmp_path / "clone")
    made_up_component.without_pytorch(copy)
    made = plan(copy)
    assert made["ok"]
    assert "pytorch" not in made["components"]
    assert made["components"]["tensorflow"]["version"]
    done = python(copy, "-c", "from ansible_collections.gpuhost.stack.plugins.action import stack_plan, gpu_verify")
    assert done.returncode == 0, done.stderr
