"""The steps of a package transaction, in order, and what follows when apt, dpkg or the repository fails.

The scenarios undo, upgrade and distro_packages verify that apt and dpkg execute them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction, transaction_lock
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.lock_holder import held
from tests.unit.module_utils.other_transaction import OtherTransaction
from tests.unit.module_utils.real_dpkg import RealDpkg, needs_dpkg
from tests.unit.module_utils.simulated_packages import SimulatedPackages, parse

# apt's own words, where a file has another size than its list says, and where dpkg has failed.
OTHER_SIZE = (
    "E: Failed to fetch http://repository.lab/a_2_all.deb  File has unexpected size (7 != 8). Mirror sync in progress?"
)
DPKG_FAILED = "E: Sub-process /usr/bin/dpkg returned an error code (1)"
INTERRUPTED = "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem."
KILLED = "killed"
EMPTY = transaction.PackageRequest([], [], [], [], [], [], [])


@pytest.fixture(autouse=True)
def preferences(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(tmp_path / "preferences.d"))


class Host(SimulatedPackages):
    """A host with package a in version 1. `outcomes`: of each `apt-get install`, its error; "" where it succeeds.

    After DPKG_FAILED the package is half configured.
    """

    def __init__(self, root: Path, *outcomes: str, packages: dict[str, tuple[str, str, str]] | None = None) -> None:
        super().__init__(root / "root", packages or {"a": ("1", "installed", "install")})
        self.outcomes = list(outcomes)
        self.theirs: set[str] = set()  # the packages whose holds are not gpuhost's
        self.steps: list[str] = []
        self.bound: list[bool] = []  # of each `apt-get install`, whether preferences of the transaction bind it
        self.offered = "a | 2 | http://repository.lab ./ Packages"
        self.details: dict[str, Any] = {}  # of the last failed transaction

    def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        if command[:2] == ["apt-cache", "madison"]:
            return 0, self.offered, ""
        if command[0] == "apt-get" and "--simulate" not in command and {"update", "install"} & set(command):
            self.steps.append(command[-1])
        if "--configure" in command:
            self.steps.append("--configure")
        if command[0] == "apt-get" and "install" in command and "--simulate" not in command and self.outcomes:
            self.bound.append(any("Dir::Etc::PreferencesParts=" in word for word in command))
            outcome = self.outcomes.pop(0)
            if outcome == DPKG_FAILED:
                self.set({**self.packages, "a": (command[-1][2:], "half-configured", "install")})
            if outcome:
                return -9 if outcome == KILLED else 100, "", outcome
        return super().__call__(command, **options)

    def run_transaction(
        self, tmp_path: Path, request: transaction.PackageRequest | None = None, undo: bool = True, check: bool = False
    ) -> transaction.Result:
        request = request or EMPTY._replace(packages=parse("a=2"))
        held = {name for name, (_version, _state, want) in self.packages.items() if want == "hold"} - self.theirs
        store.record_packages(str(tmp_path), {name: {"version": "0", "held": False, "auto": False} for name in held})
        apt = self.apt(str(tmp_path / "packages") if undo else "")
        return transaction.Transaction(request, apt, str(tmp_path), undo, check).run()

    def failed(self, tmp_path: Path, request: transaction.PackageRequest | None = None, undo: bool = True) -> str:
        """Run a transaction that must fail, and return its message."""
        with pytest.raises(transaction.TransactionError) as caught:
            self.run_transaction(tmp_path, request, undo)
        self.details = caught.value.details
        return str(caught.value).replace(str(tmp_path), "")


class Answers(Host):
    """A host whose simulation answers `simulated`, whatever is asked; the installation works as usual."""

    simulated = ""

    def _install(self, specs: list[str], simulate: bool) -> str:
        return self.simulated if simulate else super()._install(specs, simulate)


SHOWN = "Package: a\nVersion: 2\nDepends: a-part (= 2)\n"
HELD = {"a": ("1", "installed", "install"), "b": ("1", "installed", "hold")}


def test_a_transaction_is_one_command_of_apt(tmp_path):
    host = Host(tmp_path, "")
    result = host.run_transaction(tmp_path)
    assert host.packages == {"a": ("2", "installed", "hold")}
    assert host.steps == ["a=2"]
    assert result.changes == ["a 1 -> 2"]
    assert result.after.remaining == []


def test_nothing_is_begun_while_another_process_holds_a_lock(tmp_path):
    """As when unattended-upgrade starts between the plan and the transaction. The apt of this host waits for 1 s."""
    host = Host(tmp_path, "")
    progress, shown = tmp_path / transaction_lock.PROGRESS, tmp_path / "shown"
    progress.touch()
    os.link(progress, shown)  # the file of progress is removed at the end
    apt = apt_commands.Apt(host, 1, "", str(host.root), str(progress))
    with held(host.root / "var/lib/dpkg/lock-frontend") as holder:
        with pytest.raises(transaction.TransactionError) as error:
            transaction.Transaction(EMPTY._replace(packages=parse("a=2")), apt, str(tmp_path)).run()
        assert f"process {holder.pid} (" in str(error.value)
        assert shown.read_text().startswith("step:waiting")
        assert f"process {holder.pid} (" in shown.read_text()
        host.run_transaction(tmp_path, check=True)
    assert host.steps == []
    assert store.journal(str(tmp_path)) == {}
    host.run_transaction(tmp_path)
    assert host.steps == ["a=2"]


def test_a_transaction_holds_the_lock_and_leaves_its_result(tmp_path, monkeypatch):
    host = Host(tmp_path, "")
    free = []
    monkeypatch.setattr(transaction.os, "sync", lambda: free.append(lock_is_free(tmp_path)))
    host.run_transaction(tmp_path)
    assert free == [False]
    assert lock_is_free(tmp_path)
    record = store.read(str(tmp_path), store.TRANSACTION)
    assert record is not None
    assert (record["changes"], record["failed"]) == (1, None)


def test_a_failure_is_in_the_record_with_what_was_undone(tmp_path):
    host = Host(tmp_path, DPKG_FAILED)
    message = host.failed(tmp_path)
    record = store.read(str(tmp_path), store.TRANSACTION)
    assert record is not None
    assert record["failed"] == message


def test_neither_check_mode_nor_what_is_met_leaves_a_result(tmp_path):
    Host(tmp_path, "").run_transaction(tmp_path, check=True)
    assert not (tmp_path / transaction_lock.LOCK).exists()
    Host(tmp_path, packages={"a": ("2", "installed", "hold")}).run_transaction(tmp_path)
    assert store.read(str(tmp_path), store.TRANSACTION) is None


def test_the_packages_are_read_when_another_transaction_has_ended(tmp_path):
    """What another run has installed meanwhile is not installed again."""
    host = Host(tmp_path, "")
    other = OtherTransaction(str(tmp_path))

    def end_of_the_other() -> None:
        host.set({"a": ("2", "installed", "hold")})
        other.end()

    threading.Timer(0.5, end_of_the_other).start()
    result = transaction.Transaction(
        EMPTY._replace(packages=parse("a=2")), apt_commands.Apt(host, 30, "", str(host.root)), str(tmp_path)
    ).run()
    assert result.changes == []
    assert host.steps == []


def test_a_transaction_that_does_not_end_is_named(tmp_path):
    other = OtherTransaction(str(tmp_path))
    host = Host(tmp_path, "")
    assert f" process {other.process.pid} " in host.failed(tmp_path)
    assert host.steps == []
    other.end()


def lock_is_free(directory: Path) -> bool:
    program = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'ab'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    command = [sys.executable, "-c", program, str(directory / transaction_lock.LOCK)]
    return subprocess.run(command, capture_output=True).returncode == 0


def test_everything_is_on_disk_before_the_first_package_is_unpacked(tmp_path, monkeypatch):
    host = Host(tmp_path, "")
    monkeypatch.setattr(transaction.os, "sync", lambda: host.steps.append("sync"))
    host.run_transaction(tmp_path)
    assert host.steps == ["sync", "a=2"]


def test_the_diff_has_removals_dependencies_and_holds(tmp_path):
    installed = {"a": ("1", "installed", "install"), "old-a": ("1", "installed", "hold")}
    host = Host(tmp_path, packages=installed)
    request = EMPTY._replace(packages=parse("a=2"), replaces=["old-.*"])
    expected = "a 1 -> 2\nold-a 1 (removed)\na (hold)\n"
    assert host.run_transaction(tmp_path, request, check=True).diff() == expected
    assert host.run_transaction(tmp_path, request).diff() == expected


def test_there_is_no_diff_where_nothing_changes(tmp_path):
    host = Host(tmp_path, packages={"a": ("2", "installed", "hold")})
    assert host.run_transaction(tmp_path).diff() == ""


def test_without_the_repository_the_diff_of_check_mode_is_the_request(tmp_path):
    host = Host(tmp_path, packages={"old-a": ("1", "installed", "install")})
    host.offered = ""
    request = EMPTY._replace(packages=parse("a=2"), replaces=["old-.*"])
    result = host.run_transaction(tmp_path, request, check=True)
    assert result.diff() == "a=2\nold-a (removed)\na (hold)\n"


def test_the_state_before_the_first_change_is_in_the_journal(tmp_path):
    Host(tmp_path).run_transaction(tmp_path)
    assert store.journal(str(tmp_path)) == {"a": {"version": "1", "held": False, "auto": False}}


def test_installed_and_held_packages_need_no_command(tmp_path):
    host = Host(tmp_path, packages={"a": ("2", "installed", "hold")})
    result = host.run_transaction(tmp_path)
    assert result.changes == []
    assert result.before.remaining == []
    assert host.commands == []


def test_a_missing_hold_is_set_without_a_transaction(tmp_path):
    host = Host(tmp_path, packages={"a": ("2", "installed", "install")})
    assert host.run_transaction(tmp_path).changes == []
    assert host.packages == {"a": ("2", "installed", "hold")}
    assert host.steps == []
    assert store.journal(str(tmp_path)) == {"a": {"version": "2", "held": False, "auto": False}}


def test_helpers_are_installed_and_not_held(tmp_path):
    host = Host(tmp_path, packages={"a": ("2", "installed", "hold")})
    host.offered = "gcc | 1 | http://repository.lab ./ Packages\na | 2 | http://repository.lab ./ Packages"
    host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), helpers=parse("gcc=1")))
    assert host.packages["gcc"] == ("1", "installed", "install")


def test_a_helper_that_is_there_stays_and_need_not_be_on_offer(tmp_path):
    """The headers of a running kernel leave the archive, and the newest ones of a metapackage bring another kernel."""
    host = Host(tmp_path, packages={"a": ("1", "installed", "install"), "headers": ("1", "installed", "install")})
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), helpers=parse("headers")))
    assert result.changes == ["a 1 -> 2"]
    assert host.steps == ["a=2"]


def test_replaced_packages_are_purged_in_the_same_command(tmp_path):
    host = Host(tmp_path, packages={"a": ("1", "installed", "hold"), "old-a": ("1", "installed", "hold")})
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), replaces=["old-.*"]))
    assert host.packages == {"a": ("2", "installed", "hold")}
    assert host.steps == ["old-a-"]
    assert "--purge" in host.run("apt-get")[-1]
    assert result.changes == ["a 1 -> 2", "old-a 1 (removed)"]


def test_settings_that_an_interrupted_run_left_are_purged(tmp_path):
    """Killed between removing and purging, a package has its settings alone, which apt's NAME- leaves."""
    packages = {"a": ("2", "installed", "hold"), "old-a": ("1", "config-files", "deinstall")}
    host = Host(tmp_path, packages=packages)
    host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), replaces=["old-.*"]))
    assert host.packages == {"a": ("2", "installed", "hold")}
    assert host.run("dpkg") == [["dpkg", "--purge", "old-a"]]


