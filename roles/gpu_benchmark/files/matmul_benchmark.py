"""Time float32 matrix products of 10^2 to 10^8 elements on the CPU and on each GPU, and verify the products.

Runs on the managed host in the TensorFlow or the PyTorch environment, with gpu_monitor.py of the role smoke_train
beside it; also usable by hand. Standard output is one JSON document; progress and the framework's messages go to
standard error. Exit status: 0 all checks passed, 1 a check failed, 2 bad usage.

One product C = A B of square matrices is timed from the call until the device has finished. For small sizes that is the
launch overhead, not the device's throughput. A and B are on the device before, and C stays there; transfers are
measured separately (to_device_ms for A and B together, from_device_ms for C). The first products, which select and load
kernels, are not timed. A product counts as 2 n^3 floating point operations. Some rows of each product are compared with
the product in float64: by NumPy for TensorFlow, by PyTorch on the CPU for PyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
# Of user_settings, which the role installs beside this file.
sys.path.append(str(Path(__file__).resolve().parent / "../../../plugins/module_utils/state"))
import gpu_monitor
import user_settings

SCHEMA = 1
CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")
FRAMEWORKS = ("tensorflow", "pytorch")
DECADES = range(2, 9)  # 10^2 to 10^8 elements
WARM_UP = 2
TARGET_SECONDS = 1.0  # products of a size are repeated for this long, within REPETITIONS
REPETITIONS = (5, 200)
SLOW_SECONDS = 5.0  # from this duration on, a product is repeated three times after an untimed one
SLOW_REPETITIONS = 3
# Bytes of host memory per element: A and B, their copies in the framework, C there and on the host, 4 bytes each, plus
# some for the check.
HOST_BYTES = 32
MEMORY_SHARE = 0.8
CHECKED_ROWS = 64
CHECKED_COLUMNS = 1024  # at a time
UNIT_ROUNDOFF = 2.0**-24  # of float32
# A product rounds to float32 at each of n additions. These errors have random signs and grow with the square root of n
# (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019). A factor of 8 allows for any
# blocking and is still several times below the errors of TF32's 10-bit mantissa for matrices of 10^2 to 10^4 elements.
TOLERANCE_FACTOR = 8.0


class OutOfMemory(Exception):
    """The device has too little memory for a size."""


class Device(NamedTuple):
    """A device that products are timed on."""

    id: str  # CPU, GPU0, GPU1...: the name in tables and plots
    kind: str  # cpu or gpu
    model: str


# Frameworks: the same operations in each ---------------------------------------------------------------------


class TensorFlow:
    """Eager operations: synchronous on the CPU, queued on a GPU."""

    name = "tensorflow"
    reference = "NumPy, float64"

    def __init__(self) -> None:
        # Hide C++ messages below errors.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import numpy as np
        import tensorflow as tf

        self.np = np
        self.tf, self.version = tf, str(tf.__version__)
        tf.config.experimental.enable_tensor_float_32_execution(False)
        self.gpus = tf.config.list_physical_devices("GPU")
        for gpu in self.gpus:
            # Other programs may use the GPU: allocate what the matrices need instead of all memory.
            tf.config.experimental.set_memory_growth(gpu, True)
        self.errors = (tf.errors.OpError, RuntimeError)

    def seed(self, seed: int) -> None:
        """Set the seed of the matrices."""
        self.random = self.np.random.default_rng(seed)

    def matrix(self, n: int) -> Any:
        """Return a random n x n matrix in host memory with elements in [-1/2, 1/2)."""
        return self.random.random((n, n), dtype=self.np.float32) - self.np.float32(0.5)

    def double(self, matrix: Any) -> Any:
        """Return the matrix in float64."""
        return matrix.astype(self.np.float64)

    def devices(self) -> list[Device]:
        """Return the GPUs that TensorFlow sees."""
        details = [self.tf.config.experimental.get_device_details(gpu) for gpu in self.gpus]
        return [Device(f"GPU{i}", "gpu", str(found.get("device_name", "GPU"))) for i, found in enumerate(details)]

    def put(self, device: Device, matrix: Any) -> Any:
        """Copy a matrix to the device and wait for the transfer."""
        with self.tf.device(self._place(device)):
            # identity: a constant alone could stay in host memory until its first use.
            tensor = self._guarded(lambda: self.tf.identity(self.tf.constant(matrix)))
        self.wait(device)
        return tensor

    def multiply(self, device: Device, a: Any, b: Any) -> Any:
        """Start a product; it may still be running on return."""
        with self.tf.device(self._place(device)):
            return self._guarded(lambda: self.tf.linalg.matmul(a, b))

    def wait(self, device: Device) -> None:
        """Wait until the device has finished its queue."""
        if device.kind == "gpu":
            # Like tf.test.experimental.sync_devices, but for this device only.
            with self.tf.device(self._place(device)):
                self._guarded(self.tf.raw_ops.SyncDevice)

    def get(self, tensor: Any) -> Any:
        """Return a tensor as a NumPy array."""
        return self._guarded(tensor.numpy)

    def where(self, tensor: Any) -> str:
        """Return the device that holds a tensor: "CPU" or "GPU0"."""
        kind, number = str(tensor.device).rsplit(":", 2)[-2:]
        return kind.upper() + (number if kind.upper() != "CPU" else "")

    def _place(self, device: Device) -> str:
        return "/CPU:0" if device.kind == "cpu" else f"/GPU:{device.id[3:]}"

    def _guarded(self, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except self.tf.errors.ResourceExhaustedError as error:
            raise OutOfMemory(str(error).splitlines()[0][:200]) from error


class PyTorch:
    """Operations are synchronous on the CPU, queued on a GPU. Does not need NumPy, which PyTorch does not depend on."""

    name = "pytorch"
    reference = "PyTorch on the CPU, float64"

    def __init__(self) -> None:
        import torch

        self.torch, self.version = torch, str(torch.__version__)
        torch.set_float32_matmul_precision("highest")  # no TF32
        self.errors = (RuntimeError,)

    def seed(self, seed: int) -> None:
        """Set the seed of the matrices."""
        self.torch.manual_seed(seed)

    def matrix(self, n: int) -> Any:
        """Return a random n x n matrix in host memory with elements in [-1/2, 1/2)."""
        return self.torch.rand((n, n), dtype=self.torch.float32) - 0.5

    def double(self, matrix: Any) -> Any:
        """Return the matrix in float64."""
        return matrix.double()

    def devices(self) -> list[Device]:
        """Return the GPUs that PyTorch sees."""
        cuda = self.torch.cuda
        count = cuda.device_count() if cuda.is_available() else 0
        return [Device(f"GPU{i}", "gpu", str(cuda.get_device_name(i))) for i in range(count)]

    def put(self, device: Device, matrix: Any) -> Any:
        """Copy a matrix to the device and wait for the transfer."""
        tensor = self._guarded(lambda: matrix.to(self._place(device), copy=True))
        self.wait(device)
        return tensor

    def multiply(self, device: Device, a: Any, b: Any) -> Any:
        """Start a product; it may still be running on return."""
        return self._guarded(lambda: self.torch.matmul(a, b))

    def wait(self, device: Device) -> None:
        """Wait until the device has finished its queue."""
        if device.kind == "gpu":
            self.torch.cuda.synchronize(self._place(device))

    def get(self, tensor: Any) -> Any:
        """Return a tensor in host memory."""
        return self._guarded(tensor.cpu)

    def where(self, tensor: Any) -> str:
        """Return the device that holds a tensor: "CPU" or "GPU0"."""
        return "CPU" if tensor.device.type == "cpu" else f"GPU{tensor.device.index}"

    def _place(self, device: Device) -> str:
        return "cpu" if device.kind == "cpu" else f"cuda:{device.id[3:]}"

    def _guarded(self, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except self.torch.cuda.OutOfMemoryError as error:
            raise OutOfMemory(str(error).splitlines()[0][:200]) from error


# Sizes, limits and checks: pure functions --------------------------------------------------------------------------


def side_length(elements: int) -> int:
    """Return the side of the square matrix with about this many elements."""
    return round(math.sqrt(elements))


def operation_count(n: int) -> float:
    """Return the number of floating point operations of a product of side n."""
    return 2.0 * n**3


def expected_seconds(n: int, previous: tuple[int, float] | None) -> float:
    """Estimate the time of a product of side n from `previous`, the side and seconds of a smaller one; 0 without one.

    Work grows with the cube of the side. If the smaller product was mostly launch overhead, the estimate is too long.
    """
    return previous[1] * (n / previous[0]) ** 3 if previous else 0.0


def minimum_seconds(one: float) -> float:
    """Return the time of the minimum number of products, untimed ones included, of `one` seconds each."""
    return one * (1 + SLOW_REPETITIONS if one >= SLOW_SECONDS else WARM_UP + REPETITIONS[0])


def needs_repetition(done: int, spent: float, one: float, left: float) -> bool:
    """Return whether to time another product.

    done: products so far; spent: their total seconds; one: seconds of the last one; left: seconds until the time limit.
    """
    fewest = SLOW_REPETITIONS if one >= SLOW_SECONDS else REPETITIONS[0]
    if one > left:
        return False
    return done < fewest or (spent < TARGET_SECONDS and done < REPETITIONS[1])


def tolerance(n: int) -> float:
    """Return the largest relative error of an element of C that float32 rounding explains, relative to |A| |B|."""
    return TOLERANCE_FACTOR * math.sqrt(n) * UNIT_ROUNDOFF


def largest_error(a: Any, b: Any, c: Any, rows: Sequence[int], double: Callable[[Any], Any]) -> float:
    """Return the largest error of the given rows of C = A B against the float64 product, relative to |A| |B|.

    The matrices are NumPy arrays or PyTorch tensors in host memory; `double` converts them to float64.
    """
    left = double(a[list(rows)])
    worst = 0.0
    for start in range(0, len(b), CHECKED_COLUMNS):  # in parts: a whole B in float64 would take twice the memory of B
        right = double(b[:, start : start + CHECKED_COLUMNS])
        error = abs(c[list(rows)][:, start : start + CHECKED_COLUMNS] - left @ right) / (abs(left) @ abs(right))
        worst = max(worst, float(error.max()), key=lambda value: math.inf if math.isnan(value) else value)
    return worst


def check(id_: str, status: str, found: str, expected: str, remedy: str = "") -> dict[str, str]:
    """Return a check as JSON types."""
    return {"id": id_, "status": status, "found": found, "expected": expected, "remedy": remedy}


def check_device(device: Device, measured: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Check a device's products, given its entries in the order of the sizes."""
    id_, expected = f"matmul-{device.id.lower()}", "every product on the device, within float32 rounding"
    failed = [entry for entry in measured if entry["status"] == "fail"]
    done = [entry for entry in measured if entry["status"] == "pass"]
    if failed:
        remedy = "check the kernel log (`dmesg`) for Xid errors, and verify the host"
        return check(id_, "fail", f"n = {failed[0]['n']}: {failed[0]['reason']}", expected, remedy)
    if not done:
        reason = measured[0]["reason"] if measured else "no size"
        return check(id_, "fail", f"no product was measured: {reason}", expected, "raise --time-limit or free memory")
    worst = max(entry["largest_relative_error"] / entry["tolerance"] for entry in done)
    return check(id_, "pass", f"{len(done)} sizes, largest error {worst:.2f} of the tolerance", expected)


