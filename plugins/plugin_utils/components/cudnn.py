"""cuDNN on a host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, CudnnVersion
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart, native
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange, Removal
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe


class Cudnn(PackagedPart[LibraryComponent]):
    """cuDNN from NVIDIA's repository, for the CUDA major of the toolkit."""

    name = "cudnn"
    label = "cuDNN"
    role = "cudnn"
    after = ("cuda",)
    in_summary = False

    def removal(self, plan: Plan, probe: Probe, catalog: Catalog) -> Removal:
        """Return the packages of cuDNN for another CUDA major: its libraries have the paths of the planned ones."""
        planned, cuda = self.planned(plan.components), plan.components.cuda
        if planned is None or cuda is None:
            return Removal()
        number = versions.major(planned.version)
        apt = next((entry for entry in catalog.cudnn.apt if entry.cudnn_major == number), None)
        if apt is None or apt.other_builds is None:
            return Removal()
        pattern = apt.other_builds.format(cuda_major=versions.major(cuda.version))
        removed = tuple(sorted(name for name in native(probe) if re.fullmatch(pattern, name)))
        return Removal("replaces the build for another CUDA major", removed, (pattern,)) if removed else Removal()

    def origin(self, planned: LibraryComponent) -> str:
        """Return the archive."""
        return "nvidia"

    def entries(self, catalog: Catalog) -> Mapping[str, CudnnVersion]:
        """Return the versions."""
        return {version.version: version for version in catalog.cudnn.versions}

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return which libraries are gone."""
        if change.removed:
            yield f"programs that use the removed {', '.join(change.removed)} no longer find cuDNN for that CUDA"