RECORDED = {"version": "1", "held": True, "auto": False}


@pytest.mark.parametrize("recorded", [RECORDED, None], ids=["there-before", "new"])
def test_settings_of_a_package_that_no_plan_replaces_any_more_are_purged(tmp_path, recorded):
    """The power failed between removing and purging: for the next plan the package is not there."""
    packages = {"a": ("1", "installed", "hold"), "branch-1": ("1", "config-files", "deinstall")}
    store.record_packages(str(tmp_path), {"branch-1": recorded})
    host = Host(tmp_path, packages=packages)
    host.run_transaction(tmp_path)
    assert host.packages == {"a": ("2", "installed", "hold")}
    assert host.run_transaction(tmp_path).before.remaining == []


def test_settings_that_others_left_stay(tmp_path):
    packages = {"a": ("1", "installed", "hold"), "others": ("1", "config-files", "deinstall")}
    host = Host(tmp_path, packages=packages)
    host.run_transaction(tmp_path)
    assert host.packages == {"a": ("2", "installed", "hold"), "others": ("1", "config-files", "deinstall")}
    assert host.run("dpkg") == []


def test_check_mode_reports_the_changes_and_makes_none(tmp_path):
    host = Host(tmp_path)
    result = host.run_transaction(tmp_path, check=True)
    assert result.changes == ["a 1 -> 2"]
    assert result.before.remaining == ["a=2", "a"]
    assert host.packages == {"a": ("1", "installed", "install")}
    assert host.steps == []
    assert store.journal(str(tmp_path)) == {}


