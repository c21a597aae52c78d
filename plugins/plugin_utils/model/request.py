"""The request: what the user sets with the gpu_stack_* variables."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.components import COMPONENTS

_CHOICES = {
    "scope": ("host", "frameworks"),
    "tensorflow_cuda_libraries": ("auto", "wheel", "system"),
    "driver_source": ("auto", "nvidia", "distro"),
    "driver_kernel_modules": ("auto", "open", "proprietary"),
    "driver_module_source": ("auto", "dkms", "prebuilt"),
    "driver_profile": ("auto", "compute", "full"),
    "cuda_source": ("auto", "nvidia", "distro"),
    "leftovers": ("refuse", "remove"),
}
# What people type for a component; YAML makes true and false of yes and no without quotes.
_WORDS = {
    **dict.fromkeys(("no", "off", "false"), "none"),
    **dict.fromkeys(("yes", "on", "true"), "auto"),
    "newest": "latest",
}
LATEST = "latest"
# Words that may be in a version's place.
_INSTEAD_OF_A_VERSION = {
    **dict.fromkeys(COMPONENTS, ("auto", LATEST, "none")),
    "pytorch": ("fallback", "auto", LATEST, "none"),
    "pytorch_cuda": ("auto",),
}
_CASE_SENSITIVE = ("repository_url", "repository_key_url", "repository_key_fingerprint")
_VERSION = re.compile(r"\d+(\.\d+)*(\.?(post|rc|a|b)\d+)?", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)+|\d+([,-]\d+)*", re.ASCII)  # with hyphens in package names, as in cuda-toolkit-12-6
_BUILD = re.compile(r"^cu(\d\d)(\d)$")  # as PyTorch names its builds: cu126 is for CUDA 12.6
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/\S+")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{40}")


class PlanInputError(ValueError):
    """The request, the probe or a plan cannot be used; the message lists every reason."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The gpu_stack_* variables that a plan depends on, without the prefix.

    A component is `auto`, a version, a prefix of one (`13` for any CUDA 13), `latest`, or `none`. `auto` keeps what is
    there while it fits, and is the newest that fits where nothing is; `latest` is the newest each time. pytorch may
    also be `fallback`: in place of TensorFlow, where tensorflow is `auto` and no release of it works. pytorch_cuda: the
    CUDA release that PyTorch's wheels are built for; `auto` follows the requested toolkit. keep_cuda: `all`, or how
    many toolkits stay installed; leftovers: `refuse` or `remove` what other installers left.
    scope: `host`, or `frameworks` alone, with the driver that is loaded.
    """

    driver: str = "auto"
    cuda: str = "auto"
    cudnn: str = "auto"
    nccl: str = "auto"
    tensorflow: str = "auto"
    pytorch: str = "fallback"
    pytorch_cuda: str = "auto"
    tensorflow_cuda_libraries: str = "auto"
    driver_source: str = "auto"
    driver_kernel_modules: str = "auto"
    driver_module_source: str = "auto"
    driver_profile: str = "auto"
    cuda_source: str = "auto"
    keep_cuda: str = "all"
    leftovers: str = "refuse"
    expect_gpus: str = "auto"
    repository_url: str = "auto"
    repository_key_url: str = "auto"
    repository_key_fingerprint: str = "auto"
    scope: str = "host"

    @property
    def latest(self) -> tuple[str, ...]:
        """The components of which the newest is requested, whatever is there."""
        return tuple(name for name in COMPONENTS if getattr(self, name) == LATEST)

    def newest(self) -> Request:
        """Return the request of a host on which nothing is there: `auto` in place of `latest`."""
        return dataclasses.replace(self, **dict.fromkeys(self.latest, "auto")) if self.latest else self

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Request:
        """Return the request for variables without `gpu_stack_`; raises PlanInputError that lists all wrong ones."""
        reading = cls.read(values)
        if reading.errors:
            raise PlanInputError("; ".join(reading.errors.values()))
        return reading.request

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Reading:
        """Return the request with the defaults in place of invalid values, the errors and what was understood."""
        defaults = {field.name: str(field.default) for field in dataclasses.fields(cls)}
        errors = {
            name: f"unknown request {name!r}{spelling.hint(name, defaults)}; known: {', '.join(defaults)}"
            for name in values
            if name not in defaults
        }
        valid, notes = {}, {}
        for name in (name for name in defaults if name in values):
            text, note = _understood(name, values[name], defaults[name])
            expected = _expected(name, text)
            if expected:
                errors[name] = f"gpu_stack_{name} is {shown(values[name])}; expected {expected}"
                continue
            valid[name] = text
            if note:
                notes[name] = f"gpu_stack_{name} is {note}"
        return Reading(cls(**valid), errors, notes)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A request as it was understood. errors and notes: by the name of the variable, without its prefix."""

    request: Request
    errors: dict[str, str]
    notes: dict[str, str]


def shown(value: Any) -> str:
    """Return a wrong value for a message, with what YAML made of it where that is not what was typed."""
    if isinstance(value, bool):
        typed = "yes, on and true" if value else "no, off and false"
        return f"{str(value).lower()} (YAML reads {typed} without quotes so)"
    if value is None or value == "":
        return "empty"
    if isinstance(value, (list, tuple)):
        return f"the list {list(value)}"
    return f"the mapping {dict(value)}" if isinstance(value, Mapping) else repr(str(value))


def _understood(name: str, value: Any, default: str) -> tuple[str, str]:
    """Return a value as text, and what a word was taken for, if anything; YAML reads `13.2` as a number."""
    if value is None or value == "":
        return default, f"empty, which means its default, {default}"
    if isinstance(value, (list, tuple, Mapping)):
        return "", ""
    text = str(value).strip()
    meant, words = _WORDS.get(text.lower()), _INSTEAD_OF_A_VERSION.get(name, ())
    if LATEST in (meant, text.lower()) and LATEST not in words:  # no component, of which nothing stays
        meant = "auto"
    if meant in words:
        return str(meant), f"{text.lower()}, which means {meant}"
    return (text if name in _CASE_SENSITIVE else text.lower()), ""


def _expected(name: str, text: str) -> str | None:
    """Return what is expected instead of a value; None if it is valid."""
    if choices := _CHOICES.get(name):
        return None if text in choices else f"one of {', '.join(choices)}{spelling.hint(text, choices)}"
    if words := _INSTEAD_OF_A_VERSION.get(name):
        return _expected_of_version(text, words)
    if name == "expect_gpus" and text != "auto" and not text.isdecimal():
        return "auto or a number"
    if name == "keep_cuda" and text != "all" and not (text.isdecimal() and int(text) >= 1):
        return "all, or the number of toolkits to keep, at least 1"
    if name.endswith("_url") and text != "auto" and not URL.fullmatch(text):
        return "auto, or an address such as https://mirror.example.org/compute/cuda/repos"
    if name.endswith("_fingerprint") and text != "auto" and not _FINGERPRINT.fullmatch(text.replace(" ", "")):
        return "auto, or the 40 hexadecimal digits that gpg --show-keys prints"
    return None


def _expected_of_version(text: str, words: tuple[str, ...]) -> str | None:
    if text in words or _VERSION.fullmatch(text):
        return None
    # Input methods for Chinese and Japanese type digits and dots of full width.
    number = _NUMBER.search(_BUILD.sub(r"\1.\2", unicodedata.normalize("NFKC", text)))
    near = f"; did you mean {re.sub('[,-]', '.', number.group())}?" if number else spelling.hint(text, words)
    return f"{', '.join(words)}, a version or the first parts of one, such as 13.2{near}"
