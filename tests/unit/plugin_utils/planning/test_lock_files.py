"""Locks resolved by the real uv against a small index of our own."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import lock_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import lock_files as locking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.locks import Recipe

from tests.unit.package_index import PackageIndex, serve

RECIPE = Recipe(("framework==2.0",), "3.11", "x86_64-manylinux_2_31")
LINUX = "manylinux_2_17_x86_64"


def pins(text: str) -> dict[str, str]:
    return locking.pins(text, RECIPE)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[PackageIndex]:
    with serve() as served:
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("UV_HTTP_RETRIES", "0")
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        yield served


def test_locks_that_are_made_at_once_get_the_same_uv_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """script/lock makes several at once, and another run of it may have begun before."""
    monkeypatch.setattr(locking, "PROJECT", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", os.defpath)
    with ThreadPoolExecutor(2) as pool:
        found = set(pool.map(lambda _: locking.find_uv(), range(2)))
    (uv,) = {*found, locking.find_uv()}
    assert subprocess.run([uv, "--version"], capture_output=True, text=True, check=True).stdout.startswith("uv ")
    assert [path.name for path in Path(uv).parent.iterdir()] == [Path(uv).name]


def test_the_hashes_are_those_of_the_wheels_that_fit(index: PackageIndex) -> None:
    fits = index.add("framework", "2.0", f"cp311-cp311-{LINUX}", ("numbers>=1",))
    for tag in (f"cp312-cp312-{LINUX}", "cp311-cp311-win_amd64", "cp311-cp311-musllinux_1_2_x86_64"):
        index.add("framework", "2.0", tag)
    index.add("framework", "2.0", "cp311-cp311-manylinux_2_17_aarch64")
    index.add("numbers", "3.0", "cp311-cp311-manylinux_2_34_x86_64")  # newer than the C library of Ubuntu 20.04
    index.add("numbers", "2.5", "py3-none-any", python=">=3.12")
    index.add_source("numbers", "2.4")
    both = sorted((index.add("numbers", "2.0", f"cp311-cp311-{LINUX}"), index.add("numbers", "2.0", "py3-none-any")))
    hashes = " \\\n    ".join(f"--hash=sha256:{each}" for each in both)
    assert locking.resolve(RECIPE, {}) == (
        f"framework==2.0 \\\n    --hash=sha256:{fits}\nnumbers==2.0 \\\n    {hashes}\n"
    )


def test_the_wheels_are_those_of_the_locks_architecture(index: PackageIndex) -> None:
    index.add("framework", "2.0", f"cp311-cp311-{LINUX}")
    fits = index.add("framework", "2.0", "cp311-cp311-manylinux_2_17_aarch64")
    arm = dataclasses.replace(RECIPE, platform="aarch64-manylinux_2_31")
    assert locking.resolve(arm, {}) == f"framework==2.0 \\\n    --hash=sha256:{fits}\n"


def test_a_pin_stays_where_it_fits(index: PackageIndex) -> None:
    index.add("framework", "2.0", "py3-none-any", ("numbers>=1", "letters"))
    for version in ("0.9", "1.5", "2.0"):
        index.add("numbers", version, "py3-none-any")
    index.add("letters", "1.0", "py3-none-any")
    pinned = {"numbers": "1.5", "framework": "1.9", "gone": "3.0"}
    assert pins(locking.resolve(RECIPE, pinned)) == {"framework": "2.0", "numbers": "1.5", "letters": "1.0"}
    assert pins(locking.resolve(RECIPE, {"numbers": "0.9"}))["numbers"] == "2.0"


def test_dependencies_are_as_old_as_the_release(index: PackageIndex) -> None:
    index.add("framework", "2.0", "py3-none-any", ("numbers", "colours"), at="2020-07-27T10:00:00Z")
    index.add("numbers", "1.0", "py3-none-any", at="2020-01-01T00:00:00Z")
    index.add("numbers", "1.1", "py3-none-any", at="2020-07-28T09:00:00Z")  # released with it, a few hours later
    index.add("numbers", "2.0", "py3-none-any", at="2020-07-29T00:00:00Z")
    index.add_source("colours", "1.0", at="2020-01-01T00:00:00Z")
    index.add("colours", "2.0", "py3-none-any", at="2022-01-01T00:00:00Z")
    old = dataclasses.replace(RECIPE, of_its_time=True)
    with pytest.raises(locking.LockError, match="colours"):
        locking.resolve(old, {})
    found = locking.resolve(dataclasses.replace(old, any_age=("colours",)), {})
    assert pins(found) == {"framework": "2.0", "numbers": "1.1", "colours": "2.0"}


def test_a_build_of_pytorchs_own_index(index: PackageIndex) -> None:
    """From that index PyTorch alone, all else from PyPI, whichever is newer; never against the real one."""
    tag = f"cp312-cp312-{LINUX}"
    index.add("torch", "2.14.1", tag, ("cuda-of-13",))
    libraries = index.add("cuda-of-12", "12.6.77", "py3-none-any")
    numbers = index.add("numpy", "2.4.0", tag)
    with serve("/whl/cu126") as own:
        wheel = own.add("torch", "2.14.1+cu126", tag, ("cuda-of-12==12.6.77",))
        for name, version in (("numpy", "9.0"), ("cuda-of-12", "12.6.77")):
            own.add(name, version, tag)
        lock = locks.parse("pytorch-2.14.1-cu126-py3.12")
        recipe = locks.recipe(load_catalog(), lock)
        assert recipe.extra_index == "https://download.pytorch.org/whl/cu126"
        found = locking.resolve(dataclasses.replace(recipe, extra_index=own.url), {})
    assert found == (
        f"cuda-of-12==12.6.77 \\\n    --hash=sha256:{libraries}\n"
        f"numpy==2.4.0 \\\n    --hash=sha256:{numbers}\n"
        f"torch==2.14.1+cu126 \\\n    --hash=sha256:{wheel}\n"
    )
    assert pins(found)["torch"] == "2.14.1+cu126"


def test_an_own_index_that_does_not_answer_is_an_error(index: PackageIndex) -> None:
    index.add("torch", "2.14.1", "py3-none-any")
    index.add("numpy", "2.4.0", "py3-none-any")
    recipe = locks.recipe(load_catalog(), locks.parse("pytorch-2.14.1-cu126-py3.12"))
    with pytest.raises(locking.LockError, match="torch"):
        locking.resolve(dataclasses.replace(recipe, extra_index="http://127.0.0.1:1/whl/cu126"), {})


def test_an_index_without_upload_times_cannot_lock_an_old_release(index: PackageIndex) -> None:
    index.add("framework", "2.0", "py3-none-any")
    with pytest.raises(locking.LockError, match="does not say when the release was uploaded"):
        locking.resolve(dataclasses.replace(RECIPE, of_its_time=True), {})


def test_packages_are_added_upon_a_lock(index: PackageIndex, tmp_path: Path) -> None:
    """The framework's lock stays as it is, although the index has newer versions that fit."""
    tag = f"cp312-cp312-{LINUX}"
    index.add("torch", "2.10.0", tag, ("sympy",))
    index.add("numpy", "2.0.0", tag)
    index.add("sympy", "1.14.0", "py3-none-any")
    lock, requirements = "pytorch-2.10.0-cu128-py3.12", tmp_path / "requirements.txt"
    locking.make(load_catalog(), lock, tmp_path / f"{lock}.txt")
    base = (tmp_path / f"{lock}.txt").read_text()
    index.add("numpy", "2.1.0", tag)
    words = index.add("words", "1.2", tag, ("numpy>=1.9", "letters"), size=3_000_000)
    both = sorted((words, index.add("words", "1.2", "py3-none-any", ("letters",), size=1_000_000)))
    letters = index.add("letters", "0.3", "py3-none-any")
    later = {"UV_CACHE_DIR": str(tmp_path / "later")}
    requirements.write_text("words>=1  # of ours\n")
    extended = locking.extend(load_catalog(), f"{lock}.txt", tmp_path, requirements, later)
    path, hashes = extended.path, " \\\n    ".join(f"--hash=sha256:{each}" for each in both)
    added = f"letters==0.3 \\\n    --hash=sha256:{letters}\nwords==1.2 \\\n    {hashes}\n# words: 3000000 bytes\n"
    assert path.read_text() == base + added
    assert extended.sizes == {"letters": None, "words": 3_000_000}  # the larger of both wheels
    assert extended.digest == hashlib.sha256((base + added).encode()).hexdigest()[:8]
    index.add("words", "1.3", tag)
    assert locking.extend(load_catalog(), f"{lock}.txt", tmp_path, requirements, later) == extended
    assert path.read_text() == base + added  # resolved once
    requirements.write_text("letters\n")
    other = locking.extend(load_catalog(), f"{lock}.txt", tmp_path, requirements, later)
    assert set(pins(other.path.read_text())) == {"torch", "numpy", "sympy", "letters"}
    assert other.sizes == {"letters": None}
    (tmp_path / f"{lock}.txt").unlink()
    (tmp_path / "pytorch-2.10.0-cu128-py3.txt").write_text(lock_texts.merge({"3.11": "torch==2.10.0\n", "3.12": base}))
    again = locking.extend(load_catalog(), f"{lock}.txt", tmp_path, requirements, later)
    assert again == other, "the same lock, from the file of all Pythons"


