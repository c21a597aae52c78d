"""Read contents.yml and the simulated driver's packages.yml, and return packages for deb.build or rpm.build."""

import csv
import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.nvidia_repository.package import Package, WheelFiles

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parent / "simulated_driver"
PUBLISHED = HERE.parents[1] / "fixtures/nvidia-smi/published.yml"
CATALOGUED = HERE.parents[2] / "catalog/gpu_products.csv"
TOKEN = re.compile(r"@(\w+)@")
KNOWN = {
    "name",
    "source",
    "version",
    "architecture",
    "depends",
    "conflicts",
    "replaces",
    "provides",
    "description",
    "files",
    "text",
    "copies",
    "executable",
    "links",
    "scripts",
    "rpm_scripts",
    "triggers",
    "conffiles",
    "product_table",
}
GRAPHICS = "nvidia-graphics-drivers"  # the source package of most of a driver
LAST_BRANCH_IN_NAMES = 580
LAST_PROPRIETARY_BRANCH = 610
LAST_BRANCH_OF_FABRIC = 575  # in the names of Fabric Manager and what belongs to it
FIRST_PINNED_BRANCH = 580
FIRST_BRANCH_OF_DAEMON = 580  # in a package of its own
DEPENDENCIES = {"Pre-Depends", "Depends", "Recommends", "Provides"}
RELATION = re.compile(r"(\((?:<<|<=|=|>=|>>) )([^)]+)")
FIRST_NUMBER, LAST_NUMBER = re.compile(r"\d+"), re.compile(r"\d+(?=\D*$)")
KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"


@dataclass(frozen=True)
class Slug:
    """The repository of one distribution release: NVIDIA's name for it (debian12) and the URL of its parent.

    drivers, cuda: the driver branches and CUDA series that it offers and scenarios change between, oldest first; also:
    the branches that it offers, too. dist: of the releases of rpm packages; streams: whether there are modules.
    """

    name: str
    key_file: str
    family: str
    base_url: str
    drivers: tuple[str, ...]
    cuda: tuple[str, ...]
    also: tuple[str, ...] = ()
    dist: str = ""
    streams: bool = False

    @property
    def format(self) -> str:
        return "rpm" if self.family == "rhel" else "deb"

    @property
    def folder(self) -> str:
        return f"compute/cuda/repos/{self.name}/x86_64"

    @property
    def later_folder(self) -> str:
        return f"later/{self.folder}"

    @property
    def url(self) -> str:
        return f"{self.base_url.rstrip('/')}/{self.folder}/"


@cache
def contents() -> dict[str, Any]:
    return dict(yaml.safe_load((HERE / "contents.yml").read_text()))


@cache
def driver_contents() -> dict[str, Any]:
    return dict(yaml.safe_load((DRIVER / "packages.yml").read_text()))


def slug(name: str, base_url: str) -> Slug:
    known = contents()["slugs"]
    if name not in known:
        raise SystemExit(f"slug {name}: unknown; contents.yml has {', '.join(sorted(known))}")
    entry = known[name]
    offered = tuple(entry["drivers"]), tuple(entry["cuda"]), tuple(entry.get("also", []))
    modules = entry.get("dist", ""), entry.get("streams", False)
    return Slug(name, entry["key_file"], entry["packages"], base_url, *offered, *modules)


def library_packages(target: Slug) -> Iterator[Package]:
    """Return the CUDA, cuDNN and NCCL packages of a repository, with real content from wheels; slugs share files."""
    data = contents()
    form = data["formats"][target.format]
    for release in data["releases"]:
        if release["series"] not in target.cuda:
            continue
        major, minor = release["series"].split(".")
        values = {
            **form,
            **release,
            **release["components"],
            "major": major,
            "dash": f"{major}-{minor}",
            "priority": f"{major}{minor}",
        }
        for spec in data["cuda"]:
            yield described(spec, values, target.format)
    for library in data["libraries"]:
        for spec in data[library["set"]]:
            yield described(spec, {**form, **library}, target.format)


