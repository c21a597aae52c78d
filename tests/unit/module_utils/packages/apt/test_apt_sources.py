"""apt's sources and keys of NVIDIA's software."""

from __future__ import annotations

import gzip
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, openpgp
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PreferredSource
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists, apt_sources, dpkg, dpkg_info

from tests.unit.module_utils.host_files import listed, put, put_repository

FIXTURES = Path(__file__).parents[4] / "fixtures"


NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"


@pytest.mark.parametrize(
    ("name", "text", "entries"),
    [
        ("cuda.list", f"deb {NVIDIA} /\n# deb {NVIDIA} /\n", [(NVIDIA, "/", None)]),
        ("k.list", f"deb [arch=amd64 signed-by=/k.gpg] {NVIDIA} /\n", [(NVIDIA, "/", "/k.gpg")]),
        ("s.list", f"deb-src {NVIDIA} /\n", []),
        ("d.list", "deb http://deb.debian.org/debian bookworm main\n", []),
        ("a.sources", f"Types: deb\nURIs: {NVIDIA}\nSuites: /\nSigned-By: /k.asc\n", [(NVIDIA, "/", "/k.asc")]),
        *[
            ("o.sources", f"Enabled: {word}\nTypes: deb\nURIs: {NVIDIA}\nSuites: /\n", entries)
            for word, entries in [
                *[(word, []) for word in ("no", "false", "without", "off", "disable", "0", "OFF")],
                *[(word, [(NVIDIA, "/", None)]) for word in ("yes", "1", "enable", "what apt does not know")],
            ]
        ],
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
        *[f"Enabled: {word}" for word in ("no", "false", "without", "off", "disable", "0", "OFF")],
        *[f"Enabled: {word}" for word in ("yes", "1", "enable", "unknown")],
        "PPA with key",
        "not read by apt",
    ],
)
def test_sources_of_nvidias_software_are_found(
    tmp_path: Path, name: str, text: str, entries: list[tuple[Any, ...]]
) -> None:
    path = f"/etc/apt/sources.list.d/{name}"
    put(tmp_path, path, text)
    found = apt_sources.read(str(tmp_path), None).entries
    assert [(e.uri, e.suite, e.signed_by) for e in found] == entries
    assert {e.file for e in found} <= {path}


def test_a_mirror_is_a_source_if_it_is_the_configured_repository(tmp_path: Path) -> None:
    put(tmp_path, "/etc/apt/sources.list", "deb http://mirror.lab/cuda/debian12/x86_64 /\n")
    assert apt_sources.read(str(tmp_path), None).entries == ()
    assert len(apt_sources.read(str(tmp_path), "http://mirror.lab/cuda/debian12/x86_64/").entries) == 1


@pytest.mark.parametrize(("second", "found"), [("/b.gpg", 2), ("/a.gpg", 0)])
def test_a_repository_with_two_keys_concerns_every_source(tmp_path: Path, second: str, found: int) -> None:
    put(tmp_path, "/etc/apt/sources.list.d/a.list", "deb [signed-by=/a.gpg] https://repo.example/apt stable main\n")
    put(tmp_path, "/etc/apt/sources.list", f"deb [signed-by={second}] https://repo.example/apt/ stable extra\n")
    assert len(apt_sources.read(str(tmp_path), None).entries) == found


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
    assert apt_sources.read(str(tmp_path), None).mixed == (("/etc/apt/sources.list",) if mixed else ())


BOOKWORM = (FIXTURES / "openpgp/debian-archive-bookworm-stable.asc").read_text()
BULLSEYE = (FIXTURES / "openpgp/debian-archive-bullseye-stable.gpg").read_bytes()
# By gpg (fixtures/openpgp/gpg-show-keys.txt).
OF_BOOKWORM, OF_BULLSEYE = "4D64FEC119C2029067D6E791F8D2585B8783D481", "A4285295FC7B1A81600062A9605C66F00D6C9793"
WITHIN = "".join(f" {line or '.'}\n" for line in BOOKWORM.splitlines())


