"""Plans for a CPU architecture: from the catalog's entries for it alone, and refused where it has none."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import read_catalog, with_locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe, resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.plan_command import plan_cli

from tests.unit.frozen_catalog import FROZEN_FOLDER

DISTRO = "ubuntu-24.04"
GH200 = "10de:2342"
BOTH = ["x86_64", "aarch64"]
REPOSITORY = {"repository": {"architectures": {"aarch64": "sbsa"}}}
SERVED = {
    **REPOSITORY,
    f"distro/{DISTRO}": {"cpu_architectures": BOTH, "kernel": {"flavours": {"aarch64": "generic"}}},
    **{name: {"cpu_architectures": BOTH} for name in ("driver", "cuda", "cudnn", "nccl")},
}
NEW = "2.21.0"
PROBE: dict[str, Any] = {
    "schema": 1,
    "distribution": {"id": DISTRO, "name": "ubuntu", "version": "24.04", "codename": "noble"},
    "architecture": "aarch64",
    "kernel": {"running": "6.8.0-1013-nvidia-64k", "installed": [], "headers": []},
    "python": {"default": "3.12", "interpreters": {"3.12": "/usr/bin/python3.12"}},
    "toolchain": {"gcc": "13", "glibc": "2.39"},
    "gpus": [{"pci_address": "0009:01:00.0", "pci_id": GH200, "class": "0302", "kernel_driver": None}],
    "driver": {"loaded": None, "nouveau_loaded": False, "nvidia_smi": None},
    "repository": None,
    "secure_boot": "disabled",
}


def merge(data: dict[str, Any], changes: dict[str, Any]) -> None:
    """Change nested data in place."""
    for name, value in changes.items():
        if isinstance(value, dict):
            merge(data.setdefault(name, {}), value)
        else:
            data[name] = value


def copied(folder: Path, changes: dict[str, Any], releases: dict[str, Any] | None = None) -> Path:
    """Return a copy of the catalog with changes by file; releases: changes of TensorFlow releases by version."""
    shutil.copytree(FROZEN_FOLDER, folder)
    for name, change in changes.items():
        path = folder / f"{name}.yml"
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        merge(data, change)
        if name.startswith("distro/"):  # NVIDIA's repository serves it, the distribution's archive does not
            for entry in (*data["distro_drivers"], *data["distro_cuda"], *data.get("prebuilt_modules", ())):
                entry["cpu_architectures"] = ["x86_64"]
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
    if releases:
        path = folder / "tensorflow.yml"
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for release in data["releases"]:
            merge(release, releases.get(release["version"], {}))
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return folder


def script_plan(monkeypatch: pytest.MonkeyPatch, folder: Path, *options: str, gpu: str = GH200) -> tuple[int, Any]:
    """Return the exit status of script/plan for a catalog, and its plan as JSON."""
    monkeypatch.setattr(plan_cli, "CATALOG_FOLDER", folder)
    out, err = io.StringIO(), io.StringIO()
    status = plan_cli.main(["--distro", DISTRO, "--gpu", gpu, *options, "--json"], out, err)
    assert err.getvalue() == ""
    return status, json.loads(out.getvalue())


def with_one_line(folder: Path) -> Path:
    """Return a copy of the catalog with NVIDIA's name of the architecture, which looks like all that it takes."""
    shutil.copytree(FROZEN_FOLDER, folder)
    path = folder / "repository.yml"
    text = path.read_text(encoding="utf-8")
    changed = text.replace('{x86_64: "x86_64"}', '{x86_64: "x86_64", aarch64: "sbsa"}')
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    return folder


LACKING = (
    "the catalog has no NVIDIA repository for ubuntu-24.04, driver branch, CUDA toolkit, TensorFlow wheel and PyTorch "
    "wheel for aarch64"
)


def test_the_repositorys_name_for_an_architecture_alone_gives_no_plan(tmp_path, monkeypatch):
    status, made = script_plan(monkeypatch, with_one_line(tmp_path / "catalog"), "--arch", "aarch64")
    assert (status, [p["code"] for p in made["problems"]]) == (1, ["distro-not-supported"])
    assert LACKING in made["problems"][0]["message"]
    assert all(part is None for part in made["components"].values())
    assert ".txt" not in json.dumps(made)


