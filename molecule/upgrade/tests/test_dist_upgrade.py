"""The repository offers newer versions of the whole stack (simulated, empty); an upgrade of the system changes none."""

import re
from collections.abc import Iterator

import pytest

from tests import distributions

UNATTENDED = "/etc/apt/apt.conf.d/60later"


@pytest.fixture(scope="module")
def stack(packages) -> Iterator[dict[str, str]]:
    """Return {package: version} of the installed packages that the later state of the repository offers."""
    offered = packages.offer_later()
    yield {name: version for name, version in packages.versions().items() if name in offered}
    packages.withdraw_later()


def test_whole_stack_is_held_and_offered_in_newer_versions(stack, held):
    """Otherwise the tests below would show nothing."""
    assert set(stack) == held
    pinning = ["nvidia-driver-pinning-580"] if distributions.MANAGER == "apt" else []
    for part in ("nvidia-", *pinning, "cuda-nvcc-13-0", "cuda-nvcc-13-2", "libcudnn9-", "libnccl"):
        assert any(name.startswith(part) for name in held), (part, sorted(held))


def test_without_holds_an_upgrade_would_change_the_whole_stack(packages, stack):
    assert set(stack) - packages.upgradable(with_held=True) == set()


@pytest.mark.skipif(distributions.MANAGER == "dnf", reason="dnf-automatic is `dnf upgrade`, which is below")
def test_unattended_upgrades_would_change_nothing(as_root, stack):
    """NVIDIA's repository is among its origins. The driver is both blacklisted and held."""
    as_root.run_expect(
        [0], "DEBIAN_FRONTEND=noninteractive apt-get -y --no-install-recommends install unattended-upgrades"
    )
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


def test_upgrade_of_the_system_changes_nothing(packages, stack):
    assert packages.upgradable() & set(stack) == set()
    packages.upgrade()
    after = packages.versions()
    assert {name: after.get(name) for name in stack} == stack
