"""Compare the catalog with what its authors did not write, entry by entry, for script/catalog-check --deep.

Runs on the controller; pure functions. Every entry is confirmed by a source, contradicted by one, or taken on trust
from the source that it names. live_sources.py and cli.py read the sources.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import (
    Catalog,
    Distro,
    DistroDriver,
    FrameworkRelease,
    PytorchRelease,
    TensorflowRelease,
    Toolkit,
)

from tools.catalog.device_code import Code, Group, native_in_most, runs

VERDICTS = ("confirmed", "contradicted", "trusted")
# Chips of GPUs since Fermi in pci.ids; those before have other letters, or are in gpu.yml's legacy.
_CHIP = re.compile(r"(?P<chip>(GF|GK|GM|GP|GV|TU|GA|AD|GH|GB|GR)\d{2}[0-9A-F][0-9A-Z]{0,2})\b")
_NO_GPU = re.compile(r"audio|usb|ucsi|bridge|serial bus|nvswitch|controller|nvlink", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What a source says about an entry. text: both values where they differ, else what was compared."""

    entry: str
    source: str
    agrees: bool
    text: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result for an entry. by: the sources that confirm or contradict it, else the one that is trusted."""

    entry: str
    verdict: str
    by: str
    text: str = ""


def entries(catalog: Catalog) -> dict[str, str]:
    """Return the source that each entry of the catalog names, by the entry's place."""
    found = {f"tensorflow.yml releases[{r.version}]": r.source for r in catalog.tensorflow.releases}
    found |= {f"pytorch.yml releases[{r.version}]": r.source for r in catalog.pytorch.releases}
    found |= {f"cudnn.yml versions[{v.version}]": v.source for v in catalog.cudnn.versions}
    found |= {f"cudnn.yml support[{s.first} {_numbers(s.cuda_majors)}]": s.source for s in catalog.cudnn.support}
    found |= {f"nccl.yml builds[{b.version}+cuda{b.cuda}]": b.source for b in catalog.nccl.builds}
    found |= {f"nccl.yml support[{s.first} {s.cuda_major}]": s.source for s in catalog.nccl.support}
    for toolkit in catalog.cuda.toolkits:
        found[_toolkit(toolkit)] = toolkit.source
        found |= {f"cuda.yml releases[{r.version}]": r.source for r in toolkit.releases}
    found |= {f"driver.yml branches[{b.branch}]": b.source for b in catalog.driver.branches}
    found |= {f"gpu_products.csv[{p.device}]": p.source for p in catalog.products.values()}
    found |= {f"gpu.yml legacy[{g.driver}]": g.source for g in catalog.gpu.legacy}
    found |= {f"gpu.yml chip_only[{g.device}]": g.source for g in catalog.gpu.chip_only}
    for distro in catalog.distros.values():
        found[f"distro/{distro.id}.yml"] = distro.source
        found |= {driver_entry(distro, d): d.source for d in distro.distro_drivers}
        found |= {f"distro/{distro.id}.yml distro_cuda[{c.version}]": c.source for c in distro.distro_cuda}
    bad = catalog.known_bad
    found |= {f"known_bad.yml drivers[{d.last} {d.kernel}]": d.source for d in bad.drivers}
    found |= {f"known_bad.yml cudnn[{c.wheel_first}]": c.source for c in bad.cudnn}
    found |= {f"known_bad.yml tensorflow[{t.first}]": t.source for t in bad.tensorflow}
    found |= {f"known_bad.yml kernel_drivers[{k.module}]": k.source for k in bad.kernel_drivers}
    found |= {f"known_bad.yml security_floors[{f.version}]": f.source for f in bad.security_floors}
    return found


def _numbers(majors: Iterable[int]) -> str:
    return ",".join(map(str, majors))


def _toolkit(toolkit: Toolkit) -> str:
    return f"cuda.yml toolkits[{toolkit.version}]"


def driver_entry(distro: Distro, driver: DistroDriver) -> str:
    """Return the place of a distribution's driver set."""
    return f"distro/{distro.id}.yml distro_drivers[{driver.branch}]"


def verdicts(catalog: Catalog, evidence: Iterable[Evidence]) -> list[Verdict]:
    """Return a verdict on each entry of the catalog, and on each place that only a source names."""
    by_entry: dict[str, list[Evidence]] = collections.defaultdict(list)
    for item in evidence:
        by_entry[item.entry].append(item)
    known = entries(catalog)
    found = []
    for entry in [*known, *sorted(set(by_entry) - set(known))]:
        against = [e for e in by_entry[entry] if not e.agrees]
        decisive = against or by_entry[entry]
        if not decisive:
            found.append(Verdict(entry, "trusted", known[entry]))
            continue
        by = ", ".join(dict.fromkeys(e.source for e in decisive))
        text = "; ".join(dict.fromkeys(e.text for e in decisive))
        found.append(Verdict(entry, "contradicted" if against else "confirmed", by, text))
    return found


def shares(found: Iterable[Verdict]) -> dict[str, dict[str, int]]:
    """Return the number of entries of each verdict, by file."""
    counts: dict[str, dict[str, int]] = {}
    for verdict in found:
        file = re.split(r"[ \[]", verdict.entry, maxsplit=1)[0]
        file = "distro/*.yml" if file.startswith("distro/") else file
        counts.setdefault(file, dict.fromkeys(VERDICTS, 0))[verdict.verdict] += 1
    return counts


