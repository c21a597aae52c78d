"""state.py and prove.py, run as the role runs them, on environments with a stand-in for TensorFlow."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = Path(__file__).resolve().parents[3] / "roles/tensorflow_env/files"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
TENSORFLOW = """
class sysconfig:
    get_build_info = staticmethod(lambda: {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"})
class config:
    list_physical_devices = staticmethod(lambda kind: [])
"""
LOCK = "tensorflow==2.21.0 --hash\n"
OTHER = "tensorflow==2.20.0 --hash\n"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def name_of(version: str, lock: str) -> str:
    return f"tensorflow-{version}-py{PYTHON}-{sha256(lock)[:8]}"


NEW = name_of("2.21.0", LOCK)
OLD = name_of("2.20.0", OTHER)


class Host:
    """Folders as the role leaves them below `base`."""

    def __init__(self, base: Path) -> None:
        self.base, self.link, self.folder = base, base / "tensorflow", base / "environments"
        base.mkdir()

    def build(self, name: str, lock: str | None = LOCK, code: str = TENSORFLOW) -> Path:
        """A virtual environment with a TensorFlow that only answers what the proof asks; without a lock half made."""
        site = self.folder / name / f"lib/python{PYTHON}/site-packages"
        version = name.split("-")[1]
        for folder in (site / "tensorflow", site / f"tensorflow-{version}.dist-info", self.folder / name / "bin"):
            folder.mkdir(parents=True)
        (site / "tensorflow/__init__.py").write_text(f"__version__ = '{version}'\n{code}")
        (site / f"tensorflow-{version}.dist-info/METADATA").write_text(f"Name: tensorflow\nVersion: {version}\n")
        (self.folder / name / "pyvenv.cfg").write_text(
            f"home = {Path(sys.executable).resolve().parent}\ninclude-system-site-packages = false\n"
        )
        (self.folder / name / "bin/python").symlink_to(Path(sys.executable).resolve())
        (self.folder / name / "gpuhost.freeze").write_text(f"tensorflow=={version}\n")
        if lock is not None:
            (self.folder / name / "gpuhost.lock").write_text(lock)
        return self.folder / name

    def use(self, name: str, at: float = 0, link: str = "tensorflow") -> None:
        """`name` becomes the current one, as it did at the time `at`."""
        (self.base / link).unlink(missing_ok=True)
        (self.base / link).symlink_to(f"environments/{name}")
        if at:
            (self.folder / name / "gpuhost.current").touch()
            os.utime(self.folder / name / "gpuhost.current", (at, at))

    def look(self, **asked: Any) -> dict[str, Any]:
        question = {"path": str(self.link), "name": NEW, "version": "2.21.0", "python": PYTHON, "lock": sha256(LOCK),
                    "uv": str(self.base / "uv"), "uv_lock": sha256("uv"), "keep": 2,
                    "proof": (FILES / "prove.py").read_text(), **asked}  # fmt: skip
        command = [sys.executable, "-", json.dumps(question)]
        answer = subprocess.run(command, input=(FILES / "state.py").read_bytes(), capture_output=True, check=True)
        return json.loads(answer.stdout)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "gpuhost")


def test_a_bare_host_gets_an_environment_named_after_its_contents(host: Host) -> None:
    found = host.look()
    assert found["environment"] == NEW
    assert (found["complete"], found["linked"], found["uv"], found["remove"]) == (False, False, False, [])
    assert found["reason"] == f"{NEW}: missing"


def test_the_current_environment_is_proved_and_left(host: Host) -> None:
    host.build(NEW)
    host.use(NEW)
    before = sorted(path for path in host.base.rglob("*"))
    found = host.look()
    assert (found["environment"], found["complete"], found["linked"]) == (NEW, True, True)
    assert found["proof"] == {"version": "2.21.0", "python": PYTHON, "cuda": "12.5.1", "cudnn": "9", "gpus": 0}
    assert sorted(path for path in host.base.rglob("*")) == before


def test_an_older_environment_is_used_again_without_building(host: Host) -> None:
    host.build(NEW)
    host.build(OLD, OTHER)
    host.use(NEW, 1000)
    host.use(OLD, 2000)
    found = host.look()
    assert (found["environment"], found["complete"], found["linked"]) == (NEW, True, False)
    assert (found["current"], found["remove"]) == (OLD, [])


def test_an_absolute_link_of_ours_is_made_relative(host: Host) -> None:
    host.build(NEW)
    host.link.symlink_to(host.folder / NEW)
    found = host.look()
    assert (found["problem"], found["current"], found["complete"], found["linked"]) == ("", NEW, True, False)


def test_a_half_made_one_is_built_again_under_its_name(host: Host) -> None:
    host.build(OLD, OTHER)
    host.use(OLD, 1000)
    host.build(NEW, None)
    found = host.look()
    assert (found["environment"], found["complete"], found["current"]) == (NEW, False, OLD)
    assert found["reason"] == f"{NEW}: left half made"
    assert found["remove"] == []


def put(path: str, text: str) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)

    return do


def module(code: str) -> Callable[[Path], None]:
    return put(f"lib/python{PYTHON}/site-packages/tensorflow/__init__.py", code)


DAMAGE = {
    "other lock": (put("gpuhost.lock", OTHER), "made from another lock file"),
    "package added": (
        put(f"lib/python{PYTHON}/site-packages/six-1.0.dist-info/METADATA", "Name: six\nVersion: 1.0\n"),
        "packages were added, removed or changed: +six==1.0",
    ),
    "no record": (put("gpuhost.freeze", ""), "packages were added, removed or changed: +tensorflow==2.21.0"),
    "no import": (module("import nothing_of_this_name"), "TensorFlow cannot be imported: No module named 'nothing_of_"),
    "crash": (module("import os; os.abort()"), "its proof ended with status -6"),
    "no CUDA": (
        module(TENSORFLOW.replace("True", "False")),
        "found a TensorFlow without CUDA, expected a build with it",
    ),
    "no Python": (lambda folder: (folder / "bin/python").unlink(), "its Python does not start: [Errno 2]"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_one_in_use_stays_until_another_is_built_beside_it(host: Host, case: str) -> None:
    damage, reason = DAMAGE[case]
    damage(host.build(NEW))
    host.use(NEW, 1000)
    found = host.look()
    assert found["reason"].startswith(f"{NEW}: {reason}")
    assert (found["environment"], found["complete"], found["linked"]) == (NEW + "-2", False, False)
    assert (found["current"], found["remove"]) == (NEW, [])
    host.build(NEW + "-2")
    host.use(NEW + "-2", 2000)
    found = host.look()
    assert (found["environment"], found["complete"], found["linked"], found["remove"]) == (NEW + "-2", True, True, [])
    damage(host.folder / (NEW + "-2"))
    assert host.look()["environment"] == NEW


def test_an_environment_of_another_python_is_not_used(host: Host) -> None:
    host.build(NEW)
    host.use(NEW)
    found = host.look(python="3.99")
    assert found["reason"] == f"{NEW}: found Python {PYTHON}, expected 3.99"


def four(host: Host) -> list[str]:
    names = [name_of(f"2.1{number}.0", str(number)) for number in range(4)]
    for number, name in enumerate(names):
        host.build(name, str(number))
        host.use(name, 1000 + number)
    return names


@pytest.mark.parametrize(("keep", "gone"), [(0, 4), (1, 3), (2, 2), (9, 0)])
def test_those_in_use_last_stay_as_many_as_asked_for(host: Host, keep: int, gone: int) -> None:
    names = four(host)
    host.build(NEW)
    assert host.look(keep=keep)["remove"] == names[:gone]
    host.use(NEW, 3000)
    assert host.look(keep=keep)["remove"] == names[:gone]


def test_what_the_link_leads_to_is_the_latest_whoever_set_it(host: Host) -> None:
    names = four(host)
    host.link.unlink()
    host.link.symlink_to(f"environments/{names[0]}")
    assert host.look(keep=1)["remove"] == names[1:]


def test_what_was_never_in_use_goes_and_what_is_not_ours_stays(host: Host) -> None:
    host.build(NEW)
    host.use(NEW, 1000)
    host.build(OLD, None)
    host.build(NEW + "-2")
    (host.folder / "tensorflow-mine").mkdir()
    (host.folder / (OLD + ".saved")).mkdir()
    assert host.look()["remove"] == sorted([OLD, NEW + "-2"])


def test_what_another_link_leads_to_stays_and_does_not_count(host: Host) -> None:
    names = four(host)
    host.use(names[0], link="tensorflow-stable")
    assert host.look(keep=2)["remove"] == [names[1]]
    host.build(NEW, None)
    host.use(NEW, link="tensorflow-next")
    assert host.look(keep=2)["environment"] == NEW + "-2"


def test_a_link_to_a_removed_environment_is_ours(host: Host) -> None:
    host.use(NEW)
    found = host.look()
    assert (found["problem"], found["current"], found["environment"], found["complete"]) == ("", "", NEW + "-2", False)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: (path / "bin").mkdir(parents=True), "Found a folder at"),
        (lambda path: put("gpuhost.lock", LOCK)(path), "Found a folder with an environment of an older release"),
        (lambda path: path.write_text("x"), "Found a file at"),
        (lambda path: path.symlink_to("/srv/tensorflow"), "Found a link to /srv/tensorflow at"),
        (lambda path: path.symlink_to("environments/mine"), "Found a link to environments/mine at"),
    ],
    ids=["folder", "older release", "file", "link elsewhere", "link to another's"],
)
def test_what_is_not_ours_in_the_place_of_the_link_is_refused(
    host: Host, make: Callable[[Path], object], told: str
) -> None:
    make(host.link)
    found = host.look()
    assert set(found) == {"problem"}
    assert found["problem"].startswith(told)
    assert f"expected a link to an environment in {host.folder}" in found["problem"]
    assert f"mv {host.link} {host.link}.old" in found["problem"]


def test_uv_is_there_when_its_record_is_this_lock(host: Host) -> None:
    put("uv/gpuhost.lock", "uv")(host.base)
    assert host.look()["uv"] is False
    put("uv/bin/uv", "")(host.base)
    (host.base / "uv/bin/uv").chmod(0o755)
    assert host.look()["uv"] is True
    assert host.look(uv_lock=sha256("newer"))["uv"] is False


def prove(environment: Path, version: str, task: str) -> subprocess.CompletedProcess[str]:
    command = [str(environment / "bin/python"), "-I", "-c", (FILES / "prove.py").read_text(), version, PYTHON, task]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_proof_writes_down_what_is_installed(host: Host) -> None:
    environment = host.build(NEW, None)
    put(f"lib/python{PYTHON}/site-packages/six-1.0.dist-info/METADATA", "Name: six\nVersion: 1.0\n")(environment)
    answer = prove(environment, "2.21.0", "record")
    assert json.loads(answer.stdout)["version"] == "2.21.0"
    assert (environment / "gpuhost.freeze").read_text() == "six==1.0\ntensorflow==2.21.0\n"
    assert prove(environment, "2.21.0", "compare").returncode == 0


def test_the_proof_refuses_a_lock_of_another_version(host: Host) -> None:
    environment = host.build(NEW, None)
    (environment / "gpuhost.freeze").unlink()
    answer = prove(environment, "2.20.0", "record")
    assert answer.returncode == 1
    assert f"found tensorflow==2.21.0 in {environment}, expected tensorflow==2.20.0: choose" in answer.stderr
    assert not (environment / "gpuhost.freeze").exists()


def test_the_proof_says_that_the_lock_had_no_tensorflow_for_this_python(host: Host) -> None:
    environment = host.build(NEW, None)
    next(environment.glob("lib/*/site-packages/tensorflow-2.21.0.dist-info/METADATA")).unlink()
    next(environment.glob("lib/*/site-packages/tensorflow-2.21.0.dist-info")).rmdir()
    assert "found no tensorflow in" in prove(environment, "2.21.0", "record").stderr
