"""Build the NVIDIA-shaped repository: python3 tests/doubles/nvidia_repository/build.py --out DIR --slug debian12.

Runs on the controller and needs gpg; for apt dpkg-deb and apt-ftparchive, for dnf rpmbuild, rpmsign and createrepo_c. A
package is built again only if its inputs changed; all slugs share its file. A web server serves `<out>/`;
`<out>/.build/` holds the pool and the signing key.
"""

import argparse
import dataclasses
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.doubles.nvidia_repository import (
    contents,
    deb,
    kernel_modules,
    module_streams,
    package,
    rpm,
    signing,
    wheels,
)
from tests.doubles.nvidia_repository.contents import Slug
from tests.doubles.nvidia_repository.package import Package
from tests.doubles.nvidia_repository.signing import Signer

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gpuhost"
MODULES = 20260101000000  # the version of the module's streams; the later state has the next
RELEASE = [
    "-o=APT::FTPArchive::Release::Origin=NVIDIA",
    "-o=APT::FTPArchive::Release::Label=NVIDIA CUDA",
    "-o=APT::FTPArchive::Release::Architectures=amd64",
    "-o=APT::FTPArchive::Release::Description=NVIDIA-shaped test repository, driver packages simulated",
]


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    started = time.monotonic()
    try:
        for name in options.slug:
            slug = contents.slug(name, options.base_url)
            build(options.out, slug, options.wheels, options.simulated_only, options.kernel_modules)
    except wheels.WheelError as error:
        print(f"could not get the wheels that the CUDA packages are built from:\n{error}", file=sys.stderr)
        return 1
    print(f"done in {time.monotonic() - started:.1f} s", flush=True)
    return 0


