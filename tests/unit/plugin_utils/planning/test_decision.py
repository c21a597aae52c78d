"""From a probe to the decision: the real probe of an empty root with a GPU, and the playbooks' own settings."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.host.system import MOUNTS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import PlanWarning
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import with_locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import LockFiles
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import decision as deciding
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import lock_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from syrupy.assertion import SnapshotAssertion

from tests.unit.package_index import serve
from tests.unit.plugin_utils.planning.role_values import Roles

PROJECT = Path(__file__).resolve().parents[4]
MANAGED = parts({})
# A container, in which no module is built.
CONTAINER: dict[str, Any] = {name: [] for name in deciding.KERNEL_PACKAGES}
ROLES = Roles({**CONTAINER, "nvidia_driver_module_signing_key": "/keys/lab.key"})
ARGS: dict[str, Any] = {
    "request": {"cuda": "13.0", "tensorflow": "none"},  # the newest CUDA may have no NCCL yet
    "own_kernel": False,
    "managed": MANAGED,
    "converge": "drift",
}


@pytest.fixture
def probed(tmp_path: Path) -> dict[str, Any]:
    options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    found = to_json(probe.probe(str(tmp_path), options))
    gpu = {"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "class": "0302", "kernel_driver": None}
    return {**found, "gpus": [gpu], "distribution": {"id": "debian-12"}, "disk": None, "gpu_processes": []}


def on_full_file_systems(decision: deciding.Decision) -> list[str]:
    """Return the mount of each file system that is too full, with the first need on it."""
    texts = [problem.message for problem in decision.preflight.problems if problem.code == "disk-full"]
    words = ("TensorFlow", "PyTorch", "checks and training")
    return [f"{text.split()[4]}: {next(word for word in words if word in text)}" for text in texts]


def decide(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return deciding.decide(found, {**ARGS, **changes}, ROLES).facts


def test_all_parts_of_a_bare_host_drift_and_none_of_a_converged_one(probed: dict[str, Any]) -> None:
    facts = decide(probed)
    assert facts["gpu_stack_plan"]["ok"], facts["gpu_stack_plan"]["problems"]
    assert facts["gpu_stack_plan"]["components"]["cuda"]
    expected = set(MANAGED) - {"fabric", "tensorflow_env", "pytorch_env"}
    assert set(facts["gpu_stack_drift"]) == set(facts["gpu_stack_parts"]) == expected
    applied = {n: {"fingerprint": p["fingerprint"], "changed": []} for n, p in facts["gpu_stack_parts"].items()}
    again = decide({**probed, "applied": applied})
    # The probe has no packages, so all parts with packages still drift; nvidia_repo has none.
    assert set(again["gpu_stack_drift"]) == expected - {"nvidia_repo"}
    assert set(decide(probed, converge="always")["gpu_stack_drift"]) == expected


def test_damage_goes_from_the_probe_to_the_roles_without_changing_a_fingerprint(probed: dict[str, Any]) -> None:
    before = decide(probed)["gpu_stack_parts"]
    damage = {
        "packages": ["libnccl2"],
        "environments": [],
        "services": [],
        "lines": [["/etc/environment", "LD_LIBRARY_PATH=/x"]],
    }
    applied = {n: {"fingerprint": p["fingerprint"], "changed": []} for n, p in before.items()}
    applied["env_paths"] |= {"changed": ["LD_LIBRARY_PATH in /etc/environment"], "repairs": damage}
    facts = decide({**probed, "applied": applied})
    line = {"file": "/etc/environment", "line": "LD_LIBRARY_PATH=/x"}
    assert facts["gpu_stack_repairs"] == {**damage, "lines": [line]}
    assert "LD_LIBRARY_PATH in /etc/environment" in facts["gpu_stack_drift"]["env_paths"]
    assert facts["gpu_stack_parts"] == before


def test_damage_is_that_of_what_is_planned(probed: dict[str, Any]) -> None:
    """The environment of a framework that is no longer planned is neither repaired nor recorded any more."""
    applied = {
        "env_paths": {
            "fingerprint": "f",
            "damage": {"file /a": "file /a was x"},
            "accepted": {"file /b": "file /b was y"},
        },
        "tensorflow_env": {"fingerprint": "f", "damage": {"files of /opt": "files of /opt: /opt is missing"}},
    }
    found = decide({**probed, "applied": applied})["gpu_stack_damage"]
    assert (found["left"], found["accepted"]) == ({"file /a": "file /a was x"}, {"file /b": "file /b was y"})


def test_transition_variables_do_not_change_the_fingerprint(probed: dict[str, Any]) -> None:
    def fingerprint(roles: Roles) -> str:
        return str(deciding.decide(probed, ARGS, roles).facts["gpu_stack_parts"]["nvidia_driver"]["fingerprint"])

    before = fingerprint(ROLES)
    assert fingerprint(Roles({**ROLES.values, "nvidia_driver_replaces": ["^nouveau$"]})) == before
    assert fingerprint(Roles({**ROLES.values, "nvidia_driver_persistence": False})) != before


RUNNING, NEWER = "6.1.0-50-amd64", "6.1.0-56-amd64"


def with_kernels(
    probed: dict[str, Any], *kernels: str, built_for: tuple[str, ...] | None = None, users: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the facts of a host that runs the first kernel and boots the last one next.

    built_for: the kernels whose headers are installed, all by default; users: headers that the user adds to the plan's.
    """
    headers = list(kernels if built_for is None else built_for)
    kernel = {
        **probed["kernel"], "running": kernels[0], "next_boot": kernels[-1], "installed": list(kernels),
        "headers": headers, "installed_packages": [f"linux-headers-{name}" for name in headers], "offers": {},
        "headers_from": {name: [f"linux-headers-{name}"] for name in kernels if name not in headers},
    }  # fmt: skip

    planned = [f"linux-headers-{name}" for name in kernels]
    roles = Roles({"nvidia_driver_kernel_headers": [*planned, *users]} if users else {})
    facts = deciding.decide({**probed, "kernel": kernel}, ARGS, roles).facts
    assert facts["gpu_stack_plan"]["components"]["driver"]["kernel_headers"] == planned
    return facts


