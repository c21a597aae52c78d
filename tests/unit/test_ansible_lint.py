"""ansible-lint's syntax checks: one process for all files, one for each where something is wrong."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

SYNTAX_CHECK = [str(Path(sys.executable).with_name("ansible-playbook")), "--syntax-check", "-i", "localhost,"]


@pytest.fixture
def ansible_lint():
    # Here, for it takes half a second, and each of the processes that run tests imports all of their files.
    from tests import ansible_lint

    return ansible_lint


@pytest.fixture
def files(ansible_lint, tmp_path: Path) -> list:
    kinds = {"one.yml": "playbook", "two.yml": "playbook", "roles/three": "role"}
    found = [ansible_lint.Lintable(tmp_path / name, kind=kind) for name, kind in kinds.items()]
    for file in found[:2]:
        file.path.write_text("[{hosts: all, tasks: [{ansible.builtin.ping: }]}]")
    (tmp_path / "roles/three/tasks").mkdir(parents=True)
    (tmp_path / "roles/three/tasks/main.yml").write_text("[{ansible.builtin.ping: }]")
    return found


@pytest.mark.parametrize("broken", ["", "two.yml", "roles/three/tasks/main.yml"])
def test_one_process_reads_all_and_each_is_asked_where_that_fails(ansible_lint, files, tmp_path, monkeypatch, broken):
    if broken:
        (tmp_path / broken).write_text((tmp_path / broken).read_text().replace("ping", "no_such_module"))
    read = []

    def check(file) -> list[str]:
        read.append((file.path.read_text(), subprocess.run([*SYNTAX_CHECK, file.path], capture_output=True, text=True)))
        return [read[0][1].stderr] if read[0][1].returncode else []

    monkeypatch.setattr(ansible_lint, "one_by_one", lambda runner, check, files: [["each", *files]])
    runtime = types.SimpleNamespace(has_playbook=None)
    runner = types.SimpleNamespace(app=types.SimpleNamespace(runtime=runtime))
    found = ansible_lint.together(runner, check, files)
    assert len(read) == 1
    assert found == ([["each", *files]] if broken else [])
    # What nobody has read is looked at when it is imported.
    assert (runtime.has_playbook is None) == bool(broken)
    if broken:
        assert f"{tmp_path / broken}:1:" in read[0][1].stderr
