"""Run this environment's ansible-playbook with the collection of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
COLLECTIONS = {"ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections")}  # not one that is installed on this machine
PIPELINING = {"ANSIBLE_PIPELINING": "true"}  # as ansible.cfg has it, which a directory of a test has not
EACH_TASK = {"ANSIBLE_STDOUT_CALLBACK": "default"}  # in place of the few lines that ansible.cfg asks for
INTERPRETER = ("-e", f"ansible_python_interpreter={sys.executable}")
THIS_MACHINE = ("-i", "localhost,", "-c", "local", *INTERPRETER)

Done = subprocess.CompletedProcess[str]


def run_playbook(
    directory: Path, *words: str | Path, answers: str | None = None, timeout: float | None = None, **settings: str
) -> Done:
    """Run ansible-playbook in a directory. answers: what is typed; settings: environment variables."""
    command = [Path(sys.executable).with_name("ansible-playbook"), *words]
    environment = {**os.environ, **COLLECTIONS, **PIPELINING, **EACH_TASK, "NO_COLOR": "1", **settings}
    return subprocess.run(
        command, cwd=directory, env=environment, input=answers, capture_output=True, text=True, timeout=timeout
    )


def run_play(
    directory: Path, play: dict[str, Any] | str, *words: str, timeout: float | None = None, **settings: str
) -> Done:
    """Write a play to play.yml in a directory, and run it on this machine. play: as data, or a playbook's text."""
    (directory / "play.yml").write_text(play if isinstance(play, str) else json.dumps([play]))
    return run_playbook(directory, "play.yml", *THIS_MACHINE, *words, timeout=timeout, **settings)


def empty_apt(folder: Path) -> dict[str, str]:
    """Return the setting of a run with an apt that answers nothing; the answers of this machine's take seconds a host.

    For runs whose tests are not about packages.
    """
    folder.mkdir(exist_ok=True)
    for name in ("apt-get", "apt-cache"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def printed(done: Done) -> str:
    """Return what a run has printed, on one line."""
    return " ".join((done.stdout + done.stderr).split())