def check_compared(gpus: int, on_pci: int, simulated: bool, framework: str) -> dict[str, str]:
    """Check that there was a GPU to compare the CPU with; a real GPU on the PCI bus must be usable."""
    if on_pci > gpus and not simulated:
        found = f"{framework} sees {gpus} GPUs, the PCI bus has {on_pci} NVIDIA GPUs"
        remedy = "run `nvidia-smi`, and verify the host; CUDA_VISIBLE_DEVICES hides GPUs"
        return check("gpu-compared", "fail", found, f"{on_pci} GPUs", remedy)
    if not gpus:
        found = "no GPU: CPU only, no comparison" + (" (the host's GPUs are simulated)" if simulated else "")
        return check("gpu-compared", "skip", found, "one GPU or more")
    return check("gpu-compared", "pass", f"{gpus} GPUs", "every GPU of the host")


def build_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result document: adds schema and status."""
    failed = any(item["status"] == "fail" for item in result["checks"])
    return dict(result, schema=SCHEMA, status="fail" if failed else "pass")


# The host ----------------------------------------------------------------------------------------------------------


def processor_model() -> str:
    """Return the CPU's model and the number of usable threads."""
    names = [
        line.split(":", 1)[1].strip() for line in CPUINFO.read_text().splitlines() if line.startswith("model name")
    ]
    usable = len(os.sched_getaffinity(0))
    return f"{names[0] if names else platform.machine()}, {usable} of {os.cpu_count()} threads usable"


