"""List a framework's environments and decide which one to use, build or remove; changes nothing.

Run from standard input by the host's own Python (3.8 or newer). The argument is a JSON object, see `main`; prints JSON.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import subprocess
import sys
from typing import Any


def name_pattern(framework: str) -> re.Pattern[str]:
    """Return the pattern of environment names, such as tensorflow-2.21.0-py3.11-4e5f6a7b.

    A number at the end marks the replacement of a damaged environment of the same lock.
    """
    return re.compile(re.escape(framework) + r"-[0-9][^/]*-py\d+\.\d+-[0-9a-f]{8}(-\d+)?")


def sha256(path: str) -> str | None:
    """Return the SHA-256 of a file, or None if it does not exist."""
    try:
        with open(path, "rb") as handle:
            return hashlib.sha256(handle.read()).hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


def link_target(link: str, directory: str, ours: re.Pattern[str]) -> str:
    """Return the name of the environment in `directory` that a link points to, existing or not, or ""."""
    target = os.path.join(os.path.dirname(link), os.readlink(link))
    head, name = os.path.split(os.path.normpath(target))
    return name if head == directory and ours.fullmatch(name) else ""


def conflict(path: str, directory: str, ours: re.Pattern[str]) -> str:
    """Return a message if something that is not ours is in the link's place, else an empty string."""
    if os.path.islink(path):
        if link_target(path, directory, ours):
            return ""
        found = f"a link to {os.readlink(path)}"
    elif os.path.lexists(path):
        found = "a directory" if os.path.isdir(path) else "a file"
        if sha256(path + "/gpuhost.lock"):
            found += " with an environment of an older release of this role"
    else:
        return ""
    return (
        f"Found {found} at {path}, expected a link to an environment in {directory}, or nothing. Nothing was changed. "
        f"Move or remove it, for example with: mv {path} {path}.old"
    )


def damage(environment: str, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return why the environment cannot be used ("" if it can), and the output of its verification."""
    record = sha256(environment + "/gpuhost.lock")  # written last
    if record is None:
        return "incomplete", {}
    if record != request["lock"]:
        return "built from another lock file", {}
    script = request["check_packages_script"]
    packages = [script, request["package"], request["version"], request["python"], "compare"]
    isolation, output = request["isolation"], ""
    own = isolated(isolation["kept"], isolation["dropped"], isolation["set"])
    for arguments in (packages, [request["verify_script"]]):
        error, output = run_script([environment + "/bin/python", "-I", "-B", "-c"] + arguments, own)
        if error:
            return error, {}
    return "", dict(json.loads(output))


def isolated(kept: list[str], dropped: list[str], own: dict[str, str]) -> dict[str, str]:
    """Return this process's environment with our own variables, without those of the host's users (as in build.py)."""

    def matches(name: str, patterns: list[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    left = {name: value for name, value in os.environ.items() if matches(name, kept) or not matches(name, dropped)}
    return {**left, **{name: value.format(directory=os.devnull) for name, value in own.items()}}


def run_script(command: list[str], environment: dict[str, str]) -> tuple[str, str]:
    """Return what failed ("" if nothing did), and the last line of the command's output."""
    try:
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=environment)
    except OSError as error:
        return f"its Python does not start: {error}", ""
    errors, lines = (text.decode("utf-8", "replace").strip().splitlines() for text in (result.stderr, result.stdout))
    if result.returncode:
        return (errors[-1] if errors else f"its verification ended with status {result.returncode}"), ""
    return "", lines[-1] if lines else ""


def choose(directory: str, names: list[str], used: set[str], request: dict[str, Any], current: str) -> dict[str, Any]:
    """Return the environment to use: a complete one, preferably the current one, else a free name to build.

    names: environments in `directory`; used: names that links point to, which must not be built over.
    """
    name = request["name"]
    reasons = []
    candidates = (entry for entry in names if re.fullmatch(re.escape(name) + r"(-\d+)?", entry))
    for entry in sorted(candidates, key=lambda entry: entry != current):
        path = os.path.join(directory, entry)
        changed = ("its files have changed since they were recorded", {})
        reason, verified = changed if path in request["damaged"] else damage(path, request)
        if not reason:
            return {"environment": entry, "complete": True, "verified": verified, "reason": ""}
        reasons.append(f"{entry}: {reason}")
    free = [name] + [f"{name}-{number}" for number in range(2, len(used) + 3)]
    return {
        "environment": next(entry for entry in free if entry not in used),
        "complete": False,
        "verified": {},
        "reason": "; ".join(reasons) or f"{name}: missing",
    }


def expired_environments(directory: str, others: list[str], current: str, keep: int) -> list[str]:
    """Return the environments to remove: all but the `keep` most recently used ones.

    One that was never in use (its run was killed, or its verification failed) is always removed.
    """

    def last_use(entry: str) -> float:
        mark = os.path.join(directory, entry, "gpuhost.current")
        return float("inf") if entry == current else os.path.getmtime(mark) if os.path.exists(mark) else 0.0

    used = sorted((entry for entry in others if last_use(entry)), key=last_use, reverse=True)
    return [entry for entry in others if entry not in used[:keep]]


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the environments.

    The request's keys: path (of the link), framework, name, package, version, python, keep; uv (directory); damaged
    (directories not to use); isolation (as for build.py); lock and uv_lock (SHA-256); the scripts
    check_packages_script and verify_script (text).

    The result's keys: problem (a message, then the only key, or ""), current and environment (names), complete, linked
    (whether the link is right), verified (output of the verification), reason (why it must be built), remove (names),
    uv (whether uv is installed).
    """
    ours = name_pattern(request["framework"])
    path = os.path.abspath(request["path"])
    base = os.path.dirname(path)
    directory = os.path.join(base, "environments")
    problem = conflict(path, directory, ours)
    if problem:
        return {"problem": problem}
    links = [os.path.join(base, name) for name in (os.listdir(base) if os.path.isdir(base) else [])]
    targets = {link: link_target(link, directory, ours) for link in links if os.path.islink(link)}
    used = {name for name in targets.values() if name}
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    names = [name for name in names if ours.fullmatch(name) and os.path.isdir(os.path.join(directory, name))]
    current = targets.get(path, "")
    chosen = choose(directory, names, used, request, current)
    # The targets of other links in the same directory are in use as well, and are not counted.
    in_use = {name for link, name in targets.items() if link != path} | {chosen["environment"]}
    others = [name for name in names if name not in in_use]
    uv = request["uv"]
    return {
        "problem": "",
        "current": current if current in names else "",
        "linked": current == chosen["environment"] and os.readlink(path) == "environments/" + current,
        "remove": expired_environments(directory, others, current, max(0, int(request["keep"]))),
        "uv": uv not in request["damaged"]
        and sha256(uv + "/gpuhost.lock") == request["uv_lock"]
        and os.access(uv + "/bin/uv", os.X_OK),
        **chosen,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
