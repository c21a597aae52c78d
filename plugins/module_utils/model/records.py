# Copyright: the gpuhost contributors
# SPDX-License-Identifier: Apache-2.0
"""Write records as JSON at the edge of a process. Used on the managed host and on the controller, which reads them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Mapping

from ansible_collections.gpuhost.stack.plugins.module_utils.model.package import Package

# Metadata of a field with the default None: in that case its key is absent from the JSON, and not null.
OMITTED = {"omitted": True}


def to_json(value: Any) -> Any:
    """Return dataclasses, mappings and sequences, however nested, as dicts and lists.

    The key of a field is its name, or `key` of its metadata. A named tuple is a list, a Package its text.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Package):
        return str(value)
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        items = [(key, getattr(value, name), omitted) for name, key, omitted in _fields(kind)]
        return {key: to_json(item) for key, item, omitted in items if item is not None or not omitted}
    return value


@functools.lru_cache(maxsize=None)
def _fields(kind: Any) -> list[tuple[str, str, bool]]:
    """Return (name, key in JSON, whether it is omitted without a value) of each field; cached, as they take time."""
    fields = dataclasses.fields(kind)
    return [(field.name, field.metadata.get("key", field.name), "omitted" in field.metadata) for field in fields]