def test_a_kernel_update_that_brought_its_headers_is_no_drift(probed: dict[str, Any]) -> None:
    before = with_kernels(probed, RUNNING)["gpu_stack_parts"]
    assert {"packages", "nvidia_driver", "plan"} <= set(before)
    assert with_kernels(probed, RUNNING, NEWER)["gpu_stack_parts"] == before
    # What the user adds to the plan's own is a variable like any other.
    changed = with_kernels(probed, RUNNING, users=("linux-headers-amd64",))["gpu_stack_parts"]
    assert {name for name in before if before[name] != changed[name]} == {"packages", "nvidia_driver"}


def test_a_kernel_without_its_headers_is_drift(probed: dict[str, Any]) -> None:
    """Even where the modules are not watched, as with nvidia_driver_load_module=false.

    gpuhost-verify is there for the driver, so that its role runs with it.
    """
    missing = f"linux-headers-{NEWER} is not installed"
    assert missing not in str(with_kernels(probed, RUNNING, NEWER)["gpu_stack_drift"])
    found = with_kernels(probed, RUNNING, NEWER, built_for=(RUNNING,))["gpu_stack_drift"]
    affected = {name for name, reasons in found.items() if missing in reasons}
    assert affected == {"packages", "nvidia_driver", "host_verify", "plan"}


