"""Leftovers of other installers: what blocks a plan, what a run may remove, and what it never touches."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import leftovers, plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import Cleanup
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Preflight
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import listed, put, put_repository
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

KEYS = [OLD, planning_cases.KEY_FINGERPRINT]

COMPONENTS = {"driver": planning_cases.DRIVER, "cuda": planning_cases.CUDA}
REFUSE = make_plan(COMPONENTS, url=URL)
REMOVE = make_plan(COMPONENTS, {"leftovers": "remove"}, URL)
DRIVER = {"uninstaller": "/usr/bin/nvidia-uninstall", "traces": ["/usr/bin/nvidia-uninstall"], "version": "550.54.14"}
TOOLKIT = {"version": "13.2", "uninstaller": "/usr/local/cuda-13.2/bin/cuda-uninstaller"}
KEYRING_PACKAGE = {"cuda-keyring": {"version": "1.1-1", "status": "installed", "held": False}}


def runfile(driver: Any = None, *toolkits: Any) -> dict[str, Any]:
    return {"runfile": {"driver": driver, "toolkits": list(toolkits)}}


def sources(
    *entries: tuple[str, str, str | None], keys: Any = None, mixed: Any = (), trusted: Any = None
) -> dict[str, Any]:
    found = [{"file": file, "uri": uri, "suite": "/", "signed_by": key} for file, uri, key in entries]
    found = [entry if trusted is None else {**entry, "keys": list(trusted)} for entry in found]
    return {"repository_files": {"entries": found, "keys": keys or {}, "mixed": list(mixed)}}


# The leftover, whether it blocks the plan, what the run does about it with gpu_stack_leftovers=remove.
CASES: dict[str, tuple[dict[str, Any], bool, dict[str, list[str]]]] = {
    "driver": (runfile(DRIVER), True, {"driver_uninstallers": ["/usr/bin/nvidia-uninstall"]}),
    "driver without its uninstaller": (runfile({**DRIVER, "uninstaller": None}), True, {}),
    "toolkit in the planned directory": (runfile(None, TOOLKIT), True, {"cuda_uninstallers": [TOOLKIT["uninstaller"]]}),
    "toolkit beside the planned one": (runfile(None, {**TOOLKIT, "version": "12.4"}), False, {}),
    "source with another key": (sources((FILE, URL, KEYRING)), True, {"set_aside": [FILE]}),
    "source of cuda-keyring whose key is not known": (
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
    "source of cuda-keyring with another key than NVIDIA's": (
        {**sources((FILE, URL, KEYRING), trusted=[OLD]), "packages": KEYRING_PACKAGE},
        True,
        {"set_aside": [FILE], "purge": ["cuda-keyring"]},
    ),
    "source without a key": (sources((FILE, URL, None)), True, {"set_aside": [FILE]}),
    "source in a file with other repositories": (sources((FILE, URL, None), mixed=[FILE]), True, {}),
    "repository of another release": (sources((FILE, OTHER_URL, KEYRING)), False, {"set_aside": [FILE]}),
    "PPA": (sources(("/e/p.list", PPA, None)), False, {"set_aside": ["/e/p.list"]}),
    "PPA in a file with other repositories": (sources(("/e/p.list", PPA, None), mixed=["/e/p.list"]), False, {}),
    "old key": (sources(keys={OLD_FILE: [OLD]}), False, {"set_aside": [OLD_FILE]}),
    "old key among others": (sources(keys={OLD_FILE: [OLD]}, mixed=[OLD_FILE]), False, {}),
    "two entries of one file": (sources((FILE, URL, None), (FILE, OTHER_URL, None)), True, {"set_aside": [FILE]}),
}


@pytest.mark.parametrize(
    ("parts", "file"),
    [
        (sources((FILE, URL, KEYRING), trusted=KEYS), FILE),
        (sources((FILE, URL.rstrip("/"), KEYRING), ("/e/cuda.sources", URL, KEYRING), trusted=KEYS), FILE),
        (sources((FILE, URL, KEYRING), trusted=[OLD]), ""),
        (sources((FILE, URL, KEYRING)), ""),
        (sources((FILE, OTHER_URL, KEYRING), trusted=KEYS), ""),
        (sources((FILE, URL, KEYRING), (leftovers.OWN_SOURCES[0], URL, KEYRING), trusted=KEYS), ""),
        ({}, ""),
    ],
    ids=["cuda-keyring's", "two", "another key", "a key that is not known", "another URL", "beside ours", "none"],
)
def test_a_source_with_the_planned_url_and_key_is_adopted(parts: dict[str, Any], file: str) -> None:
    for plan in (REFUSE, REMOVE):
        diff = plan_diff.plan_diff(plan, make_probe(**parts))
        assert diff.adopted_source == file
        assert not file or check(plan, parts) == Preflight((), ())


@pytest.mark.parametrize("uri", [URL, "https://nvidia.github.io/libnvidia-container/stable/deb/amd64"])
def test_a_repository_with_two_values_of_signed_by_is_refused(uri: str) -> None:
    twice = sources((FILE, uri, KEYRING), ("/e/toolkit.sources", f"{uri.rstrip('/')}/", "/k"), trusted=KEYS)
    for plan in (REFUSE, REMOVE):
        (problem,) = check(plan, twice).problems
        assert problem.code == "stale-repository"
        assert "/e/toolkit.sources (signed by /k)" in problem.message
    assert cleanup() == leftovers.cleanup(REMOVE, make_probe(**twice))


def cleanup(**targets: Any) -> Cleanup:
    return Cleanup(**{name: tuple(values) for name, values in targets.items()})


def check(plan: Plan, parts: dict[str, Any]) -> Preflight:
    probe = make_probe(**parts)
    return checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe))


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


QUIET = {
    "container toolkit": ("/e/c.list", CONTAINERS),
    "DGX OS": ("/etc/apt/sources.list.d/dgx.list", "https://repo.download.nvidia.com/baseos/ubuntu/jammy/x86_64/"),
}


@pytest.mark.parametrize("offers", [None, False, True])
@pytest.mark.parametrize(("file", "uri"), QUIET.values(), ids=QUIET)
def test_nvidias_name_in_an_address_is_no_reason_to_remove_a_source(file: str, uri: str, offers: bool | None) -> None:
    """The addresses of libnvidia-container and of DGX OS (NVIDIA/deepops roles/nvidia-dgx); neither wins."""
    parts = sources((file, uri, "/k"))
    parts["repository_files"]["entries"][0]["offers"] = offers
    assert leftovers.find(REMOVE, make_probe(**parts)) == []


def test_a_conflicting_repository_that_offers_nothing_of_a_plan_is_no_leftover() -> None:
    parts = sources((FILE, OTHER_URL, KEYRING))
    for offers, expected in ((None, 1), (True, 1), (False, 0)):
        parts["repository_files"]["entries"][0]["offers"] = offers
        assert len(leftovers.find(REMOVE, make_probe(**parts))) == expected


def test_the_plan_shows_beforehand_what_is_removed(snapshot: SnapshotAssertion) -> None:
    parts = {**runfile(DRIVER, TOOLKIT), **sources((FILE, URL, KEYRING)), "packages": KEYRING_PACKAGE}
    diff = plan_diff.plan_diff(REMOVE, make_probe(**parts))
    assert diff.changes is True
    assert list(diff.leftovers.does) == snapshot
    assert plan_diff.plan_diff(REFUSE, make_probe(**parts)).leftovers.does == ()


def test_a_driver_and_a_toolkit_that_are_not_planned_stay() -> None:
    request = {"leftovers": "remove"}
    assert leftovers.cleanup(make_plan({}, request), make_probe(**runfile(DRIVER, TOOLKIT))) == Cleanup()
    distro = make_plan({"cuda": {**COMPONENTS["cuda"], "source": "distro"}}, request)  # its directory is /usr
    assert leftovers.cleanup(distro, make_probe(**runfile(None, TOOLKIT))) == Cleanup()


def test_gpuhosts_own_source_and_another_one_with_its_key_are_not_leftovers() -> None:
    parts = sources((leftovers.OWN_SOURCES[0], URL, leftovers.OWN_KEY), ("/e/mine.list", URL, leftovers.OWN_KEY))
    assert leftovers.find(REMOVE, make_probe(**parts)) == []


def test_paths_are_the_defaults_of_the_role() -> None:
    role = CATALOG_FOLDER.parent / "roles/nvidia_repo/defaults/main.yml"
    defaults = yaml.safe_load(role.read_text())
    assert defaults["nvidia_repo_set_aside_folder"] == leftovers.SET_ASIDE_DIRECTORY
    assert defaults["nvidia_repo_key_path"] == leftovers.OWN_KEY


# Sources of others that win over a plan's, from the files of a host ---------------------------------------------------

OURS = {"libnccl2": "2.29.7-1+cuda13.2", "nvidia-driver-cuda": "595.71.05-1", "cuda-toolkit-13-2": "13.2.1-1"}
NCCL = {"nccl": {"version": "2.29.7", "packages": ["libnccl2=2.29.7-1+cuda13.2"]}}
PINNED = {"driver": {**planning_cases.DRIVER, "pinning_packages": ["nvidia-driver-pinning-595=595-1"]}}
DISTRO = {
    "driver": {
        **planning_cases.DRIVER,
        "version": "580",
        "branch": "580",
        "source": "distro",
        "packages": ["nvidia-smi"],
    }
}
LAMBDA, LAMBDA_FILE = (
    "http://archive.lambdalabs.com/ubuntu",
    "/etc/apt/sources.list.d/archive-lambdalabs-com-ubuntu.list",
)
PREFERENCES = "/etc/apt/preferences.d/lambda"
PIN = "Package: *\nPin: origin archive.lambdalabs.com\nPin-Priority: {}\n"  # lambdal/lambda-stack-dockerfiles
needs_apt = pytest.mark.skipif(not shutil.which("apt-cache"), reason="needs apt-cache")


def laid_out(root: Path, uri: str, rows: dict[str, str], priority: int | None = None, suite: str = "jammy") -> None:
    """Lay out Debian 12 with a repository of others, and with NVIDIA's list, which apt keeps without its source."""
    put(root, "/etc/os-release", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\n')
    put(root, "/var/lib/dpkg/status", "")
    put(root, f"{apt_lists.LISTS}/{apt_lists.list_name(URL)}_Packages", listed(OURS))
    put(root, f"{apt_lists.LISTS}/{apt_lists.list_name(URL)}_InRelease", "Origin: NVIDIA\nLabel: NVIDIA CUDA\n")
    archive = listed({"nvidia-smi": "580.95.05-1"})
    put_repository(root, "http://deb.debian.org/debian", "bookworm", archive, "Origin: Debian\nSuite: stable\n")
    put_repository(root, uri, suite, listed(rows), f"Origin: somebody\nCodename: {suite}\n")
    if priority is not None:
        put(root, PREFERENCES, PIN.format(priority))


def probed(root: Path, url: str = URL) -> Probe:
    options = facts.probe_options(load_catalog())
    for name in ("package_patterns", "repository_patterns", "kernel_tools"):
        options[name] = tuple(options[name])
    fixed = {"repository_url": url, "repositories": {}, "repository_check": False, "tensorflow_path": "/opt/none"}
    return Probe.from_json(to_json(host_probe.probe(str(root), host_probe.Options(**fixed, **options))))


def stale(
    root: Path, components: dict[str, Any], url: str | None = URL, probe: Probe | None = None, **request: str
) -> Preflight:
    """Return what the preflight says about repositories."""
    plan, probe = make_plan(components, request, url), probe or probed(root)
    found = checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe))
    return Preflight(
        tuple(problem for problem in found.problems if problem.code == "stale-repository"),
        tuple(warning for warning in found.warnings if warning.code == "stale-repository"),
    )


