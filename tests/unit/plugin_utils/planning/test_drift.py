"""Which parts a run enters: whatever moved, in the plan, the variables, our files or on the host, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning import drift

MANAGED: dict[str, Any] = {
    "packages": {"for": ["driver", "cuda", "cudnn", "nccl"]},
    "nvidia_repo": {"for": ["repository"], "files": ["/etc/apt/sources.list.d/nvidia-cuda.sources"]},
    "nvidia_driver": {"for": ["driver"], "services": ["nvidia-persistenced"], "driver": False},
    "env_paths": {"for": ["cuda"], "files": ["/etc/profile.d/cuda.sh"], "linker_cache": True},
    "tensorflow_env": {"for": ["tensorflow"], "environments": ["/opt/gpuhost/tensorflow"]},
}
PLAN: dict[str, Any] = {
    "repository": {"url": "https://example.org"},
    "components": {
        "driver": {"packages": ["nvidia-driver-cuda=595.71.05-1"], "pinning_packages": ["nvidia-driver-pinning-595"]},
        "cuda": {"packages": ["cuda-toolkit-13-2=13.2.1-1"]},
        "cudnn": None,
        "nccl": None,
        "tensorflow": None,
    },
}
SAME: dict[str, Any] = {
    "components": [{"component": name, "action": "keep", "planned": None} for name in ("driver", "cuda")],
    "leftovers": {"does": []},
}
FINGERPRINTS = {name: f"fingerprint of {name}" for name in MANAGED}


@pytest.fixture
def wanted() -> dict[str, Any]:
    return drift.parts(PLAN, MANAGED, FINGERPRINTS)


@pytest.fixture
def applied(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: {"fingerprint": part["fingerprint"], "changed": []} for name, part in wanted.items()}


def detect(wanted: dict[str, Any], applied: dict[str, Any], diff: dict[str, Any] = SAME, **options: Any) -> Any:
    return drift.drift(wanted, applied, diff, MANAGED, **options)


def test_parts_are_those_of_the_planned_components(wanted: dict[str, Any]) -> None:
    assert list(wanted) == ["packages", "nvidia_repo", "nvidia_driver", "env_paths"]
    assert wanted["packages"]["watch"]["packages"] == [
        "cuda-toolkit-13-2",
        "nvidia-driver-cuda",
        "nvidia-driver-pinning-595",
    ]
    # A container's kernel is not its own: nothing of the loaded driver is watched where that is false.
    assert wanted["nvidia_driver"]["watch"] == {"services": ["nvidia-persistenced"]}
    assert wanted["env_paths"]["watch"] == {"files": ["/etc/profile.d/cuda.sh"], "linker_cache": True}


def test_a_host_that_holds_what_is_planned_is_not_entered(wanted: Any, applied: Any) -> None:
    assert detect(wanted, applied) == {}


def test_a_host_without_a_record_is_entered_whole(wanted: Any) -> None:
    assert set(detect(wanted, {})) == set(wanted)


def test_what_was_asked_for_differently_is_entered_alone(wanted: Any, applied: Any) -> None:
    applied["env_paths"]["fingerprint"] = "another"
    assert detect(wanted, applied) == {"env_paths": ["the last run was asked for something else"]}


def test_what_was_changed_on_the_host_is_entered_alone(wanted: Any, applied: Any) -> None:
    applied["nvidia_repo"]["changed"] = ["file /etc/x was y, is not there"]
    assert detect(wanted, applied) == {"nvidia_repo": ["file /etc/x was y, is not there"]}


def test_a_component_that_the_plan_moves_is_entered_with_its_packages(wanted: Any, applied: Any) -> None:
    rows = [{"component": "cuda", "action": "upgrade", "planned": "13.2.1"}]
    found = detect(wanted, applied, {**SAME, "components": rows})
    assert found == {"packages": ["cuda: upgrade 13.2.1"], "env_paths": ["cuda: upgrade 13.2.1"]}


def test_leftovers_are_put_away_even_where_all_else_holds(wanted: Any, applied: Any) -> None:
    found = detect(wanted, applied, {**SAME, "leftovers": {"does": ["uninstalls a driver"]}})
    assert set(found) == {"packages", "nvidia_repo", "nvidia_driver", "env_paths"}


def test_always_enters_everything(wanted: Any, applied: Any) -> None:
    assert set(detect(wanted, applied, converge="always")) == set(wanted)
    with pytest.raises(ValueError, match="gpu_stack_converge is 'sometimes', expected one of drift, always"):
        detect(wanted, applied, converge="sometimes")


# The fingerprint --------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("roles/nccl/tasks/main.yml", "roles/cudnn/tasks/main.yml", "plugins/modules/a.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "plugins/module_utils").mkdir()
    return tmp_path


def fresh(variables: dict[str, Any], roles: list[str], project: Path) -> str:
    drift._content.cache_clear()
    return drift.fingerprint(variables, roles, project)


def test_variables_files_and_modules_make_another_fingerprint(project: Path) -> None:
    before = fresh({"nccl_version": "2.30"}, ["nccl"], project)
    assert fresh({"nccl_version": "2.30"}, ["nccl"], project) == before
    assert fresh({"nccl_version": "2.31"}, ["nccl"], project) != before
    seen = {before}
    for name in ("roles/nccl/tasks/main.yml", "plugins/modules/a.py", "plugins/module_utils/b.py", "roles/nccl/new"):
        (project / name).write_text("other")
        seen.add(fresh({"nccl_version": "2.30"}, ["nccl"], project))
    assert len(seen) == 5


def test_another_role_and_compiled_files_do_not_matter(project: Path) -> None:
    before = fresh({}, ["nccl"], project)
    (project / "roles/cudnn/tasks/main.yml").write_text("other")
    (project / "plugins/modules/__pycache__").mkdir()
    (project / "plugins/modules/__pycache__/a.pyc").write_text("x")
    assert fresh({}, ["nccl"], project) == before


def test_a_role_that_is_not_there_is_an_error(project: Path) -> None:
    with pytest.raises(FileNotFoundError, match="roles/none is not a role"):
        fresh({}, ["none"], project)
