"""Thresholds of bandwidths: documents of the program, and what nvidia-smi and sysfs say of the links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import (
    cuda_bandwidth_check,
    cuda_device_checks,
    model,
)
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from syrupy.assertion import SnapshotAssertion

from tests.unit.module_utils.checks.contexts import CUDA_FIXTURES, cuda_host, of_program

CATALOG = load_catalog()
LINKS = facts.link_thresholds(CATALOG)
A100, A100_PCIE, H100, V100, RTX_3090 = "20b2", "20f1", "2330", "1db5", "2204"
GEN3, GEN4, GEN5 = "8.0 GT/s PCIe", "16.0 GT/s PCIe", "32.0 GT/s PCIe"
HEALTHY = 0.85  # of a link's rate


class Board:
    """A host with GPUs of one model: its files, what nvidia-smi prints, and what cuda_check measured."""

    def __init__(
        self, root: Path, device: str, count: int, links: list[int], speed: float, pairs: list[list[int]]
    ) -> None:
        """Create the host; links: active NVLinks by GPU, of the model's; pairs: NVLinks by GPU and GPU, 0 is PCIe."""
        self.root, self.count = root, count
        self.total = max(links)
        self.links, self.speed, self.pairs = links, speed, pairs
        self.answers = {"nvlink": self._nvlinks(), "topo": self._matrix()}
        self.write("proc/cpuinfo", "flags\t\t: fpu vme de\n")
        for index in range(count):
            self.gpu(index, device)
        self.document = self._document()

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text + "\n")

    def gpu(
        self, index: int, device: str, speed: str = GEN4, width: int = 16, slot: tuple[str, int] = (GEN4, 16)
    ) -> None:
        """Create a GPU below a root port, as sysfs has them: the device's directory is in its bridge's."""
        address, port = f"0000:{0x1A + index:02x}:00.0", f"0000:00:{index:02x}.0"
        folder = f"sys/devices/pci0000:00/{port}/{address}"
        for name, value in (("vendor", "0x10de"), ("device", f"0x{device}"), ("class", "0x030200")):
            self.write(f"{folder}/{name}", value)
        for place, values in ((folder, (speed, width)), (f"sys/devices/pci0000:00/{port}", slot)):
            self.write(f"{place}/max_link_speed", values[0])
            self.write(f"{place}/max_link_width", str(values[1]))
        for name, target in ((address, folder), (port, f"sys/devices/pci0000:00/{port}")):
            link = self.root / f"sys/bus/pci/devices/{name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self.root / target)

    def _nvlinks(self) -> str:
        text = ""
        for index, active in enumerate(self.links):
            text += f"GPU {index}: NVIDIA X (UUID: GPU-{index})\n"
            text += "".join(
                f"\t Link {n}: {f'{self.speed} GB/s' if n < active else '<inactive>'}\n" for n in range(self.total)
            )
        return text

    def _matrix(self) -> str:
        names = [f"GPU{index}" for index in range(self.count)]
        rows = ["\t" + "\t".join([*names, "CPU Affinity"])]
        for index, row in enumerate(self.pairs):
            cells = [" X " if other == index else f"NV{n}" if n else "PHB" for other, n in enumerate(row)]
            rows.append("\t".join([names[index], *cells, "0-15"]))
        return "\n".join(rows) + "\n\nLegend:\n"

    def _document(self) -> dict[str, Any]:
        """Return the simulated program's document with rates of a healthy host."""
        document = json.loads((CUDA_FIXTURES / "simulated-3-gpus.json").read_text())
        device, pair = document["devices"][0], document["peers"][0]
        document["devices"] = [
            {**json.loads(json.dumps(device)), "index": i, "pci_bus_id": f"0000:{0x1A + i:02X}:00.0"}
            for i in range(self.count)
        ]
        for each in document["devices"]:
            each["copies"]["device_to_device"]["gb_per_second"] = 1800
        self.document = document
        self.host_rate(HEALTHY * 31.5)
        document["peers"] = [
            {**json.loads(json.dumps(pair)), "from": i, "to": j, "access": True}
            for i in range(self.count)
            for j in range(self.count)
            if i != j
        ]
        for each in document["peers"]:
            rate = {25.0: 25, 26.562: 25, 14.062: 14.0625}.get(self.speed, self.speed)
            each["copy"]["gb_per_second"] = HEALTHY * rate * self.pairs[each["from"]][each["to"]] or 20
        document["all_reduce"].update(devices=list(range(self.count)), bus_gb_per_second=230)
        return document

    def host_rate(self, rate: float | None, index: int | None = None) -> None:
        for each in self.document["devices"]:
            for name in ("host_to_device", "device_to_host"):
                if index in (None, each["index"]):
                    each["copies"][name]["gb_per_second"] = rate

    def pair_rate(self, one: int, other: int, rate: float | None) -> None:
        for each in self.document["peers"]:
            if {each["from"], each["to"]} == {one, other}:
                each["copy"]["gb_per_second"] = rate

    def run(self, argv: list[str], timeout: float) -> command.Answer:
        answer: str | command.Answer = self.answers[argv[1]]
        return answer if isinstance(answer, command.Answer) else command.Answer(0, answer.encode(), b"")

    def judge(self, device: str | None = None, **changes: Any) -> model.Check:
        gpus = tuple(SmiGpu(index=i, pci_address=f"0000:{0x1A + i:02x}:00.0") for i in range(self.count))
        ids = {path.read_text().strip()[2:] for path in (self.root / "sys/bus/pci/devices").glob("*/device")}
        context = cuda_host(
            self.run, root=str(self.root), expect_gpus=self.count, smi=NvidiaSmi(gpus, path="/usr/bin/nvidia-smi"),
            gpu_thresholds=facts.gpu_thresholds(CATALOG, [f"10de:{one}" for one in ids]), link_thresholds=LINKS,
        )  # fmt: skip
        for name, value in changes.items():
            object.__setattr__(context, name, value)
        document = of_program(self.document)
        devices = cuda_device_checks.run(context, document)[0]
        return cuda_bandwidth_check.judge(context, document, devices)