@needs_apt
def test_a_source_that_wins_is_refused_with_its_pin_and_remedies_that_help(tmp_path: Path, snapshot: str) -> None:
    laid_out(tmp_path, LAMBDA, {"libnccl2": "2.26.2-1", "cuda-toolkit-13-2": "13.2.0-1"}, 1001)
    (problem,) = stale(tmp_path, {**COMPONENTS, **NCCL}).problems
    assert f"{problem.message}; {problem.remedy}" == snapshot
    (warning,) = stale(tmp_path, NCCL, leftovers="remove").warnings
    assert f"move {LAMBDA_FILE} to {leftovers.SET_ASIDE_DIRECTORY}" in warning.message
    assert leftovers.cleanup(make_plan(NCCL, {"leftovers": "remove"}, URL), probed(tmp_path)).set_aside == (
        LAMBDA_FILE,
    )
    put(tmp_path, PREFERENCES, PIN.format(100))
    assert stale(tmp_path, NCCL).problems == ()
    put(tmp_path, PREFERENCES, PIN.format(1001))
    (tmp_path / LAMBDA_FILE.lstrip("/")).unlink()
    assert stale(tmp_path, NCCL).problems == ()


@needs_apt
def test_a_source_that_wins_without_a_pin_gets_one_below_the_others(tmp_path: Path, snapshot: str) -> None:
    mirror = "https://apt.corp.example/cuda/debian12"
    laid_out(tmp_path, mirror, {"libnccl2": "2.30.7-1+cuda13.2"}, suite="/")
    (problem,) = stale(tmp_path, NCCL).problems
    assert f"{problem.message}; {problem.remedy}" == snapshot
    record = problem.remedy.partition("(")[2].partition(")")[0]
    put(tmp_path, "/etc/apt/preferences.d/corp", record.replace("; ", "\n") + "\n")
    assert stale(tmp_path, NCCL).problems == ()


