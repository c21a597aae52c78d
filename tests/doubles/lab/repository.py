"""Build the NVIDIA-shaped apt repositories that the lab serves."""

import os
import subprocess
import sys
from pathlib import Path

BUILDER = Path(__file__).resolve().parents[1] / "nvidia_repository" / "build.py"
HOST = "repository.lab"


def cache() -> Path:
    """Return the directory of downloads and built repositories: several gigabytes, shared by all checkouts."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuhost"


def build(slugs: list[str], kernel_modules: bool = False) -> Path:
    """Return the directory to serve as http://repository.lab/, with one repository per slug (such as debian12).

    Each slug has a second repository with newer versions below later/, and with `kernel_modules` a third one below
    kernel-modules/, whose driver packages contain the source of loadable modules.
    """
    served = cache() / "nvidia-repository"
    for slug in slugs:
        command = [sys.executable, str(BUILDER), "--out", str(served), "--slug", slug]
        command += ["--base-url", f"http://{HOST}", "--wheels", str(cache() / "wheels")]
        command += ["--kernel-modules"] if kernel_modules else []
        if subprocess.run(command).returncode:
            raise SystemExit(f"lab: the NVIDIA-shaped repository for {slug} could not be built (see above)")
    return served


def key_fingerprint(served: Path) -> str:
    """Return the fingerprint of the throw-away key that signs the repositories."""
    return (served / "key-fingerprint").read_text().strip()
