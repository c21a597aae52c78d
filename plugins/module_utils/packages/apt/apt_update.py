# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Refresh apt's package lists, even if a repository of somebody else is broken. Runs on the managed host."""

from __future__ import annotations

import re
from typing import Any, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_locks

# Without it (unknown before apt 2.1.15), an index that cannot be downloaded is a warning, and the status 0.
UPDATE = ["apt-get", "-o", "APT::Update::Error-Mode=any", "update"]
# The error of all errors, and hints that name no repository.
_NOISE = re.compile(r"^(N: |E: Some index files failed|W: Some index files failed)")
_FAILED = re.compile(r"^(E: |W: .*(Failed to fetch|Some index files failed))", re.MULTILINE)
ERROR_LINES = 12


class UpdateError(Exception):
    """The package lists that are needed could not be refreshed; the message has apt's own errors."""


def update(
    run_command: apt_locks.RunCommand, budget: apt_locks.Budget, sources: Sequence[str] = (), **options: Any
) -> str:
    """Refresh all package lists; return a warning with the errors of repositories that are not needed, "" for none.

    budget: how long to wait for other processes; sources: the source files that are needed. Raise UpdateError if one of
    these cannot be refreshed, or if apt could not start.
    """
    rc, out, err = apt_locks.run(run_command, UPDATE, budget, **options)
    if not rc and not _FAILED.search(err):
        return ""
    if apt_locks.LOCKED.search(err):
        raise UpdateError("`apt-get update` failed:\n%s" % _errors(err, out))
    for source in sources:
        # This file alone, and the lists of the others stay.
        alone = ["-o", "Dir::Etc::sourcelist=" + source, "-o", "Dir::Etc::sourceparts=/dev/null"]
        command = UPDATE[:-1] + alone + ["-o", "APT::Get::List-Cleanup=false", "update"]
        rc, own_out, own_err = apt_locks.run(run_command, command, budget, **options)
        if rc or _FAILED.search(own_err):
            raise UpdateError("`apt-get update` of %s failed:\n%s" % (source, _errors(own_err, own_out)))
    return (
        "apt-get update could not refresh all repositories of this host. The run continues with those that it could, "
        "and with the old lists of the others:\n%s" % _errors(err, out)
    )


def _errors(err: str, out: str) -> str:
    lines = [line for line in (err.strip() or out).splitlines() if line.strip() and not _NOISE.match(line)]
    return "\n".join(lines[-ERROR_LINES:])
