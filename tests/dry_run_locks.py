"""Ask the package index whether each framework lock can be installed: `python -m tests.dry_run_locks [--json FILE]`.

`uv pip install --dry-run` resolves the pins of a file with their markers and hashes, from wheels alone, for each Python
of the file and the oldest C library of the catalog; it downloads no wheel. PYTHONPATH has the folder collections.
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
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.lock_files import find_uv

ROOT = Path(__file__).resolve().parents[1]
LOCKS = sorted((path, name) for path in ROOT.glob("roles/*_env/files/*-py*.txt") for name in lock_texts.names(path))
JOBS = 4


def oldest_glibc() -> str:
    """Return the oldest C library of the catalog's distributions, as in the name of uv's platform."""
    found = [yaml.safe_load(path.read_text())["glibc"] for path in (ROOT / "catalog/distro").glob("*.yml")]
    return min(found, key=lambda version: [int(part) for part in version.split(".")]).replace(".", "_")


def dry_run(lock: Path, python: str, uv: str, environment: str) -> str:
    """Return why a lock cannot be installed for a Python; empty if it can."""
    command = [
        *(uv, "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--only-binary=:all:"),
        *(f"--python={environment}/bin/python", f"--python-version={python}"),
        *(f"--python-platform=x86_64-manylinux_{oldest_glibc()}", "--requirement", str(lock)),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    pins = lock_texts.pins(lock_texts.read(lock, python), python, "x86_64")
    planned = dict(re.findall(r"^ \+ (\S+)==(\S+)", ended.stderr, re.MULTILINE))
    if ended.returncode:
        return ended.stderr
    return "" if planned == pins else f"{len(planned)} of {len(pins)} packages would be installed: {ended.stderr}"


def main() -> int:
    """Try each lock, print its result, and return the exit status."""
    parser = argparse.ArgumentParser(description="Dry-run the installation of each framework lock.")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    failed, uv = [], find_uv()
    with tempfile.TemporaryDirectory() as environment, ThreadPoolExecutor(JOBS) as pool:
        subprocess.run([uv, "venv", "--quiet", "--no-project", "--clear", environment], check=True)
        tried = pool.map(lambda lock: dry_run(lock[0], lock_texts.python_of(lock[1]), uv, environment), LOCKS)
        for (_path, name), why in zip(LOCKS, tried, strict=True):
            print(f"{name}: {'FAILED ' + why if why else 'can be installed'}", flush=True)
            failed += [name] if why else []
    if options.json:
        options.json.write_text(json.dumps({"passed": len(LOCKS) - len(failed), "failed": failed}))
    return 1 if failed or not LOCKS else 0


if __name__ == "__main__":
    sys.exit(main())
