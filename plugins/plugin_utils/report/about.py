"""What was run: when and for how long, which command, by whom, and with which releases of gpuhost and its catalog."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import hashlib
import os
import platform
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import urls
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import release
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import PREFIX

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_OURS = re.compile(rf"({PREFIX}\w+=\S*\s*)+")
# Options of ansible-playbook that say what a run does and how it connects, by the names that Ansible gives them.
_OPTIONS = {
    "inventory": "-i",
    "subset": "--limit",
    "tags": "--tags",
    "skip_tags": "--skip-tags",
    "private_key_file": "--private-key",
    "vault_password_files": "--vault-password-file",
    "connection_password_file": "--connection-password-file",
    "become_password_file": "--become-password-file",
}
_FLAGS = {"ask_pass": "-k", "become_ask_pass": "-K", "ask_vault_pass": "-J", "become": "-b", "check": "--check"}


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
        command(options),
        f"{getpass.getuser()}@{platform.node()}",
        release.version(),
        catalog_digest(),
    )


def command(options: Mapping[str, Any]) -> str:
    """Return the command that was typed, without what may be a secret.

    Of -e the names of files and the values of our own variables are shown, without logins in URLs; others are `...`.
    """
    words = ["ansible-playbook", *map(_near, options.get("args") or ())]
    for name, option in _OPTIONS.items():
        for value in _values(options.get(name)):
            if (name, value) != ("tags", "all"):
                words += [option, _near(value)]
    for value in _values(options.get("extra_vars")):
        words += ["-e", _extra(value)]
    words += [flag for name, flag in _FLAGS.items() if options.get(name)]
    return " ".join(word if word == "..." else shlex.quote(str(word)) for word in words)


def _extra(value: str) -> str:
    if value.startswith("@"):
        return f"@{_near(value[1:])}"
    return str(urls.without_credentials(value)) if _OURS.fullmatch(value) else "..."


def _near(value: str) -> str:
    """Return a path as it is typed here; Ansible makes those of options absolute."""
    return os.path.relpath(value) if Path(value).is_relative_to(Path.cwd()) else value


def _values(given: Any) -> Iterator[str]:
    for value in [given] if isinstance(given, str) else given or ():
        yield str(value)


@functools.cache
def catalog_digest() -> str:
    """Return 12 hexadecimal digits of the SHA-256 over the catalog's files, which identify the catalog."""
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(CATALOG_FOLDER).rglob("*") if path.suffix in (".yml", ".csv")):
        digest.update(path.relative_to(CATALOG_FOLDER).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]
