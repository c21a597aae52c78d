"""The lock files: every requirement has hashes, no address of an index, and the versions that the names promise."""

import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog import lock_texts

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = sorted((ROOT / "roles/tensorflow_env/files").glob("tensorflow-*.txt"))
PYTORCH = sorted((ROOT / "roles/pytorch_env/files").glob("pytorch-*.txt"))
UV = ROOT / "roles/framework_env/files/uv.txt"
LOCKS = [*TENSORFLOW, *PYTORCH, UV, *sorted((ROOT / "requirements").glob("*.txt"))]
REQUIREMENT = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)( ; [^\\]+)? \\$")
NAMES = {name: path for path in (*TENSORFLOW, *PYTORCH) for name in lock_texts.names(path)}  # one for each Python
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
TENSORFLOW_NAME = re.compile(r"tensorflow-(\d[0-9.post]*)(?:-(system|cudnn-(\d+\.\d+)))?-py(3\.\d+)\.txt")
PYTORCH_NAME = re.compile(r"pytorch-(\d+\.\d+\.\d+)-cu(\d+)-py(3\.\d+)(?:-([a-z]\w+))?\.txt")


def text_of(name: str) -> str:
    """Return the lock of a Python."""
    return lock_texts.read(NAMES[name], lock_texts.python_of(name))


def requirements(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if match := REQUIREMENT.match(line):
            found.setdefault(match[1], set()).add(match[2])
    return found


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_there_are_locks() -> None:
    assert len(TENSORFLOW) >= 8
    assert len(PYTORCH) >= 4
    assert len(LOCKS) > len(TENSORFLOW) + len(PYTORCH) + 1


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_line_is_a_pin_with_hashes_or_a_comment(lock: Path) -> None:
    hashes: dict[str, int] = {}
    current = ""
    for line in lock.read_text().splitlines():
        if match := REQUIREMENT.match(line):
            current = line
            hashes[current] = 0
            assert match[2]
        elif HASH.match(line):
            hashes[current] += 1
        else:
            assert line.lstrip().startswith("#"), line
    assert hashes
    assert [line for line, count in hashes.items() if not count] == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_no_addresses(lock: Path) -> None:
    assert "://" not in lock.read_text()
    assert "--index" not in lock.read_text()


@pytest.mark.parametrize("lock", [*TENSORFLOW, *PYTORCH], ids=lambda lock: lock.name)
def test_a_release_and_build_has_one_file_for_all_its_pythons(lock: Path) -> None:
    """Of which each reads as a lock of its own: with one version of each package, and no condition."""
    assert lock_texts.of_all(lock.name) == lock.name
    found = {python: lock_texts.read(lock, python) for python in lock_texts.pythons(lock.read_text())}
    assert found
    assert lock_texts.merge(found) == lock.read_text()
    for text in found.values():
        pinned = [match for line in text.splitlines() if (match := REQUIREMENT.match(line))]
        assert [match[0] for match in pinned if match[3]] == []
        assert len({match[1] for match in pinned}) == len(pinned)


@pytest.mark.parametrize("name", sorted(name for name in NAMES if name.startswith("tensorflow-")))
def test_name_promises_what_the_lock_pins(name: str) -> None:
    match = TENSORFLOW_NAME.fullmatch(name)
    assert match
    pins = requirements(text_of(name))
    assert pins.get("tensorflow", pins.get("tensorflow-gpu")) == {match[1]}
    libraries = {package for package in pins if package.startswith("nvidia-")}
    if match[2] == "system":
        assert libraries == set()
        return
    kinds = {re.sub(r"^nvidia-|-cu\d+$", "", package) for package in libraries}
    assert {"cublas", "cuda-nvcc", "cuda-runtime", "cudnn", "nccl"} <= kinds
    (cudnn,) = next(pins[package] for package in libraries if package.startswith("nvidia-cudnn"))
    if match[3]:
        assert number(cudnn)[:2] <= number(match[3])


# The wheels' own requirements, read from their METADATA: exact up to 2.19, lower bounds since.
@pytest.mark.parametrize(
    ("name", "cudnn", "nccl"),
    [
        ("tensorflow-2.16.2-py3.11.txt", "8.9.7.29", "2.19.3"),
        ("tensorflow-2.17.1-py3.11.txt", "8.9.7.29", "2.19.3"),
        ("tensorflow-2.18.1-py3.11.txt", "9.3.0.75", "2.21.5"),
        ("tensorflow-2.19.1-py3.11.txt", "9.3.0.75", "2.23.4"),
    ],
)
def test_exact_pins_of_older_wheels(name: str, cudnn: str, nccl: str) -> None:
    pins = requirements(text_of(name))
    assert (pins["nvidia-cudnn-cu12"], pins["nvidia-nccl-cu12"]) == ({cudnn}, {nccl})


def test_hosts_get_the_uv_that_the_project_tests_with() -> None:
    roles = requirements(UV.read_text())
    assert roles == requirements((ROOT / "requirements/bootstrap.txt").read_text())
    assert len(roles["uv"]) == 1


@pytest.mark.parametrize("name", sorted(name for name in NAMES if name.startswith("pytorch-")))
def test_pytorch_lock_matches_the_catalog(name: str) -> None:
    """The catalog has it from the wheel's METADATA, the lock file from the resolution of the same: both are pins."""
    match = PYTORCH_NAME.fullmatch(name)
    assert match
    releases = yaml.safe_load((ROOT / "catalog/pytorch.yml").read_text())["releases"]
    (release,) = [each for each in releases if each["version"] == match[1]]
    assert match[3] in release["pythons"]
    machines = {
        tuple(each.get("cpu_architectures", ["x86_64"])): each for each in release["builds"] if each["index"] == "pypi"
    }
    build = machines[(match[4] or "x86_64",)]
    pins, (major, minor) = requirements(text_of(name)), build["cuda"].split(".")[:2]
    assert match[2] == major + minor
    assert pins["torch"] == {match[1]}
    assert pins[f"nvidia-cudnn-cu{major}"] == {build["cudnn"]}
    assert pins[f"nvidia-nccl-cu{major}"] == {build["nccl"]}
    assert {"numpy", "sympy", "networkx", "triton", "fsspec"} <= set(pins)
    runtime = "nvidia-cuda-runtime" + ("-cu12" if major == "12" else "")
    assert {version.split(".")[0:2] == [major, minor] for version in pins[runtime]} == {True}
    others = [each for each in pins if re.search(r"-cu\d+$", each) and not each.endswith(f"-cu{major}")]
    assert others == []
