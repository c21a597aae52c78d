"""What script/capture reads: a host's files and programs with planted values, and the plan that its file gives."""

from __future__ import annotations

import dataclasses
import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, download
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command import documents
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_for_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.module_utils.host_files import listed, put
from tests.unit.plugin_utils.components.test_adoption import host

SECRETS = (
    "hunter2",
    "S4U7R9",
    "dgx-07",
    "corp.net",
    "svc_train",
    "mallory",
    "1654922003211",
    "10.1.2.3",
    "train_secret",
    "5f3c9f2a",
    "achim",
    "mroe",
)
PROJECT = Path(__file__).resolve().parents[4]
OF_580 = (
    *(f"libnvidia-{part}-580" for part in ("compute", "decode", "encode")),
    *("nvidia-utils-580", "nvidia-compute-utils-580", "nvidia-dkms-580-open", "nvidia-persistenced", "nvidia-modprobe"),
)
SMI = "0, NVIDIA H200, GPU-5f3c9f2a-1111-2222-3333-444455556666, 580.126.16, 143771, 9.0, 00000000:05:00.0\n"
LOG = """\
[    1.000000] Linux version 6.8.0 (buildd@corp.net)
[   12.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.126.16
[   13.000000] audit: user mallory
[   13.500000] nvidia: opened by achim and mroe, and by www-data
[   13.600000] nvidia: /nfs/users/mroe/a.out
[   14.000000] NVRM: Xid (PCI:0000:05:00): 31, pid=4242, name=train_secret, Ch 00000010
"""


def run(argv: list[str], timeout: float, env: Any = None, cwd: Any = None, stdin: bytes = b"") -> command.Answer:
    """Answer for the programs of a host."""
    if argv[0] == "nvidia-smi" and any("query-gpu" in word for word in argv):
        return command.Answer(0, SMI.encode(), b"")
    if argv[:2] == ["getent", "passwd"]:
        return passwd(argv[2:])
    known = {
        "nvidia-smi -q": "    Serial Number                         : 1654922003211\n",
        "ip": "2: eth0    inet 10.1.2.3/24 brd 10.1.2.255 scope global eth0\n",
        "apt-cache policy": " 500 http://svc_train:hunter2@mirror.corp.net/ubuntu noble/main amd64 Packages\n",
        "journalctl": LOG,
        "lspci": "05:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H200 SXM 141GB] [10de:2335] (rev a1)\n",
        "dkms": "nvidia/580.126.16, 6.8.0-51-generic, x86_64: installed\n",
    }
    text = next((text for name, text in known.items() if " ".join(argv).startswith(name)), None)
    return (
        command.Answer(127, b"", f"{argv[0]}: No such file".encode())
        if text is None
        else command.Answer(0, text.encode(), b"")
    )


def passwd(names: list[str]) -> command.Answer:
    """Answer as glibc's getent with SSSD, which lists the users that it has read, and looks the others up by name."""
    accounts = {
        "root": "root:x:0:0::/root:/bin/sh",
        "achim": "achim:*:10001:10001::/data/home/achim:/bin/bash",
        "mroe": "mroe:*:1500000123:1500000123:M. Roe:/nfs/users/mroe:/bin/bash",
    }
    found = [accounts[name] for name in names or ("root", "achim") if name in accounts]
    return command.Answer(2 if len(found) < len(names) else 0, "\n".join([*found, ""]).encode(), b"")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    host("nvidia-guide", tmp_path)
    put(tmp_path, "/etc/hostname", "dgx-07\n")
    put(tmp_path, "/proc/sys/kernel/hostname", "dgx-07\n")
    put(tmp_path, "/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 dgx-07.corp.net dgx-07\n")
    put(tmp_path, "/etc/passwd", "root:x:0:0::/root:/bin/sh\nsvc_train:x:1001:1001::/home/mallory:/bin/sh\n")
    put(tmp_path, "/sys/class/dmi/id/product_serial", "S4U7R9\n")
    put(tmp_path, "/proc/cmdline", "root=UUID=5f3c9f2a-1111-2222-3333-444455556666 ip=10.1.2.3 token=hunter2 quiet\n")
    put(tmp_path, "/etc/default/grub", 'GRUB_CMDLINE_LINUX="console=tty0" # dgx-07\n')
    put(tmp_path, "/home/mallory/bin/python3.12", "#!/bin/sh\n")
    return tmp_path


def captured(root: Path) -> dict[str, Any]:
    found = documents.captured(frozen_catalog(), {}, str(root), run)
    read: dict[str, Any] = json.loads(json.dumps(found))
    return read


def test_no_planted_value_is_in_the_file(root: Path) -> None:
    found = captured(root)
    text = json.dumps(found)
    assert [secret for secret in SECRETS if secret in text] == []
    assert {"serial", "uuid", "host", "user", "address", "process", "secret"} <= found["masked"].keys()


