"""The lab without containers: simulated PCI devices as lspci reads them, the choice of images, removal."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.doubles.lab import containers, images, pci


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Use a cache of the test's own, because a lab of this machine may be starting."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def lspci(folder, *arguments: str) -> str:
    command = ["lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def bus(tmp_path):
    """write(*names) creates the PCI devices of a host with these GPUs and returns its /sys/bus/pci."""
    if shutil.which("lspci") is None:
        pytest.skip("pciutils is not installed")

    def write(*names: str):
        (tmp_path / "slots").mkdir()
        pci.write_tree(tmp_path / "devices", pci.find_products(names))
        return tmp_path

    return write


def test_lspci_lists_four_tesla_m60_as_on_a_real_host(bus):
    # "VGA compatible controller: NVIDIA Corporation GM204GL [Tesla M60] (rev a1)" is what lspci printed on real hosts.
    lines = lspci(bus(*["Tesla M60"] * 4), "-d", "10de:").splitlines()
    assert len(lines) == 4
    for line in lines:
        assert "VGA compatible controller: NVIDIA Corporation GM204GL [Tesla M60] (rev a1)" in line


def test_lspci_lists_data_centre_boards_as_3d_controllers(bus):
    lines = lspci(bus("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), "-nn").splitlines()
    assert ["3D controller [0302]" in line for line in lines] == [True, True]
    assert [id_ in line for id_, line in zip(("[10de:2335]", "[10de:20b2]"), lines, strict=True)] == [True, True]


def test_host_without_gpus_has_an_empty_bus(bus):
    assert lspci(bus()) == ""


def test_unknown_product_is_reported_with_similar_names():
    with pytest.raises(SystemExit, match="no GPU named"):
        pci.find_products(["NVIDIA H2000"])
    with pytest.raises(SystemExit, match="NVIDIA H200 NVL"):
        pci.find_products(["H200"])


def test_gpus_are_described_with_their_numbers():
    assert (
        pci.describe(pci.find_products(["NVIDIA H200", "NVIDIA H200", "Tesla T4"])) == "2 x NVIDIA H200, 1 x Tesla T4"
    )
    assert pci.describe([]) == "none"


def test_unknown_image_is_reported_with_the_known_ones():
    with pytest.raises(SystemExit, match=r"fedora.* is unknown; set it to one of auto, ubuntu"):
        images.ensure("fedora")


@pytest.mark.parametrize(("answers", "chosen"), [(True, "ubuntu-24.04"), (False, "debian-12")], ids=["yes", "no"])
def test_auto_is_ubuntu_if_it_can_be_pulled_and_debian_otherwise(monkeypatch, answers, chosen):
    def docker_succeeds(*words: str, seconds: float = 0) -> bool:
        ours = words[:2] == ("image", "inspect") and words[2].startswith("gpuhost-lab:")
        return ours or answers

    monkeypatch.setattr(images, "docker_succeeds", docker_succeeds)
    assert images.ensure("auto").distribution == chosen


def test_labs_that_start_together_build_an_image_once(monkeypatch):
    images_there, built = set(), []

    def docker_succeeds(*words: str, seconds: float = 0) -> bool:
        return words[2] in images_there

    def build(_base: str, _script: str, tag: str) -> None:
        built.append(tag)
        time.sleep(0.2)  # long enough for the other lab to look for the image
        images_there.add(tag)

    monkeypatch.setattr(images, "docker_succeeds", docker_succeeds)
    monkeypatch.setattr(images, "_pull", lambda reference: True)
    monkeypatch.setattr(images, "_commit", build)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(images.ensure, ["auto", "ubuntu-24.04"])
    assert first == second
    assert built == [first.tag]


def test_repository_slug_is_from_the_catalog():
    assert images.Image("tag", "ubuntu-24.04", "").repository_slug == "ubuntu2404"


# Removal --------------------------------------------------------------------------------------------------------

# Keeps its objects in files beside it. As many removals fail as `refusals` has lines (with the message of
# moby/moby#51845), although one container is removed each time.
DOCKER = """#!/bin/sh
here=$(dirname "$0")
case "$1" in
  ps) cat "$here/containers" ;;
  network) [ "$2" = ls ] && cat "$here/networks" || : > "$here/networks" ;;
  rm)
    if [ -s "$here/refusals" ]; then
      sed -i 1d "$here/refusals" "$here/containers"
      echo "Error response from daemon: cannot remove container \\"one\\": could not kill container: tried to kill" \
        "container, but did not receive an exit event" >&2
      exit 1
    fi
    : > "$here/containers" ;;
esac
"""


@pytest.fixture
def docker(monkeypatch, tmp_path):
    """docker(refusals) replaces docker by a simulated one with two containers and a network."""

    def simulate(refusals: int):
        (tmp_path / "docker").write_text(DOCKER)
        (tmp_path / "docker").chmod(0o755)
        (tmp_path / "containers").write_text("one\ntwo\n")
        (tmp_path / "networks").write_text("net\n")
        (tmp_path / "refusals").write_text("no\n" * refusals)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        monkeypatch.setattr(containers, "RETRY_SECONDS", 0.01)
        return tmp_path

    return simulate


def test_failed_removal_of_containers_is_retried(docker, tmp_path, capfd):
    state = docker(refusals=1)
    containers.Lab("test", tmp_path / "project").remove()
    assert [(state / kind).read_text() for kind in ("containers", "networks")] == ["", ""]
    assert "did not receive an exit event" in capfd.readouterr().err


def test_removal_that_keeps_failing_ends_with_dockers_message(docker, tmp_path, monkeypatch):
    docker(refusals=1000)
    monkeypatch.setattr(containers, "REMOVAL_SECONDS", 0)
    (tmp_path / "containers").write_text("one\n" * 1000)
    with pytest.raises(SystemExit, match="did not receive an exit event"):
        containers.Lab("test", tmp_path / "project").remove()
