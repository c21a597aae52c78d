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
    *("ada", "grace", "vera", "rubin", "pascal", "maxwell", "will", "may", "mark", "page", "long", "case", "ray"),
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
# A folder of homes, and up to three names below it: home/jdoe, users/j/jd/jdoe, home/CORP/jdoe (override_homedir in
# sssd.conf(5)).
_FOLDER = r"(?:(?:net)?home(?:s|\d{1,4})?|users?|people|staff|students)"
_NAMES = r"(?P<names>[^/\s:,;\"'<>|()\[\]]+(?:/[^/\s:,;\"'<>|()\[\]]+){0,2})"
_HOMES = (
    re.compile(rf"(?<![\w.@+-])(?P<at>(?:/[\w.@+-]{{1,64}}){{0,5}}?/{_FOLDER}/){_NAMES}", re.IGNORECASE),
    re.compile(rf"(?P<at>/(?:home|Users)/){_NAMES}"),
)
# What has no folder of homes, whatever it is called.
_NO_HOMES = re.compile(r"/(?:usr(?!/home/)|etc|lib\w*|run|sys|proc|dev|boot|snap)/")
_ACCOUNT = re.compile(r"[A-Za-z_][\w.@-]{0,63}")  # what a directory may have as a name
_DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)+|[A-Z][A-Z0-9-]+")
_ATOM = re.compile(r"[a-z0-9]+")
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
    """What a host says of itself: its names, its users, and the addresses of its interfaces.

    homes: the paths of its users' homes; system: the accounts of programs, which every host has.
    """

    hosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    system: tuple[str, ...] = ()


class _Words:
    """Names to find in many texts: by their longest run of letters and digits, so that many names cost no more time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_atom: dict[str, list[str]] = {}
        for name in {name.lower() for name in names if _tells(name)}:
            self._by_atom.setdefault(max(_ATOM.findall(name), key=len, default=""), []).append(name)

    def within(self, text: str) -> list[str]:
        """Return the names that a text may have, the longest first."""
        atoms = {"", *_ATOM.findall(text.lower())} & self._by_atom.keys()
        return sorted((name for atom in atoms for name in self._by_atom[atom]), key=lambda name: (-len(name), name))


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
        text = self._words(text, "ADDRESS", _Words(self.identities.addresses))
        # apt-cache policy names the host of a URL again.
        text = self._words(text, "HOST", _Words((*self.identities.hosts, *self.seen.get("HOST", ()))))
        for name in self._home_names.within(text):
            for folder in self._homes[name]:
                text = re.sub(
                    rf"({re.escape(folder)}/)({re.escape(name)})(?![\w.-])", self._home, text, flags=re.IGNORECASE
                )
        for pattern in _HOMES:
            text = pattern.sub(self._below_homes, text)
        return self._words(text, "USER", self._users)

    @functools.cached_property
    def _users(self) -> _Words:
        return _Words(self.identities.users)

    @functools.cached_property
    def _homes(self) -> dict[str, list[str]]:
        """Return the folders of homes by the last part of these, where that is another name than a user's."""
        found: dict[str, list[str]] = {}
        for folder, _slash, name in (home.rpartition("/") for home in self.identities.homes):
            if name.lower() not in self._known:
                found.setdefault(name.lower(), []).append(folder)
        return found

    @functools.cached_property
    def _home_names(self) -> _Words:
        return _Words(self._homes)

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

    def _home(self, match: re.Match[str]) -> str:
        return match[1] + self._user(match[2])

    def _below_homes(self, match: re.Match[str]) -> str:
        """Return a folder of homes with the user below it masked, and the domain above the user."""
        names, place = match["names"].split("/"), 0
        if _NO_HOMES.match(match["at"]) or names[0].lower() in self.identities.system or _IS_MASK.fullmatch(names[0]):
            return match[0]
        if len(names) > 1 and _DOMAIN.fullmatch(names[0]) and names[0].lower() not in self._known:
            names[0], place = self.value("HOST", names[0].lower()), 1
        while place + 1 < len(names) and _is_above(names[place], names[place + 1]):
            place += 1
        names[place] = self._user(names[place])
        return match["at"] + "/".join(names)

    def _user(self, name: str) -> str:
        is_of_a_program = name.lower() in self.identities.system or _IS_MASK.fullmatch(name)
        return name if is_of_a_program else self.value("USER", name.lower())

    @functools.cached_property
    def _known(self) -> set[str]:
        return {name.lower() for name in self.identities.users}

    def _words(self, text: str, kind: str, words: _Words) -> str:
        for word in words.within(text):
            text = _word_pattern(word, kind).sub(functools.partial(self._word, kind, word), text)
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


@functools.lru_cache(maxsize=4096)
def _word_pattern(word: str, kind: str) -> re.Pattern[str]:
    r"""Return the expression of a name as a word; of a user with the short name of a domain, as in CORP\\jdoe."""
    # A name that is like no other word is one beside a hyphen, too, as in HOST-vg; LVM doubles its hyphens.
    beside = "" if re.search(r"[\d-]", word) else "-"
    name = re.escape(word).replace(r"\-", "--?")
    start = rf"(?<![a-z0-9.{beside}])"
    if kind == "USER":
        start = rf"(?:(?<![\w.\\-])[\w-]{{2,15}}\\{{1,2}}|{start})"
    return re.compile(rf"{start}{name}(?![a-z0-9{beside}]|\.\w)", re.IGNORECASE)


def homes_in(text: str) -> set[str]:
    """Return the names below folders of homes that may be those of accounts, of which the host can be asked."""
    matches = (match for pattern in _HOMES for match in pattern.finditer(text) if not _NO_HOMES.match(match["at"]))
    names = (name for match in matches for name in match["names"].split("/"))
    return {name for name in names if _tells(name) and _ACCOUNT.fullmatch(name)}


def _is_above(name: str, following: str) -> bool:
    """Return whether a folder below one of homes is no home: another such folder, or the first letters of a user."""
    is_of_letters = len(name) <= 2 and following.lower().startswith((name.lower(), "user-"))
    return is_of_letters or re.fullmatch(_FOLDER, name, re.IGNORECASE) is not None


def _tells(word: str) -> bool:
    """Return whether a name tells one host or user from another, and is no word of packages and messages."""
    return len(word) > 2 and word.lower() not in _COMMON and not _PRODUCT.fullmatch(word)
