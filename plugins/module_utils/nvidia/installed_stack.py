# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read the installed deep learning stack: CUDA trees, environments, the applied plan, simulated parts."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.base import files
from ansible_collections.gpuhost.stack.plugins.module_utils.model.frameworks import Framework
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import Environment, InstalledCuda
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.database import database

APPLIED_PLAN = "/etc/ansible/facts.d/gpu_stack.fact"
SIMULATED = "/usr/share/gpuhost-simulated"
_ENVIRONMENT = re.compile(r"/environments/[^/]+-([0-9a-f]{8})(?:-\d+)?$")
_CUDA_TREE = re.compile(r"^cuda-(\d+\.\d+)$")


def cuda(root: str, distro_package: str) -> InstalledCuda:
    """Return the toolkits. A tree counts if it has nvcc.

    The version of the distribution's own toolkit is read from its package, since no file in /usr contains it.
    """
    found = (_CUDA_TREE.match(name) for name in files.names(root, "/usr/local"))
    versions = [match.group(1) for match in found if match and _has_nvcc(root, match.group(0))]
    default = _CUDA_TREE.match(os.path.basename(files.resolve(root, "/usr/local/cuda") or ""))
    package = database(root).read([distro_package]).get(distro_package)
    is_installed = package is not None and package.status not in ("config-files", "not-installed")
    distro = re.match(r"(?:\d+:)?(\d+\.\d+)", package.version) if package and is_installed else None
    return InstalledCuda(
        installed=tuple(sorted(versions, key=lambda version: [int(part) for part in version.split(".")])),
        default=default.group(1) if default else None,
        distro=distro.group(1) if distro else None,
    )


def _has_nvcc(root: str, tree: str) -> bool:
    return os.path.exists(files.under(root, "/usr/local/%s/bin/nvcc" % tree))


def environment(root: str, framework: Framework, path: str) -> Environment | None:
    """Return a framework's environment, None without one.

    The lock is known by the name that the role framework_env gives an environment. The version is read from the
    name of the metadata directory: an import takes six seconds. `path` may be a link.
    """
    dist_info = re.compile(r"^%s-(.+)\.dist-info$" % framework.package)
    directory = files.resolve(root, path) or path
    for python in files.names(root, directory + "/lib"):
        for name in files.names(root, "%s/lib/%s/site-packages" % (directory, python)):
            match = dist_info.match(name)
            if match:
                lock = _ENVIRONMENT.search(directory)
                version = python.replace("python", "")
                return Environment(match.group(1), version, path, lock.group(1) if lock else None)
    return None


def path_conflict(root: str, path: str) -> str | None:
    """Return what occupies the path of the environment's link, None if it is free or has framework_env's own link."""
    real = files.under(root, path)
    if os.path.islink(real):
        target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(real)))
        ours = os.path.dirname(target) == os.path.dirname(path) + "/environments"
        return None if ours else "a link to %s" % os.readlink(real)
    return "a directory" if os.path.isdir(real) else "a file" if os.path.lexists(real) else None


def applied_plan(root: str) -> dict[str, Any] | None:
    """Return the plan that was last applied, None without one. Raise ValueError if the file is damaged."""
    text = files.read_text(root, APPLIED_PLAN)
    if text is None:
        return None
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise ValueError("%s is not a JSON object: %s" % (APPLIED_PLAN, error)) from error


def simulated(root: str) -> list[str]:
    """Return what is simulated on this host, one item per line; empty on a real host."""
    lines = []
    for name in files.names(root, SIMULATED):
        if name.endswith(".txt"):
            lines += (files.read_text(root, "%s/%s" % (SIMULATED, name)) or "").splitlines()
    return [line.strip() for line in lines if line.strip()]
