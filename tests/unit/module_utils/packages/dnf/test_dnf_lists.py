"""What the probe asks of dnf: the real one, with repositories that createrepo_c made of simulated packages."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import SourceEntry
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_lists, dnf_words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import repository

from tests.unit import web_server
from tests.unit.module_utils.packages.dnf.conftest import NEW, NEWER, OLD
from tests.unit.module_utils.real_dnf import RealDnf, needs_dnf

pytestmark = needs_dnf
GLOBS = ["nvidia-*", "kmod-nvidia*"]
# As NVIDIA's server has it, NVIDIA/gpu-driver-container rhel9/Dockerfile and rhel10/Dockerfile.
NVIDIA = """[cuda-rhel9-x86_64]
name=cuda-rhel9-x86_64
baseurl=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64
enabled=1
gpgcheck=1
gpgkey=https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/D42D0685.pub
"""


def lists(host: RealDnf) -> dnf_lists.DnfLists:
    return dnf_lists.DnfLists(str(host.root), command.run)


def test_what_nvidias_repository_offers(host: RealDnf, el9: str) -> None:
    host.baseurl("file:///nowhere")  # the host's own repositories are not asked
    found = lists(host).repository(el9, GLOBS, "nvidia-.*", "x86_64", check=True)
    assert found.error is None
    versions = tuple(f"3:{version}-1.el9" for version in (NEW, NEWER, OLD))
    assert found.packages["nvidia-driver-cuda"] == versions
    assert found.packages["@nvidia-driver"] == ("580-open", "open-dkms")
    assert "libnccl" not in found.packages
    size = found.sizes["nvidia-open"][versions[0]]
    alone = found.sizes["nvidia-persistenced"][versions[0]]
    assert set(size.includes) == {"kmod-nvidia-open-dkms", "nvidia-driver-cuda", *PARTS}
    assert alone.includes == ()
    assert size.download_kib >= len(size.includes) * alone.download_kib


def test_a_host_that_asks_for_signed_metadata_reads_what_is_offered(host: RealDnf, el9: str) -> None:
    """As CIS' benchmarks set it: the key comes with the repository's own file, and dnf checks what is installed."""
    settings = host.root / "etc/dnf/dnf.conf"
    settings.write_text(settings.read_text().replace("[main]\n", "[main]\nrepo_gpgcheck=1\n"))
    assert lists(host).repository(el9, GLOBS, "nvidia-.*", "x86_64", check=True).error is None


PARTS = {"nvidia-driver-cuda-libs", "nvidia-kmod-common", "nvidia-persistenced"}


def test_a_repository_without_streams(host: RealDnf, el10: str) -> None:
    found = lists(host).repository(el10, GLOBS, "nvidia-.*", "x86_64", check=True)
    assert [name for name in found.packages if name.startswith("@")] == []
    assert len(found.packages["nvidia-open"]) == 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Yield the address of a server without a repository."""
    with web_server.serve(partial(web_server.Files, directory=str(tmp_path))) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("url", "meaning", "remedy"),
    [
        ("file:///no-such", "", "`curl --head --location URL/repodata/repomd.xml`"),
        ("http://127.0.0.1:9/r", "nothing answers", "proxy= in /etc/dnf/dnf.conf"),
        ("http://name.invalid/r", "dnf's proxy, is not found", "proxy= in /etc/dnf/dnf.conf"),
        ("SERVER/r", "no such repository", "gpu_stack_repository_url"),
    ],
)
def test_a_repository_that_cannot_be_read_is_an_error_in_dnfs_words(
    host: RealDnf, server: str, url: str, meaning: str, remedy: str
) -> None:
    url = url.replace("SERVER", server)
    found = lists(host).repository(url, GLOBS, "nvidia-.*", "x86_64", check=True)
    assert found.packages == {}
    assert found.error is not None
    assert url in found.error
    assert "gpuhost-planned" in found.error
    why = repository.cause(found.error)
    assert meaning in why.meaning, found.error
    assert remedy in why.remedy, found.error


def test_a_password_is_in_no_message(host: RealDnf) -> None:
    found = lists(host).repository("http://me:s3cret@127.0.0.1:9/r", GLOBS, "nvidia-.*", "x86_64", check=True)
    assert found.error is not None
    assert "s3cret" not in found.error


@pytest.mark.parametrize(
    ("release", "headers"),
    [
        ("5.14.0-570.12.1.el9_6.x86_64", "kernel-devel-5.14.0-570.12.1.el9_6.x86_64"),
        # slurm-appliance and a public installation of a GH200: the name has the flavour, the release does not
        ("5.14.0-570.12.1.el9_6.aarch64+64k", "kernel-64k-devel-5.14.0-570.12.1.el9_6.aarch64"),
    ],
)
def test_the_headers_of_a_kernel(release: str, headers: str) -> None:
    assert dnf_words.headers(release) == headers
    assert dnf_lists._release(headers) == release