def test_what_was_read_is_there_and_what_was_not_has_its_reason(root: Path) -> None:
    found = captured(root)["documents"]
    assert found["lspci -nn"]["lines"][0].startswith("05:00.0 3D controller [0302]: NVIDIA")
    (log,) = [document for name, document in found.items() if name.startswith("journalctl")]
    assert [line[:14] for line in log["lines"]] == [f"[   {at}00000]" for at in ("12.0", "13.5", "13.6", "14.0")], (
        "other lines are nobody's business"
    )
    assert found["/proc/cmdline"]["lines"][0].endswith(" quiet")
    assert found["/boot/grub/grub.cfg"] == {"problem": "is not there"}
    assert found["mokutil --sb-state"]["status"] == 127


def test_the_plan_of_the_file_is_that_of_the_host(root: Path) -> None:
    options = host_probe.Options(kernel_header_offers=True, **probe_options(frozen_catalog()))
    whole = to_json(host_probe.probe(str(root), options, run))
    plans = [
        plan_for_probe(Probe.from_json(found), {"tensorflow": "none", "adopt": adopt}, frozen_catalog())
        for found in (whole, captured(root)["probe"])
        for adopt in ("false", "true")
    ]
    assert plans[0].components == plans[2].components
    assert plans[1].components == plans[3].components
    assert plans[1].components["cudnn"], "a version with four numbers is no address"
    assert plans[0].problems == plans[2].problems


# A mirror ------------------------------------------------------------------------------------------------------------

NVIDIAS = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
MIRROR = "http://mirror.corp.net/cuda/repos/ubuntu2404/x86_64/"
OWN = "etc/apt/sources.list.d/nvidia-cuda.sources"
NVIDIA = f"deb {NVIDIAS} /\n"
CORP = f"deb [signed-by=/k.gpg] {MIRROR} /\n"
LOGIN = MIRROR.replace("//", "//svc_train:hunter2@")


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({}, None),
        ({"etc/apt/sources.list": NVIDIA}, None),
        ({"etc/apt/sources.list.d/corp.list": CORP}, MIRROR),
        ({"etc/apt/sources.list.d/corp.list": f"deb {MIRROR.rstrip('/')} ./\n"}, MIRROR.rstrip("/")),
        ({"etc/apt/sources.list.d/corp.list": f"deb {LOGIN} /\n"}, LOGIN),
        ({"etc/apt/sources.list.d/corp.list": CORP + NVIDIA}, None),
        ({OWN: f"Types: deb\nURIs: {MIRROR}\nSuites: /\n", "etc/apt/sources.list": NVIDIA}, MIRROR),
        ({OWN: f"Types: deb\nURIs: {NVIDIAS}\nSuites: /\n", "etc/apt/sources.list.d/corp.list": CORP}, NVIDIAS),
        ({"etc/apt/sources.list": CORP.replace("2404", "2204")}, None),
        ({"etc/apt/sources.list": "deb file:///var/cuda-repo-ubuntu2404-13-2-local /\n"}, None),
        ({"etc/apt/sources.list": f"deb {MIRROR} noble main\n"}, None),
    ],
    ids=[
        "none", "NVIDIA's", "a mirror", "its flat form", "with a login", "both", "gpuhost's", "gpuhost's is NVIDIA's",
        "of another release", "a local installer", "not flat",
    ],
)  # fmt: skip
def test_the_repository_is_read_where_the_host_has_it(
    tmp_path: Path, sources: dict[str, str], expected: str | None
) -> None:
    put(tmp_path, "/etc/os-release", 'ID=ubuntu\nVERSION_ID="24.04"\n')
    for path, text in sources.items():
        put(tmp_path, f"/{path}", text)
    assert documents.configured_repository(str(tmp_path), {"ubuntu-24.04": NVIDIAS}) == expected
    assert documents.configured_repository(str(tmp_path), {}) is None


