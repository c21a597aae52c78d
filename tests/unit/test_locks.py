"""The lock files: every requirement has hashes, no address of an index, and the versions that the names promise."""

import re
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker

ROOT = Path(__file__).resolve().parents[2]
TENSORFLOW = sorted((ROOT / "roles/tensorflow_env/files").glob("tensorflow-*.txt"))
PYTORCH = sorted((ROOT / "roles/pytorch_env/files").glob("pytorch-*.txt"))
UV = ROOT / "roles/framework_env/files/uv.txt"
LOCKS = [*TENSORFLOW, *PYTORCH, UV, *sorted((ROOT / "requirements").glob("*.txt"))]
REQUIREMENT = re.compile(r"^([a-z0-9][a-z0-9._-]*)==([^ ;\\]+)( ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")


def requirements(lock: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in lock.read_text().splitlines():
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


@pytest.mark.parametrize("lock", TENSORFLOW, ids=lambda lock: lock.name)
def test_name_promises_what_the_lock_pins(lock: Path) -> None:
    match = re.fullmatch(r"tensorflow-(\d+\.\d+\.\d+)(?:-cudnn-(\d+\.\d+))?\.txt", lock.name)
    assert match
    pins = requirements(lock)
    assert pins["tensorflow"] == {match[1]}
    (cudnn,) = pins["nvidia-cudnn-cu12"]
    if match[2]:
        assert number(cudnn)[:2] <= number(match[2])


@pytest.mark.parametrize("lock", TENSORFLOW, ids=lambda lock: lock.name)
def test_cuda_libraries_come_from_wheels(lock: Path) -> None:
    assert {"nvidia-cublas-cu12", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-runtime-cu12", "nvidia-nccl-cu12"} <= set(
        requirements(lock)
    )


# The wheels' own requirements, read from their METADATA: exact up to 2.19, lower bounds since.
@pytest.mark.parametrize(
    ("name", "cudnn", "nccl"),
    [
        ("tensorflow-2.16.2.txt", "8.9.7.29", "2.19.3"),
        ("tensorflow-2.17.1.txt", "8.9.7.29", "2.19.3"),
        ("tensorflow-2.18.1.txt", "9.3.0.75", "2.21.5"),
        ("tensorflow-2.19.1.txt", "9.3.0.75", "2.23.4"),
    ],
)
def test_exact_pins_of_older_wheels(name: str, cudnn: str, nccl: str) -> None:
    pins = requirements(ROOT / "roles/tensorflow_env/files" / name)
    assert (pins["nvidia-cudnn-cu12"], pins["nvidia-nccl-cu12"]) == ({cudnn}, {nccl})


def test_hosts_get_the_uv_that_the_project_tests_with() -> None:
    roles = requirements(UV)
    assert roles == requirements(ROOT / "requirements/bootstrap.txt")
    assert len(roles["uv"]) == 1


@pytest.mark.parametrize("lock", TENSORFLOW, ids=lambda lock: lock.name)
def test_lock_serves_the_pythons_of_the_catalog(lock: Path) -> None:
    version = lock.name.removesuffix(".txt").split("-")[1]
    releases = yaml.safe_load((ROOT / "catalog/tensorflow.yml").read_text())["releases"]
    (pythons,) = [release["pythons"] for release in releases if release["version"] == version]
    lines = [match for line in lock.read_text().splitlines() if (match := REQUIREMENT.match(line))]
    (marker,) = [Marker(match[3].removeprefix(" ; ")) for match in lines if match[1] == "tensorflow"]
    host = {"sys_platform": "linux", "platform_machine": "x86_64"}
    served = [
        python
        for python in ("3.10", "3.11", "3.12", "3.13", "3.14")
        if marker.evaluate({**host, "python_version": python, "python_full_version": f"{python}.4"})
    ]
    assert served == [python for python in pythons if python != "3.9"]


@pytest.mark.parametrize("lock", PYTORCH, ids=lambda lock: lock.name)
def test_pytorch_lock_matches_the_catalog(lock: Path) -> None:
    """The catalog has it from the wheel's METADATA, the lock file from the resolution of the same: both are pins."""
    match = re.fullmatch(r"pytorch-(\d+\.\d+\.\d+)\.txt", lock.name)
    assert match
    releases = yaml.safe_load((ROOT / "catalog/pytorch.yml").read_text())["releases"]
    (release,) = [b for r in releases if r["version"] == match[1] for b in r["builds"] if b["index"] == "pypi"]
    pins, major = requirements(lock), release["cuda"].split(".")[0]
    assert pins["torch"] == {match[1]}
    assert pins[f"nvidia-cudnn-cu{major}"] == {release["cudnn"]}
    assert pins[f"nvidia-nccl-cu{major}"] == {release["nccl"]}
    assert "numpy" in pins
    runtime = "nvidia-cuda-runtime" + ("-cu12" if major == "12" else "")
    assert {".".join(version.split(".")[:2]) for version in pins[runtime]} == {".".join(release["cuda"].split(".")[:2])}
    assert [name for name in pins if re.search(r"-cu\d+$", name) and not name.endswith(f"-cu{major}")] == []


@pytest.mark.parametrize("lock", PYTORCH, ids=lambda lock: lock.name)
def test_pytorch_lock_serves_the_pythons_of_the_catalog(lock: Path) -> None:
    version = lock.name.removesuffix(".txt").split("-")[1]
    releases = yaml.safe_load((ROOT / "catalog/pytorch.yml").read_text())["releases"]
    (pythons,) = [release["pythons"] for release in releases if release["version"] == version]
    lines = [match for line in lock.read_text().splitlines() if (match := REQUIREMENT.match(line))]
    (marker,) = [Marker(match[3].removeprefix(" ; ")) for match in lines if match[1] == "torch"]
    host = {"sys_platform": "linux", "platform_machine": "x86_64"}
    for python in pythons:
        here = {**host, "python_version": python, "python_full_version": f"{python}.4"}
        assert marker.evaluate(here)
        served = {match[1] for match in lines if Marker((match[3] or "").removeprefix(" ; ")).evaluate(here)}
        assert {"numpy", "sympy", "networkx", "triton", "fsspec"} <= served
    assert not marker.evaluate({**host, "python_version": "3.16", "python_full_version": "3.16.0"})
