"""With which frameworks a run trains: again, not again, later, or not at all."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import Check
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_from_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.evidence import TrainingResult, VerifyEvidence
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification.training import (
    TrainingOptions,
    hardware,
    stack_fingerprint,
    training_frameworks,
    training_records,
    training_refusal,
    trainings,
)

from tests.unit.plugin_utils.planning.planning_cases import PLANNED, planned

WHEN_NEEDED = TrainingOptions(datetime(2026, 11, 20, tzinfo=UTC))
TRAINED, LATER = "2026-11-01T12:00:00Z", datetime(2026, 11, 20, tzinfo=UTC)
PROBE: dict[str, Any] = {
    "gpus": [
        {"pci_id": "10de:2335", "pci_address": "0000:06:00.0"},
        {"pci_id": "10de:2335", "pci_address": "0000:05:00.0"},
    ],
    "driver": {
        "loaded": {"version": "595.71.05", "kernel_modules": "open"},
        "nvidia_smi": {
            "gpus": [
                {"pci_address": "0000:05:00.0", "uuid": "GPU-a", "driver_version": "595.71.05"},
                {"pci_address": "0000:06:00.0", "uuid": "GPU-b", "driver_version": "595.71.05"},
            ]
        },
    },
}
RESULT: dict[str, Any] = {
    "framework": "tensorflow", "status": "pass", "version": "2.21.0", "replicas": 2, "images_per_second": 555.3,
    "loss": {"first": 2.4, "last": 1.1, "history": [2.4, 1.1]}, "model": {"name": "ResNet-8"}, "monitor": {"gpus": []},
    "checks": [{"id": "replicas", "status": "pass", "found": "2"}],
}  # fmt: skip


def locked_plan(lock: str) -> Plan:
    """Return a plan with TensorFlow of this lock file."""
    components = {"tensorflow": {**PLANNED["components"]["tensorflow"], "lock": lock}}
    return plan_from_json({**PLANNED, "components": components})


PLAN = planned("driver", "tensorflow")


def host(probe: dict[str, Any] = PROBE, **more: Any) -> Probe:
    return Probe.from_json({**probe, **more})


def verified(trained: Plan = PLAN, probe: dict[str, Any] = PROBE, **changes: Any) -> dict[str, Any]:
    """Return what the probe reads on a host that was verified with a training of this plan on these GPUs."""
    result = TrainingResult.from_json(RESULT)
    record = to_json(training_records(trained, host(probe), {}, [result], TRAINED)["tensorflow"])
    return {"at": TRAINED, "stack": stack_fingerprint(trained), "trainings": {"tensorflow": {**record, **changes}}}


def action(
    host: Probe, request: TrainingOptions | None = None, changed: bool = False, jobs: str = ""
) -> tuple[str, str]:
    found = trainings(PLAN, host, request or TrainingOptions(LATER), changed=changed, jobs=jobs)["tensorflow"]
    return found.action, found.reason


@pytest.mark.parametrize(
    ("names", "requested", "expected"),
    [
        (["driver", "tensorflow"], None, ["tensorflow"]),
        (["pytorch", "tensorflow"], None, ["tensorflow", "pytorch"]),
        (["driver"], None, []),
        (["pytorch", "tensorflow"], "pytorch", ["pytorch"]),
    ],
)
def test_training_uses_the_planned_frameworks_or_the_requested_one(names, requested, expected):
    assert training_frameworks(planned(*names), requested) == expected


@pytest.mark.parametrize("names", [["tensorflow"], []], ids=["another", "none"])
def test_a_framework_that_is_not_planned_is_refused(names, snapshot):
    assert training_refusal(planned(*names), "pytorch") == snapshot


@pytest.mark.parametrize("requested", [None, "", "tensorflow"])
def test_a_planned_framework_is_not_refused(requested):
    assert training_refusal(planned("tensorflow"), requested) == ""


# Reused or not ----------------------------------------------------------------------------------------------------


def test_a_training_of_the_same_stack_on_the_same_gpus_is_reused_with_its_date_and_figures():
    found = trainings(PLAN, host(verified=verified()), TrainingOptions(LATER), changed=False)["tensorflow"]
    assert found.action == "reused"
    assert found.result is not None
    assert found.result["finished"] == TRAINED
    assert (found.result["status"], found.result["framework"]) == ("reused", "tensorflow")
    assert (found.result["images_per_second"], found.result["version"]) == (555.3, "2.21.0")
    assert found.result["loss"] == {"first": 2.4, "last": 1.1}
    assert "monitor" not in found.result
    (check,) = found.result["checks"]
    assert (check["id"], check["status"]) == ("training", "reused")
    assert TRAINED in check["found"]
    assert TRAINED in check["reason"]


OTHER_GPU = {**PROBE["driver"]["nvidia_smi"]["gpus"][1], "uuid": "GPU-c"}
SMI = {"gpus": [PROBE["driver"]["nvidia_smi"]["gpus"][0], OTHER_GPU]}


@pytest.mark.parametrize(
    "record",
    [
        None,
        {},  # of an earlier version
        verified(status="fail"),
        verified(planned("driver", "tensorflow", "nccl")),
        verified(probe={**PROBE, "gpus": PROBE["gpus"][:1]}),
        verified(probe={**PROBE, "driver": {**PROBE["driver"], "nvidia_smi": SMI}}),
        verified(probe={**PROBE, "driver": {**PROBE["driver"], "loaded": {"version": "595.1"}}}),
        verified(finished="2026-10-20T23:59:59Z"),
        verified(finished="2026-11-20T00:00:01Z"),  # a clock was wrong
        verified(finished="yesterday"),
    ],
    ids=[
        "no record",
        "of an earlier version",
        "failed",
        "another stack",
        "fewer GPUs",
        "another GPU",
        "another driver",
        "too old",
        "of the future",
        "no date",
    ],
)
def test_a_training_is_repeated_if_its_evidence_does_not_serve(record, snapshot):
    found, reason = action(host(verified=record))
    assert found == "train"
    assert reason == snapshot


def test_evidence_serves_up_to_the_maximum_age():
    record = host(verified=verified(finished="2026-10-21T00:00:00Z"))  # 30 days
    assert action(record)[0] == "reused"
    assert action(record, TrainingOptions(LATER, max_age=29.9))[0] == "train"
    assert action(record, TrainingOptions(LATER, max_age=0))[0] == "train"


def test_a_change_is_trained_on_in_this_run_and_while_it_is_pending():
    assert action(host(verified=verified()), changed=True)[0] == "train"
    assert action(host(verified=verified(), pending={"since": TRAINED}))[0] == "train"


def test_a_request_trains_with_what_it_names():
    both = planned("driver", "tensorflow", "pytorch")
    record = host(verified=verified(both))
    always = TrainingOptions(LATER, always=True)
    assert action(host(verified=verified()), always) == ("train", "it was requested")
    found = {name: entry.action for name, entry in trainings(both, record, always, changed=False).items()}
    assert found == {"tensorflow": "train", "pytorch": "train"}
    only = TrainingOptions(LATER, "pytorch", always=True)
    found = {name: entry.action for name, entry in trainings(both, record, only, changed=False).items()}
    assert found == {"tensorflow": "reused", "pytorch": "train"}
    found = {name: entry.action for name, entry in trainings(both, record, only, changed=True).items()}
    assert found == {"tensorflow": "left out", "pytorch": "train"}


def test_nothing_is_trained_beside_a_job():
    jobs = "4242 (python3)"
    found = trainings(PLAN, host(), TrainingOptions(LATER, always=True), changed=True, jobs=jobs)["tensorflow"]
    assert (found.action, found.reason) == ("deferred", "programs use the GPUs: 4242 (python3)")
    assert found.result is not None
    assert (found.result["status"], found.result["checks"][0]["status"]) == ("deferred", "deferred")
    assert action(host(verified=verified()), jobs=jobs)[0] == "reused"


@pytest.mark.parametrize(("setting", "expected"), [("MIG is enabled on GPU 0", "skip"), (None, "train")])
def test_nothing_is_trained_where_mig_hides_gpus(setting: str | None, expected: str) -> None:
    """A check that is skipped for another reason, such as a simulated driver, hides nothing."""
    verify = VerifyEvidence(checks=(Check("cuda.devices", "skip", reason="-", setting=setting),))
    found = trainings(PLAN, host(), TrainingOptions(LATER), changed=True, verify=verify)["tensorflow"]
    assert found.action == expected
    if found.result:
        assert (found.result["status"], found.result["checks"]) == (
            "skip",
            [{"id": "training", "status": "skip", "reason": setting}],
        )


def test_a_training_deferred_beside_evidence_that_proves_nothing_any_more_says_so():
    def expired(facts: Probe, request: TrainingOptions = WHEN_NEEDED, changed: bool = False) -> str:
        found = trainings(PLAN, facts, request, changed=changed, jobs="4242 (python3)")["tensorflow"]
        assert found.action == "deferred"
        assert found.result is not None
        assert found.result["expired"] == found.expired
        assert found.expired in found.reason
        return found.expired

    recorded, always = host(verified=verified()), TrainingOptions(LATER, always=True)
    assert expired(recorded, always) == ""  # it was asked for, beside evidence that holds
    assert expired(recorded, TrainingOptions(LATER, max_age=1)).startswith(
        f"the last training, of {TRAINED}, is not of the"
    )
    other = dataclasses.replace(recorded, gpus=())
    assert expired(other) == f"the GPUs or the driver have changed since {TRAINED}"
    # What waits for idle GPUs anyway: a change, and a first verification.
    assert expired(other, changed=True) == ""
    assert expired(dataclasses.replace(host(verified=verified(), pending={"since": TRAINED}), gpus=())) == ""
    assert expired(host()) == ""


@pytest.mark.parametrize("value", ["", "a month", None, "-1", "nan", "inf", "1e12"])
def test_a_maximum_age_must_be_a_number(value):
    with pytest.raises(ValueError, match="smoke_train_max_age is"):
        TrainingOptions.from_values("2026-11-20T00:00:00Z", "", "auto", value)


def test_the_mode_is_auto_or_always():
    assert TrainingOptions.from_values("2026-11-20T00:00:00Z", "", "always", "7") == TrainingOptions(
        LATER, "", True, 7.0
    )
    with pytest.raises(ValueError, match="gpu_stack_smoke_train is 'yes', expected auto or always"):
        TrainingOptions.from_values("2026-11-20T00:00:00Z", "", "yes", 30)


# What evidence belongs to ---------------------------------------------------------------------------------------


def test_the_content_of_a_lock_is_part_of_the_stack(tmp_path: Path) -> None:
    lock = tmp_path / "roles/tensorflow_env/files/tensorflow-2.21.0-py3.11.txt"
    lock.parent.mkdir(parents=True)
    locked = locked_plan("tensorflow-2.21.0-py3.11.txt")
    lock.write_text("numpy==2.0\n")
    before = stack_fingerprint(locked, tmp_path)
    assert stack_fingerprint(locked, tmp_path) == before
    lock.write_text("numpy==2.1\n")
    assert stack_fingerprint(locked, tmp_path) != before
    assert stack_fingerprint(locked_plan("a-users-own.txt"), tmp_path) not in (before, "")
    lock.unlink()
    of_all = lock_texts.merge({"3.11": "numpy==2.0\n", "3.12": "numpy==2.1\n"})
    (lock.parent / "tensorflow-2.21.0-py3.txt").write_text(of_all)
    assert stack_fingerprint(locked, tmp_path) == before, "as when the lock had a file of its own"


def test_the_fingerprint_of_a_plan_is_the_one_on_record(tmp_path: Path) -> None:
    """Verified hosts have it in verified.json: with another one, all of them would train again."""
    compiles = {"compiler_packages": ["gcc", "libc6-dev"], "header_packages": ["python3.11-dev"]}  # follow the host
    pytorch = {**PLANNED["components"]["pytorch"], **compiles}
    recorded = plan_from_json({**PLANNED, "components": {**PLANNED["components"], "pytorch": pytorch}})
    less = {**PLANNED, "components": {**PLANNED["components"], "nccl": None, "pytorch": None}}
    assert stack_fingerprint(plan_from_json(less), tmp_path) == (
        "e1fa947d127681fe4adbc059d22d3e823cf5cade26cd4f3a3e7784a75a39f9d9"
    )
    assert stack_fingerprint(recorded, tmp_path) == "da072704d9b5894747498941fb2408b39fed76fce999ca40b2fb379c624b41a6"
    for framework in ("tensorflow", "pytorch"):
        lock = tmp_path / f"roles/{framework}_env/files" / PLANNED["components"][framework]["lock"]
        lock.parent.mkdir(parents=True)
        lock.write_text(f"{framework}==1 --hash=sha256:0\n")
    assert stack_fingerprint(recorded, tmp_path) == "66e8f0b238c3b0325e9ee24584b800f2f2caa4563167c8f7e3d905d97fe5ad45"


def test_the_hardware_has_each_gpu_and_the_driver_in_use():
    assert hardware(host()) == {
        "gpus": ["0000:05:00.0 10de:2335 GPU-a", "0000:06:00.0 10de:2335 GPU-b"],
        "driver": "595.71.05",
    }
    without_module = {**PROBE, "driver": {**PROBE["driver"], "loaded": None}}
    assert hardware(host(without_module)) == hardware(host())  # as nvidia-smi reports it
    assert hardware(host({"gpus": PROBE["gpus"]}))["gpus"] == ["0000:05:00.0 10de:2335", "0000:06:00.0 10de:2335"]


def test_a_reused_training_keeps_its_record():
    earlier = host(verified=verified())
    records_now = training_records(PLAN, earlier, {"tensorflow": "reused"}, [], "2026-11-20T00:00:00Z")
    assert to_json(records_now) == verified()["trainings"]
    assert training_records(PLAN, earlier, {"tensorflow": "left out"}, [], "2026-11-20T00:00:00Z") == {}


def test_it_trains_on_none_of_the_gpus_that_are_to_be_ignored() -> None:
    listed = [{**gpu, "index": number} for number, gpu in enumerate(PROBE["driver"]["nvidia_smi"]["gpus"])]
    probe = host(driver={**PROBE["driver"], "nvidia_smi": {"gpus": listed}})
    ours = dataclasses.replace(PLAN, request=PLAN.request.but(ignore_gpus="0000:05:00.0"))
    assert trainings(ours, probe, WHEN_NEEDED, changed=True)["tensorflow"].gpus == (1,)
    assert trainings(PLAN, probe, WHEN_NEEDED, changed=True)["tensorflow"].gpus == ()
