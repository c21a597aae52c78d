# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what an apt repository offers, from apt's lists while they are current, else by HTTP. Runs on the managed host.

The repositories are flat (`deb URL /`), as NVIDIA's are: Packages.gz and InRelease are beside the packages.
"""

from __future__ import annotations

import email.utils
import fnmatch
import gzip
import os
import re
import time
import zlib

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version, download, files, urls
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import KernelOffer
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import Repository
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_sizes, deb822, dpkg_info

LISTS = "/var/lib/apt/lists"
HEADERS, IMAGE = "linux-headers-", "linux-image-"  # how the packages of a kernel are named
QUOTED = '\\|{}[]<>"^~_=!@#$%&*'  # apt's URItoFileName writes these as %xx before "/" becomes "_"
FRESHNESS_TIMEOUT = 20
DOWNLOAD_TIMEOUT = 60
RELEASES = ("InRelease", "Release")
SIGNED = b"-----BEGIN PGP SIGNATURE-----"
FUTURE = 10  # seconds: the default of apt's Acquire::Max-FutureTime
LOCAL = ("file:/", "copy:/")
NO = ("no", "false", "without", "off", "disable", "0")


def parse(data: bytes, globs: list[str], architecture: str) -> dict[str, tuple[str, ...]]:
    """Return the versions in a Packages file by package name, newest first, without foreign architectures."""
    return _offered(deb822.Index(data), globs, architecture)


def _offered(index: deb822.Index, globs: list[str], architecture: str) -> dict[str, tuple[str, ...]]:
    native = dpkg_info.native_architecture(architecture)
    offered: dict[str, tuple[str, ...]] = {}
    for name in index.names(globs):
        rows = [row for row in index.paragraphs(name) if row.get("architecture", native) in (native, "all")]
        versions = [row["version"] for row in rows if row.get("version")]
        if versions:
            offered[name] = tuple(debian_version.newest_first(versions))
    return offered


def is_off(value: str) -> bool:
    """Return whether apt reads a value as a no; what it does not know is a yes where that is the default."""
    return value.lower() in NO


def list_name(url: str) -> str:
    """Return the start of the names under which apt keeps the lists of the repository at `url`."""
    if url.startswith(LOCAL):  # file:/var/x and file:///var/x are the same
        place = "/" + url.partition(":")[2].strip("/")
    else:
        place = url.split("://", 1)[-1].split("@", 1)[-1].rstrip("/")
    quoted = "".join("%%%02x" % ord(c) if c in QUOTED else c for c in place)
    return quoted.replace("/", "_")


def read(
    root: str, url: str, globs: list[str], driver_packages: str, architecture: str, check: bool, run: Run
) -> Repository:
    """Return what a repository offers.

    With `check`, apt's lists are used only while the server's release file is the one that apt has.
    """
    shown, unreachable, source = urls.without_credentials(url), None, "http"
    try:
        packages = _cached_packages(root, url, run)
        if packages is not None and check:
            try:
                packages = packages if _is_current(root, url, run) else None
            except download.DownloadError as error:
                unreachable = str(error)
        if packages is None:
            server_release(url, DOWNLOAD_TIMEOUT, run)
            archive = download.fetch(url.rstrip("/") + "/Packages.gz", DOWNLOAD_TIMEOUT, run=run)
            packages = gzip.decompress(archive)
        else:
            source = "apt-lists"
        index = deb822.Index(packages)
        offered = _offered(index, globs, architecture)
        sizes = apt_sizes.sizes(index, offered, driver_packages)
    except download.DownloadError as error:
        unread = str(error)
    except (OSError, EOFError, zlib.error) as error:
        unread = "%s: the package list cannot be read: %s" % (shown, error)
    else:
        return Repository(shown, offered, sizes, source, unreachable=unreachable)
    return Repository(shown, source=source, error=unread, unreachable=unreachable)


def kernel_offers(
    root: str, globs: list[str], releases: list[str], run: Run
) -> tuple[dict[str, KernelOffer], dict[str, tuple[str, ...]]] | None:
    """Return what apt offers to build kernel modules with; None where apt has no lists that can be read.

    The packages that match `globs`, each with the kernel releases whose headers it brings and the kernels that it
    depends on; and for each of `releases` the packages that bring its headers.
    """
    newest = _newest(root, [*globs, HEADERS + "*"], run)
    if newest is None:
        return None
    brought = {name: _brought(name, newest) for name in newest if name.startswith(HEADERS)}
    matches = re.compile("|".join(fnmatch.translate(glob) for glob in globs)).match
    offers = {
        name: KernelOffer(
            headers=tuple(sorted(n[len(HEADERS) :] for n in brought.get(name, ()) if _is_exact(n, newest))),
            images=tuple(sorted(n for n in brought.get(name, ()) if n.startswith(IMAGE))),
        )
        for name in sorted(newest)
        if matches(name)
    }
    providers = {r: {name for name in brought if HEADERS + r in brought[name]} for r in releases}
    for release in (release for release in releases if HEADERS + release not in newest):
        providers[release].update(_providing(root, HEADERS + release, run))
    return offers, {release: tuple(sorted(names)) for release, names in providers.items()}


def _providing(root: str, name: str, run: Run) -> list[str]:
    """Return the packages that provide a name, also with the architecture at its end, as Proxmox' headers do."""
    native = dpkg_info.native_architecture()
    pattern = re.compile((r"\nProvides:(?:[^\n]*[\s,])?%s(?:-%s)?(?=[\s,])" % (re.escape(name), native)).encode())
    rows = [row for index in _indexes(root, run) or () for row in index.containing(pattern)]
    return [row["package"] for row in rows if row.get("architecture", native) in (native, "all")]


