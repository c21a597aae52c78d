"""The lines about hosts: drawn by a terminal's emulator, and in a log."""

from __future__ import annotations

from typing import Any

import pyte
import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import live


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [1000.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: seconds[0])
    return seconds


def screen_of(*writes: str) -> list[str]:
    """Return the lines of a terminal after these writes, without those at the end that are empty."""
    screen = pyte.Screen(60, 10)
    stream = pyte.Stream(screen)
    for text in writes:
        stream.feed(text.replace("\n", "\r\n"))  # as the terminal's driver does
    return "\n".join(line.rstrip() for line in screen.display).rstrip().split("\n")


def test_text_is_printed_above_the_region_which_is_drawn_once() -> None:
    region = live.Region()
    writes = [region.around("", ["a 1", "b 1"]), region.around("plan\nof a\n", ["a 2"]), region.around("", ["a 3"])]
    assert screen_of(*writes) == ["plan", "of a", "a 3"]
    assert screen_of(*writes, region.around("end\n", [])) == ["plan", "of a", "end"]


def test_a_key_that_the_terminal_echoes_leaves_nothing_behind() -> None:
    region = live.Region()
    writes = [region.around("", ["gpu01", "gpu02"]), "^C", region.around("interrupted\n", ["gpu01"])]
    assert screen_of(*writes) == ["interrupted", "gpu01"]


def test_nothing_is_drawn_below_a_prompt_until_it_is_answered() -> None:
    region = live.Region()
    writes = [region.around("", ["a 1"]), region.around("Password: ", ["a 2"]), region.around("", ["a 3"])]
    assert screen_of(*writes) == ["Password:"]
    assert screen_of(*writes, "\n", region.around("thanks\n", ["a 4"])) == ["Password:", "thanks", "a 4"]


def test_each_host_has_a_line_with_its_stage_the_time_since_it_began_and_how_far_it_is(now: list[float]) -> None:
    progress = live.Progress()
    for host in ("gpu01", "gpu2", "gpu03"):
        progress.begin(host, "provision", "Install the packages")
    now[0] += 3700
    progress.begin("gpu01", "provision", "Load the driver")  # the same stage
    progress.begin("gpu2", "verify", "Check the host")
    progress.detail("gpu03", "downloading packages, 42 %")
    progress.end("gpu01")
    now[0] += 65
    progress.end("gpu2", failed=True)
    now[0] += 10
    assert progress.lines(80, 10) == [
        "gpu01  provision  1:01:40  waiting for other hosts",
        "gpu03  provision  1:02:55  downloading packages, 42 %",
        "gpu2   verify        1:05  failed: Check the host",
    ]


def test_lines_are_cut_at_the_width_and_hosts_beyond_the_height_are_counted(now: list[float]) -> None:
    progress = live.Progress()
    for number in range(500):
        progress.begin(f"gpu{number:03}", "verify", "Check the host")
    for number in range(400):
        progress.end(f"gpu{number:03}", failed=number < 3)
    lines = progress.lines(30, 5)
    assert len(lines) == 5
    assert max(map(len, lines)) == 30
    assert [line[:6] for line in lines[:4]] == ["gpu400", "gpu401", "gpu402", "gpu403"]  # those that are running
    assert progress.lines(80, 5)[4] == "and 496 more hosts: 96 running, 3 failed, 397 done"


def test_a_log_names_a_task_that_takes_long_once_with_its_hosts(now: list[float]) -> None:
    progress = live.Progress()
    progress.begin("a", "provision", "Install the packages")
    now[0] += 5
    progress.begin("b", "provision", "Install the packages")
    assert list(progress.long_tasks()) == []
    now[0] += live.LONG
    assert list(progress.long_tasks()) == ["[0:15] provision: Install the packages (a, b)"]
    now[0] += 60
    assert list(progress.long_tasks()) == []
    progress.end("a")
    progress.begin("a", "verify", "Check the host")
    progress.end("b")
    now[0] += 600
    assert list(progress.long_tasks()) == ["[11:15] verify: Check the host (a)"]


def test_names_and_progress_that_a_host_chose_are_no_escape_sequences(now: list[float]) -> None:
    progress = live.Progress()
    progress.begin("a\x1b[2J", "plan", "Probe")
    progress.detail("a\x1b[2J", "\x1b]0;title\x07 42 %")
    (line,) = progress.lines(80, 5)
    assert "\x1b" not in line
    assert "\x07" not in line


def test_hosts_with_the_same_plan_have_it_once_with_a_command_for_all_of_them() -> None:
    def plan(text: str, is_next: bool = False) -> dict[str, Any]:
        return {"text": f"{text}\n", "next": is_next}

    def command(hosts: str) -> str:
        return f"ansible-playbook gpu_host.yml -l '{hosts}'"

    matches = {f"gpu{number:03}": plan("ubuntu-24.04: matches the plan") for number in range(3, 501)}
    shown = {"gpu001": plan("ubuntu-24.04: + driver", True), "gpu002": plan("ubuntu-24.04: + driver", True)}
    found = list(live.plans({**shown, **matches}, 80, command))
    assert found[:2] == [
        "gpu001, gpu002  ubuntu-24.04: + driver\n",
        "Next: ansible-playbook gpu_host.yml -l 'gpu001,gpu002'   (-v: reasons)",
    ]
    assert found[2].startswith("gpu003, gpu004, ")
    assert found[2].endswith(", gpu022, ... 498 hosts  ubuntu-24.04: matches the plan\n")
    assert len(found) == 3
    many = {f"gpu{number:03}": plan("bare", True) for number in range(500)}
    assert list(live.plans(many, 80, command))[1] == "Next: ansible-playbook gpu_host.yml -l ''   (-v: reasons)"
