"""Tables of measurements."""

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gpuhost.stack.plugins.filter.measurements import FilterModule
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report import measurements

FILTERS = FilterModule().filters()


def gpu(**figures):
    known = {"index": 0, "uuid": "GPU-a", "name": "NVIDIA H200", "samples": 2, "memory_total_mib": 143771.0}
    blank = dict.fromkeys(
        (
            "utilization_max",
            "utilization_mean",
            "memory_used_max_mib",
            "memory_used_mean_mib",
            "power_max_w",
            "power_mean_w",
            "temperature_max_c",
        )
    )
    return {**blank, **known, **figures}


def entry(ms, status="pass", reason="", gflops=None):
    return {"status": status, "reason": reason, "median_ms": ms, "gflops": gflops}


RESULT = {
    "devices": [{"id": "CPU", "kind": "cpu", "model": "x"}, {"id": "GPU0", "kind": "gpu", "model": "NVIDIA H200"}],
    "sizes": [
        {"elements": 100, "n": 10, "devices": {"CPU": entry(0.0123, gflops=0.1), "GPU0": entry(0.05, gflops=0.04)}},
        {
            "elements": 10**8,
            "n": 10000,
            "devices": {"CPU": entry(None, "skip", "about 90 s needed"), "GPU0": entry(40.0, gflops=50000.0)},
        },
    ],
    "checks": [
        {"id": "matmul-cpu", "status": "pass", "found": "1 size", "expected": "right", "remedy": ""},
        {"id": "matmul-gpu0", "status": "fail", "found": "wrong", "expected": "right", "remedy": "look"},
    ],
}


def test_a_recording_has_a_line_for_each_gpu_and_its_errors():
    summary = {
        "interval": 5.003,
        "samples": 4,
        "marks": {"before": 1, "during": 2, "after": 1},
        "gpus": [gpu(utilization_max=97.0, utilization_mean=48.5, power_max_w=612.5), gpu(index=1)],
        "errors": ["at 3.0 s: nvidia-smi ended 255"],
    }
    head, titles, first, second, error = FILTERS["monitor_table"](summary)
    assert head == "4 samples, every 5 s; figures of the 2 samples marked 'during'"
    assert titles.split()[:3] == ["GPU", "name", "GPU"]
    assert first.split() == ["0", "NVIDIA", "H200", "97", "48", "-", "-", "143771", "612", "-", "-", "2"]
    assert second.split()[3:5] == ["-", "-"]
    assert error == "error at 3.0 s: nvidia-smi ended 255"
    assert len(first) == len(second)


def test_an_empty_recording_has_its_errors():
    summary = {"interval": None, "samples": 0, "marks": {}, "gpus": [], "errors": ["at 0.0 s: no driver"]}
    assert measurements.monitor_table(summary) == ["0 samples, -", "error at 0.0 s: no driver"]


def test_a_benchmark_has_a_line_for_each_size_and_what_is_missing():
    titles, small, large, left_out, failed = FILTERS["benchmark_table"](RESULT)
    assert titles.split() == [
        "elements",
        "n",
        "CPU",
        "ms",
        "GPU0",
        "ms",
        "CPU",
        "GFLOP/s",
        "GPU0",
        "GFLOP/s",
        "CPU/GPU0",
    ]
    assert small.split() == ["100", "10", "0.0123", "0.05", "0.1", "0.04", "0.246"]
    assert large.split() == ["100000000", "10000", "-", "40", "-", "50000", "-"]
    assert left_out == "left out: 100000000 elements on CPU: about 90 s needed"
    assert failed == "fail matmul-gpu0: found wrong; expected right; look"


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.01234, "0.0123"), (999.4, "999"), (12345.6, "12346")])
def test_three_significant_digits(value, text):
    assert measurements.significant(value) == text


@pytest.mark.parametrize("name", ["monitor_table", "benchmark_table"])
@pytest.mark.parametrize("found", [{}, "text", None])
def test_other_data_is_refused(name, found):
    with pytest.raises(AnsibleFilterError, match=f"gpuhost.stack.{name}: expected a .*: (summary|result)"):
        FILTERS[name](found)


def test_a_recording_is_read_without_a_last_row_that_is_cut_off(tmp_path):
    path = tmp_path / "monitor.csv"
    path.write_text("seconds,gpu,name\n0.0,0,NVIDIA H200\n1.0,0\n")
    assert measurements.recording(path) == [{"seconds": "0.0", "gpu": "0", "name": "NVIDIA H200"}]
