"""Preflight: each problem of a host with its code and message, and hosts without a finding."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.host import module_keys
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import KeptDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff, preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.signing_key import SigningCertificate
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    COMPONENTS,
    DIRECTORIES,
    DRIVER_INSTALLED,
    LOADED,
    PROBE,
    URL,
    codes,
    link,
    run,
    space,
    without,
)

KEY = "/etc/apt/keyrings/nvidia-cuda.asc"
FULL = {directory: space(0) for directory in DIRECTORIES}


def test_a_clean_host_has_no_findings() -> None:
    assert run().to_json() == {"schema": 1, "ok": True, "problems": [], "warnings": []}


LOCK = {"path": "/var/lib/dpkg/lock-frontend", "pid": 812, "command": "/usr/bin/unattended-upgrade"}
BUSY = {"name": "apt", "locks": [LOCK, {**LOCK, "path": "/var/lib/dpkg/lock"}], "broken": [], "interrupted": False}
TRANSACTION = {
    "path": "/var/lib/gpuhost/transaction.lock",
    "pid": 900,
    "command": "python3 AnsiballZ_apt_transaction.py",
}
# As transaction_lock.py writes it.
ENDED = {"what": "the installation of packages", "changes": 12, "failed": None, "ended": "2026-11-22T10:00:00Z"}
BROKEN = {**BUSY, "locks": [], "broken": [{"name": "dkms", "state": "half-configured"}]}
RUN_DRIVER = {
    "driver": {"uninstaller": "/usr/bin/nvidia-uninstall", "traces": ["/x"], "version": "550.54.14"},
    "toolkits": [],
}
RUN_CUDA = {
    "driver": None,
    "toolkits": [{"version": "13.2", "uninstaller": "/usr/local/cuda-13.2/bin/cuda-uninstaller"}],
}
OTHER_RUN_CUDA = {"driver": None, "toolkits": [{"version": "12.4", "uninstaller": "/u"}]}
JOB = [{"pid": 7, "name": "python3 train.py", "program": "python3", "computes": True, "devices": []}]
HIDDEN_JOB = [{**JOB[0], "computes": False, "devices": ["nvidia0", "nvidia-uvm"]}]  # as seen from another PID namespace
DISPLAY = [{"pid": 8, "name": "/usr/lib/xorg/Xorg", "program": "Xorg", "computes": False, "devices": ["nvidia0"]}]
DAEMONS = [{**JOB[0], "program": program} for program in gpu_processes.SERVICES]
ENROLLED = [{"path": "/var/lib/dkms/mok.pub", "enrolled": True}]
NOT_ENROLLED = [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
NOUVEAU = {"loaded": None, "nouveau_loaded": True}


def smi(seconds: float, count: int = 2) -> dict[str, Any]:
    """Let nvidia-smi, which knows the GPUs, have taken so long."""
    gpus = [{"index": number, "driver_version": "580.126.16"} for number in range(count)]
    return {"driver": {**PROBE["driver"], "nvidia_smi": {"exit_code": 0, "gpus": gpus, "seconds": seconds}}}


MIG = {"driver": {**PROBE["driver"], "nvidia_smi": {"exit_code": 0, "gpus": [], "mig": ["0000:05:00.0"]}}}
ZFS = {"name": "zfs", "found": "the root file system is ZFS", "dkms": True}
OFED = {"name": "ofed", "found": "NVIDIA's DOCA-OFED is installed", "dkms": True, "peermem": True}


def test_a_run_that_keeps_the_driver_names_neither_mig_nor_modules_of_others() -> None:
    smi = {"exit_code": 0, "gpus": [], "mig": ["0000:05:00.0"]}
    kept = {**ALL_INSTALLED, "driver": {**LOADED["driver"], "nvidia_smi": smi}, "modules_of_others": [ZFS, OFED]}
    assert codes(run(**kept)) == ([], [])


def kernel(running: str, following: str, headers: list[str], offers: Any) -> dict[str, Any]:
    return {"kernel": {"running": running, "next_boot": following, "headers": headers, "headers_from": offers}}


def entry(file: str, uri: str = URL, key: str | None = None) -> dict[str, Any]:
    return {"repository_files": {"entries": [{"file": file, "uri": uri, "suite": "/", "signed_by": key}], "keys": {}}}


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "without become": ({"uid": 1000}, ["not-root"]),
    "locked": (
        {"package_manager": BUSY},
        ["apt-busy"],
    ),
    "cloud-init": ({"cloud_init_running": True}, ["cloud-init-running"]),
    "a package transaction of another run": (
        {"transaction": {"running": TRANSACTION}},
        ["transaction-running"],
    ),
    "a package transaction of another run, and nothing seems to change": (
        {"transaction": {"running": TRANSACTION}, **ALL_INSTALLED, **LOADED},
        ["transaction-running"],
    ),
    "half-installed and locked": (
        {"package_manager": {**BUSY, "broken": BROKEN["broken"]}},
        ["apt-busy"],
    ),
    "driver of a .run file": ({"runfile": RUN_DRIVER}, ["runfile-install"]),
    "toolkit of a .run file in the planned directory": ({"runfile": RUN_CUDA}, ["runfile-install"]),
    "job": ({"gpu_processes": JOB}, ["gpu-busy"]),
    "job that nvidia-smi does not list": ({"gpu_processes": HIDDEN_JOB}, ["gpu-busy"]),
    "Secure Boot without a key": ({"secure_boot": "enabled"}, ["secure-boot"]),
    "Secure Boot, key not enrolled": (
        {"secure_boot": "enabled", "secure_boot_keys": NOT_ENROLLED},
        ["secure-boot"],
    ),
    "cuda-keyring's source": (
        entry("/e/cuda-debian12-x86_64.list", key="/k"),
        ["stale-repository"],
    ),
    "source without a key": (entry("/e/cuda.list"), ["stale-repository"]),
    "source without the last slash": (
        entry("/e/cuda.list", URL.rstrip("/")),
        ["stale-repository"],
    ),
}


@pytest.mark.parametrize(("parts", "expected"), CASES.values(), ids=CASES)
def test_problems(parts: dict[str, Any], expected: list[str], snapshot: SnapshotAssertion) -> None:
    found = run(**parts)
    assert codes(found) == (expected, [])
    assert found.ok is False
    assert preflight.refusal(found.problems) == snapshot


def test_of_a_host_that_another_run_changes_nothing_else_is_found(snapshot: SnapshotAssertion) -> None:
    found = run(
        options=Options(other_run="gpu_host.yml of root@controller (process 900) since 2026-11-22T10:00:00Z"),
        **{"transaction": {"running": TRANSACTION}, "package_manager": BROKEN},
    )
    assert codes(found) == (["other-run"], [])
    assert preflight.refusal(found.problems) == snapshot


CONTAINER = Options(own_kernel=False, kernel_headers=())
NO_HEADERS = kernel("6.18.44", "6.18.44", [], {"6.18.44": []})
SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "the driver's own daemons": ({"gpu_processes": DAEMONS}, None, None),
    "a job, and the driver is kept": ({"gpu_processes": JOB, **DRIVER_INSTALLED, **LOADED}, None, None),
    "a job, and no driver is planned": ({"gpu_processes": JOB}, without("driver"), None),
    "a .run driver, and no driver is planned": ({"runfile": RUN_DRIVER}, without("driver"), None),
    "cloud-init, and nothing changes": ({"cloud_init_running": True, **ALL_INSTALLED, **LOADED}, None, None),
    "half-installed, and nothing changes": (
        {"package_manager": BROKEN, **ALL_INSTALLED, **LOADED},
        None,
        None,
    ),
    "Secure Boot with an enrolled key": ({"secure_boot": "enabled", "secure_boot_keys": ENROLLED}, None, None),
    "Secure Boot, and the module is loaded": ({"secure_boot": "enabled", **DRIVER_INSTALLED, **LOADED}, None, None),
    "Secure Boot on a borrowed kernel": ({"secure_boot": "enabled"}, None, CONTAINER),
    "headers of a borrowed kernel": (NO_HEADERS, None, CONTAINER),
    "headers that the planned package provides": (
        kernel("6.1.0-56-amd64", "6.1.0-56-amd64", [], {"6.1.0-56-amd64": ["linux-headers-amd64"]}),
        None,
        None,
    ),
    "headers whose package the inventory names": (
        kernel("6.1.0-50-amd64", "6.1.0-50-amd64", [], {"6.1.0-50-amd64": ["linux-headers-6.1.0-50-amd64"]}),
        None,
        Options(kernel_headers=("linux-headers-6.1.0-50-amd64",)),
    ),
    "gpuhost's own source": (entry("/etc/apt/sources.list.d/nvidia-cuda.sources", key=KEY), None, None),
    "another source with gpuhost's key": (entry("/e/cuda.list", key=KEY), None, None),
    "nouveau on a borrowed kernel": ({"driver": NOUVEAU}, None, CONTAINER),
    "a slow link with a loaded driver": (
        {"pcie": {**PROBE["pcie"], "gpus": {"a": link(speed=2.5)}}, **LOADED},
        None,
        None,
    ),
    "a link of unknown width and speed": ({"pcie": {**PROBE["pcie"], "gpus": {"a": link(None, None)}}}, None, None),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


def pcie(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"pcie": {**PROBE["pcie"], "gpus": {f"0000:{n:02x}:00.0": gpu for n, gpu in enumerate(gpus)}, **more}}


DRIVER_OF_580 = {"libnvidia-compute-580": {"version": "580.126.16-1ubuntu1"}}
TRANSLATED, IDENTITY = link(iommu_type="DMA-FQ"), link(iommu_type="identity")
WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "locked, and nothing changes": ({"package_manager": BUSY, **ALL_INSTALLED, **LOADED}, "apt-busy"),
    "result of a lost run": (
        {"transaction": {"ended": {**ENDED, "schema": 1}}},
        "transaction-ended",
    ),
    "failure of a lost run": (
        {"transaction": {"ended": {**ENDED, "failed": "dpkg failed.\nIt was undone."}}},
        "transaction-ended",
    ),
    "half-configured": ({"package_manager": BROKEN}, "dpkg-interrupted"),
    "interrupted": (
        {"package_manager": {**BROKEN, "broken": [], "interrupted": True}},
        "dpkg-interrupted",
    ),
    "toolkit of a .run file beside the planned one": ({"runfile": OTHER_RUN_CUDA}, "runfile-install"),
    "display": ({"gpu_processes": DISPLAY}, "gpu-busy"),
    "OpenGL of a host without a display": (
        {"packages": {"libnvidia-gl-580": {"version": "580.126.16-1ubuntu1"}, **DRIVER_OF_580}},
        "graphics-removed",
    ),
    "nouveau": ({"driver": NOUVEAU}, "nouveau-in-use"),
    "nouveau bound": (
        {"gpus": [{"pci_address": "0000:05:00.0", "pci_id": "10de:2335", "kernel_driver": "nouveau"}]},
        "nouveau-in-use",
    ),
    "module of an older driver in DKMS, without source": (
        {"driver": {"loaded": None, "dkms_leftovers": [{"module": "nvidia/390.48", "has_source": False}]}},
        "dkms-leftover",
    ),
    "module of an older driver in DKMS": (
        {"driver": {"loaded": None, "dkms_leftovers": [{"module": "nvidia/570.86.15", "has_source": True}]}},
        "dkms-leftover",
    ),
    "another module than the installed one": (
        {
            **ALL_INSTALLED,
            "driver": {
                "loaded": {"version": "580.126.09"},
                "installed": {"version": "595.71.05", "package": "libcuda1"},
            },
        },
        "reboot-pending",
    ),
    "narrow": (pcie(link(8)), "pcie-link-below-ability"),
    "narrow slot": (
        pcie(link(8, slot={"max_width": 8, "max_speed": 16.0})),
        "pcie-link-below-ability",
    ),
    "slow": (pcie(link(speed=8.0)), "pcie-link-below-ability"),
    "slow nvidia-smi": (smi(21.4), "slow-gpu-query"),
    "IOMMU": (
        pcie(TRANSLATED, TRANSLATED, kernel_options=["intel_iommu=on"]),
        "peer-to-peer-blocked",
    ),
    "ACS": (pcie(link(), link(), acs={"b": ["SrcValid", "ReqRedir"], "c": None}), "peer-to-peer-blocked"),
    "MIG": (MIG, "mig-enabled"),
    "ZFS": ({"modules_of_others": [ZFS]}, "modules-of-others"),
    "DOCA-OFED": ({"modules_of_others": [OFED]}, "modules-of-others"),
    "PPA": (
        entry("/e/p.list", "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"),
        "stale-repository",
    ),
    "old key": (
        {
            "repository_files": {
                "entries": [],
                "keys": {"/etc/apt/trusted.gpg": ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"]},
            }
        },
        "stale-repository",
    ),
    "no apt lists": (kernel("a", "a", [], None), "kernel-headers-missing"),
}


def test_records_of_a_later_release_are_a_problem(snapshot: SnapshotAssertion) -> None:
    found = run(
        newer_state="/var/lib/gpuhost/verified.json was written by a newer gpuhost (schema 2); expected at most 1"
    )
    assert codes(found) == (["newer-state"], [])
    assert preflight.refusal(found.problems) == snapshot


LEFT = {"dkms_leftovers": [{"module": "nvidia/570.86.15", "has_source": True}]}
SAME = {"loaded": {"version": "595.71.05"}, "installed": {"version": "595.71.05", "package": "libcuda1"}}


@pytest.mark.parametrize(
    ("components", "parts", "options"),
    [
        (None, {**ALL_INSTALLED, "driver": SAME}, None),
        (None, {**ALL_INSTALLED, "driver": {**SAME, "installed": None}}, None),
        (None, {**ALL_INSTALLED, "driver": {**SAME, "installed": {"version": None}}}, None),
        # The run loads the module of the driver that it installs.
        (None, {"driver": {**SAME, "installed": {"version": "580.126.09", "package": "libcuda1"}}}, None),
        # A container's kernel is not its own.
        (None, {**ALL_INSTALLED, "driver": {**SAME, "loaded": {"version": "1"}}}, Options(own_kernel=False)),
        (without("driver"), {"driver": {"loaded": None, **LEFT}}, None),
    ],
    ids=["the same", "unknown", "none", "the driver changes", "container", "driver not planned"],
)
def test_no_warning_of_a_reboot_or_of_dkms(components: Any, parts: dict[str, Any], options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


def test_the_module_of_a_run_file_has_a_finding_of_its_own() -> None:
    runfile = {"driver": {"uninstaller": None, "traces": ["/usr/bin/nvidia-uninstall"], "version": "570.86.15"}}
    assert codes(run(runfile={**runfile, "toolkits": []}, driver={"loaded": None, **LEFT})) == (["runfile-install"], [])


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    found = run(**parts)
    assert codes(found) == ([], [code])
    assert found.warnings[0].message == snapshot


@pytest.mark.parametrize(("factor", "count"), [(2.0, 2), (1.0, 0)], ids=["slow host", "no answer"])
def test_nvidia_smi_is_slow_by_the_hosts_measure_and_only_if_it_answers(factor: float, count: int) -> None:
    assert run(options=Options(timeout_factor=factor), **smi(21.4, count)).warnings == ()


@pytest.mark.parametrize(
    "parts",
    [
        pcie(IDENTITY, IDENTITY),
        pcie(TRANSLATED),
        {
            **pcie(TRANSLATED, TRANSLATED),
            **DRIVER_INSTALLED,
            "nvswitches": [{"pci_address": "x", "pci_id": "10de:22a3"}],
        },
        pcie(link(), acs={"b": ["ReqRedir"]}),
        pcie(link(), link(), acs={"b": ["SrcValid", "UpstreamFwd"], "c": []}),
    ],
    ids=["passthrough", "one GPU", "NVSwitch", "ACS over one GPU", "ACS that redirects nothing"],
)
def test_peer_to_peer_that_nothing_blocks(parts: dict[str, Any]) -> None:
    assert codes(run(**parts)) == ([], [])


# All together ----------------------------------------------------------------------------------------------------


def test_all_problems_of_plan_and_host_are_reported_at_once(snapshot: SnapshotAssertion) -> None:
    found = run(package_manager=BUSY, runfile=RUN_DRIVER, gpu_processes=JOB, secure_boot="enabled", disk=FULL)
    assert codes(found)[0] == ["apt-busy", "runfile-install", "gpu-busy", "secure-boot", "disk-full"]
    text = preflight.refusal([Problem("no-gpu", "none", "put one in"), *found.problems])
    assert text.splitlines()[:3] == snapshot
    assert text.count("\n  Remedy: ") == 6


SIGNING = SigningCertificate("/keys/lab.der", "5e" * 32)


@pytest.mark.parametrize(
    ("trusted", "state"),
    [([], "is not enrolled"), (["aa" * 32], "is not enrolled"), (None, "may not be enrolled")],
)
def test_the_users_own_signing_key_must_be_enrolled(trusted: list[str] | None, state: str) -> None:
    """Whether DKMS has another key that is enrolled does not matter: it does not sign with that one."""
    options = Options(signing=SIGNING)
    found = run(options=options, secure_boot="enabled", secure_boot_keys=ENROLLED, trusted_certificates=trusted)
    (problem,) = found.problems
    assert problem.code == "secure-boot"
    assert f"/keys/lab.der, the certificate of gpu_stack_module_signing_key, {state}" in problem.message
    assert "openssl x509 -in /keys/lab.der -outform DER -out module_signing.der" in problem.remedy
    assert "mokutil --import module_signing.der" in problem.remedy


def test_modules_that_an_enrolled_key_of_the_user_signs_are_no_problem() -> None:
    options = Options(signing=SIGNING)
    assert codes(run(options=options, secure_boot="enabled", trusted_certificates=["aa" * 32, SIGNING.sha256])) == (
        [],
        [],
    )
    assert codes(run(options=options, secure_boot="disabled", trusted_certificates=[])) == ([], [])


@pytest.mark.parametrize(
    ("source", "installed", "url", "refused"),
    [
        ("distro", None, None, "dkms 2.8.7 would not sign"),
        ("distro", "2.8.7-2ubuntu2.2", None, "dkms 2.8.7-2ubuntu2.2 would not sign"),
        ("distro", "2.8.7-2ubuntu2.2", URL, "dkms 2.8.7-2ubuntu2.2 would not sign"),
        ("distro", "1:3.2.1-1ubuntu1", URL, ""),  # NVIDIA's
        ("distro", None, URL, ""),  # apt takes NVIDIA's, whose epoch makes it the newer one
        ("nvidia", "2.8.7-2ubuntu2.2", URL, ""),  # upgraded with the driver
    ],
)
def test_a_key_that_the_hosts_dkms_does_not_sign_with_is_refused(
    source: str, installed: str | None, url: str | None, refused: str
) -> None:
    """The versions are those of Ubuntu 22.04, as `apt-get` prints their upgrade."""
    packages = {"dkms": {"version": installed, "status": "installed", "held": False}} if installed else {}
    plan = make_plan({"driver": {**COMPONENTS["driver"], "source": source}}, url=url)
    plan = dataclasses.replace(plan, distribution="ubuntu-22.04")
    probe = make_probe(**{**PROBE, "packages": packages})
    diff = plan_diff.plan_diff(plan, probe)
    found = preflight.preflight(plan, probe, diff, Options(signing=SIGNING)).problems
    assert [problem.code for problem in found] == ["signing-key-unused"] * bool(refused)
    assert all(refused in problem.message for problem in found)
    assert preflight.preflight(plan, probe, diff).problems == ()


@pytest.mark.parametrize(
    ("distribution", "command"),
    [("debian-12", "-out /var/lib/dkms/mok.pub"), ("ubuntu-24.04", "update-secureboot-policy --enroll-key")],
)
def test_without_a_key_the_remedy_has_the_commands_of_the_distribution(distribution: str, command: str) -> None:
    plan, probe = make_plan(COMPONENTS, url=URL), make_probe(**{**PROBE, "secure_boot": "enabled"})
    plan = dataclasses.replace(plan, distribution=distribution)
    (problem,) = preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe)).problems
    assert command in problem.remedy
    assert "generate_mok" not in problem.remedy  # not in dkms 3.0.10 of Debian 12
    assert "gpu_stack_module_signing_key" in problem.remedy


def test_parts_that_the_probe_could_not_read_are_not_findings() -> None:
    plan, unread = make_plan(), dict.fromkeys(set(PROBE) - {"gpus"})
    probe = make_probe(**{**PROBE, **unread})
    assert preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe)).ok is True


KERNEL_UNREAD = "kernel: [Errno 5] Input/output error: '/boot/initrd.img-6.8.0-90-generic'"


def test_kernels_that_could_not_be_read_are_a_problem_where_modules_are_built() -> None:
    """The plan would have neither headers nor compilers, and DKMS would skip the build."""
    parts = {"kernel": None, "errors": [KERNEL_UNREAD]}
    (problem,) = run(**parts).problems
    assert problem.code == "probe-incomplete"
    assert KERNEL_UNREAD in problem.message
    assert codes(run(**parts, **{**ALL_INSTALLED, **LOADED})) == ([], ["probe-incomplete"])


def test_another_part_that_could_not_be_read_is_named() -> None:
    cause = "cloud-init: `systemctl list-jobs --no-legend --no-pager --plain` failed: exit 124"
    found = run(errors=[cause])
    assert codes(found) == ([], ["probe-incomplete"])
    assert cause in found.warnings[0].message


UNREAD = "https://mirror/cuda/InRelease: 407  Proxy Authentication Required [IP: 10.0.0.1 3128]"


@pytest.mark.parametrize("how", ["error", "unreachable"])
def test_an_unreadable_repository_is_a_problem_where_something_is_installed_from_it(how: str) -> None:
    unread = {**PROBE["repository"], how: UNREAD}
    (problem,) = run(repository=unread).problems
    assert problem.code == "repository-unreadable"
    assert problem.message.endswith(f"{UNREAD}; the proxy asks for a user name and password")
    assert "Acquire::http::Proxy" in problem.remedy
    assert codes(run(repository=unread, **{**ALL_INSTALLED, **LOADED})) == ([], ["repository-unreadable"])
    # A framework is not in it, nor is what the distribution has.
    assert codes(run(without("driver", "cuda", "cudnn"), repository=unread)) == ([], ["repository-unreadable"])
    assert (
        codes(
            run({**without("cuda", "cudnn"), "driver": {**COMPONENTS["driver"], "source": "distro"}}, repository=unread)
        )[0]
        == []
    )


MODULES = ("preflight", "fabric_manager", "kernel_builds", "leftovers", "disk_space")


def test_every_code_is_described() -> None:
    directory = Path(preflight.__file__).resolve().parent
    source = "".join((directory / f"{name}.py").read_text() for name in MODULES)
    used = set(re.findall(r'(?:findings\.(?:problem|warn)|Leftover)\(\s*"([a-z-]+)"', source))
    assert used | {holds.CODE, "transaction-refused"} == set(preflight.CODES)  # of the resolver, and of the transaction


@pytest.mark.parametrize("name", ["tensorflow", "pytorch"])
def test_an_occupied_path_of_an_environment_is_refused(name: str) -> None:
    planned = {name: {"version": "2.15.0", "python": "3.11"}}
    (problem,) = run(planned, **{f"{name}_in_the_way": "a folder"}).problems
    assert problem.code == "path-taken"
    assert problem.message.startswith(f"found a folder at /opt/gpuhost/{name},")
    assert f"mv /opt/gpuhost/{name}" in problem.remedy
    assert codes(run(without(name), **{f"{name}_in_the_way": "a folder"}))[0] == []
    assert codes(run(planned))[0] == []


# Frameworks alone ---------------------------------------------------------------------------------------------------


def run_as_a_user(**parts: Any) -> preflight.Preflight:
    """Run the preflight of gpu_stack_scope=frameworks as a user without root, who owns gpuhost's directory."""
    user = {"uid": 1001, "may_write": {"/opt/gpuhost": True}, "python": {"default": "3.11", "ensurepip": True}}
    plan = make_plan(without("driver", "cuda", "cudnn", "nccl"), request={"scope": "frameworks"})
    probe = make_probe(**{**PROBE, **user, **parts})
    return preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"package_manager": BUSY},
        {"package_manager": BROKEN},
        {"cloud_init_running": True},
        {"runfile": RUN_DRIVER},
        {"secure_boot": "enabled", "kernel": {"running": "6.8.0-90-generic"}},
        {"repository_files": {"entries": [{"file": "/etc/apt/sources.list.d/cuda.list", "uri": URL}], "keys": {}}},
    ],
)
def test_frameworks_alone_need_no_root_and_leave_packages_of_others_alone(parts: dict[str, Any]) -> None:
    assert codes(run_as_a_user(**parts)) == ([], [])


