"""Add a made-up component to a copy of the project: its module, a line in the registry, its catalog file and its role.

Nothing else of the product is edited; script/docs writes what follows for the playbooks. The lab's repository gets its
package.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
COMPONENTS = "plugins/plugin_utils/components"


def copy_of_the_project(target: Path) -> Path:
    """Copy what is under version control, as a clone has it, and return the copy."""
    left_out = shutil.ignore_patterns(".*", "reports", "__pycache__")
    return Path(shutil.copytree(PROJECT, target, symlinks=True, ignore=left_out))


def add_to(project: Path) -> None:
    """Add the component `telemetry` to a copy of the project."""
    shutil.copy(HERE / "telemetry.py", project / COMPONENTS)
    shutil.copy(HERE / "telemetry.yml", project / "catalog")
    shutil.copytree(HERE / "role", project / "roles/telemetry")
    registry = project / COMPONENTS / "registry.py"
    text = registry.read_text().replace("    pytorch,\n", "    pytorch,\n    telemetry,\n", 1)
    line = "    (pytorch.CHOICE, pytorch.Pytorch()),\n"
    registry.write_text(text.replace(line, f"{line}    (telemetry.CHOICE, telemetry.Telemetry()),\n"))


def add_to_repository(project: Path) -> None:
    """Add its packages to the repository that the lab of a copy builds."""
    import yaml  # script/test reads its options before anything is installed

    contents = project / "tests/doubles/nvidia_repository/contents.yml"
    whole, own = (yaml.safe_load(path.read_text()) for path in (contents, HERE / "repository.yml"))
    whole["libraries"] += own.pop("libraries")
    contents.write_text(yaml.safe_dump({**whole, **own}, sort_keys=False))


def without_pytorch(project: Path) -> None:
    """Remove PyTorch's module and its line in the registry from a copy of the project."""
    (project / COMPONENTS / "pytorch.py").unlink()
    registry = project / COMPONENTS / "registry.py"
    text = registry.read_text()
    for part in ("    pytorch,\n", "    (pytorch.CHOICE, pytorch.Pytorch()),\n", '    ("pytorch",),\n'):
        text = text.replace(part, "")
    registry.write_text(text)
