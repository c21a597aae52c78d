"""Which results of a benchmark fail the host: the role's condition, rendered as Ansible does."""

from __future__ import annotations

import pytest
import yaml

from tests.unit.playbooks import rendering


@pytest.mark.parametrize(
    ("products", "trainings", "passes"),
    [
        ("pass", "pass", True),
        ("pass", "skip", True),
        ("fail", "skip", False),
        ("fail", "pass", False),
        ("pass", "fail", False),
    ],
)
def test_a_check_that_failed_fails_the_host(products: str, trainings: str, passes: bool) -> None:
    """Whichever of the two measurements it is of."""
    path = rendering.PROJECT / "roles/gpu_benchmark/tasks/main.yml"
    *_others, judged = yaml.safe_load(path.read_text())
    variables = {
        "gpu_benchmark_result": {"status": products},
        "gpu_benchmark_scaling_result": {"status": trainings},
    }
    row = {"variables": variables, "conditions": [judged["ansible.builtin.assert"]["that"]]}
    assert rendering.rendered([row]) == [passes]
