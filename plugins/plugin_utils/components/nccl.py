"""NCCL on a host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, NcclBuild
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.base import PackagedPart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.changes import ComponentChange
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import LibraryComponent
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.plan import Plan
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe


class Nccl(PackagedPart[LibraryComponent]):
    """NCCL from NVIDIA's repository, built for the toolkit's CUDA."""

    name = "nccl"
    label = "NCCL"
    role = "nccl"
    after = ("cuda",)
    in_summary = False

    def origin(self, planned: LibraryComponent) -> str:
        """Return the archive."""
        return "nvidia"

    def entries(self, catalog: Catalog) -> Mapping[str, NcclBuild]:
        """Return the builds by version and CUDA release."""
        return {f"{build.version}+cuda{build.cuda}": build for build in catalog.nccl.builds}

    def effects(self, change: ComponentChange, plan: Plan, probe: Probe) -> Iterable[str]:
        """Return which packages are of another CUDA major afterwards: their names do not tell."""
        for package in change.packages:
            old, new = (versions.cuda_suffix(version or "") for version in (package.installed, package.planned))
            if old and new and versions.major(old) != versions.major(new):
                yield f"{package.name} changes from the build for CUDA {old} to that for CUDA {new}"
