"""References between the catalog's files: an entry without its partner is reported, with the file that lacks it."""

from __future__ import annotations

import shutil

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import versions
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import loader
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.references import libcudart
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

from tests.unit.frozen_catalog import FROZEN_FOLDER, frozen_catalog

TENSORFLOW = """  - version: "2.99.0"
    pythons: ["3.13"]
    tested: {cuda: "%s", cudnn: "%s"}
    sass: ["9.0"]
    ptx: ["9.0"]
    and_cuda: {cuda_major: 13, cudnn: "%s", nccl: "<3.0,>=2.27.7"}
    source: "a test"
"""
TOOLKIT = """  - version: "%s"
    releases:
      - {version: "%s", min_driver: null, source: "a test"}
    compute_capabilities: ["9.0"]
    max_gcc: 16
    max_glibc: null
    source: "a test"
"""
LACKING = [
    (
        "tensorflow.yml",
        "releases:\n",
        TENSORFLOW % ("14.0", "9.3", ">=9.3"),
        r"tensorflow.yml.releases\[2.99.0\].tested.cuda: CUDA 14.0 is not in cuda.yml; add its stanza there",
    ),
    (
        "tensorflow.yml",
        "releases:\n",
        TENSORFLOW % ("13.0", "10.0", ">=9.3"),
        r"releases\[2.99.0\].tested.cudnn: no cuDNN 10.0 is in cudnn.yml; add it under versions",
    ),
    (
        "tensorflow.yml",
        "releases:\n",
        TENSORFLOW % ("13.0", "9.3", "==9.99.0.1"),
        r"releases\[2.99.0\].and_cuda.cudnn: no cuDNN ==9.99.0.1 for CUDA 13 is in cudnn.yml",
    ),
    (
        "cuda.yml",
        "\ntoolkits:\n",
        TOOLKIT % ("13.9", "13.9.0"),
        r"toolkits\[13.9\]: no driver branch has native_cuda 13.9 or newer; add the branch to driver.yml",
    ),
    (
        "cuda.yml",
        "\ntoolkits:\n",
        TOOLKIT % ("13.9", "13.8.0"),
        r"toolkits\[13.9\].releases\[13.8.0\]: not a release of CUDA 13.9",
    ),
    (
        "cuda.yml",
        "\ntoolkits:\n",
        TOOLKIT % ("14.0", "14.0.0"),
        r"toolkits\[14.0\]: CUDA 14 has no entry under minor_version_compatibility",
    ),
    (
        "distro/ubuntu-24.04.yml",
        "distro_drivers:\n",
        """  - branch: "630"
    open: ["x"]
    proprietary: []
    full: {open: [], proprietary: []}
    apt_components: []
    source: "a test"
""",
        r"ubuntu-24.04.yml.distro_drivers\[630\]: the branch is not in driver.yml; add its stanza there",
    ),
    (
        "nccl.yml",
        "builds:\n",
        '  - {version: "2.40.1", cuda: "14.0", slugs: null, source: "a test"}\n',
        r"nccl.yml.builds\[2.40.1\]: CUDA 14.0 is not in cuda.yml",
    ),
    (
        "cudnn.yml",
        "\nversions:\n",
        '  - {version: "10.1.0.5", cuda_majors: [13], source: "a test"}\n',
        r"cudnn.yml.versions\[10.1.0.5\]: no entry under names has the packages of cuDNN 10",
    ),
    (
        "gpu.yml",
        "architectures:\n",
        '  - {name: "Feynman", compute_capabilities: ["14.0"], source: "a test"}\n',
        r"architectures\[Feynman\]: no branch of driver.yml supports it",
    ),
]


def changed(tmp_path, file, old, new):
    """Return a copy of the frozen catalog with one text replaced."""
    folder = tmp_path / "catalog"
    shutil.copytree(FROZEN_FOLDER, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    return folder


@pytest.mark.parametrize(
    ("file", "after", "stanza", "message"), LACKING, ids=[f"{c[0].split('.')[0]}-{n}" for n, c in enumerate(LACKING)]
)
def test_entry_without_its_partner_is_reported(tmp_path, file, after, stanza, message):
    with pytest.raises(loader.CatalogError, match=message):
        loader.read_catalog(changed(tmp_path, file, after, after + stanza))


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("distro/debian-13.yml", 'first_cuda: "13.1"', 'first_cuda: "13.11"', r"nvidia_repository: CUDA 13.11 is not"),
        ("distro/debian-13.yml", 'first: "590"', 'first: "591"', r"nvidia_branches: branch 591 is not in driver.yml"),
        (
            "distro/debian-13.yml",
            'default: "3.13"',
            'default: "3.9"',
            r"python: the default 3.9 is not under",
        ),
        ("pytorch.yml", 'cuda: "13.2.2"', 'cuda: "13.22.2"', r"pytorch.yml.*: CUDA 13.22 is not in cuda.yml"),
        (
            "pytorch.yml",
            'index: "own", cudnn: "9.26',
            'index: "pypi", cudnn: "9.26',
            r"2.15.0.*PyPI has one wheel.*13.2.2, 13.0",
        ),
        ("driver.yml", '"Rubin"]', '"Ruby"]', r"branches\[620\].architectures: Ruby is not in gpu.yml"),
        ("tensorflow.yml", '"2.20.0"', '"2.21.0"', r"tensorflow.yml.releases\[2.21.0\]: duplicate entry"),
    ],
    ids=["toolkit", "branch", "python", "pytorch", "two of PyPI", "architecture", "twice"],
)
def test_missing_reference_is_reported(tmp_path, file, old, new, message):
    with pytest.raises(loader.CatalogError, match=message):
        loader.read_catalog(changed(tmp_path, file, old, new))


