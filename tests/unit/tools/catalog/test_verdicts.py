"""Verdicts on the catalog's entries, from documents in the form in which NVIDIA and Debian publish them."""

from __future__ import annotations

import dataclasses

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tools.catalog import verdicts
from tools.catalog.device_code import Code, Group
from tools.catalog.verdicts import Evidence

CATALOG = load_catalog()
# Of the wheel nvidia-cuda-nvcc-cu12 12.9.86.
HOST_CONFIG = (
    "#if defined(__GNUC__)\n#if __GNUC__ > 14\n#error -- unsupported GNU version! gcc versions later than 14\n"
)
PTXAS = (
    "--gpu-name <gpu name>\n        Allowed values for this option:  'sm_100','sm_100a','sm_103','sm_50','sm_90a'.\n"
)
PCI_IDS = (
    "10dd  Enea Systems\n\t0001  Other\n10de  NVIDIA Corporation\n\t0008  NV1 [STG2000X-B Series]\n"
    "\t2330  GH100 [H100 SXM5 80GB]\n\t1eb8  TU104GL [Tesla T4]\n\t22a3  GH100 [H100 NVSwitch]\n"
    "\t2b85  GB203 [GeForce RTX 5080]\n\t3340  GB120\n\t3fff  GB777 [RTX 9999]\n"
    "\t10f0  GP104 High Definition Audio Controller\n"
    "10df  Emulex\n"
)


def of(entry: str, evidence: list[Evidence]) -> list[bool]:
    return [item.agrees for item in evidence if item.entry == entry]


def test_an_entry_without_evidence_is_taken_on_trust_from_its_source():
    known = verdicts.entries(CATALOG)
    found = verdicts.verdicts(CATALOG, [])
    assert {v.verdict for v in found} == {"trusted"}
    assert {v.entry: v.by for v in found} == known
    assert len(known) > 1200


def test_one_contradiction_outweighs_confirmations():
    entry = "tensorflow.yml releases[2.21.0]"
    evidence = [Evidence(entry, "PyPI", True, "a"), Evidence(entry, "the wheel", False, "b")]
    found = {v.entry: v for v in verdicts.verdicts(CATALOG, evidence)}
    assert (found[entry].verdict, found[entry].by, found[entry].text) == ("contradicted", "the wheel", "b")
    found = {v.entry: v for v in verdicts.verdicts(CATALOG, evidence[:1])}
    assert (found[entry].verdict, found[entry].by) == ("confirmed", "PyPI")
    shares = verdicts.shares(found.values())
    assert shares["tensorflow.yml"]["confirmed"] == 1
    assert sum(map(sum, (counts.values() for counts in shares.values()))) == len(found)


def test_what_only_a_source_has_is_a_contradiction():
    found = verdicts.verdicts(CATALOG, verdicts.pci_ids(CATALOG, PCI_IDS))
    assert [v.entry for v in found if v.verdict == "contradicted"] == [
        "gpu_products.csv[2b85]",
        "gpu_products.csv[3fff]",
    ]


def test_pci_ids():
    evidence = verdicts.pci_ids(CATALOG, PCI_IDS)
    assert of("gpu_products.csv[2330]", evidence) == [True]
    assert of("gpu_products.csv[1eb8]", evidence) == [True]
    assert of("gpu_products.csv[2b85]", evidence) == [False]  # it is a GB202
    assert of("gpu.yml chip_only[3340]", evidence) == [True]
    assert of("gpu_products.csv[22a3]", evidence) == []  # no GPU
    assert of("gpu_products.csv[10f0]", evidence) == []


@pytest.mark.parametrize(
    ("device", "features", "agrees"),
    [
        ("0x2901", ["kernelopen"], True),
        ("0x2901", [], False),
        ("0x1EB8", ["kernelopen"], True),
        ("0x1DB4", [], True),
        ("0x1DB4", ["kernelopen"], False),
    ],
)
def test_supported_gpus(device, features, agrees):
    chips = [{"devid": device, "name": "x", "features": features}]
    (found,) = verdicts.supported_gpus(CATALOG, "580.1", chips)
    assert found.agrees == agrees


def test_compiler():
    toolkit = next(t for t in CATALOG.cuda.toolkits if t.version == "12.9")
    gcc, architectures = verdicts.compiler(toolkit, HOST_CONFIG, PTXAS)
    assert gcc.agrees
    assert not architectures.agrees
    listed = ",".join(f"'sm_{c.replace('.', '')}'" for c in toolkit.compute_capabilities)
    assert verdicts.compiler(toolkit, HOST_CONFIG.replace("14", "13"), listed)[0].agrees is False
    assert verdicts.compiler(toolkit, HOST_CONFIG, listed + ",'sm_90a'")[1].agrees


def test_wheel_code():
    release = next(r for r in CATALOG.tensorflow.releases if r.version == "2.21.0")
    code = Code(release.sass, release.sass_in_part, release.ptx)
    assert verdicts.wheel_code(release, code, "x.whl").agrees
    assert not verdicts.wheel_code(release, Code((*code.sass, "9.0"), (), code.ptx), "x.whl").agrees


# The groups of device code in PyPI's wheels for Python 3.12, and their numbers. 2.10.0 is linked with a library for
# older GPUs than its own kernels are for; a few kernels of 2.15.0 have code of their own for 10.3.
OLDER_LIBRARY = Group(("5.0", "6.0", "7.0", "8.0", "8.6", "9.0", "10.0", "12.0"), ())
TORCH_CODE = {
    "2.10.0": {
        Group(("7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0"), ()): 458,
        OLDER_LIBRARY: 107,
        Group(("7.0", "8.0", "8.9", "9.0"), ("9.0",)): 2,
        Group(("7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0"), ()): 1,
    },
    "2.15.0": {
        Group(("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"), ()): 421,
        Group(("7.5", "8.0", "8.6", "9.0", "10.0", "10.3", "12.0"), ()): 58,
        Group(("8.0", "8.6", "9.0", "10.0", "12.0"), ()): 32,
        Group(("10.0",), ()): 29,
        Group(("9.0",), ()): 29,
        Group(("7.5", "8.0", "8.9", "9.0", "10.0", "12.0"), ("12.0",)): 3,
    },
}


@pytest.mark.parametrize("version", TORCH_CODE)
def test_pytorch_code(version):
    release = next(r for r in CATALOG.pytorch.releases if r.version == version)
    build = release.pypi_build

    def compared(*sass):
        other = dataclasses.replace(release, builds=(dataclasses.replace(build, sass=sass),))
        return verdicts.pytorch_code(other, TORCH_CODE[version], "torch.whl")

    right = compared(*build.sass)
    assert (right.entry, right.agrees) == (f"pytorch.yml releases[{version}]", True)
    assert not compared("5.0", *build.sass).agrees
    assert not compared(*build.sass[:-1]).agrees
    assert "catalog 7.5, torch.whl: machine code for 7." in compared("7.5").text


def test_simulation():
    distro = CATALOG.distros["debian-12"]
    driver = distro.distro_drivers[0]
    assert verdicts.simulation(distro, driver, "proprietary", [], "").agrees
    assert not verdicts.simulation(distro, driver, "open", [], "unmet dependencies").agrees
    assert "lacks libcuda" in verdicts.simulation(distro, driver, "open", ["libcuda"], "").text
