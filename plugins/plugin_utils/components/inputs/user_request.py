"""Read a request: the values of the user by the declarations of the variables, all mistakes at once.

Runs on the controller; pure functions.
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpuhost.stack.plugins.module_utils.model.request import LATEST, Request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.base import spelling
from ansible_collections.gpuhost.stack.plugins.plugin_utils.catalog.schema import Catalog
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.inputs.declared import of_request
from ansible_collections.gpuhost.stack.plugins.plugin_utils.components.registry import BY_NAME, CHOICES, FRAMEWORKS
from ansible_collections.gpuhost.stack.plugins.plugin_utils.model.user_variables import Variable, is_empty
from ansible_collections.gpuhost.stack.plugins.plugin_utils.resolver.choices import published

# The words of ansible.module_utils.parsing.convert_bool.
_TRUE, _FALSE = ("true", "t", "yes", "y", "on", "1"), ("false", "f", "no", "n", "off", "0")
# What people type for a component; YAML makes true and false of yes and no without quotes.
_WORDS = {
    **dict.fromkeys(("no", "off", "false"), "none"),
    **dict.fromkeys(("yes", "on", "true"), "auto"),
    "newest": LATEST,
}
_CASE_SENSITIVE = ("url", "fingerprint")  # types of variables
# Dates are the longest numbers in versions; Python refuses to read one of thousands of digits.
_VERSION = re.compile(r"\d{1,14}(\.\d{1,14})*(\.?(post|rc|a|b)\d{1,14})?", re.ASCII)
_NUMBER = re.compile(r"\d+(\.\d+)+|\d+([,-]\d+)*", re.ASCII)  # with hyphens in package names, as in cuda-toolkit-12-6
_BUILD = re.compile(r"^cu(\d\d)(\d)$")  # as PyTorch names its builds: cu126 is for CUDA 12.6
# Names of others that also say something for which there is another variable: 2.7.1+cu126, nvidia-driver-535-open.
_MORE = {
    "pytorch": ("gpu_stack_pytorch_cuda", re.compile(r"\+(cu\d{3})$")),
    "driver": ("gpu_stack_driver_kernel_modules", re.compile(r"-(open)$")),
}
_TOOLKITS = re.compile(r"(\d+\.\d+[\d.]*)(?: *[,;+&] *| and | )(\d+\.\d+[\d.]*)", re.ASCII)
_UNRELEASED = re.compile(r"nightly|dev|git|main|master|source")
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/\S+")
# PCI addresses as sysfs, lspci (no domain) and nvidia-smi (a longer one) print them.
_ADDRESS = re.compile(r"(?:(?:[0-9a-f]{4})?([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
_GPU = re.compile(_ADDRESS.pattern + "|[0-9a-f]{4}:[0-9a-f]{4}")
_FINGERPRINT = re.compile(r"[0-9A-Fa-f]{40}")


@dataclasses.dataclass(frozen=True)
class Reading:
    """A request as it was understood. errors and notes: by the name of the variable, without its prefix."""

    request: Request
    errors: dict[str, str]
    notes: dict[str, str]


def asking(**values: str) -> Request:
    """Return the request for some variables, as text, and the defaults of the others; raises KeyError for a name."""
    return Request({name: variable.default for name, variable in of_request().items()}).but(**values)


def read(values: Mapping[str, Any], catalog: Catalog) -> Reading:
    """Return the request with the defaults in place of invalid values, the errors and what was understood.

    values: by the name of the variable, without its prefix; catalog: where the examples in the errors are from.
    """
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
        expected = _expected(variable, text, catalog)
        if expected:
            errors[name] = f"{variable.name} is {shown(values[name])}; expected {expected}"
            continue
        valid[name] = text
        if note:
            notes[name] = f"{variable.name} is {note}"
    return Reading(asking(**valid), errors, notes)


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
    if variable.type == "gpus":
        return _gpus(value), ""
    if isinstance(value, (list, tuple, Mapping)):
        return "", ""
    text = str(value).strip()
    if variable.type == "bool" and text.lower() in (*_TRUE, *_FALSE):
        return str(text.lower() in _TRUE).lower(), ""
    meant, words = _WORDS.get(text.lower()), variable.choices if variable.type == "version" else {}
    if LATEST in (meant, text.lower()) and LATEST not in words:  # no component, of which nothing stays
        meant = "auto"
    if meant in words:
        return str(meant), f"{text.lower()}, which means {meant}"
    return (text if variable.type in _CASE_SENSITIVE else text.lower()), ""


def _gpus(value: Any) -> str:
    """Return the names of GPUs as text with commas, addresses as sysfs has them."""
    names = value if isinstance(value, (list, tuple)) else re.split(r"[,\s]+", str(value))
    texts = [str(name).strip().lower() for name in names]
    found = [(text, _ADDRESS.fullmatch(text)) for text in texts]
    return ",".join(f"{match[1] or '0000'}:{match[2]}" if match else text for text, match in found) or "none"


def _expected(variable: Variable, text: str, catalog: Catalog) -> str | None:
    """Return what is expected instead of a value; None if it is valid."""
    words = tuple(variable.choices)
    if text in words:
        return None
    if variable.type == "choice":
        return f"one of {', '.join(words)}{spelling.hint(text, words)}"
    if variable.type == "version":
        return _expected_of_version(variable, text, catalog)
    if variable.type == "gpus":
        wrong = [name for name in text.split(",") if not _GPU.fullmatch(name)]
        return f"{variable.expected}, not {', '.join(wrong)}" if wrong else None
    accepts = {
        "bool": text in ("true", "false"),
        "count": text.isdecimal() and len(text) < 10 and int(text) >= variable.minimum,
        "url": bool(URL.fullmatch(text)),
        "fingerprint": bool(_FINGERPRINT.fullmatch(text.replace(" ", ""))),
    }
    return None if accepts[variable.type] else variable.expected or "true or false"


def _expected_of_version(variable: Variable, text: str, catalog: Catalog) -> str | None:
    if _VERSION.fullmatch(text):
        return None
    words = tuple(variable.choices)
    # Input methods for Chinese and Japanese type digits and dots of full width.
    number = _NUMBER.search(_BUILD.sub(r"\1.\2", unicodedata.normalize("NFKC", text)))
    near = f"; did you mean {re.sub('[,-]', '.', number.group())}?" if number else spelling.hint(text, words)
    example = published(CHOICES, catalog, variable.option).example()
    part = BY_NAME.get(variable.option)
    if text.startswith("-"):
        near = ""
    elif number and (more := _more(variable, text)):
        near = f"; did you mean {number.group()} with {more}?"
    elif variable.option == "cuda" and (both := _TOOLKITS.fullmatch(text)):
        near = f"; for two side by side, run with {both[1]} and then {both[2]}: gpu_stack_keep_cuda says how many stay"
    elif part in FRAMEWORKS and _UNRELEASED.search(text):
        near = f"; for a build that is no release, {part.role}_lock names its lock file"
    return f"{', '.join(words)}, a version or the first parts of one, such as {example}{near}"


def _more(variable: Variable, text: str) -> str:
    """Return what else a name of others asks for, as a setting; empty if it is a version alone."""
    name, asks = _MORE.get(variable.option, ("", re.compile("(?!)")))
    found = asks.search(text)
    return f"{name}=" + _BUILD.sub(r"\1.\2", found.group(1)) if found else ""
