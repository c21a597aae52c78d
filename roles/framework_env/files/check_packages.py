"""Check that an environment has the recorded packages and the requested release of the framework; runs in it.

Arguments: the framework's package, its version, Python's version, and `record` (write the list of packages) or
`compare` (compare with that list). Prints nothing and exits 0 if all match, otherwise exits 1 with the difference.
"""

import importlib.metadata
import pathlib
import sys

name, version, python, task = sys.argv[1:]
record = pathlib.Path(sys.prefix, "gpuhost.freeze")
packages = {f"{entry.metadata['Name']}=={entry.version}" for entry in importlib.metadata.distributions()}
installed = " and ".join(sorted(package for package in packages if package.startswith(f"{name}=="))) or f"no {name}"

running = f"{sys.version_info.major}.{sys.version_info.minor}"
if running != python:
    sys.exit(f"found Python {running}, expected {python}")
if task == "compare":
    recorded = set(record.read_text().split()) if record.exists() else set()
    if packages != recorded:
        changes = [f"{'+' if package in packages else '-'}{package}" for package in sorted(packages ^ recorded)]
        sys.exit(f"packages were added, removed or changed: {' '.join(changes)}")
# The markers of a lock file skip a package on a Python without a wheel, and the installer does not report that. A wheel
# of PyTorch's own index has the CUDA release that it is built for in its version: 2.14.1+cu126.
if installed.partition("+")[0] != f"{name}=={version}":
    sys.exit(
        f"found {installed} in {sys.prefix}, expected {name}=={version}: "
        f"choose a Python that this {name} has wheels for, or the lock file of this version"
    )
if task == "record":
    record.write_text("".join(f"{package}\n" for package in sorted(packages)))
