"""Limits of the catalog: what stands at a limit is planned, one step beyond it is refused with its code.

The limits are read from catalog/ as plain data, and a step is the next number: each release brings its own cases. Those
of drivers and GPUs by toolkit are compared with what is published (tests/fixtures/cuda).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

from tests.unit.plugin_utils.resolver.resolver_checker import knows, num, products, raw

PUBLISHED = yaml.safe_load((Path(__file__).resolve().parents[3] / "fixtures/cuda/published.yml").read_text())
TOOLKITS = {t["version"]: t for t in raw("cuda")["toolkits"]}
CAPABILITIES = sorted((c for a in raw("gpu")["architectures"] for c in a["compute_capabilities"]), key=num)
BRANCHES = {b["branch"]: b for b in raw("driver")["branches"]}
NOTHING = {"driver": "none", "cuda": "none", "cudnn": "none", "nccl": "none", "tensorflow": "none", "pytorch": "none"}


def asked(host=(), capability="7.5", distro="ubuntu-24.04", pci_id="10de:ffff", **request):
    """Return the plan and its problem codes for one GPU and a request of these components alone."""
    gpu = HostGpu(pci_id, "0000:01:00.0", "GPU", capability)
    made = plan_once(
        load_catalog(),
        user_request.from_mapping({**NOTHING, "cuda_source": "nvidia", **request}),
        Host(distro, "x86_64", gpus=(gpu,), **dict(host)),
    )
    return made, [problem.code for problem in made.problems]


def offered_toolkit(version):
    """Return a toolkit's newest release, and a repository that offers it."""
    release = max((r["version"] for r in TOOLKITS[version]["releases"]), key=num)
    return release, {f"cuda-toolkit-{version.replace('.', '-')}": (f"{release}-1",)}


def one_less(version):
    """Return the version just before one such as 525.60.13."""
    head, _, last = version.rpartition(".")
    return f"{head}.{int(last) - 1}" if int(last) else f"{one_less(head)}.99"


def next_of(version):
    """Return the series after one such as 2.40."""
    head, _, minor = version.rpartition(".")
    return f"{head}.{int(minor) + 1}"


# CUDA ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", TOOLKITS)
def test_compilers(version):
    """A compiler that is too new is replaced by the newest of the distribution that is not."""
    limit, (_, offers) = TOOLKITS[version]["max_gcc"], offered_toolkit(version)
    available = raw("distro/ubuntu-24.04")["gcc"]["available"]
    capability = TOOLKITS[version]["compute_capabilities"][0]
    made, codes = asked({"gcc": limit, "offers": offers}, capability, cuda=version)
    assert (codes, made.components["cuda"].host_compilers) == ([], ("gcc", "g++"))
    made, codes = asked({"gcc": limit + 1, "offers": offers}, capability, cuda=version)
    older = [gcc for gcc in available if gcc <= limit]
    if older:
        assert (codes, made.components["cuda"].host_compilers) == ([], (f"gcc-{max(older)}", f"g++-{max(older)}"))
    else:
        assert codes == ["host-toolchain-mismatch"]


@pytest.mark.parametrize("version", [v for v, t in TOOLKITS.items() if t["max_glibc"]])
def test_c_libraries(version):
    limit, (_, offers) = TOOLKITS[version]["max_glibc"], offered_toolkit(version)
    capability, gcc = TOOLKITS[version]["compute_capabilities"][0], TOOLKITS[version]["max_gcc"]
    for glibc, expected in (
        (limit, []),
        (f"{limit}.9000", []),
        (next_of(limit), ["host-toolchain-mismatch"]),
    ):
        assert asked({"glibc": glibc, "gcc": gcc, "offers": offers}, capability, cuda=version)[1] == expected


@pytest.mark.parametrize("version", TOOLKITS)
def test_gpus_of_a_toolkit(version):
    ranges = PUBLISHED["compute_capabilities"].items()
    known = {c for c, (first, end) in ranges if num(first) <= num(version) and (not end or num(version) < num(end))}
    if num(version) > num(PUBLISHED["newest"]):
        known = set(TOOLKITS[version]["compute_capabilities"])
    assert set(TOOLKITS[version]["compute_capabilities"]) == known
    _, offers = offered_toolkit(version)
    host = {"offers": offers, "gcc": TOOLKITS[version]["max_gcc"], "glibc": TOOLKITS[version]["max_glibc"]}
    refused = [c for c in CAPABILITIES if asked(host, c, cuda=version)[1] == ["gpu-dropped-by-cuda"]]
    planned = [c for c in CAPABILITIES if asked(host, c, cuda=version)[1] == []]
    assert planned == [c for c in CAPABILITIES if c in known]
    assert refused == [c for c in CAPABILITIES if c not in known]


