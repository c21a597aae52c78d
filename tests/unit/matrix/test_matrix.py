"""The square matrix: every check against a host with its own fault, with every other fault, and without its tool.

faults.py lists the faults, and what rightly follows from each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from syrupy.assertion import SnapshotAssertion

from tests.unit.matrix.faults import FAULTS, OF_THE_HARDWARE, SILENCES, WAYS
from tests.unit.matrix.host import NVIDIA_SMI, Host

ALL = [spec.id for group in verify.GROUPS.values() for spec in group.CHECKS]
Outcomes = dict[str, str]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """A healthy host, whose nvidia-smi is the one in its own directory."""
    host = Host(tmp_path)
    path = host.path(NVIDIA_SMI)
    monkeypatch.setattr(nvidia_smi, "find", lambda: str(path) if path.exists() else None)
    return host


def not_passed(found: dict[str, dict[str, Any]]) -> Outcomes:
    """Return the checks that did not pass."""
    assert list(found) == ALL
    return {name: check["status"] for name, check in found.items() if check["status"] != outcomes.PASS}


def test_every_check_passes_on_a_healthy_host(host: Host) -> None:
    found = host.verify()
    assert not_passed(found) == {}
    assert not any("simulated" in str(check.get("reason")) for check in found.values())


def test_failures_of_the_hardware() -> None:
    specs = [spec for group in verify.GROUPS.values() for spec in group.CHECKS]
    assert {spec.id for spec in specs if spec.cause == model.HARDWARE} == OF_THE_HARDWARE


@pytest.mark.parametrize("name", FAULTS)
def test_fault_fails_its_checks_and_no_other(name: str, host: Host, snapshot: SnapshotAssertion) -> None:
    fault = FAULTS[name]
    fault.apply(host)
    host.save()
    found = host.verify()
    assert not_passed(found) == fault.outcomes
    specs = {spec.id: spec for group in verify.GROUPS.values() for spec in group.CHECKS}
    causes = {id_: check["cause"] for id_, check in found.items() if check["status"] == outcomes.FAIL}
    expected = {id_: fault.cause if specs[id_].cause == model.STACK else specs[id_].cause for id_ in causes}
    assert causes == expected
    for id_ in fault.own:
        assert found[id_].get("found"), id_
        assert found[id_].get("remedy" if fault.outcome in (outcomes.FAIL, outcomes.WARN) else "reason"), id_
        assert causes.get(id_) != model.HOST or found[id_].get("setting")
    if fault.is_known_cause:
        assert told(found[fault.own[0]], host) == snapshot


def told(check: dict[str, Any], host: Host) -> dict[str, str]:
    """Return what a report says of a known cause, with paths as on a real host."""
    texts = {name: check[name] for name in ("found", "setting", "reason", "remedy") if name in check}
    return {name: text.replace(str(host.root), "") for name, text in texts.items()}


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, silence in SILENCES.items() for way in silence.ways])
def test_check_without_an_answer_is_unknown(name: str, way: str, host: Host) -> None:
    """It never passes, and is no skip; a tool that is itself what is checked may fail."""
    silence = SILENCES[name]
    WAYS[way](host, silence)
    host.save()
    assert not_passed(host.verify()) == silence.outcomes(way)


def test_each_check_has_a_fault_of_its_own_and_a_tool() -> None:
    assert sorted(set(ALL)) == sorted({id_ for fault in FAULTS.values() for id_ in fault.own})
    # A link in sysfs that is not there is an answer: no driver is bound.
    silent = {id_ for silence in SILENCES.values() for id_ in silence.checks} | {"driver.pci_binding"}
    assert sorted(set(ALL)) == sorted(silent)
    assert len(ALL) >= 45
    assert len(FAULTS) >= 45


def test_what_follows_from_a_fault_has_a_reason() -> None:
    without = [name for name, fault in FAULTS.items() if fault.follows and not fault.why]
    assert without == []
