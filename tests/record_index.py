"""Record what the package index has of each package that a framework's lock pins: `python -m tests.record_index`.

Writes tests/fixtures/locks/index.json: by project and version the wheels for Linux on x86_64 and aarch64, each with its
tags, the Pythons that it requires and the beginning of its SHA-256. The index is the one that pip is configured for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "tests/fixtures/locks/index.json"
DIGITS = 12  # of a hash: enough to tell the wheels of one release apart
ASK_PIP = """
from pip._internal.configuration import Configuration
from pip._internal.models.index import PyPI
configuration = Configuration(isolated=False)
configuration.load()
print(dict(configuration.items()).get("global.index-url", PyPI.simple_url))
"""
Wheels = list[list[str]]


def pinned() -> dict[str, set[str]]:
    """Return the versions that the locks pin, by project."""
    found: dict[str, set[str]] = {}
    for path in ROOT.glob("roles/*_env/files/*-py*.txt"):
        for name, version in re.findall(r"^([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)", path.read_text(), re.MULTILINE):
            found.setdefault(name, set()).add(version)
    return found


def index_url() -> str:
    """Return the index of pip: the configured one, else its default."""
    for python in (ROOT / ".venv-bootstrap/bin/python", sys.executable, "python3"):
        asked = subprocess.run([python, "-c", ASK_PIP], capture_output=True, check=False, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    sys.exit(f"found no pip that names its index: {asked.stderr}")


def wheels(index: str, name: str, versions: set[str]) -> dict[str, Wheels]:
    """Return the wheels of some versions of a project."""
    request = urllib.request.Request(
        f"{index.rstrip('/')}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        files = json.load(answer)["files"]
    found: dict[str, Wheels] = {}
    for file in files:
        parts = file["filename"].removesuffix(".whl").split("-")
        if not file["filename"].endswith(".whl") or parts[1] not in versions:
            continue
        tags = "-".join(parts[-3:])
        if tags.endswith("-any") or re.search(r"manylinux\w*_(x86_64|aarch64)|-linux_x86_64", tags):
            wheel = [tags, file.get("requires-python") or "", file["hashes"]["sha256"][:DIGITS]]
            found.setdefault(parts[1], []).append(wheel)
    return found


def main() -> None:
    """Write the record."""
    index, names = index_url(), pinned()
    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(names, pool.map(lambda name: wheels(index, name, names[name]), names), strict=True))
    lines = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(version)}: {json.dumps(sorted(found[name][version]))}" for version in sorted(found[name])
        )
        + "\n }"
        for name in sorted(found)
    ]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
