"""The request: what the user asks for with the gpu_stack_* variables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.planning.components import COMPONENTS

_REQUEST_CHOICES = {
    "tensorflow_cuda_libraries": ("auto", "wheel", "system"),
    "driver_source": ("auto", "nvidia", "distro"),
    "driver_kernel_modules": ("auto", "open", "proprietary"),
    "cuda_source": ("auto", "nvidia", "distro"),
    "leftovers": ("refuse", "remove"),
}


class PlanInputError(ValueError):
    """The request or the probe cannot be read; the message lists every reason."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the user wants; of each component `auto`, a version, a prefix of one, or `none`.

    keep_cuda: `all`, or how many toolkits stay; leftovers: whether what other installers left is removed or refused.
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
        """Reads a mapping with the variables' names without `gpu_stack_`; raises PlanInputError."""
        request, wrong = cls.read(values)
        if wrong:
            raise PlanInputError("; ".join(wrong.values()))
        return request

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> tuple[Request, dict[str, str]]:
        """The request, wrong values left out of it, and by name what is wrong with each."""
        known = {f.name: str(f.default) for f in dataclasses.fields(cls)}
        strangers = {n: f"unknown request {n!r}; known: {', '.join(known)}" for n in values if n not in known}
        texts = {name: _request_text(name, values[name], known[name]) for name in known if name in values}
        wrong = {
            name: f"{name} is {text!r}; expected {e}" for name, text in texts.items() if (e := _expected(name, text))
        }
        return cls(**{name: text for name, text in texts.items() if name not in wrong}), {**strangers, **wrong}


def _expected(name: str, text: str) -> str | None:
    """What a request's value should be; None where it is."""
    choices = _REQUEST_CHOICES.get(name)
    if choices and text not in choices:
        return f"one of {', '.join(choices)}"
    if name in COMPONENTS and text not in ("auto", "none") and not all(part.isalnum() for part in text.split(".")):
        return "auto, none, a version or a prefix of one"
    if name == "expect_gpus" and text != "auto" and not text.isdecimal():
        return "auto or a number"
    if name == "keep_cuda" and text != "all" and not (text.isdecimal() and int(text) >= 1):
        return "all, or how many toolkits shall stay, at least 1"
    return None


def _request_text(name: str, value: Any, default: str) -> str:
    """YAML reads `13.2` as a number and an empty value as None."""
    if value is None or value == "":
        return "auto" if name in COMPONENTS else default
    text = str(value).strip()
    return text.lower() if text.lower() in ("auto", "none", "all") else text
