"""Every plan that the catalog accepts can be installed: its lock exists, and the index has each wheel for the Python.

The index is a record of tests/record_index.py; tier `locks` asks the real one.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.pytorch import pytorch_candidates
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.tensorflow import tensorflow_candidates
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.lock_files import planned
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import locks
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import ResolveContext
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import identify_gpus
from packaging import specifiers, tags

from tests.unit.requested import requested
from tools.docs.codes import PROBLEMS

ROOT = Path(__file__).resolve().parents[2]
INDEX: dict[str, dict[str, list[list[str]]]] = json.loads((ROOT / "tests/fixtures/locks/index.json").read_text())
GPUS = ("3.5", "5.2", "6.1", "7.0", "7.5", "8.0", "9.0", "10.0", "12.0")
PATCH = 5  # of each Python: the oldest of a distribution is 3.9.5, of Ubuntu 20.04
CATALOG = load_catalog()


def lock_path(file: str) -> Path | None:
    """Return the file that has a lock."""
    return lock_texts.find(file, ROOT / "roles" / f"{file.split('-')[0]}_env" / "files")


@functools.cache
def served(python: str, machine: str) -> frozenset[tags.Tag]:
    """Return the tags of the wheels that a Python of the oldest distribution takes: glibc 2.31 on x86_64."""
    oldest = min((d.glibc for d in CATALOG.distros.values() if machine in d.cpu_architectures), key=versions.key)
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(int(oldest.split(".")[1]), 4, -1)]
    platforms += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    version = tuple(int(part) for part in python.split("."))
    interpreter = f"cp{python.replace('.', '')}"
    return frozenset(
        [*tags.cpython_tags(version, platforms=platforms), *tags.compatible_tags(version, interpreter, platforms)]
    )


@functools.cache
def flaws(file: str) -> list[str]:
    """Return the pins of a lock of which the index has no wheel for its Python, or another one."""
    lock, path = locks.parse(file), lock_path(file)
    python, machine = lock.python, lock.architecture or CATALOG.cpu.unmarked_locks
    assert path, file
    found = []
    for name, version, hashes in re.findall(
        r"^(\S+)==(\S+)((?: \\\n    --hash=\S+)+)$", lock_texts.read(path, python), re.M
    ):
        fitting = {
            digest
            for wheel, requires, digest in INDEX.get(name, {}).get(version, [])
            if tags.parse_tag(wheel) & served(python, machine)
            and specifiers.SpecifierSet(requires).contains(f"{python}.{PATCH}")
        }
        pinned = {each[:12] for each in re.findall(r"sha256:(\S+)", hashes)}
        if not fitting or not pinned <= fitting:
            found.append(f"{name}=={version}: pinned {sorted(pinned)}, the index has {sorted(fitting)}")
    return found


@pytest.mark.parametrize("file", sorted(CATALOG.locks.files if CATALOG.locks else []))
def test_the_index_has_each_pinned_wheel_for_the_python(file: str) -> None:
    assert flaws(file) == []
    assert locks.recipe(CATALOG, locks.parse(file)).python == locks.parse(file).python


def test_every_lock_that_the_catalog_plans_is_shipped() -> None:
    assert CATALOG.locks
    assert CATALOG.locks.files == {f"{name}.txt" for name in planned(CATALOG)}


# The whole product ----------------------------------------------------------------------------------------------------


def requests() -> Iterator[dict[str, str]]:
    """Yield a request for each release of a framework, and each of its builds."""
    for tensorflow in CATALOG.tensorflow.releases:
        for libraries in ("auto", "system"):
            yield {"tensorflow": tensorflow.version, "tensorflow_cuda_libraries": libraries}
    for pytorch in CATALOG.pytorch.releases:
        yield {"tensorflow": "none", "pytorch": pytorch.version}
        for build in pytorch.builds:
            cuda = versions.series(build.cuda)
            yield {"tensorflow": "none", "pytorch": pytorch.version, "pytorch_cuda": cuda, "cuda": "none"}


def hosts(distro: str, machine: str) -> Iterator[Host]:
    """Yield a host for each Python and GPU generation."""
    for python in CATALOG.distros[distro].python.available:
        for capability in GPUS:
            gpu = HostGpu(f"cc:{capability}", compute_capability=capability)
            yield Host(distro, machine, gpus=(gpu,), pythons=(python,), default_python=python)


@pytest.mark.parametrize(
    ("distro", "machine"), [(d, each) for d in sorted(CATALOG.distros) for each in supported(CATALOG, d)]
)
def test_what_may_be_planned_can_be_installed(distro: str, machine: str) -> None:
    """Each release, build, Python and GPU: what has no problem is all that a plan may choose from."""
    accepted: set[str] = set()
    own = of_architecture(CATALOG, machine)
    for host in hosts(distro, machine):
        gpus = identify_gpus(CATALOG, host, Findings())
        for libraries in ("auto", "wheel", "system"):
            asked = asking(tensorflow_cuda_libraries=libraries, pytorch="auto")
            context = ResolveContext(own, host, asked, gpus)
            candidates = [
                *((c.component, c.problems) for c in tensorflow_candidates(context)),
                *((c.component, c.problems) for c in pytorch_candidates(context)),
            ]
            assert {problem.code for _unused, problems in candidates for problem in problems} <= set(PROBLEMS)
            chosen = [component for component, problems in candidates if not problems]
            assert {component.python for component in chosen} <= set(host.pythons)
            accepted |= {component.lock for component in chosen}
    assert accepted, "something can be installed on each distribution"
    assert [file for file in sorted(accepted) if not lock_path(file)] == []
    assert {file: flaws(file) for file in accepted if flaws(file)} == {}


# GPUs for which nothing can be planned: Kepler, whose last driver, 470, is too old for the CUDA of newer releases;
# Blackwell with Python 3.8; Maxwell and Pascal with Python 3.14; before Turing with CUDA 13 alone (EL 10).
REFUSED = {
    **{name: {"3.5"} for name in ("almalinux-9", "centos-9", "rhel-9", "rocky-9")},
    **{name: {"3.5", "5.2", "6.1", "7.0"} for name in ("almalinux-10", "centos-10", "rhel-10", "rocky-10")},
    "debian-12": {"3.5"},
    "debian-13": {"3.5"},
    "ubuntu-20.04": {"10.0", "12.0"},
    "ubuntu-24.04": {"3.5"},
    "ubuntu-26.04": {"3.5", "5.2", "6.1"},
}


def has_wheel(asked: dict[str, str], python: str) -> bool | None:
    """Return whether the index has a wheel of the framework for a Python; None if it was not asked."""
    name = "tensorflow" if asked["tensorflow"] != "none" else "torch"
    wheels = INDEX[name].get(asked["tensorflow" if name == "tensorflow" else "pytorch"])
    # The CUDA libraries of 2.14 include TensorRT 8.5, of which there are wheels up to Python 3.10.
    if wheels is None or (asked["tensorflow"].startswith("2.14.") and asked["tensorflow_cuda_libraries"] == "auto"):
        return None
    return any(tags.parse_tag(wheel) & served(python, "x86_64") for wheel, _requires, _digest in wheels)


@pytest.mark.parametrize("distro", sorted(CATALOG.distros))
def test_a_plan_is_refused_for_what_the_index_lacks_or_can_be_installed(distro: str) -> None:
    """Each release is planned for one GPU after the other, and each GPU without a request."""
    accepted: set[str] = set()
    refused: set[str | None] = set()
    compared = 0
    every = list(hosts(distro, "x86_64"))
    questions = [*((host, {}) for host in every), *zip(itertools.cycle(every), requests(), strict=False)]
    for host, asked in questions:
        made = plan_once(CATALOG, requested(asked), host)
        codes = {problem.code for problem in made.problems}
        wheel = has_wheel(asked, host.pythons[0]) if asked else None
        if wheel is not None:
            assert ("python-not-supported" in codes) == (not wheel), (asked, host.pythons, codes)
            compared += 1
        if not asked and not made.ok:
            refused.add(host.gpus[0].compute_capability)
        if made.ok:
            accepted |= {part.lock for name in frameworks.LABELS if (part := made.components.framework(name))}
    assert accepted
    assert compared > 100
    assert refused == REFUSED.get(distro, set())
    assert {file: flaws(file) for file in accepted if flaws(file)} == {}
