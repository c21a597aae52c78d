"""The order of apt_transaction's steps when a repository or dpkg fails; apt's and dpkg's answers are given by the test.

That apt and dpkg do it is shown by the scenarios undo, upgrade and distro_packages.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_commands
from ansible_collections.gpuhost.stack.plugins.modules import apt_transaction

# apt's own words, where a file has another size than its list says, and where dpkg has failed.
OTHER_SIZE = (
    "E: Failed to fetch http://repository.lab/a_2_all.deb  File has unexpected size (7 != 8). Mirror sync in progress?"
)
DPKG_FAILED = "E: Sub-process /usr/bin/dpkg returned an error code (1)"
KILLED = "killed"


class Failed(Exception):
    pass


class Host:
    """A host with package a in version 1. `outcomes`: of each `apt-get install`, what it says; "" when it succeeds.

    After dpkg has failed the package is half configured.
    """

    def __init__(self, *outcomes: str) -> None:
        self.outcomes = list(outcomes)
        self.found = "a\t1\tinstalled\tinstall\t"
        self.said: list[str] = []
        self.bound: list[bool] = []  # of each `apt-get install`, whether preferences of the transaction's own bind it

    def run(self, command: list[str], **_: object) -> tuple[int, str, str]:
        if command[0] == "dpkg-query":
            return 0, self.found, ""
        if command[:2] == ["apt-cache", "madison"]:
            return 0, "a | 2 | http://repository.lab ./ Packages", ""
        if "--simulate" in command:
            wanted = command[-1].split("=")[1]
            return 0, f"Inst a [1] ({wanted} x [all])\n", ""
        if command[0] == "dpkg" and "--configure" in command:
            self.said.append("--configure")
        if command[0] == "apt-get" and ("update" in command or "install" in command):
            self.said.append(command[-1])
            self.bound.append(any("Dir::Etc::PreferencesParts=" in word for word in command))
            outcome = self.outcomes.pop(0) if command[-1] != "update" else ""
            half = "half-configured" if outcome == DPKG_FAILED else "installed"
            if outcome in ("", DPKG_FAILED) and command[-1] != "update":
                self.found = f"a\t{command[-1][2:]}\t{half}\t{'hold' if not outcome else 'install'}\t"
            return (-9 if outcome == KILLED else 100 if outcome else 0), "", outcome
        return 0, "", ""

    def install(self, tmp_path: Any) -> dict[str, Any]:
        def fail(**result: Any) -> None:
            raise Failed(result["msg"])

        names: list[str] = []
        parameters = {
            "packages": ["a=2"], "helpers": names, "pins": names, "pins_replace": names, "hold_dependencies": names,
            "replaces": names, "may_remove": names, "undo": True, "state_directory": str(tmp_path), "lock_timeout": 1,
        }  # fmt: skip
        module = SimpleNamespace(params=parameters, run_command=self.run, check_mode=False, fail_json=fail)
        work = apt_transaction.Transaction(module)
        return apt_transaction.change(work, work.look())[2].packages


@pytest.fixture(autouse=True)
def preferences(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(tmp_path))


def test_everything_is_one_call_of_apt(tmp_path):
    host = Host("")
    assert host.install(tmp_path)["a"].version == "2"
    assert host.said == ["a=2"]


def test_everything_is_on_disk_before_the_first_package_is_unpacked(tmp_path, monkeypatch):
    host = Host("")
    monkeypatch.setattr(apt_transaction.os, "sync", lambda: host.said.append("sync"))
    host.install(tmp_path)
    assert host.said == ["sync", "a=2"]


def test_a_repository_that_was_published_anew_is_asked_again(tmp_path):
    host = Host(OTHER_SIZE, "")
    assert host.install(tmp_path)["a"].version == "2"
    assert host.said == ["a=2", "update", "a=2"]


def test_a_repository_that_fails_again_has_changed_nothing(tmp_path):
    host = Host(OTHER_SIZE, OTHER_SIZE)
    with pytest.raises(Failed, match=r"unexpected size.*\nNo package was changed\.$"):
        host.install(tmp_path)
    assert host.said == ["a=2", "update", "a=2"]


def test_what_dpkg_could_not_finish_goes_back_at_once(tmp_path):
    host = Host(DPKG_FAILED, "")
    with pytest.raises(Failed, match=r"dpkg returned an error code.*\nIt was undone: all 1 packages"):
        host.install(tmp_path)
    assert host.said == ["a=2", "a=1"]
    assert host.bound == [True, False], "what the new packages prefer would bind the way back"


def test_one_that_fails_the_second_time_goes_back_too(tmp_path):
    host = Host(OTHER_SIZE, DPKG_FAILED, "")
    with pytest.raises(Failed, match="It was undone"):
        host.install(tmp_path)
    assert host.said == ["a=2", "update", "a=2", "a=1"]


def test_apt_that_is_killed_is_not_tried_again_though_nothing_has_moved_yet(tmp_path):
    host = Host(KILLED)
    with pytest.raises(Failed, match="It was undone"):
        host.install(tmp_path)
    assert host.said == ["a=2"]


INTERRUPTED = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."


def test_dpkg_that_was_killed_is_finished_before_all_goes_back(tmp_path):
    host = Host(DPKG_FAILED, INTERRUPTED, "")
    with pytest.raises(Failed, match="It was undone"):
        host.install(tmp_path)
    assert host.said == ["a=2", "a=1", "--configure", "a=1"]
