"""What was run: when and for how long, which command, by whom, and with which releases of gpuhost and its catalog."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import hashlib
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import release
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import run_command

_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclasses.dataclass(frozen=True)
class About:
    """A run; started, finished: UTC, in ISO 8601. who: the user and the controller; catalog: of its files' content."""

    started: str
    finished: str
    seconds: int
    command: str
    who: str
    gpuhost: str
    catalog: str

    @property
    def duration(self) -> str:
        """For people, such as 9 min 22 s."""
        minutes, seconds = divmod(self.seconds, 60)
        hours, minutes = divmod(minutes, 60)
        parts = [(hours, "h"), (minutes, "min"), (seconds if not hours else 0, "s")]
        return " ".join(f"{number} {unit}" for number, unit in parts if number) or "0 s"


def about(started: datetime, options: Mapping[str, Any]) -> About:
    """Return what a run was that ends now.

    started: with its time zone. options: ansible-playbook's, as Ansible parsed them (context.CLIARGS).
    """
    begun, now = started.astimezone(UTC), datetime.now(UTC)
    return About(
        begun.strftime(_TIME),
        now.strftime(_TIME),
        max(round((now - begun).total_seconds()), 0),
        run_command.typed(options),
        f"{getpass.getuser()}@{platform.node()}",
        release.version(),
        catalog_digest(),
    )


@functools.cache
def catalog_digest() -> str:
    """Return 12 hexadecimal digits of the SHA-256 over the catalog's files, which identify the catalog."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(CATALOG_FOLDER).rglob("*") if path.suffix in (".yml", ".csv")):
        digest.update(path.relative_to(CATALOG_FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
