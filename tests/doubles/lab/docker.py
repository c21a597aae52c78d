"""Run the docker command line."""

import subprocess


def docker(*arguments: str) -> str:
    """Run `docker ...` and return its output. Raises SystemExit with docker's error output if it fails."""
    result = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(
            f"lab: docker {' '.join(arguments[:3])} ... failed: {(result.stderr or result.stdout)[-3000:]}"
        )
    return result.stdout


def docker_succeeds(*arguments: str, seconds: float = 60) -> bool:
    """Return whether `docker ...` succeeds within the time."""
    try:
        return subprocess.run(["docker", *arguments], capture_output=True, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False
