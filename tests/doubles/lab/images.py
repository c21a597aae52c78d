"""Lab images: systemd and SSH, without anything that the playbook installs.

Debian is built by mmdebstrap from Debian's packages, or from a registry's image where there is no mmdebstrap. Ubuntu is
built from a registry's image; where no registry answers, it is simulated (ubuntu.yml): Debian's packages under Ubuntu's
name. So is Enterprise Linux, always (enterprise_linux.yml). An image's tag is a digest of its recipe, so that a changed
recipe builds a new image.

    python -m tests.doubles.lab.images ubuntu-24.04     build it if necessary; print what it is as JSON
"""

import dataclasses
import fcntl
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles.lab import enterprise_linux
from tests.doubles.lab.docker import docker, docker_succeeds
from tests.doubles.lab.repository import cache
from tests.doubles.nvidia_repository import rpm

# A server after installation, python3 for Ansible, and python3-apt for ansible.builtin.apt.
PACKAGES = (
    "ca-certificates,dbus,iproute2,kmod,openssh-server,pciutils,procps,python3,python3-apt,sudo,systemd,systemd-sysv"
).split(",")
REGISTRY_IMAGES = {
    "ubuntu-26.04": "ubuntu:26.04",
    "ubuntu-24.04": "ubuntu:24.04",
    "ubuntu-22.04": "ubuntu:22.04",
    "debian-13": "debian:13",
    "debian-12": "debian:12",
}
DEBIAN_SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}
HERE = Path(__file__).resolve().parent
STAND_INS: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "ubuntu.yml").read_text())
OS_RELEASE = HERE.parents[1] / "fixtures/probe"
ARCHIVE = "/var/lib/simulated-ubuntu"

# Shared by the images of containers (below) and virtual machines (vm_image.py).
ADMINISTRATOR = """
set -eu
id admin >/dev/null 2>&1 || useradd --create-home --shell /bin/bash admin
echo 'admin ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/admin
chmod 0440 /etc/sudoers.d/admin
"""
# Each host generates its host keys at the first start of sshd, and its machine id at the first start of systemd.
IDENTITY = """\
mkdir -p /etc/systemd/system/ssh.service.d
printf '[Service]\\nExecStartPre=\\nExecStartPre=/usr/bin/ssh-keygen -A\\nExecStartPre=/usr/sbin/sshd -t\\n' \\
  > /etc/systemd/system/ssh.service.d/host-keys.conf
rm -f /etc/ssh/ssh_host_* /etc/machine-id
: > /etc/machine-id
rm -f /usr/sbin/policy-rc.d
rm -rf /var/lib/apt/lists/*
"""
# Mask units that wait for hardware, a console or a network manager, which a container does not have.
CONTAINER = """\
systemctl mask getty.target console-getty.service systemd-udevd.service systemd-udev-trigger.service \
  systemd-modules-load.service sys-kernel-debug.mount sys-kernel-tracing.mount systemd-resolved.service >/dev/null 2>&1
"""
# Images of registries leave out documentation and clean apt's caches, as no server does.
SERVER = "rm -f /etc/apt/apt.conf.d/docker-* /etc/dpkg/dpkg.cfg.d/docker* /etc/dpkg/dpkg.cfg.d/excludes\n"
SETUP = ADMINISTRATOR + CONTAINER + IDENTITY
# An empty package in the simulated archive, and the archive's index.
PACKAGE = """
mkdir -p {folder}/DEBIAN
printf '%s\\n' 'Package: {name}' 'Version: {version}' 'Architecture: all' 'Maintainer: gpuhost lab (simulated)' \\
  'Description: SIMULATED name of a package of Ubuntu (nothing inside)' {depends} > {folder}/DEBIAN/control
dpkg-deb --build {folder} {archive}/{name}_{version}_all.deb >/dev/null
rm -r {folder}
"""
INDEX = """
cd {archive}
for file in *.deb; do
  dpkg-deb --field $file
  printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' $file $(stat -c %s $file) $(sha256sum $file | cut -d ' ' -f 1)
done > Packages
echo 'deb [trusted=yes] file:{archive} ./' > /etc/apt/sources.list.d/simulated-ubuntu.list
"""


