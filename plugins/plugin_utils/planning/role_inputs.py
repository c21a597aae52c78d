"""What a run gives to the variables of roles: what the plan decides, and settings of the run.

A role reads them with the lookup gpuhost.stack.role_inputs in the defaults of its variables, so that what an inventory
sets wins, wherever Ansible reads it. Used alone, a role gets none and has the defaults that its README names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.checks.framework_checks import COMPILE_SECONDS, UNPROVEN
from ansible_collections.gpuhost.stack.plugins.module_utils.model.components import CudaComponent, DriverComponent
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import Repairs
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.paths import PROJECT
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import load_yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import FRAMEWORKS, PARTS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.plan_diff import PlanDiff

# What a run gives to a role from variables of the playbooks, with what is appended where that is a directory.
SETTINGS = {
    "nvidia_driver_module_signing_key": ("gpu_stack_module_signing_key", ""),
    "nvidia_driver_module_signing_certificate": ("gpu_stack_module_signing_certificate", ""),
    "nvidia_driver_reboot": ("gpu_stack_reboot", ""),
    "nvidia_driver_kernel_module": ("gpu_stack_kernel_module", ""),
    **{f"{part.role}_cache": ("gpu_stack_cache_directory", "/uv") for part in FRAMEWORKS},
    **{f"{part.role}_timeout_factor": ("gpu_stack_timeout_factor", "") for part in FRAMEWORKS},
    "smoke_train_unknown": ("gpu_stack_unknown", ""),
    "smoke_train_trainings": ("gpu_stack_trainings", ""),
    "smoke_train_job_directory": ("gpu_stack_state_directory", "/smoke_train"),
    "smoke_train_data_directory": ("gpu_stack_state_directory", "/cifar10"),
    "gpu_benchmark_data_directory": ("gpu_stack_state_directory", "/cifar10"),
}
REINSTALL = "_reinstall"  # the end of the variables that are empty after the one transaction of all roles
MODPROBE = "/modprobe.d/"


@functools.cache
def roles() -> dict[str, dict[str, Any]]:
    """Return the options of each role's argument specification, by the names of role and variable."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((PROJECT / "roles").glob("*/meta/argument_specs.yml")):
        for entry in load_yaml(path)["argument_specs"].values():
            found.setdefault(path.parents[1].name, {}).update(entry.get("options", {}))
    return found


@dataclasses.dataclass(frozen=True)
class RoleInputs:
    """The variables of roles that a plan decides, by name.

    planned: those of which a change is drift; transition: those that only concern the way from the present state, such
    as what is removed.
    """

    planned: Mapping[str, Any]
    transition: Mapping[str, Any]

    @property
    def all(self) -> dict[str, Any]:
        """Both."""
        return {**self.planned, **self.transition}


def of_plan(plan: Plan, diff: PlanDiff, repairs: Repairs, locks: Mapping[str, str], catalog: Catalog) -> RoleInputs:
    """Return what a plan, its difference from the host and the damage there give to the roles.

    locks: the lock file of each planned framework.
    """
    planned: dict[str, Any] = {}
    for part in PARTS:
        component = part.planned(plan.components)
        if component is not None:
            values = {**to_json(component), **part.role_inputs(component)}
            names = roles().get(part.role, {})
            planned |= {f"{part.role}_{key}": value for key, value in values.items() if f"{part.role}_{key}" in names}
    planned |= {f"{part.role}_lock": locks[part.name] for part in FRAMEWORKS if part.name in locks}
    if plan.request["scope"] == "frameworks":
        packages = [f"{part.role}_{kind}_packages" for part in FRAMEWORKS for kind in ("system", "build")]
        planned |= {name: [] for name in packages if any(name in options for options in roles().values())}
    if plan.repository:
        planned |= _of_repository(plan, diff, catalog)
    # The distribution's own toolkit is installed in /usr, where every shell finds it without these settings.
    if (cuda := CudaComponent.of(plan.components)) is not None:
        planned["env_paths_state"] = "absent" if cuda.home == "/usr" else "present"
    planned["smoke_train_gpus"] = {
        part.name: sum(gpu.left_out_by != part.name for gpu in plan.gpus) for part in FRAMEWORKS
    }
    is_unproven = any(warning.code == UNPROVEN for warning in plan.warnings)
    planned["smoke_train_compile_time"] = COMPILE_SECONDS if is_unproven else 0
    return RoleInputs(planned, _of_transition(diff, repairs))


def _of_repository(plan: Plan, diff: PlanDiff, catalog: Catalog) -> dict[str, Any]:
    driver = DriverComponent.of(plan.components) or plan.kept_driver
    # NVIDIA's newer driver must not replace a driver of the distribution.
    blocked = catalog.driver.name_patterns if driver is not None and driver.source == "distro" else ()
    return {
        "nvidia_repo_key_fingerprint": (plan.repository or {})["key_fingerprint"],
        "nvidia_repo_blocked_packages": list(blocked),
        "nvidia_repo_unblocked_packages": list(catalog.driver.name_exceptions),
        "nvidia_repo_adopted_source": diff.adopted_source,
    }


def _of_transition(diff: PlanDiff, repairs: Repairs) -> dict[str, Any]:
    lines = [line._asdict() for line in repairs.lines]
    given: dict[str, Any] = {
        "nvidia_repo_set_aside": diff.leftovers.set_aside,
        "nvidia_repo_purged_packages": diff.leftovers.purge,
        "nvidia_driver_uninstallers": diff.leftovers.driver_uninstallers,
        "nvidia_driver_services": [name for name in repairs.services if name != "nvidia-persistenced"],
        "nvidia_driver_disabled_lines": [line for line in lines if MODPROBE in line["file"]],
        "cuda_toolkit_uninstallers": diff.leftovers.cuda_uninstallers,
        "env_paths_disabled_lines": [line for line in lines if MODPROBE not in line["file"]],
        **{f"{part.role}_damaged": repairs.environments for part in FRAMEWORKS},
    }
    for part in PARTS:
        removal = diff.removals[part.name]
        of_part = {"replaces": removal.replaces, "may_remove": removal.may_remove, "reinstall": repairs.packages}
        names = roles().get(part.role, {})
        given |= {f"{part.role}_{key}": value for key, value in of_part.items() if f"{part.role}_{key}" in names}
    return {name: list(value) for name, value in given.items()}


def is_transition(name: str, inputs: RoleInputs) -> bool:
    """Return whether a change of a variable's value is no drift."""
    return name in inputs.transition or name.endswith("_timeout_factor")


def of_run(role: str, setting: Callable[[str], Any]) -> dict[str, Any]:
    """Return the settings of the run for a role's variables; setting: the value of a variable of the playbooks."""
    chosen = {name: each for name, each in SETTINGS.items() if name.startswith(f"{role}_")}
    return {name: f"{setting(of)}{below}" if below else setting(of) for name, (of, below) in chosen.items()}
