"""Builds the NVIDIA-shaped apt repositories that the lab serves."""

import os
import subprocess
import sys
from pathlib import Path

BUILDER = Path(__file__).resolve().parents[1] / "nvidia_repository" / "build.py"
HOST = "repository.lab"


def cache() -> Path:
    """Where downloads and built repositories are kept between runs: a gigabyte or two, the same for every clone."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuhost"


def build(slugs: list[str], kernel_modules: bool = False) -> Path:
    """Returns the folder to serve as http://repository.lab/, holding one repository a slug (such as debian12).

    Below later/ each slug has a second one, which offers newer versions; below kernel-modules/, where wanted, a third
    one, whose driver packages hold the source of modules that can be loaded.
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
    """The fingerprint of the throw-away key that signs the repositories."""
    return (served / "key-fingerprint").read_text().strip()
