"""An older patch of a branch, whose parts a newer one would meet too, with the real apt and dpkg.

Dependencies as those of NVIDIA's and Canonical's packages: of a metapackage with `>=` (NVIDIA/infra-controller#6049),
of libnvidia-compute on the daemon with `=` (public apt output of 610.43.02), and Ubuntu's pairs of `<=` and `>=`
(GoogleCloudDataproc/initialization-actions#1342).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import restore, transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands
from syrupy.assertion import SnapshotAssertion

from tests.doubles.nvidia_repository import contents
from tests.unit.module_utils.real_apt import RealApt, needs_apt
from tests.unit.module_utils.simulated_packages import parse

pytestmark = needs_apt
OLD, NEW = "595.71.05", "595.91.07"
PARTS = ["(lib)?nvidia-.*"]
REQUEST = transaction.PackageRequest([], [], [], [], PARTS, [], [])
DEPENDS = {
    "nvidia-open": "nvidia-driver-open (>= {0})",
    "nvidia-driver-open": "nvidia-dkms-open (= {0}-1ubuntu1), libnvidia-compute (= {0}-1ubuntu1), "
    "nvidia-modprobe (>= {0}), zlib1g",
    "nvidia-dkms-open": "nvidia-firmware",
    "libnvidia-compute": "nvidia-persistenced (= {0}-1ubuntu1)",
    "nvidia-firmware": "",
    "nvidia-modprobe": "",
    "nvidia-persistenced": "",
}
PIN = "nvidia-driver-pinning-{0}"
UBUNTU = {
    "nvidia-driver-595-open": "nvidia-dkms-595-open (<= {0}-1), nvidia-dkms-595-open (>= {0})",
    "nvidia-dkms-595-open": "",
}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealApt:
    """Return a host whose repositories offer two patches of a branch."""
    host = RealApt(tmp_path)
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(host.root / "etc/apt/preferences.d"))
    monkeypatch.setattr(apt_commands, "ARCHIVES", str(host.root / "var/cache/apt/archives"))
    offered = [host.build("zlib1g", {}, "1:1.3")]
    for driver in (OLD, NEW):
        for names, revision in ((DEPENDS, "1ubuntu1"), (UBUNTU, "0ubuntu0.24.04.1")):
            for name, depends in names.items():
                relations = {"depends": depends.format(driver)} if depends else {}
                source = "nvidia-graphics-drivers" if "modprobe" not in name else name
                offered.append(host.build(name, {}, f"{driver}-{revision}", source=source, **relations))
    host.offer(*offered, *(pinning(host, driver) for driver in (OLD, NEW)))
    return host


def pinning(host: RealApt, driver: str) -> Path:
    """Build NVIDIA's package that pins a driver, whose stanzas name source packages."""
    values = {"pinned": driver, "pin": f"{driver}-*", "graphics": "nvidia-graphics-drivers", "revision": "1ubuntu1"}
    spec = contents.fill(contents.driver_contents()["pinning"], values)
    relations = {name: ", ".join(spec[name]) for name in ("provides", "conflicts", "replaces")}
    return host.build(spec["name"], spec["text"], spec["version"], conffiles=spec["conffiles"], **relations)


def of_driver(host: RealApt) -> set[str]:
    """Return the versions of the driver's packages, and the names of those that are not on hold."""
    lines = [line.split() for line in host.shown() if "nvidia" in line and not line.startswith("hold ")]
    assert len(lines) in (len(DEPENDS), len(UBUNTU))
    return {version if wanted == "hold" else name for name, version, wanted, *_unused in lines}


@pytest.mark.parametrize("present", ["", NEW, OLD], ids=["a bare host", "a host with the newer one", "a host with it"])
@pytest.mark.parametrize(
    ("asked", "revision"),
    [
        (("nvidia-open",), "1ubuntu1"),
        (("libnvidia-compute", "nvidia-open"), "1ubuntu1"),
        (("nvidia-driver-595-open",), "0ubuntu0.24.04.1"),
    ],
    ids=["NVIDIA's metapackage", "with a part by name", "Ubuntu's"],
)
def test_all_parts_of_a_driver_get_its_version(
    host: RealApt, present: str, asked: tuple[str, ...], revision: str
) -> None:
    def request(driver: str) -> transaction.PackageRequest:
        return REQUEST._replace(packages=parse(*(f"{name}={driver}-{revision}" for name in asked)))

    if present:
        host.run_transaction(request(present))
        assert of_driver(host) == {f"{present}-{revision}"}
    host.run_transaction(request(OLD))
    assert of_driver(host) == {f"{OLD}-{revision}"}
    host.run_transaction(request(NEW))
    assert of_driver(host) == {f"{NEW}-{revision}"}


