"""rpm's database, against what rpm prints of the same packages, and after a transaction that was killed."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_state, rpm_database

from tests.unit.module_utils.packages.dnf.conftest import NEW, NEWER, OLD, PARTS, request
from tests.unit.module_utils.real_dnf import RealDnf, needs_dnf

pytestmark = needs_dnf
NATIVE = {"libgcc": "libgcc.x86_64"}  # where rpm means both
VERSION = "%{NAME}|%|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\\n"


@pytest.fixture
def full(host: RealDnf) -> RealDnf:
    """Return a host with a driver, a library of a foreign architecture, and two kernels."""
    assert host.do("dnf", "module", "enable", "nvidia-driver:580-open").returncode == 0
    several = ("kernel-core-5.14.0", "kernel-core-5.14.1", "libgcc.i686", "libgcc.x86_64")
    done = host.do("dnf", "install", f"nvidia-open-3:{OLD}", "with-files", *several)
    assert done.returncode == 0, done.stderr
    return host


def test_packages_and_versions_are_those_of_rpm(full: RealDnf) -> None:
    found = full.database.read()
    printed = [line.split("|") for line in full.rpm("-qa", f"--queryformat={VERSION}")]
    assert sorted((full.database.names()[row], package.version) for row, package in found.items()) == sorted(
        map(tuple, printed)
    )
    assert len(found) > 10
    assert {package.status for package in found.values()} == {"installed"}
    kernels = ("kernel-core-5.14.0-1.el9.x86_64", "kernel-core-5.14.1-1.el9.x86_64")
    assert {*kernels, "libgcc", "libgcc.i686"} < set(found)
    assert {*kernels, "libgcc.i686"} < set(full.rpm("-qa", "--queryformat=%{NAME}.%{ARCH}\\n%{NVRA}\\n"))
    assert found["libgcc.i686"].version == "11.5.0-1.el9"


def test_files_configuration_and_owners_are_those_of_rpm(full: RealDnf) -> None:
    database = full.database
    for name in database.read():
        printed = {
            option: [line for line in full.rpm(option, NATIVE.get(name, name)) if line[0] == "/"]
            for option in ("-ql", "-qc")
        }
        assert printed == {"-ql": database.files(name), "-qc": database.settings(name)}
    lists = dict(database.file_lists(["/nvidia-smi"]))
    assert lists == {"nvidia-driver-cuda": "/etc/nvidia/simulated.conf\n/usr/bin/nvidia-smi\n"}
    assert database.has_file_lists()
    paths = ["/usr/bin/nvidia-smi", "/lib/simulated/file", "/absent"]
    assert database.owners(paths) == {"/usr/bin/nvidia-smi": "nvidia-driver-cuda", "/lib/simulated/file": "with-files"}
    assert full.rpm("-qf", "--queryformat=%{NAME}\\n", "/usr/bin/nvidia-smi") == ["nvidia-driver-cuda"]
    assert database.owners(paths, within="files") == {"/lib/simulated/file": "with-files"}


def test_damage_is_what_rpm_verifies(full: RealDnf) -> None:
    assert not [name for name in full.database.read() if full.database.damage(name)]
    root = full.root
    (root / "usr/bin/nvidia-smi").write_text("another")
    (root / "etc/nvidia/simulated.conf").write_text("edited by an administrator")
    (root / "usr/lib/simulated/link").unlink()
    (root / "usr/lib/simulated/link").symlink_to("elsewhere")
    (root / "usr/lib/simulated/file").unlink()
    (root / "usr/lib/simulated/plain").chmod(0o600)
    printed = full.rpm(
        "-V",
        "--nodeps",
        "--nouser",
        "--nogroup",
        "--nomtime",
        "--nosize",
        "--nomode",
        "with-files",
        "nvidia-driver-cuda",
    )
    wrong = {line.split()[-1]: line.split()[0] for line in printed if " c " not in line}
    assert wrong == {
        "/usr/bin/nvidia-smi": "..5......",
        "/usr/lib/simulated/link": "....L....",
        "/usr/lib/simulated/file": "missing",
    }
    words = {"missing": "is missing"}
    found = {**full.database.damage("with-files"), **full.database.damage("nvidia-driver-cuda")}
    assert found == {path: words.get(how, "has another content") for path, how in wrong.items()}


def test_what_rpm_did_not_install_is_no_damage(host: RealDnf) -> None:
    assert host.do("dnf", "install", "--nodocs", "with-files").returncode == 0
    assert not (host.root / "usr/share/doc/simulated").exists()
    assert host.database.damage("with-files") == {}


def test_dependencies_are_packages_that_provide_them(full: RealDnf) -> None:
    found = full.database.read()
    assert found["nvidia-open"].depends == ("kmod-nvidia-open-dkms", "nvidia-driver-cuda")
    assert found["nvidia-driver-cuda"].depends == tuple(sorted(PARTS))
    assert found["with-files"].depends == ("kmod-nvidia-open-dkms", "vim-minimal")  # of a rich dependency
    assert full.database.read(["nvidia-o*", "dkms"]).keys() == {"nvidia-open", "dkms"}


def test_a_package_that_is_installed_while_the_tables_are_read_is_left_out(full: RealDnf) -> None:
    """The tables are read one after the other: here the second one has a package that the first one has not yet."""
    before = full.database.read()
    with sqlite3.connect(full.root / "var/lib/rpm/rpmdb.sqlite") as connection:
        connection.execute("DELETE FROM Packages WHERE hnum = (SELECT hnum FROM Providename WHERE key = 'with-files')")
    connection.close()
    del before["with-files"]
    assert full.database.read() == before


def test_what_is_locked_is_held_whether_it_is_there_or_not(full: RealDnf) -> None:
    locks = ["vim-minimal", "kernel-core-5.14.0", "libnccl"]
    assert full.do("dnf", "versionlock", "add", *locks).returncode == 0
    found = full.database.held()
    kernels = ("kernel-core-5.14.0-1.el9.x86_64", "kernel-core-5.14.1-1.el9.x86_64")
    assert {name: package.status for name, package in found.items()} == {
        **dict.fromkeys((*kernels, "vim-minimal"), "installed"),
        "libnccl": "not-installed",
    }


@pytest.mark.parametrize(
    ("line", "is_stale"),
    [
        (f"nvidia-driver-cuda-3:{NEWER}-1.el9.*", False),
        (f"nvidia-driver-cuda-3:{NEWER}-1.el9.x86_64", False),
        (f"nvidia-driver-cuda-3:{NEWER}-1.el9", False),
        (f"nvidia-driver-cuda-3:{NEW}-1.el9.*", True),
    ],
)
def test_a_lock_on_a_version_that_is_not_installed_is_stale(full: RealDnf, line: str, is_stale: bool) -> None:
    (full.root / "etc/dnf/plugins/versionlock.list").write_text(f"{line}\n")
    found = full.database.read(["nvidia-driver-cuda"])["nvidia-driver-cuda"]
    assert (found.held, found.lock_is_stale) == (True, is_stale)


def test_a_stream_is_a_package_only_where_it_is_asked_for(full: RealDnf) -> None:
    assert not [name for name in full.database.read() if name.startswith("@")]
    assert {name: p.version for name, p in full.database.read(["@*"]).items()} == {"@nvidia-driver": "580-open"}


def test_a_database_that_is_missing_or_damaged_is_said(full: RealDnf, tmp_path: Path) -> None:
    assert full.database.unreadable() is None
    assert rpm_database.RpmDatabase(str(tmp_path / "empty")).unreadable() == "/var/lib/rpm/rpmdb.sqlite is missing"
    path = full.root / "var/lib/rpm/rpmdb.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE Packages SET blob = substr(blob, 1, 40) WHERE hnum = 1")
    assert "the header of a package is cut" in str(full.database.unreadable())
    path.write_bytes(path.read_bytes()[:8192])
    for name in ("rpmdb.sqlite-wal", "rpmdb.sqlite-shm"):
        (path.parent / name).unlink(missing_ok=True)
    assert "cannot be read" in str(full.database.unreadable())


def test_reading_changes_no_file(full: RealDnf) -> None:
    """A probe changes nothing, whether SQLite's log is there (rpm leaves it) or not."""
    directory = full.root / "var/lib/rpm"

    def state() -> dict[str, tuple[int, int]]:
        return {path.name: (path.stat().st_mtime_ns, path.stat().st_size) for path in directory.iterdir()}

    before = state()
    assert full.database.read()
    assert {**state(), "rpmdb.sqlite-shm": 0} == {**before, "rpmdb.sqlite-shm": 0}
    with sqlite3.connect(directory / "rpmdb.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = state()
    assert "rpmdb.sqlite-wal" not in before
    assert full.database.read()
    assert state() == before


# After a transaction that was killed ------------------------------------------------------------------------------


def killed(host: RealDnf, version: str) -> None:
    """Install a driver; the process ends while rpm runs the script of nvidia-driver-cuda."""
    (host.root / "killed").touch()
    with pytest.raises(transaction.TransactionError, match="ended with status -9"):
        host.run_transaction(request(version), undo=False)
    (host.root / "killed").unlink()


def states(host: RealDnf) -> dict[str, str]:
    return {name: package.status for name, package in host.database.unfinished().items()}


def test_a_killed_installation_is_found_and_finished(host: RealDnf) -> None:
    killed(host, OLD)
    found = states(host)
    assert found["nvidia-driver-cuda"] == "half-configured"
    assert "vim-minimal" not in found
    state = dnf_state.read(str(host.root), store.journal(str(host.state)))
    assert state is not None
    assert state.interrupted
    assert {(package.name, package.of_others) for package in state.broken} == {(name, False) for name in found}
    assert host.run_transaction(request(OLD)).changes
    assert states(host) == {}
    assert host.do("dnf", "check").stdout == ""
    assert len([line for line in host.shown() if line.startswith("lock ")]) == 6


def test_a_killed_upgrade_leaves_both_versions_and_is_finished(with_driver: RealDnf) -> None:
    host = with_driver
    killed(host, NEW)
    assert len(host.rpm("-q", "nvidia-driver-cuda")) == 2
    found = host.database.read()["nvidia-driver-cuda"]
    assert (found.version, found.status, found.unpack_again) == (f"3:{NEW}-1.el9", "half-installed", True)
    host.run_transaction(request(NEW))
    assert states(host) == {}
    assert {line.split()[1] for line in host.shown() if "nvidia" in line.split()[0]} == {f"3:{NEW}-1.el9"}
    assert {line.rpartition("-3:")[2] for line in host.shown() if line.startswith("lock ")} == {f"{NEW}-1.el9.*"}
    assert host.do("dnf", "check").stdout == ""


def test_a_killed_upgrade_is_undone(with_driver: RealDnf) -> None:
    host = with_driver
    before = host.shown()
    (host.root / "killed").touch()
    host.on_kill = (host.root / "killed").unlink
    with pytest.raises(transaction.TransactionError, match="It was undone"):
        host.run_transaction(request(NEW))
    assert host.shown() == before
    assert states(host) == {}


def test_what_an_interrupted_transaction_of_others_left_is_refused(host: RealDnf) -> None:
    (host.root / "killed").touch()
    assert host.do("dnf", "module", "enable", "nvidia-driver:580-open").returncode == 0
    assert host.do("dnf", "install", f"nvidia-driver-cuda-3:{OLD}").returncode == -9
    os.unlink(host.root / "killed")
    before = host.shown()
    with pytest.raises(transaction.RefusedError) as caught:
        host.run_transaction(request(OLD))
    assert caught.value.details["problem"]["code"] == "packages-broken"
    assert "nvidia-driver-cuda is half-configured" in str(caught.value)
    assert "sudo dnf reinstall" in str(caught.value)
    assert host.shown() == before
    # That is what its remedy says; then nothing of it is left.
    names = sorted(states(host))
    assert host.do("dnf", "reinstall", *names).returncode == 0
    assert states(host) == {}
