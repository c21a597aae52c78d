"""Nothing of others is changed: their holds, unmet dependencies and unfinished packages, with the real apt and dpkg.

What changed is what dpkg-query and apt-mark say, and not what the transaction records.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands
from ansible_collections.gpuhost.stack.plugins.module_utils.state import rollback
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.real_apt import RealApt, needs_apt
from tests.unit.module_utils.real_dpkg import RealDpkg
from tests.unit.module_utils.simulated_packages import parse

pytestmark = needs_apt
EMPTY = transaction.PackageRequest([], [], [], [], [], [], [])
OLD, NEW = "570.133.20-0ubuntu0.24.04.1", "595.71.05-1"
# GoogleCloudDataproc/initialization-actions#1220: the script holds these of what it has installed.
SET = ("nvidia-utils-570-server", "nvidia-dkms-570-server-open", "libnvidia-compute-570-server")
REPLACES = transaction.PackageRequest(
    packages=parse(f"nvidia-driver-cuda={NEW}"),
    helpers=[],
    pins=[],
    pins_replace=[],
    hold_dependencies=["nvidia-.*"],
    replaces=[name.replace("-", "[-]") for name in SET],
    may_remove=["(lib)?nvidia-.*"],
)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealApt:
    """Return a host with driver 570 of the distribution and its headers; the repository offers another driver."""
    host = RealApt(tmp_path)
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(host.root / "etc/apt/preferences.d"))
    monkeypatch.setattr(apt_commands, "ARCHIVES", str(host.root / "var/cache/apt/archives"))
    for name in SET:
        host.install(deb := host.build(name, {}, OLD))
        host.offer(deb)
    host.install(host.build("linux-headers-generic", {}, "6.8.0-71"))
    host.offer(
        host.build("nvidia-driver-cuda", {}, NEW, conflicts=", ".join(SET), depends="nvidia-modprobe"),
        host.build("nvidia-modprobe", {}, NEW),
        host.build("nvidia-persistenced", {}, NEW, depends="linux-headers-generic (>= 6.8.0-88)"),
        host.build("linux-headers-generic", {}, "6.8.0-88"),
    )
    return host


def refused(host: RealApt, request: transaction.PackageRequest, check: bool = False) -> transaction.RefusedError:
    """Run a transaction that must be refused, and return why; the host is as it was before."""
    before = host.shown()
    with pytest.raises(transaction.RefusedError) as caught:
        host.run_transaction(request, check)
    assert host.shown() == before
    assert store.journal(str(host.state)) == {}
    return caught.value


@pytest.mark.parametrize("held", [SET, SET[:1], SET[2:]], ids=["the whole driver", "its tools", "a library of it"])
@pytest.mark.parametrize("check", [False, True])
def test_a_driver_that_its_administrator_holds_is_not_replaced(
    host: RealApt, held: tuple[str, ...], check: bool, snapshot: SnapshotAssertion
) -> None:
    host.hold(*held)
    error = refused(host, REPLACES, check)
    assert error.details["problem"]["code"] == "package-held"
    assert error.details["unplanned"] == [f"{name} {OLD} (removed)" for name in sorted(held)]
    if len(held) == 1:
        assert str(error) == snapshot
    assert host.do("apt-mark", "unhold", *held).returncode == 0
    result = host.run_transaction(REPLACES)
    assert f"nvidia-driver-cuda {NEW} hold ok installed" in host.shown()
    assert not [line for line in host.shown() if "570" in line]
    assert len(result.changes) == 5


def test_a_hold_of_gpuhosts_own_is_none_of_an_administrator(host: RealApt) -> None:
    host.run_transaction(EMPTY._replace(packages=parse(*(f"{name}={OLD}" for name in SET))))
    assert [line for line in host.shown() if line.startswith("hold ")] == [f"hold {name}" for name in sorted(SET)]
    host.run_transaction(REPLACES)
    assert f"nvidia-driver-cuda {NEW} hold ok installed" in host.shown()


def test_a_hold_that_was_there_before_gpuhost_stays_the_administrators(host: RealApt) -> None:
    """What is in the journal as held has been held by somebody else."""
    host.hold(*SET)
    states = {name: {"version": OLD, "held": True, "auto": False} for name in SET}
    store.record_packages(str(host.state), states)
    before = host.shown()
    with pytest.raises(transaction.RefusedError):
        host.run_transaction(REPLACES)
    assert host.shown() == before


@pytest.mark.parametrize(
    ("name", "package"),
    [("linux-headers-generic", f"nvidia-persistenced={NEW}"), ("nvidia-modprobe", f"nvidia-driver-cuda={NEW}")],
    ids=["a dependency that would be raised", "a package that is not installed"],
)
def test_a_held_package_that_a_planned_one_needs_otherwise_is_not_changed(
    host: RealApt, name: str, package: str
) -> None:
    host.hold(name)
    request = REPLACES._replace(packages=parse(package))
    assert refused(host, request).details["problem"]["code"] == "package-held"


def test_a_planned_package_that_is_held_in_its_version_stays_and_the_rest_is_installed(host: RealApt) -> None:
    """Without a version in its spec, apt would raise it to the newest."""
    host.offer(host.build(SET[0], {}, "570.172.08-0ubuntu0.24.04.1"))
    host.hold(SET[0])
    host.run_transaction(EMPTY._replace(packages=parse(SET[0], f"nvidia-modprobe={NEW}")))
    assert f"{SET[0]} {OLD} hold ok installed" in host.shown()
    assert f"nvidia-modprobe {NEW} hold ok installed" in host.shown()


def test_settings_of_a_package_on_hold_are_not_purged(host: RealApt) -> None:
    host.install(host.build("nvidia-settings-570", {"/etc/nvidia.conf": "x\n"}, OLD, conffiles=["/etc/nvidia.conf"]))
    assert host.do("dpkg", "--remove", "nvidia-settings-570").returncode == 0
    RealDpkg.hold(host, "nvidia-settings-570")  # apt-mark has no such package
    host.run_transaction(REPLACES._replace(replaces=[*REPLACES.replaces, "nvidia-settings-.*"]))
    assert f"nvidia-settings-570 {OLD} hold ok config-files" in host.shown()


# Unmet dependencies -----------------------------------------------------------------------------------------------


def with_unmet_dependencies(host: RealApt) -> None:
    """As in NVIDIA/nvidia-docker#234: a package needs one of two that no archive offers, and another one needs it."""
    host.unpacked(host.build("nvidia-docker", {}, "1.0.1-1", depends="sysv-rc | file-rc"))
    host.unpacked(host.build("slurm-gpu-plugin", {}, "1", depends="nvidia-docker"))


