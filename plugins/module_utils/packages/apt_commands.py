"""The commands of apt and dpkg as this project calls them, and packages brought back to what they were.

Runs on the managed host (standard library, Python 3.8 syntax).
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import tempfile
from typing import Any, Callable

from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_output

# Configuration files that somebody edited stay as they are; nothing may ask a question.
# Holds are set aside and not released, so that a run that dies in the middle leaves them; the simulation tells whether
# a package that somebody else holds would move.
APT_OPTIONS = ["-y", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "--ignore-hold"]
DPKG = ["dpkg", "--force-confdef", "--force-confold"]
DPKG_OPTIONS = ["-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"]
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"}
PREFERENCES = "/etc/apt/preferences.d"
ARCHIVES = "/var/cache/apt/archives"
MAKE_LOG_LINES = 30
SAID_LINES = 25
# What apt and dpkg say of what goes well; between such lines the cause of a failure would be lost.
PROGRESS = (
    "Get:",
    "Hit:",
    "(Reading",
    "Selecting",
    "Preparing to",
    "Unpacking",
    "Setting up",
    "Processing triggers",
    "Reading ",
    "Building dependency",
    "debconf: delaying",
    "Fetched",
    "Need to get",
    "After this operation",
)


class AptError(Exception):
    """A command of apt or dpkg failed; told in its own words, and in the compiler's where a module did not build."""

    def __init__(self, command: list[str], rc: int, said: str, logs: dict[str, str]) -> None:
        lines = [line for line in said.splitlines() if line.strip() and not line.startswith(PROGRESS)]
        message = "`%s` failed with status %d:\n%s" % (" ".join(command[:3]), rc, "\n".join(lines[-SAID_LINES:]))
        if logs:
            message += "\nA kernel module did not build:\n" + "\n".join("%s:\n%s" % pair for pair in logs.items())
            message += "\nFix or replace that driver branch for this kernel, then run this again."
        super().__init__(message)
        self.rc = rc
        self.make_logs = logs