def test_check_mode_accepts_a_repository_that_is_not_configured_yet(tmp_path):
    host = Host(tmp_path)
    host.offered = ""
    assert host.run_transaction(tmp_path, check=True).changes == []
    assert host.steps == []


def test_versions_that_no_repository_offers_are_refused_after_a_refresh(tmp_path, snapshot):
    host = Host(tmp_path)
    host.offered = "a | 1 | http://repository.lab ./ Packages"
    assert host.failed(tmp_path) == snapshot
    assert host.steps == ["update"]


@pytest.mark.parametrize(
    ("simulated", "unexpected"),
    [
        ("Remv b [1]\nInst a [1] (2 x [all])\n", ["b 1 (removed)"]),
        ("Inst b [1] (2 x [all])\nInst a [1] (2 x [all])\n", ["b 1 -> 2"]),
        ("Inst linux-image-6.1 (1 x [all])\nInst a [1] (2 x [all])\n", ["linux-image-6.1 (new) 1"]),
    ],
    ids=["a removal", "a held package", "a kernel"],
)
def test_an_unexpected_change_is_refused_before_anything_changes(tmp_path, simulated, unexpected, snapshot):
    host = Answers(tmp_path, packages=HELD)
    host.theirs = {"b"}
    host.simulated = simulated
    assert host.failed(tmp_path) == snapshot
    assert host.details["unplanned"] == unexpected
    assert host.steps == []
    assert store.journal(str(tmp_path)) == {}


class NewerKernel(Host):
    """A host whose package lists have a newer kernel, which comes with a metapackage that the plan wants.

    Without lists, and with older ones, a plan does not know which headers a metapackage brings.
    """

    offered_headers = ("linux-headers-6.12.86+deb13-amd64", "linux-headers-amd64")
    image = "Inst linux-image-6.12.117+deb13-amd64 (6.12.117-1 Debian:13 [amd64])\n"

    def __init__(self, root: Path) -> None:
        super().__init__(root, "", packages={"a": ("2", "installed", "hold")})
        self.offered = "".join(f"{n} | 1 | http://deb.example ./ Packages\n" for n in ("a", *self.offered_headers))

    def _install(self, specs: list[str], simulate: bool) -> str:
        brings = self.image if self.offered_headers[1] in specs else ""
        return brings + super()._install([f"{spec}=1" for spec in specs if spec not in self.packages], simulate)


def test_a_metapackage_that_would_install_another_kernel_is_left_out(tmp_path):
    host, request = NewerKernel(tmp_path), EMPTY._replace(helpers=parse(*NewerKernel.offered_headers))
    result = host.run_transaction(tmp_path, request)
    exact, meta = NewerKernel.offered_headers
    assert exact in host.packages
    assert meta not in host.packages
    assert result.left_out == [meta]
    assert [change.split()[0] for change in result.changes] == [exact]
    assert result.after.remaining == []
    again = host.run_transaction(tmp_path, request)
    assert (again.changes, again.left_out, again.before.remaining, again.diff()) == ([], [meta], [], "")


def test_after_an_interrupted_run_metapackages_are_simulated_with_the_same_option(tmp_path):
    host = NewerKernel(tmp_path)
    host.failing["check"] = "E: Unmet dependencies. Try 'apt --fix-broken install' with no packages."
    host.run_transaction(tmp_path, EMPTY._replace(helpers=parse(*NewerKernel.offered_headers)))
    simulated = [command for command in host.commands if "--simulate" in command]
    assert ["--fix-broken" in command for command in simulated] == [False, True, False, True, True, True], (
        "the whole, a repair, the whole again, the same with it, the metapackage alone, and the rest"
    )


def test_each_kind_of_unexpected_change_has_its_remedy(tmp_path, snapshot):
    host = Answers(tmp_path, packages={**HELD, "c": ("1", "installed", "install")})
    host.theirs = {"b"}
    host.simulated = "Remv b [1]\nRemv c [1]\nInst linux-image-6.1 (1 x [all])\nInst a [1] (2 x [all])\n"
    assert host.failed(tmp_path) == snapshot