def test_a_size_that_one_of_the_wheels_lacks_is_not_known(index: PackageIndex, tmp_path: Path) -> None:
    """Any of them may be the one that the host takes."""
    index.add("torch", "2.10.0", "py3-none-any")
    index.add("numpy", "2.0.0", "py3-none-any")
    index.add("words", "1.2", f"cp312-cp312-{LINUX}", size=10)
    index.add("words", "1.2", "py3-none-any")
    lock, requirements = "pytorch-2.10.0-cu128-py3.12", tmp_path / "requirements.txt"
    locking.make(load_catalog(), lock, tmp_path / f"{lock}.txt")
    requirements.write_text("words\n")
    assert locking.extend(load_catalog(), f"{lock}.txt", tmp_path, requirements).sizes == {"words": None}


@pytest.mark.parametrize(
    ("text", "found"),
    [("words\n", "numpy>=9"), ("torch<2.10\n", "torch<2.10"), ("gone==1\n", "gone"), ("--pre\nwords\n", "--pre")],
)
def test_packages_that_do_not_fit_the_lock_are_an_error(
    index: PackageIndex, tmp_path: Path, text: str, found: str
) -> None:
    index.add("torch", "2.10.0", "py3-none-any")
    index.add("torch", "2.9.0", "py3-none-any")
    index.add("numpy", "2.0.0", "py3-none-any")
    index.add("words", "1.2", "py3-none-any", ("numpy>=9",))
    lock, requirements = "pytorch-2.10.0-cu128-py3.12", tmp_path / "requirements.txt"
    locking.make(load_catalog(), lock, tmp_path / f"{lock}.txt")
    index.add("numpy", "9.0", "py3-none-any")  # later; the lock has the older one
    requirements.write_text(text)
    with pytest.raises(locking.LockError, match=found):
        locking.extend(load_catalog(), f"{lock}.txt", tmp_path, requirements, {"UV_CACHE_DIR": str(tmp_path / "later")})
    assert sorted(each.name for each in tmp_path.glob("*.txt")) == [f"{lock}.txt", "requirements.txt"]


