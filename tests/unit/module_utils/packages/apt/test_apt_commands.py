"""The commands of apt and dpkg: recovery from interrupted runs, preferences, kept packages, error messages.

The scenarios undo, interrupted and teardown verify that apt and dpkg execute them.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import installed_driver
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import dkms
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_commands, dpkg, dpkg_info
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.port import Operation

from tests.unit.module_utils import package_cases
from tests.unit.module_utils.host_files import link, put
from tests.unit.module_utils.package_cases import ALLOW, OLD_CONFIGURATION, CaseHost
from tests.unit.module_utils.real_dpkg import RealDpkg
from tests.unit.module_utils.simulated_packages import parse

NATIVE = dpkg_info.native_architecture()


def failed(module: str, text: str, planned: bool = True, owner: str | None = None) -> dkms.FailedModule:
    """Return a module that DKMS has begun to build."""
    return dkms.FailedModule(module, f"/var/lib/dkms/{module}/build/make.log", text, owner, planned)


# Recovery, modules of others: rows ----------------------------------------------------------------------------------

CASES = package_cases.load(Path(__file__).with_name("apt_commands_cases.yml"))
# As dpkg 1.21.22 and dkms 3.0.10 print it on Debian 12 when linux-headers-6.1.0-56-amd64 arrives.
NOT_BUILT = """Error! Bad return status for module build on kernel: 6.1.0-56-amd64 (x86_64)
Consult /var/lib/dkms/{}/build/make.log for more information.
"""
HEADERS_FAILED = """Error! One or more modules failed to install during autoinstall.
dpkg: error processing package linux-headers-6.1.0-56-amd64 (--configure):
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""


class DkmsHost(CaseHost):
    """A host whose DKMS does not build the modules of `broken` packages.

    As measured with dkms 3.0.10 and dpkg 1.21.22: the scripts of headers build all modules of the host and fail if one
    fails; a package with a module builds its own. Without autoinstall both succeed and build nothing. dpkg configures
    the other packages after a failure and ends with status 1. A tree that has lost its source fails as a module does.
    """

    def __init__(self, directory: Path, row: dict[str, Any]) -> None:
        super().__init__(directory, row)
        self.dkms, self.orphan = row.get("dkms", {}), row.get("orphan")
        self.no_autoinstall = self.root / "etc/dkms/no-autoinstall"
        self.no_autoinstall.parent.mkdir(parents=True)
        self.built: list[str] = []
        for name, module in self.dkms.items():
            put(self.root, f"var/lib/dpkg/info/{name}.list", f"/.\n/usr/src/{module.replace('/', '-')}/dkms.conf\n")
        if self.orphan:
            link(self.root, f"/var/lib/dkms/{self.orphan}/source", f"/usr/src/{self.orphan.replace('/', '-')}")

    def _answer(self, command: list[str], **options: Any) -> tuple[int, str, str]:
        if not self.dkms:
            return super()._answer(command, **options)
        unfinished = [name for name, (_, state, _) in self.packages.items() if state == "half-configured"]
        if command[0] == "dpkg":
            names = command[command.index("--configure") + 1 :]
            return self._configure(unfinished if names == ["-a"] else names, 1)
        new = [spec.partition("=")[0] for spec in command[command.index("install") + 1 :]]
        self.set({**self.packages, **dict.fromkeys(new, ("1", "half-configured", "install"))})
        names = list(dict.fromkeys(new + unfinished))
        return self._configure(names[:1] if "stops" in self.row else names, 100)

    def _configure(self, names: list[str], failure: int) -> tuple[int, str, str]:
        failed, printed = [], ""
        enabled = not self.no_autoinstall.exists()
        assert enabled or self.no_autoinstall.read_text() == WRITTEN
        for name in names:
            wrong = {n: self.dkms[n] for n in self.row.get("broken", ()) if name in (n, HEADERS) and enabled}
            for module in wrong.values():
                put(self.root, f"var/lib/dkms/{module}/build/make.log", "error: no support for this kernel\n")
                printed += NOT_BUILT.format(module)
            if self.orphan and name == HEADERS and enabled:
                printed += LOST.format(self.orphan)
            bad = wrong or (self.orphan and name == HEADERS and enabled) or name in self.row.get("unfinished", ())
            self.built += [name] if enabled and name in self.dkms and not bad else []
            failed += [name] if bad else []
            self.set({**self.packages, name: ("1", "half-configured" if bad else "installed", "install")})
        return (failure, printed, HEADERS_FAILED) if failed else (0, "", "")


HEADERS = "linux-headers-6.1.0-56-amd64"
WRITTEN = "# Written by gpuhost while it configures packages, and removed by it.\n"
# What dkms 2.8.4 and 3.0.10 print where the source of a module is gone, as in
# https://github.com/negativo17/nvidia-driver/issues/56, https://github.com/Frogging-Family/linux-tkg/issues/1129 and
# https://github.com/ROCm/ROCm/issues/1033.
LOST = "Error! Could not locate dkms.conf file.\nFile: /var/lib/dkms/{}/source/dkms.conf does not exist.\n"


