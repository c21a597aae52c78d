"""The NVIDIA-shaped repositories for dnf, checked with rpm, gpgv and public lists. Scenario el_shape has a real dnf."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests import configurations, distributions
from tests.doubles.lab import enterprise_linux
from tests.doubles.nvidia_repository import contents, module_streams, rpm, signing
from tests.doubles.nvidia_repository.package import Package

NEEDED = [name for name in ("gpg", "gpgv", "rpmbuild", "rpmsign", "rpmkeys", "createrepo_c") if not shutil.which(name)]
needs_rpm = pytest.mark.skipif(bool(NEEDED), reason=f"not on this machine: {', '.join(NEEDED)}")
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures/rpm"
SLUGS = ("rhel9", "rhel10")
# NVIDIA's that nothing here needs (packages.yml).
LEFT_OUT = {
    "libnvidia-gpucomp",
    "libnvsdm",
    "libnvsdm-devel",
    "nvidia-driver-assistant",
    "nvidia-fabric-manager-devel",
    "nvidia-imex",
    "nvidia-libXNVCtrl-devel",
    "nvidia-xconfig",
    "nvlink5",
    "nvlink5-580",
    "xorg-x11-nvidia",
}


def lines(name: str) -> list[str]:
    return [line for line in (FIXTURES / name).read_text().splitlines() if not line.startswith("#")]


def packages(name: str) -> list[Package]:
    slug = contents.slug(name, "http://repository.lab")
    return [*contents.driver_packages(slug), *contents.library_packages(slug)]


@pytest.mark.parametrize("name", SLUGS)
def test_a_branch_has_the_published_packages(name: str) -> None:
    published = set()
    for line in lines("nvidia-driver-580.126.16.txt"):
        found, version, release = line.rsplit("-", 2)
        if found not in LEFT_OUT:
            published.add((found, version, release.replace("amzn2023", contents.slug(name, "").dist)))
    offered = [p for p in contents.driver_packages(contents.slug(name, "")) if rpm.version_of(p)[1] == "580.126.16"]
    assert {(package.name, *rpm.version_of(package)[1:]) for package in offered} == published
    # The epoch of NVIDIA's spec files; Fabric Manager's and NSCQ's have none.
    epochs = {package.name: rpm.version_of(package)[0] for package in offered}
    assert {found for found, epoch in epochs.items() if epoch == "0"} == {"libnvidia-nscq", "nvidia-fabricmanager"}
    assert set(epochs.values()) == {"0", "3"}


def test_streams_are_as_published() -> None:
    *streams, defaults = module_streams.documents(packages("rhel9"), "el9", 1)
    listed = {}
    for line in lines("nvidia-driver-streams.txt")[1:]:
        _, stream, profiles, summary = re.split(r" {2,}", line)
        listed[stream] = profiles, summary
    default = next(stream.removesuffix(" [d]") for stream in listed if stream.endswith(" [d]"))
    assert defaults["data"]["stream"] == default
    found = {row["data"]["stream"]: row["data"] for row in streams}
    # Each kind of DKMS modules: the newest branch's, and one for each branch.
    assert set(found) == {f"{branch}-{kind}" for branch in (570, 580, 595) for kind in ("dkms", "open")} | {
        "latest-dkms",
        "open-dkms",
    }
    for stream, like in (("latest-dkms", "latest-dkms"), ("open-dkms", "open-dkms [d]"), ("580-dkms", "535-dkms")):
        profiles, summary = listed[like]
        assert ", ".join(sorted(found[stream]["profiles"])) == profiles.replace(" [d]", "")
        assert found[stream]["summary"] == summary.replace("535", "580")


def test_a_stream_has_all_versions_of_its_branch_and_one_kind_of_modules() -> None:
    """As repoquery without a stream showed the default one: NVIDIA/yum-packaging-precompiled-kmod#68."""
    offered = packages("rhel9")
    *streams, _ = module_streams.documents(offered, "el9", 1)
    found = {row["data"]["stream"]: row["data"]["artifacts"]["rpms"] for row in streams}
    assert [name for name in found["open-dkms"] if "kmod" in name] == [
        "kmod-nvidia-open-dkms-3:595.58.03-1.el9.noarch",
        "kmod-nvidia-open-dkms-3:595.71.05-1.el9.noarch",
        "nvidia-kmod-common-3:595.58.03-1.el9.noarch",
        "nvidia-kmod-common-3:595.71.05-1.el9.noarch",
    ]
    assert not [name for name in found["open-dkms"] if name.startswith("cuda-drivers-")]
    assert "cuda-drivers-3:570.211.01-1.el9.noarch" in found["570-dkms"]
    assert set().union(*found.values()) <= set(map(rpm.nevra, offered))


@pytest.mark.parametrize("shape", enterprise_linux.SHAPES)
def test_the_repositories_have_all_that_their_packages_require(shape: str) -> None:
    of_distribution = [package for _, _, package in enterprise_linux.packages(shape)]
    offered = [*of_distribution, *packages(enterprise_linux.SHAPES[shape]["repository"])]
    names = {package.name for package in offered}
    for package in offered:
        names |= {text.partition(" (")[0] for text in package.control.get("Provides", "").split(", ")}
    for package in offered:
        for requirement in filter(None, package.control.get("Depends", "").split(", ")):
            alternatives = (
                re.findall(r"[^() ]+", requirement)[:1] if requirement[0] == "(" else requirement.split(" | ")
            )
            assert names & {text.partition(" (")[0] for text in alternatives}, (package.name, requirement)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dkms (>= 3.1.8)", "dkms >= 3.1.8"),
        ("a (<< 3:1-1.el9) | b", "(a < 3:1-1.el9 or b)"),
        ("system-release(releasever) (= 9)", "system-release(releasever) = 9"),
        ("(kernel-devel-matched if kernel-core)", "(kernel-devel-matched if kernel-core)"),
    ],
)
def test_relations_are_written_as_rpms(text: str, expected: str) -> None:
    assert rpm.relation(text) == expected


