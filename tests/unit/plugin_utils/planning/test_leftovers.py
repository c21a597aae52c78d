"""What other installers left: what blocks, what the user may let the run put away, and what is never touched."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, plan_diff, preflight

URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
OTHER_URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian11/x86_64/"
PPA = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/"
CONTAINERS = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
FILE = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
OLD = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
OLD_FILE = "/etc/apt/trusted.gpg.d/nvidia.gpg"

PLAN: dict[str, Any] = {
    "distribution": "debian-12",
    "repository": {"url": URL},
    "problems": [],
    "request": {"leftovers": "refuse"},
    "components": {
        **dict.fromkeys(("cudnn", "nccl", "tensorflow", "pytorch")),
        "driver": {
            "version": "595.71.05",
            "branch": "595",
            "kernel_modules": "open",
            "source": "nvidia",
            "packages": ["nvidia-driver-cuda=595.71.05-1", "nvidia-kernel-open-dkms=595.71.05-1"],
        },
        "cuda": {
            "version": "13.2",
            "release": "13.2.1",
            "source": "nvidia",
            "packages": ["cuda-toolkit-13-2=13.2.1-1"],
        },
    },
}
REMOVE = {**PLAN, "request": {"leftovers": "remove"}}
DRIVER = {"uninstaller": "/usr/bin/nvidia-uninstall", "traces": ["/usr/bin/nvidia-uninstall"], "version": "550.54.14"}
TOOLKIT = {"version": "13.2", "uninstaller": "/usr/local/cuda-13.2/bin/cuda-uninstaller"}
KEYRING_THERE = {"cuda-keyring": {"version": "1.1-1", "status": "installed", "held": False}}


def runfile(driver: Any = None, *toolkits: Any) -> dict[str, Any]:
    return {"runfile": {"driver": driver, "toolkits": list(toolkits)}}


def sources(*entries: tuple[str, str, str | None], keys: Any = None, mixed: Any = ()) -> dict[str, Any]:
    found = [{"file": file, "uri": uri, "suite": "/", "signed_by": key} for file, uri, key in entries]
    return {"repository_files": {"entries": found, "keys": keys or {}, "mixed": list(mixed)}}


NOTHING: dict[str, list[str]] = {"set_aside": [], "purge": [], "driver_uninstallers": [], "cuda_uninstallers": []}
# What there is, whether it blocks, what a run does that may remove it.
FOUND: dict[str, tuple[dict[str, Any], bool, dict[str, list[str]]]] = {
    "driver": (runfile(DRIVER), True, {"driver_uninstallers": ["/usr/bin/nvidia-uninstall"]}),
    "driver without its uninstaller": (runfile({**DRIVER, "uninstaller": None}), True, {}),
    "toolkit in the planned folder": (runfile(None, TOOLKIT), True, {"cuda_uninstallers": [TOOLKIT["uninstaller"]]}),
    "toolkit beside the planned one": (runfile(None, {**TOOLKIT, "version": "12.4"}), False, {}),
    "source with another key": (sources((FILE, URL, KEYRING)), True, {"set_aside": [FILE]}),
    "source of cuda-keyring": (
        {**sources((FILE, URL, KEYRING)), "packages": KEYRING_THERE},
        True,
        {"set_aside": [FILE], "purge": ["cuda-keyring"]},
    ),
    "hand-made source beside cuda-keyring": (
        {**sources((FILE, URL, "/etc/own.gpg")), "packages": KEYRING_THERE},
        True,
        {"set_aside": [FILE]},
    ),
    "removed cuda-keyring": (
        {
            **sources((FILE, URL, KEYRING)),
            "packages": {"cuda-keyring": {**KEYRING_THERE["cuda-keyring"], "status": "config-files"}},
        },
        True,
        {"set_aside": [FILE]},
    ),
    "source without a key": (sources((FILE, URL, None)), True, {"set_aside": [FILE]}),
    "source in a file of others": (sources((FILE, URL, None), mixed=[FILE]), True, {}),
    "repository of another release": (sources((FILE, OTHER_URL, KEYRING)), False, {"set_aside": [FILE]}),
    "PPA": (sources(("/e/p.list", PPA, None)), False, {"set_aside": ["/e/p.list"]}),
    "PPA in a file of others": (sources(("/e/p.list", PPA, None), mixed=["/e/p.list"]), False, {}),
    "container toolkit": (sources(("/e/c.list", CONTAINERS, "/k")), False, {}),
    "old key": (sources(keys={OLD_FILE: [OLD]}), False, {"set_aside": [OLD_FILE]}),
    "old key among others": (sources(keys={OLD_FILE: [OLD]}, mixed=[OLD_FILE]), False, {}),
    "two entries of one file": (sources((FILE, URL, None), (FILE, OTHER_URL, None)), True, {"set_aside": [FILE]}),
}


@pytest.mark.parametrize(("probe", "blocks", "does"), FOUND.values(), ids=FOUND)
def test_refused_by_default(probe: dict[str, Any], blocks: bool, does: Any) -> None:
    found = preflight.preflight(PLAN, probe)
    assert bool(found["problems"]) == blocks
    assert bool(found["warnings"]) or blocks
    for problem in found["problems"]:
        assert ("-e gpu_stack_leftovers=remove" in problem["remedy"]) == bool(does)
    assert leftovers.work(PLAN, probe) == {"does": [], **NOTHING}


@pytest.mark.parametrize(("probe", "blocks", "does"), FOUND.values(), ids=FOUND)
def test_removed_where_the_user_says_so(probe: dict[str, Any], blocks: bool, does: dict[str, list[str]]) -> None:
    work = leftovers.work(REMOVE, probe)
    assert {name: work[name] for name in NOTHING} == {**NOTHING, **does}
    assert bool(work["does"]) == bool(does)
    found = preflight.preflight(REMOVE, probe)
    assert bool(found["problems"]) == (blocks and not does), "what the run does not put away still stands in the way"
    told = " ".join(warning["message"] for warning in found["warnings"])
    for target in [target for targets in does.values() for target in targets]:
        assert target in told
        assert any(target in sentence for sentence in work["does"])
    json.dumps(work)


def test_the_plan_says_beforehand_what_goes() -> None:
    probe = {**runfile(DRIVER, TOOLKIT), **sources((FILE, URL, KEYRING)), "packages": KEYRING_THERE}
    diff = plan_diff.plan_diff(REMOVE, probe)
    assert diff["changes"] is True
    assert [line for line in plan_diff.diff_table(diff).splitlines() if line.startswith("First: ")] == [
        "First: driver 550.54.14 of the .run installer is uninstalled by /usr/bin/nvidia-uninstall; "
        "no undo brings it back",
        "First: CUDA 13.2 of the .run installer is uninstalled by /usr/local/cuda-13.2/bin/cuda-uninstaller; "
        "no undo brings it back",
        f"First: {FILE} is moved to /var/lib/gpuhost/set_aside, and cuda-keyring, which brought it, is purged",
    ]
    assert plan_diff.plan_diff(PLAN, probe)["leftovers"]["does"] == []


def test_a_driver_and_a_toolkit_that_are_not_planned_stay() -> None:
    plan = copy.deepcopy(REMOVE)
    plan["components"].update(driver=None, cuda=None)
    assert leftovers.work(plan, runfile(DRIVER, TOOLKIT)) == {"does": [], **NOTHING}
    plan["components"]["cuda"] = {**PLAN["components"]["cuda"], "source": "distro"}  # /usr is not its folder
    assert leftovers.work(plan, runfile(None, TOOLKIT)) == {"does": [], **NOTHING}


def test_our_own_source_and_another_with_our_key_are_no_leftovers() -> None:
    own = leftovers.Own()
    probe = sources((own.repository_file, URL, own.repository_key), ("/e/mine.list", URL, own.repository_key))
    assert leftovers.find(REMOVE, probe) == []


def test_the_folder_is_the_one_that_the_role_moves_files_to() -> None:
    role = CATALOG_FOLDER.parent / "roles/nvidia_repo/defaults/main.yml"
    defaults = yaml.safe_load(role.read_text())
    assert defaults["nvidia_repo_set_aside_folder"] == leftovers.FOLDER
    assert defaults["nvidia_repo_key_path"] == leftovers.Own().repository_key
