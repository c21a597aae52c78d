"""A kind of which the project has none: keys in a file of others, with `docker_setting.py` and a line of KINDS alone.

What others set stays whatever happens, and what they have set in the place of ours is theirs from then on.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import effects, kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Restoration
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied, recording, rollback

from tests.unit.module_utils.resources.docker_setting import DockerSetting
from tests.unit.module_utils.simulated_packages import SimulatedPackages
from tests.unit.module_utils.state.applied_host import differences

# Some keys of the full example for Linux in docker/cli's docs/reference/dockerd.md.
DOCKER = """{
  "default-address-pools": [
    {
      "base": "172.30.0.0/16",
      "size": 24
    },
    {
      "base": "172.31.0.0/16",
      "size": 24
    }
  ],
  "default-runtime": "runc",
  "features": {},
  "runtimes": {
    "cc-runtime": {
      "path": "/usr/bin/cc-runtime"
    },
    "custom": {
      "path": "/usr/local/bin/my-runc-replacement",
      "runtimeArgs": [
        "--debug"
      ]
    }
  },
  "shutdown-timeout": 15
}
"""
# That example is not JSON, as it has a comma too many, with the key that it is in.
NOT_JSON = """{
  "proxies": {
    "http-proxy": "http://proxy.example.com:80",
    "no-proxy": "*.test.example.com,.example.org",
  },
  "default-runtime": "nvidia"
}
"""
# What pkg/config/engine/docker/docker_test.go of NVIDIA/nvidia-container-toolkit adds a runtime to.
NVIDIA = """{
    "exec-opts": [
        "native.cgroupdriver=systemd"
    ],
    "log-driver": "json-file",
    "log-opts": {
        "max-size": "100m"
    },
    "storage-driver": "overlay2"
}
"""
# As `nvidia-ctk runtime configure --set-as-default --cdi.enabled` merges it; a later release with the whole path.
RUNTIME = {"args": [], "path": "nvidia-container-runtime"}
OURS = {"default-runtime": "nvidia", "features.cdi": True, "runtimes.nvidia": RUNTIME}
LATER = {**OURS, "runtimes.nvidia": {**RUNTIME, "path": "/usr/bin/nvidia-container-runtime"}}
NAMES = [f"Docker setting {key}" for key in OURS]
STAYS = "default-runtime of {} was changed by others and stays as it is"


class Daemon:
    """A host, and a role that has settings in its daemon.json; it is called as AnsibleModule.run_command."""

    def __init__(self, root: Path, kind: DockerSetting) -> None:
        self.kind, self.directory, self.file = kind, str(root / "state"), root / "etc/docker/daemon.json"
        kind.path = str(self.file)  # the root of a rollback is /
        self.file.parent.mkdir(parents=True)
        self.packages, self.commands = SimulatedPackages(root / "root", {}), list[str]()

    def __call__(self, command: list[str], **_options: Any) -> tuple[int, str, str]:
        self.commands.append(" ".join(command))
        return 0, "", ""

    @property
    def content(self) -> Any:
        return json.loads(self.file.read_text())

    def set(self, **values: Any) -> None:
        """Set keys as others do, with _ for -; remove those with None."""
        content = {**self.content, **{key.replace("_", "-"): value for key, value in values.items()}}
        self.file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))

    def run(self, planned: dict[str, Any] = OURS, is_killed: bool = False) -> list[str]:
        """Run the role; return its warnings."""
        applied.begin(self.directory, {"part": str(planned)})
        recording.record_baseline(self.directory, {"docker_settings": planned})
        found = applied.found(self.directory)
        work = Restoration(recording.HOST, self, effects.Effects(self, self.directory), check=False, found=found)
        self.kind.write(work, {key: {"value": value} for key, value in planned.items()})
        if not is_killed:
            assert work.effects.run() == []
            self.record(planned)
        return work.warnings

    def record(self, planned: dict[str, Any] = OURS) -> None:
        part = {"fingerprint": str(planned), "watch": {"docker_settings": planned}}
        recording.record_applied(self.directory, {"part": part})

    def verify(self) -> None:
        watch = {"docker_settings": OURS}
        recording.record_verified(self.directory, self.packages.apt(), {"components": {}}, watch)

    def differences(self) -> tuple[list[str], list[str]]:
        """Return what has changed, and the names of what of it is damage."""
        found = differences(self.directory)["part"]
        return found["changed"], sorted(found["damage"])

    def restore(self, to: str = store.VERIFIED, check: bool = False) -> tuple[list[str], list[str]]:
        """Return changes and warnings."""
        result = rollback.Rollback(self.directory, self.packages.apt(), self, check).restore(to, [])
        assert result is not None
        return result.changes, result.warnings


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    kind = DockerSetting()
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, kind))
    monkeypatch.setattr(effects, "BOOTED", str(tmp_path))
    return Daemon(tmp_path, kind)


@pytest.mark.parametrize("before", [DOCKER, NVIDIA, "{}\n", None], ids=["docker", "nvidia", "empty", "no file"])
def test_a_run_merges_its_keys_and_a_teardown_leaves_the_file_that_was_there(
    before: str | None, daemon: Daemon
) -> None:
    if before is not None:
        daemon.file.write_text(before)
    old = json.loads(before or "{}")
    assert daemon.run() == []
    runtimes = {**old.get("runtimes", {}), "nvidia": RUNTIME}
    merged = {**old, "default-runtime": "nvidia", "features": {"cdi": True}, "runtimes": runtimes}
    assert daemon.file.read_text() == json.dumps(merged, indent=2 if before == DOCKER else 4) + "\n"
    assert (daemon.commands, daemon.differences()) == (["systemctl try-restart docker.service"], ([], []))
    written = daemon.file.stat()
    assert (daemon.run(), daemon.file.stat()) == ([], written)
    reported = daemon.restore(store.BASELINE, check=True)
    assert daemon.file.stat() == written
    assert daemon.restore(store.BASELINE) == reported == (NAMES, [])
    assert (daemon.file.read_text() if daemon.file.exists() else None) == before


def test_mode_and_link_of_the_file_stay(daemon: Daemon) -> None:
    target = daemon.file.with_name("theirs.json")
    target.write_text(DOCKER)
    target.chmod(0o640)
    daemon.file.symlink_to(target.name)
    daemon.run()
    assert (os.readlink(daemon.file), target.stat().st_mode & 0o777) == (target.name, 0o640)
    assert "nvidia" in json.loads(target.read_text())["runtimes"]


def test_what_others_set_is_no_difference_and_stays(daemon: Daemon) -> None:
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.verify()
    theirs = {**daemon.content["runtimes"], "crun": {"path": "/usr/bin/crun"}}
    daemon.set(log_driver="local", runtimes=theirs, shutdown_timeout=None)
    assert (daemon.differences(), daemon.restore()) == (([], []), ([], []))
    daemon.run(LATER)
    daemon.restore(store.BASELINE)
    old = json.loads(DOCKER)
    del old["shutdown-timeout"], theirs["nvidia"]
    assert daemon.content == {**old, "log-driver": "local", "runtimes": theirs}


@pytest.mark.parametrize("theirs", [{"debug": True}, {"runtimes": {"crun": {"path": "/usr/bin/crun"}}}])
def test_what_we_made_stays_if_others_use_it(theirs: dict[str, Any], daemon: Daemon) -> None:
    daemon.run()
    daemon.set(**{key: {**daemon.content[key], **theirs[key]} if key == "runtimes" else theirs[key] for key in theirs})
    daemon.restore(store.BASELINE)
    assert daemon.content == theirs


def test_that_ours_is_gone_is_damage_which_a_run_or_a_rollback_repairs(daemon: Daemon) -> None:
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.verify()
    whole = daemon.content
    for repair in (daemon.run, daemon.restore):
        daemon.set(default_runtime=None)
        text = "Docker setting default-runtime was nvidia, is missing"
        assert daemon.differences() == ([text], ["Docker setting default-runtime"])
        applied.begin(daemon.directory, {"part": str(OURS)})
        with pytest.raises(ValueError, match=text):
            daemon.record()
        repair()
        assert (daemon.content, daemon.differences()) == (whole, ([], []))


def test_what_others_set_in_its_place_is_theirs_from_then_on(daemon: Daemon) -> None:
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.set(default_runtime="custom")
    assert daemon.differences() == (["Docker setting default-runtime was nvidia, is set by others"], [])
    assert daemon.run() == [STAYS.format(daemon.file)]
    daemon.set(default_runtime="cc-runtime")
    assert (daemon.content["default-runtime"], daemon.differences()) == ("cc-runtime", ([], []))
    daemon.set(default_runtime=None)  # by them, so that it is no damage, and free again
    assert daemon.differences() == (["Docker setting default-runtime was set by others, is missing"], [])
    assert (daemon.run(), daemon.content["default-runtime"]) == ([], "nvidia")
    daemon.restore(store.BASELINE)
    assert daemon.content == json.loads(DOCKER)


@pytest.mark.parametrize("runs", [(), (OURS,), (LATER,)], ids=["no run since", "a run since", "an upgrade since"])
@pytest.mark.parametrize("is_killed", [False, True], ids=["complete", "killed"])
@pytest.mark.parametrize("to", [store.VERIFIED, store.BASELINE])
def test_a_restoration_leaves_that_and_brings_the_others_back(
    to: str, is_killed: bool, runs: tuple[dict[str, Any], ...], daemon: Daemon
) -> None:
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.verify()
    expected = daemon.content if to == store.VERIFIED else json.loads(DOCKER)
    daemon.set(default_runtime="custom")
    for planned in runs:
        daemon.run(planned, is_killed)
    content, reported = daemon.content, daemon.restore(to, check=True)
    assert daemon.content == content
    assert daemon.restore(to) == reported
    assert reported[1] == [STAYS.format(daemon.file)]
    assert daemon.content == {**expected, "default-runtime": "custom"}
    if to == store.VERIFIED:
        assert daemon.differences() == ([], [])


@pytest.mark.parametrize("is_killed", [False, True], ids=["complete", "killed"])
def test_a_rollback_undoes_an_upgrade_however_far_it_came(is_killed: bool, daemon: Daemon) -> None:
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.verify()
    verified = daemon.file.read_text()
    daemon.run(LATER, is_killed)
    assert daemon.differences() == ([], [])
    assert daemon.restore() == ([NAMES[2]], [])
    assert (daemon.file.read_text(), daemon.differences()) == (verified, ([], []))
    assert daemon.restore() == ([], [])


def test_a_record_of_a_release_without_it_leaves_it_as_it_is(daemon: Daemon) -> None:
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.verify()
    record = store.read(daemon.directory, store.VERIFIED) or {}
    del record[DockerSetting.record]
    record["applied"]["parts"]["part"].update(watch={}, resources={})
    store.write(daemon.directory, store.VERIFIED, record)
    daemon.run(LATER)
    content = daemon.content
    assert daemon.restore() == ([], [])
    assert daemon.content == content


@pytest.mark.parametrize("before", [DOCKER, None], ids=["docker", "no file"])
def test_the_first_run_is_killed(before: str | None, daemon: Daemon) -> None:
    """Nothing is applied then, and what differs from the baseline is ours."""
    if before is not None:
        daemon.file.write_text(before)
    daemon.run(is_killed=True)
    assert "restart docker.service" in (store.read(daemon.directory, "effects") or {})["waiting"]
    assert (daemon.run(LATER, is_killed=True), daemon.content["runtimes"]["nvidia"]) == ([], LATER["runtimes.nvidia"])
    assert daemon.restore(store.BASELINE) == (NAMES, [])
    assert (daemon.file.read_text() if daemon.file.exists() else None) == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (NOT_JSON, r"is not JSON \(.*: line [45] column "),  # since Python 3.13 that of the comma
        ('{"runtimes": ["nvidia"]}', "runtimes of .* is not an object"),
        ("[]", "all of .* is not an object"),
        (DOCKER.encode("utf-16"), "is not JSON"),
    ],
)
def test_what_others_broke_is_named_and_nothing_in_it_changes(text: str | bytes, why: str, daemon: Daemon) -> None:
    broken = text if isinstance(text, bytes) else text.encode()
    daemon.file.write_bytes(broken)
    with pytest.raises(ValueError, match=why):
        daemon.run()
    assert daemon.file.read_bytes() == broken
    daemon.file.write_text(DOCKER)
    daemon.run()
    daemon.verify()
    daemon.file.write_bytes(broken)
    changed, damage = daemon.differences()
    assert (len(changed), damage) == (3, [])
    assert all("is unreadable: " in sentence for sentence in changed)
    with pytest.raises(ValueError, match=why):
        daemon.record()
    for to in (store.VERIFIED, store.BASELINE):
        changes, (warning,) = daemon.restore(to)
        assert (changes, warning.endswith("correct it; nothing in it was restored")) == ([], True)
    assert daemon.file.read_bytes() == broken
