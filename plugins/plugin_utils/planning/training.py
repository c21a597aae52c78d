"""Decide with which frameworks the smoke training runs on a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import FRAMEWORKS


def training_frameworks(plan: Mapping[str, Any], requested: str | None = None) -> list[str]:
    """Return the frameworks of a plan's JSON, or the requested one alone (smoke_train_framework, if it is set)."""
    return [requested] if requested else [name for name in FRAMEWORKS if plan["components"].get(name)]


def training_refusal(plan: Mapping[str, Any], requested: str | None = None) -> str:
    """Return why the requested framework cannot be used; empty if it is planned or none is requested."""
    planned = training_frameworks(plan)
    if not requested or requested in planned:
        return ""
    return (
        f"smoke_train_framework={requested}, but the plan of this host has {' and '.join(planned) or 'no framework'}: "
        f"set gpu_stack_{requested}=auto and run playbooks/gpu_host.yml, or do not set smoke_train_framework"
    )
