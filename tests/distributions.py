"""The cells of the tier `distributions`: each scenario on each distribution, and what of them is known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.tables import markdown_table

from tests import configurations

# Hosts shaped like Enterprise Linux (doubles/lab/enterprise_linux.yml).
SHAPES = ("el-9", "el-10")
DISTRIBUTIONS = ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04", "ubuntu-26.04", *SHAPES)
# Of the hosts of the lab that runs now.
MANAGER = "dnf" if os.environ.get(configurations.IMAGE_VARIABLE) in SHAPES else "apt"
# Scenarios that name no distribution, and script/demo.
DEMO = "demo"
SCENARIOS = ("default", "drift", "interrupted", "teardown", "undo", "upgrade", DEMO)
# Where a scenario does not run: NVIDIA's repository, or a wheel, has not what it needs, or nobody has shown it.
_NO_TENSORFLOW = "it trains with TensorFlow, which has no wheel for Ubuntu's Python 3.14; the stand-in's is 3.13"
_NO_570 = "it begins with driver 570, which NVIDIA's repository for the distribution does not have"
_NOT_ON_EL = "`default` alone; `enterprise_linux` (tier `el_shape`) repairs, changes, rolls back and gives back"
NOT_APPLICABLE = {
    ("debian-13", "upgrade"): _NO_570,
    ("ubuntu-26.04", "upgrade"): _NO_570,
    (
        "ubuntu-26.04",
        "undo",
    ): "it changes between two CUDA series, and the lab's repository for the distribution has one",
    ("ubuntu-26.04", "default"): _NO_TENSORFLOW,
    ("ubuntu-26.04", DEMO): _NO_TENSORFLOW,
    **{(shape, DEMO): "script/demo enables no repositories, of which DKMS needs EPEL's" for shape in SHAPES},
    **{("el-10", name): _NOT_ON_EL for name in SCENARIOS if name not in ("default", DEMO)},
}
# What runs on the shapes alone: a tier.
SHAPE_CELLS = [(shape, scenario) for shape in SHAPES for scenario in ("el_shape", "enterprise_linux")]
SHAPE_CELLS += [("el-9", "roles")]
CELLS = [(d, s) for d in DISTRIBUTIONS for s in SCENARIOS if (d, s) not in NOT_APPLICABLE]

# The tasks of `default` that run on Debian 12 and not on the shapes, and why.
_REPOSITORY = "gpuhost.stack.nvidia_repo : "
OF_DEBIAN_ALONE = {
    f"{_REPOSITORY}Add NVIDIA's repository": "install_dnf.yml adds it, without the packages that must not come from it",
    f"{_REPOSITORY}Block packages that must not come from NVIDIA's repository, and store the password for it": (
        "dnf's repository excludes them itself, and its variables have the password"
    ),
    f"{_REPOSITORY}Refresh the package lists for NVIDIA's repository": "dnf reads the metadata of a new repository",
}


# Of one shape.
OF_DEBIAN_AND_OTHER_SHAPES = {
    "el-10": {
        "gpuhost.stack.framework_env : Install the system packages for venv and pip": "its one Python brings both",
    },
}


def tasks_that_ran(log: str) -> set[str]:
    """Return the names of the tasks that did not skip all hosts, from the output of Ansible's default callback."""
    ran, task = set(), ""
    for line in log.splitlines():
        if match := re.match(r"(?:TASK|RUNNING HANDLER) \[(.+)\] \*+$", line):
            task = match.group(1)
        elif re.match(r"(?:ok|changed): \[", line):
            ran.add(task)
    return ran


def differences(shape: str, of_debian: set[str], of_shape: set[str]) -> list[str]:
    """Return what the rows of a shape lack, and those that are not so."""
    alone, rows = of_debian - of_shape, {**OF_DEBIAN_ALONE, **OF_DEBIAN_AND_OTHER_SHAPES.get(shape, {})}
    lacking = [f"ran on Debian 12 alone, and has no row: {task}" for task in sorted(alone - rows.keys())]
    return lacking + [f"has a row, and ran on both or on none: {task}" for task in sorted(rows.keys() - alone)]


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
    cells: dict[str, list[str]] = {}
    for (d, s), reason in NOT_APPLICABLE.items():
        cells.setdefault(reason, []).append(f"{d} `{s}`")
    reasons = [f"{', '.join(names)}: {reason}" for reason, names in cells.items()]
    return "\n" + "\n".join(rows) + "\n\n–: does not run. " + "; ".join(reasons) + ".\n\n"
