"""Start the measured hosts, and run playbooks and commands on them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import Command, Failed, once

PROJECT = Path(__file__).resolve().parents[1]
INVENTORY = "inventories/bench"
STATE = ".lab/bench"
CACHE = PROJECT / ".cache/bench"
LOGS = CACHE / "logs"
ANSIBLE = str(PROJECT / ".venv/bin/ansible-playbook")
# Measured runs do not write to the user's reports, and do not get script/bench's own PYTHONPATH.
ENVIRONMENT: Mapping[str, str] = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    "GPUHOST_REPORTS": str(CACHE / "reports"),
    "ANSIBLE_NOCOLOR": "1",
    # As users have it: where this is set, Python compiles each module in each run. The round before the others writes.
    "PYTHONDONTWRITEBYTECODE": "",
}
RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) ", re.MULTILINE)


def lab(action: str) -> None:
    """Run `script/lab up` or `script/lab down`. Raises Failed."""
    argv = [sys.executable, "script/lab", action, INVENTORY]
    if subprocess.run(argv, cwd=PROJECT, stdout=sys.stderr).returncode:
        raise Failed(f"script/lab {action} failed (see above)")


def accept_many() -> None:
    """Let bench-1 accept many connections at once: by default sshd drops some of more than ten."""
    ssh("bench-1", "echo 'MaxStartups 200' > /etc/ssh/sshd_config.d/bench.conf\nsystemctl reload ssh\n")


def playbook(name: str, path: str, *options: str, inventory: tuple[str, ...] = (INVENTORY,)) -> Command:
    """Return the command of ansible-playbook, as a user runs it."""
    inventories = [word for source in inventory for word in ("-i", source)]
    return Command(name, (ANSIBLE, path, *inventories, *options), PROJECT, ENVIRONMENT)


def changes(log: str) -> dict[str, int]:
    """Return the number of changes per host from the recap in a log; empty without a recap."""
    return {host: int(count) for host, count in RECAP.findall(log)}


def refuse_changes(name: str, folder: Path) -> None:
    """Raise Failed if the last run of a command changed a host, or ran on none: it was not a run with nothing to do."""
    counts = changes((folder / f"{name}.log").read_text(errors="replace"))
    changed = [f"{host} ({count})" for host, count in counts.items() if count]
    if changed or not counts:
        found = f"changes on {', '.join(changed)}" if counts else "no host in its recap"
        raise Failed(f"{name}: found {found}, expected hosts with nothing to do; see {folder / f'{name}.log'}")


def ssh(host: str, command: str) -> str:
    """Run a shell script as root on a host and return its output. Raises Failed with the end of its output."""
    argv = ["ssh", "-F", f"{STATE}/ssh_config", host, "sudo -n sh -s"]
    done = subprocess.run(argv, cwd=PROJECT, input=command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"a command on {host} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def put(host: str, folder: str, files: Mapping[str, str]) -> None:
    """Write files to a directory of a host."""
    parts = [f"mkdir -p {shlex.quote(folder)}"]
    for name, text in files.items():
        parts.append(f"printf %s {shlex.quote(text)} > {shlex.quote(f'{folder}/{name}')}")
    ssh(host, "\n".join(["set -eu", *parts, ""]))


def over_ssh(name: str, host: str, script: str) -> Command:
    """Return the command that runs a host's script as root."""
    return Command(name, ("ssh", "-n", "-F", f"{STATE}/ssh_config", host, f"sudo -n sh {script}"), PROJECT, ENVIRONMENT)


def planned_for(host: str) -> dict[str, Any]:
    """Run playbooks/plan.yml for a host and return the plan."""
    LOGS.mkdir(parents=True, exist_ok=True)
    once(playbook("plan", "playbooks/plan.yml", "--limit", host), LOGS / "planned.log")
    path = max((CACHE / "reports").glob(f"2*/{host}/plan.json"))  # the newest run's
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def applied_to(host: str) -> dict[str, Any]:
    """Return the plan that was applied to a host."""
    plan: dict[str, Any] = json.loads(ssh(host, "cat /etc/ansible/facts.d/gpu_stack.fact"))
    return plan


def fleet(count: int) -> str:
    """Write an inventory of `count` host names for bench-1, and return its path.

    Each name has its own connection. Only for runs that change nothing, since the names share one machine.
    """
    folder = CACHE / f"fleet-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    stanza = re.search(r"^Host bench-1$.*?(?=^Host |\Z)", (PROJECT / STATE / "ssh_config").read_text(), re.M | re.S)
    if stanza is None:
        raise Failed(f"found no bench-1 in {STATE}/ssh_config, expected the lab that script/lab up {INVENTORY} starts")
    (folder / "ssh_config").write_text(stanza[0].replace("Host bench-1", "Host bench-alias-*", 1))
    # Host variables, because group variables would be overridden by the inventory's group_vars.
    variables = {"ansible_ssh_common_args": f"-F {folder}/ssh_config", "lab_state": str(PROJECT / STATE)}
    hosts = {f"bench-alias-{number:03}": variables for number in range(count)}
    # JSON is also YAML.
    (folder / "hosts.yml").write_text(json.dumps({"gpu_hosts": {"hosts": hosts}}, indent=1))
    return str(folder / "hosts.yml")
