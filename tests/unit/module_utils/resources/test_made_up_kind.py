"""A kind that the project does not have: its module, and a line of KINDS, which are all that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host, Kind, States, Watch
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.state.applied_host import CHANGES, WATCH, Systemd, build, differences

KEY, PLACE = "kernel/numa_balancing", "proc/sys/kernel/numa_balancing"
NAME = f"setting of the kernel {KEY}"


class Sysctl(Kind):
    """A setting of the running kernel (sysctl(8))."""

    name, title = "sysctl", "setting of the kernel"
    watches = ("sysctls",)

    def read(self, host: Host, watch: Watch) -> States:
        return {key: files.read_text(host.root, f"/proc/sys/{key}") for key in watch.get("sysctls") or ()}


class Runs:
    """Runs on a host that watches one thing of each kind."""

    def __init__(self, root: Path) -> None:
        self.root, self.systemd, self.directory = build(root), Systemd(), str(root / "var/lib/gpuhost")
        put(self.root, PLACE, "0")
        self.end()

    def begin(self) -> None:
        applied.begin(self.directory, {"all": "f"}, str(self.root), self.systemd)

    def end(self, **options: Any) -> None:
        parts = {"all": {"fingerprint": "f", "watch": {**WATCH, "sysctls": [KEY]}}}
        applied.record(self.directory, parts, str(self.root), self.systemd, **options)

    def found(self, **options: Any) -> dict[str, Any]:
        return dict(differences("/var/lib/gpuhost", str(self.root), self.systemd, **options)["all"])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, Sysctl()))
    return Runs(tmp_path)


@pytest.mark.parametrize("beside", [None, *CHANGES])
def test_its_damage_is_found_beside_each_other_one(beside: str | None, runs: Runs) -> None:
    put(runs.root, PLACE, "1")
    if beside:
        CHANGES[beside][0](runs.root)
    found = runs.found()
    assert found["damage"][NAME] == f"{NAME} was 0, is 1"
    assert len(found["changed"]) == (2 if beside else 1)


def test_a_run_leaves_none_and_no_run_is_blamed_for_its_own_change(runs: Runs) -> None:
    put(runs.root, PLACE, "1")
    runs.begin()
    with pytest.raises(ValueError, match=f"not repaired:\n  {NAME} was 0, is 1"):
        runs.end()
    runs.end(accepted=[NAME])
    assert runs.found()["damage"] == {NAME: f"{NAME} was 0, is 1"}
    assert runs.found(accepted=[NAME])["accepted"] == {NAME: f"{NAME} was 0, is 1"}
    put(runs.root, PLACE, "0")
    runs.begin()
    put(runs.root, PLACE, "2")  # by the run, which is killed
    assert (runs.found()["changed"], runs.found()["damage"]) == ([], {})
    runs.end()
    assert runs.found()["changed"] == []
