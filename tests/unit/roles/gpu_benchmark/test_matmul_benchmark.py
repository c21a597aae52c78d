"""matmul_benchmark.py with NumPy instead of a framework: measurements, checks and limits."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import matmul_benchmark as bench
import numpy as np
import pytest

SCRIPT = Path(bench.__file__)
# The scripts of both roles, which the role copies into one directory.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
CPU = bench.Device("CPU", "cpu", "a processor")
GPU = bench.Device("GPU0", "gpu", "a GPU")
OK = {"status": "pass", "n": 10, "reason": "", "largest_relative_error": 1e-7, "tolerance": 1e-6}


class Tensor:
    """A matrix with its device."""

    def __init__(self, array, device):
        self.array, self.device = array, device


class Numpy:
    """A framework on NumPy, with the same interface as TensorFlow and PyTorch."""

    name, version, reference = "numpy", np.__version__, "NumPy, float64"
    errors = (RuntimeError,)

    def __init__(self, gpus=()):
        self.gpus, self.waited = list(gpus), []

    def devices(self):
        return self.gpus

    def seed(self, seed):
        self.random = np.random.default_rng(seed)

    def matrix(self, n):
        return self.random.random((n, n), dtype=np.float32) - np.float32(0.5)

    def double(self, matrix):
        return matrix.astype(np.float64)

    def put(self, device, matrix):
        return Tensor(matrix, device)

    def multiply(self, device, a, b):
        return Tensor(a.array @ b.array, device)

    def wait(self, device):
        self.waited.append(device.id)

    def get(self, tensor):
        return tensor.array

    def where(self, tensor):
        return tensor.device.id


def run(framework, *sizes, seconds=60.0, devices=(CPU, GPU)):
    benchmark = bench.Benchmark(framework, devices, time.monotonic() + seconds, seed=1)
    return [benchmark.size(elements) for elements in sizes]


def as_tf32(matrix):
    """Round float32 to the 10-bit mantissa of TF32."""
    bits = matrix.view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


# Sizes


def test_side_length_of_each_number_of_elements():
    assert [bench.side_length(10**power) for power in bench.DECADES] == [10, 32, 100, 316, 1000, 3162, 10000]


def test_operation_count():
    assert bench.operation_count(1000) == 2e9


# Check of a product


@pytest.mark.parametrize("n", [10, 32, 100, 316, 1000])
def test_tolerance_accepts_float32_and_refuses_tf32(n):
    framework = Numpy()
    framework.seed(n)
    a, b = framework.matrix(n), framework.matrix(n)
    rows = range(n)
    assert bench.largest_error(a, b, a @ b, rows, framework.double) < bench.tolerance(n) / 2
    if n < 1000:  # in larger products its errors cancel out
        found = bench.largest_error(a, b, as_tf32(a) @ as_tf32(b), rows, framework.double)
        assert found > 2 * bench.tolerance(n)


def test_wrong_element_is_found_in_each_block_of_columns(monkeypatch):
    monkeypatch.setattr(bench, "CHECKED_COLUMNS", 16)
    framework = Numpy()
    framework.seed(0)
    a, b = framework.matrix(40), framework.matrix(40)
    for column in (0, 15, 16, 39):
        c = a @ b
        c[7, column] += 0.01
        assert bench.largest_error(a, b, c, [3, 7], framework.double) > bench.tolerance(40)
        assert bench.largest_error(a, b, c, [3, 8], framework.double) < bench.tolerance(40)


def test_nan_is_the_largest_error():
    a = np.ones((4, 4), dtype=np.float32)
    c = a @ a
    c[0, 0] = np.nan
    assert math.isnan(bench.largest_error(a, a, c, [0, 1], Numpy().double))


# A run


def test_each_size_is_measured_on_each_device():
    framework = Numpy()
    sizes = run(framework, 100, 10000)
    assert [(size["elements"], size["n"], list(size["devices"])) for size in sizes] == [
        (100, 10, ["CPU", "GPU0"]),
        (10000, 100, ["CPU", "GPU0"]),
    ]
    for size in sizes:
        for measured in size["devices"].values():
            assert measured["status"] == "pass"
            assert measured["repetitions"] >= bench.REPETITIONS[0]
            assert measured["min_ms"] <= measured["median_ms"] <= measured["max_ms"]
            assert measured["gflops"] == pytest.approx(2 * size["n"] ** 3 / measured["median_ms"] / 1e6, rel=1e-2)
    assert set(framework.waited) == {"CPU", "GPU0"}


def test_timing_includes_waiting_for_the_device():
    class Queued(Numpy):
        def wait(self, device):
            time.sleep(0.01)

    (size,) = run(Queued(), 100, devices=[CPU])
    assert size["devices"]["CPU"]["median_ms"] >= 10


def test_transfers_are_measured_separately():
    class Far(Numpy):
        def put(self, device, matrix):
            time.sleep(0.05)
            return super().put(device, matrix)

    (size,) = run(Far(), 100, devices=[CPU])
    assert size["devices"]["CPU"]["to_device_ms"] >= 100
    assert size["devices"]["CPU"]["median_ms"] < 50


def test_wrong_product_fails():
    class Wrong(Numpy):
        def multiply(self, device, a, b):
            return Tensor(as_tf32(a.array) @ as_tf32(b.array) if device.kind == "gpu" else a.array @ b.array, device)

    (size,) = run(Wrong(), 10000)
    assert size["devices"]["CPU"]["status"] == "pass"
    assert size["devices"]["GPU0"]["status"] == "fail"
    assert "float32 rounding explains" in size["devices"]["GPU0"]["reason"]
    check = bench.check_device(GPU, [size["devices"]["GPU0"]])
    assert (check["id"], check["status"]) == ("matmul-gpu0", "fail")
    assert check["found"].startswith("n = 100: error")
    assert check["remedy"]


def test_product_on_another_device_fails():
    class Elsewhere(Numpy):
        def where(self, tensor):
            return "CPU"

    (size,) = run(Elsewhere(), 100)
    assert size["devices"]["GPU0"]["reason"] == "the product was computed on CPU"
    assert size["devices"]["GPU0"]["status"] == "fail"


def test_failing_device_does_not_stop_the_others():
    class Broken(Numpy):
        def multiply(self, device, a, b):
            if device.kind == "gpu":
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return super().multiply(device, a, b)

    first, second = run(Broken(), 100, 1000)
    assert first["devices"]["GPU0"]["status"] == "fail"
    assert "illegal memory access" in first["devices"]["GPU0"]["reason"]
    assert (second["devices"]["GPU0"]["status"], second["devices"]["CPU"]["status"]) == ("skip", "pass")


def test_out_of_gpu_memory_skips_larger_sizes():
    class Small(Numpy):
        def put(self, device, matrix):
            if device.kind == "gpu" and len(matrix) > 10:
                raise bench.OutOfMemory("out of memory")
            return super().put(device, matrix)

    sizes = run(Small(), 100, 1000, 10000)
    assert [size["devices"]["GPU0"]["status"] for size in sizes] == ["pass", "skip", "skip"]
    assert "not enough GPU memory from n = 32 on" in sizes[2]["devices"]["GPU0"]["reason"]
    assert bench.check_device(GPU, [size["devices"]["GPU0"] for size in sizes])["status"] == "pass"


def test_out_of_host_memory_skips_the_size(monkeypatch):
    monkeypatch.setattr(bench, "available_memory", lambda: 10 * 2**20)
    first, second = run(Numpy(), 100, 10**6)
    assert first["devices"]["CPU"]["status"] == "pass"
    assert second["devices"]["CPU"]["status"] == "skip"
    assert second["devices"]["CPU"]["reason"] == "30 MiB of host memory needed, 10 MiB available"


def test_size_beyond_the_time_limit_is_skipped():
    benchmark = bench.Benchmark(Numpy(), [CPU, GPU], time.monotonic() + 30, seed=1)
    benchmark.previous = {"CPU": (1, 1.0), "GPU0": (1, 1e-9)}  # 10 x 10 takes 1000 times as long as 1 x 1
    devices = benchmark.size(100)["devices"]
    assert devices["CPU"]["status"] == "skip"
    assert devices["CPU"]["reason"].startswith("about 4000 s needed, the time limit leaves 30 s")
    assert devices["GPU0"]["status"] == "pass"


def test_no_time_for_any_size_fails():
    (size,) = run(Numpy(), 100, seconds=-1)
    check = bench.check_device(CPU, [size["devices"]["CPU"]])
    assert (size["devices"]["CPU"]["status"], check["status"]) == ("skip", "fail")
    assert "no product was measured" in check["found"]


@pytest.mark.parametrize(
    ("done", "spent", "one", "left", "more"),
    [
        (0, 0.0, 0.001, 100, True),
        (4, 8.0, 2.0, 100, True),
        (5, 10.0, 2.0, 100, False),
        (50, 0.5, 0.01, 100, True),
        (200, 0.1, 0.001, 100, False),
        (2, 12.0, 6.0, 100, True),
        (3, 18.0, 6.0, 100, False),
        (0, 0.0, 6.0, 5, False),
    ],
)
def test_number_of_repetitions(done, spent, one, left, more):
    assert bench.needs_repetition(done, spent, one, left) is more


# Checks


@pytest.mark.parametrize(
    ("gpus", "on_pci", "simulated", "status"),
    [(0, 0, False, "skip"), (0, 2, True, "skip"), (2, 2, False, "pass"), (1, 2, False, "fail"), (0, 2, False, "fail")],
)
def test_real_gpus_on_the_pci_bus_must_be_visible(gpus, on_pci, simulated, status):
    check = bench.check_compared(gpus, on_pci, simulated, "tensorflow")
    assert check["status"] == status
    assert bool(check["remedy"]) is (status == "fail")
    if status == "skip":
        assert "no GPU: CPU only, no comparison" in check["found"]
        assert ("simulated" in check["found"]) is simulated


def test_a_failed_check_fails_the_result():
    checks = [bench.check_device(CPU, [OK]), bench.check_compared(0, 0, False, "tensorflow")]
    assert bench.build_result({"checks": checks})["status"] == "pass"
    checks.append(bench.check_device(GPU, [dict(OK, status="fail", reason="wrong")]))
    assert bench.build_result({"checks": checks})["status"] == "fail"


# Command line


def test_missing_framework_is_reported(tmp_path):
    command = [sys.executable, str(SCRIPT)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert answer.returncode == 1
    assert "found no tensorflow" in answer.stderr
    assert "expected one of them; run this with the Python of an environment" in answer.stderr


def test_framework_has_no_setting_of_the_users(tmp_path):
    for name in ("numpy", "tensorflow"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "import os\nraise SystemExit(os.environ.get('XLA_FLAGS', 'none'))\n"
        )
    path = f"{tmp_path}:{ENVIRONMENT['PYTHONPATH']}"
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), "--framework", "tensorflow"],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "PYTHONPATH": path, "XLA_FLAGS": "--nonsense"},
    )
    assert answer.stderr.splitlines()[-1] == "none"
    assert "ignored: " in answer.stderr
    assert "XLA_FLAGS=--nonsense (the environment of this run)" in answer.stderr


@pytest.mark.parametrize("arguments", [["--largest", "9"], ["--time-limit", "0"], ["--framework", "jax"]])
def test_bad_usage(arguments):
    command = [sys.executable, str(SCRIPT), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert answer.returncode == 2


class Loud(Numpy):
    """A framework that writes to standard output, also past Python."""

    def put(self, device, matrix):
        print("noise", flush=True)
        os.write(1, b"more noise\n")
        return super().put(device, matrix)


def test_standard_output_is_the_document_only():
    code = (
        "import sys, test_matmul_benchmark as test;"
        "test.bench.load_framework = lambda name: test.Loud();"
        "test.bench.gpu_monitor.count_pci_gpus = lambda: 0;"
        "sys.exit(test.bench.main(['--largest', '3']))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        check=True,
        env=ENVIRONMENT,
    )
    found = json.loads(answer.stdout)
    assert [size["elements"] for size in found["sizes"]] == [100, 1000]
    assert (found["status"], found["checks"][-1]["id"]) == ("pass", "gpu-compared")
    assert "noise" in answer.stderr
    assert "matmul_benchmark: CPU, n = 32: " in answer.stderr
