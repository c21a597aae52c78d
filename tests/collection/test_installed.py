"""The installed collection, as its users run it: by FQCN, without a line of ansible.cfg."""

import json
import re
import subprocess
import tarfile
from pathlib import Path

from tests.collection.conftest import Run

FOREIGN_PLAY = """
- hosts: gpu_hosts
  roles:
    - role: gpuhost.stack.cuda_toolkit
      vars:
        cuda_toolkit_version: "13.0.2"
"""


def only_run(site: Path) -> Path:
    """Return the directory of the only run that left a report in the user's directory."""
    (run,) = (site / "reports").glob("2*")
    return run


def assert_planned(answer: subprocess.CompletedProcess[str], site: Path) -> None:
    """The plan of this machine without its GPUs is shown, and is in the report."""
    assert len(re.findall(r"^  . CUDA toolkit ", answer.stdout, re.MULTILINE)) == 1, answer.stdout + answer.stderr
    plan = json.loads((only_run(site) / "localhost/plan.json").read_text())
    assert plan["components"]["cuda"]["version"] in answer.stdout
    assert answer.stdout.count(f"Report: {only_run(site)}/report.md") == 1


def test_every_file_that_a_role_or_playbook_reads_is_in_the_tarball(tarball: Path) -> None:
    with tarfile.open(tarball) as archive:
        shipped = {member.name for member in archive.getmembers() if member.isfile()}
    project = Path(__file__).resolve().parents[2]
    needed = {
        str(path.relative_to(project))
        for folder in ("catalog", "roles", "playbooks", "plugins/module_utils")
        for path in (project / folder).rglob("*")
        if path.is_file() and not {"__pycache__", "collections"} & set(path.parts[len(project.parts) :])
    }
    assert needed - shipped == set()


def test_plan_by_fqcn(installed: Path, site: Path, playbook: Run) -> None:
    answer = playbook("gpuhost.stack.plan", ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, site)
    # As INJECT_FACTS_AS_VARS of ansible-core 2.20, without our ansible.cfg.
    assert "DEPRECATION" not in answer.stdout + answer.stderr
    assert not list(installed.rglob("reports"))


def test_gpu_host_by_fqcn_refuses_an_unknown_variable(installed: Path, site: Path, playbook: Run) -> None:
    """The refusal precedes the probe, so that this test cannot change the machine that it runs on."""
    answer = playbook("gpuhost.stack.gpu_host", "-e", "gpu_stack_cudda=1", ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert answer.returncode == 2
    assert "gpu_stack_cudda: no such variable" in answer.stdout


def test_a_foreign_playbook_imports_a_playbook_by_fqcn(installed: Path, site: Path, playbook: Run) -> None:
    (site / "site.yml").write_text("- import_playbook: gpuhost.stack.plan\n")
    answer = playbook("site.yml", ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, site)


def test_a_role_by_fqcn_in_a_foreign_play(installed: Path, site: Path, playbook: Run) -> None:
    (site / "play.yml").write_text(FOREIGN_PLAY)
    answer = playbook("play.yml", "--check", ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "gpuhost.stack.cuda_toolkit : " in answer.stdout


def test_the_report_is_made_once_where_the_callback_is_enabled_too(installed: Path, site: Path, playbook: Run) -> None:
    (site / "ansible.cfg").write_text("[defaults]\ncallbacks_enabled = gpuhost.stack.evidence\n")
    answer = playbook("gpuhost.stack.plan", ANSIBLE_COLLECTIONS_PATH=str(installed))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert_planned(answer, site)
