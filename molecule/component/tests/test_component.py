"""A made-up component on a host: installed, held, checked, repaired, changed, restored and removed like the others.

The tests run in order: each one leaves the host as the next one needs it. converge has installed and verified 1.4.2.
"""

import json

import pytest

FILE = "/usr/share/gpu-telemetry/version"

# testinfra moves tests without a host to the end; here the order matters.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


def packages(host) -> dict[str, str]:
    """Return {package: version} of the installed packages."""
    lines = host.run_expect([0], "dpkg-query -W -f '${db:Status-Abbrev} ${Package} ${Version}\\n'").stdout.splitlines()
    return {name: version for state, name, version in map(str.split, lines) if state in ("ii", "hi")}


def test_it_is_installed_and_held_in_the_requested_version(root):
    assert packages(root)["gpu-telemetry"] == "1.4.2-1"
    assert "gpu-telemetry" in root.run_expect([0], "apt-mark showhold").stdout.split()


def test_it_is_verified_with_the_others(root):
    verified = json.loads(root.file("/var/lib/gpuhost/verified.json").content_string)
    assert verified["plan"]["components"]["telemetry"]["version"] == "1.4.2"
    assert verified["packages"]["gpu-telemetry"]["version"] == "1.4.2-1"
    applied = json.loads(root.file("/var/lib/gpuhost/applied.json").content_string)
    assert "telemetry" in applied["parts"]


def test_what_does_not_fit_is_refused_with_a_remedy_before_any_change(root, playbook):
    before = packages(root)
    done = playbook("gpu_host", "-e", "gpu_stack_telemetry=2", "-e", "gpu_stack_cuda=13.2", expect=2)
    assert "telemetry 2.0.0 does not run beside CUDA 13.2" in done.stdout
    assert "set gpu_stack_telemetry=1.4" in done.stdout
    assert packages(root) == before


def test_damage_is_repaired(root, playbook):
    root.run_expect([0], f"rm {FILE}")
    playbook("gpu_host")
    assert root.file(FILE).content_string == "1.4.2\n"


def test_its_package_is_simulated_in_the_preflight(root, playbook):
    root.run_expect([0], "apt-mark unhold gpu-telemetry && apt-get remove -y gpu-telemetry")
    done = playbook("preflight")
    assert "telemetry" in done.stdout
    playbook("gpu_host", "--tags", "telemetry")
    assert packages(root)["gpu-telemetry"] == "1.4.2-1"


def test_another_version_changes_nothing_else(root, playbook, reports):
    playbook("gpu_host")  # completes the run of one role
    before = packages(root)
    playbook("gpu_host", "-e", "gpu_stack_telemetry=2")
    assert packages(root) == {**before, "gpu-telemetry": "2.0.0-1"}
    (host,) = json.loads((reports / "newest/report.json").read_text())["hosts"]
    (row,) = [row for row in host["components"] if row["component"] == "telemetry"]
    assert (host["status"], row["requested"], row["installed"]) == ("verified", "2", "2.0.0-1")


def test_a_rollback_restores_the_version_before(root, playbook):
    playbook("rollback")
    assert packages(root)["gpu-telemetry"] == "1.4.2-1"
    assert "gpu-telemetry" in root.run_expect([0], "apt-mark showhold").stdout.split()


def test_tensorflow_is_installed_and_trained_without_pytorch_s_module(root, playbook, reports):
    playbook("gpu_host", "-e", "gpu_stack_tensorflow=auto")
    verified = json.loads(root.file("/var/lib/gpuhost/verified.json").content_string)
    assert "pytorch" not in verified["plan"]["components"]
    trained = json.loads((reports / "newest/component-hopper/smoke_train.json").read_text())
    assert (trained["status"], trained["framework"]) == ("pass", "tensorflow")


def test_a_teardown_removes_it(root, playbook):
    playbook("teardown")
    assert "gpu-telemetry" not in packages(root)