def available_memory() -> int:
    """Return the memory in bytes that programs can allocate without swapping."""
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"found no MemAvailable in {MEMINFO}, expected Linux 3.14 or newer")


# Measuring ---------------------------------------------------------------------------------------------------------


def log(text: str) -> None:
    """Print a line to standard error."""
    print(f"matmul_benchmark: {text}", file=sys.stderr, flush=True)


def measure_time(operation: Callable[[], Any]) -> tuple[Any, float]:
    """Return an operation's result and its duration in seconds."""
    start = time.perf_counter()
    value = operation()
    return value, time.perf_counter() - start


def finished_product(framework: Any, device: Device, a: Any, b: Any) -> Any:
    """Multiply and wait for the device."""
    c = framework.multiply(device, a, b)
    framework.wait(device)
    return c


def skipped(n: int, reason: str) -> dict[str, Any]:
    """Return the entry of a size that was not measured."""
    return {"n": n, "status": "skip", "reason": reason, "median_ms": None, "gflops": None}


def measure(framework: Any, device: Device, a: Any, b: Any, rows: Sequence[int], deadline: float) -> dict[str, Any]:
    """Measure one size on one device: transfer, untimed and timed products, check."""
    n = len(a)
    (on_a, on_b), sent = measure_time(lambda: (framework.put(device, a), framework.put(device, b)))
    c, one = measure_time(lambda: finished_product(framework, device, on_a, on_b))
    if one < SLOW_SECONDS:
        for _unused in range(WARM_UP - 1):
            c, one = measure_time(lambda: finished_product(framework, device, on_a, on_b))
    times: list[float] = []
    while needs_repetition(len(times), sum(times), one, deadline - time.monotonic()):
        c, one = measure_time(lambda: finished_product(framework, device, on_a, on_b))
        times.append(one)
    if not times:
        return skipped(n, f"the time limit leaves no time for a product of about {one:.1f} s")
    found, fetched = measure_time(lambda: framework.get(c))
    error, limit = largest_error(a, b, found, rows, framework.double), tolerance(n)
    reason = ""
    if framework.where(c) != device.id:
        reason = f"the product was computed on {framework.where(c)}"
    elif not error <= limit:  # false for NaN too
        reason = f"error {error:.3g} relative to |A| |B|, float32 rounding explains {limit:.3g}"
    return {
        "n": n,
        "status": "fail" if reason else "pass",
        "reason": reason,
        "repetitions": len(times),
        "median_ms": round(median(times) * 1e3, 6),
        "min_ms": round(min(times) * 1e3, 6),
        "max_ms": round(max(times) * 1e3, 6),
        "gflops": round(operation_count(n) / median(times) / 1e9, 4),
        "to_device_ms": round(sent * 1e3, 6),
        "from_device_ms": round(fetched * 1e3, 6),
        "largest_relative_error": error,
        "tolerance": limit,
        "checked_rows": len(rows),
    }


