# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse `nvidia-smi -q -x` and `nvidia-smi nvlink -s`: every GPU, its state and its NVLinks.

Elements have the names of NVIDIA's nvsmi_device_v11, v12 and v13 documents (drivers 470 to 615). A value is parsed as
what it must be (a number with its unit, one of some words); it is None if the product or the driver has no such value
(ABSENT, or no such element), and Unreadable if it is anything else, which is never a good value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Container, Iterable, Iterator, Mapping
from xml.etree import ElementTree

from ansible_collections.gpuhost.stack.plugins.module_utils.base import command
from ansible_collections.gpuhost.stack.plugins.module_utils.base.command import Run
from ansible_collections.gpuhost.stack.plugins.module_utils.model.host import PcieLink
from ansible_collections.gpuhost.stack.plugins.module_utils.model.nvidia import CheckedGpu
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import nvidia_smi

ABSENT = ("N/A", "Not Supported", "Requested functionality has been deprecated")
# NVML's errors (nvmlErrorString), which nvidia-smi prints in place of a value: those of a GPU that is lost, and others.
# `Insufficient Permissions` is none of them: well B200 and GB200 have it for `power_smoothing`.
LOST = ("GPU is lost", "GPU requires reset", "Interrupt Request Issue")
CORRUPTED = ("Corrupted infoROM",)
# Of these, those that a driver prints in place of one value of a GPU that works (open-gpu-kernel-modules issue 1193).
OF_A_VALUE = ("Unknown Error", "ERR!", "Function Not Found", "Invalid Argument")
ERRORS = (
    *OF_A_VALUE,
    "Requires Reset",
    "Timeout",
    "Driver Not Loaded",
    "Driver/library version mismatch",
    "GPU access blocked by the operating system",
    "GPU not found",
    "In use by another client",
    "Insufficient External Power",
    "Insufficient Memory",
    "Invalid State",
    "Not Ready",
    "Uninitialized",
)
_END = "</nvidia_smi_log>"
# Names of users' programs, which nvidia-smi does not always write as XML has them; nothing reads them here. A name may
# contain the end of an element: what follows a whole name is the next element, or the end of the process.
_NAME = re.compile(r"<process_name>.*?</process_name>(?=\s*(?:<used_memory>|</process_info>))", re.DOTALL)
_PROCESSES = ("processes", "accounted_processes")  # their leaves are names of users' programs
_GPU_LINE = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID: .*\))?$")
_LINK_LINE = re.compile(r"^\s*Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|<?inactive>?)\s*$", re.IGNORECASE)
# Sentences of `nvlink -s` in place of a GPU's links, and what they mean.
_SENTENCES = {
    "all links are inactive": "inactive",
    "not have or support nvlink": "unsupported",
    "nvlink queries are not supported for devices in mig mode": "mig",
}