def test_headers_that_need_another_kernel_by_themselves_are_refused(tmp_path, snapshot):
    class Host(NewerKernel):
        offered_headers = ("linux-headers-6.12.86+deb13-amd64", "linux-headers-6.12.117+deb13-amd64")

    host = Host(tmp_path)
    assert host.failed(tmp_path, EMPTY._replace(helpers=parse(*Host.offered_headers))) == snapshot
    assert host.details["unplanned"] == ["linux-image-6.12.117+deb13-amd64 (new) 6.12.117-1"]


def test_a_held_package_that_may_be_removed_is_removed(tmp_path):
    host = Answers(tmp_path, packages=HELD)
    host.simulated = "Remv b [1]\nInst a [1] (2 x [all])\n"
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), may_remove=["b"]))
    assert result.changes == ["b 1 (removed)", "a 1 -> 2"]


def test_a_held_part_of_our_own_package_is_changed_with_it(tmp_path):
    host = Answers(tmp_path)
    host.depends = {"a": "a-part (>= 1)"}
    host.set({"a": ("1", "installed", "install"), "a-part": ("1", "installed", "hold")})
    host.simulated = "Inst a-part [1] (2 x [all])\nInst a [1] (2 x [all])\n"
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), hold_dependencies=["a-.*"]))
    assert result.changes == ["a-part 1 -> 2", "a 1 -> 2"]


def test_a_held_part_of_a_package_that_an_interrupted_run_removed_is_changed_with_it(tmp_path):
    """apt's repair removes a package that was unpacked before its parts, which are held."""

    class Interrupted(Answers):
        def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
            if command[:2] == ["apt-cache", "show"]:
                return 0, SHOWN if "a=2" in command else "", ""
            return super().__call__(command, **options)

    host = Interrupted(tmp_path)
    host.set({"a-part": ("1", "installed", "hold")})
    host.theirs = {"a-part"}
    host.simulated = "Inst a-part [1] (2 x [all])\nInst a (2 x [all])\n"
    host.failed(tmp_path)
    assert host.details["unplanned"] == ["a-part 1 -> 2"]
    host.theirs = set()
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), hold_dependencies=["a-.*"]))
    assert result.changes == ["a-part 1 -> 2", "a (new) 2"]


@pytest.mark.parametrize("may_remove", [[], ["b"]])
def test_a_held_package_that_is_upgraded_is_refused_unless_it_may_be_removed(tmp_path, may_remove):
    host = Answers(tmp_path, packages=HELD)
    host.simulated = "Inst b [1] (2 x [all])\nInst a [1] (2 x [all])\n"
    request = EMPTY._replace(packages=parse("a=2"), may_remove=may_remove)
    if may_remove:
        assert host.run_transaction(tmp_path, request).changes == ["b 1 -> 2", "a 1 -> 2"]
    else:
        host.failed(tmp_path, request)
        assert host.details["unplanned"] == ["b 1 -> 2"]


def test_what_is_replaced_may_be_removed_by_its_name_alone(tmp_path):
    """The name of a package is no expression, by which cc1 would be one of c++1."""
    packages = {"a": ("1", "installed", "hold"), "c++1": ("1", "installed", "hold"), "cc1": ("1", "installed", "hold")}
    host = Answers(tmp_path, packages=packages)
    host.simulated = "Inst a [1] (2 x [all])\nRemv c++1 [1]\n"
    request = EMPTY._replace(packages=parse("a=2"), replaces=[r"c\+\+.*"])
    assert host.run_transaction(tmp_path, request).changes == ["a 1 -> 2", "c++1 1 (removed)"]
    host = Answers(tmp_path / "other", packages=packages)
    host.simulated = "Inst a [1] (2 x [all])\nRemv cc1 [1]\n"
    host.failed(tmp_path / "other", request)
    assert host.details["unplanned"] == ["cc1 1 (removed)"]


def test_dependencies_to_hold_are_held_with_their_package(tmp_path):
    packages = dict.fromkeys(("a", "a-part", "libc6"), ("2", "installed", "install"))
    host = Host(tmp_path, packages=packages)
    host.depends = {"a": "a-part (= 2), libc6"}
    host.set(packages)
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), hold_dependencies=["a-.*"]))
    assert result.before.unheld == ["a", "a-part"]
    assert {name: want for name, (_, _, want) in host.packages.items()} == {
        "a": "hold",
        "a-part": "hold",
        "libc6": "install",
    }


def test_a_held_part_of_a_package_may_change_with_it(tmp_path):
    packages = {"a": ("1", "installed", "hold"), "a-part": ("1", "installed", "hold")}
    host = Answers(tmp_path, packages=packages)
    host.depends = {"a": "a-part (= 1)"}
    host.set(packages)
    host.simulated = "Inst a [1] (2 x [all])\nInst a-part [1] (2 x [all])\n"
    result = host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), hold_dependencies=["a-.*"]))
    assert result.changes == ["a 1 -> 2", "a-part 1 -> 2"]


def test_pins_packages_and_helpers_are_installed_in_this_order_and_helpers_not_held(tmp_path):
    host = Repository(tmp_path, packages={"other": ("1", "installed", "install")})
    host.offered = "".join(f"{name} | 1 | http://repository.lab ./ Packages\n" for name in ("pin", "a", "gcc"))
    result = host.run_transaction(
        tmp_path, EMPTY._replace(packages=parse("a=1"), helpers=parse("gcc=1"), pins=parse("pin=1"))
    )
    assert result.changes == ["pin (new) 1", "a (new) 1", "gcc (new) 1"]
    held = {name for name, (_, _, want) in host.packages.items() if want == "hold"}
    assert held == {"pin", "a"}
    assert result.before.remaining == ["pin=1", "a=1", "gcc=1", "pin", "a"]


