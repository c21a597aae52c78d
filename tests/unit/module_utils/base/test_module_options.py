"""The options of the modules: what ansible-doc prints of them is what they take."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.module_utils import probe
from ansible_collections.gpuhost.stack.plugins.module_utils.base import module_options
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import verify

PROJECT = Path(__file__).resolve().parents[4]
MODULES = "ansible_collections.gpuhost.stack.plugins.modules"
FRAGMENTS = "gpuhost.stack."  # those of this collection
# The others are actions of the controller, which take what their plugins describe.
NAMES = [
    path.stem for path in sorted((PROJECT / "plugins/modules").glob("*.py")) if "AnsibleModule(" in path.read_text()
]
OPTIONS = {"gpu_probe": probe.Options, "gpu_verify": verify.Options}


def documented(entries: dict[str, Any]) -> dict[str, Any]:
    """Return documented options as an argument_spec; a choice has the type str by default."""
    renamed = {
        name: {"options" if key == "suboptions" else key: value for key, value in entry.items() if key != "description"}
        for name, entry in entries.items()
    }
    return {
        name: {**entry, "options": documented(entry["options"])} if "options" in entry else entry
        for name, entry in renamed.items()
    }


def without_no_log(spec: dict[str, Any]) -> dict[str, Any]:
    """Return an argument_spec without what no documentation has."""
    return {
        name: {
            key: without_no_log(value) if key == "options" else value for key, value in entry.items() if key != "no_log"
        }
        for name, entry in spec.items()
    }


def test_all_modules_of_a_host_are_found() -> None:
    assert len(NAMES) == 11


@pytest.mark.parametrize("name", NAMES)
def test_ansible_doc_prints_the_options_that_a_module_takes(name: str) -> None:
    module = importlib.import_module(f"{MODULES}.{name}")
    spec = module_options.argument_spec(OPTIONS.get(name) or module.Options)
    found = without_no_log(spec)
    documentation = yaml.safe_load(module.DOCUMENTATION)
    described = dict(documentation["options"])
    for fragment in documentation.get("extends_documentation_fragment", []):
        if fragment.startswith(FRAGMENTS):
            part = importlib.import_module(
                f"{MODULES.replace('modules', 'doc_fragments')}.{fragment[len(FRAGMENTS) :]}"
            )
            described |= yaml.safe_load(part.ModuleDocFragment.DOCUMENTATION)["options"]
    assert found == documented(described)


def test_a_module_that_is_not_in_sys_modules_has_its_options() -> None:
    """As ansible-lint runs it, whose rule `args` would not check a task of it otherwise."""
    spec = importlib.util.spec_from_file_location("run_alone", PROJECT / "plugins/modules/stack_state.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "run_alone", module)  # dataclasses ask for it, as ansible-lint's own loader does
        spec.loader.exec_module(module)
    assert module_options.argument_spec(module.Options)["plan"] == {"type": "dict"}


@dataclass(frozen=True)
class Options:
    needed: str
    numbers: List[int]
    chosen: str = option(choices=["a", "b"])
    path: str = option("/x", type="path")
    given: Dict[str, Any] = option({}, default=None)
    absent: Optional[float] = None
    flag: bool = False


def test_the_specification_follows_from_the_fields() -> None:
    assert module_options.argument_spec(Options) == {
        "needed": {"type": "str", "required": True},
        "numbers": {"type": "list", "elements": "int", "required": True},
        "chosen": {"type": "str", "required": True, "choices": ["a", "b"]},
        "path": {"type": "path", "default": "/x"},
        "given": {"type": "dict"},
        "absent": {"type": "float"},
        "flag": {"type": "bool", "default": False},
    }


def test_parameters_are_read_by_name_and_others_left() -> None:
    params = {"needed": "n", "numbers": [1], "chosen": "a", "path": "/y", "given": None, "absent": 2.0, "flag": True}
    assert module_options.read(Options, {**params, "mode": "0644"}) == Options(**{**params, "given": {}})
