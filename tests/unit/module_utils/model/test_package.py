"""Packages as objects: their text is that of plan.json and of role variables."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("libnccl2=2.29.7-1+cuda13.2", "libnccl2", "2.29.7-1+cuda13.2"),
        ("nvidia-smi", "nvidia-smi", None),
        ("a=1:2=3", "a", "1:2=3"),
        ("a:i386", "a:i386", None),
    ],
)
def test_text_has_a_name_and_may_have_a_version(text: str, name: str, version: str | None) -> None:
    assert Package.parse(text) == Package(name, version)
    assert str(Package(name, version)) == text


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("kmod-nvidia-open-dkms-3:595.71.05-1.el9", "kmod-nvidia-open-dkms", "3:595.71.05-1.el9"),
        ("libnccl-0:2.29.7-1+cuda13.2", "libnccl", "2.29.7-1+cuda13.2"),
        ("cuda-toolkit-13-2-0:13.2.2-1", "cuda-toolkit-13-2", "13.2.2-1"),
        ("python3.12", "python3.12", None),
    ],
)
def test_of_rpm_its_text_is_what_dnf_takes(text: str, name: str, version: str | None) -> None:
    package = Package.parse(text)
    assert package == Package(name, version)
    assert str(Package(name, version, is_rpm=True)) == str(package) == text


def test_an_empty_version_is_none() -> None:
    assert Package.parse("a=") == Package("a")
