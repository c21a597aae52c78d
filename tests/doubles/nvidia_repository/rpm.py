"""Build and sign rpm packages, and index them as NVIDIA does. Needs rpmbuild, rpmsign (rpm) and createrepo_c."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.nvidia_repository.package import EPOCH, Package, write_tree
from tests.doubles.nvidia_repository.signing import Signer

ARCHITECTURES = {"amd64": "x86_64", "all": "noarch"}
RELATION = re.compile(r"(\S+)(?: \((<<|<=|=|>=|>>) ([^)]+)\))?")
SIGNS = {"<<": "<", ">>": ">"}
TAGS = {
    "Depends": "Requires",
    "Recommends": "Recommends",
    "Provides": "Provides",
    "Conflicts": "Conflicts",
    "Replaces": "Obsoletes",
}
# Directories that belong to the package alone, so that its removal leaves none behind.
OWNED = re.compile(r"/usr/local/cuda-|/usr/share/(gpuhost-simulated|nvidia)|/usr/lib64/nvidia|/usr/src/nvidia-")
MACROS = {
    "_build_id_links": "none",
    "_buildhost": "repository.lab",
    # Without compression: gigabytes are built in seconds, and served locally.
    "_binary_payload": "w0.ufdio",
    "__os_install_post": "%{nil}",
    "debug_package": "%{nil}",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "_build_name_fmt": "built.rpm",
}


def version_of(package: Package) -> tuple[str, str, str]:
    """Return the epoch ("0" without one), the version and the release."""
    epoch, colon, rest = package.control["Version"].rpartition(":")
    version, _, release = rest.rpartition("-")
    return epoch if colon else "0", version, release


def architecture(package: Package) -> str:
    """Return the architecture as rpm names it."""
    return ARCHITECTURES[package.control["Architecture"]]


def file_name(package: Package) -> str:
    """Return NAME-VERSION-RELEASE.ARCH.rpm; an epoch is not part of a file name."""
    _, version, release = version_of(package)
    return f"{package.name}-{version}-{release}.{architecture(package)}.rpm"


def nevra(package: Package) -> str:
    """Return NAME-EPOCH:VERSION-RELEASE.ARCH, as a module lists its packages."""
    return f"{package.name}-{':'.join(version_of(package)[:2])}-{version_of(package)[2]}.{architecture(package)}"


def relation(text: str) -> str:
    """Return a relation of dpkg as rpm writes it: "a (>= 1) | b" is "(a >= 1 or b)"; one in brackets is rpm's own."""
    if text.startswith("("):
        return text
    parts = []
    for alternative in text.split(" | "):
        match = RELATION.fullmatch(alternative)
        if match is None:
            raise ValueError(f"{text}: not a relation of dpkg")
        name, sign, version = match.groups()
        parts.append(f"{name} {SIGNS.get(sign, sign)} {version}" if sign else name)
    return parts[0] if len(parts) == 1 else f"({' or '.join(parts)})"


def build(package: Package, wheels: Mapping[str, Path], target: Path, signer: Signer) -> None:
    """Write the signed .rpm. Raises ValueError as write_tree does."""
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        folder = Path(work)
        write_tree(package, wheels, folder / "root")
        (folder / "spec").write_text(_spec(package, folder / "root"))
        macros = {**MACROS, "_topdir": work, "_rpmdir": work, "buildroot": f"{work}/buildroot"}
        command = ["rpmbuild", "-bb", "--quiet", "--target", architecture(package), str(folder / "spec")]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)}
        _run([*command, *_defined(macros)], environment)
        _run(["rpmsign", *_defined(_signing(signer)), "--addsign", str(folder / "built.rpm")])
        (folder / "built.rpm").replace(target)


def _spec(package: Package, root: Path) -> str:
    epoch, version, release = version_of(package)
    lines = [f"Name: {package.name}", f"Epoch: {epoch}" if epoch != "0" else "", f"Version: {version}"]
    lines += [f"Release: {release}", f"Summary: {package.control['Description']}"]
    lines += ["License: none (simulated)" if not package.wheels else "License: NVIDIA Proprietary"]
    lines += [f"Packager: {package.control['Maintainer']}", "AutoReqProv: no"]
    for field, tag in TAGS.items():
        lines += [f"{tag}: {relation(text)}" for text in package.control.get(field, "").split(", ") if text]
    lines += ["%description", package.control["Description"], "%install", "mkdir -p %{buildroot}"]
    lines += [
        f"cp --archive --link {root}/. %{{buildroot}}/",
        "%files",
        "%defattr(-,root,root)",
        *_files(package, root),
    ]
    return "\n".join(lines + list(_scripts(package))) + "\n"


def _files(package: Package, root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        name = f"/{path.relative_to(root)}"
        if path.is_dir() and not path.is_symlink():
            if OWNED.match(name):
                yield f'%dir "{name}"'
        else:
            yield f'%config(noreplace) "{name}"' if name in package.conffiles else f'"{name}"'


def _scripts(package: Package) -> Iterator[str]:
    scripts = dict(package.scripts)
    if package.triggers:  # what dpkg does by a trigger
        scripts = {**scripts, **{name: "/sbin/ldconfig\n" + scripts.get(name, "") for name in ("post", "postun")}}
    for name, text in scripts.items():
        yield f"%{name}\n{text.replace('%', '%%')}"


def write_index(
    folder: Path, names: Iterable[str], signer: Signer, cache: Path, modules: Iterable[Mapping[str, Any]] = ()
) -> None:
    """Write repodata/ with the metadata of the packages, signed as NVIDIA's is, unless it is there already.

    names: the file names of the packages in `folder`. modules: the documents of modules.yaml, none without streams.
    cache: a directory that keeps checksums of packages.
    """
    text = yaml.safe_dump_all(modules, sort_keys=False, explicit_start=True, width=1000)
    inodes = {name: (folder / name).stat().st_ino for name in sorted(names)}
    state = hashlib.sha256(json.dumps([text, inodes, signer.fingerprint]).encode()).hexdigest()
    repodata, done = folder / "repodata", folder / "repodata/indexed"
    if done.exists() and done.read_text() == state:
        return
    command = ["createrepo_c", "--quiet", "--no-database", "--retain-old-md=0", f"--cachedir={cache}", str(folder)]
    _run(command)
    if text:
        (folder / "modules.yaml").write_text(text)
        _run(["modifyrepo_c", "--mdtype=modules", str(folder / "modules.yaml"), str(repodata)])
        (folder / "modules.yaml").unlink()
    (repodata / "repomd.xml.asc").write_bytes(signer.detached((repodata / "repomd.xml").read_bytes()))
    (repodata / "repomd.xml.key").write_bytes(signer.armoured_key())
    done.write_text(state)  # last: without it the index is written again


def _signing(signer: Signer) -> dict[str, str]:
    return {
        "__gpg": shutil.which("gpg") or "gpg",  # Debian's macro names gpg2
        "_gpg_name": signer.fingerprint,
        "_gpg_path": signer.home,
        "_gpg_sign_cmd_extra_args": "--batch --pinentry-mode loopback --passphrase ''",
    }


def _defined(macros: Mapping[str, str]) -> list[str]:
    return [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]


def _run(command: list[str], environment: Mapping[str, str] | None = None) -> None:
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"{command[0]} not found; run: apt-get install rpm createrepo-c") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
