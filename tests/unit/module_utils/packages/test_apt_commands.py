"""Packages brought back to what they were: what is asked of apt, with dpkg's answers given by the test.

That apt and dpkg do it is shown by the scenarios undo, interrupted and teardown.
"""

import subprocess
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_commands, apt_output

MAKE_FAILED = "E: Sub-process /usr/bin/dpkg returned an error code (1)"


class Host:
    """Answers as a host with these packages; `said` is what it was asked. Nothing is installed."""

    def __init__(
        self, packages: dict[str, tuple[str, str, str]], automatic: str = "", simulation: str = "", offers: bool = True
    ) -> None:
        self.packages, self.automatic, self.simulation, self.offers = packages, automatic, simulation, offers
        self.said: list[list[str]] = []

    def __call__(self, command: list[str], cwd: str | None = None, **_options: object) -> tuple[int, str, str]:
        self.said.append(command)
        if command[:2] == ["apt-get", "download"]:
            if not self.offers:
                return 100, "", "E: Version '9' for 'a' was not found"
            name, version = command[2].split("=")
            Path(str(cwd), f"{name}_{version.replace(':', '%3a')}_amd64.deb").write_bytes(b"")
        if command[0] == "dpkg-query":
            lines = [
                f"{name}\t{version}\t{status}\t{want}\t" for name, (version, status, want) in self.packages.items()
            ]
            return 0, "\n".join(lines), ""
        if command[:2] == ["apt-mark", "showauto"]:
            return 0, self.automatic, ""
        return 0, self.simulation if "--simulate" in command else "", ""


def state(version: str, held: bool = False, auto: bool = False) -> dict[str, object]:
    return {"version": version, "held": held, "auto": auto}


def test_the_state_of_a_package_that_left_settings_alone_is_that_it_is_not_there():
    host = Host({"a": ("1", "installed", "hold"), "b": ("1", "config-files", "deinstall")}, automatic="a\n")
    work = apt_commands.Apt(host, 1)
    states = apt_commands.state_of(["a", "b", "c"], work.packages(), work.automatic())
    assert states == {"a": state("1", held=True, auto=True), "b": None, "c": None}


def test_kept_files_are_installed_the_rest_asked_for_by_version_and_what_was_not_there_goes(tmp_path):
    (tmp_path / "a_1%3a2.0_amd64.deb").write_bytes(b"")
    host = Host({"a": ("1:3.0", "installed", "hold"), "b": ("3", "installed", "install"), "c": ("1", "installed", "")})
    work = apt_commands.Apt(host, 1, str(tmp_path))
    with pytest.raises(ValueError, match=r"still not as they were: /.*a_1%3a2.0_amd64.deb, b=2, c"):
        apt_commands.restore(work, {"a": state("1:2.0", held=True), "b": state("2"), "c": None})
    install = next(command for command in host.said if "install" in command and "--simulate" not in command)
    assert install[install.index("install") + 1 :] == [str(tmp_path / "a_1%3a2.0_amd64.deb"), "b=2", "c-"]
    assert "--purge" in install


@pytest.mark.parametrize("kept", [True, False])
def test_a_package_whose_removal_or_unpacking_was_cut_off_is_put_back_whole(tmp_path, kept):
    """apt takes a half-installed one for installed, and dpkg --configure leaves it as it is.

    By dpkg and not by apt: that refuses while another package, unpacked already, needs its new version.
    """
    host = Host({"a": ("1:2", "half-installed", "deinstall"), "b": ("2", "installed", "install")})
    if kept:
        (tmp_path / "a_1%3a2_amd64.deb").write_bytes(b"")
    assert apt_commands.Apt(host, 1, str(tmp_path)).recover(apt_commands.Apt(host, 1).packages()) == ""
    (unpack,) = (command for command in host.said if "--unpack" in command)
    (configure,) = (command for command in host.said if "--configure" in command)
    assert host.said.index(unpack) < host.said.index(configure)
    assert unpack[-1].endswith("/a_1%3a2_amd64.deb")
    assert (["apt-get", "download", "a=1:2"] in host.said) == (not kept)


def test_what_dpkg_was_about_to_rename_goes_with_the_version_that_it_belongs_to(tmp_path):
    tree, root, kept = tmp_path / "tree", tmp_path / "root", tmp_path / "kept"
    for folder in (tree / "DEBIAN", tree / str(root)[1:], root, kept):
        folder.mkdir(parents=True)
    (tree / "DEBIAN/control").write_text("Package: a\nVersion: 2\nArchitecture: all\nMaintainer: x\nDescription: x\n")
    (tree / f"{root}/a file"[1:]).write_text("new\n")
    (tree / f"{root}/link"[1:]).symlink_to("a file")
    subprocess.run(["dpkg-deb", "--build", str(tree), str(kept / "a_2_all.deb")], check=True, capture_output=True)
    for name in ("a file.dpkg-new", "link.dpkg-new", "somebody's.dpkg-new", "a file"):
        (root / name).write_text("")
    (kept / "a_1_all.deb").write_bytes(b"")
    host = Host({"a": ("1", "half-installed", "install")})

    def run(command: list[str], **options: object) -> tuple[int, str, str]:
        if command[0] == "dpkg-deb" and command[-1].endswith("a_2_all.deb"):
            return 0, subprocess.run(command, check=True, capture_output=True, text=True).stdout, ""
        return host(command, **options)

    assert apt_commands.Apt(run, 1, str(kept)).recover(apt_commands.Apt(host, 1).packages()) == ""
    assert sorted(path.name for path in root.iterdir()) == ["a file", "somebody's.dpkg-new"]


