"""The request: what the user sets with the gpu_stack_* variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import COMPONENTS

_CHOICES = {
    "tensorflow_cuda_libraries": ("auto", "wheel", "system"),
    "driver_source": ("auto", "nvidia", "distro"),
    "driver_kernel_modules": ("auto", "open", "proprietary"),
    "cuda_source": ("auto", "nvidia", "distro"),
    "leftovers": ("refuse", "remove"),
}


class PlanInputError(ValueError):
    """The request or the probe cannot be used; the message lists every reason."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The gpu_stack_* variables that a plan depends on, without the prefix.

    A component is `auto`, a version, a prefix of one (`13` for any CUDA 13), or `none`. keep_cuda: `all`, or how many
    toolkits stay installed; leftovers: `refuse` or `remove` what other installers left.
    """

    driver: str = "auto"
    cuda: str = "auto"
    cudnn: str = "auto"
    nccl: str = "auto"
    tensorflow: str = "auto"
    pytorch: str = "none"
    tensorflow_cuda_libraries: str = "auto"
    driver_source: str = "auto"
    driver_kernel_modules: str = "auto"
    cuda_source: str = "auto"
    keep_cuda: str = "all"
    leftovers: str = "refuse"
    expect_gpus: str = "auto"
    repository_url: str = "auto"
    repository_key_url: str = "auto"
    repository_key_fingerprint: str = "auto"

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Request:
        """Return the request for variables without `gpu_stack_`; raises PlanInputError that lists all wrong ones."""
        request, errors = cls.read(values)
        if errors:
            raise PlanInputError("; ".join(errors.values()))
        return request

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> tuple[Request, dict[str, str]]:
        """Return the request with the defaults in place of invalid values, and the errors by name."""
        defaults = {field.name: str(field.default) for field in dataclasses.fields(cls)}
        known = ", ".join(defaults)
        errors = {name: f"unknown request {name!r}; known: {known}" for name in values if name not in defaults}
        valid = {}
        for name in (name for name in defaults if name in values):
            text = _text(name, values[name], defaults[name])
            expected = _expected(name, text)
            if expected:
                errors[name] = f"gpu_stack_{name} is {text!r}; expected {expected}"
            else:
                valid[name] = text
        return cls(**valid), errors


def _expected(name: str, text: str) -> str | None:
    """Return what is expected instead of a value; None if it is valid."""
    choices = _CHOICES.get(name)
    if choices and text not in choices:
        return f"one of {', '.join(choices)}"
    if name in COMPONENTS and text not in ("auto", "none") and not all(part.isalnum() for part in text.split(".")):
        return "auto, none, a version or a prefix of one"
    if name == "expect_gpus" and text != "auto" and not text.isdecimal():
        return "auto or a number"
    if name == "keep_cuda" and text != "all" and not (text.isdecimal() and int(text) >= 1):
        return "all, or the number of toolkits to keep, at least 1"
    return None


def _text(name: str, value: Any, default: str) -> str:
    """Return a value as text: YAML reads `13.2` as a number. Nothing (None, "") is `auto` or the field's default."""
    if value is None or value == "":
        return "auto" if name in COMPONENTS else default
    text = str(value).strip()
    return text.lower() if text.lower() in ("auto", "none", "all") else text
