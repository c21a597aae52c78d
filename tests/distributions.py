"""The cells of the tier `distributions`: each scenario on each distribution, and what of them is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table

from tests import configurations

DISTRIBUTIONS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04", "ubuntu-26.04")
# Scenarios that name no distribution, and script/demo.
DEMO = "demo"
SCENARIOS = ("default", "drift", "interrupted", "teardown", "undo", "upgrade", DEMO)
# Where a scenario cannot run: NVIDIA's repository, or a wheel, has not what it needs.
_NO_TENSORFLOW = "it trains with TensorFlow, which has no wheel for Ubuntu's Python 3.14; the stand-in's is 3.13"
_NO_570 = "it begins with driver 570, which NVIDIA's repository for the distribution does not have"
NOT_APPLICABLE = {
    ("debian-13", "upgrade"): _NO_570,
    ("ubuntu-26.04", "upgrade"): _NO_570,
    (
        "ubuntu-26.04",
        "undo",
    ): "it changes between two CUDA series, and the lab's repository for the distribution has one",
    ("ubuntu-26.04", "default"): _NO_TENSORFLOW,
    ("ubuntu-26.04", DEMO): _NO_TENSORFLOW,
}
# Hosts shaped like Enterprise Linux (doubles/lab/enterprise_linux.yml), and the scenarios that run on them: a tier.
SHAPES = ("el-9", "el-10")
SHAPE_CELLS = [(shape, scenario) for shape in SHAPES for scenario in ("el_shape", "enterprise_linux")]
CELLS = [(d, s) for d in DISTRIBUTIONS for s in SCENARIOS if (d, s) not in NOT_APPLICABLE]


def environment(distribution: str) -> dict[str, str]:
    """Return the variables with which a scenario runs on a distribution."""
    old, _new = configurations.of_distribution(distribution)
    return {configurations.IMAGE_VARIABLE: distribution, "LAB_DRIVER": old.driver, "LAB_CUDA": old.cuda}


def table(ledger: Iterable[dict[str, Any]]) -> str:
    """Return the Markdown table of distributions and scenarios: passed or failed and when, or never run."""
    known = {(line["distribution"], line["scenario"]): line for line in ledger if line["tier"] == "distributions"}

    def text(distribution: str, scenario: str) -> str:
        if (distribution, scenario) in NOT_APPLICABLE:
            return "–"
        line = known.get((distribution, scenario))
        if line is None:
            return "never run"
        result = "failed" if line["failed"] else "passed"
        return f"{result} {line['date']}, {'simulated' if line['simulated'] else 'real'}"

    head = ["distribution", *(f"`{name}`" for name in SCENARIOS)]
    rows = markdown_table(head, [[d, *(text(d, s) for s in SCENARIOS)] for d in DISTRIBUTIONS])
    reasons = [f"{d} `{s}`: {reason}" for (d, s), reason in NOT_APPLICABLE.items()]
    return "\n" + "\n".join(rows) + "\n\n–: cannot run. " + "; ".join(reasons) + ".\n\n"
