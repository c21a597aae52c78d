"""The programs in script/ as real processes, in a copy of the checkout without .venv that notices what they install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.name for path in (PROJECT / "script").iterdir() if path.is_file() and os.access(path, os.X_OK))
VERSION = re.search(r"^version: (\S+)$", (PROJECT / "galaxy.yml").read_text(), re.MULTILINE)
COMMANDS = ("bash", "sh", "env", "dirname", "readlink", "sed", "basename", "git", "id")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout. In `bin` are a Python without packages, and programs that note that they were called."""
    folder = tmp_path_factory.mktemp("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=PROJECT, capture_output=True, text=True
    )
    for name in listed.stdout.splitlines():
        source, target = PROJECT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() or source.is_file():
            shutil.copy2(source, target, follow_symlinks=False)
    (folder / "bin").mkdir()
    for name in COMMANDS:
        (folder / "bin" / name).symlink_to(str(shutil.which(name)))
    # Of an interpreter that is not in an environment, and without the distribution's packages.
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    stubs = {"python3": f'exec "{python}" -S "$@"'}
    stubs |= dict.fromkeys(
        ("apt-get", "sudo", "docker", "dockerd", "uv"), f'echo "$0 $*" >>"{folder}/installed"; exit 1'
    )
    (folder / "script/bootstrap").rename(folder / "script/real-bootstrap")
    for path, command in {
        **{folder / "bin" / name: command for name, command in stubs.items()},
        folder / "script/bootstrap": f'echo "bootstrap $*" >>"{folder}/installed"; exit 1',
    }.items():
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
    return folder


