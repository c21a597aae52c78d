"""What is managed is edited, deleted or downgraded in turn; a rerun repairs it with the part that manages it.

The managed files are read from where the playbooks read them, so that a new one is not forgotten.
tests/unit/module_utils/state/test_applied.py shows that each kind of change is detected.
"""

import functools
import json
import os
import random
from typing import Any

import pytest

from tests.damages import DAMAGES, Damage, missed, pairs, run_on
from tests.unit.playbooks import rendering

pytestmark = pytest.mark.usefixtures("host")

MANAGED = rendering.managed()
FILES = [name for name, entry in MANAGED.items() if entry.get("files")]
# The parts whose components the plan of hosts.yml has not: no NVSwitch, no framework.
NOT_PLANNED = {"fabric", "tensorflow_env", "pytorch_env"}
ALL = os.environ.get("FAULTS") == "all"
BY_DEFAULT = [row for row in DAMAGES if row.default and not row.environment]
WITHOUT_CHECKS = ("--skip-tags", "verify,smoke_train")
# The same pairs for each commit, unless a seed is given: what fails is then what was changed.
SEED = int(os.environ.get("SEED") or 1)
PAIRS = pairs() if ALL else random.Random(SEED).sample(pairs(), 3)
# Hides nvcc from login shells, which fails a check and is no setting that is watched.
SHADOW = "/etc/profile.d/zz-site-path.sh"


@pytest.fixture
def rerun(playbook, reports):
    """Return a function that runs gpu_host.yml and returns the drift that it found, {part: reasons}."""

    def run(*options: str) -> dict[str, list[str]]:
        playbook("gpu_host", *WITHOUT_CHECKS, *options)
        found: dict[str, list[str]] = json.loads((reports / "newest/drift-hopper/drift.json").read_text())
        return found

    return run


@pytest.fixture(scope="module")
def last_state() -> list[dict[str, list[str]]]:
    """Return a list with the state that the last check found unchanged, empty if it found a difference."""
    return []


@pytest.fixture
def unchanged(state, differences, last_state):
    """Return a function that lists the differences since the last check, or since the test began if that found some."""
    before = last_state.pop() if last_state else state()

    def check() -> list[str]:
        now = state()
        found = differences(before, now)
        last_state[:] = [] if found else [now]
        return found

    return check


# Two ways of leaving a part out of a run.
LEFT_OUT = [("--skip-tags", "verify,smoke_train,env_paths"), ("--tags", "nvidia_driver")]


# Shell functions. Of a directory the mode is changed, as its content is others'.
DAMAGE_FILES = """set -e
is_directory() { [ -d "$1" ] && [ ! -L "$1" ]; }
delete() { if is_directory "$1"; then chmod 0700 "$1"; else rm "$1"; fi; }
edit() {
  if is_directory "$1"; then chmod 0700 "$1"
  elif [ -L "$1" ]; then ln -sfn /bin/true "$1"
  else echo '# edited' >> "$1" && chmod 0600 "$1"
  fi
}
"""


def existing(host, paths: list[str]) -> list[str]:
    script = 'for path do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done'
    found: list[str] = host.run_expect([0], f"sh -c '{script}' sh {' '.join(paths)}").stdout.splitlines()
    return found


def test_rerun_finds_no_drift(rerun, unchanged):
    assert rerun() == {}
    assert unchanged() == []


@pytest.fixture(scope="module")
def managed_files(as_root) -> dict[str, list[str]]:
    """Return {part: files on the host}; parts of components that this host's plan has not are left out."""
    plan = json.loads(as_root.file("/etc/ansible/facts.d/gpu_stack.fact").content_string)
    # The repository is no component.
    parts = [name for name in FILES if any(plan["components"].get(whose, whose) for whose in MANAGED[name]["for"])]
    # The files of "packages" belong to packages of the distribution, of which this host's plan has none.
    assert set(FILES) - set(parts) == NOT_PLANNED
    found = {part: existing(as_root, MANAGED[part]["files"]) for part in parts}
    assert [part for part, paths in found.items() if not paths] == ["packages"]
    return {part: paths for part, paths in found.items() if paths}


