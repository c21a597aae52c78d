"""Leftovers of other installers: what blocks a plan, what a run may remove, and what it never touches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, plan_diff, preflight
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup

from tests.unit.plugin_utils.planning import planning_cases
from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe

URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
OTHER_URL = "https://developer.download.nvidia.com/compute/cuda/repos/debian11/x86_64/"
PPA = "https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/"
CONTAINERS = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"
KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
FILE = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
OLD = "AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80"
OLD_FILE = "/etc/apt/trusted.gpg.d/nvidia.gpg"

COMPONENTS = {"driver": planning_cases.DRIVER, "cuda": planning_cases.CUDA}
REFUSE = make_plan(COMPONENTS, url=URL)
REMOVE = make_plan(COMPONENTS, {"leftovers": "remove"}, URL)
DRIVER = {"uninstaller": "/usr/bin/nvidia-uninstall", "traces": ["/usr/bin/nvidia-uninstall"], "version": "550.54.14"}
TOOLKIT = {"version": "13.2", "uninstaller": "/usr/local/cuda-13.2/bin/cuda-uninstaller"}
KEYRING_PACKAGE = {"cuda-keyring": {"version": "1.1-1", "status": "installed", "held": False}}


def runfile(driver: Any = None, *toolkits: Any) -> dict[str, Any]:
    return {"runfile": {"driver": driver, "toolkits": list(toolkits)}}


def sources(*entries: tuple[str, str, str | None], keys: Any = None, mixed: Any = ()) -> dict[str, Any]:
    found = [{"file": file, "uri": uri, "suite": "/", "signed_by": key} for file, uri, key in entries]
    return {"repository_files": {"entries": found, "keys": keys or {}, "mixed": list(mixed)}}


# The leftover, whether it blocks the plan, what the run does about it with gpu_stack_leftovers=remove.
CASES: dict[str, tuple[dict[str, Any], bool, dict[str, list[str]]]] = {
    "driver": (runfile(DRIVER), True, {"driver_uninstallers": ["/usr/bin/nvidia-uninstall"]}),
    "driver without its uninstaller": (runfile({**DRIVER, "uninstaller": None}), True, {}),
    "toolkit in the planned directory": (runfile(None, TOOLKIT), True, {"cuda_uninstallers": [TOOLKIT["uninstaller"]]}),
    "toolkit beside the planned one": (runfile(None, {**TOOLKIT, "version": "12.4"}), False, {}),
    "source with another key": (sources((FILE, URL, KEYRING)), True, {"set_aside": [FILE]}),
    "source of cuda-keyring": (
        {**sources((FILE, URL, KEYRING)), "packages": KEYRING_PACKAGE},
        True,
        {"set_aside": [FILE], "purge": ["cuda-keyring"]},
    ),
    "hand-written source beside cuda-keyring": (
        {**sources((FILE, URL, "/etc/own.gpg")), "packages": KEYRING_PACKAGE},
        True,
        {"set_aside": [FILE]},
    ),
    "removed cuda-keyring": (
        {
            **sources((FILE, URL, KEYRING)),
            "packages": {"cuda-keyring": {**KEYRING_PACKAGE["cuda-keyring"], "status": "config-files"}},
        },
        True,
        {"set_aside": [FILE]},
    ),
    "source without a key": (sources((FILE, URL, None)), True, {"set_aside": [FILE]}),
    "source in a file with other repositories": (sources((FILE, URL, None), mixed=[FILE]), True, {}),
    "repository of another release": (sources((FILE, OTHER_URL, KEYRING)), False, {"set_aside": [FILE]}),
    "PPA": (sources(("/e/p.list", PPA, None)), False, {"set_aside": ["/e/p.list"]}),
    "PPA in a file with other repositories": (sources(("/e/p.list", PPA, None), mixed=["/e/p.list"]), False, {}),
    "container toolkit": (sources(("/e/c.list", CONTAINERS, "/k")), False, {}),
    "old key": (sources(keys={OLD_FILE: [OLD]}), False, {"set_aside": [OLD_FILE]}),
    "old key among others": (sources(keys={OLD_FILE: [OLD]}, mixed=[OLD_FILE]), False, {}),
    "two entries of one file": (sources((FILE, URL, None), (FILE, OTHER_URL, None)), True, {"set_aside": [FILE]}),
}


def cleanup(**targets: Any) -> Cleanup:
    return Cleanup(**{name: tuple(values) for name, values in targets.items()})


def check(plan: Plan, parts: dict[str, Any]) -> preflight.Preflight:
    probe = make_probe(**parts)
    return preflight.preflight(plan, probe, plan_diff.plan_diff(plan, probe))


@pytest.mark.parametrize(("parts", "blocks", "targets"), CASES.values(), ids=CASES)
def test_leftovers_are_refused_by_default(parts: dict[str, Any], blocks: bool, targets: Any) -> None:
    found = check(REFUSE, parts)
    assert bool(found.problems) == blocks
    assert found.warnings or blocks
    for problem in found.problems:
        assert ("-e gpu_stack_leftovers=remove" in problem.remedy) == bool(targets)
    assert leftovers.cleanup(REFUSE, make_probe(**parts)) == Cleanup()


@pytest.mark.parametrize(("parts", "blocks", "targets"), CASES.values(), ids=CASES)
def test_leftovers_are_removed_on_request(parts: dict[str, Any], blocks: bool, targets: dict[str, list[str]]) -> None:
    found = leftovers.cleanup(REMOVE, make_probe(**parts))
    assert dataclasses.replace(found, does=()) == cleanup(**targets)
    assert bool(found.does) == bool(targets)
    findings = check(REMOVE, parts)
    assert bool(findings.problems) == (blocks and not targets), "what the run does not remove still blocks the plan"
    messages = " ".join(warning.message for warning in findings.warnings)
    for target in [target for names in targets.values() for target in names]:
        assert target in messages
        assert any(target in sentence for sentence in found.does)


def test_the_plan_shows_beforehand_what_is_removed() -> None:
    parts = {**runfile(DRIVER, TOOLKIT), **sources((FILE, URL, KEYRING)), "packages": KEYRING_PACKAGE}
    diff = plan_diff.plan_diff(REMOVE, make_probe(**parts))
    assert diff.changes is True
    assert [line for line in plan_diff.diff_lines(diff) if line.startswith("First: ")] == [
        "First: uninstall driver 550.54.14 of the .run installer with /usr/bin/nvidia-uninstall "
        "(cannot be rolled back)",
        "First: uninstall CUDA 13.2 of the .run installer with /usr/local/cuda-13.2/bin/cuda-uninstaller "
        "(cannot be rolled back)",
        f"First: move {FILE} to /var/lib/gpuhost/set_aside and purge cuda-keyring, which installed it",
    ]
    assert plan_diff.plan_diff(REFUSE, make_probe(**parts)).leftovers.does == ()


def test_a_driver_and_a_toolkit_that_are_not_planned_stay() -> None:
    request = {"leftovers": "remove"}
    assert leftovers.cleanup(make_plan({}, request), make_probe(**runfile(DRIVER, TOOLKIT))) == Cleanup()
    distro = make_plan({"cuda": {**COMPONENTS["cuda"], "source": "distro"}}, request)  # its directory is /usr
    assert leftovers.cleanup(distro, make_probe(**runfile(None, TOOLKIT))) == Cleanup()


def test_gpuhosts_own_source_and_another_one_with_its_key_are_not_leftovers() -> None:
    parts = sources((leftovers.OWN_SOURCE, URL, leftovers.OWN_KEY), ("/e/mine.list", URL, leftovers.OWN_KEY))
    assert leftovers.find(REMOVE, make_probe(**parts)) == []


def test_paths_are_the_defaults_of_the_role() -> None:
    role = CATALOG_FOLDER.parent / "roles/nvidia_repo/defaults/main.yml"
    defaults = yaml.safe_load(role.read_text())
    assert defaults["nvidia_repo_set_aside_folder"] == leftovers.SET_ASIDE_DIRECTORY
    assert defaults["nvidia_repo_key_path"] == leftovers.OWN_KEY
