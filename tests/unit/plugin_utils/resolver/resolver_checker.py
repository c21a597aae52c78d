"""Check plans independently: read the files of catalog/ without the loader and share no code with the resolver."""

from __future__ import annotations

import csv
import functools
import re
from pathlib import Path

import yaml

CATALOG = Path(__file__).parents[4] / "catalog"


@functools.cache
def raw(name):
    """Return a catalog file as plain data."""
    return yaml.safe_load((CATALOG / f"{name}.yml").read_text())


@functools.cache
def products():
    """Return the rows of gpu_products.csv by device id."""
    with (CATALOG / "gpu_products.csv").open(newline="") as stream:
        return {row["device"]: row for row in csv.DictReader(stream)}


@functools.cache
def num(text):
    """Return a version as numbers, zero-padded so that 13.2 equals 13.2.0."""
    return tuple([int(n) for n in re.findall(r"\d+", text)] + [0] * 5)[:5]


def _within(version, first, last):
    cut = last.count(".") + 1 if last else 0
    return num(version) >= num(first) and (last is None or num(version)[:cut] <= num(last)[:cut])


def _covered(entries, version, major, capability):
    for entry in entries:
        majors = entry.get("cuda_majors") or [entry["cuda_major"]]
        if major in majors and _within(version, entry["first"], entry["last"]):
            return num(entry["min_compute_capability"]) <= num(capability) <= num(entry["max_compute_capability"])
    return False


def knows(device, version, modules, rules):
    """Return whether a driver version, or a whole branch, knows a GPU. rules: gpu.yml's first_drivers, if any."""
    for rule in (rules or {"gpus": []})["gpus"]:
        if device in rule["devices"] and rule.get("modules") in (None, modules):
            branches = [num(first)[0] for first in rule["drivers"]]
            mine = [first for first in rule["drivers"] if num(first)[0] == num(version)[0]]
            return num(version)[0] > max(branches) or any("." not in f or num(f) <= num(version) for f in mine)
    return True


def builds(version, archive, kernel, bad):
    """Return whether a driver's module builds for a kernel, by known_bad.yml's drivers."""
    return not any(
        row["archive"] == archive
        and num(row["branch"])[0] == num(version)[0]
        and num(version) <= num(row["last"])
        and num(kernel)[:2] >= num(row["kernel"])[:2]
        for row in bad["drivers"]
    )


def fails_on(release, capability, bad):
    """Return whether a TensorFlow release fails on GPUs of a compute capability, by known_bad.yml's tensorflow."""
    return any(
        capability in row["compute_capabilities"] and _within(release, row["first"], row["last"])
        for row in bad["tensorflow"]
    )


def violations(made, pythons=None):
    """Return what a plan promises and cannot keep; pythons: the host's, if they are not the distribution's."""
    parts = made["components"]
    distro = raw(f"distro/{made['distribution']}")
    found = []
    for gpu in made["gpus"]:
        found += _gpu_violations(gpu, parts)
    found += _module_violations(made["request"]["driver_kernel_modules"], parts["driver"], distro)
    if parts["driver"] and made["request"]["driver_profile"] not in ("auto", parts["driver"]["profile"]):
        found.append(f"profile {parts['driver']['profile']}, asked for {made['request']['driver_profile']}")
    found += _platform_violations(parts, distro)
    found += _library_violations(parts)
    if parts["tensorflow"]:
        found += _tensorflow_violations(parts, pythons or distro["python"]["available"])
    return found


def _gpu_violations(gpu, parts):
    capability, name, found = gpu["compute_capability"], gpu["name"], []
    product = products().get(gpu["pci_id"].removeprefix("10de:"))
    rule = next(r for r in raw("gpu")["kernel_modules"] if gpu["architecture"] in r["architectures"])
    accepts = product["kernel_modules"] if product else rule["accepts"]
    driver, cuda, cudnn, nccl = (parts[n] for n in ("driver", "cuda", "cudnn", "nccl"))
    if driver:
        branch = next(b for b in raw("driver")["branches"] if b["branch"] == driver["branch"])
        if gpu["architecture"] not in branch["architectures"] or capability in branch["without"]:
            found.append(f"{name}: branch {driver['branch']}")
        if product and product["last_driver_branch"] and int(driver["branch"]) > int(product["last_driver_branch"]):
            found.append(f"{name}: branch {driver['branch']} came after its last one")
        newest = max((v["version"] for v in branch["versions"]), key=num)  # an archive's driver has no version
        version = driver["version"] if "." in driver["version"] else newest
        device = gpu["pci_id"].removeprefix("10de:")
        if not knows(device, version, driver["kernel_modules"], raw("gpu").get("first_drivers")):
            found.append(f"{name}: driver {version} does not know it")
        if accepts not in ("either", driver["kernel_modules"]):
            found.append(f"{name}: {driver['kernel_modules']} modules")
    if cuda:
        toolkit = next(t for t in raw("cuda")["toolkits"] if t["version"] == cuda["version"])
        if capability not in toolkit["compute_capabilities"]:
            found.append(f"{name}: CUDA {cuda['version']}")
    if cudnn and not _covered(raw("cudnn")["support"], cudnn["version"], num(cuda["version"])[0], capability):
        found.append(f"{name}: cuDNN {cudnn['version']}")
    if nccl and not _covered(raw("nccl")["support"], nccl["version"], num(cuda["version"])[0], capability):
        found.append(f"{name}: NCCL {nccl['version']}")
    if parts["tensorflow"]:
        found += _wheel_violations(gpu, parts["tensorflow"])
    return found


