"""Cases of packages as rows of YAML: what is on a host, what is asked for, the commands that run, what is there then.

A package is `VERSION [STATE] [hold] [theirs]`: its state in dpkg's words where it is not installed, `theirs` for a hold
that gpuhost did not set. A command is shown without the options that each command of its kind has (USUAL), `(unbound)`
where the preferences of the transaction do not bind it. A row that says nothing of it runs no command that changes
something, leaves the packages as they are, and succeeds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.unit.module_utils.simulated_packages import SimulatedPackages, name_and_version

# apt-get(8): what the words mean; the scenarios show that apt and dpkg accept them.
ALLOW = ["-y", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "--ignore-hold"]
OLD_CONFIGURATION = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
KEEP = ["-o", "Dir::Cache::Archives=/packages/", "-o", "APT::Keep-Downloaded-Packages=true"]
UPDATE = ["-o", "APT::Update::Error-Mode=any"]
CONFIGURE = ["--force-confdef", "--force-confold"]
USUAL = [" " + " ".join(words) for words in (ALLOW, OLD_CONFIGURATION, KEEP, UPDATE, CONFIGURE)]
QUESTIONS = (
    "sync",
    "apt-cache ",
    "apt-mark showauto",
    "apt-get -s check",
    "apt-get --simulate ",
    "dpkg-query ",
    "dpkg-deb ",
)
# What an `apt-get install` prints that fails, in apt's own words: where a file has another size than its list says,
# where dpkg has failed, was killed before, or is killed together with apt.
OUTCOMES = {
    "other size": "E: Failed to fetch http://repository.lab/a_2_all.deb  File has unexpected size (7 != 8). Mirror sync"
    " in progress?",
    "dpkg failed": "E: Sub-process /usr/bin/dpkg returned an error code (1)",
    "interrupted": "E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.",
    "killed": "killed",
}
GIVEN = {
    "case",
    "before",  # the packages
    "depends",  # their field Depends
    "automatic",  # those that were installed as dependencies
    "recorded",  # the journal of earlier transactions
    "kept",  # files that were kept for a rollback
    "preferences",  # files of apt's preferences
    "offers",  # what the repositories offer
    "refreshed",  # and after `apt-get update`
    "brings",  # what a package brings with it
    "answers",  # what a command prints that begins so, without doing anything
    "fails",  # what a command prints that has this word, and fails
    "installs",  # how each `apt-get install` ends, of OUTCOMES or ok
    "then",  # the packages after a command that begins so
    "call",  # recover, or install with these packages
    "dkms",  # {package: the module that its scripts build}
    "broken",  # those whose module does not build
    "orphan",  # the module that DKMS has kept of a removed package
    "unfinished",  # packages that cannot be configured
    "stops",  # apt configures nothing after a failure
    "ask",  # what the transaction is to do; without packages it is a=2
    "check",  # run in check mode alone
    "not_simulated",  # check mode does not show the changes
    "undo",
}


def load(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file; every scalar is text."""
    rows: list[dict[str, Any]] = yaml.load(path.read_text(), yaml.BaseLoader)
    return rows


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """Return what a row says of the result: nothing changes and nothing fails where it says nothing."""
    before = {name: text.removesuffix(" theirs") for name, text in row.get("before", {}).items()}
    nothing = {"after": before, "error": "", **({} if "commands" in row else {"runs": []})}
    return nothing | {key: value for key, value in row.items() if key not in GIVEN}


def state(text: str) -> tuple[str, str, str]:
    """Return (version, status, want) of a package."""
    version, *words = text.split()
    held = "hold" in words
    (status,) = [word for word in words if word not in ("hold", "theirs")] or ["installed"]
    return version, status, "hold" if held else "deinstall" if status == "config-files" else "install"


def shown(states: dict[str, tuple[str, str, str]]) -> dict[str, str]:
    """Return packages as a row has them."""
    return {
        name: " ".join([version, *[status] * (status != "installed"), *["hold"] * (want == "hold")])
        for name, (version, status, want) in states.items()
    }


