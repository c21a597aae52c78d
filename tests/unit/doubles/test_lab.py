"""The lab without containers: simulated PCI devices as lspci reads them, the choice of images, removal."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests import distributions
from tests.doubles.lab import containers, enterprise_linux, images, pci


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


@pytest.fixture
def built(monkeypatch):
    """A docker that has no image and reaches no registry; the list of (base, script) of the images that are built."""
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(images, "docker_succeeds", lambda *words, seconds=0: False)
    monkeypatch.setattr(images, "_commit", lambda base, script, tag: found.append((base, script)))
    monkeypatch.setattr(images, "_bootstrap", lambda image, suite, *_words: found.append((suite, image.tag)))
    return found


@pytest.mark.parametrize("shape", distributions.SHAPES)
def test_enterprise_linux_is_shaped_over_debians_packages_and_says_so(built, monkeypatch, shape):
    written = []
    monkeypatch.setattr(enterprise_linux, "write_repositories", lambda name, root: written.append(name))
    image = images.ensure(shape)
    assert (image.simulated, image.repository_slug) == (True, enterprise_linux.SHAPES[shape]["repository"])
    assert "EL-shaped, SIMULATED" in image.origin
    assert built == [({"el-9": "bookworm", "el-10": "trixie"}[shape], image.tag)]
    assert written == [shape]
    script = enterprise_linux.script(shape)
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0
    assert "/usr/share/gpuhost-simulated/distribution.txt" in script  # what the probe and the report say
    published = (images.OS_RELEASE / enterprise_linux.SHAPES[shape]["os_release"]).read_text().splitlines()
    assert [line for line in published if line not in script] == [published[6]]
    assert published[6].startswith("PRETTY_NAME=")


@pytest.mark.parametrize("name", images.STAND_INS)
def test_ubuntu_without_a_registry_is_simulated_over_debians_packages_and_says_so(built, name):
    image = images.ensure(name)
    (suite, base), (used, script) = built
    assert image.simulated
    assert "SIMULATED" in image.origin
    assert "simulated" in image.tag
    assert used == base
    assert suite in ("bookworm", "trixie")
    assert "/usr/share/gpuhost-simulated/distribution.txt" in script  # what the probe and the report say
    assert subprocess.run(["sh", "-n"], input=script, text=True).returncode == 0


@pytest.mark.parametrize("name", images.STAND_INS)
def test_stand_in_has_the_names_of_the_catalog(name):
    distro = load_catalog().distros[name]
    text = (images.OS_RELEASE / f"os-release-{name}.txt").read_text()
    fields = dict(line.split("=", 1) for line in text.replace('"', "").splitlines())
    wanted = distro.os_release
    assert (fields["ID"], fields["VERSION_ID"], fields["VERSION_CODENAME"]) == (
        wanted.id,
        wanted.version_id,
        wanted.codename,
    )
    entry = images.STAND_INS[name]
    release = next(package["name"] for package in entry["headers"] if package["name"].endswith("-generic"))
    assert release.startswith(f"linux-headers-{distro.kernel.default}.")
    assert entry["headers"][-1]["name"] in {rule.package for rule in distro.kernel.headers}
    assert entry["source"]


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not installed")
def test_simulated_archive_is_one_that_apt_reads(tmp_path):
    archive, sources = tmp_path / "archive", tmp_path / "sources.list"
    script = f"set -eu\nmkdir -p {archive}\n" + images.archive_script(images.STAND_INS["ubuntu-24.04"], archive)
    script = script.replace("/etc/apt/sources.list.d/simulated-ubuntu.list", str(sources))
    subprocess.run(["sh", "-c", script], check=True)
    (tmp_path / "lists/partial").mkdir(parents=True)
    options = [
        f"-oDir::Etc::sourcelist={sources}",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={tmp_path}/lists",
    ]
    options += [f"-oDir::Cache={tmp_path}", "-oAPT::Sandbox::User=root", f"-oDir::State::status={tmp_path}/status"]
    (tmp_path / "status").write_text("")
    subprocess.run(["apt-get", *options, "update"], check=True, capture_output=True)
    simulated = subprocess.run(
        ["apt-get", *options, "--simulate", "install", "linux-headers-generic"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    names = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    assert sorted(names) == ["linux-headers-6.8.0-137", "linux-headers-6.8.0-137-generic", "linux-headers-generic"]


def test_debian_is_pulled_where_there_is_no_mmdebstrap(built, monkeypatch):
    monkeypatch.setattr(images.shutil, "which", lambda name: None)
    monkeypatch.setattr(images, "_pull", lambda reference: True)
    image = images.ensure("debian-13")
    assert not image.simulated
    assert built[0][0] == "debian:13"


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
