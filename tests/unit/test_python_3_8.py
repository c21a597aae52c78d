"""What runs on a managed host runs with Python 3.8: imported by one, and its probe of a host compared with ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import ansible
import pytest

PROJECT = Path(__file__).resolve().parents[2]
IMPORT = """\
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
COMPILE = "import sys\nfor name in sys.argv[1:]:\n    compile(open(name, encoding='utf-8').read(), name, 'exec')\n"
PROBE = """\
import json, sys
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
options = probe.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
print(json.dumps(to_json(probe.probe("/", options)), sort_keys=True))
"""
RECORDS = """\
import json, sys
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks, framework_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import from_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program
plan, document = (open(path, encoding="utf-8").read() for path in sys.argv[1:3])
print(from_json(Plan, json.loads(plan), "plan"))
print(cuda_program.parse(document))
print(framework_checks.parse(Answer(0, (framework_probe.MARK + sys.argv[3]).encode(), b"")))
"""
PRINTED = {
    "version": "2.15.0", "pinned": {"cudnn": "9.28.0"}, "devices": ["cuda:0"], "called": {"cudnn": 92800, "nccl": None},
    "matmul": [{"device": "cuda:0", "ran_on": "cuda:0", "difference": 5e-07}], "loaded": {"path": "/x"},
}  # fmt: skip
# What may be another one a moment later.
VOLATILE = ("disk", "gpu_processes", "package_manager")


def find() -> str | None:
    """Return a Python 3.8 that works; the first in PATH may be a shim of pyenv without that version."""
    known = [shutil.which("python3.8"), *sorted(Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8"))]
    for path in filter(None, known):
        if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(path)
    return None


PYTHON = find()
pytestmark = pytest.mark.skipif(PYTHON is None, reason="no python3.8 in PATH or of pyenv")


@pytest.fixture
def paths(tmp_path: Path) -> str:
    """Return a PYTHONPATH with the collection and, of ansible-core and all that it needs, ansible alone."""
    (tmp_path / "ansible").symlink_to(Path(ansible.__file__).parent)
    return f"{PROJECT}/collections:{tmp_path}"


def run(python: str, paths: str, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([python, "-c", program, *words], env=environment, capture_output=True, text=True, check=False)


def test_every_module_is_imported(paths: str) -> None:
    files = [*PROJECT.glob("plugins/module_utils/**/*.py"), *PROJECT.glob("plugins/modules/*.py")]
    names = [".".join(path.relative_to(PROJECT).with_suffix("").parts) for path in files if path.name != "__init__.py"]
    assert len(names) > 70
    basic = run(str(PYTHON), paths, IMPORT, "ansible.module_utils.basic")
    if "or newer on the target" in basic.stdout:  # ansible-core 2.20, which needs Python 3.9 on hosts
        names = [name for name in names if ".modules." not in name]
    ran = run(str(PYTHON), paths, IMPORT, *(f"ansible_collections.gpuhost.stack.{name}" for name in names))
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_program_of_the_roles_is_compiled(paths: str) -> None:
    files = [str(path) for path in PROJECT.glob("roles/*/files/*.py")]
    assert files
    ran = run(str(PYTHON), paths, COMPILE, *files)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_it_probes_this_machine_as_the_python_of_these_tests_does(paths: str) -> None:
    """An import does not show what newer methods of str, dict and Path a function calls; the probe calls most."""
    found = []
    for python in (str(PYTHON), sys.executable):
        ran = run(python, paths, PROBE)
        assert ran.returncode == 0, ran.stderr
        found.append({name: value for name, value in json.loads(ran.stdout).items() if name not in VOLATILE})
    assert (found[0]["errors"], found[0]["kernel"]["running"]) == ([], os.uname().release)
    assert found[0] == found[1]


def test_it_reads_records_as_the_python_of_these_tests_does(paths: str) -> None:
    """The types of records are evaluated where they are read: `X | None` is none of 3.8."""
    fixtures = PROJECT / "tests/fixtures"
    files = [str(fixtures / name) for name in ("plan/planned.json", "cuda_check/simulated-3-gpus.json")]
    ran = [run(python, paths, RECORDS, *files, json.dumps(PRINTED)) for python in (str(PYTHON), sys.executable)]
    assert ran[0].returncode == 0, ran[0].stderr
    assert ran[0].stdout == ran[1].stdout
    assert [line.split("(")[0] for line in ran[0].stdout.splitlines()] == ["Plan", "Document", "Output"]
