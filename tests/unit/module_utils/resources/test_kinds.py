"""The state of everything that a part watches, as it is recorded."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Answer
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.host_files import put
from tests.unit.module_utils.state.applied_host import (
    ENVIRONMENT,
    KERNELS,
    LIBCUDNN,
    WATCH,
    Systemd,
    build,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return build(tmp_path)


def observe(root: str, watch: Mapping[str, Any], *run: Any) -> dict[str, Any]:
    """Return what is observed of a watch in JSON."""
    return kinds.read(root, watch, *run)


@pytest.fixture
def systemd() -> Systemd:
    return Systemd()


def test_the_state_of_each_kind_is_read(root: Path, systemd: Systemd) -> None:
    """If a name or a field changed, every host would have drift after an upgrade of this collection."""
    (root / "etc/environment").write_text("LD_LIBRARY_PATH=/x\n")
    (root / "proc/cmdline").write_text("ro modprobe.blacklist=nvidia")
    file = (root / "etc/profile.d/cuda.sh").stat()
    built = {k: int((root / f"lib/modules/{k}/updates/dkms/nvidia.ko.xz").stat().st_mtime) for k in KERNELS}
    for kernel, seconds in built.items():
        for module in (root / f"lib/modules/{kernel}/updates/dkms").iterdir():
            os.utime(module, (seconds, seconds))
    found = observe(str(root), WATCH, systemd)
    listings = found.pop("package_files") | found.pop("tree")
    assert found == {
        "file": {
            "/etc/profile.d/cuda.sh": {
                "sha256": hashlib.sha256(b"PATH=$PATH:/usr/local/cuda/bin\n").hexdigest(),
                "mode": f"{file.st_mode & 0o7777:04o}",
                "owner": [file.st_uid, file.st_gid],
            },
            "/usr/local/bin/nvcc": {"link": "/usr/local/lib/gpuhost/cuda-command"},
            "/etc/absent": None,
        },
        "alternative": {"cuda": {"mode": "auto", "value": "/usr/local/cuda-13.2"}},
        "alternative_link": {"cuda": {"path": "/usr/local/cuda", "points": "/etc/alternatives/cuda"}},
        "environment": {"/opt/gpuhost/tensorflow": {"link": ENVIRONMENT.removeprefix("opt/gpuhost/")}},
        "package": {
            "libnccl2": {"version": "2.32.3-1+cuda13.2", "status": "installed", "held": True},
            "libcudnn9": None,
            "bash": {"version": "5.2.15-2+b8", "status": "installed", "held": False},
        },
        "service": {
            "nvidia-fabricmanager": {"loaded": "not-found", "enabled": "", "active": "inactive"},
            "nvidia-persistenced": {"loaded": "loaded", "enabled": "enabled", "active": "active"},
        },
        "service_link": {
            "nvidia-fabricmanager": None,
            "nvidia-persistenced": "/lib/systemd/system/nvidia-persistenced.service",
        },
        "loaded_module": {"": {"version": "595.71.05", "kernel_modules": "open"}},
        "nouveau": {"": {"loaded": False}},
        "modules": {
            kernel: dict.fromkeys(("nvidia.ko.xz", "nvidia-uvm.ko.xz", "nvidia-drm.ko"), f"6 bytes of {seconds}")
            for kernel, seconds in built.items()
        },
        "library_path": {"/etc/environment": ["LD_LIBRARY_PATH=/x"]},
        "blacklist": {"/proc/cmdline": ["modprobe.blacklist=nvidia"]},
        "linker_cache": {"": "current"},
    }
    paths = {thing: [line.split("\t")[0] for line in text.split("\n")] for thing, text in listings.items()}
    assert paths["libnccl2=2.32.3-1+cuda13.2"] == ["/usr/lib/libnccl.so.2.32.3", "/usr/lib/libnccl.so.2"]
    assert paths["/opt/gpuhost/uv"] == [f"/opt/gpuhost/uv{below}" for below in ("", "/bin", "/bin/uv")]
    assert f"/{ENVIRONMENT}/bin/python" in paths[f"/{ENVIRONMENT}"]
    assert len(paths) == 3


def test_nothing_is_asked_and_nothing_found_of_what_is_not_watched(root: Path) -> None:
    def run(argv: list[str], timeout: float) -> Answer:
        raise AssertionError(argv)

    (root / "etc/environment").write_text("LD_LIBRARY_PATH=/x\n")
    (root / "proc/cmdline").write_text("ro modprobe.blacklist=nvidia")
    assert observe(str(root), {}, run) == {}
    assert observe(str(root), {name: None for kind in kinds.KINDS for name in kind.watches}, run) == {}


@pytest.mark.parametrize(
    ("watch", "held", "listed"),
    [({"exact_packages": ["libcudnn9"]}, "install", True), ({}, "hold", True), ({}, "install", False)],
    ids=["planned", "held", "a dependency"],
)
def test_the_files_of_planned_and_of_held_packages_are_watched(
    tmp_path: Path, watch: dict[str, Any], held: str, listed: bool
) -> None:
    put(tmp_path, "var/lib/dpkg/status", LIBCUDNN.replace("install ok", f"{held} ok"))
    put(tmp_path, "var/lib/dpkg/info/libcudnn9.list", "/.\n/usr/lib/libcudnn.so.9\n")
    found = observe(str(tmp_path), {"packages": ["libcudnn9"], **watch})
    listing = {"libcudnn9=9.28": "/usr/lib/libcudnn.so.9\tmissing"}
    assert found.get("package_files", {}) == (listing if listed else {})


def test_the_files_of_a_package_that_is_half_installed_are_not_watched(tmp_path: Path) -> None:
    put(tmp_path, "var/lib/dpkg/status", LIBCUDNN.replace("install ok installed", "hold ok half-installed"))
    found = observe(str(tmp_path), {"packages": ["libcudnn9"], "exact_packages": ["libcudnn9"]})
    assert list(found) == ["package"]


def test_without_the_driver_a_service_need_not_be_active(root: Path, systemd: Systemd) -> None:
    found = observe(str(root), {"services": WATCH["services"]}, systemd)
    assert found["service"] == {
        "nvidia-fabricmanager": {"loaded": "not-found", "enabled": ""},
        "nvidia-persistenced": {"loaded": "loaded", "enabled": "enabled"},
    }


def test_what_is_loaded_and_what_is_built_are_watched_alone(root: Path) -> None:
    assert list(observe(str(root), {"driver": True})) == ["loaded_module", "nouveau"]
    built = observe(str(root), {"modules": True})
    assert set(built.pop("modules")) == set(KERNELS)
    assert built == {}


def test_an_environment_may_be_a_directory_itself(root: Path) -> None:
    found = observe(str(root), {"environments": [f"/{ENVIRONMENT}"]})
    assert found["environment"] == {f"/{ENVIRONMENT}": {"link": "none"}}
    assert list(found["tree"]) == [f"/{ENVIRONMENT}"]


def test_an_unknown_kind_is_refused(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError, match="mounts, sockets") as error:
        observe(str(tmp_path), {"sockets": [], "mounts": ["/"], "files": []})
    assert str(error.value) == snapshot


def test_the_recorded_state_of_a_file(tmp_path: Path) -> None:
    """Its fields are in the messages of drift, and in the records of hosts that an older version set up."""
    file = tmp_path / "file"
    file.write_text("old\n")
    file.chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    owner = [file.stat().st_uid, file.stat().st_gid]
    # `printf 'old\n' | sha256sum`
    digest = "01d09d19c2139a46aebfb577780d123d7396e97201bc7ead210a2ebff8239dee"
    assert observe(str(tmp_path), {"files": ["/file", "/link", "/folder", "/missing"]})["file"] == {
        "/file": {"sha256": digest, "mode": "0640", "owner": owner},
        "/link": {"link": "file"},
        "/folder": {"directory": True, "mode": f"{(tmp_path / 'folder').stat().st_mode & 0o777:04o}"},
        "/missing": None,
    }


@pytest.mark.parametrize(
    "text",
    [
        "Id=s.service\nLoadState=loaded\n",
        "Id=s.service\nLoadState=loaded\n\nId=t.service\nActiveState=active\n",
        "Id=s.service\nLoadState=loaded\n\nId=t.service\nLoadState=loaded\n\nId=u.service\nLoadState=loaded\n",
    ],
    ids=["too few", "without its state", "too many"],
)
def test_an_answer_that_is_not_of_the_services_that_were_asked_for_tells_nothing(tmp_path: Path, text: str) -> None:
    answer = Answer(0, text.encode(), b"")
    found = observe(str(tmp_path), {"services": ["s", "t"]}, lambda *_words: answer)
    assert [list(state) for state in found["service"].values()] == [["unanswered"], ["unanswered"]]


@pytest.mark.parametrize(("code", "key"), [(1, "unknown"), (124, "unanswered")])
def test_a_long_error_of_systemd_is_cut(tmp_path: Path, code: int, key: str) -> None:
    answer = Answer(code, b"", b"Failed to connect to bus: " + b"x" * 300)
    (state,) = observe(str(tmp_path), {"services": ["s"]}, lambda *_words: answer)["service"].values()
    assert list(state) == [key]
    assert len(state[key].removeprefix("systemctl show: ")) == 200


@pytest.mark.parametrize(
    ("seconds", "expected"), [(-1, "current"), (0, "current"), (1, "older than /etc/ld.so.conf.d/b.conf")]
)
def test_the_linkers_cache_is_as_new_as_its_settings(tmp_path: Path, seconds: int, expected: str) -> None:
    times = {"etc/ld.so.cache": 1000, "etc/ld.so.conf.d/a.conf": 900, "etc/ld.so.conf.d/b.conf": 1000 + seconds}
    for path, when in times.items():
        os.utime(put(tmp_path, path), (when, when))
    assert observe(str(tmp_path), {"linker_cache": True}) == {"linker_cache": {"": expected}}


def test_a_setting_of_the_linker_from_the_future_or_nowhere_leaves_a_new_cache_current(tmp_path: Path) -> None:
    """A file that was copied from a host whose clock is ahead, and a link whose target is gone."""
    directory = tmp_path / "etc/ld.so.conf.d"
    future = time.time() + 3600
    os.utime(put(tmp_path, "etc/ld.so.conf.d/a.conf"), (future, future))
    (directory / "b.conf").symlink_to("none")
    put(tmp_path, "etc/ld.so.cache")
    assert observe(str(tmp_path), {"linker_cache": True}) == {"linker_cache": {"": "current"}}
    os.utime(tmp_path / "etc/ld.so.cache", (1000, 1000))
    assert observe(str(tmp_path), {"linker_cache": True}) == {
        "linker_cache": {"": "older than /etc/ld.so.conf.d/a.conf"}
    }


# Sentences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 9, "d": 4}, "blacklist in x was b=2 c=3 d=None, is b=9 c=None d=4"),
        ({"a": "0123456789" * 5}, {"a": ""}, "blacklist in x was a=" + "0123456789" * 4 + ", is a="),
        (None, {"b": 1, "a": 2}, "blacklist in x was missing, is a=2 b=1"),
        ({"a": 1}, None, "blacklist in x was a=1, is missing"),
        (["one", "two"], ["two"], "blacklist in x was one; two, is two"),
        (
            "current",
            "older than /etc/ld.so.conf.d/a.conf",
            "blacklist in x was current, is older than /etc/ld.so.conf.d/a.conf",
        ),
    ],
)
def test_a_sentence_has_what_differs(before: Any, now: Any, message: str) -> None:
    wanted, states = {"blacklist": {"x": before, "same": 1}}, {"blacklist": {"x": now, "same": 1}}
    (found,) = kinds.compare(Host("/", command.run), wanted, states, {}).values()
    assert found.text == message


def test_a_continued_line_of_modprobe_is_one_in_a_sentence() -> None:
    states = {"blacklist": {"/etc/modprobe.d/a.conf": ["install nvidia \\\n  /bin/false"]}}
    (found,) = kinds.compare(Host("/", command.run), {}, states, {}).values()
    assert found.text == "blacklist in /etc/modprobe.d/a.conf was missing, is install nvidia   /bin/false"