@pytest.mark.parametrize(("present", "planned"), [(OLD, NEW), (NEW, OLD)], ids=["upgrade", "downgrade"])
def test_a_driver_is_changed_and_restored_under_pins_by_source(host: RealApt, present: str, planned: str) -> None:
    """The pin of the old one must not bind the simulation, and that of the new one does so before it is installed."""
    for name in (PIN.format(present), "nvidia-open"):  # in two transactions, as NVIDIA's guide has it
        done = host.do("apt-get", "-y", "install", name)
        assert done.returncode == 0, done.stderr
    before = installed(host)
    assert set(before.values()) == {f"{present}-1ubuntu1"}
    pins = parse(f"{PIN.format(planned)}={planned}-1ubuntu1")
    asked = REQUEST._replace(
        packages=parse(f"nvidia-open={planned}-1ubuntu1"), pins=pins, pins_replace=[PIN.format(".*")]
    )
    host.run_transaction(asked)
    assert installed(host) == {
        name.replace(present, planned): version.replace(present, planned) for name, version in before.items()
    }
    restore.restore(host.apt(), store.journal(str(host.state)))
    assert installed(host) == before


def installed(host: RealApt) -> dict[str, str]:
    """Return the versions of the installed packages of the driver, its pin among them."""
    lines = [line.split() for line in host.shown() if "nvidia" in line and line.endswith(" ok installed")]
    return {name: version for name, version, *_status in lines}


def test_a_part_that_others_hold_stays(host: RealApt) -> None:
    host.run_transaction(REQUEST._replace(packages=parse(f"nvidia-modprobe={NEW}-1ubuntu1"), hold_dependencies=[]))
    (host.state / "journal.json").unlink()
    result = host.run_transaction(REQUEST._replace(packages=parse(f"nvidia-open={OLD}-1ubuntu1")))
    assert not [change for change in result.changes if "modprobe" in change]
    assert of_driver(host) == {f"{OLD}-1ubuntu1", f"{NEW}-1ubuntu1"}


def test_versions_of_packages_that_are_not_requested_bind_those_that_are_there_or_come(host: RealApt) -> None:
    """A file of a fleet's versions has them, and the repository offers newer ones. Settings alone are no package."""
    path = "/etc/nvidia.conf"
    settings = host.build("nvidia-settings", {path: "x\n"}, f"{OLD}-1ubuntu1", conffiles=[path])
    host.install(settings)
    host.offer(settings)
    assert host.do("dpkg", "--remove", "nvidia-settings").returncode == 0
    host.run_transaction(REQUEST._replace(packages=parse(f"nvidia-firmware={NEW}-1ubuntu1")))
    given = [f"{name}={OLD}-1ubuntu1" for name in ("nvidia-firmware", "nvidia-persistenced", "nvidia-settings")]
    asked = REQUEST._replace(packages=parse("nvidia-dkms-open", "nvidia-persistenced"), versions=parse(*given))
    host.run_transaction(asked)
    assert [line.rpartition(" hold")[0] for line in host.shown() if " hold ok" in line] == [
        f"nvidia-dkms-open {NEW}-1ubuntu1",
        f"nvidia-firmware {OLD}-1ubuntu1",
        f"nvidia-persistenced {OLD}-1ubuntu1",
    ]
    assert f"nvidia-settings {OLD}-1ubuntu1 deinstall ok config-files" in host.shown()


def test_a_version_that_no_repository_offers_is_refused_before_anything_changes(
    host: RealApt, snapshot: SnapshotAssertion
) -> None:
    before = host.shown()
    asked = REQUEST._replace(packages=parse("nvidia-dkms-open"), versions=parse("nvidia-firmware=595.58.03-1ubuntu1"))
    with pytest.raises(transaction.RefusedError) as caught:
        host.run_transaction(asked)
    assert host.shown() == before
    assert caught.value.details["problem"]["code"] == "transaction-refused"
    assert str(caught.value) == snapshot
