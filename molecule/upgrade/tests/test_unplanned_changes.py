"""A change that would touch what is not ours is refused with the list, and the host stays as it is.

apt is set to ignore holds, so the refusal of gpuhost, which simulates the change in its preflight, is all that protects
them. The packages of others are built for the test and empty: one that a new kernel header package raises although it
is held, one that conflicts with the new driver, a kernel image that the header package pulls in, one of the driver in a
source that is preferred to ours, and one whose name looks like a driver's. The last test takes the records of gpuhost
away: then the holds are others'. Unmet dependencies of others are in tests/unit/module_utils/packages/test_one_gate.py.
"""

import json
import shlex

import pytest

from tests import distributions

pytestmark = pytest.mark.skipif(
    distributions.MANAGER == "dnf",
    reason="its packages are Debian's; dnf's cases are in tests/unit/module_utils/packages/dnf",
)

CHANGE = ("-e", "gpu_stack_driver=595", "-e", "gpu_stack_cuda=13.0")
FOLDER = "/srv/gpuhost-test"
SOURCE = "/etc/apt/sources.list.d/gpuhost-test.list"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -o Dpkg::Use-Pty=0 --yes"
HEADERS = '{"nvidia_driver_kernel_headers": ["gpuhost-test-headers"]}'
# Debian's kernel headers need a build package in the same way; a site's monitoring may not know the new branch yet.
KBUILD = ("gpuhost-test-kbuild", "1", "")
NEWER_KBUILD = ("gpuhost-test-kbuild", "2", "")
MONITOR = ("gpuhost-test-monitor", "1", "Conflicts: nvidia-driver-pinning-595")
KERNEL = ("linux-image-0-gpuhost-test", "1", "")
METAPACKAGE = ("linux-headers-gpuhost-test", "1", "Depends: linux-image-0-gpuhost-test")
EXACT_HEADERS = ("linux-headers-0.0.0-gpuhost-test", "1", "")
RECORDS = "/var/lib/gpuhost"
PREFERENCES = "/etc/apt/preferences.d/gpuhost-test.pref"
PIN = 'Package: *\nPin: origin ""\nPin-Priority: 1001\n'  # as lambdal/lambda-stack-dockerfiles pins its own archive
UTILITIES = ("nvidia-utils-999", "999.1-1", "")
HEADERS_WITH_BOTH = ("gpuhost-test-headers", "1", "Depends: gpuhost-test-kbuild (>= 2), linux-image-0-gpuhost-test")
BUILD = """
set -eu
mkdir -p {folder}/{name}/DEBIAN
printf '%s\\n' 'Package: {name}' 'Version: {version}' 'Architecture: all' \
  'Maintainer: gpuhost <gpuhost@example.invalid>' 'Description: empty package of a test' {relation} \
  > {folder}/{name}/DEBIAN/control
dpkg-deb --build {folder}/{name} {folder}/{name}_{version}_all.deb
"""
INDEX = """
set -eu
cd {folder}
for file in *.deb; do
  dpkg-deb --field $file
  printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' $file $(stat -c %s $file) $(sha256sum $file | cut -d ' ' -f 1)
done > Packages
echo 'deb [trusted=yes] file:{folder} ./' > {source}
{apt} update
"""


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


@pytest.fixture
def offer(root):
    """Return a function that offers (name, version, relation) in a repository; all of it is removed afterwards."""

    def build(*packages: tuple[str, str, str]) -> None:
        for name, version, relation in packages:
            values = {"folder": FOLDER, "name": name, "version": version, "relation": shlex.quote(relation)}
            root.run_expect([0], "sh -c %s", BUILD.format(**values if relation else {**values, "relation": ""}))
        root.run_expect([0], "sh -c %s", INDEX.format(folder=FOLDER, source=SOURCE, apt=APT))

    yield build
    installed = (
        "dpkg-query -W -f '${Package} ' 'gpuhost-test-*' 2>/dev/null"  # apt knows no such name if none is offered
    )
    root.run_expect([0], "sh -c %s", f"{installed} | xargs -r env {APT} purge --allow-change-held-packages")
    root.run_expect([0], "sh -c %s", f"rm -r {FOLDER} {SOURCE} && {APT} update")