def _module_violations(asked, driver, distro):
    """Check the kernel modules: those requested, of a branch that has them, in packages that contain them."""
    if not driver:
        return []
    flavour, found = driver["kernel_modules"], []
    if asked not in ("auto", flavour):
        found.append(f"{flavour} modules, asked for {asked}")
    branch = next(b for b in raw("driver")["branches"] if b["branch"] == driver["branch"])
    if flavour not in branch["kernel_modules"]:
        found.append(f"branch {driver['branch']} has no {flavour} modules")
    if driver["source"] == "distro":
        rule = next(d for d in distro["distro_drivers"] if d["branch"] == driver["branch"])
    else:
        rule = next(
            p
            for p in raw("driver")["packages"]
            if p["family"] == distro["family"] and _within(driver["branch"], p["first_branch"], p["last_branch"])
        )
    sets = {"compute": rule, "full": rule["full"]}
    names = [name.format(branch=driver["branch"]) for name in sets[driver["profile"]][flavour]]
    if [package.split("=")[0] for package in driver["packages"]] != names:
        found.append(f"packages {driver['packages']} for {flavour} modules")
    return found


def _wheel_violations(gpu, tensorflow):
    release = next(r for r in raw("tensorflow")["releases"] if r["version"] == tensorflow["version"])
    capability, found = num(gpu["compute_capability"]), []
    native = any(num(s)[0] == capability[0] and num(s) <= capability for s in release["sass"])
    if fails_on(release["version"], gpu["compute_capability"], raw("known_bad")):
        found.append(f"{gpu['name']}: TensorFlow {release['version']} is known to fail")
    if not native and not any(num(p) <= capability for p in release["ptx"]):
        found.append(f"{gpu['name']}: TensorFlow {release['version']} has no code")
    if tensorflow["cuda_libraries"] != "wheel":
        return found
    wheel = release["and_cuda"]
    limit = next((r.split("<=")[1] for r in tensorflow["requirements"] if "<=" in r), None)
    allowed = [
        v["version"]
        for v in raw("cudnn")["versions"]
        if wheel["cuda_major"] in v["cuda_majors"]
        and _satisfies(v["version"], wheel["cudnn"])
        and (limit is None or num(v["version"]) <= num(limit))
    ]
    # pip takes the newest that is allowed.
    newest = max(allowed, key=num)
    if not _covered(raw("cudnn")["support"], newest, wheel["cuda_major"], gpu["compute_capability"]):
        found.append(f"{gpu['name']}: the wheel's cuDNN {newest}")
    pinned = re.fullmatch(r"==(.+)", wheel["nccl"])
    if pinned and not _covered(raw("nccl")["support"], pinned.group(1), wheel["cuda_major"], gpu["compute_capability"]):
        found.append(f"{gpu['name']}: the wheel's NCCL {pinned.group(1)}")
    return found


def _satisfies(version, specifier):
    tests = {"==": lambda a, b: a == b, "<": lambda a, b: a < b, ">=": lambda a, b: a >= b}
    clauses = [re.fullmatch(r"(==|>=|<)(.+)", c) for c in specifier.split(",")]
    return all(tests[c.group(1)](num(version), num(c.group(2))) for c in clauses)


def _reaches(driver, minimum):
    # Of a driver in the archive only the branch is known.
    return num(driver)[: driver.count(".") + 1] >= num(minimum)[: driver.count(".") + 1]


def _floor(major):
    floors = {m["cuda_major"]: m["min_driver"] for m in raw("cuda")["minor_version_compatibility"]}
    return floors.get(major)