@dataclass(frozen=True)
class Image:
    """A docker image of the lab; `origin` is printed and names its source. `simulated`: it is not what it says."""

    tag: str
    distribution: str
    origin: str
    simulated: bool = False

    @property
    def repository_slug(self) -> str:
        return repository_slug(self.distribution)


def repository_slug(distribution: str) -> str:
    """Return a distribution's name in NVIDIA's repository: ubuntu2404, debian12, rhel9."""
    if distribution in enterprise_linux.SHAPES:
        return str(enterprise_linux.SHAPES[distribution]["repository"])
    return load_catalog().distros[distribution].nvidia_repository.slug


def ensure(choice: str) -> Image:
    """Return the image for `auto` or a distribution id, and build it if necessary. Raises SystemExit."""
    with image_lock():
        return _ensure(choice)


@contextmanager
def image_lock() -> Iterator[None]:
    """Let labs that start at the same time build an image once; the second one finds it."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "images.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _ensure(choice: str) -> Image:
    if choice == "auto":
        return _ensure_auto()
    if choice in DEBIAN_SUITES and shutil.which("mmdebstrap"):
        return _from_packages(choice)
    if choice in REGISTRY_IMAGES and _pull(REGISTRY_IMAGES[choice]):
        return _from_registry(choice)
    if choice in STAND_INS:
        return _simulated(choice)
    if choice in enterprise_linux.SHAPES:
        return _shaped(choice)
    if choice in DEBIAN_SUITES:
        raise SystemExit(f"lab: cannot pull {REGISTRY_IMAGES[choice]}, and mmdebstrap is missing: apt-get install it")
    known = ", ".join(["auto", *REGISTRY_IMAGES, *enterprise_linux.SHAPES])
    raise SystemExit(f"lab: lab_image '{choice}' is unknown; set it to one of {known}")


def _ensure_auto() -> Image:
    if _pull(REGISTRY_IMAGES["ubuntu-24.04"]):
        return _from_registry("ubuntu-24.04")
    print(
        "lab: cannot pull ubuntu:24.04; using Debian 12, built from packages",
        flush=True,
    )
    return _from_packages("debian-12")


def _pull(reference: str) -> bool:
    if docker_succeeds("image", "inspect", reference):
        return True
    print(f"lab: pulling {reference}", flush=True)
    return docker_succeeds("pull", "--quiet", reference, seconds=300)


def _tag(distribution: str, setup: str = SETUP, packages: list[str] = PACKAGES) -> str:
    recipe = json.dumps([distribution, packages, setup])
    return f"gpuhost-lab:{distribution}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _from_registry(distribution: str) -> Image:
    image = Image(_tag(distribution), distribution, f"from {REGISTRY_IMAGES[distribution]}")
    if not docker_succeeds("image", "inspect", image.tag):
        install = "apt-get update && apt-get install -y --no-install-recommends " + " ".join(PACKAGES)
        script = f"export DEBIAN_FRONTEND=noninteractive\n{SERVER}{install}\n{SETUP}"
        _commit(REGISTRY_IMAGES[distribution], script, image.tag)
    return image


def _from_packages(distribution: str) -> Image:
    image = Image(_tag(distribution), distribution, "from Debian packages with mmdebstrap")
    if not docker_succeeds("image", "inspect", image.tag):
        _bootstrap(image, DEBIAN_SUITES[distribution], PACKAGES, SETUP)
    return image


def _shaped(shape: str) -> Image:
    """Return an image shaped like Enterprise Linux."""
    packages, script = enterprise_linux.debian_packages(shape), enterprise_linux.script(shape) + SETUP
    built = repr([*enterprise_linux.packages(shape)]) + Path(rpm.__file__).read_text()
    tag = _tag(f"{shape}-simulated", built + script, packages)
    image = Image(tag, shape, enterprise_linux.origin(shape), simulated=True)
    if not docker_succeeds("image", "inspect", image.tag):
        with tempfile.TemporaryDirectory(prefix="gpuhost-repositories-") as folder:
            enterprise_linux.write_repositories(shape, Path(folder))
            _bootstrap(image, enterprise_linux.SHAPES[shape]["suite"], packages, script, Path(folder))
    return image


def _simulated(distribution: str) -> Image:
    """Return an image of Debian's packages with Ubuntu's names; it shares all other layers with Debian's image."""
    names, entry = _ubuntu_names(distribution), STAND_INS[distribution]
    origin = f"SIMULATED: its names over {entry['stands_for']}"
    image = Image(_tag(f"{distribution}-simulated", names + SETUP), distribution, origin, simulated=True)
    if not docker_succeeds("image", "inspect", image.tag):
        _commit(_from_packages(entry["packages_of"]).tag, names, image.tag)
    return image