@needs_apt
def test_nvidias_local_installer_with_another_driver_is_refused(tmp_path: Path) -> None:
    """The address as its package writes it (nvidia-driver-local-repo-ubuntu2404-565.57.01)."""
    laid_out(tmp_path, "file:///var/nvidia-driver-local-repo", {"nvidia-driver-cuda": "999.57.01-1"}, suite="/")
    (problem,) = stale(tmp_path, COMPONENTS).problems
    assert "/etc/apt/sources.list.d/var-nvidia-driver-local-repo.list defines file:/var/" in problem.message
    record = problem.remedy.partition("(")[2].partition(")")[0]
    put(tmp_path, "/etc/apt/preferences.d/local", record.replace("; ", "\n") + "\n")
    assert stale(tmp_path, COMPONENTS).problems == ()


@needs_apt
def test_a_negative_pin_of_the_planned_repository_is_named(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Without the other source, apt would have no package at all: the run doesn't move it away."""
    laid_out(tmp_path, LAMBDA, {"libnccl2": "2.26.2-1"})
    pin = 'Package: *\nPin: origin "developer.download.nvidia.com"\nPin-Priority: -1\n'
    put(tmp_path, "/etc/apt/preferences.d/no-nvidia", pin)
    (problem,) = stale(tmp_path, NCCL, leftovers="remove").problems
    away = "/etc/apt/preferences.d/no-nvidia"
    assert away in problem.remedy
    assert [problem.message, problem.remedy] == snapshot
    assert leftovers.cleanup(make_plan(NCCL, {"leftovers": "remove"}, URL), probed(tmp_path)) == Cleanup()
    put(tmp_path, away, pin.replace("-1", "100"))
    (problem,) = stale(tmp_path, NCCL).problems
    assert away not in problem.message
    (tmp_path / away.lstrip("/")).unlink()
    assert stale(tmp_path, NCCL).problems == ()


@needs_apt
def test_that_apt_could_not_be_asked_is_said(tmp_path: Path) -> None:
    laid_out(tmp_path, LAMBDA, {"libnccl2": "2.26.2-1"}, 1001)
    put(tmp_path, "/etc/apt/sources.list.d/broken.list", "deb http://broken.example\n")
    plan, probe = make_plan(NCCL, url=URL), probed(tmp_path)
    found = checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe))
    (warning,) = [warning for warning in found.warnings if "/etc/apt/sources.list.d/broken.list" in warning.message]
    assert warning.code == "probe-incomplete"


