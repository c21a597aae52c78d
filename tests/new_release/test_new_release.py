"""A release is data: a made-up CUDA and its driver branch, added to the catalog of a project's copy, fail no test.

In tier `catalog`, since it runs hundreds of unit tests once more.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
# The tests that see releases of the catalog.
AFFECTED = (
    "tests/unit/action/test_stack_plan.py",
    "tests/unit/doubles/test_nvidia_repository.py",
    "tests/unit/lookup/test_catalog.py",
    "tests/unit/modules/test_gpu_probe.py",
    "tests/unit/plugin_utils/catalog",
    "tests/unit/plugin_utils/model/test_plan.py",
    "tests/unit/plugin_utils/plan_command",
    "tests/unit/plugin_utils/planning",
    "tests/unit/plugin_utils/resolver",
    "tests/unit/test_catalog_alone.py",
    "tests/unit/doubles/test_repository_of_615.py",
    "tests/unit/module_utils/packages/test_decisions.py",
    "tests/unit/module_utils/packages/test_metapackages.py",
    "tests/unit/plugin_utils/capture_command",
    "tests/unit/plugin_utils/components",
    "tests/unit/test_contracts.py",
    "tests/unit/test_examples.py",
    "tests/unit/test_installable.py",
    "tests/unit/test_locks.py",
    "tests/unit/test_made_up_component.py",
    "tests/unit/tools/catalog",
)
# The tests that read of the catalog what no release adds.
UNAFFECTED = {
    "tests/unit/action/test_gpu_verify.py": "thresholds and package names",
    "tests/unit/doubles/test_lab.py": "distributions",
    "tests/unit/doubles/test_simulated_nvidia_smi.py": "GPUs",
    "tests/unit/module_utils/checks/test_cuda_bandwidth_check.py": "thresholds",
    "tests/unit/module_utils/checks/test_gpu_checks.py": "thresholds, counters and Xid numbers",
    "tests/unit/module_utils/checks/test_gpu_counters.py": "counters",
    "tests/unit/module_utils/nvidia/test_kernel_log.py": "Xid numbers",
    "tests/unit/plugin_utils/planning/test_lock_files.py": "locks of frameworks",
    "tests/unit/plugin_utils/base/test_command_line.py": "how output ends that nobody reads",
    "tests/unit/test_scripts.py": "options",
}
READS_THE_CATALOG = re.compile(r"\bload_catalog\(\)|\bplan_for_probe\(|script/plan\b")
BRANCH = """
  - branch: "999"
    type: "PB"
    maintained: true
    end_of_life: null
    native_cuda: "99.9"
    architectures: ["Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Rubin"]
    without: []
    kernel_modules: ["open", "proprietary"]
    versions:
      - {version: "999.10.01", archives: ["nvidia"]}
    source: "made up"
"""
TOOLKIT = """
  - version: "99.9"
    releases:
      - {version: "99.9.1", min_driver: "999.10.01", source: "made up"}
    compute_capabilities: ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]
    max_gcc: 99
    max_glibc: null
    source: "made up"
"""
FLOOR = """
  - {cuda_major: 99, min_driver: "999.10.01", source: "made up"}
"""


def copy_project(target: Path) -> None:
    """Copy what git tracks, and new files; the virtual environment is shared."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=PROJECT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout: the project's files cannot be listed")
    for name in listed.stdout.splitlines():
        source, copy = PROJECT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_symlink() or source.is_file():
            shutil.copy2(source, copy, follow_symlinks=False)
    (target / ".venv").symlink_to(Path(sys.prefix))


def add(path: Path, heading: str, entry: str) -> None:
    """Add an entry as the first one of a list of the catalog."""
    text = path.read_text()
    assert text.count(f"\n{heading}:\n") == 1, f"{path.name} has no list {heading}"
    path.write_text(text.replace(f"\n{heading}:\n", f"\n{heading}:{entry}"))


def test_each_test_that_reads_the_catalog_is_listed() -> None:
    reading = [
        str(path.relative_to(PROJECT))
        for path in sorted((PROJECT / "tests/unit").rglob("test_*.py"))
        if READS_THE_CATALOG.search(path.read_text()) and path != Path(__file__)
    ]
    assert len(reading) > 20
    assert [name for name in reading if not name.startswith(AFFECTED) and name not in UNAFFECTED] == []
    assert set(UNAFFECTED) <= set(reading)


def test_a_made_up_release_fails_no_test(tmp_path: Path) -> None:
    copy_project(tmp_path)
    add(tmp_path / "catalog/driver.yml", "branches", BRANCH)
    add(tmp_path / "catalog/cuda.yml", "toolkits", TOOLKIT)
    add(tmp_path / "catalog/cuda.yml", "minor_version_compatibility", FLOOR)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}

    def run(*command: str) -> str:
        answer = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    run(sys.executable, "script/docs")
    assert "99.9" in (tmp_path / "README.md").read_text(), "the release is not planned, so that this tests nothing"
    others = ["--snapshot-disable-unused", *(f"--ignore={name}" for name in UNAFFECTED)]
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *AFFECTED, *others)
