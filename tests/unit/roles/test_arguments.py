"""What a role that is used alone says of its arguments, in a run of Ansible."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import PARTS

from tests.unit.ansible_runs import printed, run_play


def test_a_version_that_is_missing_is_named_with_all_other_mistakes(tmp_path: Path) -> None:
    roles = [part.role for part in PARTS]
    why = {"ansible.builtin.debug": {"msg": "{{ ansible_failed_result.argument_errors }}"}}
    play = {
        "hosts": "all",
        "gather_subset": ["min"],
        "gather_facts": True,
        "vars": {"nvidia_driver_reboot": "maybe"},
        "tasks": [{"block": [{"include_role": {"name": f"gpuhost.stack.{role}"}}], "rescue": [why]} for role in roles],
    }
    shown = printed(run_play(tmp_path, play))
    for role in roles:
        assert f'"missing required arguments: {role}_version"' in shown, shown
    assert "value of nvidia_driver_reboot must be one of: if_needed, never, got: maybe" in shown
