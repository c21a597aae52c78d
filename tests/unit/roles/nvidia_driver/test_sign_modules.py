"""Which DKMS modules are rebuilt, since another key has signed them.

dkms and modinfo are doubles that behave as dkms 3.0.10 and kmod 30 did on Debian 12 with a module of one line; the
certificates are openssl's.
"""

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = PROJECT / "roles/nvidia_driver/files/sign_modules.sh"
PROGRAMS = {
    "modinfo": 'cat "$3"',  # the module is its own sig_key
    # dkms signs with the certificate in its settings; --force unsets and rebuilds, which needs the kernel's headers
    "dkms": """
        echo "$*" >> "$LOG"
        [ "$1" != --version ] || { echo dkms-3.0.10; exit; }
        [ -e "$ROOT/lib/modules/$8/build" ] || { echo "Error! Your kernel headers cannot be found"; exit 1; }
        [ "$1" != build ] || cat "$SETTINGS" > "$TREE/$4/$6/$8/${10}/module/nvidia.ko"
    """,
}


class Host:
    """A tree of DKMS whose modules are their own sig_key."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree, self.log = folder, folder / "var/lib/dkms", folder / "log"
        (folder / "bin").mkdir()
        for name, body in PROGRAMS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
            (folder / "bin" / name).chmod(0o755)
        made = ["-keyout", folder / "key", "-out", folder / "certificate", "-subj", "/CN=lab"]
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *made], check=True, capture_output=True
        )
        self.serial = self.openssl("-serial").partition("=")[2].strip()
        self.sig_key = ":".join(self.serial[i : i + 2] for i in range(0, len(self.serial), 2))  # as modinfo prints it

    def openssl(self, *words: str) -> str:
        command = ["openssl", "x509", "-in", str(self.folder / "certificate"), "-noout", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def module(self, name: str, sig_key: str, headers: bool = True) -> Path:
        path = self.tree / name / "x86_64/module/nvidia.ko"
        path.parent.mkdir(parents=True)
        path.write_text(sig_key)
        if headers:
            (self.folder / "lib/modules" / Path(name).name / "build/include").mkdir(parents=True, exist_ok=True)
        return path

    def run(self, signs_with: str, certificate: str = "certificate") -> subprocess.CompletedProcess[str]:
        (self.folder / "settings").write_text(signs_with)
        self.log.write_text("")
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        settings = {"LOG": str(self.log), "TREE": str(self.tree), "SETTINGS": str(self.folder / "settings")}
        command = ["bash", "-s", str(self.folder / certificate), str(self.tree)]
        environment = {"PATH": path, "ROOT": str(self.folder), **settings}
        return subprocess.run(command, input=SCRIPT.read_text(), env=environment, capture_output=True, text=True)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_modules_with_another_signature_or_none_are_rebuilt(host: Host) -> None:
    other = host.module("nvidia/580.95.05/6.1.0-50-amd64", "0A:FF")
    unsigned = host.module("nvidia-srv/580.95.05/6.1.0-56-amd64", "")
    host.module("nvidia/580.95.05/6.1.0-56-amd64", host.sig_key)
    foreign = host.module("zfs/2.1.11/6.1.0-56-amd64", "0A:FF")
    done = host.run(signs_with=host.sig_key)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "rebuilt nvidia-srv/580.95.05 for 6.1.0-56-amd64",
        "rebuilt nvidia/580.95.05 for 6.1.0-50-amd64",
    ]
    assert other.read_text() == unsigned.read_text() == host.sig_key
    assert foreign.read_text() == "0A:FF"
    again = host.run(signs_with=host.sig_key)
    assert (again.returncode, again.stdout, host.log.read_text()) == (0, "", "")


def test_an_old_kernel_without_headers_keeps_its_module_and_stops_nothing(host: Host) -> None:
    old = host.module("nvidia/580.95.05/6.1.0-47-amd64", "0A:FF", headers=False)
    module = host.module("nvidia/580.95.05/6.1.0-50-amd64", "0A:FF")
    done = host.run(signs_with=host.sig_key)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "nvidia/580.95.05 for 6.1.0-47-amd64 keeps its signature: the headers of that kernel are not installed",
        "rebuilt nvidia/580.95.05 for 6.1.0-50-amd64",
    ]
    assert [old.read_text(), module.read_text()] == ["0A:FF", host.sig_key]


def test_the_certificate_may_be_der(host: Host) -> None:
    paths = ["-in", host.folder / "certificate", "-out", host.folder / "der"]
    subprocess.run(["openssl", "x509", *paths, "-outform", "DER"], check=True)
    host.module("nvidia/580.95.05/6.1.0-50-amd64", host.sig_key)
    done = host.run(signs_with="", certificate="der")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_dkms_that_does_not_use_the_key_is_an_error(host: Host) -> None:
    module = host.module("nvidia/580.95.05/6.1.0-50-amd64", "0A:FF")
    done = host.run(signs_with="0B:FF")
    assert done.returncode == 1
    assert f"serial number {host.serial} after a rebuild: {module}" in done.stderr
    assert "framework.conf" in done.stderr


def test_without_modules_or_with_an_unreadable_certificate(host: Host) -> None:
    assert host.run(signs_with="").returncode == 0
    assert host.run(signs_with="", certificate="missing").returncode != 0
