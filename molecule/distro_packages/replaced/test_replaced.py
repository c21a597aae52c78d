"""After the change to NVIDIA's packages: nothing of the distribution's driver is left, its CUDA stays beside them."""

import os

CUDA = os.environ["EXPECTED_CUDA"]


def installed(host):
    """{package: version} of what dpkg has installed."""
    lines = host.run_expect([0], r"dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n'").stdout.splitlines()
    return {name: version for status, name, version in map(str.split, lines) if status == "installed"}


def test_no_package_of_the_distributions_driver_is_left(host):
    packages = installed(host)
    assert packages["nvidia-driver-cuda"] == packages["libcuda1"] == "580.126.16-1"
    assert {name: version for name, version in packages.items() if version.startswith("535.")} == {}


def test_its_kernel_module_is_gone(host):
    assert host.run_expect([0], "dkms status").stdout.strip() == ""
    found = host.run_expect([0], "find /lib/modules -path '*/updates/*' -name 'nvidia*.ko*'").stdout
    assert found == ""


def test_nvidia_smi_is_that_of_the_new_driver(host):
    answer = host.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout
    assert set(answer.split()) == {"580.126.16"}


def test_the_toolkit_asked_for_is_the_only_one_of_nvidias_and_the_distributions_stays(host):
    assert host.run_expect([0], "ls -d /usr/local/cuda-*.*").stdout.split() == [f"/usr/local/cuda-{CUDA}"]
    other = {"13.0": "-13-2", "13.2": "-13-0"}[CUDA]
    assert [name for name in installed(host) if name.endswith((other, f"{other}-config-common"))] == []
    assert "release 11.8," in host.run_expect([0], "/usr/bin/nvcc --version").stdout


def test_nvcc_follows_the_default_in_every_shell(host):
    for shell in ("nvcc --version", "bash -lc 'nvcc --version'", "sudo nvcc --version"):
        assert f"release {CUDA}," in host.run_expect([0], shell).stdout
