"""CPU architectures in the catalog's files: what an entry is for, and mistakes in saying so."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.architectures import of_architecture, supported
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.loader import CatalogError, read_catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.frozen_catalog import FROZEN_FOLDER, frozen_catalog
from tools.catalog.device_code import runs

PLUGINS = Path(__file__).parents[4] / "plugins"
ON_ARM = json.loads((FROZEN_FOLDER.parent / "plan/wheels_aarch64.json").read_text())["wheels"]

X86_64, BOTH = 'cpu_architectures: ["x86_64"]', 'cpu_architectures: ["x86_64", "aarch64"]'
CUDA = ("cuda", X86_64, BOTH)  # which TensorFlow names
CUDNN = ("cudnn", X86_64, BOTH)


def changed(folder: Path, *changes: tuple[str, str, str]) -> Path:
    """Return a copy of the catalog; changes: file, text and what takes its place."""
    shutil.copytree(FROZEN_FOLDER, folder)
    for name, old, new in changes:
        path = folder / f"{name}.yml"
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return folder


def names(catalog: Catalog) -> dict[str, list[str]]:
    """Return the names of the entries that may depend on the architecture."""
    return {
        "driver": [branch.branch for branch in catalog.driver.branches],
        "cuda": [toolkit.version for toolkit in catalog.cuda.toolkits],
        "tensorflow": [release.version for release in catalog.tensorflow.releases],
        "pytorch": [
            f"{release.version} {build.cuda}" for release in catalog.pytorch.releases for build in release.builds
        ],
        "cpu": [row.package for row in catalog.cpu.wheels],
        "archive": [driver.branch for driver in catalog.distros["ubuntu-24.04"].distro_drivers],
    }


def test_a_catalog_of_one_architecture_has_nothing_of_another():
    catalog = frozen_catalog()
    assert supported(catalog) == ("x86_64",)
    assert of_architecture(catalog, "x86_64") is catalog
    assert {part: found for part, found in names(of_architecture(catalog, "aarch64")).items() if found} == {}


@pytest.mark.parametrize("wheel", ON_ARM, ids=[wheel["wheel"].rsplit("-cp", 1)[0] for wheel in ON_ARM])
def test_what_the_wheels_for_arm_have_code_for(wheel):
    """As their fat binaries say: a wheel without any is in no plan, and a row says so; the others are as they pin."""
    package, version = wheel["wheel"].split("-")[:2]
    catalog = of_architecture(load_catalog(), "aarch64")
    file = {"torch": catalog.pytorch, "tensorflow": catalog.tensorflow}[package]
    releases = [release for release in file.releases if release.version == version]
    if not wheel["groups"]:
        assert releases == []
        assert [row for row in file.cpu_only if versions.satisfies(version, row.releases)]
        return
    (build,) = releases[0].builds
    assert set(build.sass) <= set(wheel["native_in_most"])
    assert all(runs(build.sass, capability) for capability in wheel["native_in_most"])
    pins = {"cuda-toolkit": build.cuda, "nvidia-cudnn-cu13": build.cudnn, "nvidia-nccl-cu13": build.nccl}
    found = {re.split(r"[[=]", row)[0]: re.split(r"==|;", row)[1].strip() for row in wheel["requires"] if "==" in row}
    assert {name: found[name] for name in pins} == pins


def test_every_wheel_for_arm_that_may_be_planned_was_read():
    read = {wheel["wheel"].split("-")[1] for wheel in ON_ARM if wheel["groups"]}
    assert read == {release.version for release in of_architecture(load_catalog(), "aarch64").pytorch.releases}


@pytest.mark.parametrize("architecture", load_catalog().cpu.known_architectures)
def test_a_release_of_a_framework_has_code_for_gpus_or_a_source_that_says_why_not(architecture):
    catalog = of_architecture(load_catalog(), architecture)
    accepted = [build for release in catalog.pytorch.releases for build in release.builds]
    assert accepted
    assert [build for build in accepted if not build.sass] == []
    own = [build for build in accepted if build.cpu_architectures]
    assert [build for build in own if build.cpu_architectures != (architecture,)] == [], "each was read for itself"
    assert [build for build in accepted if architecture != "x86_64" and build not in own] == []
    for file in (catalog.tensorflow, catalog.pytorch):
        assert file.releases or [row for row in file.cpu_only if row.source]


def test_what_one_architectures_repository_and_kernels_have_is_not_the_others():
    for name, distro in load_catalog().distros.items():
        own, arm = (of_architecture(load_catalog(), each).distros[name] for each in ("x86_64", "aarch64"))
        assert own.nvidia_limits == ()
        assert bool(arm.nvidia_limits) == ("aarch64" in distro.cpu_architectures)
        assert arm.distro_cuda == arm.prebuilt_modules == ()
        # AlmaLinux 9 signs modules for both (its own test of their signatures).
        assert [driver.signed for driver in arm.distro_drivers] == [("nvidia-open-kmod",)] * (name == "almalinux-9")
        assert not any("64k" in row.package or "arm64" in row.package for row in own.kernel.headers)


def test_an_entry_has_the_architectures_of_its_file_unless_it_names_its_own(tmp_path):
    both = '    cpu_architectures: ["aarch64", "x86_64"]\n'
    folder = changed(
        tmp_path / "catalog",
        CUDA,
        CUDNN,
        ("cuda", '  - version: "13.4"\n', f'  - version: "13.4"\n    {X86_64}\n'),
        ("tensorflow", '  - version: "2.21.0"\n', f'  - version: "2.21.0"\n{both}'),
    )
    read = read_catalog(folder)
    own = names(of_architecture(read, "aarch64"))
    everything = names(read)
    assert own["tensorflow"] == ["2.21.0"]
    assert own["cuda"] == [version for version in everything["cuda"] if version != "13.4"]
    assert own["driver"] == own["pytorch"] == []
    assert names(of_architecture(read, "x86_64")) == everything


def test_a_build_of_a_release_may_be_for_one_architecture_alone(tmp_path):
    build = frozen_catalog().pytorch.releases[0].builds[0]
    own = f'{{cpu_architectures: ["x86_64", "aarch64"], cuda: "{build.cuda}"'
    folder = changed(tmp_path / "catalog", CUDA, CUDNN, ("pytorch", f'{{cuda: "{build.cuda}"', own))
    release = frozen_catalog().pytorch.releases[0].version
    assert names(of_architecture(read_catalog(folder), "aarch64"))["pytorch"] == [f"{release} {build.cuda}"]


def test_an_architecture_may_have_an_entry_of_its_own_for_a_version(tmp_path):
    text = (FROZEN_FOLDER / "driver.yml").read_text(encoding="utf-8")
    start = text.index('  - branch: "595"')
    stanza = text[start : text.index('  - branch: "590"')]
    twice = stanza.replace("595.99.02", "595.99.09").replace("\n", '\n    cpu_architectures: ["aarch64"]\n', 1)
    read = read_catalog(changed(tmp_path / "catalog", ("driver", stanza, twice + stanza)))
    own = {name: of_architecture(read, name).driver.branches for name in ("x86_64", "aarch64")}
    versions = {name: next(b.versions[0].version for b in own[name] if b.branch == "595") for name in own}
    assert versions == {"x86_64": "595.99.02", "aarch64": "595.99.09"}
    with pytest.raises(CatalogError, match=r"driver.yml.branches\[595\]: duplicate entry"):
        read_catalog(changed(tmp_path / "twice", ("driver", stanza, stanza + stanza)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("driver", f"{X86_64}\n", ""), r"driver.yml.cpu_architectures: missing"),
        (("driver", X86_64, "cpu_architectures: []"), r"driver.yml.cpu_architectures: empty; expected one or more"),
        (("nccl", X86_64, 'cpu_architectures: ["arm64"]'), r"nccl.yml.cpu_architectures: arm64 is not under known"),
        (("cuda", X86_64, "cpu_architectures: x86_64"), r"cuda.yml.cpu_architectures: expected a list"),
        (
            ("driver", '  - branch: "595"\n', '  - branch: "595"\n    cpu_architectures: []\n'),
            r"driver.yml.branches\[595\].cpu_architectures: empty",
        ),
        (
            ("tensorflow", '  - version: "2.21.0"\n', '  - version: "2.21.0"\n    cpu_architectures: ["sbsa"]\n'),
            r"tensorflow.yml.releases\[2.21.0\].cpu_architectures: sbsa is not under known_architectures in cpu.yml; "
            r"expected one of x86_64, aarch64",
        ),
        (("repository", '{x86_64: "x86_64"}', '{x86_64: "x86_64", arm64: "sbsa"}'), r"y.yml.architectures: arm64"),
        (("cpu", 'unmarked_locks: "x86_64"', 'unmarked_locks: "amd64"'), r"cpu.yml.unmarked_locks: amd64 is not under"),
        (("distro/debian-12", X86_64, BOTH), r"debian-12.yml.cpu_architectures: aarch64 is not under arch"),
        (("distro/debian-12", X86_64, BOTH), r"debian-12.yml.kernel.flavours: aarch64 is missing"),
        (
            ("tensorflow", '  - version: "2.21.0"\n', f'  - version: "2.21.0"\n    {BOTH}\n'),
            r"tested.cuda: CUDA 12.5 is not in cuda.yml; add its stanza there \(for aarch64\)",
        ),
        (("distro/debian-12", X86_64, BOTH), r"distro_drivers\[535\]: the branch is not in.*\(for aarch64\)"),
    ],
    ids=[
        "none", "empty", "unknown", "text", "empty of an entry", "unknown of an entry", "unknown of NVIDIA",
        "unknown of locks", "no repository", "no flavour", "wheel without its CUDA", "archive without its branch",
    ],
)  # fmt: skip
def test_mistakes_name_the_place(tmp_path, change, message):
    with pytest.raises(CatalogError, match=message):
        read_catalog(changed(tmp_path / "catalog", change))


def test_what_runs_on_hosts_names_no_architecture():
    """dpkg's names of architectures are in one place; all else asks the host, or the catalog."""
    found = {}
    for path in sorted((PLUGINS / "module_utils").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        named = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts
        ]
        if any(re.search("x86.64|amd64|aarch64|arm64|sbsa", text) for text in named):
            found[path.name] = named
    assert set(found) == {"dpkg_info.py"}