def test_neither_does_it_for_a_probed_host(tmp_path):
    catalog = read_catalog(with_one_line(tmp_path / "catalog"))
    (tmp_path / "locks").mkdir()
    made = plan_for_probe(_probe(), {}, with_locks(catalog, tmp_path / "locks"))
    assert [problem.code for problem in made.problems] == ["distro-not-supported"]
    assert LACKING in made.problems[0].message
    assert made.remedies == ()


def test_the_same_catalog_still_serves_the_other_architecture(tmp_path, monkeypatch):
    status, made = script_plan(monkeypatch, with_one_line(tmp_path / "catalog"), "--arch", "x86_64", gpu="H100")
    assert (status, made["components"]["tensorflow"]["lock"]) == (0, "tensorflow-2.21.0-py3.12.txt")
    assert made["repository"]["url"].endswith("/ubuntu2404/x86_64/")


def _probe() -> Probe:
    return Probe.from_json(PROBE)


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ((), LACKING),
        (("repository", f"distro/{DISTRO}"), "no driver branch, CUDA toolkit, TensorFlow wheel and PyTorch wheel for"),
        (
            ("repository", f"distro/{DISTRO}", "cuda"),
            "no driver branch, TensorFlow wheel and PyTorch wheel for aarch64",
        ),
        (tuple(SERVED), "the catalog has no TensorFlow wheel and PyTorch wheel for aarch64"),
    ],
    ids=["nothing", "repository", "toolkits", "all but wheels"],
)
def test_one_problem_names_what_has_no_entry(tmp_path, monkeypatch, served, expected):
    folder = copied(tmp_path / "catalog", {name: SERVED[name] for name in served})
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64")
    assert (status, [p["code"] for p in made["problems"]]) == (1, ["distro-not-supported"])
    assert expected in made["problems"][0]["message"]


NO_FRAMEWORKS = ("--request", "tensorflow=none", "--request", "pytorch=none")


def test_a_plan_without_frameworks_needs_no_wheels(tmp_path, monkeypatch):
    folder = copied(tmp_path / "catalog", SERVED)
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64", *NO_FRAMEWORKS)
    assert (status, made["problems"]) == (0, [])
    assert made["components"]["driver"]["branch"]
    assert made["components"]["cuda"]["version"]
    assert made["repository"]["url"].endswith("/ubuntu2404/sbsa/")
    assert made["components"]["driver"]["kernel_headers"]


def test_which_is_the_remedy_where_wheels_alone_are_missing(tmp_path, monkeypatch):
    folder = copied(tmp_path / "catalog", SERVED)
    _status, made = script_plan(monkeypatch, folder, "--arch", "aarch64")
    assert [remedy["request"] for remedy in made["remedies"]] == [{"tensorflow": "none"}]


@pytest.mark.parametrize("arguments", [("cuda=none",), ("cuda=none", "driver=580")])
def test_a_plan_without_a_toolkit_needs_none(tmp_path, monkeypatch, arguments):
    folder = copied(tmp_path / "catalog", {name: SERVED[name] for name in SERVED if name != "cuda"})
    asked = [word for each in arguments for word in ("--request", each)]
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64", *NO_FRAMEWORKS, *asked)
    assert (status, made["problems"]) == (0, [])


@pytest.mark.parametrize("component", ["cudnn=9", "nccl=2"])
def test_a_library_that_is_asked_for_is_named_as_well(tmp_path, monkeypatch, component):
    changes = {name: SERVED[name] for name in SERVED if name not in ("cudnn", "nccl")}
    folder = copied(tmp_path / "catalog", changes)
    status, _made = script_plan(monkeypatch, folder, "--arch", "aarch64", *NO_FRAMEWORKS)
    assert status == 0  # where none is asked for, it is left out
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64", *NO_FRAMEWORKS, "--request", component)
    label = {"cudnn=9": "cuDNN", "nccl=2": "NCCL"}[component]
    assert (status, [p["code"] for p in made["problems"]]) == (1, ["distro-not-supported"])
    assert f"the catalog has no {label} for aarch64" in made["problems"][0]["message"]


WHEEL = {NEW: {"cpu_architectures": BOTH}}


def test_a_release_with_a_wheel_is_planned_with_its_own_lock(tmp_path, monkeypatch):
    folder = copied(tmp_path / "catalog", SERVED, WHEEL)
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64")
    assert (status, made["components"]["tensorflow"]["version"]) == (0, NEW)
    assert made["components"]["tensorflow"]["lock"] == "tensorflow-2.21.0-py3.12-aarch64.txt"


