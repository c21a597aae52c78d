"""The context of a decision: what cached functions may read of it, and what the repository offers."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import cuda, libraries, tensorflow
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import drivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    not_in_repository,
)

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import debian_offers, plan_untried
from tests.unit.requested import requested

H200 = Gpu("10de:2335", "NVIDIA H200", "9.0", "Hopper", "either")
V100 = Gpu("10de:1db4", "Tesla V100", "7.0", "Volta", "proprietary")
# Every field of host and request has a value that is not its default; the profile is that of a display.
HOST = Host(
    "debian-12",
    "x86_64",
    pythons=("3.12", "3.13"),
    default_python="3.12",
    gcc=15,
    glibc="2.41",
    kernel="6.1.0-56-cloud-amd64",
    offers=debian_offers(),
    offers_error="HTTP 503",
    repository_url="http://mirror.example/debian12/x86_64/",
    repository_configured=True,
    secure_boot="enabled",
    loaded_driver="580.126.16",
    display="display manager gdm3.service",
    packages=(Package("libnvidia-gl-580", "580.126.16-1ubuntu1"),),
)
REQUEST = requested(
    {
        "driver": "580",
        "driver_source": "nvidia",
        "driver_kernel_modules": "proprietary",
        "driver_profile": "auto",
        "cuda": "12.9",
        "cuda_source": "nvidia",
        "cudnn": "9",
        "nccl": "2.28",
        "tensorflow": "2.20",
        "tensorflow_cuda_libraries": "system",
        "pytorch": "2.10",
    }
)


def context(host: Host = HOST) -> ResolveContext:
    return ResolveContext(frozen_catalog(), host, REQUEST, (V100, H200, H200))


@pytest.mark.parametrize(
    ("cached", "reduced"),
    [
        (drivers._nvidia_drivers, drivers._reduced),
        (drivers._distro_drivers, drivers._reduced),
        (cuda._nvidia_toolkits, cuda._reduced),
        (cuda._published_toolkits, lambda whole: cuda._reduced(whole).with_gpus(())),
        (cuda._offered_toolkits, cuda._reduced),
        (cuda._distro_toolkits, cuda._reduced),
        (tensorflow._all_tensorflows, tensorflow._reduced),
        (tensorflow._proven_tensorflows, tensorflow._reduced),
    ],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize(
    "host", [HOST, Host("debian-13", "x86_64", kernel="6.12.41+deb13-rt-amd64", gcc=16)], ids=["read", "unread"]
)
def test_a_cached_function_reads_no_more_than_its_key(cached, reduced, host):
    whole = context(host)
    assert cached(reduced(whole)) == cached.__wrapped__(whole)
    assert cached(reduced(whole)), "nothing was compared"


@pytest.mark.parametrize("host", [HOST, Host("debian-13", "x86_64")], ids=["read", "unread"])
def test_a_cached_list_of_libraries_reads_no_more_than_its_key(host):
    whole = context(host)
    for toolkit in ("11.8", "12.9", "13.2"):
        for library in (libraries._CUDNN, libraries._NCCL):
            found = libraries.builds(library, libraries.reduced(library, whole), toolkit)
            assert found == libraries.builds.__wrapped__(library, whole, toolkit)
            assert found, "nothing was compared"


@pytest.mark.parametrize(
    "host",
    [
        HOST,
        Host("debian-12", "x86_64", offers={}),
        Host("debian-13", "x86_64"),
        Host("debian-13", "x86_64", repository_url="http://mirror.example/"),
    ],
    ids=["mirror", "read", "not read", "mirror that was not read"],
)
def test_the_name_of_nvidias_repository(host, snapshot):
    assert [context(host).repository_name, context(host).archive_name] == snapshot


@pytest.mark.parametrize(("count", "ends"), [(8, "13.2, 13.1"), (9, "13.3, 13.2, ...")])
def test_eight_offered_versions_are_named(count, ends):
    exist = [f"13.{minor}" for minor in range(1, count + 1)]
    assert not_in_repository(context(), "CUDA 12.9.1", [], exist, "cuda").message.endswith(ends)


@pytest.mark.parametrize("offers", [None, debian_offers()], ids=["not read", "read"])
def test_what_was_not_read_is_according_to_the_catalog(offers):
    texts = []
    for request in (
        {"cuda": "12.4"},
        {"cuda": "9"},
        {"driver": "390"},
        {"nccl": "2.8"},
        {"cudnn": "8"},
        {"cuda": "12"},
    ):
        for gpu in ("V100", "H200"):
            made = plan_untried("debian-13", gpu, offers=offers, **request)
            texts += [finding["message"] for finding in made["problems"] + made["warnings"]]
    found = [text for text in texts if re.search(r"\boffers? ", text) and "NVIDIA's repository" in text]
    assert len(found) > 3
    for text in found:
        assert ("according to the catalog" in text) == (offers is None), text