def driver_of(release):
    """Return the published driver of a release, or of the one before it in its series; None if there is none."""
    published = PUBLISHED["drivers"]
    before = [r for r in published if num(r)[:2] == num(release)[:2] and num(r) <= num(release)]
    return published[max(before, key=num)] if before else None


def test_the_drivers_of_releases_are_the_published_ones():
    """Of a release that is in no table yet, none may be known."""
    drivers = {r["version"]: r["min_driver"] for toolkit in TOOLKITS.values() for r in toolkit["releases"]}
    published = {release: driver_of(release) for release in drivers}
    compared = {release for release in drivers if published[release] and drivers[release]}
    assert {release: drivers[release] for release in compared} == {release: published[release] for release in compared}
    # 10.1.105 and 9.0.76 were replaced by later ones of their series.
    assert PUBLISHED["drivers"].keys() - compared == {"10.1.105", "9.0.76"}


@pytest.mark.parametrize("version", TOOLKITS)
def test_drivers_of_a_toolkit(version):
    """The loaded driver runs it from the floor of its CUDA major on; before CUDA 11 from its own release on."""
    release, offers = offered_toolkit(version)
    own = {r["version"]: r["min_driver"] for r in TOOLKITS[version]["releases"]}
    floor = PUBLISHED["majors"].get(version.split(".")[0]) or driver_of(release) or own[release]
    host = {"offers": offers, "gcc": TOOLKITS[version]["max_gcc"], "glibc": TOOLKITS[version]["max_glibc"]}
    capability = TOOLKITS[version]["compute_capabilities"][0]
    for driver, expected in ((floor, []), (one_less(floor), ["driver-too-old-for-cuda"])):
        assert asked({**host, "loaded_driver": driver}, capability, cuda=version)[1] == expected


@pytest.mark.parametrize("distro", sorted(load_catalog().distros))
def test_toolkits_of_a_repository_that_was_not_read(distro):
    """The first and the last one that a repository has are in it, their neighbours are not."""
    repository = raw(f"distro/{distro}")["nvidia_repository"]
    first, last = repository["first_cuda"], repository.get("last_cuda") or max(TOOLKITS, key=num)
    for version in TOOLKITS:
        codes = asked({"gcc": 5, "glibc": "2.17"}, None, distro, "10de:1eb8", cuda=version)[1]
        assert ("not-in-repository" not in codes) == (num(first) <= num(version) <= num(last)), version


# Drivers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", [b for b, entry in BRANCHES.items() if entry.get("newest_kernel")])
def test_kernels_of_a_branch(branch):
    newest = BRANCHES[branch]["newest_kernel"]
    distro = next(d for d in sorted(load_catalog().distros) if branch in str(raw(f"distro/{d}")["distro_drivers"]))
    for kernel, warned in ((newest, False), (next_of(newest), True)):
        host = {"kernel": f"{kernel}.0-45-generic"}
        made, codes = asked(host, "5.0", distro, driver=branch, driver_source="distro")
        assert codes == []
        assert ("kernel-newer-than-driver" in [w.code for w in made.warnings]) == warned


def kinds_of_products():
    """Return one product of each architecture, compute capability, kernel modules and last branch."""
    kinds = {
        tuple(row[k] for k in ("architecture", "compute_capability", "kernel_modules", "last_driver_branch")): row
        for row in products().values()
    }
    return list(kinds.values())


@pytest.mark.parametrize("product", kinds_of_products(), ids=lambda row: row["name"])
def test_branches_of_a_product(product):
    """Each branch from the first to the last one that supports a product is planned, its neighbours are refused."""
    names = {
        name.format(branch=branch)
        for branch in BRANCHES
        for rule in raw("driver")["packages"]
        for name in (*rule["open"], *rule["proprietary"])
    }
    tried = 0
    for branch, entry in BRANCHES.items():
        if num(branch) < num("535"):
            continue  # not packaged by NVIDIA for this distribution
        tried += 1
        offers = dict.fromkeys(names, (f"{branch}.999.1-1",))
        codes = asked({"offers": offers}, None, pci_id=f"10de:{product['device']}", driver=branch)[1]
        last = product["last_driver_branch"]
        supported = (
            product["architecture"] in entry["architectures"]
            and product["compute_capability"] not in entry["without"]
            and (not last or int(branch) <= int(last))
            and (product["kernel_modules"] == "either" or product["kernel_modules"] in entry["kernel_modules"])
            and any(
                product["kernel_modules"] in ("either", modules)
                and knows(product["device"], f"{branch}.999.1", modules, raw("gpu")["first_drivers"])
                for modules in entry["kernel_modules"]
            )
        )
        assert (codes == []) == supported, (branch, codes)
        if not supported:
            assert set(codes) <= {"gpu-dropped-by-driver", "gpu-too-new-for-driver"}
    assert tried > 10


