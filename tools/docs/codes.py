"""All codes of problems and warnings of a plan, each described in the module that reports it.

The codes are stable: scripts and tests of users compare them. script/docs writes the tables of docs/compatibility.md.
"""

from __future__ import annotations

import sys

from ansible_collections.gpuhost.stack.plugins.plugin_utils.components import adoption, one_plan, plans
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common import frameworks, small_gpus
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.driver import (
    driver_sets,
    drivers,
    foreign_drivers,
    kernels,
    prebuilt,
    staying,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import saved_versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import CHOICES
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver import (
    context,
    gpus,
    known_bad,
    locks,
    missing,
    scope,
)
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import as_in_tables
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.present import holds

_COMPONENTS = [sys.modules[choice.candidates.__module__] for choice in as_in_tables(CHOICES)]
_BEFORE = (plans, adoption, saved_versions, one_plan, foreign_drivers, context, missing, gpus, scope, holds)
_DRIVER = (drivers, staying, driver_sets, prebuilt, kernels, known_bad)
_MODULES = (*_BEFORE, *_DRIVER, *_COMPONENTS, small_gpus, frameworks, locks)
PROBLEMS: dict[str, str] = {}
WARNINGS: dict[str, str] = {}
for _module in _MODULES:
    PROBLEMS |= getattr(_module, "PROBLEMS", {})
    WARNINGS |= getattr(_module, "WARNINGS", {})
