"""Settings of others that break the stack, as administrators and other installers write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.state import foreign_settings


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
        ("rd.driver.blacklist=nouveau modprobe.blacklist=nvidiafb nvidia-drm.modeset=1", []),
    ],
)
def test_the_kernels_command_line_is_read(tmp_path: Path, options: str, found: list[str]) -> None:
    write(tmp_path, "proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-6.1.0-56-amd64 {options}\n")
    assert foreign_settings.blacklists(str(tmp_path)).get("/proc/cmdline", []) == found
