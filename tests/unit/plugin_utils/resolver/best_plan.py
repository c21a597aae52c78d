"""Find the best plan of a catalog by trying every set, in the order that docs/compatibility.md gives.

It reads the catalog's files as plain data and shares no code with the resolver: slow, and as plain as the document.
"""

from __future__ import annotations

import copy
import csv
import functools
import itertools
from pathlib import Path

import yaml

from tests.unit.plugin_utils.resolver.plain_catalog import (
    _covered,
    _reaches,
    _satisfies,
    _within,
    builds,
    fails_on,
    knows,
    num,
)

FILES = ("gpu", "driver", "cuda", "cudnn", "nccl", "tensorflow", "pytorch", "known_bad")


def read_files(folder: Path) -> dict:
    """Return the files of a catalog as plain data for x86_64, products by device and distributions by id."""
    files = {name: yaml.load((folder / f"{name}.yml").read_text(), yaml.CSafeLoader) for name in FILES}
    with (folder / "gpu_products.csv").open(newline="") as stream:
        files["products"] = {row["device"]: row for row in csv.DictReader(stream)}
    files["distros"] = {}
    for path in (folder / "distro").glob("*.yml"):
        distro = yaml.safe_load(path.read_text())
        for member in distro.pop("members", None) or [{}]:  # a family has a release for each of its members
            name = f"{member['id']}-{distro['os_release']['version_id']}" if member else path.stem
            drivers = [*distro["distro_drivers"], *member.get("distro_drivers", [])]
            files["distros"][name] = {**distro, "id": name, "distro_drivers": drivers}
    return of_x86_64(files)


def of_x86_64(data):
    """Return the data without the entries that name other CPU architectures alone."""
    if isinstance(data, dict):
        return {name: of_x86_64(value) for name, value in data.items()}
    if isinstance(data, list):
        return [
            of_x86_64(each)
            for each in data
            if not isinstance(each, dict) or "x86_64" in each.get("cpu_architectures", ["x86_64"])
        ]
    return data


NO_PYTORCH = (None, None, None)


def covers(version: str, asked: str) -> bool:
    """Return whether a request such as 13.2 or auto covers a version."""
    parts = asked.split(".")
    return asked == "auto" or version.split(".")[: len(parts)] == parts