def test_frameworks_alone_need_their_directory() -> None:
    found = run_as_a_user(may_write={"/opt/gpuhost": False})
    assert codes(found)[0] == ["folder-not-writable"]
    assert "install -d -o USER /opt/gpuhost" in found.problems[0].remedy
    assert "uid 1001" in found.problems[0].message


def test_frameworks_alone_need_a_python_that_creates_environments() -> None:
    bare = {"default": "3.11", "ensurepip": False}
    assert codes(run_as_a_user(python=bare))[0] == ["venv-missing"]
    # With an environment, its installer is there, too.
    assert codes(run_as_a_user(python=bare, tensorflow={"version": "2.21.0", "python": "3.11"}))[0] == []
    assert codes(run(python=bare))[0] == []


def test_frameworks_alone_need_their_space_in_one_directory() -> None:
    # Each on a file system of its own: only that of the environments is written to.
    disk = {path: space(0 if path != "/opt/gpuhost/environments" else 10**6, path) for path in DIRECTORIES}
    assert codes(run_as_a_user(disk=disk))[0] == []
    found = run_as_a_user(disk={**disk, "/opt/gpuhost/environments": space(10, "/opt")})
    assert codes(found)[0] == ["disk-full"]
    assert "TensorFlow environment" in found.problems[0].message
    assert "checks and training" in found.problems[0].message


