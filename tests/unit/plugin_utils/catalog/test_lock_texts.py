"""One lock file for several Pythons: merged, found by the name of each, and read for one of them to the byte."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import lock_files
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.lock_files import find_uv

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures/locks"
# As the release before shipped them, one for each Python; hosts name their environments by the hashes of these texts.
OF_ONE = {lock_texts.python_of(path.name): path.read_text() for path in FIXTURES.glob("of_one_python/*.txt")}
ALL = "pytorch-2.8.0-cu128-py3.txt"


def entry(name: str, version: str, *digits: str) -> str:
    return " \\\n    ".join((f"{name}=={version}", *(f"--hash=sha256:{digit * 64}" for digit in digits))) + "\n"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_merged_lock_reads_for_each_python_as_before(count: int) -> None:
    assert set(OF_ONE) == {"3.9", "3.12", "3.13"}
    for chosen in itertools.combinations(OF_ONE, count):
        merged = lock_texts.merge({python: OF_ONE[python] for python in chosen})
        assert set(lock_texts.pythons(merged)) == set(chosen)
        assert {python: lock_texts.for_python(merged, python) for python in chosen} == {
            python: OF_ONE[python] for python in chosen
        }


def test_markers_say_what_differs() -> None:
    """By version, by wheels, in one Python alone, and in Pythons with another between them."""
    python_39 = entry("a", "1", "0") + entry("b", "1", "1") + entry("c", "1", "2") + entry("e", "1", "3")
    python_310 = entry("a", "1", "0") + entry("b", "2", "4") + entry("c", "1", "5", "6") + entry("e", "2", "7")
    python_312 = entry("a", "1", "0") + entry("c", "1", "5", "6") + entry("d", "1", "8") + entry("e", "1", "3")
    merged = lock_texts.merge({"3.12": python_312, "3.9": python_39, "3.10": python_310})
    assert [line.removesuffix(" \\") for line in merged.splitlines() if "--hash" not in line] == [
        "# Python 3.9, 3.10, 3.12",
        "a==1",
        "b==1 ; python_full_version < '3.10'",
        "b==2 ; python_full_version >= '3.10' and python_full_version < '3.12'",
        "c==1 ; python_full_version < '3.10'",
        "c==1 ; python_full_version >= '3.10'",
        "d==1 ; python_full_version >= '3.12'",
        "e==1 ; python_full_version < '3.10' or python_full_version >= '3.12'",
        "e==2 ; python_full_version >= '3.10' and python_full_version < '3.12'",
    ]
    read = {python: lock_texts.for_python(merged, python) for python in ("3.9", "3.10", "3.12")}
    assert read == {"3.9": python_39, "3.10": python_310, "3.12": python_312}


@pytest.mark.parametrize("python", ["3.9", "3.12", "3.13"])
def test_uv_reads_a_merged_lock_as_we_do(tmp_path: Path, python: str) -> None:
    """Without an index: uv compiles a lock in which everything is pinned to itself, also for a Python of elsewhere."""
    merged = tmp_path / ALL
    merged.write_text(lock_texts.merge(OF_ONE))
    compile_ = [find_uv(), "pip", "compile", "--quiet", "--no-deps", "--no-index", "--no-header", "--no-annotate"]
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    expected = lock_texts.pins(OF_ONE[python], python, "x86_64")
    for name, version in expected.items():  # of what it finds uv needs the name alone
        (wheels / f"{name.replace('-', '_')}-{version}-py3-none-any.whl").touch()
    done = subprocess.run(
        [*compile_, f"--find-links={wheels}", f"--python-version={python}", "--python", sys.executable, str(merged)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert dict(line.split(" ")[0].split("==") for line in done.stdout.splitlines() if "==" in line) == expected


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("numpy==2.3.5 \\\n    --hash=sha256:00\n", {"numpy": "2.3.5"}),
        ("numpy==2.3.5 --hash=sha256:00  # ours\n", {"numpy": "2.3.5"}),
        ("numpy==2.3.5 ; python_full_version < '3.12' \\\n", {}),
        ("numpy==2.3.5;python_version>='3.12' --hash=sha256:00\n", {"numpy": "2.3.5"}),
        ("numpy==2.3.5 ; sys_platform == 'linux' and platform_machine == 'x86_64'\n", {"numpy": "2.3.5"}),
        ("numpy==2.3.5 ; platform_machine == 'aarch64' or sys_platform == 'win32'\n", {}),
        ("numpy==2.0.2 ; python_version < '3.10'\nnumpy==2.3.5 ; python_version >= '3.10'\n", {"numpy": "2.3.5"}),
        ("numpy==2.3.5 ; python_version >= '3.10'\nnumpy==2.0.2 ; python_version < '3.10'\n", {"numpy": "2.3.5"}),
        ("numpy==2.3.5 ; pythonversion = 3\n", {"numpy": "2.3.5"}),  # the installer refuses it, with the reason
        ("numpy>=2\n# scipy==1\n--find-links x\n    # via y==2\n", {}),
    ],
)
def test_pins_of_a_users_own_file(line: str, found: dict[str, str]) -> None:
    """Also of one that uv made for every platform, in the form that it or pip writes."""
    assert lock_texts.pins(line, "3.12", "x86_64") == found


def test_a_file_that_lists_no_pythons_stays_as_it_is(tmp_path: Path) -> None:
    own = "# ours\nnumpy==2.0.2 ; python_version < '3.10'\nnumpy==2.3.5 ; python_version >= '3.10'\n"
    (tmp_path / "own.txt").write_text(own)
    assert lock_texts.read(tmp_path / "own.txt", "3.12") == own


@pytest.mark.parametrize(
    ("file", "all_pythons", "python"),
    [
        ("pytorch-2.10.0-cu128-py3.12.txt", "pytorch-2.10.0-cu128-py3.txt", "3.12"),
        ("/home/ann/locks/pytorch-2.10.0-cu128-py3.12.txt", "/home/ann/locks/pytorch-2.10.0-cu128-py3.txt", "3.12"),
        ("tensorflow-2.21.0-py3.12-aarch64.txt", "tensorflow-2.21.0-py3-aarch64.txt", "3.12"),
        ("tensorflow-2.21.0-py3.txt", "tensorflow-2.21.0-py3.txt", ""),
        ("tensorflow-2.21.0-py3.12-extra-0a1b2c3d.txt", "tensorflow-2.21.0-py3.12-extra-0a1b2c3d.txt", ""),
        ("small.txt", "small.txt", ""),
    ],
)
def test_names(file: str, all_pythons: str, python: str) -> None:
    assert (lock_texts.of_all(file), lock_texts.python_of(file)) == (all_pythons, python)


def test_a_lock_is_found_in_the_users_folder_first_and_there_in_its_own_file_first(tmp_path: Path) -> None:
    ours, own = tmp_path / "ours", tmp_path / "own"
    for folder in (ours, own):
        folder.mkdir()
    (ours / ALL).write_text(lock_texts.merge(OF_ONE))
    name = "pytorch-2.8.0-cu128-py3.12.txt"
    assert lock_texts.find(name, own, ours) == ours / ALL
    assert lock_texts.find("pytorch-2.8.0-cu128-py3.10.txt", own, ours) is None, "the file has no such Python"
    (own / ALL).write_text(lock_texts.merge({"3.9": OF_ONE["3.9"]}))
    assert lock_texts.find(name, own, ours) == ours / ALL, "the user's has another Python"
    (own / ALL).write_text(lock_texts.merge({"3.12": OF_ONE["3.12"]}))
    assert lock_texts.find(name, own, ours) == own / ALL
    (own / name).write_text(OF_ONE["3.12"])
    assert lock_texts.find(name, own, ours) == own / name


def test_the_locks_of_a_folder_are_those_of_its_files(tmp_path: Path) -> None:
    """Those that earlier releases made are of one Python each."""
    (tmp_path / "pytorch-2.14.1-cu126-py3.txt").write_text(lock_texts.merge(OF_ONE))
    (tmp_path / "pytorch-2.14.1-cu129-py3.12.txt").write_text(OF_ONE["3.12"])
    shipped = lock_files().files
    assert lock_files(tmp_path).files - shipped == {
        "pytorch-2.14.1-cu126-py3.9.txt",
        "pytorch-2.14.1-cu126-py3.12.txt",
        "pytorch-2.14.1-cu126-py3.13.txt",
        "pytorch-2.14.1-cu129-py3.12.txt",
    }
