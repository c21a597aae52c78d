"""The areas of the code that the tier `mutation` changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Area:
    """Files that are changed, as patterns, and the tests below tests/unit that should see it.

    frameworks: some of these tests need TensorFlow or PyTorch.
    """

    files: tuple[str, ...]
    tests: tuple[str, ...]
    frameworks: bool = False

    def sources(self, project: Path) -> list[str]:
        found = sorted(path for pattern in self.files for path in project.glob(pattern))
        return [str(path.relative_to(project)) for path in found if path.name != "__init__.py"]


AREAS = {
    "resolver": Area(
        ("plugins/plugin_utils/resolver/**/*.py", "plugins/plugin_utils/components/**/*.py"),
        (
            "plugin_utils/resolver",
            "plugin_utils/components",
            "plugin_utils/model",
            "plugin_utils/plan_command/test_plan_cli.py",
            "plugin_utils/planning/test_removals.py",
        ),
    ),
    "checks": Area(
        ("plugins/module_utils/checks/*.py", "plugins/module_utils/nvidia/*.py"),
        (
            "module_utils/checks",
            "module_utils/nvidia",
            "modules",
            "matrix",
            "module_utils/verdict/test_command_line.py",
        ),
        frameworks=True,
    ),
    "drift": Area(
        (
            "plugins/plugin_utils/planning/parts/drift.py",
            "plugins/module_utils/resources/*.py",
            "plugins/module_utils/state/*.py",
        ),
        (
            "plugin_utils/planning",
            "module_utils/resources",
            "module_utils/state",
            "modules/test_apply.py",
            "modules/test_stack_state.py",
            "action/test_stack_plan.py",
            "module_utils/packages/test_one_gate.py",
            "matrix/test_changes.py",
        ),
    ),
    "packages": Area(
        tuple(
            f"plugins/module_utils/packages/{name}.py"
            for name in (
                "transaction",
                "restore",
                "decisions",
                "apt/apt_output",
                "apt/apt_commands",
                "apt/dpkg_contents",
            )
        ),
        # Without dnf's: it makes a directory in /tmp, where code that is changed may not write.
        (
            "module_utils/packages/apt",
            *(
                f"module_utils/packages/test_{name}.py"
                for name in ("decisions", "exact_versions", "metapackages", "one_gate", "restore", "transaction")
            ),
        ),
    ),
    "training": Area(
        ("roles/smoke_train/files/train_checks.py",),
        ("roles/smoke_train/test_train_checks.py", "roles/smoke_train/test_smoke_train.py"),
    ),
}
