"""Lock files: list those that exist, and resolve one with uv against a package index.

Runs on the controller. A lock pins what one environment consists of, each wheel by its hashes: those for one Python and
CPU architecture on Linux, with the oldest C library that the catalog has. script/lock NAME... is `main`: it resolves
each Python alone and merges their locks into one file (catalog/lock_texts.py). `uv pip compile --universal` would not
do: it takes no platform, so that it checks neither the C library nor that each Python has a wheel, and it adds the
hashes of the wheels for Windows, macOS and other architectures.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.base import urls
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import controller_files, versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import identify_gpus

UV_LOCK = PROJECT / "roles" / "framework_env" / "files" / "uv.txt"
JOBS = 8  # uv waits for the index most of the time
TIMEOUT = 600  # seconds, of one resolution


class LockError(Exception):
    """A lock that could not be made; the message says why."""


def shipped_folder(lock: locks.Lock) -> Path:
    """Return the folder with the project's locks of a framework."""
    return PROJECT / "roles" / f"{lock.framework}_env" / "files"


# Text -----------------------------------------------------------------------------------------------------------------


def wheel_sizes(resolved: str) -> dict[str, int]:
    """Return the bytes of each package's largest wheel in a resolution of uv, if the index states those of all of them.

    PEP 751 makes the size optional, and pages of links (PEP 503) have none.
    """
    packages = tomllib.loads(resolved)["packages"]
    sizes = {package["name"]: [wheel.get("size") for wheel in package["wheels"]] for package in packages}
    return {name: max(found) for name, found in sizes.items() if None not in found}


def requirements_text(resolved: str) -> str:
    """Return a resolution of uv (pylock.toml, PEP 751) as pip's requirements with hashes, without any address."""
    lines: list[str] = []
    for package in tomllib.loads(resolved)["packages"]:
        hashes = sorted(wheel["hashes"]["sha256"] for wheel in package["wheels"])
        lines.append(
            " \\\n    ".join([f"{package['name']}=={package['version']}", *(f"--hash=sha256:{h}" for h in hashes)])
        )
    return "\n".join(lines) + "\n"


def pins(text: str, recipe: locks.Recipe) -> dict[str, str]:
    """Return the version of each package that a lock file has for the Python of a recipe."""
    return lock_texts.pins(text, recipe.python, recipe.platform.partition("-")[0])


def _preferences(pinned: Mapping[str, str]) -> str:
    """Return pins as a resolution, of which uv keeps what still fits."""
    packages = "".join(f'\n[[packages]]\nname = "{name}"\nversion = "{version}"\n' for name, version in pinned.items())
    return f'lock-version = "1.0"\ncreated-by = "gpuhost"\n{packages}'


# uv -------------------------------------------------------------------------------------------------------------------