def test_what_pytorch_compiles_with_is_drift_only_where_it_is_missing(probed: dict[str, Any]) -> None:
    """A host from before these packages were planned does not apply the role for them alone."""

    def decided(compilers: list[str], headers: list[str], own: list[str] | None = None) -> dict[str, Any]:
        found = {**probed, "toolchain": {"c_compilers": compilers}}
        found["python"] = {**probed["python"], "interpreters": {"3.11": "/usr/bin/python3.11"}, "headers": headers}
        request = {**ARGS["request"], "pytorch": "auto"}
        roles = ROLES if own is None else Roles({**ROLES.values, "pytorch_env_build_packages": own})
        return deciding.decide(found, {**ARGS, "request": request}, roles).facts

    def drifts(facts: dict[str, Any]) -> dict[str, list[str]]:
        found = {name: [r for r in why if "is not installed" in r] for name, why in facts["gpu_stack_drift"].items()}
        return {name: reasons for name, reasons in found.items() if reasons}

    there = decided(["/usr/bin/gcc"], ["3.11"])
    assert there["gpu_stack_plan"]["components"]["pytorch"]["header_packages"] == ["python3.11-dev"]
    assert drifts(there) == {}
    reason = "python3.11-dev is not installed"
    assert drifts(decided(["/usr/bin/clang"], [])) == {"pytorch_env": [reason], "plan": [reason]}
    reasons = ["gcc is not installed", "libc6-dev is not installed", reason]
    assert drifts(decided([], [])) == {"pytorch_env": reasons, "plan": reasons}
    assert drifts(decided([], [], own=[])) == {}  # as with gpu_stack_scope=frameworks, which installs none, and warns
    parts = there["gpu_stack_parts"]
    assert decided([], [], own=[])["gpu_stack_parts"]["pytorch_env"] == parts["pytorch_env"]
    own = ["gcc", "libc6-dev", "python3.11-dev", "ccache"]  # what the user adds is a variable like any other
    assert decided(["/usr/bin/gcc"], ["3.11"], own)["gpu_stack_parts"]["pytorch_env"] != parts["pytorch_env"]


def test_a_host_without_a_plan_has_no_drift(probed: dict[str, Any]) -> None:
    facts = decide({**probed, "gpus": []})
    assert not facts["gpu_stack_plan"]["ok"]
    assert (facts["gpu_stack_parts"], facts["gpu_stack_drift"]) == ({}, {})
    assert "problems" in facts["gpu_stack_preflight"]


def test_a_missing_lock_is_resolved_and_kept(
    probed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the index of the framework's role, here one of our own."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    folder, name = tmp_path / "gpu_stack_locks", "pytorch-2.10.0-cu128-py3.11"
    without = dataclasses.replace(load_catalog(), locks=LockFiles(frozenset(), "script/lock {names}"))
    python = {"interpreters": {"3.11": "/usr/bin/python3.11"}, "default": "3.11"}
    asked = {"tensorflow": "none", "cuda": "none", "pytorch": "2.10", "pytorch_cuda": "12.8"}
    plan = plan_for_probe(Probe.from_json({**probed, "python": python}), asked, without)
    assert [problem.code for problem in plan.problems] == ["no-lock"]
    with serve() as index:
        written, failed = lock_files.make_missing(plan, folder, {"pytorch": index.url})
        assert (written, len(failed)) == ([], 1)
        assert failed[0].startswith(f"{name} could not be locked: ")
        assert not (folder / f"{name}.txt").exists()
        index.add("torch", "2.10.0", "cp311-cp311-manylinux_2_28_x86_64")
        index.add("numpy", "2.0.0", "py3-none-any")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "later"))
        written, failed = lock_files.make_missing(plan, folder, {"pytorch": index.url})
    assert (len(written), failed) == (1, [])
    assert f"{folder}/{name}.txt" in written[0]
    assert (folder / f"{name}.txt").read_text().startswith("numpy==2.0.0 ")
    found = with_locks(load_catalog(), folder).locks
    assert found
    assert f"{name}.txt" in found.files


