"""apt and dpkg as a run_command: a table of packages that answers in the words of the captured fixtures.

The forms of the answers are those of tests/fixtures/apt_transaction: dpkg-query.txt, simulate-replace.txt.
"""

from __future__ import annotations

from pathlib import Path


class SimulatedPackages:
    """A host's packages, {name: (version, status, want)}; `commands` are those that were run, in order."""

    def __init__(self, packages: dict[str, tuple[str, str, str]], automatic: set[str] | None = None) -> None:
        self.packages = dict(packages)
        self.automatic = automatic or set()
        self.commands: list[list[str]] = []
        self.failing: dict[str, str] = {}  # by a word of the command: what it prints when it fails

    def __call__(self, command: list[str], **_options: object) -> tuple[int, str, str]:
        self.commands.append(command)
        for word, message in self.failing.items():
            if word in command:
                return 100, "", message
        if command[0] == "dpkg-query":
            rows = [(name, *row) for name, row in self.packages.items()]
            return 0, "".join("{}\t{}\t{}\t{}\t, \n".format(*row) for row in rows), ""
        if command[0] == "apt-mark":
            return 0, self._mark(command[1], command[2:]), ""
        if command[0] == "apt-get" and "install" in command:
            return 0, self._install(command[command.index("install") + 1 :], "--simulate" in command), ""
        return 0, "", ""

    def run(self, program: str) -> list[list[str]]:
        """Return the commands of `program` that were not simulations or questions."""
        return [c for c in self.commands if c[0] == program and not {"--simulate", "showauto", "check"} & set(c)]

    def _mark(self, how: str, names: list[str]) -> str:
        if how == "showauto":
            return "".join(f"{name}\n" for name in sorted(self.automatic))
        for name in names:
            version, status, _ = self.packages[name]
            if how in ("hold", "unhold"):
                self.packages[name] = (version, status, "hold" if how == "hold" else "install")
        self.automatic = self.automatic | set(names) if how == "auto" else self.automatic - set(names)
        return ""

    def _install(self, specs: list[str], simulate: bool) -> str:
        lines = []
        after = dict(self.packages)
        for spec in specs:
            if spec.endswith("-"):
                lines.append(f"Purg {spec[:-1]} [{after.pop(spec[:-1])[0]}]\n")
                continue
            name, version = _name_and_version(spec)
            old = f"[{self.packages[name][0]}] " if name in self.packages else ""
            lines.append(f"Inst {name} {old}({version} Debian:12.12/oldstable [amd64])\n")
            after[name] = (version, "installed", "install")
        if not simulate:
            self.packages = after
        return "".join(lines)


def _name_and_version(spec: str) -> tuple[str, str]:
    """Return what apt installs for NAME=VERSION or a path NAME_VERSION_ARCH.deb."""
    if spec.endswith(".deb"):
        name, version, _ = Path(spec).name.split("_")
        return name, version.replace("%3a", ":")
    name, _, version = spec.partition("=")
    return name, version
