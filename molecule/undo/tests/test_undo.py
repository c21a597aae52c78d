"""A change that fails is rolled back to the last verified configuration.

The tests run in order: each one leaves the host as the next one needs it. converge has installed and verified the older
configuration.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import configurations
from tests.packages import Packages

OLD, NEW = configurations.of_scenario("undo")
NEW_HOME = f"/usr/local/cuda-{NEW.cuda}"
SHADOW = "/etc/profile.d/zz-old-cuda.sh"
FOREIGN = "#!/bin/sh\\necho Cuda compilation tools, release 11.8, V11.8.89\\n"  # for printf
PREFER_FOREIGN = (
    f"mkdir -p /opt/foreign && printf '{FOREIGN}' > /opt/foreign/nvcc && chmod 755 /opt/foreign/nvcc && "
    f"echo 'PATH=/opt/foreign:$PATH' > {SHADOW}"
)
PREFER_OLD = f"echo 'PATH=/usr/local/cuda-{OLD.cuda}/bin:$PATH' > {SHADOW}"
# The build in the background has its program's text on its command line; the brackets keep pgrep from finding itself.
TITLE = Path("roles/framework_env/files/build.py").read_text().splitlines()[0].strip('"')
BUILD = f"[{TITLE[0]}]" + re.sub(r"\W", ".", TITLE[1:40])

# testinfra moves tests without a host to the end; here the order matters.
pytestmark = pytest.mark.usefixtures("host")


@pytest.fixture
def root(host):
    with host.sudo():
        yield host


def failure(reports: Path) -> str:
    """Return why the last run failed, from its report."""
    report = json.loads((reports / "newest/report.json").read_text())
    (entry,) = report["hosts"]
    assert entry["status"] == "failed"
    return " ".join(entry["reasons"])


@pytest.fixture
def no_environment(tmp_path):
    """Return options for an environment whose lock has a wrong hash: uv gives up after half a minute."""
    lock = tmp_path / "tensorflow-2.21.0.txt"
    lock.write_text(f"tensorflow==2.21.0 --hash=sha256:{'0' * 64}\n")
    return "-e", "gpu_stack_tensorflow=2.21.0", "-e", f"tensorflow_env_lock={lock}"


def assert_driver_was_rolled_back(reports: Path, packages: Packages) -> None:
    """Compare the packages of the driver that the last run planned with the changes of its rollback."""
    planned, restored = (
        json.loads((reports / f"newest/undo-hopper/{name}.json").read_text()) for name in ("plan", "restored")
    )
    driver = [" ".join(packages.parse(spec)) for spec in planned["components"]["driver"]["packages"]]
    assert driver
    assert [spec for spec in driver if not any(line.startswith(spec) for line in restored["changes"])] == []


def without_environments(found):
    """Return differences without uv and unfinished environments, which stay for the next run."""
    return [line for line in found if "/opt/gpuhost" not in line]


# What makes a transaction fail in the middle, how that is taken away, and what is said of it. dpkg fails on a full file
# system; rpm counts what it needs before the first package.
FAULTS = {
    "apt": (f"mount -t tmpfs -o size=8m tmpfs {NEW_HOME}", f"umount {NEW_HOME}", "No space left on device"),
    "dnf": (
        f"mkdir {NEW_HOME}/bin && touch {NEW_HOME}/bin/nvcc && mount --bind /dev/null {NEW_HOME}/bin/nvcc",
        f"umount {NEW_HOME}/bin/nvcc && rm {NEW_HOME}/bin/nvcc && rmdir {NEW_HOME}/bin",
        "cpio: rename failed",
    ),
}


@contextlib.contextmanager
def failing_transaction(root, manager: Packages) -> Iterator[str]:
    """Make the new toolkit's installation fail in the middle; yield what is said of it."""
    broken, repaired, says = FAULTS[manager.words.NAME]
    root.run_expect([0], "sh -c %s", f"mkdir {NEW_HOME} && {broken}")
    try:
        yield says
    finally:
        root.run_expect([0], "sh -c %s", f"{repaired} && rmdir {NEW_HOME}")


def test_failed_package_transaction_restores_packages_and_holds(
    playbook, state, differences, root, packages, no_environment
):
    """The environment that is being built meanwhile does not outlive the run."""
    before = state()
    with failing_transaction(root, packages) as says:
        done = playbook("gpu_host", *NEW.options, *no_environment, expect=2)
    assert says in done.stdout
    assert "It was undone: all" in done.stdout
    assert root.run(f"pgrep --full '{BUILD}'").stdout == ""
    assert without_environments(differences(before, state())) == []


