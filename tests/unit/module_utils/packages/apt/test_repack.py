"""Replaced packages that no repository offers are packed again, or refused, with the real apt and dpkg."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import restore, transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands, dpkg_info
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.real_apt import RealApt, needs_apt

pytestmark = needs_apt
MANUAL = "/usr/share/doc/nvidia/README"
LIBRARY, PROGRAM, SETTINGS = "/usr/lib/libcuda.so.580", "/usr/bin/nvidia-modprobe", "/etc/nvidia/nvidia.conf"
REQUEST = transaction.PackageRequest([Package("nvidia", "2")], [], [], [], [], [], [])


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RealApt:
    """Return a host with version 1 of a package that somebody installed with dpkg, as with a downloaded .deb."""
    host = RealApt(tmp_path)
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(host.root / "etc/apt/preferences.d"))
    monkeypatch.setattr(apt_commands, "ARCHIVES", str(host.root / "var/cache/apt/archives"))
    old = host.build(
        "nvidia",
        {
            LIBRARY: "of 580\n",
            PROGRAM: "#!/bin/sh\n",
            SETTINGS: "a = 1\n",
            "/usr/share/nvidia/empty/.keep": "",
            MANUAL: "text\n",
        },
        conffiles=[SETTINGS],
        links={"/usr/lib/libcuda.so.1": "libcuda.so.580"},
        script="echo configured >> $DPKG_ROOT/log",
        depends="zlib1g (>= 1:1.2)",
        provides="nvidia-alternative",
    )
    host.install(host.build("zlib1g", {}, "1:1.3"))
    host.install(old, "--force-script-chrootless")
    (host.root / PROGRAM.lstrip("/")).chmod(0o4755)
    os.chown(host.root / LIBRARY.lstrip("/"), 12, 34)
    host.offer(host.build("nvidia", {LIBRARY: "of 595\n"}, "2"))
    return host


def tree(host: RealApt) -> dict[str, tuple[str, str]]:
    """Return owner, mode and content of everything below /usr and /etc/nvidia, by path."""
    found = {}
    for folder in ("usr", "etc/nvidia"):
        for path in sorted((host.root / folder).rglob("*")):
            state = path.lstat()
            content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
            found[str(path.relative_to(host.root))] = (f"{state.st_uid}:{state.st_gid} {state.st_mode:o}", content)
    return found


def fields(host: RealApt) -> str:
    return host.do("dpkg-query", "--status", "nvidia").stdout


def go_back(host: RealApt) -> None:
    restore.restore(host.apt(), store.journal(str(host.state)))


def test_a_package_that_no_repository_offers_comes_back_from_its_own_files(host: RealApt) -> None:
    before = tree(host), fields(host)
    host.run_transaction(REQUEST, check=True)
    assert host.run_transaction(REQUEST).not_kept == []
    assert "of 595" in str(tree(host))
    go_back(host)
    assert (tree(host), fields(host)) == before
    assert (host.root / "log").read_text() == "configured\nconfigured\n"


def test_settings_come_back_as_they_were_edited(host: RealApt) -> None:
    edited = host.root / SETTINGS.lstrip("/")
    edited.write_text("a = 2\n")
    host.run_transaction(REQUEST)
    host.do("dpkg", "--purge", "nvidia")
    assert not edited.exists()
    go_back(host)
    assert edited.read_text() == "a = 2\n"


def test_a_file_that_somebody_has_changed_comes_back_as_it_was(host: RealApt) -> None:
    """Such as the key of cuda-keyring, whose package nobody offers."""
    (host.root / LIBRARY.lstrip("/")).write_text("of nobody\n")
    before = tree(host), fields(host)
    host.run_transaction(REQUEST)
    go_back(host)
    assert (tree(host), fields(host)) == before


def test_a_diverted_file_is_packed_under_its_own_name(host: RealApt) -> None:
    other = host.root / "usr/lib/libcuda.so.580.distrib"
    (host.root / "var/lib/dpkg/diversions").write_text(f"{LIBRARY}\n{LIBRARY}.distrib\nglx-diversions\n")
    (host.root / LIBRARY.lstrip("/")).rename(other)
    (host.root / LIBRARY.lstrip("/")).write_text("of glx-diversions\n")
    host.run_transaction(REQUEST)
    assert other.read_text() == "of 595\n"
    go_back(host)
    assert other.read_text() == "of 580\n"
    assert (host.root / LIBRARY.lstrip("/")).read_text() == "of glx-diversions\n"


def test_of_a_library_beside_that_of_i386_each_is_packed(host: RealApt) -> None:
    """As with Steam: the same package for two architectures."""
    for architecture in (dpkg_info.native_architecture(), "i386"):
        path = f"/usr/lib/{architecture}/libcuda.so"
        deb = host.build(f"libcuda1-{architecture}", {path: architecture})
        tree = deb.parent / f"libcuda1-{architecture}_1"
        control = (tree / "DEBIAN/control").read_text().replace(f"libcuda1-{architecture}", "libcuda1")
        control = control.replace("Architecture: all", f"Architecture: {architecture}\nMulti-Arch: same")
        (tree / "DEBIAN/control").write_text(control)
        subprocess.run(["dpkg-deb", "-Znone", "--build", tree, deb], check=True, capture_output=True)
        host.install(deb, "--force-architecture")
    kept = host.state / "packages"
    assert host.apt().keep({"libcuda1": "1", "libcuda1:i386": "1"}) == {}
    assert sorted(path.name for path in kept.glob("*.deb")) == [
        f"libcuda1_1_{architecture}.deb" for architecture in sorted([dpkg_info.native_architecture(), "i386"])
    ]


def test_a_file_on_another_file_system_is_copied(host: RealApt, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_paths: object, **_options: object) -> None:
        raise OSError("Invalid cross-device link")

    before = tree(host), fields(host)
    monkeypatch.setattr(os, "link", refuse)
    host.run_transaction(REQUEST)
    go_back(host)
    assert (tree(host), fields(host)) == before


@pytest.mark.parametrize("check", [True, False], ids=["simulated", "in the run"])
def test_a_package_without_one_of_its_files_that_no_repository_offers_is_refused(
    host: RealApt, check: bool, snapshot: SnapshotAssertion
) -> None:
    (host.root / LIBRARY.lstrip("/")).unlink()
    before = tree(host), fields(host)
    with pytest.raises(transaction.RefusedError) as refused:
        host.run_transaction(REQUEST, check)
    assert refused.value.details["problem"]["code"] == "cannot-go-back"
    assert str(refused.value) == snapshot
    assert (tree(host), fields(host)) == before
    accepted = host.run_transaction(REQUEST._replace(accept_no_return=["nvidia"]), check)
    assert accepted.not_kept == ["nvidia 1"]
    assert ("of 595" in str(tree(host))) is not check


def test_documentation_that_an_image_leaves_out_is_not_missed(host: RealApt) -> None:
    (host.root / MANUAL.lstrip("/")).unlink()
    before = tree(host)
    host.run_transaction(REQUEST)
    go_back(host)
    assert tree(host) == before


def test_a_damaged_package_that_is_still_offered_is_downloaded(host: RealApt) -> None:
    host.offer(host.root.parent / "nvidia_1_all.deb")
    (host.root / LIBRARY.lstrip("/")).unlink()
    host.run_transaction(REQUEST, check=True)
    assert host.run_transaction(REQUEST).not_kept == []


def test_without_a_rollback_nothing_is_kept_and_nothing_refused(host: RealApt) -> None:
    (host.root / LIBRARY.lstrip("/")).unlink()
    done = transaction.Transaction(REQUEST, host.apt(), str(host.state), undo=False).run()
    assert done.not_kept == []


def test_what_only_its_own_files_can_bring_back_outlives_a_verified_change(host: RealApt) -> None:
    kept = host.state / "packages"
    host.run_transaction(REQUEST)
    assert [path.name for path in kept.glob("*.deb")] == ["nvidia_1_all.deb"]
    host.apt().prune({("nvidia", "2")}, {"nvidia": "1"})
    assert [path.name for path in kept.glob("*.deb")] == ["nvidia_1_all.deb"]
    host.offer(host.root.parent / "nvidia_1_all.deb")
    host.apt().prune({("nvidia", "2")}, {"nvidia": "1"})
    assert list(kept.glob("*.deb")) == []


def test_the_package_is_one_that_dpkg_reads(host: RealApt) -> None:
    host.run_transaction(REQUEST)
    (deb,) = (host.state / "packages").glob("*.deb")
    shown = subprocess.run(["dpkg-deb", "--info", deb], capture_output=True, text=True, check=True).stdout
    assert {"Depends: zlib1g (>= 1:1.2)", "Provides: nvidia-alternative"} <= set(map(str.strip, shown.splitlines()))
    assert "Status:" not in shown
