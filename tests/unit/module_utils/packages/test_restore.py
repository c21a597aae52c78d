"""Packages are restored to their recorded states: the commands for apt, on a simulated host.

The scenarios undo, interrupted and teardown verify that apt and dpkg execute them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import restore

from tests.unit.module_utils.simulated_packages import SimulatedPackages


def state(version: str, held: bool = False, auto: bool = False) -> dict[str, object]:
    return {"version": version, "held": held, "auto": auto}


def test_a_package_that_left_only_its_settings_is_not_installed(tmp_path):
    packages = {"a": ("1", "installed", "hold"), "b": ("1", "config-files", "deinstall")}
    apt = SimulatedPackages(tmp_path, packages, automatic={"a"}).apt()
    states = restore.states(["a", "b", "c"], apt.packages(), apt.automatic())
    assert states == {"a": state("1", held=True, auto=True), "b": None, "c": None}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a_1%3a2.0_all.deb").write_bytes(b"")
    return tmp_path / "kept"


PACKAGES = {
    "a": ("1:3.0", "installed", "hold"),
    "b": ("3", "installed", "install"),
    "c": ("1", "installed", "install"),
}
TARGETS = {"a": state("1:2.0", held=True), "b": state("2"), "c": None}


def test_kept_files_other_versions_and_removals_are_one_transaction(tmp_path, kept):
    host = SimulatedPackages(tmp_path, PACKAGES)
    changes = restore.restore(host.apt(str(kept)), TARGETS)
    (install,) = host.run("apt-get")
    assert host.run("dpkg") == [], "apt has purged everything itself"
    assert install[install.index("install") + 1 :] == [str(kept / "a_1%3a2.0_all.deb"), "b=2", "c-"]
    assert "--purge" in install
    assert host.packages == {"a": ("1:2.0", "installed", "hold"), "b": ("2", "installed", "install")}
    assert changes == ["a 1:3.0 -> 1:2.0", "b 3 -> 2", "c 1 (removed)", "a (hold)"]


def test_check_mode_changes_nothing(tmp_path, kept):
    host = SimulatedPackages(tmp_path, PACKAGES)
    changes = restore.restore(host.apt(str(kept)), TARGETS, check=True)
    assert changes == ["a 1:3.0 -> 1:2.0", "b 3 -> 2", "c 1 (removed)"], "a is still held"
    assert host.packages == PACKAGES
    assert not host.run("apt-get")
    assert not host.run("apt-mark")


def test_packages_that_apt_leaves_as_they_are_are_an_error(tmp_path, kept, snapshot):
    class Idle(SimulatedPackages):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return super()._install(specs, simulate=True)

    with pytest.raises(ValueError, match=r": a=1:2.0, b=2, c$") as error:
        restore.restore(Idle(tmp_path, PACKAGES).apt(str(kept)), TARGETS)
    assert str(error.value) == snapshot


def test_another_package_that_would_be_removed_is_refused(tmp_path, snapshot):
    class Dependent(SimulatedPackages):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return "Remv theirs [1.0]\nInst a [2] (1 x [amd64])\n"

    host = Dependent(tmp_path, {"a": ("2", "installed", "install")})
    with pytest.raises(ValueError, match=r"\n  theirs 1.0 ") as error:
        restore.restore(host.apt(), {"a": state("1")})
    assert str(error.value) == snapshot
    assert not host.run("apt-get")


def test_a_package_of_a_foreign_architecture_is_a_package_of_its_own(tmp_path, kept):
    (kept / "libx_1_i386.deb").write_bytes(b"")
    installed = ("2", "installed", "install")
    host = SimulatedPackages(tmp_path, {"libx": installed, "libx:i386": installed})
    assert restore.restore(host.apt(str(kept)), {"libx": state("1"), "libx:i386": state("1")})
    (install,) = host.run("apt-get")
    assert install[install.index("install") + 1 :] == ["libx=1", str(kept / "libx_1_i386.deb")]
    assert {row[0] for row in host.packages.values()} == {"1"}


def test_holds_and_automatic_marks_are_restored_without_a_transaction(tmp_path):
    packages = {"a": ("1", "installed", "install"), "b": ("1", "installed", "hold"), "c": ("1", "installed", "install")}
    host = SimulatedPackages(tmp_path, packages, automatic={"b"})
    targets = {"a": state("1", held=True), "b": state("1"), "c": state("1", auto=True)}
    assert restore.restore(host.apt(), targets) == ["a (hold)", "b (unhold)"]
    marks = [["hold", "a"], ["unhold", "b"], ["auto", "c"], ["manual", "b"]]
    assert host.run("apt-mark") == [["apt-mark", *mark] for mark in marks]
    assert not host.run("apt-get")


def test_settings_of_removed_packages_are_purged(tmp_path):
    class Removed(SimulatedPackages):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return ""

        def __call__(self, command: list[str], **options: object) -> tuple[int, str, str]:
            if command[:2] == ["dpkg", "--purge"]:
                self.set({})
            return super().__call__(command, **options)

    host = Removed(tmp_path, {"a": ("1", "config-files", "deinstall")})
    restore.restore(host.apt(), {"a": None})
    assert host.run("dpkg") == [["dpkg", "--purge", "a"]]


def test_settings_alone_are_purged_and_other_packages_are_not(tmp_path):
    """apt leaves what it could not purge: that is an error, and no second attempt of dpkg's."""

    class Idle(SimulatedPackages):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return ""

    host = Idle(tmp_path, {"a": ("1", "installed", "install"), "b": ("1", "not-installed", "purge")})
    with pytest.raises(ValueError, match=r": a$"):
        restore.restore(host.apt(), {"a": None, "b": None})
    assert host.run("dpkg") == []
    (install,) = host.run("apt-get")
    assert install[-1] == "a-"


