"""docs/checks.md and the results of gpu_verify have every check, in one order."""

import re
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.model import outcomes

from tests.unit import plans

PAGE = (Path(__file__).resolve().parents[2] / "docs/checks.md").read_text()
SPECS = [spec for group in verify.GROUPS.values() for spec in group.CHECKS]


def test_page_has_every_check_in_order():
    assert re.findall(r'^\| <a id="(\w+\.\w+)"></a>`\1` \|', PAGE, re.MULTILINE) == [spec.id for spec in SPECS]


def test_every_check_is_described():
    assert [spec.id for spec in SPECS if not all((spec.measures, spec.expected, spec.skipped, spec.remedy))] == []


def test_every_check_has_a_result():
    """On a host with nothing but a PyTorch environment that cannot be started."""
    plan = plans.plan({"components": {"pytorch": {"version": "2.15.0", "cuda": "13.2"}}})
    missing = command.Answer(command.NOT_STARTED, b"", b"python: No such file or directory")
    context = model.Context(
        plan, "/nonexistent", lambda *args: missing, 0, "loaded", "working", {"pytorch": "/nonexistent"}, 0, None
    )
    assert [check["id"] for check in verify.verify(context)["checks"]] == [spec.id for spec in SPECS]


def test_page_has_every_outcome():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(outcomes.OUTCOMES)