def test_packages_of_the_users_own_are_part_of_the_environment(
    probed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    python = {"interpreters": {"3.11": "/usr/bin/python3.11"}, "default": "3.11"}
    probed, args = {**probed, "python": python}, {**ARGS, "request": {}, "locks": str(tmp_path)}
    before = deciding.decide(probed, args, ROLES)
    plan, component = before.plan, before.plan.components["tensorflow"]
    assert component
    assert before.facts["gpu_stack_lock_files"] == {"tensorflow": component.lock}
    of_all = tmp_path / lock_texts.of_all(component.lock)
    of_all.write_text(lock_texts.merge({"3.11": f"tensorflow=={component.version}\n"}))
    of_own = deciding.decide(probed, args, ROLES)
    assert of_own.plan == plan, "the name of the lock is that of its Python"
    assert of_own.facts["gpu_stack_lock_files"] == {"tensorflow": str(of_all)}
    (tmp_path / component.lock).write_text(f"tensorflow=={component.version} \\\n    --hash=sha256:{'0' * 64}\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("words\n")
    extra = {"tensorflow": str(requirements), "pytorch": str(tmp_path / "of nothing planned.txt")}
    with serve() as index:
        found, failed = lock_files.extend_planned(plan, tmp_path, extra, {"tensorflow": index.url})
        assert found == {}
        assert len(failed) == 1
        assert failed[0].startswith(
            f"gpu_stack_tensorflow_extra ({requirements}) cannot be added to {component.lock}: "
        )
        index.add("tensorflow", component.version, "py3-none-any")
        index.add("words", "1.0", "py3-none-any")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "later"))
        found, failed = lock_files.extend_planned(plan, tmp_path, extra, {"tensorflow": index.url})
    assert failed == []
    lock = found["tensorflow"].path
    assert "words==1.0" in lock.read_text()
    assert deciding.decide(probed, args, ROLES).facts["gpu_stack_lock_files"] == {
        "tensorflow": str(tmp_path / component.lock)
    }
    after = deciding.decide(probed, args, ROLES, found)
    assert after.facts["gpu_stack_lock_files"] == {"tensorflow": str(lock)}
    warnings = [warning.message for warning in after.preflight.warnings if warning.code == "extra-size-unknown"]
    assert len(warnings) == 1
    assert "words" in warnings[0]


ROOM = {path: {"free_mib": 10**6, "total_mib": 10**6, "mount": "/"} for path in (*MOUNTS, "/var/lib/gpuhost/cifar10")}
VAR_CACHE = {"/var/cache/gpuhost/uv": {"free_mib": 100, "total_mib": 10**6, "mount": "/var/cache"}}
SCRATCH = {"/scratch/uv": {"free_mib": 100, "total_mib": 10**6, "mount": "/scratch"}}
DATA = {"/scratch/data": {"free_mib": 100, "total_mib": 10**6, "mount": "/scratch"}}
USUAL = {"tensorflow_env_cache": "/var/cache/gpuhost/uv", "smoke_train_data_directory": "/var/lib/gpuhost/cifar10"}
TORCH = {"pytorch_env_cache": "/var/cache/gpuhost/uv"}


@pytest.mark.parametrize(
    ("values", "disk", "full"),
    [
        (USUAL, {}, []),
        (USUAL, SCRATCH, []),
        (USUAL, VAR_CACHE, ["/var/cache: TensorFlow"]),
        ({**USUAL, "tensorflow_env_cache": "/scratch/uv"}, SCRATCH, ["/scratch: TensorFlow"]),
        ({**USUAL, "tensorflow_env_cache": "/scratch/uv"}, {**SCRATCH, **VAR_CACHE}, ["/scratch: TensorFlow"]),
        ({**USUAL, "tensorflow_env_cache": "/srv/uv"}, {**VAR_CACHE, "/srv/uv": ROOM["/"]}, []),
        ({**USUAL, "smoke_train_data_directory": "/scratch/data"}, DATA, ["/scratch: checks and training"]),
        ({}, VAR_CACHE, ["/var/cache: TensorFlow"]),
    ],
    ids=[
        "room for all",
        "another file system is full",
        "the usual cache is full",
        "moved to a full file system",
        "both are full",
        "moved away from a full file system",
        "training data on a full file system",
        "no variables of the roles",
    ],
)
def test_the_disk_check_counts_what_roles_write_where_their_variables_say(
    probed: dict[str, Any], values: dict[str, Any], disk: dict[str, Any], full: list[str]
) -> None:
    """Of a cache that was moved to a larger disk, uv copies what it would link (ROCm/rocm-cli#160): both need space."""
    decision = deciding.decide(
        {**probed, "disk": {**ROOM, **disk}}, {**ARGS, "request": {"pytorch": "none"}}, Roles(values)
    )
    assert decision.plan.components["tensorflow"]
    assert on_full_file_systems(decision) == full


