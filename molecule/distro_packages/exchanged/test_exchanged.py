"""After each switch: packages of one driver only, the requested toolkits, and the right nvcc in every shell."""

import os
import re

import pytest

DRIVER, CUDA = os.environ["EXPECTED_DRIVER"], os.environ["EXPECTED_CUDA"]
TOOLKITS = os.environ["EXPECTED_TOOLKITS"].split()
VERSIONS = {"535": r"535\.\d+\.\d+-0\+deb12u\d+", "580": r"580\.126\.16-1"}


@pytest.fixture(scope="module")
def installed(host):
    """Return {package: version} of all installed packages."""
    lines = host.run_expect([0], r"dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n'").stdout.splitlines()
    return {name: version for status, name, version in map(str.split, lines) if status == "installed"}


def test_no_package_of_the_other_driver_is_left(installed):
    assert re.fullmatch(VERSIONS[DRIVER], installed["libcuda1"])
    other = {"535": "580.", "580": "535."}[DRIVER]
    assert {name: version for name, version in installed.items() if version.startswith(other)} == {}
    assert ("nvidia-driver-cuda" in installed) == ("nvidia-driver-pinning-580" in installed) == (DRIVER == "580")
    assert ("nvidia-smi" in installed) == (DRIVER == "535")


def test_kernel_module_of_the_distributions_driver_is_removed(host):
    """NVIDIA's packages are simulated and contain none."""
    assert "installed" not in host.run_expect([0], "dkms status").stdout
    assert host.run_expect([0], "find /lib/modules -path '*/updates/*' -name 'nvidia*.ko*'").stdout == ""


def test_the_module_of_somebody_else_that_does_not_build_is_left_to_its_owner(host, installed):
    assert host.run_expect([0], "dkms status unsupported").stdout.strip() == "unsupported/1.0: added"
    assert host.run_expect([0], "dpkg --audit").stdout == ""
    assert [name for name in installed if name.startswith("linux-headers-6.1.0-")]
    assert not host.file("/etc/dkms/no-autoinstall").exists


def test_nvidia_smi_belongs_to_the_driver(host):
    answer = host.run("nvidia-smi --query-gpu=driver_version --format=csv,noheader")
    if DRIVER == "535":  # the real one, and no driver is loaded
        assert answer.rc == 9
    else:
        assert set(answer.stdout.split()) == {"580.126.16"}


def test_expected_toolkits_are_installed(host, installed):
    homes = host.run_expect([0], "ls -d /usr/local/cuda-*.*").stdout.split()
    assert homes == [f"/usr/local/cuda-{version}" for version in TOOLKITS]
    for version in {"13.0", "13.2"} - set(TOOLKITS):
        series = version.replace(".", "-")
        assert [name for name in installed if re.search(rf"-{series}(-config-common)?$", name)] == []
    assert "release 11.8," in host.run_expect([0], "/usr/bin/nvcc --version").stdout, "the distribution's stays"


def test_every_shell_runs_the_requested_nvcc(host):
    for shell in ("nvcc --version", "bash -lc 'nvcc --version'", "sudo nvcc --version"):
        assert f"release {CUDA}," in host.run_expect([0], shell).stdout
