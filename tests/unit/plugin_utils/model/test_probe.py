"""The probe's records: what the module on the host returns, and errors that name the wrong field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils import probe as module
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.module_utils.model.packages import PackageSize
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import RecordError, to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe

from tests.unit.plugin_utils.planning.planning_cases import PROBE, make_probe
from tests.unit.plugin_utils.planning.preflight_cases import PROBE as FULL


def test_parts_that_could_not_be_read_have_their_defaults() -> None:
    probe = Probe.from_json({**dict.fromkeys(FULL), "gpus": []})
    assert probe == Probe(gpus=())
    assert (probe.present_packages, probe.package_sizes) == ({}, {})


def test_the_probe_of_this_machine_is_read() -> None:
    options = module.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    found = to_json(module.probe("/", options))
    probe = Probe.from_json(found)
    assert probe.kernel.running == found["kernel"]["running"]
    assert [gpu.pci_id for gpu in probe.gpus] == [gpu["pci_id"] for gpu in found["gpus"]]
    assert {path: space.free_mib for path, space in probe.disk.items()} == {
        path: space["free_mib"] for path, space in (found["disk"] or {}).items()
    }


def test_an_empty_root_is_read(tmp_path: Path) -> None:
    options = module.Options(None, {}, False, (), (), "/opt/gpuhost/tensorflow", ".*nvidia.*", "nvidia-cuda-toolkit")
    probe = Probe.from_json(to_json(module.probe(str(tmp_path), options)))
    assert (probe.distribution, probe.package_manager, probe.gpus) == (None, None, ())


ENVIRONMENT = {"version": "2.15.0", "python": "3.11", "path": "/opt/gpuhost/pytorch", "lock": "0a1b2c3d"}


@pytest.mark.parametrize(
    "fields",
    [
        {"environments": {"pytorch": ENVIRONMENT}, "environments_in_the_way": {"tensorflow": "a directory"}},
        {
            "environments": {"pytorch": ENVIRONMENT, "tensorflow": None},
            "environments_in_the_way": {"tensorflow": "a directory"},
            "pytorch": None,
            "tensorflow_in_the_way": None,
        },
        {
            "pytorch": ENVIRONMENT,
            "pytorch_in_the_way": None,
            "tensorflow": None,
            "tensorflow_in_the_way": "a directory",
        },
        {"pytorch": ENVIRONMENT, "tensorflow_in_the_way": "a directory"},
    ],
    ids=["by framework", "both, of which the mapping counts", "of 0.1.0", "of 0.1.0, in part"],
)
def test_environments_are_read_from_probes_of_earlier_releases_too(fields: dict[str, Any]) -> None:
    probe = Probe.from_json({**PROBE, **fields})
    assert (probe.environment("pytorch"), probe.environment("tensorflow")) == (Environment(**ENVIRONMENT), None)
    assert (probe.path_conflict("pytorch"), probe.path_conflict("tensorflow")) == (None, "a directory")
    assert probe == Probe.from_json(to_json(probe))


def test_a_wrong_environment_of_an_earlier_release_is_named() -> None:
    with pytest.raises(RecordError, match=r"^probe\.environments\.pytorch\.version: missing$"):
        Probe.from_json({**PROBE, "pytorch": {"python": "3.11"}})


def test_sizes_links_and_packages_are_named_fields() -> None:
    probe = make_probe(**FULL)
    size = probe.package_sizes["libcudnn9-dev-cuda-13"]["9.28-1"]
    assert size == PackageSize(401 * 1024, 1001 * 1024, ("libcudnn9-cuda-13",))
    assert probe.pcie.gpus["0000:05:00.0"].slot is None


@pytest.mark.parametrize(
    ("status", "is_present"), [("installed", True), ("half-configured", True), ("config-files", False)]
)
def test_packages_with_files_on_the_host_are_present(status: str, is_present: bool) -> None:
    probe = make_probe(packages={"libnccl2": {"version": "2.29.7-1", "status": status, "held": False}})
    assert ("libnccl2" in probe.present_packages) == is_present


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, r"^probe\.gpus: missing$"),
        ({"gpus": {}}, r"^probe\.gpus: expected a list, found {}$"),
        ({"gpus": [{"pci_address": "x"}]}, r"^probe\.gpus\[0\]\.pci_id: missing$"),
        ({**PROBE, "distribution": {}}, r"^probe\.distribution\.id: missing$"),
        ({**PROBE, "kernel": {"running": 6.1}}, r"^probe\.kernel\.running: expected a string, found 6\.1$"),
        ({**PROBE, "packages": {"a": {"held": True}}}, r"^probe\.packages\.a\.version: missing$"),
        ([], r"^probe\.gpus: missing$"),
        ("no probe", r"^probe: expected an object, found 'no probe'$"),
    ],
)
def test_errors_name_the_path_of_the_field(data: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        Probe.from_json(data)