def test_each_framework_has_its_own_cache(probed: dict[str, Any]) -> None:
    disk = {**ROOM, **SCRATCH, **VAR_CACHE}
    values = {**USUAL, **TORCH, "tensorflow_env_cache": "/scratch/uv"}
    args = {**ARGS, "request": {"pytorch": "auto"}}
    decision = deciding.decide({**probed, "disk": disk}, args, Roles(values))
    assert on_full_file_systems(decision) == ["/scratch: TensorFlow", "/var/cache: PyTorch"]


def test_frameworks_alone_have_their_cache_beside_the_environments_or_where_it_was_moved(
    probed: dict[str, Any],
) -> None:
    args = {**ARGS, "request": {"scope": "frameworks", "pytorch": "none"}}
    user = {
        **probed,
        "uid": 1001,
        "may_write": {"/opt/gpuhost": True},
        "python": {"default": "3.11", "ensurepip": True},
    }
    for path, disk, full in (
        ("/opt/gpuhost/cache/uv", {"/opt/gpuhost/cache/uv": ROOM["/"], **VAR_CACHE, **SCRATCH}, []),
        ("/scratch/uv", SCRATCH, ["/scratch: TensorFlow"]),
    ):
        values = {"tensorflow_env_cache": path, "smoke_train_data_directory": "/opt/gpuhost/state/cifar10"}
        decision = deciding.decide(
            {**user, "disk": {**ROOM, **disk}},
            args,
            Roles(values),
        )
        assert on_full_file_systems(decision) == full


@pytest.mark.parametrize(
    ("values", "copies"),
    [
        ({}, ["extra"]),
        ({"tensorflow_env_keep_cache": True}, ["extra"]),
        ({"tensorflow_env_keep_cache": False}, ["TensorFlow", "extra"]),
        ({"tensorflow_env_keep_cache": "no"}, ["TensorFlow", "extra"]),
        ({"pytorch_env_keep_cache": False}, ["TensorFlow", "extra"]),
        ({"pytorch_env_keep_cache": False, "pytorch_env_cache": "/srv/uv"}, ["extra"]),
    ],
)
def test_the_disk_check_knows_whether_the_cache_of_packages_is_kept(
    probed: dict[str, Any], values: dict[str, Any], copies: list[str]
) -> None:
    """By the variables of the planned frameworks' roles that share the cache, where one environment is built again."""
    args = {**ARGS, "request": {"pytorch": "auto"}}
    plan = deciding.decide(probed, args, ROLES).plan
    installed = {
        name: {"version": part.version, "python": part.python}
        for name in ("tensorflow", "pytorch")
        if (part := plan.components.framework(name))
    }
    lock = lock_files.Extended(Path("lock.txt"), "0a1b2c3d", {"words": 2**20})
    room = {**ROOM, "/srv/uv": ROOM["/"], **VAR_CACHE}
    room["/var/cache/gpuhost/uv"] = {**room["/var/cache/gpuhost/uv"], "free_mib": 0}
    decision = deciding.decide(
        {**probed, "environments": installed, "disk": room},
        args,
        Roles({**USUAL, **TORCH, **values}),
        {"tensorflow": lock},
    )
    (problem,) = (p for p in decision.preflight.problems if p.code == "disk-full")
    assert [word for word in ("TensorFlow", "PyTorch", "extra") if word in problem.message] == copies


def test_every_fact_is_a_variable_of_the_playbooks(probed: dict[str, Any]) -> None:
    """Nothing is read from ansible_facts: a fact that has the name of a variable is injected over it, or warned of."""
    variables = yaml.safe_load((PROJECT / "playbooks/group_vars/all/facts.yml").read_text())
    for name in decide(probed):
        assert variables[name] == f"{{{{ __gpu_stack_of_this_run.decided.{name} }}}}"


