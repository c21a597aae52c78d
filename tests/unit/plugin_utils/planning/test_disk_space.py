"""Disk space: what a plan needs on each file system, from the repository's sizes and catalog/disk.yml."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import temporary_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.disk_space import (
    Directories,
    ExtraPackages,
    load_sizes,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight.model import Options
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    ALL_INSTALLED,
    COMPONENTS,
    DIRECTORIES,
    LOADED,
    codes,
    run,
    run_as_a_user,
    space,
    without,
)

PROJECT = Path(__file__).resolve().parents[4]
FIXTURES = PROJECT / "tests/fixtures"
DOWNLOAD = 200 + 100 + 3000 + 401
PACKAGES = 500 + 300 + 1001
RESERVE = 1024
ENVIRONMENT = 6203
VERIFICATION = 384
ON_VAR = DOWNLOAD + ENVIRONMENT + VERIFICATION


def disk(**mounts: int) -> dict[str, Any]:
    """The probe's disk from free MiB by mount: root, and others by the last part of their path."""
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
        ({"root": ON_VAR + PACKAGES + 7000 + RESERVE}, []),
        ({"root": ON_VAR + PACKAGES + 7000 + RESERVE - 1}, ["/"]),
        ({"root": 0, "var": ON_VAR + RESERVE, "usr": 10**6, "opt": ENVIRONMENT + RESERVE}, []),
        ({"root": 0, "var": ON_VAR + RESERVE - 1, "usr": 9823, "opt": 0}, ["/var", "/usr", "/opt"]),
        ({"root": 10**6, "gpuhost": ENVIRONMENT + RESERVE - 1}, ["/opt/gpuhost"]),
    ],
    ids=["just enough", "one MiB short", "file systems of their own", "each too small", "one for this project alone"],
)
def test_disk_space_is_added_up_by_file_system(free: dict[str, int], full: list[str]) -> None:
    found = run(disk=disk(**free))
    assert [problem.message.split()[4] for problem in found.problems] == full
    assert {problem.code for problem in found.problems} <= {"disk-full"}


def test_installed_packages_need_no_space_and_replaced_ones_only_their_download() -> None:
    assert run(disk=disk(root=0), **ALL_INSTALLED, **LOADED).ok is True
    older = copy.deepcopy(ALL_INSTALLED)
    older["packages"]["cuda-toolkit-13-2"]["version"] = "13.2.0-1"
    message = run(disk=disk(root=0), **older, **LOADED).problems[0].message
    needs = "CUDA toolkit download 3000 MiB, checks and training 384 MiB, reserve 1024 MiB"
    assert f"expected at least 4408 MiB ({needs})" in message


def test_sizes_of_the_distributions_archive_come_from_the_catalog() -> None:
    cuda = {"version": "11.8", "release": "11.8.0", "source": "distro", "packages": ["nvidia-cuda-toolkit"]}
    sizes = load_sizes()
    entry = next(entry for entry in sizes.archive if entry.component == "cuda")
    needed = entry.download_mib + entry.installed_mib + sizes.verification_mib + sizes.reserve_mib
    assert run({"cuda": cuda}, disk=disk(root=needed)).ok is True
    assert run({"cuda": cuda}, disk=disk(root=needed - 1)).ok is False


def test_an_environment_that_was_not_measured_counts_as_the_largest() -> None:
    sizes = load_sizes()
    for name, entries in sizes.environments.items():
        assert sizes.environment_mib(name, "2.99.0") == max(entry.installed_mib for entry in entries)
    assert sizes.environment_mib("pytorch", "2.15.0") == 5266


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_the_largest_environment_is_what_its_wheels_unpack_to(framework: str) -> None:
    """It also counts for each release that was not measured; beside the files of the wheels it has Python's links."""
    sizes = json.loads((FIXTURES / "locks/unpacked.json").read_text())["environments"]
    largest = max(load_sizes().environments[framework], key=lambda entry: entry.installed_mib)
    assert 1 <= largest.installed_mib / (sizes[f"{framework}-{largest.version}"] / 2**20) < 1.01


