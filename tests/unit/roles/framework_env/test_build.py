"""build.py, run like in the role, with a fake uv and a fake framework."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.lock_files import find_uv, resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.locks import Recipe

from tests.unit.package_index import serve

FILES = Path(__file__).resolve().parents[4] / "roles/framework_env/files"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ISOLATION = {
    "kept": ["*_proxy"],
    "dropped": ["PYTHON*", "UV_SYSTEM_PYTHON", "PIP_USER", "LC_*"],
    "set": {"LC_ALL": "C.UTF-8", "KERAS_HOME": "{directory}"},
}
LOCK = "framework==1.2.3 --hash\n"
VERIFY = "import framework, json; print('something else'); print(json.dumps({'version': framework.__version__}))"

# `uv venv` creates an environment, `uv pip sync` slowly installs the lock on its standard input. Calls are recorded.
# If a file `expected` exists, a sync waits until build.py has recorded its line as the progress.
# Each line of a file `failures` makes one sync fail with that error.
UV = f"""#!{sys.executable}
import os, pathlib, sys, time, venv
here = pathlib.Path(__file__).parent
with open(here / "calls", "a") as calls:
    calls.write(" ".join(sys.argv[1:3]) + "\\n")
with open(here / "steps", "a") as steps:
    steps.write(pathlib.Path("progress").read_text())
if sys.argv[1] == "venv":
    venv.create(sys.argv[-1], symlinks=True)
else:
    name, version = sys.stdin.read().split()[0].split("==")
    # As uv 0.13.8 prints it where it is no terminal.
    print("Resolved 2 packages in 98ms", "Downloading nvidia-cudnn-cu12 (1.5GiB)", "Downloading framework (512.0MiB)",
          " Downloaded framework", sep=chr(10), file=sys.stderr, flush=True)
    time.sleep(0.5)
    if (here / "expected").exists():
        deadline = time.monotonic() + 60
        while pathlib.Path("progress").read_text() != (here / "expected").read_text():
            assert time.monotonic() < deadline, pathlib.Path("progress").read_text()
            time.sleep(0.05)
    failures = here / "failures"
    if failures.exists() and (lines := failures.read_text().splitlines()):
        failures.write_text("".join(line + "\\n" for line in lines[1:]))
        sys.exit("error: " + lines[0])
    python = pathlib.Path(next(word for word in sys.argv if word.startswith("--python=")).split("=")[1])
    site = python.parent.parent / "lib/python{PYTHON}/site-packages"
    (site / f"{{name}}-{{version}}.dist-info").mkdir()
    (site / f"{{name}}-{{version}}.dist-info/METADATA").write_text(f"Name: {{name}}\\nVersion: {{version}}\\n")
    (site / name).mkdir()
    (site / name / "__init__.py").write_text(f"__version__ = '{{version}}'\\n")
