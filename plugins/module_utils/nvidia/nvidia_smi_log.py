# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Parse `nvidia-smi -q -x` and `nvidia-smi nvlink -s`: the state of every GPU and its NVLinks.

Elements have the names of NVIDIA's nvsmi_device_v11, v12 and v13 documents (drivers 470 to 615). A value that is
absent, not supported or not reported is None, which callers must not treat as a good value.
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
# NVML's errors for a GPU that is lost (nvmlErrorString); nvidia-smi prints them in place of the value.
LOST = ("GPU is lost", "GPU requires reset", "Interrupt Request Issue", "Corrupted infoROM")
_NUMBER = re.compile(r"^(-?\d+(?:\.\d+)?)(?: ?[A-Za-z%/]+)?$")
_GPU_LINE = re.compile(r"^GPU (\d+): (.*?)(?: \(UUID: .*\))?$")
_LINK_LINE = re.compile(r"^\s*Link (\d+): (?:([\d.]+) GB/s|<?(\w+)>?)\s*$")


@dataclass(frozen=True)
class Gpu:
    """One GPU of the document; `index` is its position, which is nvidia-smi's index."""

    index: int
    element: ElementTree.Element

    @property
    def name(self) -> str:
        """The product name."""
        return self.element.findtext("product_name", "").strip()

    def raw(self, path: str) -> str | None:
        """Return the unchanged text of an element, None if the driver does not print it."""
        text = self.element.findtext(path)
        return None if text is None else text.strip()

    def text(self, path: str) -> str | None:
        """Return the value of an element, None if it is unknown."""
        text = (self.raw(path) or "").strip("[]")
        return None if text in _UNKNOWN or text in LOST else text

    def number(self, path: str) -> float | None:
        """Return the number in a value such as "16x", "87 %" or "5", None without a number."""
        match = _NUMBER.match(self.text(path) or "")
        return float(match.group(1)) if match else None

    def leaves(self, path: str) -> Iterator[tuple[str, str | None]]:
        """Yield (name, value) of every leaf of an element."""
        found = self.element.find(path)
        for leaf in [] if found is None else found.iter():
            if len(leaf) == 0 and leaf is not found:
                text = (leaf.text or "").strip().strip("[]")
                yield leaf.tag, None if text in _UNKNOWN or text in LOST else text

    def lost(self) -> dict[str, str]:
        """Return the errors of LOST by the name of the element whose value they replace."""
        texts = ((leaf.tag, (leaf.text or "").strip().strip("[]")) for leaf in self.element.iter())
        return {name: text for name, text in texts if text in LOST}


@dataclass(frozen=True)
class Log:
    """The GPUs of the document, the exit code, and what nvidia-smi prints before the document."""

    exit_code: int
    message: str
    gpus: list[Gpu]


def read(path: str, run: Run) -> Log:
    """Run `nvidia-smi -q -x`. Raise ValueError if it succeeds without printing a valid document."""
    answer: Answer = run([path, "-q", "-x"], TIMEOUT)
    output = answer.stdout.decode("utf-8", "replace")
    # A lost GPU is reported in a line before the document, and by the exit code.
    before, start, document = output.partition("<?xml")
    if not start:
        if answer.exit_code == 0:
            raise ValueError("%s -q -x printed no XML document: %r" % (path, output[:200]))
        return Log(answer.exit_code, " ".join(answer.text().split()), [])
    return Log(answer.exit_code, " ".join(before.split()), parse(start + document))


def parse(document: str) -> list[Gpu]:
    """Return the GPUs of a document. Raise ValueError if it is not XML."""
    try:
        root = ElementTree.fromstring(document)
    except ElementTree.ParseError as error:
        raise ValueError("nvidia-smi -q -x printed a document that is not XML: %s" % error) from error
    return [Gpu(index, element) for index, element in enumerate(root.findall("gpu"))]


@dataclass(frozen=True)
class Links:
    """The NVLinks of one GPU.

    state: "links" (listed one by one), "inactive" (the GPU has links and all are down) or "unsupported"
    speeds: GB/s per direction by link, None for an inactive link
    """

    state: str
    speeds: dict[int, float | None]


def nvlinks(path: str, run: Run) -> dict[int, Links] | None:
    """Return the links by GPU index, None if nvidia-smi fails. Some releases omit a GPU without NVLink."""
    answer = run([path, "nvlink", "-s"], TIMEOUT)
    return parse_nvlinks(answer.stdout.decode("utf-8", "replace")) if answer.exit_code == 0 else None


def parse_nvlinks(output: str) -> dict[int, Links]:
    """Parse the output of `nvidia-smi nvlink --status`. Raise ValueError for a line in an unknown format."""
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
            raise ValueError("nvidia-smi nvlink -s printed a line in an unknown format: %r" % line.strip())
    return found
