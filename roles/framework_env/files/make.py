"""Makes one environment, in a folder that nothing leads to, and proves it; the last line is what its proof said.

Run by the host's own Python (3.8 or newer); standard input is a JSON object, see `make`. One program and not a task
for each step: so it can run while packages are installed.
"""

from __future__ import annotations

import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from typing import Any

ATTEMPTS, PAUSE = 3, 10  # of what comes over a network; seconds
WRONG_CONTENT = ("Hash mismatch", "DO NOT MATCH THE HASHES")  # uv's words and pip's: it is no other the next time


def attempt(command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, input=given, capture_output=True, encoding="utf-8", errors="replace")


def run(what: str, command: list[str], given: str = "", attempts: int = 1) -> str:
    """The last line that the command says. SystemExit with its errors and `what` it was to do."""
    ended = attempt(command, given)
    for _ in range(attempts - 1):
        if ended.returncode and not any(words in ended.stderr for words in WRONG_CONTENT):
            time.sleep(PAUSE)
            ended = attempt(command, given)
    if ended.returncode:
        sys.exit(f"{what}: status {ended.returncode}\n{ended.stderr or ended.stdout}")
    return "".join(ended.stdout.strip().splitlines()[-1:])


def read(path: pathlib.Path) -> str:
    return path.read_text() if path.exists() else ""


def install_uv(folder: pathlib.Path, lock: str) -> None:
    """uv in a virtual environment of its own."""
    if read(folder / "gpuhost.lock") == lock and os.access(str(folder / "bin/uv"), os.X_OK):
        return
    # --clear: what was left half made must not stay.
    run("Make the folder for uv", ["python3", "-m", "venv", "--clear", str(folder)])
    pip = [str(folder / "bin/pip"), "install", "--quiet", "--require-hashes", "-r", "/dev/stdin"]
    run("Install uv, checked by hash", pip, lock, ATTEMPTS)
    (folder / "gpuhost.lock").write_text(lock)


def made_meanwhile(folder: pathlib.Path, asked: dict[str, Any]) -> str:
    """What the proof says where the environment is there and whole, for the run before was cut off but not its job."""
    if read(folder / "gpuhost.lock") != asked["lock"] or attempt(inside(folder, asked, "compare")).returncode:
        return ""
    proof = attempt([str(folder / "bin/python"), "-I", "-c", asked["proof"]])
    return "" if proof.returncode else proof.stdout.strip().splitlines()[-1]


def inside(folder: pathlib.Path, asked: dict[str, Any], task: str) -> list[str]:
    """The command of packages.py in the environment."""
    python = str(folder / "bin/python")
    return [python, "-I", "-c", asked["packages"], asked["package"], asked["version"], asked["python"], task]


def clear(folder: pathlib.Path) -> None:
    """Removes what an interrupted run left. The record first: what is removed in part must not look complete."""
    record = folder / "gpuhost.lock"
    if record.exists():
        record.unlink()
    if folder.exists():
        shutil.rmtree(str(folder))


def build(folder: pathlib.Path, asked: dict[str, Any]) -> str:
    """Makes it from nothing; what its proof said."""
    clear(folder)
    uv, python = str(pathlib.Path(asked["uv"], "bin/uv")), str(folder / "bin/python")
    venv = [uv, "venv", "--quiet", "--no-project", f"--python={asked['python']}", "--python-preference=system"]
    run("Make the virtual environment", [*venv, str(folder)], attempts=ATTEMPTS)
    # Not byte-compiled: the proof compiles what the framework uses (TensorFlow: 3 s of CPU time, all of it 6 s).
    sync = [uv, "pip", "sync", "--quiet", "--require-hashes", f"--python={python}", "-"]
    run("Install the framework and its CUDA libraries, checked by hash", sync, asked["lock"], ATTEMPTS)
    for name, target in asked["commands"].items():
        (folder / "bin" / name).symlink_to(f"../lib/python{asked['python']}/site-packages/{target}")
    run("Record the packages", inside(folder, asked, "record"))
    said = run("Prove the environment", [python, "-I", "-c", asked["proof"]])
    (folder / "gpuhost.lock").write_text(asked["lock"])
    return said


def make(asked: dict[str, Any]) -> str:
    """Asked: the environment's folder, its python, lock (text) and commands; uv (folder) and uv_lock (text); package,
    version; packages.py as `packages`, the framework's prove.py as `proof`. Returns what the proof said."""
    os.umask(0o022)  # users run what root installs
    folder = pathlib.Path(asked["folder"])
    folder.parent.mkdir(parents=True, exist_ok=True)
    # One at a time: another framework's takes the same uv, and a run that was cut off may have left one at work.
    fcntl.flock(os.open(str(folder.parent), os.O_RDONLY), fcntl.LOCK_EX)
    install_uv(pathlib.Path(asked["uv"]), asked["uv_lock"])
    return made_meanwhile(folder, asked) or build(folder, asked)


if __name__ == "__main__":
    print(make(json.load(sys.stdin)))
