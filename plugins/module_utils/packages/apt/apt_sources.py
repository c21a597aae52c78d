# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read apt's sources and trusted keys, as far as they concern NVIDIA's software. Runs on the managed host.

sources.list(5): one-line entries in *.list, deb822 stanzas in *.sources. Which of several repositories a package would
come from is asked of apt itself (apt_preferences(5)), with lists of the packages in question alone.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import re
import tempfile
import zlib
from dataclasses import replace
from typing import Collection, Mapping, Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.base import download, files, openpgp, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import (
    PreferredSource,
    RepositoryFiles,
    SourceEntry,
    with_other_keys,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import (
    apt_lists,
    apt_output,
    deb822,
    dpkg,
    dpkg_info,
)

ONE_LINE = "/etc/apt/sources.list"
DIRECTORY = "/etc/apt/sources.list.d"
KEYRINGS = ("/etc/apt/trusted.gpg", "/etc/apt/trusted.gpg.d")
PREFERENCES, PREFERENCE_FILES = "/etc/apt/preferences", "/etc/apt/preferences.d"
POLICY_TIMEOUT = 30
NVIDIA_URI_WORDS = ("nvidia", "graphics-drivers")
NVIDIA_KEY_OWNERS = (b"nvidia", b"cudatools")  # in the user ids of NVIDIA's keys
_ORIGIN = re.compile(rb"^Origin: *(.*?)\s*$", re.MULTILINE)
# Of backports and the like, which apt takes nothing from until a pin says so (apt_preferences(5)).
_NOT_AUTOMATIC = re.compile(rb"^NotAutomatic: *yes", re.MULTILINE | re.IGNORECASE)
_ESSENTIAL = re.compile(rb"\nEssential: *yes", re.IGNORECASE)
_LINE = re.compile(r"^(deb|deb-src)\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)")


def read(root: str, repository_url: str | None) -> RepositoryFiles:
    """Return the sources of NVIDIA's software, that of `repository_url` among them, and NVIDIA's keys.

    And those with which apt reads none at all: one repository with several values of Signed-By.
    """
    entries = all_entries(root)
    own = (repository_url or "").rstrip("/")
    refused = set().union(*with_other_keys(entries))
    wanted = [
        e
        for e in entries
        if any(word in e.uri for word in NVIDIA_URI_WORDS) or (own and e.uri.rstrip("/") == own) or e in refused
    ]
    keys, mixed = _keys(root)
    mixed += [entry.file for entry in entries if entry not in wanted]
    concerned = {entry.file for entry in wanted} | set(keys)
    wanted = [replace(entry, keys=_signing_keys(root, entry)) for entry in wanted]
    return RepositoryFiles(tuple(wanted), keys, tuple(sorted(concerned & set(mixed))))


def all_entries(root: str) -> list[SourceEntry]:
    """Return each source of packages that apt reads."""
    entries = parse_list(files.read_text(root, ONE_LINE) or "", ONE_LINE)
    for name in files.names(root, DIRECTORY):
        path = "%s/%s" % (DIRECTORY, name)
        if name.endswith(".list"):
            entries += parse_list(files.read_text(root, path) or "", path)
        elif name.endswith(".sources"):
            entries += parse_sources(files.read_text(root, path) or "", path)
    return entries


def parse_list(text: str, path: str) -> list[SourceEntry]:
    """Return the entries of a one-line file: `deb [signed-by=/key arch=amd64] URI SUITE ...`."""
    found = []
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match and match.group(1) == "deb":
            found.append(_entry(path, match.group(3), match.group(4), _options(match).get("signed-by")))
    return found


def parse_sources(text: str, path: str) -> list[SourceEntry]:
    """Return the entries of a deb822 file, whose Signed-By is a path, fingerprints, or a whole key."""
    found = []
    for fields in deb822.paragraphs(text):
        if "deb" not in fields.get("types", "").split() or apt_lists.is_off(fields.get("enabled", "")):
            continue
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                found.append(_entry(path, uri, suite, fields.get("signed-by")))
    return found


def signed_by(text: str, path: str, position: int) -> str | None:
    """Return the Signed-By of entry number `position` (from 1) in a source file as it is there; None without one."""
    if path.endswith(".sources"):
        return deb822.paragraphs(text)[position - 1].get("signed-by", "").strip() or None
    match = _LINE.match(text.splitlines()[position - 1].strip())
    return _options(match).get("signed-by", "").replace(",", " ") or None if match else None


def _options(match: re.Match[str]) -> dict[str, str]:
    options = dict(option.split("=", 1) for option in (match.group(2) or "").split() if "=" in option)
    return {name.lower(): value for name, value in options.items()}


def _entry(path: str, uri: str, suite: str, signed_by: str | None) -> SourceEntry:
    keys = None
    if signed_by and "BEGIN PGP" in signed_by:
        keys = _keys_within(signed_by)
        signed_by = "a key within the file"
    return SourceEntry(path, uri, suite, signed_by or None, keys=keys)


def _keys_within(text: str) -> tuple[str, ...] | None:
    """Return the fingerprints of an armoured key in a deb822 field, whose empty lines are ` .`."""
    lines = [line.strip() for line in text.splitlines()]
    try:
        found = openpgp.public_keys("\n".join("" if line == "." else line for line in lines).encode())
    except ValueError:
        return None
    return tuple(key.fingerprint for key in found)


def _signing_keys(root: str, entry: SourceEntry) -> tuple[str, ...] | None:
    """Return the fingerprints of the keys that the Signed-By of an entry names; None where these are not known."""
    if entry.keys is not None or not (entry.signed_by or "").startswith("/"):
        return entry.keys
    try:
        found = [openpgp.public_keys(files.read_bytes(root, path) or b"") for path in (entry.signed_by or "").split()]
    except (ValueError, OSError):
        return None
    return tuple(key.fingerprint for keys in found for key in keys)


def _keys(root: str) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return NVIDIA's keys by file, and the files that contain other keys too."""
    keyring, directory = KEYRINGS
    paths = [keyring] + ["%s/%s" % (directory, name) for name in files.names(root, directory)]
    found, mixed = {}, []
    for path in paths:
        try:
            data = files.read_bytes(root, path) if path.endswith((".gpg", ".asc")) else None
            if not data or not _names_nvidia(_plain(data)):
                continue
            all_keys = openpgp.public_keys(data)
            keys = tuple(key.fingerprint for key in all_keys if _names_nvidia(key.raw))
        except (ValueError, OSError):
            continue  # apt ignores such a file too, with a warning
        if keys:
            found[path] = keys
            mixed += [path] if len(keys) < len(all_keys) else []
    return found, mixed


def _plain(data: bytes) -> bytes:
    """Return the packets for a search: parsing Debian's own keys with openpgp.py, checksums included, takes 40 ms."""
    if not openpgp.is_armoured(data):
        return data
    body = data.replace(b"\r", b"").partition(b"\n\n")[2]
    return binascii.a2b_base64(body.partition(b"\n=")[0].partition(b"\n-----END")[0])


def _names_nvidia(packets: bytes) -> bool:
    return any(owner in packets.lower() for owner in NVIDIA_KEY_OWNERS)


# What apt prefers ---------------------------------------------------------------------------------------------------

Rows = Sequence[Mapping[str, str]]  # paragraphs of lists of packages


class Others:
    """The lists of repositories that are neither NVIDIA's, which is planned, nor the distribution's own suites.

    distribution: its name in the Origin of its release files, such as debian. A site's mirror may have its own Origin:
    it is the one that has what is essential on this host, in the installed versions. offers: the versions in NVIDIA's
    repository at `url`, by package; empty where it cannot be read. globs: of the names of the packages that matter.
    """

    def __init__(
        self,
        root: str,
        distribution: str,
        url: str,
        offers: Mapping[str, Sequence[str]],
        globs: Sequence[str],
        run: Run,
    ) -> None:
        self._root, self._url, self._offers, self._run = root, url, offers, run
        self._own = apt_lists.list_name(url) + "_"
        theirs = [base for base in apt_lists.bases(root) if base.replace("_._", "_") != self._own + "Packages"]
        automatic = [base for base in theirs if not _NOT_AUTOMATIC.search(self._release_of(base))]
        self._archive = [base for base in automatic if self._origin(base).startswith(distribution)]
        self._archive += self._mirrors([base for base in automatic if base not in self._archive])
        self._lists = {base: self._rows(base, globs) for base in theirs if base not in self._archive}

    def _mirrors(self, bases: list[str]) -> list[str]:
        """Return those of the lists that are of mirrors of the distribution, with all suites and components."""
        index = deb822.Index(files.read_bytes(self._root, dpkg.STATUS_FILE) or b"")
        essential = {(row["package"], row.get("version", "")) for row in index.containing(_ESSENTIAL)}
        names = sorted({name for name, _version in essential})
        has = {base: {(row["package"], row["version"]) for row in self._rows(base, names)} for base in bases if names}
        found: dict[tuple[str, str], set[tuple[str, str]]] = {}  # what is essential, by address and suite
        for base, pairs in has.items():
            if pairs:
                found.setdefault(_split(base), set()).update(pairs)
        suites = []
        for address, suite in found:
            offered = set().union(*(pairs for (at, _suite), pairs in found.items() if at == address))
            if 2 * len(offered & essential) >= len(essential):
                suites.append((address, suite))
        return [base for base in bases if any(_belongs(_split(base), suite) for suite in suites)]

    def _is_archive(self, entry: SourceEntry) -> bool:
        return any(base.startswith(_start(entry)) for base in self._archive)

    def of_archive(self, names: Sequence[str]) -> dict[str, str]:
        """Return the versions of those packages that apt would take from the distribution's archive, by name."""
        answer = self._run(["apt-cache", "-o", "Dir=%s" % self._root, "policy", *names], POLICY_TIMEOUT)
        found = apt_output.parse_policy(answer.output) if answer.exit_code == 0 else {}
        return {n: best.version for n, best in found.items() if any(map(self._has_in_archive, best.origins))}

    def _has_in_archive(self, origin: tuple[str, str]) -> bool:
        uri, place = origin
        start = "%s_dists_%s_" % (apt_lists.list_name(uri), place.rpartition("/")[0])
        return any(base.startswith(start) for base in self._archive)

    def offering(self, uri: str) -> Collection[str] | None:
        """Return the names of the packages that the repository at `uri` offers, None where apt has no list of it."""
        start = apt_lists.list_name(_as_apt_reads(uri)) + "_"
        found = [rows for base, rows in self._lists.items() if base.startswith(start)]
        return {row["package"] for rows in found for row in rows} if found else None

    def preferred(self) -> tuple[PreferredSource, ...]:
        """Return the sources whose packages apt would take in place of NVIDIA's or the distribution's.

        As if NVIDIA's repository were configured already, and nothing installed.
        """
        names = sorted({row["package"] for rows in self._lists.values() for row in rows})
        archive = {base: self._rows(base, names) for base in self._archive} if names else {}
        theirs = {row["package"] for rows in archive.values() for row in rows}
        contested = [name for name in names if name in theirs or name in self._offers]
        if not contested:
            return ()
        with tempfile.TemporaryDirectory(prefix="gpuhost-apt-") as directory:
            self._lay_out(directory, archive, contested)
            without = self._policy(directory, contested)
            refused = self._refused(directory, [name for name in contested if name not in without])
            self._write_lists(directory, self._lists)
            found = self._policy(directory, contested)
            won = {
                name: best
                for name, best in found.items()
                if (best.version != without[name].version if name in without else name in refused)
            }
            won = {n: best for n, best in won.items() if any(self._has_list(uri) for uri, _place in best.origins)}
            return tuple(self._sources(directory, won, refused)) if won else ()

    def _refused(self, directory: str, names: list[str]) -> dict[str, tuple[str, ...]]:
        """Return which of the packages a negative pin keeps from apt, and the files with it."""
        there = self._policy(directory, names, os.devnull) if names else {}
        alone = {path: self._policy(directory, names, files.under(self._root, path)) for path in self._preferences()}
        return {name: tuple(path for path, found in alone.items() if name not in found) for name in there}

    def _has_list(self, uri: str) -> bool:
        return any(base.startswith(apt_lists.list_name(uri) + "_") for base in self._lists)

    def _sources(
        self, directory: str, won: dict[str, apt_output.Candidate], refused: Mapping[str, tuple[str, ...]]
    ) -> list[PreferredSource]:
        """Return the sources of the packages that they win."""
        entries, names = all_entries(self._root), sorted(won)
        # apt does not say which file of preferences has the record that counts: the one that alone has its effect.
        without = self._policy(directory, names, os.devnull)
        alone = {path: self._policy(directory, names, files.under(self._root, path)) for path in self._preferences()}
        groups: dict[tuple[str, str, int, tuple[str, ...], tuple[str, ...]], dict[str, str]] = {}
        for name, best in won.items():
            origin = next(pair for pair in best.origins if self._has_list(pair[0]))
            pins = tuple(
                path
                for path, found in alone.items()
                if found.get(name) == best and (name not in without or without[name].priority != best.priority)
            )
            groups.setdefault((*origin, best.priority, tuple(pins), refused.get(name, ())), {})[name] = best.version
        result = []
        for (uri, place, priority, pins, away), packages in groups.items():
            entry = next((e for e in entries if _is_at(e, uri, place)), None)
            beside = [e for e in entries if entry and e.file == entry.file]
            others = [e for e in beside if e.uri != (entry or e).uri or self._is_archive(e)]
            file = entry.file if entry else ""
            result.append(PreferredSource(file, uri, place, priority, packages, pins, away, mixed=bool(others)))
        return result

    def _lay_out(self, directory: str, archive: Mapping[str, Rows], contested: Sequence[str]) -> None:
        """Write for apt-cache the sources of the host with NVIDIA's, and the lists of these and of the archive."""
        for name in ("lists/partial", "sources", "preferences"):
            os.makedirs(os.path.join(directory, name))
        by_source = self._by_source(contested)
        own = [
            {"package": n, "version": v, **by_source.get(n, {})}
            for n, versions in self._offers.items()
            for v in versions
        ]
        self._write_lists(directory, {**archive, **({self._own + "Packages": own} if own else {})})
        names = [name for name in files.names(self._root, DIRECTORY) if name.endswith((".list", ".sources"))]
        contents = {"sources.list": self._without_own(ONE_LINE) + "deb [trusted=yes] %s /\n" % self._url}
        contents.update(("sources/" + name, self._without_own("%s/%s" % (DIRECTORY, name))) for name in names)
        for name, content in contents.items():
            with open(os.path.join(directory, name), "w", encoding="utf-8") as stream:
                stream.write(content)

    def _by_source(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the source packages of NVIDIA's packages by name, by which its pinning packages bind them.

        As apt's list has them, which may be older than what the repository offers.
        """
        bases = [base for base in apt_lists.bases(self._root) if base.replace("_._", "_") == self._own + "Packages"]
        rows = [row for base in bases for row in self._rows(base, names)]
        return {row["package"]: {"source": row["source"]} for row in rows if "source" in row}

    def _without_own(self, path: str) -> str:
        """Return a file of sources without NVIDIA's repository: with two values of Signed-By, apt reads no source."""
        text = (files.read_text(self._root, path) or "") if os.path.isfile(files.under(self._root, path)) else ""
        if not path.endswith(".sources"):
            lines = text.splitlines()
            return "".join(line + "\n" for line in lines if not any(map(self._is_own, parse_list(line, path))))
        stanzas = []
        for stanza in deb822.split(text):
            entries = parse_sources(stanza, path)
            kept = [entry for entry in entries if not self._is_own(entry)]
            if len(kept) == len(entries):
                stanzas.append(stanza)
                continue
            for entry in kept:
                fields = dict(deb822.parse(stanza), uris=entry.uri, suites=entry.suite)
                stanzas.append("\n".join("%s: %s" % pair for pair in fields.items()))
        return "\n\n".join([*stanzas, ""])

    def _is_own(self, entry: SourceEntry) -> bool:
        return _start(entry).replace("_._", "_") == self._own  # `deb URL ./` is the same as `deb URL /`

    def _write_lists(self, directory: str, lists: Mapping[str, Rows]) -> None:
        for base, rows in lists.items():
            with open(os.path.join(directory, "lists", base), "w", encoding="utf-8") as stream:
                stream.writelines(map(_paragraph, rows))
            for name, content in self._release(base).items():
                with open(os.path.join(directory, "lists", name), "wb") as release:
                    release.write(content)

    def _policy(self, directory: str, names: list[str], preferences: str = "") -> dict[str, apt_output.Candidate]:
        """Return the candidates with the host's preferences, or with a single file of preferences.

        Raise ValueError if apt does not say, as with a malformed source or preference of the host.
        """
        options = {
            "Dir": self._root,
            "Dir::State::lists": os.path.join(directory, "lists"),
            "Dir::State::status": os.devnull,
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "Dir::Etc::sourcelist": os.path.join(directory, "sources.list"),
            "Dir::Etc::sourceparts": os.path.join(directory, "sources"),
        }
        if preferences:
            options["Dir::Etc::preferences"] = preferences
            options["Dir::Etc::preferencesparts"] = os.path.join(directory, "preferences")
        words = [word for pair in options.items() for word in ("-o", "%s=%s" % pair)]
        answer = self._run(["apt-cache", *words, "policy", *names], POLICY_TIMEOUT)
        if answer.exit_code != 0:
            ending = replace(answer, stdout=b"").ending().replace(directory + "/sources/", DIRECTORY + "/")
            raise ValueError("apt-cache policy: %s" % urls.without_credentials(ending.replace(directory, "/etc/apt")))
        return apt_output.parse_policy(answer.output)

    def _preferences(self) -> list[str]:
        """Return the files of preferences of the host, those first that apt reads first."""
        parts = [n for n in files.names(self._root, PREFERENCE_FILES) if re.fullmatch(r"[\w-]+|[\w.-]+\.pref", n)]
        paths = [PREFERENCES, *("%s/%s" % (PREFERENCE_FILES, name) for name in parts)]
        return [path for path in paths if os.path.isfile(files.under(self._root, path))]

    def _rows(self, base: str, globs: Sequence[str]) -> Rows:
        """Return the paragraphs of a list whose packages match `globs`, without foreign architectures.

        None of a list that does not decompress, as after a power failure.
        """
        try:
            data = apt_lists.cached(self._root, "%s/%s" % (apt_lists.LISTS, base), self._run)
        except (EOFError, zlib.error):
            data = None
        index = deb822.Index(data or b"")
        rows = [row for name in index.names(list(globs)) for row in index.paragraphs(name) if row.get("version")]
        return [row for row in rows if row.get("architecture", "all") in ("all", dpkg_info.native_architecture())]

    def _origin(self, base: str) -> str:
        match = _ORIGIN.search(self._release_of(base))
        return match.group(1).decode("utf-8", "replace").lower() if match else ""

    def _release_of(self, base: str) -> bytes:
        return next(iter(self._release(base).values()), b"")

    def _release(self, base: str) -> dict[str, bytes]:
        """Return the release file of a list by its name; of NVIDIA's repository, if apt has none, the server's."""
        if base == self._own + "Packages":
            for name in [form + kind for form in ("", "._") for kind in apt_lists.RELEASES]:
                content = files.read_bytes(self._root, "%s/%s%s" % (apt_lists.LISTS, self._own, name))
                if content is not None:
                    return {self._own + name.replace("._", ""): content}
            with contextlib.suppress(download.DownloadError):
                timeout = apt_lists.FRESHNESS_TIMEOUT
                return {self._own + "InRelease": apt_lists.server_release(self._url, timeout, self._run)}
            return {}
        kept = [n for n in files.names(self._root, apt_lists.LISTS) if n.endswith(("_InRelease", "_Release"))]
        fitting = [name for name in kept if base.startswith(name.rpartition("_")[0] + "_")]
        for name in sorted(fitting, key=lambda name: -len(name.rpartition("_")[0]))[:1]:
            return {name: files.read_bytes(self._root, "%s/%s" % (apt_lists.LISTS, name)) or b""}
        return {}


def _paragraph(row: Mapping[str, str]) -> str:
    lines = ["%s: %s" % (key.capitalize(), row[key]) for key in ("package", "source", "version") if key in row]
    architecture = row.get("architecture", "all")
    return "\n".join([*lines, "Architecture: %s" % architecture, "Filename: ./none", "", ""])


def _split(base: str) -> tuple[str, str]:
    """Return the address of a list as it is in its name, and the suite, `.` where the repository is flat."""
    address, has_suites, rest = base.rpartition("_dists_")
    return (address, rest.partition("_binary-")[0].rpartition("_")[0]) if has_suites else (base, ".")


def _belongs(place: tuple[str, str], archive: tuple[str, str]) -> bool:
    """Return whether a suite is one of an archive: at its address, or with its name before -security on its host."""
    (address, suite), (at, of) = place, archive
    if address == at:
        return suite == of or suite.startswith(of + "-")
    return address.partition("_")[0] == at.partition("_")[0] and suite.startswith(of + "-")


def _start(entry: SourceEntry) -> str:
    """Return the start of the names of the lists of an entry."""
    uri, suite = _as_apt_reads(entry.uri).rstrip("/"), entry.suite
    flat, parts = suite.endswith("/"), [part for part in suite.split("/") if part]
    return apt_lists.list_name("/".join([uri, *([] if flat else ["dists"]), *parts])) + "_"


def _as_apt_reads(uri: str) -> str:
    return uri.replace("$(ARCH)", dpkg_info.native_architecture())


def _is_at(entry: SourceEntry, uri: str, place: str) -> bool:
    """Return whether apt's words for a source, such as `URI jammy/main`, are those of an entry."""
    scheme, at = entry.uri.partition(":")[0], apt_lists.list_name(_as_apt_reads(entry.uri))
    same = uri.startswith(scheme + ":") and apt_lists.list_name(uri) == at
    suite = entry.suite.strip("/")
    return same and (suite in ("", ".") or (place + "/").startswith(suite + "/"))