def found_by(directory: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Make the call of a row, and return all that a row can say about the result."""
    host, error = DkmsHost(directory, row), ""
    apt = host.apt(str(directory / "packages"))
    try:
        if row["call"] == "recover":
            error = apt.recover(apt.packages())
        else:
            apt.install(Operation(tuple(parse(*row["call"]["install"]))))
    except apt_commands.AptError as failed:
        error = str(failed)
    assert not host.no_autoinstall.exists()
    return {
        "error": error.replace(str(host.root), "").replace(str(directory), ""),
        "commands": host.ran,
        "runs": host.changing(),
        "after": package_cases.shown(host.packages),
        "built": host.built,
        "warning": "\n".join(apt.warnings).replace(str(host.root), ""),
    }


@pytest.mark.parametrize("row", CASES, ids=[row["case"] for row in CASES])
def test_what_apt_and_dkms_do(row: dict[str, Any], tmp_path: Path) -> None:
    found = found_by(tmp_path, row)
    expected = {"built": [], "warning": "", **package_cases.expected(row)}
    assert {key: found[key] for key in expected} == expected


# Recovery -------------------------------------------------------------------------------------------------------


def test_files_that_dpkg_was_about_to_rename_are_removed_with_their_package(tmp_path):
    files, kept = tmp_path / "files", tmp_path / "packages"
    deb = RealDpkg(tmp_path / "dpkg").build("a", {f"{files}/a file": "new\n"}, "2", links={f"{files}/link": "a file"})
    host = CaseHost(tmp_path, {"before": {"a": "1 half-installed"}})
    for name in ("a file.dpkg-new", "link.dpkg-new", "another's.dpkg-new", "a file"):
        put(files, name)
    kept.mkdir()
    deb.rename(kept / deb.name)
    command = ["dpkg-deb", "--contents", str(kept / deb.name)]
    contents = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    host.row["answers"] = {"dpkg-deb --contents /packages/a_2_all.deb": contents}
    apt = host.apt(str(kept))
    assert apt.recover(apt.packages()) == ""
    assert sorted(path.name for path in files.iterdir()) == ["a file", "another's.dpkg-new"]


def test_without_kept_files_a_package_is_downloaded_below_apts_own_directory(tmp_path, monkeypatch):
    """/tmp may be smaller than the package."""
    archives = tmp_path / "archives"
    archives.mkdir()
    monkeypatch.setattr(apt_commands, "ARCHIVES", str(archives))
    host = CaseHost(tmp_path, {"before": {"a": "1 half-installed"}})
    apt = host.apt()
    assert apt.recover(apt.packages()) == ""
    (unpack,) = (command for command in host.commands if "--unpack" in command)
    assert unpack[:-1] == ["dpkg", "--force-confdef", "--force-confold", "--unpack"]
    assert Path(unpack[-1]).parents[1] == archives
    assert list(archives.iterdir()) == [], "the download is removed"


def test_a_journal_is_finished_and_changed_settings_are_kept(tmp_path):
    """dpkg must not ask about a configuration file while nobody can answer."""
    host = CaseHost(tmp_path, {"before": {"a": "1"}})
    put(host.root, "/var/lib/dpkg/updates/0001")
    apt = apt_commands.Apt(host, 1, "", str(host.root), str(tmp_path / "progress"))
    assert apt.recover(apt.packages()) == ""
    assert host.commands == [["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"]]
    assert (tmp_path / "progress").read_text() == "step:configuring what an interrupted run of dpkg left\n"


# Kept packages --------------------------------------------------------------------------------------------------


def test_replaced_packages_are_kept_from_the_cache_or_the_repository(tmp_path, monkeypatch):
    cache, kept = tmp_path / "cache", tmp_path / "kept"
    cache.mkdir()
    (cache / f"a_1_{NATIVE}.deb").write_bytes(b"")
    monkeypatch.setattr(apt_commands, "ARCHIVES", str(cache))
    host = CaseHost(tmp_path, {})
    assert host.apt(str(kept)).keep({"a": "1", "b:i386": "1:2"}) == {}
    assert sorted(path.name for path in kept.iterdir()) == [f"a_1_{NATIVE}.deb", "b_1%3a2_i386.deb"]
    assert host.commands == [["apt-get", "download", "b:i386=1:2"]]
    assert host.apt(str(kept)).keep({"a": "1"}) == {}
    assert len(host.commands) == 1, "it is kept already"


def test_what_is_kept_already_need_not_be_on_offer_any_more(tmp_path):
    (tmp_path / f"a_1%3a2_{NATIVE}.deb").write_bytes(b"")
    host = CaseHost(tmp_path, {"fails": {"download": "E: Version '3' for 'b' was not found"}})
    apt = apt_commands.Apt(host, 1, str(tmp_path), str(tmp_path / "root"), str(tmp_path / "progress"))
    assert list(apt.keep({"a": "1:2", "b": "3"})) == ["b"]
    assert (tmp_path / "progress").read_text() == "step:keeping b 3 for a rollback\n"


def test_the_file_of_a_package_is_that_of_its_architecture(tmp_path):
    for name in (f"a_1_{NATIVE}.deb", "a_1_i386.deb", "b_1_i386.deb", "c_1%3a2~x_all.deb"):
        (tmp_path / name).write_bytes(b"")
    apt = CaseHost(tmp_path, {}).apt(str(tmp_path))
    files = {
        text: apt.describe(Operation(restore=tuple(parse(text))))
        for text in ("a=1", "a:i386=1", "c=1:2~x", "a=2", "b=1")
    }
    assert files == {
        "a=1": f"{tmp_path}/a_1_{NATIVE}.deb",
        "a:i386=1": f"{tmp_path}/a_1_i386.deb",
        "c=1:2~x": f"{tmp_path}/c_1%3a2~x_all.deb",
        "a=2": "a=2",
        "b=1": "b=1",
    }
    assert [apt.is_kept(Package("a", version)) for version in ("1", "2")] == [True, False]
    assert not CaseHost(tmp_path, {}).apt("").is_kept(Package("a", "1")), "nothing is kept"


def test_files_of_other_versions_are_pruned(tmp_path):
    for name in (f"a_1_{NATIVE}.deb", f"a_2_{NATIVE}.deb", "a_1_i386.deb", "b_1_i386.deb", "lock"):
        (tmp_path / name).write_bytes(b"")
    CaseHost(tmp_path, {}).apt(str(tmp_path)).prune({("a", "2"), ("a:i386", "1"), ("c", "1")}, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_1_i386.deb", f"a_2_{NATIVE}.deb", "lock", "root"]


# Messages, preferences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "shown"),
    [
        (
            lambda apt: apt.install(Operation(tuple(parse("a=1")), remove=("b",), purge=True)),
            "apt-get --purge install a=1 b-",
        ),
        (lambda apt: apt.install(Operation(tuple(parse(*"abcd")))), "apt-get install a b c ..."),
        (lambda apt: apt.simulate(Operation(tuple(parse("a=1")))), "apt-get --simulate install a=1"),
        (lambda apt: apt.mark("hold", ["a"]), "apt-mark hold a"),
        (lambda apt: apt.run([*apt_commands.DPKG, "--configure", "-a"]), "dpkg --configure -a"),
    ],
)
def test_an_error_names_the_command_without_its_usual_options(tmp_path, run, shown):
    host = CaseHost(tmp_path, {})
    host.failing = dict.fromkeys(("install", "hold", "--configure"), "E: no")
    with pytest.raises(apt_commands.AptError) as caught:
        run(host.apt(str(tmp_path / "kept")))
    assert str(caught.value).startswith(f"`{shown}` ")


def test_the_preferences_of_damaged_packages_are_removed_and_nothing_else(tmp_path, monkeypatch):
    installed, other = tmp_path / "preferences.d", tmp_path / "preferences.d.site"
    put(tmp_path, "preferences.d/pin", "edited")
    put(tmp_path, "preferences.d/site", "")
    put(tmp_path, "preferences.d.site", "")
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(installed))
    asked = []

    def answer(command: list[str], **_options: object) -> tuple[int, str, str]:
        """As dpkg-query: it ends with 1 where it does not know one of the packages."""
        asked.append(command)
        return 1, f"/.\n{installed}\n{installed}/pin\n{installed}/missing\n{other}\n", "package 'b' is not installed"

    apt = apt_commands.Apt(answer, 1)
    apt.discard_preferences([])
    assert asked == []
    apt.discard_preferences(["a", "b"])
    assert asked == [["dpkg-query", "-L", "a", "b"]]
    assert [path.name for path in installed.iterdir()] == ["site"]
    assert other.exists()


def test_a_package_that_cannot_be_downloaded_binds_nothing(tmp_path):
    apt = apt_commands.Apt(lambda *_words, **_options: (100, "", "E: Unable to locate package pin"), 1)
    with pytest.raises(apt_commands.AptError, match="Unable to locate package pin"):
        apt.bind(str(tmp_path), parse("pin=1"), [], {})
    assert apt.bound == []


# Command lines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "command"),
    [
        (lambda apt, kept: apt.update(), ["apt-get", "-o", "APT::Update::Error-Mode=any", "update"]),
        (lambda apt, kept: apt.offered(["a", "b"]), ["apt-cache", "madison", "a", "b"]),
        (lambda apt, kept: apt.versions_to_bind(parse("a=1", "b")), ["apt-cache", "show", "a=1"]),
        (lambda apt, kept: apt.automatic(), ["apt-mark", "showauto"]),
        (lambda apt, kept: apt.mark("hold", ["b", "a"]), ["apt-mark", "hold", "a", "b"]),
        (
            lambda apt, kept: apt.simulate(Operation(tuple(parse("a=1")))),
            ["apt-get", "--simulate", *ALLOW, "install", "a=1"],
        ),
        (
            lambda apt, kept: apt.simulate(Operation(remove=("a",), purge=True)),
            ["apt-get", "--simulate", *ALLOW, "--purge", "install", "a-"],
        ),
        (
            lambda apt, kept: apt.install(Operation(remove=("a",), purge=True)),
            ["apt-get", *ALLOW, *OLD_CONFIGURATION, "--purge", "install", "a-"],
        ),
        (
            lambda apt, kept: apt.simulate(Operation(tuple(parse("a=1")), reinstall=True)),
            ["apt-get", "--simulate", *ALLOW, "--reinstall", "install", "a=1"],
        ),
        (
            lambda apt, kept: apt.install(Operation(tuple(parse("a=1")), reinstall=True)),
            [
                *("apt-get", *ALLOW, *OLD_CONFIGURATION, "--reinstall"),
                *("-o", "Dpkg::Options::=--force-confmiss", "install", "a=1"),
            ],
        ),
        (
            lambda apt, kept: (setattr(apt, "kept", kept), apt.install(Operation(tuple(parse("a=1"))))),
            [
                *("apt-get", *ALLOW, *OLD_CONFIGURATION, "-o", "Dir::Cache::Archives={kept}/"),
                *("-o", "APT::Keep-Downloaded-Packages=true", "install", "a=1"),
            ],
        ),
    ],
)
def test_command_lines(tmp_path, call, command):
    asked = []

    def answer(words: list[str], **options: object) -> tuple[int, str, str]:
        asked.append(words)
        environment = options["environ_update"]
        assert environment == {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "NEEDRESTART_SUSPEND": "1"}
        return 0, "", ""

    call(apt_commands.Apt(answer, 7), str(tmp_path))
    assert asked == [[word.replace("{kept}", str(tmp_path)) for word in command]]


def test_the_database_is_that_of_the_host():
    assert apt_commands.Apt(lambda *_words, **_options: (0, "", ""), 1).packages() == dpkg.Dpkg("/").read()
    assert Path("/", dpkg.STATUS_FILE.lstrip("/")).exists(), "nothing was compared"


def test_the_folder_of_kept_files_is_one_that_apt_can_download_to(tmp_path):
    CaseHost(tmp_path, {}).apt(str(tmp_path / "new/kept")).install(Operation(tuple(parse("a=1"))))
    assert (tmp_path / "new/kept/partial").is_dir()


def test_the_error_of_a_command_has_both_of_its_outputs_and_its_status():
    apt = apt_commands.Apt(lambda _words, **_options: (7, "one output", "and errors"), 1)
    with pytest.raises(apt_commands.AptError, match=r"one output\nand errors$") as caught:
        apt.run(["apt-mark", "showauto"])
    assert (caught.value.rc, caught.value.make_logs, caught.value.caused_by_foreign_modules) == (7, {}, False)
    assert apt.run(["apt-mark", "showauto"], accepted=(7,)) == "one output"


def test_repositories_that_cannot_be_refreshed_are_one_warning(tmp_path):
    answers = [(100, "", "E: no network")] * 2 + [(100, "", "E: no disk"), (0, "", "")]
    apt = apt_commands.Apt(lambda _words, **_options: answers.pop(0), 1)
    failed = [apt.update() for _unused in range(4)]
    assert ["no network" in text for text in failed] == [True, True, False, False]
    assert failed[3] == ""
    assert apt.warnings == [failed[0], failed[2]]


def test_an_update_that_could_not_start_is_an_error():
    locked = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt)"
    apt = apt_commands.Apt(lambda _words, **_options: (100, "", locked), 0)
    with pytest.raises(apt_commands.AptError, match="Could not get lock") as caught:
        apt.update()
    assert (caught.value.rc, apt.warnings) == (100, [])
    assert str(caught.value).startswith("`apt-get update` ")


def test_nothing_is_asked_about_no_packages(tmp_path):
    host = CaseHost(tmp_path, {})
    apt = host.apt()
    assert apt.offered([]) == {}
    assert apt.versions_to_bind(parse("a", "b")) == {}
    apt.mark("hold", [])
    assert host.commands == []


def test_apts_status_for_unknown_packages_is_an_answer():
    """apt-cache ends with 100 where it knows none of them."""
    apt = apt_commands.Apt(lambda *_words, **_options: (100, "", "E: No packages found"), 1)
    assert apt.offered(["a"]) == {}
    assert apt.versions_to_bind(parse("a=1")) == {}
    with pytest.raises(apt_commands.AptError):
        apt.automatic()


def test_versions_to_bind_are_followed_through_each_other_and_the_first_one_of_a_package_counts():
    shown = {
        "a1=1": "Package: a1\nVersion: 1\nDepends: b1 (= 2), c1 (= 3), e1 (>= 1)\n",
        "b1=2": "Package: b1\nVersion: 2\nPre-Depends: a1 (= 1), c1 (= 4), d1 (= 5)\n",
    }
    asked = []

    def answer(words: list[str], **_options: object) -> tuple[int, str, str]:
        asked.append(words[1:])
        return 0, "\n".join(shown.get(word, "") for word in words[2:]), ""

    assert apt_commands.Apt(answer, 1).versions_to_bind(parse("a1=1")) == {"b1": "2", "c1": "3", "a1": "1", "d1": "5"}
    assert [words[1:] for words in asked if words[0] == "show"] == [["a1=1"], ["b1=2", "c1=3"], ["a1=1", "d1=5"]]


# What apt 2.6 and dpkg 1.21 print for steps that succeed.
SUCCEEDED = """Reading package lists...
Building dependency tree...
Need to get 12.3 MB of archives.
After this operation, 40.1 MB of additional disk space will be used.
Get:1 http://deb.debian.org/debian bookworm/main amd64 gcc amd64 4:12.2.0-3 [5,216 B]
Hit:1 http://deb.debian.org/debian bookworm InRelease
Ign:1 http://deb.debian.org/debian bookworm/main amd64 gcc amd64 4:12.2.0-3
W: Download is performed unsandboxed as root as file '/root/a.deb' couldn't be accessed by user '_apt'.
Fetched 12.3 MB in 1s (12.3 MB/s)
debconf: delaying package configuration, since apt-utils is not installed
Selecting previously unselected package gcc.
(Reading database ... 6090 files and directories currently installed.)
Preparing to unpack .../gcc_4%3a12.2.0-3_amd64.deb ...
Unpacking gcc (4:12.2.0-3) ...
Setting up gcc (4:12.2.0-3) ...
Processing triggers for libc-bin (2.36-9+deb12u10) ...
"""


def test_an_error_has_nothing_of_the_steps_that_succeeded_and_the_end_of_the_rest():
    lines = [f"error {number}" for number in range(30)]
    output = SUCCEEDED + "\n".join(lines) + "\n\n" + SUCCEEDED
    message = str(apt_commands.AptError(["apt-get", "install"], 100, output))
    assert message.splitlines()[1:] == lines[5:]
    error = apt_commands.AptError(["apt-get"], -9, "", [failed("nvidia/580.1", "x")])
    assert (error.rc, error.make_logs) == (-9, {"/var/lib/dkms/nvidia/580.1/build/make.log": "x"})


def failing(root: Path, output: str, planned: list[str]) -> apt_commands.AptError:
    """Return the error of an installation of these packages: apt prints this, ends, and leaves one unconfigured."""
    (root / "etc/dkms").mkdir(parents=True, exist_ok=True)

    def answer(command: list[str], **_options: Any) -> tuple[int, str, str]:
        if command[0] == "apt-get":
            put_package(root, "left", status="half-configured")
            for log in root.glob("var/lib/dkms/*/*/build/make.log"):
                log.touch()  # of this run
        return 100, output, ""

    with pytest.raises(apt_commands.AptError) as caught:
        apt_commands.Apt(answer, 0, root=str(root), builds_driver=installed_driver.builds_driver).install(
            Operation(tuple(parse(*planned)))
        )
    return caught.value


def put_package(root: Path, name: str, module: str = "", depends: str = "", status: str = "installed") -> None:
    """Add a package to dpkg's database, with the source of a DKMS module, NAME/VERSION."""
    database = root / "var/lib/dpkg/status"
    known = database.read_text() if database.exists() else ""
    relation = f"Depends: {depends}\n" if depends else ""
    put(root, "/var/lib/dpkg/status", f"{known}Package: {name}\nStatus: install ok {status}\nVersion: 1\n{relation}\n")
    if module:
        source = f"/usr/src/{module.replace('/', '-')}"
        put(root, f"/var/lib/dpkg/info/{name}.list", f"/.\n/usr\n/usr/src\n{source}\n{source}/dkms.conf\n")
        put(root, f"{source}/dkms.conf", f'BUILT_MODULE_NAME[0]="{module.split("/")[0]}"\n')
        link(root, f"/var/lib/dkms/{module}/source", source)


BAD = "Error! Bad return status for module build on kernel: 6.8.0-60 (x86_64)\nConsult {} for more information.\n"


DRIVER = "nvidia-dkms-580-open"
# A module, the package that has its source, the planned package of the driver, whose module it is.
OWNERS = [
    # https://github.com/NVIDIA/nvidia-container-toolkit/issues/361
    ("nvidia-current/535.161.08", "nvidia-kernel-dkms", "nvidia-kernel-dkms=535.161.08-2~deb12u1", "the driver's"),
    # https://github.com/pop-os/pop/issues/3811
    ("nvidia/580.119.02", DRIVER, DRIVER, "the driver's"),
    ("nvidia-srv/580.159.03", "nvidia-dkms-580-server", "nvidia-dkms-580-server=580.159.03", "the driver's"),
    ("nvidia-tesla-470/470.256.02", "nvidia-tesla-470-kernel-dkms", "nvidia-tesla-470-driver", "the driver's"),
    ("a-name-of-tomorrow/700.1", "nvidia-dkms-open", "nvidia-dkms-open=700.1-1ubuntu1", "the driver's"),
    ("zfs/2.1.5", "zfs-dkms", DRIVER, "of others"),
    ("nvidia-fs/2.17.5", "nvidia-fs-dkms", DRIVER, "of others"),
    ("mlnx-ofed-kernel/24.10", "mlnx-ofed-kernel-dkms", DRIVER, "of others"),
    ("nvidia/570.1", "nvidia-dkms-570", DRIVER, "of others"),  # of the driver that is replaced
    ("r8125/9.015.00", None, DRIVER, "of others"),  # by `dkms add`
]


@pytest.mark.parametrize(("module", "owner", "planned", "whose"), OWNERS, ids=[row[0] for row in OWNERS])
def test_a_module_is_the_drivers_where_a_planned_package_has_its_source(tmp_path, module, owner, planned, whose):
    source = f"/usr/src/{module.replace('/', '-')}"
    if owner != DRIVER:
        put_package(tmp_path, DRIVER, "nvidia/580.119.02")
    if owner:
        put_package(tmp_path, owner, module, status="half-configured")
    else:
        put(tmp_path, f"{source}/dkms.conf")
        link(tmp_path, f"/var/lib/dkms/{module}/source", source)
    put_package(tmp_path, "nvidia-tesla-470-driver", depends="nvidia-tesla-470-kernel-dkms (= 1) | other")
    log = put(tmp_path, f"/var/lib/dkms/{module}/build/make.log", "error: x\n")
    error = failing(tmp_path, BAD.format(log), [planned, HEADERS, "nvidia-dkms-570-"])
    assert error.make_logs == {str(log): "error: x\n"}
    assert error.caused_by_foreign_modules == (whose == "of others")
    assert (f"{module} ({owner or 'of no package'})" in str(error)) == (whose == "of others")


@pytest.mark.parametrize("module", ["zfs/2.1.5", "nvidia/580.119.02"])
def test_of_the_dependencies_only_those_that_build_the_driver_are_the_drivers(tmp_path, module):
    """On Debian, a driver's headers lead by a metapackage of kernels to whatever the host builds for them."""
    put_package(tmp_path, "nvidia-driver", depends="nvidia-kernel-open-dkms (= 1) | nvidia-kernel-dkms, linux-meta")
    put_package(tmp_path, "linux-meta", depends="zfs-modules | zfs-dkms")
    put_package(tmp_path, "zfs-modules", depends="zfs-dkms")
    put_package(tmp_path, "zfs-dkms", "zfs/2.1.5")
    put_package(tmp_path, "nvidia-kernel-open-dkms", "nvidia/580.119.02")
    log = put(tmp_path, f"/var/lib/dkms/{module}/build/make.log", "error: x\n")
    error = failing(tmp_path, BAD.format(log), ["nvidia-driver=580.119.02-1", HEADERS])
    assert error.caused_by_foreign_modules == (module == "zfs/2.1.5")


@pytest.mark.parametrize("module", ["nvidia/390.48", "nvidia/520.61.05", "amdgpu/2.7-27", "nvidia-current/470.1"])
@pytest.mark.parametrize("is_there", [True, False])
def test_what_dkms_has_kept_of_a_removed_package_is_named_with_its_removal(tmp_path, module, is_there):
    put_package(tmp_path, "nvidia-dkms", "nvidia/595.91.07")
    if is_there:
        link(tmp_path, f"/var/lib/dkms/{module}/source", f"/usr/src/{module.replace('/', '-')}")
    error = failing(tmp_path, LOST.format(module), ["nvidia-dkms=595.91.07-1ubuntu1", HEADERS])
    assert error.caused_by_foreign_modules
    assert list(error.make_logs) == [module]
    assert f"rm -r /var/lib/dkms/{module}" in str(error), "dkms refuses to remove what has no source"


def test_the_planned_driver_is_blamed_where_its_own_source_is_gone(tmp_path, snapshot):
    put_package(tmp_path, "nvidia-dkms", "nvidia/595.91.07")
    (tmp_path / "usr/src/nvidia-595.91.07/dkms.conf").unlink()
    error = failing(tmp_path, LOST.format("nvidia/595.91.07"), ["nvidia-dkms=595.91.07-1ubuntu1"])
    assert not error.caused_by_foreign_modules
    assert str(error).replace(str(tmp_path), "") == snapshot


def test_the_driver_and_the_modules_of_others_are_told_apart(tmp_path, snapshot):
    put_package(tmp_path, "nvidia-dkms", "nvidia/595.91.07")
    put_package(tmp_path, "zfs-dkms", "zfs/2.1.5")
    put_package(tmp_path, "virtualbox-dkms", "vbox/7.0")
    for module in ("nvidia/595.91.07", "zfs/2.1.5", "vbox/7.0"):
        put(tmp_path, f"/var/lib/dkms/{module}/build/make.log", f"of {module}\n")
    link(tmp_path, "/var/lib/dkms/nvidia/390.48/source", "/usr/src/nvidia-390.48")
    error = failing(tmp_path, LOST.format("nvidia/390.48"), ["nvidia-dkms"])
    failed = [path.removesuffix("/build/make.log").rpartition("/dkms/")[2] for path in error.make_logs]
    assert failed == ["nvidia/595.91.07", "vbox/7.0", "zfs/2.1.5", "nvidia/390.48"]
    assert str(error).replace(str(tmp_path), "") == snapshot
    assert not error.caused_by_foreign_modules


@pytest.mark.parametrize(("rc", "others"), [(100, True), (-9, False), (1, False)])
def test_a_failure_is_of_others_where_apt_ended_itself(rc, others):
    error = apt_commands.AptError(["apt-get"], rc, "", [failed("zfs/2.1.5", "x", planned=False)])
    assert error.caused_by_foreign_modules == others
    assert not apt_commands.AptError(["apt-get"], rc, "", []).caused_by_foreign_modules


def test_the_log_of_an_earlier_failure_explains_nothing(tmp_path):
    for name, age in (("zfs/2.1.5", 3600), ("nvidia/580.1", -1)):
        log = tmp_path / f"var/lib/dkms/{name}/build/make.log"
        log.parent.mkdir(parents=True)
        log.write_text("x\n")
        os.utime(log, (time.time() - age, time.time() - age))
    assert [path.split("/")[-4] for path in dkms.make_logs(str(tmp_path), time.time())] == ["nvidia"]


def test_the_end_of_the_log_of_a_failed_build_is_read(tmp_path):
    for version in ("580.1", "595.1"):
        log = tmp_path / f"var/lib/dkms/nvidia/{version}/build/make.log"
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"line {number}\n" for number in range(40)))
    other = tmp_path / "var/lib/dkms/other/1/build/make.log"
    other.parent.mkdir(parents=True)
    other.symlink_to(log)
    logs = dkms.make_logs(str(tmp_path))
    assert [path.split("/")[-3] for path in logs] == ["580.1", "595.1"]
    assert {text.splitlines()[0] for text in logs.values()} == {"line 10"}
    assert {text.splitlines()[-1] for text in logs.values()} == {"line 39"}


