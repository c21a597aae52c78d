"""The list of frameworks, and that each of them is complete: its role, its catalog file, its worker, its checks."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_probe, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.parts.managed import parts

PROJECT = Path(__file__).resolve().parents[4]
NAMES = [framework.name for framework in FRAMEWORKS]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=NAMES)
def test_a_framework_is_complete(framework: frameworks.Framework) -> None:
    name, role = framework.name, f"{framework.name}_env"
    assert {f"gpu_stack_{name}", f"gpu_stack_{name}_extra"} <= set(declared())
    variables = yaml.safe_load((PROJECT / f"roles/{role}/defaults/main.yml").read_text())
    given = {key for key, value in variables.items() if f"__{role}_inputs" in str(value)}
    assert {f"{role}_{key}" for key in ("version", "python", "lock", "cache", "damaged", "timeout_factor")} <= given
    assert name in parts({})["plan"]["for"]
    assert name in BY_NAME
    assert (PROJECT / f"catalog/{name}.yml").is_file()
    assert yaml.safe_load((PROJECT / f"roles/{role}/vars/main.yml").read_text())["framework_env_name"] == name
    assert variables[f"{role}_path"] == framework.path
    assert (PROJECT / f"roles/smoke_train/files/{name}_worker.py").is_file()
    assert {f"{name}.{part}" for part in ("version", "devices", "matmul", "convolution")} <= {
        spec.id for spec in verify.GROUPS[name].CHECKS
    }
    assert inspect.isfunction(getattr(framework_probe, name))


def test_names_and_files_are_of_one_framework_each() -> None:
    for field in ("name", "label", "package", "training_file", "path"):
        assert len({getattr(framework, field) for framework in FRAMEWORKS}) == len(FRAMEWORKS), field


@pytest.mark.parametrize(
    ("given", "tensorflow", "pytorch"),
    [
        ({}, "/opt/gpuhost/tensorflow", "/opt/gpuhost/pytorch"),
        ({"tensorflow_path": "/tf"}, "/tf", "/opt/gpuhost/pytorch"),
        ({"environment_paths": {"pytorch": "/torch"}}, "/opt/gpuhost/tensorflow", "/torch"),
        ({"environment_paths": {"tensorflow": "/mine"}, "tensorflow_path": "/tf"}, "/mine", "/opt/gpuhost/pytorch"),
        ({"environment_paths": {"tensorflow": ""}}, "/opt/gpuhost/tensorflow", "/opt/gpuhost/pytorch"),
    ],
)
@pytest.mark.parametrize("options", [probe.Options, lambda **more: verify.Options({}, **more)], ids=["probe", "verify"])
def test_paths_of_environments(options: Any, given: dict[str, Any], tensorflow: str, pytorch: str) -> None:
    """Also by the options of one framework, as in 0.1.0; gpu_verify had none for PyTorch."""
    assert frameworks.paths(options(**given)) == {"tensorflow": tensorflow, "pytorch": pytorch}


def test_an_entry_of_the_list_is_all_that_the_probe_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up framework, by its metadata in an environment and by a directory in the place of its link."""
    made_up = frameworks.Framework("jax", "JAX", "jaxlib", training_file="smoke_train_jax")
    monkeypatch.setattr(frameworks, "FRAMEWORKS", (*FRAMEWORKS, made_up))
    (tmp_path / "opt/gpuhost/jax/lib/python3.11/site-packages/jaxlib-0.8.0.dist-info").mkdir(parents=True)
    found = Probe.from_json(to_json(probe.probe(str(tmp_path), probe.Options())))
    assert found.environment("jax") == Environment("0.8.0", "3.11", "/opt/gpuhost/jax")
    assert (found.path_conflict("jax"), found.path_conflict("pytorch")) == ("a directory", None)
