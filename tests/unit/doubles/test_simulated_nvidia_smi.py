"""Compare the simulated nvidia-smi byte for byte with captured output of the genuine one on four Tesla M60."""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi as nvidia_smi_csv
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi_log, topology
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.doubles.nvidia_repository.contents import product_table
from tests.doubles.simulated_driver import nvidia_smi
from tests.unit import published

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = ROOT / "tests/fixtures/nvidia-smi"
M60_ADDRESSES = ["0000:05:00.0", "0000:06:00.0", "0000:85:00.0", "0000:86:00.0"]
BUSY = {"utilization": 87, "used_mib": 6144, "power_draw": 121.43, "temperature": 71, "pstate": "P0"}
# The transcript stops after the first lines of the list of properties.
CUT_SHORT = "nvidia-smi --help-query-gpu"
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
        result.stdout = re.sub(rf"(?m)^(?:# |\t<!-- )?{LABEL}(?: -->)?\n", "", result.stdout)
        result.stderr = result.stderr.replace(f"nvidia-smi ({LABEL})\n", "")
        return result

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
    host.state(gpus=m60_values())
    return host


def m60_values() -> dict[str, dict[str, object]]:
    uuids = {str(i): {"uuid": f"GPU-00000000-0000-4000-8000-{i:012d}"} for i in range(4)}
    uuids["1"].update(BUSY)
    return uuids


def without_date(text: str) -> str:
    return re.sub(r"(?m)^[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}$", "DATE", text)


def test_transcripts_are_read_completely() -> None:
    assert [sum(run.transcript == name for run in RUNS) for name in sorted({run.transcript for run in RUNS})] == [
        10,
        11,
        10,
    ]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: f"{run.transcript[11:14]}-{run.command}")
def test_output_equals_that_of_the_genuine_program(host: Host, run: Run) -> None:
    for address in M60_ADDRESSES:
        host.add_gpu(address, "13f2", "0x030000")
    version = run.transcript.removeprefix("nvidia-smi-").removesuffix(".txt")
    host.state(gpus=m60_values(), driver_version="550.163.01" if version == "550-errors" else version)
    result = host.run(*run.command.split()[1:])
    assert (without_date(result.stdout), result.returncode) == (without_date(run.output), run.code)
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("", True),
        ("topo -m", True),
        ("topo -p2p r", True),
        ("--version", True),
        ("--help-query-gpu", True),
        ("--help-query-compute-apps", True),
        ("--help", True),
        ("dmon -c 1", True),
        ("pmon -c 1", True),
        ("-q -x", True),
        ("-L", False),
        ("nvlink -s", False),
        ("--query-gpu=index --format=csv", False),
        ("--query-gpu=index --format=csv,noheader", False),
        ("--query-compute-apps=pid --format=csv", False),
        ("--bogus", False),
        ("-q", True),
    ],
)
def test_every_mode_says_that_it_is_simulated(m60_host: Host, command: str, shown: bool) -> None:
    """On standard error always; in the output too unless programs read it line by line."""
    result = m60_host.labelled(*command.split())
    assert result.stderr == f"nvidia-smi ({LABEL})\n"
    assert ("simulated" in result.stdout) == shown