def test_the_installation_follows_the_preferences_of_the_transaction(tmp_path):
    host = Host(tmp_path, "")
    host.run_transaction(tmp_path)
    assert host.bound == [True]


def test_the_directory_of_preferences_can_be_read_by_apts_user_and_is_removed(tmp_path):
    seen = []

    class Watched(Host):
        def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
            for word in command:
                if word.startswith("Dir::Etc::PreferencesParts="):
                    folder = Path(word.partition("=")[2])
                    seen.append((folder, folder.stat().st_mode & 0o777))
            return super().__call__(command, **options)

    Watched(tmp_path).run_transaction(tmp_path)
    assert {mode for _folder, mode in seen} == {0o755}
    assert not any(folder.exists() for folder, _mode in seen)


def test_an_installed_package_that_was_a_dependency_is_so_after_an_undo(tmp_path):
    host = Host(tmp_path, DPKG_FAILED, "")
    host.automatic = {"a"}
    host.failed(tmp_path)
    assert store.journal(str(tmp_path)) == {"a": {"version": "1", "held": False, "auto": True}}
    assert host.automatic == {"a"}


def test_new_packages_are_in_the_journal_as_not_installed(tmp_path):
    host = Host(tmp_path, packages={"other": ("1", "installed", "install")})
    host.run_transaction(tmp_path)
    assert store.journal(str(tmp_path)) == {"a": None}


@pytest.mark.parametrize("undo", [True, False])
def test_replaced_packages_are_kept_for_an_undo_alone(tmp_path, undo):
    host = Repository(tmp_path)
    host.run_transaction(tmp_path, undo=undo)
    assert host.steps == [*(["download a=1"] if undo else []), "a=2"]


def test_a_new_package_has_nothing_to_keep(tmp_path):
    host = Repository(tmp_path, packages={"other": ("1", "installed", "install")})
    host.run_transaction(tmp_path)
    assert host.steps == ["a=2"]


def test_fresh_lists_that_have_the_version_are_enough(tmp_path):
    class Refreshed(Host):
        def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
            if command[-1] == "update":
                self.offered = "a | 2 | http://repository.lab ./ Packages"
            return super().__call__(command, **options)

    host = Refreshed(tmp_path)
    host.offered = "a | 1 | http://repository.lab ./ Packages"
    host.run_transaction(tmp_path)
    assert host.steps == ["update", "a=2"]


def test_a_package_without_a_version_that_is_not_listed_is_looked_for_in_fresh_lists(tmp_path):
    """It may be a virtual one, which only apt finds."""
    host = Host(tmp_path)
    host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), helpers=parse("virtual")))
    assert host.steps == ["update", "virtual"]


def test_why_the_lists_could_not_be_refreshed_is_in_the_message(tmp_path, snapshot):
    host = Host(tmp_path)
    host.offered = ""
    host.failing = {"update": "E: no network"}
    assert host.failed(tmp_path) == snapshot


def test_what_an_interrupted_dpkg_configured_is_not_installed_again(tmp_path):
    """Before the recovery the package was not in its state; after it, it is."""

    class Finished(Host):
        def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
            answer = super().__call__(command, **options)
            if "--configure" in command:
                self.set({"a": ("2", "installed", "install")})
            return answer

    host = Finished(tmp_path, packages={"a": ("2", "half-configured", "install")})
    assert host.run_transaction(tmp_path).changes == []
    assert host.steps == ["--configure"]
    assert host.packages == {"a": ("2", "installed", "hold")}


def test_packages_of_which_an_interrupted_run_unpacked_a_part_are_installed(tmp_path):
    """They need each other in one version: apt refuses every command without --fix-broken."""
    host = Host(tmp_path, packages={"a": ("2", "unpacked", "install"), "a-part": ("1", "installed", "hold")})
    host.offered = "a | 2 | http://repository.lab ./ Packages\na-part | 2 | http://repository.lab ./ Packages"
    host.failing["check"] = "E: Unmet dependencies. Try 'apt --fix-broken install' with no packages."
    host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2", "a-part=2")))
    commands = [words for words in host.commands if words[0] == "apt-get" and words[-2:] == ["a=2", "a-part=2"]]
    assert [("--simulate" in command, "--fix-broken" in command) for command in commands] == [
        (True, False),
        (True, False),
        (True, True),
        (False, True),
    ]
    assert host.packages["a-part"] == ("2", "installed", "hold")


def test_check_mode_finishes_no_interrupted_dpkg(tmp_path):
    host = Host(tmp_path, packages={"a": ("2", "half-configured", "install")})
    host.run_transaction(tmp_path, check=True)
    assert host.steps == []


# Preferences and kept packages ------------------------------------------------------------------------------------


