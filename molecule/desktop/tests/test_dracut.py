"""Debian's real dracut instead of initramfs-tools, as on Ubuntu 26.04: the initramfs of a real kernel loads no nouveau.

A container does not boot, and the role rebuilds no initramfs where the kernel is another computer's. So its script runs
here by itself, with the files that the role has written. The tests run in order.
"""

import shlex
from pathlib import Path

import pytest

SCRIPT = (Path(__file__).resolve().parents[3] / "roles/nvidia_driver/files/rebuild_initramfs.sh").read_text()
SETTINGS = "/etc/dracut.conf.d/gpuhost-nouveau.conf"
RIVALS = ("nouveau", "nova_core", "nova-core")


@pytest.fixture(scope="module")
def image(as_root) -> str:
    """Return the path of the only initramfs."""
    assert not as_root.exists("update-initramfs")
    (path,) = as_root.run_expect([0], "ls -d /boot/initrd.img-*").stdout.split()
    return str(path)


@pytest.fixture
def rivals(as_root, image):
    """Return a function that lists the kernel's own modules for NVIDIA's GPUs in the initramfs."""

    def read() -> list[str]:
        names = [line.split()[-1] for line in as_root.run_expect([0], f"lsinitrd {image}").stdout.splitlines() if line]
        modules = [name for name in names if "/kernel/" in name and ".ko" in name]
        assert any("/drm/" in name for name in modules), "the initramfs has no drivers of displays"
        return [name for name in modules if name.rsplit("/", 1)[-1].split(".")[0] in RIVALS]

    return read


@pytest.fixture
def rebuild(as_root):
    """Return a function that runs the role's script and returns the lines that it printed about images."""

    def run() -> list[str]:
        done = as_root.run_expect([0], f"bash -c {shlex.quote(SCRIPT)}")
        return [line for line in done.stdout.splitlines() if line.startswith("rebuilt ")]

    return run


def test_dracut_puts_nouveau_into_the_initramfs_of_a_desktop(rivals):
    """Without that, the tests below show nothing."""
    assert [name for name in rivals() if "/nouveau.ko" in name]


def test_the_role_leaves_nouveau_out(as_root, image, rivals, rebuild):
    assert "omit_drivers" in as_root.file(SETTINGS).content_string
    assert rebuild() == [f"rebuilt {image}"]
    assert rivals() == []


def test_an_initramfs_without_nouveau_is_left_as_it_is(as_root, image, rebuild):
    built = as_root.file(image).mtime
    assert rebuild() == []
    assert as_root.file(image).mtime == built


@pytest.mark.parametrize("size", ["0", "$(($(stat --format %s {image}) / 2))"], ids=["empty", "half"])
def test_a_truncated_initramfs_is_built_again(as_root, image, rivals, rebuild, size):
    whole = as_root.file(image).size
    as_root.run_expect([0], f"truncate --size {size.format(image=image)} {image}")
    assert rebuild() == [f"rebuilt {image} (it could not be read)"]
    assert abs(as_root.file(image).size - whole) < whole / 100
    assert rivals() == []
