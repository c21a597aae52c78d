"""After two changes, teardown.yml restores the baseline: an adopted driver of others, or on some images none."""

import json
import os
import re
import shlex
import subprocess
import time
from pathlib import Path

import pytest

from tests import configurations

_OLD, NEW = configurations.of_scenario("teardown")
ROOTS = ("/var/lib/gpuhost", "/opt/gpuhost", "/usr/local/lib/gpuhost")


# As roles/framework_env/files/build.py does after its controller has died: it locks the directory and writes below it.
UNFINISHED_BUILD = "mkdir -p /opt/gpuhost/environments && flock /opt/gpuhost/environments sh -c '{}' >/dev/null 2>&1 &"
MAKING = "sleep 12; mkdir -p /opt/gpuhost/environments/made-late"


@pytest.fixture(scope="module")
def driver_packages(playbook, reports):
    """Return the driver's packages (NAME=VERSION) after a change of versions."""
    playbook("gpu_host", *NEW.options)
    plan = json.loads((reports / "newest/teardown-hopper/plan.json").read_text())
    return plan["components"]["driver"]["packages"]


@pytest.fixture(scope="module")
def torn_down(playbook, driver_packages):
    """Return the teardown's output, after one more change of versions and while an environment is being built."""
    ssh = ["ssh", "-F", ".lab/teardown/ssh_config", "teardown-hopper"]
    subprocess.run([*ssh, f"sudo sh -c {shlex.quote(UNFINISHED_BUILD.format(MAKING))}"], check=True)
    output = playbook("teardown").stdout
    while subprocess.run([*ssh, "pgrep -f '[m]ade-late'"], capture_output=True).returncode == 0:
        time.sleep(1)
    return output


def test_what_somebody_had_installed_was_adopted_as_it_was(as_root):
    """By the configuration that was verified before converge changed the host."""
    verified, previous = (
        json.loads(file.content_string) if file.exists else {}
        for file in (as_root.file(f"/var/lib/gpuhost/{name}.json") for name in ("verified", "previous"))
    )
    is_set_up = verified["plan"]["distribution"] == "ubuntu-22.04"
    assert bool(previous) is is_set_up
    if is_set_up:
        assert previous["plan"]["request"]["adopt"] == "true"
        assert previous["plan"]["kept_driver"]["package"].endswith("570")
    assert verified["plan"]["components"]["driver"]["branch"] != "570"


def test_host_is_in_its_baseline_state(torn_down, state, sections, differences):
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "results/before"
    before = sections((folder / "teardown-hopper").read_text())
    after = state()
    assert len(before["packages"]) > 40
    assert after.keys() == before.keys()
    # The lists are a cache that the first refresh filled.
    there = before.pop("repository lists")
    ours = re.compile("repository.lab|nvidia")
    assert not [name for name in after.pop("repository lists") if ours.search(name) and name not in there]
    assert differences(before, after) == []


@pytest.mark.parametrize("path", ROOTS)
def test_nothing_of_this_project_is_left(torn_down, host, path):
    assert not host.file(path).exists


def test_changes_are_reported(torn_down, driver_packages, packages):
    assert driver_packages
    assert [spec for spec in driver_packages if " ".join(packages.parse(spec)) not in torn_down] == []
    assert "/etc/profile.d/cuda.sh" in torn_down


def test_a_second_teardown_finds_nothing_to_do(torn_down, playbook):
    again = playbook("teardown").stdout
    assert "changed=0 " in again
    assert "no record of this host" in again
