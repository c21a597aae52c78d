"""Preflight: each host problem by its code, with what it says; and hosts on which it has to stay silent."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.filter.preflight import gpu_jobs
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import gpu_processes
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import Options

KEY = "/etc/apt/keyrings/nvidia-cuda.asc"
URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
PLAN: dict[str, Any] = {
    "distribution": "debian-12",
    "repository": {"url": URL},
    "problems": [],
    "components": {
        "driver": {
            "version": "595.71.05",
            "branch": "595",
            "kernel_modules": "open",
            "source": "nvidia",
            "packages": ["nvidia-driver-cuda=595.71.05-1", "nvidia-kernel-open-dkms=595.71.05-1"],
            "pinning_packages": [],
            "kernel_headers": ["linux-headers-amd64"],
        },
        "cuda": {
            "version": "13.2",
            "release": "13.2.1",
            "source": "nvidia",
            "packages": ["cuda-toolkit-13-2=13.2.1-1"],
        },
        "cudnn": {"version": "9.28", "packages": ["libcudnn9-cuda-13=9.28-1", "libcudnn9-dev-cuda-13=9.28-1"]},
        "nccl": None,
        "tensorflow": {"version": "2.21.0", "python": "3.11"},
        "pytorch": None,
    },
}


def link(width: int | None = 16, speed: float | None = 16.0, **more: Any) -> dict[str, Any]:
    return {
        "link": {"speed": speed, "max_speed": 16.0, "width": width, "max_width": 16},
        "slot": None,
        "iommu_type": None,
        **more,
    }


def space(free: int, mount: str = "/") -> dict[str, Any]:
    return {"free_mib": free, "total_mib": 10**6, "mount": mount}


DIRECTORIES = ("/", "/usr", "/usr/local", "/opt/gpuhost/environments", "/var", "/var/cache/gpuhost/uv")
PROBE: dict[str, Any] = {
    "kernel": {
        "running": "6.1.0-56-amd64",
        "next_boot": "6.1.0-56-amd64",
        "headers": ["6.1.0-56-amd64"],
        "headers_from": {},
    },
    "gpus": [{"pci_address": "0000:05:00.0", "kernel_driver": None}],
    "nvswitches": [],
    "pcie": {"gpus": {"0000:05:00.0": link(), "0000:26:00.0": link()}, "acs": {}, "kernel_options": []},
    "driver": {"loaded": None, "nouveau_loaded": False, "nvidia_smi": None},
    "gpu_processes": [],
    "packages": {},
    "package_manager": {"name": "apt", "locks": [], "broken": [], "interrupted": False},
    "runfile": {"driver": None, "toolkits": []},
    "repository": {
        "sizes": {  # KiB
            "nvidia-driver-cuda": {"595.71.05-1": [200 * 1024, 500 * 1024, []]},
            "nvidia-kernel-open-dkms": {"595.71.05-1": [100 * 1024, 300 * 1024, []]},
            "cuda-toolkit-13-2": {"13.2.1-1": [3000 * 1024, 7000 * 1024, []]},
            "libcudnn9-cuda-13": {"9.28-1": [400 * 1024, 1000 * 1024, []]},
            "libcudnn9-dev-cuda-13": {"9.28-1": [401 * 1024, 1001 * 1024, ["libcudnn9-cuda-13"]]},
        }
    },
    "repository_files": {"entries": [], "keys": {}},
    "cuda": {"installed": []},
    "tensorflow": None,
    "secure_boot": "disabled",
    "secure_boot_keys": [],
    "disk": {directory: space(10**6) for directory in DIRECTORIES},
}
DRIVER_THERE = {
    "packages": {
        name: {"version": "595.71.05-1", "status": "installed", "held": True}
        for name in ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")
    }
}
ALL_THERE = {
    "packages": {
        **DRIVER_THERE["packages"],
        "cuda-toolkit-13-2": {"version": "13.2.1-1", "status": "installed", "held": True},
        "libcudnn9-cuda-13": {"version": "9.28-1", "status": "installed", "held": True},
        "libcudnn9-dev-cuda-13": {"version": "9.28-1", "status": "installed", "held": True},
    },
    "tensorflow": {"version": "2.21.0", "python": "3.11"},
}
LOADED = {"driver": {"loaded": {"version": "595.71.05"}, "nouveau_loaded": False}}


def run(plan: Any = None, options: Options | None = None, **probe: Any) -> dict[str, Any]:
    return preflight.preflight(plan or PLAN, {**copy.deepcopy(PROBE), **probe}, options)


def without(*names: str) -> dict[str, Any]:
    return {**PLAN, "components": {n: None if n in names else c for n, c in PLAN["components"].items()}}


def codes(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    return [p["code"] for p in found["problems"]], [w["code"] for w in found["warnings"]]


def test_a_tidy_host_has_nothing_against_it() -> None:
    assert run() == {"schema": 1, "ok": True, "problems": [], "warnings": []}


LOCK = {"path": "/var/lib/dpkg/lock-frontend", "pid": 812, "command": "/usr/bin/unattended-upgrade"}
BUSY = {"name": "apt", "locks": [LOCK, {**LOCK, "path": "/var/lib/dpkg/lock"}], "broken": [], "interrupted": False}
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
HIDDEN_JOB = [{**JOB[0], "computes": False, "devices": ["nvidia0", "nvidia-uvm"]}]  # of another PID namespace's view
DISPLAY = [{"pid": 8, "name": "/usr/lib/xorg/Xorg", "program": "Xorg", "computes": False, "devices": ["nvidia0"]}]
DAEMONS = [{**JOB[0], "program": program} for program in gpu_processes.SERVICES]
ENROLLED = [{"path": "/var/lib/dkms/mok.pub", "enrolled": True}]
NOT_ENROLLED = [{"path": "/var/lib/dkms/mok.pub", "enrolled": False}]
NOUVEAU = {"loaded": None, "nouveau_loaded": True}


def kernel(running: str, following: str, headers: list[str], offers: Any) -> dict[str, Any]:
    return {"kernel": {"running": running, "next_boot": following, "headers": headers, "headers_from": offers}}


def entry(file: str, uri: str = URL, key: str | None = None) -> dict[str, Any]:
    return {"repository_files": {"entries": [{"file": file, "uri": uri, "suite": "/", "signed_by": key}], "keys": {}}}


CASES: dict[str, tuple[dict[str, Any], Any, list[str], str]] = {
    "locked": (
        {"package_manager": BUSY},
        PLAN,
        ["apt-busy"],
        "process 812 (/usr/bin/unattended-upgrade) holds /var/lib/dpkg/lock-frontend, /var/lib/dpkg/lock",
    ),
    "half-done while locked": ({"package_manager": {**BUSY, "broken": BROKEN["broken"]}}, PLAN, ["apt-busy"], "812"),
    "driver of a .run file": ({"runfile": RUN_DRIVER}, PLAN, ["runfile-install"], "driver 550.54.14"),
    "toolkit of a .run file in the way": ({"runfile": RUN_CUDA}, PLAN, ["runfile-install"], "CUDA 13.2"),
    "job": ({"gpu_processes": JOB}, PLAN, ["gpu-busy"], "7 (python3 train.py)"),
    "job that nvidia-smi does not list": ({"gpu_processes": HIDDEN_JOB}, PLAN, ["gpu-busy"], "7 (python3 train.py)"),
    "Secure Boot without a key": ({"secure_boot": "enabled"}, PLAN, ["secure-boot"], "trusts no key"),
    "Secure Boot, key not enrolled": (
        {"secure_boot": "enabled", "secure_boot_keys": NOT_ENROLLED},
        PLAN,
        ["secure-boot"],
        "/var/lib/dkms/mok.pub is there but not enrolled",
    ),
    "headers that no planned package brings": (
        kernel("6.1.0-50-amd64", "6.1.0-56-amd64", ["6.1.0-56-amd64"], {"6.1.0-50-amd64": []}),
        PLAN,
        ["kernel-headers-missing"],
        "6.1.0-50-amd64 (running)",
    ),
    "headers of the next kernel": (
        kernel("a", "6.1.0-50-amd64", ["a"], {"6.1.0-50-amd64": ["linux-headers-6.1.0-50-amd64"]}),
        PLAN,
        ["kernel-headers-missing"],
        "6.1.0-50-amd64 (next to start)",
    ),
    "cuda-keyring's source": (
        entry("/e/cuda-debian12-x86_64.list", key="/k"),
        PLAN,
        ["stale-repository"],
        "signed by /k",
    ),
    "source without a key": (entry("/e/cuda.list"), PLAN, ["stale-repository"], "any trusted key"),
    "source without the last slash": (
        entry("/e/cuda.list", URL.rstrip("/")),
        PLAN,
        ["stale-repository"],
        "/e/cuda.list",
    ),
}


@pytest.mark.parametrize(("probe", "plan", "expected", "said"), CASES.values(), ids=CASES)
def test_problems(probe: dict[str, Any], plan: Any, expected: list[str], said: str) -> None:
    found = run(plan, **probe)
    assert codes(found) == (expected, [])
    assert said in found["problems"][0]["message"]
    assert found["problems"][0]["remedy"]
    assert found["ok"] is False


CONTAINER = Options(own_kernel=False, kernel_headers=())
NO_HEADERS = kernel("6.18.44", "6.18.44", [], {"6.18.44": []})
SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "the daemons that the driver brings": ({"gpu_processes": DAEMONS}, PLAN, None),
    "a job, and the driver stays": ({"gpu_processes": JOB, **DRIVER_THERE, **LOADED}, PLAN, None),
    "a job, and no driver is asked for": ({"gpu_processes": JOB}, without("driver"), None),
    "a .run driver that shall stay": ({"runfile": RUN_DRIVER}, without("driver"), None),
    "half-done packages, and nothing changes": ({"package_manager": BROKEN, **ALL_THERE, **LOADED}, PLAN, None),
    "Secure Boot with an enrolled key": ({"secure_boot": "enabled", "secure_boot_keys": ENROLLED}, PLAN, None),
    "Secure Boot, and the module is loaded": ({"secure_boot": "enabled", **DRIVER_THERE, **LOADED}, PLAN, None),
    "Secure Boot on a borrowed kernel": ({"secure_boot": "enabled"}, PLAN, CONTAINER),
    "headers of a borrowed kernel": (NO_HEADERS, PLAN, CONTAINER),
    "headers that the planned package brings": (
        kernel("6.1.0-56-amd64", "6.1.0-56-amd64", [], {"6.1.0-56-amd64": ["linux-headers-amd64"]}),
        PLAN,
        None,
    ),
    "headers, and the inventory names their package": (
        kernel("6.1.0-50-amd64", "6.1.0-50-amd64", [], {"6.1.0-50-amd64": ["linux-headers-6.1.0-50-amd64"]}),
        PLAN,
        Options(kernel_headers=("linux-headers-6.1.0-50-amd64",)),
    ),
    "our own source": (entry("/etc/apt/sources.list.d/nvidia-cuda.sources", key=KEY), PLAN, None),
    "another file with our key": (entry("/e/cuda.list", key=KEY), PLAN, None),
    "nouveau, which is another kernel's": ({"driver": NOUVEAU}, PLAN, CONTAINER),
    "a slow link under a driver that saves power": (
        {"pcie": {**PROBE["pcie"], "gpus": {"a": link(speed=2.5)}}, **LOADED},
        PLAN,
        None,
    ),
    "a link that nothing is known of": ({"pcie": {**PROBE["pcie"], "gpus": {"a": link(None, None)}}}, PLAN, None),
}


@pytest.mark.parametrize(("probe", "plan", "options"), SILENT.values(), ids=SILENT)
def test_silence(probe: dict[str, Any], plan: Any, options: Options | None) -> None:
    assert codes(run(plan, options, **probe)) == ([], [])


def pcie(*gpus: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"pcie": {**PROBE["pcie"], "gpus": {f"0000:{n:02x}:00.0": gpu for n, gpu in enumerate(gpus)}, **more}}


TRANSLATED, IDENTITY = link(iommu_type="DMA-FQ"), link(iommu_type="identity")
WARNINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "locked, and nothing changes": ({"package_manager": BUSY, **ALL_THERE, **LOADED}, "apt-busy", "812"),
    "half-configured": ({"package_manager": BROKEN}, "dpkg-interrupted", "dkms is half-configured; this run finishes"),
    "interrupted": (
        {"package_manager": {**BROKEN, "broken": [], "interrupted": True}},
        "dpkg-interrupted",
        "its journal is not worked off; this run finishes that first (dpkg --configure -a",
    ),
    "toolkit of a .run file beside": ({"runfile": OTHER_RUN_CUDA}, "runfile-install", "CUDA 12.4"),
    "display": ({"gpu_processes": DISPLAY}, "gpu-busy", "8 (/usr/lib/xorg/Xorg): no job"),
    "nouveau": ({"driver": NOUVEAU}, "nouveau-in-use", "reboot"),
    "nouveau bound": (
        {"gpus": [{"pci_address": "0000:05:00.0", "kernel_driver": "nouveau"}]},
        "nouveau-in-use",
        "drives 0000:05:00.0",
    ),
    "narrow": (pcie(link(8)), "pcie-link-below-ability", "x8 of x16;"),
    "narrow slot": (pcie(link(8, slot={"max_width": 8, "max_speed": 16.0})), "pcie-link-below-ability", "able to x8"),
    "slow": (pcie(link(speed=8.0)), "pcie-link-below-ability", "8 of 16 GT/s"),
    "IOMMU": (
        pcie(TRANSLATED, TRANSLATED, kernel_options=["intel_iommu=on"]),
        "peer-to-peer-blocked",
        "intel_iommu=on",
    ),
    "ACS": (pcie(link(), link(), acs={"b": ["SrcValid", "ReqRedir"], "c": None}), "peer-to-peer-blocked", "bridges b "),
    "PPA": (
        entry("/e/p.list", "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"),
        "stale-repository",
        "p.list",
    ),
    "old key": (
        {
            "repository_files": {
                "entries": [],
                "keys": {"/etc/apt/trusted.gpg": ["AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"]},
            }
        },
        "stale-repository",
        "old key",
    ),
    "no apt lists": (kernel("a", "a", [], None), "kernel-headers-missing", "apt lists"),
}


@pytest.mark.parametrize(("probe", "code", "said"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(probe: dict[str, Any], code: str, said: str) -> None:
    found = run(**probe)
    assert codes(found) == ([], [code])
    assert said in found["warnings"][0]["message"]


@pytest.mark.parametrize(
    ("probe"),
    [
        pcie(IDENTITY, IDENTITY),
        pcie(TRANSLATED),
        {**pcie(TRANSLATED, TRANSLATED), "nvswitches": [{"pci_address": "x"}]},
        pcie(link(), acs={"b": ["ReqRedir"]}),
        pcie(link(), link(), acs={"b": ["SrcValid", "UpstreamFwd"], "c": []}),
    ],
    ids=["passthrough", "one GPU", "NVSwitch", "ACS over one GPU", "ACS that redirects nothing"],
)
def test_peer_to_peer_is_left_alone(probe: dict[str, Any]) -> None:
    assert codes(run(**probe)) == ([], [])


# Disk -----------------------------------------------------------------------------------------------------------

DOWNLOAD = 200 + 100 + 3000 + 401
PACKAGES = 500 + 300 + 1001
RESERVE = 1024
ENVIRONMENT = 6203


def disk(**mounts: int) -> dict[str, Any]:
    """Free MiB by mount: root, and others by their directory's last word."""
    found = {directory: space(mounts["root"]) for directory in DIRECTORIES}
    for directory in DIRECTORIES:
        for path in ("/opt", "/opt/gpuhost", "/var", "/usr"):
            part = path.rpartition("/")[2]
            if part in mounts and (directory + "/").startswith(path + "/"):
                found[directory] = space(mounts[part], path)
    return found


