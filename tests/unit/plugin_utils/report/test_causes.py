"""The table of damage and of the checks that it fails, against the faults of the matrix; what known messages mean."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.kinds import KINDS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import causes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.evidence import HostEvidence

from tests.unit.matrix.faults import FAULTS
from tests.unit.plugin_utils.report.report_cases import PROBE, WITH_PYTORCH, evidence

ALL = [spec.id for group in verify.GROUPS.values() for spec in group.CHECKS]
TREE = "files of /opt/gpuhost/environments/"
# Damage, by part and name, and the faults of the matrix that it makes.
DAMAGE = {
    ("packages", "files of nvidia-driver-cuda=595.71.05-1"): ("library-missing", "other-driver"),
    ("packages", "files of nvidia-kernel-open-dkms=595.71.05-1"): ("driver-not-loaded", "module-deleted"),
    ("packages", "package nvidia-fabricmanager"): ("fabric-manager-outdated", "fabric-manager-without-package"),
    ("packages", "files of cuda-nvcc-13-2=13.2.78-1"): ("other-toolkit",),
    ("packages", "content of cuda-nvcc-13-2"): ("other-toolkit",),
    ("packages", "files of libcudnn9-cuda-13=9.28.0.42-1"): ("header-missing", "other-cudnn", "cudnn-broken"),
    ("packages", "files of libnccl2=2.32.3-1+cuda13.2"): ("library-file-missing", "nccl-broken"),
    ("packages", "package libnccl2"): ("package-missing", "package-not-held"),
    ("nvidia_driver", "NVIDIA modules of kernel 6.1.0-56-amd64"): ("driver-not-loaded", "module-deleted"),
    ("nvidia_driver", "blacklist in /etc/modprobe.d/no-gpu.conf"): ("driver-blacklisted",),
    ("nvidia_driver", "nouveau"): ("nouveau-loaded", "nouveau-bound"),
    ("nvidia_driver", "service nvidia-fabricmanager"): ("fabric-manager-stopped", "system-not-ready"),
    ("cuda_toolkit", "link of the alternative cuda"): ("unit-path",),
    ("env_paths", "file /etc/profile.d/gpuhost-cuda.sh"): ("profile-missing",),
    ("env_paths", "file /usr/local/bin/nvcc"): ("link-missing",),
    ("env_paths", "LD_LIBRARY_PATH in /etc/environment"): ("shadowed-libraries", "stub-in-front"),
    ("tensorflow_env", TREE + "tensorflow-2.21.0"): ("tensorflow-broken", "tensorflow-library-missing"),
    ("pytorch_env", TREE + "pytorch-2.11.0"): ("other-pytorch", "pytorch-cudnn"),
}
OF_THE_GPUS = ("dram-errors", "link-down", "xid-nvlink", "half-the-lanes", "mig-pending")


def damaged(part: str, name: str) -> HostEvidence:
    applied = {part: {"damage": {name: f"{name} was x, is y"}}}
    return HostEvidence.from_json(evidence(plan=WITH_PYTORCH, probe={**PROBE, "applied": applied}, probe_after=None))


def symptoms(found: HostEvidence, fault: str) -> dict[str, bool]:
    """Return whether each check that fails with a fault is a symptom of the damage."""
    failed = [name for name, outcome in FAULTS[fault].outcomes.items() if outcome == outcomes.FAIL]
    checks = [model.Check(name, outcomes.FAIL, cause=FAULTS[fault].cause) for name in failed]
    return {check.id: bool(causes.symptom_of("verify", check, found)) for check in checks}


@pytest.mark.parametrize(("damage", "faults"), DAMAGE.items(), ids=[name for _part, name in DAMAGE])
def test_what_fails_with_a_damage_is_a_symptom_of_it(damage: tuple[str, str], faults: tuple[str, ...]) -> None:
    found = damaged(*damage)
    for fault in faults:
        assert all(symptoms(found, fault).values()), (fault, symptoms(found, fault))
    for fault in OF_THE_GPUS:
        assert not any(symptoms(found, fault).values()), fault


@pytest.mark.parametrize(
    ("part", "name", "fault"),
    [
        ("packages", "files of libcudnn9-cuda-13=9.28.0.42-1", "other-toolkit"),
        ("packages", "files of cuda-nvcc-13-2=13.2.78-1", "package-not-held"),
        ("tensorflow_env", TREE + "tensorflow-2.21.0", "other-pytorch"),
        ("nvidia_driver", "service nvidia-persistenced", "driver-not-loaded"),
        ("host_verify", "file /usr/local/bin/gpuhost-verify", "other-toolkit"),
    ],
)
def test_a_failure_that_the_table_does_not_have_stays_one(part: str, name: str, fault: str) -> None:
    assert not any(symptoms(damaged(part, name), fault).values())


def test_a_failure_of_the_hardware_or_a_warning_is_no_symptom() -> None:
    found = damaged("nvidia_driver", "nouveau")
    failed, warned = (model.Check("driver.gpu_count", outcome) for outcome in (outcomes.FAIL, outcomes.WARN))
    hardware = model.Check("driver.gpu_count", outcomes.FAIL, cause=model.HARDWARE)
    assert causes.symptom_of("verify", failed, found) == ("nouveau",)
    assert causes.symptom_of("verify", hardware, found) == causes.symptom_of("verify", warned, found) == ()


def test_a_run_that_changed_the_host_has_repaired_it_before_the_checks() -> None:
    found = damaged("nvidia_driver", "nouveau")
    failed = model.Check("driver.nouveau_absent", outcomes.FAIL)
    assert causes.symptom_of("verify", failed, found)
    assert not causes.symptom_of("verify", failed, dataclasses.replace(found, changed=True))


def test_a_training_is_a_symptom_of_its_own_environment() -> None:
    found, check = damaged("tensorflow_env", "environment /opt/gpuhost/tensorflow"), model.Check("training", "fail")
    assert causes.symptom_of("smoke_train", check, found)
    assert not causes.symptom_of("smoke_train_pytorch", check, found)


def test_each_row_has_checks_and_kinds_that_exist() -> None:
    ids = [*ALL, "smoke_train.training", "smoke_train_pytorch.training"]
    unknown = [glob for row in causes.TABLE for glob in row.checks if not any(fnmatchcase(name, glob) for name in ids)]
    assert not unknown
    names = [name for _part, name in DAMAGE] + ["service nvidia-persistenced", "cache of the dynamic linker"]
    titles = [*(kind.title for kind in KINDS), "content of"]
    assert all(name.startswith(tuple(titles)) for name in names)


@pytest.mark.parametrize(
    ("message", "meaning", "remedy"),
    [
        ("Attempting to decrypt but no vault secrets found", "encrypted", "--ask-vault-pass"),
        ("Decryption failed (no vault secrets were found that could decrypt).", "or another one", "--vault-password-f"),
        ("`apt-get install a` failed with status 100:\nE: Failed to fetch http://h/a.deb  Could not resolve 'h'", "",
         "correct the host's name servers"),
        ("`apt-get install a` failed with status 100:\nE: Unable to correct problems", "", ""),
        ("No space left on device", "", ""),
    ],
)  # fmt: skip
def test_known_messages_have_a_remedy(message: str, meaning: str, remedy: str) -> None:
    found = causes.explain(message)
    assert (meaning in found[0], remedy in found[1]) == (True, True)
    assert (bool(found[0]), bool(found[1])) == (bool(meaning), bool(remedy))
