"""What the last complete run left: each kind of managed thing is changed in turn, and reported."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put, put_grub_menu
from tests.unit.module_utils.state.applied_host import (
    CHANGES,
    ENVIRONMENT,
    KERNELS,
    NEXT,
    SERVICE,
    WATCH,
    Systemd,
    build,
    differences,
    replace,
)

STATES = Path(__file__).resolve().parents[3] / "fixtures/state/4f3b739"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build(tmp_path)


@pytest.fixture
def systemd() -> Systemd:
    return Systemd()


@pytest.fixture
def changes(root: Path, systemd: Systemd) -> Callable[[], list[str]]:
    """Record the host as it is; return a function that reports what differs from then on."""
    parts = {"all": {"fingerprint": "f", "watch": WATCH}}
    assert applied.record(str(root / "var/lib/gpuhost"), parts, str(root), systemd)

    def read() -> list[str]:
        found = differences("/var/lib/gpuhost", str(root), systemd)
        assert found["all"]["fingerprint"] == "f"
        return list(found["all"]["changed"])

    return read


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_reported_alone(name: str, root: Path, changes: Callable[[], list[str]]) -> None:
    assert changes() == []
    change, words = CHANGES[name]
    change(root)
    found = changes()
    assert len(found) == 1, found
    assert words in found[0]


@pytest.mark.parametrize("state", ["activating", "reloading"])
def test_a_service_that_starts_or_reads_its_settings_again_is_active(
    state: str, changes: Callable[[], list[str]], systemd: Systemd
) -> None:
    systemd.text = SERVICE.replace("ActiveState=active", f"ActiveState={state}")
    assert changes() == []


def test_the_modules_of_all_kernels_may_be_gone(root: Path, systemd: Systemd) -> None:
    """As after `dkms remove --all`."""

    def remove(host: Path) -> None:
        for kernel in KERNELS:
            shutil.rmtree(host / f"lib/modules/{kernel}/updates")

    repairs_after(remove, root, systemd)
    changed = differences("/var/lib/gpuhost", str(root), systemd)["all"]["changed"]
    assert [kernel for kernel in KERNELS for message in changed if f"{kernel} was" in message] == list(KERNELS)
    assert all(", is modules=none" in message for message in changed), changed


def test_modules_that_a_rollback_has_not_built_are_missing(root: Path, systemd: Systemd) -> None:
    directory, first = str(root / "var/lib/gpuhost"), next(iter(KERNELS))
    repairs_after(lambda host: shutil.rmtree(host / f"lib/modules/{first}/updates"), root, systemd)
    applied.reinstate(directory, applied.restored_parts(applied.snapshot(directory)), str(root), systemd)
    (damaged,) = differences("/var/lib/gpuhost", str(root), systemd)["all"]["damage"].values()
    assert first in str(damaged)


def test_modules_are_those_of_kernels_of_the_host(root: Path, snapshot: SnapshotAssertion) -> None:
    """The kernel that runs in a container, or while an image is built, is another computer's."""
    running = os.uname().release
    shutil.rmtree(root / f"lib/modules/{running}")
    (root / f"boot/vmlinuz-{running}").unlink()
    assert list(kinds.read(str(root), {"modules": True})["modules"]) == snapshot


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (SERVICE.replace("=enabled", "=disabled"), 0, "enabled=disabled"),
        (SERVICE.replace("=active", "=inactive"), 0, "active=inactive"),
        ("Failed to connect to bus", 1, "unknown=Failed"),
    ],
)
def test_a_changed_service_is_reported(
    text: str, code: int, words: str, changes: Callable[[], list[str]], systemd: Systemd
) -> None:
    assert changes() == []
    systemd.text, systemd.code = text, code
    found = changes()
    assert len(found) == (1 if code == 0 else 2)  # without systemd, nothing is known of any service
    assert words in found[-1]


def test_a_part_that_a_run_began_to_change_is_applied_again_and_keeps_its_record(root: Path, systemd: Systemd) -> None:
    directory = str(root / "var/lib/gpuhost")
    parts = {name: {"fingerprint": name, "watch": {"files": ["/etc/absent"]}} for name in ("a", "b")}
    assert applied.record(directory, parts, str(root), systemd)
    assert not applied.record(directory, parts, str(root), systemd), "nothing changed"
    assert applied.begin(directory, {"a": "a", "unknown": "u"}, str(root), systemd)
    assert not applied.begin(directory, {"a": "a"}, str(root), systemd), "it began already"
    found = differences("/var/lib/gpuhost", str(root), systemd)
    assert {name: (part["fingerprint"], part["why"]) for name, part in found.items()} == {
        "a": ("a", "a run began to change it and did not complete"),
        "b": ("b", ""),
    }
    applied.begin_all(directory, str(root), systemd)
    assert store.read(directory, store.APPLIED)["begun"] == {
        name: {"fingerprint": None, "found": {}} for name in ("a", "b")
    }
    assert applied.record(directory, parts, str(root), systemd)
    assert set(store.read(directory, store.APPLIED)) == {"parts", "schema"}