def test_which_the_lock_of_another_architecture_does_not_replace(tmp_path):
    """The project's locks and the user's folder have locks for x86_64; of the other architecture there is none."""
    catalog = read_catalog(copied(tmp_path / "catalog", SERVED, WHEEL))
    own = tmp_path / "locks"
    own.mkdir()
    (own / "tensorflow-2.21.0-py3.12.txt").write_text("tensorflow==2.21.0\n")
    made = plan_for_probe(_probe(), {}, with_locks(catalog, own))
    assert [problem.code for problem in made.problems] == ["no-lock"]
    assert "there is no tensorflow-2.21.0-py3.12-aarch64.txt" in made.problems[0].message
    (own / "tensorflow-2.21.0-py3.12-aarch64.txt").write_text("tensorflow==2.21.0\n")
    made = plan_for_probe(_probe(), {}, with_locks(catalog, own))
    assert made.ok
    assert made.components["tensorflow"] is not None
    assert made.components["tensorflow"].lock == "tensorflow-2.21.0-py3.12-aarch64.txt"


def test_a_release_without_a_wheel_for_the_architecture_is_not_named_unknown(tmp_path, monkeypatch):
    folder = copied(tmp_path / "catalog", SERVED, WHEEL)
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64", "--request", "tensorflow=2.20.0")
    assert (status, [p["code"] for p in made["problems"]]) == (1, ["unknown-version"])
    assert re.search(r"no TensorFlow 2\.20\.0 for aarch64 in the catalog", made["problems"][0]["message"])
    assert [remedy["request"] for remedy in made["remedies"]] == [{"tensorflow": "2.21"}]


def test_pytorch_takes_the_place_of_a_tensorflow_without_wheels(tmp_path, monkeypatch):
    folder = copied(tmp_path / "catalog", {**SERVED, "pytorch": {"cpu_architectures": BOTH}})
    status, made = script_plan(monkeypatch, folder, "--arch", "aarch64")
    assert (status, made["components"]["tensorflow"]) == (0, None)
    assert made["components"]["pytorch"]["lock"].endswith("-py3.12-aarch64.txt")
    because = {reason["component"]: reason["because"] for reason in made["reasons"]}
    assert "no TensorFlow wheel for aarch64" in because["tensorflow"]


def test_the_frameworks_alone_need_neither_repository_nor_driver_branch(tmp_path):
    """The driver of others is there; scope=frameworks changes no package."""
    changes = {f"distro/{DISTRO}": SERVED[f"distro/{DISTRO}"], **REPOSITORY}
    folder = copied(tmp_path / "catalog", {**changes, "cudnn": SERVED["cudnn"], "cuda": SERVED["cuda"]}, WHEEL)
    loaded = {"loaded": {"version": "580.95.05", "kernel_modules": "open"}, "nouveau_loaded": False, "nvidia_smi": None}
    made = plan_for_probe(Probe.from_json({**PROBE, "driver": loaded}), {"scope": "frameworks"}, read_catalog(folder))
    assert made.problems == ()
    assert made.components["tensorflow"] is not None


@pytest.mark.parametrize(("options", "expected"), [((), "arm-only-gpu"), (("--arch", "aarch64"), None)])
def test_a_gpu_of_arm_machines_is_described_with_the_architecture(tmp_path, monkeypatch, options, expected):
    folder = copied(tmp_path / "catalog", SERVED)
    _status, made = script_plan(monkeypatch, folder, *options, *NO_FRAMEWORKS)
    assert [p["code"] for p in made["problems"]] == ([expected] if expected else [])
    assert not expected or "--arch aarch64" in made["problems"][0]["remedy"]


# Today's catalog ------------------------------------------------------------------------------------------------------

ARM = of_architecture(load_catalog(), "aarch64")
SERVED_ON_ARM = [name for name in load_catalog().distros if "aarch64" in supported(load_catalog(), name)]


def on(
    architecture: str, distro: str = DISTRO, gpu: str = GH200, switches: tuple[str, ...] = (), **request: str
) -> Plan:
    """Return the plan of today's catalog for a described host."""
    host = Host(distro, architecture, gpus=(HostGpu(gpu),), nvswitches=switches, described=True)
    return resolve(load_catalog(), asking(**request), host)


