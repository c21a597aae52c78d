"""gpuhost-env: a user's environment upon a framework's, with real environments and a real wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.unit.roles.framework_env.fake_host import FILES

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"


def wheel(directory: Path, name: str, version: str, requires: str = "") -> None:
    """Write a wheel as the binary distribution format describes it: a module with its version."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + (
        f"Requires-Dist: {requires}\n" if requires else ""
    )
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", f"VERSION = {version!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


class Machine:
    """A directory like /opt/gpuhost with one framework, `framelib`, and a user's home."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.opt, self.home, self.wheels = base / "opt", base / "home", base / "wheels"
        for directory in (self.opt / "bin", self.opt / "environments", self.home, self.wheels):
            directory.mkdir(parents=True)
        self.command = self.opt / "bin/gpuhost-env"
        self.command.write_text("#!/usr/bin/env python3\n" + (FILES / "gpuhost_env.py").read_text())
        self.command.chmod(0o755)
        for version in ("1.0", "2.0"):
            wheel(self.wheels, "framelib", version)
        wheel(self.wheels, "mine", "0.1", "framelib")
        wheel(self.wheels, "other", "0.1", "framelib<2,>1")
        self.build("1.0")

    def build(self, version: str) -> None:
        """Build an environment as the role does, beside the others, and switch the link to it."""
        directory = self.opt / "environments" / f"tensorflow-{version}"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
        packages = directory / f"lib/{PYTHON}/site-packages"
        with zipfile.ZipFile(self.wheels / f"framelib-{version}-py3-none-any.whl") as archive:
            archive.extractall(packages)
        (directory / "gpuhost.freeze").write_text(f"framelib=={version}\n")
        script = directory / "bin/framerun"
        script.write_text(f"#!{directory}/bin/python\nimport sys, framelib\nprint(sys.prefix, framelib.VERSION)\n")
        script.chmod(0o755)
        link = self.opt / "tensorflow"
        link.unlink(missing_ok=True)
        link.symlink_to(f"environments/{directory.name}")

    def run(self, *words: str, status: int = 0) -> str:
        environment = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def env(self, *words: str, status: int = 0) -> str:
        return self.run(sys.executable, str(self.command), *words, status=status)

    def python(self, code: str, name: str = "thesis") -> str:
        return self.run(str(self.home / "gpuhost-envs" / name / "bin/python"), "-c", code).strip()

    def pip(self, *words: str, status: int = 0) -> str:
        return self.run(str(self.home / "gpuhost-envs/thesis/bin/pip"), "install", *words, status=status)


@pytest.fixture(scope="module", name="created")
def _created(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, str]:
    """A machine on which a user has made the environment `thesis`, which takes seconds, and what that printed."""
    machine = Machine(tmp_path_factory.mktemp("created") / "machine")
    printed = machine.env("thesis")
    shutil.copytree(machine.base, machine.base.with_name("copy"), symlinks=True)
    return machine, printed


@pytest.fixture(name="machine")
def _machine(created: tuple[Machine, str]) -> Machine:
    """The machine as it was, in the same place: the paths of an environment are absolute."""
    machine, _ = created
    shutil.rmtree(machine.base)
    shutil.copytree(machine.base.with_name("copy"), machine.base, symlinks=True)
    return machine


def test_the_framework_imports_and_is_not_copied(created: tuple[Machine, str], machine: Machine) -> None:
    assert "bin/activate" in created[1]
    path = machine.python("import framelib; print(framelib.__file__)")
    assert Path(path).resolve().is_relative_to(machine.opt)
    assert not list((machine.home / "gpuhost-envs").rglob("framelib*"))


def test_a_users_package_goes_into_their_environment_and_survives_a_rebuild(machine: Machine) -> None:
    ours = sorted(machine.opt.rglob("*"))
    assert "Requirement already satisfied: framelib" in machine.pip("mine")
    assert [
        path for path in sorted(machine.opt.rglob("*")) if path not in ours and "__pycache__" not in path.parts
    ] == []
    code = "import framelib, mine; print(framelib.VERSION, mine.__file__)"
    version, path = machine.python(code).split()
    assert version == "1.0"
    assert Path(path).is_relative_to(machine.home)
    machine.build("2.0")
    shutil.rmtree(machine.opt / "environments/tensorflow-1.0")
    assert machine.python(code).split() == ["2.0", path]


def test_pip_keeps_the_frameworks_versions(machine: Machine) -> None:
    assert "framelib==1.0" in machine.pip("framelib==2.0", status=1)
    machine.pip("other", status=1)
    assert machine.python("import framelib; print(framelib.VERSION)") == "1.0"


def test_the_frameworks_commands_run_in_the_users_environment(machine: Machine) -> None:
    own = machine.home / "gpuhost-envs/thesis"
    assert machine.run(str(own / "bin/framerun")).split() == [str(own), "1.0"]


def test_another_python_of_the_framework_says_what_to_do_and_a_rebuild_keeps_the_packages(machine: Machine) -> None:
    machine.pip("mine")
    # As after an upgrade to a release that needs another Python: the packages are in another directory.
    library = machine.opt / "environments/tensorflow-1.0/lib"
    (library / PYTHON).rename(library / "python3.99")
    assert "gpuhost-env thesis --rebuild" in machine.python("print()")
    (library / "python3.99").rename(library / PYTHON)
    machine.env("thesis", "--rebuild")
    assert machine.python("import mine, framelib; print(mine.VERSION, framelib.VERSION)") == "0.1 1.0"
    assert not (machine.home / "gpuhost-envs/thesis.old").exists()


def test_a_rebuild_that_fails_leaves_the_environment(machine: Machine) -> None:
    machine.pip("mine")
    (machine.wheels / "mine-0.1-py3-none-any.whl").unlink()
    assert "mine==0.1" in machine.env("thesis", "--rebuild", status=1)
    assert machine.python("import mine; print(mine.VERSION)") == "0.1"


def test_running_it_again_changes_nothing_of_the_users(machine: Machine) -> None:
    machine.pip("mine")
    machine.env("thesis")
    assert machine.python("import mine; print(mine.VERSION)") == "0.1"


def test_what_is_refused(machine: Machine) -> None:
    assert "expected a name" in machine.env("../elsewhere", status=2)
    assert "no environment at" in machine.env("draft", "--framework", "pytorch", status=1)
    (machine.home / "gpuhost-envs/mine").mkdir(parents=True)
    assert "was not created by gpuhost-env" in machine.env("mine", status=1)
    (machine.opt / "tensorflow").unlink()
    assert "no framework" in machine.env("draft", status=1)
