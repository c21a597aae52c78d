"""Make the benchmarks and the training scripts importable, which belong to no package, and start the real workers."""

import sys
from pathlib import Path

ROLES = Path(__file__).resolve().parents[4] / "roles"
for directory in (
    ROLES / "smoke_train/files",
    ROLES / "gpu_benchmark/files",
    Path(__file__).parents[1] / "smoke_train",
):
    sys.path.insert(0, str(directory))

from real_workers import dataset, start  # noqa: F401, E402