FAILURES = sorted((Path(__file__).parents[4] / "fixtures/dkms").glob("*.txt"))
FAILED = {
    "source-gone": "gone",
    "build-depends": "depends",
    "build-exclusive": "exclusive",
    "pre-install": "postinst",
    "pre-build": "prebuild",
}


def unlogged(root: Path, output: str) -> apt_commands.AptError:
    """Return the error of an apt that prints this, on a host where DKMS has built modules of each name."""
    for name in ("nvidia", *FAILED.values()):
        put(root, f"/usr/src/{name}-1.0/dkms.conf", "")
        if not (root / f"var/lib/dkms/{name}/1.0/source").is_symlink():
            link(root, f"/var/lib/dkms/{name}/1.0/source", f"/usr/src/{name}-1.0")
        put(root, f"/var/lib/dkms/{name}/1.0/6.1.0-56-amd64/x86_64/module/{name}.ko", "")
    return failing(root, output, ["nvidia-dkms"])


@pytest.mark.parametrize("path", FAILURES, ids=[path.stem for path in FAILURES])
def test_a_module_that_fails_without_a_log_is_named_from_dkms_output(tmp_path: Path, path: Path) -> None:
    name, printed = FAILED[path.stem.split("-", 2)[2]], path.read_text()
    error = unlogged(tmp_path / "others", printed)
    assert (list(error.make_logs), error.caused_by_foreign_modules) == ([f"{name}/1.0"], True)
    put_package(tmp_path, "nvidia-dkms", "nvidia/1.0")
    error = unlogged(tmp_path, printed.replace(name, "nvidia"))
    assert (list(error.make_logs), error.caused_by_foreign_modules) == (["nvidia/1.0"], False)