class Benchmark:
    """Measure all sizes on all devices, smallest first; the CPU is last for each size, since it may use up the time."""

    def __init__(self, framework: Any, devices: Sequence[Device], deadline: float, seed: int) -> None:
        self.framework, self.devices, self.deadline = framework, devices, deadline
        framework.seed(seed)
        self.random = random.Random(seed)
        self.previous: dict[str, tuple[int, float]] = {}
        self.warmed_up: set[str] = set()
        self.given_up: dict[str, str] = {}  # device -> why larger sizes are not tried

    def size(self, elements: int) -> dict[str, Any]:
        """Return the entry of a size, measured on every device."""
        n = side_length(elements)
        need, have = HOST_BYTES * n * n, available_memory()
        entry: dict[str, Any] = {"elements": elements, "n": n, "devices": {}}
        if need > MEMORY_SHARE * have:
            reason = f"{need >> 20} MiB of host memory needed, {have >> 20} MiB available"
            entry["devices"] = {device.id: skipped(n, reason) for device in self.devices}
            return entry
        a, b = self.framework.matrix(n), self.framework.matrix(n)
        rows = sorted(self.random.sample(range(n), min(n, CHECKED_ROWS)))
        found = {device.id: self._on(device, a, b, rows) for device in reversed(self.devices)}
        entry["devices"] = {device.id: found[device.id] for device in self.devices}
        return entry

    def _on(self, device: Device, a: Any, b: Any, rows: Sequence[int]) -> dict[str, Any]:
        n, left = len(a), self.deadline - time.monotonic()
        if device.id in self.given_up:
            return skipped(n, self.given_up[device.id])
        estimate = minimum_seconds(expected_seconds(n, self.previous.get(device.id)))
        if left <= 0 or estimate > left:
            return skipped(n, f"about {estimate:.0f} s needed, the time limit leaves {max(left, 0):.0f} s")
        try:
            if device.id not in self.warmed_up:  # the first operations initialise the device, which must not be timed
                self.warmed_up.add(device.id)
                measure(self.framework, device, a, b, rows, math.inf)
            measured = measure(self.framework, device, a, b, rows, self.deadline)
        except OutOfMemory as error:
            self.given_up[device.id] = f"not enough GPU memory from n = {n} on: {error}"
            return skipped(n, self.given_up[device.id])
        except self.framework.errors as error:
            self.given_up[device.id] = f"failed at n = {n}"
            return dict(skipped(n, f"{type(error).__name__}: {str(error).strip()[:500]}"), status="fail")
        if measured["median_ms"] is not None:
            self.previous[device.id] = (n, measured["median_ms"] / 1e3)
            figures = (
                f"{measured['median_ms']:.4g} ms, {measured['gflops']:.4g} GFLOP/s, {measured['repetitions']} times"
            )
            log("; ".join(filter(None, (f"{device.id}, n = {n}: {figures}", measured["reason"]))))
        return measured


