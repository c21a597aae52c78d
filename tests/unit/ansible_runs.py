"""Run this environment's ansible-playbook with the collection of this checkout."""

from __future__ import annotations

import atexit
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
COLLECTIONS = {"ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections")}  # not one that is installed on this machine
PIPELINING = {"ANSIBLE_PIPELINING": "true"}  # as ansible.cfg has it, which a directory of a test has not
EACH_TASK = {"ANSIBLE_STDOUT_CALLBACK": "default"}  # in place of the few lines that ansible.cfg asks for
INTERPRETER = ("-e", f"ansible_python_interpreter={sys.executable}")
THIS_MACHINE = ("-i", "localhost,", "-c", "local", *INTERPRETER)

Done = subprocess.CompletedProcess[str]

# A run is a fork of a process that has imported what each run does: imports take longer than most runs.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.unit.ansible_ahead"])
# What the interpreter and its libraries read as they start: a run for which it differs is one of the program.
AT_START = ("PYTHON", "LC_", "LANG", "LD_", "TZ", "MALLOC_", "GLIBC_", "OPENSSL_", "SSL_")


def at_start(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(AT_START)}


OF_THE_SERVER = at_start(dict(os.environ))


def run_playbook(
    directory: Path,
    *words: str | Path,
    answers: str | None = None,
    timeout: float | None = None,
    in_process_list: bool = False,
    **settings: str,
) -> Done:
    """Run ansible-playbook in a directory. answers: what is typed; settings: environment variables."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), *map(str, words)]
    environment = {**os.environ, **COLLECTIONS, **PIPELINING, **EACH_TASK, "NO_COLOR": "1", **settings}
    if in_process_list:
        return run_program(command, environment, directory, answers, timeout)
    return run(command, environment, directory, answers, timeout)


def run_program(
    command: list[str],
    environment: dict[str, str],
    directory: Path,
    answers: str | None = None,
    timeout: float | None = None,
) -> Done:
    return subprocess.run(
        command, cwd=directory, env=environment, input=answers, capture_output=True, text=True, timeout=timeout
    )


def run(
    command: list[str],
    environment: dict[str, str],
    directory: Path,
    answers: str | None = None,
    timeout: float | None = None,
) -> Done:
    """Run ansible-playbook, whose path is the command's first word: as a program, if a fork would not be as one."""
    ours = environment.get("ANSIBLE_COLLECTIONS_PATH") == COLLECTIONS["ANSIBLE_COLLECTIONS_PATH"]
    if not ours or at_start(environment) != OF_THE_SERVER:
        return run_program(command, environment, directory, answers, timeout)
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder, name) for name in ("stdin", "stdout", "stderr")]
        for stream in streams:
            stream.write_text(answers or "" if stream is streams[0] else "")
        process = SERVER.Process(target=_be, args=(command, environment, str(directory), [*map(str, streams)]))
        process.start()
        process.join(timeout)
        output, errors = (stream.read_text() for stream in streams[1:])
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout or 0, output, errors)
        return subprocess.CompletedProcess(command, process.exitcode, output, errors)


def _be(command: list[str], environment: dict[str, str], directory: str, streams: list[str]) -> None:
    """Become ansible-playbook, in a process of its own."""
    ahead = importlib.import_module("tests.unit.ansible_ahead")
    for number, path in enumerate(streams):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = os.fdopen(0)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    of_python = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(Path(command[0]).parent), *of_python]
    # Ansible imports the packages of the collection its own way.
    for name in [name for name in sys.modules if name.startswith("ansible_collections")]:
        if not name.startswith(ahead.OURS):
            del sys.modules[name]
    main = importlib.import_module("ansible.cli.playbook").main
    try:
        sys.exit(main())
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


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
