"""Find the GPUs that a user describes: by name, PCI id or compute capability, and how many of them.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import shlex
from collections.abc import Sequence

from ansible_collections.gpuhost.stack.plugins.module_utils.host import pci
from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import PlanInputError
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog, Product
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.host import HostGpu

MOST_GPUS = 999  # of a kind
_MOST = 8  # products that a message lists
_NVIDIA = "10de"
_SHOWN = "`lspci -n -d 10de:` shows it"
_NAMELESS = "graphics device"  # what NVIDIA's driver calls a board that its table of names lacks
_PCI_ID = re.compile(r"(?:0x)?([0-9a-f]{4}):(?:0x)?([0-9a-f]{4})")
_FUNCTION = re.compile(
    r"(?:(?P<number>\d{1,4})\s*x\s*)?(?P<vendor>[0-9a-f]{4}):(?P<device>[0-9a-f]{4})(?:=(?P<data>[a-z_]+))?", re.ASCII
)
_COUNTED = re.compile(r"(-?\d+)\s*[xX*\u00d7]\s*(\S.*)", re.ASCII)
# Other ways to say how many: `8 H100`, `H100 x8`, `H100 (8)`.
_COUNTED_OTHERWISE = (
    re.compile(r"(?P<number>\d+)\s+(?P<gpu>\S.*)"),
    re.compile(r"(?P<gpu>\S.*?)\s*[xX*\u00d7]\s*(?P<number>\d+)"),
    re.compile(r"(?P<gpu>\S.*?)\s*[(\[](?P<number>\d+)[)\]]"),
)
_SEVERAL = re.compile(r"\s*(?:[,;+&]|\band\b)\s*", re.IGNORECASE)
_MACHINE = re.compile(r"(dgx|hgx|egx|mgx|ovx|igx)([\d-].*)?|(super|base)?pod", re.IGNORECASE)
_PART = re.compile(r"mig|(\d+c\.)?\d+g\.\d+gb(\+me|-me)?", re.IGNORECASE)
# A card, its number of slices (MIG), GB, and what it is for: GRID T4-16Q, A100-2-10C, M60-2B4 (vGPU user guide).
_VGPU = re.compile(r"(grid )?(?P<card>.+?)(-\d)?-\d+([qac]|b4?)(me)?", re.IGNORECASE)
# What pci.ids, which lspci reads, has in names: `GA106 [GeForce RTX 3060 Lite Hash Rate]`, `RTX 3070 Mobile / Max-Q`.
_CHIP = re.compile(r".*\[(?P<name>.*[a-z].*)\].*", re.IGNORECASE)
_HASH_RATE = re.compile(r" lite hash rate$", re.IGNORECASE)
_MOBILE = re.compile(r" (mobile|max-q)( ?/ ?(mobile|max-q))?$", re.IGNORECASE)
_JETSON = re.compile(r"\b(jetson|tegra|orin|xavier)\b", re.IGNORECASE)
_OF_OTHERS = {
    "AMD": re.compile(r"\b(amd|ati|radeon|instinct|firepro|mi\d{2,3}[a-z]?|rx ?\d{3,4}( ?xtx?)?)\b", re.IGNORECASE),
    "Intel": re.compile(r"\b(intel|arc|gaudi ?\d*|ponte vecchio|flex ?\d+|xeon)\b", re.IGNORECASE),
    "Google": re.compile(r"\b(google|tpu( ?v\d\w*)?)\b", re.IGNORECASE),
    "Amazon": re.compile(r"\b(trainium\d?|inferentia\d?)\b", re.IGNORECASE),
    "Apple": re.compile(r"\b(apple|m\d (pro|max|ultra))\b", re.IGNORECASE),
}


@dataclasses.dataclass(frozen=True)
class Switches:
    """The PCI ids of a board's NVSwitches, and how many functions manage those of NVLink 5."""

    nvswitches: tuple[str, ...] = ()
    managers: int = 0


def find_switches(catalog: Catalog, texts: Sequence[str], mistakes: list[str]) -> Switches:
    """Return the switches among described PCI functions; adds what is wrong with these to the mistakes."""
    nvswitches: list[str] = []
    managers = 0
    for text in texts:
        match = _FUNCTION.fullmatch(text.strip().lower())
        number = int(match["number"] or 1) if match else 0
        if match is None or not 1 <= number <= MOST_GPUS:
            mistakes.append(
                f"--pci {text!r}: expected VENDOR:DEVICE as lspci -n prints it, such as 10de:22a3, or 4x10de:22a3 for "
                f"four (at most {MOST_GPUS})"
            )
        elif match["vendor"] == _NVIDIA and match["device"] in catalog.products:
            name = catalog.products[match["device"]].name
            mistakes.append(f"--pci {text!r}: this is a GPU, {name}; use --gpu {match['vendor']}:{match['device']}")
        elif match["vendor"] == pci.NVIDIA and match["device"] in pci.NVSWITCH_IDS:
            nvswitches += [f"{match['vendor']}:{match['device']}"] * number
        elif match["vendor"] == pci.MELLANOX and match["data"] == pci.MANAGES_SWITCHES.decode().lower():
            managers += number
    return Switches(tuple(nvswitches), managers)