def test_failed_environment_rolls_back_the_packages_installed_meanwhile(
    playbook, reports, state, differences, root, packages, no_environment
):
    before = state()
    playbook("gpu_host", *NEW.options, *no_environment, expect=2)
    assert "Install the framework and its CUDA libraries, checked by hash: status" in failure(reports)
    assert "Hash mismatch for `tensorflow==2.21.0`" in failure(reports)
    assert_driver_was_rolled_back(reports, packages)
    assert without_environments(differences(before, state())) == []
    root.run_expect([1], "test -e /opt/gpuhost/tensorflow")


def test_configuration_that_fails_its_checks_is_rolled_back_and_the_restored_one_verified(
    playbook, reports, state, differences, root, packages
):
    """A login shell still prefers the old toolkit, so that the new one fails its checks and the old one passes."""
    root.run_expect([0], "sh -c %s", PREFER_OLD)
    before = state()
    done = playbook("gpu_host", *NEW.options, expect=2)
    assert differences(before, state()) == []
    assert "env.login_shell" in failure(reports)
    assert "It was rolled back" in done.stdout
    assert_driver_was_rolled_back(reports, packages)
    proof = json.loads((reports / "newest/undo-hopper/verify_after_undo.json").read_text())
    assert proof["status"] == "pass"
    report = (reports / "newest/report.md").read_text()
    assert "env.login_shell" in report
    assert "rolled back: " in report
    root.run_expect([0], f"rm {SHADOW}")


def test_failed_check_without_a_change_rolls_back_nothing(playbook, state, differences, root):
    root.run_expect([0], "mv /usr/bin/nvidia-smi /usr/bin/nvidia-smi.away")
    before = state()
    done = playbook("verify", expect=2)
    assert "rolled back" not in done.stdout
    assert differences(before, state()) == []
    root.run_expect([0], "mv /usr/bin/nvidia-smi.away /usr/bin/nvidia-smi")


def test_a_check_that_failed_before_the_change_undoes_nothing(playbook, reports, root):
    """Somebody's own nvcc comes first in each login shell, before the change and after it."""
    root.run_expect([0], "sh -c %s", PREFER_FOREIGN)
    done = playbook("gpu_host", *NEW.options, expect=2)
    assert "Nothing was rolled back: not better before this change: fail (env.login_shell)" in done.stdout
    before, after = (
        json.loads((reports / f"newest/undo-hopper/{name}.json").read_text()) for name in ("verify_before", "verify")
    )
    outcomes = [{check["id"]: check["status"] for check in each["checks"]} for each in (before, after)]
    assert [each["env.login_shell"] for each in outcomes] == ["fail", "fail"]
    assert (after["worse"], after["before"]) == ([], {"env.login_shell": "fail"})
    assert NEW_HOME in root.run_expect([0], "update-alternatives --query cuda").stdout
    root.run_expect([0], f"rm {SHADOW}")


def test_same_command_succeeds_once_the_cause_is_gone_and_is_then_idempotent(playbook):
    playbook("gpu_host", *NEW.options)
    again = playbook("gpu_host", *NEW.options)
    assert "changed=0 " in again.stdout


def test_rollback_works_without_a_network_and_in_both_directions(
    playbook, reports, state, differences, root, pytestconfig
):
    """And leaves a record: with the request of what was restored, the next run has nothing to apply."""
    new = state()
    root.run_expect([0], "sh -c 'echo 127.0.0.1 repository.lab >> /etc/hosts'")
    playbook("rollback")
    drivers = root.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.split()
    assert {version.split(".")[0] for version in drivers} == {OLD.driver}
    assert f"release {OLD.cuda}," in root.run_expect([0], "nvcc --version").stdout
    root.run_expect([0], "sh -c \"sed '/repository.lab/d' /etc/hosts > /tmp/hosts && cat /tmp/hosts > /etc/hosts\"")
    playbook("gpu_host", *OLD.options, "--skip-tags", "verify,smoke_train")
    assert json.loads((reports / "newest/undo-hopper/drift.json").read_text()) == {}
    kill_when_it_restores(root, pytestconfig.getoption("ansible_inventory"), "previous")
    playbook("rollback")  # continues: it does not go back to the older configuration
    assert differences(new, state()) == []


def kill_when_it_restores(root, inventory: str, to: str) -> None:
    """Start rollback.yml, and kill it when the host has begun to restore that record."""
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "playbooks/rollback.yml", "-i", inventory]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 120
    while root.run(f"grep -q {to} /var/lib/gpuhost/restoring.json").rc:
        assert run.poll() is None, "it ended before it restored anything"
        assert time.monotonic() < deadline
    os.killpg(run.pid, signal.SIGKILL)
    run.communicate()


def test_packages_are_kept_for_two_configurations_only(playbook, root, planned_packages, packages):
    newer = planned_packages("driver")
    playbook("gpu_host", *configurations.Configuration(OLD.driver, NEW.cuda).options)
    playbook("gpu_host")
    kept = root.run_expect([0], "ls /var/lib/gpuhost/packages").stdout
    older = planned_packages("driver")
    assert set(older) != set(newer)
    assert [spec for spec in older if packages.file_of(spec) not in kept] == []
    assert [spec for spec in newer if packages.file_of(spec) in kept] == []


