"""Limits of the catalog: what stands at a limit is planned, one step beyond it is refused with its code.

The limits are read from catalog/ as plain data, and a step is the next number: each release brings its own cases. Those
of drivers and GPUs by toolkit are compared with what is published (tests/fixtures/cuda).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import plan_once
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu

from tests.unit.plugin_utils.resolver.plain_catalog import num, raw
from tests.unit.requested import requested

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
        requested({**NOTHING, "cuda_source": "nvidia", **request}),
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


# Drivers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("branch", [b for b, entry in BRANCHES.items() if entry.get("newest_kernel")])
def test_kernels_of_a_branch(branch):
    newest = BRANCHES[branch]["newest_kernel"]
    distros = sorted(load_catalog().distros.values(), key=lambda distro: distro.id)
    distro = next(d.id for d in distros if branch in [driver.branch for driver in d.distro_drivers])
    for kernel, warned in ((newest, False), (next_of(newest), True)):
        host = {"kernel": f"{kernel}.0-45-generic"}
        made, codes = asked(host, "5.0", distro, driver=branch, driver_source="distro")
        assert codes == []
        assert ("kernel-newer-than-driver" in [w.code for w in made.warnings]) == warned


# Frameworks and libraries -------------------------------------------------------------------------------------------
