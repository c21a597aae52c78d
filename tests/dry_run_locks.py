"""Ask the package index whether each framework lock can be installed: `python -m tests.dry_run_locks [--json FILE]`.

`uv pip install --dry-run` resolves the lock's pins with their hashes, from wheels alone, for the lock's Python and the
oldest C library of the catalog; it downloads no wheel.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
UV = ROOT / ".venv-bootstrap/bin/uv"
LOCKS = sorted(ROOT.glob("roles/*_env/files/*-py*.txt"))
JOBS = 4


def oldest_glibc() -> str:
    """Return the oldest C library of the catalog's distributions, as in the name of uv's platform."""
    found = [yaml.safe_load(path.read_text())["glibc"] for path in (ROOT / "catalog/distro").glob("*.yml")]
    return min(found, key=lambda version: [int(part) for part in version.split(".")]).replace(".", "_")


def dry_run(lock: Path, environment: str) -> str:
    """Return why a lock cannot be installed; empty if it can."""
    python = re.search(r"-py(\d+\.\d+)\.txt$", lock.name)
    assert python, lock
    command = [
        *(str(UV), "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary=:all:"),
        *(f"--python={environment}/bin/python", f"--python-version={python[1]}"),
        *(f"--python-platform=x86_64-manylinux_{oldest_glibc()}", "--requirement", str(lock)),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    pins = len(re.findall(r"^\S+==", lock.read_text(), re.MULTILINE))
    planned = len(re.findall(r"^ \+ ", ended.stderr, re.MULTILINE))
    if ended.returncode:
        return ended.stderr
    return "" if planned == pins else f"{planned} of {pins} packages would be installed: {ended.stderr}"


def main() -> int:
    """Try each lock, print its result, and return the exit status."""
    parser = argparse.ArgumentParser(description="Dry-run the installation of each framework lock.")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as environment, ThreadPoolExecutor(JOBS) as pool:
        subprocess.run([str(UV), "venv", "--quiet", "--no-project", "--clear", environment], check=True)
        for lock, why in zip(LOCKS, pool.map(lambda lock: dry_run(lock, environment), LOCKS), strict=True):
            print(f"{lock.name}: {'FAILED ' + why if why else 'can be installed'}", flush=True)
            failed += [lock.name] if why else []
    if options.json:
        options.json.write_text(json.dumps({"passed": len(LOCKS) - len(failed), "failed": failed}))
    return 1 if failed or not LOCKS else 0


if __name__ == "__main__":
    sys.exit(main())