def find_gpus(catalog: Catalog, text: str) -> tuple[HostGpu, ...]:
    """Return the GPUs for an option, a GPU or a number of them such as `8xH100`; raises PlanInputError."""
    text = text.strip()
    if match := re.fullmatch(r"0x([0-9a-f]{4})", text.lower()):
        raise PlanInputError(f"--gpu {text!r}: found half of a PCI id; did you mean {_NVIDIA}:{match.group(1)}?")
    counted = _COUNTED.fullmatch(text)
    if counted is None or _PCI_ID.fullmatch(text.lower()):
        return (find_gpu(catalog, text),)
    number = int(counted.group(1))
    if not 1 <= number <= MOST_GPUS:
        raise PlanInputError(
            f"--gpu {text!r}: found {number} GPUs; expected 1 to {MOST_GPUS} of a kind, such as 8xH100"
        )
    return (find_gpu(catalog, counted.group(2)),) * number


def find_gpu(catalog: Catalog, text: str) -> HostGpu:
    """Return the GPU for a PCI id, `cc:X.Y` (or `sm_XY`) or a name; raises PlanInputError if unknown or ambiguous."""
    if match := _PCI_ID.fullmatch(text.strip().lower()):
        if match.group(1) != _NVIDIA:
            raise PlanInputError(
                f"{text!r} is the PCI id of another vendor; expected one of NVIDIA, such as {_NVIDIA}:2330"
            )
        return HostGpu(f"{_NVIDIA}:{match.group(2)}")
    if match := re.fullmatch(r"(?:cc:\s*(\d+)(?:\.(\d+))?|sm_?(\d+)(\d))", text.strip().lower(), re.ASCII):
        major, minor = match.group(1) or match.group(3), match.group(2) or match.group(4) or "0"
        return _by_capability(catalog, f"{major}.{minor}")
    return _by_name(catalog, text)


def _by_capability(catalog: Catalog, capability: str) -> HostGpu:
    known = [c for a in catalog.gpu.architectures for c in a.compute_capabilities]
    if capability not in known:
        raise PlanInputError(
            f"no GPU has compute capability {capability}; known: {', '.join(sorted(known, key=versions.key))}"
        )
    return HostGpu(f"cc:{capability}", compute_capability=capability)


def _words(name: str) -> str:
    return " ".join(w for w in re.split(r"[\s/-]+", name.lower()) if w not in ("nvidia", "geforce", "tesla", ""))


def _by_name(catalog: Catalog, text: str) -> HostGpu:
    """Match the exact name, then the name without NVIDIA, GeForce and Tesla, then without blanks, then parts of it."""
    others = [dataclasses.replace(catalog.products[n.device], name=n.name) for n in catalog.gpu_names]
    products = sorted(
        [*catalog.products.values(), *others], key=lambda p: (p.source != "supported-gpus.json", p.device)
    )
    wanted = _words(text)
    if wanted == _NAMELESS:
        raise PlanInputError(
            f"{text!r} is how a driver calls any board that it has no name for; give its PCI id ({_SHOWN})"
        )
    tests = (
        lambda p: p.name.lower() == text.strip().lower(),
        lambda p: _words(p.name) == wanted,
        lambda p: _words(p.name).replace(" ", "") == wanted.replace(" ", ""),
        lambda p: f" {wanted} " in f" {_words(p.name)} ",
        lambda p: set(wanted.split()) <= set(_words(p.name).split()),
        lambda p: re.search(rf"(^| ){re.escape(wanted)}[a-z]( |$)", _words(p.name)),  # K40 for K40m, K40c
    )
    for test in tests if wanted else ():
        found = [p for p in products if test(p)]
        kinds = {(p.compute_capability, p.kernel_modules, p.last_driver_branch) for p in found}
        if len(kinds) > 1:
            is_one = len({_words(p.name) for p in found}) == 1
            give = f"the PCI id of yours ({_SHOWN})" if is_one else "one of these names, or a PCI id"
            raise PlanInputError(
                f"the name {text!r} fits GPUs of different generations: {_listed(found, by_id=is_one)}; give {give}"
            )
        if found:
            # `3090` is no 3090 Ti.
            return HostGpu(f"10de:{min(found, key=lambda p: len(_words(p.name).split())).device}")
    for other in _without_words_of_lspci(text):
        if _is_known(catalog, other):
            return find_gpu(catalog, other)
    if why := _of_another_kind(catalog, text):
        raise PlanInputError(f"{text!r} {why}")
    near = _listed(_similar(wanted, products))
    meant = _described_otherwise(catalog, text)
    raise PlanInputError(
        f"no GPU has the name {text!r}; expected a product's name, a PCI id such as 10de:2330 ({_SHOWN}) or cc:9.0"
        + (f"; did you mean {meant}?" if meant else f". Did you mean {near}?" if near else "")
    )