def test_a_half_installed_package_is_restored_in_its_version(tmp_path):
    host = SimulatedPackages(tmp_path, {"a": ("1", "half-configured", "install")})
    assert restore.restore(host.apt(), {"a": state("1")}) == ["a 1 (installed again)"]
    assert host.packages == {"a": ("1", "installed", "install")}


def test_a_package_that_dpkg_was_killed_while_unpacking_is_unpacked_again(tmp_path):
    """dpkg sets its flag before the status: a package in the wanted version that cannot be configured."""
    host = SimulatedPackages(tmp_path, {})
    host.reinstreq = {"a"}
    host.set({"a": ("1", "unpacked", "install"), "b": ("1", "installed", "install")})
    assert restore.restore(host.apt(), {"a": state("1"), "b": state("1")}) == ["a 1 (installed again)"]
    assert host.packages["a"] == ("1", "installed", "install")
    (install,) = host.run("apt-get")
    assert "--reinstall" in install
    assert install[-1] == "a=1"


@pytest.mark.parametrize(("status", "installed"), [("half-installed", True), ("not-installed", False)])
def test_a_package_that_dpkg_knows_alone_is_not_installed(tmp_path, status, installed):
    apt = SimulatedPackages(tmp_path, {"a": ("1", status, "hold")}).apt()
    expected = state("1", held=True) if installed else None
    assert restore.states(["a"], apt.packages(), set()) == {"a": expected}


def test_packages_in_their_states_need_no_transaction(tmp_path):
    packages = {"a": ("1", "installed", "hold"), "b": ("1", "not-installed", "hold")}
    host = SimulatedPackages(tmp_path, packages, automatic={"a"})
    assert restore.restore(host.apt(), {"a": state("1", held=True, auto=True), "b": None, "c": None}) == []
    assert host.commands == [["apt-mark", "showauto"]]


def test_other_packages_are_not_installed_again(tmp_path):
    """What dpkg was killed while unpacking counts, where it is to be restored."""
    host = SimulatedPackages(tmp_path, {})
    host.reinstreq = {"theirs"}
    host.set({"a": ("1", "installed", "install"), "theirs": ("1", "half-installed", "install")})
    restore.restore(host.apt(), {"a": state("2"), "b": None})
    simulated, install = (command for command in host.commands if "install" in command)
    assert "--reinstall" not in [*simulated, *install]
    assert "--purge" in simulated


