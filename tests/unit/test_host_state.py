"""molecule/shared/state.sh on a directory tree, and its comparison: what a run could change must be seen."""

import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
STATE = PROJECT / "molecule/shared/state.sh"
PROGRAMS = ("dpkg-query", "apt-mark", "ls", "update-alternatives", "systemctl")


def conftest():
    spec = importlib.util.spec_from_file_location("molecule_conftest", PROJECT / "molecule/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a root with one file, directory and link each in /etc, /opt and /usr/local."""
    root = tmp_path / "root"
    for place in ("etc/x", "opt/x", "usr/local/x"):
        (root / place).mkdir(parents=True)
        (root / place / "file").write_text("content\n")
        (root / place / "link").symlink_to("file")
    fact = root / "etc/ansible/facts.d/gpu_stack.fact"
    fact.parent.mkdir(parents=True)
    warnings = [{"code": "gpu-left-alone", "message": ""}, {"code": "repository-not-read", "message": ""}]
    fact.write_text(
        json.dumps({"components": {"cuda": "13.2.1"}, "reasons": ["the newest that fits"], "warnings": warnings})
    )
    return root


@pytest.fixture
def state(tree: Path, tmp_path: Path) -> Callable[[], dict[str, list[str]]]:
    """Return a function that runs state.sh on the tree; the programs that ask the system print one fixed line."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).write_text(f"#!/bin/sh\necho Id={name}.service A=b C=d\n")
        (programs / name).chmod(0o755)
    text = re.sub(r"(?<!== )(?<![\w/])/(?=(etc|boot|opt|usr|var)\b)", f"{tree}/", STATE.read_text())

    def read() -> dict[str, list[str]]:
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", text], env=environment, capture_output=True, text=True, check=True)
        found: dict[str, list[str]] = conftest().read_sections(done.stdout)
        return found

    return read


def test_nothing_changed(state):
    before = state()
    assert [name for name, lines in before.items() if not lines] == []
    assert conftest().compare(before, state()) == []


@pytest.mark.parametrize("place", ["etc", "opt", "usr/local"])
@pytest.mark.parametrize(
    ("change", "section"),
    [
        ("chmod 0600 file", "files"),
        ("chmod 0700 .", "directories"),
        ("ln -sfn other link", "links"),
        ("printf 'CONTENT\\n' > file", "contents"),
        ("echo more > new", "files"),
        ("mkdir new", "directories"),
        ("rm file", "files"),
    ],
    ids=["mode", "mode of a directory", "link", "content of the same size", "new file", "new directory", "no file"],
)
def test_every_change_is_seen(tree, state, place, change, section):
    before = state()
    subprocess.run(["sh", "-c", change], cwd=tree / place / "x", check=True)
    found = conftest().compare(before, state())
    section = "/etc" if (place, section) == ("etc", "contents") else section
    assert any(line.startswith(f"{section}: ") for line in found), found


@pytest.mark.skipif(os.getuid() != 0, reason="only root can change the owner of a file")
@pytest.mark.parametrize("name", ["file", "link", "."])
def test_another_owner_is_seen(tree, state, name):
    before = state()
    os.chown(tree / "opt/x" / name, 65534, 65534, follow_symlinks=False)
    assert any("nobody" in line for line in conftest().compare(before, state()))


def test_times_and_bytecode_are_not_compared(tree, state):
    before = state()
    os.utime(tree / "opt/x/file", (1, 1))
    (tree / "opt/x/__pycache__").mkdir()
    (tree / "opt/x/__pycache__/a.pyc").write_text("")
    assert conftest().compare(before, state()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("the newest that fits", "kept: verified 2026-11-26"), (', {"code": "repository-not-read", "message": ""}', "")],
    ids=["reasons", "an unread repository"],
)
def test_the_applied_plan_is_compared_without_what_depends_on_the_run(tree, state, old, new):
    before, fact = state(), tree / "etc/ansible/facts.d/gpu_stack.fact"
    text = fact.read_text()
    fact.write_text(text.replace(old, new))
    assert fact.read_text() != text
    assert conftest().compare(before, state()) == []


@pytest.mark.parametrize("old", ["13.2.1", "gpu-left-alone"], ids=["version", "another warning"])
def test_another_plan_is_seen(tree, state, old):
    before, fact = state(), tree / "etc/ansible/facts.d/gpu_stack.fact"
    fact.write_text(fact.read_text().replace(old, "another"))
    assert any(line.startswith("applied plan: ") for line in conftest().compare(before, state()))


def test_a_program_that_fails_is_no_empty_section(state, tmp_path):
    """Two states without services would be equal."""
    (tmp_path / "programs/systemctl").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(subprocess.CalledProcessError):
        state()
