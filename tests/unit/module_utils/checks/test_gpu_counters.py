"""Counters of GPUs and NVLinks: published documents, and how the catalog's rows judge totals and growth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_counters
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import facts
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog
from syrupy.assertion import SnapshotAssertion

from tests.unit import published

FOLDER = Path(__file__).parents[3] / "fixtures/nvidia-smi"
ROWS = facts.gpu_counters(load_catalog())
V100, B300 = ((FOLDER / f"nvlink-e-{name}.txt").read_text() for name in ("v100", "b300"))
NO_NVLINK = (
    "GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-0)\n\t NVML: Unable to retrieve NVLink information: Not Supported\n"
)
Found = list[tuple[str, str]]


def counters(document: str, links: str, number: int = 0) -> gpu_counters.Counters:
    """Return the counters of a GPU of what both queries print."""
    found, problem = read(document, links)
    assert not problem
    return list(found.values())[number]


def read(document: str, links: str, code: int = 0, status: str = "") -> tuple[dict[str, gpu_counters.Counters], str]:
    answers = {"-q -x": (0, document), "nvlink -e": (code, links), "nvlink -s": (0, status)}

    def run(arguments: Sequence[str]) -> tuple[int, str]:
        return answers[" ".join(arguments)]

    return gpu_counters.read(run)


def of(findings: list[gpu_counters.Finding]) -> Found:
    return [(finding.outcome, finding.text) for finding in findings]


def totals(document: str, links: str) -> Found:
    return of(gpu_counters.totals(counters(document, links), ROWS))


def growth(change: tuple[str, str], seconds: float = 60, links: str = B300, machine: str = "b200") -> Found:
    """Return what grew if one text of the documents of a machine becomes another one."""
    document = published.document(machine)
    assert change[0] in document + links
    after = counters(document.replace(*change), links.replace(*change))
    return of(gpu_counters.growth(counters(document, links), after, seconds, ROWS))


@pytest.mark.parametrize("machine", published.MACHINES)
def test_counters_of_published_documents_are_read(machine: str) -> None:
    if machine == "gb200-lost":
        return
    gpus, _problem = read(published.document(machine), NO_NVLINK)
    assert gpus
    for gpu in gpus.values():
        assert gpu.unreadable == ()
        assert [finding for finding in gpu_counters.totals(gpu, ROWS) if finding.outcome != "pass"] == []


def test_a_lost_gpu_is_unreadable_and_the_others_are_read() -> None:
    found, problem = read(published.document("gb200-lost"), "")
    assert problem == ""
    assert sorted(bool(gpu.unreadable) for gpu in found.values()) == [False, True]


def test_healthy_gpus_have_counted_something() -> None:
    """150 PCIe replays are those of a healthy H100, and the FEC counters of a B300 are in the billions."""
    assert totals(published.document("h100"), NO_NVLINK) == [("pass", "replay_counter 150")]
    assert totals(published.document("b200"), B300) == []


def test_totals_of_bad_links_warn() -> None:
    links = gpu_counters.of_links(V100.split("\n"))
    assert sorted(links.values) == [0, 2]
    document = published.document("b200")
    first = gpu_counters.with_links(counters(document, ""), links)
    assert of(gpu_counters.totals(first, ROWS)) == [("warn", "Replay Errors (link 3: 211)")]
    third = gpu_counters.Counters(2, "", links.values[2])
    # 65535 is the highest value of the counter: nothing can be seen to grow any more.
    assert of(gpu_counters.totals(third, ROWS)) == [
        ("warn", "Replay Errors (link 0: 2)"),
        ("warn", "CRC Errors (link 0: 65535)"),
    ]


def test_recoveries_before_the_training_warn_with_the_link() -> None:
    """As in marin-community/marin issue 9086, on link 14 of a GB200."""
    links = B300.replace("Link 0", "Link 14").replace(
        "Total link recovery events: 0", "Total link recovery events: 505"
    )
    assert totals(published.document("b200"), links) == [("warn", "Total link recovery events (link 14: 505)")]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("recovery events: 0", "recovery events: 3"), [("fail", "Total link recovery events (link 0: +3)")]),
        (
            ("recovery failed events: 0", "recovery failed events: 1"),
            [("fail", "Link recovery failed events (link 0: +1)")],
        ),
        (("Symbol Errors: 0", "Symbol Errors: 1"), [("fail", "Symbol Errors (link 0: +1)")]),
        (("PLR Xmit Retry Blocks: 0", "PLR Xmit Retry Blocks: 7"), [("warn", "PLR Xmit Retry Blocks (link 0: +7)")]),
        (("Effective BER: 15e-255", "Effective BER: 1e-11"), [("fail", "Effective BER (link 0: 1e-11)")]),
        (("Effective BER: 15e-255", "Effective BER: 4e-16"), []),
        (("dram_correctable>0", "dram_correctable>2"), [("warn", "volatile/dram_correctable +2")]),
        (("dram_uncorrectable>0", "dram_uncorrectable>1"), [("fail", "volatile/dram_uncorrectable +1")]),
        (
            ("hw_therm_slowdown>0", "hw_therm_slowdown>90"),
            [("warn", "clocks_event_reasons_counters_hw_therm_slowdown +90")],
        ),
    ],
)
def test_growth_during_the_training(change: tuple[str, str], expected: Found) -> None:
    found = growth(change)
    assert [(outcome, text) for outcome, text in found if outcome != "ignored"] == expected


@pytest.mark.parametrize(
    ("change", "ignored"),
    [
        (("FEC Errors - 0: 36140749276", "FEC Errors - 0: 46140749276"), "FEC Errors - * (link 0: +10000000000)"),
        (("FEC Errors - 1: 0", "FEC Errors - 1: 60000"), "FEC Errors - * (link 0: +60000)"),
        (("Tx packets: 12345", "Tx packets: 99912345"), "Tx packets (link 0: +99900000)"),
        (("PLR Xmit Blocks: 1234567890", "PLR Xmit Blocks: 2234567890"), "PLR Xmit Blocks (link 0: +1000000000)"),
        (("Raw Errors Lane 0: 82", "Raw Errors Lane 0: 990"), "Raw Errors * (link 0: +908)"),
        (("Raw BER Total: 1037", "Raw BER Total: 1"), None),  # it has become less
        (("sw_power_cap>770461242", "sw_power_cap>999461242"), "*_sw_power_cap +229000000"),
    ],
)
def test_what_always_grows_is_no_finding_that_counts(change: tuple[str, str], ignored: str | None) -> None:
    assert growth(change) == ([("ignored", ignored)] if ignored else [])


# Those that NVIDIA's own health watch fails for a growth of 1: injected in DCGM's tests (testing/python3/tests/
# test_health.py, NVLink 5), and DCGM_LIMIT_MAX_NVLINK_ERROR for replays and recoveries of older links.
FATAL = (
    *("Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Rx General Errors"),
    *("Local link integrity Errors", "Total link recovery events", "Effective Errors", "ECC Errors"),
    *("Replay Errors", "Recovery Errors"),
)


@pytest.mark.parametrize("name", FATAL)
def test_one_error_of_a_link_that_dcgm_fails_for_is_a_failure(name: str) -> None:
    before, after = (gpu_counters.Counters(0, "0000:05:00.0", {("3", name): value}) for value in (1.0, 2.0))
    assert of(gpu_counters.growth(before, after, 60, ROWS)) == [("fail", f"{name} (link 3: +1)")]


@pytest.mark.parametrize(
    ("grown", "seconds", "outcome"), [(1, 60, "warn"), (5999, 60, "warn"), (6001, 60, "fail"), (99, 0.2, "warn")]
)
def test_crc_errors_fail_from_100_per_second_on(grown: int, seconds: float, outcome: str) -> None:
    found = growth(("CRC Errors: 65535", f"CRC Errors: {65535 + grown}"), seconds, V100.replace("GPU 2", "GPU 0"))
    assert found == [(outcome, f"CRC Errors (link 0: +{grown})")]


@pytest.mark.parametrize(
    ("grown", "seconds", "width", "outcome"),
    [
        (31, 60, "16x", "pass"),
        (32, 60, "16x", "warn"),
        (31, 5, "16x", "pass"),
        (62, 120, "16x", "pass"),
        (16, 60, "8x", "pass"),
        (17, 60, "8x", "warn"),
    ],
)
def test_pcie_replays_are_judged_by_the_links_speed(grown: int, seconds: float, width: str, outcome: str) -> None:
    """A bit error rate of 1e-12 on Gen 5 x16 is 31 replays a minute; a shorter time than a minute is none."""
    document = published.document("b200").replace("<current_link_width>16x", f"<current_link_width>{width}")
    before, after = (counters(document.replace("replay_counter>0", f"replay_counter>{n}", 1), "") for n in (0, grown))
    assert of(gpu_counters.growth(before, after, seconds, ROWS)) == [(outcome, f"replay_counter +{grown}")]


@pytest.mark.parametrize(
    ("printed", "instead"),
    [("max_link_gen>5<", "max_link_gen>N/A<"), ("current_link_width>16x<", "current_link_width>N/A<")],
)
@pytest.mark.parametrize(("grown", "outcome"), [(8, "pass"), (9, "warn")])
def test_a_link_whose_speed_is_not_printed_is_judged_as_gen_3(
    printed: str, instead: str, grown: int, outcome: str
) -> None:
    document = published.document("b200").replace(printed, instead)
    assert document != published.document("b200")
    before, after = (counters(document.replace("replay_counter>0", f"replay_counter>{n}", 1), "") for n in (0, grown))
    assert of(gpu_counters.growth(before, after, 60, ROWS)) == [(outcome, f"replay_counter +{grown}")]


@pytest.mark.parametrize(("grown", "outcome"), [(62, "pass"), (63, "warn")])
def test_an_idle_link_of_pcie_6_is_judged_by_the_lanes_that_it_has(grown: int, outcome: str) -> None:
    change = ("<replay_counter>0", f"<replay_counter>{grown}")
    assert growth(change, links=NO_NVLINK, machine="rubin") == [(outcome, f"replay_counter +{grown}")]


RECOVERIES = "\t Link 0: Total link recovery events: "
INACTIVE = "GPU 0: B\n\t NVML: Unable to retrieve NVLink information as all links are inActive\n"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # Cleared in between, so that the difference is not known.
        ("505", "0", None),
        ("505", "4", ("warn", "Total link recovery events (link 0: 4)")),
        # A counter that was not printed has no value to grow from.
        ("N/A", "3", ("warn", "Total link recovery events (link 0: 3)")),
        ("N/A", "0", None),
        (None, "3", ("warn", "Total link recovery events (link 0: 3)")),
        (INACTIVE, "3", ("warn", "Total link recovery events (link 0: 3)")),
        # The error of a link that was printed as 0 is one of this time.
        ("0", "3", ("fail", "Total link recovery events (link 0: +3)")),
    ],
)
def test_what_cannot_be_compared_is_judged_as_a_total(
    before: str | None, after: str, expected: tuple[str, str] | None
) -> None:
    document, links = published.document("b200"), "GPU 0: B\n" + RECOVERIES
    shown = "GPU 0: B\n\t Link 0: <inactive>\n" if before is None else links + before
    first = counters(document, before if before == INACTIVE else shown)
    found = of(gpu_counters.growth(first, counters(document, links + after), 60, ROWS))
    suffix = ", cleared or not printed before" if expected and "+" not in expected[1] else ""
    assert found == ([(expected[0], expected[1] + suffix)] if expected else [])


@pytest.mark.parametrize(
    ("row", "before", "after", "expected"),
    [
        ("CRC Errors", "65535", "60000", "warn"),
        ("Effective BER", "N/A", "1e-11", "warn"),
        ("Effective BER", "N/A", "1e-13", None),
        ("Effective BER", "1e-10", "1e-11", None),
        ("Effective BER", "1e-13", "1e-11", "fail"),
        ("Tx packets", "N/A", "9", None),
        ("FEC Errors - 0", "9", "3", None),
    ],
)
def test_rates_and_limits_need_a_value_from_before(row: str, before: str, after: str, expected: str | None) -> None:
    document, links = published.document("b200"), f"GPU 0: B\n\t Link 0: {row}: "
    pair = [counters(document, links + value) for value in (before, after)]
    found = of(gpu_counters.growth(pair[0], pair[1], 60, ROWS))
    assert [outcome for outcome, _text in found] == ([expected] if expected else [])


def test_a_link_without_counters_after_the_training_is_unknown() -> None:
    found = growth((B300[B300.index("\t Link 0") :], "\t Link 0: <inactive>\n"))
    assert ("unknown", "Total link recovery events (link 0) no longer printed") in found
    assert not any("FEC" in text for _outcome, text in found)


def test_an_unknown_counter_is_shown_and_warned_of_if_it_grew() -> None:
    links = B300 + "\t Link 0: Phase Errors: 3\n"
    assert totals(published.document("b200"), links) == [("pass", "Phase Errors (link 0: 3)")]
    assert growth(("Phase Errors: 3", "Phase Errors: 5"), 60, links) == [("warn", "Phase Errors (link 0: +2)")]
    assert growth(("Phase Errors: 3", "Phase Errors: 3"), 60, links) == []


@pytest.mark.parametrize(
    "line", ["\t Link 0: Recovery Errors: ERR!", "\t Link 0: Recovery Errors: [Unknown Error]", "Link ?"]
)
def test_a_line_that_is_not_understood_is_unreadable(line: str, snapshot: SnapshotAssertion) -> None:
    assert counters(published.document("b200"), B300 + line + "\n").unreadable == snapshot


@pytest.mark.parametrize(
    "lines",
    [
        "",
        NO_NVLINK,
        "GPU 0: B (UUID: GPU-0)\nNVML: Unable to retrieve NVLink information as all links are inActive\n",
        "GPU 0: B\n\t Link 0: <inactive>\n",
        "GPU 0: B\n\t Link 0: Replay Errors: N/A\n",
        "GPU 0: B\nNVLink queries are not supported for devices in MIG mode\n",
    ],
)
def test_a_gpu_without_links_has_no_counters_of_links(lines: str) -> None:
    found = counters(published.document("b200"), lines)
    assert found.unreadable == ()
    assert [link for link, _name in found.values if link] == []


def test_lines_before_the_first_gpu_are_those_of_a_wrapper(snapshot: SnapshotAssertion) -> None:
    document = published.document("b200")
    assert counters(document, "Authorized users only.\n\n" + B300) == counters(document, B300)
    (gpu,) = read(document, "Authorized users only.\n", 0, "GPU 0: B\n\t Link 0: 53.125 GB/s\n")[0].values()
    assert gpu.unreadable == snapshot


def test_an_nvidia_smi_without_the_option() -> None:
    document, unknown = published.document("b200"), "ERROR: Option -e is not recognized."
    linked = "GPU 0: B\n\t Link 0: 53.125 GB/s\n"
    for status, unreadable in ((linked, ("nvidia-smi nvlink -e ended with 255",)), (NO_NVLINK, ())):
        (gpu,) = read(document, unknown, 255, status)[0].values()
        assert gpu.unreadable == unreadable


@pytest.mark.parametrize("printed", ["", "GPU 0: NVIDIA B200 (UUID: GPU-0)\n", "GPU 0: B\n\t Link 0: <inactive>\n"])
def test_links_that_are_up_have_counters(printed: str, snapshot: SnapshotAssertion) -> None:
    (gpu,) = read(published.document("b200"), printed, 0, "GPU 0: B\n\t Link 0: 53.125 GB/s\n")[0].values()
    assert gpu.unreadable == snapshot


@pytest.mark.parametrize(
    "document",
    ["", "Failed to initialize NVML: Unknown Error", "<?xml version='1.0'?><gpu></nvidia_smi_log>"],
)
def test_a_document_that_is_none_is_a_problem(document: str) -> None:
    assert "printed no XML" in read(document, "")[1]


def test_counters_before_turing() -> None:
    """Elements of a Tesla M60, as nvsmi_device_v12 has them: bits, and retired pages."""
    document = (
        '<?xml version="1.0" ?>\n<nvidia_smi_log><gpu id="00000000:05:00.0"><ecc_errors><volatile><single_bit>'
        "<device_memory>3</device_memory><register_file>N/A</register_file><total>3</total></single_bit><double_bit>"
        "<total>0</total></double_bit></volatile></ecc_errors><retired_pages><multiple_single_bit_retirement>"
        "<retired_count>1</retired_count></multiple_single_bit_retirement></retired_pages></gpu></nvidia_smi_log>"
    )
    (gpu,) = read(document, "")[0].values()
    assert gpu.address == "0000:05:00.0"
    assert of(gpu_counters.totals(gpu, ROWS)) == [
        ("pass", "volatile/single_bit/device_memory 3"),
        ("pass", "volatile/single_bit/total 3"),
        ("pass", "multiple_single_bit_retirement 1"),
    ]


def test_more_than_four_links_are_summed_up() -> None:
    block = B300[B300.index("\t Link 0") :]
    links = "GPU 0: B\n" + "".join(block.replace("Link 0", f"Link {number}") for number in range(18))
    assert growth(("Rx Errors: 0", "Rx Errors: 2"), 60, links) == [("fail", "Rx Errors +36 on 18 links")]
