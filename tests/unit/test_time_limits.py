"""The time limits that the documentation lists are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_checks,
    cuda_unprivileged_check,
    framework_checks,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import driver_load, nvidia_smi

PROJECT = Path(__file__).resolve().parents[2]


def role_variables(role: str, kind: str) -> dict[str, object]:
    return dict(yaml.safe_load((PROJECT / f"roles/{role}/{kind}/main.yml").read_text()))


def test_documented_time_limits() -> None:
    section = (PROJECT / "docs/usage.md").read_text().split("## Slow hosts")[1].split("## ")[0]
    rows = re.findall(r"^\| (.*) \| (\d+)(?:, and once more (\d+))? \|$", section, re.MULTILINE)
    smi, shell = nvidia_smi.TIMEOUT, cuda_checks.SHELL_TIMEOUT
    assert [[int(number) for number in row[1:] if number] for row in rows] == [
        [smi, 2 * smi],
        [cuda_checks.COMPILE_TIMEOUT],
        [cuda_checks.RUN_TIMEOUT],
        [cuda_unprivileged_check.TIME_LIMIT],
        [shell, 3 * shell],
        [framework_checks.TIMEOUT, framework_checks.LONG_TIMEOUT],
        [driver_load.MODPROBE_SECONDS],
        [driver_load.SYSTEMCTL_SECONDS],
        [role_variables("framework_env", "vars")["__framework_env_time_limit"]],
    ]
    assert f"more than\n{nvidia_smi.SLOW} s" in section
    defaults = role_variables("smoke_train", "defaults") | role_variables("nvidia_driver", "defaults")
    for name in ("smoke_train_time_limit", "nvidia_driver_reboot_timeout"):
        assert f"`{name}` ({defaults[name]})" in section
