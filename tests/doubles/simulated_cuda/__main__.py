"""Build the simulated cuda_check: python -m tests.doubles.simulated_cuda DIRECTORY."""

import sys
from pathlib import Path

from tests.doubles.simulated_cuda import build

if len(sys.argv) != 2:
    raise SystemExit("usage: python -m tests.doubles.simulated_cuda DIRECTORY")
print(build(Path(sys.argv[1])))