@pytest.mark.parametrize(
    ("free", "full"),
    [
        ({"root": DOWNLOAD + PACKAGES + 7000 + ENVIRONMENT + RESERVE}, []),
        ({"root": DOWNLOAD + PACKAGES + 7000 + ENVIRONMENT + RESERVE - 1}, ["/"]),
        ({"root": 0, "var": DOWNLOAD + ENVIRONMENT + RESERVE, "usr": 10**6, "opt": ENVIRONMENT + RESERVE}, []),
        ({"root": 0, "var": DOWNLOAD + ENVIRONMENT + RESERVE - 1, "usr": 9823, "opt": 0}, ["/var", "/usr", "/opt"]),
        ({"root": 10**6, "gpuhost": ENVIRONMENT + RESERVE - 1}, ["/opt/gpuhost"]),
    ],
    ids=["just enough", "one MiB short", "file systems of their own", "each too small", "one for this project alone"],
)
def test_disk_space_is_added_up_by_file_system(free: dict[str, int], full: list[str]) -> None:
    found = run(disk=disk(**free))
    assert [p["message"].split()[4] for p in found["problems"]] == full
    assert {p["code"] for p in found["problems"]} <= {"disk-full"}


def test_what_is_there_needs_no_room_and_a_replaced_package_only_its_download() -> None:
    assert run(disk=disk(root=0), **ALL_THERE, **LOADED)["ok"] is True
    older = copy.deepcopy(ALL_THERE)
    older["packages"]["cuda-toolkit-13-2"]["version"] = "13.2.0-1"
    message = run(disk=disk(root=0), **older, **LOADED)["problems"][0]["message"]
    assert "needed are 4024 MiB (CUDA toolkit download 3000 MiB, reserve 1024 MiB)" in message


