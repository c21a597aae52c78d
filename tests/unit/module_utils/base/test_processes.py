"""The holder of a lock as the kernel lists it; test_apt_state.py has real locks."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import processes

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.mark.parametrize(
    ("file", "holder"),
    [("00:72:1640114", 103), ("00:72:1640115", 103), ("00:06:3", 0), ("fe:00:1640114", None)],
    ids=["dpkg's lock", "its frontend lock", "of no process", "on another device"],
)
def test_the_holder_of_a_lock_is_found_in_proc_locks(file: str, holder: int | None) -> None:
    assert processes.parse_locks((FIXTURES / "preflight" / "proc-locks.txt").read_text(), file) == holder