class Unreadable(ValueError):
    """A value that is printed, but is not what it must be."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__("%s is %r" % (name, text))


def number(name: str, text: str | None, unit: str = "") -> float | None:
    """Return the number in "16x", "87 %" or "5" with its unit, None if it is absent."""
    if text is None or text in ABSENT:
        return None
    match = re.match(r"^(\d+(?:\.\d+)?) ?%s$" % re.escape(unit), text)
    if not match:
        raise Unreadable(name, text)
    return float(match.group(1))


def choice(name: str, text: str | None, *words: str) -> str | None:
    """Return the text if it is one of the words, None if it is absent."""
    if text is None or text in ABSENT:
        return None
    if text not in words:
        raise Unreadable(name, text)
    return text


@dataclass(frozen=True)
class Gpu:
    """One GPU of the document; `index` is its position, which is nvidia-smi's index.

    corrupted: whether nvidia-smi warns of its infoROM; slot: what the slot offers, of which the document tells nothing
    """

    index: int
    element: ElementTree.Element
    corrupted: bool = False
    slot: PcieLink = field(default_factory=PcieLink)

    @property
    def name(self) -> str:
        """The product name."""
        return self.raw("product_name") or ""

    @property
    def uuid(self) -> str:
        """The UUID, empty if it is not printed."""
        return self.raw("uuid") or ""

    @property
    def bus_id(self) -> str:
        """The PCI address as nvidia-smi writes it: 00000000:05:00.0."""
        return self.element.get("id", "").strip()

    @property
    def pci_address(self) -> str:
        """The PCI address as sysfs writes it, or what nvidia-smi has in its place."""
        try:
            return nvidia_smi.pci_address(self.bus_id)
        except ValueError:
            return self.bus_id

    def raw(self, path: str) -> str | None:
        """Return the text of an element without the brackets around errors, None if the driver does not print it."""
        text = self.element.findtext(path)
        return None if text is None else text.strip().strip("[]")

    def number(self, path: str, unit: str = "") -> float | None:
        """Return the number of an element."""
        return number(path, self.raw(path), unit)

    def choice(self, path: str, *words: str) -> str | None:
        """Return the word of an element."""
        return choice(path, self.raw(path), *words)

    def leaves(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield (name, text) of every leaf below the elements at a path, or of the element itself if it is a leaf."""
        for element in self.element.findall(path):
            yield from _leaves(element)

    def errors(self, words: tuple[str, ...]) -> dict[str, str]:
        """Return which of the errors occur, by the name of the element whose value they replace."""
        known = {word.lower() for word in words}
        parts = [child for child in self.element if child.tag not in _PROCESSES or len(child) == 0]
        leaves = (leaf for part in parts for leaf in _leaves(part))
        return {name: text for name, text in leaves if text.lower() in known}


def _leaves(element: ElementTree.Element) -> Iterator[tuple[str, str]]:
    for leaf in element.iter():
        if len(leaf) == 0:
            yield leaf.tag, (leaf.text or "").strip().strip("[]")


@dataclass(frozen=True)
class Log:
    """The GPUs of the document. `problem` is why it may not list every GPU, None if nvidia-smi succeeded.

    notices: the lines around the document; corrupted: the PCI addresses of GPUs with a corrupted infoROM;
    exit_code: that of nvidia-smi
    """

    gpus: list[Gpu]
    problem: str | None = None
    notices: tuple[str, ...] = ()
    corrupted: tuple[str, ...] = ()
    exit_code: int = 0


def read(path: str, run: Run, left_alone: Container[str] = ()) -> Log:
    """Run `nvidia-smi -q -x`, twice if it hangs. left_alone: PCI addresses of GPUs to leave out."""
    answer = nvidia_smi.ask(run, [path, "-q", "-x"])
    output = answer.output
    # A lost GPU is reported in a line before the document, and by the exit code; warnings stand behind it.
    before, start, rest = output.partition("<?xml")
    document, end, after = rest.rpartition(_END) if _END in rest else (rest, "", "")
    problem = None
    if answer.exit_code not in nvidia_smi.ANSWERS:
        shown = command.Answer(answer.exit_code, before.encode(), answer.stderr)
        problem = "nvidia-smi -q -x: " + shown.ending()
    if not start:
        return Log([], problem or "nvidia-smi -q -x printed no XML document: %r" % output[:200])
    around = before + "\n" + after
    notices = tuple(nvidia_smi.lines(around)) if answer.exit_code in nvidia_smi.ANSWERS else ()
    named = nvidia_smi.corrupted(around + "\n" + answer.stderr.decode("utf-8", "replace"))
    found = tuple(address for address in named if address not in left_alone)
    try:
        gpus = [gpu for gpu in parse(start + document + end) if gpu.pci_address not in left_alone]
        return Log(gpus, problem, notices, found, answer.exit_code)
    except ValueError as error:
        return Log([], problem or str(error), notices, found, answer.exit_code)


def parse(document: str) -> list[Gpu]:
    """Return the GPUs of a document. Raise ValueError if it is not XML."""
    try:
        root = ElementTree.fromstring(_NAME.sub("<process_name/>", document))
    except ElementTree.ParseError as error:
        raise ValueError("nvidia-smi -q -x printed a document that is not XML: %s" % error) from error
    return [Gpu(index, element) for index, element in enumerate(root.findall("gpu"))]