def test_sizes_of_the_archive_come_from_the_catalog() -> None:
    plan = copy.deepcopy(without("driver", "cudnn", "tensorflow"))
    plan["components"]["cuda"] = {
        "version": "11.8",
        "release": "11.8.0",
        "source": "distro",
        "packages": ["nvidia-cuda-toolkit"],
    }
    sizes = yaml.safe_load((CATALOG_FOLDER / "disk.yml").read_text())
    entry = next(e for e in sizes["archive"] if e["component"] == "cuda")
    needed = entry["download_mib"] + entry["installed_mib"] + sizes["reserve_mib"]
    assert run(plan, disk=disk(root=needed))["ok"] is True
    assert run(plan, disk=disk(root=needed - 1))["ok"] is False


def test_an_environment_that_was_not_measured_counts_as_the_largest() -> None:
    sizes = yaml.safe_load((CATALOG_FOLDER / "disk.yml").read_text())
    for name in ("tensorflow", "pytorch"):
        assert preflight._environment_size(name, "2.99.0", sizes) == max(e["installed_mib"] for e in sizes[name])
    assert preflight._environment_size("pytorch", "2.15.0", sizes) == 5266


def test_a_second_environment_needs_room_of_its_own() -> None:
    plan = without("driver", "cuda", "cudnn")
    plan["components"]["pytorch"] = {"version": "2.15.0", "python": "3.11"}
    room = {**disk(root=12000), "/var/cache/gpuhost/uv": space(5000, "/var")}
    assert codes(run(plan, disk=room))[0] == ["disk-full", "disk-full"]
    messages = [problem["message"] for problem in run(plan, disk=room)["problems"]]
    assert "TensorFlow environment 6203 MiB, PyTorch environment 5266 MiB" in messages[0]
    assert "TensorFlow packages 6203 MiB, PyTorch packages 5266 MiB" in messages[1]
    there = {"tensorflow": plan["components"]["tensorflow"], "pytorch": plan["components"]["pytorch"]}
    assert run(plan, disk=room, **there)["ok"] is True


