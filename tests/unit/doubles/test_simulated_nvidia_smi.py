"""Compare the simulated nvidia-smi byte for byte with captured output of the genuine one on four Tesla M60."""

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi as nvidia_smi_csv
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi_log, topology
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles.nvidia_repository.contents import product_table
from tests.doubles.simulated_driver import NVIDIA_SMI, READ_BY_NVIDIA_SMI, elements, nvidia_smi
from tests.unit import published

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "tests/fixtures/nvidia-smi"
M60_ADDRESSES = ["0000:05:00.0", "0000:06:00.0", "0000:85:00.0", "0000:86:00.0"]
BUSY = {"util": 87, "power": 121.43, "temp": 71, "pstate": 0}
# The transcript stops after the first lines of the list of properties.
CUT_SHORT = "nvidia-smi --help-query-gpu"
# What nothing asks for.
NOT_SIMULATED = ("nvidia-smi dmon -c 1", "nvidia-smi pmon -c 1", "nvidia-smi topo -p2p r")
LABEL = "simulated: no driver and no GPU are behind these values"


@dataclass(frozen=True)
class Run:
    """One command of a transcript: the output and exit status of the genuine program."""

    transcript: str
    command: str
    output: str
    code: int


def read_transcript(name: str) -> list[Run]:
    runs = []
    for block in re.split(r"(?m)^\$ ", (FIXTURES / name).read_text())[1:]:
        command, _, rest = block.partition("\n")
        output, found, code = rest.partition("[rc=")
        if found and command.strip() != CUT_SHORT:
            runs.append(Run(name, command.strip(), output, int(code.split("]")[0])))
    return runs


def read_errors() -> list[Run]:
    """Read the transcript of errors, which has the status first and "out: " before standard output."""
    name, runs = "nvidia-smi-550-errors.txt", []
    for block in re.split(r"(?m)^\$ ", (FIXTURES / name).read_text())[1:]:
        command, status, *lines = block.splitlines()
        if command.startswith("nvidia-smi"):
            output = "".join(line.removeprefix("out: ").removeprefix("out:") + "\n" for line in lines)
            runs.append(Run(name, command, output, int(status.removeprefix("[rc=").removesuffix("]"))))
    return runs


RUNS = [*read_transcript("nvidia-smi-535.261.03.txt"), *read_transcript("nvidia-smi-550.163.01.txt"), *read_errors()]


class Host:
    """A root directory with PCI devices, the product table and a state file."""

    def __init__(self, root: Path, driver: str = "550.163.01", cuda: str = "12.4") -> None:
        self.root = root
        self.write("usr/share/gpuhost-simulated/nvidia-smi.json", product_table(driver, cuda))

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def add_gpu(self, address: str, device: str, pci_class: str = "0x030200") -> None:
        for name, text in {
            "vendor": "0x10de",
            "device": f"0x{device}",
            "class": pci_class,
            "numa_node": "0",
            "local_cpulist": "0-7",
            "subsystem_vendor": "0x10de",
            "subsystem_device": "0x115e",
        }.items():
            self.write(f"sys/bus/pci/devices/{address}/{name}", text + "\n")

    def state(self, **state: object) -> None:
        self.write("etc/gpuhost-simulated/nvidia-smi.json", json.dumps(state))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it and return what the genuine program would print: without the lines that say that it is simulated."""
        result = self.labelled(*arguments)
        assert not self.not_answered(), self.not_answered()
        result.stdout = re.sub(rf"(?m)^(?:# |\t<!-- )?{LABEL}(?: -->)?\n", "", result.stdout)
        result.stderr = result.stderr.replace(f"nvidia-smi ({LABEL})\n", "")
        return result

    def not_answered(self) -> str:
        """Return the questions that no published output answers, which were refused and noted."""
        path = self.root / "run/gpuhost-simulated/not-answered"
        return path.read_text() if path.exists() else ""

    def labelled(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*nvidia_smi(), *arguments],
            capture_output=True,
            text=True,
            env={"GPUHOST_SIMULATED_ROOT": str(self.root), "LC_ALL": "C.UTF-8"},
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def m60_host(host: Host) -> Host:
    for address in M60_ADDRESSES:
        host.add_gpu(address, "13f2", "0x030000")
    host.state(devices=m60_values())
    return host


def m60_values() -> dict[str, dict[str, Any]]:
    """Return the state of the transcripts' four GPUs."""
    words: dict[str, dict[str, Any]] = {
        str(i): elements(uuid=f"GPU-00000000-0000-4000-8000-{i:012d}") for i in range(4)
    }
    words["1"].update(BUSY)
    words["1"]["set"]["fb_memory_usage/used"] = "6144 MiB"
    return words


