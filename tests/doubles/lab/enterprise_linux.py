"""Hosts shaped like Enterprise Linux (enterprise_linux.yml): their repositories, and how an image gets the shape."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.nvidia_repository import contents, rpm, signing
from tests.doubles.nvidia_repository.package import Package

HERE = Path(__file__).resolve().parent
DATA: dict[str, Any] = yaml.safe_load((HERE / "enterprise_linux.yml").read_text())
SHAPES: dict[str, dict[str, Any]] = DATA["shapes"]
OS_RELEASE = HERE.parents[1] / "fixtures/probe"
HIDDEN = "/usr/lib/simulated-el"
DNF_PLUGINS = "/usr/lib/python3/dist-packages/dnf-plugins"
REPOSITORIES = "/var/lib/simulated-el"
KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-simulated-el"
# dnf.conf of EL 9, which is stricter than Debian's.
DNF_CONF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
"""
PRESET = "enable sshd.service\nenable ssh.service\nenable dbus.socket\n"
# apt, dpkg and what starts them.
DEBIANS_OWN = (
    "/usr/bin/apt* /usr/bin/dpkg* /usr/sbin/dpkg-* /usr/lib/apt /usr/lib/dpkg",
    "/etc/apt /etc/cron.daily /var/lib/apt /var/cache/apt",
    "/usr/lib/systemd/system/apt-* /usr/lib/systemd/system/dpkg-*",
    "/etc/systemd/system/timers.target.wants/apt-* /etc/systemd/system/timers.target.wants/dpkg-*",
)
# Plugins that are packages of their own on EL; Debian has them in one, and switches `local` on.
PLUGINS = ("local", "leaves", "show_leaves", "post-transaction-actions", "system_upgrade", "versionlock")
# It has the options of EL's program for what packages and roles do; its --display prints another text.
ALTERNATIVES = f"""\
#!/bin/sh
# Simulated: Debian's update-alternatives in the place of EL's.
exec {HIDDEN}/update-alternatives --quiet --admindir /var/lib/alternatives "$@"
"""
# In one process, because no program starts while the dynamic linker is away.
LIBRARY_DIRECTORY = """\
import os
for name in os.listdir("/usr/lib64"):
    os.unlink("/usr/lib64/" + name)
os.rmdir("/usr/lib64")
os.symlink("lib/x86_64-linux-gnu", "/usr/lib64")
"""


def debian_packages(shape: str) -> list[str]:
    """Return the packages of Debian that the image is made of."""
    return [*DATA["tools"], *SHAPES[shape]["tools"]]


def packages(shape: str) -> Iterator[tuple[str, bool, Package]]:
    """Return the packages of the distribution with their repositories, and whether they are installed in the image."""
    entry = SHAPES[shape]
    values, kernels = entry["values"], ("installed", "newer")
    installed = DATA["installed"]
    for spec in [
        *({"name": name, "version": installed["version"]} for name in installed["names"]),
        *installed["packages"],
    ]:
        yield "baseos", True, _package(spec, values)
    for which in kernels:
        of_kernel = {**values, "release": values[which]}
        for spec in DATA["kernel"]:
            version = {"version": "@kernel@-@release@"}
            there = bool(spec.get("installed")) and which == "installed"
            yield spec.get("repository", "baseos"), there, _package({**version, **spec}, of_kernel)
    for spec in DATA["offered"]:
        yield spec["repository"], False, _package(spec, values)
    for offered in entry["pythons"]:
        program = f"/usr/bin/python{offered}"
        links = {"links": {program: f"../lib/simulated-el/python{offered}"}} if program in entry["hide"] else {}
        for number, spec in enumerate(DATA["python"]):
            of_python = {**spec, **links} if number == 0 else spec
            yield spec["repository"], False, _package(of_python, {**values, "offered": offered})


def _package(spec: dict[str, Any], values: dict[str, str]) -> Package:
    rest = {name: value for name, value in spec.items() if name not in ("repository", "installed")}
    defaults = {"version": DATA["installed"]["version"], "description": DATA["description"]}
    return contents.described({**defaults, **rest}, values, "rpm")


def write_repositories(shape: str, root: Path) -> None:
    """Write the distribution's repositories and the key that signed them below `root`, the host's root."""
    with signing.signer(root / "secret") as signer:
        for repository in DATA["repositories"]:
            folder = root / REPOSITORIES.lstrip("/") / repository
            folder.mkdir(parents=True)
            offered = [package for where, _, package in packages(shape) if where == repository]
            for package in offered:
                rpm.build(package, {}, folder / rpm.file_name(package), signer)
            rpm.write_index(folder, map(rpm.file_name, offered), signer, root / "checksums")
        key = root / KEY.lstrip("/")
        key.parent.mkdir(parents=True)
        key.write_bytes(signer.armoured_key())
    (root / "secret").unlink()


