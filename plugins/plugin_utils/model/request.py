"""The request: what the user sets with the gpu_stack_* variables."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import Variable, is_empty, of_request

# What people type for a component; YAML makes true and false of yes and no without quotes.
_WORDS = {
    **dict.fromkeys(("no", "off", "false"), "none"),
    **dict.fromkeys(("yes", "on", "true"), "auto"),
    "newest": "latest",
}
LATEST = "latest"
_CASE_SENSITIVE = ("url", "fingerprint")  # types of variables
_VERSION = re.compile(r"\d+(\.\d+)*(\.?(post|rc|a|b)\d+)?", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)+|\d+([,-]\d+)*", re.ASCII)  # with hyphens in package names, as in cuda-toolkit-12-6
_BUILD = re.compile(r"^cu(\d\d)(\d)$")  # as PyTorch names its builds: cu126 is for CUDA 12.6
_DEFAULTS: dict[str, str] = {name: variable.default for name, variable in of_request().items()}
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/\S+")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{40}")


class PlanInputError(ValueError):
    """The request, the probe or a plan cannot be used; the message lists every reason."""


@dataclasses.dataclass(frozen=True)
class Request:
    """The gpu_stack_* variables that a plan depends on, without the prefix, as text.

    meta/variables.yml says what each means and accepts. A component is `auto`, a version, a prefix of one (`13` for any
    CUDA 13), `latest`, or `none`. `auto` keeps what is there while it fits, and is the newest that fits where nothing
    is; `latest` is the newest each time.
    """

    driver: str = _DEFAULTS["driver"]
    cuda: str = _DEFAULTS["cuda"]
    cudnn: str = _DEFAULTS["cudnn"]
    nccl: str = _DEFAULTS["nccl"]
    tensorflow: str = _DEFAULTS["tensorflow"]
    pytorch: str = _DEFAULTS["pytorch"]
    pytorch_cuda: str = _DEFAULTS["pytorch_cuda"]
    tensorflow_cuda_libraries: str = _DEFAULTS["tensorflow_cuda_libraries"]
    driver_source: str = _DEFAULTS["driver_source"]
    driver_kernel_modules: str = _DEFAULTS["driver_kernel_modules"]
    driver_module_source: str = _DEFAULTS["driver_module_source"]
    driver_profile: str = _DEFAULTS["driver_profile"]
    cuda_source: str = _DEFAULTS["cuda_source"]
    keep_cuda: str = _DEFAULTS["keep_cuda"]
    leftovers: str = _DEFAULTS["leftovers"]
    expect_gpus: str = _DEFAULTS["expect_gpus"]
    repository_url: str = _DEFAULTS["repository_url"]
    repository_key_url: str = _DEFAULTS["repository_key_url"]
    repository_key_fingerprint: str = _DEFAULTS["repository_key_fingerprint"]
    scope: str = _DEFAULTS["scope"]

    @property
    def latest(self) -> tuple[str, ...]:
        """The components of which the newest is requested, whatever is there."""
        return tuple(name for name, value in vars(self).items() if value == LATEST)

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
        known = of_request()
        errors = {
            name: f"unknown request {name!r}{spelling.hint(name, known)}; known: {', '.join(known)}"
            for name in values
            if name not in known
        }
        valid, notes = {}, {}
        for name, variable in known.items():
            if name not in values:
                continue
            text, note = _understood(variable, values[name])
            expected = _expected(variable, text)
            if expected:
                errors[name] = f"{variable.name} is {shown(values[name])}; expected {expected}"
                continue
            valid[name] = text
            if note:
                notes[name] = f"{variable.name} is {note}"
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
    if is_empty(value):
        return "empty"
    if isinstance(value, (list, tuple)):
        return f"the list {list(value)}"
    return f"the mapping {dict(value)}" if isinstance(value, Mapping) else repr(str(value))


def _understood(variable: Variable, value: Any) -> tuple[str, str]:
    """Return a value as text, and what a word was taken for, if anything; YAML reads `13.2` as a number."""
    if is_empty(value):
        return variable.default, f"empty, which means its default, {variable.default}"
    if isinstance(value, (list, tuple, Mapping)):
        return "", ""
    text = str(value).strip()
    meant, words = _WORDS.get(text.lower()), variable.choices if variable.type == "version" else {}
    if LATEST in (meant, text.lower()) and LATEST not in words:  # no component, of which nothing stays
        meant = "auto"
    if meant in words:
        return str(meant), f"{text.lower()}, which means {meant}"
    return (text if variable.type in _CASE_SENSITIVE else text.lower()), ""


def _expected(variable: Variable, text: str) -> str | None:
    """Return what is expected instead of a value; None if it is valid."""
    words = tuple(variable.choices)
    if text in words:
        return None
    if variable.type == "choice":
        return f"one of {', '.join(words)}{spelling.hint(text, words)}"
    if variable.type == "version":
        return _expected_of_version(text, words)
    accepts = {
        "count": text.isdecimal() and int(text) >= variable.minimum,
        "url": bool(URL.fullmatch(text)),
        "fingerprint": bool(_FINGERPRINT.fullmatch(text.replace(" ", ""))),
    }
    return None if accepts[variable.type] else variable.expected


def _expected_of_version(text: str, words: tuple[str, ...]) -> str | None:
    if _VERSION.fullmatch(text):
        return None
    # Input methods for Chinese and Japanese type digits and dots of full width.
    number = _NUMBER.search(_BUILD.sub(r"\1.\2", unicodedata.normalize("NFKC", text)))
    near = f"; did you mean {re.sub('[,-]', '.', number.group())}?" if number else spelling.hint(text, words)
    return f"{', '.join(words)}, a version or the first parts of one, such as 13.2{near}"