@pytest.mark.skipif(not Path(download.APT_HELPER).exists(), reason="needs apt-helper")
@pytest.mark.parametrize("is_asked", [True, False], ids=["by the option", "by the host's source"])
def test_the_plan_of_the_file_is_that_of_a_host_with_a_mirror(root: Path, tmp_path: Path, is_asked: bool) -> None:
    """A mirror that keeps one driver, which is not the newest that NVIDIA has."""
    catalog = load_catalog()
    url = f"file://{tmp_path}/mirror/ubuntu2404/x86_64/"
    packages = dict.fromkeys(OF_580, "580.126.16-1ubuntu1") | {"nvidia-driver-pinning-580": "580-1ubuntu1"}
    folder = tmp_path / "mirror/ubuntu2404/x86_64"
    put(folder, "/Packages.gz", gzip.compress(listed(packages).encode()))
    put(folder, "/InRelease", "Origin: NVIDIA\n-----BEGIN PGP SIGNATURE-----\n")
    if not is_asked:
        put(root, f"/{OWN}", f"Types: deb\nURIs: {url}\nSuites: /\n")

    def with_apt(argv: list[str], *rest: Any, **more: Any) -> command.Answer:
        return (command.run if argv[0] == download.APT_HELPER else run)(argv, *rest, **more)

    there = {"ubuntu-24.04": url if is_asked else NVIDIAS}
    found = json.loads(json.dumps(documents.captured(catalog, there, str(root), with_apt, is_asked=is_asked)))
    assert found["probe"]["repository"]["error"] is None
    assert found["probe"]["repository"]["packages"].keys() == packages.keys()
    options = host_probe.Options(repository_url=url, kernel_header_offers=True, **probe_options(catalog))
    whole = to_json(host_probe.probe(str(root), options, with_apt))
    request = {"cuda": "none", "tensorflow": "none", "driver": "latest"}
    of_host, of_file = (plan_for_probe(Probe.from_json(probed), request, catalog) for probed in (whole, found["probe"]))
    assert of_host.components["driver"].version == "580.126.16"
    assert (of_file.components, of_file.problems) == (of_host.components, of_host.problems)
    path = tmp_path / "capture.json"
    path.write_text(json.dumps(found))
    plan_cli = [str(PROJECT / "script/plan"), "--probe", str(path), "--json"]
    plan_cli += [word for name, value in request.items() for word in ("--request", f"{name}={value}")]
    printed = json.loads(subprocess.run(plan_cli, capture_output=True, text=True).stdout)
    assert printed["components"]["driver"]["version"] == "580.126.16"


def test_a_mirror_with_a_login_is_the_one_of_its_source(root: Path) -> None:
    """As in the probe of a run, which has no logins; nothing answers at the address."""
    put(root, "/etc/apt/sources.list.d/corp.list", f"deb {LOGIN.replace('/cuda', '/nvidia/cuda')} /\n")
    probed = documents.captured(load_catalog(), {"ubuntu-24.04": NVIDIAS}, str(root), run)["probe"]
    (uri,) = [entry["uri"] for entry in probed["repository_files"]["entries"] if "ubuntu2404" in entry["uri"]]
    assert uri == probed["repository"]["url"]
    assert uri.startswith("http://HOST-")


def test_a_long_log_keeps_its_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_MOST_LINES", 1)
    (log,) = [each for name, each in captured(root)["documents"].items() if name.startswith("journalctl")]
    assert log["lines"][0] == "(3 earlier lines are left out)"
    assert log["lines"][1].startswith("[   14.000000] NVRM: Xid")


def test_a_host_says_who_it_is(root: Path) -> None:
    found = documents.identities(str(root), run)
    assert dataclasses.replace(found, hosts=tuple(sorted(found.hosts))) == documents.Identities(
        ("dgx-07", "dgx-07.corp.net"),
        ("svc_train", "achim"),
        ("10.1.2.3",),
        homes=("/home/mallory", "/data/home/achim"),
        system=("root",),
    )


ACCOUNT = "x:*:{}:100::/data/home/x:/bin/sh\n"


@pytest.mark.parametrize(
    ("uid", "limits", "is_a_person"),
    [
        (999, "", False),
        (1000, "", True),
        (60000, "", True),
        (60001, "", False),
        (65534, "", False),
        (4294967294, "", False),
        (1500000123, "", True),  # Active Directory's, as SSSD numbers them
        (600, "UID_MIN 500\n", True),
        (600, "#UID_MIN 500\n", False),
        (4000, "UID_MIN\t\t 5000\n", False),
        (61000, "UID_MAX 61999\n", True),
    ],
)
def test_people_are_those_whose_numbers_the_host_gives_to_people(
    tmp_path: Path, uid: int, limits: str, is_a_person: bool
) -> None:
    put(tmp_path, "/etc/login.defs", limits)
    put(tmp_path, "/etc/passwd", ACCOUNT.format(uid))
    found = documents.identities(str(tmp_path), run)
    assert ("x" in found.users, "x" in found.system) == (is_a_person, not is_a_person)
    assert ("/data/home/x" in found.homes) == is_a_person


@pytest.mark.parametrize("name", ["jdoe@corp.net", "CORP\\jdoe"])
def test_a_name_with_its_domain_is_masked_without_it_too(tmp_path: Path, name: str) -> None:
    put(tmp_path, "/etc/passwd", f"{name}:*:1500000123:100::/home/corp.net/jdoe:/bin/sh\n")
    assert {name, "jdoe"} <= set(documents.identities(str(tmp_path), run).users)


def test_a_name_in_a_home_that_is_nobodys_is_a_word_like_others(root: Path) -> None:
    """The host knows it, the directory's server too; a folder for all beside the homes has no account."""
    put(root, "/proc/cmdline", "x=/nfs/users/shared/x shared=1\n")
    (line,) = captured(root)["documents"]["/proc/cmdline"]["lines"]
    assert line.endswith("/x shared=1")
    assert "shared/x" not in line


def test_people_are_read_where_no_getent_is(root: Path) -> None:
    found = documents.identities(str(root), lambda argv, *_rest, **_more: command.Answer(127, b"", b""))
    assert found.users == ("svc_train",)
