"""gpuhost.stack.apply selects alternatives, with the real update-alternatives in directories of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import alternative
from ansible_collections.gpuhost.stack.plugins.modules import apply

pytestmark = pytest.mark.skipif(shutil.which("update-alternatives") is None, reason="update-alternatives is not there")


class Host:
    """Two toolkits, each in a directory that is registered for the link `cuda`."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link, self.changed = top / "cuda", 0
        self.toolkits = [top / f"cuda-{version}" for version in ("12.9", "13.0")]
        places = {name: top / name for name in ("altdir", "admindir")}
        for directory in (*self.toolkits, *places.values()):
            directory.mkdir()
        self.options = [word for name, place in places.items() for word in (f"--{name}", str(place))]
        monkeypatch.setattr(alternative, "RECORDS", (str(places["admindir"]),))
        monkeypatch.setattr(alternative, "LINKS", str(places["altdir"]))

    def register(self) -> None:
        for priority, toolkit in enumerate(self.toolkits, 129):
            self.run(["update-alternatives", "--install", str(self.link), "cuda", str(toolkit), str(priority)])

    def run(self, words: list[str]) -> tuple[int, str, str]:
        command = [words[0], *self.options, "--log", "/dev/null", *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def select(self, toolkit: int, check: bool = False) -> list[Any]:
        return apply.select(
            SimpleNamespace(check_mode=check, run_command=self.run), "cuda", str(self.toolkits[toolkit])
        )

    def points(self) -> tuple[str, str]:
        mode = alternative.read("/", "cuda")
        return str(mode and mode["mode"]), self.link.resolve().name


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_a_toolkit_is_selected_by_hand_once(host: Host) -> None:
    host.register()
    assert host.points() == ("auto", "cuda-13.0")
    (planned,) = host.select(0, check=True)
    assert host.points() == ("auto", "cuda-13.0")
    assert host.select(0) == [planned]
    assert (planned["before"], planned["after"]) == (
        f"link to {host.toolkits[1]}, auto\n",
        f"link to {host.toolkits[0]}, manual\n",
    )
    assert host.points() == ("manual", "cuda-12.9")
    assert host.select(0) == []
    assert len(host.select(1)) == 1
    assert host.points() == ("manual", "cuda-13.0")


def test_what_was_chosen_by_its_priority_is_not_selected_yet(host: Host) -> None:
    """Another toolkit would take over when it is installed."""
    host.register()
    assert len(host.select(1)) == 1
    assert host.points() == ("manual", "cuda-13.0")


def test_the_link_of_a_selected_toolkit_is_restored(host: Host) -> None:
    host.register()
    host.select(0)
    host.link.unlink()
    host.link.symlink_to(host.toolkits[1])
    assert len(host.select(0)) == 1
    assert host.points() == ("manual", "cuda-12.9")


def test_an_alternative_that_no_package_has_registered_is_an_error_and_in_check_mode_a_change(host: Host) -> None:
    assert len(host.select(0, check=True)) == 1
    with pytest.raises(ValueError, match="there is no alternative cuda, expected that a package has registered it"):
        host.select(0)


def test_a_target_that_is_none_of_the_alternatives_is_the_error_of_the_program(host: Host) -> None:
    host.register()
    host.toolkits[0] = host.toolkits[0].with_name("cuda-14.0")
    with pytest.raises(ValueError, match=r"--set cuda .*cuda-14.0` failed with status 2: .*not registered"):
        host.select(0)