@needs_apt
def test_a_file_with_more_than_the_source_is_left_to_the_administrator(tmp_path: Path) -> None:
    laid_out(tmp_path, LAMBDA, {"libnccl2": "2.26.2-1"}, 1001)
    with (tmp_path / LAMBDA_FILE.lstrip("/")).open("a") as stream:
        stream.write("deb http://deb.debian.org/debian bookworm contrib\n")
    (problem,) = stale(tmp_path, NCCL, leftovers="remove").problems
    assert problem.remedy.endswith(f"remove that entry from {LAMBDA_FILE}; the file also defines other repositories")


@needs_apt
def test_a_source_that_wins_over_what_is_installed_is_a_warning(tmp_path: Path) -> None:
    laid_out(tmp_path, LAMBDA, {"libnccl2": "2.26.2-1"}, 1001)
    status = "Package: libnccl2\nStatus: hold ok installed\nArchitecture: amd64\nVersion: {}\n"
    put(tmp_path, "/var/lib/dpkg/status", status.format("2.29.7-1+cuda13.2"))
    found = stale(tmp_path, NCCL)
    assert (len(found.problems), len(found.warnings)) == (0, 1)
    put(tmp_path, "/var/lib/dpkg/status", status.format("2.26.2-1"))
    assert len(stale(tmp_path, NCCL).problems) == 1