class CaseHost(SimulatedPackages):
    """The host of a row, below a directory. `commands` are as they were called, `ran` as a row shows them."""

    def __init__(self, directory: Path, row: dict[str, Any]) -> None:
        super().__init__(directory / "root", {}, set(row.get("automatic", ())))
        self.directory, self.row, self.preferences = directory, row, directory / "preferences.d"
        self.depends = row.get("depends", {})
        self.set({name: state(text) for name, text in row.get("before", {}).items()})
        self.failing = row.get("fails", {})
        self.offers = row.get("offers", [])
        self.outcomes = list(row.get("installs", ()))
        self.forget()
        self.bound_by: list[Path] = []  # the folders of preferences
        for name in row.get("kept", ()):
            self._write(directory / "packages" / name)
        for name, text in row.get("preferences", {}).items():
            self._write(self.preferences / name, text)

    def forget(self) -> None:
        """Begin the recorded again: `bound` has, of the last simulation, {file: text} of the preferences that bind."""
        self.ran: list[str] = []
        self.keeps: list[str] = []
        self.preferences_at_install: list[str] = []
        self.bound: dict[str, str] = {}

    def _write(self, path: Path, text: str = "") -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def show(self, command: list[str]) -> str:
        """Return a command as a row has it; its directory is the root."""
        text = re.sub(r" -o APT::Status-Fd=\d+", "", " ".join(command).replace(str(self.directory), ""))
        text = re.sub(r"/packages/tmp\w+/", "/packages/", text)  # downloaded
        for words in USUAL:
            text = text.replace(words, "")
        text, bound = re.subn(r" -o Dir::Etc::PreferencesParts=\S+", "", text)
        return text + " (unbound)" * ("install" in command and not bound)

    def changing(self) -> list[str]:
        """Return the commands that are no questions and do not download what is kept."""
        kept = [f"apt-get download {spec}" for spec in self.keeps]
        return [command for command in self.ran if not command.startswith(QUESTIONS) and command not in kept]

    def _of_row(self, key: str) -> Any:
        """Return the entry of a table of the row for the command that runs, None if there is none."""
        return next((value for start, value in self.row.get(key, {}).items() if self.ran[-1].startswith(start)), None)

    def __call__(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        if command[:2] == ["apt-get", "download"] and options["cwd"] == str(self.directory / "packages"):
            self.keeps += command[2:]
        self.ran.append(self.show(command))
        answer = self._of_row("answers")
        done = self._answer(command, **options) if answer is None else (0, answer, "")
        self.set({**self.packages, **{name: state(text) for name, text in (self._of_row("then") or {}).items()}})
        return done

    def _answer(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        if "--simulate" in command:
            for folder in [Path(word.partition("=")[2]) for word in command if "PreferencesParts=" in word]:
                assert folder.stat().st_mode & 0o777 == 0o755, "apt's own user reads it"
                self.bound = {path.name: path.read_text() for path in folder.iterdir() if path.stat().st_size}
                self.bound_by.append(folder)
        if command[:2] == ["apt-cache", "madison"]:
            lines = [f"{spec.replace('=', ' | ')} | http://repository.lab ./ Packages\n" for spec in self.offers]
            return 0, "".join(line for line in lines if line.split()[0] in command), ""
        if command[:2] == ["apt-get", "download"]:
            for spec in command[2:]:
                name, version = spec.replace(":", "%3a").split("=")
                name, _, foreign = name.partition("%3a")
                (Path(options["cwd"]) / f"{name}_{version}_{foreign or 'all'}.deb").touch()
        if command[:2] == ["dpkg-deb", "--extract"]:  # each has a file of preferences of its name
            path = Path(command[3] + str(self.preferences), Path(command[2]).name.partition("_")[0])
            path.parent.mkdir(parents=True)
            path.write_text(f"of {path.name}")
        if command[:2] == ["dpkg-query", "-L"]:
            return 0, "".join(f"{self.preferences}/{name}\n" for name in command[2:]), ""
        if "update" in command:
            self.offers = self.row.get("refreshed", self.offers)
        installs = "install" in command and "--simulate" not in command
        if installs and self.preferences.exists():
            self.preferences_at_install = sorted(path.name for path in self.preferences.iterdir())
        outcome = self.outcomes.pop(0) if installs and self.outcomes else "ok"
        if outcome != "ok":
            name, version = name_and_version(command[-1])
            if outcome == "dpkg failed":
                self.set({**self.packages, name: (version, "half-configured", "install")})
            return -9 if outcome == "killed" else 100, "", OUTCOMES[outcome]
        return super().__call__(command, **options)

    def _install(self, specs: list[str], simulate: bool) -> str:
        """Install what is offered of a package without a version; what is there stays, as for apt."""
        offered = dict(spec.split("=") for spec in self.offers)
        brings = "".join(self.row.get("brings", {}).get(spec, "") for spec in specs)
        again = "--reinstall" in self.ran[-1]
        exact = [f"{spec}={offered[spec]}" if spec in offered else spec for spec in specs if spec not in self.packages]
        return brings + super()._install([spec for spec in exact if again or not self._is_there(spec)], simulate)

    def _is_there(self, spec: str) -> bool:
        name, version = name_and_version(spec)
        return self.packages.get(name, ())[:2] == (version, "installed")
