"""The variables lookup, in plays: what a user has set, else the declared default."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import declared, of_request

from tests.unit.ansible_runs import printed, run_play

LOOKUP = "lookup('gpuhost.stack.variables', "


def looked_up(folder: Path, expression: str, **variables: Any) -> Any:
    """Return the value of an expression with these variables of the play."""
    copy = {"content": f"{{{{ {expression} | to_json }}}}", "dest": f"{folder}/found.json", "mode": "0644"}
    play = {"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": [{"ansible.builtin.copy": copy}]}
    done = run_play(folder, play)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "found.json").read_text())


def test_values_of_the_user_win_over_the_declared_defaults(tmp_path: Path) -> None:
    names = ("wait", "timeout_factor", "rollback", "waivers", "accept_damage", "environment", "unknown", "reboot")
    values = ", ".join(f"{name}={LOOKUP}'gpu_stack_{name}')" for name in names)
    found = looked_up(
        tmp_path,
        f"dict({values})",
        gpu_stack_wait="{{ 6 * 7 }}",
        gpu_stack_rollback=False,
        gpu_stack_timeout_factor="",
        gpu_stack_waivers=None,
        gpu_stack_accept_damage=["file /a"],
        gpu_stack_environment={"http_proxy": "{{ inventory_hostname }}:3128"},
        gpu_stack_unknown="{{ not_defined }}",
    )
    assert found == {
        "wait": 42,
        "timeout_factor": 1,
        "rollback": False,
        "waivers": [],
        "accept_damage": ["file /a"],
        "environment": {"http_proxy": "localhost:3128"},
        "unknown": "fail",
        "reboot": "if_needed",
    }


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        ("", {}, {}),
        ("", {"gpu_stack_cuda": 13.2, "gpu_stack_driver": "{{ 500 + 80 }}"}, {"cuda": 13.2, "driver": 580}),
        # The plan warns of an empty version, and not of an empty address.
        ("", {"gpu_stack_cuda": "", "gpu_stack_repository_url": None}, {"cuda": ""}),
        (", defaults={'driver_module_source': 'dkms'}", {}, {"driver_module_source": "dkms"}),
        (
            ", defaults={'driver_module_source': 'dkms'}",
            {"gpu_stack_driver_module_source": "prebuilt"},
            {"driver_module_source": "prebuilt"},
        ),
    ],
    ids=["defaults", "values", "empty", "defaults of this host", "a value with defaults of this host"],
)
def test_the_request(tmp_path: Path, arguments: str, variables: dict[str, Any], expected: dict[str, Any]) -> None:
    defaults = {name: variable.default for name, variable in of_request().items()}
    assert looked_up(tmp_path, f"{LOOKUP}'request'{arguments})", **variables) == defaults | expected


def test_names_are_those_of_the_stack(tmp_path: Path) -> None:
    names = looked_up(tmp_path, f"{LOOKUP}'names')")
    assert names == sorted(names)
    assert set(declared()) - set(names) == {"smoke_train_max_age", "gpu_monitor_seconds", "gpu_monitor_interval"}


def test_a_name_that_is_not_declared_is_an_error(tmp_path: Path) -> None:
    task = {"ansible.builtin.debug": {"msg": f"{{{{ {LOOKUP}'gpu_stack_wiat') }}}}"}}
    done = run_play(tmp_path, {"hosts": "localhost", "gather_facts": False, "tasks": [task]})
    assert done.returncode == 2
    assert "found gpu_stack_wiat; did you mean gpu_stack_wait?" in printed(done)