def test_another_package_that_is_installed_is_no_reason_to_refuse_and_a_kernel_is(tmp_path, snapshot):
    class Answers(SimulatedPackages):
        new = "libx"

        def _install(self, specs: list[str], simulate: bool) -> str:
            line = f"Inst {self.new} (1 x [amd64])\n"
            return line + super()._install(specs, simulate)

    host = Answers(tmp_path, {"a": ("2", "installed", "install")})
    assert restore.restore(host.apt(), {"a": state("1")}) == ["libx (new) 1", "a 2 -> 1"]
    Answers.new = "linux-image-6.1"
    with pytest.raises(ValueError, match=r"\n  linux-image-6.1 .*\n") as error:
        restore.restore(host.apt(), {"a": state("2")})
    assert str(error.value) == snapshot
    assert host.packages["a"][0] == "1"


def test_a_kernel_that_is_to_be_restored_is(tmp_path):
    host = SimulatedPackages(tmp_path, {"linux-image-6.1": ("2", "installed", "install")})
    assert restore.restore(host.apt(), {"linux-image-6.1": state("1")}) == ["linux-image-6.1 2 -> 1"]


def test_the_name_of_a_package_to_remove_is_no_expression(tmp_path):
    class Answers(SimulatedPackages):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return "Remv g++1 [1]\nRemv gg1 [1]\n"

    host = Answers(tmp_path, {"g++1": ("1", "installed", "install")})
    with pytest.raises(ValueError, match=r"^.*\n  gg1 1 .*\n.*$"):
        restore.restore(host.apt(), {"g++1": None})


def test_all_settings_are_purged_in_one_command(tmp_path):
    packages = dict.fromkeys(("a", "b", "c"), ("1", "config-files", "deinstall"))
    host = SimulatedPackages(tmp_path, {**packages, "d": ("1", "installed", "install")})
    restore.purge_settings(host.apt(), ["a", "b", "d", "e"])
    assert host.commands == [["dpkg", "--purge", "a", "b"]]
    restore.purge_settings(host.apt(), ["d", "e"])
    assert len(host.commands) == 1


def test_what_was_unpacked_without_what_it_needs_is_restored_with_all_that_belongs_to_it(tmp_path, kept):
    """apt was killed between two packages that need each other in one version.

    apt 2.6 and 3.0 then refuse `install a=1:2.0` without --fix-broken, and with it remove b, which needs that a.
    """
    host = SimulatedPackages(tmp_path, {"a": ("1:3.0", "unpacked", "install"), "b": ("2", "installed", "hold")})
    host.failing["check"] = "E: Unmet dependencies. Try 'apt --fix-broken install' with no packages."
    restore.restore(host.apt(str(kept)), {"a": state("1:2.0"), "b": state("2", held=True), "c": None})
    (install,) = host.run("apt-get")
    assert set(install[install.index("install") + 1 :]) == {str(kept / "a_1%3a2.0_all.deb"), "b=2"}
    assert "--fix-broken" in install
    assert [("--fix-broken" in c) for c in host.commands if "--simulate" in c] == [False, True]


def test_a_repair_that_would_change_a_package_of_others_changes_nothing(tmp_path, kept):
    """`apt-get --fix-broken` may install, for what is left unmet, what never was gpuhost's."""

    class Broken(SimulatedPackages):
        def _install(self, specs: list[str], simulate: bool) -> str:
            return super()._install([*specs, "theirs=2"], simulate)

    host = Broken(tmp_path, {"a": ("1:3.0", "unpacked", "install"), "theirs": ("1", "installed", "install")})
    host.failing["check"] = "E: Unmet dependencies. Try 'apt --fix-broken install' with no packages."
    with pytest.raises(ValueError, match=r"No package was changed: .*\n  theirs 1 -> 2\n"):
        restore.restore(host.apt(str(kept)), {"a": state("1:2.0")})
    assert host.run("apt-get") == []