class Repository(Host):
    """A host whose repository has package files. `preferences`: of each simulation, {file: text} that bind it."""

    def __init__(self, root: Path, *outcomes: str, packages: dict[str, tuple[str, str, str]] | None = None) -> None:
        super().__init__(root, *outcomes, packages=packages)
        self.preferences: list[dict[str, str]] = []
        self.downloads = True
        self.shown: list[str] = []  # the answers of `apt-cache show`

    def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        if command[:2] == ["apt-get", "download"]:
            return self._download(command[2:], Path(options["cwd"]))
        if command[0] == "dpkg-deb":
            done = subprocess.run(command, capture_output=True, text=True)
            return done.returncode, done.stdout, done.stderr
        if command[:2] == ["apt-cache", "show"]:
            return 0, self.shown.pop(0) if self.shown else "", ""
        if command[:2] == ["dpkg-query", "-L"]:
            return 0, "".join(f"{apt_commands.PREFERENCES}/{name}\n" for name in command[2:]), ""
        if "--simulate" in command:
            (folder,) = [word.partition("=")[2] for word in command if word.startswith("Dir::Etc::PreferencesParts=")]
            self.preferences.append({path.name: path.read_text() for path in Path(folder).iterdir()})
        return super().__call__(command, **options)

    def _download(self, specs: list[str], folder: Path) -> tuple[int, str, str]:
        """Write each package, with one file of apt preferences that has its name."""
        for spec in specs:
            self.build(spec, folder)
            self.steps.append(f"download {spec}")
        return 0, "", ""

    def build(self, spec: str, folder: Path) -> None:
        name, _, version = spec.partition("=")
        tree = self.root / f"build-{name}"
        preferences = tree / apt_commands.PREFERENCES.lstrip("/")
        preferences.mkdir(parents=True, exist_ok=True)
        (preferences / name).write_text(f"preferences of {name}\n")
        (tree / "DEBIAN").mkdir(exist_ok=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: x\nDescription: test\n"
        (tree / "DEBIAN/control").write_text(control)
        target = folder / f"{name}_{version}_all.deb"
        subprocess.run(["dpkg-deb", "--build", str(tree), str(target)], check=True, capture_output=True)


def test_the_simulation_follows_the_preferences_of_the_new_pins_and_not_of_the_old_ones(tmp_path):
    host = Repository(tmp_path, packages={**HELD, "pin-1": ("1", "installed", "hold")})
    host.offered = "a | 2 | http://repository.lab ./ Packages\npin-2 | 1 | http://repository.lab ./ Packages"
    preferences = Path(apt_commands.PREFERENCES)
    preferences.mkdir()
    (preferences / "pin-1").write_text("preferences of pin-1\n")
    (preferences / "site").write_text("preferences of the site\n")
    host.run_transaction(
        tmp_path, EMPTY._replace(packages=parse("a=2"), pins=parse("pin-2=1"), pins_replace=["pin-.*"])
    )
    (bound,) = host.preferences
    assert {name: text for name, text in bound.items() if "transaction" not in name} == {
        "pin-2": "preferences of pin-2\n",
        "site": "preferences of the site\n",
    }


def test_an_installed_pin_binds_without_a_download(tmp_path):
    """A repair needs no network, as the files of the packages are kept: neither may its simulation."""
    host = Repository(tmp_path, packages={**HELD, "pin-1": ("1", "installed", "hold")})
    preferences = Path(apt_commands.PREFERENCES)
    preferences.mkdir()
    (preferences / "pin-1").write_text("preferences of pin-1\n")
    host.offered = "a | 2 | http://repository.lab ./ Packages\npin-1 | 1 | http://repository.lab ./ Packages"
    host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), pins=parse("pin-1=1")), check=True)
    (bound,) = host.preferences
    assert bound["pin-1"] == "preferences of pin-1\n"
    (preferences / "pin-1").unlink()
    (tmp_path / "packages").mkdir()
    host.build("pin-1=1", tmp_path / "packages")
    host.run_transaction(tmp_path, EMPTY._replace(pins=parse("pin-1=1"), reinstall=["pin-1"]), check=True)
    assert host.preferences[-1]["pin-1"] == "preferences of pin-1\n"
    assert [step for step in host.steps if "download" in step] == []


def test_the_simulation_takes_dependencies_on_one_version_in_that_version(tmp_path):
    host = Repository(tmp_path)
    host.shown = ["Package: a\nVersion: 2\nDepends: a-common (= 2-1), libc6 (>= 2.17)\n"]
    host.run_transaction(tmp_path)
    (bound,) = host.preferences
    assert "Package: a-common\nPin: version 2-1\nPin-Priority: 1001\n" in "".join(bound.values())


def test_the_replaced_package_is_kept_before_the_new_one_is_installed(tmp_path):
    host = Repository(tmp_path)
    assert host.run_transaction(tmp_path).not_kept == []
    assert host.steps == ["download a=1", "a=2"]
    assert (tmp_path / "packages/a_1_all.deb").is_file()


# Repairs --------------------------------------------------------------------------------------------------------


DAMAGED = {"a": ("2", "installed", "hold"), "b": ("1", "installed", "hold"), "c": ("1", "installed", "hold")}


def repair(host: Host, tmp_path: Path, *names: str, **request: Any) -> transaction.Result:
    host.offered = "a | 2 | http://repository.lab ./ Packages\nb | 1 | http://repository.lab ./ Packages"
    return host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), reinstall=list(names), **request))


def test_a_damaged_package_is_installed_again_in_its_version_and_no_other_one(tmp_path):
    host = Host(tmp_path, packages=DAMAGED)
    result = repair(host, tmp_path, "b", hold_dependencies=["b"])
    (install,) = [c for c in host.commands if c[0] == "apt-get" and "install" in c and "--simulate" not in c]
    assert install[install.index("install") + 1 :] == ["b=1"]
    assert "--reinstall" in install
    assert "Dpkg::Options::=--force-confmiss" in install
    assert result.changes == ["b 1 (installed again)"]
    assert result.before.remaining == ["b=1"]
    assert result.after.remaining == []
    assert host.packages == DAMAGED


def test_a_repair_is_simulated_with_the_same_options_and_refusals(tmp_path, snapshot):
    class Unexpected(Host):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return "Inst a [2] (2 x [all])\nRemv c [1]\n" if simulate else super()._install(specs, simulate)

    host = Unexpected(tmp_path, packages=DAMAGED)
    with pytest.raises(transaction.TransactionError) as caught:
        repair(host, tmp_path, "a")
    assert str(caught.value) == snapshot
    assert caught.value.details["unplanned"] == ["c 1 (removed)"]
    (simulated,) = [c for c in host.commands if "--simulate" in c]
    assert "--reinstall" in simulated
    assert host.steps == []