@pytest.mark.parametrize("part", ["all at once", *(FILES if ALL else [])])
def test_edited_and_deleted_files_are_restored(part, as_root, managed_files, rerun, unchanged):
    """Half of the files are deleted, the others edited (links: retargeted); then the other way round.

    Each part alone is in the tier faults-long.
    """
    edited = managed_files if part == "all at once" else {part: managed_files.get(part, [])}
    if not any(edited.values()):
        pytest.skip(f"{part}: the plan of this host has no such file")
    for turn in (0, 1):
        paths = [path for paths in edited.values() for path in paths]
        calls = [f"{'delete' if number % 2 == turn else 'edit'} {path}\n" for number, path in enumerate(paths)]
        as_root.run_expect([0], "sh -c %s", DAMAGE_FILES + "".join(calls))
        found = rerun()
        assert set(found) == set(edited)
        for name, paths in edited.items():
            assert [path for path in paths if not any(path in reason for reason in found[name])] == []
        assert unchanged() == []


def test_packages_are_restored(as_root, packages, planned_packages, rerun, unchanged):
    """Holds are released, a package is downgraded, and another one removed."""

    def names(component: str) -> list[str]:
        return [packages.parse(spec)[0] for spec in planned_packages(component) if packages.parse(spec)[1]]

    nccl, cudnn, driver = names("nccl"), names("cudnn"), names("driver")
    packages.unhold(*nccl)
    packages.downgrade(*nccl)
    packages.remove(cudnn[-1])
    packages.unhold(driver[0])
    found = rerun()
    assert "packages" in found
    for name in (nccl[0], cudnn[-1], driver[0]):
        assert any(name in reason for reason in found["packages"]), name
    assert unchanged() == []


@pytest.fixture(scope="module")
def damage(as_root, packages):
    """Return a function that runs a command of damages.py on the host."""
    return functools.partial(run_on, as_root, packages)


def rows(environment: bool) -> list[Damage]:
    """Return the damages of an environment, or the others; without FAULTS=all one of them, which is skipped."""
    found = [row for row in DAMAGES if row.environment == environment]
    return found if ALL else found[:1]


def assert_found(found: dict[str, list[str]], damages: list[Damage]) -> None:
    assert set(found) == {row.part for row in damages}
    assert missed(found, damages) == []


@pytest.mark.parametrize("options", sorted({row.options for row in BY_DEFAULT if row.options}), ids=" ".join)
def test_damages_that_only_an_option_finds_are_repaired(options, damage, rerun, unchanged):
    """The others of the default run: test_verify_names_the_damage_and_forgets_nothing.

    That nothing of it is left is what the first run of the next test says, as after each test without a run of its own.
    """
    damages = [row for row in BY_DEFAULT if row.options == options]
    damage(*(row.command for row in damages))
    assert_found(rerun(*options), damages)
    damage(*(row.cleanup for row in damages))
    assert unchanged() == []


def test_changed_variable_runs_its_role_only(rerun):
    assert list(rerun("-e", "nvidia_repo_unblocked_packages=['x']")) == ["nvidia_repo"]


def test_converge_always_runs_every_part_and_changes_nothing(rerun, unchanged):
    found = rerun("-e", "gpu_stack_converge=always")
    assert set(found) == set(MANAGED) - NOT_PLANNED
    assert unchanged() == []


def test_packages_are_repaired_while_the_repository_is_away(as_root, rerun, damage, unchanged):
    """The files of the packages are kept on the host. And nothing else is to be repaired after the run before."""
    as_root.run_expect([0], "cp /etc/hosts /tmp/hosts && echo 127.0.0.1 repository.lab >> /etc/hosts")
    damage("rm $CUDA/bin/nvcc")
    try:
        assert set(rerun()) == {"packages"}
    finally:
        as_root.run_expect([0], "cat /tmp/hosts > /etc/hosts")
    assert unchanged() == []