"""


class Host:
    """The request and its directories."""

    def __init__(self, base: Path) -> None:
        self.base, self.uv = base, base / "gpuhost/uv"
        self.users: dict[str, str] = {}  # settings of the host's users
        self.environment = base / "gpuhost/environments/framework-1.2.3"
        (self.uv / "bin").mkdir(parents=True)
        (self.uv / "bin/uv").write_text(UV)
        (self.uv / "bin/uv").chmod(0o755)
        (self.uv / "gpuhost.lock").write_text("uv==1\n")
        self.program = (FILES / "build.py").read_text().replace("ATTEMPTS, PAUSE = 3, 10", "ATTEMPTS, PAUSE = 3, 0")
        assert "PAUSE = 3, 0" in self.program

    def start(self, **more: Any) -> subprocess.Popen[str]:
        request = {"directory": str(self.environment), "python": PYTHON, "lock": LOCK,
                   "commands": {"tool": "framework/tool"}, "uv": str(self.uv), "uv_lock": "uv==1\n",
                   "environment": {"UV_NO_PROGRESS": "1"}, "damaged": [],
                   "isolation": ISOLATION,
                   "package": "framework", "version": "1.2.3", "verify_script": VERIFY,
                   "check_packages_script": (FILES / "check_packages.py").read_text(), **more}  # fmt: skip
        run = subprocess.Popen(
            [sys.executable, "-c", self.program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={"PATH": f"{self.base}/bin:/usr/bin:/bin", **self.users}, cwd=self.base,
        )  # fmt: skip
        assert run.stdin
        run.stdin.write(json.dumps(request))
        run.stdin.close()
        run.stdin = None
        return run

    def build(self, **more: Any) -> tuple[int, str, str]:
        run = self.start(**more)
        output, errors = run.communicate()
        return run.returncode, output, errors

    def calls(self) -> list[str]:
        record = self.uv / "bin/calls"
        return record.read_text().splitlines() if record.exists() else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_environment_is_built_verified_and_recorded(host: Host) -> None:
    status, output, errors = host.build()
    assert (status, errors) == (0, "")
    assert json.loads(output) == {"version": "1.2.3"}
    assert (host.environment / "gpuhost.lock").read_text() == LOCK
    assert (host.environment / "gpuhost.freeze").read_text() == "framework==1.2.3\n"
    assert (host.environment / "bin/tool").readlink() == Path(f"../lib/python{PYTHON}/site-packages/framework/tool")
    assert host.environment.stat().st_mode & 0o777 == 0o755


def test_temporary_files_are_beside_the_environments_and_removed(host: Host) -> None:
    """On /tmp, which may be a small tmpfs, they would not fit."""
    left = host.base / "gpuhost/tmp/left"
    left.mkdir(parents=True)
    (host.uv / "bin/uv").write_text(
        UV.replace("venv.create", "(here / 'tmp').write_text(os.environ['TMPDIR']); venv.create")
    )
    status, _output, errors = host.build()
    assert status == 0, errors
    assert (host.uv / "bin/tmp").read_text() == str(host.base / "gpuhost/tmp")
    assert not left.parent.exists()


def test_settings_of_users_reach_no_command_but_index_and_proxy_do(host: Host) -> None:
    (host.base / "elsewhere/framework").mkdir(parents=True)
    (host.base / "elsewhere/framework/__init__.py").write_text("raise ImportError('another framework')")
    host.users = {
        **{"PYTHONPATH": str(host.base / "elsewhere"), "UV_SYSTEM_PYTHON": "1", "LC_ALL": "de_DE"},
        **{"UV_DEFAULT_INDEX": "https://pypi.example.org/simple", "https_proxy": "http://proxy:3128"},
    }
    record = "import json; (here / 'seen').write_text(json.dumps([dict(os.environ), os.getcwd()]))\n"
    (host.uv / "bin/uv").write_text(UV.replace("with open(here", record + "with open(here", 1))
    status, _output, errors = host.build()
    assert status == 0, errors
    seen, directory = json.loads((host.uv / "bin/seen").read_text())
    users = {name: seen.get(name) for name in (*host.users, "KERAS_HOME")}
    assert users == {
        **{"PYTHONPATH": None, "UV_SYSTEM_PYTHON": None, "LC_ALL": "C.UTF-8", "KERAS_HOME": "/dev/null"},
        **{"UV_DEFAULT_INDEX": "https://pypi.example.org/simple", "https_proxy": "http://proxy:3128"},
    }
    assert directory == str(host.base / "gpuhost/tmp"), "where no uv.toml of a user is"


def test_incomplete_environment_is_rebuilt(host: Host) -> None:
    (host.environment / "lib").mkdir(parents=True)
    (host.environment / "left").write_text("")
    assert host.build()[0] == 0
    assert not (host.environment / "left").exists()


def test_concurrent_builds_run_once(host: Host) -> None:
    """The job of an interrupted run is still running when the next run starts."""
    first, second = host.start(), host.start()
    assert [json.loads(run.communicate()[0]) for run in (first, second)] == [{"version": "1.2.3"}] * 2
    assert host.calls() == ["venv --quiet", "pip sync"]


@pytest.mark.parametrize("damage", ["lock", "packages", "import"])
def test_damaged_environment_is_rebuilt(host: Host, damage: str) -> None:
    assert host.build()[0] == 0
    site = host.environment / f"lib/python{PYTHON}/site-packages"
    if damage == "lock":
        (host.environment / "gpuhost.lock").write_text("another")
    elif damage == "packages":
        (site / "framework-1.2.3.dist-info/METADATA").write_text("Name: framework\nVersion: 1.2.4\n")
    else:
        (site / "framework/__init__.py").write_text("import nothing_of_this_name")
    assert host.build()[:2] == (0, '{"version": "1.2.3"}\n')
    assert host.calls() == ["venv --quiet", "pip sync"] * 2


@pytest.mark.parametrize(("linked", "calls"), [(False, "pip sync"), (True, "--no-cache pip")])
def test_replacement_of_a_damaged_environment_does_not_copy_the_damage(host: Host, linked: bool, calls: str) -> None:
    """A file that is a hard link into uv's cache is damaged in the cache, too."""
    damaged = host.environment.with_name("framework-1.2.2")
    metadata = damaged / f"lib/python{PYTHON}/site-packages/framework-1.2.2.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: framework\n")
    (damaged / "gpuhost.lock").write_text("framework==1.2.2\n")
    if linked:
        (host.base / "cached").hardlink_to(metadata)
    assert host.build(damaged=[str(damaged)])[0] == 0
    assert host.calls() == ["venv --quiet", calls]
    assert not (damaged / "gpuhost.lock").exists(), "a later run would take it for complete"


def test_how_much_is_downloaded_is_recorded_for_the_role_that_waits(host: Host) -> None:
    (host.uv / "bin/expected").write_text("step:downloading wheels, 512 of 2048 MiB downloaded\n")
    status, _output, errors = host.build()
    assert status == 0, errors
    assert (host.uv / "bin/steps").read_text().splitlines() == [
        "step:create the virtual environment",
        "step:install the framework and its CUDA libraries, checked by hash",
    ]


