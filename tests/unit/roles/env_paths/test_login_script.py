"""What a login shell has of CUDA."""

import subprocess
from pathlib import Path

import jinja2
import pytest

SCRIPT = Path(__file__).resolve().parents[4] / "roles/env_paths/templates/cuda.sh.j2"


@pytest.mark.parametrize(
    ("before", "after"),
    [("/usr/bin:/bin", "/c/bin:/usr/bin:/bin"), ("/usr/bin:/c/bin", "/usr/bin:/c/bin")],
    ids=["first", "sourced again"],
)
def test_the_toolkit_precedes_the_distributions(tmp_path, before, after):
    """Which may have an nvcc in /usr/bin (CUDA installation guide, "Environment Setup")."""
    text = jinja2.Template(SCRIPT.read_text()).render(env_paths_cuda_home="/c")
    words = ["/bin/sh", "-c", f'{text}\necho "$PATH $CUDA_HOME"']
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": before})
    assert done.stdout.split() == [after, "/c"]
