# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Lines of others' settings that break the stack: added ones are disabled, or left to who wrote them.

Runs on the managed host.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs, SettingsLine
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch


class _Lines(Kind):
    """The lines by file; one that is gone is no damage."""

    is_foreign = True

    def is_damage(self, key: str, wanted: Any, now: Any, watch: Watch) -> bool:
        return bool(_added(wanted, now))


class LibraryPath(_Lines):
    """LD_LIBRARY_PATH for all users."""

    name, title = "library_path", "LD_LIBRARY_PATH in"
    watches = ("library_path",)

    def read(self, host: Host, watch: Watch) -> States:
        return dict(foreign_settings.library_path(host.root)) if watch.get("library_path") else {}

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        """Return the lines to disable. One that does more than set the variable stays: it is left as damage."""
        return _disabled(key, [line for line in _added(wanted, now) if foreign_settings.can_be_disabled(key, line)])


class Blacklist(_Lines):
    """What keeps NVIDIA's modules from loading."""

    name, title = "blacklist", "blacklist in"
    watches = ("blacklists",)

    def read(self, host: Host, watch: Watch) -> States:
        return dict(foreign_settings.blacklists(host.root)) if watch.get("blacklists") else {}

    def repairs(self, host: Host, key: str, wanted: Any, now: Any) -> Repairs:
        return _disabled(key, [] if key == foreign_settings.COMMAND_LINE else _added(wanted, now))


def _added(wanted: Any, now: Any) -> list[str]:
    return [line for line in now or [] if line not in (wanted or [])]


def _disabled(path: str, lines: list[str]) -> Repairs:
    return Repairs(lines=tuple(SettingsLine(path, line) for line in lines))