all_rows = pytest.mark.skipif(os.environ.get("FAULTS") != "all", reason="in the tier faults-long (FAULTS=all)")


@pytest.fixture
def with_toolkit(root):
    """Return a function that has login shells prefer another nvcc while the default toolkit is that of a series."""

    def prefer(series: str, nvcc: str) -> None:
        script = f"""mkdir -p /opt/foreign && cat > /opt/foreign/nvcc && chmod 755 /opt/foreign/nvcc
echo '[ "$(readlink -f /etc/alternatives/cuda)" != /usr/local/cuda-{series} ] || PATH=/opt/foreign:$PATH' > {SHADOW}"""
        root.run_expect([0], "printf %s | sh -c %s", nvcc, script)

    yield prefer
    root.run_expect([0], f"rm -f {SHADOW}")


ANOTHER, SILENT = FOREIGN.replace("\\n", "\n"), "#!/bin/sh\necho ccache\n"


@all_rows
def test_a_second_change_on_a_pending_one_goes_back_to_what_was_verified(playbook, reports, root, with_toolkit):
    playbook("gpu_host", *NEW.options)
    playbook("gpu_host", "-e", f"gpu_stack_driver={OLD.driver}", "--skip-tags", "verify,smoke_train")
    with_toolkit(OLD.cuda, ANOTHER)
    done = playbook("gpu_host", *OLD.options, expect=2)
    assert "It was rolled back: the last verified configuration is restored" in done.stdout
    assert "env.login_shell" in failure(reports)
    drivers = root.run_expect([0], "nvidia-smi --query-gpu=driver_version --format=csv,noheader").stdout.split()
    assert {version.split(".")[0] for version in drivers} == {NEW.driver}
    assert NEW_HOME in root.run_expect([0], "update-alternatives --query cuda").stdout


@all_rows
def test_what_tags_left_out_undoes_nothing(playbook):
    done = playbook("gpu_host", *OLD.options, "--skip-tags", "cuda_toolkit", expect=2)
    assert "Nothing was rolled back: tags left out cuda_toolkit, which may be why they fail" in done.stdout
    playbook("gpu_host", *OLD.options)


@all_rows
def test_a_check_without_an_answer_undoes_nothing_where_it_does_not_count(playbook, reports, with_toolkit):
    with_toolkit(NEW.cuda, SILENT)
    playbook("gpu_host", *NEW.options, "-e", "gpu_stack_unknown=warn")
    checks = json.loads((reports / "newest/undo-hopper/verify.json").read_text())["checks"]
    assert {check["id"] for check in checks if check["status"] == "unknown"} == {"env.login_shell"}


@all_rows
def test_a_first_installation_stays_and_the_same_command_verifies_it(playbook, root, with_toolkit):
    playbook("gpu_host", *OLD.options)
    playbook("teardown")
    with_toolkit(NEW.cuda, ANOTHER)
    done = playbook("gpu_host", *NEW.options, expect=2)
    assert "Nothing was rolled back: nothing is known of it from before this change (env.login_shell)" in done.stdout
    assert NEW_HOME in root.run_expect([0], "update-alternatives --query cuda").stdout
    root.run_expect([0], f"rm {SHADOW}")
    playbook("gpu_host", *NEW.options)
    root.run_expect([0], "test -e /var/lib/gpuhost/verified.json")


@all_rows
def test_a_host_of_others_goes_back_to_what_worked(playbook, reports, state, differences, root, packages):
    """It is one without gpuhost's records and holds, whose compiler does not work for the new toolkit."""
    playbook("gpu_host", *OLD.options)
    root.run_expect([0], "rm -r /var/lib/gpuhost /etc/ansible/facts.d/gpu_stack.fact")
    packages.unhold(*packages.held())
    compiler = f"""#!/bin/sh\ncase "$*" in *cuda-{NEW.cuda}*) exit 1 ;; esac\nexec "/usr/bin/${{0##*/}}" "$@"\n"""
    for name in ("gcc", "g++"):
        root.run_expect(
            [0], "printf %s | sh -c %s", compiler, f"cat > /usr/local/bin/{name} && chmod 755 /usr/local/bin/{name}"
        )
    before = state()
    done = playbook("gpu_host", *NEW.options, expect=2)
    assert "cuda.compile_link_run" in failure(reports)
    assert "It was rolled back: the configuration from before the first change is restored" in done.stdout
    assert [line for line in differences(before, state()) if "/var/lib/gpuhost" not in line] == []
    root.run_expect([0], "rm /usr/local/bin/gcc /usr/local/bin/g++")
