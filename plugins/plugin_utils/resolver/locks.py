"""Name a framework's lock file, say what it is made from, and report that a plan's is missing.

Runs on the controller; pure functions. A lock belongs to one release, one Python, one CUDA build and one CPU
architecture, and its name says so: `tensorflow-2.21.0-cudnn-9.10-py3.12.txt`, `pytorch-2.10.0-cu128-py3.12.txt`,
`tensorflow-2.21.0-py3.12-aarch64.txt`. A name without an architecture is for the one that cpu.yml names. Plans name
locks so, also where one file has those of all Pythons (`pytorch-2.10.0-cu128-py3.txt`, catalog/lock_texts.py).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable

from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import Components, FrameworkComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Problem
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling, versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    FrameworkRelease,
    PytorchBuild,
    PytorchRelease,
)

PROBLEMS = {
    "no-lock": "the framework's wheels are not locked for this release, Python and CUDA build",
    "no-wheel": "the framework pins a package that has no wheel for a Python of the host",
}

SYSTEM = "system"  # the build whose CUDA libraries are the system's
ALL = "3"  # in place of a Python
_NAME = re.compile(
    r"(?P<framework>[a-z]+)-(?P<version>\d[0-9a-z.]*)"
    r"(?:-(?P<build>system|cudnn-\d+\.\d+|cu\d+))?-py(?P<python>3|\d+\.\d+)"
    r"(?:-(?P<architecture>[a-z][a-z0-9_]*))?(?:\.txt)?"
)


class UnknownLockError(ValueError):
    """The name of a lock that the catalog does not describe."""


@dataclasses.dataclass(frozen=True)
class Lock:
    """What a lock file is for.

    build: empty for the CUDA libraries that a TensorFlow wheel names; `system`; `cudnn-A.B`: with this cuDNN at most;
    `cu128`: the CUDA release that a PyTorch wheel was built for. python: ALL for one after the other. architecture:
    empty for the one whose locks are not marked; see `mark`.
    """

    framework: str
    version: str
    build: str
    python: str
    architecture: str = ""

    @property
    def label(self) -> str:
        """The framework and its release, for messages."""
        return f"{frameworks.LABELS[self.framework]} {self.version}"

    @property
    def name(self) -> str:
        """The lock without its suffix, as `script/lock` takes it."""
        parts = (self.framework, self.version, self.build, f"py{self.python}", self.architecture)
        return "-".join(part for part in parts if part)

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"{self.name}.txt"


def mark(catalog: Catalog, architecture: str) -> str:
    """Return how the names of an architecture's locks say so: empty for the one whose locks are not marked."""
    return "" if architecture == catalog.cpu.unmarked_locks else architecture


def cuda_build(cuda: str) -> str:
    """Return the build of a CUDA release: `cu128` of 12.8.90."""
    return "cu" + versions.series(cuda).replace(".", "")


def parse(name: str) -> Lock:
    """Return the lock of a name, with or without suffix; raises UnknownLockError."""
    match = _NAME.fullmatch(name)
    if match is None or match["framework"] not in frameworks.LABELS:
        raise UnknownLockError(
            f"{name!r} is not the name of a lock; expected tensorflow-X.Y.Z-pyA.B, tensorflow-X.Y.Z-system-pyA.B, "
            "tensorflow-X.Y.Z-cudnn-N.M-pyA.B or pytorch-X.Y.Z-cuNNN-pyA.B"
        )
    return Lock(
        match["framework"], match["version"], match["build"] or "", match["python"], match["architecture"] or ""
    )