C_HEADERS: dict[str, str | bytes] = {"/usr/include/stdlib.h": ""}
GCC: dict[str, str | bytes] = {**C_HEADERS, "/usr/bin/gcc": ""}
PYTHON_H: dict[str, str | bytes] = {"/usr/include/python3.11/Python.h": ""}
TRITON: dict[str, Any] = {"compiler_packages": ["gcc", "libc6-dev"], "header_packages": ["python3.11-dev"]}
OTHERS_PYTHON: dict[str, Any] = {**TRITON, "header_packages": []}  # such as one of deadsnakes


@pytest.mark.parametrize(
    ("files", "planned", "missing", "missing_to_whole"),
    [
        ({}, TRITON, "gcc and libc6-dev and python3.11-dev", ""),
        (GCC, TRITON, "python3.11-dev", ""),
        ({**GCC, "/usr/include/python3.12/Python.h": ""}, TRITON, "python3.11-dev", ""),
        (PYTHON_H, TRITON, "gcc and libc6-dev", ""),
        ({**PYTHON_H, "/usr/bin/gcc": ""}, TRITON, "gcc and libc6-dev", ""),
        ({**GCC, **PYTHON_H}, TRITON, "", ""),
        ({**C_HEADERS, **PYTHON_H, "/usr/bin/clang": ""}, TRITON, "", ""),
        ({**C_HEADERS, **PYTHON_H, "/usr/bin/cc-1": "", "/etc/environment": "CC=cc-1\n"}, TRITON, "", ""),
        (GCC, OTHERS_PYTHON, "Python.h of Python 3.11", "Python.h of Python 3.11"),
        ({**GCC, **PYTHON_H}, OTHERS_PYTHON, "", ""),
        ({}, {}, "", ""),
    ],
)
def test_what_pytorch_compiles_with_and_no_package_brings_is_warned_of(
    tmp_path: Path, files: dict[str, str | bytes], planned: dict[str, Any], missing: str, missing_to_whole: str
) -> None:
    interpreters = dict.fromkeys(("/usr/bin/python3.11", "/usr/bin/python3.12"), "")
    found = probed(tmp_path, {**interpreters, **files}, "python", "toolchain")
    parts = {**PROBE, "uid": 1001, "may_write": {"/opt/gpuhost": True}, **found}
    parts["python"] = {**parts["python"], "ensurepip": True}
    for scope, lacks, remedy in (
        ("frameworks", missing, "gpu_stack_scope=frameworks installs no package"),
        ("host", missing_to_whole, "install it from where this Python came from"),
    ):
        components = {"pytorch": {"version": "2.15.0", "python": "3.11", **planned}}
        plan, probe = make_plan(components, {"scope": scope}), make_probe(**parts)
        warnings = preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe)).warnings
        messages = [warning.message for warning in warnings if warning.code == "triton-build-missing"]
        assert len(messages) == bool(lacks)
        assert all(f"this host lacks {lacks}; " in message and remedy in message for message in messages)


