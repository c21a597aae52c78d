"""The catalog's data against what was read in wheels, binaries and NVIDIA's list of products."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.common.gpu_support import covers
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tools.catalog import device_code

FIXTURES = Path(__file__).parents[3] / "fixtures" / "plan"


WHEELS = json.loads((FIXTURES / "tensorflow_wheels.json").read_text())["wheels"]


CODE = json.loads((FIXTURES / "library_gpu_code.json").read_text())


CUDNN_CODE = [w for w in CODE["cudnn"] if versions.key(w["version"]) >= (8, 5)]  # the first that was read


CAPABILITIES = ("5.0", "6.1", "7.0", "7.5", "8.0", "8.6", "9.0", "10.0", "12.0")


# What the package index has of each locked project, recorded by tests/record_index.py.
TORCH = json.loads((FIXTURES.parent / "locks/index.json").read_text())["torch"]


def test_an_error_of_a_gpus_memory_is_of_the_hardware():
    """No driver causes one (NVIDIA, GPU memory error management), so that no change is undone for it."""
    found = {row.number: row for row in load_catalog().xids if row.outcome == "fail"}
    memory = {number for number, row in found.items() if re.search(r"\b(ECC|memory|[DS]RAM)\b", row.meaning)}
    assert {"48", "64", "95", "140"} <= memory
    assert {number for number in memory if found[number].blame != "hardware"} == set()


@pytest.mark.parametrize("release", load_catalog().pytorch.releases, ids=lambda release: release.version)
def test_pytorch_releases_have_the_pythons_of_their_wheels(release):
    """Without those of a Python without the global lock (cp314t)."""
    tags = [re.match(r"cp3(\d+)-cp3\d+m?-", wheel[0]) for wheel in TORCH[release.version]]
    minors = sorted({int(tag[1]) for tag in tags if tag})
    assert list(release.pythons) == [f"3.{minor}" for minor in minors]


@pytest.mark.parametrize("wheel", WHEELS, ids=[w["version"] for w in WHEELS])
def test_tensorflow_rows_match_the_wheels(wheel):
    row = next(r for r in load_catalog().tensorflow.releases if r.version == wheel["version"])
    groups = {device_code.Group(tuple(sass), tuple(ptx)): number for sass, ptx, number in wheel["groups"]}
    assert device_code.Code(row.sass, row.sass_in_part, row.ptx) == device_code.summary(groups)
    assert versions.series(wheel["build_info_cuda"]) == row.tested.cuda
    assert wheel["build_info_cudnn"] == row.tested.cudnn.split(".", maxsplit=1)[0]
    built_for = wheel["file"].split("-")[2]
    assert f"3.{built_for.removeprefix('cp3')}" in row.pythons
    assert all(versions.satisfies(p, wheel["requires_python"]) for p in row.pythons)
    if wheel["and_cuda"] is None:
        assert row.and_cuda is None
    else:
        name = f"nvidia-cudnn-cu{row.and_cuda.cuda_major}"
        assert row.and_cuda.cudnn == wheel["and_cuda"][name]
        assert row.and_cuda.nccl == wheel["and_cuda"][name.replace("cudnn", "nccl")]


# What Spack's recipe of CUDA excludes (build_systems/cuda.py, conflicts): the first gcc, up to this CUDA.
SPACK_CONFLICTS = (("11.0", 10), ("11.4.0", 11), ("11.5", 11.2), ("11.8", 12))


@pytest.mark.parametrize(("last", "gcc"), SPACK_CONFLICTS)
def test_no_toolkit_allows_a_compiler_that_spack_excludes(last, gcc):
    """Of a major that is excluded from a minor release on, distributions have the later ones."""
    toolkits = load_catalog().cuda.toolkits
    newest = {each.version: each.max_gcc for each in toolkits if versions.key(each.version) <= versions.key(last)}
    assert newest
    assert {version: found for version, found in newest.items() if found >= int(gcc)} == {}


@pytest.mark.parametrize("wheel", CUDNN_CODE, ids=[f"{w['package'][-4:]}-{w['version']}" for w in CUDNN_CODE])
def test_cudnn_support_matches_the_binaries(wheel):
    major = int(wheel["package"][-2:])
    support = load_catalog().cudnn.support
    for capability in CAPABILITIES:
        held = max(
            (
                n
                for sm, n in wheel["cubins"].items()
                if sm.split(".")[0] == capability.split(".")[0] and float(sm) <= float(capability)
            ),
            default=0,
        )
        # From 9.11 some sub-libraries keep code for old GPUs and others do not: half of the cubins is no support.
        whole = held > 0 and (versions.key(wheel["version"]) < (9,) or held >= 0.8 * wheel["cubins"]["7.5"])
        gpu = Gpu("", "", capability, "", "either")
        assert covers(support, wheel["version"], major, gpu) == whole, capability


@pytest.mark.parametrize("wheel", CODE["nccl"], ids=[f"{w['package'][-4:]}-{w['version']}" for w in CODE["nccl"]])
def test_nccl_support_matches_the_binaries(wheel):
    support = load_catalog().nccl.support
    for capability in CAPABILITIES:
        runs = any(
            sm.split(".")[0] == capability.split(".")[0] and float(sm) <= float(capability) for sm in wheel["sm"]
        )
        if wheel["package"].endswith("cu11") and capability == "9.0":
            runs = "8.0" in wheel["ptx"]  # Hopper came after these builds; the driver compiles their PTX
        gpu = Gpu("", "", capability, "", "either")
        assert covers(support, wheel["version"], int(wheel["package"][-2:]), gpu) == runs, capability


@pytest.mark.parametrize(
    ("device", "name", "capability", "modules"),
    [
        ("2335", "NVIDIA H200", "9.0", "either"),
        ("13f2", "Tesla M60", "5.2", "proprietary"),
        ("2342", "NVIDIA GH200 120GB", "9.0", "open"),
        ("2901", "NVIDIA B200", "10.0", "open"),
        ("1eb8", "Tesla T4", "7.5", "either"),
    ],
)
def test_products(device, name, capability, modules):
    product = load_catalog().products[device]
    assert (product.name, product.compute_capability, product.kernel_modules) == (name, capability, modules)


def test_gpu_thresholds_are_of_the_product_with_their_id():
    known = load_catalog()
    for model in known.gpu_thresholds.models:
        for device in model.devices:
            assert model.name.split()[0] in known.products[device].name
            assert ("SXM" in model.name) <= ("PCIe" not in known.products[device].name)


def test_products_that_exist_on_arm_alone():
    """What Grace, Jetson and RTX Spark are made of; boards with the same chips for x86 are none of them."""
    products = load_catalog().products.values()
    names = {product.name for product in products if product.arm_only}
    for part in ("GH200", "GB200", "GB300", "GB10", "Thor", "N1X"):
        found = {product.name for product in products if re.search(rf"\b{part}\b", product.name)}
        assert found, part
        assert found <= names
    assert not any(part in name for name in names for part in ("H100", "NVIDIA H200", "NVIDIA B", "GeForce", "RTX PRO"))


def test_what_has_the_drivers_version_is_held_with_it():
    """As Debian 12's apt installs the driver; on the firmware nvidia-kernel-dkms depends in exactly its version."""
    text = (FIXTURES.parent / "apt_transaction/simulate-driver.txt").read_text()
    names = set(re.findall(r"^Inst (\S+) \(535\.309\.01-0\+deb12u1 ", text, re.M))
    parts = load_catalog().packages.driver_parts
    assert {"libcuda1", "nvidia-kernel-dkms"} < names
    assert {name for name in names if not any(re.fullmatch(part, name) for part in parts)} == {"firmware-nvidia-gsp"}