class Question:
    """The catalog's files, a host and a request (with the defaults of each)."""

    def __init__(self, files, distro, devices, request, **host):
        self.files, self.distro, self.request = files, files["distros"][distro], request
        self.gpus = [files["products"][device] for device in dict.fromkeys(devices)]
        self.offers = host.get("offers")
        self.pythons = host.get("pythons") or self.distro["python"]["available"]
        self.default_python = host.get("default_python") or self.distro["python"]["default"]
        self.gcc = host.get("gcc") or self.distro["gcc"]["default"]
        self.glibc = host.get("glibc") or self.distro["glibc"]
        self.kernel = host.get("kernel") or self.distro["kernel"]["default"]
        self.slug = self.distro["nvidia_repository"]["slug"]

    def asked(self, name):
        return self.request.get(name, "fallback" if name == "pytorch" else "auto")

    def offered(self, package, release, cuda=None):
        """Return the newest offered version of a package for a release, built for a CUDA release where one is named."""
        fitting = [
            version
            for version in self.offers.get(package, ())
            if version.split(":")[-1].split("-")[0] == release
            and (version.split("+cuda")[1] if "+cuda" in version else None) == cuda
        ]
        return max(fitting, key=num_all, default=None)

    def packages(self, specs, release, cuda=None):
        """Return the spec of each (name, version without a repository), or None where one is not offered."""
        found = specs
        if self.offers is not None:
            found = [(name, self.offered(name, release, cuda)) for name, _ in specs]
        return [self.spec(name, version) for name, version in found] if all(version for _, version in found) else None

    def spec(self, name, version):
        """Return a package as the package manager takes it: dnf's always has an epoch."""
        if not self.distro.get("dist"):
            return f"{name}={version}"
        return f"{name}-{version if ':' in version else f'0:{version}'}"

    def sources(self, name):
        asked = self.asked(f"{name}_source")
        return ("nvidia", "distro") if asked == "auto" else (asked,)

    # Candidates: what each component alone may be ------------------------------------------------------------------

    def drivers(self):
        if self.asked("driver") == "none":
            return [None]
        return [driver for source in self.sources("driver") for driver in self._drivers(source)]

    def _drivers(self, source):
        for branch in self.files["driver"]["branches"]:
            if source == "distro":
                own = (d for d in self.distro["distro_drivers"] if not d.get("signed"))  # which DKMS does not build
                rules = [d for d in own if d["branch"] == branch["branch"]]
                versions = {branch["branch"]}
            else:
                rules = [
                    p
                    for p in self.files["driver"]["packages"]
                    if p["family"] == self.distro["family"]
                    and _within(branch["branch"], p["first_branch"], p["last_branch"])
                ]
                versions = {v["version"] for v in branch["versions"] if "nvidia" in v["archives"]}
            for rule, version in itertools.product(rules, versions | self._offered_drivers(source, rules, branch)):
                known = version
                if source == "distro":
                    family = [v["version"] for v in branch["versions"] if self.distro["family"] in v["archives"]]
                    known = rule.get("version") or max(family, key=num, default=version)
                modules = self._modules(branch, rule, known)
                if not builds(known, source, self.kernel, self.files["known_bad"]):
                    continue
                if not modules or not self._supports(branch) or not self._asked_for(known):
                    continue
                if source == "nvidia" and self.offers is None and not self._in_repository(branch):
                    continue
                names = [name.format(branch=branch["branch"]) for name in self._set(rule)[modules]]
                packages = names
                if source == "nvidia":
                    epoch, revision = rule.get("epoch"), rule["revision"].format(dist=self.distro.get("dist", ""))
                    package = f"{f'{epoch}:' if epoch else ''}{version}-{revision}"
                    packages = self.packages([(n, package) for n in names], version)
                if packages is not None:
                    yield {"version": version, "source": source, "branch": branch, "modules": modules} | {
                        "packages": packages,
                        "pinning": self._pinning(branch) if source == "nvidia" else [],
                    }

    def _pinning(self, branch):
        rule = self.files["driver"]["pinning"]
        name = rule["package"].format(branch=branch["branch"])
        if int(branch["branch"]) < int(rule["first_branch"]) or self.distro["family"] not in rule["families"]:
            return []
        if self.offers is None:
            return [name]
        return [f"{name}={version}" for version in sorted(self.offers.get(name, ()), key=num_all)[-1:]]

    def _offered_drivers(self, source, rules, branch):
        sets = [self._set(rule) for rule in rules]
        names = [n.format(branch=branch["branch"]) for found in sets for n in (*found["open"], *found["proprietary"])]
        found = (
            {v.split("-")[0] for n in names for v in (self.offers or {}).get(n, ())} if source == "nvidia" else set()
        )
        return {version for version in found if covers(version, branch["branch"])}

    def _set(self, rule):
        """Return the packages by kernel modules: without a display those for computing, unless all are asked for."""
        return rule["full"] if self.asked("driver_profile") == "full" else rule

    def _asked_for(self, version):
        return covers(version, self.asked("driver"))

    def _modules(self, branch, rule, version):
        """Return the first kernel modules of the branch that are packaged, asked for, and accepted by every GPU."""
        for modules in branch["kernel_modules"]:
            accepted = all(
                gpu["kernel_modules"] in ("either", modules)
                and knows(gpu["device"], version, modules, self.files["gpu"].get("first_drivers"))
                for gpu in self.gpus
            )
            if self._set(rule)[modules] and accepted and self.asked("driver_kernel_modules") in ("auto", modules):
                return modules
        return None

    def _supports(self, branch):
        return all(
            gpu["architecture"] in branch["architectures"]
            and gpu["compute_capability"] not in branch["without"]
            and not (gpu["last_driver_branch"] and int(branch["branch"]) > int(gpu["last_driver_branch"]))
            for gpu in self.gpus
        )

    def _in_repository(self, branch):
        limits = self.distro.get("nvidia_branches") or {"first": None, "last": None}
        return _within(branch["branch"], limits["first"] or "0", limits["last"])

    def toolkits(self):
        if self.asked("cuda") == "none":
            return [None]
        return [cuda for source in self.sources("cuda") for cuda in self._toolkits(source)]

    def _toolkits(self, source):
        for toolkit in self.files["cuda"]["toolkits"]:
            if any(gpu["compute_capability"] not in toolkit["compute_capabilities"] for gpu in self.gpus):
                continue
            floors = {r["version"]: r["min_driver"] for r in toolkit["releases"] if r["min_driver"]}
            if source == "distro":
                found = [
                    (d["release"], d["packages"], d["host_compilers"], d["min_driver"])
                    for d in self.distro["distro_cuda"]
                    if d["version"] == toolkit["version"]
                ]
            else:
                found = [(*entry, None) for entry in self._nvidia_toolkit(toolkit)]
            for release, packages, compilers, depends in found:
                if covers(release, self.asked("cuda")):
                    # A release whose own driver is not known needs what the newest known one of its series needs.
                    floor = floors.get(release) or max(floors.values(), key=num, default=None)
                    yield {"release": release, "version": toolkit["version"], "source": source, "floor": floor} | {
                        "depends": depends,
                        "packages": packages,
                        "compilers": compilers,
                    }

    def _nvidia_toolkit(self, toolkit):
        repository = self.distro["nvidia_repository"]
        if self.offers is None and not _within(
            toolkit["version"], repository["first_cuda"], repository.get("last_cuda")
        ):
            return
        if toolkit["max_glibc"] and num(".".join(self.glibc.split(".")[:2])) > num(toolkit["max_glibc"]):
            return
        compilers = self.distro["gcc"].get("names", ["gcc", "g++"])
        if self.gcc > toolkit["max_gcc"]:
            older = [gcc for gcc in self.distro["gcc"]["available"] if gcc <= toolkit["max_gcc"]]
            if not older:
                return
            others = self.distro["gcc"].get("other_names", ["gcc-{major}", "g++-{major}"])
            compilers = [name.format(major=max(older)) for name in others or compilers]
        name = f"cuda-toolkit-{toolkit['version'].replace('.', '-')}"
        offered = {version.split("-")[0] for version in (self.offers or {}).get(name, ())}
        for release in {r["version"] for r in toolkit["releases"]} | offered:
            packages = self.packages([(name, f"{release}-1")], release)
            if packages is not None:
                yield release, packages, compilers

    def tensorflows(self):
        if self.asked("tensorflow") == "none":
            return [None]
        releases = [r for r in self.files["tensorflow"]["releases"] if covers(r["version"], self.asked("tensorflow"))]
        found = [self._tensorflow(release) for release in releases]
        return sorted((f for f in found if f), key=lambda f: num_all(f["version"]), reverse=True)

    def _tensorflow(self, release):
        libraries = self.asked("tensorflow_cuda_libraries")
        if libraries == "auto":
            libraries = "wheel" if release["and_cuda"] else "system"
        python = self._python(release, (release["and_cuda"] or {}).get("pythons") if libraries == "wheel" else None)
        if python is None or (libraries == "wheel" and not release["and_cuda"]) or (self.gpus and not release["sass"]):
            return None
        if not all(_has_code(release, gpu) for gpu in self.gpus):
            return None
        # No run of such a wheel was published, so that only who asks for a release gets it.
        if self.asked("tensorflow") == "auto" and any(
            unknown_to_the_toolkit(release, gpu, self.files) for gpu in self.gpus
        ):
            return None
        if any(fails_on(release["version"], g["compute_capability"], self.files["known_bad"]) for g in self.gpus):
            return None
        limit = None
        if libraries == "wheel":
            fits, limit = self._wheel_cudnn(release["and_cuda"])
            if not fits:
                return None
        return {"version": release["version"], "python": python, "libraries": libraries, "limit": limit} | {
            "release": release
        }

    def _python(self, release, pythons=None):
        supported = [python for python in self.pythons if python in (pythons or release["pythons"])]
        if self.default_python in supported:
            return self.default_python
        return max(supported, key=num, default=None)

    def _wheel_cudnn(self, wheel):
        """Return whether the wheel's libraries serve every GPU, and the newest cuDNN where it is not pip's choice."""
        cudnn, nccl, major = self.files["cudnn"], self.files["nccl"], wheel["cuda_major"]
        allowed = [
            v["version"]
            for v in cudnn["versions"]
            if major in v["cuda_majors"] and _satisfies(v["version"], wheel["cudnn"])
        ]
        fitting = [v for v in allowed if self._all_covered(cudnn["support"], v, major)]
        pinned = wheel["nccl"].removeprefix("==") if wheel["nccl"].startswith("==") else None
        if not fitting or (pinned and not self._all_covered(nccl["support"], pinned, major)):
            return False, None
        newest = max(fitting, key=num)
        return True, None if newest == max(allowed, key=num) else newest

    def _all_covered(self, support, version, major):
        return all(_covered(support, version, major, gpu["compute_capability"]) for gpu in self.gpus)

    # Together -----------------------------------------------------------------------------------------------------

    def floor(self, major):
        floors = {m["cuda_major"]: m["min_driver"] for m in self.files["cuda"]["minor_version_compatibility"]}
        return floors.get(major)

    def driver_runs(self, driver, cuda):
        if driver is None or cuda is None:
            return True
        major = num(cuda["version"])[0]
        floor = cuda["depends"] or (cuda["floor"] if major < 11 else self.floor(major))
        return floor is None or _reaches(driver["version"], floor)

    def serves(self, driver, cuda, tensorflow):
        if tensorflow is None:
            return True
        release = tensorflow["release"]
        if tensorflow["libraries"] == "wheel":
            floor = self.floor(release["and_cuda"]["cuda_major"])
            return driver is None or floor is None or _reaches(driver["version"], floor)
        if cuda is None:
            return False
        # The runtime library is named after the minor release before CUDA 11, after the major since.
        has, tested = num(cuda["version"]), num(release["tested"]["cuda"])
        same = has[:2] == tested[:2] if tested[0] < 11 else has[0] == tested[0] and has >= tested
        if self.files["cuda"].get("libcusolver") and tested[:2] == (11, 0):
            same = has[:2] == (11, 0)  # libcusolver.so.10 is in 11.0 alone
        return same and self.cudnn(driver, cuda, tensorflow) is not None

    def rank(self, driver, cuda):
        """Rank by rule 6, then rule 2 of the document."""
        kind = 0
        if driver is not None:
            branch = driver["branch"]
            old = cuda is not None and (
                num(branch["native_cuda"]) < num(cuda["version"])
                or (cuda["floor"] is not None and not _reaches(driver["version"], cuda["floor"]))
            )
            regular = branch["type"] in ("PB", "LTSB")
            kind = 4 if old else (0 if branch["maintained"] else 1) if regular else 2 if branch["type"] == "NFB" else 3
        return (
            driver is not None and driver["source"] == "nvidia",
            cuda is not None and cuda["source"] == "nvidia",
            -kind,
            num_all(cuda["release"]) if cuda else (),
            num_all(driver["version"]) if driver else (),
        )

    def left_out(self, name, driver, cuda):
        """Return whether a library is not wanted: with the archive's packages alone only on request."""
        archive_alone = cuda and cuda["source"] == "distro" and (driver is None or driver["source"] == "distro")
        return cuda is None or self.asked(name) == "none" or (self.asked(name) == "auto" and archive_alone)

    def cudnn(self, driver, cuda, tensorflow, wheel=None):
        if self.left_out("cudnn", driver, cuda):
            return None
        needed = (
            tensorflow["release"]["tested"]["cudnn"] if tensorflow and tensorflow["libraries"] == "system" else None
        )
        last = {b["system_first"] for b in self.files["known_bad"]["cudnn"] if wheel and covers(wheel, b["wheel_last"])}
        return self._cudnn(cuda["version"], needed, min(last, key=num, default=None))

    @functools.cache  # noqa: B019 (a question lives as long as its test)
    def _cudnn(self, cuda, needed, limit=None):
        """Return the packages of the newest cuDNN for a toolkit.

        needed: what TensorFlow was built with; limit: what PyTorch's own cuDNN fails beside, and newer ones.
        """
        files, major = self.files["cudnn"], num(cuda)[0]
        builds = []
        for apt in (row for row in files["names"] if self.distro["family"] in row["families"]):
            names = [name.format(cuda_major=major) for name in (apt["runtime"], *apt["development"])]
            # Older repositories have the headers in the -dev package.
            names = [n for n in names if self.offers is None or "headers" not in n or n in self.offers]
            builds += [(*_release(v), names, "") for v in (self.offers or {}).get(names[0], ())]
            if apt["cudnn_major"] < 9:
                builds += [
                    (b["version"], c, names, f"{b['version']}-1+cuda{c}")
                    for b in files["apt_builds"]
                    for c in b["cuda"]
                    if covers(b["version"], str(apt["cudnn_major"])) and (b["slugs"] is None or self.slug in b["slugs"])
                ]
            else:
                builds += [
                    (v["version"], None, names, f"{v['version']}-1")
                    for v in files["versions"]
                    if covers(v["version"], str(apt["cudnn_major"])) and major in v["cuda_majors"]
                ]
        fitting = []
        for version, built, names, package in builds:
            if (limit and num(version) >= num(limit)) or not covers(version, self.asked("cudnn")):
                continue
            if built and not (
                num(built) == num(cuda) if major < 11 else num(built)[0] == major and num(built) <= num(cuda)
            ):
                continue
            published = [v for v in files["versions"] if v["version"] == version]
            if published and major not in published[0]["cuda_majors"]:
                continue
            if not self._all_covered(files["support"], version, major):
                continue
            if needed and (num(version)[0] != num(needed)[0] or num(version) < num(needed)):
                continue
            packages = self.packages([(name, package) for name in names], version, built)
            if packages is not None:
                fitting.append((num(version), num(built or "0"), packages))
        return max(fitting, default=(None, None, None))[2]

    def nccl(self, driver, cuda):
        if self.left_out("nccl", driver, cuda):
            return None
        major, majors = num(cuda["version"])[0], self.distro["nvidia_repository"]["nccl_cuda_majors"]
        rows = self.files["nccl"]["names"]
        names = next(row["packages"] for row in rows if self.distro["family"] in row["families"])
        builds = [
            (b["version"], b["cuda"])
            for b in self.files["nccl"]["builds"]
            if b["slugs"] is None or self.slug in b["slugs"]
        ]
        builds += [_release(v) for v in (self.offers or {}).get(names[0], ())]
        fitting = []
        for version, built in builds:
            if num(built)[0] != major or not self._all_covered(self.files["nccl"]["support"], version, major):
                continue
            if not covers(version, self.asked("nccl")):
                continue
            if self.offers is None and majors is not None and major not in majors:
                continue
            packages = self.packages([(name, f"{version}-1+cuda{built}") for name in names], version, built)
            if packages is None:
                continue
            older = num(built) <= num(cuda["version"])
            # Of builds for a newer minor the nearest serves.
            order = (num(version), num(built)) if older else (tuple(-n for n in num(built)), num(version))
            fitting.append((older, order, packages))
        return max(fitting, default=(None, None, None))[2]

    def pytorch(self, driver, cuda):
        fitting = []
        toolkit = num(cuda["version"]) if cuda and self.asked("cuda") != "auto" else (None,)
        for release in self.files["pytorch"]["releases"]:
            python = self._python(release)
            for build in release["builds"]:
                series, floor = num(build["cuda"])[:2], self.floor(num(build["cuda"])[0])
                if (
                    covers(release["version"], self.asked("pytorch"))
                    and covers(build["cuda"], self.asked("pytorch_cuda"))
                    and python
                    and self._all_covered(self.files["cudnn"]["support"], build["cudnn"], series[0])
                    and self._all_covered(self.files["nccl"]["support"], build["nccl"], series[0])
                    and all(_has_code({**build, "ptx": []}, gpu) for gpu in self.gpus)
                    and (driver is None or floor is None or _reaches(driver["version"], floor))
                ):
                    follows = (series == toolkit[:2], series[0] == toolkit[0])
                    order = (*follows, num_all(release["version"]), build["index"] == "pypi", series)
                    fitting.append((order, (release["version"], python, ".".join(str(n) for n in series))))
        return max(fitting, default=(None, NO_PYTORCH))[1]

    def wheel_cudnn(self, version, cuda):
        """Return the cuDNN that the build of a PyTorch for a CUDA series pins."""
        for release in self.files["pytorch"]["releases"]:
            for build in release["builds"]:
                if release["version"] == version and covers(build["cuda"], cuda):
                    return build["cudnn"]
        return None


