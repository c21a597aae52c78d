"""Role variables of an inventory and of the plan, in runs of Ansible: whose value a role gets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.ansible_runs import INTERPRETER, run_playbook
from tests.unit.plugin_utils.actions.test_inventory_variables import PROJECT, inventory

PLAN = {"import_playbook": str(PROJECT / "playbooks/plan.yml")}
# A role of the user's own that shows what the roles of ours would get.
SHOWN = ("cudnn", "nvidia_driver", "nccl", "cuda_toolkit")


def site(folder: Path, plays: list[dict[str, Any]], inventory_file: Path) -> str:
    """Run plays with the playbooks' group_vars, in which the roles show their variables; return the output."""
    (folder / "site.yml").write_text(yaml.safe_dump(plays))
    (folder / "group_vars").symlink_to(PROJECT / "playbooks/group_vars")
    (folder / "collections").symlink_to(PROJECT / "collections")
    for name in SHOWN:
        role = folder / "roles" / f"show_{name}"
        (role / "tasks").mkdir(parents=True)
        for kind in ("defaults", "vars"):
            (role / kind).symlink_to(PROJECT / "roles" / name / kind)
        versions = {"ansible.builtin.debug": {"msg": f"{name}: {{{{ {name}_version }}}} {{{{ {name}_packages }}}}"}}
        headers = {"ansible.builtin.debug": {"msg": "{{ nvidia_driver_kernel_headers }}"}}
        compilers = {"ansible.builtin.debug": {"msg": "{{ cuda_toolkit_host_compilers }}"}}
        tasks = {"nvidia_driver": [headers], "cuda_toolkit": [compilers]}.get(name, [versions])
        (role / "tasks/main.yml").write_text(yaml.safe_dump(tasks))
    words = ("site.yml", "-i", inventory_file, "-c", "local", *INTERPRETER)
    answer = run_playbook(folder, *words, GPUHOST_REPORTS=str(folder / "reports"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def show(*names: str, **play: Any) -> dict[str, Any]:
    roles = [f"show_{name}" for name in names]
    return {"hosts": "gpu_hosts", "gather_facts": False, "roles": roles, **play}


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("site")
    path = inventory(
        folder / "inventory",
        {"all": {"nvidia_driver_kernel_headers": ["of-all"]}, "gpu_hosts": {"nccl_packages": ["of-gpu-hosts"]}},
        all={"vars": {"cuda_toolkit_host_compilers": ["of-{{ inventory_hostname }}"]}},
        gpu_hosts={"hosts": {"one": None}, "vars": {"cudnn_packages": ["of-the-file"], "gpu_stack_expect_gpus": 0}},
    )
    return site(folder, [PLAN, show(*SHOWN)], path)


@pytest.mark.parametrize("value", ["of-the-file", "of-all", "of-gpu-hosts", "of-one"])
def test_role_variables_of_the_inventory_win_wherever_it_sets_them(values: str, value: str) -> None:
    assert value in values


def test_what_the_plan_gives_is_that_of_the_last_plan_and_may_be_read_by_the_inventory(tmp_path: Path) -> None:
    """A component leaves the plan and comes back in another version, and a play names its own."""
    plays = [
        *(PLAN, {**PLAN, "vars": {"gpu_stack_nccl": "none"}}, {**PLAN, "vars": {"gpu_stack_nccl": "2.27"}}),
        show("nccl", "cudnn"),
        show("nccl", vars={"nccl_version": "2.1", "nccl_packages": ["of-the-play"]}),
    ]
    reading = {"cudnn_packages": ["libcudnn9-cuda-13={{ cudnn_version }}-9"], "gpu_stack_expect_gpus": 0}
    path = inventory(tmp_path / "inventory", {}, gpu_hosts={"hosts": {"one": None}, "vars": reading})
    output = site(tmp_path, plays, path)
    shown = re.findall(r"nccl: (\S+) (\[.*?\])", output)
    assert [version for version, _packages in shown] == ["2.27.7", "2.1"]
    assert "libnccl2=2.27.7-1" in shown[0][1]
    assert "of-the-play" in shown[1][1]
    assert re.search(r"libcudnn9-cuda-13=9\.[\d.]+-9", output)
