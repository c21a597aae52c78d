"""For which kernels the module is built after DKMS has skipped them.

dkms is a double that does what dkms 3.0.10 did with a module of one line: it keeps what it has built in its tree,
installs that below updates/dkms, ends with status 10 if it cannot build, and without --force skips, with status 0,
what it has built or installed before, whatever became of the file. modinfo is a double as well: that of kmod 30 fails
for a file that is empty or cut.
"""

import os
import subprocess
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[4]
SCRIPT = PROJECT / "roles/nvidia_driver/files/build_modules.sh"
RUNNING, NEWEST, OLDEST = "6.1.0-50-amd64", "6.1.0-56-amd64", "6.1.0-47-amd64"
PROGRAMS = {
    "uname": f"echo {RUNNING}",
    "modinfo": '[ -s "$1" ] || { echo "modinfo: ERROR: could not get modinfo: Invalid argument" >&2; exit 1; }',
    "dkms": """
        built="$ROOT/var/lib/dkms/$3/$5/$7/$3.ko" installed="$ROOT/var/lib/dkms/$3/kernel-$7"
        if [ "$1" = build ]; then
            [ -z "$8" ] && [ -e "$built" ] && { echo "Module $3/$5 already built for kernel $7 (x86_64), skip."; exit; }
            [ "$BROKEN" != "$7" ] || { echo "Error! Bad return status for module build on kernel: $7"; exit 10; }
            mkdir -p "${built%/*}"; echo "$5" > "$built"
        else
            [ -z "$8" ] && [ -e "$installed" ] && { echo "Module $3/$5 already installed on kernel $7, skip."; exit; }
            [ -e "$built" ] || "$0" build "$2" "$3" "$4" "$5" "$6" "$7" || exit
            mkdir -p "$ROOT/lib/modules/$7/updates/dkms"; cp "$built" "$ROOT/lib/modules/$7/updates/dkms/$3.ko"
            touch "$installed"
        fi
    """,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, body in PROGRAMS.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    root = tmp_path / "root"
    (root / "boot").mkdir(parents=True)
    for kernel in (OLDEST, RUNNING, NEWEST):
        (root / f"boot/vmlinuz-{kernel}").write_text("")
        (root / f"lib/modules/{kernel}/build/include").mkdir(parents=True)
        (root / f"lib/modules/{kernel}/kernel").mkdir()
        for own in ("nvidiafb", "nvidia-wmi-ec-backlight"):  # of linux-image-6.1.0-56-amd64
            (root / f"lib/modules/{kernel}/kernel/{own}.ko").write_text("")
    for module in ("nvidia/580.1", "nvidia-fs/2.17.5", "zfs/2.1.5"):
        (root / f"var/lib/dkms/{module}/source").mkdir(parents=True)
    return root


def build(root: Path, broken: str = "", headers: tuple[str, ...] = ()) -> list[str]:
    environment = {"PATH": f"{root.parent / 'bin'}:{os.environ['PATH']}", "ROOT": str(root), "BROKEN": broken}
    command = ["bash", "-s", *headers]
    done = subprocess.run(command, input=SCRIPT.read_text(), env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line.startswith(("built", "DKMS"))]


def test_the_running_and_the_newest_kernel_get_the_driver_once(root):
    assert build(root) == [f"built nvidia/580.1 for {kernel}" for kernel in (RUNNING, NEWEST)]
    assert build(root) == []


@pytest.mark.parametrize("suffix", [".dpkg-new", ".old", ".efi.signed"])
def test_a_copy_of_an_image_is_not_the_newest_kernel(root, suffix):
    (root / f"boot/vmlinuz-{NEWEST}{suffix}").write_text("")
    assert build(root) == [f"built nvidia/580.1 for {kernel}" for kernel in (RUNNING, NEWEST)]


def test_a_prebuilt_module_and_missing_headers_need_no_build(root):
    (root / f"lib/modules/{RUNNING}/kernel/nvidia.ko.zst").write_text("580.1")
    (root / f"lib/modules/{NEWEST}/build/include").rmdir()
    assert build(root) == []


@pytest.mark.parametrize("tree", ["lib/modules/{}/updates/dkms", "var/lib/dkms/nvidia/580.1/{}"])
def test_a_module_that_a_power_failure_left_empty_is_built_again(root, tree):
    build(root)
    for path in {tree, "lib/modules/{}/updates/dkms"}:
        (root / path.format(RUNNING) / "nvidia.ko").write_text("")
    assert build(root) == [f"built nvidia/580.1 for {RUNNING}"]
    assert (root / f"lib/modules/{RUNNING}/updates/dkms/nvidia.ko").read_text() == "580.1\n"
    assert build(root) == []


@pytest.mark.parametrize("name", ["nvidia-uvm.ko", "nvidia-current-drm.ko.xz", "nvidia-tesla-535-modeset.ko.zst"])
def test_each_module_of_the_driver_must_be_whole(root, name):
    build(root)
    (root / f"lib/modules/{RUNNING}/updates/dkms/{name}").write_text("")
    assert build(root) == [f"DKMS did not build nvidia/580.1 for {RUNNING}"]  # the double builds nvidia.ko alone


def test_a_module_that_is_missing_although_dkms_has_installed_it_is_installed_again(root):
    build(root)
    (root / f"lib/modules/{NEWEST}/updates/dkms/nvidia.ko").unlink()
    assert build(root) == [f"built nvidia/580.1 for {NEWEST}"]
    assert build(root) == []


def test_a_build_that_dkms_skips_is_not_said_to_be_built(root):
    """What counts is the module on disk."""
    (root.parent / "bin/dkms").write_text("#!/bin/sh\n")
    assert build(root) == [f"DKMS did not build nvidia/580.1 for {kernel}" for kernel in (RUNNING, NEWEST)]


def test_a_kernel_that_the_driver_does_not_support_stops_no_other(root):
    assert build(root, RUNNING) == [
        f"DKMS did not build nvidia/580.1 for {RUNNING}",
        f"built nvidia/580.1 for {NEWEST}",
    ]
    assert build(root, RUNNING) == [f"DKMS did not build nvidia/580.1 for {RUNNING}"]


@pytest.mark.parametrize(("exact", "meta"), [("linux-headers-", "amd64"), ("kernel-devel-", "matched")])
def test_the_kernel_that_starts_next_gets_the_driver_though_another_flavour_is_newer(root, exact, meta):
    """Its headers are in the plan; the meta package beside them is of no kernel."""
    headers = (f"{exact}{OLDEST}", f"{exact}{meta}")
    assert build(root, headers=headers) == [f"built nvidia/580.1 for {kernel}" for kernel in (OLDEST, RUNNING, NEWEST)]


@pytest.mark.parametrize("missing", ["boot", "var/lib/dkms"])
def test_a_container_has_nothing_to_build(root, missing):
    (root / missing).rename(root / "elsewhere")
    assert build(root) == ([f"built nvidia/580.1 for {RUNNING}"] if missing == "boot" else [])