def test_a_second_environment_needs_space_of_its_own() -> None:
    frameworks = {"tensorflow": COMPONENTS["tensorflow"], "pytorch": {"version": "2.15.0", "python": "3.11"}}
    room = {**disk(root=12000), "/var/cache/gpuhost/uv": space(5000, "/var")}
    assert codes(run(frameworks, disk=room))[0] == ["disk-full", "disk-full"]
    messages = [problem.message for problem in run(frameworks, disk=room).problems]
    assert "TensorFlow environment 6203 MiB, PyTorch environment 5266 MiB" in messages[0]
    assert "TensorFlow packages 6203 MiB, PyTorch packages 5266 MiB" in messages[1]
    assert run(frameworks, disk=room, **frameworks).ok is True


OLDER = {"loaded": None, "installed": {"version": "580.126.09", "package": "libcuda1"}}  # in the initramfs already


@pytest.mark.parametrize(("compression", "needed"), [(None, 1000), ("zst", 600)])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_small_var_tmp_has_space_to_build_an_initramfs(compression: str | None, needed: int, missing: int) -> None:
    """The first image is one whose tree and archive take 980 MiB, the second one's take 450 MiB."""
    found = {**disk(root=10**6), "/var/tmp": space(needed - missing, "/var/tmp")}
    kernel = {"running": None, "initramfs_mib": 200, "releases": {"6.8.0-41-generic": {"compression": compression}}}
    problems = run(disk=found, kernel=kernel, driver=OLDER).problems
    assert [problem.message for problem in problems] == missing * [
        f"the file system at /var/tmp has {needed - 1} MiB free; expected at least {needed} MiB "
        f"(the build of an initramfs {needed} MiB)"
    ]
    assert all("remove what programs left in /var/tmp" in problem.remedy for problem in problems)


def on_tmp(free: int, jobs: int = 1) -> dict[str, Any]:
    """A host with a /tmp of its own, such as a tmpfs, and with that many jobs of DKMS."""
    return {
        "disk": {**disk(root=10**6), "/tmp": space(free, "/tmp")},
        "kernel": {"running": None, "build_jobs": jobs},
    }


PREBUILT = {"driver": {**COMPONENTS["driver"], "module_source": "prebuilt"}}


@pytest.mark.parametrize(
    ("components", "jobs", "needed"),
    [
        (COMPONENTS, 1, 1 + 9),
        (COMPONENTS, 64, 1 + 9 + 63),
        ({**COMPONENTS, **PREBUILT}, 64, 1),
        (without("driver"), 64, 1),
        ({"tensorflow": COMPONENTS["tensorflow"]}, 64, 0),
    ],
    ids=["one core", "many cores", "prebuilt modules", "no driver", "frameworks alone"],
)
def test_a_small_tmp_is_found_before_apt_and_the_compiler_fill_it(
    components: dict[str, Any], jobs: int, needed: int, snapshot: SnapshotAssertion
) -> None:
    assert run(components, **on_tmp(needed, jobs)).ok is True
    assert run(components, **on_tmp(0, jobs)).ok is (needed == 0)
    if needed:
        (problem,) = run(components, **on_tmp(needed - 1, jobs)).problems
        assert problem.code == "disk-full"
        assert f"expected at least {needed} MiB" in problem.message
        assert [problem.message, problem.remedy] == snapshot


def test_the_documented_needs_of_tmp_are_those_of_the_code() -> None:
    sizes, text = load_sizes(), (PROJECT / "docs/first-hour.md").read_text()
    needs = (
        f"apt needs {sizes.signatures_mib} MiB there",
        f"DKMS {sizes.compiler_mib} MiB and {sizes.compiler_job_mib} more",
    )
    assert [each for each in (*needs, f"below {temporary_files.NEEDED_KIB} KiB") if each not in text] == []


def test_a_tmp_is_needed_for_changes_alone() -> None:
    assert run(**on_tmp(0, 64), **ALL_INSTALLED, **LOADED).ok is True