def test_a_requirements_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(locking.LockError, match=r"requirements\.txt"):
        locking.extend(load_catalog(), "pytorch-2.10.0-cu128-py3.12", tmp_path, tmp_path / "requirements.txt")


def test_a_lock_is_written_whole_or_not_at_all(index: PackageIndex, tmp_path: Path) -> None:
    path = tmp_path / "locks" / "pytorch-2.10.0-cu128-py3.14.txt"
    index.add("torch", "2.10.0", f"cp314-cp314-{LINUX}", ("sympy",))
    index.add("numpy", "2.4.0", f"cp314-cp314-{LINUX}")
    with pytest.raises(locking.LockError, match="sympy"):
        locking.make(load_catalog(), "pytorch-2.10.0-cu128-py3.14", path)
    assert not path.exists()
    index.add("sympy", "1.14.0", "py3-none-any")
    locking.make(load_catalog(), "pytorch-2.10.0-cu128-py3.14", path, variables={"UV_CACHE_DIR": str(tmp_path / "new")})
    assert pins(path.read_text()) == {"numpy": "2.4.0", "sympy": "1.14.0", "torch": "2.10.0"}
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.name in lock_files(path.parent).files


def test_an_index_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    gone = {"UV_DEFAULT_INDEX": "http://127.0.0.1:1/simple", "UV_CACHE_DIR": str(tmp_path), "UV_HTTP_RETRIES": "0"}
    with pytest.raises(locking.LockError, match="framework"):
        locking.resolve(RECIPE, {}, gone)


def test_locks_of_the_catalog_serve_its_pythons_and_gpus() -> None:
    names = locking.planned(load_catalog())
    assert len(names) == len(set(names))
    found = [locks.parse(name) for name in names]
    assert {"3.8", "3.14"} <= {lock.python for lock in found}
    assert {"system", "", "cudnn-9.10", "cu128"} <= {lock.build for lock in found}
    assert "pytorch-2.14.1-cu130-py3.12" in names
    assert "pytorch-2.14.1-cu126-py3.12" not in names  # of PyTorch's own index
    for lock in found:
        assert locks.recipe(load_catalog(), lock).python == lock.python


def test_unknown_names_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert locking.main(["tensorflow-9.9.9-py3.11"]) == 2
    assert "add it there first" in capsys.readouterr().err


# script/lock ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(index: PackageIndex, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the folder of PyTorch's locks in a project without locks; the index has PyTorch for two Pythons."""
    monkeypatch.setattr(locking, "PROJECT", tmp_path)
    for tag in ("cp312", "cp313"):
        index.add("torch", "2.10.0", f"{tag}-{tag}-{LINUX}", ("sympy",))
        index.add("numpy", "2.0.0", f"{tag}-{tag}-{LINUX}")
    index.add("sympy", "1.14.0", "py3-none-any")
    files = tmp_path / "roles/pytorch_env/files"
    files.mkdir(parents=True)
    return files