def without_date(text: str) -> str:
    return re.sub(r"(?m)^[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}$", "DATE", text)


def test_transcripts_are_read_completely() -> None:
    assert [sum(run.transcript == name for run in RUNS) for name in sorted({run.transcript for run in RUNS})] == [
        10,
        11,
        10,
    ]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.transcript[11:14]}-{run.command}")
def test_output_equals_that_of_the_genuine_program(tmp_path: Path, run: Run) -> None:
    version = run.transcript.removeprefix("nvidia-smi-").removesuffix(".txt")
    host = Host(tmp_path, "550.163.01" if version == "550-errors" else version)
    for address in M60_ADDRESSES:
        host.add_gpu(address, "13f2", "0x030000")
    host.state(devices=m60_values())
    if run.command in NOT_SIMULATED:
        assert (host.labelled(*run.command.split()[1:]).returncode, run.command[11:] in host.not_answered()) == (
            255,
            True,
        )
        return
    result = host.run(*run.command.split()[1:])
    assert (without_date(result.stdout), result.returncode) == (without_date(run.output), run.code)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("", True),
        ("topo -m", True),
        ("--version", True),
        ("--help-query-gpu", True),
        ("--help-query-compute-apps", True),
        ("--help", True),
        ("-q -x", True),
        ("-L", False),
        ("nvlink -s", False),
        ("--query-gpu=index --format=csv", False),
        ("--query-gpu=index --format=csv,noheader", False),
        ("--query-compute-apps=pid --format=csv", False),
        ("--bogus", False),
        ("-pm 1", False),
        ("-q", True),
    ],
)
def test_every_mode_says_that_it_is_simulated(m60_host: Host, command: str, shown: bool) -> None:
    """On standard error always; in the output too unless programs read it line by line."""
    result = m60_host.labelled(*command.split())
    assert result.stderr == f"nvidia-smi ({LABEL})\n"
    assert ("simulated" in result.stdout) == shown


@pytest.mark.parametrize("state", ["not_loaded", "library_missing", "mismatch", "no_devices"])
def test_every_state_says_that_it_is_simulated(m60_host: Host, state: str) -> None:
    m60_host.state(state=state)
    assert LABEL in m60_host.labelled("--query-gpu=index", "--format=csv").stderr


def test_labels_do_not_disturb_our_parsers(m60_host: Host) -> None:
    assert len(nvidia_smi_log.parse(m60_host.labelled("-q", "-x").stdout)) == 4
    assert len(topology.parse(m60_host.labelled("topo", "-m").stdout)) == 12
    assert nvidia_smi_log.parse_nvlinks(m60_host.labelled("nvlink", "-s").stdout) == {}
    rows = m60_host.labelled("--query-gpu=" + ",".join(nvidia_smi_csv.FIELDS), "--format=csv,noheader,nounits").stdout
    assert len(nvidia_smi_csv.parse(rows)[0]) == 4


@pytest.mark.parametrize(
    "arguments",
    [[], ["-L"], ["--bogus"], ["--query-gpu=index", "--format=csv"], ["-q", "-x"]],
    ids=lambda arguments: " ".join(arguments) or "table",
)
@pytest.mark.parametrize(
    ("state", "code", "text"),
    [
        ("not_loaded", 9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("library_missing", 12, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system."),
        ("mismatch", 18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.163\n"),
    ],
)
def test_every_option_fails_in_a_failed_state(
    m60_host: Host, arguments: list[str], state: str, code: int, text: str
) -> None:
    m60_host.state(state=state)
    result = m60_host.run(*arguments)
    assert result.returncode == code
    assert result.stdout.startswith(text)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 6, "No devices were found\n"),
        (["-L"], 0, "No devices found.\n"),
        (["--query-gpu=index", "--format=csv"], 6, "No devices were found\n"),
    ],
    ids=["table", "list", "query"],
)
def test_no_devices_are_reported_as_captured(m60_host: Host, arguments: list[str], code: int, text: str) -> None:
    m60_host.state(state="no_devices")
    result = m60_host.run(*arguments)
    assert (result.returncode, result.stdout) == (code, text)
    lines = (FIXTURES / "nvidia-smi-550-errors.txt").read_text().split("$ count=0\n")[1].splitlines()
    assert text.strip() in lines
    assert f"[rc={code}]" in lines


