"""From a probe to the decision: the real probe of an empty root with a GPU, and the playbooks' own settings."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.action import stack_plan
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog, with_locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import LockFiles
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import PlanWarning
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.resolve import plan_for_probe
from syrupy.assertion import SnapshotAssertion

from tests.unit.ansible_runs import INTERPRETER, Done, run_playbook
from tests.unit.module_utils.real_apt import RealApt, needs_apt
from tests.unit.package_index import serve

PROJECT = Path(__file__).resolve().parents[3]
GROUP_VARS = PROJECT / "playbooks/group_vars/all"
MANAGED: dict[str, Any] = yaml.safe_load((GROUP_VARS / "managed.yml").read_text())
ARGS: dict[str, Any] = {
    "request": {"cuda": "13.0", "tensorflow": "none"},  # the newest CUDA may have no NCCL yet
    "own_kernel": False,
    "managed": MANAGED["gpu_stack_managed"],
    "transitions": MANAGED["gpu_stack_transitions"],
    "converge": "drift",
}
NO_GPU = {"gpu_stack_expect_gpus": 0, "gpu_stack_tensorflow": "none", "gpu_stack_pytorch": "none"}


@pytest.fixture
def probed(tmp_path: Path) -> dict[str, Any]:
    options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    found = probe.probe(str(tmp_path), options)
    gpu = {"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "class": "0302", "kernel_driver": None}
    return {**found, "gpus": [gpu], "distribution": {"id": "debian-12"}, "disk": None, "gpu_processes": []}


def role_variables(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
    """Replace Ansible's templating: some of the values that role_inputs.yml gives."""
    known = {
        "nvidia_driver_version": facts["gpu_stack_plan"]["components"]["driver"]["version"],
        "nvidia_driver_kernel_headers": [],
        "nvidia_driver_module_signing_key": "/keys/lab.key",
        "nvidia_driver_kernel_compilers": [],
        "nvidia_driver_replaces": facts["gpu_stack_diff"]["replaces"]["driver"],
        "nccl_version": (facts["gpu_stack_plan"]["components"]["nccl"] or {}).get("version"),
    }
    return {name: value for name, value in known.items() if name.startswith(prefixes)}