@pytest.mark.parametrize("free", [0, 15, 16])
def test_a_full_file_system_of_the_records_is_found_where_nothing_is_installed(free: int, snapshot: object) -> None:
    """What differs otherwise is repaired, and recorded there."""
    found = disk(root=10**6)
    found["/var/lib/gpuhost"] = space(free, "/var/lib/gpuhost")
    found["/var/lib/gpuhost/cifar10"] = found["/var/lib/gpuhost"]  # of the training, which the probe measures, too
    problems = run(disk=found, **ALL_INSTALLED, **LOADED).problems
    assert [problem.code for problem in problems] == ([] if free == 16 else ["disk-full"])
    assert [(problem.message, problem.remedy) for problem in problems] == snapshot


@pytest.mark.parametrize(
    ("needed", "image", "driver", "next_boot"),
    [
        (60, 60, OLDER, "6.1.0-50-amd64"),
        (60 + 170, 60, {"loaded": None}, None),
        (60 + 170, 60, {"loaded": None, "installed": {"version": None}}, "6.1.0-56-amd64"),
        (60 + 2 * 170, 60, {"loaded": None}, "6.1.0-50-amd64"),
        (0, 0, {"loaded": None}, None),
    ],
    ids=["another driver", "a first driver", "none of which is known", "two kernels", "no image"],
)
def test_a_boot_of_its_own_has_space_for_another_initramfs(
    needed: int, image: int, driver: dict[str, Any], next_boot: str | None, snapshot: SnapshotAssertion
) -> None:
    found = disk(root=10**6)
    kernel = {"running": "6.1.0-56-amd64", "next_boot": next_boot, "initramfs_mib": image}

    def messages(free: int) -> list[str]:
        found["/boot"] = space(free, "/boot")
        problems = run(disk=found, kernel=kernel, driver=driver).problems
        return [problem.message for problem in problems if problem.code == "disk-full"]

    assert messages(needed) == []
    if needed:
        assert messages(needed - 1) == snapshot
    full = {"disk": found, "kernel": {**kernel, "initramfs_mib": 10**6}}
    assert "disk-full" not in codes(run(**full, **ALL_INSTALLED, **LOADED))[0]


def extra(digest: str = "0a1b2c3d", **sizes: int | None) -> Options:
    """Packages of the user's own for TensorFlow, with the sizes of their wheels in bytes."""
    return Options(extra={"tensorflow": ExtraPackages(digest, sizes)})


def test_packages_of_the_users_own_count_unpacked() -> None:
    """By the factor of the catalog: 3.15 times the size of the wheels, in whole MiB."""
    factor = load_sizes().wheel_expansion
    assert factor == 3.15
    needed = ON_VAR + PACKAGES + 7000 + RESERVE + 630
    options = extra(words=150 * 2**20, letters=50 * 2**20)
    assert run(options=options, disk=disk(root=needed)).ok is True
    (problem,) = run(options=options, disk=disk(root=needed - 1)).problems
    assert "TensorFlow environment 6203 MiB, packages of gpu_stack_tensorflow_extra 630 MiB" in problem.message
    assert run(options=extra(words=1), disk=disk(root=needed - 630)).problems[0].message.count("extra 1 MiB") == 1


def test_a_cache_of_its_own_has_space_for_them_too() -> None:
    free = {"root": 10**6, "var": ON_VAR + RESERVE + 314}
    messages = [each.message for each in run(options=extra(words=100 * 2**20), disk=disk(**free)).problems]
    assert len(messages) == 1
    assert "TensorFlow packages 6203 MiB, packages of gpu_stack_tensorflow_extra 315 MiB" in messages[0]


INSTALLED_LOCK = {"tensorflow": {**ALL_INSTALLED["tensorflow"], "lock": "0a1b2c3d"}}


