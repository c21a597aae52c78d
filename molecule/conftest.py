"""Fixtures of the scenarios' own tests: run playbooks as a user does, and compare states of the host."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.packages import Packages
from tests.packages import of as packages_of

PROJECT = Path(__file__).resolve().parents[1]
STATE = PROJECT / "molecule/shared/state.sh"
# Caches and records that every transaction rewrites.
NOISE = ("/etc/ld.so.cache", "/var/lib/gpuhost")
CONSOLE_CHARACTERS = 6000

Sections = dict[str, list[str]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of each virtual machine's console to the report of a failed test, before the machines are removed."""
    report = yield
    if report.failed:
        scenario = Path(str(item.config.getoption("ansible_inventory"))).resolve().parent.name
        for console in sorted((PROJECT / ".lab" / scenario / "vm").glob("*/console.log")):
            text = console.read_text(errors="replace")
            report.sections.append((f"console of {console.parent.name}", text[-CONSOLE_CHARACTERS:]))
    return report


@pytest.fixture(scope="session")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the reports of runs by `playbook`; its link `newest` is the last one, whatever it did."""
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def playbook(pytestconfig: pytest.Config, reports: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a playbook: playbook("gpu_host", "-e", "gpu_stack_cuda=13.2", expect=0)."""
    inventory = str(pytestconfig.getoption("ansible_inventory"))

    def run(name: str, *options: str, expect: int = 0):
        command = [str(Path(sys.executable).with_name("ansible-playbook")), f"playbooks/{name}.yml", "-i", inventory]
        environment = {**os.environ, "ANSIBLE_FORCE_COLOR": "false", "GPUHOST_REPORTS": str(reports)}
        done = subprocess.run([*command, *options], cwd=PROJECT, env=environment, capture_output=True, text=True)
        assert done.returncode == expect, done.stdout[-6000:] + done.stderr[-2000:]
        for last in sorted(reports.glob("2*"))[-1:]:
            (reports / "newest").unlink(missing_ok=True)
            (reports / "newest").symlink_to(last.name)
        return done

    return run


@pytest.fixture(scope="module")
def as_root(host):
    """Return the scenario's host, with root privileges."""
    with host.sudo():
        yield host


@pytest.fixture
def planned_packages(host) -> Callable[[str], list[str]]:
    """Return a function that returns the packages of a component of the applied plan, as the plan names them.

    Their names differ between distributions: the tests ask the plan.
    """

    def read(component: str) -> list[str]:
        plan = json.loads(host.file("/etc/ansible/facts.d/gpu_stack.fact").content_string)
        return list(plan["components"][component]["packages"])

    return read


@pytest.fixture(scope="module")
def packages(host) -> Packages:
    """Return the package manager of the scenario's host."""
    return packages_of(host)


@pytest.fixture(scope="module")
def read_installed(packages) -> Callable[[], dict[str, str]]:
    """Return a function that reads {package: version} of all installed packages."""
    return packages.versions


def read_sections(text: str) -> Sections:
    """Split the output of shared/state.sh by heading, without NOISE and modification times."""
    found: Sections = {}
    for line in text.splitlines():
        if line.startswith("== "):
            lines = found.setdefault(line[3:], [])
        elif not any(word in line for word in NOISE):
            # The last word is the modification time, which changes with each installation of a package.
            lines.append(line.rpartition(" ")[0] if lines is found.get("files") else line)
    return found


def compare(before: Sections, after: Sections) -> list[str]:
    """Return the lines that were added (+) and removed (-) between two states."""
    lines = []
    for section in {**before, **after}:
        old, new = set(before.get(section, [])), set(after.get(section, []))
        lines += [f"{section}: - {line}" for line in sorted(old - new)]
        lines += [f"{section}: + {line}" for line in sorted(new - old)]
    return lines


@pytest.fixture(scope="session")
def sections() -> Callable[[str], Sections]:
    return read_sections


@pytest.fixture(scope="session")
def differences() -> Callable[[Sections, Sections], list[str]]:
    return compare


@pytest.fixture
def state(host, sections) -> Callable[[], Sections]:
    """Return a function that reads the state of the host now."""

    def read() -> Sections:
        with host.sudo():
            return sections(host.run_expect([0], "sh -c %s", STATE.read_text()).stdout)

    return read
