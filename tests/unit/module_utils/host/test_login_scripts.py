"""Which lines of a login script set a variable, and which do nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import login_scripts

NAME = "LD_LIBRARY_PATH"
ONLY = {
    "LD_LIBRARY_PATH=/x": True,
    "  export LD_LIBRARY_PATH=/x": True,
    'export LD_LIBRARY_PATH="/usr/local/cuda/lib64:${LD_LIBRARY_PATH:-}"': True,
    'export LD_LIBRARY_PATH="/opt/a/lib64:/opt/b/lib"  # of the compiler': True,
    "LD_LIBRARY_PATH=/x; export LD_LIBRARY_PATH": True,
    "LD_LIBRARY_PATH+=:/x": True,
    "declare -x LD_LIBRARY_PATH=/x": False,
    "export PATH=/usr/local/cuda/bin:$PATH LD_LIBRARY_PATH=/usr/local/cuda/lib64": False,
    "if [ -d /x ]; then export PATH=/x:$PATH; export LD_LIBRARY_PATH=/x; fi": False,
    "[ -d /x ] && export LD_LIBRARY_PATH=/x": False,
    'COLOR="#fff"; export LD_LIBRARY_PATH=/y': False,
    ": ${LD_LIBRARY_PATH:=/y}": False,
    "SITE=1 LD_LIBRARY_PATH=/y": False,
    "arm) export LD_LIBRARY_PATH=/y;;": False,
    "cuda_on() { export LD_LIBRARY_PATH=/y; }": False,
    "export LD_LIBRARY_PATH=$(ldconfig -v)": False,
    "export LD_LIBRARY_PATH='/a:": False,  # goes on in the next line
}


@pytest.mark.parametrize(("line", "only"), ONLY.items(), ids=ONLY)
def test_a_line_that_sets_a_variable(line: str, only: bool) -> None:
    assert login_scripts.sets(line, NAME)
    assert login_scripts.only_sets(line, NAME) == only


@pytest.mark.parametrize(
    "line",
    [
        "# export LD_LIBRARY_PATH=/x",
        "true  # then LD_LIBRARY_PATH=/x",
        'echo "set LD_LIBRARY_PATH=/x yourself"',
        "LD_LIBRARY_PATH=/x /bin/prog",
        "env LD_LIBRARY_PATH=/x /bin/prog",
        "MY_LD_LIBRARY_PATH=/x",
        "LD_LIBRARY_PATHS=/x",
        "echo $LD_LIBRARY_PATH ${LD_LIBRARY_PATH:-/x}",
        'if [ -z "$LD_LIBRARY_PATH" ]; then',
        "export LD_LIBRARY_PATH",
        "echo don't",
    ],
)
def test_a_line_that_sets_none(line: str) -> None:
    assert not login_scripts.sets(line, NAME)
    assert not login_scripts.only_sets(line, NAME) or line == "export LD_LIBRARY_PATH"


def test_a_line_goes_on_after_a_backslash() -> None:
    assert login_scripts.logical_lines("a \\\n  b\nc\\\\\nd\\") == ["a   b", "c\\\\", "d"]


@pytest.mark.parametrize("line", ONLY, ids=ONLY)
def test_a_real_shell_agrees_that_the_line_sets_the_variable(line: str, tmp_path: Path) -> None:
    """A function does so when it is called; the others at once."""
    wanted = {
        "arm)": f"case arm in {line} esac",
        "cuda": f"{line}\ncuda_on",
        "export LD_LIBRARY_PATH='/a:": f"{line}\n/b'",
    }
    text = next((script for begin, script in wanted.items() if line.startswith(begin)), line)
    script = f"{text.replace('/x ]', '/tmp ]').replace('ldconfig -v', 'echo /x')}\necho set=${{LD_LIBRARY_PATH}}\n"
    done = subprocess.run(["bash", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert "set=/" in done.stdout or "set=:/x" in done.stdout, done.stdout + done.stderr
