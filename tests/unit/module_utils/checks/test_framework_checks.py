"""Running a framework's probe with the environment of a login, and parsing its output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.framework_checks import MARK
from ansible_collections.gpuhost.stack.plugins.module_utils.checks.model import CheckSpec
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer

from tests.unit.module_utils.checks.contexts import host

SPEC = CheckSpec("a.b", measures="m", expected="e", skipped="s", remedy="r")


def test_variables_of_the_login_replace_those_of_the_check(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text("# PATH=/no\nPATH='/opt/one'\nexport LANG=\"C\"\nnonsense\n=x\n")
    environments: list[Mapping[str, str]] = []

    def run(argv: list[str], timeout: float, env: Mapping[str, str]) -> Answer:
        environments.append(env)
        return Answer(0, b"", b"")

    framework_checks.run_probe(host(tmp_path, run=run), "/venv/bin/python", "pass", {"TF": "2"})
    assert environments == [{"HOME": "/root", "PATH": "/opt/one", "TF": "2", "LANG": "C"}]


def test_parts_are_merged_and_other_lines_ignored() -> None:
    parts = [{"version": "2.21.0", "devices": []}, {"devices": ["/GPU:0"]}]
    lines = "".join(f"\n{MARK}{json.dumps(part)}\n" for part in parts)
    assert framework_checks.parse(Answer(0, ("a log line" + lines).encode(), b"")) == {
        "version": "2.21.0",
        "devices": ["/GPU:0"],
    }


def test_early_end_is_a_failure_with_the_last_lines() -> None:
    check = framework_checks.ended_early(SPEC, "PyTorch", Answer(-11, b"", b"1\n2\n3\n4\nSegmentation fault\n"))
    assert (check.status, check.expected) == ("fail", "e")
    assert check.found == "the process ended early: exit -11: 2 | 3 | 4 | Segmentation fault"
    assert "import PyTorch" in str(check.remedy)


@pytest.mark.parametrize(("search_path", "start"), [("/opt/old", "LD_LIBRARY_PATH is /opt/old. "), ("", "Another ")])
def test_remedy_for_a_shadowed_library_names_the_search_path(search_path: str, start: str) -> None:
    assert framework_checks.shadowed_remedy({"search_path": search_path}, "PyTorch").startswith(start)
