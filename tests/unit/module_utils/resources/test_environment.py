"""Contents compared with what uv wrote for a real wheel."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import shutil
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import environment

from tests.unit.module_utils.host_files import put


def corrupt(path: Path) -> None:
    """Change the first byte, and keep size and time of modification."""
    found, data = path.stat(), path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 255]) + data[1:])
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with a wheel that this project's own environment has, as its installer unpacked it."""
    wheel = importlib.metadata.distribution("jinja2")
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = tmp_path / "opt/gpuhost/environments/x" / "lib" / python / "site-packages"
    for path in wheel.files or []:
        if "__pycache__" not in str(path):
            place = site / path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(str(wheel.locate_file(path)), place)
    (tmp_path / "opt/gpuhost/tensorflow").symlink_to("environments/x")
    return site


def test_damaged_files_of_a_wheel_are_found(tmp_path: Path, site: Path) -> None:
    assert environment.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow") == {}
    corrupt(site / "jinja2/lexer.py")
    (site / "jinja2/parser.py").unlink()
    found = environment.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow")
    assert {path.rpartition("/")[2]: words for path, words in found.items()} == {
        "lexer.py": "has another content",
        "parser.py": "is missing",
    }


def test_a_wheel_without_its_record_is_damaged(tmp_path: Path, site: Path) -> None:
    record = next(site.glob("*.dist-info/RECORD"))
    record.unlink()
    found = environment.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow")
    assert list(found.values()) == ["is missing"]
    assert environment.of_environment(str(tmp_path), "/opt/gpuhost/pytorch") == {}, "no environment"


@pytest.mark.parametrize("damage", ["emptied", "cut", "without its end", "zeros"])
def test_a_wheel_whose_record_is_cut_is_damaged(tmp_path: Path, site: Path, damage: str) -> None:
    """What it no longer lists is not compared."""
    record = next(site.glob("*.dist-info/RECORD"))
    text = record.read_text()
    left = {"emptied": "", "cut": text[:-1], "without its end": text.partition(record.parent.name + "/RECORD")[0]}
    record.write_text(left.get(damage, "\0" * len(text)))
    found = environment.of_environment(str(tmp_path), "/opt/gpuhost/tensorflow")
    assert found["/" + str(record.relative_to(tmp_path))] == "is cut"


WHEEL = "opt/env/lib/python3.11/site-packages"


def test_a_record_that_ends_in_zeros_is_damage_and_the_zeros_name_no_file(tmp_path: Path) -> None:
    """As after a power failure, which leaves blocks unwritten."""
    put(tmp_path, f"{WHEEL}/a.py", "x=1\n")
    put(tmp_path, f"{WHEEL}/a-1.dist-info/RECORD", "a.py,,\n" + "\0" * 9 + "\n")
    assert environment.of_environment(str(tmp_path), "/opt/env") == {f"/{WHEEL}/a-1.dist-info/RECORD": "is cut"}


@pytest.mark.parametrize(
    ("path", "rest", "wrong"),
    [
        pytest.param("a.py", ",,", None, id="no digest"),
        pytest.param("a.py", "", None, id="a name alone"),
        pytest.param("a.pyc", ",sha256=x,1", None, id="compiled"),
        pytest.param("missing.pyc", ",,", None, id="compiled and missing"),
        pytest.param("missing.py", ",,", "is missing", id="missing"),
        pytest.param("a.py", f",sha256={'x' * 43},4", "has another content", id="other digest"),
        pytest.param("a.py", ",unknown=x,4", "has another content", id="unknown algorithm"),
        pytest.param("../../../bin/tool", ",,", None, id="outside"),
        pytest.param("../../../bin/none", ",,", "is missing", id="missing outside"),
        pytest.param("a,b.py", ",,", "is missing", id="quoted"),
    ],
)
def test_each_row_of_a_record_is_compared(tmp_path: Path, path: str, rest: str, wrong: str | None) -> None:
    for name in (f"{WHEEL}/a.py", f"{WHEEL}/a.pyc", "opt/env/bin/tool", f"{WHEEL}/other/RECORD"):
        put(tmp_path, name, "x=1\n")
    put(tmp_path, f"{WHEEL}/a-1.dist-info/RECORD", f'a-1.dist-info/RECORD,,\n\n"{path}"{rest}\n')
    found = environment.of_environment(str(tmp_path), "/opt/env")
    assert found == ({os.path.normpath(f"/{WHEEL}/{path}"): wrong} if wrong else {})


def test_a_digest_of_a_record_is_that_of_the_file(tmp_path: Path) -> None:
    # `printf 'x=1\n' | openssl dgst -sha256 -binary | basenc --base64url`, without its padding
    digest = "mHUu4o1UhL3CgU-3CttqCy-zH2qbjueugf0vyc8wCzs"
    put(tmp_path, f"{WHEEL}/a.py", "x=1\n")
    put(tmp_path, f"{WHEEL}/a-1.dist-info/RECORD", f"a.py,sha256={digest},4\na-1.dist-info/RECORD,,\n")
    assert environment.of_environment(str(tmp_path), "/opt/env") == {}


def test_a_large_file_is_read_to_its_end(tmp_path: Path) -> None:
    data = bytes(range(256)) * 8193
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    put(tmp_path, f"{WHEEL}/a.so", data)
    put(tmp_path, f"{WHEEL}/a-1.dist-info/RECORD", f"a.so,sha256={digest},4\na-1.dist-info/RECORD,,\n")
    assert environment.of_environment(str(tmp_path), "/opt/env") == {}
    put(tmp_path, f"{WHEEL}/a.so", data[:-1] + b"x")
    assert list(environment.of_environment(str(tmp_path), "/opt/env").values()) == ["has another content"]


def test_all_wheels_of_all_pythons_are_compared(tmp_path: Path) -> None:
    for python in ("python3.11", "python3.12"):
        for name in ("a", "b"):
            put(tmp_path, f"opt/env/lib/{python}/site-packages/{name}-1.dist-info/METADATA")
    assert len(environment.of_environment(str(tmp_path), "/opt/env")) == 4