@functools.cache
def num_all(version):
    """Return all numbers of a version: 2.15.0.post1 is newer than 2.15.0, and a package's revision counts."""
    return tuple(int("".join(part)) for digit, part in itertools.groupby(version, str.isdigit) if digit)


def _release(package_version):
    """Return the release in a package's version and the CUDA that it was built for, if it names one."""
    release, _, cuda = package_version.partition("+cuda")
    return release.split("-")[0], cuda or None


def unknown_to_the_toolkit(release, gpu, files):
    """Return whether a wheel has PTX alone for a GPU, and was built with a toolkit that does not know it."""
    if _has_code({**release, "ptx": []}, gpu):
        return False
    built_with = [t for t in files["cuda"]["toolkits"] if t["version"] == release["tested"]["cuda"]]
    return not any(gpu["compute_capability"] in toolkit["compute_capabilities"] for toolkit in built_with)


def _has_code(release, gpu):
    capability = num(gpu["compute_capability"])
    native = any(num(s)[0] == capability[0] and num(s) <= capability for s in release["sass"])
    return native or any(num(p) <= capability for p in release["ptx"])


def best(question: Question) -> dict | None:
    """Return what the best plan has of each component, or None where no set is allowed.

    Where none is, and nobody asked for a TensorFlow, PyTorch takes its place, or is alone if it was asked for.
    """
    found = best_as_asked(question)
    asked = [question.asked(name) for name in ("tensorflow", "tensorflow_cuda_libraries", "pytorch")]
    if found or asked[:2] != ["auto", "auto"] or asked[2] == "none":
        return found
    other = copy.copy(question)
    other.request = {**question.request, "tensorflow": "none", "pytorch": asked[2].replace("fallback", "auto")}
    return best_as_asked(other)


