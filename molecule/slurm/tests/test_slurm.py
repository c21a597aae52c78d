"""Jobs and the node of a real Slurm, on a host whose GPUs are simulated: a GPU is lost when its PCI device is removed.

The tests follow one another, as the states of a node do.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[3]
BUS = PROJECT / ".lab/slurm/pci/slurm-hopper"
AWAY = PROJECT / ".lab/slurm/lost"
NODE = "gpu-node-7"
GONE = "gpuhost: host.gpus: 0000:26:00.0 is not on the PCI bus any more: 1 of 2 GPUs"
METRICS = "/var/lib/prometheus/node-exporter/gpuhost.prom"
TRIES = 40  # seconds; a health check runs every five


@pytest.fixture(scope="module")
def node(as_root: Any) -> Callable[[], tuple[str, str]]:
    """Return a function that reads the node's state and reason."""

    def read() -> tuple[str, str]:
        text = as_root.run_expect([0], f"scontrol show node {NODE}").stdout
        reason = re.search(r"Reason=(.*?) \[", text)
        return re.findall(r"State=(\S+)", text)[0], reason[1] if reason else ""

    return read


@pytest.fixture(scope="module")
def wait(as_root: Any, node: Any) -> Callable[..., None]:
    """Return a function that waits until the node drains, or does not, with a reason."""

    def until(drains: bool, reason: str) -> None:
        for _unused in range(TRIES):
            state, found = node()
            if (("DRAIN" in state), found) == (drains, reason):
                return
            time.sleep(1)
        log = as_root.run("tail -n 30 /var/log/slurm/slurmd.log").stdout
        pytest.fail(f"expected {'a drain' if drains else 'none'}, {reason!r}, found {node()}\n{log}")

    return until


@pytest.fixture(scope="module")
def health_checks(as_root: Any) -> Callable[[], None]:
    """Return a function that waits until two more health checks have run."""

    def passed() -> None:
        before = _runs(as_root)
        for _unused in range(TRIES):
            if _runs(as_root) >= before + 2:
                return
            time.sleep(1)
        pytest.fail("slurmd ran no health check")

    return passed


def _runs(host: Any) -> int:
    return int(host.run(f"grep -c 'node {NODE}' /run/health-checks").stdout or 0)


@pytest.fixture(autouse=True, scope="module")
def noted(as_root: Any) -> None:
    """Note what each health check and prolog says, which slurmd does not show."""
    for script, option, log in (("health_check", "--health-check", "health-checks"), ("prolog", "--prolog", "prologs")):
        edit = f"s#{option}$#{option} >> /run/{log} 2>\\&1#"
        as_root.run_expect([0], f"sed -i '{edit}' /etc/slurm/{script}.sh")


@pytest.fixture
def lost() -> Iterator[None]:
    """Remove the second GPU from the bus, until the test ends."""
    lose()
    yield
    repair()


def lose() -> None:
    shutil.move(BUS / "0000:26:00.0", AWAY)


def repair() -> None:
    if AWAY.exists():
        shutil.move(AWAY, BUS / "0000:26:00.0")


def test_the_verdict_takes_less_than_two_seconds(as_root):
    answer = as_root.run("bash -c 'time gpuhost-verify'")
    assert answer.rc == 0, answer.stdout
    assert answer.stdout.startswith("slurm-hopper: verified; checked ")
    minutes, seconds = re.findall(r"real\s+(\d+)m([\d.]+)s", answer.stderr)[0]
    assert 60 * int(minutes) + float(seconds) < 2


def test_another_user_gets_no_verdict(as_root):
    answer = as_root.run("runuser -u nobody -- /usr/local/sbin/gpuhost-verify")
    assert answer.rc == 1
    assert "run gpuhost-verify as root" in answer.stdout


def test_every_check_can_be_asked_on_the_host(as_root):
    answer = as_root.run("gpuhost-verify --fresh")
    assert answer.rc == 0, answer.stdout + answer.stderr


def test_a_damaged_host_is_not_verified_and_no_check_fails(as_root):
    paths = "/etc/profile.d/cuda.sh"
    as_root.run_expect([0], f"mv {paths} /tmp/cuda.sh && echo LD_LIBRARY_PATH=/opt/evil >> /etc/environment")
    try:
        found = as_root.run_expect([0], "gpuhost-verify --fresh").stdout
        assert found.startswith("slurm-hopper: damaged; checked ")
        assert f"damaged: file {paths} was" in found
        assert "damaged: LD_LIBRARY_PATH in /etc/environment was" in found
    finally:
        as_root.run_expect([0], f"mv /tmp/cuda.sh {paths} && sed -i /evil/d /etc/environment")
    assert as_root.run_expect([0], "gpuhost-verify --fresh").stdout.startswith("slurm-hopper: verified; checked ")


