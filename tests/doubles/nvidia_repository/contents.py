"""Turns contents.yml and the simulated driver's packages.yml into packages. Pure but for reading those files."""

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
FIRST_PINNED_BRANCH = 580
DEPENDENCIES = {"Pre-Depends", "Depends", "Recommends", "Provides"}
RELATION = re.compile(r"(\((?:<<|<=|=|>=|>>) )([^)]+)")
FIRST_NUMBER, LAST_NUMBER = re.compile(r"\d+"), re.compile(r"\d+(?=\D*$)")
KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"


@dataclass(frozen=True)
class Slug:
    """One repository: NVIDIA's name for a distribution release and architecture, and where it will be served."""

    name: str
    key_file: str
    family: str
    base_url: str

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
    return Slug(name, known[name]["key_file"], known[name]["packages"], base_url)


def library_packages() -> Iterator[Package]:
    """CUDA, cuDNN and NCCL: real content from wheels, the same for every slug."""
    data = contents()
    for release in data["releases"]:
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


def driver_packages(family: str) -> Iterator[Package]:
    """The simulated driver, all branches, as NVIDIA's repository for Debian or Ubuntu names its packages."""
    data = driver_contents()
    revision = data["revision"][family]
    for driver in data["drivers"]:
        values = {**driver, "revision": revision, "full": f"{driver['driver']}-{revision}"}
        era = "up_to_580" if int(driver["branch"]) <= LAST_BRANCH_IN_NAMES else "from_590"
        pinning = data["pinning"] if int(driver["branch"]) >= FIRST_PINNED_BRANCH else []
        for spec in [*pinning, *data[family]["all_branches"], *data[family][era]]:
            yield _package({"version": "@full@", **spec}, values)


def later(package: Package) -> Package:
    """The same package some months on: nothing but control data, which asks for parts that are as new as itself."""
    control = dict(package.control)
    control["Version"] = later_version(control["Version"])
    for name in DEPENDENCIES & set(control):
        control[name] = RELATION.sub(lambda match: match[1] + later_version(match[2]), control[name])
    control["Description"] = f"SIMULATED later release, nothing inside: {control['Description']}"
    return Package(control)


def later_version(version: str) -> str:
    """The next one after a version.

    Derived, so that no list of newer versions goes stale: the last number before the revision grows by one and keeps
    its zeros (570.211.01-1: 570.211.02-1, 2.28.9-1+cuda13.0: 2.28.10-1+cuda13.0). It leaves no driver branch, no CUDA
    series and not NCCL's CUDA. Where one number is all, it is a branch's name, and the revision grows (580-1: 580-2).
    Dependencies are raised by the same rule, so each finds the part that was raised with it.
    """
    upstream, dash, revision = version.partition("-")
    if "." not in upstream:
        return upstream + dash + _one_more(FIRST_NUMBER, revision)
    return _one_more(LAST_NUMBER, upstream) + dash + revision


def _one_more(number: re.Pattern[str], text: str) -> str:
    return number.sub(lambda match: str(int(match[0]) + 1).zfill(len(match[0])), text, count=1)


def keyring_package(target: Slug, key: bytes) -> Package:
    """cuda-keyring: the key, the source list and the pin file, as NVIDIA's package of that name."""
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
    """Replaces @name@ in every string of a nested value; an unknown name is an error."""
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
    """What the simulated nvidia-smi knows: its versions and NVIDIA's products by PCI id."""
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
