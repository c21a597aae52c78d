"""A package transaction with the real dnf: what is installed, locked and recorded afterwards, and undone on failure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import port, restore, transaction

from tests.unit.module_utils import real_dnf
from tests.unit.module_utils.packages.dnf.conftest import NEW, NEWER, OLD, PLUGIN, driver, repository, request, streams
from tests.unit.module_utils.real_dnf import SETTINGS, RealDnf, needs_dnf
from tests.unit.module_utils.simulated_packages import parse

pytestmark = needs_dnf
BROKEN = "broken-script=1-1.el9"


def installed(host: RealDnf) -> set[str]:
    """Return the versions of what the host has of a driver."""
    return {line.split()[1] for line in host.shown() if "nvidia" in line.split()[0]}


def locks(host: RealDnf) -> list[str]:
    """Return what dnf's own command lists."""
    return sorted(host.do("dnf", "-q", "versionlock", "list").stdout.splitlines())


def stream(host: RealDnf) -> str:
    """Return the stream that dnf's own command lists as enabled."""
    lines = host.do("dnf", "-q", "module", "list", "--enabled").stdout.splitlines()
    return " ".join(line.split()[1] for line in lines if line.startswith("nvidia-driver"))


def module_files(host: RealDnf) -> dict[str, str]:
    """Return what dnf has recorded of modules; it leaves a record without a stream of one that was reset."""
    return {path.name: path.read_text() for path in (host.root / "etc/dnf/modules.d").glob("*")}


@pytest.fixture
def request_fixture(request: pytest.FixtureRequest) -> Callable[[str], RealDnf]:
    return request.getfixturevalue


def refused(host: RealDnf, asked: transaction.PackageRequest, check: bool = False) -> transaction.TransactionError:
    """Run a transaction that must fail before it changes anything, and return why."""
    before, journal = host.shown(), store.journal(str(host.state))
    with pytest.raises(transaction.TransactionError) as caught:
        host.run_transaction(asked, check)
    assert host.shown() == before
    assert store.journal(str(host.state)) == journal
    return caught.value


def test_a_driver_is_installed_in_its_version_with_its_parts_and_locked(host: RealDnf) -> None:
    checked = host.run_transaction(request(OLD), check=True)
    assert installed(host) == set()
    result = host.run_transaction(request(OLD))
    assert f"nvidia-open (new) 3:{OLD}-1.el9" in result.changes
    assert {change.split()[0] for change in result.changes} == {*driver(OLD), "@nvidia-driver"}
    assert checked.changes == result.changes
    assert installed(host) == {f"3:{OLD}-1.el9"}
    assert locks(host) == sorted(f"{name}-3:{OLD}-1.el9.*" for name in driver(OLD))
    assert stream(host) == "580-open"
    history = host.do("dnf", "history").stdout
    assert next(line.split("|")[1].strip() for line in history.splitlines()[2:]) == "gpuhost"
    again = host.run_transaction(request(OLD))
    assert (again.changes, again.before.remaining) == ([], [])
    assert host.do("dnf", "history").stdout == history


def test_the_headers_are_of_the_kernel_that_is_there_and_the_plugin_comes_along(host: RealDnf) -> None:
    """DKMS needs kernel-devel-matched, of which the newest would bring its kernel."""
    done = host.do("dnf", "remove", "--noautoremove", "dkms", "kernel-devel-matched", "kernel-devel", PLUGIN)
    assert done.returncode == 0, done.stderr
    result = host.run_transaction(request(OLD))
    brought = {change.split()[0] for change in result.changes} - {*driver(OLD), "@nvidia-driver"}
    assert brought == {PLUGIN, "dkms", "kernel-devel-matched", "kernel-devel-5.14.0-1.el9.x86_64"}
    assert host.rpm("-q", "kernel-core") == ["kernel-core-5.14.0-1.el9.x86_64"]


