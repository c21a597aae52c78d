"""What a change of versions must leave. EXPECTED_DRIVER and EXPECTED_CUDA name the step; unset, it is the beginning."""

import os

DRIVER = os.environ.get("EXPECTED_DRIVER", "580")
CUDA = os.environ.get("EXPECTED_CUDA", "13.0")


def test_the_driver_is_of_the_branch_asked_for(host):
    version = host.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout
    assert {line.split(".")[0] for line in version.splitlines()} == {DRIVER}


def test_one_branch_is_pinned(host):
    pins = host.run_expect([0], "ls /etc/apt/preferences.d").stdout.split()
    assert [name for name in pins if name.startswith("nvidia-driver-pinning-")] == [f"nvidia-driver-pinning-{DRIVER}"]


def test_nvcc_follows_the_default_in_every_shell(host):
    for shell in ("nvcc --version", "bash -lc 'nvcc --version'", "sudo nvcc --version"):
        assert f"release {CUDA}," in host.run_expect([0], shell).stdout


def test_the_other_toolkit_stays_beside_the_default(host):
    """13.0 came first and is kept; 13.2 is there once it was asked for."""
    homes = host.run_expect([0], "ls -d /usr/local/cuda-*.*").stdout.split()
    assert "/usr/local/cuda-13.0" in homes
    assert f"/usr/local/cuda-{CUDA}" in homes


def test_an_upgrade_of_everything_moves_nothing(host):
    with host.sudo():
        simulated = host.run_expect([0], "apt-get --simulate dist-upgrade").stdout
    assert [line for line in simulated.splitlines() if line.startswith("Inst") and "NVIDIA" in line] == []
