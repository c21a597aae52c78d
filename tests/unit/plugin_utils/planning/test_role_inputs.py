"""What the plan gives to the roles of package-only components."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import role_inputs

PLANNED = "gpu_stack_plan.components.cudnn"


def test_a_role_gets_the_inputs_that_it_has_and_no_others() -> None:
    found = {name: value for name, value in role_inputs.of_components().items() if name.startswith("nccl_")}
    assert set(found) == {"nccl_version", "nccl_packages", "nccl_reinstall"}
    assert role_inputs.of_components()["cudnn_version"] == f"{{{{ {PLANNED}.version }}}}"
    assert role_inputs.of_components()["cudnn_packages"] == f"{{{{ {PLANNED}.packages | default([]) }}}}"


def test_a_role_with_lines_of_its_own_gets_nothing_else() -> None:
    own = {name for name in role_inputs.of_components() if name.startswith(("cuda_toolkit_", "nvidia_driver_"))}
    assert own == set()
    assert "cuda_toolkit_packages" in role_inputs.inputs()


def test_what_affects_the_transition_only_is_no_drift() -> None:
    assert set(role_inputs.transitions()) == {
        *("fabric_replaces", "fabric_reinstall"),
        *("cudnn_replaces", "cudnn_reinstall", "nccl_reinstall"),
    }


def test_a_role_without_the_variables_that_the_transaction_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages would be planned, and in no transaction."""
    known = role_inputs.roles()
    monkeypatch.setattr(role_inputs, "roles", lambda: {**known, "nccl": {"nccl_reinstall": {}}})
    with pytest.raises(ValueError, match=r"roles/nccl/.*: expected nccl_version and nccl_packages"):
        role_inputs.text()