def mesh(links: int, count: int = 4) -> list[list[int]]:
    return [[0 if i == j else links for j in range(count)] for i in range(count)]


@pytest.fixture
def hgx_4(tmp_path: Path) -> Board:
    """Four A100 without NVSwitch: four links between each pair."""
    return Board(tmp_path, A100, 4, [12] * 4, 25.0, mesh(4))


def test_healthy_board_passes(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    check = hgx_4.judge()
    assert (check.status, str(check.found).startswith("25 measurements, ")) == ("pass", True), check
    assert check.found == snapshot


@pytest.mark.parametrize(("rate", "status"), [(0.93 * 100, "pass"), (75.0, "fail"), (0.93 * 75, "fail")])
def test_one_link_of_four_down(hgx_4: Board, rate: float, status: str) -> None:
    """nvidia-smi counts three links then; both GPUs have an inactive one, and the model has twelve."""
    down = status == "fail"
    pairs = mesh(4)
    pairs[0][1] = pairs[1][0] = 3 if down else 4
    board = Board(hgx_4.root, A100, 4, [11, 11, 12, 12] if down else [12] * 4, 25.0, pairs)
    board.pair_rate(0, 1, rate)
    check = board.judge()
    assert check.status == status, check
    if down:
        assert f"0-1 {rate:.3g} GB/s, at least 78 (4 NVLinks of 25)" in str(check.found)
        assert "0-2" not in str(check.found)


def test_measurements_are_data_beside_their_thresholds(hgx_4: Board) -> None:
    """Also of a check that fails; a rate that was not measured is null."""
    hgx_4.pair_rate(2, 3, 76.6)
    hgx_4.document["devices"][0]["copies"]["host_to_device"]["gb_per_second"] = None
    check = hgx_4.judge()
    assert check.status == "fail"
    found = {(row["kind"], *row["gpus"]): row for row in (check.data or {})["bandwidths"]}
    assert len(found) == 4 * 3 + 4 * 3 + 1
    slow = found["peer", 2, 3]
    assert (slow["gb_per_second"], slow["minimum"], slow["source"]) == (76.6, 78, "4 NVLinks of 25")
    assert found["host_to_device", 0]["gb_per_second"] is None
    assert found["all_reduce", 0, 1, 2, 3]["gb_per_second"] == 230
    assert "data" not in check.to_dict()


def test_slow_link_that_counts_as_active_fails(hgx_4: Board) -> None:
    hgx_4.pair_rate(2, 3, 76.6)
    check = hgx_4.judge()
    assert (check.status, "2-3 76.6 GB/s, at least 78" in str(check.found)) == ("fail", True), check


@pytest.mark.parametrize(("rate", "status"), [(375 * 17 / 18, "pass"), (375 * 15 / 18, "fail")], ids=["one", "three"])
def test_links_of_eighteen_down(tmp_path: Path, rate: float, status: str) -> None:
    """One of 18 is less than the spread of healthy hosts: the bandwidth cannot show it, gpu.nvlink does."""
    lost = 1 if status == "pass" else 3
    board = Board(tmp_path, H100, 4, [18, 18, 18, 18 - lost], 26.562, mesh(18))
    board.write("sys/bus/pci/devices/0000:c0:00.0/vendor", "0x10de")
    board.write("sys/bus/pci/devices/0000:c0:00.0/device", "0x22a3")
    board.write("sys/bus/pci/devices/0000:c0:00.0/class", "0x068000")
    for row in range(3):
        board.pairs[row][3] = board.pairs[3][row] = 18 - lost
        board.pair_rate(row, 3, rate)
    board.answers["topo"] = board._matrix()
    for each in board.document["devices"]:
        each["copies"]["device_to_device"]["gb_per_second"] = 2500
    check = board.judge()
    assert check.status == status, check
    assert status == "pass" or f"0-3 {rate:.0f} GB/s, at least 351 (18 NVLinks of 25)" in str(check.found)


@pytest.mark.parametrize(("links", "rate", "status"), [(4, 52.0, "pass"), (3, 39.0, "pass"), (4, 39.0, "fail")])
def test_bridge_of_a_model_that_the_catalog_does_not_have(
    tmp_path: Path, links: int, rate: float, status: str, snapshot: SnapshotAssertion
) -> None:
    """The only two GPUs, a link down at both ends: without the model's number of links nothing shows that it failed."""
    board = Board(tmp_path, RTX_3090, 2, [4, 4], 14.062, mesh(links, 2))
    if links == 3:
        board.total, board.links = 4, [3, 3]
        board.answers["nvlink"] = board._nvlinks()
    board.pair_rate(0, 1, rate)
    check = board.judge()
    assert check.status == status, check
    assert status == "fail" or check.found == snapshot


@pytest.mark.parametrize(("rate", "status"), [(270.0, "pass"), (0.9 * 200, "fail")], ids=["three bridges", "two"])
def test_missing_bridge_of_a_model_in_the_catalog_fails(tmp_path: Path, rate: float, status: str) -> None:
    links = 12 if status == "pass" else 8
    board = Board(tmp_path, A100_PCIE, 2, [12, 12], 25.0, mesh(links, 2))
    board.links = [links, links]
    board.answers["nvlink"] = board._nvlinks()
    board.pair_rate(0, 1, rate)
    check = board.judge()
    assert (check.status, status == "pass" or "12 NVLinks of 25" in str(check.found)) == (status, True), check


def test_mesh_that_leaves_links_unused_passes(tmp_path: Path) -> None:
    """V100 boards connect pairs with one link or two, and leave links unused: only the active ones are expected."""
    pairs = [[0, 1, 1, 2], [1, 0, 2, 1], [1, 2, 0, 1], [2, 1, 1, 0]]
    board = Board(tmp_path, V100, 4, [6] * 4, 25.0, pairs)
    board.links = [4] * 4
    board.answers["nvlink"] = board._nvlinks()
    for index in range(4):
        board.gpu(index, V100, GEN3, 16, (GEN3, 16))
    board.host_rate(12.5)
    assert board.judge().status == "pass"
    board.pair_rate(0, 3, 24)
    assert board.judge().status == "fail"


def test_pairs_over_pcie_are_not_judged(tmp_path: Path) -> None:
    board = Board(tmp_path, RTX_3090, 2, [0, 0], 14.062, mesh(0, 2))
    board.answers["nvlink"] = ""
    board.pair_rate(0, 1, 0.5)
    check = board.judge()
    assert (check.status, str(check.found).startswith("4 measurements, ")) == ("pass", True), check


@pytest.mark.parametrize(
    ("card", "slot", "rate", "status", "text"),
    [
        ((GEN5, 16), (GEN5, 16), 55.0, "pass", ""),
        ((GEN5, 16), (GEN5, 16), 13.5, "fail", "13.5 GB/s, at least 31.5 (PCIe 32 GT/s x16)"),
        ((GEN5, 16), (GEN5, 16), 28.0, "fail", "28 GB/s, at least 31.5 (PCIe 32 GT/s x16)"),
        ((GEN5, 16), (GEN4, 16), 26.0, "pass", ""),
        ((GEN5, 16), (GEN4, 16), 13.0, "fail", "13 GB/s, at least 15.8 (PCIe 16 GT/s x16)"),
        ((GEN4, 16), (GEN5, 8), 13.0, "pass", ""),
        ((GEN4, 16), (GEN3, 4), 3.4, "pass", ""),
    ],
    ids=["healthy", "x4 of x16", "x8 of x16", "older slot", "x8 in an older slot", "slot of x8", "slot of x4"],
)  # fmt: skip
def test_copies_with_the_host_are_compared_with_the_best_of_the_path(
    tmp_path: Path, card: tuple[str, int], slot: tuple[str, int], rate: float, status: str, text: str
) -> None:
    board = Board(tmp_path, RTX_3090, 2, [0, 0], 14.062, mesh(0, 2))
    board.answers["nvlink"] = ""
    for index in range(2):
        board.gpu(index, RTX_3090, *card, slot)
    board.host_rate(30.0)
    board.host_rate(rate, index=1)
    if status == "pass":
        board.host_rate(rate)
    check = board.judge()
    assert (check.status, text in str(check.found)) == (status, True), check


@pytest.mark.parametrize("hidden", ["virtual machine", "unknown link"])
def test_path_that_is_not_the_hardwares_leaves_the_models_threshold(hgx_4: Board, hidden: str) -> None:
    if hidden == "virtual machine":
        hgx_4.write("proc/cpuinfo", "flags\t\t: fpu vme hypervisor de\n")
    else:
        for index in range(4):
            hgx_4.gpu(index, A100, slot=("Unknown", 255))
    hgx_4.host_rate(5.0)
    assert hgx_4.judge().status == "pass"
    hgx_4.host_rate(4.7)
    check = hgx_4.judge()
    assert (check.status, "at least 4.8 (the model's)" in str(check.found)) == ("fail", True), check


@pytest.mark.parametrize(
    ("mode", "answer"),
    [
        ("topo", command.Answer(0, b"nonsense\n", b"")),
        ("topo", command.Answer(255, b"Unknown Error\n", b"")),
        ("topo", command.Answer(command.TIMED_OUT, b"", b"")),
        ("nvlink", command.Answer(0, b"nonsense\n", b"")),
        ("nvlink", command.Answer(-9, b"", b"")),
    ],
)
def test_links_that_nvidia_smi_does_not_tell_are_unknown(hgx_4: Board, mode: str, answer: command.Answer) -> None:
    hgx_4.answers[mode] = answer  # type: ignore[assignment]
    assert hgx_4.judge().status == "unknown"


@pytest.mark.parametrize("what", ["pair", "host", "all-reduce", "device"])
def test_rate_that_was_not_measured_is_unknown(hgx_4: Board, what: str, snapshot: SnapshotAssertion) -> None:
    if what == "pair":
        hgx_4.pair_rate(0, 1, None)
    elif what == "host":
        hgx_4.host_rate(None, index=2)
    elif what == "all-reduce":
        hgx_4.document["all_reduce"]["bus_gb_per_second"] = None
    else:
        hgx_4.document["devices"][3]["copies"] = None
    check = hgx_4.judge()
    assert check.status == "unknown"
    assert check.reason == snapshot


def test_topology_that_lacks_a_gpu_is_unknown(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    """Without its row and column, the matrix of the other three is complete."""
    rows = [row.split("\t") for row in hgx_4.answers["topo"].splitlines()[:4]]
    hgx_4.answers["topo"] = "\n".join("\t".join(row[:4] + row[5:]) for row in rows)
    check = hgx_4.judge()
    assert check.status == "unknown"
    assert check.reason == snapshot


@pytest.mark.parametrize(
    "left",
    ["", "GPU 3: NVIDIA X (UUID: GPU-3)\n", "GPU 3: NVIDIA X (UUID: GPU-3)\nDevice does not have or support Nvlink\n"],
    ids=["no line", "its name alone", "a sentence"],
)
def test_nvlinks_that_the_topology_has_and_the_list_lacks_are_unknown(
    hgx_4: Board, left: str, snapshot: SnapshotAssertion
) -> None:
    hgx_4.answers["nvlink"] = hgx_4.answers["nvlink"].partition("GPU 3")[0] + left
    check = hgx_4.judge()
    assert check.status == "unknown"
    assert str(check.reason).rpartition(": ")[2] == snapshot


def test_fewer_devices_than_expected_are_unknown(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    check = hgx_4.judge(expect_gpus=5)
    assert check.status == "unknown"
    assert check.reason == snapshot


GPUS = tuple(SmiGpu(index=i, pci_address=f"0000:{0x1A + i:02x}:00.0") for i in range(4))


@pytest.mark.parametrize(
    "smi",
    [
        None,
        NvidiaSmi(GPUS[:3], path="/usr/bin/nvidia-smi"),
        NvidiaSmi(GPUS),
        NvidiaSmi(path="/x"),
    ],
    ids=["no nvidia-smi", "one is absent", "no path", "no list"],
)
def test_gpus_that_nvidia_smi_does_not_list_are_unknown(
    hgx_4: Board, smi: NvidiaSmi | None, snapshot: SnapshotAssertion
) -> None:
    check = hgx_4.judge(smi=smi)
    assert check.status == "unknown"
    assert check.reason == snapshot


def test_nvidia_smi_is_not_asked_for_links_that_no_threshold_or_pair_needs(hgx_4: Board) -> None:
    hgx_4.answers = {}
    hgx_4.pair_rate(0, 1, 61)
    assert hgx_4.judge(link_thresholds={"pcie": LINKS["pcie"]}).status == "pass"
    hgx_4.pair_rate(0, 1, 59)
    check = hgx_4.judge(link_thresholds={"pcie": LINKS["pcie"]})
    assert str(check.found).startswith("0-1 59 GB/s, at least 60 (the model's)")
    for pair in hgx_4.document["peers"]:
        pair["access"] = False
    assert hgx_4.judge().status == "pass", "without access, copies are staged through host memory"


def test_nvidia_smi_numbers_gpus_in_its_own_order(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    """CUDA lists the fastest first, or what CUDA_DEVICE_ORDER says."""
    for number, each in enumerate(hgx_4.document["devices"]):
        each["pci_bus_id"] = f"0000:{0x1A + 3 - number:02X}:00.0"
    hgx_4.pairs[0][1] = hgx_4.pairs[1][0] = 0
    hgx_4.answers["topo"] = hgx_4._matrix()
    hgx_4.pair_rate(0, 1, 62)
    hgx_4.pair_rate(2, 3, 62)
    check = hgx_4.judge()
    assert check.found == snapshot


@pytest.mark.parametrize(("rate", "status"), [(1019.5, "pass"), (1019.4, "fail")])
def test_threshold_itself_is_enough(hgx_4: Board, rate: float, status: str) -> None:
    hgx_4.document["devices"][2]["copies"]["device_to_device"]["gb_per_second"] = rate
    assert hgx_4.judge().status == status


def test_measurement_that_is_nearest_to_its_threshold_is_shown(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    hgx_4.document["devices"][2]["copies"]["device_to_device"]["gb_per_second"] = 1030
    hgx_4.document["devices"][3]["copies"]["device_to_device"]["gb_per_second"] = 1040
    assert hgx_4.judge().found == snapshot


def test_slow_all_reduce_fails(hgx_4: Board) -> None:
    hgx_4.document["all_reduce"]["bus_gb_per_second"] = 60
    assert hgx_4.judge().status == "pass"
    hgx_4.document["all_reduce"]["bus_gb_per_second"] = 59.9
    assert hgx_4.judge().found == "all-reduce 59.9 GB/s, at least 60 (the model's)"
    hgx_4.document["all_reduce"]["devices"] = [0]
    assert hgx_4.judge().status == "pass", "one device reduces alone"
    hgx_4.document["all_reduce"] = None
    assert hgx_4.judge().status == "pass"


def test_model_without_a_threshold_leaves_its_pairs_and_the_all_reduce_unjudged(hgx_4: Board) -> None:
    hgx_4.gpu(3, RTX_3090)
    for other in range(3):
        hgx_4.pair_rate(3, other, 79)
    hgx_4.document["all_reduce"]["bus_gb_per_second"] = 1
    check = hgx_4.judge()
    assert (check.status, str(check.found).endswith("; no threshold for Simulated GPU (10de:2204)")) == ("pass", True)
    hgx_4.pair_rate(3, 1, 77)
    assert str(hgx_4.judge().found).startswith("1-3 77 GB/s, at least 78 (4 NVLinks of 25); 3-1 77 GB/s, ")
    hgx_4.answers["nvlink"] = hgx_4.answers["nvlink"].replace("25.0 GB/s", "13.0 GB/s")
    check = hgx_4.judge()
    assert (check.status, str(check.found).endswith("; no rate for NVLinks of 13 GB/s")) == ("pass", True), check


def test_links_without_a_rate_leave_the_models_threshold(hgx_4: Board) -> None:
    hgx_4.answers["nvlink"] = hgx_4.answers["nvlink"].replace("25.0 GB/s", "13.0 GB/s")
    check = hgx_4.judge()
    assert (check.status, str(check.found).endswith("; no rate for NVLinks of 13 GB/s")) == ("pass", True), check
    hgx_4.pair_rate(0, 1, 59)
    check = hgx_4.judge()
    assert (check.status, "0-1 59 GB/s, at least 60 (the model's)" in str(check.found)) == ("fail", True), check


def test_model_without_a_minimum_over_nvlink_is_judged_by_its_links(tmp_path: Path) -> None:
    board = Board(tmp_path, V100, 2, [2, 2], 25.0, mesh(2, 2))
    board.pair_rate(0, 1, 39)
    board.document["all_reduce"]["bus_gb_per_second"] = 1
    assert board.judge().status == "pass"
    board.pair_rate(0, 1, 38.9)
    assert str(board.judge().found).startswith("0-1 38.9 GB/s, at least 39 (2 NVLinks of 25)")


def test_gpu_without_an_address_has_no_threshold(hgx_4: Board) -> None:
    hgx_4.document["devices"][3].update(pci_bus_id=None, name="NVIDIA Y")
    hgx_4.document["peers"] = []
    hgx_4.host_rate(0.5, index=3)
    check = hgx_4.judge()
    assert (check.status, str(check.found).endswith("; no threshold for NVIDIA Y (no PCI id)")) == ("pass", True), check


def test_without_thresholds_of_pcie_those_of_the_model_count(hgx_4: Board) -> None:
    hgx_4.host_rate(4.8)
    assert hgx_4.judge(link_thresholds={"nvlink": LINKS["nvlink"]}).status == "pass"
    hgx_4.host_rate(4.7)
    check = hgx_4.judge(link_thresholds={"nvlink": LINKS["nvlink"]})
    assert str(check.found).startswith("0 host to device 4.7 GB/s, at least 4.8 (the model's); 0 device to host 4.7 ")


@pytest.mark.parametrize(
    ("links", "minimum", "source"),
    [
        ([(GEN4, 16), (GEN4, 16), (GEN4, 16)], "15.8", "PCIe 16 GT/s x16"),
        ([(GEN4, 16), (GEN4, 16), (GEN3, 8)], "3.94", "PCIe 8 GT/s x8"),
        ([(GEN4, 16), (GEN3, 8), (GEN4, 16)], "3.94", "PCIe 8 GT/s x8"),
        ([(GEN3, 16), (GEN4, 16), (GEN4, 4)], "3.94", "PCIe 16 GT/s x4"),
        ([(GEN4, 16), (GEN4, 16), ("Unknown", 255)], "4.8", "the model's"),
        ([(GEN4, 16), ("7 GT/s", 16), (GEN4, 16)], "4.8", "the model's"),
        ([(GEN4, 0), (GEN4, 16), (GEN4, 16)], "4.8", "the model's"),
    ],
    ids=["all alike", "slow port", "slow switch", "narrow port", "unknown port", "unknown speed", "no width"],
)
def test_slowest_link_between_gpu_and_host_counts(
    hgx_4: Board, links: list[tuple[str, int]], minimum: str, source: str
) -> None:
    """Below a switch: the links of the GPU, of the switch, and of the port that it is connected to."""
    folder = "sys/devices/pci0000:00"
    for depth, (speed, width) in enumerate(reversed(links)):
        folder += "/" + ("0000:00:0f.0", "0000:19:00.0", "0000:1a:00.0")[depth]
        hgx_4.write(f"{folder}/max_link_speed", speed)
        hgx_4.write(f"{folder}/max_link_width", str(width))
    for name, value in (("vendor", "0x10de"), ("device", f"0x{A100}"), ("class", "0x030200")):
        hgx_4.write(f"{folder}/{name}", value)
    for name, target in (("0000:1a:00.0", folder), ("0000:19:00.0", folder[:-13]), ("0000:00:0f.0", folder[:-26])):
        link = hgx_4.root / f"sys/bus/pci/devices/{name}"
        link.unlink(missing_ok=True)
        link.symlink_to(hgx_4.root / target)
    hgx_4.host_rate(0.9, index=0)
    check = hgx_4.judge()
    assert str(check.found).startswith(f"0 host to device 0.9 GB/s, at least {minimum} ({source}); 0 device to host ")


@pytest.mark.parametrize(
    ("switched", "inactive", "expected"), [(True, [2, 0], 12), (False, [2, 0], 10), (False, [2, 2], 12)]
)
def test_links_that_failed_are_expected(tmp_path: Path, switched: bool, inactive: list[int], expected: int) -> None:
    """Behind NVSwitches at one end, between two GPUs at both; never more than the model has."""
    board = Board(tmp_path, A100, 2, [12, 12], 25.0, mesh(10, 2))
    board.links = [12 - number for number in inactive]
    board.answers["nvlink"] = board._nvlinks()
    if switched:
        for name, value in (("vendor", "0x10de"), ("device", "0x22a3"), ("class", "0x068000")):
            board.write(f"sys/bus/pci/devices/0000:c0:00.0/{name}", value)
    board.pair_rate(0, 1, 61)
    minimum = expected * 25 * 78 // 100
    assert str(board.judge().found).startswith(f"0-1 61 GB/s, at least {minimum} ({expected} NVLinks of 25)")


def test_gpus_without_a_threshold_for_what_was_measured_are_skipped(hgx_4: Board) -> None:
    hgx_4.document.update(peers=[], all_reduce=None)
    check = hgx_4.judge(gpu_thresholds={f"10de:{A100}": {"nvlink": 60.0}}, link_thresholds={})
    assert (check.status, check.reason) == ("skip", "nothing has a threshold")
    assert str(check.found).startswith("0 host to device 26.8 GB/s; 0 device to host 26.8 GB/s; 0 within the device ")


def test_no_device_is_judged_as_cuda_devices_is(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    hgx_4.document.update(devices=[], peers=[], all_reduce=None)
    check = hgx_4.judge()
    assert check.status == "unknown"
    assert check.reason == snapshot


def test_slow_memory_fails(hgx_4: Board) -> None:
    hgx_4.document["devices"][1]["copies"]["device_to_device"]["gb_per_second"] = 900
    check = hgx_4.judge()
    assert (check.status, "1 within the device 900 GB/s, at least 1020" in str(check.found)) == ("fail", True), check


def test_mig_instance_is_not_judged(hgx_4: Board, snapshot: SnapshotAssertion) -> None:
    for device in hgx_4.document["devices"]:
        device["name"] = "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
    hgx_4.document["peers"], hgx_4.document["all_reduce"] = [], None
    hgx_4.host_rate(1.0)
    check = hgx_4.judge()
    assert check.status == "skip"
    assert check.reason == snapshot


def test_without_thresholds_it_is_skipped_and_the_figures_shown(hgx_4: Board) -> None:
    check = hgx_4.judge(gpu_thresholds={}, link_thresholds={})
    assert check.status == "skip"
    assert "0 host to device 26.8 GB/s" in str(check.found)


def test_every_model_in_the_catalog_has_a_rate_for_its_links() -> None:
    """The links of a model times the rate of one are the figure of the model."""
    rates = {rate.gb_per_second for rate in CATALOG.gpu_thresholds.nvlink_rates}
    of_a_link = {
        item.name: item.nvlink / item.links for item in CATALOG.gpu_thresholds.models if item.nvlink and item.links
    }
    assert of_a_link
    assert {name: rate for name, rate in of_a_link.items() if rate not in rates} == {}


def test_one_failed_link_of_four_is_below_the_threshold() -> None:
    assert 3 / 4 < CATALOG.gpu_thresholds.pair_percent / 100 < 0.82