def test_leftovers_of_others_stay_where_frameworks_alone_are_installed() -> None:
    alone = without("driver", "cuda", "cudnn", "nccl")
    plan = make_plan(alone, request={"scope": "frameworks", "leftovers": "remove"})
    probe = make_probe(**{**PROBE, "runfile": RUN_DRIVER})
    assert plan_diff.plan_diff(plan, probe).leftovers.does == ()


# Masked services, read from the links that systemctl writes ---------------------------------------------------------

PROBING = host_probe.Options(
    None, {}, True, (), ("*",), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit",
    managed={"nvidia_driver": {"services": ["nvidia-persistenced", "nvidia-fabricmanager"]}, "cudnn": {}},
)  # fmt: skip


def masked(root: Path, *links: str) -> Any:
    for path in links:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to("/dev/null")
    return to_json(host_probe.probe(str(root), PROBING))["masked_services"]


@pytest.mark.parametrize("directory", ["etc/systemd/system", "run/systemd/system"])
def test_a_masked_service_is_a_problem_with_its_remedy(
    directory: str, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    found = masked(tmp_path, f"{directory}/nvidia-persistenced.service", f"{directory}/nvidia-suspend.service")
    assert found == ["nvidia-persistenced"]
    problems = run(masked_services=found).problems
    assert [problem.code for problem in problems] == ["service-masked"]
    assert problems[0] == snapshot


def test_a_service_that_the_run_does_not_enable_may_be_masked(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/nvidia-persistenced.service"
    unit.parent.mkdir(parents=True)
    unit.symlink_to("/lib/systemd/system/nvidia-persistenced.service")
    assert masked(tmp_path) == []
    unit.unlink()
    names = [f"etc/systemd/system/{name}.service" for name in ("nvidia-persistenced", "nvidia-fabricmanager")]
    found = masked(tmp_path, *names)
    off = dataclasses.replace(Options(), persistence=False)
    assert codes(run(options=off, masked_services=found)) == ([], [])
    assert codes(run(without("driver"), masked_services=found)) == ([], [])
    applied = {"nvidia_driver": {"fingerprint": "f", "repairs": {"services": ["nvidia-fabricmanager"]}}}
    assert codes(run(options=off, masked_services=found, applied=applied)) == (["service-masked"], [])


# What the kernel loads, read from the files of a host ---------------------------------------------------------------


def probed(root: Path, files: dict[str, str | bytes], *parts: str) -> dict[str, Any]:
    """Return parts of the probe of a host with these files."""
    for path, content in files.items():
        put(root, path, content)
    found = to_json(host_probe.probe(str(root), PROBING))
    return {part: found[part] for part in parts}


# ChrisTitusTech/secure-linux#6; Kicksecure/security-misc#148 does so in a service, and an image may in a file of its.
DISABLED = {"/proc/sys/kernel/modules_disabled": "1\n"}
DISABLING: dict[str, dict[str, str | bytes]] = {
    "a file": {**DISABLED, "/etc/sysctl.conf": "kernel.modules_disabled=1\n"},
    "a file of a package": {**DISABLED, "/usr/lib/sysctl.d/30-hardening.conf": "kernel.modules_disabled = 1\n"},
    "a glob": {**DISABLED, "/usr/lib/sysctl.d/30-hardening.conf": "kernel.modules_* = 1\n"},
    "a kernel option": {**DISABLED, "/proc/cmdline": "quiet sysctl.kernel.modules_disabled=1\n"},
    "a service": {**DISABLED},
}


@pytest.mark.parametrize("files", DISABLING.values(), ids=DISABLING)
def test_a_driver_that_the_kernel_would_not_load_is_refused(
    tmp_path: Path, files: dict[str, str | bytes], snapshot: SnapshotAssertion
) -> None:
    parts = probed(tmp_path, files, "modules_disabled")
    found = run(**parts)
    assert codes(found) == (["modules-disabled"], [])
    assert preflight.refusal(found.problems) == snapshot
    assert codes(run(**parts, **DRIVER_INSTALLED))[0] == ["modules-disabled"]  # installed, and not loaded
    assert codes(run(**parts, **LOADED))[0] == ["modules-disabled"]  # loaded, and changed


def test_modules_that_need_not_be_loaded_may_be_disabled(tmp_path: Path) -> None:
    parts = probed(tmp_path, DISABLING["a file"], "modules_disabled")
    assert codes(run(**parts, **DRIVER_INSTALLED, **LOADED)) == ([], [])
    assert codes(run(without("driver"), **parts)) == ([], [])
    assert codes(run(options=CONTAINER, **parts)) == ([], [])
    assert codes(run_as_a_user(**parts)) == ([], [])


def test_a_driver_of_the_distribution_that_stays_must_be_loaded_too(tmp_path: Path) -> None:
    kept = KeptDriver("580.126.09", "580", "open", "nvidia-driver-580-server-open")
    plan = dataclasses.replace(make_plan(without("driver"), url=URL), kept_driver=kept)
    for parts, expected in ({}, ["modules-disabled"]), (LOADED, []):
        probe = make_probe(**{**PROBE, **probed(tmp_path, DISABLING["a file"], "modules_disabled"), **parts})
        found = preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe))
        assert codes(found)[0] == expected