@pytest.mark.parametrize(
    ("file", "after", "stanza"),
    [
        ("tensorflow.yml", "releases:\n", TENSORFLOW % ("13.0", "9.12", "<10.0,>=9.12")),
        ("cuda.yml", "\ntoolkits:\n", TOOLKIT % ("13.5", "13.5.0")),
        (
            "driver.yml",
            "branches:\n",
            """  - branch: "630"
    type: "PB"
    maintained: true
    end_of_life: null
    native_cuda: "13.6"
    architectures: ["Turing", "Ampere", "Ada", "Hopper", "Blackwell", "Rubin"]
    without: []
    kernel_modules: ["open"]
    versions:
      - {version: "630.10.01", archives: ["nvidia"]}
    source: "a test"
""",
        ),
    ],
    ids=["tensorflow", "cuda", "driver"],
)
def test_one_stanza_adds_a_release(tmp_path, file, after, stanza):
    if file == "cuda.yml":  # the newest driver branch is for 13.5, so this stanza replaces the present one
        text = (FROZEN_FOLDER / file).read_text()
        end = text.index('  - version: "13.4"')
        text = text[: text.index('  - version: "13.5"')] + stanza + text[end:]
        folder = tmp_path / "catalog"
        shutil.copytree(FROZEN_FOLDER, folder)
        (folder / file).write_text(text)
    else:
        folder = changed(tmp_path, file, after, after + stanza)
    part = file.removesuffix(".yml")
    assert getattr(loader.read_catalog(folder), part) != getattr(frozen_catalog(), part)


def test_promised_versions_are_in_the_catalog():
    loaded = load_catalog()
    toolkits = {t.version for t in loaded.cuda.toolkits}
    assert {"8.0", "9.0", "10.0", "10.1", "10.2", "11.0", "11.8", "12.0", "12.9", "13.0", "13.5"} <= toolkits
    assert "12.7" not in toolkits, "it was never published"
    lines = {versions.series(r.version) for r in loaded.tensorflow.releases}
    assert lines >= {f"1.{n}" for n in range(16)} | {f"2.{n}" for n in range(22)}
    assert {b.branch for b in loaded.driver.branches} >= {"390", "470", "525", "535", "550", "570", "580", "595", "620"}
    assert {versions.series(v.version) for v in loaded.cudnn.versions} >= {"5.1", "6.0", "7.6", "8.0", "8.9", "9.28"}
    assert set(loaded.distros) >= {
        "debian-12",
        "debian-13",
        "ubuntu-20.04",
        "ubuntu-22.04",
        "ubuntu-24.04",
        "ubuntu-26.04",
    }
    assert [a.name for a in loaded.gpu.architectures][1:] == [
        "Kepler",
        "Maxwell",
        "Pascal",
        "Volta",
        "Turing",
        "Ampere",
        "Ada",
        "Hopper",
        "Blackwell",
        "Rubin",
    ]


@pytest.mark.parametrize(
    ("cuda", "soname"),
    [
        # The names that TensorFlow's wheels load, and that NVIDIA's runtime wheels hold.
        ("8.0", "libcudart.so.8.0"),
        ("9.0", "libcudart.so.9.0"),
        ("10.0", "libcudart.so.10.0"),
        ("10.1", "libcudart.so.10.1"),
        ("11.2", "libcudart.so.11.0"),
        ("12.5", "libcudart.so.12"),
        ("13.2", "libcudart.so.13"),
    ],
)
def test_runtime_library_of_each_cuda(cuda, soname):
    assert libcudart(load_catalog(), cuda) == soname


def test_every_file_names_its_sources():
    for path in sorted(loader.CATALOG_FOLDER.rglob("*.yml")):
        assert "source" in str(yaml.safe_load(path.read_text())), path
