"""gpu_host.yml reports each problem and changes no host. Reads the output that converge kept."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

INVENTORY = yaml.safe_load((Path(__file__).parents[1] / "hosts.yml").read_text())
HOSTS: dict[str, dict[str, Any]] = INVENTORY["gpu_hosts"]["hosts"]
REFUSED = sorted(name for name, variables in HOSTS.items() if variables["refusal_codes"])


@pytest.fixture(scope="module")
def results() -> Path:
    return Path(os.environ["REFUSALS_RESULTS"])


def evidence(results: Path, run: str, host: str, part: str) -> dict[str, Any]:
    # Each run has a directory of reports of its own; only one that changed or verified a host has the link `latest`.
    (path,) = (results / run).glob(f"2*/{host}/{part}.json")
    return json.loads(path.read_text())


def report_of(run: Path) -> dict[str, Any]:
    (path,) = run.glob("2*/report.json")
    return json.loads(path.read_text())


def failures(output: str) -> dict[str, str]:
    """Return what ansible-playbook printed for each host's failed task."""
    parts = re.split(r"^fatal: \[([^\]]+)\]: ", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_exactly_the_expected_problems_are_reported(results: Path, host: str) -> None:
    found = [p for part in ("plan", "preflight") for p in evidence(results, "all", host, part)["problems"]]
    assert sorted({problem["code"] for problem in found}) == HOSTS[host]["refusal_codes"]
    assert all(problem["remedy"] for problem in found)


@pytest.mark.parametrize("host", REFUSED)
def test_failure_shows_every_problem_and_remedy_on_separate_lines(results: Path, host: str) -> None:
    output = failures((results / "all.txt").read_text())[host]
    for part in ("plan", "preflight"):
        for problem in evidence(results, "all", host, part)["problems"]:
            assert re.search(rf"^ *- {problem['code']}: {re.escape(problem['message'])}$", output, re.MULTILINE)
            assert re.search(rf"^ *Remedy: {re.escape(problem['remedy'])}$", output, re.MULTILINE)
    assert "\\n" not in output


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_nothing_was_changed(results: Path, host: str) -> None:
    before, after = ((results / when / host).read_text() for when in ("before", "after"))
    assert before.count("\n") > 100
    assert after.splitlines() == before.splitlines()


def test_host_without_problems_is_left_unchanged_with_the_reason(results: Path) -> None:
    output = failures((results / "all.txt").read_text())["ready"]
    assert "nothing was changed on it" in output
    assert all(host in output for host in REFUSED)


def test_messages_name_what_was_found(results: Path) -> None:
    output = failures((results / "all.txt").read_text())
    dpkg = r"process \d+ \(/usr/bin/dpkg --install /root/test-package.deb\) holds /var/lib/dpkg/lock-frontend"
    assert re.search(dpkg, output["refused-busy"])
    assert "driver 550.54.14 was installed by NVIDIA's .run installer" in output["refused-untidy"]
    assert "the file system at /opt has 64 MiB free" in output["refused-untidy"]
    assert "/etc/apt/sources.list.d/cuda-debian12-x86_64.list" in output["refused-untidy"]
    assert re.search(r"programs that use the GPUs: \d+ \(.*python3 -c import time", output["refused-busy"])
    assert "left packages of others unfinished: gpuhost-test is half-configured" in output["refused-untidy"]


def test_report_marks_the_hosts_as_refused(results: Path) -> None:
    report = report_of(results / "all")
    statuses = {host["host"]: host["status"] for host in report["hosts"]}
    assert statuses == {**dict.fromkeys(REFUSED, "failed"), "ready": "not changed"}
    ready = next(host for host in report["hosts"] if host["host"] == "ready")
    assert ready["reasons"] == [f"nothing was changed on this host, because of {', '.join(REFUSED)}"]
    assert report["status"] == "failed"


def test_with_partial_only_the_host_without_problems_is_installed(results: Path) -> None:
    report = report_of(results / "partial")
    found = {host["host"]: host for host in report["hosts"]}
    assert {name: host["status"] for name, host in found.items()} == {"ready": "verified", "refused-bare": "failed"}
    assert found["refused-bare"]["reasons"][0].startswith("no-gpu: ")
    driver = next(row for row in found["ready"]["components"] if row["component"] == "driver")
    assert driver["installed"].startswith(driver["resolved"].split()[0])
    assert list(failures((results / "partial.txt").read_text())) == ["refused-bare"]


def test_the_password_of_a_mirror_is_where_apt_reads_it_and_nowhere_else(results: Path) -> None:
    assert (results / "password.txt").read_text() == "600 /etc/apt/auth.conf.d/gpuhost-nvidia-repository.conf\n"
    written = [path for run in ("all", "partial") for path in (results / run).rglob("*") if path.is_file()]
    assert len(written) > 10
    for path in [*written, results / "all.txt", results / "partial.txt"]:
        assert "s3cret-8153" not in path.read_text(), path


# gpu_stack_leftovers=remove ----------------------------------------------------------------------------------

LIST = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
SET_ASIDE = "/var/lib/gpuhost/set_aside"


def state(results: Path, when: str) -> list[str]:
    return (results / when / "refused-untidy").read_text().splitlines()


@pytest.mark.parametrize("run", ["remove-check", "remove"])
def test_removals_are_announced_in_the_plan(results: Path, run: str) -> None:
    output = (results / f"{run}.txt").read_text()
    plan, _, after = output.partition("TASK [Remove conflicting installations]")
    plan = " ".join(plan.split())  # the plan is wrapped
    assert "First: uninstall driver 550.54.14 of the .run installer with /usr/bin/nvidia-uninstall" in plan
    assert f"First: move {LIST} to {SET_ASIDE} and purge cuda-keyring, which installed it" in plan
    assert after
    codes = {warning["code"] for warning in evidence(results, run, "refused-untidy", "preflight")["warnings"]}
    assert codes >= {"runfile-install", "stale-repository"}


def test_check_mode_removes_nothing(results: Path) -> None:
    assert state(results, "remove-check") == state(results, "finished")


def test_uninstaller_runs_once_and_silently(results: Path) -> None:
    assert (results / "uninstaller.txt").read_text() == "simulated uninstaller, called with --silent\n"


def test_files_are_set_aside_and_not_deleted(results: Path) -> None:
    before, after = state(results, "after"), state(results, "remove")
    (content,) = [line.split()[0] for line in before if line.endswith(f"  {LIST}")]
    assert not [line for line in after if line.endswith(f"  {LIST}")]
    assert [line for line in after if line.startswith(f"{SET_ASIDE}{LIST} ")]
    assert content
    assert not [line for line in after if line.startswith("cuda-keyring ")]
    assert [line for line in before if line.startswith("cuda-keyring 1.1-1 install ok installed")]


def test_with_the_package_of_others_finished_the_plan_is_applied(results: Path) -> None:
    before, after = state(results, "after"), state(results, "remove")
    assert "gpuhost-test 1 install ok half-configured" in before
    assert "gpuhost-test 1 install ok installed" in after
    assert [line for line in after if line.startswith("nvidia-driver-cuda ") and line.endswith("hold ok installed")]
    report = report_of(results / "remove")
    assert [(host["host"], host["status"]) for host in report["hosts"]] == [("refused-untidy", "verified")]