# Captured keys and variables: see the README of the fixtures.
SECURE_BOOT = Path(__file__).parents[3] / "fixtures" / "secure_boot"
ENFORCED: dict[str, str | bytes] = {
    "/sys/module/module/parameters/sig_enforce": "Y\n",
    "/proc/cmdline": "ro module.sig_enforce=1\n",
    "/sys/firmware/acpi/tables/DSDT": "",  # a computer without UEFI
}
KERNEL_KEYS: dict[str, str | bytes] = {"/proc/keys": (SECURE_BOOT / "proc-keys-6.12").read_bytes()}
VARIABLES = "/sys/firmware/efi/efivars"
UEFI: dict[str, str | bytes] = {
    f"{VARIABLES}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\0",
    f"{VARIABLES}/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23": (SECURE_BOOT / "mok-list-enrolled").read_bytes(),
}
SIGNED_BY = {
    name: {"/var/lib/dkms/mok.pub": (SECURE_BOOT / f"{name}.der").read_bytes()} for name in ("enrolled", "not-enrolled")
}
LOCKED: dict[str, str | bytes] = {"/sys/kernel/security/lockdown": "none [integrity] confidentiality\n"}
RUNTIME_OFF: dict[str, str | bytes] = {"/sys/firmware/efi/systab": "", "/sys/firmware/efi/runtime": ""}
SIGNING_PARTS = ("signatures_enforced", "kernel_keys", "secure_boot", "secure_boot_keys", "trusted_certificates")
ENFORCING: dict[str, dict[str, str | bytes]] = {
    "an option": {**ENFORCED, **KERNEL_KEYS, **SIGNED_BY["not-enrolled"]},
    "an option, and no key yet": {**ENFORCED, **KERNEL_KEYS},
    "an option with UEFI": {**ENFORCED, **UEFI, **SIGNED_BY["not-enrolled"]},
    "lockdown": {**LOCKED, **KERNEL_KEYS, "/sys/firmware/acpi/tables/DSDT": ""},
    "lockdown, UEFI without Secure Boot": {**LOCKED, **UEFI, **SIGNED_BY["not-enrolled"]},
    # Ubuntu's realtime kernels turn the runtime services of EFI off: canonical/pc-gadget#64
    "lockdown, and variables that cannot be read": {**LOCKED, **KERNEL_KEYS, **RUNTIME_OFF},
    "the same, and a key": {**LOCKED, **KERNEL_KEYS, **RUNTIME_OFF, **SIGNED_BY["not-enrolled"]},
    "an option, and variables that cannot be read": {
        "/sys/module/module/parameters/sig_enforce": "Y\n",
        "/proc/cmdline": "ro module.sig_enforce=1\n",
        **LOCKED,
        **KERNEL_KEYS,
        **RUNTIME_OFF,
    },
    "a service, and variables that cannot be read": {
        "/sys/module/module/parameters/sig_enforce": "Y\n",
        **KERNEL_KEYS,
        **RUNTIME_OFF,
    },
    "a configuration": {
        "/proc/sys/kernel/osrelease": "6.1.0-56-amd64\n",
        "/boot/config-6.1.0-56-amd64": "CONFIG_MODULE_SIG=y\nCONFIG_MODULE_SIG_FORCE=y\n",
    },
}


