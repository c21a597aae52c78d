"""How cuda_check.cu is compiled, and how its document is read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.module_utils.model.cuda_check import Document
from ansible_collections.gpuhost.stack.plugins.module_utils.nvidia import cuda_program
from syrupy.assertion import SnapshotAssertion

FIXTURES = Path(__file__).parents[3] / "fixtures/cuda_check"


def test_versions_of_a_real_run(snapshot: SnapshotAssertion) -> None:
    found = cuda_program.parse((FIXTURES / "no-device.json").read_text())
    assert cuda_program.versions(found) == {"cuda": "13.2", "cudnn": "9.28.0", "nccl": "2.29.7"}
    assert cuda_program.error_text(found.error) == snapshot


@pytest.mark.parametrize(
    ("name", "number", "version"),
    [
        ("cuda", 11080, "11.8"),
        ("cuda", 9000, "9.0"),
        ("cudnn", 8907, "8.9.7"),
        ("cudnn", 91002, "9.10.2"),
        ("cuda", 12000, "12.0"),
        ("cudnn", 8000, "8.0.0"),
        ("cudnn", 90000, "9.0.0"),
        ("nccl", 2708, "2.7.8"),
        ("nccl", 10000, "1.0.0"),
        ("nccl", 23000, "2.30.0"),
        ("nccl", 21703, "2.17.3"),
    ],
)
def test_version_numbers_of_older_releases(name: str, number: int, version: str) -> None:
    assert cuda_program.versions(printed(versions={name: number})) == {name: version}


def printed(**parts: Any) -> Document:
    """Return the document of a program that found no device, with other parts."""
    document = json.loads((FIXTURES / "no-device.json").read_text())
    return cuda_program.parse(json.dumps({**document, **parts}))


def test_the_document_is_kept_for_the_evidence_as_it_was_printed() -> None:
    text = (FIXTURES / "simulated-3-gpus.json").read_text()
    assert list(cuda_program.parse(text).json.items()) == list(json.loads(text).items())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"devices": [{"index": 0}]}, r"the document\.devices\[0\]\.kernel: missing"),
        ({"error": {"call": "cudaMalloc"}}, r"the document\.error\.number: missing"),
        ({"unfinished": {"step": "x", "signal": "11"}}, r"the document\.unfinished\.signal: expected an integer"),
    ],
)
def test_damaged_part_is_an_error(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        printed(**parts)


@pytest.mark.parametrize("output", ["", "cuda 13000\n", "[1]", '{"schema": 2}', '{"schema": 1}'])
def test_invalid_document_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(output))):
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
    assert cuda_program.loaded(printed(libraries=libraries)) == {"cudnn": "9.28.0", "nccl": "/opt/nccl/libnccl.so.2"}
    assert cuda_program.loaded(printed(libraries=None)) == cuda_program.loaded(printed()) == {}


@pytest.mark.parametrize("missing", ["schema", *cuda_program.PARTS])
def test_document_without_a_part_is_an_error(missing: str) -> None:
    document = json.loads((FIXTURES / "no-device.json").read_text())
    del document[missing]
    with pytest.raises(ValueError, match="the program "):
        cuda_program.parse(json.dumps(document))


def test_error_of_another_document_shows_its_end(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(ValueError, match=r": 'x{299}y'$") as error:
        cuda_program.parse("x" * 400 + "y")
    assert str(error.value).replace("x" * 299, "x...") == snapshot


def test_library_that_returns_no_version_is_omitted() -> None:
    assert cuda_program.versions(printed(versions={"cuda": 13020, "cudnn": 0, "nccl": None})) == {"cuda": "13.2"}


@pytest.mark.parametrize(("message", "end"), [("", ""), ("cudaErrorX", ""), ("it is busy", ", it is busy")])
def test_text_of_an_error(message: str, end: str) -> None:
    error = printed(error={"call": "cudaMalloc", "number": 46, "name": "cudaErrorX", "message": message}).error
    assert error is not None
    assert cuda_program.error_text(error) == "cudaMalloc: cudaErrorX (46)" + end


@pytest.mark.parametrize(
    "unfinished",
    [{"step": "cudnnCreate", "signal": 11}, {"step": "a pair", "signal": 14}],
    ids=["crashed", "out of time"],
)
def test_text_of_a_program_that_did_not_finish(unfinished: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert cuda_program.unfinished_text(printed(unfinished=unfinished)) == snapshot


def test_a_program_that_finished_has_no_such_text() -> None:
    assert cuda_program.unfinished_text(printed(unfinished=None)) is None


@pytest.mark.parametrize("options", [None, ["-gencode=x"]])
def test_command_of_the_compiler(options: list[str] | None) -> None:
    compiler = ["/cuda/bin/nvcc", "-Wno-deprecated-gpu-targets", "-o", "a.out", "a.cu", *(options or [])]
    assert cuda_program.arguments("/cuda/bin/nvcc", "a.cu", "a.out", (), options) == compiler
    assert cuda_program.arguments("/cuda/bin/nvcc", "a.cu", "a.out", ("cudnn", "nccl"), options) == [
        *compiler, "-DWITH_CUDNN", "-DWITH_NCCL", "-lcudnn", "-lnccl",
    ]  # fmt: skip