@pytest.mark.parametrize("logged", [True, False], ids=["a log", "a list"])
def test_a_module_that_dkms_only_skips_has_not_failed(tmp_path: Path, logged: bool) -> None:
    """As dkms 2.8.7 and 3.0.11 do, with the same words as 3.0.10, which counts it as failed."""
    output = (Path(__file__).parents[4] / "fixtures/dkms/debian-12-build-exclusive.txt").read_text()
    if logged:
        put(tmp_path, "/var/lib/dkms/depends/1.0/build/make.log", "error: x\n")
    else:
        output += "dkms autoinstall on 6.8.0-41-generic/x86_64 failed for depends(10)\n"
    (failed,) = unlogged(tmp_path, output).modules
    assert failed.name == "depends/1.0"
    skipped = output.replace(apt_commands.DKMS_ENDED, "").replace("dkms autoinstall on", "")
    assert unlogged(tmp_path / "other", skipped).modules == []


def test_a_module_is_named_by_the_dkms_of_ubuntu_24_04(tmp_path: Path) -> None:
    """Its modules are compressed: the name of the file is as in issue 3 of AVMATRIX-VC41-VC42-CAPTURE on GitHub."""
    output = (Path(__file__).parents[4] / "fixtures/dkms/debian-12-pre-install.txt").read_text()
    error = unlogged(tmp_path, output.replace("postinst.ko:", "postinst.ko.zst:"))
    assert list(error.make_logs) == ["postinst/1.0"]


