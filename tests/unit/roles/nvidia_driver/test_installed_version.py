"""The driver role compares the version of the installed packages with the requested one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.unit.ansible_runs import run_play

PROJECT = Path(__file__).resolve().parents[4]
TASKS = yaml.safe_load((PROJECT / "roles/nvidia_driver/tasks/install_packages.yml").read_text())
# Versions of Debian's archives: trixie has one daemon for its 550 and its 535, bookworm one for its 535 and its 470.
TRIXIE = {
    "nvidia-tesla-535-kernel-dkms": "535.274.02-1~deb13u1",
    "nvidia-tesla-535-smi": "535.274.02-1~deb13u1",
    "nvidia-persistenced": "550.163.01-1",
}
BOOKWORM = {
    "nvidia-tesla-470-kernel-dkms": "470.256.02-1~deb12u1",
    "nvidia-tesla-470-smi": "470.256.02-1~deb12u1",
    "nvidia-persistenced": "535.171.04-1~deb12u1",
}
OTHER_BRANCH = {
    "nvidia-kernel-dkms": "550.163.01-2",
    "nvidia-smi": "550.163.01-2",
    "nvidia-persistenced": "550.163.01-1",
}


@pytest.mark.parametrize(
    ("version", "installed", "unexpected"),
    [
        ("535", TRIXIE, None),
        ("470", BOOKWORM, None),
        ("550", OTHER_BRANCH, None),
        ("535", OTHER_BRANCH, "Found nvidia-kernel-dkms, nvidia-smi in another version; expected driver 535."),
    ],
    ids=["535 of trixie", "470 of bookworm", "550 of trixie", "another branch"],
)
def test_packages_of_another_branch_are_refused_and_a_daemon_with_numbers_of_its_own_is_not(
    tmp_path: Path, version: str, installed: dict[str, str], unexpected: str | None
) -> None:
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(PROJECT / "roles/nvidia_driver/vars/main.yml")],
        "vars": {
            "nvidia_driver_version": version,
            "nvidia_driver_packages": list(installed),
            "__nvidia_driver_installation": {"installed": installed},
        },
        "tasks": [task for task in TASKS if "ansible.builtin.assert" in task],
    }
    done = run_play(tmp_path, play)
    assert done.returncode == (2 if unexpected else 0), done.stdout + done.stderr
    assert "ok=1 " in done.stdout or unexpected
    assert (unexpected or "") in " ".join(done.stdout.split())
