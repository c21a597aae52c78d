"""Lab images: systemd and SSH, without anything that the playbook installs.

They are built from `ubuntu:24.04` if a registry can be reached, otherwise by mmdebstrap from Debian's packages. An
image's tag is a digest of its recipe, so that a changed recipe builds a new image.
"""

import fcntl
import hashlib
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_catalog

from tests.doubles.lab.docker import docker, docker_succeeds
from tests.doubles.lab.repository import cache

# A server after installation, python3 for Ansible, and python3-apt for ansible.builtin.apt.
PACKAGES = (
    "ca-certificates,dbus,iproute2,kmod,openssh-server,pciutils,procps,python3,python3-apt,sudo,systemd,systemd-sysv"
).split(",")
REGISTRY_IMAGES = {"ubuntu-24.04": "ubuntu:24.04", "ubuntu-22.04": "ubuntu:22.04"}
DEBIAN_SUITES = {"debian-12": "bookworm", "debian-13": "trixie"}

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
SETUP = ADMINISTRATOR + CONTAINER + IDENTITY


@dataclass(frozen=True)
class Image:
    """A docker image of the lab; `origin` is printed and names its source."""

    tag: str
    distribution: str
    origin: str

    @property
    def repository_slug(self) -> str:
        """The distribution's name in NVIDIA's repository: ubuntu2404, debian12."""
        return load_catalog().distros[self.distribution].nvidia_repository.slug


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
    if choice in REGISTRY_IMAGES:
        if not _pull(REGISTRY_IMAGES[choice]):
            raise SystemExit(f"lab: cannot pull {REGISTRY_IMAGES[choice]}; set lab_image to debian-12")
        return _from_registry(choice)
    if choice in DEBIAN_SUITES:
        return _from_packages(choice)
    known = ", ".join(["auto", *REGISTRY_IMAGES, *DEBIAN_SUITES])
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


def _tag(distribution: str) -> str:
    recipe = json.dumps([distribution, PACKAGES, SETUP])
    return f"gpuhost-lab:{distribution}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def _from_registry(distribution: str) -> Image:
    image = Image(_tag(distribution), distribution, f"from {REGISTRY_IMAGES[distribution]}")
    if not docker_succeeds("image", "inspect", image.tag):
        install = "apt-get update && apt-get install -y --no-install-recommends " + " ".join(PACKAGES)
        script = f"export DEBIAN_FRONTEND=noninteractive\n{install}\n{SETUP}"
        _commit(REGISTRY_IMAGES[distribution], script, image.tag)
    return image


def _from_packages(distribution: str) -> Image:
    image = Image(_tag(distribution), distribution, "from Debian packages with mmdebstrap")
    if docker_succeeds("image", "inspect", image.tag):
        return image
    suite = DEBIAN_SUITES[distribution]
    print(f"lab: building the {distribution} image with mmdebstrap (half a minute)", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpuhost-image-") as folder:
        archive = Path(folder) / "root.tar"
        include = f"--include={','.join(PACKAGES)}"
        command = ["mmdebstrap", "--quiet", "--variant=minbase", include, suite, str(archive)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            raise SystemExit(f"lab: mmdebstrap could not build {distribution}:\n{result.stderr[-2000:]}")
        base = f"{image.tag}-base"
        docker("import", str(archive), base)
    _commit(base, SETUP, image.tag)
    docker("image", "rm", "--no-prune", base)
    return image


def _commit(base: str, script: str, tag: str) -> None:
    """Run a script in a container of `base` and commit it as `tag`, which works without docker's build plug-in."""
    container = docker("create", "--entrypoint", "", base, "sh", "-c", script).strip()
    try:
        docker("start", "--attach", container)
        docker("commit", "--change", 'CMD ["/lib/systemd/systemd"]', container, tag)
    finally:
        docker("rm", "--force", container)
