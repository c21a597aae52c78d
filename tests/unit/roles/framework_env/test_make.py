"""make.py, run as the role runs it, with a uv and a framework that stand in for the real ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FILES = Path(__file__).resolve().parents[4] / "roles/framework_env/files"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
LOCK = "framework==1.2.3 --hash\n"
PROOF = "import framework, json; print('something else'); print(json.dumps({'version': framework.__version__}))"

# `uv venv` makes an environment, `uv pip sync` slowly puts in it what the lock on its standard input names. Calls are
# noted. Where there is a file `refusals`, as many syncs fail as it has lines, each with what its line says.
UV = f"""#!{sys.executable}
import os, pathlib, sys, time, venv
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(" ".join(sys.argv[1:3]) + "\\n")
if sys.argv[1] == "venv":
    venv.create(sys.argv[-1], symlinks=True)
else:
    name, version = sys.stdin.read().split()[0].split("==")
    time.sleep(0.5)
    refusals = here / "refusals"
    if refusals.exists() and (lines := refusals.read_text().splitlines()):
        refusals.write_text("".join(line + "\\n" for line in lines[1:]))
        sys.exit("error: " + lines[0])
    python = pathlib.Path(next(word for word in sys.argv if word.startswith("--python=")).split("=")[1])
    site = python.parent.parent / "lib/python{PYTHON}/site-packages"
    (site / f"{{name}}-{{version}}.dist-info").mkdir()
    (site / f"{{name}}-{{version}}.dist-info/METADATA").write_text(f"Name: {{name}}\\nVersion: {{version}}\\n")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(f"__version__ = '{{version}}'\\n")