def driver_packages(target: Slug) -> Iterator[Package]:
    """Return the simulated driver packages of a repository's branches, named as NVIDIA names them there."""
    data, family = driver_contents(), target.family
    revision = fill(data["revision"][family], {"dist": target.dist})
    found: dict[tuple[str, str], Package] = {}  # several patches of a branch have one pinning package for it
    for driver in data["drivers"]:
        if driver["branch"] not in (*target.drivers, *target.also):
            continue
        branch = int(driver["branch"])
        graphics = GRAPHICS + f"-{branch}" * (family == "ubuntu" and branch <= LAST_BRANCH_IN_NAMES)
        full = f"{data['epoch'][family]}{driver['driver']}-{revision}"
        places = {"libraries": data["libraries"][family], "graphics": graphics}
        values = {**driver, "revision": revision, "full": full, **places}
        eras = ["all_branches", "up_to_580" if branch <= LAST_BRANCH_IN_NAMES else "from_590"]
        if branch <= LAST_BRANCH_IN_NAMES:
            eras.append("only_580" if branch >= FIRST_BRANCH_OF_DAEMON else "up_to_575")
        elif branch <= LAST_PROPRIETARY_BRANCH:
            eras.append("from_590_to_610")
        eras.append("up_to_610" if branch <= LAST_PROPRIETARY_BRANCH else "from_615")
        pinned = {driver["branch"]: f"{branch}.*", driver["driver"]: f"{driver['driver']}-*"}
        pinning = [
            fill(data["pinning"], {**values, "pinned": name, "pin": pin})
            for name, pin in pinned.items()
            if branch >= FIRST_PINNED_BRANCH and target.format == "deb"
        ]
        fabric = data[family].get("fabric", data["fabric"])[
            "up_to_575" if branch <= LAST_BRANCH_OF_FABRIC else "from_580"
        ]
        for spec in [*pinning, *(spec for era in eras for spec in data[family].get(era, [])), *fabric]:
            name = fill(spec["name"], values)
            source = _source(name) if target.format == "deb" else None
            package = described({"version": "@full@", "source": source, **spec}, values, target.format)
            found.setdefault((name, package.control["Version"]), package)
    yield from found.values()


def _source(name: str) -> str | None:
    """Return the source package of a driver package, None where it has the same name."""
    rows: list[dict[str, str | None]] = driver_contents()["sources"]
    return next(row["source"] for row in rows if re.fullmatch(str(row["packages"]), name))


def archive_packages(distribution: str) -> list[Package]:
    """Return the simulated driver packages of a distribution's own archive. Raises ValueError if there are none."""
    archives = driver_contents()["distribution_archives"]
    if distribution not in archives:
        known = ", ".join(sorted(archives))
        raise ValueError(f"{distribution}: no simulated driver of its own archive; packages.yml has one of {known}")
    values = {**archives[distribution], "libraries": driver_contents()["libraries"]["debian"]}
    return [described({"version": "@full@", **spec}, values) for spec in values["packages"]]


def later(package: Package) -> Package:
    """Return a newer version of the package without files; its dependencies are raised in the same way."""
    control = dict(package.control)
    control["Version"] = later_version(control["Version"])
    for name in DEPENDENCIES & set(control):
        control[name] = RELATION.sub(lambda match: match[1] + later_version(match[2]), control[name])
    control["Description"] = f"SIMULATED later release, nothing inside: {control['Description']}"
    return Package(control)


def later_version(version: str) -> str:
    """Return the version after this one.

    The last number before the revision is incremented and keeps its leading zeros (570.211.01-1 -> 570.211.02-1,
    2.28.9-1+cuda13.0 -> 2.28.10-1+cuda13.0), so that the driver branch, the CUDA series and NCCL's CUDA stay the same.
    A single number names a branch, so its revision is incremented instead (580-1 -> 580-2).
    """
    upstream, dash, revision = version.partition("-")
    if "." not in upstream:
        return upstream + dash + _one_more(FIRST_NUMBER, revision)
    return _one_more(LAST_NUMBER, upstream) + dash + revision