def decide(found: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return stack_plan.decide(found, {**ARGS, **changes}, role_variables).facts


def test_all_parts_of_a_bare_host_drift_and_none_of_a_converged_one(probed: dict[str, Any]) -> None:
    facts = decide(probed)
    assert facts["gpu_stack_plan"]["ok"], facts["gpu_stack_plan"]["problems"]
    assert facts["gpu_stack_plan"]["components"]["cuda"]
    expected = set(MANAGED["gpu_stack_managed"]) - {"tensorflow_env", "pytorch_env"}
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
    before = decide(probed)["gpu_stack_parts"]["nvidia_driver"]["fingerprint"]

    def other(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        found = role_variables(facts, prefixes)
        return {**found, "nvidia_driver_replaces": ["^nouveau$"]} if prefixes == ("nvidia_driver_",) else found

    assert stack_plan.decide(probed, ARGS, other).facts["gpu_stack_parts"]["nvidia_driver"]["fingerprint"] == before

    def desired(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        found = role_variables(facts, prefixes)
        return {**found, "nvidia_driver_persistence": False} if prefixes == ("nvidia_driver_",) else found

    assert stack_plan.decide(probed, ARGS, desired).facts["gpu_stack_parts"]["nvidia_driver"]["fingerprint"] != before


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

    def templated(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        planned = facts["gpu_stack_plan"]["components"]["driver"]["kernel_headers"]
        assert planned == [f"linux-headers-{name}" for name in kernels]
        values = {"nvidia_driver_kernel_headers": [*planned, *users]}
        return {name: values.get(name, value) for name, value in role_variables(facts, prefixes).items()}

    return stack_plan.decide({**probed, "kernel": kernel}, ARGS, templated).facts


def test_a_kernel_update_that_brought_its_headers_is_no_drift(probed: dict[str, Any]) -> None:
    before = with_kernels(probed, RUNNING)["gpu_stack_parts"]
    assert {"packages", "nvidia_driver", "plan"} <= set(before)
    assert with_kernels(probed, RUNNING, NEWER)["gpu_stack_parts"] == before
    # What the user adds to the plan's own is a variable like any other.
    changed = with_kernels(probed, RUNNING, users=("linux-headers-amd64",))["gpu_stack_parts"]
    assert {name for name in before if before[name] != changed[name]} == {"packages", "nvidia_driver"}


def test_a_kernel_without_its_headers_is_drift(probed: dict[str, Any]) -> None:
    """Even where the modules are not watched, as with nvidia_driver_load_module=false."""
    missing = f"linux-headers-{NEWER} is not installed"
    assert missing not in str(with_kernels(probed, RUNNING, NEWER)["gpu_stack_drift"])
    found = with_kernels(probed, RUNNING, NEWER, built_for=(RUNNING,))["gpu_stack_drift"]
    assert {name for name, reasons in found.items() if missing in reasons} == {"packages", "nvidia_driver", "plan"}


def test_what_pytorch_compiles_with_is_drift_only_where_it_is_missing(probed: dict[str, Any]) -> None:
    """A host from before these packages were planned does not apply the role for them alone."""
    own: list[list[str]] = []

    def decided(compilers: list[str], headers: list[str], scope: str = "host") -> dict[str, Any]:
        def templated(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
            pytorch = facts["gpu_stack_plan"]["components"]["pytorch"]
            names = [*pytorch["compiler_packages"], *pytorch["header_packages"]] if scope == "host" else []
            values = {**role_variables(facts, prefixes), "pytorch_env_build_packages": own[0] if own else names}
            return {name: value for name, value in values.items() if name.startswith(prefixes)}

        found = {**probed, "toolchain": {"c_compilers": compilers}}
        found["python"] = {**probed["python"], "interpreters": {"3.11": "/usr/bin/python3.11"}, "headers": headers}
        request = {**ARGS["request"], "pytorch": "auto"}
        return stack_plan.decide(found, {**ARGS, "request": request}, templated).facts

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
    assert drifts(decided([], [], scope="frameworks")) == {}  # which installs none, and warns
    parts = there["gpu_stack_parts"]
    assert decided([], [], scope="frameworks")["gpu_stack_parts"]["pytorch_env"] == parts["pytorch_env"]
    own.append(["gcc", "libc6-dev", "python3.11-dev", "ccache"])  # what the user adds is a variable like any other
    assert decided(["/usr/bin/gcc"], ["3.11"])["gpu_stack_parts"]["pytorch_env"] != parts["pytorch_env"]


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
        written, failed = stack_plan.lock_missing(plan, folder, {"pytorch": index.url})
        assert (written, len(failed)) == ([], 1)
        assert failed[0].startswith(f"{name} could not be locked: ")
        assert not (folder / f"{name}.txt").exists()
        index.add("torch", "2.10.0", "cp311-cp311-manylinux_2_28_x86_64")
        index.add("numpy", "2.0.0", "py3-none-any")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "later"))
        written, failed = stack_plan.lock_missing(plan, folder, {"pytorch": index.url})
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
    before = stack_plan.decide(probed, args, role_variables)
    plan, component = before.plan, before.plan.components.tensorflow
    assert component
    assert before.facts["gpu_stack_lock_files"] == {"tensorflow": component.lock}
    (tmp_path / component.lock).write_text(f"tensorflow=={component.version} \\\n    --hash=sha256:{'0' * 64}\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("words\n")
    extra = {"tensorflow": str(requirements), "pytorch": str(tmp_path / "of nothing planned.txt")}
    with serve() as index:
        found, failed = stack_plan.lock_extra(plan, tmp_path, extra, {"tensorflow": index.url})
        assert found == {}
        assert len(failed) == 1
        assert failed[0].startswith(
            f"gpu_stack_tensorflow_extra ({requirements}) cannot be added to {component.lock}: "
        )
        index.add("tensorflow", component.version, "py3-none-any")
        index.add("words", "1.0", "py3-none-any")
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "later"))
        found, failed = stack_plan.lock_extra(plan, tmp_path, extra, {"tensorflow": index.url})
    assert failed == []
    lock = found["tensorflow"].path
    assert "words==1.0" in lock.read_text()
    assert stack_plan.decide(probed, args, role_variables).facts["gpu_stack_lock_files"] == {
        "tensorflow": str(tmp_path / component.lock)
    }
    after = stack_plan.decide(probed, args, role_variables, found)
    assert after.facts["gpu_stack_lock_files"] == {"tensorflow": str(lock)}
    warnings = [warning.message for warning in after.preflight.warnings if warning.code == "extra-size-unknown"]
    assert len(warnings) == 1
    assert "words" in warnings[0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, True),
        ({"tensorflow_env_keep_cache": True, "pytorch_env_keep_cache": "no"}, True),
        ({"tensorflow_env_keep_cache": False}, False),
        ({"tensorflow_env_keep_cache": "no"}, False),
    ],
)
def test_the_disk_check_knows_whether_the_cache_of_packages_is_kept(
    probed: dict[str, Any], monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], expected: bool
) -> None:
    """By the variables of the planned frameworks' roles, which share the cache; only TensorFlow is planned here."""
    seen: list[bool] = []

    def check(*given: Any) -> Preflight:
        seen.append(given[3].keeps_cache)
        return Preflight((), ())

    def variables(facts: dict[str, Any], prefixes: tuple[str, ...]) -> dict[str, Any]:
        own = {name: value for name, value in values.items() if name.startswith(prefixes)}
        return {**role_variables(facts, prefixes), **own}

    monkeypatch.setattr(stack_plan.preflight, "preflight", check)
    decision = stack_plan.decide(probed, {**ARGS, "request": {"pytorch": "none"}}, variables)
    assert decision.plan.components.tensorflow
    assert seen == [expected]