def _platform_violations(parts, distro):
    driver, cuda, found = parts["driver"], parts["cuda"], []
    if driver and driver["source"] == "nvidia":
        limits = distro.get("nvidia_branches") or {"first": None, "last": None}
        if not _within(driver["branch"], limits["first"] or "0", limits["last"]):
            found.append(f"branch {driver['branch']} is not in the repository")
    if not cuda:
        return found
    toolkit = next(t for t in raw("cuda")["toolkits"] if t["version"] == cuda["version"])
    if driver:
        old = min((r["min_driver"] for r in toolkit["releases"] if r["min_driver"]), key=num, default=None)
        floor = _floor(num(cuda["version"])[0]) or old
        if cuda["source"] == "distro":  # a dependency of its packages, and not what CUDA itself could do with
            (floor,) = (d["min_driver"] for d in distro["distro_cuda"] if d["release"] == cuda["release"])
        if floor and not _reaches(driver["version"], floor):
            found.append(f"driver {driver['version']} for CUDA {cuda['version']}")
    if cuda["source"] == "nvidia":
        repository = distro["nvidia_repository"]
        if not _within(cuda["version"], repository["first_cuda"], repository.get("last_cuda")):
            found.append(f"CUDA {cuda['version']} is not in the repository")
        if toolkit["max_glibc"] and num(distro["glibc"]) > num(toolkit["max_glibc"]):
            found.append(f"CUDA {cuda['version']} with glibc {distro['glibc']}")
        compiler = re.fullmatch(r"gcc(?:-(\d+))?", cuda["host_compilers"][0])
        used = int(compiler.group(1) or distro["gcc"]["default"])
        if used > toolkit["max_gcc"] or used not in distro["gcc"]["available"]:
            found.append(f"CUDA {cuda['version']} with gcc {used}")
        number = cuda["version"].replace(".", "-")
        if [p.split("=")[0] for p in cuda["packages"]] != [f"cuda-toolkit-{number}"]:
            found.append(f"a package that may pull a driver: {cuda['packages']}")
    return found


def _library_violations(parts):
    cuda, cudnn, nccl, found = parts["cuda"], parts["cudnn"], parts["nccl"], []
    if nccl:
        suffixes = {p.split("+cuda")[1] for p in nccl["packages"]}
        if len(suffixes) != 1 or num(min(suffixes))[0] != num(cuda["version"])[0]:
            found.append(f"NCCL {nccl['packages']} for CUDA {cuda['version']}")
    if cudnn:
        major = cuda["version"].split(".")[0]
        if not all(f"-cuda-{major}=" in p or f"+cuda{major}." in p for p in cudnn["packages"]):
            found.append(f"cuDNN {cudnn['packages']} for CUDA {cuda['version']}")
    for name, part in parts.items():
        if name in ("driver", "cuda", "cudnn", "nccl") and part and part.get("source", "nvidia") == "nvidia":
            expected = part.get("release") or part["version"]
            found += [f"{name}: {p} is not {expected}" for p in part["packages"] if f"={expected}-" not in p]
    return found


def _tensorflow_violations(parts, pythons):
    tensorflow, cuda, cudnn, driver, found = *(parts[n] for n in ("tensorflow", "cuda", "cudnn", "driver")), []
    release = next(r for r in raw("tensorflow")["releases"] if r["version"] == tensorflow["version"])
    if tensorflow["python"] not in release["pythons"] or tensorflow["python"] not in pythons:
        found.append(f"TensorFlow {release['version']} with Python {tensorflow['python']}")
    package = release.get("package", "tensorflow")
    if tensorflow["cuda_libraries"] == "wheel" and tensorflow["python"] not in (
        release["and_cuda"].get("pythons") or release["pythons"]
    ):
        found.append(f"TensorFlow {release['version']}: no CUDA wheels for Python {tensorflow['python']}")
    extra = "[and-cuda]" if tensorflow["cuda_libraries"] == "wheel" else ""
    if tensorflow["requirements"][0] != f"{package}{extra}=={release['version']}":
        found.append(f"requirement {tensorflow['requirements'][0]}")
    if tensorflow["cuda_libraries"] == "wheel":
        floor = _floor(release["and_cuda"]["cuda_major"])
        if driver and not _reaches(driver["version"], floor):
            found.append(f"driver {driver['version']} for the wheel's CUDA {release['and_cuda']['cuda_major']}")
        return found
    tested = num(release["tested"]["cuda"])
    has = num(cuda["version"]) if cuda else (0,)
    # Before CUDA 11 the runtime's file name carries the minor release too.
    same = has[:2] == tested[:2] if tested[0] < 11 else has[0] == tested[0] and has >= tested
    if has[:2] != (11, 0) and tested[:2] == (11, 0):
        same = False  # libcusolver.so.10 is in 11.0 alone
    if not same:
        found.append(f"TensorFlow {release['version']} with CUDA {cuda and cuda['version']}")
    wanted = num(release["tested"]["cudnn"])
    if not cudnn or num(cudnn["version"])[0] != wanted[0] or num(cudnn["version"]) < wanted:
        found.append(f"TensorFlow {release['version']} with cuDNN {cudnn and cudnn['version']}")
    return found
