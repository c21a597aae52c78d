"""What script/capture reads of a host: output of programs, files, and our probe. Changes nothing."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils import probe_start
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.host import os_release
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_sources
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command.masking import Identities, Mask, homes_in
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.leftovers import OWN_SOURCES

SCHEMA = 1
_TIMEOUT = 90.0  # seconds for a program; nvidia-smi takes 30 with eight GPUs without persistence mode
_MOST_LINES = 4000
_KERNEL_WORDS = "NVRM|nvidia|Xid|nouveau|nova_core|SXid|fabric|mlx5|vfio|Secure boot|lockdown"
_MODULES = re.compile(r"^(nvidia|nouveau|nova|mlx5|ib_|vfio|gdrdrv|drm)\w*")
# The uids of people where /etc/login.defs has none, and the first of directories: SSSD numbers Active Directory's from
# 200000 on. What is between is systemd's and nobody's (systemd.io, "Users, Groups, UIDs and GIDs on systemd Systems").
_UIDS, _FIRST_OF_DIRECTORIES, _NO_UID = (1000, 60000), 65536, 2**32 - 2
_DIRECTORY_TIMEOUT = 20.0  # seconds for a directory's server; getent waits for one that is away
_MOST_NAMES = 500  # that the host is asked for at once
# Below these a user's home is that of a program, and its name one that others need.
_OF_PROGRAMS = re.compile(r"/(?:(?:usr|etc|var|opt|run|proc|sys|dev|tmp|boot|s?bin|lib\w*)(?:/.*)?|[^/]*)")


@dataclasses.dataclass(frozen=True)
class Document:
    """The output of a program or a file.

    addresses: whether four numbers with dots in it are an address, and no version. keep: the lines to keep, None: all.
    """

    argv: tuple[str, ...] = ()
    path: str = ""
    addresses: bool = False
    keep: re.Pattern[str] | None = None

    @property
    def name(self) -> str:
        """How the file calls it."""
        return self.path or " ".join(self.argv)


def listed(catalog: Catalog) -> tuple[Document, ...]:
    """Return what is read; catalog: names the packages."""
    globs = sorted({*probe_options(catalog)["package_patterns"], "linux-image-*", "linux-headers-*", "dkms"})
    shown = "${db:Status-Abbrev} ${Package}:${Architecture} ${Version}\\n"
    return (
        Document(("nvidia-smi",)),
        Document(("nvidia-smi", "-q")),
        Document(("nvidia-smi", "-q", "-x")),
        Document(("nvidia-smi", "topo", "-m")),
        Document(("nvidia-smi", "nvlink", "--status")),
        Document(("lspci", "-nn")),
        Document(("lspci", "-nnvv", "-d", "10de:")),
        Document(("dpkg-query", "--show", f"--showformat={shown}", *globs)),
        Document(("apt-mark", "showhold")),
        Document(("apt-cache", "policy"), addresses=True),
        Document(
            ("journalctl", "--dmesg", "--boot", "--no-hostname", "--output=short-monotonic", "--quiet"),
            addresses=True,
            keep=re.compile(_KERNEL_WORDS, re.IGNORECASE),
        ),
        Document(("dkms", "status")),
        Document(("modinfo", "nvidia")),
        Document(
            (
                *("systemctl", "show", "nvidia-persistenced.service", "nvidia-fabricmanager.service"),
                "--property=Id,LoadState,ActiveState,SubState,UnitFileState,FragmentPath,DropInPaths",
            )
        ),
        Document(("mokutil", "--sb-state")),
        Document(path="/etc/os-release"),
        Document(path="/proc/driver/nvidia/version"),
        Document(path="/proc/cmdline", addresses=True),
        Document(path="/proc/modules", keep=_MODULES),
        Document(path="/etc/default/grub", addresses=True),
        Document(path="/boot/grub/grub.cfg", addresses=True),
    )


def captured(
    catalog: Catalog,
    repositories: dict[str, str],
    root: str = "/",
    run: Run = command.run,
    is_asked: bool = False,
) -> dict[str, Any]:
    """Return the content of the file: `probe`, `documents` by name, and how much was masked, by kind.

    repositories: the URL of NVIDIA's repository by distribution id. is_asked: whether the user named it; else it is
    read where the host has it, which may be a mirror.
    """
    read = [(document, _read(document, root, run)) for document in listed(catalog)]
    options = probe_start.Options(
        repository_url=None if is_asked else configured_repository(root, repositories),
        repositories=repositories,
        kernel_header_offers=True,
        **probe_options(catalog),
    )
    probed = urls.without_credentials(to_json(host_probe.probe(root, options, run)))  # as the module gpu_probe
    texts = [*(text for _each, (text, _about) in read), json.dumps(probed)]
    mask = Mask(_with_users(identities(root, run), texts, _uids(root), run))
    documents = {document.name: _document(document, text, about, mask) for document, (text, about) in read}
    probed = mask.data(_without_people(probed, mask))
    return {"capture": SCHEMA, "masked": mask.counts, "probe": probed, "documents": documents}


def configured_repository(root: str, repositories: dict[str, str]) -> str | None:
    """Return the URL of the repository that gpuhost has configured on a host, else that of a mirror beside no NVIDIA's.

    Mirrors have the directories of NVIDIA's repository, as gpu_stack_repository_url expects. None without one.
    """
    try:
        distribution = os_release.read(root)
        entries = apt_sources.all_entries(root)
    except (OSError, ValueError):  # the probe says what cannot be read
        return None
    nvidias = repositories.get(distribution.id if distribution else "", "").rstrip("/")
    flat = [entry for entry in entries if entry.suite.strip("./") == ""]
    found = [entry.uri for entry in flat if entry.uri.rstrip("/").split("/")[-2:] == nvidias.split("/")[-2:]]
    ours = [entry.uri for entry in flat if entry.file in OWN_SOURCES and entry.uri in found]
    is_nvidias = nvidias in [uri.rstrip("/") for uri in found]
    return next(iter(ours or ([] if is_nvidias else found)), None)


def identities(root: str, run: Run) -> Identities:
    """Return the names, users and addresses of a host."""
    names = [files.read_text(root, path) or "" for path in ("/proc/sys/kernel/hostname", "/etc/hostname")]
    hosts = {part for name in names for part in (name.strip(), name.strip().partition(".")[0])}
    for line in (files.read_text(root, "/etc/hosts") or "").splitlines():
        address, *known = line.partition("#")[0].split() or [""]
        if address.startswith("127.0.1.") or hosts & set(known):  # Debian's line of the host's own names
            hosts |= {part for name in known for part in (name, name.partition(".")[0])}
    answer = command.ask(run, ["getent", "passwd"], _DIRECTORY_TIMEOUT)
    users, homes, system = _accounts((files.read_text(root, "/etc/passwd") or "") + "\n" + answer.output, _uids(root))
    answer = command.ask(run, ["ip", "-oneline", "address"], _TIMEOUT)
    found = re.findall(r"\binet6? ([0-9a-f.:]+)", answer.output)
    addresses = tuple(address for address in found if not _is_local(address))
    return Identities(tuple(hosts - {"", "localhost"}), users, addresses, homes, system)


def _uids(root: str) -> tuple[int, int]:
    """Return the first and the last uid that this host gives to people: login.defs(5)."""
    text = files.read_text(root, "/etc/login.defs") or ""
    found = dict(re.findall(r"^[ \t]*(UID_MIN|UID_MAX)[ \t]+(\d+)", text, re.MULTILINE))
    return int(found.get("UID_MIN", _UIDS[0])), int(found.get("UID_MAX", _UIDS[1]))


def _accounts(text: str, uids: tuple[int, int]) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    r"""Return the names and homes of people, and the names of all other accounts, of lines as in passwd(5).

    A directory's names may have a domain, jdoe@corp.net and CORP\jdoe: they are there without it, too.
    """
    users, homes, system = list[str](), list[str](), list[str]()
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) < 7 or not fields[2].isdigit():
            continue
        name, uid, home = fields[0], int(fields[2]), fields[5].rstrip("/")
        if uids[0] <= uid <= uids[1] or _FIRST_OF_DIRECTORIES <= uid < _NO_UID:
            users += [name, name.partition("@")[0].rpartition("\\")[2]]
            homes += [home] if home and not _OF_PROGRAMS.fullmatch(home) else []
        else:
            system.append(name)
    return tuple(dict.fromkeys(users)), tuple(dict.fromkeys(homes)), tuple(dict.fromkeys(system))


def _with_users(known: Identities, texts: list[str], uids: tuple[int, int], run: Run) -> Identities:
    """Return the identities with the users whose homes are in texts: a directory need not list all that it has.

    The host is asked for them by name, as for a login; what is nobody's is a folder.
    """
    names = set().union(*map(homes_in, texts)) - {*known.users, *known.system}
    if not names:
        return known
    answer = command.ask(run, ["getent", "passwd", *sorted(names)[:_MOST_NAMES]], _DIRECTORY_TIMEOUT)
    users, homes, system = _accounts(answer.output, uids)
    return dataclasses.replace(
        known,
        users=tuple(dict.fromkeys((*known.users, *users))),
        homes=tuple(dict.fromkeys((*known.homes, *homes))),
        system=(*known.system, *system),
    )


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def _read(document: Document, root: str, run: Run) -> tuple[str, dict[str, Any]]:
    """Return the text of a document, and what else there is to say: why there is none, the status of a program."""
    if document.path:
        try:
            text = files.read_text(root, document.path)
        except OSError as error:
            return "", {"problem": error.strerror}
        return (text, {}) if text is not None else ("", {"problem": "is not there"})
    answer = command.ask(run, list(document.argv), _TIMEOUT)
    return answer.output or answer.text(), {"status": answer.exit_code} if answer.exit_code else {}


def _document(document: Document, text: str, about: dict[str, Any], mask: Mask) -> dict[str, Any]:
    """Return a document for the file: the masked lines that are kept, the last ones of too many."""
    if "problem" in about:
        return about
    lines = mask.text(text, addresses=document.addresses).splitlines()
    kept = [line for line in lines if document.keep is None or document.keep.search(line)]
    left_out = len(kept) - _MOST_LINES
    shown = kept if left_out <= 0 else [f"({left_out} earlier lines are left out)", *kept[-_MOST_LINES:]]
    return {**about, "lines": shown}


def _without_people(probed: dict[str, Any], mask: Mask) -> dict[str, Any]:
    """Return a probe whose names of programs, commands and users are masked as a whole."""
    for process in probed.get("gpu_processes") or []:
        for field in ("name", "program"):
            process[field] = mask.value("PROCESS", str(process.get(field) or ""))
    for lock in (probed.get("package_manager") or {}).get("locks") or []:
        lock["command"] = mask.value("PROCESS", str(lock.get("command") or ""))
    if machine := probed.get("machine"):
        machine["serial"] = mask.value("SERIAL", machine["serial"])
    # Errors of programs, which name hosts and addresses as they like.
    if (probed.get("repository") or {}).get("error"):
        probed["repository"]["error"] = mask.text(probed["repository"]["error"])
    probed["errors"] = [mask.text(error) for error in probed["errors"]]
    pending, verified = probed.get("pending"), probed.get("verified")
    # Of records that no plan depends on, nothing: they have commands, findings, and names of controllers and users.
    return probed | {
        **dict.fromkeys(("run", "applied_plan", "transaction", "last_result")),
        "pending": {"since": pending.get("since", "")} if isinstance(pending, dict) else None,
        "verified": {"at": verified.get("at", "")} if isinstance(verified, dict) else None,
    }
