"""docs/checks.md against the checks that gpu_verify makes."""

import re
from pathlib import Path

from ansible_collections.gpuhost.stack.plugins.module_utils.checks import framework_checks, model, verify
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import kernel_log

PAGE = (Path(__file__).resolve().parents[2] / "docs/checks.md").read_text()


def rows() -> list[list[str]]:
    """The cells of the tables' rows that begin with an id."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def ids_in_the_code() -> list[str]:
    """With nothing planned every check is skipped, and is there."""
    nothing = model.Context({"components": {}}, "/nonexistent", lambda *args: None, 0, "loaded", "working", "", 0, None)
    found = verify.verify(nothing)["checks"]
    assert {check["status"] for check in found} == {"skip"}
    return [check["id"] for check in found]


def test_the_page_has_every_check_in_its_order_and_no_other():
    assert [cells[0].strip("`") for cells in rows()] == ids_in_the_code()


def test_every_row_says_what_is_looked_at_when_it_passes_when_not_and_what_to_do():
    assert [cells for cells in rows() if len(cells) != 5 or not all(cells)] == []


def test_the_numbers_of_the_kernel_s_messages_are_those_of_the_code():
    lines = [line for line in PAGE.splitlines() if re.match(r"\| (Fail|Shown)", line)]
    numbers = [[int(number) for number in re.findall(r"\b\d+\b", line)] for line in lines]
    assert numbers == [sorted(kernel_log.FATAL), sorted(kernel_log.SAYS_ITSELF), sorted(kernel_log.SHOWN)]


def test_the_tolerance_is_the_code_s():
    assert f"agrees with NumPy's double precision to {framework_checks.TOLERANCE:g} of" in PAGE.replace("1e-5", "1e-05")
