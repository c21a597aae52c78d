"""Blacklists that the driver role comments out, in files as modprobe reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host

from tests.unit.ansible_runs import run_play

PROJECT = Path(__file__).resolve().parents[4]
TASKS = yaml.safe_load((PROJECT / "roles/nvidia_driver/tasks/install.yml").read_text())
COMMENT = "# commented out by gpuhost, since it keeps the driver from loading: "
FILES = {
    "continued": ("install nvidia \\\n  /bin/false\n", f"{COMMENT}install nvidia \\\n  /bin/false\n"),
    "several": ("alias nvidia off\nblacklist nvidia", f"{COMMENT}alias nvidia off\n{COMMENT}blacklist nvidia"),
    "characters": (
        "install nvidia /bin/sh -c 'exit $((1|2))'\n",
        f"{COMMENT}install nvidia /bin/sh -c 'exit $((1|2))'\n",
    ),
}


@pytest.mark.parametrize(("text", "repaired"), FILES.values(), ids=FILES)
def test_the_whole_line_is_commented_out_and_nothing_else(tmp_path: Path, text: str, repaired: str) -> None:
    """A comment in front of a continued line is one for all of it (getline_wrapped of libkmod)."""
    settings = tmp_path / "etc/modprobe.d/site.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f"options nvidia NVreg_EnableMSI=1\n{text}")
    now = kinds.read(str(tmp_path), {"blacklists": True})
    differing = kinds.compare(Host(str(tmp_path), command.run), {}, now, {})
    lines = Repairs.merged(each.repairs for each in differing.values()).lines
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"nvidia_driver_disabled_lines": [{"file": f"{tmp_path}{path}", "line": line} for path, line in lines]},
        "tasks": [task for task in TASKS if "ansible.builtin.replace" in task],
    }
    done = run_play(tmp_path, play)
    assert done.returncode == 0, done.stdout + done.stderr
    assert settings.read_text() == f"options nvidia NVreg_EnableMSI=1\n{repaired}"
    assert foreign_settings.blacklists(str(tmp_path)) == {}