@pytest.mark.parametrize("files", ENFORCING.values(), ids=ENFORCING)
def test_modules_that_an_enforcing_kernel_would_reject_are_refused(
    tmp_path: Path, files: dict[str, str | bytes], snapshot: SnapshotAssertion
) -> None:
    found = run(**probed(tmp_path, files, *SIGNING_PARTS))
    assert codes(found) == (["module-signatures"], [])
    assert preflight.refusal(found.problems) == snapshot


@pytest.mark.parametrize(
    "files",
    [
        {**ENFORCED, **KERNEL_KEYS, **SIGNED_BY["enrolled"]},
        {**ENFORCED, **UEFI, **SIGNED_BY["enrolled"]},
        {**LOCKED, **RUNTIME_OFF, **KERNEL_KEYS, **SIGNED_BY["enrolled"]},
    ],
    ids=["in the kernel's keyring", "in the firmware, and the keyring is hidden", "Secure Boot that is not read"],
)
def test_an_enforcing_kernel_that_trusts_the_key_is_no_finding(tmp_path: Path, files: dict[str, str | bytes]) -> None:
    assert codes(run(**probed(tmp_path, files, *SIGNING_PARTS))) == ([], [])


def test_what_is_not_to_be_built_and_loaded_needs_no_signature(tmp_path: Path) -> None:
    parts = probed(tmp_path, ENFORCING["an option"], *SIGNING_PARTS)
    assert codes(run(**parts, **DRIVER_INSTALLED, **LOADED)) == ([], [])
    assert codes(run(options=CONTAINER, **parts)) == ([], [])
    assert codes(run({**COMPONENTS, "driver": {**COMPONENTS["driver"], "module_source": "prebuilt"}}, **parts))[0] == []


