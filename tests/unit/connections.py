"""Run a task of this collection with ansible-playbook on this machine, over a connection that can be lost.

The connection `cut` is Ansible's `local`, except that it fails as ssh does while the file of GPUHOST_TEST_CUT exists:
every new command, and those that run when the file appears. Like sshd it leaves their processes alone. A job of the
host is asked every 0.2 seconds, and each of its answers is counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.unit.ansible_runs import PIPELINING

PROJECT = Path(__file__).resolve().parents[2]
PLUGIN = '''
DOCUMENTATION = """
name: cut
short_description: a local connection that can be lost
author: gpuhost contributors
description: For tests.
"""
import os
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import host_job

host_job.POLL_SECONDS = (0.2,)


class Connection(Local):
    transport = "cut"

    def _check(self):
        if os.path.exists(os.environ["GPUHOST_TEST_CUT"]):
            with open(os.environ["GPUHOST_TEST_CUT"] + "-refused", "a") as stream:
                stream.write("once\\n")
            raise AnsibleConnectionFailure("Failed to connect to the host via ssh: Connection refused")

    def exec_command(self, *args, **options):
        self._check()
        done = super().exec_command(*args, **options)
        self._check()
        if b"gpuhost-job:" in done[1]:
            with open(os.environ["GPUHOST_TEST_CUT"] + "-answers", "a") as stream:
                stream.write(f"{os.getppid()}\\n")
        noise = os.path.join(os.path.dirname(os.environ["GPUHOST_TEST_CUT"]), "noise")
        if os.path.exists(noise) and b"gpuhost-job:" in done[1]:
            with open(noise, "rb") as stream:  # as ssh -tt returns what sudo prints
                done = (done[0], stream.read() + done[1].replace(b"\\n", b"\\r\\n"), done[2])
        return done

    def put_file(self, *args):
        self._check()
        return super().put_file(*args)

    def reset(self):
        pass
'''


class Host:
    """This machine as a host, with its own directory for everything that a task writes."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.cut = directory, directory / "cut"
        (directory / "connection_plugins").mkdir(parents=True)
        (directory / "connection_plugins/cut.py").write_text(PLUGIN)
        self.programs = directory / "programs"
        self.programs.mkdir()

    def program(self, name: str, script: str) -> None:
        """Put a program before those of this machine, for the tasks."""
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def start(self, module: str, options: dict[str, Any], *words: str) -> subprocess.Popen[str]:
        """Start ansible-playbook with one task; the task's result is written to result.json."""
        tasks = [
            {
                "name": "Run the task",
                module: options,
                "register": "done",
                "ignore_errors": True,
                "environment": {"PATH": f"{self.programs}:{os.environ['PATH']}"},
            },
            {
                "name": "Write the result",
                "ansible.builtin.copy": {"content": "{{ done | to_json }}", "dest": f"{self.directory}/result.json"},
                "check_mode": False,
            },
        ]
        return self.start_play(tasks, *words)

    def start_play(self, tasks: list[dict[str, Any]], *words: str) -> subprocess.Popen[str]:
        """Start ansible-playbook with these tasks."""
        play = {"hosts": "gpu1", "gather_facts": False, "tasks": tasks}
        (self.directory / "play.yml").write_text(json.dumps([play]))
        host = {"ansible_connection": "cut", "ansible_python_interpreter": sys.executable}
        (self.directory / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"gpu1": host}}}))
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"),
            "ANSIBLE_CONNECTION_PLUGINS": str(self.directory / "connection_plugins"),
            "ANSIBLE_ASYNC_DIR": str(self.directory / "jobs"),
            "ANSIBLE_FORCE_COLOR": "false",
            "GPUHOST_TEST_CUT": str(self.cut),
            **PIPELINING,
        }
        command = [str(Path(sys.executable).with_name("ansible-playbook")), "play.yml", "-i", "hosts.yml", *words]
        return subprocess.Popen(
            command, cwd=self.directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, module: str, options: dict[str, Any], *words: str) -> tuple[dict[str, Any], str]:
        """Return the task's result and the output of the run."""
        output, _ = self.start(module, options, *words).communicate()
        return self.result(output), output

    def result(self, output: str) -> dict[str, Any]:
        """Return the task's result."""
        path = self.directory / "result.json"
        assert path.exists(), output
        return dict(json.loads(path.read_text()))

    @property
    def refused(self) -> int:
        """How many commands have failed while the connection was cut."""
        record = self.directory / "cut-refused"
        return len(record.read_text().splitlines()) if record.exists() else 0

    def wait_for_answers(self, run: subprocess.Popen[str], count: int = 3) -> None:
        """Wait until a run has asked so many more times for a job, and got an answer."""
        record, wanted, deadline = self.directory / "cut-answers", None, time.monotonic() + 90
        while True:
            found = record.read_text().split().count(str(run.pid)) if record.exists() else 0
            wanted = found + count if wanted is None else wanted
            if found >= wanted:
                return
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)

    @property
    def jobs(self) -> list[Path]:
        """The files of jobs whose result no run has read."""
        return sorted((self.directory / "jobs").glob("*"))