def test_damage_that_cannot_be_repaired_fails_each_run_until_it_is_gone(as_root, playbook, rerun, unchanged):
    """A directory in place of the link: nothing of others is removed."""
    as_root.run_expect([0], "rm /usr/local/cuda && mkdir /usr/local/cuda")
    for _unused in range(2):
        failed = playbook("gpu_host", *WITHOUT_CHECKS, expect=2).stdout
        assert "These differences were not repaired" in failed
        assert "link of the alternative cuda was points=/etc/alternatives/cuda, is points=not a link" in failed
    as_root.run_expect([0], "rmdir /usr/local/cuda")
    assert "cuda_toolkit" in rerun()
    assert unchanged() == []


@pytest.mark.skipif(not ALL, reason="each damage alone is in the tier faults-long (FAULTS=all)")
@pytest.mark.parametrize("row", rows(environment=False), ids=lambda row: row.name)
def test_each_damage_is_found_and_repaired_alone(row, damage, rerun, state, differences):
    if row.before:
        damage(row.before)
        rerun()
    before = state()
    damage(row.command)
    assert_found(rerun(*row.options), [row])
    damage(row.cleanup)
    assert differences(before, state()) == []
    assert rerun() == {}


@pytest.fixture
def records(as_root):
    """Return a function that returns each record, but for what the last verification has found."""

    def read() -> list[str | dict[str, Any]]:
        found = as_root.run_expect([0], "sh -c 'sha256sum /var/lib/gpuhost/*.json'").stdout.splitlines()
        pending = json.loads(as_root.run_expect([0], "cat /var/lib/gpuhost/pending.json").stdout)
        of_checks = ("/last_result.json", "/verify_options.json", "/pending.json")
        return [*(line for line in found if not line.endswith(of_checks)), {**pending, "passed": None}]

    return read


def test_verify_names_the_damage_and_forgets_nothing(as_root, damage, playbook, rerun, records, reports, unchanged):
    """Also where a check fails: nvcc is gone."""
    damages = [row for row in BY_DEFAULT if not row.options]
    damage(*(row.command for row in damages))
    before = records()
    found = playbook("verify", expect=2).stdout
    assert "cuda.nvcc" in found
    assert "The host is damaged" in found
    assert missed({row.part: [found] for row in damages}, damages) == []
    fresh = as_root.run_expect([2], "gpuhost-verify --fresh --json").stdout
    assert missed({row.part: json.loads(fresh)["damage"] for row in damages}, damages) == []
    assert records() == before
    (entry,) = json.loads((reports / "latest/report.json").read_text())["hosts"]
    assert entry["status"] == "failed"
    assert missed({row.part: [*entry["damage"]["left"].values()] for row in damages}, damages) == []
    assert_found(rerun(), damages)
    (entry,) = json.loads((reports / "latest/report.json").read_text())["hosts"]
    assert missed({row.part: [*entry["damage"]["repaired"].values()] for row in damages}, damages) == []
    assert entry["damage"]["left"] == {}
    damage(*(row.cleanup for row in damages))
    assert unchanged() == []


@pytest.mark.parametrize(
    ("number", "pair"), list(enumerate(PAIRS)), ids=[f"{one.name} and {other.name}" for one, other in PAIRS]
)
def test_pairs_of_damages_are_repaired_whatever_came_before(number, pair, as_root, damage, playbook, rerun, unchanged):
    """Before the run: nothing, a failed verification, or a run whose checks fail and which is rolled back."""
    damage(*(row.command for row in pair))
    if number % 4 == 1:
        playbook("verify", expect=2)
    if number % 4 == 2:
        as_root.run_expect([0], f"echo PATH=/usr/bin:/bin > {SHADOW}")
        playbook("gpu_host", "--skip-tags", "smoke_train", expect=2)
        as_root.run_expect([0], f"rm {SHADOW}")
        rerun()  # that run has repaired what this one need not
    else:
        assert_found(rerun(), list(pair))  # and nothing that the pair before has left
    damage(*(row.cleanup for row in pair))
    assert unchanged() == []


