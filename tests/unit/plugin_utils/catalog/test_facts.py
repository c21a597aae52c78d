"""The parts of the catalog that roles and modules get as facts."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog


def test_repository_has_the_key_of_its_slug():
    loaded = load_catalog()
    keys = {name: facts.repository_facts(loaded, name, "x86_64")["key_fingerprint"][-8:] for name in loaded.distros}
    assert keys == {
        "debian-12": "3BF863CC",
        "debian-13": "8793F200",
        "ubuntu-20.04": "3BF863CC",
        "ubuntu-22.04": "3BF863CC",
        "ubuntu-24.04": "3BF863CC",
        "ubuntu-26.04": "60DF8A40",
        **dict.fromkeys(["almalinux-9", "centos-9", "rhel-9", "rocky-9"], "D42D0685"),
        **dict.fromkeys(["almalinux-10", "centos-10", "rhel-10", "rocky-10"], ""),  # in no public source
    }
    assert (
        facts.repository_facts(loaded, "debian-12", "x86_64", base_url="http://mirror/repos/")["url"]
        == "http://mirror/repos/debian12/x86_64/"
    )


def test_link_thresholds_have_text_as_keys():
    """JSON, through which they reach the host, has no other."""
    found = facts.link_thresholds(load_catalog())
    assert found["pcie"]["percent"] == 50
    assert found["pcie"]["lanes"]["2.5"] == 0.25
    assert found["pcie"]["lanes"]["32"] == 3.938
    assert found["nvlink"]["rates"]["26.562"] == 25
    assert found["nvlink"]["links"]["10de:2330"] == 18
    assert "10de:1db5" not in found["nvlink"]["links"]


def test_gpu_thresholds_are_a_fraction_of_the_data_sheets_figures():
    found = facts.gpu_thresholds(load_catalog(), ["10de:2335", "10de:1eb8", "10de:ffff", "1002:2335"])
    assert found == {
        "10de:2335": {"name": "H200 SXM", "host": 9.6, "memory": 2400.0, "nvlink": 90.0},
        "10de:1eb8": {"name": "T4", "host": 2.4, "memory": 160.0, "nvlink": None},
    }
