"""The documents of modules.yaml: which packages of a driver belong to which stream of the module nvidia-driver."""

import hashlib
from collections.abc import Iterable
from typing import Any

from tests.doubles.nvidia_repository import rpm
from tests.doubles.nvidia_repository.contents import driver_contents
from tests.doubles.nvidia_repository.package import Package

NAME = "nvidia-driver"
PROFILES = {
    "default": "Default installation",
    "fm": "FabricManager installation",
    "ks": "Installation via kickstart",
}


def documents(packages: Iterable[Package], distribution: str, version: int) -> list[dict[str, Any]]:
    """Return the streams of the packages, and which is the default.

    distribution: el9. version: of all streams; dnf takes the highest.
    """
    rules = driver_contents()["module"]
    offered = list(packages)
    branches = sorted({_branch(package) for package in offered if package.name == NAME}, key=int)
    streams = []
    for kind, words in rules["streams"].items():
        named = {words["latest"]: branches[-1], **{f"{branch}-{kind}": branch for branch in branches}}
        for stream, branch in named.items():
            of_branch = [package for package in offered if _branch(package) == branch]
            streams.append(_stream(stream, of_branch, words, distribution, version))
    defaults = {row["data"]["stream"]: ["default"] for row in streams}
    default = {"module": NAME, "stream": rules["default"], "profiles": defaults}
    return [*streams, {"document": "modulemd-defaults", "version": 1, "data": default}]


def _branch(package: Package) -> str:
    return rpm.version_of(package)[1].partition(".")[0]


def _stream(
    stream: str, packages: list[Package], words: dict[str, str], distribution: str, version: int
) -> dict[str, Any]:
    rules, offered = driver_contents()["module"], {package.name for package in packages}
    main = sorted(offered & {*rules["common"], words["modules"], words["meta"]})
    fabric = sorted(offered & {*rules["optional"]})
    nscq = sorted(name for name in offered if name.startswith("libnvidia-nscq"))
    rpms = {"default": main, "fm": [*main, *fabric, *nscq], "ks": [name for name in main if name != words["meta"]]}
    inside = [package for package in packages if package.name in (*main, *fabric)]
    context = hashlib.md5(f"{NAME}{stream}{version}{distribution}".encode(), usedforsecurity=False).hexdigest()[:10]
    data = {
        "name": NAME,
        "stream": stream,
        "version": version,
        "context": context,
        "arch": "x86_64",
        "summary": f"Nvidia driver for {stream} branch",
        "description": "SIMULATED stream of a test repository",
        "license": {"module": ["MIT"]},
        "artifacts": {"rpms": sorted(map(rpm.nevra, inside))},
        "profiles": {name: {"description": text, "rpms": rpms[name]} for name, text in PROFILES.items()},
    }
    return {"document": "modulemd", "version": 2, "data": data}