# What each kind of source says ---------------------------------------------------------------------------------------


def wheel_code(release: TensorflowRelease, code: Code, wheel: str) -> Evidence:
    """Compare a release's device code with its wheel's."""
    mine = Code(release.sass, release.sass_in_part, release.ptx)
    text = f"{wheel}: {code}" if mine == code else f"catalog {mine}, {wheel} {code}"
    return Evidence(f"tensorflow.yml releases[{release.version}]", "device code of the wheel", mine == code, text)


def pytorch_code(release: PytorchRelease, groups: Mapping[Group, int], wheel: str) -> Evidence:
    """Compare the machine code of a release's build of PyPI with the wheel's.

    The wheel may have code of its own for a few GPUs more, on which the code for earlier ones of their major runs too.
    """
    mine, native = release.pypi_build.sass if release.pypi_build else (), native_in_most(groups)
    agrees = set(mine) <= set(native) and all(runs(mine, capability) for capability in native)
    text = f"{wheel}: machine code for {', '.join(native)}"
    text = text if agrees else f"catalog {', '.join(mine)}, {text}"
    return Evidence(f"pytorch.yml releases[{release.version}]", "device code of the wheel", agrees, text)


def compiler(toolkit: Toolkit, host_config: str, ptxas_help: str | None) -> list[Evidence]:
    """Compare a toolkit's newest gcc with crt/host_config.h, and its architectures with `ptxas --help` if it ran."""
    limit = re.search(r"__GNUC__ > (\d+)", host_config)
    found = int(limit.group(1)) if limit else 0
    text = f"max_gcc {toolkit.max_gcc}, host_config.h {found or 'has no limit'}"
    found_gcc = Evidence(_toolkit(toolkit), "crt/host_config.h", found == toolkit.max_gcc, text)
    if ptxas_help is None:
        return [found_gcc]
    listed = {int(n) for n in re.findall(r"'sm_(\d+)'", ptxas_help)}
    mine = {int(c.replace(".", "")) for c in toolkit.compute_capabilities}
    text = f"compute capabilities {sorted(mine)}" + ("" if listed == mine else f", ptxas {sorted(listed)}")
    return [found_gcc, Evidence(_toolkit(toolkit), "ptxas --help", listed == mine, text)]


def supported_gpus(catalog: Catalog, version: str, chips: Iterable[Mapping[str, object]]) -> list[Evidence]:
    """Compare products with a driver's supported-gpus.json: that it knows them, and with which kernel modules."""
    made = []
    rows: dict[str, set[str]] = {}
    for chip in chips:
        features = chip.get("features")
        flags = {str(f) for f in features} if isinstance(features, (list, tuple)) else set()
        rows.setdefault(str(chip["devid"]).removeprefix("0x").lower(), set()).update(flags)
    for device, flags in rows.items():
        product = catalog.products.get(device)
        if product is None:
            continue  # an older GPU, or one of the legacy list
        is_open = "kernelopen" in flags
        agrees = product.kernel_modules != "proprietary" if is_open else product.kernel_modules != "open"
        text = f"kernel modules {product.kernel_modules}; kernelopen {is_open} in {version}"
        made.append(Evidence(f"gpu_products.csv[{device}]", f"supported-gpus.json of {version}", agrees, text))
    return made


def pci_ids(catalog: Catalog, text: str) -> list[Evidence]:
    """Compare the chips of products with pci.ids, and report the GPUs that the catalog lacks."""
    block = re.search(r"^10de  .*?(?=^[0-9a-f]{4}  |\Z)", text, re.MULTILINE | re.DOTALL)
    names = dict(re.findall(r"^\t([0-9a-f]{4})  (.+)$", block.group(0) if block else "", re.MULTILINE))
    legacy = {device for entry in catalog.gpu.legacy for device in entry.devices}
    chips = {p.device: (f"gpu_products.csv[{p.device}]", p.chip) for p in catalog.products.values()}
    chips |= {gpu.device: (f"gpu.yml chip_only[{gpu.device}]", gpu.chip) for gpu in catalog.gpu.chip_only}
    made = []
    for device, name in names.items():
        match = _CHIP.match(name)
        if match and device in chips:
            entry, chip = chips[device]
            same = chip.startswith(match["chip"]) or match["chip"].startswith(chip)
            made.append(Evidence(entry, "pci.ids", same, f"chip {chip}, pci.ids {name}"))
        elif match and device not in legacy and not _NO_GPU.search(name):
            made.append(Evidence(f"gpu_products.csv[{device}]", "pci.ids", False, f"absent, pci.ids {name}"))
    return made


def simulation(distro: Distro, driver: DistroDriver, flavour: str, lacking: list[str], error: str) -> Evidence:
    """Return what apt's simulation of a driver set says. lacking: the parts of a driver that apt would not install."""
    text = f"{flavour}: {error or 'lacks ' + ', '.join(lacking) if error or lacking else 'installs'}"
    return Evidence(driver_entry(distro, driver), f"apt's simulation for {distro.id}", not (error or lacking), text)


def newest_of_series(releases: Iterable[FrameworkRelease], count: int) -> list[FrameworkRelease]:
    """Return the newest release of each of the newest series."""
    newest: dict[str, FrameworkRelease] = {}
    for release in sorted(releases, key=lambda r: versions.key(r.version), reverse=True):
        newest.setdefault(versions.series(release.version), release)
    return list(newest.values())[:count]