"""


class Host:
    """What make.py is asked for, and where it makes it."""

    def __init__(self, base: Path) -> None:
        self.base, self.uv = base, base / "gpuhost/uv"
        self.environment = base / "gpuhost/environments/framework-1.2.3"
        (self.uv / "bin").mkdir(parents=True)
        (self.uv / "bin/uv").write_text(UV)
        (self.uv / "bin/uv").chmod(0o755)
        (self.uv / "gpuhost.lock").write_text("uv==1\n")
        self.program = (FILES / "make.py").read_text().replace("ATTEMPTS, PAUSE = 3, 10", "ATTEMPTS, PAUSE = 3, 0")
        assert "PAUSE = 3, 0" in self.program

    def start(self, **more: Any) -> subprocess.Popen[str]:
        asked = {"folder": str(self.environment), "python": PYTHON, "lock": LOCK,
                 "commands": {"tool": "framework/tool"}, "uv": str(self.uv), "uv_lock": "uv==1\n",
                 "package": "framework", "version": "1.2.3",
                 "packages": (FILES / "packages.py").read_text(), "proof": PROOF, **more}  # fmt: skip
        run = subprocess.Popen(
            [sys.executable, "-c", self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={"PATH": f"{self.base}/bin:/usr/bin:/bin"},
        )  # fmt: skip
        assert run.stdin
        run.stdin.write(json.dumps(asked))
        run.stdin.close()
        run.stdin = None
        return run

    def make(self, **more: Any) -> tuple[int, str, str]:
        run = self.start(**more)
        said, errors = run.communicate()
        return run.returncode, said, errors

    def calls(self) -> list[str]:
        record = self.uv / "bin/calls"
        return record.read_text().splitlines() if record.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_environment_is_made_proved_and_recorded(host: Host) -> None:
    status, said, errors = host.make()
    assert (status, errors) == (0, "")
    assert json.loads(said) == {"version": "1.2.3"}
    assert (host.environment / "gpuhost.lock").read_text() == LOCK
    assert (host.environment / "gpuhost.freeze").read_text() == "framework==1.2.3\n"
    assert (host.environment / "bin/tool").readlink() == Path(f"../lib/python{PYTHON}/site-packages/framework/tool")
    assert host.environment.stat().st_mode & 0o777 == 0o755


def test_what_an_interrupted_run_left_is_made_anew(host: Host) -> None:
    (host.environment / "lib").mkdir(parents=True)
    (host.environment / "left").write_text("")
    assert host.make()[0] == 0
    assert not (host.environment / "left").exists()


def test_two_at_a_time_make_it_once(host: Host) -> None:
    """The job of a run that was cut off is still at work when the next run begins."""
    first, second = host.start(), host.start()
    assert [json.loads(run.communicate()[0]) for run in (first, second)] == [{"version": "1.2.3"}] * 2
    assert host.calls() == ["venv --quiet", "pip sync"]


@pytest.mark.parametrize("damage", ["lock", "packages", "import"])
def test_a_damaged_one_is_made_anew_though_it_is_recorded(host: Host, damage: str) -> None:
    assert host.make()[0] == 0
    site = host.environment / f"lib/python{PYTHON}/site-packages"
    if damage == "lock":
        (host.environment / "gpuhost.lock").write_text("another")
    elif damage == "packages":
        (site / "framework-1.2.3.dist-info/METADATA").write_text("Name: framework\nVersion: 1.2.4\n")
    else:
        (site / "framework/__init__.py").write_text("import nothing_of_this_name")
    assert host.make()[:2] == (0, '{"version": "1.2.3"}\n')
    assert host.calls() == ["venv --quiet", "pip sync"] * 2


def test_what_fails_twice_is_tried_a_third_time(host: Host) -> None:
    (host.uv / "bin/refusals").write_text("Failed to fetch\n" * 2)
    assert host.make()[0] == 0


# A mirror that fails may answer the next time; what was published with another content stays so, and is gigabytes.
@pytest.mark.parametrize(("error", "tries"), [("Failed to fetch", 3), ("Hash mismatch for `framework==1.2.3`", 1)])
def test_an_installation_that_fails_is_told_in_uvs_words_and_leaves_no_record(
    host: Host, error: str, tries: int
) -> None:
    (host.uv / "bin/refusals").write_text(f"{error}\n" * 9)
    status, said, errors = host.make()
    assert (status, said) == (1, "")
    assert errors == f"Install the framework and its CUDA libraries, checked by hash: status 1\nerror: {error}\n\n"
    assert host.calls().count("pip sync") == tries
    assert not (host.environment / "gpuhost.lock").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"proof": "import sys; sys.exit('found a framework without CUDA')"},
            "Prove the environment: status 1\nfound a",
        ),
        ({"version": "1.2.4"}, "Record the packages: status 1\nfound framework==1.2.3 in "),
    ],
)
def test_one_that_does_not_prove_itself_leaves_no_record(host: Host, more: dict[str, str], told: str) -> None:
    status, _, errors = host.make(**more)
    assert status == 1
    assert told in errors
    assert not (host.environment / "gpuhost.lock").exists()


# python3 -m venv, whose pip puts the stand-in in place.
VENV = """#!/bin/sh
rm -rf "$4"; mkdir -p "$4/bin"
printf '#!/bin/sh\\ncat > %s/lock; cp %s/uv %s/bin/uv; chmod 755 %s/bin/uv\\n' "$4" "{base}" "$4" "$4" > "$4/bin/pip"
chmod 755 "$4/bin/pip"; echo "$@" >> "{base}/venvs"
"""


def test_uv_is_installed_where_it_is_missing_or_another_one(host: Host) -> None:
    (host.base / "bin").mkdir()
    (host.base / "bin/python3").write_text(VENV.replace("{base}", str(host.base)))
    (host.base / "bin/python3").chmod(0o755)
    (host.base / "uv").write_text(UV)
    assert host.make()[0] == 0
    assert not (host.base / "venvs").exists()
    assert host.make(uv_lock="uv==2\n", lock="framework==1.2.3 --other\n")[0] == 0
    assert (host.base / "venvs").read_text() == f"-m venv --clear {host.uv}\n"
    assert (host.uv / "lock").read_text() == (host.uv / "gpuhost.lock").read_text() == "uv==2\n"
