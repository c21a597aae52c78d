"""What roles and dnf do together on hosts of Enterprise Linux; the host suite has passed before.

The real dnf and rpm, on simulated packages; tests/unit/module_utils/packages/dnf has the manager's own cases.
"""

import json
from typing import Any

import pytest

LOCKS = "/etc/dnf/plugins/versionlock.list"
NEW = ("-e", "gpu_stack_driver=595", "-e", "gpu_stack_cuda=13.2")


class Host:
    """What rpm and dnf say of the host."""

    def __init__(self, host: Any) -> None:
        self.host = host

    def lines(self, command: str) -> list[str]:
        return self.host.run_expect([0], command).stdout.splitlines()

    @property
    def rpms(self) -> list[str]:
        return self.lines("sh -c 'rpm -qa | sort'")

    @property
    def history(self) -> list[str]:
        return self.lines("dnf history")

    @property
    def locks(self) -> set[str]:
        """The lines of versionlock's list, which goes with its plugin."""
        file = self.host.file(LOCKS)
        lines = file.content_string.splitlines() if file.exists else []
        return {line for line in lines if not line.startswith("#")}

    @property
    def stream(self) -> str:
        """The enabled stream of NVIDIA's module, "" for none, as in EL 10's repository."""
        files = self.lines("sh -c 'cat /etc/dnf/modules.d/*.module 2>/dev/null || true'")
        settings = dict(line.split("=", 1) for line in files if "=" in line)
        return settings.get("stream", "") if settings.get("state") == "enabled" else ""

    def state(self) -> tuple[Any, ...]:
        return (self.rpms, self.locks, self.stream)


@pytest.fixture
def dnf(as_root) -> Host:
    return Host(as_root)


@pytest.fixture
def report(reports):
    """Return a function that returns the host's row of the last run's report."""

    def read() -> dict[str, Any]:
        (row,) = json.loads((reports / "newest/report.json").read_text())["hosts"]
        return row

    return read


@pytest.fixture(scope="module")
def streams(as_root) -> bool:
    """Return whether NVIDIA's repository has streams, as that of EL 9."""
    return "nvidia-driver" in as_root.run_expect([0, 1], "dnf module list nvidia-driver").stdout


def test_a_rerun_changes_nothing(dnf, playbook, report, reports):
    before, history = dnf.state(), dnf.history
    playbook("gpu_host")
    assert report()["status"] == "verified"
    assert json.loads((reports / "newest/enterprise-linux-hopper/drift.json").read_text()) == {}
    assert dnf.state() == before
    assert dnf.history == history


def test_an_unlocked_and_damaged_package_is_repaired(dnf, as_root, playbook, reports):
    before = dnf.state()
    as_root.run_expect([0], "dnf versionlock delete nvidia-driver-cuda")
    as_root.run_expect([0], "rm /usr/bin/nvidia-smi")
    playbook("gpu_host", "--skip-tags", "verify,smoke_train")
    (reasons,) = json.loads((reports / "newest/enterprise-linux-hopper/drift.json").read_text()).values()
    assert any("nvidia-driver-cuda was held=True" in reason for reason in reasons), reasons
    assert any("nvidia-smi" in reason for reason in reasons), reasons
    assert as_root.file("/usr/bin/nvidia-smi").exists
    assert dnf.state() == before


def test_a_change_moves_the_stream_and_a_rollback_brings_it_back(dnf, playbook, report, streams):
    before, history = dnf.state(), len(dnf.history)
    assert dnf.stream == ("580-open" if streams else "")
    playbook("gpu_host", *NEW)
    assert report()["status"] == "verified"
    assert [line for line in dnf.rpms if line.startswith("nvidia-driver-cuda-595.")] != []
    assert dnf.stream == ("595-open" if streams else "")
    assert len(dnf.history) == history + 1  # one transaction
    playbook("rollback")
    assert dnf.state() == before


def test_the_host_is_given_back(dnf, as_root, playbook):
    playbook("teardown")
    before = as_root.file("/var/tmp/rpms-before").content_string.splitlines()
    left = [line for line in dnf.rpms if line not in before]
    # NVIDIA's key, which dnf has imported (docs/compatibility.md).
    assert [line.startswith("gpg-pubkey-") for line in left] == [True]
    assert [line for line in dnf.rpms if line not in left] == before
    assert (dnf.locks, dnf.stream) == (set(), "")
    for path in ("/etc/yum.repos.d/nvidia-cuda.repo", "/etc/pki/rpm-gpg/RPM-GPG-KEY-nvidia-cuda", "/usr/local/cuda"):
        assert not as_root.file(path).exists