def test_a_damaged_package_that_was_held_is_held_after_its_repair(tmp_path):
    """apt forgets the hold of a package that it installs again."""

    class Forgetful(Host):
        def _install(self, specs: list[str], simulate: bool) -> str:
            text = super()._install(specs, simulate)
            self.set({name: (version, state, "install") for name, (version, state, _) in self.packages.items()})
            return text

    host = Forgetful(tmp_path, packages={**DAMAGED, "gcc": ("1", "installed", "install")})
    repair(host, tmp_path, "b", hold_dependencies=["b"])
    assert {name for name, (_, _, want) in host.packages.items() if want == "hold"} == {"a", "b"}


def test_a_damaged_helper_is_installed_again_and_not_held(tmp_path):
    packages = {**DAMAGED, "gcc": ("1", "installed", "install")}
    host = Host(tmp_path, packages=packages)
    host.offered = "gcc | 1 | http://repository.lab ./ Packages"
    request = EMPTY._replace(packages=parse("a=2"), helpers=parse("gcc"), reinstall=["gcc"])
    assert host.run_transaction(tmp_path, request).changes == ["gcc 1 (installed again)"]
    assert host.packages == packages


def test_a_repair_beside_an_upgrade_installs_both_and_nothing_else_again(tmp_path):
    packages = dict.fromkeys(("a", "b", "c"), ("1", "installed", "hold"))
    host = Host(tmp_path, packages=packages)
    host.offered = "a | 2 | http://repository.lab ./ Packages\nb | 1 | http://repository.lab ./ Packages"
    request = EMPTY._replace(packages=parse("a=2", "b=1", "c=1"), reinstall=["b"])
    assert host.run_transaction(tmp_path, request).changes == ["a 1 -> 2", "b 1 (installed again)"]
    (install,) = (command for command in host.run("apt-get") if "install" in command)
    assert install[install.index("install") + 1 :] == ["a=2", "b=1"]


@pytest.mark.parametrize(
    ("name", "patterns", "packages"),
    [
        ("c", ["b"], DAMAGED),
        ("b", ["b"], {**DAMAGED, "b": ("1", "installed", "install")}),
        ("d", ["d"], DAMAGED),
    ],
    ids=["another part's", "not held", "not installed"],
)
def test_damaged_packages_of_others_are_left_alone(tmp_path, name, patterns, packages):
    host = Host(tmp_path, packages=packages)
    assert repair(host, tmp_path, name, hold_dependencies=patterns).before.damaged == []
    assert host.steps == []


def test_a_damaged_package_that_is_replaced_anyway_is_not_installed_twice(tmp_path):
    host = Host(tmp_path, packages={"a": ("1", "installed", "hold")})
    assert repair(host, tmp_path, "a").before.damaged == []
    assert not any("--reinstall" in command for command in host.commands)


def test_a_version_that_the_repository_has_no_more_is_taken_from_the_kept_files(tmp_path):
    kept = tmp_path / "packages"
    kept.mkdir()
    (kept / "a_2_all.deb").write_text("")
    host = Host(tmp_path, packages=DAMAGED)
    request = EMPTY._replace(packages=parse("a=2"), reinstall=["a"])
    host.offered = "a | 3 | http://repository.lab ./ Packages"
    host.run_transaction(tmp_path, request)
    assert host.steps == [str(kept / "a_2_all.deb")]


def test_a_damaged_package_that_is_neither_offered_nor_kept_is_refused(tmp_path, snapshot):
    host = Host(tmp_path, packages=DAMAGED)
    host.offered = "a | 3 | http://repository.lab ./ Packages"
    assert host.failed(tmp_path, EMPTY._replace(packages=parse("a=2"), reinstall=["a"])) == snapshot
    assert host.steps == ["update"]


def test_edited_preferences_of_a_damaged_pinning_package_are_removed_first(tmp_path):
    """dpkg keeps settings that were edited, and installs those that are missing with --force-confmiss."""
    pin = tmp_path / "preferences.d/pin"
    pin.parent.mkdir()
    pin.write_text("Package: edited")

    class Pinned(Host):
        def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
            if command == ["dpkg-query", "-L", "a"]:
                return 0, f"/.\n{pin}\n", ""
            if "install" in command and "--simulate" not in command:
                self.steps.append(f"{pin.name} {'exists' if pin.exists() else 'is removed'}")
            return super().__call__(command, **options)

    host = Pinned(tmp_path, packages=DAMAGED)
    repair(host, tmp_path, "a")
    assert host.steps == ["pin is removed", "a=2"]


@needs_dpkg
def test_dpkg_installs_missing_settings_again_and_keeps_edited_ones(tmp_path):
    """What the options of a repair mean is dpkg's decision."""
    dpkg = RealDpkg(tmp_path / "root")
    deb = dpkg.build("pin", {"/etc/pin": "1", "/etc/edited": "1"}, conffiles=["/etc/pin", "/etc/edited"])
    dpkg.install(deb)
    (dpkg.root / "etc/pin").unlink()
    (dpkg.root / "etc/edited").write_text("2")
    dpkg.install(deb, *apt_commands.DPKG[1:])
    assert not (dpkg.root / "etc/pin").exists(), "without the option, dpkg respects that it was deleted"
    dpkg.install(deb, *apt_commands.DPKG[1:], "--force-confmiss")
    assert (dpkg.root / "etc/pin").read_text() == "1"
    assert (dpkg.root / "etc/edited").read_text() == "2"


# Failures -------------------------------------------------------------------------------------------------------


def test_packages_that_stay_without_a_hold_are_a_failure(tmp_path, snapshot):
    class Forgetful(Host):
        def _mark(self, how: str, names: list[str]) -> str:
            return "" if how == "hold" else super()._mark(how, names)

    message = Forgetful(tmp_path).failed(tmp_path)
    assert message.endswith(": a")
    assert message == snapshot


def test_a_repository_that_was_published_again_is_read_again(tmp_path):
    host = Host(tmp_path, OTHER_SIZE, "")
    host.run_transaction(tmp_path)
    assert host.packages == {"a": ("2", "installed", "hold")}
    assert host.steps == ["a=2", "update", "a=2"]


