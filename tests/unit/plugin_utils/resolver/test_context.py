"""The context of a decision: what cached functions may read of it, and what the repository offers."""

from __future__ import annotations

import re

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import cuda, libraries, tensorflow
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import drivers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.context import (
    ResolveContext,
    gpu_label,
    not_in_repository,
    offered,
    offered_version,
    quote_hint,
    sources,
    span,
)

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.plugin_utils.resolver.resolver_cases import codes, debian_offers, plan

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
REQUEST = user_request.from_mapping(
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


def test_each_kind_of_gpu_counts_once_in_the_order_of_the_host():
    assert context().gpu_kinds == (V100, H200)
    assert context().with_gpus((H200, H200)).gpu_kinds == (H200,)


def test_offered_versions_are_sorted_newest_first():
    whole = context()
    assert offered(whole, "cuda-toolkit-13-2") == ("13.2.1-1",)
    assert offered(whole, "nvidia-driver-cuda") == ("595.71.05-1", "580.126.16-1")
    assert offered(whole, "no-such-package") == ()
    assert offered_version(whole, "libnccl2", "2.29.7", "13.2") == "2.29.7-1+cuda13.2"
    assert offered_version(whole, "libnccl2", "2.29.7") is None


@pytest.mark.parametrize(
    "exist",
    [
        ["13.0.2", "13.2.1"],
        [],
    ],
    ids=["others", "none"],
)
def test_a_version_that_is_not_offered(exist, snapshot):
    problem = not_in_repository(context(), "CUDA 12.9.1", ["cuda-toolkit-12-9"], exist, "cuda")
    assert problem.code == "not-in-repository"
    assert [problem.message, problem.remedy] == snapshot


@pytest.mark.parametrize(
    ("count", "offers"),
    [
        (1, "13.1"),
        (8, "13.8, 13.7, 13.6, 13.5, 13.4, 13.3, 13.2, 13.1"),
        (9, "13.9, 13.8, 13.7, 13.6, 13.5, 13.4, 13.3, 13.2, ..."),
        (10, "13.10, 13.9, 13.8, 13.7, 13.6, 13.5, 13.4, 13.3, ..."),
    ],
)
def test_eight_offered_versions_are_named(count, offers):
    """The newest come first, and each is named once."""
    exist = [f"13.{minor}" for minor in range(1, count + 1)] * 2
    message = not_in_repository(context(), "CUDA 12.9.1", [], exist, "cuda").message
    assert message.endswith(f"; it offers {offers}")


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


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (["12.9"], "CUDA 12.9"),
        (["12.9", "12.9"], "CUDA 12.9"),
        (["12.10", "12.9"], "CUDA 12.9 to 12.10"),
        (["13.0", "8.0", "12.9"], "CUDA 8.0 to 13.0"),
    ],
)
def test_ranges(found, text):
    assert span("CUDA", found) == text


def test_a_gpu_is_named_with_its_compute_capability():
    assert gpu_label(H200) == "NVIDIA H200 (compute capability 9.0)"


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        (
            "9.1",
            '; YAML reads 9.10 without quotes as 9.1: if you mean 9.10, write gpu_stack_cudnn: "9.10"',
        ),
        ("9.2", ""),
        ("9.10", ""),
    ],
)
def test_a_zero_that_yaml_drops_has_a_hint(wanted, hint):
    assert quote_hint("cudnn", wanted, ["9.1.1", "9.10.2", "9.2.0"]) == hint


@pytest.mark.parametrize(
    ("asked", "found"), [("auto", ("nvidia", "distro")), ("nvidia", ("nvidia",)), ("distro", ("distro",))]
)
def test_where_packages_are_looked_for(asked, found):
    assert sources(asked) == found


def test_not_in_repository_lists_offered_toolkits():
    made = plan("debian-12", "H200", offers=debian_offers(), cuda="12.9")
    assert codes(made) == ["not-in-repository"]
    assert "13.2.1, 13.0.2" in made["problems"][0]["message"]
    assert made["problems"][0]["remedy"].startswith("set gpu_stack_cuda=13.0 (")


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
            made = plan("debian-13", gpu, offers=offers, **request)
            texts += [finding["message"] for finding in made["problems"] + made["warnings"]]
    found = [text for text in texts if re.search(r"\boffers? ", text) and "NVIDIA's repository" in text]
    assert len(found) > 3
    for text in found:
        assert ("according to the catalog" in text) == (offers is None), text
