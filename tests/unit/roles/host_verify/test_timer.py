"""When the timer of gpuhost-verify runs first, by the directives of systemd.timer(5)."""

from __future__ import annotations

import configparser
from pathlib import Path

import jinja2

TIMER = Path(__file__).resolve().parents[4] / "roles/host_verify/templates/gpuhost-verify.timer.j2"
# What counts from the boot, or from the start of the timer, which boots with the other timers.
FIRST = ("OnActiveSec", "OnBootSec", "OnStartupSec")


def test_the_first_run_after_a_boot_leaves_the_driver_time_to_load() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(jinja2.Template(TIMER.read_text()).render(host_verify_timer_interval="1h"))
    timer = unit["Timer"]
    assert {name: timer[name] for name in FIRST if name in timer} == {"OnBootSec": "2min"}
    assert timer["OnUnitActiveSec"] == "1h"
    assert "OnCalendar" not in timer