def test_a_repository_that_fails_twice_has_changed_nothing(tmp_path, snapshot):
    host = Host(tmp_path, OTHER_SIZE, OTHER_SIZE)
    assert host.failed(tmp_path) == snapshot
    assert host.details == {"rc": 100, "make_logs": {}}
    assert host.steps == ["a=2", "update", "a=2"]


def test_a_failure_of_dpkg_is_undone_at_once(tmp_path, snapshot):
    host = Host(tmp_path, DPKG_FAILED, "")
    assert host.failed(tmp_path) == snapshot
    assert host.packages == {"a": ("1", "installed", "install")}
    assert host.steps == ["a=2", "a=1"]
    assert host.bound == [True, False], "the preferences of the new packages would bind the undo"


def test_without_undo_a_failure_is_left_to_the_next_run(tmp_path, snapshot):
    host = Host(tmp_path, DPKG_FAILED)
    assert host.failed(tmp_path, undo=False) == snapshot
    assert host.steps == ["a=2"]


def test_a_failure_of_the_second_attempt_is_undone_too(tmp_path, snapshot):
    host = Host(tmp_path, OTHER_SIZE, DPKG_FAILED, "")
    assert host.failed(tmp_path) == snapshot
    assert host.steps == ["a=2", "update", "a=2", "a=1"]


def test_a_killed_apt_is_not_tried_again_even_if_no_package_changed(tmp_path, snapshot):
    host = Host(tmp_path, KILLED)
    assert host.failed(tmp_path) == snapshot
    assert host.steps == ["a=2"]


def test_a_killed_dpkg_is_finished_before_the_undo(tmp_path, snapshot):
    host = Host(tmp_path, DPKG_FAILED, INTERRUPTED, "")
    assert host.failed(tmp_path) == snapshot
    assert host.steps == ["a=2", "a=1", "--configure", "a=1"]


def test_an_undo_is_in_the_progress(tmp_path):
    host = Host(tmp_path, DPKG_FAILED, "")
    progress, shown = tmp_path / transaction_lock.PROGRESS, tmp_path / "shown"
    progress.touch()
    os.link(progress, shown)  # the file of progress is removed at the end
    apt = apt_commands.Apt(host, 1, str(tmp_path / "packages"), str(host.root), str(progress))
    with pytest.raises(transaction.TransactionError):
        transaction.Transaction(EMPTY._replace(packages=parse("a=2")), apt, str(tmp_path)).run()
    assert "step:undoing the failed installation\n" in shown.read_text()


def test_a_failure_has_the_logs_of_modules_that_did_not_build(tmp_path, snapshot):
    class Broken(Host):
        def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
            answer = super().__call__(command, **options)
            if answer[0]:
                put(self.root, "var/lib/dkms/nvidia/2/build/make.log", "error: cause\n")
            return answer

    host = Broken(tmp_path, DPKG_FAILED, "")
    put(host.root, "var/lib/dpkg/info/a.list", "/.\n/usr/src/nvidia-2/dkms.conf\n")
    assert host.failed(tmp_path) == snapshot
    log = str(host.root / "var/lib/dkms/nvidia/2/build/make.log")
    assert host.details == {"rc": 100, "make_logs": {log: "error: cause\n"}}


def test_an_undo_that_would_change_other_packages_is_reported(tmp_path, snapshot):
    class Dependent(Host):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return "Remv theirs [1]\n" if specs == ["a=1"] else super()._install(specs, simulate)

    message = Dependent(tmp_path, DPKG_FAILED).failed(tmp_path)
    assert "\n  theirs 1 (removed)\n" in message
    assert message == snapshot


def test_an_undo_that_fails_is_reported_with_its_cause(tmp_path, snapshot):
    host = Host(tmp_path, DPKG_FAILED, DPKG_FAILED, DPKG_FAILED)
    assert host.failed(tmp_path) == snapshot


def test_what_an_interrupted_run_left_is_in_the_message_of_a_later_failure(tmp_path, snapshot):
    host = Host(tmp_path, OTHER_SIZE, OTHER_SIZE, packages={"a": ("1", "half-configured", "install")})
    host.failing = {"--configure": "dpkg: error processing package a"}
    assert host.failed(tmp_path) == snapshot


NEEDS = {"needs": ["a kernel module: nvidia-dkms-.*", "libcuda: libnvidia-compute-.*"], "needs_version": ["2"]}


def test_a_driver_without_a_module_and_libcuda_is_refused_before_anything_changes(tmp_path, snapshot):
    """cuda-drivers 615 has no dependencies: apt would install it, and the old driver's packages would stay."""
    old = {"a": ("1", "installed", "install"), "nvidia-dkms-1": ("1", "installed", "hold")}
    for check in (True, False):
        host = Host(tmp_path, packages=old)
        with pytest.raises(transaction.TransactionError) as refused:
            host.run_transaction(tmp_path, EMPTY._replace(packages=parse("a=2"), **NEEDS), check=check)
        assert refused.value.details["missing"] == ["a kernel module", "libcuda"]
        assert refused.value.details["problem"] == snapshot
        assert host.packages == old
        assert host.steps == []


def test_a_driver_with_a_module_and_libcuda_is_installed(tmp_path):
    host = Host(tmp_path)
    packages = ["a=2", "nvidia-dkms-2=2", "libnvidia-compute-2=2-1ubuntu1"]
    host.offered += "".join(
        f"\n{spec.replace('=', ' | ')} | http://repository.lab ./ Packages" for spec in packages[1:]
    )
    host.run_transaction(tmp_path, EMPTY._replace(packages=parse(*packages), **NEEDS))
    assert host.packages["nvidia-dkms-2"] == ("2", "installed", "hold")
