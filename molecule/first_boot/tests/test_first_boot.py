"""gpu_host.yml starts while cloud-init and Unattended-Upgrades, both Debian's own, are running."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.doubles.lab.containers import CA_BUNDLE, Lab

PROJECT = Path(__file__).resolve().parents[3]
SCENARIO = PROJECT / "molecule/first_boot"
HOST = "first-boot-hopper"
LAB = Lab("first_boot", PROJECT)
STATE = PROJECT / "molecule/shared/state.sh"
WAIT_SECONDS = 120
PORT = 8099  # of the slow repository in prepare.yml
SEED = "/var/lib/cloud/seed/nocloud"
USER_DATA = f"""#cloud-config
runcmd:
  - [sh, {SEED}/run]
"""
RUN = f"""cd /root/gpuhost
export HOME=/root
.venv/bin/ansible-playbook playbooks/gpu_host.yml -i inventories/local -e @{SEED}/variables.json >/root/run.log 2>&1
result=$?
cloud-init status >/root/cloud-init-status
echo $result >/root/run.status
"""
WAITS = re.compile(rf"{HOST}: waiting, for at most (\d+) s(?: \(gpu_stack_wait.*?\))?: (.*)")


def in_host(script: str) -> str:
    command = ["docker", "exec", LAB.container(HOST), "sh", "-c", script]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def wait_for(script: str, seconds: int = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while in_host(f"{script} >/dev/null 2>&1 && echo yes || true") != "yes":
        assert time.monotonic() < deadline, f"{script}: not within {seconds} s:\n{in_host('ps axf')}"
        time.sleep(0.3)


@pytest.fixture(scope="module", autouse=True)
def booted() -> Iterator[None]:
    """Boot the host, and wait until both are running and a login is possible, no longer."""
    subprocess.run(["docker", "restart", "--time=5", LAB.container(HOST)], check=True, capture_output=True)
    wait_for("test -e /root/asked-by-cloud-init-with-sudo && ! test -e /run/nologin && ss -ltn | grep -q ':22 '")
    wait_for("test -e /root/slow")
    yield
    in_host("touch /root/go-on")


@pytest.fixture(scope="module")
def refused(
    booted: None,
    playbook: Callable[..., subprocess.CompletedProcess[str]],
    sections: Callable[[str], dict[str, list[str]]],
    differences: Callable[..., list[str]],
) -> tuple[str, list[str]]:
    """Return what a run printed that may not wait, and what it changed."""
    before = sections(in_host(STATE.read_text()))
    printed = str(playbook("gpu_host", "-e", "gpu_stack_wait=1", expect=2).stdout)
    return printed, differences(before, sections(in_host(STATE.read_text())))


@pytest.fixture(scope="module")
def output(refused: tuple[str, list[str]], pytestconfig: pytest.Config) -> str:
    """Return what gpu_host.yml printed: both continue only after it has begun to wait for them."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/gpu_host.yml"]
    command += ["-i", str(pytestconfig.getoption("ansible_inventory"))]
    with subprocess.Popen(
        command, cwd=PROJECT, env={**os.environ, "ANSIBLE_FORCE_COLOR": "false"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        lines = []
        for line in run.stdout:
            lines.append(line)
            if WAITS.match(line) and len([line for line in lines if WAITS.match(line)]) == 1:
                assert in_host("ls /root/cloud-init-is-done 2>/dev/null || true") == ""
                in_host("touch /root/go-on")
    assert run.returncode == 0, "".join(lines)[-6000:]
    return "".join(lines)


def test_a_run_that_may_not_wait_is_refused_with_who_is_at_work(refused: tuple[str, list[str]]) -> None:
    printed, changes = refused
    assert changes == []
    words = " ".join(printed.split())
    assert "cloud-init-running: cloud-init still sets up this host" in words
    # systemd starts it as python3 with this argument.
    assert re.search(
        r"apt-busy: apt is busy: process \d+ \([^)]*unattended-upgrade[^)]*\) holds /var/lib/dpkg/lock", words
    )
    assert "longer with -e gpu_stack_wait=SECONDS" in words


def test_a_run_waits_for_both_and_prints_for_whom_and_how_long(output: str) -> None:
    (limit, reason), *_more = WAITS.findall(output)
    assert limit == "600"
    assert "cloud-init still sets up this host" in reason
    assert "unattended-upgrade" in reason
    assert f"{HOST}: waited " in output


def test_both_have_finished_their_work(output: str) -> None:
    in_host("test -e /root/cloud-init-is-done && test -e /run/cloud-init/result.json")
    assert in_host("dpkg-query --show --showformat='${Version} ${db:Status-Status}' gpuhost-test") == "2 installed"
    assert "Packages that will be upgraded: gpuhost-test" in in_host(
        "cat /var/log/unattended-upgrades/unattended-upgrades.log"
    )


def test_a_process_that_cloud_init_started_does_not_see_it_at_work(output: str) -> None:
    assert in_host("cat /root/asked-by-cloud-init") == "False"
    assert in_host("cat /root/asked-by-cloud-init-with-sudo") == "False"


def test_a_broken_repository_of_somebody_else_is_a_warning_that_names_it(output: str) -> None:
    words = " ".join(output.split())
    assert re.search(r"\[WARNING\]: .*apt-get update could not refresh all repositories.*repository\.lab/gone", words)


def test_the_headers_of_the_older_kernel_are_installed_and_no_other_kernel(output: str) -> None:
    newest = in_host("apt-cache depends --important linux-image-cloud-amd64 | sed -n 's/^ *Depends: linux-image-//p'")
    kernel = in_host("cd /boot; ls vmlinuz-*").removeprefix("vmlinuz-")
    assert kernel != newest
    shown = in_host(f"dpkg-query --show --showformat='${{db:Status-Status}}' linux-headers-{kernel}")
    assert shown == "installed"


@pytest.mark.parametrize(
    ("unit", "holder", "lock", "name", "options"),
    [
        ("apt-daily-upgrade", "unattended-upgrade", "/var/lib/dpkg/lock", "package_transaction", {"packages": ["sl"]}),
        ("apt-daily", "apt-get", "/var/lib/apt/lists/lock", "apt_update", {}),
    ],
)
def test_locks_that_are_taken_after_the_plan_are_waited_for(
    output: str, pytestconfig: pytest.Config, unit: str, holder: str, lock: str, name: str, options: dict[str, object]
) -> None:
    """Unattended-Upgrades configures the slow package again; apt-daily reads a slow repository."""
    in_host("rm -f /root/go-on /root/slow /var/lib/apt/periodic/*; dpkg --install /root/package-1.deb")
    slow = f"deb [trusted=yes] http://127.0.0.1:{PORT} ./"
    in_host(f"echo '{slow}' > /etc/apt/sources.list.d/slow.list" if unit == "apt-daily" else "true")
    in_host(f"systemctl start --no-block {unit}.service")
    wait_for("test -e /root/slow")

    def module(seconds: int) -> subprocess.Popen[str]:
        """Start a module on the host, as a task of a run does after the plan."""
        command = [str(Path(sys.executable).with_name("ansible")), HOST, "-m", f"gpuhost.stack.{name}"]
        command += ["-i", str(pytestconfig.getoption("ansible_inventory"))]
        command += ["-a", json.dumps({"lock_timeout": seconds, **options})]
        return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    with module(1) as task:
        printed = task.communicate(timeout=WAIT_SECONDS)[0]
        assert task.returncode == 2, printed
        assert re.search(rf"process \d+ \([^)]*{holder}[^)]*\) holds {lock}", printed)
        assert "This task changed nothing. " in printed
    with module(WAIT_SECONDS) as task:
        assert task.stdout is not None
        (limit, reason) = next(found.groups() for line in task.stdout if (found := WAITS.match(line)))
        assert int(limit) == WAIT_SECONDS
        assert holder in reason
        assert task.poll() is None
        in_host("touch /root/go-on")
        printed = task.communicate(timeout=WAIT_SECONDS)[0]
    in_host("rm -f /etc/apt/sources.list.d/slow.list")
    assert task.returncode == 0, printed
    assert f"{HOST} | CHANGED" in printed


def test_a_run_that_cloud_init_starts_does_not_wait_for_it(output: str, tmp_path: Path) -> None:
    """The README's commands for this machine, in its user data: they repair a damage before cloud-init is done."""
    files = (SCENARIO / "group_vars/gpu_hosts.yml", SCENARIO / "hosts.yml")
    group, scenario = (yaml.safe_load(path.read_text()) for path in files)
    variables = {**group, **scenario["gpu_hosts"]["hosts"][HOST]}
    variables = {name: value for name, value in variables.items() if not name.startswith(("ansible_", "lab_"))}
    variables["gpu_stack_repository_key_fingerprint"] = (LAB.state / "repository-key-fingerprint").read_text().strip()
    seeds = {
        "variables.json": json.dumps(variables),
        "user-data": USER_DATA,
        "run": RUN,
        "meta-data": "instance-id: first-boot-2\n",
    }
    for name, text in seeds.items():
        (tmp_path / name).write_text(text)
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, check=True, capture_output=True).stdout
    for folder, words in (("/root/gpuhost", ["--null", "-T", "-"]), (SEED, ["-C", str(tmp_path), *seeds])):
        tar = subprocess.run(["tar", "-c", *words], cwd=PROJECT, input=tracked, check=True, capture_output=True).stdout
        extract = f"mkdir -p {folder} && tar -x -C {folder} --no-same-owner"
        subprocess.run(["docker", "exec", "-i", LAB.container(HOST), "sh", "-c", extract], input=tar, check=True)
    # As behind a proxy that inspects HTTPS: pip and uv bring certificates of their own.
    in_host(f"export PIP_CERT={CA_BUNDLE} SSL_CERT_FILE={CA_BUNDLE}; /root/gpuhost/script/bootstrap --quiet")
    smi = in_host("readlink -f /usr/bin/nvidia-smi")
    in_host(f"rm {smi}")
    subprocess.run(["docker", "restart", "--time=5", LAB.container(HOST)], check=True, capture_output=True)
    wait_for("test -s /root/run.status", seconds=600)
    log = in_host("cat /root/run.log")
    assert in_host("cat /root/run.status") == "0", log[-6000:]
    assert in_host("cat /root/cloud-init-status") == "status: running"
    assert f"{smi} is missing" in log
    assert in_host(f"test -s {smi} && echo there") == "there"
    assert ": waiting, for at most" not in log
