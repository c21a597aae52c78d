"""The installed collection from a bare host of the lab (simulated GPUs and driver) to a verified one, and back."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collection.conftest import PROJECT, call

INVENTORY = Path(__file__).with_name("hosts.yml")
HOST = "collection-hopper"


@pytest.fixture
def lab() -> Iterator[None]:
    """Start the inventory's host, and remove it."""

    def run(action: str) -> None:
        subprocess.run([sys.executable, "script/lab", action, str(INVENTORY)], cwd=PROJECT, check=True)

    run("up")
    yield
    run("down")


def evidence(site: Path, name: str) -> dict:
    found: dict = json.loads((site / "reports/latest" / HOST / f"{name}.json").read_text())
    return found


def test_gpu_host_by_fqcn_verifies_a_bare_host_and_teardown_leaves_nothing(
    lab: None, installed: Path, tmp_path: Path
) -> None:
    """Nothing of the clone runs: the user's directory has no ansible.cfg, and playbooks and roles are found by FQCN."""

    def run(name: str) -> str:
        command = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            f"gpuhost.stack.{name}",
            "-i",
            str(INVENTORY),
        ]
        answer = call(*command, cwd=tmp_path, HOME=os.environ["HOME"], ANSIBLE_COLLECTIONS_PATH=str(installed))
        assert answer.returncode == 0, answer.stdout[-6000:] + answer.stderr[-2000:]
        return answer.stdout

    run("gpu_host")
    assert evidence(tmp_path, "verify")["status"] == "pass"
    assert evidence(tmp_path, "smoke_train")["status"] == "pass"
    report = json.loads((tmp_path / "reports/latest/report.json").read_text())
    assert [host["status"] for host in report["hosts"]] == ["verified"]
    assert "changed=0 " in run("gpu_host")
    assert evidence(tmp_path, "smoke_train")["status"] == "reused"
    run("teardown")
    left = subprocess.run(
        ["ssh", "-F", str(PROJECT / ".lab/collection/ssh_config"), HOST, "ls -d /opt/gpuhost /usr/local/cuda*"],
        capture_output=True,
        text=True,
    )
    assert (left.returncode, left.stdout) == (2, "")
