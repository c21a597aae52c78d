"""The probe as a whole: every part is present, and a part that fails is an error."""

from __future__ import annotations

import dataclasses
import json
import os
import select
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe, probe_start
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_stack, proc_driver

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[2] / "fixtures/probe"


OPTIONS = probe.Options(None, {}, True, (), ("*",), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")


def probed(root: str, options: probe.Options) -> Any:
    """Return a probe as the module prints it."""
    return to_json(probe.probe(root, options))


def test_the_running_kernel_is_the_one_that_every_other_part_of_a_run_reads(tmp_path: Path) -> None:
    put(tmp_path, "/proc/sys/kernel/osrelease", "6.12.57+deb13-amd64\n")
    assert probed(str(tmp_path), OPTIONS)["kernel"]["running"] == "6.12.57+deb13-amd64"


def test_files_are_compared_while_programs_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with many GPUs nvidia-smi takes seconds, and so does a large environment."""
    comparing, asking = os.pipe(), os.pipe()

    def meet(own: tuple[int, int], other: tuple[int, int]) -> None:
        """Say that this side has begun, and wait until the other has."""
        os.write(own[1], b".")
        assert select.select([other[0]], [], [], 60)[0], "the other side has not begun meanwhile"

    def differences(*_options: object) -> dict[str, AppliedPart]:
        meet(comparing, asking)
        return {"nccl": AppliedPart("fingerprint")}

    monkeypatch.setattr(probe_start.applied, "differences", differences)
    monkeypatch.setattr(probe.nvidia_smi, "read", lambda *_options: meet(asking, comparing))
    assert probe.probe(str(tmp_path), OPTIONS).applied == {"nccl": AppliedPart("fingerprint")}


@pytest.mark.parametrize("error", [OSError("no such disk"), ValueError("no such part")])
def test_why_files_were_not_compared_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_options: object) -> None:
        raise error

    monkeypatch.setattr(probe_start.applied, "differences", fails)
    assert probe.probe(str(tmp_path), OPTIONS).errors[-1] == f"record of the last run: {error}"


def test_the_probe_of_an_empty_root_has_every_part(tmp_path: Path) -> None:
    found = probed(str(tmp_path), OPTIONS)
    assert set(found) == {
        "schema",
        "uid",
        "may_write",
        "distribution",
        "architecture",
        "machine",
        "cpu",
        "kernel",
        "python",
        "toolchain",
        "gpus",
        "guest_settings",
        "nvswitches",
        "switch_managers",
        "pcie",
        "display",
        "driver",
        "foreign_driver",
        "modules_of_others",
        "gpu_processes",
        "packages",
        "foreign_holds",
        "package_manager",
        "transaction",
        "run",
        "cloud_init_running",
        "runfile",
        "repository",
        "repository_files",
        "cuda",
        "environments",
        "environments_in_the_way",
        "secure_boot",
        "secure_boot_keys",
        "trusted_certificates",
        "signatures_enforced",
        "kernel_keys",
        "modules_disabled",
        "root_in_memory",
        "selinux_enforcing",
        "module_blacklists",
        "disk",
        "applied",
        "masked_services",
        "verified",
        "requested",
        "verified_plan",
        "changed_packages",
        "pending",
        "undone",
        "last_result",
        "newer_state",
        "applied_plan",
        "simulated",
        "errors",
    }
    assert found["distribution"] is None
    assert found["errors"] == ["distribution: no os-release file: expected /etc/os-release or /usr/lib/os-release"]
    assert found["driver"] == {
        "loaded": None,
        "nouveau_loaded": False,
        "nvidia_smi": None,
        "installed": None,
        "dkms_leftovers": [],
    }
    json.dumps(found)


def test_a_part_that_fails_is_none_and_an_error(tmp_path: Path) -> None:
    put(tmp_path, "/etc/os-release", (FIXTURES / "os-release-debian-12.txt").read_text())
    put(tmp_path, "/var/lib/dpkg/status", (FIXTURES / "dpkg-status-debian-12.txt").read_text())
    put(tmp_path, installed_stack.APPLIED_PLAN, '{"ok": true}')
    put(tmp_path, "/usr/share/gpuhost-simulated/pci.txt", "PCI devices\n")
    put(tmp_path, "/usr/share/gpuhost-simulated/driver.txt", "NVIDIA driver 595.71.05\n\n")
    put(tmp_path, proc_driver.PATH, "nonsense")
    found = probed(str(tmp_path), OPTIONS)
    assert found["applied_plan"] == {"ok": True}
    assert found["simulated"] == ["NVIDIA driver 595.71.05", "PCI devices"]
    assert found["packages"]["gcc"]["version"] == "4:12.2.0-3"
    assert "gcc-12" in found["packages"]["gcc"]["depends"]
    assert [error.split(":")[0] for error in found["errors"]] == ["loaded driver"]


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (
            (None, {"debian-12": "http://127.0.0.1:9/d12/", "ubuntu-24.04": "http://127.0.0.1:9/u24/"}),
            "http://127.0.0.1:9/d12/",
        ),
        (("http://127.0.0.1:9/mine/", {"debian-12": "http://127.0.0.1:9/d12/"}), "http://127.0.0.1:9/mine/"),
        ((None, {"ubuntu-24.04": "http://127.0.0.1:9/u24/"}), None),
    ],
    ids=["by distribution", "url wins", "other distribution"],
)
def test_the_repository_of_the_hosts_distribution_is_read(
    tmp_path: Path, given: tuple[str | None, dict[str, str]], asked: str | None
) -> None:
    put(tmp_path, "/etc/os-release", (FIXTURES / "os-release-debian-12.txt").read_text())
    repository = probed(str(tmp_path), dataclasses.replace(OPTIONS, repository_url=given[0], repositories=given[1]))[
        "repository"
    ]
    assert (repository and repository["url"]) == asked


def test_the_evidence_of_the_verified_configuration_is_read_and_a_pending_change(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/gpuhost/verified.json", '{"plan": {}, "evidence": {"at": "2026-11-01T00:00:00Z"}}')
    put(tmp_path, "/var/lib/gpuhost/pending.json", '{"since": "2026-11-02T00:00:00Z", "schema": 1}')
    found = probed(str(tmp_path), OPTIONS)
    assert found["verified"] == {"at": "2026-11-01T00:00:00Z"}
    assert found["pending"]["since"] == "2026-11-02T00:00:00Z"


@pytest.mark.parametrize("name", ["baseline", "last_result", "unheard-of"])
def test_a_record_of_a_later_release_is_named(tmp_path: Path, name: str) -> None:
    put(tmp_path, f"/var/lib/gpuhost/{name}.json", '{"schema": 2}')
    message = f"{tmp_path}/var/lib/gpuhost/{name}.json was written by a newer gpuhost (schema 2); expected at most 1"
    assert probed(str(tmp_path), OPTIONS)["newer_state"] == message


def test_a_verified_configuration_of_an_earlier_version_has_no_evidence(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/gpuhost/verified.json", '{"plan": {}, "packages": {}, "files": {}, "alternatives": {}}')
    assert probed(str(tmp_path), OPTIONS)["verified"] == {}
    assert probed(str(tmp_path / "new"), OPTIONS)["verified"] is None


def test_a_damaged_applied_plan_is_an_error(tmp_path: Path) -> None:
    put(tmp_path, installed_stack.APPLIED_PLAN, '{"ok": tr')
    found = probed(str(tmp_path), OPTIONS)
    assert found["applied_plan"] is None
    assert any(installed_stack.APPLIED_PLAN in error for error in found["errors"])


@pytest.mark.parametrize("is_refused", [True, False])
@pytest.mark.parametrize("contents", [True, False])
def test_contents_that_cannot_be_compared_are_an_error_where_they_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool, contents: bool
) -> None:
    put(tmp_path, "/etc/os-release", (FIXTURES / "os-release-debian-12.txt").read_text())

    def refuse(name: str, **_options: object) -> None:
        raise ValueError("[digital envelope routines] unsupported")

    if is_refused:
        monkeypatch.setattr("hashlib.new", refuse)
    found = probed(str(tmp_path), dataclasses.replace(OPTIONS, contents=contents))
    errors = [error.partition(",")[0] for error in found["errors"]]
    assert errors == (["content of packages: not compared"] if is_refused and contents else [])


AWS, NEXT = "6.8.0-1029-aws", "6.8.0-1041-aws"
EXTRA = "Package: linux-modules-extra-{0}\nArchitecture: amd64\nVersion: 1\nDepends: linux-image-{0}\n\n"
META = "Package: linux-modules-extra-aws\nArchitecture: amd64\nVersion: 1\nDepends: linux-modules-extra-{0}\n\n"
LIST = "/var/lib/apt/lists/archive.ubuntu.com_ubuntu_dists_noble_main_binary-amd64_Packages"


def nvlink5(root: Path, needed: bool = True) -> None:
    """Make a host of a p6-b200: a GPU, its ConnectX, and an Ubuntu kernel without linux-modules-extra."""
    devices = {"0000:1b:00.0": ("10de", "2901", "030200", "")}
    devices["0000:05:00.0"] = ("15b3", "1021", "020700", "\x82ConnectX-7\x00SMDL=SW_MNG" if needed else "SMDL=NIC")
    for address, (vendor, device, kind, vpd) in devices.items():
        for name, text in {"vendor": f"0x{vendor}", "device": f"0x{device}", "class": f"0x{kind}", "vpd": vpd}.items():
            put(root, f"/sys/bus/pci/devices/{address}/{name}", f"{text}\n")
    put(root, "/proc/sys/kernel/osrelease", AWS + "\n")
    put(root, f"/lib/modules/{AWS}/modules.dep", "kernel/drivers/infiniband/core/ib_umad.ko.zst:\n")
    put(root, LIST, EXTRA.format(AWS) + EXTRA.format(NEXT) + META.format(NEXT))


def lacking(root: Path, **options: Any) -> Any:
    given = dataclasses.replace(
        OPTIONS, switch_modules=["ib_umad", "mlx5_ib"], extra_modules="linux-modules-extra-*", **options
    )
    kernel = probed(str(root), given)["kernel"]
    return kernel["releases"][AWS].get("lacks"), kernel.get("extra_modules")


def test_the_modules_that_nvlink_5_lacks_and_their_packages(tmp_path: Path) -> None:
    nvlink5(tmp_path)
    assert lacking(tmp_path, kernel_header_offers=True) == (["mlx5_ib"], {f"linux-modules-extra-{AWS}": AWS})
    assert lacking(tmp_path) == (["mlx5_ib"], None)
    (tmp_path / LIST[1:]).unlink()
    assert lacking(tmp_path, kernel_header_offers=True) == (["mlx5_ib"], None)


def test_other_hosts_need_no_such_module(tmp_path: Path) -> None:
    nvlink5(tmp_path, needed=False)
    assert lacking(tmp_path, kernel_header_offers=True) == (None, None)
