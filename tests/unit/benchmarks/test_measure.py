"""Measure children of known resource usage; no assertion depends on this machine's speed."""

import os
import random
import statistics
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.measure import Command, Failed, Ratio, Sample, Timing, in_turn, once

PROJECT = Path(__file__).resolve().parents[3]
LARGE = 200 * 2**20  # bytes


def python(
    name: str, code: str, *, environment: dict[str, str] | None = None, accept: tuple[int, ...] = (0,)
) -> Command:
    return Command(name, (sys.executable, "-c", code), Path("/"), environment or dict(os.environ), accept)


def test_cpu_time_differs_from_sleep(tmp_path):
    busy = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    burned = once(python("busy", busy), tmp_path / "log")
    slept = once(python("idle", "import time; time.sleep(0.4)"), tmp_path / "log")
    assert burned.cpu >= 0.4
    assert slept.cpu < burned.cpu / 2
    assert slept.wall >= 0.4


def test_cpu_time_includes_grandchildren(tmp_path):
    busy = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}], check=True)"
    assert once(python("parent", parent), tmp_path / "log").cpu >= 0.4


def test_peak_memory_is_that_of_this_command(tmp_path):
    """Measured by a process as small as script/bench, since that of these tests may be the larger one: see Sample."""
    code = f"""from tests.unit.benchmarks.test_measure import LARGE, Path, once, python
codes = f"x = b'1' * {{LARGE}}", "pass"
print(*(once(python("", code), Path({str(tmp_path / "log")!r})).memory for code in codes))"""
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True)
    large, small = map(int, done.stdout.split())
    assert small < LARGE <= large < LARGE * 1.2


def test_failed_command_is_reported_with_the_end_of_its_output(tmp_path):
    talks = "import sys; print('x' * 5000); print('the reason', file=sys.stderr); sys.exit(3)"
    with pytest.raises(Failed, match=r"(?s)picky ended with 3: .*the reason") as caught:
        once(python("picky", talks), tmp_path / "log")
    assert len(str(caught.value)) < 5000
    assert once(python("picky", talks, accept=(0, 3)), tmp_path / "log").wall > 0


def test_killed_command_is_reported(tmp_path):
    with pytest.raises(Failed, match="dies ended with -9"):
        once(python("dies", "import os; os.kill(os.getpid(), 9)"), tmp_path / "log")


def test_command_runs_in_its_directory_and_environment_without_input(tmp_path):
    code = "import os, sys; print(os.getcwd(), os.environ['COLOUR'], repr(sys.stdin.read()))"
    once(Command("where", (sys.executable, "-c", code), tmp_path, {"COLOUR": "blue"}), tmp_path / "log")
    assert (tmp_path / "log").read_text() == f"{tmp_path} blue ''\n"


def test_commands_take_turns_after_the_warm_up(tmp_path, capsys):
    order = tmp_path / "order"
    commands = [python(name, f"open({str(order)!r}, 'a').write({name!r})") for name in ("a", "b")]
    timings = in_turn(commands, 3, tmp_path / "logs", warm_up=1)
    assert order.read_text() == "abababab"
    assert {name: len(timing.samples) for name, timing in timings.items()} == {"a": 3, "b": 3}
    assert "bench: b: run 3 of 3: " in capsys.readouterr().err


def test_timing_has_median_times_and_peak_memory():
    samples = (Sample(1.0, 10.0, 5), Sample(9.0, 30.0, 7), Sample(2.0, 20.0, 6))
    timing = Timing(samples)
    assert (timing.wall(), timing.cpu(), timing.memory()) == (2.0, 20.0, 7)
    assert timing.to_dict() == {
        "runs": 3,
        "wall_seconds": 2.0,
        "wall_seconds_range": [1.0, 9.0],
        "cpu_seconds": 20.0,
        "peak_memory_bytes": 7,
    }


@pytest.mark.parametrize("seed", range(20))
def test_statistics_are_those_of_the_standard_library(seed):
    """Compared with exact fractions, for odd and even numbers of rounds."""
    draw = random.Random(seed)
    ours, theirs = ([draw.uniform(0.1, 100) for _ in range(1 + seed % 6)] for _ in range(2))
    found = Ratio.of(ours, theirs)
    exact = [[Fraction(value) for value in side] for side in (ours, theirs)]
    rounds = [one / other for one, other in zip(*exact, strict=True)]
    assert found.rounds == pytest.approx([float(value) for value in rounds])
    assert found.median == pytest.approx(float(statistics.median(rounds)))
    assert found.of_medians == pytest.approx(float(statistics.median(exact[0]) / statistics.median(exact[1])))
    timing = Timing(tuple(Sample(wall, cpu, 1) for wall, cpu in zip(ours, theirs, strict=True)))
    assert (timing.wall(), timing.cpu()) == (statistics.median(ours), statistics.median(theirs))


def test_slower_rounds_do_not_change_the_ratio():
    assert Ratio.of([12.0, 24.0, 48.0], [10.0, 20.0, 40.0]).median == pytest.approx(1.2)
    assert Ratio.of([12.0, 30.0, 10.0], [10.0, 10.0, 10.0]).median == pytest.approx(1.2)


def test_a_lucky_round_shows_in_the_ratio_of_the_medians():
    found = Ratio.of([9.0, 10.0, 30.0], [10.0, 10.0, 29.0])
    assert (found.median, found.of_medians) == (1.0, 1.0)
    lucky = Ratio.of([9.0, 20.0, 21.0], [10.0, 9.9, 30.0])
    assert (lucky.median, lucky.of_medians) == (0.9, 2.0)


def test_rounds_of_different_numbers_are_refused():
    with pytest.raises(ValueError, match="zip"):
        Ratio.of([1.0, 2.0], [1.0])


def test_each_run_has_its_own_ssh_connections(tmp_path):
    """Ansible puts the sockets of its shared connections there; ssh(1) closes what listens behind one."""
    seen = tmp_path / "seen"
    code = f"import os; open({str(seen)!r}, 'a').write(os.environ['ANSIBLE_SSH_CONTROL_PATH_DIR'] + chr(10))"
    in_turn([python("a", code), python("b", code)], 2, tmp_path / "logs")
    folders = seen.read_text().splitlines()
    assert len(folders) == len(set(folders)) == 6
    assert [folder for folder in folders if Path(folder).exists()] == []
