"""gpu_probe as Ansible runs it, on this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.modules import gpu_probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog


@pytest.mark.parametrize("check", [False, True])
def test_this_machine_is_probed_and_not_changed(capsys: pytest.CaptureFixture[str], check: bool) -> None:
    options = {**facts.probe_options(load_catalog()), "package_patterns": ["dpkg"], "_ansible_check_mode": check}
    with patch_module_args(options), pytest.raises(SystemExit):
        gpu_probe.main()
    result = json.loads(capsys.readouterr().out)
    assert result["changed"] is False
    assert result["probe"]["kernel"]["running"] == os.uname().release
    assert result["probe"]["toolchain"]["glibc"] in (platform.libc_ver()[1], None)
    assert result["probe"]["repository"] is None
    assert set(result["probe"]["packages"]) == ({"dpkg"} if shutil.which("dpkg") else set())


def test_missing_package_names_of_the_catalog_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with patch_module_args({"package_patterns": ["dpkg"]}), pytest.raises(SystemExit):
        gpu_probe.main()
    message = json.loads(capsys.readouterr().out)["msg"]
    assert message.startswith("repository_patterns, driver_packages, distro_cuda_package, kernel_tools, ")


def test_the_action_adds_the_options_that_the_module_needs() -> None:
    spec = module_options.argument_spec(probe.Options)
    missing = {name for name, entry in spec.items() if "default" not in entry}
    assert {"repository_url", *facts.probe_options(load_catalog())} == missing


def test_every_part_of_the_probe_is_documented(tmp_path):
    options = probe.Options(None, {}, True, (), (), "/opt/gpuhost/tensorflow", "(?!)", "nvidia-cuda-toolkit")
    found = gpu_probe.with_earlier_names(to_json(probe.probe(str(tmp_path), options)))
    assert list(yaml.safe_load(gpu_probe.RETURN)["probe"]["contains"]) == list(found)


def test_environments_have_the_names_of_earlier_releases_as_well(tmp_path, capsys):
    """By PyTorch's metadata directory in an environment, and a file at TensorFlow's path."""
    (tmp_path / "torch/lib/python3.11/site-packages/torch-2.15.0+cu132.dist-info").mkdir(parents=True)
    (tmp_path / "tensorflow").write_text("")
    paths = {"environment_paths": {"pytorch": str(tmp_path / "torch")}, "tensorflow_path": str(tmp_path / "tensorflow")}
    with patch_module_args({**facts.probe_options(load_catalog()), **paths}), pytest.raises(SystemExit):
        gpu_probe.main()
    found = json.loads(capsys.readouterr().out)["probe"]
    expected = {"version": "2.15.0+cu132", "python": "3.11", "path": str(tmp_path / "torch")}
    assert found["environments"] == {"tensorflow": None, "pytorch": expected}
    assert (found["tensorflow"], found["pytorch"]) == (None, expected)
    assert found["environments_in_the_way"] == {"tensorflow": "a file", "pytorch": "a directory"}
    assert (found["tensorflow_in_the_way"], found["pytorch_in_the_way"]) == ("a file", "a directory")


def test_of_the_repositories_the_one_for_this_machines_architecture_is_read(tmp_path, capsys):
    """Both are for the machine's distribution; only the one for its architecture is asked."""
    (tmp_path / "own").mkdir()
    machine, own = os.uname().machine, f"file://{tmp_path}/own/"
    found = probe.os_release.read("/")
    for urls, expected in (({machine: own, "other": "file:///nowhere/"}, own), ({"other": own}, None), (own, own)):
        options = {**facts.probe_options(load_catalog()), "repositories": {found.id: urls}}
        with patch_module_args(options), pytest.raises(SystemExit):
            gpu_probe.main()
        repository = json.loads(capsys.readouterr().out)["probe"]["repository"]
        assert (repository or {}).get("url") == expected
