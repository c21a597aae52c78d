"""Download the wheels that packages are built from with pip, by exact version and hash.

The package index is the one that pip is configured for; the hash makes any of them trustworthy.
"""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

# The wheels' own tags, so that a controller of another architecture can build the repository as well.
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_18_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_12_x86_64",
    "manylinux2010_x86_64",
)
ROOT = Path(__file__).resolve().parents[3]


class WheelError(Exception):
    """A wheel could not be downloaded; the message has its name and pip's output."""


def fetch(wanted: Iterable[str], hashes: Mapping[str, str], cache: Path) -> dict[str, Path]:
    """Return the file of each `name==version`, downloaded unless it is cached. Raises WheelError."""
    cache.mkdir(parents=True, exist_ok=True)
    found, problems = {}, []
    for requirement in wanted:
        path = _cached(requirement, hashes[requirement], cache)
        if path is None:
            print(f"  wheel {requirement}: downloading", flush=True)
            problems += _download(requirement, hashes[requirement], cache)
            path = _cached(requirement, hashes[requirement], cache)
        if path is not None:
            found[requirement] = path
        elif not problems:
            problems.append(f"{requirement}: pip downloaded no file with SHA-256 {hashes[requirement]} in {cache}")
    if problems:
        raise WheelError("\n".join(problems))
    return found


def _cached(requirement: str, sha256: str, cache: Path) -> Path | None:
    name, version = requirement.split("==")
    for path in sorted(cache.glob(f"{name.replace('-', '_')}-{version}-*.whl")):
        with path.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() == sha256:
                return path
        print(f"  wheel {path.name}: unexpected content, downloading it again", flush=True)
        path.unlink()
    return None


def _download(requirement: str, sha256: str, cache: Path) -> list[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(f"{requirement} --hash=sha256:{sha256}\n")
        requirements.flush()
        command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
        for platform in PLATFORMS:
            command += ["--platform", platform]
        result = subprocess.run(
            [*command, "--dest", str(cache), "--requirement", requirements.name], capture_output=True, text=True
        )
    return [f"{requirement}: {result.stderr.strip()}"] if result.returncode else []


def _pip() -> list[str]:
    """Return the first pip that works: this interpreter's, the bootstrap environment's, the system's, or uv's."""
    candidates = [
        [sys.executable, "-m", "pip"],
        [str(ROOT / ".venv-bootstrap/bin/python"), "-m", "pip"],
        ["python3", "-m", "pip"],
        ["uv", "tool", "run", "pip"],
    ]
    for candidate in candidates:
        try:
            if subprocess.run([*candidate, "--version"], capture_output=True).returncode == 0:
                return candidate
        except OSError:
            continue
    raise WheelError("no pip found (tried: " + "; ".join(" ".join(c) for c in candidates) + "): install python3-pip")