def build(out: Path, slug: Slug, cache: Path, simulated_only: bool = False, modules: bool = False) -> Path:
    """Update `<out>/compute/cuda/repos/<slug>/x86_64/` and, below `<out>/later/`, its later state.

    For apt, `modules` updates `<out>/kernel-modules/...` as well: the driver only, with the source of loadable modules.
    """
    folder, later, state = out / slug.folder, out / slug.later_folder, out / ".build"
    (state / "pool").mkdir(parents=True, exist_ok=True)
    print(f"{slug.name}: {folder}", flush=True)
    with _locked(state / "lock"), signing.signer(state / "signing-key.asc") as signer:
        driver, libraries = list(contents.driver_packages(slug)), list(contents.library_packages(slug))
        packages = [*driver] if simulated_only else [*driver, *libraries]
        if slug.format == "deb":
            packages.insert(0, contents.keyring_package(slug, signer.binary_key()))
        # Later packages have no files, so they need no wheels.
        later_packages = [contents.later(package) for package in [*driver, *libraries]]
        places = [(folder, packages), (later, later_packages)]
        if modules and slug.format == "deb":
            places.append((out / kernel_modules.FOLDER / slug.folder, [kernel_modules.with_sources(p) for p in driver]))
        for place, offered in places:
            place.mkdir(parents=True, exist_ok=True)
            pool = _fill_pool(offered, state / "pool", cache, slug, signer)
            for name, built in pool.items():
                _publish(place / name, built)
            _remove_others(place, pool, slug)
            (place / slug.key_file).write_bytes(signer.armoured_key())
            if slug.format == "deb":
                (place / f"cuda-{slug.name}.pin").write_text(contents.contents()["pin"])
                _write_index(place, [built.with_name("Packages").read_text() for built in pool.values()], signer)
            else:
                (place / f"cuda-{slug.name}.repo").write_text(contents.repository_file(slug))
                version = MODULES + (place == later)
                streams = module_streams.documents(offered, slug.dist, version) if slug.streams else []
                rpm.write_index(place, pool, signer, state / "checksums", streams)
        (out / "key-fingerprint").write_text(signer.fingerprint + "\n")
        _prune(state / "pool")
        print(f"  {len(packages)} packages, key fingerprint {signer.fingerprint}", flush=True)
        print(f"  {len(later_packages)} later packages: {later}", flush=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one build at a time write to a directory."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=CACHE / "nvidia-repository", help="the directory to serve")
    parser.add_argument("--slug", action="append", required=True, help="debian12, ubuntu2404, ...; repeatable")
    parser.add_argument("--base-url", default="http://repository.lab", help="the URL of <out> for hosts")
    parser.add_argument("--wheels", type=Path, default=CACHE / "wheels", help="directory that keeps downloaded wheels")
    parser.add_argument("--simulated-only", action="store_true", help="omit CUDA, cuDNN and NCCL (needs no wheels)")
    parser.add_argument("--kernel-modules", action="store_true", help="also build a driver with loadable modules")
    return parser.parse_args(arguments)


def _fill_pool(packages: Iterable[Package], pool: Path, cache: Path, slug: Slug, signer: Signer) -> dict[str, Path]:
    """Build missing packages, two at a time, and return the path in the pool of each file name."""
    hashes: Mapping[str, str] = contents.contents()["wheels"]
    name_of = deb.file_name if slug.format == "deb" else rpm.file_name
    keys = {name_of(package): (package, content_key(package, hashes, slug, signer)) for package in packages}
    places = {name: pool / key / name for name, (_, key) in keys.items()}
    missing = [package for name, (package, _) in keys.items() if not _is_complete(places[name])]
    if missing:
        print(f"  {len(missing)} packages to build", flush=True)
    files = wheels.fetch(sorted({name for package in missing for name in package.wheels}), hashes, cache)
    with ThreadPoolExecutor(max_workers=2) as workers:
        list(workers.map(lambda package: _build_one(package, files, places[name_of(package)], signer), missing))
    return places


def _is_complete(place: Path) -> bool:
    """Return whether a package of the pool is there; a .deb is renamed before its entry is written."""
    return place.exists() and (place.suffix == ".rpm" or place.with_name("Packages").exists())


def _build_one(package: Package, files: Mapping[str, Path], target: Path, signer: Signer) -> None:
    started = time.monotonic()
    shutil.rmtree(target.parent, ignore_errors=True)  # of an interrupted build
    target.parent.mkdir(parents=True)
    if target.suffix == ".rpm":
        rpm.build(package, files, target, signer)
    else:
        deb.build(package, files, target)
    if package.wheels:
        mib = target.stat().st_size / 2**20
        print(f"  {target.name}: {mib:.0f} MiB in {time.monotonic() - started:.1f} s", flush=True)


def content_key(content: Package, hashes: Mapping[str, str], slug: Slug, signer: Signer) -> str:
    """Return a digest of everything that determines a package: description, wheels' hashes, code and signature."""
    code = [package, rpm if slug.format == "rpm" else deb]
    digest = hashlib.sha256(b"".join(Path(str(module.__file__)).read_bytes() for module in code))
    facts = {
        **dataclasses.asdict(content),
        "executable": sorted(content.executable),
        "binary": {path: data.hex() for path, data in content.binary.items()},
        "hashes": {name: hashes[name] for name in content.wheels},
        "signer": signer.fingerprint if slug.format == "rpm" else "",
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    return digest.hexdigest()[:16]


def _publish(shown: Path, place: Path) -> None:
    """Link a package of the pool into the slug's directory."""
    if not shown.exists() or not shown.samefile(place):
        shown.unlink(missing_ok=True)
        os.link(place, shown)


def _remove_others(folder: Path, names: Iterable[str], slug: Slug) -> None:
    """Remove packages and keys of an earlier build that this one does not offer."""
    kept = {*names, slug.key_file}
    for path in [*folder.glob("*.deb"), *folder.glob("*.rpm"), *folder.glob("*.pub")]:
        if path.name not in kept:
            path.unlink()


def _write_index(folder: Path, entries: Iterable[str], signer: Signer) -> None:
    """Write Packages, Packages.gz, Release, InRelease and Release.gpg, unless they have the same content already."""
    index = "".join(entries).encode()
    published, signed_by = folder / "Packages", folder / "signed-by"
    if signed_by.exists() and published.read_bytes() == index and signed_by.read_text() == signer.fingerprint:
        return
    with tempfile.TemporaryDirectory(dir=folder) as work:
        new = Path(work)
        (new / "Packages").write_bytes(index)
        (new / "Packages.gz").write_bytes(gzip.compress(index, mtime=0))
        command = ["apt-ftparchive", *RELEASE, "release", "."]
        release = subprocess.run(command, cwd=new, check=True, capture_output=True).stdout
        (new / "Release").write_bytes(release)
        (new / "Release.gpg").write_bytes(signer.detached(release))
        (new / "InRelease").write_bytes(signer.clearsign(release))
        (new / "signed-by").write_text(signer.fingerprint)  # last: without it the index is written again
        for name in ("Packages", "Packages.gz", "Release", "Release.gpg", "InRelease", "signed-by"):
            (new / name).replace(folder / name)


def _prune(pool: Path) -> None:
    """Remove packages that no slug links to any more."""
    for place in [*pool.glob("*/*.deb"), *pool.glob("*/*.rpm")]:
        if place.stat().st_nlink == 1:
            shutil.rmtree(place.parent)


if __name__ == "__main__":
    sys.exit(main())