def test_a_patch_of_the_branch_keeps_the_stream_and_a_later_branch_switches_it(with_driver: RealDnf) -> None:
    """With the plugin versionlock, which would keep what is locked."""
    host = with_driver
    (host.root / "etc/dnf/dnf.conf").write_text("[main]\ngpgcheck=0\n")
    result = host.run_transaction(request(NEWER))
    assert (installed(host), stream(host)) == ({f"3:{NEWER}-1.el9"}, "580-open")
    assert not [change for change in result.changes if change.startswith("@")]
    result = host.run_transaction(request(NEW))
    assert (installed(host), stream(host)) == ({f"3:{NEW}-1.el9"}, "open-dkms")
    assert "@nvidia-driver 580-open -> open-dkms" in result.changes
    # Back to the branch: the stream of all branches has it, and stays.
    host.run_transaction(request(NEWER))
    assert (installed(host), stream(host)) == ({f"3:{NEWER}-1.el9"}, "open-dkms")
    assert locks(host) == sorted(f"{name}-3:{NEWER}-1.el9.*" for name in driver(NEWER))


def test_without_streams_the_version_is_exact_as_well(host_10: RealDnf) -> None:
    """As on EL 10, whose repository has no modules."""
    result = host_10.run_transaction(request(NEWER))
    assert {change.split()[0] for change in result.changes} == {*driver(OLD)}
    assert (installed(host_10), stream(host_10)) == ({f"3:{NEWER}-1.el9"}, "")
    assert locks(host_10) == sorted(f"{name}-3:{NEWER}-1.el9.*" for name in driver(NEWER))


@pytest.mark.parametrize("there", ["host", "with_driver"])
def test_a_failed_transaction_is_undone_with_its_stream(there: str, request_fixture: Callable[[str], RealDnf]) -> None:
    """`dnf history undo` fails after a stream was switched: "Cannot find rpm nevra"."""
    host = request_fixture(there)
    before, modules = host.shown(), module_files(host)
    with pytest.raises(transaction.TransactionError) as caught:
        host.run_transaction(request(NEW, BROKEN))
    assert "lua script failed" in str(caught.value)
    assert "scriptlet in rpm package broken-script" in str(caught.value)
    assert "It was undone" in str(caught.value)
    assert (host.shown(), module_files(host)) == (before, modules)


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "of others"])
def test_a_lock_that_a_dead_run_left_is_moved_by_the_next(with_driver: RealDnf, is_ours: bool) -> None:
    """A power failure between packages and locks leaves those of the version before: dnf upgrade would go back."""
    path, before = with_driver.root / "etc/dnf/plugins/versionlock.list", locks(with_driver)
    path.write_text(path.read_text().replace(OLD, NEW))
    stale = locks(with_driver)
    assert stale != before
    if not is_ours:
        (with_driver.state / "journal.json").unlink()
    with_driver.run_transaction(request(OLD))
    assert locks(with_driver) == (before if is_ours else stale)


def test_files_that_rpm_leaves_of_a_package_that_it_cannot_unpack_are_removed(with_driver: RealDnf) -> None:
    """A directory of somebody is in the place of a file of the package."""
    folder = with_driver.root / "usr/lib/simulated"
    (folder / "plain").mkdir(parents=True)
    (folder / "plain/theirs").touch()
    (folder / "own").touch()
    before = with_driver.shown()
    with pytest.raises(transaction.TransactionError, match=r"(?s)Error unpacking.*No package was changed"):
        with_driver.run_transaction(request(OLD, "with-files=1-1.el9"))
    assert with_driver.shown() == before
    assert {path.name for path in folder.iterdir()} == {"own", "plain"}
    assert [path.name for path in (folder / "plain").iterdir()] == ["theirs"]
    assert not (with_driver.root / "usr/share/doc/simulated").exists()


def test_a_module_that_dkms_does_not_build_undoes_the_driver(with_driver: RealDnf) -> None:
    """The script of the package succeeds."""
    host, before = with_driver, with_driver.shown()
    log = host.root / f"var/lib/dkms/nvidia/{NEW}/build/make.log"
    log.parent.mkdir(parents=True)
    with pytest.raises(transaction.TransactionError) as caught:
        host.run_transaction(request(NEW))
    assert "Select a driver branch that supports the kernel" in str(caught.value)
    assert caught.value.details["make_logs"] == {str(log): "error: simulated by the tests"}
    assert "It was undone" in str(caught.value)
    assert host.shown() == before