AGAINST: dict[str, tuple[dict[str, Any], str | None, dict[str, str], int | None, bool]] = {
    "what is planned without it": (NCCL, URL, {"cuda-toolkit-13-2": "13.2.0-1"}, 1001, False),
    "the planned version, which a mirror has": (NCCL, URL, {"libnccl2": "2.29.7-1+cuda13.2"}, 1001, False),
    "NVIDIA's packages as older": (NCCL, URL, {"libnccl2": "2.26.2-1"}, None, False),
    "tools of containers": (COMPONENTS, URL, {"nvidia-container-toolkit": "1.18"}, 1001, False),
    "compilers": (COMPONENTS, URL, {"gcc-12": "13", "g++": "14"}, None, False),
    "a driver that will be pinned": (PINNED, URL, {"nvidia-driver-cuda": "620.70.06-1"}, 600, False),
    "a driver beyond the pin": (PINNED, URL, {"nvidia-driver-cuda": "570.1-1"}, 1001, True),
    "a newer driver that the pin allows": (PINNED, URL, {"nvidia-driver-cuda": "595.99.02-1"}, None, True),
    "a driver without a pin": (COMPONENTS, URL, {"nvidia-driver-cuda": "620.70.06-1"}, 600, True),
    "the archive's driver, whose rivals will be pinned": (DISTRO, URL, {"nvidia-smi": "595.1"}, 600, False),
    "the archive's driver alone": (DISTRO, None, {"nvidia-smi": "595.1"}, None, True),
    "the archive's driver as older": (DISTRO, None, {"nvidia-smi": "570.1"}, None, False),
}


@needs_apt
@pytest.mark.parametrize(("components", "url", "rows", "priority", "wins"), AGAINST.values(), ids=AGAINST)
def test_only_a_source_that_wins_over_a_planned_package_is_a_problem(
    tmp_path: Path, components: dict[str, Any], url: str | None, rows: dict[str, str], priority: int | None, wins: bool
) -> None:
    laid_out(tmp_path, LAMBDA, rows, priority)
    found = stale(tmp_path, components, url)
    assert (len(found.problems), found.warnings) == (int(wins), ())


@needs_apt
@pytest.mark.parametrize(("components", "wins"), [(DISTRO, 1), (NCCL, 0)], ids=["the archive's", "NVIDIA's"])
def test_without_nvidias_repository_the_sources_that_win_over_the_archive_are_seen(
    tmp_path: Path, components: dict[str, Any], wins: int
) -> None:
    """As on a host without a way to NVIDIA's servers, which gets the driver of the archive."""
    laid_out(tmp_path, LAMBDA, {"nvidia-smi": "595.1", "libnccl2": "2.26.2-1"}, 600)
    archive = listed({"nvidia-smi": "580.95.05-1", "libnccl2": "2.18.1-1"})
    put_repository(tmp_path, "http://deb.debian.org/debian", "bookworm", archive, "Origin: Debian\nSuite: stable\n")
    for path in (tmp_path / apt_lists.LISTS.lstrip("/")).glob(f"{apt_lists.list_name(URL)}*"):
        path.unlink()
    assert probed(tmp_path, "file:///none/").repository.error
    found = stale(tmp_path, components, None, probe=probed(tmp_path, "file:///none/"))
    assert ["nvidia-smi 595.1 (planned: that of the archive)" in p.message for p in found.problems] == [True] * wins


@needs_apt
def test_the_repository_of_dgx_os_stays(tmp_path: Path) -> None:
    """Its file and its packages as NVIDIA/deepops installs them (roles/nvidia-dgx)."""
    uri = "https://repo.download.nvidia.com/baseos/ubuntu/jammy/x86_64"
    rows = {"nvidia-system-core": "24.05-1", "nvidia-mlnx-config": "24.05-1", "nvidia-acs-disable": "20.08-1"}
    laid_out(tmp_path, uri, rows)
    put(tmp_path, "/etc/dgx-release", 'DGX_NAME="DGX Server"\n')
    assert probed(tmp_path).repository_files.entries[0].offers is False
    assert stale(tmp_path, COMPONENTS) == Preflight((), ())
    for path in (tmp_path / apt_lists.LISTS.lstrip("/")).glob("repo.download*"):
        path.unlink()
    assert stale(tmp_path, COMPONENTS) == Preflight((), ())