def test_failed_download_is_retried_twice(host: Host) -> None:
    (host.uv / "bin/failures").write_text("Failed to fetch\n" * 2)
    assert host.build()[0] == 0


# A failed download may succeed later; a file with the wrong content will not, and is gigabytes.
@pytest.mark.parametrize(("error", "tries"), [("Failed to fetch", 3), ("Hash mismatch for `framework==1.2.3`", 1)])
def test_failed_installation_reports_the_error_of_uv_and_leaves_no_record(host: Host, error: str, tries: int) -> None:
    (host.uv / "bin/failures").write_text(f"{error}\n" * 9)
    status, output, errors = host.build()
    assert (status, output) == (1, "")
    step = "Install the framework and its CUDA libraries, checked by hash"
    assert errors == f"{step}: status 1\nResolved 2 packages in 98ms\nerror: {error}\n\n"
    assert host.calls().count("pip sync") == tries
    assert not (host.environment / "gpuhost.lock").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"verify_script": "import sys; sys.exit('found a framework without CUDA')"},
            "Verify the environment: status 1\nfound a",
        ),
        ({"version": "1.2.4"}, "Record the packages: status 1\nfound framework==1.2.3 in "),
    ],
)
def test_failed_verification_leaves_no_record(host: Host, changes: dict[str, str], message: str) -> None:
    status, _, errors = host.build(**changes)
    assert status == 1
    assert message in errors
    assert not (host.environment / "gpuhost.lock").exists()


# `python3 -m venv`, whose pip installs the fake uv.
VENV = """#!/bin/sh
rm -rf "$4"; mkdir -p "$4/bin"
printf '#!/bin/sh\\ncat > %s/lock; cp %s/uv %s/bin/uv; chmod 755 %s/bin/uv\\n' "$4" "{base}" "$4" "$4" > "$4/bin/pip"
chmod 755 "$4/bin/pip"; echo "$@" >> "{base}/venvs"
"""


def test_damaged_uv_is_replaced_beside_a_complete_environment(host: Host) -> None:
    (host.base / "bin").mkdir()
    (host.base / "bin/python3").write_text(VENV.replace("{base}", str(host.base)))
    (host.base / "bin/python3").chmod(0o755)
    (host.base / "uv").write_text(UV)
    assert host.build()[0] == 0
    (host.uv / "left").write_text("")
    assert host.build(damaged=[str(host.uv)])[0] == 0
    assert not (host.uv / "left").exists()
    assert host.calls() == [], "the environment is not built again"


def test_uv_of_another_lock_is_replaced(host: Host) -> None:
    (host.base / "bin").mkdir()
    (host.base / "bin/python3").write_text(VENV.replace("{base}", str(host.base)))
    (host.base / "bin/python3").chmod(0o755)
    (host.base / "uv").write_text(UV)
    assert host.build()[0] == 0
    assert not (host.base / "venvs").exists()
    assert host.build(uv_lock="uv==2\n", lock="framework==1.2.3 --other\n")[0] == 0
    assert (host.base / "venvs").read_text() == f"-m venv --clear {host.uv}\n"
    assert (host.uv / "lock").read_text() == (host.uv / "gpuhost.lock").read_text() == "uv==2\n"


def test_a_build_of_pytorchs_own_index_is_locked_and_installed(host: Host, tmp_path: Path) -> None:
    """With the real uv, indexes of our own and the variables of the role: the real index was never asked."""
    tag = "py3-none-any"
    verify = "import importlib.metadata as m; print('{\"numpy\": \"%s\"}' % m.version('numpy'))"
    with serve() as pypi, serve("/whl/cu126") as own:
        pypi.add("torch", "2.14.1", tag)
        pypi.add("numpy", "2.4.0", tag)
        own.add("torch", "2.14.1+cu126", tag)
        own.add("numpy", "1.26.3", tag)
        uv = {"UV_DEFAULT_INDEX": pypi.url, "UV_CACHE_DIR": str(tmp_path / "cache"), "NO_PROXY": "127.0.0.1"}
        recipe = Recipe(("torch==2.14.1+cu126", "numpy"), PYTHON, "x86_64-manylinux_2_31", extra_index=own.url)
        (host.uv / "bin/uv").unlink()
        (host.uv / "bin/uv").symlink_to(Path(find_uv()).resolve())
        status, output, errors = host.build(
            package="torch",
            version="2.14.1",
            lock=resolve(recipe, {}, uv),
            commands={},
            verify_script=verify,
            environment={**uv, "UV_INDEX": own.url, "UV_INDEX_STRATEGY": "unsafe-best-match"},
        )
    assert status == 0, errors
    assert json.loads(output) == {"numpy": "2.4.0"}
    assert "torch==2.14.1+cu126\n" in (host.environment / "gpuhost.freeze").read_text()