# All of them ----------------------------------------------------------------------------------------------------


def test_all_problems_of_plan_and_host_are_told_at_once() -> None:
    found = run(package_manager=BUSY, runfile=RUN_DRIVER, gpu_processes=JOB, secure_boot="enabled", disk=disk(root=0))
    assert codes(found)[0] == ["apt-busy", "runfile-install", "gpu-busy", "secure-boot", "disk-full"]
    plan = {**PLAN, "problems": [{"code": "no-gpu", "message": "none", "remedy": "put one in"}]}
    text = preflight.refusal(plan, found)
    assert text.splitlines()[:3] == [
        "6 problem(s) stand in the way; nothing was changed on this host.",
        "- no-gpu: none",
        "  Remedy: put one in",
    ]
    assert text.count("\n  Remedy: ") == 6


def test_a_plan_with_problems_and_a_probe_with_gaps_are_looked_at_all_the_same() -> None:
    plan = {**PLAN, "components": {}, "repository": None}
    assert run(plan, package_manager=None, pcie=None, repository_files=None, runfile=None, disk=None)["ok"] is True


def test_every_code_is_documented() -> None:
    source = Path(preflight.__file__).resolve()
    told = set(re.findall(r'findings\.(?:problem|warn)\(\s*"([a-z-]+)"', source.read_text()))
    told |= set(re.findall(r'Leftover\(\s*"([a-z-]+)"', (source.parent / "leftovers.py").read_text()))
    assert len(told) == 13
    documented = set(
        re.findall(r"^\| `([a-z-]+)` \|", (source.parents[3] / "docs/preflight.md").read_text(), re.MULTILINE)
    )
    assert documented - told == {"no-gpu"}  # the resolver tells it
    assert told <= documented


