# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Services of systemd. Runs on the managed host."""

from __future__ import annotations

from typing import Any, Iterable, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import file
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, Restoration, States, Watch
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.effects import UNITS

SYSTEMCTL_TIMEOUT = 60
WANTS = UNITS + "multi-user.target.wants/"
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

    def unanswered(self, states: States) -> str:
        """Return how systemctl failed to answer."""
        return next((state[UNANSWERED] for state in states.values() if UNANSWERED in state), "")

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        return Repairs(services=(key,) if wanted and wanted.get("enabled") == "enabled" else ())


class ServiceLink(Kind):
    """The link by which multi-user.target wants a service: for systemd its name enables that, wherever it points.

    The packages of a service make and remove it, too. A service that somebody has masked stays masked.
    """

    name, title = "service_link", "link that enables"
    watches = ("services",)
    record = "services"
    follows_packages = True

    def read(self, host: Host, watch: Watch) -> States:
        found = self.capture(host, watch, secrets=False)
        return {name: state and state.get("target", "no link") for name, state in found.items()}

    def differing(self, wanted: States, now: States) -> Iterable[str]:
        """Return the keys of what differs; records of earlier releases have none."""
        return [key for key in sorted(set(wanted) & set(now)) if wanted[key] != now[key]]

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        return wanted is not None

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        return Repairs(services=(key,) if wanted else ())

    def capture(self, host: Host, watch: Watch, secrets: bool) -> States:
        return {name: file.capture(_wants(host, name)) for name in watch.get("services") or ()}

    def write(self, work: Restoration, wanted: States) -> list[str]:
        return file.restore(
            {_wants(work.host, name): state for name, state in wanted.items()}, work.effects, work.check
        )


def _wants(host: Host, name: str) -> str:
    return files.under(host.root, "%s%s.service" % (WANTS, name))


def _tells(units: list[dict[str, str]], names: Sequence[str]) -> bool:
    return len(units) == len(names) and all("LoadState" in unit for unit in units)


def _state(unit: dict[str, str], is_started: bool) -> dict[str, str]:
    state = {"loaded": unit.get("LoadState", ""), "enabled": unit.get("UnitFileState", "")}
    if is_started:
        active = unit.get("ActiveState", "")
        state["active"] = "active" if active in ("activating", "reloading") else active
    return state
