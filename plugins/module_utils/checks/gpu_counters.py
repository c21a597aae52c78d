# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Read what GPUs and their NVLinks count, and judge it: errors, replays, recoveries, time with lowered clocks.

Counters are those of `nvidia-smi -q -x` (COUNTED) and `nvidia-smi nvlink -e`. The rows that judge them are `counters`
of catalog/gpu_thresholds.yml. Standard library only, and nothing of the collection: smoke_train.py has a copy.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Set, Tuple
from xml.etree import ElementTree

PASS, WARN, FAIL, UNKNOWN, IGNORED = "pass", "warn", "fail", "unknown", "ignored"
_ANSWERS = (0, 14)  # 14: it warns of an infoROM, and prints all the same
OUTCOMES = (FAIL, UNKNOWN, WARN, PASS)  # from the worst on
PER_SECOND, PER_PCIE, VALUE = "per second", "per minute, GT/s and lane", "value"
UNITS = (PER_SECOND, PER_PCIE, VALUE)
# How nvidia-smi prints a value that the product does not have.
_ABSENT = ("N/A", "Not Supported", "Requested functionality has been deprecated", "")
# Where counters are, below an element of a GPU, and what is in front of their names.
COUNTED = (
    ("pci/replay_counter", ""),
    ("pci/replay_rollover_counter", ""),
    ("ecc_errors/volatile", "volatile/"),
    ("clocks_event_reasons_counters", ""),
    ("remapped_rows/remapped_row_corr", ""),
    ("remapped_rows/remapped_row_unc", ""),
)
_RETIRED = ("multiple_single_bit_retirement", "double_bit_retirement")
_INTEGER = re.compile(r"^(\d+)(?: us)?$")
_GPU_LINE = re.compile(r"^GPU (\d+): ")
_COUNTER_LINE = re.compile(r"^Link (\d+): (\S.*?)\s*: (\S.*)$")
_INACTIVE_LINE = re.compile(r"^Link (\d+): <?inactive>?$", re.IGNORECASE)
_NUMBER = re.compile(r"^\d+(?:\.\d+)?(?:e[-+]?\d+)?$", re.IGNORECASE)
# Sentences in place of a GPU's counters: no link, none that is up, or not asked in MIG mode.
_SENTENCES = (
    "all links are inactive",
    "not have or support nvlink",
    "nvlink queries are not supported for devices in mig mode",
    "unable to retrieve nvlink information: not supported",
)
NOT_COMPARABLE = ", cleared or not printed before"
# A user's name of a program may have the end of an element in it.
_NAME = re.compile(r"<process_name>.*?</process_name>(?=\s*(?:<used_memory>|</process_info>))", re.DOTALL)
_WARNING = "WARNING: infoROM is corrupted at gpu "
# GT/s of a lane by generation (PCI Express Base Specification).
GIGATRANSFERS = (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)
_GEN_3_X16 = 8.0 * 16
# From this generation on, an idle GPU also leaves lanes unused (L0p, PCI Express Base Specification 6.0).
PARTIAL_GENERATION = 6

Name = Tuple[str, str]  # the link's number, or empty, and the counter's name


@dataclass(frozen=True)
class Counters:
    """The counters of one GPU; `unreadable` is what is printed, and is not what it must be.

    pcie: GT/s of all lanes that the link has, as its generation under load
    """

    index: int
    address: str
    values: Mapping[Name, float]
    unreadable: Tuple[str, ...] = ()
    pcie: float = _GEN_3_X16


@dataclass(frozen=True)
class Finding:
    """The outcome of some counters of a GPU with one name, and what they count."""

    outcome: str
    text: str


@dataclass(frozen=True)
class Links:
    """What `nvidia-smi nvlink -e` printed, by GPU."""

    values: Dict[int, Dict[Name, float]] = field(default_factory=dict)
    unreadable: Dict[int, List[str]] = field(default_factory=dict)