def test_lost_gpu_is_reported_and_omitted(m60_host: Host) -> None:
    m60_host.state(devices={**m60_values(), "1": {"failure": {"mode": "fallen_off_bus"}}})
    result = m60_host.run("--query-gpu=index", "--format=csv,noheader")
    assert result.stdout.splitlines() == [
        "Unable to determine the device handle for GPU1: 0000:06:00.0: Unknown Error",
        "0",
        "2",
        "3",
    ]
    assert result.returncode == 255


# First rows of tables in public bug reports and documentation: driver, CUDA version, PCI id, address, the values that
# the table shows, its head, its three lines.
PUBLISHED: dict[str, tuple[Any, ...]] = {
    # An H100 by a guide for RHEL 9 (banner), and the lines that the branches before have.
    "610-H100": (
        ("610.43.02", "13.3", "2330", "0000:53:00.0"),
        {"power": 68.57, **elements(persistence_mode="Enabled")},
        "| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 13.3     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:53:00.0 Off |                    0 |",
        "| N/A   29C    P0             68W /  700W |       0MiB /  81559MiB |      0%      Default |",
        "|                                         |                        |             Disabled |",
    ),
    "570-H200": (
        ("570.124.06", "12.8", "2335", "0000:29:00.0"),
        {"temp": 33, "power": 79.2, **elements(persistence_mode="Enabled")},
        "| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |",
        "|-----------------------------------------+------------------------+----------------------+",
        "|   0  NVIDIA H200                    On  |   00000000:29:00.0 Off |                    0 |",
        "| N/A   33C    P0             79W /  700W |       1MiB / 143771MiB |      0%      Default |",
        "|                                         |                        |             Disabled |",
    ),
    "580-T4": (
        ("580.82.07", "13.0", "1eb8", "0000:00:04.0"),
        {"temp": 39, "power": 10.9, "pstate": 8, **elements(fb_memory_usage__used="3 MiB")},
        "| NVIDIA-SMI 580.82.07              Driver Version: 580.82.07      CUDA Version: 13.0     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "|   0  Tesla T4                       Off |   00000000:00:04.0 Off |                    0 |",
        "| N/A   39C    P8             10W /   70W |       3MiB /  15360MiB |      0%      Default |",
        "|                                         |                        |                  N/A |",
    ),
    "535-A100": (
        ("535.54.03", "12.2", "20b2", "0000:89:00.0"),
        {
            "temp": 65,
            "power": 334.4,
            "util": 100,
            **elements(persistence_mode="Enabled", fb_memory_usage__used="59119 MiB"),
        },
        "| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |",
        "|-----------------------------------------+----------------------+----------------------+",
        "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:89:00.0 Off |                    0 |",
        "| N/A   65C    P0             334W / 400W |  59119MiB / 81920MiB |    100%      Default |",
        "|                                         |                      |             Disabled |",
    ),
    "580-B200": (
        ("580.95.05", "13.0", "2901", "0000:1b:00.0"),
        {"temp": 30, "power": 141.3, **elements(persistence_mode="Enabled")},
        "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "|   0  NVIDIA B200                    On  |   00000000:1B:00.0 Off |                    0 |",
        "| N/A   30C    P0            141W / 1000W |       0MiB / 183359MiB |      0%      Default |",
        "|                                         |                        |             Disabled |",
    ),
}