@dataclass(frozen=True)
class Links:
    """The NVLinks of one GPU.

    state: "links" (listed one by one), "inactive" (the GPU has links and all are down), "unsupported", "mig" (not
        queried in MIG mode) or "unknown"
    speeds: GB/s per direction by link, None for an inactive link
    line: with "unknown", the line that is not understood
    """

    state: str
    speeds: dict[int, float | None]
    line: str = ""


def nvlinks(path: str, run: Run, notices: Iterable[str] = ()) -> dict[int, Links]:
    """Return the links by GPU index. Some releases omit a GPU without NVLink. Raise ValueError if nvidia-smi fails.

    notices: lines that nvidia-smi prints beside its rows, too
    """
    answer = nvidia_smi.ask(run, [path, "nvlink", "-s"])
    if answer.exit_code not in nvidia_smi.ANSWERS:
        raise ValueError("nvidia-smi nvlink -s: " + answer.ending())
    return parse_nvlinks(answer.output, notices)


def parse_nvlinks(output: str, notices: Iterable[str] = ()) -> dict[int, Links]:
    """Parse the output of `nvidia-smi nvlink --status`, after the lines that a wrapper prints before the first GPU.

    Raise ValueError for a link that belongs to no GPU, or if there are lines, and none of a GPU.
    """
    found: dict[int, Links] = {}
    index, first = None, ""
    for line in nvidia_smi.lines(output, notices):
        gpu, link = _GPU_LINE.match(line), _LINK_LINE.match(line)
        if gpu:
            index = int(gpu.group(1))
            found[index] = Links("unknown", {}, "nothing")
        elif index is not None:
            found[index] = _add(found[index], line, link)
        elif link:
            raise ValueError("nvidia-smi nvlink -s printed %r" % line)
        else:
            first = first or line
    if first and not found:
        raise ValueError("nvidia-smi nvlink -s printed %r" % first)
    return found


def _add(links: Links, line: str, link: re.Match[str] | None) -> Links:
    """Return the links of a GPU with one more line."""
    if links.state == "unknown" and links.line != "nothing":
        return links
    if link:
        speed = float(link.group(2)) if link.group(2) else None
        return Links("links", {**links.speeds, int(link.group(1)): speed})
    for text, state in _SENTENCES.items():
        if text in line.lower():
            return Links(state, {})
    return Links("unknown", {}, line)


def checked(gpus: Iterable[Gpu], links: Mapping[int, Links] | None) -> list[CheckedGpu]:
    """Return what identifies the GPUs of a document, and their links.

    links: the result of nvlinks(), None if it failed
    """
    absent = Links("unsupported", {})
    return [_checked(gpu, Links("unknown", {}) if links is None else links.get(gpu.index, absent)) for gpu in gpus]


def _checked(gpu: Gpu, links: Links) -> CheckedGpu:
    def text(path: str) -> str | None:
        value = gpu.raw(path)
        return None if value in (None, "", *ABSENT, *ERRORS, *LOST, *CORRUPTED) else value

    def whole(path: str, unit: str = "") -> int | None:
        try:
            value = gpu.number("pci/pci_gpu_link_info/" + path, unit)
        except Unreadable:  # the checks of the links are unknown for it
            return None
        return None if value is None else int(value)

    speeds = [speed for speed in links.speeds.values() if speed]
    return CheckedGpu(
        index=gpu.index,
        pci_address=gpu.pci_address,
        name=gpu.name,
        uuid=gpu.uuid,
        serial=text("serial"),
        memory=text("fb_memory_usage/total"),
        vbios=text("vbios_version"),
        pcie_width=whole("link_widths/current_link_width", "x"),
        pcie_max_width=whole("link_widths/max_link_width", "x"),
        pcie_generation=whole("pcie_gen/current_link_gen"),
        pcie_max_generation=whole("pcie_gen/max_link_gen"),
        nvlinks=len(links.speeds) if links.state in ("links", "unsupported") else None,
        nvlinks_up=len(speeds) if links.state in ("links", "unsupported", "inactive") else None,
        nvlink_gb_per_second=max(speeds, default=None),
    )