def of_document(element: ElementTree.Element, index: int) -> Counters:
    """Return the counters of a <gpu> element."""
    values: Dict[Name, float] = {}
    unreadable: List[str] = []
    for path, prefix in COUNTED:
        for found in element.findall(path):
            for name, text in _leaves(found, prefix):
                _add(values, unreadable, name, text)
    for name in _RETIRED:
        _add(values, unreadable, name, element.findtext("retired_pages/%s/retired_count" % name, "").strip())
    address = element.get("id", "").strip().lower()
    if re.match(r"^[0-9a-f]{8}:", address):
        address = address[4:]
    return Counters(index, address, values, tuple(unreadable), _pcie(element))


def _leaves(element: ElementTree.Element, prefix: str) -> Iterable[Tuple[str, str]]:
    if len(element) == 0:
        yield prefix + element.tag, (element.text or "").strip().strip("[]")
    for child in element:
        yield from _leaves(child, prefix if len(child) == 0 else "%s%s/" % (prefix, child.tag))


def _add(values: Dict[Name, float], unreadable: List[str], name: str, text: str) -> None:
    match = _INTEGER.match(text)
    if match:
        values["", name] = float(match.group(1))
    elif text not in _ABSENT:
        unreadable.append("%s is %r" % (name, text))


def _pcie(element: ElementTree.Element) -> float:
    """Return GT/s of all lanes; of Gen 3 x16, the least that these GPUs have, where they are not printed.

    The generation is the highest of GPU and slot together, since an idle GPU lowers the current one. So are the lanes
    from PCIe 6 on, where an idle GPU leaves some unused (L0p).
    """
    link = "pci/pci_gpu_link_info/"
    generation = re.match(r"^(\d+)$", (element.findtext(link + "pcie_gen/max_link_gen") or "").strip())
    number = int(generation.group(1)) if generation else 0
    if number == 0:
        return _GEN_3_X16
    lanes = link + "link_widths/%s_link_width" % ("max" if number >= PARTIAL_GENERATION else "current")
    width = re.match(r"^(\d+)x$", (element.findtext(lanes) or "").strip())
    if not width:
        return _GEN_3_X16
    return GIGATRANSFERS[min(number, len(GIGATRANSFERS)) - 1] * int(width.group(1))


def of_links(lines: Iterable[str]) -> Links:
    """Parse the lines of `nvidia-smi nvlink -e`, after those that a wrapper prints before the first GPU.

    Raise ValueError if there are lines, and none of a GPU.
    """
    found, index, first = Links(), None, ""
    for line in (line.strip() for line in lines if not line.startswith(_WARNING)):
        gpu = _GPU_LINE.match(line)
        if gpu:
            index = int(gpu.group(1))
            found.values[index], found.unreadable[index] = {}, []
        elif index is None:
            first = first or line
        elif line and not _INACTIVE_LINE.match(line) and not any(text in line.lower() for text in _SENTENCES):
            counter = _COUNTER_LINE.match(line)
            if counter and _NUMBER.match(counter.group(3)):
                found.values[index][counter.group(1), counter.group(2)] = float(counter.group(3))
            elif not counter or counter.group(3).strip("[]") not in _ABSENT:
                found.unreadable[index].append("nvidia-smi nvlink -e printed %r" % line)
    if first and index is None:
        raise ValueError("nvidia-smi nvlink -e printed %r" % first)
    return found


def with_links(gpu: Counters, links: Links) -> Counters:
    """Return the counters of a GPU with those of its links; a GPU without NVLink may not be listed."""
    values = {**gpu.values, **links.values.get(gpu.index, {})}
    unreadable = (*gpu.unreadable, *links.unreadable.get(gpu.index, []))
    return Counters(gpu.index, gpu.address, values, unreadable, gpu.pcie)


# The judgement ----------------------------------------------------------------------------------------------------


def row_of(rows: Sequence[Mapping[str, Any]], name: str) -> Tuple[Mapping[str, Any], str]:
    """Return the row of a counter and the name in it; of one that no row knows, a row that warns of growth."""
    for row in rows:
        for pattern in row["names"]:
            if fnmatchcase(name.lower(), pattern.lower()):
                return row, pattern
    return {"names": (name,), "total": PASS, "grows": WARN}, name


