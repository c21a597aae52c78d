"""What the package manager answers and does beside a transaction, with the real dnf."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import port, transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_manager, dnf_program, dnf_state
from ansible_collections.gpuhost.stack.plugins.plugin_utils.actions import host_job

from tests.unit.module_utils.lock_holder import held
from tests.unit.module_utils.packages.dnf.conftest import NEW, NEWER, OLD, driver, repository, request, streams
from tests.unit.module_utils.real_dnf import RealDnf, make_repository, needs_dnf
from tests.unit.web_server import Files, serve

pytestmark = needs_dnf


# Locks ------------------------------------------------------------------------------------------------------------


def test_rpm_s_lock_is_waited_for_and_its_holder_named(host: RealDnf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnf_manager, "INTERVAL", 0.2)
    busy = r"dnf is busy: process \d+ \(.*python.*\) holds /var/lib/rpm/.rpm.lock"
    with held(host.root / "var/lib/rpm/.rpm.lock"), pytest.raises(dnf_manager.HeldError, match=busy):
        host.dnf(wait=1).wait_for_locks()
    host.dnf(wait=0).wait_for_locks()


def test_another_dnf_is_waited_for(host: RealDnf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """dnf's own locks are files with a process; those of killed processes are no locks."""
    monkeypatch.setattr(dnf_manager, "INTERVAL", 0.2)
    lock = host.root / "var/lib/dnf/rpmdb_lock.pid"
    lock.write_text("999999999")
    host.dnf(wait=0).wait_for_locks()
    with held(tmp_path / "anything") as other:
        lock.write_text(str(other.pid))
        (found,) = dnf_state.locks(str(host.root))
        assert (found.path, found.pid) == ("/var/lib/dnf/rpmdb_lock.pid", other.pid)
        assert "python" in str(found.command)
        manager = dnf_manager.Dnf(host, 1, "", str(host.root), str(tmp_path / "progress"))
        with pytest.raises(port.PackageError, match=f"RPMDB already locked by {other.pid}"):
            manager.install(port.Operation((Package("libnccl"),)))
        assert f"step:waiting, for at most 1 s: dnf is busy: process {other.pid}" in (tmp_path / "progress").read_text()
        assert host.ran.count("perform") > 2
    host.dnf().install(port.Operation((Package("libnccl"),)))


# Repositories -----------------------------------------------------------------------------------------------------


def test_what_is_offered_is_that_of_all_streams_newest_first(host: RealDnf) -> None:
    found = host.dnf().offered(
        ["nvidia-open", "libnccl", "@nvidia-driver", "absent", "libgcc.i686", "kernel-core-5.14.1"]
    )
    assert found == {
        "nvidia-open": [f"3:{version}-1.el9" for version in (NEW, NEWER, OLD)],
        "libnccl": ["2.30.4-1.el9"],
        "@nvidia-driver": ["580-open", "open-dkms"],
        "libgcc.i686": ["11.5.0-1.el9"],
        "kernel-core-5.14.1": ["5.14.1-1.el9"],
    }


def test_an_update_forgets_repositories_that_are_gone(host: RealDnf, tmp_path: Path) -> None:
    """As `apt-get update` removes the lists of sources that are gone; one that is off stays."""
    manager, sources, cache = host.dnf(), host.root / "etc/yum.repos.d", host.root / "var/cache/dnf"
    (sources / "off.repo").write_text((sources / "cuda.repo").read_text().replace("[cuda]", "[cuda-off]"))
    assert manager.update() == ""
    assert manager.offered(["vim-minimal"])  # writes what the solver reads
    (sources / "cuda.repo").unlink()
    (sources / "off.repo").write_text((sources / "off.repo").read_text() + "enabled=0\n")
    (cache / "somebody's").touch()
    before = {path.name for path in cache.iterdir()}
    assert manager.update() == ""
    gone = before - {path.name for path in cache.iterdir()}
    assert gone == {name for name in before if name.startswith("cuda") and not name.startswith("cuda-off")}
    assert len(gone) > 1


def test_an_update_brings_new_packages_whatever_other_repositories_do(
    host: RealDnf, rpms: Path, tmp_path: Path
) -> None:
    url = repository(rpms, tmp_path / "r", streams(OLD), without="libnccl")
    host.baseurl(url)
    (host.root / "etc/yum.repos.d/other.repo").write_text("[other]\nname=other\nbaseurl=file:///absent\ngpgcheck=0\n")
    manager = host.dnf()
    assert "absent" in manager.update()
    assert manager.warnings == [manager.update()]
    assert manager.offered(["libnccl"]) == {}
    (path,) = rpms.glob("libnccl-*")
    (tmp_path / "r" / path.name).hardlink_to(path)
    make_repository(tmp_path / "r", streams(OLD))
    assert manager.offered(["libnccl"]) == {}
    manager.update()
    assert manager.offered(["libnccl"]) == {"libnccl": ["2.30.4-1.el9"]}


