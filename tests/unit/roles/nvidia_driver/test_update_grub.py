"""When GRUB's configuration is written again, so that GRUB counts the boots of a new kernel."""

import shutil
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = PROJECT / "roles/nvidia_driver/files/update_grub.sh"
COUNTS = 'set default="${gpuhost_entry}"\n'


def update(folder: Path, configuration: str, program: str | None = "exit 0") -> tuple[int, list[str]]:
    """Return the exit status and what is printed; `program`: update-grub, None for a host without it."""
    grub, programs = folder / "boot/grub/grub.cfg", folder / "bin"
    grub.parent.mkdir(parents=True)
    grub.write_text(configuration)
    programs.mkdir()
    for name in ("bash", "grep", "sh"):
        (programs / name).symlink_to(str(shutil.which(name)))
    if program is not None:
        (programs / "update-grub").write_text(f"#!/bin/sh\n{program}\n")
        (programs / "update-grub").chmod(0o755)
    environment = {"PATH": str(programs), "ROOT": str(folder)}
    done = subprocess.run(["bash", "-s"], input=SCRIPT.read_text(), env=environment, capture_output=True, text=True)
    return done.returncode, [line.replace(str(folder), "") for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("configuration", "updated"), [("", True), (COUNTS, False)], ids=["does not count", "counts"])
def test_a_configuration_is_written_that_does_not_count(tmp_path, configuration, updated):
    assert update(tmp_path, configuration) == (0, ["updated /boot/grub/grub.cfg"] if updated else [])


def test_an_update_that_fails_is_an_error(tmp_path):
    assert update(tmp_path, "", program="exit 1") == (1, [])


def test_what_a_removed_grub_left_stops_no_run(tmp_path):
    assert update(tmp_path, "", program=None) == (0, ["GRUB is not installed: /boot/grub/grub.cfg is left over"])
