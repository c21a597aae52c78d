"""Settings of others that break the stack, as administrators and other installers write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import foreign_settings


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("etc/environment", 'LD_LIBRARY_PATH="/usr/local/cuda/lib64"'),
        ("etc/profile.d/site.sh", "export LD_LIBRARY_PATH=/usr/local/cuda/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"),
        ("etc/profile", "  declare -x LD_LIBRARY_PATH=/x"),
        ("root/.bashrc", "LD_LIBRARY_PATH+=:/x"),
    ],
)
def test_a_global_library_path_is_found(tmp_path: Path, path: str, line: str) -> None:
    write(tmp_path, path, f"# export LD_LIBRARY_PATH=/old\necho $LD_LIBRARY_PATH\n{line}\n")
    (tmp_path / "etc/profile.d/directory").mkdir(parents=True)
    assert foreign_settings.library_path(str(tmp_path)) == {f"/{path}": [line]}


FILES = [
    *("etc/environment", "etc/profile", "etc/bash.bashrc", "etc/profile.d/a.sh", "etc/profile.d/b.sh"),
    *("root/.profile", "root/.bash_profile", "root/.bash_login", "root/.bashrc"),
]


@pytest.mark.parametrize("path", FILES)
def test_the_settings_of_everybody_and_of_root_are_read(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "A=1\nLD_LIBRARY_PATH=/x\nexport LD_LIBRARY_PATH=/y\n")
    write(tmp_path, "home/user/.bashrc", "LD_LIBRARY_PATH=/x\n")
    found = foreign_settings.library_path(str(tmp_path))
    assert found == {f"/{path}": ["LD_LIBRARY_PATH=/x", "export LD_LIBRARY_PATH=/y"]}


@pytest.mark.parametrize("line", ["MY_LD_LIBRARY_PATH=/x", "LD_LIBRARY_PATHS=/x", "echo LD_LIBRARY_PATH", "unset x"])
def test_other_lines_set_no_library_path(tmp_path: Path, line: str) -> None:
    write(tmp_path, "etc/profile", f"{line}\n")
    assert foreign_settings.library_path(str(tmp_path)) == {}


@pytest.mark.parametrize("directory", ["etc", "run", "usr/local/lib", "usr/lib", "lib"])
def test_blacklists_are_found_where_modprobe_reads_them(tmp_path: Path, directory: str) -> None:
    path = f"{directory}/modprobe.d/a.conf"
    write(tmp_path, path, "# why\nblacklist nouveau\nblacklist nvidia\ninstall nvidia-uvm /bin/true\n")
    lines = ["blacklist nvidia", "install nvidia-uvm /bin/true"]
    assert foreign_settings.blacklists(str(tmp_path)) == {f"/{path}": lines}
    write(tmp_path, "proc/cmdline", "ro modprobe.blacklist=nvidia module_blacklist=nvidia_uvm quiet\n")
    options = ["modprobe.blacklist=nvidia", "module_blacklist=nvidia_uvm"]
    assert foreign_settings.blacklists(str(tmp_path)) == {f"/{path}": lines, "/proc/cmdline": options}


@pytest.mark.parametrize(
    "line",
    [
        "blacklist nvidia",
        "  blacklist nvidia-uvm  ",
        "blacklist nvidia_drm",
        "blacklist nvidia # while we look for the noise",  # modprobe reads the first word alone
        "blacklist nvidia-current-modeset",
        "install nvidia /bin/false",
        "install nvidia_drm /usr/bin/true # off",
        "install nvidia true",
        "install nvidia \\\n  /bin/false",
        "install nvidia /bin/sh -c 'exit 1'",
        "install nvidia /bin/echo see /etc/modprobe.d/README",
        "install nvidia /sbin/nologin # not modprobe",
        "install nvidia* /bin/false",
        "alias nvidia off",  # of Ubuntu's prime-select
        "alias nvidia-drm off",
    ],
)
def test_a_blacklist_of_our_modules_is_found(tmp_path: Path, line: str) -> None:
    write(tmp_path, "etc/modprobe.d/site.conf", f"{line}\n")
    assert foreign_settings.blacklists(str(tmp_path)) == {"/etc/modprobe.d/site.conf": [line]}


@pytest.mark.parametrize(
    "line",
    [
        "blacklist nouveau",
        "blacklist nvidiafb",
        "#blacklist nvidia",
        "blacklist nvidia_wmi_ec_backlight",
        # nvidia-kernel-common of Debian 12
        "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS",
        "install nvidia /bin/true && /sbin/modprobe --ignore-install nvidia",
        "install nvidia",
        "alias nvidia nvidia-current",
        "blacklist nvidia\r",  # of an editor on Windows: kmod takes the carriage return for a part of the name
        "# the next line belongs to this comment \\\nblacklist nvidia",
        "options nvidia NVreg_PreserveVideoMemoryAllocations=1",
    ],
)
def test_other_settings_of_modules_are_left_alone(tmp_path: Path, line: str) -> None:
    write(tmp_path, "etc/modprobe.d/site.conf", f"{line}\n")
    write(tmp_path, "etc/modprobe.d/site.conf.dpkg-old", "blacklist nvidia\n")
    assert foreign_settings.blacklists(str(tmp_path)) == {}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("ro quiet modprobe.blacklist=nouveau,nvidia", ["modprobe.blacklist=nouveau,nvidia"]),
        ("module_blacklist=nvidia_drm", ["module_blacklist=nvidia_drm"]),
        ("module-blacklist=nvidia", ["module-blacklist=nvidia"]),
        ("module_blacklist=nvidia module_blacklist=nouveau", []),  # the kernel takes the last one
        ('modprobe.blacklist="nouveau,nvidia"', ["modprobe.blacklist=nouveau,nvidia"]),
        ("rd.driver.blacklist=nouveau modprobe.blacklist=nvidiafb nvidia-drm.modeset=1", []),
    ],
)
def test_the_kernels_command_line_is_read(tmp_path: Path, options: str, found: list[str]) -> None:
    write(tmp_path, "proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-6.1.0-56-amd64 {options}\n")
    assert foreign_settings.blacklists(str(tmp_path)).get("/proc/cmdline", []) == found


SCRIPT = "#!/bin/sh\n# loads it late\n{}\n"


@pytest.mark.parametrize(("command", "is_blacklist"), [("exec /sbin/modprobe -i nvidia", False), ("exit 0", True)])
def test_a_script_that_takes_the_place_of_loading_is_read(tmp_path: Path, command: str, is_blacklist: bool) -> None:
    line = "install nvidia /usr/local/sbin/gpu"
    write(tmp_path, "usr/local/sbin/gpu", SCRIPT.format(command))
    write(tmp_path, "etc/modprobe.d/site.conf", f"{line}\n")
    found = {"/etc/modprobe.d/site.conf": [line]} if is_blacklist else {}
    assert foreign_settings.blacklists(str(tmp_path)) == found


def test_of_files_with_one_name_modprobe_reads_that_of_the_first_directory(tmp_path: Path) -> None:
    for directory in ("lib", "usr/lib", "usr/local/lib", "run", "etc"):
        write(tmp_path, f"{directory}/modprobe.d/nv.conf", "blacklist nvidia\n")
        assert foreign_settings.blacklists(str(tmp_path)) == {f"/{directory}/modprobe.d/nv.conf": ["blacklist nvidia"]}
    write(tmp_path, "etc/modprobe.d/nv.conf", "# we need it\n")
    assert foreign_settings.blacklists(str(tmp_path)) == {}
    (tmp_path / "etc/modprobe.d/nv.conf").unlink()
    (tmp_path / "etc/modprobe.d/nv.conf").symlink_to("/dev/null")
    assert foreign_settings.blacklists(str(tmp_path)) == {}


def test_of_several_commands_modprobe_runs_the_first_of_the_file_names_order(tmp_path: Path) -> None:
    write(tmp_path, "usr/lib/modprobe.d/a.conf", "install nvidia /sbin/modprobe -i nvidia\n")
    write(tmp_path, "etc/modprobe.d/b.conf", "install nvidia /bin/false\n")
    assert foreign_settings.blacklists(str(tmp_path)) == {}
    (tmp_path / "usr/lib/modprobe.d/a.conf").rename(tmp_path / "usr/lib/modprobe.d/c.conf")
    assert foreign_settings.blacklists(str(tmp_path)) == {"/etc/modprobe.d/b.conf": ["install nvidia /bin/false"]}


def test_only_an_initramfs_of_dracut_reads_its_option(tmp_path: Path) -> None:
    """It leaves a file in /run, which is no place to repair."""
    write(tmp_path, "proc/cmdline", "ro rd.driver.blacklist=nvidia\n")
    assert foreign_settings.blacklists(str(tmp_path)) == {}
    write(tmp_path, "run/modprobe.d/initramfsblacklist.conf", "blacklist nvidia\n")
    assert foreign_settings.blacklists(str(tmp_path)) == {"/proc/cmdline": ["rd.driver.blacklist=nvidia"]}


def test_a_setting_names_the_modules_that_it_keeps_from_loading_and_its_first_line(tmp_path: Path) -> None:
    text = "# why\ninstall nvidia \\\n  /bin/false\nblacklist nvidia_drm\n"
    write(tmp_path, "etc/modprobe.d/a.conf", text)
    write(tmp_path, "proc/cmdline", "module_blacklist=nvidia_uvm,nvidia_drm\n")
    found = [(row.line, sorted(row.modules)) for row in foreign_settings.module_settings(str(tmp_path))]
    assert found == [(2, ["nvidia"]), (4, ["nvidia_drm"]), (0, ["nvidia_drm", "nvidia_uvm"])]


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("etc/modprobe.d/a.conf", "# x\noptions vfio-pci disable_vga=1 ids=10de:1b06\n", [2]),
        ("etc/modprobe.d/a.conf", "softdep nouveau pre: vfio-pci\n#options vfio-pci ids=10de:1b06\n", []),
        ("etc/initramfs-tools/modules", "vfio\nvfio_pci ids=10de:1b06\n", [2]),
        ("etc/modules", "vfio vfio_iommu_type1 vfio_pci ids=10de:1b06\n", [1]),
        ("proc/cmdline", "ro quiet pci-stub.ids=10de:1b06 iommu=pt\n", [0]),
        ("etc/driverctl.d/pci-0000:02:00.0", "vfio-pci\n", [0]),
        ("etc/driverctl.d/pci-0000:02:00.0", "igb_uio\n", []),
    ],
)
def test_what_gives_devices_to_virtual_machines(tmp_path: Path, path: str, text: str, found: list[int]) -> None:
    write(tmp_path, path, text)
    settings = foreign_settings.guest_settings(str(tmp_path))
    assert [(setting.path, setting.line) for setting in settings] == [(f"/{path}", line) for line in found]