def test_a_part_that_is_changed_leaves_the_files_of_the_others(
    root: Path, systemd: Systemd, snapshot: SnapshotAssertion
) -> None:
    parts = {
        "nccl": {"fingerprint": "f", "watch": {"packages": ["libnccl2"]}},
        "other": {"fingerprint": "f", "watch": {"files": ["/etc/absent"]}},
    }
    directory = str(root / "var/lib/gpuhost")
    applied.record(directory, parts, str(root), systemd)
    (root / "usr/lib/libnccl.so.2").unlink()
    assert applied.begin(directory, {"other": "f"}, str(root), systemd)
    found = differences("/var/lib/gpuhost", str(root), systemd)
    assert found["nccl"]["changed"] == snapshot
    assert found["other"]["changed"] == []


def test_the_files_of_a_record_are_kept_apart_from_it(root: Path, systemd: Systemd) -> None:
    """The record is read without its tens of thousands of files where nothing is compared."""
    directory = str(root / "var/lib/gpuhost")
    applied.record(directory, {"all": {"fingerprint": "f", "watch": WATCH}}, str(root), systemd)
    short, listings = (store.read(directory, name)["parts"]["all"] for name in (store.APPLIED, store.LISTINGS))
    assert (short["fingerprint"], short["watch"]) == ("f", WATCH)
    assert "libnccl2" in short["resources"]["package"]
    assert "libnccl2=2.32.3-1+cuda13.2" in listings["package_files"]
    assert set(listings) == {"package_files", "tree"}
    assert not set(listings) & set(short["resources"])


def test_a_part_that_is_not_applied_any_more_is_no_longer_recorded(root: Path, systemd: Systemd) -> None:
    directory = str(root / "var/lib/gpuhost")
    parts = {name: {"fingerprint": name, "watch": {}} for name in ("a", "b")}
    applied.record(directory, parts, str(root), systemd)
    del parts["a"]
    assert applied.record(directory, parts, str(root), systemd)
    assert list(differences("/var/lib/gpuhost", str(root), systemd)) == ["b"]


