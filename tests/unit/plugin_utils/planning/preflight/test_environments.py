"""What the environments of the frameworks need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import plan_diff
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks

from tests.unit.plugin_utils.planning.planning_cases import make_plan, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import (
    PROBE,
    codes,
    probed,
    run,
    without,
)


@pytest.mark.parametrize("name", ["tensorflow", "pytorch"])
def test_an_occupied_path_of_an_environment_is_refused(name: str) -> None:
    planned = {name: {"version": "2.15.0", "python": "3.11"}}
    (problem,) = run(planned, **{f"{name}_in_the_way": "a folder"}).problems
    assert problem.code == "path-taken"
    assert problem.message.startswith(f"found a folder at /opt/gpuhost/{name},")
    assert f"mv /opt/gpuhost/{name}" in problem.remedy
    assert codes(run(without(name), **{f"{name}_in_the_way": "a folder"}))[0] == []
    assert codes(run(planned))[0] == []


C_HEADERS: dict[str, str | bytes] = {"/usr/include/stdlib.h": ""}
GCC: dict[str, str | bytes] = {**C_HEADERS, "/usr/bin/gcc": ""}
PYTHON_H: dict[str, str | bytes] = {"/usr/include/python3.11/Python.h": ""}
TRITON: dict[str, Any] = {"compiler_packages": ["gcc", "libc6-dev"], "header_packages": ["python3.11-dev"]}
OTHERS_PYTHON: dict[str, Any] = {**TRITON, "header_packages": []}  # such as one of deadsnakes


@pytest.mark.parametrize(
    ("files", "planned", "missing", "missing_to_whole"),
    [
        ({}, TRITON, "gcc and libc6-dev and python3.11-dev", ""),
        (GCC, TRITON, "python3.11-dev", ""),
        ({**GCC, "/usr/include/python3.12/Python.h": ""}, TRITON, "python3.11-dev", ""),
        (PYTHON_H, TRITON, "gcc and libc6-dev", ""),
        ({**PYTHON_H, "/usr/bin/gcc": ""}, TRITON, "gcc and libc6-dev", ""),
        ({**GCC, **PYTHON_H}, TRITON, "", ""),
        ({**C_HEADERS, **PYTHON_H, "/usr/bin/clang": ""}, TRITON, "", ""),
        ({**C_HEADERS, **PYTHON_H, "/usr/bin/cc-1": "", "/etc/environment": "CC=cc-1\n"}, TRITON, "", ""),
        (GCC, OTHERS_PYTHON, "Python.h of Python 3.11", "Python.h of Python 3.11"),
        ({**GCC, **PYTHON_H}, OTHERS_PYTHON, "", ""),
        ({}, {}, "", ""),
    ],
)
def test_what_pytorch_compiles_with_and_no_package_brings_is_warned_of(
    tmp_path: Path, files: dict[str, str | bytes], planned: dict[str, Any], missing: str, missing_to_whole: str
) -> None:
    interpreters = dict.fromkeys(("/usr/bin/python3.11", "/usr/bin/python3.12"), "")
    found = probed(tmp_path, {**interpreters, **files}, "python", "toolchain")
    parts = {**PROBE, "uid": 1001, "may_write": {"/opt/gpuhost": True}, **found}
    parts["python"] = {**parts["python"], "ensurepip": True}
    for scope, lacks, remedy in (
        ("frameworks", missing, "gpu_stack_scope=frameworks installs no package"),
        ("host", missing_to_whole, "install it from where this Python came from"),
    ):
        components = {"pytorch": {"version": "2.15.0", "python": "3.11", **planned}}
        plan, probe = make_plan(components, {"scope": scope}), make_probe(**parts)
        warnings = checks.preflight(plan, probe, plan_diff.plan_diff(plan, probe)).warnings
        messages = [warning.message for warning in warnings if warning.code == "triton-build-missing"]
        assert len(messages) == bool(lacks)
        assert all(f"this host lacks {lacks}; " in message and remedy in message for message in messages)