@pytest.mark.parametrize(
    ("signed_by", "keys"),
    [
        (" /k.asc", (OF_BOOKWORM,)),
        (" /k.asc /k.gpg", (OF_BOOKWORM, OF_BULLSEYE)),
        (f"\n{WITHIN}", (OF_BOOKWORM,)),
        (" /missing.gpg", None),
        (" /nonsense.gpg", None),
        (f" {OF_BOOKWORM}", None),
        ("\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBA==", None),
    ],
    ids=["a file", "two files", "within", "a missing file", "no key in it", "a fingerprint", "cut short"],
)
def test_the_keys_that_a_source_trusts(tmp_path: Path, signed_by: str, keys: tuple[str, ...] | None) -> None:
    put(tmp_path, "/k.asc", BOOKWORM)
    put(tmp_path, "/k.gpg", BULLSEYE)
    put(tmp_path, "/nonsense.gpg", "<html>")
    text = f"Types: deb\nURIs: {NVIDIA}\nSuites: /\nSigned-By:{signed_by}\n"
    put(tmp_path, "/etc/apt/sources.list.d/n.sources", text)
    (entry,) = apt_sources.read(str(tmp_path), None).entries
    assert entry.keys == keys


def test_only_valid_keys_of_nvidia_are_returned(tmp_path: Path) -> None:
    debian = (FIXTURES / "openpgp/debian-archive-bullseye-stable.gpg").read_bytes()
    put(tmp_path, "/etc/apt/trusted.gpg.d/debian.gpg", debian)
    put(tmp_path, "/etc/apt/trusted.gpg.d/broken.gpg", b"nonsense")
    assert apt_sources.read(str(tmp_path), None).keys == {}
    uid = b"cudatools <cudatools@nvidia.com>"
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", debian + bytes([0xB4, len(uid)]) + uid)
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.asc", openpgp.armour(debian + bytes([0xB4, len(uid)]) + uid))
    found = apt_sources.read(str(tmp_path), None)
    there = openpgp.public_keys(debian)
    files = [f"/etc/apt/trusted.gpg.d/cuda.{form}" for form in ("asc", "gpg")]
    assert found.keys == dict.fromkeys(files, tuple(key.fingerprint for key in there)[-1:])
    assert found.mixed == (tuple(files) if len(there) > 1 else ())
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", there[0].raw + bytes([0xB4, len(uid)]) + uid)
    (tmp_path / "etc/apt/trusted.gpg.d/cuda.asc").unlink()
    assert apt_sources.read(str(tmp_path), None).mixed == (), "the key is alone in its file"
    put(tmp_path, "/etc/apt/trusted.gpg.d/cuda.gpg", debian + there[0].raw + bytes([0xB4, len(uid)]) + uid)
    assert apt_sources.read(str(tmp_path), None).mixed == ("/etc/apt/trusted.gpg.d/cuda.gpg",)


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


# What apt prefers, by apt itself -------------------------------------------------------------------------------------

URL = "http://127.0.0.1:9/compute/cuda/repos/debian12/x86_64/"  # nothing answers there
OFFERS = {"libnccl2": ["2.29.7-1+cuda13.2", "2.28.9-1+cuda13.0"], "nvidia-driver-cuda": ["595.71.05-1"]}
LAMBDA = "http://archive.lambdalabs.com/ubuntu"
LAMBDA_PIN = "Package: *\nPin: origin archive.lambdalabs.com\nPin-Priority: 1001\n"  # lambdal/lambda-stack-dockerfiles
MIRROR = "https://apt.corp.example/cuda/debian12"
OLD, NEW = "2.26.2-1", "2.30.7-1+cuda13.2"
PREFERENCES = "/etc/apt/preferences.d"


def put_debian(root: Path, rows: dict[str, str]) -> None:
    put_repository(root, "http://deb.debian.org/debian", "bookworm", listed(rows), "Origin: Debian\nSuite: stable\n")


def asked(root: Path) -> list[PreferredSource]:
    others = apt_sources.Others(str(root), "debian", URL, OFFERS, ["*nvidia*", "libnccl*", "gcc-*"], command.run)
    return list(others.preferred())