def _one_more(number: re.Pattern[str], text: str) -> str:
    return number.sub(lambda match: str(int(match[0]) + 1).zfill(len(match[0])), text, count=1)


def repository_file(target: Slug) -> str:
    """Return cuda-<slug>.repo, as NVIDIA's repository has it."""
    name, url = f"cuda-{target.name}-x86_64", target.url.rstrip("/")
    keys = f"gpgcheck=1\ngpgkey={url}/{target.key_file}\n"
    return f"[{name}]\nname={name}\nbaseurl={url}\nenabled=1\n{keys}"


def keyring_package(target: Slug, key: bytes) -> Package:
    """Return cuda-keyring, which contains the key, the source list and the pin file, as NVIDIA's package does."""
    return Package(
        control=_control(
            {
                "name": "cuda-keyring",
                "version": "1.1-1",
                "architecture": "all",
                "description": "GPG keyring for the CUDA repository (throw-away key of a test repository)",
            }
        ),
        binary={KEYRING: key},
        text={
            f"/etc/apt/sources.list.d/cuda-{target.name}-x86_64.list": f"deb [signed-by={KEYRING}] {target.url} /\n",
            "/etc/apt/preferences.d/cuda-repository-pin-600": contents()["pin"],
        },
    )


def fill(value: Any, values: Mapping[str, Any]) -> Any:
    """Replace @name@ in every string of a nested value. Raises KeyError for an unknown name."""
    if isinstance(value, str):
        return TOKEN.sub(lambda match: str(values[match[1]]), value)
    if isinstance(value, Mapping):
        return {fill(name, values): fill(item, values) for name, item in value.items()}
    if isinstance(value, list):
        return [fill(item, values) for item in value]
    return value


def described(raw: Mapping[str, Any], values: Mapping[str, Any], form: str = "deb") -> Package:
    spec = fill(raw, values)
    if unknown := set(spec) - KNOWN:
        raise ValueError(f"{spec['name']}: unknown fields {sorted(unknown)}")
    text = dict(spec.get("text", {}))
    for path, source in spec.get("copies", {}).items():
        text[path] = (DRIVER / source).read_text()
    if table := spec.get("product_table"):
        text[table] = product_table(values["driver"], values["cuda"])
    return Package(
        control=_control(spec),
        files=tuple(WheelFiles(item["wheel"], item["paths"]) for item in spec.get("files", [])),
        text=text,
        executable=frozenset(spec.get("executable", [])),
        links=spec.get("links", {}),
        scripts=spec.get("rpm_scripts" if form == "rpm" else "scripts", {}),
        triggers=spec.get("triggers", ""),
        conffiles=tuple(spec.get("conffiles", [])),
    )


def product_table(driver: str, cuda: str) -> str:
    """Return the data file of the simulated nvidia-smi: its versions, and the documents of its products by PCI id."""
    products = {
        pci_id: {**product, "document": _of_branch(product["document"], int(driver.split(".")[0]))}
        for pci_id, product in _products().items()
    }
    return json.dumps({"driver_version": driver, "cuda_version": cuda, "products": products}, indent=1) + "\n"


@cache
def _products() -> dict[str, dict[str, Any]]:
    """Return what the simulated nvidia-smi knows of each product of gpus.yml.

    Raises SystemExit where a published document does not have an element that is to differ.
    """
    spec = yaml.safe_load((DRIVER / "gpus.yml").read_text())
    published = yaml.safe_load(PUBLISHED.read_text())
    with CATALOGUED.open() as stream:
        capabilities = {f"10de:{row['device']}": row["compute_capability"] for row in csv.DictReader(stream)}
    products = {}
    for pci_id, product in spec["products"].items():
        (gpu, *_) = published[product["document"]]["gpus"]
        document = dict(_in_order(_elements(gpu["elements"])))
        for pattern, value in (spec["bare_metal"] | product.get("differs", {})).items():
            paths = fnmatch.filter(document, pattern)
            if not paths:
                raise SystemExit(f"nvidia-smi: {pci_id}: the document {product['document']} has no element {pattern}")
            document |= dict.fromkeys(paths, value)
        rest = {name: value for name, value in product.items() if name not in ("document", "differs")}
        products[pci_id] = {"compute_cap": capabilities[pci_id], **rest, "document": document}
    return products