def test_everything_is_downloaded_and_kept_before_the_first_change(host: RealDnf, rpms: Path, tmp_path: Path) -> None:
    repository(rpms, tmp_path / "r", streams(OLD, NEWER))
    (lost,) = (tmp_path / "r").glob(f"nvidia-persistenced-{OLD}-*")
    lost.rename(tmp_path / "lost")
    before = host.shown()
    with serve(functools.partial(Files, directory=str(tmp_path / "r"))) as number:
        host.baseurl(f"http://127.0.0.1:{number}")
        host.dnf().update()
        with pytest.raises(transaction.TransactionError, match=r"(?s)nvidia-persistenced.*No package was changed"):
            host.run_transaction(request(OLD))
        assert host.shown() == before
        (tmp_path / "lost").rename(lost)
        progress = tmp_path / "progress"
        progress.touch()
        manager = dnf_manager.Dnf(host, 0, str(host.state / "packages"), str(host.root), str(progress))
        package = Package("nvidia-open", f"3:{OLD}-1.el9")
        manager.bind("", [], [], manager.versions_to_bind([package]))
        manager.install(port.Operation((package,)))
    lines = [host_job.progress(line) for line in progress.read_text().splitlines()]
    assert lines == sorted(lines, key=lambda line: line.startswith("changing packages, "))
    assert [line.split(", ")[0] for line in lines].count("downloading packages") == len(driver(OLD))
    assert lines[-1].startswith("changing packages, 100 %: changing ")
    kept = {path.name for path in (host.state / "packages").iterdir()}
    assert {f"{name}-3%3a{OLD}-1.el9.noarch.rpm" for name in driver(OLD)} <= kept
    assert manager.is_kept(package)
    assert not manager.is_kept(Package("nvidia-open", f"{OLD}-1.el9"))


def test_kept_files_go_when_no_configuration_needs_them(with_driver: RealDnf) -> None:
    manager, folder = with_driver.dnf(), with_driver.state / "packages"
    assert manager.keep({"vim-minimal": "2:8.2-1.el9", "@nvidia-driver": "580-open"}) == {}
    assert manager.keep({"vim-minimal": "2:7.0-1.el9"}) == {"vim-minimal": "no repository offers it"}
    assert manager.lost({"vim-minimal": "2:7.0-1.el9", "libnccl": "2.30.4-1.el9"}) == {
        "vim-minimal": "no repository offers it"
    }
    manager.prune({("nvidia-open", f"3:{OLD}-1.el9")}, {"vim-minimal": "2:8.2-1.el9"})
    assert [path.name for path in folder.iterdir()] == [f"nvidia-open-3%3a{OLD}-1.el9.noarch.rpm"]