@pytest.mark.parametrize(
    "line",
    ["dkms autoinstall on 6.8.0-41-generic/x86_64 failed for prebuild(10) depends(4)",
     "Autoinstall on 6.12.94+deb13-amd64 failed for module(s) prebuild(10) depends(4)."],
)  # fmt: skip
def test_all_modules_of_a_list_are_named(tmp_path: Path, line: str) -> None:
    assert sorted(unlogged(tmp_path, f"Error! {line}\n{line}\n").make_logs) == ["depends/1.0", "prebuild/1.0"]


def test_a_left_version_of_the_driver_is_told_from_the_planned_one(tmp_path: Path) -> None:
    """As dkms 3.2.2 prints it of sources that no package has: it builds the newest version of a module alone."""
    put_package(tmp_path, "nvidia-dkms-580", "nvidia/580.119.02")
    link(tmp_path, "/var/lib/dkms/nvidia/595.1/source", "/usr/src/nvidia-595.1")
    put(tmp_path, "/usr/src/nvidia-595.1/dkms.conf")
    output = (
        "Autoinstall of module nvidia/595.1 for kernel 6.12.94+deb13-amd64 (x86_64)\n\n"
        "Error! The directory /var/lib/dkms/nvidia/595.1/source does not appear to have module source located within "
        "it.\nBuild halted.\n\nAutoinstall on 6.12.94+deb13-amd64 failed for module(s) nvidia(8).\n"
    )
    error = failing(tmp_path, output, ["nvidia-dkms-580"])
    assert list(error.make_logs) == ["nvidia/595.1"]
    assert error.caused_by_foreign_modules