def test_a_host_without_a_record_has_no_parts(tmp_path: Path) -> None:
    assert differences("/var/lib/gpuhost", str(tmp_path)) == {}
    assert not applied.begin(str(tmp_path), {"all": "f"})
    assert not applied.doubt(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_another_owner_is_reported(root: Path, changes: Callable[[], list[str]], snapshot: SnapshotAssertion) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    os.chown(root / "etc/profile.d/cuda.sh", 7, 8)
    assert changes() == snapshot


def test_a_message_names_some_files_and_counts_the_others(root: Path, changes: Callable[[], list[str]]) -> None:
    shutil.rmtree(root / ENVIRONMENT / "lib")
    (message,) = changes()
    assert message.count("is missing") == 3
    assert message.endswith("; and 4 more")
    assert f": /{ENVIRONMENT}/lib is missing; /{ENVIRONMENT}/lib/python3.11 is missing; " in message


# What roles are asked to repair --------------------------------------------------------------------------------


def repairs_after(change: Callable[[Path], Any], root: Path, systemd: Systemd) -> dict[str, list[Any]]:
    assert applied.record(
        str(root / "var/lib/gpuhost"), {"all": {"fingerprint": "f", "watch": WATCH}}, str(root), systemd
    )
    change(root)
    found: dict[str, list[Any]] = differences("/var/lib/gpuhost", str(root), systemd)["all"]["repairs"]
    return {kind: items for kind, items in found.items() if items}


@pytest.mark.parametrize(
    ("name", "repairs"),
    [
        ("a library is deleted", {"packages": ["libnccl2"]}),
        ("the environment's Python is gone", {"environments": [f"/{ENVIRONMENT}"]}),
        ("uv is deleted", {"environments": ["/opt/gpuhost/uv"]}),
        ("LD_LIBRARY_PATH is set for everybody", {"lines": [["/etc/environment", "LD_LIBRARY_PATH=/x"]]}),
        ("the module is blacklisted", {"lines": [["/etc/modprobe.d/a.conf", "blacklist nvidia"]]}),
        ("the module is blacklisted for the kernel", {}),
        ("a package is downgraded", {}),
        ("a file is edited", {}),
    ],
)
def test_repairs_name_what_is_damaged(name: str, repairs: dict[str, Any], root: Path, systemd: Systemd) -> None:
    assert repairs_after(CHANGES[name][0], root, systemd) == repairs


def test_each_repair_is_named_once_and_lines_that_were_there_stay(root: Path, systemd: Systemd) -> None:
    (root / "etc/environment").write_text("LD_LIBRARY_PATH=/theirs\n")

    def change(_root: Path) -> None:
        (root / "etc/environment").write_text("LD_LIBRARY_PATH=/theirs\nLD_LIBRARY_PATH=/x\nLD_LIBRARY_PATH=/x\n")
        (root / "usr/lib/libnccl.so.2.32.3").unlink()
        (root / "opt/gpuhost/uv/bin/uv").unlink()
        (root / ENVIRONMENT / "bin/python").unlink()

    assert repairs_after(change, root, systemd) == {
        "packages": ["libnccl2"],
        "environments": [f"/{ENVIRONMENT}", "/opt/gpuhost/uv"],
        "lines": [["/etc/environment", "LD_LIBRARY_PATH=/x"]],
    }


def test_a_line_that_was_removed_is_no_line_to_disable(root: Path, systemd: Systemd) -> None:
    (root / "etc/environment").write_text("LD_LIBRARY_PATH=/theirs\n")
    assert repairs_after(lambda host: (host / "etc/environment").unlink(), root, systemd) == {}


def test_a_service_that_was_not_enabled_is_left_so(root: Path, systemd: Systemd) -> None:
    def change(_root: Path) -> None:
        systemd.text = SERVICE.replace("not-found", "masked").replace("UnitFileState=\n", "UnitFileState=disabled\n")
        link = root / "etc/systemd/system/multi-user.target.wants/nvidia-fabricmanager.service"
        link.symlink_to("/lib/systemd/system/nvidia-fabricmanager.service")

    assert repairs_after(change, root, systemd) == {}


def test_a_disabled_service_is_enabled_again(root: Path, systemd: Systemd) -> None:
    def disable(_root: Path) -> None:
        systemd.text = SERVICE.replace("=enabled", "=disabled")

    assert repairs_after(disable, root, systemd) == {"services": ["nvidia-persistenced"]}


@pytest.mark.parametrize(
    "path", ["/usr/src/nvidia-595.71.05/dkms.conf", "/lib/modules/6.8.0-41-generic/kernel/nvidia-580/nvidia.ko"]
)
def test_a_damaged_module_is_repaired_by_the_held_package_that_provides_it(
    path: str, root: Path, systemd: Systemd
) -> None:
    status = root / "var/lib/dpkg/status"
    for name, want in (("nvidia-kernel-open-dkms", "hold"), ("nvidia-kernel-dkms", "install"), ("zfs-dkms", "hold")):
        status.write_text(
            f"{status.read_text()}\nPackage: {name}\nStatus: {want} ok installed\nArchitecture: amd64\nVersion: 1\n"
        )
        listing = "/usr/src/zfs-2.1/dkms.conf" if name == "zfs-dkms" else path
        (root / f"var/lib/dpkg/info/{name}.list").write_text(f"{listing}\n")
    found = repairs_after(CHANGES["a module of the next-boot kernel is truncated"][0], root, systemd)
    assert found == {"packages": ["nvidia-kernel-open-dkms"]}


NEW = "9999.2.0-1-amd64"


def new_kernel(root: Path, modules: bool) -> None:
    (root / f"boot/vmlinuz-{NEW}").write_text("")
    (root / f"lib/modules/{NEW}/updates/dkms").mkdir(parents=True)
    if modules:
        (root / f"lib/modules/{NEW}/updates/dkms/nvidia.ko").write_text("")


def test_a_new_kernel_with_the_modules_is_no_difference(root: Path, systemd: Systemd) -> None:
    assert repairs_after(lambda host: new_kernel(host, True), root, systemd) == {}
    assert differences("/var/lib/gpuhost", str(root), systemd)["all"]["changed"] == []


def test_a_host_whose_kernels_all_have_no_modules_has_no_difference(root: Path, systemd: Systemd) -> None:
    """As in a container, or with a driver that is not installed."""
    shutil.rmtree(root / "lib/modules")
    assert repairs_after(lambda _host: None, root, systemd) == {}
    assert differences("/var/lib/gpuhost", str(root), systemd)["all"]["changed"] == []


@pytest.mark.parametrize("held_back", [False, True], ids=["the next one", "held back by the guard"])
def test_a_new_kernel_without_modules_is_a_difference_until_it_has_some(
    root: Path, systemd: Systemd, held_back: bool
) -> None:
    """It is no damage: the run in which DKMS cannot build for it completes, and the next one tries again."""
    if held_back:
        entry = f"gnulinux-advanced-1>gnulinux-{NEXT}-advanced-1"
        guard = f"gpuhost_kernel={NEW}\ngpuhost_tries=no-module\ngpuhost_entry={entry}\n"
        put(root, "/boot/grub/grubenv", "# GRUB Environment Block\n" + guard)
        put_grub_menu(root, (NEW, NEXT))  # without a menu the newest kernel starts next, held back or not
    assert repairs_after(lambda host: new_kernel(host, False), root, systemd) == {}
    directory, parts = str(root / "var/lib/gpuhost"), {"all": {"fingerprint": "f", "watch": WATCH}}
    expected = [f"NVIDIA modules of kernel {NEW}: none, others have some"]
    assert differences("/var/lib/gpuhost", str(root), systemd)["all"]["changed"] == expected
    assert applied.begin(directory, {"all": "f"}, str(root), systemd)
    assert applied.record(directory, parts, str(root), systemd)
    found = differences("/var/lib/gpuhost", str(root), systemd)["all"]
    assert (found["changed"], found["damage"]) == (expected, {})
    (root / f"lib/modules/{NEW}/updates/dkms/nvidia.ko").write_text("")
    assert expected[0] not in differences("/var/lib/gpuhost", str(root), systemd)["all"]["changed"]


# What was not repaired ----------------------------------------------------------------------------------------


class Runs:
    """Runs on a host: `begin` notes the part that is about to be changed, `end` records what the run left."""

    def __init__(self, root: Path, systemd: Systemd, watch: dict[str, Any] | None = None) -> None:
        self.root, self.systemd, self.watch = root, systemd, watch or WATCH
        self.directory = str(root / "var/lib/gpuhost")
        self.end()

    def begin(self, fingerprint: str | None = "f") -> None:
        applied.begin(self.directory, {"all": fingerprint}, str(self.root), self.systemd)

    def end(self, fingerprint: str = "f", **options: Any) -> None:
        parts = {"all": {"fingerprint": fingerprint, "watch": self.watch}}
        applied.record(self.directory, parts, str(self.root), self.systemd, **options)

    def found(self, **options: Any) -> dict[str, Any]:
        return differences("/var/lib/gpuhost", str(self.root), self.systemd, **options)["all"]

    def changed(self) -> list[str]:
        return list(self.found()["changed"])


@pytest.mark.parametrize(
    "name", ["a file is edited", "a library is deleted", "/usr/local/cuda is a directory", "a hold is removed",
             "a package is downgraded", "the alternative is set manually", "the module is blacklisted for the kernel",
             "a module of the running kernel is gone", "the environment's Python is gone", "nouveau is loaded"],
)  # fmt: skip
def test_what_was_not_repaired_is_never_recorded(name: str, root: Path, systemd: Systemd) -> None:
    runs = Runs(root, systemd)
    change, words = CHANGES[name]
    change(root)
    for _unused in range(2):
        runs.begin()
        with pytest.raises(ValueError, match=re.escape(words)) as caught:
            runs.end()
        found = runs.found()
        assert found["why"], "the next run applies the part again"
        assert [words in text for text in found["changed"]] == [True]
        assert found["changed"] == list(found["damage"].values())
        assert str(caught.value).endswith(f"gpu_stack_accept_damage: {next(iter(found['damage']))}")


def test_what_was_repaired_or_changed_by_the_run_is_recorded(root: Path, systemd: Systemd) -> None:
    """The driver's module after an upgrade, a rebuilt environment: other than recorded, and other than found."""
    runs = Runs(root, systemd)
    CHANGES["a file is edited"][0](root)
    CHANGES["a library is deleted"][0](root)
    runs.begin()
    (root / "etc/profile.d/cuda.sh").write_text("PATH=$PATH:/usr/local/cuda-13.2/bin\n")
    (root / "usr/lib/libnccl.so.2.32.3").write_text("library")
    CHANGES["another module is loaded"][0](root)
    runs.end()
    assert runs.changed() == []


def test_one_file_of_two_that_is_not_repaired_is_named_alone(
    root: Path, systemd: Systemd, snapshot: SnapshotAssertion
) -> None:
    runs = Runs(root, systemd)
    CHANGES["a library is deleted"][0](root)
    CHANGES["a library's link points elsewhere"][0](root)
    runs.begin()
    (root / "usr/lib/libnccl.so.2.32.3").write_text("library")
    with pytest.raises(ValueError, match=r"libnccl\.so\.2 ") as caught:
        runs.end()
    assert "libnccl.so.2.32.3 is missing" not in str(caught.value)
    assert str(caught.value) == snapshot


def test_damage_of_an_interrupted_run_is_remembered(root: Path, systemd: Systemd) -> None:
    runs = Runs(root, systemd)
    CHANGES["a file is edited"][0](root)
    runs.begin()  # and killed
    applied.begin_all(runs.directory, str(root), systemd)
    runs.begin()
    with pytest.raises(ValueError, match=r"file /etc/profile\.d/cuda\.sh"):
        runs.end()


@pytest.mark.parametrize("name", ["a file is edited", "a hold is removed", "the alternative is set manually"])
def test_what_an_interrupted_run_changed_is_no_damage(name: str, root: Path, systemd: Systemd) -> None:
    """It is neither named nor undone: the next run applies the part, and what that leaves is right."""
    runs = Runs(root, systemd)
    runs.begin("other variables")
    CHANGES[name][0](root)  # by the run, which is killed
    assert (runs.found()["changed"], runs.found()["damage"]) == ([], {})
    runs.begin()
    runs.end()
    assert runs.changed() == []


@pytest.mark.parametrize(
    "name",
    ["LD_LIBRARY_PATH is set for everybody", "the module is blacklisted", "/usr/local/cuda points elsewhere"],
)
def test_what_no_run_does_is_damage_although_a_run_began(name: str, root: Path, systemd: Systemd) -> None:
    runs = Runs(root, systemd)
    runs.begin("other variables")
    change, words = CHANGES[name]
    change(root)
    (text,) = runs.found()["damage"].values()
    assert words in text


def test_other_variables_may_want_what_was_found(root: Path, systemd: Systemd) -> None:
    """But no variable wants a package's file deleted."""
    runs = Runs(root, systemd)
    CHANGES["a file is edited"][0](root)
    runs.begin("other variables")
    runs.end("other variables")
    assert runs.changed() == []
    CHANGES["a library is deleted"][0](root)
    runs.begin("still others")
    with pytest.raises(ValueError, match="libnccl"):
        runs.end("still others")


def test_a_disabled_service_is_damage_until_it_is_enabled(root: Path, systemd: Systemd) -> None:
    runs = Runs(root, systemd)
    systemd.text = SERVICE.replace("=enabled", "=disabled")
    runs.begin()
    with pytest.raises(ValueError, match="service nvidia-persistenced was enabled=enabled, is enabled=disabled"):
        runs.end()
    systemd.text = SERVICE
    runs.end()
    assert runs.changed() == []


def test_every_difference_that_was_not_repaired_is_named_among_others(root: Path, systemd: Systemd) -> None:
    """A dependency was upgraded, and files and trees are not watched any more."""
    runs = Runs(root, systemd)
    for name in ("a file is edited", "a hold is removed", "the module is blacklisted for the kernel"):
        CHANGES[name][0](root)
    (root / "opt/gpuhost/uv/bin/uv").unlink()
    replace("var/lib/dpkg/status", "5.2.15-2+b8", "5.2.37-1")(root)
    runs.begin()
    runs.watch = {key: value for key, value in WATCH.items() if key not in ("files", "trees")}
    with pytest.raises(ValueError, match="package libnccl2") as caught:
        runs.end()
    named = [line.strip().partition(" was ")[0] for line in str(caught.value).splitlines() if line.startswith("  ")]
    assert named == ["blacklist in /proc/cmdline", "package libnccl2"]


def test_the_differences_of_each_part_are_remembered_over_several_runs(root: Path, systemd: Systemd) -> None:
    directory = str(root / "var/lib/gpuhost")
    parts = {
        name: {"fingerprint": "f", "watch": {"files": [path]}}
        for name, path in (("a", "/etc/profile.d/cuda.sh"), ("b", "/etc/absent"), ("c", "/usr/local/bin/nvcc"))
    }
    applied.record(directory, parts, str(root), systemd)
    CHANGES["a file is edited"][0](root)
    applied.begin(directory, {"a": "f", "c": "f"}, str(root), systemd)
    CHANGES["a file appears"][0](root)
    applied.begin(directory, {"b": "f"}, str(root), systemd)
    found = differences("/var/lib/gpuhost", str(root), systemd)
    assert {name: list(part["damage"]) for name, part in found.items()} == {
        "a": ["file /etc/profile.d/cuda.sh"],
        "b": ["file /etc/absent"],
        "c": [],
    }
    with pytest.raises(ValueError, match=r"(?s)file /etc/profile\.d/cuda\.sh .*file /etc/absent "):
        applied.record(directory, parts, str(root), systemd)


@pytest.mark.parametrize("status", ["hold ok installed", "hold ok half-configured"])
def test_a_held_package_that_is_whole_again_in_another_version_is_no_damage(
    status: str, root: Path, systemd: Systemd
) -> None:
    """The archive decides the version of a package that is planned without one, and not whether it is whole."""
    replace("var/lib/dpkg/status", "hold ok installed", status)(root)
    runs = Runs(root, systemd, {"packages": ["libnccl2"]})
    CHANGES["a package is downgraded"][0](root)
    replace("var/lib/dpkg/status", status, "hold ok installed")(root)
    runs.begin()
    if status == "hold ok installed":
        runs.end()
        assert runs.changed() == []
    else:
        with pytest.raises(ValueError, match="package libnccl2"):
            runs.end()


BASH = "Package: bash\nStatus: install ok installed"


@pytest.mark.parametrize(
    ("old", "new"),
    [("Version: 5.2.15-2+b8", "Version: 5.2.37-1"), (BASH, BASH.replace("installed", "config-files"))],
    ids=["upgraded", "removed"],
)
def test_a_dependency_that_the_system_upgrades_or_removes_is_no_damage(
    old: str, new: str, root: Path, systemd: Systemd
) -> None:
    runs = Runs(root, systemd)
    replace("var/lib/dpkg/status", old, new)(root)
    runs.begin()
    runs.end()
    assert runs.changed() == []


def test_a_package_that_is_planned_without_a_version_keeps_its_hold_and_not_its_version(
    root: Path, systemd: Systemd
) -> None:
    runs = Runs(root, systemd, {**WATCH, "exact_packages": []})
    CHANGES["a package is downgraded"][0](root)
    runs.begin()
    runs.end()
    CHANGES["a hold is removed"][0](root)
    runs.begin()
    with pytest.raises(ValueError, match="package libnccl2"):
        runs.end()


def test_a_service_that_an_administrator_adds_is_no_damage(root: Path, systemd: Systemd) -> None:
    runs = Runs(root, systemd)
    systemd.text = SERVICE.replace("not-found", "loaded").replace("UnitFileState=\n", "UnitFileState=enabled\n")
    runs.begin()
    runs.end()
    assert runs.changed() == []


# Contents -----------------------------------------------------------------------------------------------------


def corrupt(path: Path) -> None:
    found, data = path.stat(), path.read_bytes()
    path.write_bytes(bytes([data[0] ^ 255]) + data[1:])
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


@pytest.fixture
def packaged(root: Path) -> Path:
    """A host whose dpkg knows the checksum of NCCL's library; `/packages` is the part of all packages."""
    digest = hashlib.md5(b"library").hexdigest()
    (root / "var/lib/dpkg/info/libnccl2.md5sums").write_text(f"{digest}  usr/lib/libnccl.so.2.32.3\n")
    return root


MANAGED = {"packages": {}, "tensorflow_env": {"environments": ["/opt/gpuhost/tensorflow"]}}


def test_corruption_with_size_and_time_kept_is_found_by_contents_alone(
    packaged: Path, systemd: Systemd, snapshot: SnapshotAssertion
) -> None:
    parts = {"packages": {"fingerprint": "f", "watch": {"packages": ["libnccl2"], "exact_packages": ["libnccl2"]}}}
    assert applied.record(str(packaged / "var/lib/gpuhost"), parts, str(packaged), systemd)
    corrupt(packaged / "usr/lib/libnccl.so.2.32.3")
    place = ("/var/lib/gpuhost", str(packaged), systemd)
    assert differences(*place, managed={"packages": {}})["packages"]["changed"] == []
    found = differences(*place, contents=True, managed={"packages": {}})["packages"]
    assert found["changed"] == snapshot
    assert found["repairs"]["packages"] == ["libnccl2"]
    with pytest.raises(ValueError, match="content of libnccl2"):
        applied.record(str(packaged / "var/lib/gpuhost"), parts, str(packaged), systemd, repaired=["libnccl2"])


def test_every_damaged_package_is_repaired(packaged: Path, systemd: Systemd) -> None:
    status = packaged / "var/lib/dpkg/status"
    status.write_text(f"{status.read_text()}\nPackage: tool\nStatus: install ok installed\nVersion: 1\n")
    put(packaged, "usr/bin/tool", "whole")
    put(packaged, "var/lib/dpkg/info/tool.list", "/usr/bin/tool\n")
    put(packaged, "var/lib/dpkg/info/tool.md5sums", f"{hashlib.md5(b'whole').hexdigest()}  usr/bin/tool\n")
    parts = {
        "packages": {
            "fingerprint": "f",
            "watch": {"packages": ["libnccl2", "tool"], "exact_packages": ["libnccl2", "tool"]},
        }
    }
    assert applied.record(str(packaged / "var/lib/gpuhost"), parts, str(packaged), systemd)
    for path in ("usr/lib/libnccl.so.2.32.3", "usr/bin/tool"):
        corrupt(packaged / path)
    place = ("/var/lib/gpuhost", str(packaged), systemd)
    found = differences(*place, contents=True, managed={"packages": {}})["packages"]
    assert sorted(found["repairs"]["packages"]) == ["libnccl2", "tool"]
    assert len(found["changed"]) == 2
    name = "content of tool"
    accepting = differences(*place, contents=True, managed={"packages": {}}, accepted=[name])["packages"]
    assert (accepting["repairs"]["packages"], list(accepting["accepted"])) == (["libnccl2"], [name])
    with pytest.raises(ValueError, match=r"gpu_stack_accept_damage: content of libnccl2; content of tool$"):
        applied.record(str(packaged / "var/lib/gpuhost"), parts, str(packaged), systemd, repaired=["libnccl2", "tool"])


def test_damage_without_a_record_is_found_by_contents(
    packaged: Path, systemd: Systemd, snapshot: SnapshotAssertion
) -> None:
    """After a first run that failed: nothing is recorded, but the journal names the packages."""
    store.record_packages(str(packaged / "var/lib/gpuhost"), {"libnccl2": None, "bash": None})
    place = ("/var/lib/gpuhost", str(packaged), systemd)
    metadata = f"{ENVIRONMENT}/lib/python3.11/site-packages/numpy-2.1.0.dist-info"
    for package in ("tensorflow-2.21.0", "numpy-2.1.0"):
        (packaged / metadata).with_name(f"{package}.dist-info").joinpath("RECORD").write_text(
            f"{package}.dist-info/METADATA,,\n{package}.dist-info/RECORD,,\n"
        )
    assert differences(*place, managed=MANAGED) == {}
    (packaged / "usr/lib/libnccl.so.2").unlink()
    (packaged / metadata / "METADATA").unlink()
    found = differences(*place, managed=MANAGED)
    assert {name: part["fingerprint"] for name, part in found.items()} == {"packages": None, "tensorflow_env": None}
    assert found["packages"]["changed"] == snapshot
    assert found["packages"]["repairs"]["packages"] == ["libnccl2"]
    path = f"/{metadata}/METADATA"
    assert found["tensorflow_env"]["changed"] == [f"content of /{ENVIRONMENT}: {path} is missing"]
    empty = {"packages": [], "environments": [], "services": [], "lines": []}
    assert found["tensorflow_env"]["repairs"] == {**empty, "environments": [f"/{ENVIRONMENT}"]}


def test_a_damaged_tree_is_rebuilt_once(packaged: Path, systemd: Systemd) -> None:
    """What both its listing and its content show is one repair."""
    tree, directory = packaged / "opt/gpuhost/uv", str(packaged / "var/lib/gpuhost")
    info = "lib/python3.11/site-packages/uv-1.dist-info"
    metadata = put(tree, f"{info}/METADATA", "x")
    put(tree, f"{info}/RECORD", "uv-1.dist-info/METADATA,,\nuv-1.dist-info/RECORD,,\n")
    watch = {"trees": ["/opt/gpuhost/uv"]}
    applied.record(directory, {"uv": {"fingerprint": "f", "watch": watch}}, str(packaged), systemd)
    metadata.unlink()
    found = differences("/var/lib/gpuhost", str(packaged), systemd, True, {"uv": {}})["uv"]
    missing = f"of /opt/gpuhost/uv: /opt/gpuhost/uv/{info}/METADATA is missing"
    assert found["changed"] == [f"files {missing}", f"content {missing}"]
    assert found["repairs"]["environments"] == ["/opt/gpuhost/uv"]


def test_a_repaired_package_that_is_whole_is_recorded(packaged: Path, systemd: Systemd) -> None:
    parts = {"packages": {"fingerprint": "f", "watch": {"packages": ["libnccl2"]}}}
    assert applied.record(str(packaged / "var/lib/gpuhost"), parts, str(packaged), systemd, repaired=["libnccl2"])


def test_the_packages_of_the_journal_are_watched_beside_the_planned_ones(tmp_path: Path) -> None:
    store.record_packages(str(tmp_path), {"b": None, "a": None})
    watch = {"packages": ["c", "a"], "exact_packages": ["c"]}
    assert applied.with_journal(str(tmp_path), watch) == {"packages": ["a", "b", "c"], "exact_packages": ["c"]}
    assert applied.with_journal(str(tmp_path / "none"), {}) == {"packages": []}


def test_the_content_of_parts_is_read_where_the_record_does_not_show_that_they_are_whole(
    packaged: Path, systemd: Systemd
) -> None:
    """Reading that of every part would take a rerun many seconds."""
    directory = str(packaged / "var/lib/gpuhost")
    place = ("/var/lib/gpuhost", str(packaged), systemd)
    parts = {"packages": {"fingerprint": "f", "watch": {}}, "tensorflow_env": {"fingerprint": "f", "watch": {}}}
    store.record_packages(directory, {"libnccl2": None})
    applied.record(directory, parts, str(packaged), systemd)
    (packaged / "usr/lib/libnccl.so.2").unlink()
    assert [part["damage"] for part in differences(*place, managed=MANAGED).values()] == [{}, {}]
    applied.begin(directory, {"packages": "f"}, str(packaged), systemd)
    assert differences(*place, managed=MANAGED)["packages"]["repairs"]["packages"] == ["libnccl2"]
    applied.record(directory, parts, str(packaged), systemd)
    assert applied.doubt(directory, (), str(packaged), systemd)
    found = differences(*place, managed=MANAGED)
    assert found["packages"]["repairs"]["packages"] == ["libnccl2"]
    assert "a check failed" in found["tensorflow_env"]["why"], "it is applied as well"


@pytest.mark.parametrize(
    "silent",
    [Answer(124, b"", b"it hangs"), Answer(-11, b"", b""), Answer(0, b"", b"")],
    ids=["hangs", "dies", "prints nothing"],
)
def test_services_that_systemd_does_not_tell_are_drift_and_never_recorded(tmp_path: Path, silent: Any) -> None:
    told = b"Id=s.service\nLoadState=loaded\nUnitFileState=enabled\nActiveState=active\n"
    answers = [Answer(0, told, b"")]
    parts = {"nvidia_driver": {"fingerprint": "f", "watch": {"services": ["s"]}}}

    def run(argv: list[str], timeout: float) -> Any:
        return answers[-1]

    state = tmp_path / "var/lib/gpuhost"
    assert applied.record(str(state), parts, str(tmp_path), run)
    answers.append(silent)
    with pytest.raises(ValueError, match="systemctl show: "):
        applied.record(str(state), parts, str(tmp_path), run)
    (found,) = differences("/var/lib/gpuhost", str(tmp_path), run).values()
    assert "unanswered=systemctl show: " in str(found["changed"])
    assert found["damage"] == {}, "it may be enabled"
    answers.append(Answer(1, b"", b"Failed to connect to bus"))
    (found,) = differences("/var/lib/gpuhost", str(tmp_path), run).values()
    assert (len(found["changed"]), found["damage"]) == (1, {})


# Earlier releases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["installed", "pending"])
def test_what_an_earlier_release_applied_is_recorded_anew(name: str, root: Path, systemd: Systemd) -> None:
    """And its packages and environments are compared by content until then, as nothing shows that they are whole."""
    shutil.copytree(STATES / name, root / "var/lib/gpuhost")
    directory = str(root / "var/lib/gpuhost")
    assert store.newer(directory) is None
    assert store.journal(directory)["libnccl2"] is None  # it was not installed before gpuhost
    assert (store.requested(directory) or {})["cuda"] == "auto"
    kept = {"parts": (store.read(directory, store.APPLIED) or {})["parts"], "listings": store.pack({})}
    assert applied.restored_parts(kept) == {}
    assert applied.snapshot(directory) is None
    assert not applied.begin(directory, {"packages": "f"}, str(root), systemd)
    (root / "usr/lib/libnccl.so.2").unlink()
    place = ("/var/lib/gpuhost", str(root), systemd)
    assert differences(*place) == {}
    found = differences(*place, managed={"packages": {}})["packages"]
    assert (found["fingerprint"], found["repairs"]["packages"]) == (None, ["libnccl2"])
    parts = {"packages": {"fingerprint": "f", "watch": {"packages": ["libnccl2"]}}}
    assert applied.record(directory, parts, str(root), systemd)
    assert differences(*place)["packages"]["fingerprint"] == "f"


def test_a_record_without_the_links_of_services_is_of_an_earlier_release(root: Path, systemd: Systemd) -> None:
    def forget(_root: Path) -> None:
        record = root / "var/lib/gpuhost/applied.json"
        content = json.loads(record.read_text())
        del content["parts"]["all"]["resources"]["service_link"]
        record.write_text(json.dumps(content))

    assert repairs_after(forget, root, systemd) == {}
    assert differences("/var/lib/gpuhost", str(root), systemd)["all"]["changed"] == []