def test_a_job_passes_the_prolog(as_root, wait):
    wait(False, "")
    assert as_root.run_expect([0], "srun --immediate=60 hostname").stdout.strip() == "slurm-hopper"
    assert as_root.file("/run/prologs").content_string.startswith("gpuhost: slurm-hopper: verified (checked ")


def test_a_host_whose_verification_is_pending_runs_jobs(as_root):
    """Which gpuhost-verify says, and ends with 1: a prolog that ends so would drain the node."""
    pending = "/var/lib/gpuhost/pending.json"
    as_root.run_expect([0], f'echo \'{{"since": "2026-11-01T10:00:00Z"}}\' > {pending}')
    try:
        assert as_root.run("gpuhost-verify").rc == 1
        as_root.run_expect([0], "srun --immediate=60 true")
    finally:
        as_root.run_expect([0], f"rm {pending}")


def test_a_lost_gpu_drains_the_node_and_its_return_resumes_it(as_root, wait, lost):
    assert as_root.run("gpuhost-verify").rc == 2
    wait(True, GONE)
    assert as_root.run("srun --immediate=5 true").rc != 0
    repair()
    wait(False, "")
    as_root.run_expect([0], "srun --immediate=60 true")


def test_a_drain_of_others_stays(as_root, node, wait, health_checks, lost):
    as_root.run_expect([0], f"scontrol update NodeName={NODE} State=DRAIN Reason='bad fan'")
    health_checks()
    assert (("DRAIN" in node()[0]), node()[1]) == (True, "bad fan")
    repair()
    health_checks()
    assert (("DRAIN" in node()[0]), node()[1]) == (True, "bad fan")
    as_root.run_expect([0], f"scontrol update NodeName={NODE} State=RESUME")
    wait(False, "")


def interval(host: Any, seconds: int) -> None:
    host.run_expect([0], f"sed -i s/HealthCheckInterval=.*/HealthCheckInterval={seconds}/ /etc/slurm/slurm.conf")
    host.run_expect([0], "scontrol reconfigure")


def test_a_prolog_that_fails_drains_with_slurms_reason_which_stays(as_root, wait, node, health_checks):
    """No health check runs before the job: Slurm requeues it and drains the node by itself."""
    interval(as_root, 0)
    time.sleep(6)  # one that runs already
    lose()
    try:
        as_root.run_expect([0], "sbatch --wrap true")
        wait(True, "Prolog error")
    finally:
        repair()
        interval(as_root, 5)
    health_checks()
    assert node()[1] == "Prolog error"
    as_root.run_expect([0], "scancel --user root")
    as_root.run_expect([0], f"scontrol update NodeName={NODE} State=RESUME")
    wait(False, "")


def test_the_timer_writes_metrics_that_promtool_accepts(as_root):
    assert as_root.service("gpuhost-verify.timer").is_running
    assert as_root.service("gpuhost-verify.timer").is_enabled
    as_root.run_expect([0], "rm -f /var/lib/gpuhost/gpuhost.prom && systemctl start gpuhost-verify.service")
    assert as_root.run(f"promtool check metrics < {METRICS}").rc == 0
    text = as_root.file(METRICS).content_string
    assert 'gpuhost_verify_status{status="pass"} 1' in text
    assert "gpuhost_verify_pci_gpus 2" in text
    assert as_root.run("runuser -u nobody -- cat " + METRICS).rc == 0


def test_the_timer_and_the_metrics_go_when_they_are_not_asked_for(as_root, playbook):
    output = playbook("gpu_host", "-e", "host_verify_timer=false", "-e", "host_verify_prometheus=false").stdout
    assert "host_verify" in output
    assert not as_root.service("gpuhost-verify.timer").is_running
    for path in ("/etc/systemd/system/gpuhost-verify.timer", METRICS, "/var/lib/gpuhost/gpuhost.prom"):
        assert not as_root.file(path).exists, path
    assert as_root.run("gpuhost-verify").rc == 0
    playbook("gpu_host")
    assert as_root.service("gpuhost-verify.timer").is_running


def test_verify_leaves_junit_xml(playbook, reports):
    playbook("verify")
    text = (reports / "newest/junit.xml").read_text()
    assert '<testsuite name="slurm-hopper"' in text
    assert 'name="driver.gpu_count"' in text


def test_teardown_removes_all_of_it_and_the_node_stays_in_use(as_root, playbook):
    playbook("teardown")
    for path in ("/usr/local/sbin/gpuhost-verify", "/opt/gpuhost", "/etc/systemd/system/gpuhost-verify.timer", METRICS):
        assert not as_root.file(path).exists, path
    assert "gpuhost-verify" not in as_root.run_expect([0], "systemctl list-timers").stdout
    assert as_root.run("systemctl is-active gpuhost-verify.timer").stdout.strip() == "inactive"
    assert not as_root.file("/var/lib/prometheus/node-exporter").exists
    as_root.run_expect([0], "srun --immediate=60 true")
