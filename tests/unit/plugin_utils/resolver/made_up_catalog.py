"""Make catalogs up: the files of catalog/ with other limits, other types of branches and fewer releases.

What the real data happen to have in common, such as that the newest branch has the newest CUDA, does not hold there.
"""

from __future__ import annotations

import copy
import csv
import shutil
from pathlib import Path

import yaml

from tests.unit.plugin_utils.resolver.best_plan import FILES


def made_up(files: dict, draw) -> dict:
    """Return other data than a catalog's files, in which all references hold. draw: a random.Random."""
    files = copy.deepcopy(files)
    branches, toolkits = files["driver"]["branches"], files["cuda"]["toolkits"]
    drivers = [v["version"] for branch in branches for v in branch["versions"]]
    capabilities = sorted({c for toolkit in toolkits for c in toolkit["compute_capabilities"]}, key=float)
    cudas = [toolkit["version"] for toolkit in toolkits]

    def some(entries):
        """Return most of the entries, at least one of them."""
        return [entry for entry in entries if draw.random() < 0.8] or entries[:1]

    for branch in branches:
        branch["type"], branch["maintained"] = draw.choice(["PB", "LTSB", "NFB", "unknown"]), draw.random() < 0.7
        branch["versions"] = some(branch["versions"])
        draw.shuffle(branch["kernel_modules"])
        if draw.random() < 0.3:
            branch["native_cuda"] = draw.choice(cudas)
    branches[0]["native_cuda"] = cudas[0]  # every toolkit has a branch
    for entry in files["cuda"]["minor_version_compatibility"]:
        entry["min_driver"] = draw.choice(drivers)
    for toolkit in toolkits:
        toolkit["releases"] = some(toolkit["releases"])
        toolkit["compute_capabilities"] = some(toolkit["compute_capabilities"])
        toolkit["max_gcc"] = draw.randint(9, 16)
        toolkit["max_glibc"] = draw.choice([None, None, "2.35", "2.36", "2.39", "2.41"])
        for release in toolkit["releases"]:
            if draw.random() < 0.5:
                release["min_driver"] = draw.choice(drivers)
    for name in ("cudnn", "nccl"):
        for entry in files[name]["support"]:
            if draw.random() < 0.3:
                entry["min_compute_capability"] = draw.choice(capabilities[:8])
    files["cudnn"]["apt_builds"] = some(files["cudnn"]["apt_builds"])
    files["nccl"]["builds"] = some(files["nccl"]["builds"])
    for release in files["tensorflow"]["releases"]:
        release["pythons"] = some(["3.8", *release["pythons"], "3.14"])
    for release in files["pytorch"]["releases"]:
        release["builds"] = some(release["builds"])
        for build in release["builds"]:
            build["sass"] = sorted(draw.sample(capabilities, 6), key=float)
    for product in files["products"].values():
        if draw.random() < 0.3:
            product["last_driver_branch"] = draw.choice(branches)["branch"]
    for distro in files["distros"].values():
        repository, last = distro["nvidia_repository"], draw.choice([None, *cudas[:6]])
        repository["first_cuda"] = draw.choice(cudas)
        repository["last_cuda"] = last
        repository["nccl_cuda_majors"] = draw.choice([None, None, [12], [13]])
        names = [branch["branch"] for branch in branches]
        limits = draw.choice([None, (None, names[2]), (names[6], None), (names[8], names[3])])
        distro["nvidia_branches"] = limits and {"first": limits[0], "last": limits[1], "source": "made up"}
        distro["distro_drivers"], distro["distro_cuda"] = some(distro["distro_drivers"]), some(distro["distro_cuda"])
        distro["gcc"]["available"] = sorted({*some(distro["gcc"]["available"]), distro["gcc"]["default"]})
    return files


def write(files: dict, real: Path, folder: Path) -> Path:
    """Write the data below a folder, beside the files of the real catalog that they were not read from."""
    shutil.copytree(real, folder)
    for name in FILES:
        (folder / f"{name}.yml").write_text(yaml.dump(files[name], Dumper=yaml.CSafeDumper))
    with (folder / "gpu_products.csv").open("w", newline="") as stream:
        rows = csv.DictWriter(stream, next(iter(files["products"].values())))
        rows.writeheader()
        rows.writerows(files["products"].values())
    for path in (folder / "distro").glob("*.yml"):  # a family has a file for all its members
        path.unlink()
    for name, distro in files["distros"].items():
        (folder / "distro" / f"{name}.yml").write_text(yaml.safe_dump(distro))
    return folder
