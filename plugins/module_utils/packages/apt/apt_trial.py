# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Try an apt source with lists of its own, before the host's apt reads it. Runs on the managed host.

apt refuses every command while one list does not parse, or while two sources of one repository contradict each other: a
source that breaks must never become active.
"""

from __future__ import annotations

import os
import shutil
from typing import Callable

RunCommand = Callable[..., "tuple[int, str, str]"]
UPDATE_OPTIONS = ["-o", "APT::Update::Error-Mode=any", "-o", "Acquire::Retries=2"]
ERROR_LINES = 12


def problem(run_command: RunCommand, directory: str, dest: str, content: str, parts: str) -> str:
    """Return why apt cannot use the source file `content` at `dest`, in apt's words; "" if it can.

    directory: an empty directory for the trial, which apt's unprivileged user can read; run_command: AnsibleModule's;
    parts: the host's directory of source files, with which the new one must agree.
    """
    lists, together = os.path.join(directory, "lists"), os.path.join(directory, "sources")
    os.makedirs(os.path.join(lists, "partial"))
    os.makedirs(together)
    name = os.path.basename(dest)
    alone = os.path.join(directory, name)
    for path in (alone, os.path.join(together, name)):
        with open(path, "w") as stream:
            stream.write(content)
    for other in sorted(os.listdir(parts)) if os.path.isdir(parts) else []:
        source = os.path.join(parts, other)
        if other != name and other.endswith((".list", ".sources")) and os.path.isfile(source):
            shutil.copy(source, together)
    caches = ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
    own = ["-o", "Dir::Etc::sourcelist=" + alone, "-o", "Dir::Etc::sourceparts=/dev/null"]
    # After the download, `update` reads all lists that it has: those of this source and dpkg's database.
    update = ["apt-get", *own, "-o", "Dir::State::lists=" + lists, *caches, *UPDATE_OPTIONS, "update"]
    agree = ["apt-get", "-o", "Dir::Etc::sourceparts=" + together, *caches, "indextargets"]
    for command in (agree, update):
        code, output, errors = run_command(command, environ_update={"LC_ALL": "C.UTF-8"})
        if code:
            lines = [line for line in (errors or output).splitlines() if line.strip()]
            return "\n".join(line.replace(directory, "") for line in lines[-ERROR_LINES:])
    return ""
