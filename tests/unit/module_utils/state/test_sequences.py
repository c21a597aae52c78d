"""Damage over several runs: it is known until it is repaired, however the runs before ended.

What is compared at the end is the host with a copy of it from before the damage, and never a record.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied

from tests.unit.module_utils.state.applied_host import CHANGES, ENVIRONMENT, SERVICE, WATCH, Systemd, build, differences

STATE = "var/lib/gpuhost"
PARTS: dict[str, tuple[str, ...]] = {
    "packages": ("packages", "exact_packages"),
    "nvidia_driver": ("services", "blacklists"),
    "cuda_toolkit": ("alternatives",),
    "env_paths": ("files", "library_path", "linker_cache"),
    "tensorflow_env": ("environments", "trees"),
}
# What each role or transaction writes again whenever it runs; the rest is repaired on request.
ENFORCED = {
    "packages": ("var/lib/dpkg/status",),
    "nvidia_driver": (),
    "cuda_toolkit": ("etc/alternatives/cuda", "var/lib/dpkg/alternatives/cuda", "usr/local/cuda"),
    "env_paths": ("etc/profile.d/cuda.sh", "usr/local/bin/nvcc", "etc/absent", "etc/ld.so.cache"),
    "tensorflow_env": ("opt/gpuhost/tensorflow",),
}
LIBRARY = ("usr/lib/libnccl.so.2.32.3", "usr/lib/libnccl.so.2")
DAMAGES = [
    "a file is edited", "a file is deleted", "a file appears", "a link points elsewhere", "a hold is removed",
    "a package is downgraded", "the alternative points elsewhere", "the alternative is set manually",
    "a library is deleted", "a library's link points elsewhere", "uv is deleted", "/usr/local/cuda points elsewhere",
    "/usr/local/cuda is deleted", "LD_LIBRARY_PATH is set for everybody", "the module is blacklisted",
    "a setting of the linker is newer", "the environment's Python is gone",
    "a foreign file in the environment", "a service is disabled",
]  # fmt: skip


class Host:
    """A host, and runs of gpu_host.yml on it as far as its records are concerned."""

    def __init__(self, tmp_path: Path) -> None:
        self.root, self.pristine, self.systemd = build(tmp_path / "host"), tmp_path / "pristine", Systemd()
        shutil.copytree(self.root, self.pristine, symlinks=True)
        self.directory = str(self.root / STATE)
        watches = {name: {kind: WATCH[kind] for kind in kinds} for name, kinds in PARTS.items()}
        self.parts = {name: {"fingerprint": "f", "watch": watch} for name, watch in watches.items()}
        self.record()
        self.verified = applied.snapshot(self.directory)

    def damage(self, name: str) -> None:
        if name == "a service is disabled":
            self.systemd.text = SERVICE.replace("=enabled", "=disabled")
        elif name == "a foreign file in the environment":
            (self.root / ENVIRONMENT / "lib/python3.11/site-packages/sitecustomize.py").write_text("import os\n")
        else:
            CHANGES[name][0](self.root)

    def found(self) -> dict[str, dict[str, Any]]:
        watches = {name: part["watch"] for name, part in self.parts.items()}
        return differences(f"/{STATE}", str(self.root), self.systemd, managed=watches)

    def begin(self) -> dict[str, dict[str, Any]]:
        found = {name: part for name, part in self.found().items() if part["changed"] or part["why"]}
        applied.begin(self.directory, dict.fromkeys(found, "f"), str(self.root), self.systemd)
        return found

    def run(self, stop_before: str = "") -> None:
        """Apply the parts with drift, in their order; a run that stops there records nothing."""
        found = self.begin()
        for name in found:
            if name == stop_before:
                return
            self.apply(name, found)
        self.record()

    def apply(self, name: str, found: dict[str, dict[str, Any]]) -> None:
        repairs = {
            kind: [i for part in found.values() for i in part["repairs"][kind]] for kind in found[name]["repairs"]
        }
        paths = [*ENFORCED[name]]
        other_version = "2.32.3-1+cuda13.2" not in (self.root / ENFORCED["packages"][0]).read_text()
        if name == "packages" and (other_version or "libnccl2" in repairs["packages"]):
            paths += LIBRARY
        paths += [path.lstrip("/") for path in repairs["environments"]] if name == "tensorflow_env" else []
        for path in paths:
            self.restore(path)
        if name == "nvidia_driver" and repairs["services"]:
            self.systemd.text = SERVICE
        for file, line in repairs["lines"]:
            if ("modprobe.d" in file) == (name == "nvidia_driver") and name in ("nvidia_driver", "env_paths"):
                path = self.root / file.lstrip("/")
                path.write_text(path.read_text().replace(line, f"# {line}"))

    def restore(self, path: str) -> None:
        here, there = self.root / path, self.pristine / path
        if here.is_dir() and not here.is_symlink():
            shutil.rmtree(here)
        elif os.path.lexists(here):
            here.unlink()
        if there.is_dir() and not there.is_symlink():
            shutil.copytree(there, here, symlinks=True)
        elif os.path.lexists(there):
            shutil.copy2(there, here, follow_symlinks=False)
        if path == "etc/ld.so.cache":
            os.utime(here, (2**31, 2**31))

    def record(self) -> None:
        applied.record(self.directory, self.parts, str(self.root), self.systemd)

    def roll_back(self) -> None:
        """As a rollback of packages, files and alternatives, which were not changed."""
        applied.begin_all(self.directory, str(self.root), self.systemd)
        applied.reinstate(self.directory, applied.restored_parts(self.verified), str(self.root), self.systemd)

    def differing(self) -> list[str]:
        """Return the paths that differ from the host before its damage, other than lines that were commented out."""
        before, now = contents(self.pristine), contents(self.root)
        return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


def contents(root: Path) -> dict[str, str]:
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        elif path.is_file() and not name.startswith(STATE):
            lines = [line for line in path.read_text().splitlines(True) if not line.startswith("# ")]
            text = "".join(lines)
            if text or name not in ("etc/environment", "etc/modprobe.d/a.conf"):
                found[name] = f"{path.stat().st_mode:o} {hashlib.sha256(text.encode()).hexdigest()}"
    return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def fail_verification(host: Host, cause: str = "stack") -> None:
    """As verify.yml, which writes its result and nothing else."""
    failed = {"status": "fail", "cause": cause, "found": "nothing"}
    store.write(host.directory, store.LAST_RESULT, {"status": "fail", "checks": {"cuda.nvcc": failed}})


def fail_checks(host: Host) -> None:
    """As gpu_host.yml where nothing was changed and nothing is rolled back."""
    applied.doubt(host.directory, (), str(host.root), host.systemd)


def stop(host: Host) -> None:
    """As gpu_host.yml that fails at its first part."""
    host.begin()


def stop_twice(host: Host) -> None:
    stop(host)
    stop(host)


def stop_and_roll_back(host: Host) -> None:
    stop(host)
    host.roll_back()


def fail_checks_and_roll_back(host: Host) -> None:
    fail_checks(host)
    stop_and_roll_back(host)


SEQUENCES: dict[str, Callable[[Host], None]] = {
    "at once": lambda host: None,
    "after a failed verification": fail_verification,
    "after a failed check": fail_checks,
    "after a run that failed at its first part": stop,
    "after two such runs": stop_twice,
    "after a run that failed on its way": lambda host: host.run(stop_before="env_paths"),
    "after a rollback": stop_and_roll_back,
    "after a failed check and a rollback": fail_checks_and_roll_back,
}


@pytest.mark.parametrize("before", SEQUENCES)
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_known_until_the_next_run_has_repaired_it(name: str, before: str, host: Host) -> None:
    assert host.differing() == []
    host.damage(name)
    SEQUENCES[before](host)
    damaged = [thing for part in host.found().values() for thing in part["damage"]]
    assert damaged or before == "after a run that failed on its way", "that run may have repaired it"
    host.run()
    assert host.differing() == []
    assert host.systemd.text == SERVICE
    found = host.found()
    assert {name: part for name, part in found.items() if part["changed"] or part["why"] or part["damage"]} == {}


def test_pairs_of_damages_are_repaired_by_one_run(tmp_path: Path) -> None:
    for number, names in enumerate(itertools.combinations(DAMAGES, 2)):
        host = Host(tmp_path / str(number))
        for name in names:
            host.damage(name)
        list(SEQUENCES.values())[number % len(SEQUENCES)](host)
        host.run()
        assert (names, host.differing()) == (names, [])
        shutil.rmtree(tmp_path / str(number))


def test_damage_that_no_run_repairs_keeps_every_run_from_completing(host: Host) -> None:
    """A directory in place of the link: nothing of others is removed. Nothing of the record is lost by it."""
    shutil.move(host.root / "usr/local/cuda", host.root / "usr/local/old")
    (host.root / "usr/local/cuda").mkdir()
    thing = "link of the alternative cuda"
    for _unused in range(2):
        host.begin()
        with pytest.raises(ValueError, match=f"not repaired:\n  {thing} was points=/etc/alternatives/cuda"):
            host.record()
        host.roll_back()
        assert list(host.found()["cuda_toolkit"]["damage"]) == [thing]


def test_accepted_damage_stays_and_is_named_until_it_is_accepted_no_longer(host: Host) -> None:
    for name in ("LD_LIBRARY_PATH is set for everybody", "a file is edited", "a library is deleted"):
        host.damage(name)
    listing = "files of libnccl2=2.32.3-1+cuda13.2"
    names = ["LD_LIBRARY_PATH in /etc/environment", "file /etc/profile.d/cuda.sh", listing]
    for _unused in range(2):
        found = differences(f"/{STATE}", str(host.root), host.systemd, accepted=names)
        assert {thing for part in found.values() for thing in part["accepted"]} == set(names)
        assert not any(part[kind] for part in found.values() for kind in ("changed", "damage", "why"))
        assert not any(items for part in found.values() for items in part["repairs"].values())
        applied.record(host.directory, host.parts, str(host.root), host.systemd, accepted=names)
    host.run()
    assert host.differing() == []


@pytest.mark.parametrize("before", ["after a failed check", "after a failed verification"])
def test_a_failed_check_without_damage_has_every_part_applied_once(before: str, host: Host) -> None:
    SEQUENCES[before](host)
    assert {part["why"] for part in host.found().values()} == {applied.DOUBTED}
    host.run()
    assert {part["why"] for part in host.found().values()} == {""}


@pytest.mark.parametrize("cause", ["hardware", "host"])
def test_a_verification_that_failed_for_another_reason_is_no_doubt_about_the_record(cause: str, host: Host) -> None:
    fail_verification(host, cause)
    assert {part["why"] for part in host.found().values()} == {""}


def test_an_older_cache_of_the_linker_is_damage_whatever_was_recorded(host: Host) -> None:
    cache = host.root / "etc/ld.so.cache"
    current = cache.stat().st_mtime_ns
    os.utime(cache, (1, 1))
    content = store.read(host.directory, store.APPLIED) or {}
    content["parts"]["env_paths"]["resources"]["linker_cache"][""] = "older than /etc/ld.so.conf.d/x.conf"
    store.write(host.directory, store.APPLIED, content)
    damaged = differences("/" + STATE, str(host.root), host.systemd)["env_paths"]["damage"]
    (text,) = damaged.values()
    assert text.startswith("cache of the dynamic linker was current, is older than ")
    os.utime(cache, ns=(current, current))
    assert differences("/" + STATE, str(host.root), host.systemd)["env_paths"]["damage"] == {}
