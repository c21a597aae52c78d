"""GPUs: identified by PCI id, or by what the loaded driver reports; counted against what is expected."""

from __future__ import annotations

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.findings import Findings
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import GuestSetting
from ansible_collections.gpuhost.stack.plugins.module_utils.model.plan import Gpu
from ansible_collections.gpuhost.stack.plugins.module_utils.packages.apt import apt_words
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.plans import resolve
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import Host, HostGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.gpus import (
    check_gpu_count,
    identify_gpus,
    leave_alone,
)

from tests.unit.plugin_utils.resolver.plain_catalog import products, raw
from tests.unit.plugin_utils.resolver.resolver_cases import GPUS, codes, plan, plan_untried, texts

ARCHITECTURES = {c: a["name"] for a in raw("gpu")["architectures"] for c in a["compute_capabilities"]}
ACCEPTS = {name: rule["accepts"] for rule in raw("gpu")["kernel_modules"] for name in rule["architectures"]}

T4 = HostGpu(GPUS["T4"][0])


def identify(*gpus: HostGpu) -> tuple[tuple[Gpu, ...], Findings]:
    findings = Findings()
    return identify_gpus(load_catalog(), Host("debian-12", "x86_64", gpus=gpus), findings), findings


def test_products_are_those_of_the_table():
    found, findings = identify(*(HostGpu(f"10de:{device}") for device in products()))
    assert [(g.name, g.compute_capability, g.architecture, g.kernel_modules, g.last_driver_branch) for g in found] == [
        tuple(row[k] for k in ("name", "compute_capability", "architecture", "kernel_modules", "last_driver_branch"))
        for row in products().values()
    ]
    assert findings.problems == findings.warnings == []


@pytest.mark.parametrize("capability", ARCHITECTURES)
def test_a_gpu_that_only_the_loaded_driver_knows(capability):
    (gpu,), findings = identify(HostGpu("10de:ffff", "0000:01:00.0", "NVIDIA X1", capability))
    architecture = ARCHITECTURES[capability]
    assert gpu == Gpu("10de:ffff", "NVIDIA X1", capability, architecture, ACCEPTS[architecture])
    assert [w.code for w in findings.warnings] == ["unknown-gpu"]
    assert f"calls it NVIDIA X1 of compute capability {capability}" in findings.warnings[0].message
    assert findings.problems == []


def test_a_compute_capability_alone_describes_a_gpu():
    """As `script/plan --gpu cc:9.0` asks: there is no host that could have another driver."""
    (gpu,), findings = identify(HostGpu("10de:ffff", compute_capability="9.0"))
    assert (gpu.name, gpu.architecture) == ("GPU of compute capability 9.0", "Hopper")
    assert findings.warnings == findings.problems == []


@pytest.mark.parametrize(
    "gpu",
    [
        HostGpu("10de:ffff", "0000:01:00.0"),
        HostGpu("10de:ffff", "0000:01:00.0", "NVIDIA X1", "99.0"),
        HostGpu("1002:2335", "0000:01:00.0"),  # another vendor's device with the number of an H200
    ],
    ids=["no driver", "new architecture", "vendor"],
)
def test_an_unknown_gpu_is_a_problem(gpu, snapshot):
    found, findings = identify(HostGpu(GPUS["H200"][0]), gpu)
    assert [g.name for g in found] == ["NVIDIA H200"]
    (problem,) = findings.problems
    assert problem.code == "unknown-gpu"
    assert problem.message == snapshot


def test_a_gpu_of_which_only_the_chip_is_public(snapshot):
    """Debian's pci.ids names 10de:3340; its compute capability only a loaded driver tells."""
    found, findings = identify(HostGpu("10de:3340", "0000:01:00.0"))
    assert found == ()
    (problem,) = findings.problems
    assert problem.code == "unknown-gpu"
    assert problem.message == snapshot
    (gpu,), findings = identify(HostGpu("10de:3340", "0000:01:00.0", "NVIDIA X1", "10.0"))
    assert (gpu.name, findings.problems) == ("NVIDIA X1", [])


@pytest.mark.parametrize(
    ("expected", "count", "found"),
    [
        ("auto", 0, ["no-gpu"]),
        ("auto", 1, []),
        ("0", 0, []),
        ("0", 2, []),
        ("2", 0, ["no-gpu"]),
        ("2", 1, ["no-gpu"]),
        ("2", 2, []),
        ("2", 3, ["surplus-gpu"]),
    ],
)
def test_expected_gpus(expected, count, found):
    findings = Findings()
    devices = (HostGpu(GPUS["H200"][0]),) * count
    gpus, _ = identify(*devices)
    check_gpu_count(asking(expect_gpus=expected), Host("debian-12", "x86_64", gpus=devices), gpus, apt_words, findings)
    assert [problem.code for problem in findings.problems] == found