# Command line ------------------------------------------------------------------------------------------------------


def load_framework(name: str | None) -> Any:
    """Return the requested framework, or the installed one, TensorFlow before PyTorch; exits if there is none."""
    missing = []
    for kind in (TensorFlow, PyTorch):
        if name in (None, kind.name):
            try:
                return kind()
            except ImportError as error:
                missing.append(f"{kind.name} ({error})")
    raise SystemExit(
        f"matmul_benchmark: found no {' and no '.join(missing)} in {sys.executable}, expected one of them; "
        "run this with the Python of an environment, /opt/gpuhost/tensorflow/bin/python"
    )


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; bad usage exits with 2."""
    parser = argparse.ArgumentParser(prog="matmul_benchmark.py", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--framework", choices=FRAMEWORKS, help="default: the installed one, TensorFlow before PyTorch")
    add(
        "--largest",
        type=int,
        choices=DECADES,
        default=max(DECADES),
        metavar="P",
        help="measure up to 10^P elements (default: %(default)s)",
    )
    add(
        "--time-limit",
        type=gpu_monitor.positive_number,
        default=300.0,
        metavar="S",
        help="seconds (default: %(default)g)",
    )
    add("--seed", type=int, default=1, help="seed of the matrices (default: %(default)s)")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace, started: float) -> dict[str, Any]:
    """Run the benchmark and return the result document."""
    framework = load_framework(options.framework)
    gpus = framework.devices()
    devices = [Device("CPU", "cpu", processor_model()), *gpus]
    notes = gpu_monitor.simulation_notes()
    compared = check_compared(len(gpus), gpu_monitor.count_pci_gpus(), bool(notes), framework.name)
    log(f"{framework.name} {framework.version} on {', '.join(f'{item.id} ({item.model})' for item in devices)}")
    if compared["status"] != "pass":
        log(compared["found"])
    benchmark = Benchmark(framework, devices, started + options.time_limit, options.seed)
    sizes = [benchmark.size(10**power) for power in DECADES if power <= options.largest]
    checks = [check_device(device, [size["devices"][device.id] for size in sizes]) for device in devices]
    return build_result(
        {
            "framework": framework.name,
            "version": framework.version,
            "precision": "float32, TF32 off",
            "reference": framework.reference,
            "devices": [device._asdict() for device in devices],
            "simulated": notes,
            "sizes": sizes,
            "checks": [*checks, compared],
            "time_limit": options.time_limit,
            "seconds": round(time.monotonic() - started, 2),
        }
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    started = time.monotonic()
    options = parse_arguments(arguments)
    sys.stdout.flush()
    # Redirect file descriptor 1 to standard error, so that libraries cannot write into the document.
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    isolated, ignored = user_settings.isolated(os.environ, user_settings.read(), os.devnull)
    os.environ.clear()
    os.environ.update(isolated)  # before the framework is imported, which reads them
    if ignored:
        log(f"ignored: {'; '.join(ignored)}")
    result = run(options, started)
    output.write(json.dumps(result) + "\n")
    output.flush()
    log(f"{result['status']} after {result['seconds']} s")
    return 0 if result["status"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