def test_every_fact_is_a_variable_of_the_playbooks(probed: dict[str, Any]) -> None:
    """Nothing is read from ansible_facts: a fact that has the name of a variable is injected over it, or warned of."""
    variables = yaml.safe_load((PROJECT / "playbooks/group_vars/all/facts.yml").read_text())
    for name in decide(probed):
        assert variables[name].startswith(
            f"{{{{ __gpu_stack_planned.decided.{name} if __gpu_stack_planned is defined else "
        )


def test_every_part_is_a_role_or_packages_or_the_plan() -> None:
    roles = {path.name for path in (PROJECT / "roles").iterdir()}
    assert set(MANAGED["gpu_stack_managed"]) - roles == {"packages", "plan"}
    included = {name for entry in MANAGED["gpu_stack_managed"].values() for name in entry.get("with", [])}
    assert included <= roles


def test_the_text_has_plan_diff_and_warnings(probed: dict[str, Any]) -> None:
    decision = stack_plan.decide(probed, ARGS, role_variables)
    findings = Preflight((), (PlanWarning("some-code", "Something to keep in mind"),))
    text = dataclasses.replace(decision, preflight=findings).text("gpu-01")
    assert text.startswith("gpu-01, debian-12: 1 x NVIDIA H200 (9.0)\n")
    version = decision.facts["gpu_stack_plan"]["components"]["driver"]["version"]
    (row,) = [line.split() for line in text.splitlines() if line.startswith("NVIDIA driver")]
    assert row[2:5] == ["-", version, "install"]
    assert text.endswith("\nwarning  some-code: Something to keep in mind\n")


def test_a_damaged_host_is_not_said_to_match_the_plan(probed: dict[str, Any]) -> None:
    """The driver's packages are installed and a complete run is recorded; a file of them is missing, or none is."""
    args = {**ARGS, "request": dict.fromkeys(("cuda", "cudnn", "nccl", "tensorflow", "pytorch"), "none")}
    driver = stack_plan.decide(probed, args, role_variables).plan.components.driver
    assert driver
    named = [(*package.split("="), "1")[:2] for package in (*driver.packages, *driver.pinning_packages)]
    installed = {**probed, "packages": {name: {"version": version} for name, version in named}}
    parts = stack_plan.decide(installed, args, role_variables).facts["gpu_stack_parts"]
    applied = {name: {"fingerprint": part["fingerprint"], "changed": []} for name, part in parts.items()}
    text = stack_plan.decide({**installed, "applied": applied}, args, role_variables).text("gpu-01")
    assert "The host matches the plan.\n" in text
    applied["packages"]["changed"] = ["/usr/bin/nvidia-smi is missing"]
    text = stack_plan.decide({**installed, "applied": applied}, args, role_variables).text("gpu-01")
    assert "Parts to apply, and why:\n  packages: /usr/bin/nvidia-smi is missing\n" in text
    assert "matches the plan" not in text


