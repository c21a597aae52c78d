"""gpu_monitor.py with the simulated nvidia-smi, and with programs that fail, hang or lose a GPU.

The simulated nvidia-smi is tested against captured output of the genuine one.
"""

import ast
import csv
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu_monitor
import pytest

from tests.doubles.simulated_driver import elements, nvidia_smi
from tests.unit.doubles.test_simulated_nvidia_smi import Host, m60_values

SCRIPT = Path(gpu_monitor.__file__)
ADDRESSES = ["0000:05:00.0", "0000:06:00.0"]
LOST = {"failure": {"mode": "fallen_off_bus"}}
ROW = "0, GPU-a, 50, 10, 1000, 8192, 120.50, 60, 1980, 3201, Disabled, NVIDIA H200"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Two M60, the second busy, as in the captured transcripts."""
    found = Host(tmp_path / "root")
    for address in ADDRESSES:
        found.add_gpu(address, "13f2", "0x030000")
    found.state(devices=m60_values())
    monkeypatch.setenv("GPUHOST_SIMULATED_ROOT", str(found.root))
    return found


@pytest.fixture
def smi(tmp_path: Path) -> str:
    """Return the simulated program, run with this interpreter."""
    return script(tmp_path / "nvidia-smi", f'exec {shlex.join(nvidia_smi())} "$@"')


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def answering(path: Path, gpus: str, processes: str = "") -> str:
    """Write a program that prints these rows for each query."""
    return script(path, f"case $1 in --query-gpu*) printf '%s\\n' '{gpus}';; *) printf '%s' '{processes}';; esac")


def rows(path: Path) -> list[dict[str, str]]:
    # Read at once: a recorder that writes its header meanwhile would give a reader rows and no names of columns.
    return list(csv.DictReader(path.read_text().splitlines()))


def wait_until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.02)


def record(directory: Path, program: str | None, samples: int = 2, **options) -> tuple[gpu_monitor.Recorder, dict]:
    recorder = gpu_monitor.Recorder(directory / "monitor.csv", 0.05, program, **options)
    recorder.start()
    wait_until(lambda: recorder.samples >= samples or not recorder.alive())
    return recorder, recorder.stop()


# Parsing


def test_sample_has_the_values_of_the_captured_transcripts(tmp_path, host, smi):
    _, summary = record(tmp_path, smi)
    first, second = rows(tmp_path / "monitor.csv")[:2]
    # tests/fixtures/nvidia-smi: "1, Tesla M60, GPU-...1, ..., 8192 MiB, 6144 MiB, 87 %, 121.43 W, ..., 71"
    assert second["uuid"] == "GPU-00000000-0000-4000-8000-000000000001"
    assert (second["gpu"], second["name"], second["memory_total_mib"], second["memory_used_mib"]) == (
        "1",
        "Tesla M60",
        "8192",
        "6144",
    )
    assert (second["utilization_percent"], second["power_w"], second["temperature_c"]) == ("87", "121.43", "71")
    assert (first["utilization_percent"], first["power_w"], first["mark"]) == ("0", "14.87", "before")
    busy = summary["gpus"][1]
    assert (busy["index"], busy["utilization_max"], busy["memory_used_max_mib"]) == (1, 87.0, 6144.0)
    assert (busy["power_max_w"], busy["temperature_max_c"]) == (121.43, 71.0)
    assert summary["errors"] == []


def test_columns_are_the_documented_ones(tmp_path, host, smi):
    record(tmp_path, smi)
    header = (tmp_path / "monitor.csv").read_text().splitlines()[0]
    assert header.startswith(
        "time,seconds,mark,gpu,uuid,utilization_percent,memory_utilization_percent,memory_used_mib,memory_total_mib,"
        "power_w,temperature_c,sm_clock_mhz,memory_clock_mhz,mig_mode"
    )
    processes = (tmp_path / "monitor-processes.csv").read_text().splitlines()[0]
    assert processes == "time,seconds,gpu_uuid,pid,process,memory_used_mib"


def test_properties_are_listed_by_nvidia_smi(host):
    listed = host.run("--help-query-gpu").stdout + host.run("--help-query-compute-apps").stdout
    for name in (*gpu_monitor.GPU_PROPERTIES.values(), *gpu_monitor.PROCESS_PROPERTIES):
        assert f'"{name}"' in listed


def test_missing_value_is_an_empty_cell(tmp_path, host, smi):
    host.state(devices={"0": elements(clocks__sm_clock="N/A", temperature__gpu_temp="N/A")})
    _, summary = record(tmp_path, smi)
    first = rows(tmp_path / "monitor.csv")[0]
    assert (first["sm_clock_mhz"], first["temperature_c"], first["power_w"]) == ("", "", "14.87")
    assert summary["gpus"][0]["temperature_max_c"] is None
    assert summary["gpus"][1]["temperature_max_c"] is not None


@pytest.mark.parametrize("text", ["[N/A]", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "N/A", " "])
def test_placeholder_is_an_empty_cell(text):
    assert gpu_monitor.cell(text) == ""


def test_line_without_an_index_is_not_a_gpu():
    found, unparsed = gpu_monitor.parse_gpus(ROW.replace("0, GPU-a", "[Unknown Error], GPU-a") + "\n\n" + ROW + "\n")
    assert [gpu["uuid"] for gpu in found] == ["GPU-a"]
    assert unparsed == ["[Unknown Error], GPU-a" + ROW[len("0, GPU-a") :]]


def test_process_name_may_contain_a_comma(tmp_path, host, smi):
    process = {"gpu": 1, "pid": 4242, "type": "C", "name": "/opt/a, b/python3", "used_mib": 6144}
    host.state(processes=[process])
    _, summary = record(tmp_path, smi)
    first = rows(tmp_path / "monitor-processes.csv")[0]
    assert (first["pid"], first["process"], first["memory_used_mib"]) == ("4242", "/opt/a, b/python3", "6144")
    assert first["gpu_uuid"] == summary["gpus"][1]["uuid"]
    assert [(found["pid"], found["memory_used_max_mib"]) for found in summary["processes"]] == [(4242, 6144.0)]


def test_process_with_hidden_memory_is_kept():
    found, unparsed = gpu_monitor.parse_processes("GPU-a, 17, [Not Found], [N/A]\n")
    assert unparsed == []
    assert found == [{"gpu_uuid": "GPU-a", "pid": "17", "process": "", "memory_used_mib": ""}]


def test_warning_of_a_corrupted_inforom_is_no_error(tmp_path, host, smi):
    """nvidia-smi prints all rows, the warning below them, and exits with 14."""
    host.state(
        devices={"1": {"corrupted_inforom": True}},
        processes=[{"gpu": 1, "pid": 42, "name": "a\v\u2028b", "used_mib": 1}],
    )
    _, summary = record(tmp_path, smi)
    assert summary["errors"] == []
    assert len(rows(tmp_path / "monitor.csv")) >= len(summary["gpus"]) > 1
    assert ",a\v\u2028b," in (tmp_path / "monitor-processes.csv").read_text()


# Failures


def test_lost_gpu_is_reported_and_the_others_are_recorded(tmp_path, host, smi):
    recorder = gpu_monitor.Recorder(tmp_path / "monitor.csv", 0.05, smi)
    recorder.start()
    host.state(devices={"0": m60_values()["0"], "1": LOST})
    wait_until(lambda: gpu_monitor.summary(recorder.path)["errors"])
    seen = recorder.samples
    wait_until(lambda: recorder.samples >= seen + 2)
    summary = recorder.stop()
    left, lost = summary["gpus"]
    assert left["samples"] > lost["samples"]
    assert rows(tmp_path / "monitor.csv")[-1]["gpu"] == "0"
    assert any(
        "exit status 255" in error and "GPU1: 0000:06:00.0: Unknown Error" in error for error in summary["errors"]
    )


def test_failure_of_both_queries_is_reported_once(tmp_path, host, smi):
    host.state(devices={"1": LOST})
    _, summary = record(tmp_path, smi)
    assert len(summary["errors"]) == 1
    assert "times)" in summary["errors"][0]


def test_failing_nvidia_smi_costs_samples_only(tmp_path):
    good = answering(tmp_path / "good", ROW)
    flaky = script(tmp_path / "flaky", f"test -e {tmp_path}/broken && {{ echo no driver; exit 9; }}; exec {good} $1")
    recorder = gpu_monitor.Recorder(tmp_path / "monitor.csv", 0.05, flaky)
    recorder.start()
    (tmp_path / "broken").touch()
    wait_until(lambda: gpu_monitor.summary(recorder.path)["errors"])
    (tmp_path / "broken").unlink()
    before = recorder.samples
    wait_until(lambda: recorder.samples > before)
    errors = recorder.stop()["errors"]
    assert any("nvidia-smi ended with exit status 9: no driver" in error for error in errors)


def test_missing_nvidia_smi_is_a_recorded_error(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_monitor, "find_nvidia_smi", lambda: None)
    recorder, summary = record(tmp_path, None)
    assert summary["samples"] == 0
    assert "found no nvidia-smi" in summary["errors"][0]
    assert "expected" in summary["errors"][0]
    assert not recorder.alive()


def test_program_that_does_not_start_is_a_recorded_error(tmp_path):
    _, summary = record(tmp_path, str(tmp_path / "gone"), samples=0)
    assert "could not be started" in summary["errors"][0]


def test_hanging_nvidia_smi_is_killed_and_reported(tmp_path):
    hanging = script(tmp_path / "hanging", f"echo $$ > {tmp_path}/pid; exec sleep 100")
    caller = gpu_monitor.Caller(hanging, gpu_monitor.threading.Event(), timeout=2.0)
    started = time.monotonic()
    assert caller.call("--query-gpu=index").error == "nvidia-smi did not answer within 2 s"
    assert time.monotonic() - started < 10
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_no_call_is_started_while_one_is_stuck(tmp_path):
    caller = gpu_monitor.Caller(answering(tmp_path / "smi", ROW), gpu_monitor.threading.Event())
    caller.stuck = subprocess.Popen(["sleep", "100"])
    try:
        assert "cannot be killed" in caller.call("--query-gpu=index").error
    finally:
        caller.stuck.kill()
        caller.stuck.wait()
    assert caller.call("--query-gpu=index") == (ROW + "\n", "")


def test_stop_waits_for_the_grace_period_only(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_monitor, "GRACE_PERIOD", 0.3)
    recorder = gpu_monitor.Recorder(tmp_path / "monitor.csv", 0.05, script(tmp_path / "smi", "exec sleep 100"))
    recorder.start(wait=0.1)
    started = time.monotonic()
    summary = recorder.stop()
    assert time.monotonic() - started < 5
    assert summary["errors"][0].endswith("nvidia-smi did not answer before the recording ended")


def test_unwritable_file_ends_the_recording_with_an_error(tmp_path):
    recorder = gpu_monitor.Recorder(tmp_path / "monitor.csv", 0.05, answering(tmp_path / "smi", ROW))
    recorder.start()
    moved = tmp_path / "moved.csv"
    recorder.path.rename(moved)
    recorder.path.mkdir()
    wait_until(lambda: not recorder.alive())
    recorder.path.rmdir()
    moved.rename(recorder.path)
    summary = recorder.stop()
    assert summary["samples"] >= 1
    assert "the recording ended early" in summary["errors"][-1]


# Interval and marks


@pytest.mark.parametrize(
    ("now", "expected"),
    [(100.1, 105.0), (104.9, 105.0), (105.0, 105.0), (106.0, 110.0), (123.4, 125.0)],
    ids=["quick answer", "slow answer", "just in time", "one sample lost", "four samples lost"],
)
def test_interval_does_not_drift(now, expected):
    assert gpu_monitor.next_due(100.0, 5.0, now) == pytest.approx(expected)


def test_last_mark_has_at_least_one_sample(tmp_path):
    recorder = gpu_monitor.Recorder(tmp_path / "monitor.csv", 60, answering(tmp_path / "smi", ROW))
    recorder.start()
    recorder.mark("during")
    recorder.mark("after")
    assert recorder.stop()["marks"] == {"before": 1, "after": 1}


def test_recording_overwrites_the_previous_one(tmp_path):
    smi = answering(tmp_path / "smi", ROW, "GPU-a, 5, python3, 100\n")
    first = record(tmp_path, smi, samples=4)[1]
    (tmp_path / "monitor-errors.csv").write_text("time,seconds,error\nx,0.0,an old one\n")
    recorder = gpu_monitor.Recorder(tmp_path / "monitor.csv", 60, smi)
    recorder.start()
    second = recorder.stop()
    assert first["samples"] >= 4
    assert (second["samples"], second["errors"]) == (1, [])


def test_interval_of_zero_is_refused(tmp_path):
    with pytest.raises(ValueError, match="interval of 0 s, expected more than 0"):
        gpu_monitor.Recorder(tmp_path / "monitor.csv", 0)


# The summary


def recording(path: Path, *samples: tuple[float, str, str, str, str]) -> Path:
    """Write rows of (seconds, mark, utilisation, MiB, W) of one GPU."""
    lines = [",".join(gpu_monitor.GPU_COLUMNS)]
    lines += [
        f"2026-01-01T00:00:00Z,{seconds:.3f},{mark},0,GPU-a,{use},0,{memory},8192,{power},50,1000,3000,Disabled,H200"
        for seconds, mark, use, memory, power in samples
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_figures_cover_the_training_only(tmp_path):
    path = recording(
        tmp_path / "monitor.csv",
        (0, "before", "99", "8000", "300"),
        (5, "during", "40", "4000", "200"),
        (10, "during", "60", "5000", "250"),
        (15, "after", "100", "9000", "400"),
    )
    found = gpu_monitor.summary(path)
    (gpu,) = found["gpus"]
    assert (gpu["utilization_max"], gpu["utilization_mean"], gpu["samples"]) == (60.0, 50.0, 2)
    assert (gpu["memory_used_max_mib"], gpu["power_max_w"], gpu["power_mean_w"]) == (5000.0, 250.0, 225.0)
    assert (found["interval"], found["samples"]) == (5.0, 4)
    assert found["marks"] == {"before": 1, "during": 2, "after": 1}


def test_without_marks_all_samples_count(tmp_path):
    path = recording(tmp_path / "monitor.csv", (0, "", "10", "1", "1"), (5, "", "30", "", "2"))
    (gpu,) = gpu_monitor.summary(path)["gpus"]
    assert (gpu["utilization_max"], gpu["utilization_mean"], gpu["memory_used_max_mib"]) == (30.0, 20.0, 1.0)


def test_gpu_lost_before_the_training_has_no_figures(tmp_path):
    path = recording(tmp_path / "monitor.csv", (0, "before", "1", "1", "1"))
    other = path.read_text().splitlines()[1].replace(",0,GPU-a,", ",1,GPU-b,")
    path.write_text(path.read_text() + other.replace("0.000,before", "5.000,during") + "\n")
    lost, other = gpu_monitor.summary(path)["gpus"]
    assert (lost["index"], lost["uuid"], lost["name"]) == (0, "GPU-a", "H200")
    assert (lost["samples"], lost["utilization_max"]) == (0, None)
    assert (other["index"], other["samples"]) == (1, 1)


def test_incomplete_row_is_dropped(tmp_path):
    path = recording(tmp_path / "monitor.csv", (0, "", "10", "1", "1"))
    path.write_text(path.read_text() + "2026-01-01T00:00:05Z,5.0")
    assert gpu_monitor.summary(path)["samples"] == 1


def test_no_recording_is_an_empty_summary(tmp_path):
    found = gpu_monitor.summary(tmp_path / "none.csv")
    assert (found["samples"], found["gpus"], found["interval"], found["errors"]) == (0, [], None, [])


# Command line


def command(tmp_path: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPT), "--output", str(tmp_path / "monitor.csv"), *arguments]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_ends_the_recording_cleanly(tmp_path, number):
    arguments = ["--interval", "0.1", "--nvidia-smi", answering(tmp_path / "smi", ROW)]
    with subprocess.Popen(command(tmp_path, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: (tmp_path / "monitor.csv").exists() and len(rows(tmp_path / "monitor.csv")) >= 2)
        process.send_signal(number)
        try:
            output, error = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    found = json.loads(output)
    assert found["samples"] == len(rows(tmp_path / "monitor.csv"))
    first, last = error.decode().splitlines()
    assert first == "gpu_monitor: 0 s, 1 samples: GPU0 50 %"
    assert last.startswith(f"gpu_monitor: ended: {found['samples']} samples of 1 GPUs")
    assert rows(tmp_path / "monitor.csv")[0]["mark"] == ""


def test_without_a_driver_it_ends_at_once_with_the_reason(tmp_path, host, smi):
    host.state(state="not_loaded")
    arguments = ["--duration", "600", "--nvidia-smi", smi]
    answer = subprocess.run(command(tmp_path, *arguments), capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "nvidia-smi ended with exit status 9: NVIDIA-SMI has failed because it couldn't communicate" in answer.stderr
    assert json.loads(answer.stdout)["samples"] == 0


@pytest.mark.parametrize("arguments", [["--interval", "0"], ["--duration", "-1"], ["--interval", "nan"]])
def test_bad_usage(tmp_path, arguments):
    answer = subprocess.run(command(tmp_path, *arguments), capture_output=True, text=True)
    assert answer.returncode == 2
    assert "usage:" in answer.stderr


def test_missing_directory_is_reported(tmp_path):
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(tmp_path / "none/m.csv")], capture_output=True, text=True
    )
    assert answer.returncode == 1
    assert "cannot record" in answer.stderr


def test_syntax_is_python_3_8():
    ast.parse(SCRIPT.read_text(), feature_version=(3, 8))


def test_pci_gpus_are_nvidia_display_controllers(tmp_path: Path) -> None:
    functions = {
        "0000:05:00.0": ("0x10de", "0x030200"),  # H200
        "0000:06:00.0": ("0x10de", "0x030000"),  # M60
        "0000:06:00.1": ("0x10de", "0x040300"),  # a GPU's audio function
        "0000:07:00.0": ("0x10de", "0x068000"),  # NVSwitch
        "0000:00:02.0": ("0x8086", "0x030000"),  # another vendor's graphics
        "0000:08:00.0": ("0x10de", "0x030000"),  # of a virtual machine
    }
    for address, (vendor, class_) in functions.items():
        (tmp_path / address).mkdir()
        (tmp_path / address / "vendor").write_text(f"{vendor}\n")
        (tmp_path / address / "class").write_text(f"{class_}\n")
    (tmp_path / "0000:08:00.0/driver").symlink_to("../../drivers/vfio-pci")
    assert gpu_monitor.count_pci_gpus(tmp_path) == 2
    assert gpu_monitor.count_pci_gpus(tmp_path / "missing") == 0
