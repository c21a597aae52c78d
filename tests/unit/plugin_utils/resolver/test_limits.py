"""Limits of a plan's versions: each is relaxed alone in an enumeration that shares no code with the resolver."""

from __future__ import annotations

import dataclasses
import random

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CATALOG_FOLDER, read_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve, with_limits
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.limits import is_newer

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.best_plan import Question, best, read_files
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, codes, debian_offers, picked

PLATFORM = ("driver", "cuda", "tensorflow")
FILES, CATALOG = read_files(CATALOG_FOLDER), read_catalog(CATALOG_FOLDER)
PYTHONS = tuple(
    sorted({p for r in FILES["tensorflow"]["releases"] + FILES["pytorch"]["releases"] for p in r["pythons"]})
)
REQUESTS = [
    *[{}] * 4,
    {"cuda": "12"},
    {"cuda": "12.9"},
    {"cuda": "13.0"},
    {"driver": "580"},
    {"tensorflow": "2.18"},
    {"driver_source": "distro"},
    {"cuda_source": "distro"},
    {"tensorflow_cuda_libraries": "system"},
    {"driver_kernel_modules": "proprietary"},
    {"tensorflow": "none"},
    {"tensorflow": "none", "cuda": "11"},
    {"tensorflow": "none", "pytorch": "auto"},
    {"cudnn": "9.10"},
]


def plan(distro, *gpus, host=None, catalog=CATALOG, **request):
    """Return a plan with limits as JSON."""
    made = Host(distro, "x86_64", gpus=tuple(HostGpu(GPUS[gpu][0]) for gpu in gpus), **(host or {}))
    return with_limits(catalog, resolve(catalog, user_request.from_mapping(request), made), made).to_json()


class Relaxed(Question):
    """A question that disregards one of its constraints."""

    def __init__(self, distro, gpus, request, host, by=""):
        request, host = dict(request), dict(host)
        if by.startswith("gpu_stack_"):
            request.pop(by.removeprefix("gpu_stack_"))
        if by == "tensorflow":
            request["tensorflow"] = "none"
        free = {
            "python": {"pythons": PYTHONS},
            "gcc": {"gcc": 1},
            "glibc": {"glibc": "1.0"},
            "kernel": {"kernel": "1.0"},
        }
        host |= free.get(by, {})
        files = FILES if by != "repository" else _unlimited(distro)
        super().__init__(files, distro, [GPUS[gpu][0].removeprefix("10de:") for gpu in gpus], request, **host)
        if by == "python":
            self.default_python = Question(FILES, distro, [], {}, **host).default_python
        self.gpus = [gpu for gpu in self.gpus if by != f"gpu {gpu['name']}"]
        self.by = by

    def packages(self, specs, release, cuda=None):
        if self.by == "repository" and self.offers is not None:
            return [f"{name}={version}" for name, version in specs]
        return super().packages(specs, release, cuda)

    def rank(self, driver, cuda):
        by_driver, by_cuda, kind, *newest = super().rank(driver, cuda)
        if self.by == "source":
            by_driver = by_cuda = True
        if (self.by == "native" and kind == -4) or (self.by == "branch" and kind != -4):
            kind = 0
            if self.by == "native":
                branch = driver["branch"]
                regular = branch["type"] in ("PB", "LTSB")
                kind = -((0 if branch["maintained"] else 1) if regular else 2 if branch["type"] == "NFB" else 3)
        return by_driver, by_cuda, kind, *newest


def _unlimited(distro):
    """Return the catalog's files with a repository that offers everything that is known."""
    limited = FILES["distros"][distro]
    repository = {**limited["nvidia_repository"], "first_cuda": "0", "last_cuda": None, "nccl_cuda_majors": None}
    free = {**limited, "nvidia_branches": None, "nvidia_repository": repository}
    builds = [{**b, "slugs": None} for b in FILES["nccl"]["builds"]]
    apt = [{**b, "slugs": None} for b in FILES["cudnn"]["apt_builds"]]
    return {
        **FILES,
        "distros": {**FILES["distros"], distro: free},
        "nccl": {**FILES["nccl"], "builds": builds},
        "cudnn": {**FILES["cudnn"], "apt_builds": apt},
    }


