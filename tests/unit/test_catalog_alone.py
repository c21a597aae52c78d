"""NVIDIA's package names, versions and addresses are in catalog/ alone: a scan of product code, roles and playbooks."""

from __future__ import annotations

import ast
import fnmatch
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.catalogs import load_catalog

PROJECT = Path(__file__).resolve().parents[2]
PLACES = ("plugins", "roles", "playbooks", "inventories", "script", "tools")
SUFFIXES = {".py", ".yml", ".j2", ".sh", ".cu", ""}
# What nothing but a reader reads: Ansible's documentation in Python, and these keys in YAML.
DOCUMENTATION = {"DOCUMENTATION", "EXAMPLES", "RETURN"}
PROSE = {"description", "short_description", *DOCUMENTATION}
NAME = re.compile(r"(?<![\w./-])[a-z][a-z0-9+]*(?:[-.][a-z0-9+*]+)*-?(?![\w/(])")
VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+)+(?!\w)")
ADDRESS = "developer.download.nvidia.com"

# Names that look like a package's and are something else, wherever they are.
NOT_PACKAGES = {
    "components, vendors and roles": r"cuda|cudnn|nvidia|nouveau|gpuhost\.stack\..*",
    "commands": r"nvidia-(smi|modprobe|cuda-mps-control)|cuda-gdb",
    "systemd units and the processes that they start": (
        r"nvidia-(persistenced|fabricmanager|imex|dcgm)(\.service)?|nvidia-persiste"
    ),
    "kernel modules and devices": r"nvidia-(fs|uvm|nvswitch)|nvidiactl|.*\.ko",
    "shared libraries": (
        r"lib(cublas|cudart|cudnn|cufft|curand|cusolver|cusparse|nccl|nvidia-(ml|ptxjitcompiler))(\.so.*)?"
    ),
    "files of the project": r".*\.(yml|j2)(\..*)?",
    "fields of a document": r"document\..*",
    "roles of the collection": r"gpuhost\.stack\..*",
    "facts of the resolver": r"(pytorch\.wheel\.)?cudnn(\.(version|cuda))?",
    "codes of problems": r"(tensorflow-)?cudnn-(cuda-)?mismatch|gpu-dropped-by-cudnn|no-nvidia-smi",
}
# Places that hold names or versions: what, and why.
ALLOWED = {
    ("playbooks/examples/", ".*"): "examples show the values that a user writes; molecule/roles installs them",
    ("plugins/module_utils/checks/", "nvidia-"): "how the names of the wheels in an environment begin",
    (
        "plugins/module_utils/packages/kernels.py",
        "linux-modules-nvidia-",
    ): "how Ubuntu's prebuilt modules are known on a host",
    ("plugins/module_utils/", r"cuda-compat(-?\*)?"): "messages name the packages of NVIDIA's forward compatibility",
    ("plugins/module_utils/nvidia/gpu_processes.py", "nvidia-device-p"): "a program's name, as the kernel cuts it",
    ("plugins/plugin_utils/capture_command/masking.py", "nvidia.(com|cn)"): "whose names in URLs are no secret",
    ("plugins/plugin_utils/plan_command/", r"12\.9|13\.2|580\.95\.05"): "examples in the help text and in messages",
    ("plugins/plugin_utils/plan_command/", r"9\.0"): "an example of a compute capability",
    ("plugins/plugin_utils/planning/plan_matrix.py", r"(7|8|9|10)\.0"): "compute capabilities, not CUDA releases",
    ("tools/docs/shown.py", r"9\.0"): "a compute capability, not a CUDA release",
    ("roles/nvidia_repo/templates/nvidia-cuda.repo.j2", "nvidia-cuda"): "the id of the repository",
    ("script/docs", r"13\.2"): "the request of a refusal that the documentation shows",
    ("plugins/plugin_utils/resolver/", "cudnn-"): "the beginning of a build in the name of a lock",
    ("plugins/plugin_utils/components/tensorflow.py", "cudnn-"): "the beginning of a build in the name of a lock",
}


def files() -> list[Path]:
    found = [path for place in PLACES for path in sorted((PROJECT / place).rglob("*")) if path.is_file()]
    return [path for path in found if path.suffix in SUFFIXES and "__pycache__" not in path.parts]


def texts(path: Path, content: str) -> Iterator[str]:
    """Yield what a program reads of a file: no comments, no documentation."""
    if path.suffix == ".py":
        yield from _python(ast.parse(content))
    elif path.suffix == ".yml":
        yield from _yaml(yaml.load(content, Loader=_Loader))
    else:
        yield from (re.sub(r"(^|\s)(#|//).*|\{#.*?#\}", "", line) for line in content.splitlines())