@pytest.mark.parametrize("state", ["not_loaded", "library_missing", "mismatch", "no_devices", "gpu_lost"])
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
    m60_host.state(state="gpu_lost", lost=[1], gpus=m60_values())
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
PUBLISHED = {
    "570-H200": (
        ("570.124.06", "12.8", "2335", "0000:29:00.0"),
        {"persistence": True, "temperature": 33, "power_draw": 79.2, "used_mib": 1},
        "| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |",
        "|-----------------------------------------+------------------------+----------------------+",
        "|   0  NVIDIA H200                    On  |   00000000:29:00.0 Off |                    0 |",
        "| N/A   33C    P0             79W /  700W |       1MiB / 143771MiB |      0%      Default |",
        "|                                         |                        |             Disabled |",
    ),
    "580-T4": (
        ("580.82.07", "13.0", "1eb8", "0000:00:04.0"),
        {"temperature": 39, "power_draw": 10.9, "used_mib": 3},
        "| NVIDIA-SMI 580.82.07              Driver Version: 580.82.07      CUDA Version: 13.0     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "|   0  Tesla T4                       Off |   00000000:00:04.0 Off |                    0 |",
        "| N/A   39C    P8             10W /   70W |       3MiB /  15360MiB |      0%      Default |",
        "|                                         |                        |                  N/A |",
    ),
    "535-A100": (
        ("535.54.03", "12.2", "20b2", "0000:89:00.0"),
        {"persistence": True, "temperature": 65, "power_draw": 334.4, "used_mib": 59119, "utilization": 100},
        "| NVIDIA-SMI 535.54.03              Driver Version: 535.54.03    CUDA Version: 12.2     |",
        "|-----------------------------------------+----------------------+----------------------+",
        "|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:89:00.0 Off |                    0 |",
        "| N/A   65C    P0             334W / 400W |  59119MiB / 81920MiB |    100%      Default |",
        "|                                         |                      |             Disabled |",
    ),
    "580-B200": (
        ("580.95.05", "13.0", "2901", "0000:1b:00.0"),
        {"persistence": True},
        "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "|   0  NVIDIA B200                    On  |   00000000:1B:00.0 Off |                    0 |",
        "| N/A   30C    P0            141W / 1000W |       0MiB / 183359MiB |      0%      Default |",
        "|                                         |                        |             Disabled |",
    ),
}


