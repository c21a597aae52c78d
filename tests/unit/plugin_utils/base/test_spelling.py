"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling


def test_the_nearest_known_name() -> None:
    known = ["gpu_stack_cuda", "gpu_stack_cudnn", "gpu_stack_cuda_source"]
    assert spelling.nearest("gpu_stack_cude", known) == "gpu_stack_cuda"
    assert spelling.nearest("gpustack_cudnn", known) == "gpu_stack_cudnn"
    assert spelling.nearest("colour", known) is None
    assert spelling.nearest("gpu_stack_cude", known, cutoff=0.99) is None


def test_the_hint_ends_a_message() -> None:
    assert spelling.hint("atuo", ["auto", "none"]) == "; did you mean auto?"
    assert spelling.hint("maximum", ["auto", "none"]) == ""


def test_an_abbreviation_of_a_name() -> None:
    known = ["tensorflow", "tensorflow_cuda_libraries", "pytorch", "pytorch_cuda", "driver"]
    assert [spelling.nearest(name, known) for name in ("tf", "pt", "drv", "td", "x")] == [
        *("tensorflow", "pytorch", "driver"),
        *("tensorflow_cuda_libraries", None),
    ]
    assert spelling.nearest("tf", known, cutoff=0.85) is None