@pytest.mark.parametrize("name", ["enrolled", "not-enrolled"])
def test_lockdown_under_secure_boot_says_nothing_that_secure_boot_does_not(tmp_path: Path, name: str) -> None:
    enabled = {**UEFI, next(iter(UEFI)): b"\6\0\0\0\1", "/sys/kernel/security/lockdown": "none [integrity] x\n"}
    found = run(**probed(tmp_path, {**enabled, **KERNEL_KEYS, **SIGNED_BY[name]}, *SIGNING_PARTS))
    assert codes(found) == ([] if name == "enrolled" else ["secure-boot"], [])


@pytest.mark.parametrize(("name", "expected"), [("enrolled", []), ("not-enrolled", ["module-signatures"])])
def test_a_key_of_the_user_must_be_one_of_the_enforcing_kernels(tmp_path: Path, name: str, expected: list[str]) -> None:
    content = (SECURE_BOOT / f"{name}.der").read_bytes()
    own = SigningCertificate("/k.der", hashlib.sha256(content).hexdigest(), module_keys.key_id(content) or "")
    for files in {**ENFORCED, **KERNEL_KEYS}, {**ENFORCED, **UEFI}:
        found = run(options=Options(signing=own), **probed(tmp_path / str(len(files)), files, *SIGNING_PARTS))
        assert codes(found)[0] == expected
        assert all("/k.der" in problem.message for problem in found.problems)
