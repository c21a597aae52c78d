"""Distributions as people write them, in today's catalog."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import distributions

EL9 = "rocky-9 or almalinux-9 or rhel-9 or centos-9"
# rockylinux and almalinux: the images of Docker Hub. el9: PLATFORM_ID of os-release. CentOS Stream: NAME of os-release.
MEANT = {
    "Debian 12.5": "debian-12",
    "ubuntu2204": "ubuntu-22.04",
    "Ubuntu 24.04 LTS": "ubuntu-24.04",
    "el9": EL9,
    "el-9.4": EL9,
    "rhel9": "rhel-9",
    "Red Hat Enterprise Linux 9": "rhel-9",
    "rockylinux-9": "rocky-9",
    "Rocky Linux 10": "rocky-10",
    "centos-stream-10": "centos-10",
    "alma9.7": "almalinux-9",
}


@pytest.mark.parametrize("text", MEANT)
def test_another_spelling(text: str) -> None:
    assert distributions.meant(load_catalog(), text) == MEANT[text]


@pytest.mark.parametrize(
    "text", ["rocky-9", "debian-11", "ubuntu-24.10", "oracle-9", "ol-9", "debian", "rocky-8", "9", ""]
)
def test_what_is_another_distribution_or_is_known_is_none(text: str) -> None:
    assert distributions.meant(load_catalog(), text) == ""