needs_apt = pytest.mark.skipif(not shutil.which("apt-cache"), reason="needs apt-cache")
# The repository, its packages, its release file; the preferences by file; what apt would take, and why.
Won = tuple[int, list[str], dict[str, str]]
OF_LAMBDA = "Origin: Lambda Labs\nLabel: Lambda Labs\nSuite: stable\nCodename: jammy\n"
OF_PPA = "Origin: LP-PPA-graphics-drivers\nLabel: Proprietary GPU Drivers\nSuite: jammy\nCodename: jammy\n"
PPA = "http://ppa.launchpadcontent.net/graphics-drivers/ppa/ubuntu"
PREFERRED: dict[str, tuple[str, str, dict[str, str], str, dict[str, str], Won | None]] = {
    "Lambda Stack, as its Dockerfile pins it": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA, {"lambda": LAMBDA_PIN},
        (1001, ["lambda"], {"libnccl2": OLD}),
    ),
    "Lambda Stack without a pin, older": (LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA, {}, None),
    "Lambda Stack below the others, as people pin it": (
        LAMBDA, "jammy", {"libnccl2": NEW}, OF_LAMBDA, {"nvidia-official": LAMBDA_PIN.replace("1001", "100")}, None,
    ),
    "Lambda Stack beside NVIDIA's at a higher priority": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {"lambda": LAMBDA_PIN, "nvidia": 'Package: *\nPin: origin "127.0.0.1"\nPin-Priority: 1002\n'}, None,
    ),
    **{
        f"NVIDIA's local installer, {scheme}": (
            f"{scheme}/var/nvidia-driver-local-repo-ubuntu2404-565.57.01", "/", {"nvidia-driver-cuda": "999.57.01-1"},
            "Origin: NVIDIA\n", {}, (500, [], {"nvidia-driver-cuda": "999.57.01-1"}),
        )
        for scheme in ("file://", "file:", "copy:")
    },
    "a mirror with something newer": (MIRROR, "/", {"libnccl2": NEW}, "", {}, (500, [], {"libnccl2": NEW})),
    "a mirror with an older state at a higher priority": (
        MIRROR, "/", {"libnccl2": OLD}, "Origin: NVIDIA\nLabel: NVIDIA CUDA\n",
        {"corp.pref": "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 990\n"},
        (990, ["corp.pref"], {"libnccl2": OLD}),
    ),
    "a mirror with the same": (
        MIRROR, "/", {"libnccl2": OFFERS["libnccl2"][0]}, "",
        {"corp": "Package: *\nPin: origin apt.corp.example\nPin-Priority: 1001\n"}, None,
    ),
    "a mirror with the older of NVIDIA's versions": (
        MIRROR, "/", {"libnccl2": OFFERS["libnccl2"][1]}, "",
        {"corp": "Package: *\nPin: origin apt.corp.example\nPin-Priority: 1001\n"},
        (1001, ["corp"], {"libnccl2": OFFERS["libnccl2"][1]}),
    ),
    "a PPA against the distribution's archive, by an expression": (
        PPA, "jammy", {"nvidia-utils-580": "580.10"}, OF_PPA,
        {"ppa": "Package: /^nvidia-/\nPin: release o=LP-PPA-graphics-drivers\nPin-Priority: 600\n"},
        (600, ["ppa"], {"nvidia-utils-580": "580.10"}),
    ),
    "a PPA that is older than the archive": (PPA, "jammy", {"nvidia-utils-580": "580.10"}, OF_PPA, {}, None),
    "by codename, another pin beside it": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {
            "aaa": "Package: gcc-13\nPin: origin archive.lambdalabs.com\nPin-Priority: 1001\n",
            "lab": "Package: libnccl*\nPin: release n=jammy, a=stable, c=main\nPin-Priority: 700\n",
            "lab.save": LAMBDA_PIN,
        },
        (700, ["lab"], {"libnccl2": OLD}),
    ),
    "by version": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {"nccl": "Package: libnccl2\nPin: version 2.26.*\nPin-Priority: 1001\n"}, (1001, ["nccl"], {"libnccl2": OLD}),
    ),
    "by source": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {"nccl": "Package: src:nccl\nPin: origin archive.lambdalabs.com\nPin-Priority: 1001\n"},
        (1001, ["nccl"], {"libnccl2": OLD}),
    ),
    "not automatic": (LAMBDA, "jammy", {"libnccl2": NEW}, f"{OF_LAMBDA}NotAutomatic: yes\n", {}, None),
    "not automatic, but upgrades are": (
        LAMBDA, "jammy", {"libnccl2": NEW}, f"{OF_LAMBDA}NotAutomatic: yes\nButAutomaticUpgrades: yes\n", {}, None,
    ),
    "nothing of a plan": (
        "https://nvidia.github.io/libnvidia-container/stable/deb/amd64", "/", {"nvidia-container-toolkit": "1.18"}, "",
        {"all": "Package: *\nPin: origin nvidia.github.io\nPin-Priority: 1001\n"}, None,
    ),
    "NVIDIA's repository is pinned away": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {"no": 'Package: *\nPin: origin "127.0.0.1"\nPin-Priority: -1\n'}, (500, [], {"libnccl2": OLD}),
    ),
    "both are pinned away": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {"no": "Package: libnccl2\nPin: version *\nPin-Priority: -1\n"}, None,
    ),
    "the others are pinned away": (
        LAMBDA, "jammy", {"libnccl2": NEW}, OF_LAMBDA, {"no": LAMBDA_PIN.replace("1001", "-1")}, None,
    ),
    "a pin of the distribution's archive": (
        LAMBDA, "jammy", {"libnccl2": OLD}, OF_LAMBDA,
        {"debian": "Package: *\nPin: release o=Debian\nPin-Priority: 1001\n"}, None,
    ),
}  # fmt: skip