def versions_of(found):
    """Return the versions of driver, toolkit and TensorFlow of an enumerated plan."""
    return {name: found[name] and found[name][0] for name in PLATFORM} if found else dict.fromkeys(PLATFORM)


def cases(seed, count):
    """Yield hosts and requests at random with the plan of each."""
    draw = random.Random(seed)
    for _ in range(count):
        distro, request = draw.choice(sorted(FILES["distros"])), draw.choice(REQUESTS)
        gpus = draw.sample(sorted(GPUS), draw.choice([1, 1, 2]))
        pythons = draw.choice([(), (), ("3.8",), ("3.9", "3.12"), ("3.14",)])
        host = {"pythons": pythons, "default_python": draw.choice(pythons) if pythons else None}
        host |= draw.choice([{}, {}, {"gcc": 15, "glibc": "2.41"}])
        if distro == "debian-12" and draw.random() < 0.5:
            host["offers"] = debian_offers()
        yield distro, gpus, request, host, plan(distro, *gpus, host=host, **request)


def limits(made):
    """Return the limits of each component of a plan."""
    return {reason["component"]: reason["limits"] for reason in made["reasons"]}


# Three seeds together, since a newer release of the catalog may leave one without a version that one constraint limits.
@pytest.mark.parametrize("first", [0, 3])
def test_what_limits_driver_toolkit_and_tensorflow_is_all_that_does_alone(first):
    checked = 0
    drawn = [case for seed in range(first, first + 3) for case in cases(seed, 6)]
    for distro, gpus, request, host, made in drawn:
        if not made["ok"]:
            continue
        names = [FILES["products"][GPUS[gpu][0].removeprefix("10de:")]["name"] for gpu in gpus]
        constraints = ["python", "gcc", "glibc", "kernel", "repository", "branch", "native", "source"]
        constraints += [f"gpu {name}" for name in names] + [f"gpu_stack_{name}" for name in request]
        constraints = [by for by in constraints if request.get(by.removeprefix("gpu_stack_")) != "none"]
        if request.get("tensorflow", "auto") == "auto":
            constraints.append("tensorflow")
        chosen, found = picked(made), limits(made)
        expected = {name: {} for name in PLATFORM if chosen[name]}
        for by in constraints:
            relaxed = versions_of(best(Relaxed(distro, gpus, request, host, by)))
            for name in expected:
                if relaxed[name] and is_newer(relaxed[name], chosen[name]) and by not in (name, f"gpu_stack_{name}"):
                    expected[name][by] = relaxed[name]
        case = (distro, gpus, request, {k: v for k, v in host.items() if k != "offers"})
        for name, newer in expected.items():
            alone = {x["by"].replace("gpu_stack_", "") for x in found[name] if not x["together"]}
            assert alone == {by.replace("gpu_stack_", "") for by in newer}, (name, case)
            assert {x["newer"] for x in found[name] if not x["together"]} == set(newer.values()), (name, case)
            checked += len(newer)
    assert checked


