"""Mask what tells whose host it is, in text and in data: who, where, which machine, and what runs on it.

Equal values get equal masks, so that what belongs together still does, and a mask has the form of what it stands for
where programs read that. Versions, PCI ids and addresses, and the zero UUID (which means "none") stay.
"""

from __future__ import annotations

import dataclasses
import functools
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

# Whose servers everybody may know: these archives decide what a host is offered.
_PUBLIC = (
    *("nvidia.com", "nvidia.cn", "ubuntu.com", "debian.org", "launchpad.net", "launchpadcontent.net", "canonical.com"),
    *("kernel.org", "docker.com", "github.com", "github.io", "microsoft.com", "lambdalabs.com", "googleapis.com"),
    *("proxmox.com", "pypi.org", "intel.com", "mellanox.com", "example.org", "example.com"),
)
# Names that images give to everybody, and that are words of other names, too.
_COMMON = {
    *("ubuntu", "debian", "root", "admin", "user", "nvidia", "cuda", "gpu", "linux", "localhost", "host", "test"),
    *("kernel", "driver", "server", "desktop", "cloud", "nobody", "docker", "slurm", "lab", "azureuser", "ec2-user"),
    *("dev", "open", "generic", "data", "max", "common", "utils", "compute", "main", "toolkit", "headless", "opc"),
    *("focal", "jammy", "noble", "bookworm", "trixie", "dgx", "hgx", "tesla", "hopper", "ampere", "blackwell"),
}
_PRODUCT = re.compile(r"(?:rtx|gtx)?-?[a-z]{0,2}\d{2,4}[a-z]{0,2}", re.IGNORECASE)  # H100, as some call their hosts
_UUID = re.compile(r"\b(?!0{8}-0{4}-0{4}-0{4}-0{12}\b)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_IS_MASK = re.compile(r"[A-Z]+-\d+")
_NOTHING = ("N/A", "[N/A]", "Unknown", "None", "")
_HARDWARE_ADDRESS = re.compile(r"(?<![\w:])[0-9a-f]{2}(?::[0-9a-f]{2}){5,19}(?![\w:])", re.IGNORECASE)
_GUID = re.compile(r"(?<![\w:])[0-9a-f]{4}(?::[0-9a-f]{4}){3}(?![\w:])", re.IGNORECASE)
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-f]{0,4}(?::[0-9a-f]{0,4}){2,7}(?![\w:.])", re.IGNORECASE)
_IPV4 = re.compile(r"(?<![\w.-])(?:\d{1,3}\.){3}\d{1,3}(?![\w.-])")
_URL = re.compile(
    r"(?P<scheme>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://)(?P<login>[^/\s@\"']+@)?(?P<host>\[[^\]\s]+\]|[^/\s:?#\"'<>,;)]+)"
)
_QUERY = re.compile(r"((?<![a-z0-9+.-])[a-z][a-z0-9+.-]{0,20}://[^\s?\"'<>]+\?)([^\s\"'<>]+)", re.IGNORECASE)
_MAIL = re.compile(r"(?<![/\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_HOME = re.compile(r"(/home/|/export/home/|/Users/)([^/\s:\"']+)")
_SECRETS = r"(?<![a-z])(?:\w{0,30}_)?(?:password|passwd|pass|passphrase|psk|secret|token|auth|api_?key|key)"
# What a name before it tells: (kind, expression with the name as its first group and the value as its second).
_NAMED = (
    ("SERIAL", re.compile(r"(?im)(\bserial\b[^:\n<]{0,40}:[ \t]*)(\S[^\n]*?)[ \t]*$")),
    ("SERIAL", re.compile(r"(?i)(\bserial number is )([\w-]+)")),
    ("SERIAL", re.compile(r"(?i)(\bis on board )([\w-]+)")),
    ("SERIAL", re.compile(r"(?m)(^\s*\[(?:V[0-9A-Z]|YA|SN)\] [^:\n]{1,60}: )(\S[^\n]*)$")),
    ("ADDRESS", re.compile(r"(?i)(fabric[ _]guid\s*[:>] ?)(0x[0-9a-f]+)")),
    ("ADDRESS", re.compile(r"(?i)(\bBOOTIF=)([0-9a-f]{2}(?:-[0-9a-f]{2}){6})")),
    ("HOST", re.compile(r"(?i)(\bhostname=)([^\s\"']+)")),
    ("HOST", re.compile(r"(?i)(\(root@)([\w.-]+)(?=[ )])")),
    ("HOST", re.compile(r"(?i)(\bip=[^:\s]*(?::[^:\s]*){3}:)([^:\s]+)")),
    ("HOST", re.compile(r"(?i)(\biqn\.)([\w.:-]+)")),
    ("SERIAL", re.compile(r"(?i)(<\w*serial\w*>)([^<\n]+)")),
    ("SERIAL", re.compile(r"(?i)(\bserial\s?number[:=]+ ?)([\w-]+)")),
    ("SERIAL", re.compile(r"(?i)(\bDevice Serial Number )([0-9a-f-]+)")),
    ("SERIAL", re.compile(r"(?i)((?:<(?:gpu_)?pdi>|\bPDI\s*: ?))(0x[0-9a-f]+)")),
    ("SECRET", re.compile(r"(?i)(\bpassword_pbkdf2\s+\S+\s+)(\S+)")),
    ("SECRET", re.compile(r"(?im)(^\s*password\s+\S+\s+)(\S+)")),
    ("USER", re.compile(r"(?i)(\bsuperusers=[\"']?)([^\"'\n]+)")),
    ("SECRET", re.compile(r"(?i)(" + _SECRETS + r"[\"']?\s?[=:]\s?)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"']+)")),
    ("SECRET", re.compile(r"(?i)(--?" + _SECRETS + r"[ =])([^\s-]\S*)")),
    ("SECRET", re.compile(r"(?i)(\bcryptomount [^\n]{0,200}-p )(\S+)")),
    ("SECRET", re.compile(r"(?i)(\bBearer )(\S+)")),
    ("PROCESS", re.compile(r"(<process_name>)([^<\n]+)")),
    ("PROCESS", re.compile(r"(?m)^(\|\s+\d+\s+\S+\s+\S+\s+\d+\s+[CGM+]+\s+)(\S.*?)(?=\s+(?:\d+MiB|N/A)\s*\|$)")),
    ("PROCESS", re.compile(r"(?m)^(\s{12,}Name\s+: )(\S.*)$")),
    ("PROCESS", re.compile(r"(\bname=)([^,\s\]]+)")),
    ("PROCESS", re.compile(r"(?i)(\bcomm(?:and)?[:=]\s*\"?)([^\"\s]+)")),
    ("PROCESS", re.compile(r"(?m)(?<=[\]:] )()([\w.:/+-]+)(?=\[\d+\]: )")),
)


@dataclasses.dataclass(frozen=True)
class Identities:
    """What a host says of itself: its names, its users, and the addresses of its interfaces."""

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclasses.dataclass
class Mask:
    """Masks, and which values it has masked, by kind; these are never written."""

    identities: Identities = dataclasses.field(default_factory=Identities)
    seen: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many different values were masked, by kind."""
        return {kind.lower(): len(values) for kind, values in sorted(self.seen.items())}

    def data(self, value: Any) -> Any:
        """Return plain data with each text in it masked, keys included; four numbers with dots in it are a version."""
        if isinstance(value, str):
            return self.text(value, addresses=False)
        if isinstance(value, dict):
            return {self.data(str(name)): self.data(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        return value

    def text(self, text: str, *, addresses: bool = True) -> str:
        """Return text masked. addresses: whether four numbers with dots are an address, and no version of cuDNN's."""
        for kind, pattern in _NAMED:
            text = pattern.sub(functools.partial(self._named, kind), text)
        text = _QUERY.sub(functools.partial(self._named, "SECRET"), text)
        text = _URL.sub(self._url, text)
        text = _MAIL.sub(lambda match: self.value("USER", match[0]), text)
        text = _UUID.sub(lambda match: self.value("UUID", match[0].lower()), text)
        text = _HARDWARE_ADDRESS.sub(lambda match: self.value("ADDRESS", match[0].lower()), text)
        text = _GUID.sub(lambda match: self.value("ADDRESS", match[0].lower()), text)
        text = _IPV6.sub(self._address, text)
        if addresses:
            text = _IPV4.sub(self._address, text)
        text = self._words(text, "ADDRESS", self.identities.addresses)
        # apt-cache policy names the host of a URL again.
        text = self._words(text, "HOST", (*self.identities.hosts, *self.seen.get("HOST", ())))
        text = _HOME.sub(lambda match: match[1] + self.value("USER", match[2]), text)
        return self._words(text, "USER", self.identities.users)

    def value(self, kind: str, value: str) -> str:
        """Return the mask of a value; what says that there is none, and a mask, stay."""
        if value.strip() in _NOTHING or _IS_MASK.fullmatch(value):
            return value
        known = self.seen.setdefault(kind, {})
        if value not in known:
            number = len(known) + 1
            known[value] = f"00000000-0000-0000-0000-{number:012d}" if kind == "UUID" else f"{kind}-{number}"
        return known[value]

    def _named(self, kind: str, match: re.Match[str]) -> str:
        return match[1] + self.value(kind, match[2])

    def _words(self, text: str, kind: str, words: Iterable[str]) -> str:
        for word in sorted({word for word in words if _tells(word)}, key=len, reverse=True):
            # A name that is like no other word is one beside a hyphen, too, as in HOST-vg; LVM doubles its hyphens.
            beside = "" if re.search(r"[\d-]", word) else "-"
            name = re.escape(word).replace(r"\-", "--?")
            pattern = re.compile(rf"(?<![a-z0-9.{beside}]){name}(?![a-z0-9{beside}]|\.\w)", re.IGNORECASE)
            text = pattern.sub(functools.partial(self._word, kind, word.lower()), text)
        return text

    def _word(self, kind: str, word: str, _match: re.Match[str]) -> str:
        return self.value(kind, word)

    def _url(self, match: re.Match[str]) -> str:
        login, host = match["login"] or "", match["host"]
        if login:
            login = self.value("SECRET", login.rstrip("@")) + "@"
        is_public = bool(_IS_MASK.fullmatch(host)) or any(
            host.lower() == name or host.lower().endswith("." + name) for name in _PUBLIC
        )
        return match["scheme"] + login + (host if is_public else self.value("HOST", host.lower()))

    def _address(self, match: re.Match[str]) -> str:
        try:
            found = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if found.is_unspecified or found.is_loopback:
            return match[0]
        return self.value("ADDRESS", match[0].lower())


def _tells(word: str) -> bool:
    """Return whether a name tells one host or user from another, and is no word of packages and messages."""
    return len(word) > 2 and word.lower() not in _COMMON and not _PRODUCT.fullmatch(word)
