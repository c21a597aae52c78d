"""Programs of the command line whose output is not read to its end, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{PROJECT}/collections:{PROJECT}"}
LONG = "import sys; from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import command_line\n"


def unread(*words: str) -> tuple[int, str]:
    """Start a program whose output nobody reads; return its exit status and what it prints to stderr."""
    reader, writer = os.pipe()
    process = subprocess.Popen(words, cwd=PROJECT, env=ENVIRONMENT, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    os.close(reader)
    errors = process.communicate(timeout=120)[1]
    return process.returncode, errors


@pytest.mark.parametrize(
    "words",
    [
        ("script/plan", "--matrix"),
        ("script/plan", "--distro", "ubuntu-24.04", "--gpu", "H200", "--json"),
        ("script/docs", "--help"),
        ("script/catalog-check", "--help"),
        (".venv/bin/python", "tests/runner.py", "--long"),
        (".venv/bin/python", "-m", "benchmarks", "--help"),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_script_ends_quietly_when_its_output_is_not_read(words: tuple[str, ...]) -> None:
    assert unread(*words) == (-signal.SIGPIPE, "")


def test_the_program_cleans_up_before_it_ends(tmp_path: Path) -> None:
    program = f"""
def main():
    try:
        for _ in range(100000):
            print("a line of output")
    finally:
        open({str(tmp_path / "cleaned")!r}, "w").close()
command_line.run(main)
"""
    assert unread(sys.executable, "-c", LONG + program) == (-signal.SIGPIPE, "")
    assert (tmp_path / "cleaned").exists()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_terminal_has_no_letters_for_is_escaped(encoding: str) -> None:
    """What a user typed comes back in the output, as a distribution of digits of full width here."""
    words = ["script/plan", "--distro", "ubuntu\uff12\uff14", "--gpu", "H200"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (1, b"")
    shown = "ubuntu\uff12\uff14" if encoding == "utf-8" else "ubuntu\\uff12\\uff14"
    assert done.stdout.decode(encoding).startswith(f"{shown}: 1 x ")


@pytest.mark.parametrize(("returned", "status"), [("0", 0), ("None", 0), ("3", 3), ("sys.exit(2)", 2)])
def test_the_status_is_the_programs(returned: str, status: int) -> None:
    program = f"command_line.run(lambda: {returned})"
    assert subprocess.run([sys.executable, "-c", LONG + program], env=ENVIRONMENT).returncode == status
