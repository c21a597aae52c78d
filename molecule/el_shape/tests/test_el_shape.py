"""What Ansible, rpm and dnf say of a host shaped like Enterprise Linux, and what public reports tell of drivers.

The tests follow one another: no role runs, they type what NVIDIA's guide says.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
#include <cstdio>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <nccl.h>
int main() {
  int nccl = 0;
  ncclGetVersion(&nccl);
  std::printf("runtime %d, cudnn %zu, nccl %d", CUDART_VERSION, cudnnGetVersion(), nccl);
}
"""


@pytest.fixture(scope="module")
def major(as_root: Any) -> str:
    """Return the release of Enterprise Linux: 9 or 10."""
    return str(as_root.run_expect([0], ". /etc/os-release; echo ${VERSION_ID%%.*}").stdout.strip())


@pytest.fixture(scope="module")
def repository(major: str) -> str:
    """Return NVIDIA's name of its repository."""
    return f"cuda-rhel{major}-x86_64"


@pytest.fixture(scope="module")
def dnf(as_root: Any) -> Callable[..., str]:
    """Return a function that runs dnf and returns its output: dnf("install nvidia-open", expect=1)."""

    def run(words: str, expect: int = 0) -> str:
        done = as_root.run(f"dnf --assumeyes {words}")
        assert done.rc == expect, done.stdout + done.stderr
        return str(done.stdout + done.stderr)

    return run


@pytest.fixture(scope="module")
def versions(as_root: Any) -> Callable[[], set[str]]:
    """Return a function that reads the versions of the installed driver's packages."""

    def read() -> set[str]:
        names = as_root.run_expect([0], "rpm -qa --qf '%{name} %{epoch}:%{version}\\n' '*nvidia*'").stdout
        return {line.split()[1] for line in names.splitlines()}

    return read


def test_ansible_takes_it_for_rocky_linux(host: Any, major: str) -> None:
    facts = host.ansible("setup", become=True, check=False)["ansible_facts"]
    names = ("os_family", "distribution", "distribution_major_version", "pkg_mgr", "service_mgr")
    assert [facts[f"ansible_{name}"] for name in names] == ["RedHat", "Rocky", major, "dnf", "systemd"]
    packages = host.ansible("package_facts", become=True, check=False)["ansible_facts"]["packages"]
    assert [package["source"] for package in packages["kernel-core"]] == ["rpm"]


def test_it_says_that_it_is_simulated(as_root: Any) -> None:
    assert "EL-shaped, simulated" in as_root.run_expect([0], ". /etc/os-release; echo $PRETTY_NAME").stdout
    assert "simulated" in as_root.file("/usr/share/gpuhost-simulated/distribution.txt").content_string
    summaries = as_root.run_expect([0], "rpm -qa --qf '%{name} %{summary}\\n'").stdout.splitlines()
    others = [line for line in summaries if not re.match(r"\S+ SIMULATED ", line)]
    assert {line.split()[0] for line in others} == {"gpg-pubkey"}
    assert len(summaries) > 40


@pytest.mark.parametrize("program", ["apt-get", "dpkg", "gcc", "make", "nvidia-smi", "dnf5"])
def test_nothing_is_there_that_such_a_host_has_not(as_root: Any, program: str) -> None:
    assert not as_root.exists(program)


def test_dnf_knows_release_and_platform(as_root: Any, major: str) -> None:
    text = "import dnf, dnf.rpm; print(dnf.VERSION[:2], dnf.rpm.detect_releasever('/'))"
    assert as_root.run_expect([0], f'python3 -c "{text}"').stdout.split() == ["4.", major]


def test_the_repository_is_signed_as_nvidias(dnf: Any, as_root: Any, major: str, repository: str) -> None:
    dnf(f"config-manager --add-repo http://repository.lab/compute/cuda/repos/rhel{major}/x86_64/cuda-rhel{major}.repo")
    assert "gpgcheck=1" in as_root.file(f"/etc/yum.repos.d/cuda-rhel{major}.repo").content_string
    dnf(f"--setopt={repository}.repo_gpgcheck=1 makecache --repo {repository}")


def test_without_epel_no_driver_can_be_installed(dnf: Any) -> None:
    assert "nothing provides egl-" in dnf("install nvidia-open", expect=1)
    dnf("install epel-release")