def totals(gpu: Counters, rows: Sequence[Mapping[str, Any]]) -> List[Finding]:
    """Return what a GPU has counted so far and is shown: at most a warning, whenever it was counted."""
    found = []
    for name, counters in _by_name(gpu.values).items():
        row, _pattern = row_of(rows, name)
        counted = {link: value for link, value in counters.items() if value}
        if row.get("unit") == VALUE:
            counted = {link: value for link, value in counted.items() if value > row["limit"]}
            found += [Finding(WARN, _text(name, counted))] if counted else []
        elif counted and row["total"] != IGNORED:
            found.append(Finding(row["total"], _text(name, counted)))
    return found


def compare(
    before: Mapping[str, Counters], after: Mapping[str, Counters], seconds: float, rows: Sequence[Mapping[str, Any]]
) -> Dict[int, List[Finding]]:
    """Return what each GPU counted between two readings, by its index; what cannot be compared is UNKNOWN."""
    found: Dict[int, List[Finding]] = {}
    for address in sorted({*before, *after}):
        pair = [reading[address] for reading in (before, after) if address in reading]
        findings = [Finding(UNKNOWN, text) for gpu in pair for text in gpu.unreadable]
        if len(pair) == 2:
            findings += growth(pair[0], pair[1], seconds, rows)
        else:
            findings.append(Finding(UNKNOWN, "not listed %s" % ("before" if address in after else "any more")))
        found[pair[-1].index] = list(dict.fromkeys(findings))
    return found


def growth(before: Counters, after: Counters, seconds: float, rows: Sequence[Mapping[str, Any]]) -> List[Finding]:
    """Return what a GPU counted between two readings that are `seconds` apart.

    A counter that is lower than before was cleared in between. What it shows then, and what one shows that was not
    printed before, may be of an earlier time, and is judged as a total. Counters that always grow are summed up over
    the links and over the names of their row.
    """
    found, always = [], {}  # type: List[Finding], Dict[str, Dict[str, float]]
    earlier_by_name, later_by_name = _by_name(before.values), _by_name(after.values)
    for name, earlier in earlier_by_name.items():
        lost = sorted(set(earlier) - set(later_by_name.get(name, {})), key=_number)
        if lost and row_of(rows, name)[0]["grows"] != IGNORED:
            found.append(Finding(UNKNOWN, "%s no longer printed" % _text(name, dict.fromkeys(lost))))
    for name, later in later_by_name.items():
        (row, pattern), earlier = row_of(rows, name), earlier_by_name.get(name, {})
        grown = {link: value - earlier[link] for link, value in later.items() if value > earlier.get(link, value)}
        since = {link: value for link, value in later.items() if value and value < earlier.get(link, math.inf)}
        if row.get("unit") == VALUE:
            above = {link: later[link] for link in grown if later[link] > row["limit"]}
            found += [Finding(row["over"], _text(name, above))] if above else []
            since = {link: value for link, value in since.items() if link not in earlier and value > row["limit"]}
            found += [Finding(WARN, _text(name, since) + NOT_COMPARABLE)] if since else []
        elif row["grows"] == IGNORED:
            for link, value in grown.items():
                sums = always.setdefault(pattern, {})
                sums[link] = sums.get(link, 0.0) + value
        else:
            has_limit = row.get("limit") is not None
            is_over = has_limit and any(value > _limit(row, after, seconds) for value in grown.values())
            found += [Finding(row["over"] if is_over else row["grows"], _text(name, grown, "+"))] if grown else []
            found += [Finding(row["total"], _text(name, since) + NOT_COMPARABLE)] if since else []
    return found + [Finding(IGNORED, _text(pattern, sums, "+")) for pattern, sums in always.items()]