@pytest.mark.parametrize("check", [False, True])
def test_packages_of_others_with_unmet_dependencies_are_not_removed(
    host: RealApt, check: bool, snapshot: SnapshotAssertion
) -> None:
    with_unmet_dependencies(host)
    error = refused(host, EMPTY._replace(packages=parse(f"nvidia-modprobe={NEW}")), check)
    assert error.details["problem"]["code"] == "packages-broken"
    assert error.details["problem"] == snapshot


def test_unmet_dependencies_that_the_planned_packages_meet_are_no_obstacle(host: RealApt) -> None:
    host.unpacked(host.build("monitoring", {}, "1", depends="nvidia-modprobe"))
    host.run_transaction(EMPTY._replace(packages=parse(f"nvidia-modprobe={NEW}")))
    assert {f"nvidia-modprobe {NEW} hold ok installed", "monitoring 1 install ok installed"} <= set(host.shown())


def test_what_a_killed_transaction_of_gpuhosts_left_is_finished(host: RealApt) -> None:
    """Unpacked without what it needs, and in the journal."""
    assert host.do("dpkg", "--remove", *SET).returncode == 0
    host.unpacked(host.repository / f"nvidia-driver-cuda_{NEW}_all.deb", "--unpack")
    store.record_packages(str(host.state), {"nvidia-driver-cuda": None, "nvidia-modprobe": None})
    host.run_transaction(REPLACES)
    assert {f"nvidia-driver-cuda {NEW} hold ok installed", f"nvidia-modprobe {NEW} hold ok installed"} <= set(
        host.shown()
    )


def test_a_missing_dependency_of_gpuhosts_packages_is_installed_first(host: RealApt) -> None:
    """Somebody removed it by force. Check mode ends there: apt simulates nothing else until it is installed."""
    assert host.do("dpkg", "--remove", *SET).returncode == 0
    host.unpacked(host.repository / f"nvidia-driver-cuda_{NEW}_all.deb")
    store.record_packages(str(host.state), {"nvidia-driver-cuda": None, "nvidia-modprobe": None})
    before, request = host.shown(), EMPTY._replace(packages=parse(f"nvidia-persistenced={NEW}"))
    missing, others = f"nvidia-modprobe (new) {NEW}", ["linux-headers-generic 6.8.0-71 -> 6.8.0-88"]
    assert host.run_transaction(request, check=True).changes == [missing]
    assert host.shown() == before
    assert host.run_transaction(request).changes == [missing, *others, f"nvidia-persistenced (new) {NEW}"]


