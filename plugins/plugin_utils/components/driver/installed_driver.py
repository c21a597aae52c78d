"""Name the driver that a host has: the one whose libcuda programs load, not a package whose name looks like it.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.base import debian_version
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import InstalledDriver
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.probe import Probe


@dataclasses.dataclass(frozen=True)
class Installed:
    """A driver. packaged, package: version and name of what has its libcuda, None where no package has it.

    owners: the packages with its libcuda and its modules; is_built: DKMS builds its modules.
    """

    version: str
    packaged: str | None
    package: str = ""
    owners: tuple[str, ...] = ()
    is_built: bool = False


def on_probe(catalog: Catalog, probe: Probe) -> Installed | None:
    """Return the driver of a probed host, None without one."""
    present = {name: package.version for name, package in probe.present_packages.items() if ":" not in name}
    return _driver(catalog, present, probe.driver.installed)


def on_host(catalog: Catalog, host: Host) -> Installed | None:
    """Return the driver of a host as the resolver sees it, None without one."""
    present = {package.name: package.version or "" for package in host.packages if ":" not in package.name}
    return _driver(catalog, present, host.installed_driver)


def named(catalog: Catalog, present: Mapping[str, str]) -> Installed | None:
    """Return the newest driver by the names of installed packages, which may be what is left of one."""
    leading = catalog.packages.leading["driver"]
    named = {name: version for name, version in present.items() if re.fullmatch(leading, name)}
    newest = debian_version.newest_first(list(named.values()))[:1]
    packages = [name for name, version in named.items() if [version] == newest]
    return Installed(versions.upstream(newest[0]), newest[0], packages[0]) if newest else None


def _driver(catalog: Catalog, present: Mapping[str, str], read: InstalledDriver | None) -> Installed | None:
    if read is None:  # a probe of an earlier version
        return named(catalog, present)
    package = read.package or ""
    if not read.version:
        return None
    return Installed(read.version, present.get(package), package, read.packages, read.modules is not None)