def _python(tree: ast.AST) -> Iterator[str]:
    documentation = {id(value) for node in ast.walk(tree) for value in _documentation(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.value


def _documentation(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign) and {getattr(target, "id", None) for target in node.targets} & DOCUMENTATION:
        return [node.value]
    return [node.value] if isinstance(node, ast.Expr) else []


class _Loader(yaml.SafeLoader):
    """Reads a value with a tag of Ansible's as the value."""


_Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_scalar(node))  # type: ignore[no-untyped-call]


def _yaml(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            titles = key == "name" and " " in str(value)  # of a play or a task
            if key not in PROSE and not titles:
                yield from _yaml(value)
    elif isinstance(data, list):
        for item in data:
            yield from _yaml(item)
    elif data is not None:
        yield str(data)


@functools.cache
def globs() -> tuple[str, ...]:
    """Return the globs of NVIDIA's packages; a probe reports compilers and headers as well."""
    catalog = load_catalog()
    found = {*catalog.packages.installed, *catalog.packages.offered, *catalog.driver.name_patterns}
    return tuple(glob for glob in sorted(found) if not re.match(r"gcc|g\+\+|dkms|linux-headers", glob))


@functools.cache
def versions() -> frozenset[str]:
    """Return every version of the catalog."""
    catalog = load_catalog()
    found = {v.version for b in catalog.driver.branches for v in b.versions}
    found |= {t.version for t in catalog.cuda.toolkits} | {r.version for t in catalog.cuda.toolkits for r in t.releases}
    found |= {v.version for v in catalog.cudnn.versions} | {b.version for b in catalog.nccl.builds}
    return frozenset(found | {r.version for f in (catalog.tensorflow, catalog.pytorch) for r in f.releases})


def literals(path: Path, content: str) -> set[str]:
    """Return the package names, versions and addresses of NVIDIA's in a file."""
    found: set[str] = set()
    for text in texts(path, content):
        found |= {name for name in NAME.findall(text) if any(fnmatch.fnmatchcase(name, glob) for glob in globs())}
        found |= set(VERSION.findall(text)) & versions()
        found |= {ADDRESS} if ADDRESS in text else set()
    return {name for name in found if not any(re.fullmatch(known, name) for known in NOT_PACKAGES.values())}


def test_package_names_versions_and_addresses_are_in_the_catalog_alone() -> None:
    found = {
        (str(path.relative_to(PROJECT)), literal) for path in files() for literal in literals(path, path.read_text())
    }
    allowed = {
        (name, literal): entry
        for name, literal in found
        for entry in ALLOWED
        if name.startswith(entry[0]) and re.fullmatch(entry[1], literal)
    }
    assert found - set(allowed) == set(), "move them to catalog/, or allow them here with a reason"
    assert set(allowed.values()) == set(ALLOWED), "an entry that allows nothing is out of date"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.py", 'PACKAGE = "libcudnn9-cuda-13"  # libnccl2', {"libcudnn9-cuda-13"}),
        ("x.py", 'GLOBS = ["cuda-drivers*"]', {"cuda-drivers*"}),
        ("x.yml", "parts: ['(lib)?nvidia-.*', 'gds-tools-.*']", {"nvidia-", "gds-tools-"}),
        ("x.py", '"""libnccl2"""\nDOCUMENTATION = "libnccl2"\ndef f():\n    "libnccl2"\n', set()),
        ("x.yml", "- name: Install libnccl2\n  apt: {name: libnccl-dev=2.29.7-1+cuda13.2}", {"libnccl-dev", "2.29.7"}),
        ("x.yml", "description: libnccl2\nversion: '13.2'", {"13.2"}),
        ("x.j2", "Package: nvidia-driver-cuda\n# libnccl2", {"nvidia-driver-cuda"}),
        ("x.sh", f"curl https://{ADDRESS}/x", {ADDRESS}),
        ("x.py", 'RUN = ["nvidia-smi", "/usr/bin/nvidia-xconfig", "gcc"]', set()),
    ],
)
def test_the_scan_finds_literals_and_no_documentation(name: str, content: str, expected: set[str]) -> None:
    assert literals(Path(name), content) == expected


def test_no_scenario_names_nvidias_download_address() -> None:
    found = [path for path in PROJECT.glob("molecule/**/*") if path.is_file() and path.suffix in SUFFIXES]
    assert len(found) > 20
    assert [path for path in found if ADDRESS in path.read_text(errors="ignore")] == []
