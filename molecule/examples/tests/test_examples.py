"""The host had no other way in than the bastion, and no other way out than the proxy, and both were used."""

import re
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[3]
CONFIG = PROJECT / ".lab/examples/ssh_config"


def ssh(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ssh", "-F", str(CONFIG), "-o", "BatchMode=yes", *words], capture_output=True, text=True)


@pytest.fixture(scope="module")
def requests() -> str:
    """Return the proxy's log."""
    return ssh("examples-gateway", "sudo cat /var/log/proxy.log").stdout


def test_the_host_is_reached_through_the_bastion_alone():
    direct = ssh("-o", "ConnectTimeout=10", "examples-inner", "true")
    assert direct.returncode == 255
    assert ssh("-o", "ProxyJump=examples-gateway", "examples-inner", "true").returncode == 0


def test_the_proxys_password_is_in_no_log_and_no_process_list(host, playbook):
    """The journal of the whole run, and all command lines of a verification; the next test writes it on one."""
    with host.sudo():
        journal = host.run_expect([0], "journalctl --no-pager --boot").stdout
        assert "sudo" in journal
        assert "ansible" in journal
        assert "opensesame" not in journal
        watch = "while sleep 0.05; do cat /proc/[0-9]*/cmdline 2>/dev/null; done > /root/lines"
        host.run_expect([0], f"systemd-run --unit=watch sh -c '{watch}'")
        playbook("verify")
        host.run_expect([0], "systemctl stop watch")
        assert host.run_expect([0], "grep -c AnsiballZ /root/lines || grep -c python3 /root/lines").stdout
        assert host.run("grep -q opensesame /root/lines").rc == 1


def test_the_host_reaches_the_repository_through_the_proxy_alone(host):
    fetch = "python3 -c 'import urllib.request as u; u.urlopen(\"http://repository.lab/key-fingerprint\", timeout=10)'"
    assert host.run(fetch).rc == 1
    proxy = "http_proxy=http://gpuhost:opensesame@examples-gateway:3128"
    assert host.run_expect([0], f"{proxy} {fetch}")


@pytest.mark.parametrize(
    "pattern",
    [
        r"http://repository\.lab/\S+/InRelease",
        r"http://repository\.lab/\S+/3bf863cc\.pub",
        r"http://repository\.lab/\S+\.deb",
        r"/debian/\S+(InRelease|\.deb)",
        r"CONNECT \S+:443",
    ],
    ids=["index", "key", "NVIDIA's packages", "the archive's packages", "wheels or data"],
)
def test_each_kind_of_download_went_through_the_proxy(requests, pattern):
    assert re.search(pattern, requests), requests[-3000:]


def test_the_host_is_verified_and_its_own_apt_is_as_before(host):
    with host.sudo():
        assert host.file("/var/lib/gpuhost/verified.json").exists
        assert "Proxy" not in host.run_expect([0], "apt-config dump").stdout.replace("Proxy-Auto-Detect", "")