@needs_apt
@pytest.mark.parametrize(
    ("uri", "suite", "rows", "release", "preferences", "won"), PREFERRED.values(), ids=list(PREFERRED)
)
def test_the_sources_that_win_are_those_of_apt(
    tmp_path: Path,
    uri: str,
    suite: str,
    rows: dict[str, str],
    release: str,
    preferences: dict[str, str],
    won: Won | None,
) -> None:
    put_debian(tmp_path, {"nvidia-utils-580": "580.95", "nvidia-driver-cuda": "535.261.03-1"})
    put_repository(tmp_path, uri, suite, listed(rows, "nccl"), release)
    for name, content in preferences.items():
        put(tmp_path, f"{PREFERENCES}/{name}", content)
    found = asked(tmp_path)
    if won is None:
        assert found == []
        return
    priority, pins, packages = won
    (source,) = found
    assert (source.priority, source.packages) == (priority, packages)
    assert source.pins == tuple(f"{PREFERENCES}/{name}" for name in pins)
    assert (source.uri, source.mixed) == (uri.replace(":///", ":/"), False)
    assert (tmp_path / source.file.lstrip("/")).read_text().startswith(f"deb {uri} ")


# Release files of deb.debian.org and archive.ubuntu.com.
BACKPORTS = "Origin: Debian Backports\nSuite: stable-backports\nCodename: bookworm-backports\nNotAutomatic: yes\n"
BACKPORTS += "ButAutomaticUpgrades: yes\n"
PIN_BACKPORTS = "Package: *\nPin: release n=bookworm-backports\nPin-Priority: 990\n"


@needs_apt
@pytest.mark.parametrize("pins", [(), ("backports",)], ids=["as they are", "pinned"])
def test_backports_are_the_archive_until_a_pin_prefers_them(tmp_path: Path, pins: tuple[str, ...]) -> None:
    debian, sources = "http://deb.debian.org/debian", tmp_path / "etc/apt/sources.list.d"
    put_debian(tmp_path, {"nvidia-utils-580": "535.1", "nvidia-driver-cuda": "535.261.03-1"})
    put_repository(tmp_path, debian, "bookworm-backports", listed({"nvidia-utils-580": "550.1"}), BACKPORTS)
    (path,) = sources.iterdir()
    path.write_text(f"deb {debian} bookworm main\ndeb {debian} bookworm-backports main\n")
    for name in pins:
        put(tmp_path, f"{PREFERENCES}/{name}", PIN_BACKPORTS)
    found = [(s.suite, s.priority, s.packages, s.pins, s.mixed) for s in asked(tmp_path)]
    won = ("bookworm-backports/main", 990, {"nvidia-utils-580": "550.1"}, (f"{PREFERENCES}/backports",), True)
    assert found == ([won] if pins else [])


@needs_apt
def test_nvidias_repository_that_is_configured_already_is_not_another(tmp_path: Path) -> None:
    """Its own release file counts, and its list may be an older one than the repository."""
    put_repository(tmp_path, URL.rstrip("/"), "/", listed({"libnccl2": OLD}), "Origin: NVIDIA\nLabel: NVIDIA CUDA\n")
    assert asked(tmp_path) == []
    put_repository(tmp_path, LAMBDA, "jammy", listed({"libnccl2": OLD}), OF_LAMBDA)
    put(tmp_path, "/etc/apt/preferences", LAMBDA_PIN)
    assert [source.pins for source in asked(tmp_path)] == [("/etc/apt/preferences",)]
    put(tmp_path, f"{PREFERENCES}/cuda", "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 1002\n")
    assert asked(tmp_path) == []