class Apt:
    """apt and dpkg. `run_command` is AnsibleModule's; `kept`: the folder where packages are downloaded to and stay."""

    def __init__(self, run_command: Callable[..., tuple[int, str, str]], lock_timeout: int, kept: str = "") -> None:
        self.run_command = run_command
        self.lock = ["-o", "DPkg::Lock::Timeout=%d" % lock_timeout]
        self.kept = kept
        self.bound: list[str] = []

    def run(self, command: list[str], good: tuple[int, ...] = (0,), cwd: str | None = None) -> str:
        rc, out, err = self.run_command(command, environ_update=ENVIRONMENT, cwd=cwd)
        if rc not in good:
            raise AptError(command, rc, out + "\n" + err, make_logs())
        return out

    def packages(self) -> dict[str, apt_output.Installed]:
        """All packages that dpkg knows."""
        return apt_output.parse_dpkg(self.run(["dpkg-query", "-W", "-f", apt_output.DPKG_FORMAT]))

    def automatic(self) -> set[str]:
        """Packages that came for another one's sake: `apt-get autoremove` takes them when nothing needs them."""
        return set(self.run(["apt-mark", "showauto"]).split())

    # The repositories' offer --------------------------------------------------------------------------------------

    def offered(self, names: list[str]) -> dict[str, list[str]]:
        return apt_output.parse_madison(self.run(["apt-cache", "madison"] + names, good=(0, 100))) if names else {}

    def update(self) -> None:
        self.run(["apt-get"] + self.lock + ["update"])

    def exact_dependencies(self, specs: list[str]) -> dict[str, str]:
        """{name: version} of what `specs` need at one version, directly or not.

        apt itself takes the newest of such a package and then says that it does not fit.
        """
        found: dict[str, str] = {}
        waiting = [spec for spec in specs if "=" in spec]
        while waiting:
            text = self.run(["apt-cache", "show"] + waiting, good=(0, 100))
            needed = apt_output.parse_exact_depends(text)
            waiting = ["%s=%s" % pair for pair in sorted(needed.items()) if pair[0] not in found]
            found.update({name: version for name, version in needed.items() if name not in found})
        return found

    def bind(self, folder: str, pins: list[str], gone: list[str], exact: dict[str, str]) -> None:
        """Makes apt follow, from now on, what `pins` prefer and what is `exact`, before any of it is installed.

        `folder` becomes a copy of apt's folder of preferences without those of the packages that will be `gone`.
        """
        stale = {os.path.basename(path) for path in self._preferences_of(gone)}
        for path in glob.glob(PREFERENCES + "/*"):
            if os.path.basename(path) not in stale:
                shutil.copy(path, folder)
        if pins:
            with tempfile.TemporaryDirectory() as unpacked:
                os.chmod(unpacked, 0o755)  # apt's own user looks into it
                self.run(["apt-get", "download"] + pins, cwd=unpacked)
                for package in glob.glob(unpacked + "/*.deb"):
                    self.run(["dpkg-deb", "--extract", package, unpacked + "/root"])
                for path in glob.glob(unpacked + "/root" + PREFERENCES + "/*"):
                    shutil.copy(path, folder)
        with open(os.path.join(folder, "00gpuhost-transaction.pref"), "w") as stream:
            for name, version in sorted(exact.items()):
                stream.write("Package: %s\nPin: version %s\nPin-Priority: 1001\n\n" % (name, version))
        self.bound = ["-o", "Dir::Etc::PreferencesParts=%s" % folder]

    def _preferences_of(self, names: list[str]) -> list[str]:
        files = self.run(["dpkg-query", "-L"] + names, good=(0, 1)).splitlines() if names else []
        return [path for path in files if path.startswith(PREFERENCES + "/")]

    # Changes ------------------------------------------------------------------------------------------------------

    def simulate(self, wanted: list[str], purge: bool = False) -> list[apt_output.Change]:
        """What `apt-get install WANTED` would do; `name-` removes."""
        options = APT_OPTIONS + (["--purge"] if purge else [])
        return apt_output.parse_simulation(
            self.run(["apt-get", "--simulate"] + options + self.bound + ["install"] + wanted)
        )

    def install(self, wanted: list[str], purge: bool = False) -> None:
        """`apt-get install WANTED`; all is downloaded before the first package is unpacked."""
        options = APT_OPTIONS + DPKG_OPTIONS + self.lock + self.bound
        if self.kept:
            os.makedirs(self.kept + "/partial", exist_ok=True)
            options += ["-o", "Dir::Cache::Archives=%s/" % self.kept, "-o", "APT::Keep-Downloaded-Packages=true"]
        self.run(["apt-get"] + options + (["--purge"] if purge else []) + ["install"] + wanted)

    def recover(self, packages: dict[str, apt_output.Installed]) -> str:
        """Finishes what an interrupted run left, so that nobody has to type it by hand.

        Returns what could not be finished, in the command's words: a package that cannot be configured (a kernel module
        that does not build) may be just the one that is about to be replaced.
        """
        said = []
        # One whose unpacking or removal was cut off is installed for apt, and never configured by dpkg.
        for name, state in packages.items():
            if state.status == "half-installed":
                said.append(self._unpack_again(name, state.version))
        if any(state.status not in apt_output.SETTLED for state in packages.values()):
            said.append(self._try(DPKG + ["--configure", "-a"]))
        if self.run_command(["apt-get", "check"], environ_update=ENVIRONMENT)[0]:
            fix = ["apt-get", "-y"] + DPKG_OPTIONS + self.lock + self.bound
            said.append(self._try(fix + ["--fix-broken", "install"]))
        return "\n".join(text for text in said if text)

    def _try(self, command: list[str], cwd: str | None = None) -> str:
        """What went wrong, in the command's words."""
        try:
            self.run(command, cwd=cwd)
        except AptError as error:
            return str(error)
        return ""

    def _unpack_again(self, name: str, version: str) -> str:
        """By dpkg: apt refuses while a package that is unpacked already needs another version of this one."""
        with tempfile.TemporaryDirectory() as folder:
            path = self.file_of(name, version)
            if path is None:
                missing = self._try(["apt-get", "download", "%s=%s" % (name, version)], cwd=folder)
                if missing:
                    return missing
                path = glob.glob(folder + "/*.deb")[0]
            return self._try(DPKG + ["--unpack", path]) or self._clear(name)

    def _clear(self, name: str) -> str:
        """Removes the files that dpkg was about to rename when it was killed, of each version that is kept.

        dpkg itself removes them only when it unpacks that version again. Returns what could not be read.
        """
        try:
            for package in glob.glob("%s/%s_*.deb" % (glob.escape(self.kept), name)) if self.kept else []:
                for path in apt_output.parse_contents(self.run(["dpkg-deb", "--contents", package])):
                    if os.path.lexists(path + ".dpkg-new"):
                        os.unlink(path + ".dpkg-new")
        except AptError as error:
            return str(error)
        return ""

    def mark(self, how: str, names: list[str]) -> None:
        """`apt-mark hold|unhold|auto|manual NAME...`"""
        if names:
            self.run(["apt-mark", how] + sorted(names))

    # Kept packages ------------------------------------------------------------------------------------------------

    def file_of(self, name: str, version: str) -> str | None:
        """The kept file of a package's version."""
        pattern = "%s_%s_*.deb" % (name, version.replace(":", "%3a"))
        found = glob.glob(os.path.join(glob.escape(self.kept), pattern)) if self.kept else []
        return found[0] if found else None

    def keep(self, versions: dict[str, str]) -> list[str]:
        """Puts the files of installed packages beside the new ones; returns those that nobody offers any more."""
        os.makedirs(self.kept, exist_ok=True)
        lost = []
        for name, version in sorted(versions.items()):
            if self.file_of(name, version) is None:
                cached = glob.glob("%s/%s_%s_*.deb" % (ARCHIVES, name, version.replace(":", "%3a")))
                if cached:
                    shutil.copy(cached[0], self.kept)
                elif self._try_download("%s=%s" % (name, version)):
                    lost.append("%s %s" % (name, version))
        return lost

    def _try_download(self, spec: str) -> int:
        return self.run_command(["apt-get", "download", spec], environ_update=ENVIRONMENT, cwd=self.kept)[0]