def test_damage_is_named_where_versions_change_as_well(probed: dict[str, Any]) -> None:
    """The bare host gets its packages, for which the plan does not list the parts."""
    damage = {"file /a": "file /a was x, is y"}
    applied = {"env_paths": {"fingerprint": "f", "damage": damage, "accepted": {"file /b": "file /b is new"}}}
    text = stack_plan.decide({**probed, "applied": applied}, ARGS, role_variables).text("gpu-01")
    assert "Damaged, and repaired by the run: file /a was x, is y\n" in text
    assert "Accepted damage: file /b is new\n" in text


@pytest.mark.parametrize(("factor", "is_slow"), [(1.0, True), (2.0, False)])
def test_what_is_slow_is_multiplied_by_the_timeout_factor(probed: dict[str, Any], factor: float, is_slow: bool) -> None:
    answer = {"path": "/usr/bin/nvidia-smi", "exit_code": 0, "message": "", "seconds": 25.0}
    gpus = [{"pci_address": gpu["pci_address"], "driver_version": "580.95.05"} for gpu in probed["gpus"]]
    found = {**probed, "driver": {**probed["driver"], "nvidia_smi": {**answer, "gpus": gpus}}}
    warnings = decide(found, timeout_factor=factor)["gpu_stack_preflight"]["warnings"]
    assert ("slow-gpu-query" in {warning["code"] for warning in warnings}) == is_slow


def test_the_text_of_a_refusing_host_has_its_problems(probed: dict[str, Any]) -> None:
    decision = stack_plan.decide({**probed, "uid": 1000}, ARGS, role_variables)
    text = decision.text("gpu-01")
    assert "problem  not-root: " in text
    assert "ACTION" not in text
    assert text.rstrip().splitlines()[-1].startswith("Refused: ")


RECORDED = ("verified", "requested", "verified_plan")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        # CUDA 13.0 stays, as `auto` keeps it.
        ({}, ["since this host was verified, gpu_stack_tensorflow was none and is auto"]),
        ({"cuda": "12.9", "tensorflow": "none"}, ["gpu_stack_cuda was 13.0 and is 12.9"]),
        ({"cuda": "13.0", "tensorflow": "none", "leftovers": "remove"}, []),
    ],
    ids=["no longer given", "another value", "the same"],
)
def test_a_run_that_changes_what_was_verified_says_so(
    tmp_path: Path, probed: dict[str, Any], request_: dict[str, str], said: list[str]
) -> None:
    """The record on the host is what the run before has left, whose values came with -e."""
    before = stack_plan.decide(probed, ARGS, role_variables)
    assert "request-changed" not in before.text("gpu-01"), "nothing was verified yet"
    state = tmp_path / "var/lib/gpuhost"
    state.mkdir(parents=True)
    store.write(str(state), store.VERIFIED, {"plan": before.facts["gpu_stack_plan"], "packages": {}, "evidence": {}})
    options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    again = {**probed, **{name: probe.probe(str(tmp_path), options)[name] for name in RECORDED}}
    text = stack_plan.decide(again, {**ARGS, "request": request_}, role_variables).text("gpu-01")
    assert ("request-changed: since this host was verified, " in text) == bool(said)
    for sentence in said:
        assert sentence in text
    assert "gpu_stack_leftovers" not in text


# Under ansible-playbook, on this machine --------------------------------------------------------------------------