def _elements(rows: Iterable[Mapping[str, Any]], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the value of each element, without the processes of that machine."""
    for row in rows:
        for name, value in row.items():
            if isinstance(value, list):
                yield from _elements(value, f"{above}{name}/")
            elif name != "processes":
                yield above + name, str(value)


def _in_order(elements: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the elements, and in their places those that name a machine, which the published documents leave out."""
    for path, value in elements:
        if path == "gpu_virtualization_mode/virtualization_mode":
            yield from (("serial", "N/A"), ("uuid", ""), ("minor_number", ""))
        yield path, value
        if path == "mig_mode/pending_mig":
            yield "mig_devices", "None"
        if path == "pci/pci_bus_id":
            yield "pci/pci_sub_system_id", ""


COUNTERS = ("sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
RESET = ("gpu_reset_status/reset_required", "gpu_reset_status/drain_and_reset_recommended")
DEPRECATED = "Requested functionality has been deprecated"
POWER, COUNTER = "gpu_power_readings/", "clocks_event_reasons_counters/clocks_event_reasons_counters_"


def _of_branch(document: Mapping[str, str], branch: int) -> dict[str, str]:
    """Return a document as a driver of that branch prints it, which may be another than it was published with.

    With 570 the flags of a reset became an action and the power draw two, an average and an instantaneous one
    (NVIDIA/k8s-test-infra: qx-a100.xml of 570.148.08 has the action beside flags without a value); the time that clocks
    were lowered is counted since 580 (qx-h100.xml of 580.105.08 has it, qx-a100.xml not); uncorrectable SRAM errors of
    Ampere and newer are two kinds since 550 (one with 535.54.03, influxdata/telegraf's a100-sxm4-v12.xml).
    """
    draws = [value for path, value in document.items() if path.startswith(POWER) and path.endswith("_draw")]
    draw = next((value for value in draws if value != "N/A"), "N/A")
    found: dict[str, str] = {}
    for path, value in document.items():
        if path.startswith(COUNTER) or path in (*RESET, "gpu_recovery_action") or path.endswith("_draw"):
            continue
        if path == "pci/pci_bus":
            asked = {"gpu_recovery_action": "None"} if branch >= 570 else dict.fromkeys(RESET, "No")
            found |= asked | {name: document[name] for name in asked if document.get(name, DEPRECATED) != DEPRECATED}
        if path == "fb_memory_usage/total" and branch >= 580:
            found |= {COUNTER + name: document.get(COUNTER + name, "0 us") for name in COUNTERS}
        if path.endswith("/sram_uncorrectable_secded") and branch < 550:
            continue
        found[path.replace("sram_uncorrectable_parity", "sram_uncorrectable") if branch < 550 else path] = value
        if path == POWER + "power_state":
            kinds = ("average_power_draw", "instant_power_draw") if branch >= 570 else ("power_draw",)
            found |= {POWER + kind: document.get(POWER + kind, draw) for kind in kinds}
    return found


def _control(spec: Mapping[str, Any]) -> dict[str, str]:
    control = {
        "Package": spec["name"],
        **({"Source": spec["source"]} if spec.get("source") not in (None, spec["name"]) else {}),
        "Version": spec["version"],
        "Architecture": spec.get("architecture", "amd64"),
        "Maintainer": contents()["maintainer"],
        "Section": "multiverse/devel",
        "Priority": "optional",
        "Description": spec["description"],
    }
    for name in ("Depends", "Conflicts", "Replaces", "Provides"):
        if value := spec.get(name.lower()):
            control[name] = ", ".join(value)
    return control
