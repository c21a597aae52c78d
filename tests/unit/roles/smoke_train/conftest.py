"""Make the training scripts importable: they are copied to hosts and belong to no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "roles/smoke_train/files"))