SITE = "http://mirror.corp.example"
INSTALLED = {"base-files": "12.4+deb12u12", "bash": "5.2.15-2+b7", "dpkg": "1.21.22", "grep": "3.8-5"}
NEWER = {"nvidia-utils-580": "580.99"}
# By URI and suite: what the lists have; of the two, which is not the archive.
SITES: dict[str, tuple[dict[tuple[str, str], dict[str, str]], list[str]]] = {
    "a mirror": ({(f"{SITE}/debian", "bookworm"): {**INSTALLED, **NEWER}}, []),
    "a mirror with its suites": (
        {
            (f"{SITE}/debian", "bookworm"): {**INSTALLED, "bash": "5.2.15-2"},
            (f"{SITE}/debian", "bookworm-updates"): NEWER,
            (f"{SITE}/debian-security", "bookworm-security"): NEWER,
        },
        [],
    ),
    "what is installed is half of the suite, half of its updates": (
        {
            (f"{SITE}/ubuntu", "noble"): {**INSTALLED, "bash": "4", "dpkg": "1.20", "grep": "3.7", **NEWER},
            (f"{SITE}/ubuntu", "noble-updates"): {"dpkg": "1.21.22"},
        },
        [],
    ),
    "another repository on the mirror's host": (
        {(f"{SITE}/debian", "bookworm"): INSTALLED, (f"{SITE}/lambda", "bookworm"): NEWER}, [f"{SITE}/lambda"],
    ),
    "another suite at the mirror's address": (
        {(f"{SITE}/debian", "bookworm"): INSTALLED, (f"{SITE}/debian", "gpu"): NEWER}, [f"{SITE}/debian"],
    ),
    "a suite of the same name on another host": (
        {(f"{SITE}/debian", "bookworm"): INSTALLED, (LAMBDA, "bookworm-security"): NEWER}, [LAMBDA],
    ),
    "a repository with a patched shell": ({(LAMBDA, "jammy"): {"bash": "5.2.15-2+b7", **NEWER}}, [LAMBDA]),
    "another distribution": (
        {(f"{SITE}/sid", "sid"): {**{name: version + "x" for name, version in INSTALLED.items()}, **NEWER}},
        [f"{SITE}/sid"],
    ),
}  # fmt: skip


@needs_apt
@pytest.mark.parametrize(("lists", "others"), SITES.values(), ids=list(SITES))
def test_a_mirror_of_the_distribution_under_another_origin_is_the_archive(
    tmp_path: Path, lists: dict[tuple[str, str], dict[str, str]], others: list[str]
) -> None:
    put_debian(tmp_path, {"nvidia-utils-580": "580.95"})
    essential = "Package: {}\nEssential: yes\nStatus: install ok installed\nArchitecture: all\nVersion: {}\n\n"
    put(tmp_path, dpkg.STATUS_FILE, "".join(essential.format(*pair) for pair in INSTALLED.items()))
    for (uri, suite), rows in lists.items():
        put_repository(tmp_path, uri, suite, listed(rows), f"Origin: Corp\nSuite: {suite}\n")
        here = "".join(f"deb {uri} {suite} main\n" for at, suite in lists if at == uri)
        put(tmp_path, "/etc/apt/sources.list.d/" + re.sub(r"\W", "-", uri.partition("://")[2]) + ".list", here)
    found = asked(tmp_path)
    assert [source.uri for source in found] == others
    assert all(source.mixed == (source.uri == f"{SITE}/debian") for source in found)