@pytest.mark.parametrize("version", ["595.1", "580.119.02"])
@pytest.mark.parametrize("is_logged", [True, False])
def test_a_list_of_names_adds_no_version_to_the_known_one(tmp_path: Path, version: str, is_logged: bool) -> None:
    """As dkms 3.0.11 prints it, which names no version in its list and does not say which one it builds."""
    put_package(tmp_path, "nvidia-dkms-580", "nvidia/580.119.02")
    link(tmp_path, "/var/lib/dkms/nvidia/595.1/source", "/usr/src/nvidia-595.1")
    put(tmp_path, "/usr/src/nvidia-595.1/dkms.conf")
    if is_logged:
        put(tmp_path, f"/var/lib/dkms/nvidia/{version}/build/make.log", "error: x\n")
    listed = "dkms autoinstall on 6.8.0-41-generic/x86_64 failed for nvidia(10)\n"
    named = "" if is_logged else f"Consult /var/lib/dkms/nvidia/{version}/build/make.log for more information.\n"
    error = failing(tmp_path, named + listed, ["nvidia-dkms-580"])
    assert [text.removesuffix("/build/make.log").split("/")[-1] for text in error.make_logs] == [version]
    assert error.caused_by_foreign_modules == (version == "595.1")


def test_what_dkms_prints_around_a_failure_without_a_log_is_its_explanation(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(20)]
    output = "\n".join([*lines[:10], "depends/1.0 autoinstall failed", *lines[10:]])
    assert unlogged(tmp_path, output).make_logs == {
        "depends/1.0": "\n".join([*lines[4:10], "depends/1.0 autoinstall failed", "line 10"])
    }