@pytest.mark.parametrize("row", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_table_equals_published_ones(tmp_path: Path, row: tuple[Any, ...]) -> None:
    (driver, cuda, device, address), values, version, rule, *lines = row
    host = Host(tmp_path, driver, cuda)
    host.add_gpu(address, device)
    host.state(devices={"0": values})
    table = host.run().stdout.splitlines()
    assert [table[2], table[3], *table[8:11]] == [version, rule, *lines]
    assert {len(line) for line in table[1:] if line.strip()} == {len(version)}


def test_process_line_has_the_width_of_the_table(m60_host: Host) -> None:
    m60_host.state(processes=[{"gpu": 1, "pid": 4242, "name": "/opt/gpuhost/bin/python" * 3, "used_mib": 6144}])
    table = m60_host.run().stdout.splitlines()
    assert {len(line) for line in table[1:] if line.strip()} == {91}
    assert any("4242" in line and "6144MiB" in line for line in table)
    apps = m60_host.run("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert apps.stdout == "4242, 6144\n"


def test_xml_has_the_values_of_the_query(m60_host: Host) -> None:
    tree = ElementTree.fromstring(m60_host.run("-q", "-x").stdout)
    rows = m60_host.run("--query-gpu=name,uuid,memory.used,utilization.gpu,power.draw", "--format=csv,noheader").stdout
    assert tree.findtext("driver_version") == "550.163.01"
    found = [
        ", ".join(
            gpu.findtext(path, "")
            for path in (
                "product_name",
                "uuid",
                "fb_memory_usage/used",
                "utilization/gpu_util",
                "gpu_power_readings/power_draw",
            )
        )
        for gpu in tree.iter("gpu")
    ]
    assert found == rows.splitlines()
    assert [gpu.get("id") for gpu in tree.iter("gpu")] == ["0000" + address for address in M60_ADDRESSES]


def test_products_agree_with_the_catalog() -> None:
    products = json.loads(product_table("1", "1"))["products"]
    known = {
        f"10de:{p.device.lower().removeprefix('10de:')}": (p.name, p.compute_capability)
        for p in load_catalog().products.values()
    }
    assert {key: (value["document"]["product_name"], value["compute_cap"]) for key, value in products.items()} == {
        key: known[key] for key in products
    }


def test_unsupported_output_is_refused_as_simulated(m60_host: Host) -> None:
    result = m60_host.labelled("-q")
    assert result.returncode == 255
    assert "simulated" in result.stdout
    assert m60_host.not_answered() == result.stdout


def test_persistence_mode_is_on_while_the_daemon_runs(m60_host: Host) -> None:
    query = ["--query-gpu=persistence_mode", "--format=csv,noheader", "-i", "0"]
    assert m60_host.run(*query).stdout == "Disabled\n"
    m60_host.write("run/nvidia-persistenced/nvidia-persistenced.pid", "1\n")
    assert m60_host.run(*query).stdout == "Enabled\n"


# Products whose document is one of tests/fixtures/nvidia-smi/published.yml, printed by the driver it was published
# with. The words undo what gpus.yml changes: a slot with 8 lanes, and the virtual machine of most.
THROUGH = {"gpu_virtualization_mode__virtualization_mode": "Pass-Through"}
WIDTH = "pci__pci_gpu_link_info__link_widths__current_link_width"
DOCUMENTS = {
    "h100": ("2330", THROUGH), "h200": ("2335", THROUGH), "a100": ("20b0", THROUGH), "b200": ("2901", THROUGH),
    "t4": ("1eb8", {**THROUGH, WIDTH: "8x"}), "rtx-3090": ("2204", {}), "rtx-5090": ("2b85", {WIDTH: "8x"}),
    "v100": ("1db1", {"pci__pci_gpu_link_info__pcie_gen__max_host_link_gen": "Unknown Error"}),
}  # fmt: skip
# What names a machine is not published; persistence mode is the simulated daemon's.
OF_THAT_MACHINE = re.compile(r"/(serial|uuid|minor_number|pci_sub_system_id|persistence_mode|mig_devices|processes)$")
# Said twice by 570, without a value, and not simulated.
DEPRECATED = re.compile(r"/gpu_reset_status/.*deprecated")


def leaves(element: ElementTree.Element, above: str = "") -> list[tuple[str, str]]:
    found = []
    for child in element:
        path = f"{above}/{child.tag}"
        found += leaves(child, path) if len(child) else [(path, (child.text or "").strip())]
    return [(path, value) for path, value in found if not OF_THAT_MACHINE.search(path)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_equals_the_published_one(tmp_path: Path, name: str) -> None:
    device, values = DOCUMENTS[name]
    text = published.document(name)
    genuine = ElementTree.fromstring(text)
    (theirs, *_) = genuine.findall("gpu")
    host = Host(tmp_path, genuine.findtext("driver_version", ""), genuine.findtext("cuda_version", ""))
    host.add_gpu(theirs.get("id", "").lower()[4:], device)
    host.state(devices={"0": elements(**values)})
    printed = host.run("-q", "-x").stdout
    (ours,) = ElementTree.fromstring(printed).findall("gpu")
    assert (printed.splitlines()[:3], ours.get("id")) == (text.splitlines()[:3], theirs.get("id"))
    assert leaves(ours) == [row for row in leaves(theirs) if not DEPRECATED.search(" ".join(row))]


@pytest.mark.parametrize(
    ("driver", "elements_of_branch"),
    [
        ("535.261.03", {"gpu_reset_status/reset_required", "gpu_power_readings/power_draw", "sram_uncorrectable"}),
        ("570.148.08", {"gpu_recovery_action", "gpu_power_readings/instant_power_draw", "sram_uncorrectable_secded"}),
        ("615.71.09", {"clocks_event_reasons_counters/clocks_event_reasons_counters_sync_boost"}),
    ],
)
def test_document_has_the_elements_of_the_drivers_branch(
    tmp_path: Path, driver: str, elements_of_branch: set[str]
) -> None:
    """As the captures do that NVIDIA/k8s-test-infra keeps, and influxdata/telegraf's with 535.54.03."""
    host = Host(tmp_path, driver)
    host.add_gpu("0000:05:00.0", "20b0")
    root = ElementTree.fromstring(host.run("-q", "-x").stdout)
    found = {path for path, _ in leaves(root)}
    assert {name for name in elements_of_branch if not any(path.endswith("/" + name) for path in found)} == set()
    assert ("/kmd_version" in found) == (driver >= "615")


def test_nvlink_status_of_gpus_with_and_without_links(host: Host) -> None:
    for number, device in enumerate(["1db1", "1eb8", "1db1"]):
        host.add_gpu(f"0000:{number + 5:02x}:00.0", device)
    down: dict[str, object] = {"0": [3, 5], "2": "all"}
    host.state(
        devices={name: {"nvlink": {"down": links}, **elements(uuid=f"GPU-{name}")} for name, links in down.items()}
    )
    # From a Tesla V100-SXM2-32GB (Azure/azhpc-diagnostics issue 73), and from a newer driver with all links down
    # (leptonai/gpud issue 1085).
    assert host.run("nvlink", "-s").stdout == (
        "GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-0)\n"
        "\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 GB/s\n"
        "\t Link 3: <inactive>\n\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\n"
        "GPU 2: Tesla V100-SXM2-16GB (UUID: GPU-2)\n"
        "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    )


def test_a_gpu_in_mig_mode_lists_its_instances_and_no_links(host: Host) -> None:
    for address in ("0000:05:00.0", "0000:06:00.0"):
        host.add_gpu(address, "20b0")
    mig = elements(uuid="GPU-0", mig_mode__current_mig="Enabled")
    host.state(devices={"0": {"mig_devices": ["1g.5gb", "1g.10gb"], **mig}, "1": elements(uuid="GPU-1")})
    # The lines of instances are those of hashicorp/nomad-device-nvidia#53, with A100.
    assert re.sub(r"MIG-[-0-9a-f]{36}", "MIG-UUID", host.run("-L").stdout) == (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\n"
        "  MIG 1g.5gb      Device  0: (UUID: MIG-UUID)\n"
        "  MIG 1g.10gb     Device  1: (UUID: MIG-UUID)\n"
        "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n"
    )
    for option in ("-s", "-e"):
        printed = host.run("nvlink", option).stdout.splitlines()
        assert printed[:3] == [
            "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)",
            "Nvlink queries are not supported for Devices in MIG mode",
            "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)",
        ]
    links = nvidia_smi_log.parse_nvlinks(host.run("nvlink", "-s").stdout)
    assert (links[0].state, links[1].state) == ("mig", "links")
    used = host.run("--query-gpu=utilization.gpu,mig.mode.current", "--format=csv,noheader").stdout
    assert used == "[N/A], Enabled\n0 %, Disabled\n"
    assert host.labelled().returncode == 255, "its table is not published with these values"
    assert "the table of a GPU in MIG mode" in host.not_answered()


def test_counters_of_links(host: Host) -> None:
    for number, device in enumerate(["1db1", "1eb8", "2901"]):
        host.add_gpu(f"0000:{number + 5:02x}:00.0", device)
    first = {"down": [0, 1, 2, 4, 5], "errors": {"3": {"Replay Errors": 211}}}
    host.state(
        devices={
            "0": {"nvlink": first, **elements(uuid="GPU-0")},
            "2": {"nvlink": {"down": list(range(1, 18))}, **elements(uuid="GPU-2")},
        }
    )
    output = host.run("nvlink", "-e").stdout
    # As ScuffedSquared/NVLink-Error-Testing-Notes has it, of V100.
    assert output.startswith(
        "GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-0)\n\t Link 3: Replay Errors: 211\n\t Link 3: Recovery Errors: 0\n"
        "\t Link 3: CRC Errors: 0\n\nGPU 2: NVIDIA B200 (UUID: GPU-2)\n\t Link 0: Tx packets: 0\n"
    )
    # The names are those of B300 (tests/fixtures/nvidia-smi); newer drivers print more of them.
    names = re.findall(r"Link 0: (.*): \S+$", (FIXTURES / "nvlink-e-b300.txt").read_text(), re.M)
    printed = re.findall(r"Link 0: (.*): \S+$", output, re.M)
    assert [name for name in printed if name in names] == [name for name in names if name in printed]
    assert {name for name in set(names) - set(printed) if not name.startswith(("PLR", "Raw"))} == set()


def test_ecc_errors_are_in_every_output_format(host: Host) -> None:
    host.add_gpu("0000:05:00.0", "2330")
    host.state(
        devices={
            "0": elements(
                ecc_errors__volatile__dram_uncorrectable="3", ecc_errors__volatile__sram_uncorrectable_parity="1"
            )
        }
    )
    query = ["--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
    assert host.run(*query).stdout == "4\n"
    assert host.run().stdout.splitlines()[8].endswith("|                    4 |")
    volatile = ElementTree.fromstring(host.run("-q", "-x").stdout).find("gpu/ecc_errors/volatile")
    assert volatile is not None
    assert [volatile.findtext(name) for name in ("dram_uncorrectable", "sram_uncorrectable_parity")] == ["3", "1"]


# Each command and what people published of it: where it changes something, where it does not, and where it cannot.
SAID = [
    ("-pm 1", "2335", 0, "Enabled persistence mode for GPU 00000000:05:00.0.\nAll done.\n"),
    ("-pm 0", "2335", 0, "Persistence mode is already Disabled for GPU 00000000:05:00.0.\nAll done.\n"),
    ("--compute-mode=3", "2335", 0, "Set compute mode to EXCLUSIVE_PROCESS for GPU 00000000:05:00.0.\nAll done.\n"),
    ("-c 0", "2335", 0, "Compute mode is already set to DEFAULT for GPU 00000000:05:00.0.\nAll done.\n"),
    ("-e 0", "2335", 0, "Disabled ECC support for GPU 00000000:05:00.0.\nAll done.\nReboot required.\n"),
    ("-pl 500", "2335", 0, "Power limit for GPU 00000000:05:00.0 was set to 500.00 W from 700.00 W.\nAll done.\n"),
    (
        "-pl 150", "1eb8", 2,
        "Provided power limit 150.00 W is not a valid power limit which should be between 60.00 W and 70.00 W for GPU "
        "00000000:05:00.0\nTerminating early due to previous errors.\n",
    ),
    ("-r", "2335", 0, "GPU 00000000:05:00.0 was successfully reset.\nAll done.\n"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "device", "code", "text"), SAID, ids=[row[0] for row in SAID])
def test_command_says_what_the_genuine_one_says(host: Host, command: str, device: str, code: int, text: str) -> None:
    host.add_gpu("0000:05:00.0", device)
    result = host.run(*command.split())
    assert (result.returncode, result.stdout) == (code, text)


def test_command_changes_the_document_until_a_reboot(host: Host) -> None:
    host.add_gpu("0000:05:00.0", "2335")
    asked = [
        "--query-gpu=persistence_mode,compute_mode,power.limit,ecc.mode.pending,ecc.mode.current",
        "--format=csv,noheader",
    ]
    for command in ("-pm 1", "-c 3", "-pl 500", "-e 0"):
        assert host.run(*command.split()).returncode == 0
    assert host.run(*asked).stdout == "Enabled, Exclusive_Process, 500.00 W, Disabled, Enabled\n"
    assert host.run("-r").returncode == 0
    assert host.run(*asked).stdout.endswith(", Disabled, Disabled\n")
    (host.root / "run/gpuhost-simulated/nvidia-smi.json").unlink()
    assert host.run(*asked).stdout == "Disabled, Default, 700.00 W, Enabled, Enabled\n"


def test_reset_ends_what_waits_for_it_unless_the_gpu_is_in_use(tmp_path: Path) -> None:
    host = Host(tmp_path, "580.105.08")
    host.add_gpu("0000:05:00.0", "2330")
    waits = elements(gpu_recovery_action="GPU Reset", remapped_rows__remapped_row_pending="Yes")
    host.state(devices={"0": waits}, processes=[{"gpu": 0, "pid": 42, "name": "python3", "used_mib": 1}])
    refused = host.run("--gpu-reset", "-i", "0")
    assert refused.returncode == 255
    assert refused.stdout.startswith(
        "The following GPUs could not be reset:\n  GPU 00000000:05:00.0: In use by another client\n\n"
        "1 device is currently being used by one or more other processes"
    )
    host.state(devices={"0": waits})
    assert host.run("--gpu-reset", "-i", "0").returncode == 0
    document = host.run("-q", "-x").stdout
    assert "<gpu_recovery_action>None<" in document
    assert "<remapped_row_pending>No<" in document


def test_commands_are_refused_to_users(host: Host) -> None:
    """With the message that Google's images showed to users (persistence mode)."""
    host.add_gpu("0000:05:00.0", "2335")
    result = subprocess.run(
        ["unshare", "--user", *nvidia_smi(), "-pm", "1"],
        capture_output=True, text=True, env={**os.environ, "GPUHOST_SIMULATED_ROOT": str(host.root)},
    )  # fmt: skip
    assert result.returncode == 4, result
    assert result.stdout.startswith(
        "Unable to set persistence mode for GPU 00000000:05:00.0: Insufficient Permissions\n"
    )


@pytest.mark.parametrize(
    "state",
    [
        {"devices": {"0": {"persistence": False}}},
        {"all": {"failure": {"mode": "lost"}}},
        {"devices": {"0": {"set": {"fb_memory_usage/usde": "1 MiB"}}}},
    ],
    ids=["word", "mode", "element"],
)
def test_unknown_words_of_the_state_are_refused(host: Host, state: dict[str, Any]) -> None:
    host.add_gpu("0000:05:00.0", "2335")
    host.state(**state)
    assert host.labelled("-L").returncode == 255
    assert host.not_answered()


def test_answers_can_be_slow(host: Host) -> None:
    host.add_gpu("0000:05:00.0", "2335")
    host.state(delay=0.5)
    start = time.monotonic()
    assert host.run("-L").returncode == 0
    assert time.monotonic() - start >= 0.5


def test_it_reads_what_answers_are_kept_by() -> None:
    """Tests ask it once for each state of these files and of the PCI devices."""
    paths = set(re.findall(r'^[A-Z_]+ = ROOT \+ "/(.+)"$', NVIDIA_SMI.read_text(), re.MULTILINE))
    assert paths == {*READ_BY_NVIDIA_SMI, "run/gpuhost-simulated/not-answered", "sys/bus/pci/devices"}
