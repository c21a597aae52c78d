"""Read `nvidia-smi -q -x` and `nvidia-smi nvlink -s`: what every GPU says of itself and its links. Runs on the target.

Elements are named as NVIDIA's nvsmi_device_v11, v12 and v13 documents name them (drivers 470 to 615). A value that is
not there, not supported or not told is None: whoever reads it must not take that for a good one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator
from xml.etree import ElementTree

from ansible_collections.gpuhost.stack.plugins.module_utils.host.command import Answer, Run

TIMEOUT = 60
_UNKNOWN = (
    "",
    "N/A",
    "Unknown",
    "Not Supported",
    "Not Available",
    "Not Found",
    "Function Not Found",
    "Insufficient Permissions",
    "Requested functionality has been deprecated",
)
# What NVML's functions answer for a GPU that is gone (nvmlErrorString); nvidia-smi prints it in place of the value.
LOST = ("GPU is lost", "GPU requires reset", "Interrupt Request Issue", "Corrupted infoROM")
_NUMBER = re.compile(r"^(-?\d+(?:\.\d+)?)(?: ?[A-Za-z%/]+)?$")
_GPU_LINE = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID: .*\))?$")
_LINK_LINE = re.compile(r"^\s*Link (\d+): (?:([\d.]+) GB/s|<?(\w+)>?)\s*$")


@dataclass(frozen=True)
class Gpu:
    """One GPU of the document; `index` is its place there, which is nvidia-smi's index."""

    index: int
    element: ElementTree.Element

    @property
    def name(self) -> str:
        return self.element.findtext("product_name", "").strip()

    def raw(self, path: str) -> str | None:
        """The text of an element as it stands; None where the driver does not write it."""
        text = self.element.findtext(path)
        return None if text is None else text.strip()

    def text(self, path: str) -> str | None:
        """The value, None where it is unknown."""
        text = (self.raw(path) or "").strip("[]")
        return None if text in _UNKNOWN or text in LOST else text

    def number(self, path: str) -> float | None:
        """The number of "16x", "87 %", "5"; None where there is none."""
        match = _NUMBER.match(self.text(path) or "")
        return float(match.group(1)) if match else None

    def leaves(self, path: str) -> Iterator[tuple[str, str | None]]:
        """(name, value) of every leaf below an element."""
        found = self.element.find(path)
        for leaf in [] if found is None else found.iter():
            if len(leaf) == 0 and leaf is not found:
                text = (leaf.text or "").strip().strip("[]")
                yield leaf.tag, None if text in _UNKNOWN or text in LOST else text

    def lost(self) -> dict[str, str]:
        """The driver's error by the name of the element in whose place it stands."""
        texts = ((leaf.tag, (leaf.text or "").strip().strip("[]")) for leaf in self.element.iter())
        return {name: text for name, text in texts if text in LOST}


@dataclass(frozen=True)
class Log:
    """The document and how the program ended; `gpus` holds those that answered."""

    exit_code: int
    message: str
    gpus: list[Gpu]


def read(path: str, run: Run) -> Log:
    """Asks nvidia-smi once. ValueError when it ended well and printed no such document."""
    answer: Answer = run([path, "-q", "-x"], TIMEOUT)
    output = answer.stdout.decode("utf-8", "replace")
    # A GPU that is lost is told in a line before the document, and the exit code tells it, too.
    before, start, document = output.partition("<?xml")
    if not start:
        if answer.exit_code == 0:
            raise ValueError("%s -q -x printed no XML document: %r" % (path, output[:200]))
        return Log(answer.exit_code, " ".join(answer.text().split()), [])
    return Log(answer.exit_code, " ".join(before.split()), parse(start + document))


def parse(document: str) -> list[Gpu]:
    try:
        root = ElementTree.fromstring(document)
    except ElementTree.ParseError as error:
        raise ValueError("nvidia-smi -q -x printed a document that is not XML: %s" % error) from error
    return [Gpu(index, element) for index, element in enumerate(root.findall("gpu"))]


@dataclass(frozen=True)
class Links:
    """NVLink of one GPU: GB/s a direction by link, None for an inactive one.

    `state`: "links" (told one by one), "inactive" (there are some and all are down), "unsupported".
    """

    state: str
    speeds: dict[int, float | None]


def nvlinks(path: str, run: Run) -> dict[int, Links] | None:
    """By GPU index; a GPU without NVLink has no line in some releases. None when nvidia-smi did not end well."""
    answer = run([path, "nvlink", "-s"], TIMEOUT)
    return parse_nvlinks(answer.stdout.decode("utf-8", "replace")) if answer.exit_code == 0 else None


def parse_nvlinks(output: str) -> dict[int, Links]:
    """The table of `nvidia-smi nvlink --status`; ValueError for a line that it is not known to print."""
    found: dict[int, Links] = {}
    index = None
    for line in output.splitlines():
        gpu, link = _GPU_LINE.match(line), _LINK_LINE.match(line)
        if gpu:
            index = int(gpu.group(1))
            found[index] = Links("unsupported", {})
        elif index is not None and link:
            speeds = dict(found[index].speeds)
            speeds[int(link.group(1))] = float(link.group(2)) if link.group(2) else None
            found[index] = Links("links", speeds)
        elif index is not None and "all links are inactive" in line.lower():
            found[index] = Links("inactive", {})
        elif line.strip() and "not have or support nvlink" not in line.lower():
            raise ValueError("nvidia-smi nvlink -s printed a line of unknown form: %r" % line.strip())
    return found
