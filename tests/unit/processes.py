"""Whether processes of this machine still run."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