def run(tmp_path: Path, *words: str, **settings: str) -> Done:
    options = ("-i", "inventories/local", "-e", "ansible_become=false", *INTERPRETER)
    return run_playbook(PROJECT, "playbooks/plan.yml", *options, *words, GPUHOST_REPORTS=str(tmp_path), **settings)


def test_a_misspelt_variable_is_refused_before_the_probe(tmp_path: Path) -> None:
    answer = run(tmp_path, "-e", "gpu_stack_cudda=13.2")
    assert answer.returncode == 2
    assert "gpu_stack_cudda: no such variable; did you mean gpu_stack_cuda?" in answer.stdout
    assert not list(tmp_path.glob("*/*/probe.json"))


@pytest.mark.parametrize("words", [("--tags", "cuda"), ("--skip-tags", "verify,train")], ids=["tags", "skip-tags"])
def test_a_tag_that_nothing_has_is_refused(tmp_path: Path, words: tuple[str, str]) -> None:
    answer = run(tmp_path, *words)
    assert answer.returncode == 2
    wrong = words[1].split(",")[-1]
    assert f"{wrong}: no such tag. Known are preflight, verify, smoke_train, record, report, packages" in answer.stdout


def test_every_tag_of_the_playbooks_is_known() -> None:
    found: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            found.update(value.get("tags", []))
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
            collect(item)

    steps = ["_plan", "_preflight", "_provision", "_verify", "_smoke_train", "_record_verified"]
    for path in [*(PROJECT / "playbooks/tasks").glob("*.yml"), *(PROJECT / f"playbooks/{s}.yml" for s in steps)]:
        collect(yaml.safe_load(path.read_text()))
    assert len(found) > 10
    known = [*stack_plan.STEP_TAGS, *MANAGED["gpu_stack_managed"]]
    assert stack_plan.unknown_tags(found, known, ["gpuhost.stack.gpu_host"]) == []


def test_a_users_own_playbook_may_have_tags_of_its_own(tmp_path: Path) -> None:
    assert stack_plan.unknown_tags(["web"], [], [str(PROJECT / "playbooks/plan.yml")]) == ["web"]
    assert stack_plan.unknown_tags(["web"], [], ["gpuhost.stack.gpu_host"]) == ["web"]
    assert stack_plan.unknown_tags(["web"], [], [str(tmp_path / "site.yml")]) == []


@pytest.mark.parametrize("name", ["gpu_stack_cuda", "gpu_stack_reboot"])
def test_a_value_with_a_misspelt_variable_is_refused_and_not_replaced_by_the_default(tmp_path: Path, name: str) -> None:
    answer = run(tmp_path, "-e", f"{name}={{{{ no_such_variable }}}}")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    output = " ".join(answer.stdout.split())
    assert f"{name}: " in output
    assert "'no_such_variable' is undefined" in output
    assert not list(tmp_path.glob("*/*/plan.json"))


def test_mistakes_in_waivers_are_refused_before_the_probe(tmp_path: Path) -> None:
    waivers = [
        {"check": "gpu.pcie_widht", "until": "soon"},
        {"check": "env.sudo", "reason": "x", "until": "2000-01-01"},
    ]
    answer = run(tmp_path, "-e", json.dumps({"gpu_stack_waivers": waivers}))
    assert answer.returncode == 2
    output = " ".join(answer.stdout.split())
    for mistake in ("did you mean gpu.pcie_width?", "no reason", "until is 'soon'", "nothing was changed"):
        assert mistake in output
    assert not list(tmp_path.glob("*/*/probe.json"))


@pytest.mark.parametrize("value", ["ignore"])
def test_unknown_is_fail_or_warn(tmp_path: Path, value: str) -> None:
    answer = run(tmp_path, "-e", f"gpu_stack_unknown={value}")
    assert answer.returncode == 2
    assert f"gpu_stack_unknown is '{value}'; expected one of fail, warn" in " ".join(answer.stdout.split())


