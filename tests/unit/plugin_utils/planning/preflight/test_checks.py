"""All problems of a host together, and a host without a finding."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.preflight import checks
from syrupy.assertion import SnapshotAssertion

from tests.unit.plugin_utils.planning.preflight_cases import (
    BUSY,
    DIRECTORIES,
    JOB,
    RUN_DRIVER,
    codes,
    run,
    space,
)

FULL = {directory: space(0) for directory in DIRECTORIES}


def test_a_clean_host_has_no_findings() -> None:
    assert run().to_json() == {"schema": 1, "ok": True, "problems": [], "warnings": []}


def test_all_problems_of_plan_and_host_are_reported_at_once(snapshot: SnapshotAssertion) -> None:
    found = run(package_manager=BUSY, runfile=RUN_DRIVER, gpu_processes=JOB, secure_boot="enabled", disk=FULL)
    assert codes(found)[0] == ["apt-busy", "runfile-install", "gpu-busy", "secure-boot", "disk-full"]
    text = checks.refusal([Problem("no-gpu", "none", "put one in"), *found.problems])
    assert text.splitlines()[:3] == snapshot
    assert text.count("\n  Remedy: ") == 6


UTILS = Path(checks.__file__).resolve().parents[2]


def test_every_spec_is_listed_and_reported() -> None:
    """Only those that others report are used elsewhere: the resolver's holds.py, and the transaction on the host."""
    planning, components = (
        "".join(path.read_text() for path in sorted((UTILS / name).rglob("*.py")))
        for name in ("planning", "components")
    )
    source = planning + components
    declared = re.findall(r"^([A-Z_]+) = FindingSpec\(", source, re.MULTILINE)
    assert len(declared) == len(set(declared)) > 40
    assert sorted(spec.code for spec in checks.FINDINGS) == sorted(name.lower().replace("_", "-") for name in declared)
    reported = re.findall(r"\b([A-Z_]+)\.add_(?:problem|warning)\(|Leftover\(\s*([A-Z_]+)", source)
    assert set(declared) - {"".join(names) for names in reported} == {
        "CANNOT_GO_BACK",
        "PACKAGE_HELD",
        "TRANSACTION_REFUSED",
    }
    assert "findings.problem(" not in planning  # which takes a code that no document might have
    assert "findings.warn(" not in planning