def test_a_module_that_dkms_does_not_build_fails_the_rollback_to_its_driver(with_driver: RealDnf) -> None:
    """It is that of a driver again, not of others: else the host would count as restored, without GPUs."""
    manager = with_driver.dnf()
    old = restore.states(sorted(store.journal(str(with_driver.state))), manager.packages(), manager.automatic())
    with_driver.run_transaction(request(NEW))
    log = with_driver.root / f"var/lib/dkms/nvidia/{OLD}/build/make.log"
    log.parent.mkdir(parents=True)
    with pytest.raises(port.PackageError, match="A kernel module did not build") as caught:
        restore.restore(with_driver.dnf(), old)
    assert caught.value.make_logs == {str(log): "error: simulated by the tests"}


def test_what_the_host_had_before_is_restored_from_kept_packages(host: RealDnf, rpms: Path, tmp_path: Path) -> None:
    """The baseline has no driver. The repository has lost the first version since."""
    bare = host.shown()
    assert host.run_transaction(request(OLD)).changes
    at_old = host.shown()
    manager = host.dnf()
    journal = store.journal(str(host.state))
    names = sorted(journal)
    old = restore.states(names, manager.packages(), manager.automatic())
    host.run_transaction(request(NEW))
    host.baseurl(repository(rpms, tmp_path / "lost", streams(NEWER, NEW), without=OLD))
    manager.update()
    assert OLD not in str(manager.offered(["nvidia-open"]))
    restore.restore(manager, old)
    assert host.shown() == at_old
    assert stream(host) == "580-open"
    restore.restore(manager, journal)
    assert host.shown() == bare


def test_a_package_that_no_repository_offers_is_replaced_only_where_that_is_accepted(
    host: RealDnf, rpms: Path, tmp_path: Path
) -> None:
    """rpm cannot pack an installed package again, as dpkg's files can be."""
    assert host.do("dnf", "module", "enable", "nvidia-driver:580-open").returncode == 0
    assert host.do("dnf", "install", f"nvidia-open-3:{OLD}", f"nvidia-driver-cuda-3:{OLD}").returncode == 0
    host.baseurl(repository(rpms, tmp_path / "lost", streams(NEWER, NEW), without=OLD))
    host.dnf().update()
    for check in (True, False):
        error = refused(host, request(NEWER), check)
        assert error.details["problem"]["code"] == "cannot-go-back"
        assert f"nvidia-open 3:{OLD}-1.el9: no repository offers it" in str(error)
    lost = sorted(line.rpartition(" lock")[2] for line in host.shown() if OLD in line)
    result = host.run_transaction(request(NEWER)._replace(accept_no_return=list(driver(OLD))))
    assert sorted(result.not_kept) == lost


@pytest.mark.parametrize(
    "how", ["a lock by dnf", "a pattern", "an exclude", "an excluded version", "what is not there"]
)
def test_what_others_lock_or_exclude_is_not_changed(how: str, request_fixture: Callable[[str], RealDnf]) -> None:
    """As on a host that was set up by NVIDIA's guide, whose administrator locks the driver."""
    host = request_fixture("host" if how == "what is not there" else "with_driver")
    store.remove(str(host.state), store.JOURNAL)
    assert host.do("dnf", "versionlock", "clear").returncode == 0
    lock = f"nvidia-driver-cuda-3:{OLD}-1.el9.*"
    if how == "an exclude":
        (host.root / "etc/dnf/dnf.conf").write_text(SETTINGS + "exclude=nvidia-driver-cuda*\n  kernel*\n")
    elif how == "a pattern":
        assert host.do("dnf", "versionlock", "add", "--raw", "nvidia-driver-*").returncode == 0
    elif how == "an excluded version":
        assert host.do("dnf", "versionlock", "exclude", f"nvidia-driver-cuda-3:{NEWER}-1.el9").returncode == 0
    else:
        assert host.do("dnf", "versionlock", "add", "--raw", lock).returncode == 0
    for check in (True, False):
        error = refused(host, request(NEWER), check)
        if how.startswith("an exclude"):
            assert f"nvidia-driver-cuda >= 3:{NEWER}" in str(error)
            assert "filtered out by exclude filtering" in str(error)
            excluded = "nvidia-driver-cuda*, kernel*" if how == "an exclude" else lock.replace(OLD, NEWER)
            assert f"This host excludes {excluded} (/etc/dnf/dnf.conf, versionlock)" in str(error)
            continue
        assert error.details["problem"]["code"] == "package-held"
        assert any(change.startswith("nvidia-driver-cuda ") for change in error.details["unplanned"])
        assert "sudo dnf versionlock delete nvidia-driver-cuda" in str(error)