def test_a_signing_key_that_cannot_be_used_is_refused_before_the_probe(tmp_path: Path) -> None:
    answer = run(tmp_path, "-e", f"gpu_stack_module_signing_key={tmp_path}/missing.key")
    assert answer.returncode == 2
    output = " ".join(answer.stdout.split())
    assert "gpu_stack_module_signing_key is" in output
    assert "missing.key, which cannot be read on the controller" in output
    assert "gpu_stack_module_signing_certificate is not set; expected the path of a file" in output
    keys = []
    for name in ("one", "two"):
        made = ["-keyout", f"{tmp_path}/{name}.key", "-out", f"{tmp_path}/{name}.pem", "-subj", f"/CN={name}"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True
        )
        keys.append(tmp_path / f"{name}.key")
    pair = {"gpu_stack_module_signing_key": str(keys[1]), "gpu_stack_module_signing_certificate": f"{tmp_path}/one.pem"}
    answer = run(tmp_path, "-e", json.dumps(pair))
    assert answer.returncode == 2
    assert "one.pem (CN=one) belongs to another key" in " ".join(answer.stdout.split())
    assert not list(tmp_path.glob("*/*/probe.json"))


def test_an_encrypted_signing_key_is_read_and_in_no_evidence(tmp_path: Path) -> None:
    key, certificate, password = tmp_path / "k.key", tmp_path / "k.pem", tmp_path / "password"
    made = ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=lab"]
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True)
    secret = key.read_text().splitlines()[3]
    password.write_text("vault")
    vault = [PROJECT / ".venv/bin/ansible-vault", "encrypt", "--vault-password-file", password, key]
    subprocess.run(vault, check=True, capture_output=True)
    pair = {"gpu_stack_module_signing_key": str(key), "gpu_stack_module_signing_certificate": str(certificate)}
    answer = run(tmp_path / "reports", "-e", json.dumps({**pair, **NO_GPU}), "--vault-password-file", str(password))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    texts = [path.read_text() for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert texts
    assert not any(secret in text for text in [*texts, answer.stdout, answer.stderr])


def test_another_key_in_the_same_file_is_drift(probed: dict[str, Any]) -> None:
    def fingerprint(signing: SigningCertificate | None) -> str:
        decision = stack_plan.decide(probed, ARGS, role_variables, signing=signing)
        return str(decision.facts["gpu_stack_parts"]["nvidia_driver"]["fingerprint"])

    first, second = (SigningCertificate("/keys/lab.der", digit * 64) for digit in "ab")
    moved = SigningCertificate("/other/lab.der", "a" * 64)
    assert len({fingerprint(None), fingerprint(first), fingerprint(second)}) == 3
    assert fingerprint(moved) == fingerprint(first)


def test_expired_waiver_is_a_warning(tmp_path: Path) -> None:
    waiver = {"check": "env.sudo", "reason": "x", "until": "2000-01-01"}
    answer = run(tmp_path, "-e", json.dumps({"gpu_stack_waivers": [waiver], **NO_GPU}))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    warning = "the waiver of env.sudo expired on 2000-01-01 and waives nothing"
    assert warning in " ".join((answer.stdout + answer.stderr).split())


def test_a_host_without_a_plan_is_an_error_and_has_no_actions(tmp_path: Path) -> None:
    answer = run(tmp_path, "-e", "gpu_stack_cuda=1.0")
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "problem  unknown-version: there is no CUDA toolkit 1.0" in answer.stdout
    assert "No plan for this host" in answer.stdout
    assert "COMPONENT" not in answer.stdout


def test_a_version_of_a_role_that_is_not_the_plans_is_refused(tmp_path: Path) -> None:
    """The plan promises another one, whose packages are installed."""
    asked = {**NO_GPU, "gpu_stack_cuda": "13.0"}
    other = {"cuda_toolkit_version": "12.9", "env_paths_cuda_home": "/usr/local/cuda-12.9"}
    answer = run(tmp_path, "-e", json.dumps({**asked, **other}))
    assert answer.returncode == 2, answer.stdout + answer.stderr
    output = " ".join(answer.stdout.split())
    assert (
        "cuda_toolkit_version is '12.9', and the plan has CUDA toolkit 13.0.3; expected gpu_stack_cuda to ask for it,"
        in output
    )
    assert (
        "env_paths_cuda_home is '/usr/local/cuda-12.9', and the plan has CUDA toolkit 13.0 in /usr/local/cuda-13.0;"
        in output
    )
    assert run(tmp_path, "-e", json.dumps({**asked, "cuda_toolkit_version": "13.0"})).returncode == 0


@needs_apt
def test_a_host_whose_packages_of_others_are_broken_is_refused_before_the_change(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """As in NVIDIA/nvidia-docker#234, by an apt that works below a root of its own."""
    host = RealApt(tmp_path / "host")
    host.unpacked(host.build("nvidia-docker", {}, "1.0.1-1", depends="sysv-rc | file-rc"))
    host.unpacked(host.build("slurm-gpu-plugin", {}, "1", depends="nvidia-docker"))
    before, asked = host.shown(), json.dumps({**NO_GPU, "gpu_stack_cuda": "13.0"})

    def broken(folder: str) -> list[str]:
        run(tmp_path / folder, "-e", asked, APT_CONFIG=str(host.settings))
        (kept,) = (path for path in tmp_path.glob(f"{folder}/*/*/preflight.json") if "latest" not in path.parts)
        problems = json.loads(kept.read_text())["problems"]
        return [problem["message"] for problem in problems if problem["code"] == "packages-broken"]

    assert broken("refused") == snapshot
    assert host.shown() == before
    assert host.do("dpkg", "--purge", "slurm-gpu-plugin", "nvidia-docker").returncode == 0
    assert broken("again") == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The evidence of two runs with one fact cache, by the requested CUDA; each prints its plan or problems once."""
    folder, found = tmp_path_factory.mktemp("runs"), {}
    cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(folder / "cache")}
    for cuda in ("13.0", "12.9"):
        answer = run(folder / cuda, "-e", json.dumps({"gpu_stack_cuda": cuda, **NO_GPU}), **cache)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert answer.stdout.count("\nlocalhost, ") == 1
        assert answer.stdout.count("\nCOMPONENT ") == 1
        (kept,) = (path.parent for path in (folder / cuda).glob("*/*/plan.json"))
        found[cuda] = {path.stem: json.loads(path.read_text()) for path in kept.glob("*.json")}
    cached = [json.loads(path.read_text()) for path in (folder / "cache").glob("*localhost")]
    assert [name for facts in cached for name in facts if "gpu_stack" in name] == []
    return found


@pytest.mark.parametrize("cuda", ["13.0", "12.9"])
def test_what_is_decided_reaches_the_plays_and_the_evidence(runs: dict[str, dict[str, Any]], cuda: str) -> None:
    kept = runs[cuda]
    assert set(kept) == {"probe", "plan", "diff", "drift", "preflight"}
    assert kept["plan"]["ok"] is True
    assert kept["plan"]["components"]["cuda"]["version"] == cuda
    (row,) = (row for row in kept["diff"]["components"] if row["component"] == "cuda")
    assert row["planned"].startswith(f"{cuda}.")
    assert "cuda_toolkit" in kept["drift"]


def test_each_run_has_its_own_plan(runs: dict[str, dict[str, Any]]) -> None:
    assert {cuda: kept["plan"]["request"]["cuda"] for cuda, kept in runs.items()} == {"13.0": "13.0", "12.9": "12.9"}


@pytest.mark.parametrize("injected", ["True", "False"])
def test_a_plan_that_an_earlier_release_cached_as_fact_is_never_used(tmp_path: Path, injected: str) -> None:
    """Injected, it would take precedence over the plan of this run."""
    (tmp_path / "cache").mkdir()
    facts = json.dumps({"gpu_stack_plan": {"ok": False}})
    (tmp_path / "cache/s1_localhost").write_text(json.dumps({"__payload__": facts}))
    cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "cache")}
    answer = run(tmp_path, "-e", json.dumps(NO_GPU), **cache, ANSIBLE_INJECT_FACT_VARS=injected)
    refusal = "the fact cache has gpu_stack_plan of an earlier release"
    if injected == "True":
        assert answer.returncode == 2, answer.stdout + answer.stderr
        assert refusal in " ".join(answer.stdout.split())
        assert "--flush-cache" in answer.stdout
    else:
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert refusal not in answer.stdout
