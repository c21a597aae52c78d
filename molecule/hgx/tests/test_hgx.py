"""Fabric Manager on a host with NVSwitches: of exactly the driver's version, through an upgrade, a rollback and damage.

PCI devices, driver and Fabric Manager are simulated; the packages, the service and systemd are real. The tests run in
order: each one leaves the host as the next one needs it. converge has installed and verified driver 570.
"""

import json

import pytest

UNIT = "nvidia-fabricmanager"
OLD, NEW = "570.211.01", "595.71.05"

# testinfra moves tests without a host to the end; here the order matters.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


def packages(root) -> dict[str, str]:
    """Return {package: version} of the installed packages of driver and fabric."""
    lines = root.run_expect([0], "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'").stdout.splitlines()
    found = {name: version for state, name, version in map(str.split, lines) if state in ("ii", "hi")}
    return {name: version for name, version in found.items() if "nvidia" in name}


def held(root) -> set[str]:
    return set(root.run_expect([0], "apt-mark showhold").stdout.split())


def runs(root) -> bool:
    """Return whether the service is enabled and active."""
    states = [root.run(f"systemctl {verb} {UNIT}").stdout.strip() for verb in ("is-active", "is-enabled")]
    return states == ["active", "enabled"]


def check(reports, name: str) -> dict:
    """Return a check of the last run."""
    evidence = json.loads((reports / "newest/hgx-hopper/verify.json").read_text())
    return next(each for each in evidence["checks"] if each["id"] == name)


def test_fabric_manager_is_installed_with_the_driver_held_and_started(root):
    found = packages(root)
    assert found["nvidia-fabricmanager-570"] == found["libnvidia-nscq-570"] == f"{OLD}-1"
    assert {"nvidia-fabricmanager-570", "libnvidia-nscq-570"} <= held(root)
    assert runs(root)
    state = root.run_expect([0], "nvidia-smi --query-gpu=fabric.state --format=csv,noheader").stdout.split("\n")
    assert state[:8] == ["Completed"] * 8


def test_its_service_is_the_process_that_it_left_in_the_background(root):
    main = root.run_expect([0], f"systemctl show -p MainPID --value {UNIT}").stdout
    assert root.file("/run/nvidia-fabricmanager/nv-fabricmanager.pid").content_string == main
    assert "Successfully configured" in root.file("/var/log/fabricmanager.log").content_string


def test_it_is_verified_with_the_driver(root):
    verified = json.loads(root.file("/var/lib/gpuhost/verified.json").content_string)
    fabric = verified["plan"]["components"]["fabric"]
    assert (fabric["version"], fabric["services"]) == (OLD, [UNIT])
    assert verified["packages"]["nvidia-fabricmanager-570"]["version"] == f"{OLD}-1"


def test_a_stopped_fabric_manager_fails_although_the_fabric_is_complete(root, playbook, reports):
    root.run_expect([0], f"systemctl stop {UNIT}")
    playbook("verify", expect=2)
    assert check(reports, "driver.fabric_manager")["status"] == "fail"
    assert check(reports, "gpu.fabric")["status"] == "pass"


def test_the_next_run_starts_it(root, playbook):
    playbook("gpu_host")
    assert runs(root)


def test_it_moves_with_the_driver(root, playbook):
    playbook("gpu_host", "-e", "gpu_stack_driver=595")
    found = packages(root)
    assert found["nvidia-fabricmanager"] == found["libnvidia-nscq"] == f"{NEW}-1ubuntu1"
    assert not {name for name in found if name.endswith("-570")}
    assert {"nvidia-fabricmanager", "libnvidia-nscq"} <= held(root)
    assert runs(root)


def test_a_rollback_restores_both(root, playbook):
    playbook("rollback")
    found = packages(root)
    assert found["nvidia-fabricmanager-570"] == f"{OLD}-1"
    assert "nvidia-fabricmanager" not in found
    assert runs(root)


def test_another_version_is_found_and_replaced(root, playbook, reports):
    """As after an upgrade by hand: Fabric Manager without a branch in its name is in the repository, too."""
    root.run_expect([0], "apt-mark unhold nvidia-fabricmanager-570 libnvidia-nscq-570")
    root.run_expect([0], f"apt-get install -y --allow-downgrades nvidia-fabricmanager={NEW}-1ubuntu1")
    assert root.run(f"systemctl restart {UNIT}; sleep 1; systemctl is-active {UNIT}").stdout.strip() == "failed"
    playbook("verify", expect=2)
    assert check(reports, "driver.fabric_manager")["status"] == "fail"
    playbook("gpu_host")
    assert packages(root)["nvidia-fabricmanager-570"] == f"{OLD}-1"
    assert "nvidia-fabricmanager" not in packages(root)
    assert runs(root)


def test_a_teardown_removes_it(root, playbook):
    playbook("teardown")
    assert not {name for name in packages(root) if "fabricmanager" in name or "nscq" in name}
    assert root.run(f"systemctl is-active {UNIT}").stdout.strip() == "inactive"