def test_an_excluded_package_is_named(host: RealDnf) -> None:
    (host.root / "etc/dnf/dnf.conf").write_text(SETTINGS + "excludepkgs=*nvidia*\n")
    assert "Not offered: nvidia-open. This host excludes *nvidia* (" in str(refused(host, request(NEWER)))


def test_what_a_repository_does_not_offer_is_refused(host: RealDnf) -> None:
    error = refused(host, request("600.1"))
    assert f"nvidia-open 3:600.1-1.el9: the configured repositories offer 3:{NEW}-1.el9" in str(error)


def test_a_conflict_with_packages_of_others_is_refused_and_theirs_stay(host: RealDnf) -> None:
    """As with RPM Fusion's driver, which nvidia-driver.spec conflicts with."""
    assert host.do("dnf", "install", "xorg-x11-drv-nvidia").returncode == 0
    error = refused(host, request(OLD))
    assert error.details["unplanned"] == ["xorg-x11-drv-nvidia 3:570.133-1.el9 (removed)"]
    host.run_transaction(request(OLD)._replace(replaces=["xorg-x11-drv-nvidia.*"]))
    assert not [line for line in host.shown() if line.startswith("xorg")]


def test_an_unsigned_package_changes_nothing(host: RealDnf) -> None:
    repository = host.root / "etc/yum.repos.d/cuda.repo"
    repository.write_text(repository.read_text().replace("gpgcheck=0", "gpgcheck=1"))
    before = host.shown()
    with pytest.raises(transaction.TransactionError, match=r"(?s)not signed.*No package was changed"):
        host.run_transaction(request(OLD))
    assert host.shown() == before


def test_what_was_installed_as_a_dependency_is_known_and_changed(with_driver: RealDnf) -> None:
    host = with_driver
    assert {"nvidia-persistenced", "kernel-core-5.14.0-1.el9.x86_64"} <= host.dnf().automatic()
    assert not {"nvidia-open", "vim-minimal"} & host.dnf().automatic()
    host.dnf().mark("auto", ["vim-minimal"])
    host.dnf().mark("manual", ["nvidia-persistenced"])
    assert "vim-minimal" in host.dnf().automatic()
    assert "nvidia-persistenced" not in host.dnf().automatic()


def test_a_helper_may_be_a_name_that_another_package_provides(host: RealDnf, tmp_path: Path) -> None:
    """As Red Hat's kmod-nvidia-open is, of a package for each kernel: precompiled-kmod's DISTROS.md, mizdebsk/radii."""
    specs = driver(NEW)
    del specs["nvidia-open"], specs["kmod-nvidia-open-dkms"]
    provides = [f"nvidia-kmod = 3:{NEW}", f"kmod-nvidia-open = {NEW}"]
    specs[f"kmod-nvidia-open-{NEW}-5.14.0-1"] = {"version": NEW, "provides": provides}
    host.baseurl(repository(real_dnf.build(tmp_path, "3.el10_1", specs), tmp_path / "r"))
    wanted = request(NEW)._replace(packages=parse("nvidia-driver-cuda"), helpers=parse("kmod-nvidia-open"))
    host.run_transaction(wanted)
    assert f"kmod-nvidia-open-{NEW}-5.14.0-1 {NEW}-3.el10_1" in host.shown()
    assert host.run_transaction(wanted).changes == []
