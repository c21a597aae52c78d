"""The repository offers newer versions of the whole stack (simulated, empty); an upgrade of the system changes none."""

import re
from collections.abc import Iterator

import pytest

SOURCE = "/etc/apt/sources.list.d/nvidia-cuda.sources"
LATER = "/etc/apt/sources.list.d/later.sources"
UNATTENDED = "/etc/apt/apt.conf.d/60later"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Options::=--force-confold"
CHANGED = re.compile(r"^(?:Inst|Remv) ([^ ]+)", re.MULTILINE)


@pytest.fixture(scope="module")
def stack(as_root, read_installed) -> Iterator[dict[str, str]]:
    """Return {package: version} of the installed packages that the later state of the repository offers."""
    as_root.run_expect([0], f"sed 's|//repository.lab/|//repository.lab/later/|' {SOURCE} > {LATER}")
    as_root.run_expect([0], f"{APT} update")
    lists = as_root.run_expect([0], "cat /var/lib/apt/lists/repository.lab_later_*_Packages").stdout
    offered = set(re.findall(r"^Package: (.+)$", lists, re.MULTILINE))
    yield {name: version for name, version in read_installed().items() if name in offered}
    as_root.run_expect([0], f"rm {LATER}")
    as_root.run_expect([0], f"{APT} update")


def test_whole_stack_is_held_and_offered_in_newer_versions(stack, held):
    """Otherwise the tests below would show nothing."""
    assert set(stack) == held
    for part in ("nvidia-", "nvidia-driver-pinning-580", "cuda-nvcc-13-0", "cuda-nvcc-13-2", "libcudnn9-", "libnccl2"):
        assert any(name.startswith(part) for name in held), (part, sorted(held))


def test_without_holds_an_upgrade_would_change_the_whole_stack(as_root, stack):
    simulated = as_root.run_expect([0], f"{APT} --simulate --ignore-hold dist-upgrade").stdout
    assert set(stack) - set(CHANGED.findall(simulated)) == set()


def test_unattended_upgrades_would_change_nothing(as_root, stack):
    """NVIDIA's repository is among its origins. The driver is both blacklisted and held."""
    as_root.run_expect([0], f"{APT} -y --no-install-recommends install unattended-upgrades")
    as_root.run_expect([0], f"echo 'Unattended-Upgrade::Origins-Pattern {{ \"origin=NVIDIA\"; }};' > {UNATTENDED}")
    output = as_root.run_expect([0], "unattended-upgrade --dry-run --debug").stdout
    as_root.run_expect([0], f"rm {UNATTENDED}")
    considered = set(re.findall(r"^Checking: ([^ =]+)[ =]", output, re.MULTILINE)) & set(stack)
    assert considered, output
    driver = {name for name in considered if re.match("(lib)?nvidia-|libcuda1", name)}
    assert driver
    assert driver <= set(re.findall(r"^skipping blacklisted package (.+)$", output, re.MULTILINE)), output
    upgraded = re.findall(r"^Packages that will be upgraded: (.+)$", output, re.MULTILINE)
    assert set(" ".join(upgraded).split()) & set(stack) == set(), output


def test_upgrade_of_the_system_changes_nothing(as_root, stack, read_installed):
    as_root.run_expect([0], f"{APT} -y dist-upgrade")
    after = read_installed()
    assert {name: after.get(name) for name in stack} == stack