@pytest.mark.parametrize(("expected", "has_problem"), [("auto", True), ("2", True), ("0", False)])
def test_a_described_host_without_gpus_lacks_the_option(expected, has_problem):
    described = Host("debian-12", "x86_64", described=True)
    problems = resolve(load_catalog(), asking(expect_gpus=expected), described).problems
    assert [problem.code for problem in problems] == ["no-gpu"] * has_problem
    for problem in problems:
        assert "--gpu" in problem.message
        assert "--gpu" in problem.remedy
        assert "PCI" not in problem.message


def test_a_gpu_that_is_not_in_the_catalog_is_not_missing():
    assert codes(plan("debian-12", "10de:ffff")) == ["unknown-gpu"]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ([], "auto"),
        ([], "2"),
        (["T4"], "2"),
    ],
    ids=["none", "none of two", "one of two"],
)
def test_what_to_do_about_gpus_that_are_missing(gpus, expected, snapshot):
    made = plan_untried("debian-12", *gpus, expect_gpus=expected)
    assert codes(made) == ["no-gpu"]
    assert texts(made["problems"]) == snapshot


def test_a_gpu_that_the_catalog_does_not_know_is_not_usable(snapshot):
    made = plan_untried("debian-12", "T4", "10de:ffff", expect_gpus="2")
    assert codes(made) == ["unknown-gpu", "no-gpu"]
    assert texts(made["problems"]) == snapshot


@pytest.mark.parametrize(
    ("gpu", "code"),
    [
        (HostGpu("10de:0a65", "0000:01:00.0"), "gpu-dropped-by-driver"),
        (HostGpu("1002:0a65", "0000:01:00.0"), "unknown-gpu"),
        (HostGpu("1002:3340"), "unknown-gpu"),
    ],
    ids=["before Fermi", "another vendor's, with the number of an old GPU", "another vendor's, with that of a chip"],
)
def test_devices_that_no_driver_serves(gpu, code, snapshot):
    found, findings = identify(gpu)
    assert found == ()
    (problem,) = findings.problems
    assert problem.code == code
    assert [problem.message, problem.remedy] == snapshot


def test_a_described_host_is_told_which_options_to_add(snapshot):
    (problem,) = resolve(load_catalog(), asking(), Host("debian-12", "x86_64", described=True)).problems
    assert problem.message == snapshot
    counted = resolve(load_catalog(), asking(expect_gpus="2"), Host("debian-12", "x86_64", described=True, gpus=(T4,)))
    assert [p.code for p in counted.problems] == ["no-gpu"]
    assert counted.problems[0].message == snapshot


# GTX 1050 Ti and GT 1030 (6 and 3 multiprocessors), T400, RTX 3090. As in tensorflow/tensorflow issues 43104 and 32569.
@pytest.mark.parametrize(
    ("devices", "request_", "left_out"),
    [
        (["1c82", "2204"], {}, ["1c82"]),
        (["1ff2", "2204"], {}, ["1ff2"]),
        (["1d01", "1c82"], {}, ["1d01"]),
        (["1c82", "1c82"], {}, []),
        (["1c82"], {}, []),
        (["2204", "2204"], {}, []),
        (["1c82", "2204"], {"tensorflow": "none", "pytorch": "auto"}, []),
    ],
    ids=["display GPU", "T400", "smaller of two", "equal", "alone", "large", "without TensorFlow"],
)
def test_small_gpu_beside_a_larger_one_is_left_out_by_tensorflow(devices, request_, left_out, snapshot):
    gpus = (f"10de:{device}" for device in devices)
    made = plan_untried("ubuntu-22.04", *gpus, catalog=load_catalog(), **request_)
    assert [gpu["pci_id"] for gpu in made["gpus"] if gpu.get("left_out_by") == "tensorflow"] == [
        f"10de:{device}" for device in left_out
    ]
    warned = [w["message"] for w in made["warnings"] if w["code"] == "gpu-left-out-by-tensorflow"]
    assert len(warned) == len(left_out)
    assert not warned or warned == snapshot


