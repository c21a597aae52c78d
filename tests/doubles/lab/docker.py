"""The docker command line, as the lab uses it."""

import subprocess


def docker(*arguments: str) -> str:
    """Runs `docker ...` and returns what it printed; ends the program with docker's own words when it fails."""
    result = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(
            f"lab: docker {' '.join(arguments[:3])} ... failed: {(result.stderr or result.stdout)[-3000:]}"
        )
    return result.stdout


def docker_answers(*arguments: str, seconds: float = 60) -> bool:
    """Whether `docker ...` succeeds within the time: for questions whose no is an answer, not a failure."""
    try:
        return subprocess.run(["docker", *arguments], capture_output=True, timeout=seconds).returncode == 0
    except subprocess.TimeoutExpired:
        return False