def find_uv() -> str:
    """Return uv: a clone's own, the one in PATH, else the one that the hosts use, installed in the user's cache.

    It is one file, which is put in its place when it is complete: others may look for it, or install it, meanwhile.
    Raises LockError where pip cannot install it.
    """
    own = PROJECT / ".venv-bootstrap" / "bin" / "uv"
    found = str(own) if os.access(own, os.X_OK) else shutil.which("uv")
    if found:
        return found
    uv = controller_files.cache() / "bin" / "uv"
    if not os.access(uv, os.X_OK):
        uv.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=uv.parents[1], prefix="uv-environment-") as name:
            programs = Path(name) / "bin"
            _run([sys.executable, "-m", "venv", name])
            pip = [str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
            _run([*pip, "--requirement", str(UV_LOCK)])
            os.replace(programs / "uv", uv)
    return str(uv)


def _run(command: Sequence[str], directory: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output; raises LockError with the errors that it printed."""
    environment = {**os.environ, **(variables or {})}
    try:
        ended = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LockError(str(error)) from error
    if ended.returncode:
        output = ended.stderr.strip() or ended.stdout.strip() or f"{command[0]} ended with {ended.returncode}"
        raise LockError(urls.without_credentials(output))
    return ended.stdout


def resolve(recipe: locks.Recipe, pinned: Mapping[str, str], variables: Mapping[str, str] | None = None) -> str:
    """Return the lock file of a recipe, from the index that uv is configured for; raises LockError.

    Arguments as of `_resolve`.
    """
    return requirements_text(_resolve(recipe, pinned, variables))


def _resolve(
    recipe: locks.Recipe, pinned: Mapping[str, str], variables: Mapping[str, str] | None = None, extra: str = ""
) -> str:
    """Return uv's resolution of a recipe (pylock.toml, PEP 751); raises LockError.

    pinned: versions to keep where they still fit; variables: of uv, such as UV_DEFAULT_INDEX; extra: the text of a
    requirements file with what else the environment shall have.
    """
    uv = find_uv()
    with tempfile.TemporaryDirectory(prefix="gpuhost-lock-") as name:
        directory = Path(name)
        (directory / "pyproject.toml").write_text(_project_file(recipe))
        (directory / "extra.txt").write_text(extra)
        command = [
            *(uv, "pip", "compile", "--quiet", "--no-header", "--only-binary=:all:", "pyproject.toml", "extra.txt"),
            f"--python-version={recipe.python}",
            f"--python-platform={recipe.platform}",
        ]
        if recipe.of_its_time:
            _run([*command, "--no-deps", "--output-file=pylock.release.toml"], directory, variables)
            command.append(f"--exclude-newer={_day_after((directory / 'pylock.release.toml').read_text())}")
            command += [f"--exclude-newer-package={package}=false" for package in recipe.any_age]
        output = directory / "pylock.toml"
        if pinned:
            output.write_text(_preferences(pinned))
        _run([*command, f"--output-file={output.name}"], directory, variables)
        return output.read_text()


def _project_file(recipe: locks.Recipe) -> str:
    """Return the project whose dependencies are a recipe's requirements.

    Only a project can say that one package alone is from another index. Were that index asked for all of them, any of
    its files could replace one of PyPI's, and the reverse.
    """
    lines = ["[project]", 'name = "environment"', 'version = "0"', f"dependencies = {json.dumps(recipe.requirements)}"]
    if recipe.extra_index:
        package = recipe.requirements[0].partition("==")[0]
        lines += ["[[tool.uv.index]]", 'name = "extra"', f"url = {json.dumps(recipe.extra_index)}", "explicit = true"]
        lines += ["[tool.uv.sources]", f'{package} = {{index = "extra"}}']
    return "".join(f"{line}\n" for line in lines)


def _day_after(release: str) -> str:
    """Return the day after a release, when what was released with it was there, too."""
    times = [wheel.get("upload-time") for package in tomllib.loads(release)["packages"] for wheel in package["wheels"]]
    if not times or None in times:
        raise LockError("the index does not say when the release was uploaded, which its dependencies depend on")
    uploaded: datetime.datetime = max(times)
    return (uploaded + datetime.timedelta(days=1)).isoformat()


# Folders --------------------------------------------------------------------------------------------------------------


def make(
    catalog: Catalog, name: str, path: Path, upgrade: bool = False, variables: Mapping[str, str] | None = None
) -> None:
    """Resolve a lock and write it, whole or not at all; raises LockError, and UnknownLockError for an unknown name.

    What an existing file pins is kept where it still fits, unless it is upgraded.
    """
    recipe = locks.recipe(catalog, locks.parse(name))
    pinned = pins(path.read_text(), recipe) if path.exists() and not upgrade else {}
    controller_files.replace(path, resolve(recipe, pinned, variables))


# Packages of the user's own -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Extended:
    """A lock file with packages of the user's own, and the size of their wheels in bytes; None where it is not known.

    digest: the beginning of the file's SHA-256, by which the role framework_env names an environment.
    """

    path: Path
    digest: str
    sizes: Mapping[str, int | None]


def extend(
    catalog: Catalog, file: str, folder: Path, requirements: Path, variables: Mapping[str, str] | None = None
) -> Extended:
    """Return a lock file with all that a framework's lock has, and the packages of a requirements file in addition.

    It is written to the folder under a name that has the digest of both, so that it is resolved once, and again
    for another lock or other requirements. file: the name of the framework's lock, the folder's own coming first.
    Raises LockError, also if a requirement does not fit the framework's lock.
    """
    lock = locks.parse(file)
    try:
        found = lock_texts.find(lock.file, folder, shipped_folder(lock)) or folder / lock.file
        locked = lock_texts.read(found, lock.python)
        wanted = requirements.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LockError(f"found no requirements file: {error}") from error
    # An option could name another index or a file whose changes nobody would notice.
    options = [line.strip() for line in wanted.splitlines() if line.strip().startswith("-")]
    if options:
        raise LockError(f"{requirements}: found the options {', '.join(options)}; expected one requirement a line")
    digest = hashlib.sha256(f"{locked}\0{wanted}".encode()).hexdigest()[:8]
    path = folder / f"{lock.name}-extra-{digest}.txt"
    recipe = locks.recipe(catalog, lock)
    locked_pins = pins(locked, recipe)
    if not path.exists():
        pinned = tuple(f"{name}=={version}" for name, version in locked_pins.items())
        # What the framework's lock pins is required, so that its versions cannot give way to what is added.
        whole = dataclasses.replace(recipe, requirements=(recipe.requirements[0], *pinned), of_its_time=False)
        resolved = _resolve(whole, {}, variables, extra=wanted)
        entries = re.findall(r"^[^\s#].*(?:\n[ \t].*)*\n", requirements_text(resolved), re.MULTILINE)
        added = {name: entry for entry in entries if (name := entry.partition("==")[0]) not in locked_pins}
        stated = {name: f"# {name}: {size} bytes\n" for name, size in wheel_sizes(resolved).items()}
        controller_files.replace(path, locked + "".join(entry + stated.get(name, "") for name, entry in added.items()))
    text = path.read_text(encoding="utf-8")
    known = {name: int(size) for name, size in re.findall(r"^# (\S+): (\d+) bytes$", text, re.MULTILINE)}
    sizes = {name: known.get(name) for name in pins(text, recipe) if name not in locked_pins}
    return Extended(path, hashlib.sha256(text.encode()).hexdigest()[:8], sizes)


# script/lock ----------------------------------------------------------------------------------------------------------


def make_missing(plan: Plan, folder: Path, indexes: dict[str, str]) -> tuple[list[str], list[str]]:
    """Resolve the locks without which there is no plan; return those that were written, and why others were not.

    indexes: the package index of a framework where it is not PyPI.
    """
    names = [name for remedy in plan.remedies for name in remedy.host.get("locks", ())]
    written, failed = [], []
    for name in dict.fromkeys(names):
        path = folder / f"{name}.txt"
        index = indexes.get(name.split("-", 1)[0])
        try:
            make(load_catalog(), name, path, variables={"UV_DEFAULT_INDEX": index} if index else None)
            written.append(f"{name} was locked by the package index: {path}. Keep it with the inventory.")
        except (LockError, OSError) as error:
            failed.append(f"{name} could not be locked: {error}")
    return written, failed


def extend_planned(
    plan: Plan, folder: Path, extra: dict[str, str], indexes: dict[str, str]
) -> tuple[dict[str, Extended], list[str]]:
    """Return the lock file of each planned framework with packages of the user's own, and why others have none.

    extra: the requirements file by framework; indexes: as for `make_missing`.
    """
    found, failed = {}, []
    for framework, file in extra.items():
        component = plan.components.framework(framework)
        if not file or component is None:
            continue
        index = indexes.get(framework)
        variables = {"UV_DEFAULT_INDEX": index} if index else None
        try:
            found[framework] = extend(load_catalog(), component.lock, folder, Path(file), variables)
        except (LockError, OSError) as error:
            failed.append(f"gpu_stack_{framework}_extra ({file}) cannot be added to {component.lock}: {error}")
    return found, failed


def planned(catalog: Catalog) -> list[str]:
    """Return the names of the locks that plans for the catalog's distributions and GPUs may need, the newest first.

    What an index of its own has is left out: that need not be reachable, and these are made by their names.
    """
    gpus = [f"cc:{c}" for a in catalog.gpu.architectures for c in a.compute_capabilities]
    kinds = [(), *((HostGpu(name, compute_capability=name.removeprefix("cc:")),) for name in gpus)]
    found: set[locks.Lock] = set()
    pythons = {python for distro in catalog.distros.values() for python in distro.python.available}
    for architecture, python in itertools.product(supported(catalog), pythons):
        own = of_architecture(catalog, architecture)
        for kind in kinds:
            host = Host(next(iter(catalog.distros)), architecture, kind, (python,), default_python=python)
            identified = identify_gpus(catalog, host, Findings())
            question = ResolveContext(own, host, asking(), identified)
            for each in (candidate for part in FRAMEWORKS for candidate in part.lockable(question)):
                if all(problem.code == "no-lock" for problem in each.problems):
                    found.add(locks.parse(each.component.lock))
    return [lock.name for lock in sorted(found, key=lambda lock: versions.key(lock.name), reverse=True)]


def _of_each_python(catalog: Catalog, lock: locks.Lock) -> list[locks.Lock]:
    """Return a lock, or those for the Pythons of the distributions that the release has wheels for.

    Raises UnknownLockError.
    """
    if lock.python != locks.ALL:
        locks.recipe(catalog, lock)
        return [lock]
    pythons = {python for distro in catalog.distros.values() for python in distro.python.available}
    known = []
    for python in sorted(pythons, key=versions.key, reverse=True):
        with contextlib.suppress(locks.UnknownLockError):
            locks.recipe(catalog, dataclasses.replace(lock, python=python))
            known.append(dataclasses.replace(lock, python=python))
    if not known:
        locks.recipe(catalog, lock)  # says what is unknown
    return [each for each in known if locks.source_only(catalog, each) is None] or known


def _shipped_files(lock: locks.Lock) -> list[Path]:
    """Return the project's files with locks of the same release, build and architecture."""
    paths = shipped_folder(lock).glob("*-py*.txt")
    return [path for path in paths if lock_texts.of_all(path.name) == lock_texts.of_all(lock.file)]


def _shipped_text(file: str, folder: Path) -> str:
    """Return a lock of the project; empty if it does not exist."""
    path = lock_texts.find(file, folder)
    return lock_texts.read(path, lock_texts.python_of(file)) if path else ""


def _resolve_shipped(catalog: Catalog, lock: locks.Lock, upgrade: bool) -> tuple[str, list[str]]:
    """Return a lock of the project, resolved, and what changed; raises LockError."""
    recipe = locks.recipe(catalog, lock)
    before = _shipped_text(lock.file, shipped_folder(lock))
    after = resolve(recipe, {} if upgrade else pins(before, recipe))
    return after, changes(recipe, before, after, upgrade) if before else []


def changes(recipe: locks.Recipe, before: str, after: str, upgrade: bool = False) -> list[str]:
    """Return what a lock pins otherwise than before; a version that did not stay with the reason that uv gives."""
    old, new = pins(before, recipe), pins(after, recipe)
    found = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new or name not in old:
            found.append(f"{name} {f'{old[name]} is not needed any more' if name in old else f'{new[name]} is new'}")
        elif old[name] != new[name]:
            why = "" if upgrade else f": {_why_not(recipe, new | {name: old[name]}, name)}"
            found.append(f"{name} {old[name]} becomes {new[name]}{why}")
        elif lock_texts.entry(before, name) != lock_texts.entry(after, name):
            found.append(f"{name} {new[name]}: the index has other wheels of it than before")
    return found


def _why_not(recipe: locks.Recipe, pinned: Mapping[str, str], name: str) -> str:
    """Return in one line why a version of a package does not fit."""
    try:
        _resolve(recipe, pinned, extra=f"{name}=={pinned[name]}\n")
    except LockError as error:
        return " ".join(str(error).split())
    return "it fits only with other versions of further packages"


def _merge_shipped(resolved: Mapping[locks.Lock, Future[tuple[str, list[str]]]]) -> list[str]:
    """Write the locks of one file as they are resolved, and return the names of those that could not be made.

    What the project has for other Pythons stays, and becomes a part of the file if it is one of its own.
    """
    one, failed = next(iter(resolved)), []
    folder, files = shipped_folder(one), _shipped_files(one)
    names = filter(lock_texts.python_of, itertools.chain.from_iterable(map(lock_texts.names, files)))
    texts = {lock_texts.python_of(name): _shipped_text(name, folder) for name in names}
    for lock, future in resolved.items():
        try:
            texts[lock.python], changed = future.result()
        except LockError as error:
            print(f"script/lock: {lock.name}: {error}", file=sys.stderr, flush=True)
            failed.append(lock.name)
            continue
        print(*(f"lock: {lock.name}{each}" for each in ("", *(f": {c}" for c in changed))), sep="\n", file=sys.stderr)
    if len(failed) < len(resolved):
        whole = folder / lock_texts.of_all(one.file)
        controller_files.replace(whole, lock_texts.merge(texts))
        for path in files:
            if path != whole:
                path.unlink()
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Write locks of the project and return the exit status: 1 if one could not be made, 2 for bad usage."""
    parser = argparse.ArgumentParser(prog="script/lock", allow_abbrev=False)
    parser.add_argument("--upgrade", action="store_true", help="select the newest versions that fit")
    parser.add_argument("--missing", action="store_true", help="those that the catalog's distributions need and lack")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="such as tensorflow-X.Y.Z-pyA.B, or -py3 for all Pythons"
    )
    options = parser.parse_args(argv)
    try:
        catalog = load_catalog()
    except CatalogError as error:
        print(f"script/lock: {error}", file=sys.stderr)
        return 2
    wanted: list[locks.Lock] = []
    wrong = []
    for name in options.names:  # all wrong ones before the first resolution
        try:
            wanted += _of_each_python(catalog, locks.parse(name))
        except locks.UnknownLockError as error:
            wrong.append(str(error))
    if wrong:
        print(*(f"script/lock: {mistake}" for mistake in wrong), sep="\n", file=sys.stderr)
        return 2
    todo: dict[str, list[locks.Lock]] = {}  # by the file for all Pythons
    for lock in dict.fromkeys(wanted) if options.names else map(locks.parse, planned(catalog)):
        if not (options.missing and lock_texts.find(lock.file, shipped_folder(lock))):
            todo.setdefault(lock_texts.of_all(lock.file), []).append(lock)
    count, failed = sum(map(len, todo.values())), []
    with ThreadPoolExecutor(JOBS) as pool:
        resolved = {
            lock: pool.submit(_resolve_shipped, catalog, lock, options.upgrade)
            for of_file in todo.values()
            for lock in of_file
        }
        for of_file in todo.values():
            failed += _merge_shipped({lock: resolved[lock] for lock in of_file})
    if failed:
        print(f"script/lock: {len(failed)} of {count} could not be made: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
