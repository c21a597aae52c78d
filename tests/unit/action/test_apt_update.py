"""The action of the modules that need apt's locks, in Ansible itself, beside a process that holds a lock.

apt's directories are those of the test, in a mount namespace: neither this machine's apt nor its locks take part.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.unit.module_utils.lock_holder import held

PROJECT = Path(__file__).resolve().parents[3]
UNSHARE = ["unshare", "--map-root-user", "--mount"]
pytestmark = pytest.mark.skipif(
    shutil.which("apt-get") is None or subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0,
    reason="needs apt-get and mount namespaces",
)


@pytest.fixture
def apt(tmp_path: Path) -> Path:
    """Return a directory with an apt that has no repositories, and its package lists."""
    for directory in ("etc/preferences.d", "etc/apt.conf.d", "lists/partial"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "etc/apt.conf.d/sandbox").write_text('APT::Sandbox::User "root";\n')
    return tmp_path


@pytest.fixture
def holder(apt: Path) -> Iterator[subprocess.Popen[str]]:
    with held(apt / "lists/lock") as process:
        yield process


def start(apt: Path, seconds: object) -> subprocess.Popen[str]:
    """Start the module with the given lock_timeout."""
    command = [str(Path(sys.executable).with_name("ansible")), "localhost", "-m", "gpuhost.stack.apt_update"]
    command += ["-a", json.dumps({"lock_timeout": seconds}), "-e", f"ansible_python_interpreter={sys.executable}"]
    mounts = f"mount --bind {apt}/etc /etc/apt; mount --bind {apt}/lists /var/lib/apt/lists"
    ours = {"ANSIBLE_COLLECTIONS_PATH": str(PROJECT / "collections"), "ANSIBLE_FORCE_COLOR": "false"}
    return subprocess.Popen(
        [*UNSHARE, "sh", "-ec", f'{mounts}; exec "$@"', "sh", *command],
        cwd=apt, env={**os.environ, **ours}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def test_who_is_waited_for_is_printed_while_the_task_waits(apt: Path, holder: subprocess.Popen[str]) -> None:
    with start(apt, 60) as task:
        assert task.stdout is not None
        line = next(line for line in task.stdout if ": waiting, for at most" in line)
        assert line.startswith("localhost: waiting, for at most 60 s (gpu_stack_wait or lock_timeout): ")
        assert f"process {holder.pid} ({sys.executable} -c" in line
        assert line.endswith("holds /var/lib/apt/lists/lock\n")
        holder.communicate()
        rest = task.communicate(timeout=60)[0]
    assert task.returncode == 0, rest
    assert "localhost: waited " in rest
    assert "localhost | CHANGED" in rest


@pytest.mark.parametrize("seconds", [0, 1])
def test_after_its_time_the_task_fails_with_who_holds_the_lock(
    apt: Path, holder: subprocess.Popen[str], seconds: int
) -> None:
    with start(apt, seconds) as task:
        printed = task.communicate(timeout=60)[0]
    assert task.returncode == 2, printed
    assert f" process {holder.pid} (" in printed
    assert ("This task waited " in printed) == bool(seconds)


def test_a_wrong_option_is_left_to_the_module(apt: Path, holder: subprocess.Popen[str]) -> None:
    with start(apt, "soon") as task:
        printed = task.communicate(timeout=60)[0]
    assert "lock_timeout" in printed
    assert "soon" in printed


def test_every_module_that_ends_where_a_lock_is_held_has_this_action() -> None:
    """Without it, such a task would fail at once."""
    modules = {path.stem for path in (PROJECT / "plugins/modules").glob("*.py") if "apt_held_by" in path.read_text()}
    routing = yaml.safe_load((PROJECT / "meta/runtime.yml").read_text())["plugin_routing"]["modules"]
    routed = {name for name, entry in routing.items() if entry == {"action_plugin": "gpuhost.stack.apt_update"}}
    assert len(modules) > 1
    assert modules <= {"apt_update", *routed}
