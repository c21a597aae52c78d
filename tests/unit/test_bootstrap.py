"""script/bootstrap: the Python of the environments that it makes, with the real uv and locks without packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
INSTALLER = PROJECT / ".venv-bootstrap"
OWN = f"3.{sys.version_info[1]}"
# Another Python than the distribution's is what pyenv is for.
OTHERS = {
    f"3.{path.parts[-3].split('.')[1]}": path
    for path in sorted(Path.home().glob(".pyenv/versions/3.1[1-4].*/bin/python3"))
    if not Path(f"/usr/bin/python3.{path.parts[-3].split('.')[1]}").exists()
}


@pytest.mark.skipif(not (INSTALLER / "bin/uv").exists(), reason="no .venv-bootstrap, which script/bootstrap makes")
@pytest.mark.parametrize(
    ("version", "real"),
    [(OWN, Path(sys.executable).resolve()), *(list(OTHERS.items())[:1] or [("", None)])],
    ids=["the tests' own", "one that the distribution has not"],
)
def test_the_version_is_that_of_path_and_its_build_the_distributions(
    tmp_path: Path, version: str, real: Path | None
) -> None:
    """First in PATH is a directory with a Python of that version."""
    if real is None:
        pytest.skip("pyenv has no Python 3.11 to 3.14 that the distribution has not")
    for name in ("script", "requirements", "mine"):
        (tmp_path / name).mkdir()
    shutil.copy(PROJECT / "script/bootstrap", tmp_path / "script")
    shutil.copy(PROJECT / "requirements/bootstrap.txt", tmp_path / "requirements")
    for name in ("control", "test"):
        (tmp_path / f"requirements/{name}.txt").touch()
    (tmp_path / ".venv-bootstrap").symlink_to(INSTALLER)
    mine = tmp_path / "mine/python3"
    mine.write_text(f'#!/bin/sh\nexec "{real}" "$@"\n')
    mine.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/mine:/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [tmp_path / "script/bootstrap", "control"]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    python = tmp_path / ".venv/bin/python"
    asked = "import sys; print('%d.%d' % sys.version_info[:2], sys.base_prefix)"
    found, prefix = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.split()
    assert found == version
    assert (prefix == "/usr") == Path(f"/usr/bin/python{version}").exists()
