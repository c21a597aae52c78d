"""apt's sources and keys of NVIDIA's software."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_sources, openpgp

from tests.unit.module_utils.host_files import put

FIXTURES = Path(__file__).parents[3] / "fixtures"


NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("cuda.list", f"deb {NVIDIA} /\n# deb {NVIDIA} /\n", [(NVIDIA, "/", None)]),
        ("k.list", f"deb [arch=amd64 signed-by=/k.gpg] {NVIDIA} /\n", [(NVIDIA, "/", "/k.gpg")]),
        ("s.list", f"deb-src {NVIDIA} /\n", []),
        ("d.list", "deb http://deb.debian.org/debian bookworm main\n", []),
        ("a.sources", f"Types: deb\nURIs: {NVIDIA}\nSuites: /\nSigned-By: /k.asc\n", [(NVIDIA, "/", "/k.asc")]),
        ("o.sources", f"Enabled: no\nTypes: deb\nURIs: {NVIDIA}\nSuites: /\n", []),
        (
            "p.sources",
            "Types: deb\nURIs: https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/\nSuites: noble\n"
            "Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBA==\n",
            [("https://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu/", "noble", "a key within the file")],
        ),
        ("x.save", f"deb {NVIDIA} /\n", []),
    ],
    ids=[
        "one line",
        "signed-by",
        "sources only",
        "Debian's",
        "deb822",
        "not enabled",
        "PPA with key",
        "not read by apt",
    ],
)
def test_sources_of_nvidias_software_are_found(
    tmp_path: Path, name: str, text: str, entries: list[tuple[Any, ...]]
) -> None:
    path = f"/etc/apt/sources.list.d/{name}"
    put(tmp_path, path, text)
    found = apt_sources.read(str(tmp_path), None)["entries"]
    assert [(e["uri"], e["suite"], e["signed_by"]) for e in found] == entries
    assert {e["file"] for e in found} <= {path}


def test_a_mirror_is_a_source_if_it_is_the_configured_repository(tmp_path: Path) -> None:
    put(tmp_path, "/etc/apt/sources.list", "deb http://mirror.lab/cuda/debian12/x86_64 /\n")
    assert apt_sources.read(str(tmp_path), None)["entries"] == []
    assert len(apt_sources.read(str(tmp_path), "http://mirror.lab/cuda/debian12/x86_64/")["entries"]) == 1


@pytest.mark.parametrize(
    ("text", "mixed"),
    [
        (f"deb {NVIDIA} /\n# deb http://deb.debian.org/debian bookworm main\n", False),
        (f"deb {NVIDIA} /\ndeb http://deb.debian.org/debian bookworm main\n", True),
        ("deb http://deb.debian.org/debian bookworm main\n", False),
    ],
    ids=["alone", "with Debian's", "Debian's alone"],
)
def test_a_file_with_other_repositories_is_mixed(tmp_path: Path, text: str, mixed: bool) -> None:
    put(tmp_path, "/etc/apt/sources.list", text)
    put(tmp_path, "/etc/apt/sources.list.d/debian.list", "deb http://deb.debian.org/debian bookworm contrib\n")
    assert apt_sources.read(str(tmp_path), None)["mixed"] == (["/etc/apt/sources.list"] if mixed else [])


def test_only_valid_keys_of_nvidia_are_returned(tmp_path: Path) -> None:
    debian = (FIXTURES / "openpgp/debian-archive-bullseye-stable.gpg").read_bytes()
    put(tmp_path, "/etc/apt/trusted.gpg.d/debian.gpg", debian)
    put(tmp_path, "/etc/apt/trusted.gpg.d/broken.gpg", b"nonsense")
    assert apt_sources.read(str(tmp_path), None)["keys"] == {}
    uid = b"cudatools <cudatools@nvidia.com>"
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", debian + bytes([0xB4, len(uid)]) + uid)
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.asc", openpgp.armour(debian + bytes([0xB4, len(uid)]) + uid))
    found = apt_sources.read(str(tmp_path), None)
    there = openpgp.public_keys(debian)
    files = [f"/etc/apt/trusted.gpg.d/cuda.{form}" for form in ("asc", "gpg")]
    assert found["keys"] == dict.fromkeys(files, [key.fingerprint for key in there][-1:])
    assert found["mixed"] == (files if len(there) > 1 else [])
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", there[0].raw + bytes([0xB4, len(uid)]) + uid)
    (tmp_path / "etc/apt/trusted.gpg.d/cuda.asc").unlink()
    assert apt_sources.read(str(tmp_path), None)["mixed"] == [], "the key is alone in its file"
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", debian + there[0].raw + bytes([0xB4, len(uid)]) + uid)
    assert apt_sources.read(str(tmp_path), None)["mixed"] == ["/etc/apt/trusted.gpg.d/cuda.gpg"]


DEB822 = """Types: deb
# a comment with an empty-looking end
URIs: http://mirror.example/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
"""


@pytest.mark.parametrize(
    ("text", "path", "position", "key"),
    [
        (DEB822, "debian.sources", 1, "/usr/share/keyrings/debian-archive-keyring.gpg"),
        (DEB822, "debian.sources", 2, None),
        ("deb http://x y main\ndeb [arch=amd64 signed-by=/k.gpg] http://x y main\n", "a.list", 2, "/k.gpg"),
        ("deb http://x y main\n", "a.list", 1, None),
        ("# c\n\n\nTypes: deb\nSigned-By:\n -----BEGIN\n .\n mQ\n", "a.sources", 1, "-----BEGIN\n .\n mQ"),
        ("deb [Signed-By=/a,/b] http://x y main\n", "a.list", 1, "/a /b"),
    ],
    ids=["deb822", "deb822-without", "list", "list-without", "key in the file", "two keys"],
)
def test_signed_by_is_found_in_both_file_formats(text, path, position, key):
    assert apt_sources.signed_by(text, path, position) == key