def best_as_asked(question: Question) -> dict | None:
    """Return what the best plan has of the frameworks that are asked for."""
    pairs = [
        (driver, cuda)
        for driver, cuda in itertools.product(question.drivers(), question.toolkits())
        if question.driver_runs(driver, cuda)
    ]
    for tensorflow in question.tensorflows():
        allowed = [pair for pair in pairs if question.serves(*pair, tensorflow)]
        if not allowed:
            continue
        driver, cuda = max(allowed, key=lambda pair: question.rank(*pair))
        is_asked = question.asked("pytorch") not in ("none", "fallback")
        pytorch = question.pytorch(driver, cuda) if is_asked else NO_PYTORCH
        if is_asked and pytorch == NO_PYTORCH:
            return None
        cudnn = question.cudnn(driver, cuda, tensorflow, question.wheel_cudnn(pytorch[0], pytorch[2]))
        nccl = question.nccl(driver, cuda)
        found = {"cudnn": cudnn, "nccl": nccl}
        if any(question.asked(name) not in ("auto", "none") and not packages for name, packages in found.items()):
            return None
        return {
            "driver": driver and tuple(driver[k] for k in ("version", "source", "modules", "packages", "pinning")),
            "cuda": cuda and (cuda["release"], cuda["source"], cuda["compilers"], cuda["packages"]),
            **found,
            "tensorflow": tensorflow and tuple(tensorflow[k] for k in ("version", "python", "libraries", "limit")),
            "pytorch": pytorch,
        }
    return None


def of_plan(made: dict) -> dict | None:
    """Return the same of a plan's JSON."""
    if not made["ok"]:
        return None
    parts = made["components"]
    driver, cuda, tensorflow, pytorch = (parts[name] for name in ("driver", "cuda", "tensorflow", "pytorch"))
    limits = [r.split("<=")[1] for r in tensorflow["requirements"] if "<=" in r] if tensorflow else []
    return {
        "driver": driver
        and tuple(driver[k] for k in ("version", "source", "kernel_modules", "packages", "pinning_packages")),
        "cuda": cuda and (cuda["release"], cuda["source"], cuda["host_compilers"], cuda["packages"]),
        "cudnn": parts["cudnn"] and parts["cudnn"]["packages"],
        "nccl": parts["nccl"] and parts["nccl"]["packages"],
        "tensorflow": tensorflow
        and (tensorflow["version"], tensorflow["python"], tensorflow["cuda_libraries"], limits[0] if limits else None),
        "pytorch": tuple(pytorch[k] for k in ("version", "python", "cuda")) if pytorch else NO_PYTORCH,
    }