def module_packages(root: str, glob: str, releases: list[str], run: Run) -> dict[str, str] | None:
    """Return the packages with modules for one of these kernel releases, by name; None where apt has no lists.

    glob: of their names. A metapackage depends on the modules of the newest kernel.
    """
    newest = _newest(root, [glob], run)
    if newest is None:
        return None
    found = {}
    for name, fields in newest.items():
        needs = [group[0].name for group in apt_sizes.dependencies(fields)]
        for release in releases:
            ends = [n for n in [name, *needs] if n.endswith("-" + release) and fnmatch.fnmatchcase(n, glob)]
            if ends and (name in ends or not re.search(r"-\d+\.\d+\.\d+-", name)):
                found[name] = release
    return found


def _newest(root: str, globs: list[str], run: Run) -> dict[str, dict[str, str]] | None:
    """Return the newest paragraph of each package in apt's lists; None without lists, or if one is damaged.

    A list may end within a paragraph, after a power failure: one without a version is left out.
    """
    newest: dict[str, dict[str, str]] = {}
    indexes = _indexes(root, run)
    for fields in (row for index in indexes or () for name in index.names(globs) for row in index.paragraphs(name)):
        known = newest.get(fields["package"])
        if "version" in fields and (
            known is None or debian_version.key(known["version"]) < debian_version.key(fields["version"])
        ):
            newest[fields["package"]] = fields
    return newest if indexes else None


def bases(root: str) -> list[str]:
    """Return the names of apt's lists of packages without what says how they are compressed."""
    return sorted({n.split("_Packages", 1)[0] + "_Packages" for n in files.names(root, LISTS) if "_Packages" in n})


def _indexes(root: str, run: Run) -> list[deb822.Index] | None:
    """Return apt's lists of packages; None if one is damaged."""
    try:
        return [deb822.Index(cached(root, "%s/%s" % (LISTS, base), run) or b"") for base in bases(root)]
    except (OSError, EOFError, zlib.error):
        return None


def _is_exact(name: str, newest: dict[str, dict[str, str]]) -> bool:
    """Return whether a package has the headers of one kernel, and not what those of all flavours share."""
    return re.match(HEADERS + r"\d", name) is not None and newest.get(name, {}).get("architecture", "all") != "all"


