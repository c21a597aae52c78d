"""What script/capture reads of a host: output of programs, files, and our probe. Changes nothing."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils import probe as host_probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command, files
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.capture_command.masking import Identities, Mask
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import probe_options
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog

SCHEMA = 1
_TIMEOUT = 90.0  # seconds for a program; nvidia-smi takes 30 with eight GPUs without persistence mode
_MOST_LINES = 4000
_KERNEL_WORDS = "NVRM|nvidia|Xid|nouveau|nova_core|SXid|fabric|mlx5|vfio|Secure boot|lockdown"
_MODULES = re.compile(r"^(nvidia|nouveau|nova|mlx5|ib_|vfio|gdrdrv|drm)\w*")
_USERS_FROM = 1000  # the first uid of people


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


def captured(catalog: Catalog, repositories: dict[str, Any], root: str = "/", run: Run = command.run) -> dict[str, Any]:
    """Return the content of the file: `probe`, `documents` by name, and how much was masked, by kind.

    repositories: the URL of NVIDIA's repository by distribution id.
    """
    mask = Mask(identities(root, run))
    documents = {document.name: _read(document, mask, root, run) for document in listed(catalog)}
    options = host_probe.Options(repositories=repositories, kernel_header_offers=True, **probe_options(catalog))
    probed = _without_people(to_json(host_probe.probe(root, options, run)), mask)
    probed = mask.data(probed)
    return {"capture": SCHEMA, "masked": mask.counts, "probe": probed, "documents": documents}


def identities(root: str, run: Run) -> Identities:
    """Return the names, users and addresses of a host."""
    names = [files.read_text(root, path) or "" for path in ("/proc/sys/kernel/hostname", "/etc/hostname")]
    hosts = {part for name in names for part in (name.strip(), name.strip().partition(".")[0])}
    for line in (files.read_text(root, "/etc/hosts") or "").splitlines():
        address, *known = line.partition("#")[0].split() or [""]
        if address.startswith("127.0.1.") or hosts & set(known):  # Debian's line of the host's own names
            hosts |= {part for name in known for part in (name, name.partition(".")[0])}
    users = []
    for line in (files.read_text(root, "/etc/passwd") or "").splitlines():
        name, _password, uid, *_rest = [*line.split(":"), "", ""]
        users += [name] if uid.isdigit() and _USERS_FROM <= int(uid) < 65534 else []
    answer = command.ask(run, ["ip", "-oneline", "address"], _TIMEOUT)
    found = re.findall(r"\binet6? ([0-9a-f.:]+)", answer.output)
    return Identities(tuple(hosts - {"", "localhost"}), tuple(users), tuple(a for a in found if not _is_local(a)))


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True


def _read(document: Document, mask: Mask, root: str, run: Run) -> dict[str, Any]:
    """Return a document for the file: its lines, or why there are none; the status of a program that failed."""
    if document.path:
        try:
            text = files.read_text(root, document.path)
        except OSError as error:
            return {"problem": error.strerror}
        return {"problem": "is not there"} if text is None else {"lines": _lines(document, text, mask)}
    answer = command.ask(run, list(document.argv), _TIMEOUT)
    text = answer.output or answer.text()
    found: dict[str, Any] = {"lines": _lines(document, text, mask)}
    return found if answer.exit_code == 0 else {"status": answer.exit_code, **found}


def _lines(document: Document, text: str, mask: Mask) -> list[str]:
    """Return the masked lines that are kept, the last ones of too many."""
    lines = mask.text(text, addresses=document.addresses).splitlines()
    kept = [line for line in lines if document.keep is None or document.keep.search(line)]
    left_out = len(kept) - _MOST_LINES
    return kept if left_out <= 0 else [f"({left_out} earlier lines are left out)", *kept[-_MOST_LINES:]]


def _without_people(probed: dict[str, Any], mask: Mask) -> dict[str, Any]:
    """Return a probe whose names of programs, commands and users are masked as a whole."""
    for process in probed.get("gpu_processes") or []:
        for field in ("name", "program"):
            process[field] = mask.value("PROCESS", str(process.get(field) or ""))
    for lock in (probed.get("package_manager") or {}).get("locks") or []:
        lock["command"] = mask.value("PROCESS", str(lock.get("command") or ""))
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