@pytest.mark.parametrize(
    ("facts", "other_run", "reasons", "expected"),
    [
        ({}, "", {"packages": ["it is new"]}, "drift"),
        ({}, "", {}, "unchanged"),
        ({"pending": {"since": "2026-11-20T00:00:00Z"}}, "", {}, "pending"),
        ({}, "gpu_host.yml of another controller", {"packages": ["it is new"]}, "refused"),
        ({"gpus": []}, "", {"packages": ["it is new"]}, "refused"),
    ],
    ids=["drift", "nothing", "a change waits", "problems of the host", "no plan"],
)
def test_what_a_run_has_to_do_with_the_host(
    probed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    facts: dict[str, Any],
    other_run: str,
    reasons: dict[str, list[str]],
    expected: str,
) -> None:
    monkeypatch.setattr(deciding.drift, "drift", lambda *_given: reasons)
    decision = deciding.decide({**probed, **facts}, ARGS, ROLES, other_run=other_run)
    assert decision.state == expected


def test_every_part_is_a_role_or_packages_or_the_plan() -> None:
    roles = {path.name for path in (PROJECT / "roles").iterdir()}
    assert set(MANAGED) - roles == {"packages", "plan"}
    included = {name for entry in MANAGED.values() for name in entry.get("with", [])}
    assert included <= roles


def test_the_text_has_plan_diff_and_warnings(probed: dict[str, Any]) -> None:
    decision = deciding.decide(probed, ARGS, ROLES)
    findings = Preflight((), (PlanWarning("some-code", "Something to keep in mind"),))
    text = dataclasses.replace(decision, preflight=findings).text("gpu-01")
    assert text.startswith("gpu-01  debian-12: 1 x NVIDIA H200 (9.0)\n")
    version = decision.facts["gpu_stack_plan"]["components"]["driver"]["version"]
    (row,) = [line.split() for line in text.splitlines() if "NVIDIA driver" in line]
    assert row[:4] == ["+", "NVIDIA", "driver", version]
    assert "\nwarning  some-code: Something to keep in mind\n" in text


def test_a_damaged_host_is_not_said_to_match_the_plan(probed: dict[str, Any]) -> None:
    """The driver's packages are installed and a complete run is recorded; a file of them is missing, or none is."""
    args = {**ARGS, "request": dict.fromkeys(("cuda", "cudnn", "nccl", "tensorflow", "pytorch"), "none")}
    driver = deciding.decide(probed, args, ROLES).plan.components["driver"]
    assert driver
    named = [(package.name, package.version or "1") for package in (*driver.packages, *driver.pinning_packages)]
    installed = {**probed, "packages": {name: {"version": version} for name, version in named}}
    parts = deciding.decide(installed, args, ROLES).facts["gpu_stack_parts"]
    applied = {name: {"fingerprint": part["fingerprint"], "changed": []} for name, part in parts.items()}
    text = deciding.decide({**installed, "applied": applied}, args, ROLES).text("gpu-01")
    assert "\n  The host matches the plan: NVIDIA driver " in text
    applied["packages"]["changed"] = ["/usr/bin/nvidia-smi is missing"]
    text = deciding.decide({**installed, "applied": applied}, args, ROLES).text("gpu-01")
    assert "To apply, and why:\n    packages: /usr/bin/nvidia-smi is missing\n" in text
    assert "matches the plan" not in text


def test_damage_is_named_where_versions_change_as_well(probed: dict[str, Any]) -> None:
    """The bare host gets its packages, for which the plan does not list the parts."""
    damage = {"file /a": "file /a was x, is y"}
    applied = {"env_paths": {"fingerprint": "f", "damage": damage, "accepted": {"file /b": "file /b is new"}}}
    text = deciding.decide({**probed, "applied": applied}, ARGS, ROLES).text("gpu-01")
    assert "\n  Damaged, and repaired by the run: file /a was x, is y\n" in text
    assert "\n  Accepted damage: file /b is new\n" in text


@pytest.mark.parametrize(("factor", "is_slow"), [(1.0, True), (2.0, False)])
def test_what_is_slow_is_multiplied_by_the_timeout_factor(probed: dict[str, Any], factor: float, is_slow: bool) -> None:
    answer = {"path": "/usr/bin/nvidia-smi", "exit_code": 0, "message": "", "seconds": 25.0}
    gpus = [{"pci_address": gpu["pci_address"], "driver_version": "580.95.05"} for gpu in probed["gpus"]]
    found = {**probed, "driver": {**probed["driver"], "nvidia_smi": {**answer, "gpus": gpus}}}
    warnings = decide(found, timeout_factor=factor)["gpu_stack_preflight"]["warnings"]
    assert ("slow-gpu-query" in {warning["code"] for warning in warnings}) == is_slow


