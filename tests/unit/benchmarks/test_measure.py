"""Measure children of known resource usage; no assertion depends on this machine's speed."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.measure import Command, Failed, Sample, Timing, in_turn, once

LARGE = 500 * 2**20  # bytes, more than the test suite itself holds


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
    large = once(python("large", f"x = b'1' * {LARGE}"), tmp_path / "log")
    small = once(python("small", "pass"), tmp_path / "log")
    # At least the size of this process: see Sample.
    assert small.memory < LARGE <= large.memory < LARGE * 1.2


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
