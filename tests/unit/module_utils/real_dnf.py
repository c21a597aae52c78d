"""The real dnf 4 and rpm on a root directory of their own, with empty packages that rpmbuild makes.

The packages have names and dependencies of NVIDIA's (nvidia-driver.spec of NVIDIA/yum-packaging-nvidia-driver), the
modules the names of NVIDIA's streams (logdetective/logdetective#120); what they contain is simulated, and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import transaction
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.dnf import dnf_manager, rpm_database

PYTHON = "/usr/bin/python3"
TOOLS = ("rpm", "rpmbuild", "createrepo_c", "modifyrepo_c")


def _missing() -> list[str]:
    found = [name for name in TOOLS if not shutil.which(name)]
    done = subprocess.run([PYTHON, "-c", "import dnf"], capture_output=True) if os.path.exists(PYTHON) else None
    found += [] if done and done.returncode == 0 else ["dnf"]
    return found + ([] if os.geteuid() == 0 else ["root's rights, without which rpm changes no root directory"])


MISSING = _missing()
needs_dnf = pytest.mark.skipif(
    bool(MISSING), reason=f"not on this machine: {', '.join(MISSING)} (script/bootstrap test installs them)"
)
# Below / Debian's rpm has its database in the user's home.
MACROS = "%_dbpath /var/lib/rpm\n%_build_id_links none\n%_source_payload w0.gzdio\n%_binary_payload w0.gzdio\n"
LOCKS = "/etc/dnf/plugins/versionlock.list"
SETTINGS = "[main]\ngpgcheck=0\nplugins=0\n"  # the plugins of this machine take a third of the time
OS_RELEASE = 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\nPLATFORM_ID="platform:el9"\n'

Spec = Mapping[str, Any]


def build(directory: Path, release: str, packages: Mapping[str, Spec]) -> Path:
    """Build a package for each item, its EPOCH:VERSION in `version`; return the directory of the .rpm files.

    requires, provides, conflicts: lists; files: {path: content, None for a link to ../x}; config: paths; arch;
    post, preun, posttrans: a program in Lua, which rpm runs itself: the root has no shell.
    """
    rpms, made = directory / "rpms", directory / "made"
    for folder in (rpms, made):
        folder.mkdir(parents=True, exist_ok=True)
    home = directory / "home"
    home.mkdir(exist_ok=True)
    (home / ".rpmmacros").write_text(MACROS)
    by_arch: dict[str, list[str]] = {}
    for name, spec in packages.items():
        by_arch.setdefault(spec.get("arch", "noarch"), []).append(name)
    for arch, names in by_arch.items():
        text = ["Name: simulated", "Version: 1", f"Release: {release}", "Summary: simulated", "License: none"]
        text += ["BuildArch: noarch"] if arch == "noarch" else []
        text += ["%description", "simulated"]
        for name in names:
            text += _package(name, release, packages[name])
        text += ["%install"]
        for name in names:
            for path, content in packages[name].get("files", {}).items():
                text += [f"mkdir -p %{{buildroot}}{os.path.dirname(path)}", _make(path, content)]
        (made / f"{arch}.spec").write_text("\n".join(text) + "\n")
        command = [
            "rpmbuild",
            "-bb",
            "--quiet",
            "--target",
            arch,
            f"--define=_topdir {made}",
            f"--define=_rpmdir {rpms}",
        ]
        done = subprocess.run(
            [*command, "--define=_rpmfilename %%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm", made / f"{arch}.spec"],
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(home)},
        )
        assert done.returncode == 0, done.stderr
    return rpms


def _make(path: str, content: str | None) -> str:
    if content is None:
        return f"ln -s ../x %{{buildroot}}{path}"
    return f"printf '%s' '{content}' > %{{buildroot}}{path}"


def _package(name: str, release: str, spec: Spec) -> list[str]:
    epoch, _colon, version = spec["version"].rpartition(":")
    lines = [f"%package -n {name}", "Summary: simulated", f"Version: {version}", f"Release: {release}"]
    lines += [f"Epoch: {epoch}"] if epoch else []
    for tag in ("requires", "provides", "conflicts", "obsoletes"):
        lines += [f"{tag.capitalize()}: {text}" for text in spec.get(tag, ())]
    lines += [
        f"%description -n {name}",
        "A simulated package of gpuhost's tests, which contains nothing of its vendor.",
    ]
    for script in ("post", "preun", "posttrans"):
        lines += [f"%{script} -n {name} -p <lua>", spec[script]] if script in spec else []
    kinds = {
        **dict.fromkeys(spec.get("config", ()), "%config(noreplace) "),
        **dict.fromkeys(spec.get("docs", ()), "%doc "),
    }
    return [*lines, f"%files -n {name}", *(kinds.get(path, "") + path for path in spec.get("files", {}))]


def stream(name: str, rpms: Iterable[str]) -> str:
    """Return the document of a stream of the module nvidia-driver."""
    artifacts = "".join(f"      - {rpm}\n" for rpm in sorted(rpms))
    return (
        "---\ndocument: modulemd\nversion: 2\ndata:\n  name: nvidia-driver\n"
        f'  stream: "{name}"\n  version: 20260101000000\n  context: simulated\n  arch: x86_64\n'
        "  summary: simulated\n  description: simulated\n  license:\n    module:\n    - MIT\n"
        f"  artifacts:\n    rpms:\n{artifacts}...\n"
    )


def make_repository(directory: Path, modules: str = "") -> None:
    """Write the metadata of a repository, with modules."""
    subprocess.run(["createrepo_c", "--quiet", directory], check=True, capture_output=True)
    if modules:
        path = directory / "modules.yaml"
        path.write_text(modules)
        subprocess.run(
            ["modifyrepo_c", "--mdtype=modules", path, directory / "repodata"], check=True, capture_output=True
        )


class RealDnf:
    """A host whose dnf and rpm work below `root`; an instance is the run_command of dnf_manager.Dnf."""

    def __init__(self, directory: Path) -> None:
        self.root, self.state, self.home = directory / "root", directory / "state", directory / "home"
        self.ran: list[str] = []
        self.on_kill: Callable[[], object] = int  # called when a process was killed

    @classmethod
    def create(cls, directory: Path, baseurl: str) -> RealDnf:
        """Make a host that has no package."""
        host = cls(directory)
        for name in ("etc/yum.repos.d", "etc/dnf/plugins", "etc/dnf/modules.d", "var/lib/rpm", "var/log"):
            (host.root / name).mkdir(parents=True)
        host.home.mkdir()
        host.state.mkdir()
        (host.home / ".rpmmacros").write_text(MACROS)
        (host.root / "etc/os-release").write_text(OS_RELEASE)
        (host.root / "etc/dnf/dnf.conf").write_text(SETTINGS)
        # The plugin `local` makes a repository of what is installed; Debian's package of plugins enables it.
        (host.root / "etc/dnf/plugins/local.conf").write_text("[main]\nenabled = 0\n")
        (host.root / "etc/dnf/plugins/versionlock.conf").write_text(f"[main]\nenabled = 1\nlocklist = {LOCKS}\n")
        (host.root / LOCKS[1:]).touch()
        host.baseurl(baseurl)
        return host

    def baseurl(self, url: str) -> None:
        (self.root / "etc/yum.repos.d/cuda.repo").write_text(f"[cuda]\nname=simulated\nbaseurl={url}\ngpgcheck=0\n")

    def __call__(self, command: list[str], data: str = "", **options: Any) -> tuple[int, str, str]:
        self.ran.append(json.loads(data)["do"])
        done = self.do(*command, data=data, **options.get("environ_update", {}))
        if done.returncode < 0:
            self.on_kill()
        return done.returncode, done.stdout, done.stderr

    def do(self, *command: str, data: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        more = ["--installroot", str(self.root), "--releasever=9", "-y"] if command[0] == "dnf" else []
        # Beside --installroot the plugin reads the list of this machine.
        if command[0] == "dnf":
            plugins = self.home / "plugins"
            shutil.copytree(self.root / "etc/dnf/plugins", plugins, dirs_exist_ok=True)
            settings = (plugins / "versionlock.conf").read_text()
            (plugins / "versionlock.conf").write_text(settings.replace(LOCKS, f"{self.root}{LOCKS}"))
            more += ["--setopt=plugins=1", f"--setopt=pluginconfpath={plugins}"]
        more += ["--root", str(self.root)] if command[0] == "rpm" else []
        return subprocess.run(
            [command[0], *more, *command[1:]],
            input=data,
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": str(self.home), **environment},
        )

    def rpm(self, *words: str) -> list[str]:
        """Return the lines that rpm prints."""
        return self.do("rpm", *words).stdout.splitlines()

    def shown(self) -> list[str]:
        """Return what rpm and versionlock say about all packages, and which streams are enabled."""
        rpms = sorted(self.rpm("-qa", "--queryformat=%{NAME} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\\n"))
        lines = (self.root / LOCKS[1:]).read_text().splitlines()
        files = sorted((self.root / "etc/dnf/modules.d").glob("*.module"))
        texts = [" ".join(path.read_text().split()) for path in files]
        modules = [f"module {text}" for text in texts if "state=enabled" in text]  # dnf leaves the file of a reset one
        return [*rpms, *(f"lock {line}" for line in sorted(lines) if not line.startswith("#")), *modules]

    @property
    def database(self) -> rpm_database.RpmDatabase:
        return rpm_database.RpmDatabase(str(self.root))

    def dnf(self, wait: int = 5) -> dnf_manager.Dnf:
        """Return the manager of this host."""
        kept = str(self.state / "packages")
        return dnf_manager.Dnf(self, wait, kept, str(self.root), "", lambda _root, module: module.startswith("nvidia/"))

    def run_transaction(
        self, request: transaction.PackageRequest, check: bool = False, undo: bool = True
    ) -> transaction.Result:
        """Run a package transaction."""
        return transaction.Transaction(request, self.dnf(), str(self.state), undo, check=check).run()
