"""The host was recorded before the first run, changed twice, and is now left as it was found."""

import os
from pathlib import Path

import pytest

ROOTS = ("/var/lib/gpuhost", "/opt/gpuhost", "/usr/local/lib/gpuhost")


@pytest.fixture(scope="module")
def torn_down(playbook):
    """What the teardown said, after one more change of versions."""
    playbook("gpu_host", "-e", "gpu_stack_driver=595", "-e", "gpu_stack_cuda=13.2")
    return playbook("teardown").stdout


def test_the_host_is_as_it_was_found(torn_down, state, sections, differences):
    folder = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "results/before"
    before = sections((folder / "teardown-hopper").read_text())
    after = state()
    assert len(before["packages"]) > 100
    assert after.keys() == before.keys()
    # apt's lists are a cache of what is on offer, which the first `apt-get update` filled.
    assert not [name for name in after.pop("repository lists") if "repository.lab" in name]
    before.pop("repository lists")
    assert differences(before, after) == []


@pytest.mark.parametrize("path", ROOTS)
def test_nothing_of_this_project_is_left(torn_down, host, path):
    assert not host.file(path).exists


def test_what_was_done_is_told(torn_down):
    assert "nvidia-driver-cuda 595" in torn_down
    assert "/etc/profile.d/cuda.sh" in torn_down


def test_a_second_teardown_finds_nothing_to_do(torn_down, playbook):
    again = playbook("teardown").stdout
    assert "changed=0 " in again
    assert "no record of this host" in again
