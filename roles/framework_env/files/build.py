"""Build an environment in its own directory and verify it; the last line of output is that of the verification.

Run by the host's own Python (3.8 or newer) with a JSON object on standard input, see `build`. One program instead of
several tasks, so that it can run as a background job while packages are installed.
"""

from __future__ import annotations

import fcntl
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ATTEMPTS, PAUSE = 3, 10  # of commands that use the network; seconds between them
UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}  # MiB
WRONG_CONTENT = ("Hash mismatch", "DO NOT MATCH THE HASHES")  # errors of uv and pip that a retry cannot fix


def run_command(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command and capture its output; any exit status is accepted."""
    return subprocess.run(command, input=stdin, capture_output=True, check=False, encoding="utf-8", errors="replace")


def follow_downloads(command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run uv and record how much it has downloaded, of what it has found to be missing so far."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(stdin)
        process.stdin.close()
        sizes: dict[str, float] = {}
        done, lines = 0.0, []
        for line in process.stderr:
            if begun := re.fullmatch(r"Downloading (\S+) \(([0-9.]+)([KMG])iB\)", line.strip()):
                sizes[begun[1]] = float(begun[2]) * UNITS[begun[3]]
            elif ended := re.fullmatch(r"Downloaded (\S+)", line.strip()):
                done += sizes.get(ended[1], 0)
            else:
                lines.append(line)
            if sizes:
                total = sum(sizes.values())
                doing = "installing wheels" if line.startswith("Prepared ") else "downloading wheels"
                record(f"{doing}, {done:.0f} of {total:.0f} MiB downloaded")
    return subprocess.CompletedProcess(command, process.returncode, "", "".join(lines))


def record(step: str) -> None:
    """Write how far the build is into the directory for temporary files, for the role, which waits."""
    pathlib.Path("progress").write_text(f"step:{step}\n")


def run_step(
    step: str, command: list[str], stdin: str = "", attempts: int = 1, run: Callable[..., Any] = run_command
) -> str:
    """Run a command and return the last line of its output; on failure exit with the step's name and the errors."""
    record(f"{step[0].lower()}{step[1:]}")
    result = run(command, stdin)
    for _unused in range(attempts - 1):
        if result.returncode and not any(words in result.stderr for words in WRONG_CONTENT):
            time.sleep(PAUSE)
            result = run(command, stdin)
    if result.returncode:
        sys.exit(f"{step}: status {result.returncode}\n{result.stderr or result.stdout}")
    return "".join(result.stdout.strip().splitlines()[-1:])


def read_text(path: pathlib.Path) -> str:
    """Return a file's text, or an empty string if it does not exist."""
    return path.read_text() if path.exists() else ""


def install_uv(directory: pathlib.Path, lock: str) -> None:
    """Install uv in its own virtual environment, unless it was installed from the same lock."""
    if read_text(directory / "gpuhost.lock") == lock and os.access(str(directory / "bin/uv"), os.X_OK):
        return
    # --clear removes what an interrupted run left.
    run_step("Create the virtual environment of uv", ["python3", "-m", "venv", "--clear", str(directory)])
    pip = [str(directory / "bin/pip"), "install", "--quiet", "--require-hashes", "-r", "/dev/stdin"]
    run_step("Install uv, checked by hash", pip, lock, ATTEMPTS)
    (directory / "gpuhost.lock").write_text(lock)


def reuse_finished(directory: pathlib.Path, request: dict[str, Any]) -> str:
    """Return the verification's output if the environment is complete, else an empty string.

    It may be: the job of an interrupted run continues, and this run waited for it.
    """
    if read_text(directory / "gpuhost.lock") != request["lock"]:
        return ""
    if run_command(check_packages(directory, request, "compare")).returncode:
        return ""
    result = run_command([str(directory / "bin/python"), "-I", "-c", request["verify_script"]])
    return "" if result.returncode else result.stdout.strip().splitlines()[-1]


def check_packages(directory: pathlib.Path, request: dict[str, Any], task: str) -> list[str]:
    """Return the command that runs check_packages.py in the environment."""
    script = request["check_packages_script"]
    python = str(directory / "bin/python")
    return [python, "-I", "-c", script, request["package"], request["version"], request["python"], task]


def remove(directory: pathlib.Path) -> None:
    """Remove an environment, its record first: one that is partly removed must not look complete."""
    record = directory / "gpuhost.lock"
    if record.exists():
        record.unlink()
    if directory.exists():
        shutil.rmtree(str(directory))


def shares_files(environment: pathlib.Path) -> bool:
    """Return whether files of an environment are hard links into uv's cache."""
    records = environment.glob("lib/python*/site-packages/*.dist-info/METADATA")
    return any(path.stat().st_nlink > 1 for path in records)


def create(directory: pathlib.Path, request: dict[str, Any]) -> str:
    """Create the environment and return the verification's output."""
    remove(directory)
    for path in request["damaged"]:  # so that no later run takes it for complete
        pathlib.Path(path, "gpuhost.lock").unlink(missing_ok=True)
    uv, python = str(pathlib.Path(request["uv"], "bin/uv")), str(directory / "bin/python")
    venv = [uv, "venv", "--quiet", "--no-project", f"--python={request['python']}", "--python-preference=system"]
    run_step("Create the virtual environment", [*venv, str(directory)], attempts=ATTEMPTS)
    # Not byte-compiled: the verification compiles what the framework uses (TensorFlow: 3 s of CPU time instead of 6).
    sync = [uv, "pip", "sync", "--require-hashes", f"--python={python}", "-"]
    # A file that is a hard link into uv's cache was damaged there, too.
    if any(shares_files(pathlib.Path(path)) for path in request["damaged"]):
        sync.insert(1, "--no-cache")
    step = "Install the framework and its CUDA libraries, checked by hash"
    run_step(step, sync, request["lock"], ATTEMPTS, follow_downloads)
    for name, target in request["commands"].items():
        (directory / "bin" / name).symlink_to(f"../lib/python{request['python']}/site-packages/{target}")
    run_step("Record the packages", check_packages(directory, request, "record"))
    output = run_step("Verify the environment", [python, "-I", "-c", request["verify_script"]])
    (directory / "gpuhost.lock").write_text(request["lock"])
    return output


def isolate(kept: list[str], dropped: list[str], own: dict[str, str]) -> None:
    """Drop the variables of the host's users by patterns of names, and set our own.

    Settings of indexes, proxies and certificates are in none of the patterns.
    """
    for name in list(os.environ):
        is_dropped, is_kept = (any(fnmatch.fnmatchcase(name, one) for one in patterns) for patterns in (dropped, kept))
        if is_dropped and not is_kept:
            del os.environ[name]
    os.environ.update({name: value.format(directory=os.devnull) for name, value in own.items()})


def build(request: dict[str, Any]) -> str:
    """Build and verify the requested environment, unless it is complete; return the verification's output.

    The request's keys: directory, python ("X.Y"), lock (text), commands ({name in bin: path in site-packages}), package
    and version of the environment; isolation (kept, dropped, set: see `isolate`); environment (variables of uv and
    pip); uv (directory) and uv_lock (text); damaged
    (directories of environments that are replaced, and that of uv); the scripts check_packages_script and verify_script
    (text).
    """
    isolation = request["isolation"]
    isolate(isolation["kept"], isolation["dropped"], isolation["set"])
    os.environ.update(request["environment"])
    os.umask(0o022)  # root installs what users run
    directory = pathlib.Path(request["directory"])
    directory.parent.mkdir(parents=True, exist_ok=True)
    # One build at a time: other frameworks share uv, and the job of an interrupted run may still be running.
    fcntl.flock(os.open(str(directory.parent), os.O_RDONLY), fcntl.LOCK_EX)
    # Not /tmp, which may be a small tmpfs.
    scratch = directory.parent.parent / "tmp"
    shutil.rmtree(str(scratch), ignore_errors=True)  # of an interrupted build
    scratch.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(scratch)
    os.chdir(str(scratch))  # in which uv finds no uv.toml and no pyproject.toml
    try:
        return install(directory, request)
    finally:
        shutil.rmtree(str(scratch), ignore_errors=True)


def install(directory: pathlib.Path, request: dict[str, Any]) -> str:
    """Build the environment with the lock held and the directory for temporary files created."""
    uv = pathlib.Path(request["uv"])
    if request["uv"] in request["damaged"]:
        remove(uv)
    install_uv(uv, request["uv_lock"])
    return reuse_finished(directory, request) or create(directory, request)


if __name__ == "__main__":
    print(build(json.load(sys.stdin)))