def test_the_text_of_a_refusing_host_has_its_problems(probed: dict[str, Any]) -> None:
    decision = deciding.decide({**probed, "uid": 1000}, ARGS, ROLES)
    text = decision.text("gpu-01")
    assert "problem  not-root: " in text
    assert not re.search(r"^  [+~-] ", text, re.MULTILINE)
    assert text.rstrip().splitlines()[-1].startswith("Refused: ")


RECORDED = ("verified", "requested", "verified_plan")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        # CUDA 13.0 stays, as `auto` keeps it.
        ({}, True),
        ({"cuda": "12.9", "tensorflow": "none"}, True),
        ({"cuda": "13.0", "tensorflow": "none", "leftovers": "remove"}, False),
    ],
    ids=["no longer given", "another value", "the same"],
)
def test_a_run_that_changes_what_was_verified_says_so(
    tmp_path: Path, probed: dict[str, Any], request_: dict[str, str], said: bool, snapshot: SnapshotAssertion
) -> None:
    """The record on the host is what the run before has left, whose values came with -e."""
    before = deciding.decide(probed, ARGS, ROLES)
    assert "request-changed" not in before.text("gpu-01"), "nothing was verified yet"
    state = tmp_path / "var/lib/gpuhost"
    state.mkdir(parents=True)
    store.write(str(state), store.VERIFIED, {"plan": before.facts["gpu_stack_plan"], "packages": {}, "evidence": {}})
    options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    again = {**probed, **{name: to_json(probe.probe(str(tmp_path), options))[name] for name in RECORDED}}
    text = deciding.decide(again, {**ARGS, "request": request_}, ROLES).text("gpu-01")
    told = re.findall(r"^warning  request-changed: .*(?:\n {9}.*)*", text, re.MULTILINE)
    assert len(told) == said
    assert not said or told == snapshot
    assert "gpu_stack_leftovers" not in text


def test_another_key_in_the_same_file_is_drift(probed: dict[str, Any]) -> None:
    def fingerprint(signing: SigningCertificate | None) -> str:
        decision = deciding.decide(probed, ARGS, ROLES, signing=signing)
        return str(decision.facts["gpu_stack_parts"]["nvidia_driver"]["fingerprint"])

    first, second = (SigningCertificate("/keys/lab.der", digit * 64) for digit in "ab")
    moved = SigningCertificate("/other/lab.der", "a" * 64)
    assert len({fingerprint(None), fingerprint(first), fingerprint(second)}) == 3
    assert fingerprint(moved) == fingerprint(first)


# A host that others set up ----------------------------------------------------------------------------------------

SET_UP: dict[str, Any] = {
    "packages": {
        "libnvidia-compute": {"version": "580.126.16-1", "status": "installed"},
        "cuda-toolkit-13-0": {"version": "13.0.2-1", "status": "installed"},
    },
    "driver": {
        "loaded": {"version": "580.126.16", "kernel_modules": "open"},
        "installed": {"version": "580.126.16", "package": "libnvidia-compute"},
        "nouveau_loaded": False,
        "nvidia_smi": None,
    },
    # What prevents a change, and nothing else.
    "package_manager": {"name": "apt", "locks": [], "broken": [], "interrupted": False},
    "repository_files": {"entries": [], "keys": {}},
    "gpu_processes": [{"pid": 7, "name": "train.py", "program": "python3", "computes": True, "devices": []}],
}


def on_a_host_of_others(probed: dict[str, Any], **changes: Any) -> deciding.Decision:
    args = {**ARGS, "request": {"tensorflow": "none"}, **changes}
    return deciding.decide({**probed, **SET_UP}, args, ROLES)