def _limit(row: Mapping[str, Any], gpu: Counters, seconds: float) -> float:
    """Return by how much a counter may grow; DCGM counts over a minute, so that a shorter time is none for PCIe."""
    if row["unit"] == PER_PCIE:
        return math.ceil(float(row["limit"]) * gpu.pcie) * max(1.0, seconds / 60)
    return float(row["limit"]) * max(1.0, seconds)


def _by_name(values: Mapping[Name, float]) -> Dict[str, Dict[str, float]]:
    found: Dict[str, Dict[str, float]] = {}
    for (link, name), value in values.items():
        found.setdefault(name, {})[link] = value
    return found


def _number(link: str) -> int:
    return int(link or -1)


def _text(name: str, values: Mapping[str, Any], sign: str = "") -> str:
    """Return a counter with its value, or with those of its links; more than four links are summed up."""
    if "" in values:
        return name if values[""] is None else "%s %s%.15g" % (name, sign, values[""])
    links = sorted(values, key=_number)
    if len(links) > 4 and sign:
        return "%s %s%.15g on %d links" % (name, sign, sum(values.values()), len(links))
    listed = ", ".join(
        "link %s" % link if values[link] is None else "link %s: %s%.15g" % (link, sign, values[link]) for link in links
    )
    return "%s (%s)" % (name, listed)


def worst(findings: Iterable[Finding]) -> str:
    """Return the worst outcome, PASS without a finding."""
    outcomes = {finding.outcome for finding in findings}
    return next((outcome for outcome in OUTCOMES if outcome in outcomes), PASS)


# Both queries -----------------------------------------------------------------------------------------------------

Run = Callable[[Sequence[str]], Tuple[int, str]]  # runs nvidia-smi with arguments; returns its exit code and its output


def read(run: Run) -> Tuple[Dict[str, Counters], str]:
    """Ask nvidia-smi for the counters of all GPUs, by PCI address; return what is wrong, empty if they were read."""
    code, output = run(["-q", "-x"])
    start, end = output.find("<?xml"), output.rfind("</nvidia_smi_log>")
    if code not in _ANSWERS or start < 0 or end < 0:
        return (
            {},
            "nvidia-smi -q -x ended with %d" % code if code not in _ANSWERS else "nvidia-smi -q -x printed no XML",
        )
    document = _NAME.sub("", output[start:end]) + "</nvidia_smi_log>"
    try:
        elements = ElementTree.fromstring(document).findall("gpu")
    except ElementTree.ParseError as error:
        return {}, "nvidia-smi -q -x printed no XML: %s" % error
    links = read_links(run, len(elements))
    gpus = [with_links(of_document(element, index), links) for index, element in enumerate(elements)]
    return {gpu.address: gpu for gpu in gpus}, ""


def read_links(run: Run, gpus: int) -> Links:
    """Ask nvidia-smi for the counters of the links of all GPUs; those of a GPU that are not printed are unreadable.

    A GPU without a link that is up counts nothing: whether it has one, `nvidia-smi nvlink -s` tells.
    """
    code, output = run(["nvlink", "-e"])
    links, problem = Links(), "nvidia-smi nvlink -e ended with %d" % code
    if code in _ANSWERS:
        try:
            links, problem = of_links(output.split("\n")), "nvidia-smi nvlink -e printed no counter"
        except ValueError as error:
            problem = str(error)
    without = [index for index in range(gpus) if not links.values.get(index) and not links.unreadable.get(index)]
    if without:
        code, output = run(["nvlink", "-s"])
        up = _up(output.split("\n")) if code in _ANSWERS else set(without)
        links.unreadable.update({index: [problem] for index in without if index in up})
    return links


def _up(lines: Iterable[str]) -> Set[int]:
    """Return the GPUs of which `nvidia-smi nvlink -s` prints the speed of a link."""
    found, index = set(), -1
    for line in (line.strip() for line in lines):
        gpu = _GPU_LINE.match(line)
        if gpu:
            index = int(gpu.group(1))
        elif re.match(r"^Link \d+: \d", line):
            found.add(index)
    return found