def test_streams_filter_what_is_of_another(dnf: Any, major: str) -> None:
    """As the field reports it: cuda-drivers is in no default stream (EL 9), and EL 10 has no streams."""
    if major == "10":
        assert "No matching Modules to list" in dnf("module list nvidia-driver", expect=1)
        return
    listed = dnf("module list nvidia-driver")
    assert re.search(
        r"^nvidia-driver +open-dkms \[d\] +default \[d\], fm, ks +Nvidia driver for open-dkms", listed, re.M
    )
    message = "All matches were filtered out by modular filtering for argument: cuda-drivers"
    assert message in dnf("install cuda-drivers", expect=1)
    dnf("module enable nvidia-driver:580-open")


def test_kernel_devel_matched_alone_brings_a_newer_kernel(dnf: Any, as_root: Any) -> None:
    found = re.findall(r"^ kernel-core +x86_64 +(\S+)", dnf("--assumeno install kernel-devel-matched", expect=1), re.M)
    assert len(found) == 1
    assert found != [as_root.run_expect([0], "rpm -q --qf '%{version}-%{release}' kernel-core").stdout]


def test_a_branch_is_installed_in_one_transaction(dnf: Any, as_root: Any, major: str, versions: Any) -> None:
    dnf("install python3-dnf-plugin-versionlock")
    if major == "10":  # as NVIDIA's guide: the lock comes before the installation
        dnf("versionlock add '*nvidia*580*'")
    before = len(dnf("history list").splitlines())
    dnf("install nvidia-open kernel-devel-matched-$(rpm -q --qf '%{version}-%{release}' kernel-core)")
    assert len(dnf("history list").splitlines()) == before + 1
    assert versions() == {"3:580.126.16"}
    assert as_root.exists("gcc")


def test_the_daemon_is_not_enabled_and_runs(as_root: Any) -> None:
    assert as_root.run("systemctl is-enabled nvidia-persistenced").stdout.strip() == "disabled"
    as_root.run_expect([0], "systemctl start nvidia-persistenced")
    shown = as_root.run_expect([0], "nvidia-smi --query-gpu=name,driver_version,persistence_mode --format=csv,noheader")
    assert shown.stdout.splitlines() == ["NVIDIA H200, 580.126.16, Enabled"] * 2


def test_going_back_needs_the_old_stream(dnf: Any, major: str, versions: Any) -> None:
    """As measured by hand on Debian's dnf: history undo fails while another stream is enabled."""
    if major == "10":
        dnf("versionlock clear")
    else:
        dnf("module reset nvidia-driver")
        dnf("module enable nvidia-driver:595-open")
    dnf("upgrade '*nvidia*'")
    assert versions() == {"3:595.71.05"}
    if major == "9":
        assert "Cannot find rpm nevra" in dnf("history undo last", expect=1)
        dnf("module reset nvidia-driver")
        dnf("module enable nvidia-driver:580-open")
    dnf("history undo last")
    assert versions() == {"3:580.126.16"}


def test_the_libraries_are_real(dnf: Any, as_root: Any) -> None:
    dnf("install cuda-toolkit-13-0 libcudnn9-devel-cuda-13 libnccl-devel-2.28.9-1+cuda13.0 libnccl-2.28.9-1+cuda13.0")
    as_root.run_expect([0], f"printf %s '{PROGRAM}' > /root/program.cu")
    as_root.run_expect([0], "/usr/local/cuda/bin/nvcc -o /root/program /root/program.cu -lcudnn -lnccl")
    assert as_root.run_expect([0], "/root/program").stdout == "runtime 13000, cudnn 92800, nccl 22809"
    library = as_root.run_expect([0], "ldconfig -p | sed -n 's/.*libnccl.so.2 .*=> //p'").stdout.strip()
    assert library == "/lib64/libnccl.so.2"
    assert as_root.run_expect([0], f"rpm -qf --qf '%{{name}}' {library}").stdout == "libnccl"
    dnf("remove cuda-toolkit-13-0 cuda-toolkit-13-0-config-common")
    assert not as_root.file("/usr/local/cuda").exists
    assert not as_root.file("/usr/local/cuda-13.0").exists


def test_the_later_state_is_newer(dnf: Any, as_root: Any, major: str, versions: Any) -> None:
    name = f"/etc/yum.repos.d/cuda-rhel{major}.repo"
    as_root.run_expect([0], f"sed -i 's|repository.lab/|repository.lab/later/|' {name}")
    dnf("clean expire-cache")
    # Now a lock would be for what is installed, and one by a pattern (--raw) holds nothing back.
    dnf("upgrade nvidia-open" if major == "9" else "upgrade '*nvidia*580*'")
    assert versions() == {"3:580.126.17"}
