"""The environments of frameworks: which of them a run applies, all started before the first is waited for."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_runs import run_play
from tests.unit.playbooks import rendering

BOTH = ("tensorflow_env", "pytorch_env")
# A third role, which no code of the playbooks names.
MANAGED = {
    **rendering.managed(),
    "jax_env": {"for": ["jax"], "with": ["framework_env"], "environments": ["/opt/gpuhost/jax"]},
}
ROWS: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "drift of both": ({"drift": ["pytorch_env", "tensorflow_env", "nccl"]}, BOTH),
    "drift of one": ({"drift": ["pytorch_env", "packages"]}, ["pytorch_env"]),
    "no drift": ({"drift": []}, []),
    "drift of others": ({"drift": ["nccl", "plan"]}, []),
    "--tags of one": ({"run": ["pytorch_env"]}, ["pytorch_env"]),
    "--tags of one and of a step": ({"run": ["tensorflow_env", "verify"]}, ["tensorflow_env"]),
    "--tags of both": ({"run": ["pytorch_env", "tensorflow_env"]}, BOTH),
    "--tags of another role": ({"run": ["nccl"]}, []),
    "--tags tagged": ({"run": ["tagged"]}, BOTH),
    "--tags of one without drift": ({"run": ["pytorch_env"], "drift": ["tensorflow_env"]}, []),
    "--skip-tags of one": ({"skip": ["tensorflow_env"]}, ["pytorch_env"]),
    "--skip-tags of both": ({"skip": ["tensorflow_env", "pytorch_env"]}, []),
    "--skip-tags of another role": ({"skip": ["nccl", "verify"]}, BOTH),
    "--tags and --skip-tags": ({"run": ["pytorch_env", "tensorflow_env"], "skip": ["pytorch_env"]}, ["tensorflow_env"]),
    "a third framework": ({"managed": MANAGED, "drift": ["jax_env", *BOTH]}, [*BOTH, "jax_env"]),
    "a third framework alone": ({"managed": MANAGED, "drift": ["jax_env", *BOTH], "run": ["jax_env"]}, ["jax_env"]),
}


def variables(
    drift: Sequence[str] = BOTH, run: Sequence[str] = ("all",), skip: Sequence[str] = (), managed: Any = None
) -> dict[str, Any]:
    """Return the variables of a host with drift, and the tags of its run."""
    decided = {"gpu_stack_drift": {part: ["changed"] for part in drift}}
    tags = {"ansible_run_tags": list(run), "ansible_skip_tags": list(skip)}
    return {**tags, **({"gpu_stack_managed": managed} if managed else {}), "__gpu_stack_planned": {"decided": decided}}


def test_environments_with_drift_are_applied_that_the_tags_leave_in() -> None:
    name = "__gpu_stack_environments_to_apply"
    found = rendering.rendered([{"variables": variables(**row), "names": [name]} for row, _expected in ROWS.values()])
    assert {case: answer[name] for case, answer in zip(ROWS, found, strict=True)} == {
        case: list(expected) for case, (_row, expected) in ROWS.items()
    }


def test_package_only_components_are_applied_by_the_same_tags_in_the_order_of_the_registry() -> None:
    rows: dict[str, tuple[dict[str, Any], list[str]]] = {
        "drift of both, and of a role with a task of its own": (
            {"drift": ["nccl", "cuda_toolkit", "cudnn"]},
            ["cudnn", "nccl"],
        ),
        "no drift": ({"drift": ["cuda_toolkit", "tensorflow_env"]}, []),
        "--tags of one": ({"drift": ["cudnn", "nccl"], "run": ["nccl"]}, ["nccl"]),
        "--tags of another role": ({"drift": ["cudnn", "nccl"], "run": ["env_paths"]}, []),
        "--skip-tags of one": ({"drift": ["cudnn", "nccl"], "skip": ["cudnn"]}, ["nccl"]),
    }
    name = "__gpu_stack_components_to_apply"
    found = rendering.rendered([{"variables": variables(**row), "names": [name]} for row, _expected in rows.values()])
    assert {case: answer[name] for case, answer in zip(rows, found, strict=True)} == {
        case: expected for case, (_row, expected) in rows.items()
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["begin one", "begin two", "finish one", "finish two"]),
        (("--tags", "two_env"), ["begin two", "finish two"]),
        (("--skip-tags", "two_env"), ["begin one", "finish one"]),
        (("--tags", "other"), []),
    ],
    ids=["all", "tags", "skipped tags", "another tag"],
)
def test_all_are_started_before_the_first_is_waited_for(
    tmp_path: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    """The tasks as they are, with two roles of a test that print what they do."""
    tasks = [
        task
        for name in ("start_environments", "finish_environments")
        for task in yaml.safe_load((rendering.PLAYBOOKS / f"tasks/{name}.yml").read_text())
    ]
    own = json.loads(json.dumps(tasks).replace("gpuhost.stack.", ""))
    for role in ("one", "two"):
        for half in ("begin", "finish"):
            path = tmp_path / f"roles/{role}_env/tasks/{half}.yml"
            path.parent.mkdir(parents=True, exist_ok=True)
            printed = {"name": "Print", "ansible.builtin.debug": {"msg": f"does {half} {role}"}}
            path.write_text(json.dumps([printed]))
    (tmp_path / "tasks.yml").write_text(json.dumps(own))
    roles = {f"{role}_env": {"environments": [f"/{role}"]} for role in ("one", "two")}
    include = {"ansible.builtin.include_tasks": f"{tmp_path}/tasks.yml", "tags": ["always"]}
    values = {
        "gpu_stack_managed": {**roles, "other": {}},
        "gpu_stack_drift": {"one_env": [], "two_env": [], "other": []},
    }
    facts = f"{rendering.PLAYBOOKS}/group_vars/all/facts.yml"
    play = {"hosts": "localhost", "gather_facts": False, "vars_files": [facts], "tasks": [include]}
    done = run_play(tmp_path, play, "-e", json.dumps(values), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"does (\w+ \w+)", done.stdout) == expected
