"""script/capture: write what a host says into one file, masked, and say where to look before it leaves.

Runs on the host itself, as root where possible. Exit status 0: written; 2: bad usage.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import release
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command import documents
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command.capture_options import parser
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import repositories
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import URL

_MODE = 0o600  # it is the user's to give away
_LOOK = """\
Masked are serial numbers, UUIDs, names of hosts and users, addresses, names of
processes, secrets, and logins in URLs, by their form and by what this host says
of itself. A project's or a customer's name has no form: look through the file
before you send it, first the kernel log, GRUB's menu, `apt-cache policy` and
`probe`."""


def main() -> int:
    """Run the command line; return the exit status."""
    options = parser()
    arguments = options.parse_args()
    if arguments.repository_url and not URL.fullmatch(arguments.repository_url):
        expected = "an address such as https://mirror.example.org/compute/cuda/repos"
        options.refuse([f"--repository-url {arguments.repository_url}: expected {expected}"])
    path = arguments.output or f"gpuhost-capture-{datetime.date.today():%Y%m%d}.json"
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    except FileExistsError:
        options.refuse([f"{path} exists, and is not overwritten; name another file with --output"])
    except OSError as error:
        options.refuse([f"--output {path}: {error.strerror}"])
    if os.geteuid() != 0:
        missing = "the kernel log, GRUB's menu and more may be missing"
        print(f"Not run as root: {missing} (sudo script/capture).", file=sys.stderr)
    try:
        found = _write(target, arguments.repository_url)
    except BaseException:  # nobody is to take a part for the whole
        os.unlink(path)
        raise
    print(for_terminal(summary(path, found)))
    return 0


def _write(target: int, mirror: str | None) -> dict[str, Any]:
    """Write what this host says to an open file, and return it. mirror: that of NVIDIA's repositories, if named."""
    catalog, machine = load_catalog(), os.uname().machine
    urls = {name: each[machine] for name, each in repositories(catalog, mirror).items() if machine in each}
    with os.fdopen(target, "w", encoding="utf-8") as handle:
        found = documents.captured(catalog, urls, is_asked=bool(mirror))
        json.dump({"gpuhost": release.version(), **found}, handle, indent=1, ensure_ascii=False)
        handle.write("\n")
    return found


def summary(path: str, found: dict[str, Any]) -> str:
    """Return what was written, what was masked, and where to look before it leaves the host, for a terminal."""
    lines = [f"Wrote {path}. Nothing has left this host."]
    for name, document in found["documents"].items():
        status = f", status {document['status']}" if "status" in document else ""
        what = document.get("problem") or f"{len(document['lines'])} lines{status}"
        lines.append(f"  {name if len(name) < 60 else name[:57] + '...'}: {what}")
    if repository := found["probe"].get("repository"):
        what = repository["error"] or f"{repository['url']}: {len(repository['packages'])} packages"
        lines.append(f"  NVIDIA's repository: {what}")
        lines += ["    (of a mirror: --repository-url URL, as in gpu_stack_repository_url)"] * bool(repository["error"])
    lines += [f"  probe: {error}" for error in found["probe"]["errors"]]
    counts = ", ".join(f"{kind} {count}" for kind, count in found["masked"].items())
    lines += [f"Different values masked: {counts or 'none'}.", _LOOK, f"Plan with it: script/plan --probe {path}"]
    return "\n".join(lines)