def _ubuntu_names(distribution: str) -> str:
    """Return the script that gives Debian's packages Ubuntu's os-release and the names of its kernel headers."""
    entry = STAND_INS[distribution]
    note = f"{distribution} (simulated: its os-release and names of kernel packages over {entry['stands_for']})"
    text = (OS_RELEASE / f"os-release-{distribution}.txt").read_text()
    return (
        f"set -eu\nmkdir -p {ARCHIVE} /usr/share/gpuhost-simulated\n"
        # An upgrade of base-files must not restore Debian's.
        "dpkg-divert --quiet --add --rename --divert /usr/lib/os-release.debian /usr/lib/os-release\n"
        f"printf %s {shlex.quote(text)} > /usr/lib/os-release\n"
        f"echo {shlex.quote(note)} > /usr/share/gpuhost-simulated/distribution.txt\n" + archive_script(entry, ARCHIVE)
    )


def archive_script(entry: dict[str, Any], archive: str | Path) -> str:
    """Return the script that makes the archive of empty packages with the names of a stand-in's kernel headers."""
    script = ""
    for package in entry["headers"]:
        depends = shlex.quote(f"Depends: {package['depends']}") if "depends" in package else ""
        names = {"name": package["name"], "version": package["version"], "depends": depends}
        script += PACKAGE.format(**names, archive=archive, folder=f"{archive}/build")
    return script + INDEX.format(archive=archive)


def _bootstrap(image: Image, suite: str, packages: list[str], setup: str, files: Path | None = None) -> None:
    """Build an image of packages of a suite of Debian; files: copied to its root before the setup."""
    print(f"lab: building the {image.distribution} image with mmdebstrap (half a minute)", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpuhost-image-") as folder:
        archive = Path(folder) / "root.tar"
        include = f"--include={','.join(packages)}"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", include, suite, str(archive)]
        try:
            result = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            raise SystemExit(
                f"lab: {image.distribution} is built by mmdebstrap: sudo apt-get install -y mmdebstrap"
            ) from None
        if result.returncode:
            raise SystemExit(f"lab: mmdebstrap could not build {image.distribution}:\n{result.stderr[-2000:]}")
        base = f"{image.tag}-base"
        docker("import", str(archive), base)
    _commit(base, setup, image.tag, files)
    docker("image", "rm", "--no-prune", base)


def _commit(base: str, script: str, tag: str, files: Path | None = None) -> None:
    """Run a script in a container of `base` and commit it as `tag`, which works without docker's build plug-in."""
    container = docker("create", "--entrypoint", "", base, "sh", "-c", script).strip()
    try:
        if files is not None:
            docker("cp", f"{files}/.", f"{container}:/")
        docker("start", "--attach", container)
        docker("commit", "--change", 'CMD ["/lib/systemd/systemd"]', container, tag)
    finally:
        docker("rm", "--force", container)


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(ensure(sys.argv[1]))))