# Frameworks and libraries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", ["tensorflow", "pytorch"])
def test_pythons_of_a_framework(framework):
    tried = 0
    for release in raw(framework)["releases"]:
        pythons = sorted((release.get("and_cuda") or {}).get("pythons") or release["pythons"], key=num)
        beyond = [next_of(pythons[-1])] + [f"3.{num(pythons[0])[1] - 1}"] * pythons[0].startswith("3.")
        for python in (pythons[0], pythons[-1], *beyond):
            made, codes = asked({"pythons": (python,), "default_python": python}, **{framework: release["version"]})
            assert ("python-not-supported" in codes) == (python in beyond), (release["version"], python)
            if not codes:
                assert made.components.get(framework).python == python
            tried += 1
    assert tried > 20


def test_gpus_of_pytorch():
    """A build runs on GPUs of the majors that it has machine code for, from the oldest of each on."""
    pythons = {"pythons": ("3.9", "3.10", "3.11", "3.12", "3.13"), "default_python": "3.11"}
    refused = 0
    for release in raw("pytorch")["releases"]:
        for build in release["builds"]:
            major = num(build["cuda"])[0]
            request = {"pytorch": release["version"], "pytorch_cuda": ".".join(build["cuda"].split(".")[:2])}
            limits = [covered("cudnn", build["cudnn"], major), covered("nccl", build["nccl"], major)]
            for capability in CAPABILITIES:
                wanted = num(capability)
                fits = all(low <= wanted <= high for low, high in limits) and any(
                    num(sass)[0] == wanted[0] and num(sass) <= wanted for sass in build["sass"]
                )
                made, found = asked(pythons, capability, **request)
                codes = [code for code in found if code != "no-lock"]  # of PyTorch's own index none is shipped
                assert ("no-lock" in found) == (build["index"] == "own")
                newer = wanted > num(build["sass"][-1])
                assert codes == ([] if fits else ["gpu-too-new-for-pytorch" if newer else "gpu-dropped-by-cuda"])
                assert not fits or made.components["pytorch"].cuda == request["pytorch_cuda"]
                refused += not fits
    assert refused > 50


def covered(name, version, major):
    """Return the compute capabilities that a library's build has code for, by the rows of its file."""
    for row in raw(name)["support"]:
        cut = str(row["last"]).count(".") + 1
        if major in (row.get("cuda_majors") or [row["cuda_major"]]) and (
            num(row["first"]) <= num(version) and (row["last"] is None or num(version)[:cut] <= num(row["last"])[:cut])
        ):
            return num(row["min_compute_capability"]), num(row["max_compute_capability"])
    return None


@pytest.mark.parametrize("name", ["cudnn", "nccl"])
@pytest.mark.parametrize("cuda", ["11.8", "12.9", "13.2"])
def test_gpus_of_a_library(name, cuda):
    """Each published build, asked for by its version, on each GPU that the toolkit compiles for."""
    major, builds = num(cuda)[0], set()
    if name == "nccl":
        builds = {b["version"] for b in raw("nccl")["builds"] if num(b["cuda"])[0] == major and b["slugs"] is None}
    else:
        builds = {v["version"] for v in raw("cudnn")["versions"] if major in v["cuda_majors"]}
        builds = {v for v in builds if v.startswith("9.") and v.count(".") > 1}
    _, offers = offered_toolkit(cuda)
    code = {"cudnn": "gpu-dropped-by-cudnn", "nccl": "nccl-cuda-mismatch"}[name]
    tried = 0
    for version in builds:
        suffix = f"-1+cuda{cuda}" if name == "nccl" else "-1"
        packages = {
            "nccl": ["libnccl2", "libnccl-dev"],
            "cudnn": [f"libcudnn9{part}-cuda-{major}" for part in ("", "-headers", "-dev")],
        }[name]
        host = {"offers": {**offers, **dict.fromkeys(packages, (version + suffix,))}, "gcc": 11, "glibc": "2.35"}
        lowest, highest = covered(name, version, major)
        for capability in set(TOOLKITS[cuda]["compute_capabilities"]) & set(CAPABILITIES):
            codes = asked(host, capability, cuda=cuda, **{name: version})[1]
            assert (codes == []) == (lowest <= num(capability) <= highest), (version, capability, codes)
            assert codes == [] or code in codes
            tried += 1
    assert tried or (name, cuda) == ("nccl", "11.8")
