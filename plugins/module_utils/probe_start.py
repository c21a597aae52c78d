# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""The options of a probe, and the start of its longest part, the comparison of files. Runs on the managed host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional

from ansible_collections.gpuhost.stack.plugins.module_utils.base import store
from ansible_collections.gpuhost.stack.plugins.module_utils.base.beside import Beside
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.base.module_options import option
from ansible_collections.gpuhost.stack.plugins.module_utils.model import frameworks
from ansible_collections.gpuhost.stack.plugins.module_utils.model.state import AppliedPart
from ansible_collections.gpuhost.stack.plugins.module_utils.state import applied


@dataclass(frozen=True)
class Options:
    """What to probe; the options of the module gpu_probe, where they are documented.

    Those with the default None in the specification are names from the catalog, which the action plugin gives.
    """

    repository_url: Optional[str] = None
    repositories: Dict[str, Any] = option({})
    repository_check: bool = True
    repository_patterns: List[str] = option([], default=None)
    package_patterns: List[str] = option([], default=None)
    tensorflow_path: str = option(frameworks.FOLDER + "/tensorflow", type="path")
    driver_packages: str = option("(?!)", default=None)  # a regular expression of their names
    distro_cuda_package: str = option("", default=None)
    kernel_header_offers: bool = False
    kernel_tools: List[str] = option([], default=None)
    module_compressors: Dict[str, Any] = option({}, default=None)
    archive_drivers: Dict[str, Any] = option({}, default=None)  # names of packages by distribution
    prebuilt_modules: str = option("", default=None)  # a glob of their packages
    switch_modules: List[str] = option([], default=None)
    extra_modules: str = option("", default=None)  # a glob of their packages
    pytorch_path: str = option(frameworks.FOLDER + "/pytorch", type="path")
    contents: bool = False
    accept_damage: List[str] = option([])
    directories: List[str] = option([])
    managed: Dict[str, Any] = option({})
    state_directory: str = option(store.DIRECTORY, type="path")
    timeout_factor: float = 1
    environment_paths: Dict[str, Any] = option({})
    environment: Dict[str, Any] = option({}, no_log=True)


def compare(root: str, options: Options, run: Run) -> Beside[dict[str, AppliedPart]]:
    """Start to compare the host at `root` with the record of the last complete run, and return what waits for it."""
    place, accepted = options.state_directory, options.accept_damage
    # It reads tens of thousands of files.
    return Beside(lambda: applied.differences(place, root, run, options.contents, options.managed, accepted))