def make_logs() -> dict[str, str]:
    """{path: its last lines} of DKMS builds that failed: DKMS keeps build/make.log only of those."""
    logs = {}
    for path in sorted(glob.glob("/var/lib/dkms/*/*/build/make.log")):
        if not os.path.islink(path):
            with open(path, errors="replace") as stream:
                logs[path] = "".join(stream.readlines()[-MAKE_LOG_LINES:])
    return logs


def state_of(names: list[str], packages: dict[str, apt_output.Installed], automatic: set[str]) -> dict[str, Any]:
    """{name: {"version", "held", "auto"}, or None where it is not installed}: what `restore` brings back."""
    states: dict[str, Any] = {}
    for name in names:
        package = packages.get(name)
        there = package is not None and package.status not in ("config-files", "not-installed")
        states[name] = (
            {"version": package.version, "held": package.held, "auto": name in automatic} if package and there else None
        )
    return states


def restore(work: Apt, targets: dict[str, Any], check: bool = False) -> list[str]:
    """Brings packages to `targets` (as `state_of` gives them), in one transaction; returns the changes as sentences.

    Raises AptError when apt fails, ValueError when the transaction would reach beyond `targets` or misses them.
    """
    now = work.packages()
    wanted, gone = _differences(work, targets, now)
    sentences = []
    if wanted or gone:
        command = wanted + [name + "-" for name in gone]
        changes = work.simulate(command, purge=True)
        strangers = apt_output.unexpected(changes, sorted(targets), [re.escape(name) for name in gone], [])
        if strangers:
            raise ValueError(
                "No package was changed: going back would also change\n  %s\nThey need what would go: remove them "
                "first, then run this again." % "\n  ".join(strangers)
            )
        sentences = [change.describe() for change in changes]
        if not check:
            work.install(command, purge=True)
            _purge_settings(work, gone)
    sentences += _marks(work, targets, check)
    if not check:
        wanted, gone = _differences(work, targets, work.packages())
        if wanted or gone:
            raise ValueError("apt succeeded, but these are still not as they were: %s" % ", ".join(wanted + gone))
    return sentences


def _differences(
    work: Apt, targets: dict[str, Any], now: dict[str, apt_output.Installed]
) -> tuple[list[str], list[str]]:
    """(what to install: files where they were kept; what must go)."""
    wanted, gone = [], []
    for name, target in sorted(targets.items()):
        package = now.get(name)
        there = package.version if package and package.status == "installed" else None
        if target is None:
            if package is not None and package.status != "not-installed":
                gone.append(name)
        elif target["version"] != there:
            wanted.append(work.file_of(name, target["version"]) or "%s=%s" % (name, target["version"]))
    return wanted, gone


def _purge_settings(work: Apt, gone: list[str]) -> None:
    """Settings that an earlier removal left behind: `apt-get install NAME-` does not touch them."""
    now = work.packages()
    left = [name for name in gone if name in now and now[name].status == "config-files"]
    if left:
        work.run(["dpkg", "--purge"] + left)


def _marks(work: Apt, targets: dict[str, Any], check: bool) -> list[str]:
    """Holds, and who asked for a package, as they were."""
    now, automatic = work.packages(), work.automatic()
    wanted: dict[str, list[str]] = {"hold": [], "unhold": [], "auto": [], "manual": []}
    for name, target in targets.items():
        if target is None or name not in now:
            continue
        if target["held"] != now[name].held:
            wanted["hold" if target["held"] else "unhold"].append(name)
        if target["auto"] != (name in automatic):
            wanted["auto" if target["auto"] else "manual"].append(name)
    if not check:
        for how, names in wanted.items():
            work.mark(how, names)
    return ["%s (%s)" % (name, how) for how in ("hold", "unhold") for name in sorted(wanted[how])]