def test_adoption_changes_nothing_and_is_not_prevented_by_what_prevents_a_change(probed: dict[str, Any]) -> None:
    found = on_a_host_of_others(probed, request={"adopt": True, "tensorflow": "none"})
    assert found.plan.ok, found.plan.problems
    assert found.plan.kept_driver
    assert found.plan.components["cuda"], "with which a run would have parts to apply"
    assert (found.state, found.facts["gpu_stack_drift"], found.facts["gpu_stack_parts"]) == ("unchanged", {}, {})
    assert not found.diff.changes
    assert found.preflight.ok
    stays = "The host matches the plan: NVIDIA driver 580.126.16 (libnvidia-compute of others), CUDA toolkit 13.0.2."
    assert stays in " ".join(found.text("gpu-01").split())


def test_a_toolkit_of_a_run_installer_is_adopted_and_never_removed(probed: dict[str, Any]) -> None:
    """It would be in the way of a planned toolkit, and be removed with leftovers=remove."""
    toolkit = {"version": "13.0", "uninstaller": "/usr/local/cuda-13.0/bin/cuda-uninstaller"}
    host = {**probed, "cuda": {"installed": ["13.0"]}, "runfile": {"driver": None, "toolkits": [toolkit]}}
    asked = {"adopt": True, "tensorflow": "none"}
    for leftovers in ("refuse", "remove"):
        found = on_a_host_of_others(host, request={**asked, "leftovers": leftovers})
        assert found.plan.components["cuda"]
        assert (found.state, found.diff.leftovers.does, found.diff.changes) == ("unchanged", (), False)


@pytest.mark.parametrize(
    "fault", [{"uid": 1000}, {"newer_state": "verified.json has schema 99"}], ids=["user", "records"]
)
def test_what_keeps_a_host_from_being_recorded_prevents_its_adoption(
    probed: dict[str, Any], fault: dict[str, Any]
) -> None:
    found = on_a_host_of_others({**probed, **fault}, request={"adopt": True, "tensorflow": "none"})
    assert found.state == "refused"


@pytest.mark.parametrize(
    ("more", "is_taken"),
    [
        ({}, True),
        ({"requested": {"adopt": "true"}, "verified_plan": {"components": {}, "gpus": []}}, True),
        ({"requested": {}, "verified_plan": {"components": {}, "gpus": []}}, False),
        ({"applied": {"plan": {"fingerprint": "f", "changed": []}}}, False),
    ],
    ids=["nothing recorded", "adopted", "verified", "set up by gpuhost"],
)
def test_verify_takes_what_is_there_on_hosts_that_gpuhost_has_not_set_up(
    probed: dict[str, Any], more: dict[str, Any], is_taken: bool
) -> None:
    found = on_a_host_of_others({**probed, **more}, as_it_is=True)
    assert (found.plan.request["adopt"] == "true") is is_taken


def test_verify_compares_a_host_without_a_driver_with_its_plan(probed: dict[str, Any]) -> None:
    assert deciding.decide(probed, {**ARGS, "as_it_is": True}, ROLES).plan.request["adopt"] == "false"


def test_the_one_transaction_is_what_the_run_installs_with_its_own_options(probed: dict[str, Any]) -> None:
    """The parts that it leaves out are no change of what is to be on the host."""
    user = {"nvidia_repo_purged_packages": ["cuda-repo+local"], "nvidia_driver_apt_components": ["non-free", "contrib"]}
    roles = Roles({**ROLES.values, **user})
    run = {"accept_no_return": ["nvidia-driver-580"], "rollback": False, "state_directory": "/state"}
    whole = deciding.decide(probed, {**ARGS, **run}, roles).facts
    of_run = {"reinstall": [], "versions": [], "undo": False, "replaces": [r"cuda\-repo\+local"]}
    of_run |= {"accept_no_return": ["nvidia-driver-580"], "state_directory": "/state"}
    options = whole["gpu_stack_transaction"]["options"]
    assert {name: options[name] for name in of_run} == of_run
    assert whole["gpu_stack_transaction"]["apt_components"] == ["contrib", "non-free"]
    facts = deciding.decide(probed, {**ARGS, **run, "left_out": ["nccl"]}, roles).facts
    installed = set(facts["gpu_stack_transaction"]["options"]["packages"])
    left_out = set(options["packages"]) - installed
    assert left_out == set(whole["gpu_stack_role_inputs"]["nccl_packages"])
    assert facts["gpu_stack_parts"] == whole["gpu_stack_parts"]
