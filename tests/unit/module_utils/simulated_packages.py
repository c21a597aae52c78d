"""apt and dpkg as a run_command: a dpkg database whose answers have the format of the captured fixtures.

`apt-get --simulate` prints in the form of tests/fixtures/apt_transaction/simulate-replace.txt; the database has that
of tests/fixtures/probe/dpkg-status-states.txt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands


def parse(*texts: str) -> list[Package]:
    """Return the packages of texts such as NAME=VERSION."""
    return list(map(Package.parse, texts))


class SimulatedPackages:
    """A host's packages, {name: (version, status, want)}; `commands` are those that were run, in order."""

    def __init__(
        self, root: Path, packages: dict[str, tuple[str, str, str]], automatic: set[str] | None = None
    ) -> None:
        self.root, self.automatic = root, automatic or set()
        self.packages: dict[str, tuple[str, str, str]] = {}
        self.commands: list[list[str]] = []
        self.failing: dict[str, str] = {}  # by a word of the command: what it prints when it fails
        self.depends: dict[str, str] = {}  # the field Depends by package
        self.reinstreq: set[str] = set()  # packages with dpkg's flag: it was killed while it unpacked them
        self.set(packages)

    def apt(self, kept: str = "") -> apt_commands.Apt:
        return apt_commands.Apt(self, 1, kept, str(self.root))

    def set(self, packages: dict[str, tuple[str, str, str]]) -> None:
        """Write the database; NAME:ARCHITECTURE is a package of a foreign architecture."""
        self.packages = dict(packages)
        status = self.root / "var/lib/dpkg/status"
        status.parent.mkdir(parents=True, exist_ok=True)
        paragraphs = []
        for row, (version, state, want) in self.packages.items():
            name, _, architecture = row.partition(":")
            architecture = f"Architecture: {architecture}\n" if architecture else ""
            depends = f"Depends: {self.depends[row]}\n" if row in self.depends else ""
            files = self.root / f"var/lib/dpkg/info/{row}.list"
            files.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(files.read_text() if files.exists() else "/.\n")
            flag = "reinstreq" if row in self.reinstreq else "ok"
            paragraphs.append(
                f"Package: {name}\nStatus: {want} {flag} {state}\n{architecture}Version: {version}\n{depends}"
            )
        status.write_text("\n".join(paragraphs))

    def __call__(self, command: list[str], **_options: Any) -> tuple[int, str, str]:
        self.commands.append(command)
        for word, message in self.failing.items():
            if word in command:
                return 100, "", message
        if command[0] == "apt-mark":
            return 0, self._mark(command[1], command[2:]), ""
        if command[:2] == ["dpkg", "--purge"]:
            self.set({name: state for name, state in self.packages.items() if name not in command[2:]})
        if command[0] == "apt-get" and "install" in command:
            # As captured: apt 2.6.1 refuses each command that does not meet the dependencies that it misses.
            if "check" in self.failing and "--fix-broken" not in command:
                return 100, "", self.failing["check"]
            specs = command[command.index("install") + 1 :]
            # As captured: apt 2.6.1 says "already the newest version" and dpkg 1.21.22 refuses to configure.
            broken = [name_and_version(spec)[0] for spec in specs if not spec.endswith("-")]
            if "--reinstall" not in command and "--simulate" not in command and self.reinstreq & set(broken):
                return 100, "", "dpkg: error: package is in a very bad inconsistent state"
            return 0, self._install(specs, "--simulate" in command), ""
        return 0, "", ""

    def run(self, program: str) -> list[list[str]]:
        """Return the commands of `program` that were not simulations or questions."""
        return [c for c in self.commands if c[0] == program and not {"--simulate", "showauto", "check"} & set(c)]

    def _mark(self, how: str, names: list[str]) -> str:
        if how == "showauto":
            return "".join(f"{name}\n" for name in sorted(self.automatic))
        if how in ("hold", "unhold"):
            marked = {name: (*self.packages[name][:2], "hold" if how == "hold" else "install") for name in names}
            self.set({**self.packages, **marked})
        else:
            self.automatic = self.automatic | set(names) if how == "auto" else self.automatic - set(names)
        return ""

    def _install(self, specs: list[str], simulate: bool) -> str:
        lines = []
        after = dict(self.packages)
        for spec in specs:
            if spec.endswith("-") and self.packages[spec[:-1]][1] == "config-files":
                continue  # apt: "Package is not installed, so not removed"
            if spec.endswith("-"):
                lines.append(f"Purg {spec[:-1]} [{after.pop(spec[:-1])[0]}]\n")
                continue
            name, version = name_and_version(spec)
            old = f"[{self.packages[name][0]}] " if name in self.packages else ""
            lines.append(f"Inst {name} {old}({version} Debian:12.12/oldstable [amd64])\n")
            after[name] = (version, "installed", "install")
        if not simulate:
            self.reinstreq -= {name_and_version(spec)[0] for spec in specs}
            self.set(after)
        return "".join(lines)


def name_and_version(spec: str) -> tuple[str, str]:
    """Return what apt installs for NAME=VERSION or a path NAME_VERSION_ARCHITECTURE.deb."""
    if spec.endswith(".deb"):
        name, version, architecture = Path(spec).stem.rsplit("_", 2)
        foreign = f":{architecture}" if architecture == "i386" else ""
        return name + foreign, version.replace("%3a", ":")
    name, _, version = spec.partition("=")
    return name, version