@pytest.mark.parametrize("seed", [20, 22, 23])
def test_what_limits_a_library_limits_it_beside_the_same_toolkit(seed):
    checked = 0
    for distro, gpus, request, host, made in cases(seed, 8):
        parts = made["components"]
        if not made["ok"] or not parts["cuda"]:
            continue
        for name in ("cudnn", "nccl"):
            if not parts[name] or request.get(name, "auto") != "auto":
                continue
            asked = Relaxed(distro, gpus, request, host)
            needed = None
            if parts["tensorflow"] and parts["tensorflow"]["cuda_libraries"] == "system":
                version = parts["tensorflow"]["version"]
                release = next(r for r in FILES["tensorflow"]["releases"] if r["version"] == version)
                needed = release["tested"]["cudnn"]

            def newest(question, cuda, name=name, needed=needed):
                toolkit = {"version": cuda, "source": "nvidia"}
                found = question._cudnn(cuda, needed) if name == "cudnn" else question.nccl(None, toolkit)
                return versions.upstream(found[0].partition("=")[2]) if found else "0"

            own, chosen = parts["cuda"]["version"], parts[name]["version"]
            assert newest(asked, own) == chosen
            toolkits = [t["version"] for t in FILES["cuda"]["toolkits"]]
            expected = {"cuda": max((newest(asked, cuda) for cuda in toolkits), key=versions.key)}
            kinds = [gpu["name"] for gpu in asked.gpus]
            for by in ["repository", *(f"gpu {kind}" for kind in kinds)]:
                expected[by] = newest(Relaxed(distro, gpus, request, host, by), own)
            if needed:
                expected["tensorflow"] = newest(asked, own, needed=None)
            expected = {by: version for by, version in expected.items() if is_newer(version, chosen)}
            found = {x["by"]: x["newer"] for x in limits(made)[name] if not x["together"]}
            assert found == expected, (name, distro, gpus, request)
            checked += len(expected)
    assert checked


def test_a_toolkit_without_a_cudnn_yet_hides_no_limit():
    """Of cuDNN 8, whose builds are listed by CUDA release, there are builds, which are older than the chosen one."""
    first, *others = CATALOG.cuda.toolkits
    made_up = dataclasses.replace(first, version="99.9", releases=first.releases[:1])
    catalog = dataclasses.replace(CATALOG, cuda=dataclasses.replace(CATALOG.cuda, toolkits=(made_up, first, *others)))
    assert "cuda" in {x["by"] for x in limits(plan("ubuntu-24.04", "H100", catalog=catalog, cuda="12"))["cudnn"]}


def test_limits_that_only_act_together_are_both_needed():
    """A K40 has no newer NCCL for its toolkit, and none for a newer toolkit."""
    made = plan("ubuntu-22.04", "K40c")
    found = limits(made)["nccl"]
    assert {x["by"] for x in found} == {"cuda", "gpu Tesla K40c"}
    assert all(x["together"] for x in found)


def test_the_newest_release_has_no_limit_and_any_other_names_one():
    seen = set()
    for seed in range(40, 42):
        for *case, made in cases(seed, 6):
            for reason in made["reasons"] if made["ok"] else []:
                if reason["choice"] == "none":
                    assert not reason["limits"]
                    continue
                text = reason["because"]
                assert text.startswith(("the newest release", "the newest that fits; ", "requested (")), text
                assert text.startswith("the newest that fits") <= bool(reason["limits"]), (reason, case)
                for limit in reason["limits"]:
                    assert is_newer(limit["newer"], reason["choice"])
                    assert limit["newer"] in text
                    assert limit["without"] in text
                    seen.add(limit["by"].split()[0])
    assert {"branch", "native", "gpu", "python", "cuda", "repository"} <= seen, seen


@pytest.mark.parametrize(
    ("request_", "host", "component", "by"),
    [
        ({"tensorflow_cuda_libraries": "system"}, {}, "cuda", "tensorflow"),
        ({}, {"pythons": ("3.7",), "default_python": "3.7"}, "cuda", "python"),
        ({"driver": "none"}, {"loaded_driver": "535.261.03"}, "cuda", "loaded driver"),
        ({"driver": "535", "tensorflow": "none", "pytorch": "auto"}, {}, "pytorch", "driver"),
        ({"scope": "frameworks"}, {"loaded_driver": "470.82.01"}, "tensorflow", "loaded driver"),
    ],
    ids=["TensorFlow with the system's libraries", "Python", "loaded driver", "requested driver", "frameworks alone"],
)
def test_limit(request_, host, component, by, snapshot):
    made = plan("ubuntu-22.04", "A100", host=host, **request_)
    assert codes(made) == []
    found = {limit["by"]: limit["without"] for limit in limits(made)[component]}
    assert found[by] == snapshot