@pytest.mark.parametrize("distro", SERVED_ON_ARM)
@pytest.mark.parametrize("gpu", [GH200, "10de:2348", "10de:2e12", "10de:27b8"])
def test_a_gpu_of_an_arm_machine_has_a_whole_plan(distro, gpu):
    made = on("aarch64", distro, gpu).to_json()
    assert made["ok"], made["problems"]
    parts = made["components"]
    assert (parts["driver"]["kernel_modules"], parts["driver"]["source"]) == ("open", "nvidia")
    assert int(parts["driver"]["branch"]) >= int(ARM.distros[distro].nvidia_limits[0].first_branch)
    assert made["repository"]["url"].endswith(f"/{ARM.distros[distro].nvidia_repository.slug}/sbsa/")
    assert all(parts[name] for name in ("cuda", "cudnn", "nccl"))
    assert (parts["tensorflow"], parts["fabric"]) == (None, None)
    assert parts["pytorch"]["lock"].endswith("-aarch64.txt")


@pytest.mark.parametrize("distro", SERVED_ON_ARM)
def test_what_its_repository_begins_with_is_the_oldest_that_is_planned(distro):
    """Which is later than in the repository for x86_64 of the same release, or what we chose to begin with."""
    limits = ARM.distros[distro].nvidia_limits[0]
    alone = {"tensorflow": "none", "pytorch": "none"}
    assert on("aarch64", distro, driver=limits.first_branch, cuda="none", **alone).ok
    older = [b.branch for b in ARM.driver.branches if int(b.branch) < int(limits.first_branch)]
    for branch in older:
        found = on("aarch64", distro, driver=branch, cuda="none", **alone).problems
        assert "not-in-repository" in {problem.code for problem in found}
    for toolkit in ARM.cuda.toolkits:
        is_there = versions.key(toolkit.version) >= versions.key(limits.first_cuda)
        found = {problem.code for problem in on("aarch64", distro, cuda=toolkit.version, **alone).problems}
        assert ("not-in-repository" in found) == (not is_there)


def test_a_branch_before_those_for_arm_is_unknown_there_and_known_elsewhere():
    (problem,) = on("aarch64", driver="570").problems
    assert problem.code == "unknown-version"
    assert "for aarch64" in problem.message
    assert on("x86_64", gpu="10de:2330", driver="570").ok


def test_proprietary_modules_are_not_known_to_be_there():
    (problem,) = on("aarch64", gpu="10de:27b8", driver="580", driver_kernel_modules="proprietary").problems
    assert problem.code == "not-in-repository"
    assert "it offers open" in problem.message
    assert on("x86_64", gpu="10de:27b8", driver="580", driver_kernel_modules="proprietary").ok


def test_a_board_with_nvswitches_has_no_fabric_manager_there():
    made = on("aarch64", gpu="10de:2330", switches=("10de:22a3",) * 4)
    assert not made.ok
    assert {problem.code for problem in made.problems} <= {"fabric-manager-missing", "not-in-repository"}
    assert on("x86_64", gpu="10de:2330", switches=("10de:22a3",) * 4).ok


@pytest.mark.parametrize(
    ("request_", "says", "remedy"),
    [
        ({"tensorflow": NEW}, "no TensorFlow wheel with CUDA (tensorflow#121157", {"tensorflow": "auto"}),
        (
            {"tensorflow": "none", "pytorch": "2.10.0"},
            "no PyTorch wheel with CUDA (pytorch#160162",
            {"pytorch": "2.11"},
        ),
    ],
)
def test_a_wheel_without_code_for_gpus_is_refused_with_its_source(request_, says, remedy):
    made = on("aarch64", **request_)
    assert [problem.code for problem in made.problems] == ["distro-not-supported"]
    assert says in made.problems[0].message
    assert "supported are" not in made.problems[0].message
    assert dict(made.remedies[0].request) == remedy


def test_which_is_the_reason_where_pytorch_takes_the_place_of_tensorflow():
    because = {reason.component: reason.because for reason in on("aarch64").reasons}
    assert "tensorflow#121157" in because["tensorflow"]
    assert because["pytorch"].startswith("in place of TensorFlow")


def test_what_else_is_wrong_is_said_and_not_that_tensorflow_has_no_wheel():
    (problem,) = on("aarch64", gpu="10de:1eb4", driver="580").problems
    assert problem.code == "gpu-dropped-by-cuda"
    assert "TensorFlow" not in problem.message