def test_a_kept_package_that_cannot_be_read_is_told_and_stops_nothing(tmp_path):
    """A host that lost its power may have kept half a file; what comes next must be tried all the same."""
    (tmp_path / "a_1_all.deb").write_bytes(b"")
    host = Host({"a": ("1", "half-installed", "install")})

    def run(command: list[str], **options: object) -> tuple[int, str, str]:
        return (2, "", "dpkg-deb: error: not a Debian format archive") if command[0] == "dpkg-deb" else host(command)

    told = apt_commands.Apt(run, 1, str(tmp_path)).recover(apt_commands.Apt(host, 1).packages())
    assert "not a Debian format archive" in told
    assert any("--configure" in command for command in host.said)


def test_a_half_installed_package_that_nobody_offers_any_more_is_told(tmp_path):
    host = Host({"a": ("9", "half-installed", "install")}, offers=False)
    told = apt_commands.Apt(host, 1, str(tmp_path)).recover(apt_commands.Apt(host, 1).packages())
    assert "`apt-get download a=9` failed with status 100" in told


def test_a_way_back_that_would_remove_somebody_elses_package_is_refused():
    host = Host({"a": ("2", "installed", "install")}, simulation="Remv theirs [1.0]\nInst a [2] (1 x [amd64])\n")
    with pytest.raises(ValueError, match=r"theirs 1.0 \(removed\)"):
        apt_commands.restore(apt_commands.Apt(host, 1), {"a": state("1")})
    assert not [command for command in host.said if "install" in command and "--simulate" not in command]


def test_packages_as_they_were_cost_no_transaction_and_marks_are_set_right():
    host = Host({"a": ("1", "installed", "install"), "b": ("1", "installed", "hold")}, automatic="b\n")
    targets = {"a": state("1", held=True), "b": state("1", auto=True)}
    assert apt_commands.restore(apt_commands.Apt(host, 1), targets) == ["a (hold)", "b (unhold)"]
    marks = [command for command in host.said if command[0] == "apt-mark" and command[1] != "showauto"]
    assert marks == [["apt-mark", "hold", "a"], ["apt-mark", "unhold", "b"]]
    assert not [command for command in host.said if command[0] == "apt-get"]


def test_a_failure_tells_its_cause_and_not_what_went_well():
    said = "Unpacking a (1) ...\ndpkg: error processing archive a.deb (--unpack):\n no space\nSetting up b (1) ...\n"
    message = str(
        apt_commands.AptError(["apt-get", "-y", "install"], 100, said + MAKE_FAILED, {"make.log": "error: x"})
    )
    assert "dpkg: error processing archive a.deb" in message
    assert "Unpacking" not in message
    assert "Setting up" not in message
    assert "error: x" in message


def test_preferences_of_packages_that_go_do_not_bind_and_exact_versions_do(tmp_path, monkeypatch):
    installed, bound = tmp_path / "installed", tmp_path / "bound"
    installed.mkdir()
    bound.mkdir()
    (installed / "nvidia-driver-pinning-580").write_text("580\n")
    (installed / "site").write_text("site\n")
    monkeypatch.setattr(apt_commands, "PREFERENCES", str(installed))

    def answer(command: list[str], **_options: object) -> tuple[int, str, str]:
        return 0, f"{installed}/nvidia-driver-pinning-580\n" if command[:2] == ["dpkg-query", "-L"] else "", ""

    work = apt_commands.Apt(answer, 1)
    work.bind(str(bound), [], ["nvidia-driver-pinning-580"], {"libcuda1": "570.1-1"})
    assert sorted(path.name for path in Path(bound).iterdir()) == ["00gpuhost-transaction.pref", "site"]
    assert (
        "Package: libcuda1\nPin: version 570.1-1\nPin-Priority: 1001"
        in (bound / "00gpuhost-transaction.pref").read_text()
    )
    assert work.bound == ["-o", f"Dir::Etc::PreferencesParts={bound}"]


def test_what_cannot_be_finished_is_told_and_does_not_stop_what_may_replace_it():
    def answer(command: list[str], **_options: object) -> tuple[int, str, str]:
        return (1, "dpkg: error processing package nvidia-dkms", "") if command[0] == "dpkg" else (0, "", "")

    work = apt_commands.Apt(answer, 1)
    half = {"nvidia-dkms": apt_output.Installed("1", "half-configured", False)}
    assert "error processing package nvidia-dkms" in work.recover(half)