def test_a_masked_service_is_named_before_a_change_with_its_remedy(as_root, playbook, unchanged):
    as_root.run_expect([0], "systemctl mask nvidia-persistenced")
    assert "systemctl unmask nvidia-persistenced" in playbook("gpu_host", expect=2).stdout
    as_root.run_expect([0], "systemctl unmask nvidia-persistenced")
    assert unchanged() == []


def test_accepted_damage_stays_and_is_shown(as_root, playbook, rerun, reports):
    as_root.run_expect([0], "sh -c 'echo LD_LIBRARY_PATH=/opt/site >> /etc/environment'")
    name = "LD_LIBRARY_PATH in /etc/environment"
    accept = ("-e", json.dumps({"gpu_stack_accept_damage": [name, "file /etc/no-such"]}))
    assert rerun(*accept) == {}
    verified = playbook("verify", *accept)
    assert "gpu_stack_accept_damage has 'file /etc/no-such', which is no damage of this host" in verified.stderr
    (entry,) = json.loads((reports / "latest/report.json").read_text())["hosts"]
    assert list(entry["damage"]["accepted"]) == [name]
    assert json.loads(as_root.run("gpuhost-verify --fresh --json").stdout)["damage"] == []
    left_out = playbook("gpu_host", "--tags", "verify", expect=2).stdout
    assert "The host is damaged" in left_out
    assert name in left_out
    assert list(rerun()) == ["env_paths"]
    as_root.run_expect([0], "sed -i '/commented out by gpuhost/d' /etc/environment")


def test_next_run_after_a_failed_check_runs_every_part_and_repairs_what_no_record_has(as_root, rerun, playbook, damage):
    as_root.run_expect([0], f"echo PATH=/usr/bin:/bin > {SHADOW}")
    try:
        playbook("gpu_host", "--skip-tags", "smoke_train", expect=2)
    finally:
        as_root.run_expect([0], f"rm {SHADOW}")
    damage("rm $CUDA/bin/nvcc")
    found = rerun()
    assert len(found) > 5
    assert any("content of" in reason and "/bin/nvcc is missing" in reason for reason in found["packages"])
    assert rerun() == {}
    playbook("verify")


@pytest.mark.parametrize("options", LEFT_OUT if ALL else LEFT_OUT[:1], ids=" ".join)
def test_part_that_a_run_leaves_out_is_not_changed(as_root, playbook, rerun, unchanged, options):
    driver, paths = "/etc/modprobe.d/gpuhost-nouveau.conf", "/etc/profile.d/cuda.sh"
    as_root.run_expect([0], f"rm {driver} {paths}")
    playbook("gpu_host", *options)
    assert existing(as_root, [driver, paths]) == [driver]
    assert "env_paths" in rerun()
    assert unchanged() == []
    assert rerun() == {}


# With an environment, so at the end: the plan of the tests above has none.


@pytest.fixture(scope="module")
def with_environment(playbook):
    """Build the TensorFlow environment, until the end of the file; return the option that plans it."""
    options = ("-e", "gpu_stack_tensorflow=auto")
    playbook("gpu_host", *WITHOUT_CHECKS, *options)
    yield options
    playbook("gpu_host", *WITHOUT_CHECKS)


@pytest.mark.skipif(not ALL, reason="one damage of an environment is in the scenario default, each in faults-long")
@pytest.mark.parametrize("row", rows(environment=True), ids=lambda row: row.name)
def test_damaged_environment_is_built_again(row, damage, rerun, as_root, with_environment):
    damage(row.command)
    assert_found(rerun(*with_environment, *row.options), [row])
    check = "/opt/gpuhost/tensorflow/bin/python -c 'import tensorflow' && /opt/gpuhost/uv/bin/uv --version"
    as_root.run_expect([0], check)
    assert rerun(*with_environment) == {}