def _without_words_of_lspci(text: str) -> list[str]:
    """Return what NVIDIA may call a GPU that has words of pci.ids in its name; none where it has not."""
    name = _HASH_RATE.sub("", _CHIP.sub(r"\g<name>", text.strip()))
    return [
        other
        for other in dict.fromkeys((name, _MOBILE.sub(" Laptop GPU", name), _MOBILE.sub("", name)))
        if other != text.strip()
    ]


def _is_known(catalog: Catalog, text: str) -> bool:
    try:
        return bool(find_gpus(catalog, text))
    except PlanInputError:
        return False


def _of_another_kind(catalog: Catalog, text: str) -> str:
    """Return what a name is that is not a GPU's, and what was expected; empty if it is nothing known."""
    for vendor, names in _OF_OTHERS.items():
        if names.search(text):
            return f"is of {vendor}; expected a GPU of NVIDIA"
    if _JETSON.search(text):
        return "is a Jetson, whose driver and CUDA are those of its JetPack; expected a GPU of its own on the PCI bus"
    for kind, gpus, example in (
        (_MACHINE, "a machine; expected its GPUs, such as --gpu 8x", "H100"),
        (_PART, "a part of a GPU; expected the whole one, such as --gpu ", "A100"),
    ):
        others = [word for word in text.split() if not kind.fullmatch(word)]
        if len(others) < len(text.split()):
            rest = " ".join(others)
            return f"is {gpus}{shlex.quote(rest) if _is_known(catalog, rest) else example}"
    if vgpu := _VGPU.fullmatch(text.strip()):
        card = vgpu["card"] if _is_known(catalog, vgpu["card"]) else "A100"
        return (
            "is a vGPU, whose driver only licensees get from NVIDIA; expected a whole GPU, such as --gpu "
            f"{shlex.quote(card)}"
        )
    return ""


def _described_otherwise(catalog: Catalog, text: str) -> str:
    """Return what to type where known GPUs were described in another way: a number elsewhere, several in one option."""
    for counted in _COUNTED_OTHERWISE:
        match = counted.fullmatch(text.strip())
        if match and _is_known(catalog, match["gpu"]):
            return shlex.quote(f"{match['number']}x{match['gpu']}")
    parts = [part for part in _SEVERAL.split(text.strip()) if part]
    if len(parts) > 1 and all(_is_known(catalog, part) for part in parts):
        return " ".join(f"--gpu {shlex.quote(part)}" for part in parts)
    return ""


def _similar(wanted: str, products: Sequence[Product]) -> list[Product]:
    """Return the products that have most words of a name, above all its numbers; else those that are spelt like it."""
    words = set(wanted.split())

    def common(product: Product) -> tuple[int, int]:
        shared = {word for word in words if any(w.startswith(word) for w in _words(product.name).split())}
        return sum(any(c.isdigit() for c in word) for word in shared), len(shared)

    best = max(map(common, products), default=(0, 0))
    named = products if best[0] == 0 else [p for p in products if common(p) == best]
    spelt = difflib.get_close_matches(wanted, [_words(p.name) for p in named], _MOST, 0.6 if best[0] == 0 else 0.0)
    return [next(p for p in named if _words(p.name) == name) for name in dict.fromkeys(spelt)]


def _listed(products: Sequence[Product], by_id: bool = False) -> str:
    """Return the products by name or PCI id, each with its compute capability and a PCI id, the newest first."""
    named: dict[str, Product] = {}
    for product in products:
        named.setdefault(product.device if by_id else product.name, product)
    ordered = sorted(named.values(), key=lambda p: versions.key(p.compute_capability), reverse=True)
    shown = ", ".join(f"{p.name} ({p.compute_capability}, 10de:{p.device})" for p in ordered[:_MOST])
    return shown + (f" and {len(ordered) - _MOST} more" if len(ordered) > _MOST else "")
