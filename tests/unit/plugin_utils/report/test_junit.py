"""JUnit XML, read back by junitparser, which this project has not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.outcomes import OUTCOMES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import junit
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.report import build_report
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.verdict import RunMode
from junitparser import Error, Failure, JUnitXml, Skipped
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.report.report_cases import VERIFY, evidence

HOSTILE = "<b>&\"'\x00\x1b[31m]]> \N{SNOWMAN}"
CHECKS = [
    {"id": f"gpu.{outcome}", "status": outcome, "found": HOSTILE, "reason": "because", "expected": "x", "remedy": "y"}
    for outcome in OUTCOMES
]
KINDS = {"fail": Failure, "unknown": Error, "deferred": Skipped, "waived": Skipped, "skip": Skipped}
GONE = {"task": "Probe the host and plan", "message": "no route to host", "unreachable": True}


def read(tmp_path: Path, hosts: dict[str, Any]) -> JUnitXml:
    text = junit.document(build_report("20261127-100000-0badcafe", hosts, RunMode()))
    (tmp_path / "junit.xml").write_text(text, encoding="utf-8")
    return JUnitXml.fromfile(str(tmp_path / "junit.xml"))


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_is_what_ci_systems_make_of_it(tmp_path: Path, outcome: str) -> None:
    verify = {**VERIFY, "status": "fail", "checks": CHECKS}
    (suite,) = read(tmp_path, {"gpu01": evidence(verify=verify)})
    (case,) = (case for case in suite if case.name == f"gpu.{outcome}")
    assert [type(result) for result in case.result] == ([KINDS[outcome]] if outcome in KINDS else [])
    assert case.classname == "gpu01.verify"


def test_counts_are_those_of_the_cases(tmp_path: Path) -> None:
    verify = {**VERIFY, "status": "fail", "checks": CHECKS}
    xml = read(tmp_path, {"gpu01": evidence(verify=verify), "gpu02": {"failure": GONE}})
    stated = (xml.tests, xml.failures, xml.errors, xml.skipped)
    xml.update_statistics()
    assert stated == (xml.tests, xml.failures, xml.errors, xml.skipped)
    assert (xml.failures, xml.errors) == (1, 2)
    assert xml.skipped >= 3


def test_a_host_that_failed_before_its_checks_is_an_error(tmp_path: Path) -> None:
    first, second = read(tmp_path, {"gpu01": evidence(), "gpu02": {"failure": GONE}})
    assert (first.errors, first.failures) == (0, 0)
    (case,) = second
    (error,) = case.result
    assert isinstance(error, Error)
    assert "no route to host" in error.message


def test_a_host_of_which_no_check_says_that_it_is_not_verified_is_an_error(tmp_path: Path) -> None:
    """Nothing was trained, and what verified the host proves nothing any more: CI must not pass."""
    expired = {"framework": "tensorflow", "status": "deferred", "expired": "the GPUs have changed", "checks": []}
    (suite,) = read(tmp_path, {"gpu01": evidence(verify=VERIFY, smoke_train=expired)})
    assert [case.name for case in suite if case.result and isinstance(case.result[0], Error)] == ["run"]
    (error,) = next(case for case in suite if case.name == "run").result
    assert "the GPUs have changed" in error.message


def test_the_whole_file(snapshot: SnapshotAssertion) -> None:
    hosts = {HOSTILE: evidence(verify={**VERIFY, "status": "fail", "checks": CHECKS}), "gpu02": {"failure": GONE}}
    assert junit.document(build_report("20261127-100000-0badcafe", hosts, RunMode())) == snapshot
