"""What the reason for a version says of newer ones: who asks for one gets just that problem, or another driver."""

from __future__ import annotations

import random

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.versions import is_newer
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, debian_offers, picked
from tests.unit.requested import requested

# The choices whose versions are decided before that of another one.
BEFORE = {
    "tensorflow": (),
    "driver": ("tensorflow",),
    "cuda": ("tensorflow",),
    "cudnn": ("tensorflow", "driver", "cuda", "pytorch"),
    "nccl": ("tensorflow", "driver", "cuda"),
    "pytorch": ("tensorflow", "driver", "cuda"),
}
PREFERENCES = ("source", "branch", "order")
REQUESTS = [
    *[{}] * 4,
    {"cuda": "12"},
    {"cuda": "13.0"},
    {"driver": "580"},
    {"driver": "535"},
    {"tensorflow": "2.18"},
    {"driver_source": "distro"},
    {"cuda_source": "distro"},
    {"tensorflow_cuda_libraries": "system"},
    {"driver_kernel_modules": "proprietary"},
    {"tensorflow": "none", "cuda": "11"},
    {"tensorflow": "none", "pytorch": "auto"},
    {"pytorch": "auto", "pytorch_cuda": "12.6"},
    {"cudnn": "9.10"},
    {"nccl": "2.27"},
]


def plan(distro, *gpus, host=None, catalog=None, **request):
    """Return a plan as JSON."""
    made = Host(distro, "x86_64", gpus=tuple(HostGpu(GPUS[gpu][0]) for gpu in gpus), **(host or {}))
    return plan_once(catalog or load_catalog(), requested(request), made).to_json()


def cases(seed, count):
    """Yield hosts and requests at random with the plan of each that has one."""
    draw = random.Random(seed)
    for _ in range(count):
        distro, request = draw.choice(sorted(load_catalog().distros)), draw.choice(REQUESTS)
        gpus = draw.sample(sorted(GPUS), draw.choice([1, 1, 2]))
        pythons = draw.choice([(), (), ("3.8",), ("3.9", "3.12"), ("3.14",)])
        host = {"pythons": pythons, "default_python": draw.choice(pythons) if pythons else None}
        host |= draw.choice([{}, {}, {"gcc": 15, "glibc": "2.41"}])
        if distro == "debian-12" and draw.random() < 0.5:
            host["offers"] = debian_offers()
        made = plan(distro, *gpus, host=host, **request)
        if made["ok"]:
            yield distro, gpus, request, host, made


def test_who_asks_for_the_newer_version_gets_the_problem_that_its_reason_names():
    """Where a preference is against it, there is a plan for it."""
    seen = set()
    for distro, gpus, request, host, made in cases(20, 60):
        # What was planned for the lack of a TensorFlow was planned without one.
        asked = {**request, "pytorch": "auto"} if made["components"]["pytorch"] else dict(request)
        chosen = {
            name: part["release"] if "release" in part else part["version"]
            for name, part in made["components"].items()
            if part
        }
        for reason in made["reasons"]:
            name, case = reason["component"], (reason, distro, gpus, request)
            for limit in reason["limits"]:
                assert is_newer(limit["newer"], reason["choice"]), case
                assert f"not {limit['newer']}: " in reason["because"], case
                # What was decided before it stays.
                before = {other: chosen[other] for other in BEFORE[name] if other in chosen}
                found = plan(distro, *gpus, host=host, **{**asked, **before, name: limit["newer"]})
                if limit["by"] in PREFERENCES:
                    assert found["ok"], (case, found["problems"])
                else:
                    assert limit["by"] in [problem["code"] for problem in found["problems"]], (case, found["problems"])
                seen.add(limit["by"])
    assert seen > {"branch", "order", "driver-too-old-for-cuda", "gpu-dropped-by-cuda", "python-not-supported"}, seen


def test_a_reason_without_a_limit_is_that_of_the_newest_version_that_the_request_allows():
    published = {choice.name: choice.published(load_catalog()) for choice in CHOICES}
    heads = set()
    for distro, gpus, request, _host, made in cases(40, 60):
        for reason in made["reasons"]:
            name, head = reason["component"], reason["because"].partition("; ")[0]
            if made["components"][name] is None or name == "fabric":
                assert not reason["limits"]
            elif reason["limits"]:
                assert head.removeprefix("in place of TensorFlow: ").startswith(
                    ("the newest that fits", "requested (")
                ), reason
            else:
                prefix = request.get(name, "")
                newer = [v for v in published[name] if is_newer(v, reason["choice"]) and v.startswith(prefix)]
                options = [f"gpu_stack_{field}" for field in request if field.startswith(f"{name}_")]
                assert not newer or any(option in head for option in options), (reason, newer, distro, gpus, request)
            heads.add(head.partition(" (")[0].partition(" with")[0])
    assert heads >= {"the newest release", "the newest that fits", "requested", "the newest"}


def test_a_kernel_that_a_newer_driver_does_not_build_for_limits_the_driver():
    """Debian 13's own 550 does not build for kernels from 6.16 on (catalog/known_bad.yml), its 535 does."""
    request = {"cuda": "none", "driver_source": "distro"}
    made = plan("debian-13", "M60", host={"kernel": "6.18.5+deb13-amd64"}, **request)
    assert picked(made)["driver"] == "535"
    (reason,) = [reason for reason in made["reasons"] if reason["component"] == "driver"]
    assert reason["limits"] == [{"by": "known-bad", "newer": "550"}]
    assert "does not build for kernel 6.18" in reason["because"]
    assert picked(plan("debian-13", "M60", **request))["driver"] == "550"


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