@pytest.fixture
def refused(playbook, reports, state, differences):
    """Return a function that runs the change, asserts that it was refused and changed nothing, and returns why."""

    def run(*options: str) -> str:
        before = state()
        playbook("gpu_host", *CHANGE, *options, expect=2)
        assert differences(before, state()) == []
        (entry,) = json.loads((reports / "newest/report.json").read_text())["hosts"]
        (reason,) = [text for text in entry["reasons"] if "would also change" in text]
        return str(reason)

    return run


def unplanned(reason: str) -> list[str]:
    """Return the listed changes: the lines between the two sentences of the message."""
    return [line.strip() for line in reason.partition("would also change\n")[2].splitlines() if line.startswith("  ")]


def test_what_is_not_ours_is_listed_and_not_changed(root, offer, refused):
    """A held package, one that conflicts with the change, another kernel; and the held one not once it is released."""
    offer(KBUILD, MONITOR)
    root.run_expect([0], f"{APT} install gpuhost-test-kbuild=1 gpuhost-test-monitor")
    root.run_expect([0], "apt-mark hold gpuhost-test-kbuild")
    offer(NEWER_KBUILD, KERNEL, HEADERS_WITH_BOTH)
    kbuild, *others = (
        "gpuhost-test-kbuild 1 -> 2",
        "gpuhost-test-monitor 1 (removed)",
        "linux-image-0-gpuhost-test (new) 1",
    )
    assert sorted(unplanned(refused("-e", HEADERS))) == [kbuild, *others]
    root.run_expect([0], "apt-mark unhold gpuhost-test-kbuild")
    assert sorted(unplanned(refused("-e", HEADERS, "--check"))) == others


def test_a_metapackage_that_brings_another_kernel_is_left_out(offer, playbook):
    """As where the plan was made without package lists, or with older ones."""
    offer(KERNEL, METAPACKAGE, EXACT_HEADERS)
    headers = json.dumps({"nvidia_driver_kernel_headers": [EXACT_HEADERS[0], METAPACKAGE[0]]})
    done = playbook("gpu_host", *CHANGE, "-e", headers, "--check", "--diff")
    printed = " ".join((done.stdout + done.stderr).split())
    assert f"Not installed, since another kernel would come with it: {METAPACKAGE[0]}." in printed
    assert f"{EXACT_HEADERS[0]} (new) 1" in printed
    assert KERNEL[0] not in printed


def test_a_source_of_others_counts_by_what_apt_would_take(root, offer, playbook, reports, state, differences):
    """It has an older package of the change that the test before has planned, and is preferred."""
    plan = json.loads(next((reports / "newest").glob("*/plan.json")).read_text())
    name = plan["components"]["driver"]["packages"][0].partition("=")[0]
    offer((name, "1.0-1", ""))
    root.run_expect([0], "printf %s > %s", PIN, PREFERENCES)
    try:
        before = state()
        printed = playbook("gpu_host", *CHANGE, expect=2).stdout
        assert differences(before, state()) == []
    finally:
        root.run_expect([0], f"rm {PREFERENCES}")
    assert "stale-repository" in printed
    assert f"{name} 1.0-1" in printed
    assert PREFERENCES in printed
    assert "1001" in printed


def test_the_installed_driver_is_that_of_the_libraries(root, offer, playbook):
    """The name of a package decides nothing."""
    offer(UTILITIES)
    root.run_expect([0], f"{APT} install {UTILITIES[0]}")
    try:
        printed = playbook("plan", *CHANGE).stdout
    finally:
        root.run_expect([0], f"{APT} purge {UTILITIES[0]}")
    driver = next(line for line in printed.splitlines() if "NVIDIA driver " in line)
    assert "580." in driver
    assert "999.1" not in printed


def test_a_request_against_what_an_administrator_holds_is_refused(root, playbook, state, differences):
    held = root.run_expect([0], "apt-mark showhold").stdout.split()
    versions = root.run_expect([0], f"dpkg-query -W {' '.join(held)}").stdout
    root.run_expect([0], f"mv {RECORDS} {RECORDS}.aside")
    try:
        before = state()
        refused = playbook("gpu_host", *CHANGE, expect=2).stdout
        assert "package-held" in refused
        assert "apt-mark unhold" in refused
        assert differences(before, state()) == []
    finally:
        root.run_expect([0], f"rm -rf {RECORDS} && mv {RECORDS}.aside {RECORDS}")
    assert root.run_expect([0], f"dpkg-query -W {' '.join(held)}").stdout == versions
    assert root.run_expect([0], "apt-mark showhold").stdout.split() == held