def origin(shape: str) -> str:
    """Return what an image of the shape is, as the lab and the reports say."""
    return f"EL-shaped, SIMULATED: Rocky Linux's names over {SHAPES[shape]['stands_for']}"


def script(shape: str) -> str:
    """Return the script that gives Debian's packages the shape; the repositories are there already."""
    entry = SHAPES[shape]
    text = (OS_RELEASE / entry["os_release"]).read_text()
    fields = dict(line.replace('"', "").split("=", 1) for line in text.splitlines())
    pretty = f"{fields['PRETTY_NAME']}, EL-shaped, simulated"
    text = text.replace(f'PRETTY_NAME="{fields["PRETTY_NAME"]}"', f'PRETTY_NAME="{pretty}"')
    release = f"{fields['NAME']} release {fields['VERSION']}"
    note = f"{shape} (EL-shaped, simulated: its names over {entry['stands_for']})"
    database, hidden = entry["database"], " ".join([*DATA["hide"], *entry["hide"]])
    installed = " ".join(rpm.nevra(package) for _, there, package in packages(shape) if there)
    major = entry["values"]["major"]
    macros = f"%_dbpath {database}\n%rhel {major}\n%dist .el{major}\n"
    repositories = "".join(
        f"[{name}]\nname={words['name']} (simulated)\nbaseurl=file://{REPOSITORIES}/{name}\nenabled={words['enabled']}\n"
        f"gpgcheck=1\ngpgkey=file://{KEY}\n\n"
        for name, words in DATA["repositories"].items()
        if words
    )
    files = {
        "/usr/lib/os-release": text,
        "/etc/redhat-release": release + "\n",
        "/usr/share/gpuhost-simulated/distribution.txt": note + "\n",
        "/etc/rpm/macros": macros,
        "/etc/dnf/dnf.conf": DNF_CONF,
        "/etc/yum.repos.d/rocky.repo": repositories,
        "/usr/lib/systemd/system-preset/90-default.preset": PRESET,
        "/usr/lib/systemd/system-preset/99-default-disable.preset": "disable *\n",
        "/usr/sbin/alternatives": ALTERNATIVES,
        # The linker names EL's directory and not Debian's, which is the same.
        "/etc/ld.so.conf.d/00-simulated-el.conf": "/lib64\n",
    }
    lines = [
        "set -eu",
        f"mkdir -p {HIDDEN} {database} /var/lib/alternatives /usr/libexec",
        "mkdir -p /usr/share/gpuhost-simulated /etc/yum.repos.d /etc/rpm /etc/pki/tls/certs",
        "mkdir -p /usr/lib/dracut/dracut.conf.d",  # dracut's, by its dracut.spec; Debian's package has none
        f"python3 -c {shlex.quote(LIBRARY_DIRECTORY)}",
        *(f"printf %s {shlex.quote(content)} > {path}" for path, content in files.items()),
        "ln -s /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt",
        "ln -s redhat-release /etc/rocky-release",
        "ln -s redhat-release /etc/system-release",
        "rm -f /etc/debian_version /etc/dpkg/origins/default",
        f"[ {database} = /var/lib/rpm ] || ln -s {database} /var/lib/rpm",
        *(f"rm {path}" for path in contents.fill(DATA["remove"], entry["values"])),
        f"mv {hidden} /usr/bin/update-alternatives {HIDDEN}",
        # The interpreter that the system's own programs start stays.
        f"[ -e /usr/bin/python3 ] || ln -sf {HIDDEN}/python{entry['values']['python']} /usr/bin/python3",
        "ln -s /usr/bin/python3 /usr/libexec/platform-python",
        "ln -sf bash /usr/bin/sh",
        "ln -s dnf-3 /usr/bin/yum",
        "chmod 0755 /usr/sbin/alternatives",
        "ln -s alternatives /usr/sbin/update-alternatives",
        f"rm -rf {DNF_PLUGINS}/__pycache__",
        *(f"rm -rf /etc/dnf/plugins/{name}.* {DNF_PLUGINS}/{name}.py" for name in PLUGINS),
        f"mv /var/lib/dpkg {HIDDEN}/dpkg",
        *(f"rm -rf {paths}" for paths in DEBIANS_OWN),
        f"dnf --quiet --assumeyes install {installed}",
    ]
    return "\n".join(lines) + "\n"
