"""NVIDIA's repository, and what other installers left."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options, Preflight
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    COMPONENTS,
    LOADED,
    PROBE,
    RUN_DRIVER,
    URL,
    codes,
    refused,
    run,
    warned,
    without,
)

KEY = "/etc/apt/keyrings/nvidia-cuda.asc"
RUN_CUDA = {
    "driver": None,
    "toolkits": [{"version": "13.2", "uninstaller": "/usr/local/cuda-13.2/bin/cuda-uninstaller"}],
}
OTHER_RUN_CUDA = {"driver": None, "toolkits": [{"version": "12.4", "uninstaller": "/u"}]}


def entry(file: str, uri: str = URL, key: str | None = None) -> dict[str, Any]:
    return {"repository_files": {"entries": [{"file": file, "uri": uri, "suite": "/", "signed_by": key}], "keys": {}}}


PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "driver of a .run file": ({"runfile": RUN_DRIVER}, "runfile-install"),
    "toolkit of a .run file in the planned directory": ({"runfile": RUN_CUDA}, "runfile-install"),
    "cuda-keyring's source": (
        entry("/e/cuda-debian12-x86_64.list", key="/k"),
        "stale-repository",
    ),
    "source without a key": (entry("/e/cuda.list"), "stale-repository"),
    "source without the last slash": (
        entry("/e/cuda.list", URL.rstrip("/")),
        "stale-repository",
    ),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "toolkit of a .run file beside the planned one": ({"runfile": OTHER_RUN_CUDA}, "runfile-install"),
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
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "a .run driver, and no driver is planned": ({"runfile": RUN_DRIVER}, without("driver"), None),
    "gpuhost's own source": (entry("/etc/apt/sources.list.d/nvidia-cuda.sources", key=KEY), None, None),
    "another source with gpuhost's key": (entry("/e/cuda.list", key=KEY), None, None),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


LEFT = {"dkms_leftovers": [{"module": "nvidia/570.86.15", "has_source": True}]}


def test_the_module_of_a_run_file_has_a_finding_of_its_own() -> None:
    runfile = {"driver": {"uninstaller": None, "traces": ["/usr/bin/nvidia-uninstall"], "version": "570.86.15"}}
    assert codes(run(runfile={**runfile, "toolkits": []}, driver={"loaded": None, **LEFT})) == (["runfile-install"], [])


UNREAD = "https://mirror/cuda/InRelease: 407  Proxy Authentication Required [IP: 10.0.0.1 3128]"


@pytest.mark.parametrize("how", ["error", "unreachable"])
def test_an_unreadable_repository_is_a_problem_where_something_is_installed_from_it(how: str) -> None:
    unread = {**PROBE["repository"], how: UNREAD}
    (problem,) = run(repository=unread).problems
    assert problem.code == "repository-unreadable"
    assert problem.message.endswith(f"{UNREAD}; the proxy asks for a user name and password")
    assert "Acquire::http::Proxy" in problem.remedy
    assert codes(run(repository=unread, **{**ALL_INSTALLED, **LOADED})) == ([], ["repository-unreadable"])
    packages = {name: each for name, each in ALL_INSTALLED["packages"].items() if "cudnn" not in name}
    assert codes(run(repository=unread, **{**ALL_INSTALLED, **LOADED, "packages": packages}))[0] == [
        "repository-unreadable"
    ]
    # A framework is not in it, nor is what the distribution has.
    assert codes(run(without("driver", "cuda", "cudnn"), repository=unread)) == ([], ["repository-unreadable"])
    assert (
        codes(
            run({**without("cuda", "cudnn"), "driver": {**COMPONENTS["driver"], "source": "distro"}}, repository=unread)
        )[0]
        == []
    )


def test_leftovers_of_others_stay_where_frameworks_alone_are_installed() -> None:
    alone = without("driver", "cuda", "cudnn", "nccl")
    plan = make_plan(alone, request={"scope": "frameworks", "leftovers": "remove"})
    probe = make_probe(**{**PROBE, "runfile": RUN_DRIVER})
    assert plan_diff.plan_diff(plan, probe).leftovers.does == ()


def checked_on_el(
    probe: dict[str, Any],
    fingerprint: str = "610C7B14E068A878070DA4E99CD0A493D42D0685",
    distribution: str = "rocky-9",
    repositories: tuple[str, ...] = ("crb", "epel"),
) -> Preflight:
    plan = make_plan(COMPONENTS, url=URL)
    repository = {"url": URL, "key_url": URL + "K.pub", "key_fingerprint": fingerprint}
    driver = dataclasses.replace(plan.components["driver"], repositories=repositories)
    components = plan.components.but(driver=driver)
    plan = dataclasses.replace(plan, distribution=distribution, repository=repository, components=components)
    found = make_probe(**{**PROBE, **probe})
    return checks.preflight(plan, found, plan_diff.plan_diff(plan, found))


def preflight_of_el(probe: dict[str, Any], **more: Any) -> tuple[list[str], list[str]]:
    return codes(checked_on_el(probe, **more))


@pytest.mark.parametrize(
    ("enabled", "refused"),
    [(["baseos", "appstream"], True), (["baseos", "crb"], True), (["baseos", "crb", "epel"], False), (None, False)],
    ids=["both", "one", "none", "no dnf"],
)
def test_repositories_that_dkms_needs_are_enabled(enabled: list[str] | None, refused: bool) -> None:
    problems, _warnings = preflight_of_el({"repository_files": {"entries": [], "keys": {}, "enabled": enabled}})
    assert ("repository-disabled" in problems) is refused


BUILDER = "codeready-builder-for-rhel-9-x86_64-rpms"


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        (BUILDER, False),
        ("codeready-builder-for-rhel-9-rhui-rpms", False),  # of AWS
        ("codeready-builder-for-rhel-9-x86_64-rhui-rpms", False),  # of Azure
        ("codeready-builder-for-rhel-9-x86_64-eus-rpms", False),
        ("rhui-codeready-builder-for-rhel-9-x86_64-rhui-rpms", False),  # of Google
        ("codeready-builder-for-rhel-9-x86_64-rhui-debug-rpms", True),
        ("codeready-builder-for-rhel-10-x86_64-rpms", True),
    ],
)
def test_a_repository_has_another_name_in_a_cloud(name: str, refused: bool) -> None:
    files = {"entries": [], "keys": {}, "enabled": [name, "epel"]}
    found = checked_on_el({"repository_files": files}, distribution="rhel-9", repositories=(BUILDER, "epel"))
    problems = [problem for problem in found.problems if problem.code == "repository-disabled"]
    assert bool(problems) is refused
    assert not refused or f"subscription-manager repos --enable {BUILDER};" in problems[0].remedy


def test_a_key_whose_fingerprint_nobody_knows_is_not_trusted() -> None:
    """As that of NVIDIA's repository for EL 10 (catalog/distro/el-10.yml)."""
    assert "repository-key-unknown" not in preflight_of_el({})[0]
    assert "repository-key-unknown" in preflight_of_el({}, fingerprint="")[0]
    assert "repository-key-unknown" not in preflight_of_el(ALL_INSTALLED, fingerprint="")[0]