def _brought(name: str, newest: dict[str, dict[str, str]]) -> set[str]:
    """Return the header and kernel packages that come with one, itself included: the first of each alternatives."""
    found, waiting = set(), [name]
    while waiting:
        package = waiting.pop()
        if package not in found:
            found.add(package)
            if package.startswith(HEADERS) and package in newest:
                groups = apt_sizes.dependencies(newest[package])
                waiting += [group[0].name for group in groups if group[0].name.startswith((HEADERS, IMAGE))]
    return found


def _is_current(root: str, url: str, run: Run) -> bool:
    """Return whether apt's release file is the server's. Raise DownloadError without one that apt takes."""
    base = "%s/%s_" % (LISTS, list_name(url))
    return server_release(url, FRESHNESS_TIMEOUT, run) in [files.read_bytes(root, base + name) for name in RELEASES]


def server_release(url: str, timeout: float, run: Run) -> bytes:
    """Return the server's release file. Raise DownloadError if there is none, or none that apt would take.

    With which key it is signed is checked by apt itself, before the source is added.
    """
    shown, base = urls.without_credentials(url), url.rstrip("/") + "/"
    try:
        release = download.fetch(base + RELEASES[0], timeout, run=run)
        is_signed = SIGNED in release
    except download.DownloadError as error:
        if not re.search(r": 404 |No such file", str(error)):
            raise
        release = download.fetch(base + RELEASES[1], timeout, run=run)
        is_signed = _exists(base + RELEASES[1] + ".gpg", timeout, run)
    if not is_signed:
        raise download.DownloadError("%s: the repository is not signed" % shown)
    fields = dict(re.findall(r"^([\w-]+):[ \t]*(.+?)[ \t]*$", release.decode("utf-8", "replace"), re.MULTILINE))
    now = time.time()
    for name, how in (("Date", "is not valid yet"), ("Valid-Until", "is expired")):
        then = _seconds(fields.get(name, ""))
        if then is not None and (now < then if name == "Date" else then < now) and not _accepted(name, then - now, run):
            clock = email.utils.formatdate(now, usegmt=True)
            raise download.DownloadError(
                "%s: the release file %s (%s: %s; this host's clock: %s)" % (shown, how, name, fields[name], clock)
            )
    return release


def _accepted(name: str, future: float, run: Run) -> bool:
    """Return whether the host's apt accepts such a date; see Check-Date in apt.conf(5). future: seconds from now."""

    def setting(option: str) -> str:
        answer = run(["apt-config", "dump", "--format", "%v", "Acquire::" + option], FRESHNESS_TIMEOUT)
        return answer.stdout.decode("utf-8", "replace").strip().lower()

    if is_off(setting("Check-Date")) or (name == "Valid-Until" and is_off(setting("Check-Valid-Until"))):
        return True
    seconds = setting("Max-FutureTime")
    return name == "Date" and future <= (int(seconds) if seconds.isdecimal() else FUTURE)


def _exists(url: str, timeout: float, run: Run) -> bool:
    try:
        return bool(download.fetch(url, timeout, run=run))
    except download.DownloadError:
        return False


def _seconds(date: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _cached_packages(root: str, url: str, run: Run) -> bytes | None:
    return cached(root, "%s/%s_Packages" % (LISTS, list_name(url)), run)


def cached(root: str, base: str, run: Run) -> bytes | None:
    """Return a list from apt's directory, which may be compressed; None where there is none that can be read."""
    plain = files.read_bytes(root, base)
    if plain is not None:
        return plain
    for suffix in (".gz", ".lz4", ".xz", ".zst", ".bz2"):
        if os.path.exists(files.under(root, base + suffix)):
            return _decompress(root, base + suffix, run)
    return None


def _decompress(root: str, path: str, run: Run) -> bytes | None:
    """Decompress a list: gzip here, anything else with apt's helper, as the standard library has no lz4."""
    if path.endswith(".gz"):
        data = files.read_bytes(root, path)
        return None if data is None else gzip.decompress(data)
    if not os.path.exists(download.APT_HELPER):
        return None
    answer = run([download.APT_HELPER, "cat-file", files.under(root, path)], 30)
    return answer.stdout if answer.exit_code == 0 else None
