"""What an apt repository offers: from apt's own lists while they are current, else by HTTP. Runs on the target.

The repositories meant are flat (`deb URL /`), as NVIDIA's are: Packages.gz and InRelease lie beside the packages.
"""

from __future__ import annotations

import gzip
import os
import zlib
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.host import download, files
from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.packages import apt_sizes, deb822, debian_version

LISTS = "/var/lib/apt/lists"
APT_HELPER = "/usr/lib/apt/apt-helper"
QUOTED = '\\|{}[]<>"^~_=!@#$%&*'  # apt's URItoFileName writes these as %xx before "/" becomes "_"
FRESHNESS_TIMEOUT = 5
DOWNLOAD_TIMEOUT = 60


def parse(data: bytes, globs: list[str], architecture: str) -> dict[str, list[str]]:
    """Versions by package name, newest first; other architectures' packages are left out."""
    native = deb822.MACHINE_TO_DEBIAN.get(architecture, architecture)
    offered: dict[str, set[str]] = {}
    for fields in deb822.stanzas(data, globs):
        if fields.get("Architecture", native) in (native, "all") and fields.get("Version"):
            offered.setdefault(fields["Package"], set()).add(fields["Version"])
    return {name: debian_version.newest_first(offered[name]) for name in sorted(offered)}


def list_name(url: str) -> str:
    """The start of the names under which apt keeps the lists of the repository at `url`."""
    without_scheme = url.split("://", 1)[-1].split("@", 1)[-1].rstrip("/")
    quoted = "".join("%%%02x" % ord(c) if c in QUOTED else c for c in without_scheme)
    return quoted.replace("/", "_")


def read(
    root: str, url: str, globs: list[str], driver_packages: str, architecture: str, check: bool, run: Run
) -> dict[str, Any]:
    """The probe's `repository`. With `check`, apt's lists count only while the server's release file is the same."""
    result: dict[str, Any] = {"url": url, "source": "http", "packages": {}, "sizes": {}, "error": None}
    try:
        kept = _kept_packages(root, url, run)
        if kept is not None and (not check or _is_current(root, url)):
            result["source"] = "apt-lists"
        else:
            kept = gzip.decompress(download.fetch(url.rstrip("/") + "/Packages.gz", DOWNLOAD_TIMEOUT))
        result["packages"] = parse(kept, globs, architecture)
        result["sizes"] = apt_sizes.sizes(kept, result["packages"], driver_packages)
    except download.DownloadError as error:
        result["error"] = str(error)
    except (OSError, EOFError, zlib.error) as error:
        result["error"] = "%s: the package list cannot be read: %s" % (url, error)
    return result


def header_packages(root: str, releases: list[str], run: Run) -> dict[str, list[str]] | None:
    """The packages of any repository that bring the headers of each kernel release; None where apt has no lists."""
    newest: dict[str, dict[str, str]] = {}
    bases = {n.split("_Packages")[0] + "_Packages" for n in files.names(root, LISTS) if "_Packages" in n}
    for base in sorted(bases):
        for fields in deb822.stanzas(_kept(root, "%s/%s" % (LISTS, base), run) or b"", ["linux-headers-*"]):
            known = newest.get(fields["Package"])
            if known is None or debian_version.key(known["Version"]) < debian_version.key(fields["Version"]):
                newest[fields["Package"]] = fields
    if not bases:
        return None
    wanted = {release: "linux-headers-" + release for release in releases}
    return {
        release: sorted(
            package
            for package, fields in newest.items()
            if package == name or any(name == need for group in _needs(fields) for need, _ in group)
        )
        for release, name in wanted.items()
    }


def _needs(fields: dict[str, str]) -> list[list[tuple[str, str | None]]]:
    return apt_sizes.relations(fields.get("Depends", ""))


def _is_current(root: str, url: str) -> bool:
    """Whether the kept release file equals the server's. While the server does not answer, what apt knows stands."""
    for name in ("InRelease", "Release"):
        kept = files.read_bytes(root, "%s/%s_%s" % (LISTS, list_name(url), name))
        if kept is None:
            continue
        try:
            return download.fetch("%s/%s" % (url.rstrip("/"), name), FRESHNESS_TIMEOUT) == kept
        except download.DownloadError:
            return True
    return False


def _kept_packages(root: str, url: str, run: Run) -> bytes | None:
    return _kept(root, "%s/%s_Packages" % (LISTS, list_name(url)), run)


def _kept(root: str, base: str, run: Run) -> bytes | None:
    """A list by the name it has without the suffix of a compressor."""
    plain = files.read_bytes(root, base)
    if plain is not None:
        return plain
    for suffix in (".gz", ".lz4", ".xz", ".zst", ".bz2"):
        if os.path.exists(files.under(root, base + suffix)):
            return _decompress(root, base + suffix, run)
    return None


def _decompress(root: str, path: str, run: Run) -> bytes | None:
    """apt's own helper reads every format that apt writes (the standard library has no lz4); None when it cannot."""
    if path.endswith(".gz"):
        data = files.read_bytes(root, path)
        return None if data is None else gzip.decompress(data)
    if not os.path.exists(APT_HELPER):
        return None
    answer = run([APT_HELPER, "cat-file", files.under(root, path)], 30)
    return answer.stdout if answer.exit_code == 0 else None
