"""What is kept for later runs, and when it is made anew."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import memory

FILES = (
    "catalog/cuda.yml",
    "meta/variables.yml",
    "playbooks/tasks/probe_and_plan.yml",
    "plugins/module_utils/a.py",
    "roles/a/b",
)


class Runs:
    """Runs of a project; each makes a list, unless an earlier one did."""

    def __init__(self, folder: Path) -> None:
        self.project, self.memory = folder / "project", folder / "cache/gpuhost/memory"
        self.made = 0
        for name in FILES:
            (self.project / name).parent.mkdir(parents=True)
            (self.project / name).write_text("a")

    def run(self) -> list[int]:
        memory._version.cache_clear()
        return memory.remembered("list", self.make, self.project)

    def make(self) -> list[int]:
        self.made += 1
        return [1, 2]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Runs(tmp_path)


def test_the_same_project_is_read_once(runs: Runs) -> None:
    assert [runs.run(), runs.run()] == [[1, 2], [1, 2]]
    assert runs.made == 1
    assert runs.memory.stat().st_mode & 0o777 == 0o700, "what is in it is loaded"


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["content", "name", "absent"])
def test_another_project_is_read(runs: Runs, name: str, change: str) -> None:
    runs.run()
    path = runs.project / name
    if change == "content":
        path.write_text("b")
    elif change == "name":
        path.rename(path.with_name("other"))
    else:
        path.unlink()
    assert runs.run() == [1, 2]
    assert runs.made == 2


def test_another_python_reads_the_project(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run()
    monkeypatch.setattr(memory.sys, "version", "another")
    runs.run()
    assert runs.made == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"cnone\nsuch\n.", pickle.dumps([]), pickle.dumps(("another", [3]))],
    ids=["empty", "no pickle", "a class that is gone", "another shape", "another project"],
)
def test_a_file_that_does_not_have_it_is_replaced(runs: Runs, content: bytes) -> None:
    runs.run()
    (runs.memory / "list.pickle").write_bytes(content)
    assert [runs.run(), runs.run()] == [[1, 2], [1, 2]]
    assert runs.made == 2


def test_where_nothing_can_be_kept_each_run_reads_the_project(runs: Runs) -> None:
    runs.memory.parent.parent.touch()
    assert [runs.run(), runs.run()] == [[1, 2], [1, 2]]
    assert runs.made == 2


def test_a_project_that_cannot_be_read_whole_is_read_by_each_run(runs: Runs) -> None:
    (runs.project / "plugins/.#a.py").symlink_to("user@host.123")  # as Emacs locks an edited file
    assert [runs.run(), runs.run()] == [[1, 2], [1, 2]]
    assert runs.made == 2
