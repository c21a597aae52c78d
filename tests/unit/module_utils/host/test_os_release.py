"""The distribution, from the os-release files of real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.host import os_release
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("debian-12", ("debian-12", "debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)")),
        ("debian-testing", ("debian", "debian", "", "trixie", "Debian GNU/Linux trixie/sid")),
        ("ubuntu-22.04", ("ubuntu-22.04", "ubuntu", "22.04", "jammy", "Ubuntu 22.04.3 LTS")),
        ("ubuntu-24.04", ("ubuntu-24.04", "ubuntu", "24.04", "noble", "Ubuntu 24.04.1 LTS")),
    ],
)
def test_the_distribution_is_read_from_os_release(tmp_path: Path, name: str, expected: tuple[str, ...]) -> None:
    put(tmp_path, "/usr/lib/os-release", (FIXTURES / f"os-release-{name}.txt").read_text())
    keys = ("id", "name", "version", "codename", "pretty_name")
    assert to_json(os_release.read(str(tmp_path))) == dict(zip(keys, expected, strict=True))


@pytest.mark.parametrize(
    ("lines", "id_", "version"),
    [
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\nPLATFORM_ID="platform:el9"\n', "rocky-9", "9.6"),
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="10.1"\nPLATFORM_ID="platform:el10"\n', "rhel-10", "10.1"),
        ('ID="centos"\nVERSION_ID="9"\nPLATFORM_ID="platform:el9"\n', "centos-9", "9"),
        ('ID="ol"\nVERSION_ID="9.6"\nPLATFORM_ID="platform:el9"\n', "ol-9", "9.6"),
        ("ID=fedora\nVERSION_ID=42\nPLATFORM_ID=platform:f42\n", "fedora-42", "42"),
    ],
    ids=["rocky", "rhel", "centos", "oracle", "fedora"],
)
def test_a_release_of_enterprise_linux_is_its_major_one(lines: str, id_: str, version: str) -> None:
    found = os_release.distribution(os_release.parse(lines))
    assert (found.id, found.version) == (id_, version)


def test_a_host_without_os_release_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="/etc/os-release"):
        os_release.read(str(tmp_path))