OWN = {
    "two keys": {"a.list": f"deb [signed-by=/a.gpg] {URL} /\n", "b.list": f"deb [signed-by=/b.gpg] {URL} /\n"},
    "another key in deb822": {"a.sources": f"Types: deb\nURIs: {URL}\nSuites: /\nSigned-By: /a.gpg\n"},
    "a suite of its own": {"a.list": f"deb {URL} ./\n"},
    "the address in two parts": {"a.list": f"deb {URL.replace('debian12/x86_64/', '')} debian12/x86_64/\n"},
    "in the file of the distribution": {"../sources.list": f"deb [signed-by=/a.gpg] {URL} /\ndeb {URL} ./\n"},
    "with others in a stanza": {
        "a.sources": f"# ours\n\nTypes: deb\nURIs: {URL} {MIRROR}/\nSuites: ./\nSigned-By:\n"
        " -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQ==\n",
    },
}  # fmt: skip


@needs_apt
@pytest.mark.parametrize("own", OWN.values(), ids=list(OWN))
def test_however_nvidias_repository_is_configured_the_others_are_seen(tmp_path: Path, own: dict[str, str]) -> None:
    put_repository(tmp_path, LAMBDA, "jammy", listed({"libnccl2": NEW}), OF_LAMBDA)
    for name, text in own.items():
        put(tmp_path, f"{apt_sources.DIRECTORY}/{name}", text)
    assert [(source.uri, source.packages) for source in asked(tmp_path)] == [(LAMBDA, {"libnccl2": NEW})]


@needs_apt
@pytest.mark.parametrize("suite", ["/", "./"])
def test_the_release_file_that_apt_has_of_nvidias_repository_counts(tmp_path: Path, suite: str) -> None:
    start = f"{apt_lists.LISTS}/{apt_lists.list_name(URL)}_{suite.strip('/')}{'_' * (suite != '/')}"
    put(tmp_path, f"{start}Packages", listed({"libnccl2": OLD}))
    put(tmp_path, f"{start}InRelease", "Origin: NVIDIA\nLabel: NVIDIA CUDA\n")
    put(tmp_path, f"{apt_sources.DIRECTORY}/a.list", f"deb {URL} {suite}\n")
    put(tmp_path, f"{PREFERENCES}/cuda", "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 1002\n")
    put_repository(tmp_path, LAMBDA, "jammy", listed({"libnccl2": NEW}), OF_LAMBDA)
    assert asked(tmp_path) == []


@needs_apt
@pytest.mark.parametrize("suite", ["/", "./"])
@pytest.mark.parametrize(("version", "expected"), [("595.71.05", 0), ("610.57.04", 1)])
def test_a_pin_of_nvidias_by_source_binds_its_repository(
    tmp_path: Path, suite: str, version: str, expected: int
) -> None:
    """The stanza of nvidia-driver-pinning-595.71.05 as published; the repository's newest is pinned or is not."""
    start = f"{apt_lists.LISTS}/{apt_lists.list_name(URL)}_{suite.strip('/')}{'_' * (suite != '/')}"
    put(tmp_path, f"{start}Packages", listed({"nvidia-driver-cuda": "595.58.03-1"}, "nvidia-open"))
    put(tmp_path, f"{apt_sources.DIRECTORY}/a.list", f"deb {URL} {suite}\n")
    stanza = f"Package: cuda-drivers* src:nvidia-open:any\nPin: version {version}-*\nPin-Priority: 1000\n"
    put(tmp_path, f"{PREFERENCES}/nvidia-driver-pin", stanza)
    put_repository(tmp_path, PPA, "jammy", listed({"nvidia-driver-cuda": "999.10"}), OF_PPA)
    assert [source.uri for source in asked(tmp_path)] == [PPA] * expected


@needs_apt
def test_a_list_of_the_archive_without_a_source_is_nothing_that_others_take(tmp_path: Path) -> None:
    put_debian(tmp_path, NEWER)
    for path in (tmp_path / "etc/apt/sources.list.d").iterdir():
        path.unlink()
    put_repository(tmp_path, LAMBDA, "jammy", listed({"nvidia-utils-580": "580.10"}), OF_LAMBDA)
    assert asked(tmp_path) == []


@needs_apt
def test_a_repository_below_the_address_of_nvidias_mirror_is_another(tmp_path: Path) -> None:
    put_repository(tmp_path, f"{URL}more", "jammy", listed({"libnccl2": NEW}), OF_LAMBDA)
    assert [source.uri for source in asked(tmp_path)] == [f"{URL}more"]