@pytest.mark.parametrize("check", [False, True])
def test_a_missing_dependency_is_not_installed_where_a_held_package_would_change_with_it(
    host: RealApt, check: bool
) -> None:
    assert host.do("dpkg", "--remove", *SET).returncode == 0
    for name in ("nvidia-driver-cuda", "nvidia-persistenced"):
        host.unpacked(host.repository / f"{name}_{NEW}_all.deb")
    store.record_packages(str(host.state), dict.fromkeys(("nvidia-driver-cuda", "nvidia-persistenced")))
    host.hold("linux-headers-generic")
    before = host.shown()
    with pytest.raises(transaction.TransactionError, match=r"linux-headers-generic \(>= 6\.8\.0-88\) but 6\.8\.0-71"):
        host.run_transaction(EMPTY._replace(packages=parse(f"nvidia-modprobe={NEW}")), check)
    assert host.shown() == before


# Unfinished packages ----------------------------------------------------------------------------------------------


@pytest.fixture
def unfinished(host: RealApt, tmp_path: Path) -> Path:
    """Let a package be half configured; return the file without which its script fails."""
    may, ran = tmp_path / "may", tmp_path / "ran"
    host.unpacked(host.build("database", {}, "1", script=f"echo >> {ran}; test -e {may}"))
    assert "database 1 install ok half-configured" in host.shown()
    return may


def test_a_package_of_others_that_is_half_configured_is_left_alone(
    host: RealApt, unfinished: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    unfinished.touch()
    ran = (tmp_path / "ran").read_text()
    error = refused(host, EMPTY._replace(packages=parse(f"nvidia-modprobe={NEW}")))
    assert error.details["problem"] == snapshot
    assert (tmp_path / "ran").read_text() == ran
    assert host.do("dpkg", "--configure", "-a").returncode == 0
    host.run_transaction(EMPTY._replace(packages=parse(f"nvidia-modprobe={NEW}")))


@pytest.mark.parametrize("whose", ["in the journal", "requested"])
def test_a_package_of_gpuhosts_that_is_half_configured_is_finished(host: RealApt, unfinished: Path, whose: str) -> None:
    unfinished.touch()
    packages = [f"nvidia-modprobe={NEW}"]
    if whose == "requested":
        packages.append("database=1")
        host.offer(host.root.parent / "database_1_all.deb")
    else:
        store.record_packages(str(host.state), {"database": None})
    before = host.shown()
    assert host.run_transaction(EMPTY._replace(packages=parse(*packages)), check=True).changes == []
    assert host.shown() == before
    host.run_transaction(EMPTY._replace(packages=parse(*packages)))
    assert "half-configured" not in str(host.shown())


def test_a_trigger_in_which_gpuhost_was_interrupted_is_finished(host: RealApt, tmp_path: Path) -> None:
    """As that of initramfs-tools, whose package no transaction names; a power failure takes minutes to miss it."""
    may = tmp_path / "may"
    triggers = {"DEBIAN/triggers": "interest-noawait /usr/share/kernels\n"}
    host.unpacked(host.build("initramfs-tools", triggers, "1", script=f'test "$1" != triggered || test -e {may}'))
    assert host.do("dpkg", "--install", str(host.build("kernel", {"/usr/share/kernels/a": ""}, "1"))).returncode == 1
    assert "initramfs-tools 1 install ok half-configured" in host.shown()
    may.touch()
    request = EMPTY._replace(packages=parse(f"nvidia-modprobe={NEW}"))
    refused(host, request)  # gpuhost has changed no package of this host
    store.record_packages(str(host.state), {"nvidia-modprobe": None})
    host.run_transaction(request)
    assert "initramfs-tools 1 install ok installed" in host.shown()


# Back again -------------------------------------------------------------------------------------------------------


def restore(host: RealApt) -> None:
    """Roll back to a baseline without files."""
    store.write(str(host.state), store.BASELINE, {"files": {}, "folders": {}})
    work = rollback.Rollback(str(host.state), host.apt(), lambda _command: (0, "", ""))
    work.restore(store.BASELINE, [])


def test_a_rollback_brings_everything_back_and_changes_no_package_that_somebody_holds(
    host: RealApt, snapshot: SnapshotAssertion
) -> None:
    before = host.shown()
    host.run_transaction(REPLACES)
    restore(host)
    assert host.shown() == before
    # Somebody has installed and held what needs the new driver.
    (host.state / "baseline.json").unlink(missing_ok=True)
    host.run_transaction(REPLACES)
    host.install(host.build("site-tools", {}, "1", depends=f"nvidia-driver-cuda (= {NEW})"))
    host.hold("site-tools")
    after = host.shown()
    with pytest.raises(ValueError, match=r"\n  site-tools 1 .*\n") as error:
        restore(host)
    assert str(error.value) == snapshot
    assert host.shown() == after


def test_a_rollback_leaves_unfinished_packages_of_others_alone(
    host: RealApt, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    host.run_transaction(REPLACES)
    host.unpacked(host.build("database", {}, "1", script="exit 1"))
    after = host.shown()
    with pytest.raises(ValueError, match="database") as error:
        restore(host)
    assert str(error.value) == snapshot
    assert host.shown() == after