def default_lock(catalog: Catalog, framework: str, version: str, python: str, architecture: str) -> str:
    """Return the lock file of a release for a Python, with the CUDA libraries that its wheel names itself."""
    build, known = "", of_architecture(catalog, architecture)
    if version in _releases(catalog, framework) - _releases(known, framework):
        raise UnknownLockError(
            f"catalog/{framework}.yml has no wheel of {version} for {architecture}; set {framework}_env_lock to a lock "
            "file of it"
        )
    if framework == "pytorch":
        release = next((r for r in known.pytorch.releases if r.version == version), None)
        if release is None:
            raise UnknownLockError(f"catalog/pytorch.yml has no {version}; set pytorch_env_lock to a lock file of it")
        build = cuda_build(release.pypi_build.cuda) if release.pypi_build else ""
    return Lock(framework, version, build, python, mark(catalog, architecture)).file


def _releases(catalog: Catalog, framework: str) -> set[str]:
    releases: Iterable[FrameworkRelease] = getattr(catalog, framework).releases
    return {release.version for release in releases}


def choose_python(catalog: Catalog, lock: Lock, default: str, pythons: list[str]) -> Lock:
    """Return the lock for the default Python if it is served, else for the newest; one that exists comes first.

    pythons: those of the host that the release has a wheel for; at least one.
    """
    order = sorted(pythons, key=lambda python: (python == default, versions.key(python)), reverse=True)
    found = [dataclasses.replace(lock, python=python) for python in order]
    return next((each for each in found if is_there(catalog, each)), found[0])


def is_there(catalog: Catalog, lock: Lock) -> bool:
    """Return whether a lock exists, which is not asked of a catalog without locks."""
    return catalog.locks is None or lock.file in catalog.locks.files


def missing(catalog: Catalog, components: Components) -> tuple[str, ...]:
    """Return the names of the planned locks that do not exist, without suffix."""
    planned = (component for component in components.values() if isinstance(component, FrameworkComponent))
    found = (parse(component.lock) for component in planned)
    return tuple(lock.name for lock in found if not is_there(catalog, lock))


def source_only(catalog: Catalog, lock: Lock) -> str | None:
    """Return the package that a lock would need and that has no wheel for its Python; None if all have one."""
    if lock.framework == "tensorflow":
        for entry in catalog.tensorflow.source_only:
            concerned = entry.pythons is None or lock.python in entry.pythons
            concerned &= not (entry.and_cuda and lock.build == SYSTEM)
            if concerned and versions.satisfies(lock.version, entry.releases):
                return entry.package
    return None


def no_wheel(lock: Lock, package: str) -> Problem:
    """Return the problem of a release that cannot be locked."""
    return Problem(
        "no-wheel",
        f"{lock.label} pins a {package} that has no wheel for Python {lock.python}, and "
        "environments are made of wheels alone",
        f"leave gpu_stack_{lock.framework} at auto, or set it to another release",
    )


def no_lock(catalog: Catalog, lock: Lock) -> list[Problem]:
    """Return the problem of a lock that does not exist; none if it does."""
    if catalog.locks is None or is_there(catalog, lock):
        return []
    return [
        Problem(
            "no-lock",
            f"the wheels of {lock.label} for Python {lock.python} are not locked: "
            f"there is no {lock.file}, neither among those of gpuhost nor in gpu_stack_locks",
            make_command(catalog, (lock.name,)),
        )
    ]


def command(catalog: Catalog, names: tuple[str, ...]) -> str:
    """Return what to type to make locks, in the quotes of a message."""
    return f"`{catalog.locks.command.format(names=' '.join(names))}`" if catalog.locks else ""


def make_command(catalog: Catalog, names: tuple[str, ...]) -> str:
    """Return the remedy for locks that do not exist."""
    return f"lock them with {command(catalog, names)}, where an index answers"