LOCKS = ("tensorflow-2.21.0.txt", "pytorch-2.15.0.txt", "uv.txt")


@pytest.mark.parametrize(
    ("name", "lock", "codes"),
    [
        ("tensorflow", "tensorflow-2.21.0.txt", []),
        ("tensorflow", "tensorflow-1.15.5-system.txt", ["lock-missing"]),
        ("pytorch", "pytorch-2.15.0.txt", []),
        ("pytorch", "pytorch-2.9.1.txt", ["lock-missing"]),
    ],
    ids=["there", "missing", "PyTorch's there", "PyTorch's missing"],
)
def test_a_plan_without_its_lock_file_is_refused(name, lock, codes):
    plan = copy.deepcopy(PLAN)
    plan["components"]["tensorflow"]["lock"] = "tensorflow-2.21.0.txt"
    plan["components"][name] = {"version": "2.9.1", "python": "3.11", "lock": lock}
    problems = preflight.preflight(plan, PROBE, Options(locks=LOCKS))["problems"]
    assert [problem["code"] for problem in problems] == codes
    for problem in problems:
        assert f"roles/{name}_env/files holds no lock {lock}" in problem["message"]
        assert f"script/lock {lock.removesuffix('.txt')}" in problem["remedy"]
        assert f"gpu_stack_{name}=none" in problem["remedy"]


