"""Query the live sources of script/catalog-check: the package index with pip, archives with apt, NVIDIA's over HTTPS.

Runs on the controller. The index and the mirrors are those that this machine's pip and apt are configured for; no host
is named here. A source that does not answer raises SourceUnreachable.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.gpuhost.stack.plugins.module_utils.base import download, openpgp
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_lists, apt_output, dpkg_info
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.decisions import missing
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import repository_facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Distro, DistroDriver

from tools.catalog import comparison, device_code
from tools.catalog.options import ARCHITECTURE

# `pip index versions` prints JSON from 25.1 on; such a pip also dry-runs without downloading the wheel.
OLDEST_PIP = "25.1"
# Linux: every tag that a wheel of these packages has had, newest first, without the architecture.
PLATFORMS = (
    *(f"manylinux_2_{minor}" for minor in range(39, 4, -1)),
    "manylinux2014",
    "manylinux2010",
    "manylinux1",
    "linux",
)
PIP_TIMEOUT = 600
APT_TIMEOUT = 600
HTTP_TIMEOUT = 60
WHEEL_RANGE = 16 << 20


class SourceUnreachable(Exception):
    """A source did not answer; the message has the query, the error and the remedy."""


class Answer(NamedTuple):
    """The result of a command."""

    status: int
    out: str
    err: str


Run = Callable[[Sequence[str], Mapping[str, str], float], Answer]


def run_command(command: Sequence[str], extra: Mapping[str, str], timeout: float) -> Answer:
    """Run a command with additions to the environment; status 127: it cannot start, 124: it took too long."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", **extra}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
    except OSError as error:
        return Answer(127, "", f"{command[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"{command[0]}: no answer within {timeout:.0f} s")
    return Answer(done.returncode, done.stdout, done.stderr)


# pip ----------------------------------------------------------------------------------------------------------------


def find_pip(run: Run = run_command) -> list[str]:
    """Return the command of a pip that is new enough: run by uv, this interpreter's, or the system's."""
    candidates = [
        [str(PROJECT / ".venv-bootstrap/bin/uv"), "tool", "run", "--from", f"pip>={OLDEST_PIP}", "pip"],
        ["uv", "tool", "run", "--from", f"pip>={OLDEST_PIP}", "pip"],
        [sys.executable, "-m", "pip"],
        ["python3", "-m", "pip"],
    ]
    tried = []
    for candidate in candidates:
        answer = run([*candidate, "--version"], {}, PIP_TIMEOUT)
        match = re.match(r"pip (\d[\d.]*)", answer.out)
        if answer.status == 0 and match and versions.key(match.group(1)) >= versions.key(OLDEST_PIP):
            return candidate
        tried.append(f"{' '.join(candidate)}: {match.group(0) if match else _last_line(answer)}")
    raise SourceUnreachable(
        f"no pip {OLDEST_PIP} or newer (run script/bootstrap where the package index is reachable): " + "; ".join(tried)
    )


def _last_line(answer: Answer) -> str:
    lines = [line for line in (answer.err + "\n" + answer.out).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {answer.status}"


def _target(python: str, machine: str) -> list[str]:
    platforms = [word for platform in PLATFORMS for word in ("--platform", f"{platform}_{machine}")]
    return ["--only-binary=:all:", "--python-version", python, *platforms]


def pip_versions(
    pip: Sequence[str], name: str, python: str, run: Run = run_command, machine: str = ARCHITECTURE
) -> tuple[str, ...]:
    """Return the releases of a package with a wheel for a Python on Linux, newest first."""
    command = [*pip, "--retries", "2", "index", "versions", "--json", name, *_target(python, machine)]
    return parse_versions(name, run(command, {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}, PIP_TIMEOUT))


def parse_versions(name: str, answer: Answer) -> tuple[str, ...]:
    """Return the versions in the answer of `pip index versions --json`.

    pip prints `No matching distribution` both for a package without a fitting wheel and for an index that does not
    answer; only in the second case it prints its retries first.
    """
    if answer.status == 0:
        return tuple(json.loads(answer.out)["versions"])
    if "No matching distribution found" in answer.err and "Retrying (" not in answer.err:
        return ()
    raise SourceUnreachable(f"{name}: pip could not list its versions: {_last_line(answer)}")


def pip_metadata(
    pip: Sequence[str], name: str, version: str, python: str, machine: str = ARCHITECTURE
) -> comparison.WheelMetadata:
    """Return the METADATA of a release's wheel, without downloading the wheel."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            *pip,
            "--quiet",
            "install",
            "--use-feature=fast-deps",
            "--dry-run",
            "--ignore-installed",
            "--no-deps",
        ]
        command += [*_target(python, machine), "--report", str(report), f"{name}=={version}"]
        answer = run_command(command, {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}, PIP_TIMEOUT)
        if answer.status or not report.exists():
            raise SourceUnreachable(f"{name} {version}: pip could not read its METADATA: {_last_line(answer)}")
        return parse_report(json.loads(report.read_text(encoding="utf-8")))


def parse_report(report: Mapping[str, Any]) -> comparison.WheelMetadata:
    """Return the only wheel of a pip installation report."""
    metadata = report["install"][0]["metadata"]
    return comparison.WheelMetadata(
        name=metadata["name"],
        version=metadata["version"],
        requires_python=metadata.get("requires_python"),
        requires_dist=tuple(metadata.get("requires_dist", ())),
        url=report["install"][0].get("download_info", {}).get("url", ""),
    )


def open_wheel(url: str) -> io.BufferedReader:
    """Return a wheel of the index as a file, of which only the ranges that are read are downloaded.

    pip's index or --find-links may be a directory of this machine, whose wheels are opened as they are.
    """
    if url.startswith("file:"):
        path = Path(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
        try:
            return path.open("rb")
        except OSError as error:
            raise SourceUnreachable(f"{path}: {error.strerror}") from error

    def get(start: int, end: int) -> tuple[bytes, str]:
        # The index's own addresses, over the protocol of the machine's configuration.
        request = urllib.request.Request(url, headers={"Range": f"bytes={start}-{end - 1}"})
        for attempt in range(3):
            try:
                with urllib.request.urlopen(request, timeout=HTTP_TIMEOUT) as answer:
                    if answer.status != 206:
                        raise SourceUnreachable(f"{url}: the server sends no ranges (status {answer.status})")
                    return answer.read(), answer.headers.get("Content-Range", "")
            except OSError as error:
                if attempt == 2:
                    raise SourceUnreachable(f"{url}: {error}") from error
        raise AssertionError("unreachable")

    size = int(get(0, 1)[1].rsplit("/", 1)[-1])
    return io.BufferedReader(device_code.RangeFile(size, lambda start, end: get(start, end)[0]), WHEEL_RANGE)


def run_binary(program: bytes, arguments: Sequence[str]) -> str:
    """Return what a program of a wheel prints."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "program"
        path.write_bytes(program)
        path.chmod(0o700)
        return run_command([str(path), *arguments], {}, PIP_TIMEOUT).out


# apt ----------------------------------------------------------------------------------------------------------------

TARGETS_FORMAT = "$(IDENTIFIER)|$(ORIGIN)|$(RELEASE)|$(REPO_URI)|$(SIGNED_BY)"


class Mirror(NamedTuple):
    """The URIs of a distribution's suites on this machine, by suite suffix ("", "-updates", "-security")."""

    codename: str
    uris: Mapping[str, str]
    signed_by: str


def parse_mirror(text: str, family: str) -> Mirror | None:
    """Return the family's mirror in the answer of `apt-get indextargets` with TARGETS_FORMAT; None without one."""
    uris: dict[str, str] = {}
    codename = signed_by = ""
    for line in text.splitlines():
        identifier, origin, release, uri, keyring = line.split("|", 4)
        if identifier != "Packages" or origin.lower() != family:
            continue
        name, dash, suffix = release.partition("-")
        codename = codename or name
        if name == codename and suffix in ("", "updates", "security"):
            uris.setdefault(dash + suffix, uri.rstrip("/"))
            signed_by = signed_by or ("" if keyring.startswith("$(") else keyring)
    return Mirror(codename, uris, signed_by) if "" in uris else None


def sources_list(mirror: Mirror, codename: str, components: Iterable[str], native: str = "amd64") -> str:
    """Return one-line sources (sources.list(5)) for another release on the same mirror; native: as dpkg names it."""
    options = f"arch={native} signed-by={mirror.signed_by}" if mirror.signed_by else f"arch={native}"
    words = " ".join(components)
    return "".join(f"deb [{options}] {uri} {codename}{suffix} {words}\n" for suffix, uri in mirror.uris.items())


def apt_conf(dump: str, folder: Path, native: str = "amd64") -> str:
    """Return apt's configuration for a private state, with the machine's own settings for downloads (proxy, TLS).

    The rest stays out for a reason: hooks such as docker-clean's empty the machine's own package cache.
    """
    kept = [
        line
        for line in dump.splitlines()
        if line.startswith("Acquire::") and not line.startswith(("Acquire::IndexTargets", "Acquire::Languages"))
    ]
    return "\n".join(
        [
            *kept,
            'Acquire::Languages "none";',
            f'APT::Architecture "{native}";',
            f'APT::Architectures {{ "{native}"; }};',
            f'Dir::Etc::main "{folder}/none";',
            f'Dir::Etc::parts "{folder}/none.d";',
            f'Dir::Etc::sourcelist "{folder}/sources.list";',
            f'Dir::Etc::sourceparts "{folder}/none.d";',
            f'Dir::State "{folder}/state";',
            f'Dir::State::status "{folder}/status";',
            f'Dir::Cache "{folder}/cache";',
            "",
        ]
    )


def find_mirror(family: str, run: Run = run_command) -> Mirror:
    """Return this machine's mirror of Debian or Ubuntu; raises SourceUnreachable."""
    answer = run(["apt-get", "indextargets", "--format", TARGETS_FORMAT], {}, APT_TIMEOUT)
    if answer.status:
        raise SourceUnreachable(f"{family}: this machine has no apt that answers ({_last_line(answer)})")
    mirror = parse_mirror(answer.out, family)
    if mirror is None:
        raise SourceUnreachable(
            f"{family}: this machine's apt sources name no {family.capitalize()} mirror, or their lists were never "
            f"fetched (sudo apt-get update); compare on such a machine"
        )
    return mirror


def archive_offers(
    mirror: Mirror, catalog: Catalog, distro: Distro, run: Run = run_command, machine: str = ARCHITECTURE
) -> dict[str, tuple[str, ...]]:
    """Return what the archive of a distribution release offers of the packages that its file depends on."""
    with private_apt(mirror, distro, run, machine) as environment:
        return _query(catalog, distro, environment, run)


@contextlib.contextmanager
def private_apt(
    mirror: Mirror, distro: Distro, run: Run = run_command, machine: str = ARCHITECTURE
) -> Iterator[dict[str, str]]:
    """Yield the environment of an apt with the package lists of a distribution release, and nothing installed."""
    native = dpkg_info.native_architecture(machine)
    with tempfile.TemporaryDirectory(prefix="catalog-check-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # apt downloads as the user _apt
        for part in ("none.d", "state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        components = comparison.archive_components(distro)
        (folder / "sources.list").write_text(sources_list(mirror, distro.os_release.codename, components, native))
        (folder / "status").touch()
        dump = run(["apt-config", "dump"], {}, APT_TIMEOUT)
        (folder / "apt.conf").write_text(apt_conf(dump.out, folder, native))
        apt_environment = {"APT_CONFIG": str(folder / "apt.conf")}
        update = ["apt-get", "-qq", "-o", "APT::Update::Error-Mode=any", "update"]
        answer = run(update, apt_environment, APT_TIMEOUT)
        if answer.status:
            raise SourceUnreachable(f"{distro.id}: apt-get update failed: {_errors(answer)}")
        yield apt_environment


def simulate_driver(
    catalog: Catalog, driver: DistroDriver, flavour: str, environment: Mapping[str, str]
) -> tuple[list[str], str]:
    """Return what a driver set would lack after apt's installation, and why apt cannot install it."""
    command = ["apt-get", "--simulate", "--no-install-recommends", "install", *getattr(driver, flavour)]
    answer = run_command(command, environment, APT_TIMEOUT)
    if answer.status:
        return [], " ".join(answer.out.split("unmet dependencies:")[-1].split())[-300:] or _last_line(answer)
    changes = apt_output.parse_simulation(answer.out)
    needs = catalog.packages.driver_essentials
    release = [driver.version or driver.branch]
    return missing(needs, release, {}, changes, apt_output.is_of_release), ""


def packaged_file(package: str, path: str, environment: Mapping[str, str]) -> tuple[str, bytes] | None:
    """Return a package's version and the file in it whose path ends so; None if the archive has no such package."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        # From the current directory apt downloads as root, to the folder that only root may write.
        command = ["sh", "-c", 'cd "$0" && apt-get -qq -o APT::Sandbox::User=root download "$1"', name, package]
        if run_command(command, environment, APT_TIMEOUT).status:
            return None
        (archive,) = Path(name).glob("*.deb")
        run_command(["dpkg-deb", "-x", str(archive), f"{name}/x"], {}, APT_TIMEOUT)
        found = [p for p in Path(f"{name}/x").rglob("*") if str(p).endswith(path) and p.is_file()]
        version = archive.name.split("_")[1].replace("%3a", ":")
        return (version, found[0].read_bytes()) if found else None


def _errors(answer: Answer) -> str:
    lines = [line.strip() for line in answer.err.splitlines() if line.startswith(("E:", "Err:"))]
    return "; ".join(lines[:3]) or _last_line(answer)


def _query(
    catalog: Catalog, distro: Distro, apt_environment: Mapping[str, str], run: Run
) -> dict[str, tuple[str, ...]]:
    every = run(["apt-cache", "pkgnames"], apt_environment, APT_TIMEOUT).out.split()
    patterns = comparison.archive_patterns(catalog, distro)
    wanted = set(comparison.archive_packages(distro)) & set(every)
    wanted |= {name for name in every for pattern in patterns if pattern.fullmatch(name)}
    answer = run(["apt-cache", "madison", *sorted(wanted)], apt_environment, APT_TIMEOUT)
    if answer.status or not answer.out:
        raise SourceUnreachable(f"{distro.id}: apt-cache madison failed: {_last_line(answer)}")
    return {name: tuple(found) for name, found in apt_output.parse_madison(answer.out).items()}


# NVIDIA's repositories ----------------------------------------------------------------------------------------------


def fetch_url(url: str, timeout: float) -> bytes:
    """Return the content of a URL; this machine may have no apt, unlike the hosts."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as answer:
            return bytes(answer.read())
    except OSError as error:
        raise download.DownloadError(f"{url}: {error}") from error


def nvidia_index(
    catalog: Catalog,
    distro: Distro,
    fetch: Callable[[str, float], bytes] = fetch_url,
    machine: str = ARCHITECTURE,
) -> comparison.NvidiaIndex:
    """Return NVIDIA's repository for a distribution release, with the packages that the catalog covers."""
    facts = repository_facts(catalog, distro.id, machine)
    try:
        packages = gzip.decompress(fetch(facts["url"] + "Packages.gz", HTTP_TIMEOUT))
    except (download.DownloadError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceUnreachable(f"{facts['slug']}: {error}") from error
    globs = comparison.nvidia_globs(catalog, distro)
    offered = {name: tuple(v) for name, v in apt_lists.parse(packages, globs, machine).items()}
    return comparison.NvidiaIndex(offered, _fingerprint(facts["key_url"], fetch))


def _fingerprint(url: str, fetch: Callable[[str, float], bytes]) -> str | None:
    """Return the key file's fingerprint; None if the server has no such file."""
    try:
        keys = openpgp.public_keys(fetch(url, HTTP_TIMEOUT))
    except download.DownloadError as error:
        if "HTTP Error 404" in str(error):
            return None
        raise SourceUnreachable(str(error)) from error
    except openpgp.BadKey as error:
        return f"no key in {url}: {error}"
    return ", ".join(key.fingerprint for key in keys)