BUILD = "pytorch-2.10.0-cu128"


def locked(folder: Path) -> dict[str, dict[str, str]]:
    """Return what the one file in the folder pins, by Python."""
    (path,) = folder.iterdir()
    assert path.name == f"{BUILD}-py3.txt"
    text = path.read_text()
    return {python: lock_texts.pins(text, python, "x86_64") for python in lock_texts.pythons(text)}


def test_the_locks_of_all_pythons_are_one_file(folder: Path, index: PackageIndex) -> None:
    """Each is what a resolution for its Python alone gives, and one more changes no other."""
    names = [f"{BUILD}-py3.12", f"{BUILD}-py3.13.txt"]
    assert locking.main(names) == 0
    pinned = {"torch": "2.10.0", "numpy": "2.0.0", "sympy": "1.14.0"}
    assert locked(folder) == {"3.12": pinned, "3.13": pinned}
    text = (folder / f"{BUILD}-py3.txt").read_text()
    for name in names:
        recipe = locks.recipe(load_catalog(), locks.parse(name))
        assert lock_texts.for_python(text, recipe.python) == locking.resolve(recipe, {})
    index.add("torch", "2.10.0", f"cp311-cp311-{LINUX}", ("sympy",))
    index.add("numpy", "2.1.0", "py3-none-any")
    assert locking.main(["--missing", f"{BUILD}-py3.13", f"{BUILD}-py3.11"]) == 0
    assert locked(folder) == {"3.11": {**pinned, "numpy": "2.1.0"}, "3.12": pinned, "3.13": pinned}


def test_a_name_for_all_pythons_means_those_of_the_distributions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the index has no wheel for is an error, and the others are kept."""
    assert locking.main([f"{BUILD}-py3"]) == 1
    assert set(locked(folder)) == {"3.12", "3.13"}
    release = next(each for each in load_catalog().pytorch.releases if each.version == "2.10.0")
    found = {python for distro in load_catalog().distros.values() for python in distro.python.available}
    lacking = sorted({*release.pythons} & found - {"3.12", "3.13"}, key=lambda python: -int(python[2:]))
    said = capsys.readouterr().err
    names = ", ".join(f"{BUILD}-py{python}" for python in lacking)
    assert f"script/lock: {len(lacking)} of {len(lacking) + 2} could not be made: {names}\n" in said
    assert locking.main(["pytorch-2.10-cu128-py3"]) == 2
    assert "take pytorch-2.10.0-cu128-py3" in capsys.readouterr().err


def test_a_lock_in_a_file_of_its_own_becomes_a_part_of_the_one_file(folder: Path) -> None:
    """As earlier releases made it, also of an index that does not answer any more; of another build it stays."""
    of_one = "numpy==1.9.0 \\\n    --hash=sha256:00\ntorch==2.10.0 \\\n    --hash=sha256:01\n"
    for name in (f"{BUILD}-py3.11.txt", "pytorch-2.10.0-cu126-py3.11.txt"):
        (folder / name).write_text(of_one)
    assert locking.main([f"{BUILD}-py3.12"]) == 0
    other = folder / "pytorch-2.10.0-cu126-py3.11.txt"
    assert other.read_text() == of_one
    other.unlink()
    assert set(locked(folder)) == {"3.11", "3.12"}
    assert lock_texts.read(folder / f"{BUILD}-py3.txt", "3.11") == of_one


def test_each_change_of_a_lock_is_printed_with_its_cause(
    folder: Path, index: PackageIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    hashed = " \\\n    --hash=sha256:" + "0" * 64 + "\n"
    before = {"gone": "1", "numpy": "1.9.0", "sympy": "1.14.0", "torch": "2.10.0"}
    text = "".join(f"{name}=={version}{hashed}" for name, version in before.items())
    (folder / f"{BUILD}-py3.12.txt").write_text(text)
    assert locking.main([f"{BUILD}-py3.12"]) == 0
    said = capsys.readouterr().err
    line = f"lock: {BUILD}-py3.12: "
    assert f"{line}gone 1 is not needed any more\n" in said
    assert f"{line}sympy 1.14.0: the index has other wheels of it than before\n" in said
    (numpy,) = (each for each in said.splitlines() if each.startswith(f"{line}numpy"))
    assert numpy.startswith(f"{line}numpy 1.9.0 becomes 2.0.0: ")
    assert "there is no version of numpy==1.9.0" in numpy
    index.add("numpy", "2.1.0", "py3-none-any")
    assert locking.main([f"{BUILD}-py3.12"]) == 0
    assert capsys.readouterr().err == f"lock: {BUILD}-py3.12\n", "nothing changes while it fits"
