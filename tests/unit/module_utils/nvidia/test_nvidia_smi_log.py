"""Parsing of `nvidia-smi -q -x` and `nvidia-smi nvlink -s`, on lines that owners of such machines published."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import command
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi_log


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("N/A", None),
        ("[N/A]", None),
        ("[Not Supported]", None),
        ("Requested functionality has been deprecated", None),
        ("GPU is lost", None),
        ("", None),
        ("None", "None"),
        (" 16x ", "16x"),
    ],
)
def test_value_that_is_not_reported_is_none(text: str, value: str | None) -> None:
    (gpu,) = nvidia_smi_log.parse(f"<nvidia_smi_log><gpu><a><b>{text}</b></a></gpu></nvidia_smi_log>")
    assert gpu.text("a/b") == value
    assert gpu.text("a/c") is None


@pytest.mark.parametrize(("text", "number"), [("16x", 16), ("87 %", 87), ("5", 5), ("-2 C", -2), ("Enabled", None)])
def test_numbers(text: str, number: float | None) -> None:
    (gpu,) = nvidia_smi_log.parse(f"<l><gpu><a>{text}</a></gpu></l>")
    assert gpu.number("a") == number


def test_invalid_document_is_an_error() -> None:
    with pytest.raises(ValueError, match="no XML document"):
        nvidia_smi_log.read("nvidia-smi", lambda argv, timeout: command.Answer(0, b"something else", b""))
    with pytest.raises(ValueError, match="is not XML"):
        nvidia_smi_log.read("nvidia-smi", lambda argv, timeout: command.Answer(0, b"<?xml version='1.0'?><a>", b""))


HEAD = "GPU %d: %s (UUID: GPU-00000000-0000-0000-0000-00000000000%d)\n"
# Azure/azhpc-diagnostics issue 73.
V100_LINES = HEAD % (3, "Tesla V100-SXM2-32GB", 3) + (
    "\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 GB/s\n\t Link 3: <inactive>\n"
    "\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\n"
)
# A100 PCIe without a bridge, driver 535 and newer; leptonai/gpud issue 1085 has the same of a B200 that failed.
ALL_DOWN = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


def test_nvlink_lines() -> None:
    found = nvidia_smi_log.parse_nvlinks(
        HEAD % (0, "NVIDIA RTX A4000", 0)
        + "Device does not have or support Nvlink\n"
        + HEAD % (1, "NVIDIA A100-PCIE-40GB", 1)
        + ALL_DOWN
        + V100_LINES
    )
    assert [links.state for links in found.values()] == ["unsupported", "inactive", "links"]
    assert found[3].speeds == {0: 25.781, 1: 25.781, 2: 25.781, 3: None, 4: 25.781, 5: None}
    assert nvidia_smi_log.parse_nvlinks("") == {}


def test_line_in_an_unknown_format_is_an_error() -> None:
    with pytest.raises(ValueError, match="Link 0: sleeping soundly"):
        nvidia_smi_log.parse_nvlinks(HEAD % (0, "NVIDIA B300", 0) + "\t Link 0: sleeping soundly\n")