def test_the_first_mention_of_a_failure_explains_it(tmp_path: Path) -> None:
    first, again = "depends/1.0 autoinstall failed", "Consult /var/lib/dkms/depends/1.0/build for more"
    output = "\n".join(["cause", first, "and more", *["x"] * 9, again])
    assert unlogged(tmp_path, output).make_logs == {"depends/1.0": f"cause\n{first}\nand more"}


def test_a_module_with_a_log_is_explained_by_it_alone(tmp_path: Path) -> None:
    log = put(tmp_path, "/var/lib/dkms/depends/1.0/build/make.log", "error: cause\n")
    logs = unlogged(tmp_path, "depends/1.0 autoinstall failed\nnvidia/1.0 autoinstall failed\n").make_logs
    assert list(logs) == [str(log), "nvidia/1.0"]
    assert logs[str(log)] == "error: cause\n"


def test_the_file_of_a_failed_script_is_the_last_one_before_it(tmp_path: Path) -> None:
    output = "prebuild.ko:\nRunning module version sanity check.\ndepends.ko.xz:\nError! pre_install failed, aborting\n"
    assert list(unlogged(tmp_path, output).make_logs) == ["depends/1.0"]
    assert unlogged(tmp_path / "other", "Error! post_install failed, aborting\ndepends.ko:\n").make_logs == {}


