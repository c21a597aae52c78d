"""The loaded kernel modules, from version files of real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import KernelModule
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import proc_driver

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"


@pytest.mark.parametrize(
    ("name", "version", "flavour"),
    [
        ("open-580", "580.95.05", "open"),
        ("open-615", "615.71.09", "open"),
        ("proprietary-440", "440.95.01", "proprietary"),
        ("proprietary-515", "515.76", "proprietary"),
    ],
)
def test_loaded_driver(tmp_path: Path, name: str, version: str, flavour: str) -> None:
    put(tmp_path, "/proc/driver/nvidia/version", (FIXTURES / f"proc-driver-nvidia-version-{name}.txt").read_text())
    assert proc_driver.read(str(tmp_path)) == KernelModule(version, flavour)


def test_without_a_file_none_and_for_another_format_an_error(tmp_path: Path) -> None:
    assert proc_driver.read(str(tmp_path)) is None
    with pytest.raises(ValueError, match="NVRM version"):
        proc_driver.parse("NVRM version: something else\n")


@pytest.mark.parametrize(
    ("modules", "loaded"),
    [
        ("nouveau 2301952 1 - Live 0x0\n", True),
        ("nouveau_x 1 0\nnvidia 2 0\n", False),
        ("nova_core 1 0 - Live 0x0\n", True),
    ],
)
def test_nouveau(tmp_path: Path, modules: str, loaded: bool) -> None:
    put(tmp_path, "/proc/modules", modules)
    assert proc_driver.nouveau_loaded(str(tmp_path)) is loaded
