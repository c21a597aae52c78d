"""Read contents.yml and the simulated driver's packages.yml, and return packages for deb.build."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.doubles.nvidia_repository.deb import Package, WheelFiles

HERE = Path(__file__).resolve().parent
DRIVER = HERE.parent / "simulated_driver"
TOKEN = re.compile(r"@(\w+)@")
KNOWN = {
    "name",
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
    "triggers",
    "conffiles",
    "product_table",
}
LAST_BRANCH_IN_NAMES = 580
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

    drivers, cuda: the driver branches and CUDA series that it offers, oldest first.
    """

    name: str
    key_file: str
    family: str
    base_url: str
    drivers: tuple[str, ...]
    cuda: tuple[str, ...]

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
    offered = tuple(entry["drivers"]), tuple(entry["cuda"])
    return Slug(name, entry["key_file"], entry["packages"], base_url, *offered)


def library_packages(target: Slug) -> Iterator[Package]:
    """Return the CUDA, cuDNN and NCCL packages of a repository, with real content from wheels; slugs share files."""
    data = contents()
    for release in data["releases"]:
        if release["series"] not in target.cuda:
            continue
        major, minor = release["series"].split(".")
        values = {
            **release,
            **release["components"],
            "major": major,
            "dash": f"{major}-{minor}",
            "priority": f"{major}{minor}",
        }
        for spec in data["cuda"]:
            yield _package(spec, values)
    for library in data["libraries"]:
        for spec in data[library["set"]]:
            yield _package(spec, library)


def driver_packages(target: Slug) -> Iterator[Package]:
    """Return the simulated driver packages of a repository's branches, named as NVIDIA names them there."""
    data, family = driver_contents(), target.family
    revision = data["revision"][family]
    found: dict[tuple[str, str], Package] = {}  # several patches of a branch have one pinning package for it
    for driver in data["drivers"]:
        if driver["branch"] not in target.drivers:
            continue
        values = {**driver, "revision": revision, "full": f"{driver['driver']}-{revision}"}
        branch = int(driver["branch"])
        eras = ["all_branches", "up_to_580" if branch <= LAST_BRANCH_IN_NAMES else "from_590"]
        if branch <= LAST_BRANCH_IN_NAMES:
            eras.append("only_580" if branch >= FIRST_BRANCH_OF_DAEMON else "up_to_575")
        pinning = data["pinning"] if branch >= FIRST_PINNED_BRANCH else []
        fabric = data["fabric"]["up_to_575" if branch <= LAST_BRANCH_OF_FABRIC else "from_580"]
        for spec in [*pinning, *(spec for era in eras for spec in data[family].get(era, [])), *fabric]:
            package = _package({"version": "@full@", **spec}, values)
            found.setdefault((package.control["Package"], package.control["Version"]), package)
    yield from found.values()


def archive_packages(distribution: str) -> list[Package]:
    """Return the simulated driver packages of a distribution's own archive. Raises ValueError if there are none."""
    archives = driver_contents()["distribution_archives"]
    if distribution not in archives:
        known = ", ".join(sorted(archives))
        raise ValueError(f"{distribution}: no simulated driver of its own archive; packages.yml has one of {known}")
    values = archives[distribution]
    return [_package({"version": "@full@", **spec}, values) for spec in values["packages"]]


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


def _package(raw: Mapping[str, Any], values: Mapping[str, Any]) -> Package:
    spec = fill(raw, values)
    if unknown := set(spec) - KNOWN:
        raise ValueError(f"{spec['name']}: unknown fields {sorted(unknown)}")
    text = dict(spec.get("text", {}))
    for path, source in spec.get("copies", {}).items():
        text[path] = (DRIVER / source).read_text()
    if table := spec.get("product_table"):
        text[table] = product_table(values["driver"], values["cuda"])
    scripts = dict(spec.get("scripts", {}))
    if conffiles := spec.get("conffiles"):
        scripts["conffiles"] = "".join(f"{path}\n" for path in conffiles)
    return Package(
        control=_control(spec),
        files=tuple(WheelFiles(item["wheel"], item["paths"]) for item in spec.get("files", [])),
        text=text,
        executable=frozenset(spec.get("executable", [])),
        links=spec.get("links", {}),
        scripts=scripts,
        triggers=spec.get("triggers", ""),
    )


def product_table(driver: str, cuda: str) -> str:
    """Return the data file of the simulated nvidia-smi: its versions, and NVIDIA's products by PCI id."""
    products = json.loads((DRIVER / "gpus.json").read_text())
    return json.dumps({"driver_version": driver, "cuda_version": cuda, **products}, indent=1) + "\n"


def _control(spec: Mapping[str, Any]) -> dict[str, str]:
    control = {
        "Package": spec["name"],
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
