"""Plans are the best of all that are allowed, by an enumeration that shares no code with the resolver."""

from __future__ import annotations

import random

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, read_catalog

from tests.unit.plugin_utils.resolver.best_plan import Question, best, of_plan, read_files
from tests.unit.plugin_utils.resolver.made_up_catalog import made_up, write
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, picked, plan

REQUESTS = [
    *[{}] * 6,
    {"cuda": "12"},
    {"cuda": "12.9"},
    {"cuda": "13.0"},
    {"driver": "580"},
    {"driver": "535", "tensorflow": "none"},
    {"tensorflow": "2.18"},
    {"driver_source": "distro"},
    {"driver_source": "nvidia"},
    {"cuda_source": "distro"},
    {"cuda_source": "nvidia"},
    {"driver_source": "distro", "cuda_source": "distro"},
    {"tensorflow_cuda_libraries": "system"},
    {"tensorflow_cuda_libraries": "system", "cuda": "11"},
    {"driver_kernel_modules": "open"},
    {"driver_kernel_modules": "proprietary"},
    {"driver_profile": "full"},
    {"tensorflow": "none"},
    {"tensorflow": "none", "cuda": "11"},
    *[{"tensorflow": "none", "cuda": "10"}] * 2,
    {"tensorflow": "none", "cuda": "none"},
    {"driver": "none"},
    {"cuda": "none", "pytorch": "auto"},
    *[{"tensorflow": "none", "pytorch": "auto"}] * 3,
    {"pytorch": "auto", "cuda": "12"},
    {"pytorch": "auto", "cuda": "13.0"},
    {"tensorflow": "none", "pytorch": "auto", "pytorch_cuda": "12.6"},
    {"tensorflow": "none", "pytorch": "2.9", "pytorch_cuda": "13"},
    {"tensorflow": "none", "cudnn": "none", "nccl": "none"},
    {"cudnn": "9.10", "cuda": "12"},
    {"cudnn": "8", "cuda": "12.2", "tensorflow": "none"},
    {"cudnn": "8", "tensorflow_cuda_libraries": "system"},
    {"nccl": "2.22", "cuda": "12.5"},
    {"nccl": "2.27"},
    {"driver": "570"},
    {"driver": "595", "driver_source": "distro"},
]


def offers(question: Question, draw) -> dict[str, tuple[str, ...]]:
    """Return a repository with most of what a catalog knows, further revisions, and releases that it does not know."""
    specs = [spec for driver in question._drivers("nvidia") for spec in driver["packages"]]
    specs += [f"{p}=1.2" for driver in question._drivers("nvidia") for p in driver["pinning"]]
    specs += [spec for cuda in question._toolkits("nvidia") for spec in cuda["packages"]]
    for cuda in question._toolkits("nvidia"):
        specs += question._cudnn(cuda["version"], None) or []
        specs += question.nccl(None, cuda) or []
    found: dict[str, set[str]] = {}
    for name, version in ((package.name, package.version) for package in map(Package.parse, specs)):
        if draw.random() < 0.97:
            versions = {version}
            if draw.random() < 0.3:
                versions |= {version.replace("-1", revision) for revision in ("-2", "-10")}
            if draw.random() < 0.1:
                head, _, revision = version.partition("-")
                versions.add(f"{head}9-{revision}")
            found.setdefault(name, set()).update(versions)
    return {name: tuple(draw.sample(sorted(versions), len(versions))) for name, versions in found.items()}


def compare(files: dict, catalog, draw, count: int) -> int:
    """Ask questions at random, and return how many of them have a plan."""
    planned = 0
    for _ in range(count):
        distro, request = draw.choice(sorted(files["distros"])), draw.choice(REQUESTS)
        gpus = draw.sample(sorted(GPUS), draw.choice([1, 1, 1, 2]))
        pythons = draw.choice([(), (), ("3.9", "3.12"), ("3.10", "3.11", "3.13"), ("3.14",)])
        host = {"pythons": pythons, "default_python": draw.choice(pythons) if pythons else None}
        host |= draw.choice([{}, {}, {"gcc": 12, "glibc": "2.36"}, {"gcc": 14, "glibc": "2.41.1"}])
        host |= draw.choice([{}, {}, {"kernel": "6.14.0-1"}, {"kernel": "7.0.0-1011-gcp"}])
        devices = [GPUS[gpu][0].removeprefix("10de:") for gpu in gpus]
        if draw.random() < 0.5:
            host["offers"] = offers(Question(files, distro, [], {}), draw)
        expected = best(Question(files, distro, devices, request, **host))
        made = plan(distro, *gpus, catalog=catalog, host=host, **request)
        assert of_plan(made) == expected, (distro, gpus, request, host)
        if made["ok"]:
            # Of an archive's driver the version that it is known to have, whose branch is planned.
            exact = {r["component"]: r["choice"] for r in made["reasons"] if r["component"] == "driver"}
            choices = {name: choice or "none" for name, choice in picked(made).items() if name != "fabric"}
            assert exact.get("driver", "").partition(".")[0] == choices["driver"].partition(".")[0]
            choices |= exact
            reasons = [(reason["component"], reason["choice"]) for reason in made["reasons"]]
            assert sorted(reasons) == sorted(choices.items()), "each component that the host needs has one reason"
        planned += expected is not None
    return planned


@pytest.mark.parametrize("seed", range(4))
def test_plans_of_the_catalog_are_the_best(seed):
    assert compare(read_files(CATALOG_FOLDER), read_catalog(CATALOG_FOLDER), random.Random(seed), 30) > 5


@pytest.mark.parametrize("seed", range(10, 18))
def test_plans_of_made_up_catalogs_are_the_best(seed, tmp_path):
    draw = random.Random(seed)
    files = made_up(read_files(CATALOG_FOLDER), draw)
    folder = write(files, CATALOG_FOLDER, tmp_path / "catalog")
    assert compare(files, read_catalog(folder), draw, 25) > 3
