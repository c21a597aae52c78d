"""nvcc in the environments in which people and services call it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import environment_checks
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command

from tests.unit.module_utils.checks.contexts import by_id, host, without


def test_each_environment_has_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/environment").write_text('LANG=C\nPATH="/opt/one:/usr/bin"\n')
    environments: dict[str, Any] = {}

    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        environments[Path(argv[0]).name] = env
        return command.Answer(0, b"Cuda compilation tools, release 13.2, V13.2.86\n", b"")

    checks = by_id(environment_checks.run(host(tmp_path, run=run)))
    assert checks["env.login_shell"].status == checks["env.ssh_no_profile"].status == "pass"
    assert environments["sh"]["PATH"] == "/opt/one:/usr/bin"
    assert "/usr/local" not in environments["bash"]["PATH"]  # the profile must add it


def test_missing_or_other_nvcc_fails() -> None:
    def run(argv: list[str], timeout: float, env: Mapping[str, str] | None = None) -> command.Answer:
        if "-lc" in argv:
            return command.Answer(127, b"", b"bash: line 1: nvcc: command not found\n")
        return command.Answer(0, b"Cuda compilation tools, release 12.9, V12.9.86\n", b"")

    checks = by_id(environment_checks.run(host(run=run)))
    assert checks["env.login_shell"].status == checks["env.ssh_no_profile"].status == "fail"
    assert "command not found" in str(checks["env.login_shell"].found)
    assert checks["env.ssh_no_profile"].found == "release 12.9"


def test_without_cuda_in_the_plan_all_are_skipped() -> None:
    checks = environment_checks.run(host(plan=without("cuda")))
    assert [(check.id, check.status) for check in checks] == [(spec.id, "skip") for spec in environment_checks.CHECKS]
    assert {check.reason for check in checks} == {"the plan has no CUDA"}
