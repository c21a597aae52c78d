"""The catalog lookup: facts and errors."""

from __future__ import annotations

import json

import pytest
from ansible.errors import AnsibleLookupError
from ansible_collections.gpuhost.stack.plugins.lookup.catalog import look_up


def test_facts_are_plain_data():
    facts = look_up(["cuda", "13.2"])
    assert json.loads(json.dumps(facts))[0]["max_gcc"] == 15
    assert look_up(["repository", "debian-13"])[0]["key_fingerprint"] == "02182E60104FCDC26EAE1B8597A5D4CB8793F200"
    assert look_up(["gpu", "10de:2335"])[0]["compute_capability"] == "9.0"
    (releases,) = look_up(["tensorflow"])
    assert releases.index("2.21.0") < releases.index("2.20.0") < releases.index("1.15.0")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], "expected one of"),
        (["colour"], "found 'colour'"),
        (["cuda", "12.7"], "no cuda '12.7'.*12.8"),
        (["cuda", "13.2", "x"], "a topic and a key"),
        (["distro", "fedora-42"], "debian-12"),
    ],
)
def test_errors(terms, message):
    with pytest.raises(AnsibleLookupError, match=message):
        look_up(terms)


def test_driver_packages_close_the_repository_for_every_driver_package_but_no_toolkit():
    """The names are those that NVIDIA's repository really has; the double lists them."""
    import fnmatch

    (patterns,) = look_up(["driver_packages"])
    driver = ["nvidia-driver-cuda", "nvidia-kernel-open-dkms", "libcuda1", "libnvidia-ml1", "cuda-drivers-580"]
    other = ["cuda-toolkit-13-2", "cuda-nvcc-13-2", "libcudnn9-cuda-13", "libnccl2", "libnvvm-13-2"]
    matched = [name for name in driver + other if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    assert matched == driver


def test_what_the_patterns_of_driver_packages_do_not_mean():
    (patterns,) = look_up(["driver_exceptions"])
    assert "nvidia-container-*" in patterns
    assert not {"libcuda1", "nvidia-*"} & set(patterns)
