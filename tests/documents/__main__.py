"""Run the documents' commands on a host of the lab: `python -m tests.documents [--json FILE] [--keep-lab]`.

They run as they are printed, in a copy of the project whose inventories/lab has the one host gpu01: a container in the
shape of Ubuntu 22.04 with *simulated* GPUs, on which a driver was installed by NVIDIA's guide. PYTHONPATH has the
folder collections, PATH the programs of .venv.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.documents import PROJECT, all_shown, known, missing
from tests.made_up_component import copy_of_the_project

COPY = PROJECT / ".cache/documents/clone"
INVENTORY = "inventories/lab"
GPUS = ["NVIDIA H200"]


def write_inventory(variables: dict[str, Any]) -> None:
    """Write the inventory of the copy: one host, reached as those of inventories/demo, with variables of its own."""
    host = {"lab_gpus": GPUS, "lab_image": "ubuntu-22.04", **variables}
    hosts = {"vars": {"ansible_ssh_common_args": "-F .lab/lab/ssh_config"}, "hosts": {"gpu01": host}}
    (COPY / INVENTORY / "hosts.yml").write_text(yaml.safe_dump({"gpu_hosts": hosts}))


def make_copy() -> None:
    """Copy the project, and give the copy the environment of this one."""
    shutil.rmtree(COPY, ignore_errors=True)
    copy_of_the_project(COPY)
    (COPY / ".venv").symlink_to(PROJECT / ".venv")
    shutil.copy(COPY / "inventories/demo/group_vars/gpu_hosts.yml", COPY / INVENTORY / "group_vars/gpu_hosts.yml")


def call(command: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in the copy as a user's shell does, with its output captured."""
    left_out = ("ANSIBLE_", "GPUHOST_REPORTS", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return subprocess.run(
        ["bash", "-c", command], cwd=COPY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def must(command: str) -> None:
    """Run a command that prepares the lab; end the program if it fails."""
    done = call(command)
    if done.returncode:
        sys.exit(f"ERROR: {command} ended with {done.returncode}:\n{done.stdout}")


def wrong(step: dict[str, Any]) -> str:
    """Run a command of the documents; return what is wrong with its exit status or its output, "" if nothing is."""
    shows = [one for one in all_shown() if one.command == step["command"] and one.document == step["document"]]
    begun = time.monotonic()
    done = call(step["command"])
    print(
        f"{step['document']}: {step['command']}: {done.returncode} after {time.monotonic() - begun:.0f} s", flush=True
    )
    expected = step.get("status", 0)
    if done.returncode != expected:
        return f"exit status {done.returncode}, expected {expected}:\n{done.stdout}"
    unseen = missing(shows[0].output, done.stdout.splitlines())
    if unseen:
        lines = "\n".join(f"  {line}" for line in unseen)
        return (
            f"the document shows lines that were not printed, from the first one on:\n{lines}\nprinted:\n{done.stdout}"
        )
    return ""


def main() -> int:
    """Run the commands on the lab, print what is wrong, and return the exit status."""
    parser = argparse.ArgumentParser(description="Run the documents' commands on a host of the lab.")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--keep-lab", action="store_true", help="keep the container")
    options = parser.parse_args()
    make_copy()
    failed, passed = [], 0
    try:
        for step in known()["lab"]:
            if "inventory" in step:
                write_inventory(step["inventory"])
            elif "prepare" in step:
                must(step["prepare"])
            elif why := wrong(step):
                print(f"FAILED {step['document']}: {step['command']}: {why}", flush=True)
                failed.append(step["command"])
            else:
                passed += 1
    finally:
        if not options.keep_lab:
            must(f"script/lab down {INVENTORY}")
    never = {one["command"]: one["never"] for ones in known()["commands"].values() for one in ones if "never" in one}
    skipped = [f"{command}: {why}" for command, why in never.items()]
    if options.json:
        options.json.write_text(json.dumps({"passed": passed, "failed": failed, "skipped": skipped}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
