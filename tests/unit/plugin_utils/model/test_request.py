"""Requests from YAML and from the command line."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.parsing.convert_bool import BOOLEANS, boolean
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs import user_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.user_request import asking
from syrupy.assertion import SnapshotAssertion

from tests.unit.frozen_catalog import frozen_catalog
from tests.unit.requested import requested


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
        ({"pytorch": None}, ("pytorch", asking()["pytorch"])),
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
        ({"ignore_gpus": ["00000000:02:00.0", " 10DE:1B06"]}, ("ignore_gpus", "0000:02:00.0,10de:1b06")),
        ({"ignore_gpus": "03:00.0, 0001:04:00.0"}, ("ignore_gpus", "0000:03:00.0,0001:04:00.0")),
        ({"ignore_gpus": []}, ("ignore_gpus", "none")),
    ],
)
def test_values_as_yaml_has_them(values: dict[str, Any], expected: tuple[str, str]) -> None:
    assert requested(values)[expected[0]] == expected[1]


@pytest.mark.parametrize("word", sorted(word for word in BOOLEANS if isinstance(word, str)))
def test_a_bool_is_what_ansible_takes_it_for(word: str) -> None:
    assert requested({"adopt": word.title()})["adopt"] == str(boolean(word)).lower()


@pytest.mark.parametrize(
    "values",
    [
        {"gpu_cuda": "13", "driver_source": "cdn"},
        {"expect_gpus": "many"},
        {"cuda": ">=13"},
        {"cuda": "13.x"},
        {"cude": "13"},
        {"cuda": ["12.9", "13.2"], "nccl": {"a": 1}},
        {"driver": "newst", "cudnn": "atuo"},
        {"driver_source": False, "cuda_source": True},
        {"repository_url": "mirror.example.org"},
        {"repository_key_fingerprint": "8793F200"},
        {"keep_cuda": 0},
        {"keep_cuda": "-1"},
        {"keep_cuda": "auto"},
        {"keep_cuda": 1.5},
        {"keep_cuda": True, "leftovers": "delete"},
        {"pytorch": "=2.10"},
        {"pytorch_cuda": "cu126"},
        {"pytorch_cuda": "cu130"},
        {"cuda": "cuda-toolkit-12-6"},
        {"driver": "nvidia-driver-580-open"},
        {"driver": "595.71.05-1"},
        {"cuda": "13,2"},
        {"cuda": "11.8, 12.8"},
        {"pytorch": "2.10.0+cu126"},
        {"pytorch_cuda": "cu 12"},
        {"driver_kernel_modules": "nouveau"},
        {"ignore_gpus": [120.0, "0000:01:00.0", "GPU-1"]},  # what YAML makes of 0000:02:00.0 without quotes
    ],
    ids=str,
)
def test_the_error_lists_every_wrong_value(values: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    text = "; ".join(user_request.read(values, frozen_catalog()).errors.values())
    assert all(name in text for name in values)
    assert text == snapshot


@pytest.mark.parametrize(
    "values",
    [
        {"cuda": "newest"},
        {"pytorch_cuda": "latest"},
        {"driver": False},
        {"nccl": None},
    ],
    ids=str,
)
def test_what_a_word_was_taken_for_is_said(values: dict[str, Any], snapshot: SnapshotAssertion) -> None:
    assert list(user_request.read(values, frozen_catalog()).notes.values()) == snapshot


def test_nothing_is_said_about_what_is_plain() -> None:
    values = {"cuda": "auto", "driver": "none", "tensorflow": 2.21, "leftovers": "remove"}
    assert user_request.read(values, frozen_catalog()).notes == {}
