"""What the main job did to hosts with problems: it told each, and touched none. Read from what converge kept."""

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
    return json.loads((results / run / "latest" / host / f"{part}.json").read_text())


def failures(output: str) -> dict[str, str]:
    """What ansible-playbook printed for each host's failed task."""
    parts = re.split(r"^fatal: \[([^\]]+)\]: ", output, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_exactly_these_problems_are_told(results: Path, host: str) -> None:
    found = [p for part in ("plan", "preflight") for p in evidence(results, "all", host, part)["problems"]]
    assert sorted({problem["code"] for problem in found}) == HOSTS[host]["refusal_codes"]
    assert all(problem["remedy"] for problem in found)


@pytest.mark.parametrize("host", REFUSED)
def test_the_failure_shows_every_problem_with_its_remedy_on_lines_of_their_own(results: Path, host: str) -> None:
    said = failures((results / "all.txt").read_text())[host]
    for part in ("plan", "preflight"):
        for problem in evidence(results, "all", host, part)["problems"]:
            assert re.search(rf"^ *- {problem['code']}: {re.escape(problem['message'])}$", said, re.MULTILINE)
            assert re.search(rf"^ *Remedy: {re.escape(problem['remedy'])}$", said, re.MULTILINE)
    assert "\\n" not in said


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_nothing_was_changed(results: Path, host: str) -> None:
    before, after = ((results / when / host).read_text() for when in ("before", "after"))
    assert before.count("\n") > 100
    assert after.splitlines() == before.splitlines()


def test_a_host_without_problems_is_held_back_and_told_why(results: Path) -> None:
    said = failures((results / "all.txt").read_text())["ready"]
    assert "nothing was changed on it" in said
    assert all(host in said for host in REFUSED)


def test_messages_name_what_was_found(results: Path) -> None:
    said = failures((results / "all.txt").read_text())
    dpkg = r"process \d+ \(/usr/bin/dpkg --install /root/test-package.deb\) holds /var/lib/dpkg/lock-frontend"
    assert re.search(dpkg, said["refused-busy"])
    assert "gpuhost-test is half-configured" in said["refused-untidy"]
    assert "driver 550.54.14 was installed by NVIDIA's .run installer" in said["refused-untidy"]
    assert "the file system at /opt has 64 MiB free" in said["refused-untidy"]
    assert "/etc/apt/sources.list.d/cuda-debian12-x86_64.list" in said["refused-untidy"]
    assert re.search(r"programs that use the GPUs: \d+ \(.*python3 -c import time", said["refused-busy"])


def test_the_report_calls_them_refused(results: Path) -> None:
    report = json.loads((results / "all/latest/report.json").read_text())
    statuses = {host["host"]: host["status"] for host in report["hosts"]}
    assert statuses == {**dict.fromkeys(REFUSED, "refused"), "ready": "fail"}
    ready = next(host for host in report["hosts"] if host["host"] == "ready")
    assert "This host has no problem, but nothing was changed on it" in ready["reasons"][0]
    assert report["status"] == "fail"


def test_with_partial_the_good_host_goes_on_and_the_bad_one_is_left_out(results: Path) -> None:
    report = json.loads((results / "partial/latest/report.json").read_text())
    found = {host["host"]: host for host in report["hosts"]}
    assert {name: host["status"] for name, host in found.items()} == {"ready": "pass", "refused-bare": "refused"}
    assert found["refused-bare"]["reasons"][0].startswith("no-gpu: ")
    driver = next(row for row in found["ready"]["components"] if row["component"] == "driver")
    assert driver["installed"].startswith(driver["resolved"].split()[0])
    assert list(failures((results / "partial.txt").read_text())) == ["refused-bare"]