def test_a_log_in_another_encoding_is_read(tmp_path: Path) -> None:
    put(tmp_path, "/var/lib/dkms/nvidia/1/build/make.log", b"error: \xff\n")
    assert list(dkms.make_logs(str(tmp_path)).values()) == ["error: \ufffd\n"]


def test_progress_that_cannot_be_written_prevents_nothing(tmp_path: Path) -> None:
    """As on a full or read-only file system."""
    apt_commands.Apt(lambda *_args, **_options: (0, "", ""), 0, progress=str(tmp_path)).report("undo")


def test_a_failure_of_something_else_names_no_module(tmp_path: Path) -> None:
    assert unlogged(tmp_path, SUCCEEDED + "E: Sub-process /usr/bin/dpkg returned an error code (1)\n").make_logs == {}


@pytest.mark.parametrize(("text", "left"), [(WRITTEN, False), ("", True)])
def test_dkms_stays_switched_off_only_where_somebody_else_did_that(tmp_path, text, left):
    host = CaseHost(tmp_path, {})
    path = put(host.root, apt_commands.NO_AUTOINSTALL, text)
    host.apt().recover({})
    assert path.exists() == left


def test_apt_reports_its_progress_in_a_file(tmp_path):
    host = CaseHost(tmp_path, {})
    path = tmp_path / "progress"
    apt = apt_commands.Apt(host, 1, "", str(tmp_path), str(path))
    apt.report("a step")

    def run(command: list[str], pass_fds: Any = (), **options: Any) -> tuple[int, str, str]:
        assert command[:3] == ["apt-get", "-o", f"APT::Status-Fd={pass_fds[0]}"]
        os.write(pass_fds[0], b"pmstatus:a:50.0000:Unpacking a (amd64)\n")
        return host(command, **options)

    apt.run_command = run
    apt.install(Operation(tuple(parse("a=1"))))
    assert path.read_text() == "step:a step\npmstatus:a:50.0000:Unpacking a (amd64)\n"


def test_progress_is_not_written_where_its_folder_is_not_there(tmp_path):
    """Check mode does not create it."""
    apt_commands.Apt(CaseHost(tmp_path, {}), 1, "", str(tmp_path), str(tmp_path / "no/progress")).report("a step")
    assert not (tmp_path / "no").exists()
