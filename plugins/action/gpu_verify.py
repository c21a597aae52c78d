# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Add the CUDA program, and what the catalog knows of thresholds, packages, settings and Xids, to gpu_verify's options.

They, and how the run was started, which remedies name, are on the controller: Ansible transfers Python modules to the
host, but no files of other kinds.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base.escaping import result_for_terminal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.facts import (
    gpu_counters,
    gpu_thresholds,
    link_thresholds,
    user_settings,
    xid_errors,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.report.run_command import Commands
from ansible_collections.gpuhost.stack.plugins.plugin_utils.verification import waivers

MODULE = "gpuhost.stack.gpu_verify"
SOURCE = Path(__file__).resolve().parents[1] / "module_utils" / "nvidia" / "cuda_check.cu"


def arguments(args: dict[str, Any]) -> dict[str, Any]:
    """Return the task's options, with those added that the task leaves to the action plugin."""
    added = dict(args)
    if not added.get("cuda_check_source"):
        added["cuda_check_source"] = SOURCE.read_text(encoding="utf-8")
    if added.get("gpu_thresholds") is None:
        plan = args.get("plan")
        gpus = plan.get("gpus") if isinstance(plan, dict) else None  # the module rejects an invalid plan
        added["gpu_thresholds"] = gpu_thresholds(load_catalog(), [str(gpu.get("pci_id")) for gpu in gpus or []])
    if added.get("link_thresholds") is None:
        added["link_thresholds"] = link_thresholds(load_catalog())
    if added.get("fabric_manager_packages") is None:
        added["fabric_manager_packages"] = list(load_catalog().packages.fabric_manager)
    if added.get("user_settings") is None:
        added["user_settings"] = user_settings(load_catalog())
    if added.get("xid_errors") is None:
        added["xid_errors"] = xid_errors(load_catalog())
    if added.get("gpu_counters") is None:
        added["gpu_counters"] = gpu_counters(load_catalog())
    return added


class ActionModule(ActionBase):
    """The action `gpuhost.stack.gpu_verify`."""

    _supports_check_mode = True
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the module's result; raise AnsibleActionFail if the program or the catalog cannot be read."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        try:
            accepted = waivers.read(self._task.args.get("waivers") or [], date.today())
            args = {**arguments(self._task.args), "waivers": accepted.arguments()}
        except waivers.WaiverError as error:
            raise AnsibleActionFail(f"{error}. Nothing was checked.") from error
        except (OSError, CatalogError) as error:
            raise AnsibleActionFail(f"{MODULE}: cannot read the CUDA program or the catalog: {error}") from error
        executed = self._execute_module(
            module_name=MODULE, module_args=args, task_vars=task_vars, wrap_async=self._task.async_val
        )
        result.update(Commands(context.CLIARGS).fill(result_for_terminal(executed)))
        return result