OTHERS = ["2941", "31a1", "31c2", "31c3", "2b00", "3400"]  # trays of GB200 and GB300, and Thor


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
@pytest.mark.parametrize("device", OTHERS)
def test_a_machine_that_others_set_up_is_refused_by_name(device, architecture):
    """Whatever is asked, and also where it was probed: NVL72 needs IMEX, and a Jetson has a driver of its own."""
    for described in (True, False):
        host = Host("ubuntu-24.04", architecture, gpus=(HostGpu(f"10de:{device}"),) * 2, described=described)
        for request in (asking(), asking(driver="none", cuda="none")):
            made = resolve(load_catalog(), request, host)
            assert [problem.code for problem in made.problems] == ["machine-not-supported"]
            assert made.problems[0].message.startswith(products()[device]["name"])
            assert made.remedies == ()
            assert all(part is None for part in made.components.values())


@pytest.mark.parametrize(("device", "expected"), [("31c2", []), ("31c3", []), ("2941", ["machine-not-supported"])])
def test_one_gb300_is_that_of_a_workstation(device: str, expected: list[str]) -> None:
    made = resolve(load_catalog(), asking(), Host("ubuntu-24.04", "aarch64", gpus=(HostGpu(f"10de:{device}"),)))
    assert [problem.code for problem in made.problems] == expected


ON_ARM_ALONE = sorted({device for device, row in products().items() if row.get("arm_only")} - {*OTHERS})


@pytest.mark.parametrize("device", ON_ARM_ALONE)
def test_a_described_gpu_that_exists_on_arm_alone_is_refused(device):
    described = Host("ubuntu-24.04", "x86_64", gpus=(HostGpu("10de:2330"), HostGpu(f"10de:{device}")), described=True)
    made = resolve(load_catalog(), asking(), described)
    assert [problem.code for problem in made.problems] == ["arm-only-gpu"]
    assert made.problems[0].message.startswith(products()[device]["name"])
    assert "--arch aarch64" in made.problems[0].remedy
    assert made.remedies == ()
    assert all(part is None for part in made.components.values())


def test_which_a_release_without_arm_does_not_serve_either():
    described = Host("ubuntu-20.04", "x86_64", gpus=(HostGpu("10de:2342"),), described=True)
    (problem,) = resolve(load_catalog(), asking(), described).problems
    assert problem.code == "arm-only-gpu"
    assert "--arch" not in problem.remedy
    assert "another distribution release" in problem.remedy


@pytest.mark.parametrize("device", ["2330", "2901", "3182", "2bb1"])
def test_a_described_gpu_that_exists_with_both_is_not(device):
    described = Host("ubuntu-24.04", "x86_64", gpus=(HostGpu(f"10de:{device}"),), described=True)
    assert "arm-only-gpu" not in {problem.code for problem in resolve(load_catalog(), asking(), described).problems}


def test_a_probed_host_has_the_processor_that_it_has():
    probed = Host("ubuntu-24.04", "x86_64", gpus=(HostGpu("10de:2342"),))
    assert resolve(load_catalog(), asking(), probed).ok
    arm = Host("ubuntu-24.04", "aarch64", gpus=(HostGpu("10de:2342"),))
    assert resolve(load_catalog(), asking(), arm).ok


def test_a_name_of_no_gpu_is_said() -> None:
    request = asking(ignore_gpus="0000:09:00.0,10de:1b06")
    host = Host(
        "debian-12", "x86_64", gpus=(HostGpu(GPUS["T4"][0], "0000:01:00.0"), HostGpu("10de:1b06", "0000:02:00.0"))
    )
    (absent, alone) = resolve(load_catalog(), request, leave_alone(host, request)).warnings[:2]
    assert (absent.code, alone.code) == ("ignored-gpu-absent", "gpu-left-alone")
    assert "10de:1b06" not in absent.message


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        (GuestSetting("/etc/driverctl.d/pci-0000:01:00.0", "vfio-pci"), "driverctl unset-override 0000:01:00.0"),
        (GuestSetting("/etc/driverctl.d/pci-0000:09:00.0", "vfio-pci"), "grep -rE"),
        (GuestSetting("/etc/modprobe.d/a.conf", "options vfio-pci ids=8086:10c9", 1), "grep -rE"),
    ],
)
def test_what_gives_the_only_gpu_away_is_named(setting: GuestSetting, remedy: str) -> None:
    gpu = HostGpu(GPUS["T4"][0], "0000:01:00.0", kernel_driver="vfio-pci")
    given = leave_alone(Host("debian-12", "x86_64", gpus=(gpu,), guest_settings=(setting,)), asking())
    (problem,) = resolve(load_catalog(), asking(), given).problems
    assert problem.code == "no-gpu"
    assert remedy in problem.remedy