def run(clone: Path, script: str, *words: str, cwd: Path | None = None) -> tuple[int, str, str]:
    """Return the exit status and outputs of a script; nothing may have been installed."""
    script = "real-bootstrap" if script == "bootstrap" else script
    environment = {"PATH": str(clone / "bin"), "HOME": str(clone)}
    ended = subprocess.run(
        [clone / "script" / script, *words],
        cwd=cwd or clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    installed = clone / "installed"
    assert not installed.exists(), installed.read_text()
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_version_need_nothing(clone: Path, script: str) -> None:
    status, out, err = run(clone, script, "--help")
    assert (status, err) == (0, "")
    assert f"script/{script}" in out
    assert VERSION is not None
    assert run(clone, script, "--version") == (0, f"gpuhost {VERSION[1]}\n", "")


@pytest.mark.parametrize("script", ["capture", "catalog-check", "plan"])
@pytest.mark.parametrize("environment", ["installed", "not installed"])
def test_no_module_of_the_callers_directory_is_imported(
    clone: Path, tmp_path: Path, script: str, environment: str
) -> None:
    """Such as a folder of a site's own tools, or an installed gpuhost.stack of another release."""
    for name in ("tools.py", "ansible_collections/gpuhost/stack/plugins/plugin_utils/command_line.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('not ours')")
    if environment == "not installed":
        status, out, err = run(clone, script, "--help", cwd=tmp_path)
    else:
        ended = subprocess.run([PROJECT / "script" / script, "--help"], cwd=tmp_path, capture_output=True, text=True)
        status, out, err = ended.returncode, ended.stdout, ended.stderr
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: script/{script} ")


@pytest.mark.parametrize(
    ("script", "words", "says"),
    [
        (
            "bench",
            ["speed", "--runs", "0"],
            ["unknown case speed: expected some of plan,", "--runs 0: expected 1 or more"],
        ),
        ("bench", ["--rnus", "3"], ["unrecognized arguments: --rnus"]),
        ("bootstrap", ["contrl", "labb"], ["'contrl' is unknown; expected some of control", "'labb' is unknown"]),
        ("catalog-check", ["--onyl", "pypi"], ["unrecognized arguments: --onyl"]),
        ("catalog-check", ["--only", "wheels"], ["wheels need --deep"]),
        ("demo", ["--destory"], ["unknown option '--destory'; expected --destroy or nothing"]),
        ("demo", ["--destroy", "now"], ["unknown option 'now'"]),
        ("docs", ["--chekc"], ["unrecognized arguments: --chekc"]),
        ("lab", [], ["the following arguments are required: action, inventory"]),
        (
            "lab",
            ["up", "inventories/nosuch"],
            ["no inventory inventories/nosuch; expected a file or a directory such as"],
        ),
        ("lab", ["down", "inventories/nosuch"], ["no inventory inventories/nosuch; expected"]),
        ("lock", [], ["usage: script/lock", "all"]),
        ("lock", ["--missing"], ["usage: script/lock"]),
        ("lock", ["contrl", "tset"], ["'contrl' is unknown; expected all,", "'tset' is unknown"]),
        ("lock", ["tensorflow-2.21"], ["'tensorflow-2.21' is unknown", "tensorflow-X.Y.Z-pyA.B"]),
        ("lock", ["--upgarde", "all"], ["'--upgarde' is unknown"]),
        ("plan", ["--distor", "debian-12"], ["unrecognized arguments: --distor debian-12"]),
        ("plan", ["help"], ["unrecognized arguments: help; script/plan --help explains the options"]),
        ("test", ["--fats"], ["unrecognized arguments: --fats"]),
        ("test", ["dirft", "undo"], ["unknown scenario dirft; expected some of"]),
        (
            "test",
            ["--long", "machine", "--jobs", "0"],
            ["unknown tier machine; expected one of", "--jobs 0: expected 1"],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_wrong_arguments_end_before_anything_is_installed(
    clone: Path, script: str, words: list[str], says: list[str]
) -> None:
    status, out, err = run(clone, script, *words)
    assert (status, out) == (2, "")
    assert "Traceback" not in err
    for text in says:
        assert text in err


@pytest.mark.parametrize(
    ("script", "words"), [("docs", ["--check"]), ("lab", ["down", "inventories/demo"])], ids=["docs", "lab"]
)
def test_a_missing_environment_is_named(clone: Path, script: str, words: list[str]) -> None:
    status, out, err = run(clone, script, *words)
    assert (status, out) == (2, "")
    assert err.startswith(f"script/{script}: found no .venv; run script/bootstrap ")


def test_options_that_are_right_install_what_is_needed(clone: Path) -> None:
    for script, words in {
        "plan": ["--distro", "debian-12"],
        "test": ["--fast"],
        "bench": ["plan"],
        "lock": ["test"],
    }.items():
        with pytest.raises(AssertionError, match="bootstrap "):
            run(clone, script, *words)
        (clone / "installed").unlink()


def test_the_first_plan_goes_on_once_the_environment_is_there(clone: Path, tmp_path: Path) -> None:
    """script/bootstrap makes it, here as a link to the programs of this one."""
    copy = tmp_path / "clone"
    shutil.copytree(clone, copy, symlinks=True)
    python = copy / "environment"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for name in ("mkdir", "ln"):
        (copy / "bin" / name).symlink_to(str(shutil.which(name)))
    bin_ = copy / ".venv/bin"
    (copy / "script/bootstrap").write_text(f"#!/bin/sh\nmkdir -p {bin_}\nln -s {python} {bin_}/python\n")
    status, out, err = run(copy, "plan", "--distro", "debian-12", "--gpu", "H100", "--python", "3.11")
    assert status == 0, err
    assert "TensorFlow " in out


def test_an_incomplete_catalog_is_no_traceback(clone: Path, tmp_path: Path) -> None:
    broken = tmp_path / "clone"
    shutil.copytree(clone, broken, symlinks=True)
    (broken / ".venv").symlink_to(sys.prefix)
    path = broken / "catalog/cuda.yml"
    path.write_text(path.read_text().replace("    max_glibc:", "    max_glib:", 1))
    environment = {**os.environ, "PYTHONPATH": ""}
    for words in (["docs", "--check"], ["lab", "up", "inventories/demo"]):
        ended = subprocess.run(
            [sys.executable, broken / "script" / words[0], *words[1:]], env=environment, capture_output=True, text=True
        )
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        assert ended.stderr.startswith(f"script/{words[0]}: 2 problems in the catalog:\n"), ended.stderr
        assert "max_glibc: missing" in ended.stderr


def test_an_inventory_that_ansible_cannot_read_is_no_traceback() -> None:
    ended = subprocess.run(["script/lab", "up", "README.md"], cwd=PROJECT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert ended.stderr.startswith("script/lab: cannot read README.md: ")
    assert "Traceback" not in ended.stderr