# What a lock is made from ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What a lock is resolved from.

    platform: uv's name of the architecture with the oldest C library that the wheels must serve; of_its_time: only
    dependencies that are as old as the release, but for those of any_age; extra_index: the one that has the first
    requirement, if PyPI has it not.
    """

    requirements: tuple[str, ...]
    python: str
    platform: str
    of_its_time: bool = False
    any_age: tuple[str, ...] = ()
    extra_index: str = ""


def recipe(catalog: Catalog, lock: Lock) -> Recipe:
    """Return what a lock is resolved from; raises UnknownLockError where the catalog has no such wheel."""
    architecture = lock.architecture or catalog.cpu.unmarked_locks
    if lock.architecture != mark(catalog, architecture) or architecture not in catalog.cpu.known_architectures:
        unmarked = catalog.cpu.unmarked_locks
        expected = ", ".join(known for known in catalog.cpu.known_architectures if known != unmarked)
        raise UnknownLockError(f"{lock.name}: expected no architecture for {unmarked}, else one of {expected}")
    catalog = of_architecture(catalog, architecture)
    glibc = min((distro.glibc for distro in catalog.distros.values()), key=versions.key)
    platform = f"{architecture}-manylinux_{glibc.replace('.', '_')}"
    if lock.framework == "tensorflow":
        return _tensorflow(catalog, lock, platform)
    return _pytorch(catalog, lock, platform)


def _pytorch(catalog: Catalog, lock: Lock, platform: str) -> Recipe:
    release = next((r for r in catalog.pytorch.releases if r.version == lock.version), None)
    build = next((b for b in release.builds if cuda_build(b.cuda) == lock.build), None) if release else None
    if release is None or build is None or lock.python not in release.pythons:
        builds = [(r, cuda_build(b.cuda)) for r in catalog.pytorch.releases for b in r.builds]
        raise _unknown(lock, builds)
    requirements, index = pytorch_requirements(catalog, release, build)
    return Recipe(requirements, lock.python, platform, extra_index=index)


def pytorch_requirements(catalog: Catalog, release: PytorchRelease, build: PytorchBuild) -> tuple[tuple[str, ...], str]:
    """Return the requirements of a PyTorch wheel, and the index that has it; empty for PyPI."""
    version, index = release.version, ""
    if build.index == "own":
        major, minor = versions.series(build.cuda).split(".")
        version += f"+{cuda_build(build.cuda)}"
        index = catalog.pytorch.own_index.url.format(major=major, minor=minor)
    # Without NumPy PyTorch has neither arrays nor communication between processes.
    return (f"torch=={version}", "numpy"), index


def _tensorflow(catalog: Catalog, lock: Lock, platform: str) -> Recipe:
    release = next((r for r in catalog.tensorflow.releases if r.version == lock.version), None)
    wheel = release.and_cuda if release else None
    if release is None or lock.python not in release.pythons or (lock.build != SYSTEM and wheel is None):
        builds = [(r, b) for r in catalog.tensorflow.releases for b in ("", SYSTEM) if b or r.and_cuda]
        raise _unknown(lock, builds)
    requirements = [f"{release.package}{'' if lock.build == SYSTEM else '[and-cuda]'}=={release.version}"]
    if wheel and lock.build.startswith("cudnn-"):
        major, minor = lock.build.removeprefix("cudnn-").split(".")
        cudnn = catalog.packages.wheels["cudnn"].format(cuda_major=wheel.cuda_major)
        requirements.append(f"{cudnn}<{major}.{int(minor) + 1}")
    old = catalog.tensorflow.of_their_time
    if old is None or not versions.satisfies(release.version, old.releases):
        return Recipe(tuple(requirements), lock.python, platform)
    return Recipe(tuple(requirements), lock.python, platform, True, old.any_age)


def _unknown(lock: Lock, builds: Iterable[tuple[FrameworkRelease, str]]) -> UnknownLockError:
    """Return the error of a lock that is not in the catalog; builds: those of every release there."""
    known = [dataclasses.replace(lock, version=r.version, build=b, python=p) for r, b in builds for p in r.pythons]
    of_series = [each for each in known if versions.has_prefix(each.version, lock.version)]
    near = spelling.nearest(lock.name, [each.name for each in of_series or known])
    return UnknownLockError(
        f"{lock.name}: catalog/{lock.framework}.yml has no such release, CUDA build and Python"
        f"{f' for {lock.architecture}' if lock.architecture else ''}; "
        f"{f'take {near}, or ' if near else ''}add it there first"
    )