@needs_apt
def test_a_repository_beside_nvidias_in_a_stanza_is_seen(tmp_path: Path) -> None:
    put_repository(tmp_path, f"{MIRROR}/.", "/", listed({"libnccl2": NEW}))
    (path,) = (tmp_path / "etc/apt/sources.list.d").iterdir()
    path.unlink()
    stanza = f"Types: deb\nURIs: {URL}\n {MIRROR}\nSuites: ./\n"
    put(tmp_path, f"{apt_sources.DIRECTORY}/both.sources", stanza)
    (source,) = asked(tmp_path)
    assert (source.uri, source.mixed) == (MIRROR, True)


BROKEN = {
    "a malformed source": {"sources.list.d/broken.list": "deb http://broken.example\n"},
    "a malformed stanza": {"sources.list.d/broken.sources": "Types: deb\nnonsense\nURIs\n"},
    "two keys of one repository": {
        f"sources.list.d/{key}.list": f"deb [signed-by=/{key}.gpg] http://broken.example jammy main\n" for key in "ab"
    },
    "a malformed pin": {"preferences.d/broken": "Package: *\nPin: release a=broken\nPin-Priority: high\n"},
}


@needs_apt
@pytest.mark.parametrize("broken", BROKEN.values(), ids=list(BROKEN))
def test_what_apt_does_not_read_is_an_error_that_names_it(tmp_path: Path, broken: dict[str, str]) -> None:
    put_repository(tmp_path, LAMBDA, "jammy", listed({"libnccl2": NEW}), OF_LAMBDA)
    for name, text in broken.items():
        put(tmp_path, f"/etc/apt/{name}", text)
    with pytest.raises(ValueError, match=r"apt-cache policy: exit 100: E: .*") as error:
        asked(tmp_path)
    named = [f"/etc/apt/{name}" for name in broken if name.startswith("sources.list.d/broken")]
    assert all(path in str(error.value) for path in named), error.value


@needs_apt
def test_a_file_with_other_repositories_and_a_password_is_found(tmp_path: Path) -> None:
    put_repository(tmp_path, MIRROR, "/", listed({"libnccl2": NEW}))
    (path,) = (tmp_path / "etc/apt/sources.list.d").iterdir()
    path.write_text(f"deb {MIRROR.replace('://', '://user:secret@')} /\ndeb http://deb.debian.org/debian sid main\n")
    (source,) = asked(tmp_path)
    assert (source.file, source.mixed) == (f"/etc/apt/sources.list.d/{path.name}", True)
    assert "secret" not in str(source)


def test_apt_is_not_asked_without_a_repository_of_others(tmp_path: Path) -> None:
    def run(*_arguments: Any) -> command.Answer:
        raise AssertionError

    put_debian(tmp_path, {"nvidia-driver-cuda": "535.261.03-1"})
    others = apt_sources.Others(str(tmp_path), "debian", URL, OFFERS, ["*"], run)
    assert others.preferred() == ()
    put_repository(tmp_path, LAMBDA, "jammy", listed({"lambda-stack": "1"}), OF_LAMBDA)
    assert apt_sources.Others(str(tmp_path), "debian", URL, OFFERS, ["*nvidia*"], run).preferred() == ()


def test_what_a_repository_offers_is_known_by_its_lists(tmp_path: Path) -> None:
    put_repository(tmp_path, LAMBDA, "jammy", listed({"libnccl2": OLD, "lambda-stack": "1"}), OF_LAMBDA)
    others = apt_sources.Others(str(tmp_path), "debian", URL, OFFERS, ["lib*"], command.run)
    assert others.offering(LAMBDA + "/") == {"libnccl2"}
    assert others.offering(MIRROR) is None
    architecture = dpkg_info.native_architecture()
    put_repository(
        tmp_path, f"https://nvidia.github.io/deb/{architecture}", "/", listed({"libnvidia-container1": "1.18"})
    )
    others = apt_sources.Others(str(tmp_path), "debian", URL, OFFERS, ["lib*"], command.run)
    assert others.offering("https://nvidia.github.io/deb/$(ARCH)") == {"libnvidia-container1"}


def test_a_list_that_does_not_decompress_has_nothing(tmp_path: Path) -> None:
    put_repository(tmp_path, LAMBDA, "jammy", "", OF_LAMBDA)
    (path,) = (tmp_path / apt_lists.LISTS.lstrip("/")).glob("*_Packages")
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(listed({"libnccl2": NEW}).encode() * 99)[:-9])
    assert asked(tmp_path) == []
