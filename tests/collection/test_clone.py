"""A clone, used from elsewhere: another directory, a foreign playbook, a user's own ansible.cfg, never written to."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collection.conftest import PROJECT, Run
from tests.collection.test_installed import assert_planned

SHIPPED = (
    "catalog",
    "collections",
    "inventories",
    "meta",
    "playbooks",
    "plugins",
    "roles",
    "ansible.cfg",
    "galaxy.yml",
)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the checkout, so that what is found is found in it and not in this checkout."""
    place = tmp_path_factory.mktemp("clone") / "gpuhost"
    place.mkdir()
    for name in SHIPPED:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    return place


def test_plan_from_another_directory(clone: Path, site: Path, playbook: Run) -> None:
    answer = playbook(str(clone / "playbooks/plan.yml"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, site)
    assert "DEPRECATION" not in answer.stdout + answer.stderr
    assert not (clone / "reports").exists()


def test_plan_with_an_ansible_cfg_of_the_user(clone: Path, site: Path, playbook: Run) -> None:
    (site / "ansible.cfg").write_text("[defaults]\ncallbacks_enabled = ansible.builtin.tree\nforks = 3\n")
    answer = playbook(str(clone / "playbooks/plan.yml"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, site)


@pytest.mark.parametrize("found_by", ["environment", "link"])
def test_a_foreign_playbook_imports_the_main_job(clone: Path, site: Path, playbook: Run, found_by: str) -> None:
    """Ansible ignores collections beside an imported playbook (ansible/ansible#85357): they must be found otherwise."""
    (site / "site.yml").write_text(f"- import_playbook: {clone}/playbooks/preflight.yml\n")
    settings = {"ANSIBLE_COLLECTIONS_PATH": str(clone / "collections")} if found_by == "environment" else {}
    if found_by == "link":
        (site / "collections").symlink_to(clone / "collections")
    answer = playbook("site.yml", "-e", "gpu_stack_expect_gpus=0", **settings)
    assert answer.stdout.count("PLAY [") == 2, answer.stdout + answer.stderr
    assert_planned(answer, site)


def test_roles_resolve_by_fqcn_from_an_example_elsewhere(clone: Path, playbook: Run) -> None:
    answer = playbook(str(clone / "playbooks/examples/cuda_toolkit.yml"), "--list-tasks")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "gpuhost.stack.cuda_toolkit : " in answer.stdout


def test_a_run_writes_nothing_into_the_clone(clone: Path, site: Path, playbook: Run) -> None:
    """A clone may be in a read-only directory."""
    before = sorted(clone.rglob("*"))
    answer = playbook(str(clone / "playbooks/plan.yml"), GPUHOST_REPORTS=str(site / "reports"))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, site)
    written = [path for path in clone.rglob("*") if path not in before and "__pycache__" not in path.parts]
    assert written == []


def test_without_an_inventory_no_host_is_touched(clone: Path, site: Path) -> None:
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/gpu_host.yml"]
    answer = subprocess.run(command, cwd=clone, capture_output=True, text=True)
    assert answer.returncode == 1
    assert "TASK" not in answer.stdout
    assert "ERROR: found no inventory" in answer.stderr
