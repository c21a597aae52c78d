"""A global LD_LIBRARY_PATH is disabled by the role's own task, and its script still does everything else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command as command_
from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.module_utils.resources import kinds
from ansible_collections.gpuhost.stack.plugins.module_utils.resources.base import Host

from tests.unit.ansible_runs import printed, run_play

TASKS = yaml.safe_load((Path(__file__).resolve().parents[4] / "roles/env_paths/tasks/main.yml").read_text())
(TASK,) = (task for task in TASKS if task["name"].startswith("Comment out"))
# {case: (a script as people publish them; whether the role can disable its settings)}
SCRIPTS = {
    "the only command of a block": (
        'if [ -d / ]; then\n  export LD_LIBRARY_PATH="/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"\nfi\nexport SITE=1\n',
        True,
    ),
    "both branches": (
        'if [ -z "$LD_LIBRARY_PATH" ]; then\n    export LD_LIBRARY_PATH="/opt/a/lib64"\n'
        'else\n    export LD_LIBRARY_PATH="$LD_LIBRARY_PATH:/opt/a/lib64"\nfi\nSITE=1\n',
        True,
    ),
    "a function": ("cuda_on() {\n  export LD_LIBRARY_PATH=/x\n}\ncuda_on\nSITE=1\n", True),
    "beside another variable": ("export SITE=1 LD_LIBRARY_PATH=/usr/local/cuda/lib64\n", False),
    "a value on two lines": ("export LD_LIBRARY_PATH=/a/lib:\\\n/b/lib\nSITE=1\n", False),
    "one of several on continued lines": ("export SITE=1 \\\n  LD_LIBRARY_PATH=/x \\\n  OTHER=2\n", False),
    "a block on one line": ("if true; then SITE=1; export LD_LIBRARY_PATH=/x; fi\n", False),
}


def disable(folder: Path, *lines: dict[str, str]) -> None:
    play = {"hosts": "localhost", "gather_facts": False, "vars": {"env_paths_disabled_lines": lines}, "tasks": [TASK]}
    done = run_play(folder, play)
    assert done.returncode == 0, printed(done)


@pytest.mark.parametrize(("text", "is_disabled"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_login_script_does_everything_else_as_before(tmp_path, text, is_disabled):
    file = tmp_path / "etc/profile.d/site.sh"
    file.parent.mkdir(parents=True)
    file.write_text(text)

    now = kinds.read(str(tmp_path), {"library_path": True})
    differing = kinds.compare(Host(str(tmp_path), command_.run), {}, now, {})
    lines = Repairs.merged(each.repairs for each in differing.values()).lines
    disable(tmp_path, *({"file": f"{tmp_path}{path}", "line": line} for path, line in lines))
    assert (foreign_settings.library_path(str(tmp_path)) == {}) == is_disabled
    for shell in ("dash", "bash"):
        command = [shell, "-ec", f". {file}; echo $SITE"]
        ran = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
        assert (ran.stdout, ran.stderr) == ("1\n", ""), shell


def test_pam_env_reads_a_comment(tmp_path):
    file = tmp_path / "etc/environment"
    file.parent.mkdir()
    file.write_text('LD_LIBRARY_PATH="/x"\nA=1\n')
    disable(tmp_path, {"file": str(file), "line": 'LD_LIBRARY_PATH="/x"'})
    assert [line[:1] for line in file.read_text().splitlines()] == ["#", "A"]
