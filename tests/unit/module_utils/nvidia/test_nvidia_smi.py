"""Output and failures of nvidia-smi, on captured transcripts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import NvidiaSmi, SmiGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.model.records import to_json
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi
from syrupy.assertion import SnapshotAssertion

FIXTURES = Path(__file__).parents[3] / "fixtures/probe"


def transcript(name: str, command_line: str) -> tuple[int, str]:
    """Return (exit code, output) of a command in a captured transcript, without the marks `out: `."""
    text = (FIXTURES.parent / "nvidia-smi" / name).read_text()
    block = text.split(f"$ {command_line}\n", 1)[1].split("\n$ ", 1)[0]
    code = int(block.split("[rc=", 1)[1].split("]", 1)[0])
    lines = [line.removeprefix("out: ") for line in block.splitlines() if not line.startswith("[rc=")]
    return code, "\n".join(lines)


def test_captured_rows() -> None:
    fields = (
        "index,name,uuid,driver_version,memory.total,memory.used,utilization.gpu,power.draw,compute_cap,pci.bus_id,"
    )
    fields += "pcie.link.gen.current,pcie.link.width.current,temperature.gpu"
    _, output = transcript("nvidia-smi-550.163.01.txt", f"nvidia-smi --query-gpu={fields} --format=csv")
    rows = output.replace(" MiB", "").splitlines()[1:]  # omitted with nounits and noheader
    gpus, _ = nvidia_smi.parse("\n".join(rows), tuple(fields.split(",")))
    assert [gpu.pci_address for gpu in gpus] == ["0000:05:00.0", "0000:06:00.0", "0000:85:00.0", "0000:86:00.0"]
    assert to_json(gpus[1]) == {
        "index": 1,
        "name": "Tesla M60",
        "uuid": "GPU-00000000-0000-4000-8000-000000000001",
        "driver_version": "550.163.01",
        "memory_mib": 8192,
        "compute_capability": "5.2",
        "pci_address": "0000:06:00.0",
        "unreadable": [],
    }


def test_value_in_brackets_is_none() -> None:
    row = "0, NVIDIA A100, GPU-1, 535.1, [N/A], [Not Supported], 00000000:05:00.0"
    ((gpu,), _) = nvidia_smi.parse(row)
    assert (gpu.memory_mib, gpu.compute_capability, gpu.name) == (None, None, "NVIDIA A100")
    assert gpu.unreadable == ()


# Megaminer issue 376 and NVIDIA/dcgm-exporter issue 319 have such rows, with and without brackets.
@pytest.mark.parametrize("word", ["ERR!", "Unknown Error", "[Unknown Error]", "[GPU requires reset]", "GPU is lost"])
@pytest.mark.parametrize("field", range(7))
def test_error_in_any_field_is_none(word: str, field: int) -> None:
    values = ["0", "NVIDIA A100", "GPU-1", "535.161.08", "40960", "8.0", "00000000:05:00.0"]
    values[field] = word
    ((gpu,), notices) = nvidia_smi.parse(", ".join(values))
    assert notices == []
    names = ("index", "name", "uuid", "driver_version", "memory_mib", "compute_capability", "pci_address")
    assert [name for name in names if getattr(gpu, name) is None] == [names[field]]
    assert gpu.unreadable == (nvidia_smi.FIELDS[field],)


def test_row_of_the_wrong_length_is_an_error(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError, match="2 values for 7 fields") as error:
        nvidia_smi.parse("0, NVIDIA A100\n")
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 0, NVIDIA A100\n")
    program.chmod(0o755)
    found = nvidia_smi.read(str(program), command.run)
    assert found is not None
    assert (found.exit_code, found.gpus) == (0, ())
    assert [str(error.value), found.message] == snapshot


ROWS = [
    f"{number}, NVIDIA A100-SXM4-40GB, GPU-{number}, 535.161.08, 40960, 8.0, 00000000:{bus}:00.0"
    for number, bus in enumerate(("1A", "1B"))
]
# As NVIDIA/gpu-operator issue 285, NVIDIA/DCGM issue 2 and microsoft/pai issue 3756 show it below the rows.
CORRUPTED = "WARNING: infoROM is corrupted at gpu 0000:1A:00.0"


@pytest.mark.parametrize(
    ("lines", "code", "notices", "corrupted"),
    [
        ([*ROWS, CORRUPTED], 14, [], ["0000:1a:00.0"]),
        ([*ROWS, CORRUPTED], 0, [], ["0000:1a:00.0"]),
        ([CORRUPTED, ROWS[0], "", CORRUPTED.replace("0000:1A", "00000000:1B"), ROWS[1]], 14, [],
         ["0000:1a:00.0", "0000:1b:00.0"]),
        (ROWS, 14, [], []),
        (["Authorized users only. All activity is recorded, and may be reported.", *ROWS], 0,
         ["Authorized users only. All activity is recorded, and may be reported."], []),
        ([ROWS[0], "Warning: a, b, c, d, e, f, g", ROWS[1]], 0, ["Warning: a, b, c, d, e, f, g"], []),
        (["\v", *ROWS, "\u2028 \x0c"], 0, [], []),
        ([row + "\r" for row in ROWS], 0, [], []),
        ([ROWS[0][:9], ROWS[0][10:], *ROWS[1:]], 0, [], []),
        ([ROWS[0], ROWS[1].replace(", 40960", ",\n40960")], 0, [], []),
    ],
    ids=[
        "exit 14", "exit 0", "two", "status alone", "banner", "as many commas as a row", "blank", "CR",
        "cut at a blank", "cut at a comma",
    ],
)  # fmt: skip
def test_lines_beside_the_rows_hide_no_row(
    tmp_path: Path, lines: list[str], code: int, notices: list[str], corrupted: list[str]
) -> None:
    """What cannot be a row is kept, and each row is read whatever stands between them."""
    program = tmp_path / "nvidia-smi"
    (tmp_path / "printed").write_text("\n".join(lines) + "\n")
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/printed\nexit {code}\n")
    program.chmod(0o755)
    found = nvidia_smi.read(str(program), command.run)
    assert found is not None
    assert nvidia_smi.answers(found)
    assert [gpu.pci_address for gpu in found.gpus] == ["0000:1a:00.0", "0000:1b:00.0"]
    assert (found.message, found.notices, found.corrupted) == ("", tuple(notices), tuple(corrupted))


def test_halves_of_two_rows_are_no_row() -> None:
    """A row that lost its end stays an error, though the next line has as many values as it lacks."""
    halves = "0, NVIDIA A100, GPU-1, 535.161.08,\n40960, 8.0, nonsense\n1, NVIDIA A100, GPU-2, 535.161.08, 40960, 8.0"
    with pytest.raises(ValueError, match=r"[46] values for 7 fields"):
        nvidia_smi.parse(halves)


@pytest.mark.parametrize("printed", ["<html><body>502 Bad Gateway</body></html>", "\a Segmentation? }{ <<< 42 maybe"])
def test_lines_without_a_row_are_no_answer(printed: str, snapshot: SnapshotAssertion) -> None:
    found = nvidia_smi.read("nvidia-smi", lambda *_: command.Answer(0, printed.encode(), b""))
    assert found is not None
    assert found.gpus == ()
    assert found.message == snapshot


NO_DRIVER = (
    b"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
    b"NVIDIA driver is installed and running.\n\n"
)


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        (command.Answer(9, NO_DRIVER, b""), 9, "couldn't communicate with the NVIDIA driver. Make sure"),
        (
            command.Answer(
                *(lambda c, o: (c, o.encode(), b""))(
                    *transcript(
                        "nvidia-smi-550-errors.txt", "nvidia-smi --query-gpu=index --format=csv,noheader,nounits -i 9"
                    )
                )
            ),
            6,
            "No devices were found",
        ),
        (command.Answer(124, b"", b"/usr/bin/nvidia-smi did not end within 30 s"), 124, "did not end within 30 s"),
    ],
    ids=["not loaded", "no device", "hangs"],
)
def test_failure_has_exit_code_and_message(answer: command.Answer, code: int, message: str) -> None:
    found = nvidia_smi.read("/usr/bin/nvidia-smi", lambda argv, timeout: answer)
    assert found is not None
    assert (found.exit_code, found.gpus) == (code, ())
    assert message in str(found.message)
    assert nvidia_smi.meaning(code) != nvidia_smi.meaning(3)


def test_query_is_repeated_without_an_unknown_field() -> None:
    """For a field that it does not know, branch 470 exits with 2 like the captured program."""
    code, text = transcript("nvidia-smi-550-errors.txt", "nvidia-smi --query-gpu=bogus --format=csv")
    commands = []

    def run(argv: list[str], timeout: float) -> command.Answer:
        commands.append(argv)
        if "compute_cap" in argv[1]:
            return command.Answer(code, text.replace("bogus", "compute_cap").encode(), b"")
        return command.Answer(0, b"0, Tesla K80, GPU-1, 470.256.02, 11441, 00000000:05:00.0\n", b"")

    found = nvidia_smi.read("/usr/bin/nvidia-smi", run)
    assert found is not None
    assert (found.exit_code, len(commands)) == (0, 2)
    assert to_json(found.gpus) == [
        {
            "index": 0,
            "name": "Tesla K80",
            "uuid": "GPU-1",
            "driver_version": "470.256.02",
            "memory_mib": 11441,
            "compute_capability": None,
            "pci_address": "0000:05:00.0",
            "unreadable": [],
        },
    ]


@pytest.mark.parametrize(("takes", "code"), [(60, 0), (150, 0), (400, 124)], ids=["slow", "asked again", "dead"])
def test_a_program_that_takes_a_minute_is_slow_and_not_dead(tmp_path: Path, takes: int, code: int) -> None:
    """A real process; a minute takes a second here, and the time limits are those of that clock."""
    program = tmp_path / "nvidia-smi"
    row = "0, NVIDIA A100, GPU-1, 535.161.08, 40960, 8.0, 00000000:05:00.0"
    program.write_text(f"#!/bin/sh\nsleep {takes / 60}\necho '{row}'\n")
    program.chmod(0o755)
    found = nvidia_smi.read(str(program), command.patient(1 / 60))
    assert found is not None
    assert (found.exit_code, len(found.gpus)) == (code, 0 if code else 1)
    assert found.seconds >= min(takes, 270) / 60


def test_exit_codes_that_are_documented() -> None:
    undocumented = "nvidia-smi failed with an undocumented exit code"
    known = [code for code in range(256) if nvidia_smi.meaning(code) != undocumented]
    # "Return value" in the manual of the branches that have `KMD Version`; 18 is NVML's, the others are a shell's.
    manual = [0, 2, 3, 4, 6, 8, 9, 10, 12, 13, 14, 15, 255]
    assert known == sorted([*manual, 18, 124, 127])


@pytest.mark.parametrize(
    ("bus_id", "address"),
    [("00000000:05:00.0", "0000:05:00.0"), ("00010000:AF:1F.1", "10000:af:1f.1"), ("0001:02:00.0", "0001:02:00.0")],
)
def test_address_is_written_as_sysfs_does(bus_id: str, address: str) -> None:
    assert nvidia_smi.pci_address(bus_id) == address


def test_program_is_found_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"/nonexistent:{tmp_path}")
    assert nvidia_smi.find() == str(program)


def test_query_of_all_gpus() -> None:
    calls: list[tuple[list[str], float]] = []

    def run(argv: list[str], timeout: float) -> command.Answer:
        calls.append((argv, timeout))
        return command.Answer(command.TIMED_OUT if len(calls) == 1 else 2, b"\n Invalid \n option\n", b"")

    found = nvidia_smi.read("/usr/bin/nvidia-smi", run)
    fields = "index,name,uuid,driver_version,memory.total,compute_cap,pci.bus_id"
    query = ["/usr/bin/nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    assert calls == [(query, 90), (query, 180)], "another unknown option is no reason to ask without a field"
    assert found is not None
    assert (found.path, found.exit_code, found.message) == ("/usr/bin/nvidia-smi", 2, "Invalid option")
    assert nvidia_smi.read(None, run) is None


def test_rows_between_blank_lines() -> None:
    row = "3, NVIDIA H100, with a comma, GPU-1, 580.1, 81559, 9.0, 00000000:05:00.0"
    with pytest.raises(ValueError, match=r"printed 8 values for 7 fields: '3, NVIDIA H100"):
        nvidia_smi.parse(row)
    ((gpu,), _) = nvidia_smi.parse("\n  \n" + row.replace(", with a comma", "") + "  \n\n")
    assert (gpu.index, gpu.memory_mib, gpu.pci_address) == (3, 81559, "0000:05:00.0")


@pytest.mark.parametrize(
    ("capability", "output", "code", "expected"),
    [
        # A100 of which the first is in MIG mode, as `nvidia-smi --help-query-gpu` names the mode.
        ("8.0", "00000000:01:00.0, Enabled\n00000000:41:00.0, Disabled\n", 0, ["0000:01:00.0"]),
        ("8.9", "00000000:01:00.0, [N/A]\n", 0, []),
        ("8.0", "00000000:01:00.0, [Unknown Error]\nWARNING: other, line\n", 0, []),
        ("8.0", 'Field "mig.mode.current" is not a valid field to query.\n', 2, []),
        ("7.5", "00000000:01:00.0, Enabled\n", 0, []),  # is not asked
        (None, "00000000:01:00.0, Enabled\n", 0, []),
    ],
)
def test_gpus_in_mig_mode(capability: str | None, output: str, code: int, expected: list[str]) -> None:
    smi = NvidiaSmi(path="nvidia-smi", gpus=(SmiGpu(compute_capability=capability),))
    found = nvidia_smi.in_mig_mode(smi, lambda *_: command.Answer(code, output.encode(), b""))
    assert found == expected
    failed = dataclasses.replace(smi, exit_code=9)
    assert nvidia_smi.in_mig_mode(failed, lambda *_: command.Answer(0, output.encode(), b"")) == []