def test_programs_that_compute_are_named_to_what_goes_back_and_services_are_not():
    assert gpu_jobs({"gpu_processes": [*JOB, *DAEMONS]}) == f"{JOB[0]['pid']} ({JOB[0]['name']})"
    assert gpu_jobs({"gpu_processes": DAEMONS}) == ""
    assert gpu_jobs({"gpu_processes": None}) == ""


@pytest.mark.parametrize("name", ["tensorflow", "pytorch"])
def test_what_stands_in_the_place_of_the_environment_is_told_before_the_driver_moves(name):
    probe = {**PROBE, f"{name}_in_the_way": "a folder"}
    with_it = copy.deepcopy(PLAN)
    with_it["components"][name] = {"version": "2.15.0", "python": "3.11"}
    found = preflight.preflight(with_it, probe)
    (problem,) = [problem for problem in found["problems"] if problem["code"] == "path-taken"]
    assert problem["message"].startswith(f"a folder stands at /opt/gpuhost/{name},")
    assert f"mv /opt/gpuhost/{name}" in problem["remedy"]
    without = copy.deepcopy(PLAN)
    without["components"][name] = None
    for plan, host in ((without, probe), (with_it, {**PROBE, f"{name}_in_the_way": None})):
        assert [p for p in preflight.preflight(plan, host)["problems"] if p["code"] == "path-taken"] == []
