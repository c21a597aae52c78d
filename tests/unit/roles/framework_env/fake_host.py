"""A directory with fake environments, for the tests of the scripts that run on the host."""

import dataclasses
import hashlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROLES = Path(__file__).resolve().parents[4] / "roles"
FILES = ROLES / "framework_env/files"
STATE = runpy.run_path(str(FILES / "state.py"))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclasses.dataclass(frozen=True)
class Framework:
    """A framework: its package, two releases and a fake module with what verify.py reads."""

    name: str
    package: str
    version: str
    older: str
    code: str
    without_cuda: str
    label: str
    verified: dict[str, Any]

    @property
    def lock(self) -> str:
        return f"{self.package}=={self.version} --hash\n"

    @property
    def other_lock(self) -> str:
        return f"{self.package}=={self.older} --hash\n"

    @property
    def new(self) -> str:
        return self.environment(self.version, self.lock)

    @property
    def old(self) -> str:
        return self.environment(self.older, self.other_lock)

    @property
    def verify_script(self) -> str:
        return (ROLES / f"{self.name}_env/files/verify.py").read_text()

    def environment(self, version: str, lock: str) -> str:
        return f"{self.name}-{version}-py{PYTHON}-{sha256(lock)[:8]}"


TENSORFLOW = """
class sysconfig:
    get_build_info = staticmethod(lambda: {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"})
class config:
    list_physical_devices = staticmethod(lambda kind: [])
"""
TORCH = """
class version:
    cuda = "13.2"
class backends:
    class cudnn:
        version = staticmethod(lambda: 92600)
class cuda:
    device_count = staticmethod(lambda: 0)
"""
FRAMEWORKS = [
    Framework(
        "tensorflow", "tensorflow", "2.21.0", "2.20.0", TENSORFLOW, TENSORFLOW.replace("True", "False"), "TensorFlow",
        {"version": "2.21.0", "python": PYTHON, "cuda": "12.5.1", "cudnn": "9", "gpus": 0},
    ),
    Framework(
        "pytorch", "torch", "2.15.0", "2.10.0", TORCH, TORCH.replace('"13.2"', "None"), "PyTorch",
        {"version": "2.15.0", "python": PYTHON, "cuda": "13.2", "cudnn": "9.26.0", "gpus": 0},
    ),
]  # fmt: skip


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Host:
    """Directories below `base`, as the role creates them."""

    def __init__(self, base: Path, framework: Framework) -> None:
        self.base, self.link, self.environments = base, base / framework.name, base / "environments"
        self.framework, self.new, self.old = framework, framework.new, framework.old
        base.mkdir(exist_ok=True)

    def build(self, name: str, lock: str | None = "") -> Path:
        """Create a virtual environment with a fake framework; with lock None it is incomplete."""
        site = self.environments / name / f"lib/python{PYTHON}/site-packages"
        version, package = name.split("-")[1], self.framework.package
        for directory in (site / package, site / f"{package}-{version}.dist-info", self.environments / name / "bin"):
            directory.mkdir(parents=True)
        (site / f"{package}/__init__.py").write_text(f"__version__ = '{version}'\n{self.framework.code}")
        (site / f"{package}-{version}.dist-info/METADATA").write_text(f"Name: {package}\nVersion: {version}\n")
        (self.environments / name / "pyvenv.cfg").write_text(
            f"home = {Path(sys.executable).resolve().parent}\ninclude-system-site-packages = false\n"
        )
        (self.environments / name / "bin/python").symlink_to(Path(sys.executable).resolve())
        (self.environments / name / "gpuhost.freeze").write_text(f"{package}=={version}\n")
        if lock is not None:
            (self.environments / name / "gpuhost.lock").write_text(lock or self.framework.lock)
        return self.environments / name

    def use(self, name: str, at: float = 0, link: str = "") -> None:
        """Link to `name`, with `at` as the time of the switch."""
        link = link or self.framework.name
        (self.base / link).unlink(missing_ok=True)
        (self.base / link).symlink_to(f"environments/{name}")
        if at:
            (self.environments / name / "gpuhost.current").touch()
            os.utime(self.environments / name / "gpuhost.current", (at, at))

    def request(self, **changes: Any) -> str:
        framework = self.framework
        request = {"path": str(self.link), "framework": framework.name, "name": framework.new,
                    "package": framework.package, "version": framework.version, "python": PYTHON,
                    "lock": sha256(framework.lock), "uv": str(self.base / "uv"), "uv_lock": sha256("uv"), "keep": 2,
                    "damaged": [], "isolation": {"kept": [], "dropped": ["FRAMEWORK_*"], "set": {}},
                    "check_packages_script": (FILES / "check_packages.py").read_text(),
                    "verify_script": framework.verify_script, **changes}  # fmt: skip
        return json.dumps(request)

    def state(self, **changes: Any) -> dict[str, Any]:
        """Return the output of state.py, run in this process."""
        return json.loads(json.dumps(STATE["main"](json.loads(self.request(**changes)))))

    def state_as_the_role(self, **changes: Any) -> dict[str, Any]:
        """Return the output of state.py, run from standard input by a Python of its own like in the role."""
        command = [sys.executable, "-", self.request(**changes)]
        answer = subprocess.run(command, input=(FILES / "state.py").read_bytes(), capture_output=True, check=True)
        return json.loads(answer.stdout)


def put(path: str, text: str) -> Callable[[Path], None]:
    def do(directory: Path) -> None:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)

    return do