def test_what_is_no_relation_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a b: not a relation of dpkg$"):
        rpm.relation("a b")


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[signing.Signer]:
    with signing.signer(tmp_path_factory.mktemp("key") / "secret") as found:
        yield found


def rpm_says(*words: str) -> str:
    return subprocess.run(["rpm", *words], capture_output=True, text=True, check=True).stdout


@needs_rpm
def test_a_package_is_signed_and_has_what_is_described(signer: signing.Signer, tmp_path: Path) -> None:
    described = next(p for p in packages("rhel9") if rpm.nevra(p) == "nvidia-driver-cuda-3:580.126.16-1.el9.x86_64")
    path = tmp_path / rpm.file_name(described)
    rpm.build(described, {}, path, signer)
    (tmp_path / "key").write_bytes(signer.armoured_key())
    database = ["--dbpath", str(tmp_path / "database")]
    check = ["rpmkeys", *database, "--define", "_pkgverify_level all", "--checksig", str(path)]
    assert subprocess.run(check, capture_output=True).returncode != 0
    subprocess.run(["rpmkeys", *database, "--import", str(tmp_path / "key")], check=True)
    subprocess.run(check, check=True, capture_output=True)
    query = ["-qp", "--nosignature", str(path)]
    assert rpm_says(*query, "--qf", "%{name} %{epoch}:%{version}-%{release} %{arch}") == (
        "nvidia-driver-cuda 3:580.126.16-1.el9 x86_64"
    )
    assert "nvidia-driver-cuda-libs = 3:580.126.16\n" in rpm_says(*query, "--requires")
    assert "xorg-x11-drv-nvidia-cuda\n" in rpm_says(*query, "--conflicts")
    assert rpm_says(*query, "--qf", "%{summary}").startswith("SIMULATED ")
    assert "/usr/bin/nvidia-smi\n" in rpm_says(*query, "--list")


@needs_rpm
def test_settings_survive_and_owned_directories_do_not(signer: signing.Signer, tmp_path: Path) -> None:
    described = Package(
        control={
            "Package": "made-up",
            "Version": "1-1",
            "Architecture": "all",
            "Maintainer": "x",
            "Description": "SIMULATED",
        },
        text={"/etc/made-up.conf": "", "/usr/share/nvidia/made-up": ""},
        conffiles=("/etc/made-up.conf",),
        scripts={"post": "echo 100%\n"},
        triggers="activate-noawait ldconfig\n",
    )
    path = tmp_path / rpm.file_name(described)
    rpm.build(described, {}, path, signer)
    query = ["-qp", "--nosignature", str(path)]
    assert rpm_says(*query, "--configfiles") == "/etc/made-up.conf\n"
    assert rpm_says(*query, "--list").splitlines() == [
        "/etc/made-up.conf",
        "/usr/share/nvidia",
        "/usr/share/nvidia/made-up",
    ]
    assert "/sbin/ldconfig\necho 100%\n" in rpm_says(*query, "--scripts")


@needs_rpm
def test_metadata_is_signed_and_written_once(signer: signing.Signer, tmp_path: Path) -> None:
    described = next(package for package in packages("rhel9") if package.name == "nvidia-modprobe")
    folder, name = tmp_path / "repository", rpm.file_name(described)
    folder.mkdir()
    rpm.build(described, {}, folder / name, signer)
    documents = [{"document": "modulemd", "version": 2}]
    rpm.write_index(folder, [name], signer, tmp_path / "checksums", documents)
    repodata = folder / "repodata"
    (tmp_path / "keyring").write_bytes(signer.binary_key())
    verify = [
        "gpgv",
        "--keyring",
        str(tmp_path / "keyring"),
        str(repodata / "repomd.xml.asc"),
        str(repodata / "repomd.xml"),
    ]
    subprocess.run(verify, check=True, capture_output=True)
    (modules,) = repodata.glob("*modules.yaml.gz")
    assert list(yaml.safe_load_all(gzip.decompress(modules.read_bytes()))) == documents
    written = (repodata / "repomd.xml").stat().st_mtime_ns
    rpm.write_index(folder, [name], signer, tmp_path / "checksums", documents)
    assert (repodata / "repomd.xml").stat().st_mtime_ns == written
    rpm.write_index(folder, [name], signer, tmp_path / "checksums")
    assert not list(repodata.glob("*modules*")), "EL 10's repository has none"


def test_the_repository_file_is_as_published() -> None:
    """As copies of NVIDIA's cuda-rhel9.repo in public repositories, but for the host."""
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64"
    assert contents.repository_file(contents.slug("rhel9", "https://developer.download.nvidia.com")) == (
        f"[cuda-rhel9-x86_64]\nname=cuda-rhel9-x86_64\nbaseurl={url}\nenabled=1\ngpgcheck=1\ngpgkey={url}/D42D0685.pub\n"
    )


@pytest.mark.parametrize("shape", distributions.SHAPES)
def test_scenarios_change_between_branches_of_the_shapes_repository(shape: str) -> None:
    old, new = configurations.of_distribution(shape)
    assert (old.driver, new.driver) == ("580", "595")
