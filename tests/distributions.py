"""The cells of the tier `distributions`: each scenario on each distribution, and what of them is known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests import configurations

DISTRIBUTIONS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04", "ubuntu-26.04")
# Scenarios that name no distribution, and script/demo.
DEMO = "demo"
SCENARIOS = ("default", "drift", "interrupted", "teardown", "undo", "upgrade", DEMO)
# Where a scenario cannot run: NVIDIA's repository, or a wheel, has not what it needs.
_NO_TENSORFLOW = "it trains with TensorFlow, which has no wheel for Ubuntu's Python 3.14; the stand-in's is 3.13"
_NO_570 = "it begins with driver 570, which NVIDIA's repository for the distribution has not"
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
CELLS = [(d, s) for d in DISTRIBUTIONS for s in SCENARIOS if (d, s) not in NOT_APPLICABLE]


def environment(distribution: str) -> dict[str, str]:
    """Return the variables with which a scenario runs on a distribution."""
    old, _new = configurations.of_distribution(distribution)
    return {configurations.IMAGE_VARIABLE: distribution, "LAB_DRIVER": old.driver, "LAB_CUDA": old.cuda}


def last_cells(ledger: Path) -> list[dict[str, Any]]:
    """Return the cells of the tier's last line in the ledger; none if it was never completed."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
    return next((line["cells"] for line in reversed(lines) if line["tier"] == "distributions"), [])


def table(cells: Iterable[dict[str, Any]]) -> str:
    """Return the Markdown table of distributions and scenarios: passed or failed, real or simulated, or never run."""
    known = {(cell["distribution"], cell["scenario"]): cell for cell in cells}

    def text(distribution: str, scenario: str) -> str:
        if (distribution, scenario) in NOT_APPLICABLE:
            return "–"
        cell = known.get((distribution, scenario))
        if cell is None:
            return "never run"
        return f"{'failed' if cell['failed'] else 'passed'}, {'simulated' if cell['simulated'] else 'real'}"

    rows = [
        f"| distribution | {' | '.join(f'`{name}`' for name in SCENARIOS)} |",
        "| --- " * (len(SCENARIOS) + 1) + "|",
    ]
    rows += [f"| {d} | {' | '.join(text(d, s) for s in SCENARIOS)} |" for d in DISTRIBUTIONS]
    reasons = [f"{d} `{s}`: {reason}" for (d, s), reason in NOT_APPLICABLE.items()]
    return "\n" + "\n".join(rows) + "\n\n–: cannot run. " + "; ".join(reasons) + ".\n\n"
