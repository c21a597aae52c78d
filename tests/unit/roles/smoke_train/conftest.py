"""Make the training scripts importable, which belong to no package, and start the real workers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "roles/smoke_train/files"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from real_workers import dataset, start  # noqa: F401
