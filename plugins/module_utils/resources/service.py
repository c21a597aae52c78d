# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Services of systemd. Runs on the managed host."""

from __future__ import annotations

from typing import Any, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch

SYSTEMCTL_TIMEOUT = 60
UNANSWERED, UNKNOWN = "unanswered", "unknown"


class Service(Kind):
    """Whether a service is enabled, which gpuhost sees to, and active."""

    name = title = "service"
    watches = ("services", "driver")

    def read(self, host: Host, watch: Watch) -> States:
        """Return what systemd reports of each, in one call; `unknown` with its error where systemd does not run.

        An answer that is none, of a systemctl that hangs or dies, is marked as UNANSWERED. Whether a service is active
        counts with the driver: without it, nothing starts one.
        """
        names = watch.get("services") or ()
        if not names:
            return {}
        argv = ["systemctl", "show", "--property=Id,LoadState,UnitFileState,ActiveState"]
        answer = command.ask(host.run, argv + [name + ".service" for name in names], SYSTEMCTL_TIMEOUT)
        blocks = answer.stdout.decode("utf-8", "replace").strip().split("\n\n")
        units = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]
        if answer.stopped or answer.exit_code < 0 or (answer.exit_code == 0 and not _tells(units, names)):
            return {name: {UNANSWERED: "systemctl show: " + answer.ending()[:200]} for name in names}
        if answer.exit_code != 0:
            return {name: {UNKNOWN: answer.text()[:200]} for name in names}
        return {name: _state(unit, bool(watch.get("driver"))) for name, unit in zip(names, units)}  # noqa: B905

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        is_known = not isinstance(now, dict) or not (UNANSWERED in now or UNKNOWN in now)
        return is_known and bool(wanted and wanted.get("enabled") == "enabled")

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        return Repairs(services=(key,) if wanted and wanted.get("enabled") == "enabled" else ())


def unanswered(states: States) -> str:
    """Return how systemctl failed to answer, "" where it answered."""
    return next((state[UNANSWERED] for state in states.values() if UNANSWERED in state), "")


def _tells(units: list[dict[str, str]], names: Sequence[str]) -> bool:
    return len(units) == len(names) and all("LoadState" in unit for unit in units)


def _state(unit: dict[str, str], is_started: bool) -> dict[str, str]:
    state = {"loaded": unit.get("LoadState", ""), "enabled": unit.get("UnitFileState", "")}
    if is_started:
        active = unit.get("ActiveState", "")
        state["active"] = "active" if active in ("activating", "reloading") else active
    return state