@pytest.mark.skipif(not shutil.which("gpg"), reason="gpg is not installed")
def test_packages_are_verified_with_the_key_that_the_repository_names(
    host: RealDnf, rpms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As NVIDIA's and EL's: the key is imported from where the source file says. That of another one does not help."""
    for name in ("another", "simulated"):
        keys = tmp_path / f"gpg-{name}"
        keys.mkdir(mode=0o700)
        monkeypatch.setenv("GNUPGHOME", str(keys))
        gpg = ["gpg", "--batch", "--quiet", "--pinentry-mode=loopback", "--passphrase="]
        subprocess.run(
            [*gpg, "--quick-generate-key", f"{name} <x@example.org>", "rsa2048", "sign", "never"], check=True
        )
        exported = subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout
        (host.root / f"{name}.asc").write_bytes(exported)
    (path,) = rpms.glob("libnccl-*")
    (tmp_path / "r").mkdir()
    signed = shutil.copy(path, tmp_path / "r")
    sign = ["rpmsign", "--define=_gpg_name simulated", f"--define=__gpg {shutil.which('gpg')}", "--addsign", signed]
    subprocess.run(sign, check=True, capture_output=True)
    subprocess.run(["gpgconf", "--kill", "all"], check=False)
    make_repository(tmp_path / "r")
    source = "[cuda]\nname=simulated\nbaseurl=file://%s\ngpgcheck=1\ngpgkey=file://%s\n"
    operation, before = port.Operation((Package("libnccl", "2.30.4-1.el9"),)), host.shown()
    for name in ("another", "simulated"):
        text = source % (tmp_path / "r", host.root / f"{name}.asc")
        (host.root / "etc/yum.repos.d/cuda.repo").write_text(text)
        host.dnf().update()
        if name == "another":
            with pytest.raises(port.PackageError, match="libnccl"):
                host.dnf().install(operation)
            assert [line for line in host.shown() if not line.startswith("gpg-pubkey")] == before
    host.dnf().install(operation)
    assert "libnccl 2.30.4-1.el9" in host.shown()


# Dependencies -----------------------------------------------------------------------------------------------------


def test_parts_of_a_driver_are_bound_to_its_version(host: RealDnf) -> None:
    found = host.dnf().versions_to_bind([Package("nvidia-open", f"3:{OLD}-1.el9"), Package("dkms")])
    assert found == {name: f"3:{OLD}-1.el9" for name in driver(OLD) if name != "nvidia-open"}


def test_unmet_dependencies_are_named_and_met(host: RealDnf, rpms: Path) -> None:
    (path,) = rpms.glob("unmet-*")
    assert host.do("rpm", "--install", "--nodeps", str(path)).returncode == 0
    manager = host.dnf()
    assert manager.unmet() == (["unmet-1-1.el9.noarch needs libnccl"], ["unmet"])
    assert [change.describe() for change in manager.simulate(port.Operation(fix=True))] == [
        "libnccl (new) 2.30.4-1.el9"
    ]
    manager.install(port.Operation(fix=True))
    assert manager.unmet() == ([], [])
    assert host.do("dnf", "check").stdout == ""


def test_a_package_without_files_is_a_metapackage(with_driver: RealDnf) -> None:
    assert with_driver.dnf().metapackages(["nvidia-open", "nvidia-driver-cuda"]) == ["nvidia-open"]


def test_edited_settings_stay_after_a_removal_unless_they_are_purged(with_driver: RealDnf) -> None:
    manager, path = with_driver.dnf(), with_driver.root / "etc/nvidia/simulated.conf"
    path.write_text("edited")
    gone = ("nvidia-driver-cuda", "nvidia-open")
    manager.install(port.Operation(remove=gone, purge=True))
    assert list(path.parent.glob("*")) == []
    assert not set(gone) & set(manager.packages())
    assert not [
        line for line in with_driver.shown() if line.startswith(("lock nvidia-driver-cuda-3", "lock nvidia-open"))
    ]


# What dnf cannot be asked -----------------------------------------------------------------------------------------


def test_another_python_and_dnf_5_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of these tests has no dnf; a host with DNF 5 has the program `dnf5`."""
    run = [sys.executable, "-I", "-c", Path(dnf_program.__file__).read_text()]
    asked = json.dumps({"do": "unmet", "root": str(tmp_path)})
    answer = subprocess.run(run, input=asked, capture_output=True, text=True, check=True).stdout
    assert json.loads(answer.partition(dnf_program.MARK)[2])["failed"].startswith(
        f"{sys.executable} has no Python API of dnf 4 ("
    )
    (tmp_path / "dnf5").write_text("#!/bin/sh\n")
    (tmp_path / "dnf5").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    answer = subprocess.run(run, input=asked, capture_output=True, text=True, check=True).stdout
    assert json.loads(answer.partition(dnf_program.MARK)[2])["failed"].endswith(
        "DNF 5, which this host has, is not supported"
    )


def test_locks_need_the_plugin(with_driver: RealDnf) -> None:
    (with_driver.root / "etc/dnf/plugins/versionlock.conf").unlink()
    with pytest.raises(port.PackageError, match="install python3-dnf-plugin-versionlock"):
        with_driver.dnf().mark("hold", ["vim-minimal"])


def test_a_lock_is_released_and_those_of_others_stay(with_driver: RealDnf) -> None:
    assert with_driver.do("dnf", "versionlock", "add", "vim-minimal").returncode == 0
    manager, before = with_driver.dnf(), with_driver.shown()
    manager.mark("unhold", ["nvidia-open"])
    assert [line for line in before if line not in with_driver.shown()] == [f"lock nvidia-open-3:{OLD}-1.el9.*"]
    assert manager.database.held().keys() == {*driver(OLD), "vim-minimal"} - {"nvidia-open"}
    manager.mark("hold", ["nvidia-open"])
    assert with_driver.shown() == before


KERNELS = {
    "kernel": True,
    "kernel-core": True,
    "kernel-core-5.14.0-611.5.1.el9_7.x86_64": True,
    "kernel-64k-modules-core": True,
    "kernel-modules-extra-5.14.0-611.el9.x86_64": True,
    "kernel-devel-5.14.0-611.el9.x86_64": False,
    "kernel-devel-matched": False,
    "kernel-headers": False,
    "kernel-tools-libs": False,
    "kernel-srpm-macros": False,
}


def test_kernels_and_what_follows_them_are_known_by_their_names() -> None:
    manager = dnf_manager.Dnf(lambda *_words, **_options: (1, "", ""), 0)
    assert {name: manager.is_kernel(name) for name in KERNELS} == KERNELS
    following = ("kernel-devel-matched", "kernel-64k-devel-matched", "kernel-devel", "kernel-headers")
    assert [name for name in (*KERNELS, *following) if manager.follows_kernels(name)] == [
        "kernel-devel-matched", "kernel-headers", *following,
    ]  # fmt: skip
    assert manager.is_of_release(Package("nvidia-driver", f"3:{OLD}-1.el9"), OLD)
    assert not manager.is_of_release(Package("nvidia-driver", f"3:{OLD}.1-1.el9"), OLD)