@pytest.mark.parametrize("row", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_table_equals_published_ones(host: Host, row: tuple[Any, ...]) -> None:
    (driver, cuda, device, address), values, version, rule, *lines = row
    host.add_gpu(address, device)
    host.state(gpus={"0": values}, driver_version=driver, cuda_version=cuda)
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
    assert {key: (value["name"], value["compute_cap"]) for key, value in products.items()} == {
        key: known[key] for key in products
    }


def test_unsupported_output_is_refused_as_simulated(m60_host: Host) -> None:
    result = m60_host.run("-q")
    assert result.returncode == 255
    assert "simulated" in result.stdout


def test_persistence_mode_is_on_while_the_daemon_runs(m60_host: Host) -> None:
    query = ["--query-gpu=persistence_mode", "--format=csv,noheader", "-i", "0"]
    assert m60_host.run(*query).stdout == "Disabled\n"
    m60_host.write("run/nvidia-persistenced/nvidia-persistenced.pid", "1\n")
    assert m60_host.run(*query).stdout == "Enabled\n"


# Excerpts of `nvidia-smi -q -x` of real machines (tests/fixtures/nvidia-smi/README.md), and the values that differ from
# the product's. All elements of the simulated document must be in them, in the same order.
EXCERPTS: dict[str, tuple[str, str, dict[str, object]]] = {
    "h100": ("2330", "0000:53:00.0", {"virtualization": "Pass-Through", "replay_counter": 150}),
    "t4": (
        "1eb8", "0000:00:1e.0", {"virtualization": "Pass-Through", "current_link_width": 8, "current_link_gen": 3},
    ),
    "a100-mig": ("20b2", "0000:01:00.0", {"mig": "Enabled", "persistence": False, "ecc": "Enabled"}),
}  # fmt: skip
IDENTITY = re.compile(r"/(serial|uuid|minor_number|pci_sub_system_id|vbios_version|board_id)$")
# Not in a table of products: readings of that machine at that moment, names of its firmware.
OF_THAT_MACHINE = re.compile(
    r"brand|fb_memory_usage|_temp$|power|clock|performance_state|util$"
    r"|aggregate/dram_correctable|gpu_idle|max_host_link_gen|remapped_row"
)


def leaves(element: ElementTree.Element, above: str = "") -> list[tuple[str, str]]:
    found = []
    for child in element:
        path = f"{above}/{child.tag}"
        found += leaves(child, path) if len(child) else [(path, (child.text or "").strip())]
    return found


@pytest.mark.parametrize("name", EXCERPTS)
def test_document_has_the_genuine_elements_in_order(host: Host, name: str) -> None:
    device, address, values = EXCERPTS[name]
    genuine = ElementTree.fromstring(published.document(name))
    host.add_gpu(address, device)
    host.state(driver_version=genuine.findtext("driver_version"), gpus={"0": {"persistence": True, **values}})
    text = host.run("-q", "-x").stdout
    assert text.splitlines()[:3] == published.document(name).splitlines()[:3]
    (theirs,), (ours,) = genuine.findall("gpu"), ElementTree.fromstring(text).findall("gpu")
    place, expected = 0, leaves(theirs)
    for path, value in leaves(ours):
        rest = [entry for entry, _ in expected[place:]]
        if IDENTITY.search(path):
            continue  # removed from the published fixture
        if path.startswith("/remapped_rows/") and theirs.findtext("remapped_rows") == "N/A":
            continue  # not reported by that A100's driver
        assert path in rest, path
        place += rest.index(path) + 1
        if not OF_THAT_MACHINE.search(path):
            assert (path, value) == expected[place - 1]


def test_nvlink_status_of_gpus_with_and_without_links(host: Host) -> None:
    for number, device in enumerate(["1db5", "1eb8", "1db5"]):
        host.add_gpu(f"0000:{number + 5:02x}:00.0", device)
    uuids = {str(number): {"uuid": f"GPU-{number}"} for number in range(3)}
    host.state(
        gpus={**uuids, "0": {"uuid": "GPU-0", "links_down": [3, 5]}, "2": {"uuid": "GPU-2", "links_down": "all"}}
    )
    # From a Tesla V100-SXM2-32GB (Azure/azhpc-diagnostics issue 73), and from a newer driver with all links down
    # (leptonai/gpud issue 1085).
    assert host.run("nvlink", "-s").stdout == (
        "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-0)\n"
        "\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 GB/s\n"
        "\t Link 3: <inactive>\n\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\n"
        "GPU 2: Tesla V100-SXM2-32GB (UUID: GPU-2)\n"
        "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    )


def test_counters_of_links(host: Host) -> None:
    for number, device in enumerate(["1db5", "1eb8", "2901"]):
        host.add_gpu(f"0000:{number + 5:02x}:00.0", device)
    gpus = {"uuid": "GPU-0", "links_down": [0, 1, 2, 4, 5], "link_counters": {"3": {"Replay Errors": 211}}}
    host.state(gpus={"0": gpus, "2": {"uuid": "GPU-2", "links_down": list(range(1, 18))}})
    output = host.run("nvlink", "-e").stdout
    # As ScuffedSquared/NVLink-Error-Testing-Notes has it, of V100.
    assert output.startswith(
        "GPU 0: Tesla V100-SXM2-32GB (UUID: GPU-0)\n\t Link 3: Replay Errors: 211\n\t Link 3: Recovery Errors: 0\n"
        "\t Link 3: CRC Errors: 0\n\nGPU 2: NVIDIA B200 (UUID: GPU-2)\n\t Link 0: Tx packets: 0\n"
    )
    # The names are those of B300 (tests/fixtures/nvidia-smi); newer drivers print more of them.
    names = re.findall(r"Link 0: (.*): \S+$", (FIXTURES / "nvlink-e-b300.txt").read_text(), re.M)
    printed = re.findall(r"Link 0: (.*): \S+$", output, re.M)
    assert [name for name in printed if name in names] == [name for name in names if name in printed]
    assert {name for name in set(names) - set(printed) if not name.startswith(("PLR", "Raw"))} == set()


def test_ecc_errors_are_in_every_output_format(host: Host) -> None:
    host.add_gpu("0000:05:00.0", "2330")
    host.state(gpus={"0": {"ecc_errors": {"dram_uncorrectable": 3, "sram_uncorrectable_parity": 1}}})
    query = ["--query-gpu=ecc.errors.uncorrected.volatile.total", "--format=csv,noheader"]
    assert host.run(*query).stdout == "4\n"
    assert host.run().stdout.splitlines()[8].endswith("|                    4 |")
    volatile = ElementTree.fromstring(host.run("-q", "-x").stdout).find("gpu/ecc_errors/volatile")
    assert volatile is not None
    assert [volatile.findtext(name) for name in ("dram_uncorrectable", "sram_uncorrectable_parity")] == ["3", "1"]