def test_a_kernel_that_a_newer_driver_does_not_build_for_limits_the_driver():
    """Debian 13's own 550 does not build for kernels from 6.16 on (catalog/known_bad.yml), its 535 does."""
    made = plan("debian-13", "M60", host={"kernel": "6.18.5+deb13-amd64"}, cuda="none")
    assert picked(made)["driver"] == "535"
    (found,) = [limit for limit in limits(made)["driver"] if limit["by"] == "kernel"]
    assert (found["newer"], found["without"]) == ("550", "with an older kernel than 6.18")
    assert not [limit for limit in limits(plan("debian-13", "M60"))["driver"] if limit["by"] == "kernel"]


OFFERS = {
    "offers": debian_offers(cuda=("13.4.2",), drivers=("615.71.09",)),
    "repository_url": "http://mirror.example/cuda/",
}


@pytest.mark.parametrize(
    ("distro", "gpus", "host", "request_"),
    [
        ("debian-12", ["GTX 1080"], {}, {}),
        ("debian-12", ["H200"], {"loaded_driver": "580.126.16"}, {"pytorch": "auto"}),
        ("ubuntu-20.04", ["A100"], {}, {"nccl": "2.27"}),
        ("ubuntu-24.04", ["A100"], {}, {"driver": "580", "cuda": "12.9", "cudnn": "9.10", "pytorch": "2.10"}),
        ("debian-12", ["H200"], OFFERS, {"tensorflow": "none"}),
        ("ubuntu-22.04", ["A100"], {"loaded_driver": "535.261.03"}, {"driver": "none", "pytorch": "auto"}),
        ("ubuntu-24.04", ["A100"], {}, {"tensorflow_cuda_libraries": "system"}),
        ("debian-12", ["A100"], {"pythons": ("3.8",), "default_python": "3.8"}, {}),
        ("debian-12", ["V100"], {"glibc": "2.41"}, {}),
        ("ubuntu-22.04", ["M60", "GTX 1080"], {}, {}),
        ("debian-13", ["T4"], {}, {"cuda": "12"}),
        ("debian-12", ["H200"], {}, {"driver_source": "distro", "cuda_source": "distro"}),
        ("ubuntu-26.04", ["H200"], {}, {}),
        ("debian-13", ["M60"], {}, {}),
        ("debian-12", ["H200"], {}, {"tensorflow": "none", "cuda": "12", "pytorch": "auto"}),
        ("debian-12", [], {}, {"expect_gpus": 0, "tensorflow": "none"}),
    ],
    ids=[
        "Pascal",
        "newest",
        "end of life",
        "requested",
        "mirror",
        "loaded driver",
        "system's libraries",
        "Python",
        "glibc",
        "two GPUs",
        "requested and limited",
        "archive",
        "in place",
        "limited in place",
        "requested toolkit",
        "no GPU",
    ],
)
def test_what_a_reason_says(distro, gpus, host, request_, snapshot):
    made = plan(distro, *gpus, host=host, catalog=frozen_catalog(), **request_)
    found = {reason["component"]: reason["because"] for reason in made["reasons"]}
    assert found == snapshot


@pytest.mark.parametrize(
    ("version", "than", "newer"),
    [
        ("595.91.07", "595.71.05", True),
        ("595.71.05", "595.91.07", False),
        ("595.91.07", "595.91.07", False),
        ("595.91.07", "595", False),
        ("595", "580.178.04", True),
        ("2.10", "2.9", True),
    ],
)
def test_newer(version, than, newer):
    """Of a branch in an archive no more is known than its number."""
    assert is_newer(version, than) == newer
