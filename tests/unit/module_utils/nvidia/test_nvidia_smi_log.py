"""Parsing of `nvidia-smi -q -x` and `nvidia-smi nvlink -s`, on lines that owners of such machines published."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.checks import gpu_counters
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi, nvidia_smi_log
from syrupy.assertion import SnapshotAssertion

from tests.unit import published

# Errors of NVML, and texts that no driver prints: none of them is a value.
BAD_WORDS = (*published.LOST, *published.ERRORS, "Insufficient Size", "a word of a future driver", "[ERR!]")


def gpu(text: str) -> nvidia_smi_log.Gpu:
    (found,) = nvidia_smi_log.parse(f"<nvidia_smi_log><gpu><a><b>{text}</b></a></gpu></nvidia_smi_log>")
    return found


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "[Not Supported]", "Requested functionality has been deprecated"])
def test_value_that_a_product_does_not_have_is_none(text: str) -> None:
    assert (gpu(text).number("a/b"), gpu(text).choice("a/b", "Yes")) == (None, None)


def test_element_that_the_driver_does_not_print_is_none() -> None:
    assert (gpu("5").number("a/c"), gpu("5").choice("a/c", "Yes"), gpu("5").raw("a/c")) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "unit", "number"), [(" 16x ", "x", 16), ("87 %", "%", 87), ("5", "", 5), ("1.5", "", 1.5)]
)
def test_numbers(text: str, unit: str, number: float) -> None:
    assert gpu(text).number("a/b", unit) == number


@pytest.mark.parametrize("word", ["Yes", " No ", "[No]"])
def test_choices(word: str) -> None:
    assert gpu(word).choice("a/b", "Yes", "No") == word.strip(" []")


@pytest.mark.parametrize("word", [*BAD_WORDS, "", "16", "16xx", "x16", "-1x"])
def test_everything_else_is_unreadable(word: str) -> None:
    shown = re.escape(f"a/b is {word.strip('[]')!r}")
    with pytest.raises(nvidia_smi_log.Unreadable, match=shown):
        gpu(word).number("a/b", "x")
    with pytest.raises(nvidia_smi_log.Unreadable, match=shown):
        gpu(word).choice("a/b", "Yes", "No")


def test_leaves_of_a_group_that_is_replaced_by_an_error() -> None:
    (found,) = nvidia_smi_log.parse("<l><gpu><rows><a>1</a><b>2</b></rows><lost>GPU is lost</lost></gpu></l>")
    assert list(found.leaves("rows")) == [("a", "1"), ("b", "2")]
    assert list(found.leaves("lost")) == [("lost", "GPU is lost")]
    assert list(found.leaves("missing")) == []
    (found,) = nvidia_smi_log.parse("<l><gpu><rows><a> [N/A] </a><b/></rows></gpu></l>")
    assert list(found.leaves("rows")) == [("a", "N/A"), ("b", "")]


def test_gpu_has_its_position_and_names() -> None:
    text = "<gpu id=' 00000000:05:00.0 '><product_name>NVIDIA X</product_name><uuid>GPU-1</uuid></gpu><gpu/>"
    found = nvidia_smi_log.parse(f"<l>{text}</l>")
    assert [(gpu.index, gpu.name, gpu.uuid, gpu.bus_id) for gpu in found] == [
        (0, "NVIDIA X", "GPU-1", "00000000:05:00.0"),
        (1, "", "", ""),
    ]


@pytest.mark.parametrize("word", [*published.LOST, *published.ERRORS])
def test_error_is_that_of_a_lost_gpu_or_another(word: str) -> None:
    lost, others = gpu(word).errors(nvidia_smi_log.LOST), gpu(word).errors(nvidia_smi_log.ERRORS)
    assert (lost, others) == (({"b": word}, {}) if word in published.LOST else ({}, {"b": word}))


def test_errors_are_found_everywhere_but_in_the_names_of_programs() -> None:
    (found,) = nvidia_smi_log.parse(
        "<l><gpu><a><fan>[ERR!]</fan></a><processes><process_info><name>Timeout</name></process_info></processes></gpu></l>"
    )
    assert found.errors(nvidia_smi_log.ERRORS) == {"fan": "ERR!"}
    assert found.errors(nvidia_smi_log.LOST) == {}


def test_programs_that_cannot_be_listed_are_an_error() -> None:
    (found,) = nvidia_smi_log.parse(
        "<l><gpu><processes>UNKNOWN ERROR</processes><accounted_processes><accounted_process_info><name>ERR!</name>"
        "</accounted_process_info></accounted_processes></gpu></l>"
    )
    assert found.errors(nvidia_smi_log.ERRORS) == {"processes": "UNKNOWN ERROR"}


# nvmlErrorString, without those that a value can have on a well GPU.
NVML = (
    *("Uninitialized", "Invalid Argument", "Not Ready", "Insufficient External Power", "Driver Not Loaded", "Timeout"),
    *("Function Not Found", "GPU access blocked by the operating system", "Driver/library version mismatch"),
    *("In use by another client", "Insufficient Memory", "Invalid State", "GPU not found", "Unknown Error"),
    *("ERR!", "Requires Reset"),
)


@pytest.mark.parametrize("word", NVML)
def test_errors_of_nvml(word: str) -> None:
    assert gpu(f"[{word}]").errors(nvidia_smi_log.ERRORS) == {"b": word}


def read(tmp_path: Path, script: str) -> nvidia_smi_log.Log:
    return nvidia_smi_log.read(program(tmp_path, script), command.run)


def program(tmp_path: Path, script: str) -> str:
    path = tmp_path / "nvidia-smi"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", ["a & <b> \x01", "a </process_name> b", "a </nvidia_smi_log> b", "<?xml </gpu>"])
def test_what_a_user_calls_a_program_hides_no_gpu(tmp_path: Path, name: str) -> None:
    """nvidia-smi does not always write names as XML has them."""
    info = f"<process_info><pid>7</pid><process_name>{name}</process_name>%s</process_info>\n"
    processes = f"<processes>\n{info % '<used_memory>1 MiB</used_memory>'}{info % ''}</processes>"
    document = published.document("h100").replace("<processes></processes>", processes)
    assert name in document
    (tmp_path / "document").write_text(document)
    (found,) = read(tmp_path, f"cat {tmp_path}/document").gpus
    assert (found.bus_id, found.raw("fabric/state")) == ("00000000:53:00.0", "Completed")
    counted, problem = gpu_counters.read(lambda words: (0, document if words[0] == "-q" else ""))
    assert (list(counted), problem) == (["0000:53:00.0"], "")


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("echo something else", "something else"),
        ("echo '<?xml version=\"1.0\"?><a>'", "XML"),
        ("exit 3", "exit 3"),
        ("kill -SEGV $$", "signal 11"),
        ("echo '<?xml version=\"1.0\"?><a>'; exit 255", "exit 255"),
    ],
    ids=["no document", "no XML", "exit", "signal", "exit and no XML"],
)
def test_document_that_cannot_be_read(tmp_path: Path, script: str, what: str, snapshot: SnapshotAssertion) -> None:
    log = read(tmp_path, script)
    assert log.gpus == []
    assert what in str(log.problem)
    assert log.problem == snapshot


def test_document_after_a_message_about_a_lost_gpu(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    (tmp_path / "document").write_text("Unable to determine the device handle for GPU1\n" + published.document("t4"))
    log = read(tmp_path, f"cat {tmp_path}/document; exit 15")
    assert [found.name for found in log.gpus] == ["Tesla T4"]
    assert log.problem == snapshot


def test_program_that_hangs_is_asked_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(nvidia_smi, "TIMEOUT", 0.2)
    log = read(tmp_path, f"echo >> {tmp_path}/calls; exec sleep 60")
    assert log.gpus == []
    assert str(log.problem).replace(str(tmp_path), "") == snapshot
    assert (tmp_path / "calls").read_text() == "\n\n"


HEAD = "GPU %d: %s (UUID: GPU-00000000-0000-0000-0000-00000000000%d)\n"
# Azure/azhpc-diagnostics issue 73.
V100_LINES = HEAD % (3, "Tesla V100-SXM2-32GB", 3) + (
    "\t Link 0: 25.781 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: 25.781 GB/s\n\t Link 3: <inactive>\n"
    "\t Link 4: 25.781 GB/s\n\t Link 5: <inactive>\n"
)
# A100 PCIe without a bridge, driver 535 and newer; leptonai/gpud issue 1085 has the same of a B200 that failed.
ALL_DOWN = "NVML: Unable to retrieve NVLink information as all links are inActive\n"


def test_nvlink_lines() -> None:
    found = nvidia_smi_log.parse_nvlinks(
        HEAD % (0, "NVIDIA RTX A4000", 0)
        + "Device does not have or support Nvlink\n"
        + HEAD % (1, "NVIDIA A100-PCIE-40GB", 1)
        + ALL_DOWN
        + V100_LINES
    )
    assert [links.state for links in found.values()] == ["unsupported", "inactive", "links"]
    assert found[3].speeds == {0: 25.781, 1: 25.781, 2: 25.781, 3: None, 4: 25.781, 5: None}
    assert nvidia_smi_log.parse_nvlinks("") == {}


# The sentence for a GPU in MIG mode, which has no lines of links.
MIG = "Nvlink queries are not supported for Devices in MIG mode\n"


def test_each_gpu_has_its_own_lines() -> None:
    found = nvidia_smi_log.parse_nvlinks(
        HEAD % (0, "NVIDIA H100", 0)
        + MIG
        + HEAD % (1, "NVIDIA H100", 1)
        + "\t Link 0: sleeping soundly\n\t Link 1: 26.562 GB/s\n"
        + HEAD % (2, "NVIDIA H100", 2)
        + HEAD % (3, "NVIDIA H100", 3)
        + "\t Link 0: 26.562 GB/s\n"
    )
    assert [links.state for links in found.values()] == ["mig", "unknown", "unknown", "links"]
    assert (found[1].line, found[3].speeds) == ("Link 0: sleeping soundly", {0: 26.562})


def test_lines_before_the_first_gpu_are_those_of_a_wrapper() -> None:
    found = nvidia_smi_log.parse_nvlinks("nvidia-smi started at 10:15:01\n" + V100_LINES)
    assert [links.state for links in found.values()] == ["links"]
    for lines in ("nvidia-smi started at 10:15:01\n", "<html>\n\t Link 0: 25.781 GB/s\n" + V100_LINES):
        with pytest.raises(ValueError, match="nvlink -s printed"):
            nvidia_smi_log.parse_nvlinks(lines)


@pytest.mark.parametrize("word", ["ERR!", "<ERR!>", "Unknown Error", "0x1A GB/s", "1.2.3 GB/s"])
def test_link_is_active_or_inactive(word: str) -> None:
    found = nvidia_smi_log.parse_nvlinks(HEAD % (0, "NVIDIA H100", 0) + f"\t Link 0: {word}\n")
    assert found[0].state == "unknown"


@pytest.mark.parametrize(
    "script",
    [
        "printf 'GPU 0: NVIDIA H100 (UUID: GPU-0)\\n\\t Link 0: 26.562 GB/s\\n'; exit 255",
        "kill -KILL $$",
        "echo hello",
    ],
    ids=["exit", "signal", "no links"],
)
def test_nvlink_query_that_fails_is_an_error(tmp_path: Path, script: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError, match="nvlink -s") as error:
        nvidia_smi_log.nvlinks(program(tmp_path, script), command.run)
    assert str(error.value) == snapshot


@pytest.mark.parametrize(
    ("lines", "state", "speeds"),
    [
        ("Link 17: 26.562 GB/s", "links", {17: 26.562}),
        ("Link 0: 25 GB/s\n\n  Link 1: inactive", "links", {0: 25.0, 1: None}),
        ("Link 0: inActive", "links", {0: None}),
        ("NVML: Unable to retrieve NVLink information as All Links Are Inactive", "inactive", {}),
        ("Link 0: 25 GB/s\nnonsense", "unknown", {}),
        ("nonsense\nLink 0: 25 GB/s", "unknown", {}),
        ("", "unknown", {}),
    ],
)
def test_states_of_the_links_of_a_gpu(lines: str, state: str, speeds: dict[int, float | None]) -> None:
    found = nvidia_smi_log.parse_nvlinks(f"GPU 12: NVIDIA X\n{lines}\n")
    assert list(found) == [12]
    assert (found[12].state, found[12].speeds) == (state, speeds)
    assert found[12].line == {"unknown": "nonsense" if lines else "nothing"}.get(state, "")


def test_links_of_the_program(tmp_path: Path) -> None:
    script = f'test "$*" = "nvlink -s" && cat {tmp_path}/lines'
    (tmp_path / "lines").write_text(V100_LINES)
    assert list(nvidia_smi_log.nvlinks(program(tmp_path, script), command.run)) == [3]


def test_output_that_is_no_document_is_cut(tmp_path: Path) -> None:
    assert str(read(tmp_path, "printf '%0300d' 0").problem).endswith(f": {'0' * 200!r}")


def test_what_cannot_be_read_of_a_gpu_is_none() -> None:
    """An error in place of a value, a product without it, an address that is none, links that are not listed."""
    document = (
        "<l><gpu id='nonsense'><product_name>T4</product_name><serial>[Unknown Error]</serial>"
        "<vbios_version>N/A</vbios_version><pci><pci_gpu_link_info><link_widths><current_link_width>GPU is lost"
        "</current_link_width><max_link_width>16x</max_link_width></link_widths></pci_gpu_link_info></pci></gpu></l>"
    )
    (found,) = nvidia_smi_log.checked(nvidia_smi_log.parse(document), None)
    assert (found.name, found.pci_address, found.pcie_max_width) == ("T4", "nonsense", 16)
    assert (found.serial, found.vbios, found.memory, found.pcie_width, found.nvlinks_up) == (None,) * 5


@pytest.mark.parametrize(
    ("state", "speeds", "expected"),
    [
        ("links", {0: 25.0, 1: None}, (2, 1, 25.0)),
        ("inactive", {}, (None, 0, None)),
        ("unsupported", {}, (0, 0, None)),
        ("mig", {}, (None, None, None)),
        ("unknown", {}, (None, None, None)),
    ],
)
def test_nvlinks_of_a_gpu(
    state: str, speeds: dict[int, float | None], expected: tuple[int | None, int | None, float | None]
) -> None:
    gpus = nvidia_smi_log.parse(published.document("h100"))[:1]
    (found,) = nvidia_smi_log.checked(gpus, {0: nvidia_smi_log.Links(state, speeds)})
    assert (found.nvlinks, found.nvlinks_up, found.nvlink_gb_per_second) == expected


@pytest.mark.parametrize("name", published.MACHINES)
def test_gpus_of_published_documents_have_a_name_and_a_link(name: str) -> None:
    gpus = nvidia_smi_log.checked(nvidia_smi_log.parse(published.document(name)), {})
    assert gpus
    for gpu in gpus:
        assert gpu.name.startswith(("NVIDIA ", "Tesla ", "GPU")) or gpu.name == "", gpu
        assert gpu.pcie_max_width in (None, 1, 8, 16), gpu
