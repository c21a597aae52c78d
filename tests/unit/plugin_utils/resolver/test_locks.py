"""Names of locks, what they are made from, and plans for releases that are not locked."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    LockFiles,
    OfTheirTime,
    SourceOnly,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import plan
from tests.unit.requested import requested

PROJECT = Path(__file__).resolve().parents[4]


def with_locks(*names: str) -> Catalog:
    """Return the frozen catalog with these locks alone."""
    return dataclasses.replace(frozen_catalog(), locks=LockFiles(frozenset(names), "script/lock {names}"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tensorflow-2.21.0-py3.12", ("tensorflow", "2.21.0", "", "3.12", "")),
        ("tensorflow-2.15.0.post1-py3.9.txt", ("tensorflow", "2.15.0.post1", "", "3.9", "")),
        ("tensorflow-2.20.0-cudnn-9.10-py3.9", ("tensorflow", "2.20.0", "cudnn-9.10", "3.9", "")),
        ("tensorflow-2.8.4-system-py3.8", ("tensorflow", "2.8.4", "system", "3.8", "")),
        ("pytorch-2.10.0-cu128-py3.14.txt", ("pytorch", "2.10.0", "cu128", "3.14", "")),
        ("tensorflow-2.21.0-system-py3.12-aarch64.txt", ("tensorflow", "2.21.0", "system", "3.12", "aarch64")),
        ("pytorch-2.10.0-cu128-py3.txt", ("pytorch", "2.10.0", "cu128", locks.ALL, "")),
    ],
)
def test_a_name_says_release_build_and_python(name: str, expected: tuple[str, ...]) -> None:
    lock = locks.parse(name)
    assert dataclasses.astuple(lock) == expected
    assert (lock.name, lock.file) == (name.removesuffix(".txt"), name.removesuffix(".txt") + ".txt")


@pytest.mark.parametrize("name", ["tensorflow-2.21.0", "jax-0.4-py3.12", "../tensorflow-2.21.0-py3.12", "", "uv"])
def test_other_names_are_refused(name: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(locks.UnknownLockError) as error:
        locks.parse(name)
    assert str(error.value) == snapshot


@pytest.mark.parametrize(
    "name",
    [
        "tensorflow-9.9.9-py3.12",
        "tensorflow-2.21.0-py3.8",
        "tensorflow-2.8.4-py3.8",
        "tensorflow-2.8.4-cudnn-8.1-py3.8",
        "pytorch-9.9.9-cu128-py3.12",
        "pytorch-2.10.0-cu118-py3.12",
        "pytorch-2.10.0-py3.12",
        "pytorch-2.15.0-cu132-py3.9",
        "pytorch-2.15.0-cu132-py3",
    ],
)
def test_a_lock_that_the_catalog_does_not_describe_has_no_recipe(name: str) -> None:
    with pytest.raises(locks.UnknownLockError) as error:
        locks.recipe(frozen_catalog(), locks.parse(name))
    file = f"catalog/{name.split('-')[0]}.yml"
    text = rf"{name}: {file} has no such release, CUDA build and Python; (take (\S+), or )?add it there first"
    near = re.fullmatch(text, str(error.value))
    assert near, str(error.value)
    assert near[2] is None or locks.recipe(frozen_catalog(), locks.parse(near[2]))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("tensorflow-2.21-py3.12", "tensorflow-2.21.0-py3.12"),
        ("tensorflow-2.21-system-py3.12", "tensorflow-2.21.0-system-py3.12"),
        ("pytorch-2.10-cu128-py3.12", "pytorch-2.10.0-cu128-py3.12"),
    ],
)
def test_a_series_in_the_place_of_a_release_is_asked_about(name: str, meant: str) -> None:
    with pytest.raises(locks.UnknownLockError, match=f"; take {re.escape(meant)}, or add it there first"):
        locks.recipe(frozen_catalog(), locks.parse(name))


@pytest.mark.parametrize(
    ("name", "requirements", "index"),
    [
        ("tensorflow-2.21.0-py3.12", ("tensorflow[and-cuda]==2.21.0",), ""),
        ("tensorflow-2.21.0-system-py3.12", ("tensorflow==2.21.0",), ""),
        ("tensorflow-2.21.0-cudnn-9.10-py3.12", ("tensorflow[and-cuda]==2.21.0", "nvidia-cudnn-cu12<9.11"), ""),
        ("tensorflow-2.20.0-cudnn-9.9-py3.9", ("tensorflow[and-cuda]==2.20.0", "nvidia-cudnn-cu12<9.10"), ""),
        ("tensorflow-2.8.4-system-py3.8", ("tensorflow==2.8.4",), ""),
        ("tensorflow-2.0.4-system-py3.7", ("tensorflow-gpu==2.0.4",), ""),
        ("pytorch-2.10.0-cu128-py3.14", ("torch==2.10.0", "numpy"), ""),
        ("pytorch-2.10.0-cu126-py3.14", ("torch==2.10.0+cu126", "numpy"), "https://download.pytorch.org/whl/cu126"),
        ("pytorch-2.15.0-cu130-py3.11", ("torch==2.15.0+cu130", "numpy"), "https://download.pytorch.org/whl/cu130"),
        ("pytorch-2.15.0-cu132-py3.11", ("torch==2.15.0", "numpy"), ""),
    ],
)
def test_recipes(name: str, requirements: tuple[str, ...], index: str) -> None:
    """The C library is that of Ubuntu 20.04, the oldest."""
    recipe = locks.recipe(frozen_catalog(), locks.parse(name))
    assert recipe == locks.Recipe(requirements, name.split("-py")[1], "x86_64-manylinux_2_31", extra_index=index)


def with_rules(*rules: SourceOnly, of_their_time: OfTheirTime | None = None) -> Catalog:
    """Return the frozen catalog with these rules for TensorFlow's locks."""
    catalog = frozen_catalog()
    tensorflow = dataclasses.replace(catalog.tensorflow, source_only=rules, of_their_time=of_their_time)
    return dataclasses.replace(catalog, tensorflow=tensorflow)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("tensorflow-2.8.4-system-py3.8", True),
        ("tensorflow-2.14.1-py3.9", True),
        ("tensorflow-2.15.1-py3.9", False),
        ("pytorch-2.10.0-cu128-py3.14", False),
    ],
)
def test_old_releases_get_dependencies_of_their_time(name: str, old: bool) -> None:
    catalog = with_rules(of_their_time=OfTheirTime("<2.15", ("termcolor", "wrapt"), "made up"))
    recipe = locks.recipe(catalog, locks.parse(name))
    assert (recipe.of_its_time, recipe.any_age) == ((True, ("termcolor", "wrapt")) if old else (False, ()))


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("tensorflow-2.15.1-py3.11", "tensorrt"),
        ("tensorflow-2.15.1-py3.10", "tensorrt"),
        ("tensorflow-2.15.1-system-py3.11", None),
        ("tensorflow-2.14.1-py3.11", None),
        ("tensorflow-2.12.1-system-py3.8", "jax"),
        ("tensorflow-2.12.1-system-py3.9", None),
        ("pytorch-2.15.1-cu130-py3.11", None),
    ],
)
def test_packages_without_a_wheel(name: str, package: str | None) -> None:
    catalog = with_rules(
        SourceOnly("==2.15.1", "tensorrt", True, None, "made up"),
        SourceOnly(">=2.12,<2.13", "jax", False, ("3.8",), "made up"),
    )
    assert locks.source_only(catalog, locks.parse(name)) == package


