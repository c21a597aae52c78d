"""The package manager before a change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import packages
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    BROKEN,
    BUSY,
    LOADED,
    codes,
    refused,
    run,
    warned,
)

HALF_CONFIGURED = {"name": "nvidia-docker", "state": "half-configured", "of_others": True}
PROBLEMS: dict[str, tuple[dict[str, Any], str]] = {
    "locked": (
        {"package_manager": BUSY},
        "apt-busy",
    ),
    "cloud-init": ({"cloud_init_running": True}, "cloud-init-running"),
    "half-installed and locked": (
        {"package_manager": {**BUSY, "broken": BROKEN["broken"]}},
        "apt-busy",
    ),
    "half-configured by others": ({"package_manager": {**BROKEN, "broken": [HALF_CONFIGURED]}}, "packages-broken"),
}


@pytest.mark.parametrize(("parts", "code"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert refused(code, **parts) == snapshot


WARNINGS: dict[str, tuple[dict[str, Any], str]] = {
    "locked, and nothing changes": ({"package_manager": BUSY, **ALL_INSTALLED, **LOADED}, "apt-busy"),
    "half-configured": ({"package_manager": BROKEN}, "dpkg-interrupted"),
    "interrupted": (
        {"package_manager": {**BROKEN, "broken": [], "interrupted": True}},
        "dpkg-interrupted",
    ),
    # That apt finishes it is what the plan says.
    "half-configured by others, and planned": (
        {"package_manager": {**BROKEN, "broken": [{**HALF_CONFIGURED, "name": "nvidia-driver-cuda"}]}},
        "dpkg-interrupted",
    ),
}


@pytest.mark.parametrize(("parts", "code"), WARNINGS.values(), ids=WARNINGS)
def test_warnings(parts: dict[str, Any], code: str, snapshot: SnapshotAssertion) -> None:
    assert warned(code, **parts) == snapshot


SILENT: dict[str, tuple[dict[str, Any], Any, Options | None]] = {
    "cloud-init, and nothing changes": ({"cloud_init_running": True, **ALL_INSTALLED, **LOADED}, None, None),
    "half-installed, and nothing changes": (
        {"package_manager": BROKEN, **ALL_INSTALLED, **LOADED},
        None,
        None,
    ),
}


@pytest.mark.parametrize(("parts", "components", "options"), SILENT.values(), ids=SILENT)
def test_no_finding(parts: dict[str, Any], components: Any, options: Options | None) -> None:
    assert codes(run(components, options, **parts)) == ([], [])


# apt 2.6 where the name of the server is not found; dnf 4.14; apt where versions do not fit.
NO_SERVER = """`apt-get download nvidia-driver-pinning-595=595-1` failed with status 100:
Ign:1 http://repository.lab/cuda/debian12/x86_64 nvidia-driver-pinning-595 595-1
Err:1 http://repository.lab/cuda/debian12/x86_64 nvidia-driver-pinning-595 595-1
  Could not resolve 'repository.lab'
W: Download is performed unsandboxed as root as file '/a.deb' couldn't be accessed by user '_apt'.
E: Failed to fetch http://repository.lab/cuda/debian12/x86_64/a.deb  Could not resolve 'repository.lab'"""
NO_MIRROR = """Error: Failed to download metadata for repo 'cuda': Cannot download repomd.xml: All mirrors were tried
  - Curl error (7): Couldn't connect to server for https://repository.lab/repodata/repomd.xml [Connection refused]"""
NO_SOLUTION = (
    "`apt-get install a=1` failed with status 100:\nE: Unable to correct problems, you have held broken packages."
)


@pytest.mark.parametrize("message", [NO_SERVER, NO_MIRROR, NO_SOLUTION], ids=["server", "mirror", "solution"])
def test_what_a_host_refuses_has_the_remedy_of_its_repository(message: str, snapshot: SnapshotAssertion) -> None:
    found = packages.refused(message, load_catalog().words("debian-12"))
    assert dataclasses.asdict(found) == snapshot


def test_a_repository_that_a_repair_needs_is_a_problem_and_no_warning() -> None:
    """Nothing of the plan changes; a damaged package has to be installed again."""
    refused_by_host = packages.refused(NO_SERVER, load_catalog().words("debian-12"))
    unread = {"repository": {"error": "Could not resolve 'repository.lab'"}, **ALL_INSTALLED, **LOADED}
    assert codes(run(**unread)) == ([], ["repository-unreadable"])
    found = run(options=Options(refused=refused_by_host), **unread)
    assert codes(found) == (["repository-unreadable"], [])