@pytest.mark.parametrize(("digest", "needed"), [("0a1b2c3d", 0), ("ffffffff", 315 + RESERVE)])
def test_an_installed_environment_is_built_again_for_other_packages(digest: str, needed: int) -> None:
    """Beside the old one, from hard links into the cache, which has all but the added ones."""
    host, options = {**ALL_INSTALLED, **LOADED, **INSTALLED_LOCK}, extra(digest, words=100 * 2**20)
    assert run(options=options, disk=disk(root=needed), **host).ok is True
    if needed:
        (problem,) = run(options=options, disk=disk(root=needed - 1), **host).problems
        assert "(packages of gpu_stack_tensorflow_extra 315 MiB, reserve 1024 MiB)" in problem.message
        apart = {**disk(root=10**6), "/opt/gpuhost/environments": space(7541, "/opt")}
        (problem,) = run(options=options, disk=apart, **host).problems
        assert "expected at least 7542 MiB" in problem.message  # copies, since no link leads into the cache


@pytest.mark.parametrize("keeps_cache", [True, False])
def test_without_a_kept_cache_everything_is_downloaded_again(keeps_cache: bool) -> None:
    """The packages of the framework are no links then: the old environment keeps its own files."""
    host = {**ALL_INSTALLED, **LOADED, **INSTALLED_LOCK}
    emptied = Directories(emptied=() if keeps_cache else ("tensorflow",))
    options = dataclasses.replace(extra("ffffffff", words=100 * 2**20), directories=emptied)
    needed = 315 + RESERVE + (0 if keeps_cache else ENVIRONMENT)
    assert run(options=options, disk=disk(root=needed), **host).ok is True
    (problem,) = run(options=options, disk=disk(root=needed - 1), **host).problems
    assert ("TensorFlow environment 6203 MiB" in problem.message) is not keeps_cache
    same = dataclasses.replace(options, extra=extra(words=100 * 2**20).extra)
    assert run(options=same, disk=disk(root=0), **host).ok is True  # nothing has to be built
    # A cache of its own has a second copy.
    free = {"root": 10**6, "var": needed - 1}
    messages = [each.message for each in run(options=options, disk=disk(**free), **host).problems]
    assert [("TensorFlow packages 6203 MiB" in message) for message in messages] == [not keeps_cache]


def test_packages_without_a_size_are_named_and_not_counted() -> None:
    options = extra(words=None, letters=100 * 2**20, numbers=None)
    room = disk(root=ON_VAR + PACKAGES + 7000 + RESERVE + 315)
    found = run(options=options, disk=room)
    assert found.ok is True
    (warning,) = (each for each in found.warnings if each.code == "extra-size-unknown")
    assert "the size of numbers, words (gpu_stack_tensorflow_extra) is not known" in warning.message
    host = {**ALL_INSTALLED, **LOADED, **INSTALLED_LOCK}
    assert [each.code for each in run(options=options, **host).warnings] == []  # nothing has to be built


def test_the_factor_of_wheels_was_measured() -> None:
    """Of wheels that the locks pin; tests/fixtures/locks/unpacked.json has the bytes of each."""
    rows = json.loads((FIXTURES / "locks/unpacked.json").read_text())["wheels"]
    pinned = "".join(lock_texts.read(path, "3.11") for path in PROJECT.glob("roles/*_env/files/*-py3.txt"))
    assert [name for name, version, _packed, _unpacked in rows if f"{name}=={version} " not in pinned] == []
    packed, unpacked = (sum(row[column] for row in rows) for column in (2, 3))
    assert round(unpacked / packed, 2) == load_sizes().wheel_expansion
    assert len(rows) > 40


def test_frameworks_alone_need_their_space_in_one_directory() -> None:
    # Each on a file system of its own: only that of the environments is written to.
    disk = {path: space(0 if path != "/opt/gpuhost/environments" else 10**6, path) for path in DIRECTORIES}
    assert codes(run_as_a_user(disk=disk))[0] == []
    enough = space(ENVIRONMENT + VERIFICATION + RESERVE, "/opt")  # the environment is links into the cache beside it
    assert codes(run_as_a_user(disk={**disk, "/opt/gpuhost/environments": enough}))[0] == []
    found = run_as_a_user(disk={**disk, "/opt/gpuhost/environments": space(10, "/opt")})
    assert codes(found)[0] == ["disk-full"]
    assert "TensorFlow environment" in found.problems[0].message
    assert "checks and training" in found.problems[0].message