@pytest.mark.parametrize(
    ("framework", "version", "lock"),
    [
        ("tensorflow", "2.21.0", "tensorflow-2.21.0-py3.12.txt"),
        ("tensorflow", "9.9.9", "tensorflow-9.9.9-py3.12.txt"),
        ("pytorch", "2.15.0", "pytorch-2.15.0-cu132-py3.12.txt"),
        ("pytorch", "2.10.0", "pytorch-2.10.0-cu128-py3.12.txt"),
    ],
)
def test_the_default_lock_is_that_of_pypis_wheel(framework: str, version: str, lock: str) -> None:
    assert locks.default_lock(frozen_catalog(), framework, version, "3.12", "x86_64") == lock


def test_a_pytorch_that_the_catalog_does_not_know_has_no_default_lock(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(locks.UnknownLockError) as error:
        locks.default_lock(frozen_catalog(), "pytorch", "9.9.9", "3.12", "x86_64")
    assert str(error.value) == snapshot


def test_a_missing_lock_is_named_with_the_command_that_makes_it(snapshot: SnapshotAssertion) -> None:
    lock = locks.parse("pytorch-2.10.0-cu128-py3.12")
    (problem,) = locks.no_lock(with_locks(), lock)
    assert "`script/lock pytorch-2.10.0-cu128-py3.12`" in problem.remedy
    assert [problem.message, problem.remedy] == snapshot
    assert locks.no_lock(with_locks(lock.file), lock) == []
    assert locks.no_lock(frozen_catalog(), lock) == [], "the frozen catalog has no list of locks"


def test_a_release_that_cannot_be_locked_names_the_package(snapshot: SnapshotAssertion) -> None:
    problem = locks.no_wheel(locks.parse("tensorflow-2.15.0-py3.11"), "tensorrt")
    assert problem.code == "no-wheel"
    assert [problem.message, problem.remedy] == snapshot


@pytest.mark.parametrize(
    "name",
    [
        "tensorflow-2.21.0-py3.12-aarch64",
        "tensorflow-2.21.0-py3.12-x86_64",
        "tensorflow-2.21.0-py3.12-arm64",
    ],
    ids=["without a wheel", "of the unmarked ones", "unknown"],
)
def test_a_lock_of_an_architecture_without_wheels_is_not_made(name: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(locks.UnknownLockError) as error:
        locks.recipe(frozen_catalog(), locks.parse(name))
    assert str(error.value) == snapshot


# Plans ----------------------------------------------------------------------------------------------------------------


def test_auto_prefers_a_release_that_is_locked() -> None:
    catalog = with_locks("tensorflow-2.20.0-py3.11.txt")
    made = plan("debian-12", "H200", catalog=catalog)
    assert made["ok"]
    assert made["components"]["tensorflow"]["lock"] == "tensorflow-2.20.0-py3.11.txt"


def test_a_locked_python_of_the_host_is_preferred() -> None:
    found = {"pythons": ("3.10", "3.11", "3.12"), "default_python": "3.11"}
    for locked, chosen in (("3.10", "3.10"), ("3.12", "3.12"), ("3.11", "3.11")):
        catalog = with_locks(f"tensorflow-2.21.0-py{locked}.txt")
        assert plan("debian-12", "H200", catalog=catalog, host=found)["components"]["tensorflow"]["python"] == chosen
    every = with_locks(*(f"tensorflow-2.21.0-py3.{minor}.txt" for minor in (10, 11, 12)))
    assert plan("debian-12", "H200", catalog=every, host=found)["components"]["tensorflow"]["python"] == "3.11"


@pytest.mark.parametrize(
    ("request_", "lock"),
    [
        ({"tensorflow": "2.19"}, "tensorflow-2.19.1-py3.11"),
        ({"tensorflow": "2.19", "tensorflow_cuda_libraries": "system"}, "tensorflow-2.19.1-system-py3.11"),
        ({"tensorflow": "none", "pytorch": "2.10"}, "pytorch-2.10.0-cu128-py3.11"),
        ({}, "tensorflow-2.21.0-py3.11"),
    ],
    ids=["release", "the system's CUDA", "PyTorch", "auto"],
)
def test_a_release_without_lock_is_refused_with_the_command(request_: dict[str, str], lock: str) -> None:
    made = plan("debian-12", "H200", catalog=with_locks(), **request_)
    assert [problem["code"] for problem in made["problems"]] == ["no-lock"]
    assert f"there is no {lock}.txt" in made["problems"][0]["message"]
    assert made["remedies"][0]["host"] == {"locks": [lock]}
    assert f"`script/lock {lock}`" in made["remedies"][0]["text"]
    assert plan("debian-12", "H200", catalog=with_locks(f"{lock}.txt"), **request_)["ok"]


def test_one_remedy_names_all_missing_locks() -> None:
    made = plan("debian-12", "H200", catalog=with_locks(), tensorflow="2.21", pytorch="2.10")
    names = ["tensorflow-2.21.0-py3.11", "pytorch-2.10.0-cu128-py3.11"]
    assert made["remedies"][0]["host"] == {"locks": names}
    assert f"`script/lock {' '.join(names)}`" in made["remedies"][0]["text"]


def test_a_remedy_names_no_lock_that_is_there() -> None:
    made = plan("debian-12", "H200", catalog=with_locks("tensorflow-2.21.0-py3.11.txt"), pytorch="2.10")
    assert made["remedies"][0]["host"] == {"locks": ["pytorch-2.10.0-cu128-py3.11"]}


@pytest.mark.parametrize(
    ("distro", "asked", "package"),
    [
        ("ubuntu-20.04", {"tensorflow": "2.4"}, "wrapt"),
        ("ubuntu-20.04", {"tensorflow": "2.12", "python": "3.8"}, "jax"),
    ],
)
def test_a_release_with_a_package_that_is_source_only_is_refused(
    distro: str, asked: dict[str, str], package: str
) -> None:
    python = asked.pop("python", None)
    host = {"pythons": (python,), "default_python": python} if python else {}
    made = plan(distro, "V100", catalog=load_catalog(), host=host, **asked)
    found = [problem["message"] for problem in made["problems"] if problem["code"] == "no-wheel"]
    assert len(found) == 1
    assert f"pins a {package} that has no wheel for Python" in found[0]
    assert not any("locks" in remedy["host"] for remedy in made["remedies"])


def test_the_system_cuda_needs_no_wheel_of_the_extra() -> None:
    lock = locks.parse("tensorflow-2.15.0-system-py3.11")
    assert locks.source_only(load_catalog(), lock) is None
    assert locks.source_only(load_catalog(), dataclasses.replace(lock, build="")) == "tensorrt"


def test_the_command_of_the_clone_knows_the_named_lock() -> None:
    """The script refuses what it does not know before it asks an index."""
    command = [str(PROJECT / "script/lock"), "tensorflow-9.9.9-py3.11"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, "catalog/tensorflow.yml has no such release" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("locked", "version", "limits"),
    [
        ((), "2.7.1", {("no-lock", "2.14.1")}),
        (("pytorch-2.14.1-cu126-py3.11.txt",), "2.14.1", {("order", "2.15.0")}),
    ],
    ids=["it limits the release", "another lock is missing"],
)
def test_a_lock_that_does_not_exist_is_named_where_it_is_what_limits(
    locked: tuple[str, ...], version: str, limits: set[tuple[str, str]]
) -> None:
    catalog = with_locks("pytorch-2.7.1-cu126-py3.11.txt", "pytorch-2.15.0-cu132-py3.11.txt", *locked)
    host = Host("debian-12", "x86_64", gpus=(HostGpu("10de:2335"),))
    request = requested({"cuda": "12.6", "tensorflow": "none", "pytorch": "auto"})
    made = resolve(catalog, request, host)
    (reason,) = (reason for reason in made.reasons if reason.component == "pytorch")
    assert reason.choice == version
    assert {(limit.by, limit.newer) for limit in reason.limits} == limits
    assert ("there is no pytorch-2.14.1-cu126-py3.11.txt" in reason.because) == (not locked)