def test_what_is_offered_for_kernels(host: RealDnf) -> None:
    release = "5.14.1-1.el9.x86_64"
    found = lists(host).kernel_offers(["gcc", "kernel-devel-matched", "dkms"], [release, "5.14.0-9.el9.x86_64"])
    assert found is not None
    offers, providers = found
    assert offers["dkms"] == KernelOffer()
    assert offers["kernel-devel-matched"] == KernelOffer((release,), ("kernel-core-5.14.1-1.el9.x86_64",))
    assert "gcc" not in offers
    assert providers == {release: (f"kernel-devel-{release}",), "5.14.0-9.el9.x86_64": ()}


def test_nothing_is_known_before_dnf_has_metadata(host: RealDnf, el10: str) -> None:
    host.do("rm", "-rf", str(host.root / "var/cache/dnf"))
    assert lists(host).kernel_offers(["dkms"], []) is None


def test_sources_of_nvidias_software(host: RealDnf) -> None:
    folder = host.root / "etc/yum.repos.d"
    (folder / "cuda.repo").write_text(NVIDIA)
    (folder / "both.repo").write_text(NVIDIA.replace("cuda-", "old-") + "[site]\nbaseurl=https://site.example/el9\n")
    (folder / "off.repo").write_text(NVIDIA.replace("enabled=1", "enabled=0"))
    found = lists(host).sources("https://mirror.example/cuda/")
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64"
    entry: dict[str, Any] = {"uri": url, "signed_by": url + "/D42D0685.pub"}
    assert set(found.entries) == {
        SourceEntry(file="/etc/yum.repos.d/cuda.repo", **entry),
        SourceEntry(
            file="/etc/yum.repos.d/both.repo",
            uri=url.replace("cuda-", "old-"),
            signed_by=(url + "/D42D0685.pub").replace("cuda-", "old-"),
        ),
    }
    assert found.mixed == ("/etc/yum.repos.d/both.repo",)


# As in rocky.repo of Rocky Linux 9 and epel.repo of epel-release 9, with the addresses cut.
OF_MIRRORS = """[crb]
name=Rocky Linux $releasever - CRB
mirrorlist=https://mirrors.rockylinux.org/mirrorlist?arch=$basearch&repo=CRB-$releasever$rltype
#baseurl=http://dl.rockylinux.org/$contentdir/$releasever/CRB/$basearch/os/
enabled=1
[epel]
name=Extra Packages for Enterprise Linux 9 - $basearch
#baseurl=https://download.example/pub/epel/9/Everything/$basearch/
metalink=https://mirrors.fedoraproject.org/metalink?repo=epel-9&arch=$basearch
enabled = 1
"""
# Of the option `enabled`, and none.
VALUES = ("1", "0", "yes", "no", "true", "false", "on", "off", "True", "False", "No", "OFF", "Yes", "")


def test_a_repository_is_enabled_where_dnf_says_so(host: RealDnf) -> None:
    """Whatever its address is of; DKMS is of EPEL, and what it needs of CRB."""
    folder = host.root / "etc/yum.repos.d"
    (folder / "mirrors.repo").write_text(OF_MIRRORS)
    for number, value in enumerate(VALUES):
        enabled = f"enabled={value}\n" if value else ""
        (folder / f"{number}.repo").write_text(f"[r{number}]\nname=r\nbaseurl=file:///nowhere\n{enabled}")
    listed = host.do("dnf", "-q", "repolist", "--enabled").stdout.splitlines()[1:]
    assert {"crb", "epel", "r0"} <= {line.split()[0] for line in listed}
    assert lists(host).sources(None).enabled == tuple(sorted(line.split()[0] for line in listed))


def test_headers_of_a_kernel_with_large_pages_bring_its_image(host: RealDnf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Grace; they are of its exact version (kernel-64k-devel-matched of EL 9), so that a new kernel comes along."""
    build = "5.14.0-611.5.1.el9_7.aarch64"
    brought = [f"kernel-64k-core-{build}", f"kernel-64k-devel-{build}"]
    answer = {"newest": [["kernel-64k-devel-matched", "5.14.0-611.5.1.el9_7", brought]], "every": []}
    monkeypatch.setattr(dnf_lists.DnfLists, "_ask", lambda *_arguments, **_request: answer)
    found = lists(host).kernel_offers(["kernel-64k-devel-matched"], [])
    assert found is not None
    assert found[0] == {"kernel-64k-devel-matched": KernelOffer((f"{build}+64k",), (f"kernel-64k-core-{build}",))}
