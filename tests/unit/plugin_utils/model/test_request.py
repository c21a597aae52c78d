"""Requests from YAML and from the command line."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.request import PlanInputError, Request


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"cuda": 13.2}, ("cuda", "13.2")),
        ({"driver": 595}, ("driver", "595")),
        ({"cudnn": None}, ("cudnn", "auto")),
        ({"nccl": ""}, ("nccl", "auto")),
        ({"tensorflow": "None"}, ("tensorflow", "none")),
        ({"expect_gpus": 4}, ("expect_gpus", "4")),
        ({}, ("pytorch", "fallback")),
        ({"pytorch": None}, ("pytorch", Request().pytorch)),
        ({"pytorch": True}, ("pytorch", "auto")),
        ({"driver": False}, ("driver", "none")),
        ({"cuda": "No"}, ("cuda", "none")),
        ({"cuda": "latest"}, ("cuda", "latest")),
        ({"cuda": "Newest"}, ("cuda", "latest")),
        ({"pytorch_cuda": "latest"}, ("pytorch_cuda", "auto")),
        ({"tensorflow": "2.15.0.post1"}, ("tensorflow", "2.15.0.post1")),
        ({"driver_source": "NVIDIA"}, ("driver_source", "nvidia")),
        ({"repository_url": "http://M.org/Repos"}, ("repository_url", "http://M.org/Repos")),
        ({"pytorch": "Fallback"}, ("pytorch", "fallback")),
        ({}, ("pytorch_cuda", "auto")),
        ({"pytorch_cuda": 12.6}, ("pytorch_cuda", "12.6")),
        ({"driver_kernel_modules": "open"}, ("driver_kernel_modules", "open")),
        ({"driver_kernel_modules": None}, ("driver_kernel_modules", "auto")),
        ({}, ("keep_cuda", "all")),
        ({"keep_cuda": None}, ("keep_cuda", "all")),
        ({"keep_cuda": "All"}, ("keep_cuda", "all")),
        ({"keep_cuda": 2}, ("keep_cuda", "2")),
        ({}, ("leftovers", "refuse")),
        ({"leftovers": "remove"}, ("leftovers", "remove")),
    ],
)
def test_values_as_yaml_has_them(values: dict[str, Any], expected: tuple[str, str]) -> None:
    assert getattr(Request.from_mapping(values), expected[0]) == expected[1]


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        (
            {"gpu_cuda": "13", "driver_source": "cdn"},
            ["unknown request 'gpu_cuda'", "gpu_stack_driver_source is 'cdn'"],
        ),
        ({"expect_gpus": "many"}, ["expected auto or a number"]),
        ({"cuda": ">=13"}, ["a version or the first parts of one, such as 13.2; did you mean 13?"]),
        ({"cuda": "13.x"}, ["gpu_stack_cuda is '13.x'", "did you mean 13?"]),
        ({"cude": "13"}, ["unknown request 'cude'; did you mean cuda?"]),
        ({"cuda": ["12.9", "13.2"], "nccl": {"a": 1}}, ["the list ['12.9', '13.2']", "the mapping {'a': 1}"]),
        ({"driver": "newst", "cudnn": "atuo"}, ["such as 13.2", "did you mean auto?"]),
        (
            {"driver_source": False},
            ["gpu_stack_driver_source is false (YAML reads no, off and false "],
        ),
        ({"repository_url": "mirror.example.org"}, ["expected auto, or an address such as https://"]),
        ({"repository_key_fingerprint": "8793F200"}, ["expected auto, or the 40 hexadecimal digits"]),
        ({"keep_cuda": 0}, ["gpu_stack_keep_cuda is '0'; expected all, or the number of toolkits"]),
        ({"keep_cuda": "-1"}, ["gpu_stack_keep_cuda is '-1'"]),
        ({"keep_cuda": "auto"}, ["gpu_stack_keep_cuda is 'auto'"]),
        ({"keep_cuda": 1.5}, ["gpu_stack_keep_cuda is '1.5'"]),
        (
            {"keep_cuda": True, "leftovers": "delete"},
            ["gpu_stack_keep_cuda is true (YAML", "gpu_stack_leftovers is 'delete'"],
        ),
        ({"pytorch": "=2.10"}, ["gpu_stack_pytorch is '=2.10'; expected fallback, auto, latest, none, a version or"]),
        ({"pytorch_cuda": "cu126"}, ["gpu_stack_pytorch_cuda is 'cu126'", "did you mean 12.6?"]),
        ({"pytorch_cuda": "cu130"}, ["did you mean 13.0?"]),
        ({"cuda": "cuda-toolkit-12-6"}, ["did you mean 12.6?"]),
        ({"driver": "nvidia-driver-580-open"}, ["did you mean 580?"]),
        ({"driver": "595.71.05-1"}, ["did you mean 595.71.05?"]),
        ({"cuda": "13,2"}, ["did you mean 13.2?"]),
        ({"pytorch": "2.10.0+cu126"}, ["did you mean 2.10.0?"]),
        ({"pytorch_cuda": "cu 12"}, ["gpu_stack_pytorch_cuda is 'cu 12'; expected auto, a version or the first"]),
        ({"driver_kernel_modules": "nouveau"}, ["expected one of auto, open, proprietary"]),
    ],
)
def test_the_error_lists_every_wrong_value(values: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(PlanInputError) as caught:
        Request.from_mapping(values)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ({"cuda": "newest"}, "gpu_stack_cuda is newest, which means latest"),
        ({"pytorch_cuda": "latest"}, "gpu_stack_pytorch_cuda is latest, which means auto"),
        ({"driver": False}, "gpu_stack_driver is false, which means none"),
        ({"nccl": None}, "gpu_stack_nccl is empty, which means its default, auto"),
    ],
)
def test_what_a_word_was_taken_for_is_said(values: dict[str, Any], note: str) -> None:
    assert list(Request.read(values).notes.values()) == [note]


def test_nothing_is_said_about_what_is_plain() -> None:
    assert Request.read({"cuda": "auto", "driver": "none", "tensorflow": 2.21, "leftovers": "remove"}).notes == {}
