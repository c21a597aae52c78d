"""The real apt and dpkg on a root directory of their own, with packages that dpkg-deb builds and a file: repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands

from tests.unit.module_utils.real_dpkg import RealDpkg

needs_apt = pytest.mark.skipif(not shutil.which("apt-get"), reason="needs apt-get")
# No chroot, which needs the programs of a whole system in it.
DPKG = ("--force-not-root", "--force-bad-path", "--force-script-chrootless")
FOLDERS = (
    "etc/apt/preferences.d",
    "etc/apt/apt.conf.d",
    "etc/apt/sources.list.d",
    "var/lib/apt/lists/partial",
    "var/cache/apt/archives/partial",
    "var/log/apt",
)


class RealApt(RealDpkg):
    """A host whose apt and dpkg work below `root`; an instance is the run_command of apt_commands.Apt."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "root")
        self.state, self.repository = directory / "state", directory / "repository"
        for name in FOLDERS:
            (self.root / name).mkdir(parents=True)
        self.repository.mkdir()
        (self.root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] file:{self.repository} ./\n")
        self.settings = directory / "apt.conf"
        options = "".join(f'DPkg::Options:: "{option}";\n' for option in (f"--root={self.root}", *DPKG))
        self.settings.write_text(
            f'Dir "{self.root}";\nDir::State::status "{self.root}/var/lib/dpkg/status";\nDir::Etc "etc/apt";\n'
            f'APT::Sandbox::User "root";\n{options}'
        )
        self.offer()

    def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        done = self.do(*command, cwd=options.get("cwd"), **options.get("environ_update", {}))
        return done.returncode, done.stdout, done.stderr

    def do(self, *command: str, cwd: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of apt or dpkg on this root."""
        first, *rest = command
        more = [f"--root={self.root}", *DPKG] if first == "dpkg" else []
        more += [f"--admindir={self.root}/var/lib/dpkg"] if first == "dpkg-query" else []
        settings = {"APT_CONFIG": str(self.settings), "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        return subprocess.run(
            [first, *more, *rest],
            capture_output=True,
            text=True,
            cwd=cwd,
            env={**os.environ, **settings, **environment},
        )

    def offer(self, *debs: Path) -> None:
        """Add packages to the repository, and refresh apt's lists."""
        for deb in debs:
            shutil.copy(deb, self.repository)
        paragraphs = []
        for deb in sorted(self.repository.glob("*.deb")):
            fields = subprocess.run(["dpkg-deb", "--field", deb], capture_output=True, text=True, check=True).stdout
            content = deb.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            paragraphs.append(f"{fields}Filename: ./{deb.name}\nSize: {len(content)}\nSHA256: {digest}\n")
        (self.repository / "Packages").write_text("\n".join(paragraphs))
        done = self.do("apt-get", "update")
        assert done.returncode == 0, done.stderr

    def hold(self, *names: str) -> None:
        """Hold packages with apt-mark."""
        done = self.do("apt-mark", "hold", *names)
        assert done.returncode == 0, done.stderr

    def unpacked(self, deb: Path, how: str = "--install") -> None:
        """Unpack a package with dpkg, whatever its dependencies are, and configure it if it can be."""
        done = self.do("dpkg", "--force-depends", how, str(deb))
        assert done.returncode in (0, 1), done.stderr

    def shown(self) -> list[str]:
        """Return what dpkg-query and apt-mark say about all packages, a line each."""
        packages = self.do("dpkg-query", "--show", "--showformat=${Package} ${Version} ${Status}\\n").stdout
        return [*packages.splitlines(), *(f"hold {name}" for name in self.do("apt-mark", "showhold").stdout.split())]

    def apt(self) -> apt_commands.Apt:
        """Return the Apt of this host."""
        return apt_commands.Apt(self, 5, str(self.state / "packages"), str(self.root))

    def run_transaction(self, request: transaction.PackageRequest, check: bool = False) -> transaction.Result:
        """Run a package transaction."""
        return transaction.Transaction(request, self.apt(), str(self.state), check=check).run()
