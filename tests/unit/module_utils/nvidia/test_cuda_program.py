"""How cuda_check.cu is compiled, and how its document is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program

FIXTURES = Path(__file__).parents[3] / "fixtures/cuda_check"


def test_versions_of_a_real_run() -> None:
    found = cuda_program.parse((FIXTURES / "no-device.json").read_text())
    assert cuda_program.versions(found) == {"cuda": "13.2", "cudnn": "9.28.0", "nccl": "2.29.7"}
    assert cuda_program.error_text(found["error"]).startswith("cudaGetDeviceCount: cudaErrorInsufficientDriver (35), ")


@pytest.mark.parametrize(
    ("name", "number", "version"),
    [
        ("cuda", 11080, "11.8"),
        ("cuda", 9000, "9.0"),
        ("cudnn", 8907, "8.9.7"),
        ("cudnn", 91002, "9.10.2"),
        ("nccl", 2708, "2.7.8"),
        ("nccl", 21703, "2.17.3"),
    ],
)
def test_version_numbers_of_older_releases(name: str, number: int, version: str) -> None:
    assert cuda_program.versions({"versions": {name: number}}) == {name: version}


@pytest.mark.parametrize("output", ["", "cuda 13000\n", "[1]", '{"schema": 2}', '{"schema": 1}'])
def test_invalid_document_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="did not print its document"):
        cuda_program.parse(output)


LISTED = (FIXTURES / "nvcc-13.2-list-gpu-code.txt").read_text()


@pytest.mark.parametrize(
    ("capabilities", "listed", "codes"),
    [
        (["9.0", "9.0"], LISTED, ["90"]),
        (["12.1", "7.5", "8.6"], LISTED, ["75", "86", "121"]),
        (["12.1"], "sm_90\nsm_90a\nsm_100\nsm_120\nsm_120f\n", ["120"]),
        (["7.0"], LISTED, []),
        (["3.7", "6.1"], "nvcc fatal   : Unknown option 'list-gpu-code'", ["37", "61"]),
        ([], LISTED, []),
    ],
    ids=["once", "sorted", "the next lower", "none of this major", "CUDA 10 has no list", "no GPU planned"],
)
def test_options_for_the_planned_gpus(capabilities: list[str], listed: str, codes: list[str]) -> None:
    options = [f"-gencode=arch=compute_{code},code=sm_{code}" for code in codes]
    assert cuda_program.architectures(capabilities, listed) == options


def test_loaded_versions_are_those_of_the_files_names() -> None:
    libraries = ["/usr/lib/libcudnn.so.9.28.0", "/usr/lib/libcudnn_graph.so.9.27.0", "/opt/nccl/libnccl.so.2"]
    assert cuda_program.loaded({"libraries": libraries}) == {"cudnn": "9.28.0", "nccl": "/opt/nccl/libnccl.so.2"}
    assert cuda_program.loaded({"libraries": None}) == cuda_program.loaded({}) == {}
