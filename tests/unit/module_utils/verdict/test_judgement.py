"""What cannot be seen from a whole host (test_command_line.py): words of ages, and waivers that meet others."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict import judgement
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.present import Present
from ansible_collections.gpuhost.stack.plugins.module_utils.verdict.recorded import Recorded

NOW = 1795773600.0  # 2026-11-27T10:00:00Z
LATER = {"check": "gpu.ecc_errors", "reason": "new card in June", "until": "2027-06-30", "gpu": "1"}
ENDED = {"check": "gpu.ecc_errors", "reason": "accepted", "until": "2026-10-01", "gpu": "0"}
TODAY = {**LATER, "until": "2026-11-27"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 seconds"), (-3, "0 seconds"), (119, "119 seconds"), (120, "2 minutes"), (7199, "119 minutes"),
     (7200, "2 hours"), (172799, "47 hours"), (172800, "2 days"), (86400 * 400, "400 days")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert judgement.duration(seconds) == text


@pytest.mark.parametrize(
    ("used", "outcome"),
    [((LATER,), "waived"), ((TODAY,), "waived"), ((ENDED,), "fail"), ((LATER, ENDED), "fail")],
    ids=["valid", "on its last day", "ended", "one of two"],
)
def test_a_waiver_counts_where_the_check_used_it(used: tuple[dict[str, str], ...], outcome: str) -> None:
    """Of two GPUs, each has a waiver of its own; one that no GPU needed may end."""
    reason = "; ".join(f"waived until {waiver['until']}: {waiver['reason']}" for waiver in used)
    checks = {"gpu.ecc_errors": {"status": "waived", "reason": reason}, "a.b": {"status": "pass"}}
    result = {"at": "2026-11-27T09:00:00Z", "checks": checks, "gpus": [], "boot_id": "b"}
    record = Recorded(result, {"waivers": [LATER, TODAY, ENDED]}, {})
    verdict = judgement.judge(record, Present(NOW, gpus=(), boot_id="b", log="kernel: x"))
    assert {finding.id: finding.outcome for finding in verdict.findings}["gpu.ecc_errors"] == outcome


def test_a_silent_gpu_without_a_record_is_a_failure() -> None:
    verdict = judgement.judge(Recorded(), Present(NOW, gpus=("0000:05:00.0",), silent=("0000:05:00.0",)))
    assert (verdict.status, verdict.exit_status) == ("fail", 2)
